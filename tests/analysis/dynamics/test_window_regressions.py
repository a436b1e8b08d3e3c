"""All windows at once against one regression after the other, and what must hold of readouts."""

import pytest
import torch

from lmdyn.analysis.dynamics.window_regressions import window_regressions
from lmdyn.analysis.dynamics.window_sums import WindowSums

T, D, N, M = 12, 5, (30, 17), (9, 14)
STARTS, LENGTHS = range(7), range(1, 7)


def states(sizes, seed, width=D, times=T, scale=1.0):
    """Trajectories (times, sentences, width) of two classes that start apart, and the classes."""
    g = torch.Generator().manual_seed(seed)
    classes = torch.arange(2).repeat_interleave(torch.tensor(sizes))
    rotation = torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(9)))[0]
    x = torch.randn(len(classes), width, generator=g) + classes[:, None]
    found = []
    for _ in range(times):
        found.append(x)
        x = torch.tanh(1.4 * x @ rotation + 0.3) * scale
    return torch.stack(found), classes


def sums_of(x, classes, pooled=False):
    sums = WindowSums(x.shape[0], x.shape[2], 2, pooled=pooled)
    for t, rows in enumerate(x):
        sums.update(t, rows, classes)
    return sums


def letters(length):
    """Two curves."""
    angle = 5 * torch.arange(length + 1, dtype=torch.float64) / length + 0.3
    curves = torch.stack(
        [torch.stack([angle.cos(), (2 * angle).sin()], 1), torch.stack([angle.sin(), angle], 1)]
    )
    return curves.diff(dim=1)


def readouts(train, development, starts, longest, **options):
    """All windows, of pairs of states and classes."""
    targets = [letters(k) for k in range(1, longest + 1)]
    return window_regressions(sums_of(*train), sums_of(*development), targets, starts, **options)


def rows_of(x, classes, start, length, targets):
    """Stacked rows of a window, float64: (steps · sentences, d), their targets, their sentences."""
    window = x[start : start + length].double()
    y = targets(length)[classes].transpose(0, 1)
    return window.flatten(0, 1), y.flatten(0, 1), torch.arange(len(classes)).repeat(length)


def separate(train, development, start, length, targets=letters, ridge=1e-12):
    """One regression: QR of the centred rows, with the ridge as further rows; NMSE, sentence by sentence."""
    x, y, _ = rows_of(*train, start, length, targets)
    x_mean, y_mean = x.mean(0), y.mean(0)
    x, y = x - x_mean, y - y_mean
    root = (ridge * x.square().sum() / x.shape[1]).sqrt()
    eye = root * torch.eye(x.shape[1], dtype=torch.float64)
    design = torch.cat([x, eye])
    weights = torch.linalg.lstsq(
        design, torch.cat([y, torch.zeros(len(eye), y.shape[1])]), driver="gels"
    ).solution
    x, y, sentence = rows_of(*development, start, length, targets)
    error = ((x - x_mean) @ weights + y_mean - y).square().sum(1)
    n = int(sentence.max()) + 1
    add = torch.zeros(2, n, dtype=torch.float64)
    add[0].index_add_(0, sentence, error)
    add[1].index_add_(0, sentence, y.square().sum(1))
    values = torch.linalg.svdvals(design)
    return float((add[0] / add[1]).mean()), float(values[0] / values[-1]), weights


@pytest.fixture(scope="module")
def data():
    return states(N, 0), states(M, 1)


@pytest.fixture(scope="module")
def found(data):
    train, development = data
    targets = [letters(k) for k in LENGTHS]
    return window_regressions(sums_of(*train, pooled=True), sums_of(*development), targets, len(STARTS))


def test_each_window_is_the_separate_regression(data, found):
    train, development = data
    assert found.nmse.shape == found.condition.shape == (len(STARTS), len(LENGTHS))
    for i, start in enumerate(STARTS):
        for j, length in enumerate(LENGTHS):
            nmse, condition, weights = separate(train, development, start, length)
            assert float(found.nmse[i, j]) == pytest.approx(nmse, abs=1e-9)
            assert condition < 1e6
            assert 0.3 * condition < float(found.condition[i, j]) < condition * (1 + 1e-6)
            if found.best == (start, length):
                torch.testing.assert_close(found.readout[:-1], weights, atol=1e-6, rtol=1e-6)
    assert (found.ridge == 1e-12).all()
    values = found.nmse.flatten()
    assert found.best == (STARTS[int(values.argmin()) // 6], LENGTHS[int(values.argmin()) % 6])
    assert values.max() - values.min() > 0.1


def test_a_large_ridge_is_the_separate_regressions(data):
    train, development = data
    for ridge in (1e-3, 10.0):
        found = readouts(train, development, 3, 5, ridge=ridge, shortest=5)
        nmse, *_ = separate(train, development, 2, 5, ridge=ridge)
        assert float(found.nmse[2, 4]) == pytest.approx(nmse, rel=1e-10)
        assert found.best[1] == 5
    assert nmse > 0.75  # the control: so much of it that hardly anything is written


@pytest.mark.parametrize("memory", [1.0, 3000.0])
def test_chunks_of_windows_change_nothing(data, found, memory):
    chunks = readouts(*data, len(STARTS), 6, memory=memory)
    torch.testing.assert_close(chunks.nmse, found.nmse, rtol=1e-10, atol=0)
    torch.testing.assert_close(chunks.readout, found.readout)


def test_ill_conditioned_windows():
    """Columns of widths from 1 to 1e-5: to 1e-6 where the condition is below 1e6, and finite where vectors coincide."""
    scales = torch.logspace(0, -5, D, dtype=torch.float64)
    train, development = ((x.double() * scales, c) for x, c in (states(N, 0), states(M, 1)))
    found = readouts(train, development, 5, 6)
    for start in (0, 4):
        for length in (3, 6):
            nmse, condition, _ = separate(train, development, start, length)
            assert 1e4 < condition < 1e6
            assert float(found.nmse[start, length - 1]) == pytest.approx(nmse, abs=1e-6)
    doubled = [torch.cat([x, x[..., :2]], 2) for x, _ in (train, development)]  # two columns twice: no rank
    found = readouts((doubled[0], train[1]), (doubled[1], development[1]), 1, 6)
    assert (found.condition > 1e6).all()
    for length in (3, 6):
        nmse, *_ = separate(train, development, 0, length)
        assert float(found.nmse[0, length - 1]) == pytest.approx(nmse, rel=1e-3)


def test_the_ridge_is_raised_where_there_is_no_factor():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 40, 1, dtype=torch.float64, generator=g) * torch.ones(60, dtype=torch.float64)
    both = x, torch.arange(40) % 2
    found = readouts(both, both, 1, 3, ridge=1e-18)
    assert (found.ridge > 1e-18).all()
    assert (found.ridge < 1e-12).all()
    assert found.nmse[:, 1:].isfinite().all()


def test_states_that_hold_the_target_write_it():
    (x, classes), (z, others) = states(N, 0), states(M, 1)
    y = letters(6)
    x, z = x.double(), z.double()
    for rows, of in ((x, classes), (z, others)):
        for k in range(6):
            rows[3 + k, :, :2] = y[of, k]
    found = readouts((x, classes), (z, others), 4, 6, shortest=6)
    assert found.best == (3, 6)
    assert float(found.nmse[3, 5]) < 1e-20
    assert float(found.nmse[2, 5]) > 1e-3


@pytest.mark.parametrize("value", [0.0, 0.1, 1e5])
def test_constant_states_answer_the_mean(value):
    classes, others = (torch.arange(2).repeat_interleave(torch.tensor(n)) for n in (N, M))
    x, z = (torch.full((T, sum(n), D), value) for n in (N, M))
    found = readouts((x, classes), (z, others), 2, 6)
    for length in (2, 6):
        y = letters(length)
        mean = (y * torch.tensor(N)[:, None, None]).sum((0, 1)) / (sum(N) * length)
        by_class = (y - mean).square().sum((1, 2)) / y.square().sum((1, 2))
        expected = (by_class * torch.tensor(M)).sum() / sum(M)
        torch.testing.assert_close(found.nmse[:, length - 1], expected.expand(2), rtol=1e-9, atol=0)
    assert found.condition.isinf().all()


def test_sums_are_those_of_the_definition(data):
    x, classes = data[0]
    sums = sums_of(x, classes)
    pooled = sums_of(x, classes, pooled=True)
    for c in (0, 1):
        rows = x[7, classes == c].double()
        torch.testing.assert_close(sums.means[c, 7], rows.mean(0))
        torch.testing.assert_close(sums.scatter[c, 7], (len(rows) - 1) * rows.T.cov())
    torch.testing.assert_close(pooled.scatter[0], sums.scatter.sum(0))
    before = sums.scatter.clone()
    sums.update(7, torch.full((2, D), 1e3), torch.tensor([-1, 2]))  # classes that are not asked for
    torch.testing.assert_close(sums.scatter, before)
    assert sums.counts[:, 7].tolist() == list(N)
