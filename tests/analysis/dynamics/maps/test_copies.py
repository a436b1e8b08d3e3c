"""Copies in another precision: complex numbers stay complex."""

import pytest
import torch
from torch import nn

from lmdyn.analysis.dynamics.maps.copies import private_copy


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_complex_buffers_keep_their_imaginary_part(dtype):
    layer = nn.Linear(2, 2)
    angles = torch.arange(6, dtype=torch.float64).reshape(3, 2)
    layer.register_buffer("rotary", torch.polar(torch.ones_like(angles), angles).to(torch.complex64))
    layer.register_buffer("number", torch.tensor(3))
    copied = private_copy(layer, dtype, "sdpa")
    assert copied.rotary.dtype == dtype.to_complex()
    torch.testing.assert_close(copied.rotary.to(torch.complex64), layer.rotary, rtol=0, atol=0)
    assert copied.weight.dtype == dtype
    assert copied.number.dtype == torch.int64
    assert layer.rotary.dtype == torch.complex64
