"""The Kaplan–Yorke dimension: known values, and spectra that do not determine it."""

import math

import pytest
import torch

from lmdyn.analysis import kaplan_yorke_dimension

F64 = torch.float64


class TestKaplanYorke:
    def test_known(self):
        nan, inf = math.nan, math.inf
        cases = [
            ([0.4192, -1.6232], 1 + 0.4192 / 1.6232),
            ([0.9056, 0.0, -14.5723], 2 + 0.9056 / 14.5723),  # Lorenz
            ([0.5, -0.5, -1.0], 2.0),
            ([-0.1, -0.2], 0.0),
            ([0.0, -1.0], 1.0),
            ([0.5, -inf], 1.0),
            ([0.5, 0.1], nan),
            ([nan, 0.1], nan),
        ]
        for exponents, expected in cases:
            found = kaplan_yorke_dimension(torch.tensor(exponents, dtype=F64))
            assert found.item() == pytest.approx(expected, nan_ok=True)

    def test_a_map_that_keeps_volumes_fills_its_space(self):
        zeros = torch.zeros(3, 2, dtype=F64)
        assert kaplan_yorke_dimension(zeros, state_size=2).tolist() == [2, 2, 2]
