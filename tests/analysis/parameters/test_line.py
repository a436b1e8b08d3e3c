import pytest
import torch

from lmdyn.analysis.parameters.line import point_between


def test_the_ends_of_a_line_are_exact():
    torch.manual_seed(0)
    start, end = {"w": torch.randn(50)}, {"w": torch.randn(50)}
    assert torch.equal(point_between(start, end, 0.0)["w"], start["w"])
    assert torch.equal(point_between(start, end, 1.0)["w"], end["w"])
    torch.testing.assert_close(point_between(start, end, 0.3)["w"], 0.7 * start["w"] + 0.3 * end["w"])
    with pytest.raises(ValueError, match=r"got \['v'\] at one of them only"):
        point_between(start, {"v": end["w"]} | end, 0.5)
    with pytest.raises(ValueError, match=r"got \(50,\) and \(2,\)"):
        point_between(start, {"w": torch.ones(2)}, 0.5)
