"""Rank correlations without each block against ranking all again, and their errors against new text."""

import numpy as np
import pytest
import scipy.stats

from lmdyn.analysis.statistics.correlation import spearman
from lmdyn.analysis.statistics.jackknife import jackknife
from lmdyn.analysis.statistics.rank_blocks import RankCorrelations, blocks_of_clusters


def tied(seed, n=60, kinds=9):
    """Four variables that hang together, three of them with ties, and blocks of unequal size in no order."""
    random = np.random.default_rng(seed)
    z = random.normal(size=n)
    columns = [
        z + random.normal(size=n),
        (2 * z + random.normal(size=n)).round(),
        random.integers(0, 4, n) + (z > 0),
        (random.normal(size=n) + z).round(1),
    ]
    return columns, random.integers(0, kinds, n)


def again(statistic, columns, blocks):
    """The statistic, and its error by ranking everything again without each block."""
    present, sizes = np.unique(blocks, return_counts=True)
    without = [statistic([c[blocks != b] for c in columns]) for b in present]
    whole = statistic(columns)
    return whole, float(jackknife(whole, without, sizes).error)


@pytest.mark.parametrize("given", [(), (2,), (2, 3)])
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_ranking_all_again_without_each_block(seed, given):
    columns, blocks = tied(seed)
    correlations = RankCorrelations(columns, blocks)
    found = correlations.of(0, 1, given)
    expected = again(lambda c: spearman(c[1], c[0], [c[i] for i in given]), columns, blocks)
    assert found[:2] == pytest.approx(expected, abs=1e-10)
    assert found.error > 0.01
    one = blocks != correlations.blocks[3]
    without = spearman(columns[1][one], columns[0][one], [columns[i][one] for i in given])
    assert found.without[3] == pytest.approx(without, abs=1e-10)
    whole = scipy.stats.spearmanr(columns[0], columns[1]).statistic
    assert (found.value == pytest.approx(whole, abs=1e-10)) == (not given)


def by_strata(columns, strata):
    """Ranks of each stratum by scipy, as shares about their middle; Pearson's correlation of them."""
    parts = []
    for stratum in np.unique(strata):
        of = [scipy.stats.rankdata(c[strata == stratum]) for c in columns]
        parts.append([(r - r.mean()) / len(r) for r in of])
    x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def test_within_strata_equals_ranking_each_of_them():
    columns, blocks = tied(3, n=90)
    strata = np.random.default_rng(4).choice([5, 7, 8, 20], size=90, p=[0.5, 0.3, 0.19, 0.01])
    strata[0] = 99  # alone
    found = RankCorrelations(columns[:2], blocks, strata).of(0, 1)
    expected = again(lambda c: by_strata(c[:2], c[2]), [*columns[:2], strata], blocks)
    assert found[:2] == pytest.approx(expected, abs=1e-10)
    assert found.value != pytest.approx(RankCorrelations(columns[:2], blocks).of(0, 1).value, abs=1e-3)


@pytest.mark.slow
def test_the_error_is_that_of_another_text():
    """Of 300 texts; values of one sentence hang together, so that an error without blocks is far too small."""

    def text(random):
        sentence = np.repeat(np.arange(64), 20)
        common = random.normal(size=(2, 64))[:, sentence]
        x, y = common + random.normal(size=(2, len(sentence)))
        return x, y + 0.5 * x, sentence

    random = np.random.default_rng(0)
    found = [RankCorrelations([x, y], s).of(0, 1) for x, y, s in (text(random) for _ in range(300))]
    spread = np.std([f.value for f in found], ddof=1)
    assert np.mean([f.error for f in found]) == pytest.approx(spread, rel=0.12)
    truth = np.mean([f.value for f in found])
    inside = np.mean([abs(f.value - truth) < 1.998 * f.error for f in found])  # t of 63 degrees of freedom
    assert 0.91 < inside < 0.985
    naive = np.sqrt((1 - truth**2) ** 2 / 1280)
    assert naive < 0.6 * spread


def test_blocks_hold_whole_clusters_of_about_equal_size():
    random = np.random.default_rng(0)
    clusters = np.repeat(np.arange(500), random.integers(1, 40, 500))
    blocks = blocks_of_clusters(clusters)
    assert set(blocks) == set(range(64))
    assert (np.diff(blocks) >= 0).all()  # neighbours
    assert all(len(set(blocks[clusters == c])) == 1 for c in range(500))
    sizes = np.bincount(blocks)
    assert sizes.max() < 1.4 * sizes.mean()
    few = blocks_of_clusters(np.array([4, 4, 9, 9, 9, 11]))
    assert few.tolist() == [0, 0, 1, 1, 1, 2]
