"""Reading times: least squares and likelihoods against plain ones, planted effects, noise."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal

from lmdyn.analysis import reading_fit


def drawn(n=120, readers=6, effect=8.0, seed=0, spread=25.0):
    """Times of readers with an intercept of their own, surprisal that hangs together with length."""
    rng = np.random.default_rng(seed)
    length, frequency = rng.integers(2, 12, n).astype(float), rng.normal(4, 1, n)
    surprisal = 2 + 0.5 * length - frequency + rng.normal(0, 2, n)
    groups = rng.integers(0, readers, n)
    own = rng.normal(0, spread, readers)[groups]
    times = 200 + 4 * length + effect * surprisal + own + rng.normal(0, 20, n)
    return times, surprisal, np.column_stack([length, frequency]), groups


def design(baseline, *more):
    """An intercept, the predictors, their product, and more."""
    return np.column_stack([np.ones(len(baseline)), baseline, baseline.prod(1), *more])


def r_squared(x, y):
    left = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    return 1 - (left @ left) / ((y - y.mean()) @ (y - y.mean()))


def dense_likelihood(x, y, groups):
    """The largest likelihood over coefficients and both variances, by the whole covariance matrix."""
    same = (groups[:, None] == groups[None]).astype(float)

    def negative(log_ratio):
        shape = np.eye(len(y)) + np.exp(log_ratio) * same
        inverse = np.linalg.inv(shape)
        left = y - x @ np.linalg.solve(x.T @ inverse @ x, x.T @ inverse @ y)
        variance = left @ inverse @ left / len(y)
        return -multivariate_normal(np.zeros(len(y)), variance * shape).logpdf(left)

    return -minimize_scalar(negative, bounds=(-12, 12), method="bounded").fun


def test_partial_r2_is_that_of_two_regressions():
    y, x, baseline, _ = drawn()
    without, with_it = r_squared(design(baseline), y), r_squared(design(baseline, x), y)
    fit = reading_fit(y, x, baseline)
    assert fit.partial_r2 == pytest.approx((with_it - without) / (1 - without), abs=1e-12)
    rows = design(baseline, x)
    solved = np.linalg.lstsq(rows, y, rcond=None)[0]
    left = y - rows @ solved
    variance = left @ left / (len(y) - rows.shape[1])
    assert fit.slope == pytest.approx(solved[-1])
    assert fit.slope_error == pytest.approx(math.sqrt(variance * np.linalg.inv(rows.T @ rows)[-1, -1]))
    assert fit.observations == len(y)


def test_without_groups_the_gain_is_that_of_least_squares():
    y, x, baseline, _ = drawn()
    fit = reading_fit(y, x, baseline)
    assert fit.delta_log_likelihood == pytest.approx(-0.5 * math.log(1 - fit.partial_r2))


def test_random_intercepts_by_the_whole_covariance_matrix():
    y, x, baseline, groups = drawn()
    expected = dense_likelihood(design(baseline, x), y, groups) - dense_likelihood(
        design(baseline), y, groups
    )
    fit = reading_fit(y, x, baseline, groups)
    assert fit.delta_log_likelihood == pytest.approx(expected / len(y), abs=1e-7)
    # they matter here
    assert fit.delta_log_likelihood > 1.1 * reading_fit(y, x, baseline).delta_log_likelihood
    none = drawn(spread=0.0)
    assert reading_fit(*none).delta_log_likelihood == pytest.approx(
        reading_fit(*none[:3]).delta_log_likelihood, abs=2e-3
    )


def test_noise_adds_what_chance_says():
    rng = np.random.default_rng(1)
    fits = []
    for seed in range(400):
        y, _, baseline, groups = drawn(n=40, seed=seed)
        fits.append(reading_fit(y, rng.normal(size=len(y)), baseline, groups))
    found = np.array([fit.partial_r2 for fit in fits])
    assert fits[0].chance == pytest.approx(1 / 36)  # 40 rows less intercept, two predictors and their product
    assert abs(found.mean() - fits[0].chance) < 3 * found.std() / math.sqrt(len(found))
    assert min(fit.delta_log_likelihood for fit in fits) > -1e-9


def test_units_and_order_do_not_matter():
    y, x, baseline, groups = drawn()
    fit = reading_fit(y, x, baseline, groups)
    order = np.random.default_rng(2).permutation(len(y))
    other = reading_fit(y[order] / 1000, 5 + x[order] * 0.7, 3 - 1e3 * baseline[order], groups[order])
    for name in ("partial_r2", "delta_log_likelihood"):
        assert getattr(other, name) == pytest.approx(getattr(fit, name), abs=1e-8)
    assert other.slope == pytest.approx(fit.slope / 700)
    named = reading_fit(y, x, baseline, np.array(list("abcdef"))[groups])
    assert named == fit


def test_missing_numbers_and_predictors_that_say_nothing():
    y, x, baseline, groups = drawn()
    whole = reading_fit(y, x, baseline, groups)
    more = reading_fit(
        np.append(y, [np.nan, 1.0, 2.0]),
        np.append(x, [1.0, np.nan, np.inf]),
        np.vstack([baseline, baseline[:3]]),
        np.append(groups, [0, 0, 0]),
    )
    assert more == whole
    constant = reading_fit(y, x, np.column_stack([baseline, np.ones(len(y))]), groups)
    assert constant.partial_r2 == pytest.approx(whole.partial_r2)
    assert constant.chance == whole.chance
    determined = reading_fit(y, baseline[:, 0] * baseline[:, 1], baseline)
    assert (determined.partial_r2, determined.delta_log_likelihood) == (0.0, 0.0)
    assert math.isnan(determined.slope)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((np.ones(9), np.arange(9.0), np.arange(9.0)[:, None]), "expected different times of more than 3 words"),
        ((np.arange(3.0), np.arange(3.0) % 2, np.arange(3.0)[:, None]), "with all predictors, got 3"),
        ((np.arange(3.0), np.arange(4.0), np.ones((3, 1))), r"baseline \(n, k\), got \(3,\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_fitted(given, says):
    with pytest.raises(ValueError, match=says):
        reading_fit(*given)
