"""Allocation of a change of the loss: quadratic losses in closed form, the path's and the line's shares, quadrature."""

import math
from itertools import pairwise

import pytest
import torch

from lmdyn.analysis.landscape.followed_path import AllocationSums
from lmdyn.analysis.landscape.line_integral import LineIntegral, LinePoint, integrate_line, is_void
from lmdyn.analysis.landscape.loss_change import loss_change_allocation
from lmdyn.analysis.parameters.loss_gradient import LossGradient


def gradient_of(loss):
    """The gradient of a function of one vector "w", by autograd."""

    def gradient(values):
        w = values["w"].clone().requires_grad_(True)
        value = loss(w)
        return LossGradient(value.item(), 1, {"w": torch.autograd.grad(value, w)[0]})

    return gradient


def vector(*entries):
    return {"w": torch.tensor(entries, dtype=torch.float64)}


def test_a_quadratic_loss_in_closed_form():
    torch.manual_seed(0)
    root = torch.randn(6, 6, dtype=torch.float64)
    hessian, linear = root @ root.T, torch.randn(6, dtype=torch.float64)
    start, end = torch.randn(2, 6, dtype=torch.float64)
    found = loss_change_allocation(
        gradient_of(lambda w: w @ hessian @ w / 2 + linear @ w), {"w": start}, {"w": end}
    )
    moved = end - start
    at = {name: hessian @ w + linear for name, w in (("start", start), ("middle", (start + end) / 2))}
    assert found.points == 3
    torch.testing.assert_close(found.allocation["w"], at["middle"] * moved, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.first_order["w"], at["start"] * moved, rtol=0, atol=1e-10)
    assert abs(found.residual) < 1e-10
    # the control: to first order, what is missing is the curvature's half
    missing = found.loss_change - float(found.first_order["w"].sum())
    assert missing == pytest.approx(float(moved @ hessian @ moved) / 2, rel=1e-10)
    assert abs(missing) > 0.1


def test_path_and_line_agree_in_their_sum_and_a_parameter_changes_sides():
    """L = x·y − 1.2 x from (0, 0) to (1, 2): x helps along the line, and hurts on the path over (0, 2)."""

    def shares(*points):
        total = torch.zeros(2, dtype=torch.float64)
        gradient = gradient_of(lambda w: w[0] * w[1] - 1.2 * w[0])
        for a, b in pairwise(points):
            total += loss_change_allocation(gradient, vector(*a), vector(*b)).allocation["w"]
        return total

    line = shares((0, 0), (1, 2))
    path = shares((0, 0), (0, 2), (1, 2))
    torch.testing.assert_close(line, torch.tensor([-0.2, 1.0], dtype=torch.float64))
    torch.testing.assert_close(path, torch.tensor([0.8, 0.0], dtype=torch.float64))
    assert float(line.sum()) == pytest.approx(float(path.sum()), abs=1e-12)


def test_errors_of_opposite_signs_are_seen():
    """sin 8x − sin 8y from (0, 0) to (1, 1): the loss does not change, and x and y pay ± sin 8."""
    gradient = gradient_of(lambda w: (8 * w[0]).sin() - (8 * w[1]).sin())
    found = loss_change_allocation(gradient, vector(0, 0), vector(1, 1))
    exact = torch.tensor([math.sin(8), -math.sin(8)], dtype=torch.float64)
    torch.testing.assert_close(found.allocation["w"], exact, rtol=0, atol=1e-3)
    assert not found.void
    # the control: the residual is 0 for any number of points, of which three give the wrong sign
    three = loss_change_allocation(gradient, vector(0, 0), vector(1, 1), most_points=3)
    assert three.allocation["w"].tolist() == pytest.approx([-2.3468, 2.3468], abs=1e-4)
    assert three.residual == found.residual == 0
    assert three.void
    # by class: the same parameter pays ± for two classes, and nothing for both together
    nothing = {"w": torch.zeros(1, dtype=torch.float64)}
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
    classes = integrate_line(lambda a: LinePoint(0.0, nothing, {"c": 8 * math.cos(8 * a) * signs}))
    torch.testing.assert_close(classes.groups["c"], exact, rtol=0, atol=1e-3)


def test_points_are_added_until_the_sum_is_right():
    seen = []

    def step(a, width):  # a loss that falls within a narrow part of the line
        seen.append(a)
        return LinePoint(
            math.tanh((a - 0.4) / width),
            {"w": torch.tensor([1 / (width * math.cosh((a - 0.4) / width) ** 2)], dtype=torch.float64)},
        )

    assert integrate_line(lambda a: step(a, 4.0)).points == 3
    assert integrate_line(lambda a: step(a, 2.0)).points == 5
    seen.clear()
    found = integrate_line(lambda a: step(a, 0.1))
    assert found.points in (9, 17)
    assert abs(found.residual) <= 0.01 * abs(found.loss_change)
    assert sorted(seen) == [i / (found.points - 1) for i in range(found.points)]  # each point once
    narrow = integrate_line(lambda a: step(a, 0.002))
    assert narrow.points == 17
    assert narrow.void
    assert integrate_line(lambda a: step(a, 0.002), most_points=5).points == 5


def test_composite_rule_is_that_of_scipy():
    from scipy.integrate import simpson

    def point(a):
        return LinePoint(
            100 * a,
            {"w": torch.tensor([math.sin(9 * a), math.exp(a)], dtype=torch.float64)},
            {"g": torch.tensor(a**5)},
        )

    for points in (3, 5, 9, 17):
        grid = [i / (points - 1) for i in range(points)]
        found = integrate_line(point, points)  # the loss does not fit, so that all points are taken
        expected = [
            simpson([math.sin(9 * a) for a in grid], x=grid),
            simpson([math.exp(a) for a in grid], x=grid),
        ]
        assert found.slopes["w"].tolist() == pytest.approx(expected, abs=1e-12)
        assert float(found.groups["g"]) == pytest.approx(simpson([a**5 for a in grid], x=grid), abs=1e-6)


def test_a_diverged_end_is_void():
    found = loss_change_allocation(gradient_of(lambda w: (w**2).sum()), vector(1.0), vector(math.nan))
    assert math.isnan(found.residual)
    assert integrate_line(lambda a: LinePoint(math.nan if a else 0.0, {"w": torch.zeros(1).double()})).void


def test_other_names_and_shapes_are_refused():
    gradient = gradient_of(lambda w: (w**2).sum())
    with pytest.raises(ValueError, match=r"same names at both ends .* one end lacks v, w"):
        loss_change_allocation(gradient, vector(1.0), {"v": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"one shape of parameter 'w' at both ends, got \(1,\) and \(2,\)"):
        loss_change_allocation(gradient, vector(1.0), vector(1.0, 2.0))


@pytest.mark.parametrize(("residual", "void"), [(0.9e-4, False), (1.1e-4, True), (0.051, True)])
def test_a_residual_is_void_from_its_bounds_on(residual, void):
    assert is_void((residual, 0.0 if residual < 0.01 else 1.0)) is void
    assert is_void((-residual, 0.0 if residual < 0.01 else -1.0)) is void


def test_rows_without_a_class_are_the_rest():
    line = LineIntegral(
        {"w": torch.tensor([[1.0, 1.0], [4.0, 0.0], [8.0, 8.0]])}, {}, {}, 22.0, 22.0, 22.0, 3
    )
    sums = AllocationSums({"band": (torch.tensor([0, -1, 1]), 2)}, "w")
    sums.add(line)
    sums.add(line)
    assert sums.row_parts["band"].tolist() == [4.0, 32.0, 8.0]


def test_updates_that_cancel_are_measured_by_their_own_size():
    """Up and down by 1: errors of 0.01 each are 1 % of the way, whatever part of the change; those of 0.06 are void."""

    def line(change, total):
        return LineIntegral({"w": torch.tensor([total])}, {}, {}, total, total, change, 3)

    sums = AllocationSums()
    sums.add(line(1.0, 1.01))
    sums.add(line(-1.0, -0.99))
    assert (sums.loss_change, sums.gross_change) == (0, 2)
    assert sums.residual == pytest.approx(0.02)
    assert not sums.void
    continued = AllocationSums()
    continued.load(sums.state())
    assert continued.gross_change == 2
    assert continued.gross_residual == pytest.approx(0.02)
    old = {name: value for name, value in sums.state().items() if not name.startswith("gross_")}
    continued.load(old | {"loss_change": -0.5, "total": -0.25})  # of a version that did not keep them
    assert (continued.gross_change, continued.gross_residual) == (0.5, 0.25)
    cancelling = AllocationSums()
    cancelling.add(line(1.0, 1.06))
    cancelling.add(line(-1.0, -1.06))
    assert cancelling.residual == pytest.approx(0)  # errors that cancel do not make up for each other
    assert cancelling.void
