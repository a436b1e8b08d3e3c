"""All windows at once against one regression after the other, and what must hold of readouts."""

import pytest
import torch

from lmdyn.analysis.dynamics.window_regressions import fit_window, window_regressions
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
    return window_regressions(sums_of(*train, pooled=True), sums_of(*development), letters, STARTS, LENGTHS)


def test_each_window_is_the_separate_regression(data, found):
    train, development = data
    assert found.nmse.shape == found.condition.shape == (len(STARTS), len(LENGTHS))
    for i, start in enumerate(STARTS):
        for j, length in enumerate(LENGTHS):
            nmse, condition, weights = separate(train, development, start, length)
            assert float(found.nmse[i, j]) == pytest.approx(nmse, abs=1e-9)
            assert condition < 1e6
            assert 0.3 * condition < float(found.condition[i, j]) < condition * (1 + 1e-6)
            fitted = fit_window(sums_of(*train, pooled=True), letters, start, length)
            torch.testing.assert_close(fitted[:-1], weights, atol=1e-6, rtol=1e-6)
    assert (found.ridge == 1e-12).all()
    values = found.nmse.flatten()
    assert found.best() == (STARTS[int(values.argmin()) // 6], LENGTHS[int(values.argmin()) % 6])
    assert values.max() - values.min() > 0.1


def test_a_large_ridge_is_the_separate_regressions(data):
    train, development = data
    pair = sums_of(*train), sums_of(*development)
    for ridge in (1e-3, 10.0):
        found = window_regressions(*pair, letters, [2], [5], ridge=ridge)
        nmse, *_ = separate(train, development, 2, 5, ridge=ridge)
        assert float(found.nmse) == pytest.approx(nmse, rel=1e-10)
    assert nmse > 0.75  # the control: so much of it that hardly anything is written


@pytest.mark.parametrize("memory", [1.0, 3000.0])
def test_chunks_and_subsets_of_windows_change_nothing(data, found, memory):
    pair = sums_of(*data[0]), sums_of(*data[1])
    part = window_regressions(*pair, letters, [1, 6], [6, 2], memory=memory)
    torch.testing.assert_close(part.nmse, found.nmse[[1, 6]][:, [5, 1]], rtol=1e-10, atol=0)
    by_length = window_regressions(*pair, {6: letters(6), 2: letters(2)}, [1, 6], [6, 2])
    torch.testing.assert_close(by_length.nmse, part.nmse, rtol=1e-10, atol=0)


def test_ill_conditioned_windows():
    """Columns of widths from 1 to 1e-5: to 1e-6 where the condition is below 1e6, and finite where vectors coincide."""
    scales = torch.logspace(0, -5, D, dtype=torch.float64)
    train, development = ((x.double() * scales, c) for x, c in (states(N, 0), states(M, 1)))
    pair = sums_of(*train), sums_of(*development)
    found = window_regressions(*pair, letters, [0, 4], [3, 6])
    for i, start in enumerate((0, 4)):
        for j, length in enumerate((3, 6)):
            nmse, condition, _ = separate(train, development, start, length)
            assert 1e4 < condition < 1e6
            assert float(found.nmse[i, j]) == pytest.approx(nmse, abs=1e-6)
    doubled = [torch.cat([x, x[..., :2]], 2) for x, _ in (train, development)]  # two columns twice: no rank
    found = window_regressions(
        sums_of(doubled[0], train[1]), sums_of(doubled[1], development[1]), letters, [0], [3, 6]
    )
    assert (found.condition > 1e6).all()
    for j, length in enumerate((3, 6)):
        nmse, *_ = separate(train, development, 0, length)
        assert float(found.nmse[0, j]) == pytest.approx(nmse, rel=1e-3)


def test_the_ridge_is_raised_where_there_is_no_factor():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 40, 1, dtype=torch.float64, generator=g) * torch.ones(60, dtype=torch.float64)
    sums = sums_of(x, torch.arange(40) % 2)
    found = window_regressions(sums, sums, letters, [0], [2, 3], ridge=1e-18)
    assert (found.ridge > 1e-18).all()
    assert (found.ridge < 1e-12).all()
    assert found.nmse.isfinite().all()


def test_states_that_hold_the_target_write_it():
    (x, classes), (z, others) = states(N, 0), states(M, 1)
    y = letters(6)
    x, z = x.double(), z.double()
    for rows, of in ((x, classes), (z, others)):
        for k in range(6):
            rows[3 + k, :, :2] = y[of, k]
    found = window_regressions(sums_of(x, classes), sums_of(z, others), letters, [2, 3], [6])
    assert float(found.nmse[1]) < 1e-20
    assert float(found.nmse[0]) > 1e-3


@pytest.mark.parametrize("value", [0.0, 0.1, 1e5])
def test_constant_states_answer_the_mean(value):
    classes, others = (torch.arange(2).repeat_interleave(torch.tensor(n)) for n in (N, M))
    x, z = (torch.full((T, sum(n), D), value) for n in (N, M))
    found = window_regressions(sums_of(x, classes), sums_of(z, others), letters, [0, 5], [2, 6])
    for j, length in enumerate((2, 6)):
        y = letters(length)
        mean = (y * torch.tensor(N)[:, None, None]).sum((0, 1)) / (sum(N) * length)
        by_class = (y - mean).square().sum((1, 2)) / y.square().sum((1, 2))
        expected = (by_class * torch.tensor(M)).sum() / sum(M)
        torch.testing.assert_close(found.nmse[:, j], expected.expand(2), rtol=1e-9, atol=0)
    assert found.condition.isinf().all()


def test_sums_in_parts_add_up(data):
    x, classes = data[0]
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(0))
    for pooled in (True, False):
        whole = sums_of(x, classes, pooled)
        halves = [sums_of(x[:, rows], classes[rows], pooled) for rows in (order[:20], order[20:])]
        streamed = sums_of(x[:, :1], classes[:1], pooled)
        for rows in torch.arange(1, len(classes)).split(8):
            for t in range(T):
                streamed.update(t, x[t, rows], classes[rows])
        for other in (halves[0] + halves[1], streamed):
            for name in ("counts", "means", "scatter"):
                torch.testing.assert_close(getattr(other, name), getattr(whole, name), rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="expected sums of equal"):
        sums_of(x, classes, pooled=True) + sums_of(x, classes)


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


def test_what_cannot_be(data):
    (x, classes), development = data[0], sums_of(*data[1])
    train = sums_of(x, classes)
    for windows in (([12], [1]), ([-1], [1]), ([0], [0]), ([], [1])):
        with pytest.raises(ValueError, match="expected windows that start at times 0 to 11"):
            window_regressions(train, development, letters, *windows)
    with pytest.raises(ValueError, match="must end within the 12 times"):
        fit_window(train, letters, 10, 3)
    with pytest.raises(ValueError, match=r"at every time, got \[0\]"):
        window_regressions(WindowSums(T, D, 2), development, letters, [0], [1])
    x = x.clone()
    x[5:, 3, 2] = torch.nan
    with pytest.raises(ValueError, match="not finite from time 5 on"):
        window_regressions(sums_of(x, classes), development, letters, [0], [1])
