import math

import pytest
import torch

from lmdyn.analysis.parameters.line import point_between, point_distance


def test_the_ends_of_a_line_are_exact():
    torch.manual_seed(0)
    start, end = {"w": torch.randn(50)}, {"w": torch.randn(50)}
    assert torch.equal(point_between(start, end, 0.0)["w"], start["w"])
    assert torch.equal(point_between(start, end, 1.0)["w"], end["w"])
    torch.testing.assert_close(point_between(start, end, 0.3)["w"], 0.7 * start["w"] + 0.3 * end["w"])
    with pytest.raises(ValueError, match=r"one end lacks v"):
        point_between(start, {"v": end["w"]} | end, 0.5)


def test_distance_and_cosine_are_those_of_the_flat_vectors():
    torch.manual_seed(0)
    one = {"a": torch.randn(3, 4), "b": torch.randn(5)}
    two = {"a": torch.randn(3, 4), "b": torch.randn(5)}
    flat = [torch.cat([p[name].flatten() for name in ("a", "b")]).double() for p in (one, two)]
    found = point_distance(one, two)
    cosine = float(torch.cosine_similarity(*flat, dim=0))
    assert found == pytest.approx({"distance": float((flat[0] - flat[1]).norm()), "cosine": cosine})
    scaled = point_distance(one, {name: -3 * value for name, value in one.items()})
    assert scaled == pytest.approx({"distance": 4 * float(flat[0].norm()), "cosine": -1})
    zero = point_distance(one, {name: 0 * value for name, value in one.items()})
    assert math.isnan(zero["cosine"])
    broken = point_distance(one, {**two, "b": torch.full((5,), torch.nan)})
    assert all(map(math.isnan, broken.values()))
