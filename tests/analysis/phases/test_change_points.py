import numpy as np
import pytest

from lmdyn.analysis.phases.change_points import change_points
from lmdyn.analysis.phases.smooth_course import fit_monotone

pytestmark = pytest.mark.slow

X = np.linspace(0, 4, 41)  # ten a decade
STEPS = 10**X


def bent(*breaks, slopes=(0.0, 1.0, 0.0, -1.0)):
    y = slopes[0] * X
    for at, before, after in zip(breaks, slopes, slopes[1:], strict=False):
        y = y + (after - before) * np.maximum(0, X - at)
    return y


SMOOTH = {
    "power law": 10 ** (-0.3 * X),
    "sigmoid": 1 / (1 + np.exp(-3 * (X - 2))),
    "slow rise": np.log1p(STEPS / 100),
    "constant": 0 * X,
}


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_monotone_curves_have_none(name):
    """Of 10 noises each, at a level of 5 %: 0.5 expected, at most 2 (p = 0.01 for 3 or more)."""
    found = 0
    for seed in range(10):
        noise = 0.02 * np.random.default_rng(seed).standard_normal(len(X))
        found += not change_points(STEPS, SMOOTH[name] + noise, resamplings=39, seed=seed).smooth
    assert found <= 2


@pytest.mark.parametrize("breaks", [(1.5,), (2.6,), (1.2, 2.8)])
def test_planted_change_points_are_found_and_covered(breaks):
    covered, number, right = 0, 0, 0
    for seed in range(5):
        noise = 0.02 * np.random.default_rng(seed).standard_normal(len(X))
        found = change_points(STEPS, bent(*breaks) + noise, resamplings=39, seed=seed)
        assert not found.smooth
        if len(found.steps) != len(breaks):  # about 1 in 30
            continue
        right += 1
        assert np.log10(found.steps) == pytest.approx(breaks, abs=0.15)
        expected = [0.0, 1.0, 0.0][: len(breaks) + 1]
        assert found.slopes == pytest.approx(expected, abs=0.1)
        for low, at, high in zip(found.low, breaks, found.high, strict=True):
            number += 1
            covered += low <= 10 ** (at + 0.05) and 10 ** (at - 0.05) <= high  # of observations a tenth apart
    assert right >= 4
    assert covered / number >= 0.8


def test_a_step_is_no_smooth_course():
    found = change_points(STEPS, (X > 2) + 0.02 * np.random.default_rng(0).standard_normal(len(X)))
    assert not found.smooth
    assert len(found.steps) == 2
    assert found.steps[0] < 100 < found.steps[1] * 1.3


def test_a_smooth_course_that_turns_is_not_monotone():
    found = change_points(STEPS, -((X - 2) ** 2) + 0.02 * np.random.default_rng(0).standard_normal(len(X)))
    assert not found.smooth


def shared_noise(correlation, seed):
    """First-order autoregression of variance 1, step by step."""
    noise = np.random.default_rng(seed).standard_normal(len(X))
    found = noise.copy()
    for i in range(1, len(X)):
        found[i] = correlation * found[i - 1] + (1 - correlation**2) ** 0.5 * noise[i]
    return found


def test_noise_that_neighbours_share_is_no_change():
    """Of 12 constant curves with a correlation of 0.5, 7 would change if noise were taken as independent."""
    found = [
        change_points(STEPS, SMOOTH["constant"] + 0.02 * shared_noise(0.5, seed), resamplings=39, seed=seed)
        for seed in range(12)
    ]
    assert sum(not one.smooth for one in found) <= 3
    assert np.mean([one.correlation for one in found]) == pytest.approx(0.5, abs=0.1)


def test_independent_noise_has_little_correlation_and_bends_are_found_in_shared_noise():
    found = [
        change_points(STEPS, bent(1.5) + 0.02 * shared_noise(0.5, seed), resamplings=39) for seed in range(6)
    ]
    assert sum(not one.smooth for one in found) >= 4
    independent = [
        change_points(STEPS, bent(1.5) + 0.02 * shared_noise(0.0, seed), resamplings=39) for seed in range(6)
    ]
    assert np.mean([one.correlation for one in independent]) < 0.2
    assert change_points(STEPS, bent(1.5), resamplings=39).correlation == 0  # no noise


def test_scale_offset_direction_and_order_do_not_matter():
    noise = 0.02 * np.random.default_rng(3).standard_normal(len(X))
    y = bent(1.5) + noise
    one = change_points(STEPS, y)
    order = np.random.default_rng(0).permutation(len(X))
    for other in (
        change_points(STEPS, 1e6 * y - 5e5), change_points(STEPS, -y), change_points(STEPS[order], y[order])
    ):  # fmt: skip
        assert other.steps == pytest.approx(one.steps)
        assert other.p_value == one.p_value
    assert change_points(STEPS, 7 * y).slopes == pytest.approx([7 * s for s in one.slopes])
    assert one.fitted == pytest.approx(y, abs=0.1)
    assert change_points(STEPS, 1e6 * y).fitted == pytest.approx(1e6 * y, abs=1e5)


def test_step_zero_and_gaps_are_left_out():
    noise = 0.02 * np.random.default_rng(3).standard_normal(len(X))
    y = bent(1.5) + noise
    one = change_points(STEPS, y)
    more = change_points([0, *STEPS, 2e4], [99.0, *y, np.nan])
    assert more.steps == one.steps


@pytest.mark.parametrize(
    ("steps", "values", "message"),
    [
        (
            10 ** np.linspace(0, 4, 20),
            np.ones(20),
            "at least 8 observations per decade of steps.*31 from step 1 to 10,000.*got 20",
        ),
        ([1, 2, 3], [1, 2, 3], "12 in total, got 3"),
        ([*STEPS, 1.0], [*X, 1.0], "some steps occur twice"),
        (STEPS, X[1:], r"expected steps and values \(n,\), got \(41,\) and \(40,\)"),
    ],
)
def test_curves_that_are_too_short_are_refused(steps, values, message):
    with pytest.raises(ValueError, match=message):
        change_points(steps, values)


@pytest.mark.parametrize(
    "setting", [{"most": 0}, {"most": 4}, {"level": 0.0}, {"spacing": 0.0}, {"resamplings": 5}]
)
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(ValueError, match="expected most from 1 to 3"):
        change_points(STEPS, X, **setting)


def test_the_smooth_course_is_monotone_and_fits_smooth_curves():
    generator = np.random.default_rng(0)
    for y in SMOOTH.values():
        fitted = fit_monotone(X, y, 0.5)
        assert np.abs(fitted - y).max() < 0.01 * (np.ptp(y) or 1)
        differences = np.diff(fit_monotone(X, y + 0.3 * generator.standard_normal(len(X)), 0.5))
        assert (differences >= -1e-9).all() or (differences <= 1e-9).all()


def test_the_smooth_course_does_not_follow_a_bend():
    """The control: what is to be told apart."""
    sharp = np.minimum(1, np.maximum(0, 8 * (X - 2)))
    assert np.abs(fit_monotone(X, sharp, 0.5) - sharp).max() > 0.05
