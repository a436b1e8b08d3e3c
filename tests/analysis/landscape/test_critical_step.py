import math

import numpy as np
import pytest

from lmdyn.analysis.landscape.critical_step import critical_step


@pytest.mark.parametrize("first", [1e-4, 0.3, 50.0])
def test_a_quadratic_loss_is_crossed_at_two_slopes_by_its_curvature(first):
    """2⟨g, Δ⟩ / ⟨Δ, HΔ⟩ for a direction that is not the gradient; any beginning of the search."""
    generator = np.random.default_rng(0)
    root = generator.standard_normal((5, 5))
    hessian, theta = root @ root.T, generator.standard_normal(5)
    gradient = hessian @ theta
    direction = gradient + 0.3 * generator.standard_normal(5)

    def loss(step: float) -> float:
        point = theta - step * direction
        return float(point @ hessian @ point / 2)

    expected = 2 * (gradient @ direction) / (direction @ hessian @ direction)
    assert gradient @ direction > 0
    assert critical_step(loss, first) == pytest.approx(expected, rel=1e-6)


def test_along_the_gradient_the_sharpness_is_at_most_the_largest_eigenvalue():
    generator = np.random.default_rng(1)
    for _ in range(20):
        values = np.abs(generator.standard_normal(4))
        theta = generator.standard_normal(4)
        gradient = values * theta
        step = critical_step(lambda s, g=gradient, t=theta, v=values: float(v @ (t - s * g) ** 2 / 2), 0.1)
        sharpness = 2 / step
        assert sharpness == pytest.approx((gradient**2 @ values) / (gradient @ gradient), rel=1e-6)
        assert sharpness <= values.max() * (1 + 1e-6)


def test_a_loss_that_rises_at_once_has_none():
    assert math.isnan(critical_step(lambda step: step**2, 0.1))
    assert math.isnan(critical_step(lambda step: 1.0 + step, 0.1))
    assert math.isnan(critical_step(lambda step: float("nan"), 0.1))


def test_a_loss_that_never_rises_again():
    assert critical_step(lambda step: math.exp(-step), 1e-3) == math.inf


def test_rounding_is_no_descent():
    """A flat loss with noise of 1e-8: with this resolution there is no step, without it one is made up."""
    noise = np.random.default_rng(0)

    def loss(step: float) -> float:
        return 1.0 + (1e-8 * noise.standard_normal() if step else 0.0) + step**2

    assert math.isnan(critical_step(loss, 1e-2, resolution=1e-6))


def test_where_the_loss_explodes_counts_as_above():
    assert critical_step(lambda s: -s if s < 1 else math.inf, 0.1) == pytest.approx(1, rel=2e-3)
    assert critical_step(lambda s: -s if s < 1 else math.nan, 0.1) == pytest.approx(1, rel=2e-3)


def test_a_first_step_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="first is 0: expected a step above 0"):
        critical_step(lambda step: step, 0.0)
