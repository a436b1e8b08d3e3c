import numpy as np
import pytest

from lmdyn.analysis.phases.map_controls import clumping_p_value, rotated_seeds, smooth_counterpart
from lmdyn.analysis.phases.training_map import TooFewSeedsError, training_map

LEVELS = np.array([[0.0, 3.0], [4.0, 0.0], [-4.0, -3.0]])
TRANSITIONS = np.array([[0.9, 0.1, 0.0], [0.0, 0.85, 0.15], [0.05, 0.0, 0.95]])


def chains(seeds=20, steps=60, noise=0.3):
    """Seeds that go from state 0 by given probabilities, and their states."""
    generator = np.random.default_rng(0)
    states = np.zeros((seeds, steps), dtype=int)
    for one in states:
        for t in range(1, steps):
            one[t] = generator.choice(3, p=TRANSITIONS[one[t - 1]])
    values = LEVELS[states] + noise * generator.standard_normal((seeds, steps, 2))
    return values * [1.0, 100.0], states


@pytest.fixture(scope="module")
def planted():
    values, states = chains()
    return values, states, training_map(values, most=4, restarts=2)


def test_planted_chains_are_found(planted):
    _, states, found = planted
    assert found.states == 3
    assert not found.at_most
    assert (found.paths == states).mean() > 0.995
    assert found.means == pytest.approx(LEVELS * [1.0, 100.0], abs=10.0)
    assert found.deviations[:, 0] == pytest.approx(0.3, abs=0.1)
    assert found.transitions == pytest.approx(TRANSITIONS, abs=0.06)
    assert found.transitions.sum(1) == pytest.approx(1)
    assert found.start[0] > 0.9
    assert found.held_out.shape == (4, 20)
    # three states are told apart from two
    assert (found.held_out[2] > found.held_out[1]).all()


def test_noise_has_one_state():
    found = training_map(np.random.default_rng(0).standard_normal((20, 20, 2)), most=3, restarts=1)
    assert found.states == 1
    assert not found.at_most
    assert found.routes() == [((0,), 20)]
    assert found.alternatives() == []


def test_a_fork_is_found():
    generator = np.random.default_rng(0)
    sign = np.where(np.arange(20) % 2, 1.0, -1.0)
    course = np.zeros((20, 24, 1))
    course[:, 8:16, 0] = 2 * sign[:, None]
    found = training_map(course + 0.1 * generator.standard_normal(course.shape), most=4, restarts=2)
    assert found.states == 3
    assert found.alternatives() == [(1, 2, 10, 10)]
    ways = sorted(found.routes())
    assert ways == [((0, 1), 10), ((0, 2), 10)]
    counts = found.seeds_with_transition()
    assert counts[0].tolist() == [0, 10, 10]
    assert (found.first_entries()[sign > 0] == found.first_entries()[1]).all()


def test_a_straight_line_gets_as_many_states_as_are_tried():
    """What the page warns of: states are pieces of a smooth course."""
    line = np.linspace(0, 1, 24)[None, :, None] + 0.02 * np.random.default_rng(0).standard_normal((20, 24, 1))
    found = training_map(line, most=4, restarts=1)
    assert found.at_most
    assert found.routes() == [((0, 1, 2, 3), 20)]
    smooth = smooth_counterpart(10 ** np.linspace(0, 3, 24), line)
    assert training_map(smooth, most=4, restarts=1).at_most


@pytest.mark.parametrize(
    ("values", "settings", "message"),
    [
        (np.ones((20, 5, 1)), {}, r"measures at index 0 are constant"),
        (np.full((20, 5, 1), np.nan), {}, "expected finite values"),
        (np.ones((20, 5)), {}, "expected finite values"),
        (np.random.default_rng(0).random((20, 5, 1)), {"most": 1}, "expected `most` >= 2"),
        (np.random.default_rng(0).random((20, 5, 1)), {"restarts": 0}, "`restarts` >= 1, got 8 and 0"),
    ],
)
def test_unsuitable_values_are_refused(values, settings, message):
    with pytest.raises(ValueError, match=message):
        training_map(values, **settings)


def test_fewer_than_twenty_seeds_are_refused():
    with pytest.raises(TooFewSeedsError, match="at least 20 seeds, got 19"):
        training_map(np.random.default_rng(0).random((19, 5, 1)))


def test_rotated_seeds_keep_mean_and_covariance_over_steps_and_measures():
    generator = np.random.default_rng(0)
    values = generator.exponential(size=(12, 4, 2))
    other = rotated_seeds(values, generator)
    assert other.mean(0) == pytest.approx(values.mean(0))
    both = [np.cov(of.reshape(12, -1).T) for of in (values, other)]
    assert both[1] == pytest.approx(both[0])
    assert np.abs(other - values).max() > 0.1


@pytest.mark.slow
def test_seeds_that_differ_gradually_are_not_clumped():
    """Of five Gaussian processes, 0.25 expected at a level of 5 %; at most one (p = 0.023 for two or more)."""
    gradual = 0
    for seed in range(5):
        generator = np.random.default_rng(seed)
        level = generator.standard_normal((20, 1, 1)) * np.arange(6)[:, None] / 3
        values = level + 0.1 * generator.standard_normal((20, 6, 1))
        gradual += clumping_p_value(values, most=2, rotations=19, seed=seed) <= 0.05
    assert gradual <= 1


def test_forks_are_clumped():
    fork = np.where(np.arange(20) % 2, 1.0, -1.0)[:, None, None] * np.ones((6, 1))
    fork = fork + 0.1 * np.random.default_rng(0).standard_normal(fork.shape)
    assert clumping_p_value(fork, most=2, rotations=19) == 0.05
    with pytest.raises(ValueError, match="at least 19 rotations"):
        clumping_p_value(fork, rotations=5)


def test_smooth_counterparts_are_smooth_courses_with_the_same_noise():
    generator = np.random.default_rng(0)
    x = np.linspace(0, 4, 40)
    noise = 0.05 * generator.standard_normal((3, 40, 2))
    smooth = smooth_counterpart(10**x, x[None, :, None] + noise)
    rest = smooth - x[None, :, None]
    assert rest.std() == pytest.approx(noise.std(), rel=0.2)
    assert np.abs(smooth - x[None, :, None] - noise).max() > 0.05  # in another order
    jump = (x > 2).astype(float)[None, :, None] + 0.01 * generator.standard_normal((3, 40, 1))
    assert ((smooth_counterpart(10**x, jump) > 0.3) & (smooth_counterpart(10**x, jump) < 0.7)).any()
    assert not ((jump > 0.3) & (jump < 0.7)).any()
