import numpy as np
import pytest

from lmdyn.analysis.landscape.barrier import LossLine, loss_barrier, rise_over_chord

ALPHAS = tuple(np.linspace(0, 1, 11).tolist())


def test_a_convex_loss_has_no_barrier():
    generator = np.random.default_rng(0)
    for _ in range(20):
        root = generator.standard_normal((4, 4))
        start, end = generator.standard_normal((2, 4))
        losses = np.array([np.sum((root @ ((1 - a) * start + a * end)) ** 2) for a in ALPHAS])
        assert loss_barrier(ALPHAS, losses) == 0


def test_a_known_barrier():
    """A double well, (x² − 1)²: from −1 to 1 it rises to 1; an inclined line changes nothing."""
    x = np.linspace(-1, 1, 11)
    well = (x**2 - 1) ** 2
    assert loss_barrier(ALPHAS, well) == pytest.approx(1)
    assert loss_barrier(ALPHAS, well + 3 * np.array(ALPHAS)) == pytest.approx(1)
    assert loss_barrier(ALPHAS, np.stack([well, 0 * well])).tolist() == pytest.approx([1, 0])


def test_points_beyond_the_ends_do_not_count():
    assert loss_barrier([-0.5, 0.0, 1.0, 2.0], np.array([9.0, 1.0, 2.0, 9.0])) == 0


def test_a_loss_that_is_no_number():
    assert np.isnan(loss_barrier([0.0, 0.5, 1.0], np.array([1.0, np.nan, 1.0])))


def test_the_rise_over_the_chord_is_the_barrier_or_below_0():
    x = np.array(ALPHAS)
    for height in (1.0, 0.1):
        bump = 4 * height * x * (1 - x) + 3 * x
        assert rise_over_chord(ALPHAS, bump) == loss_barrier(ALPHAS, bump) == pytest.approx(height, rel=0.05)
    well = np.stack([-4 * height * x * (1 - x) for height in (1.0, 0.1)])
    assert loss_barrier(ALPHAS, well).tolist() == [0, 0]
    first = x[1] * (1 - x[1])  # a well is least deep beside its ends
    assert rise_over_chord(ALPHAS, well) == pytest.approx([-4 * first, -0.4 * first])
    assert np.isnan(rise_over_chord(ALPHAS, np.where(x == x[2], np.nan, x)))
    with pytest.raises(ValueError, match="one of alphas between 0 and 1"):
        rise_over_chord([0.0, 1.0], np.array([1.0, 2.0]))


def test_the_interval_of_the_rise_covers_below_0():
    """The control: the barrier of such a line is 0, and so are both ends of its interval."""
    well = line(0, height=-0.5)
    low, high = well.rise_interval(300, 0.95, seed=0)
    assert low < -0.5 * 4 * ALPHAS[1] * (1 - ALPHAS[1]) < high < 0
    assert low < well.rise < high
    assert well.interval(300, 0.95, seed=0) == (0, 0)
    assert line(0).rise_interval(300, 0.95, seed=0) == line(0).interval(300, 0.95, seed=0)


def line(seed, blocks=40, height=0.5, noise=0.3):
    """Blocks of unequal difficulty, the same at all positions, and noise of each block's barrier."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(50, 150, blocks).astype(float)
    difficulty = generator.normal(5, 2, blocks)
    x = np.array(ALPHAS)
    bump = 4 * x * (1 - x)
    heights = height + noise * generator.standard_normal(blocks)
    means = difficulty + bump[:, None] * heights
    return LossLine(ALPHAS, means * tokens, tokens)


def test_the_interval_covers_and_difficulty_cancels():
    covered, widths = 0, []
    for seed in range(60):
        low, high = line(seed).interval(300, 0.95, seed=0)
        covered += low <= 0.5 <= high
        widths.append(high - low)
    assert covered >= 50
    # not of the difficulties' 2
    assert np.mean(widths) == pytest.approx(2 * 1.96 * 0.3 / np.sqrt(40), rel=0.25)


def test_blocks_without_text_do_not_count():
    one = line(0)
    more = LossLine(ALPHAS, np.pad(one.sums, ((0, 0), (0, 3))), np.pad(one.tokens, (0, 3)))
    assert (more.barrier, more.blocks) == (pytest.approx(one.barrier), 40)
    assert more.interval(50, 0.95, seed=1) == pytest.approx(one.interval(50, 0.95, seed=1))
