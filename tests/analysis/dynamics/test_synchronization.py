"""Deviation, offset and floor; the map of one token, and the stability of synchronization."""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertModel, BertConfig, BertModel
from transformers.models.albert.modeling_albert import AlbertLayer

from lmdyn.analysis.dynamics import synchronization as S
from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.dynamics.synchronized_map import SynchronizedMap, synchronized_map, transverse_exponents
from lmdyn.analysis.orbits.trajectories import iterate


def encoder(scale=0.3, attention="sdpa", dtype=torch.float64, **changes):
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "embedding_size": 4, "hidden_size": 16, "intermediate_size": 32}
    model = AlbertModel(AlbertConfig(**{**sizes, "num_attention_heads": 2, **changes})).eval()
    with torch.no_grad():
        for p in model.encoder.albert_layer_groups.parameters():
            if p.ndim > 1:
                p.normal_(std=scale)
            else:
                p.add_(torch.randn(p.shape) * 0.1)
    return EncoderMap(model, {"input_ids": torch.arange(5)[None]}, dtype=dtype, attention=attention)


def states(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)


# ---------------------------------------------------------------------------------------------- deviation


def test_deviation_is_equation_5():
    x = states(3, 5, 4)
    naive = [np.mean([np.linalg.norm(v - row.mean(0)) for v in row]) for row in x.numpy()]
    np.testing.assert_allclose(S.deviation(x), naive, rtol=1e-14)
    assert S.deviation(x[0]).shape == ()
    shifted = x + states(3, 1, 4) * 1e6
    np.testing.assert_allclose(S.deviation(shifted), naive, rtol=1e-8)
    assert S.deviation(x[:, :1]).tolist() == [0.0] * 3


def test_offset_is_the_first_time_below_the_threshold():
    d = torch.tensor([[1.0, 1.0, 1e-9], [1e-5, 1.0, 1.0], [9e-6, 1.0, 1.0], [1.0, 1.0, 1.0]])
    assert S.synchronization_offset(d, floor=1e-8).tolist() == [2, -1, 0]
    assert S.synchronization_offset(d, floor=1e-8, threshold=2e-5).tolist() == [1, -1, 0]


@pytest.mark.parametrize("floor", [1e-5, 1e-3, float("nan")])
def test_a_floor_above_the_threshold_is_an_error(floor):
    with pytest.raises(ValueError, match="Use float64"):
        S.synchronization_offset(torch.zeros(2, 2), floor=floor)


def test_floor_of_single_and_double_precision():
    """Float32 keeps tokens apart by about its own spacing, float64 by nine orders of magnitude less."""
    floors = []
    for dtype in (torch.float32, torch.float64):
        f = encoder(0.1, dtype=dtype)
        floors.append(float(S.deviation_floor(f, states(2, 5, 16, dtype=dtype))))
    assert 1e-8 < floors[0] < 1e-5
    assert 0 < floors[1] < 1e-13


def test_synchronize_is_iterate_and_look():
    f, x = encoder(0.1), states(5, 5, 16)
    x[0] *= 10
    naive = iterate(f, x, 400, {"d": S.deviation}).observables["d"]
    expected = S.synchronization_offset(naive, 0.0)
    found = S.synchronize(f, x, 400, batch_size=2)
    assert found.offset.tolist() == expected.tolist()
    assert bool((expected >= 0).any())
    for row, t in enumerate(expected.tolist()):
        there = x[row : row + 1]
        for _ in range(t if t >= 0 else 400):
            there = f(there)
        torch.testing.assert_close(found.token[row], there[0].mean(0), rtol=0, atol=1e-12)


# ---------------------------------------------------------------------------------------------- the map of one token


@pytest.mark.parametrize("tokens", [1, 2, 7, 32])
def test_reduced_map_is_the_layer_on_equal_tokens(tokens):
    f = encoder()
    reduced = synchronized_map(f)
    x = states(4, 16)
    full = x[:, None].expand(-1, tokens, -1)
    for _ in range(5):
        x, full = reduced(x), f(full)
        torch.testing.assert_close(x[:, None].expand_as(full), full, rtol=0, atol=1e-12)


def test_reduced_map_of_a_layer():
    torch.manual_seed(0)
    config = AlbertConfig(
        hidden_size=8, num_attention_heads=2, intermediate_size=8, attn_implementation="sdpa"
    )
    layer = AlbertLayer(config).eval()
    x = states(3, 8, dtype=torch.float32)
    torch.testing.assert_close(
        synchronized_map(layer)(x), layer(x[:, None])[:, 0].detach(), rtol=0, atol=1e-6
    )
    with pytest.raises(ValueError, match="expected an ALBERT layer"):
        synchronized_map(layer.attention)


def test_models_without_shared_layers_have_no_reduced_map():
    sizes = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    model = BertModel(BertConfig(**sizes, num_hidden_layers=2))
    with pytest.raises(ValueError, match="layers differ"):
        synchronized_map(EncoderMap(model, {"input_ids": torch.arange(5)[None]}))


class Other(nn.Module):
    """A layer whose parts have other names than ALBERT's."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.config = inner, inner.config


def test_a_shared_layer_of_another_kind_is_iterated_on_one_token():
    f = encoder()
    fused = synchronized_map(f)
    f.layers = tuple(Other(layer) for layer in f.layers)
    generic = synchronized_map(f)
    assert isinstance(fused, SynchronizedMap)
    assert not isinstance(generic, SynchronizedMap)
    x = states(3, 16)
    torch.testing.assert_close(generic(x), f(x[:, None].expand(-1, 4, -1))[:, 0], rtol=0, atol=1e-12)
    torch.testing.assert_close(generic(x), fused(x), rtol=0, atol=1e-12)


# ---------------------------------------------------------------------------------------------- transverse exponents


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.1, 0.6])
def test_transverse_exponents_are_those_of_the_full_map(scale):
    """Perturbations without a mean, on 6 tokens, grow as two opposite ones do: a direct product of Jacobians."""
    f = encoder(scale, attention="eager")
    x = states(2, 16)
    found = transverse_exponents(f, x, 5, 20)
    for row in range(2):
        token, growth = x[row], []
        u = torch.randn(16, generator=torch.Generator().manual_seed(0)).double()
        v = torch.zeros(6, 16, dtype=torch.float64)
        v[1], v[4] = u, -u
        for _ in range(20):
            full = token.expand(1, 6, -1)
            jacobian = torch.autograd.functional.jacobian(f, full).reshape(6 * 16, 6 * 16)
            after = (jacobian @ v.flatten()).reshape(6, 16)
            growth.append(float((after.norm() / v.norm()).log()))
            v, token = after / after.norm(), f(full)[0, 0]
            # rounding brings in a mean, which may grow where perturbations without one shrink
            v = v - v.mean(0)
        np.testing.assert_allclose(found[:, row], np.reshape(growth, (4, 5)).mean(1), atol=1e-6)


def test_transverse_exponent_tells_synchronization_from_parting():
    for factor in (0.5, 2.0):
        f = lambda x: torch.tanh(x.mean(1, keepdim=True)) + factor * (x - x.mean(1, keepdim=True))  # noqa: B023, E731
        found = transverse_exponents(f, states(3, 4), 2, 4)
        torch.testing.assert_close(found, torch.full((2, 3), float(np.log(factor)), dtype=torch.float64))
    with pytest.raises(ValueError, match="steps must be a multiple of tau=3, got 4: use 3 or 6 steps"):
        transverse_exponents(f, states(3, 4), 3, 4)


class TestReleasedDeviation:
    def test_per_unit(self):
        """The standard deviation over tokens, mean over units; the printed one is the mean distance."""
        x = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        expected = torch.stack([
            torch.stack([((row[:, j] - row[:, j].mean()) ** 2).mean().sqrt() for j in range(5)]).mean() for row in x
        ])  # fmt: skip
        torch.testing.assert_close(S.deviation(x, "released"), expected)
        assert (S.deviation(x) > 1.5 * S.deviation(x, "released")).all()  # by about √5
