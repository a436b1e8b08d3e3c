"""Readouts from inner products: those from covariances, naive least squares, and what more dimensions than rows do."""

import numpy as np
import pytest
import torch

from lmdyn.analysis.dynamics.window_kernels import WindowKernels
from lmdyn.analysis.dynamics.window_regressions import apply_readout, fit_window, window_regressions
from tests.analysis.dynamics.test_window_regressions import letters, states, sums_of
from tests.helpers.one_rank import as_rank

N, M = (5, 4), (3, 6)
STARTS, LENGTHS = range(3), range(1, 6)


def pair(width, times=7, dtype=torch.float64):
    train, development = (states(sizes, seed, width, times) for sizes, seed in ((N, 0), (M, 1)))
    return (train[0].to(dtype), train[1]), (development[0].to(dtype), development[1])


def naive(train, development, start, length, absolute):
    """numpy's least squares of the stacked rows with a bias, and a ridge on the weights; mean NMSE of sentences."""
    x, classes = (a.double().numpy() for a in train)
    steps = slice(start, start + length)
    target = letters(length).numpy()
    rows = x[steps].transpose(1, 0, 2).reshape(-1, x.shape[2])
    y = target[classes.astype(int)].reshape(-1, 2)
    middle, y_middle = rows.mean(0), y.mean(0)
    design = np.vstack([rows - middle, np.sqrt(absolute) * np.eye(x.shape[2])])
    weights = np.linalg.lstsq(design, np.vstack([y - y_middle, np.zeros((x.shape[2], 2))]), rcond=None)[0]
    errors = []
    for sentence, c in zip(
        development[0].double().numpy()[steps].transpose(1, 0, 2), development[1], strict=True
    ):
        error = (sentence - middle) @ weights + y_middle - target[int(c)]
        errors.append((error**2).sum() / (target[int(c)] ** 2).sum())
    return np.mean(errors), weights, np.square(rows - middle).sum()


@pytest.mark.parametrize("width", [4, 60])  # fewer dimensions than rows, and more
@pytest.mark.parametrize("ridge", [1e-9, 1e-2])
def test_dual_is_primal_is_least_squares(width, ridge):
    train, development = pair(width)
    kernels = WindowKernels(*train)
    found = kernels.regressions(*development, letters, STARTS, LENGTHS, ridge=ridge)
    sums = sums_of(*train), sums_of(*development)
    primal = window_regressions(*sums, letters, STARTS, LENGTHS, ridge=ridge)
    torch.testing.assert_close(found.nmse, primal.nmse, rtol=1e-5, atol=1e-8)
    assert (found.ridge == primal.ridge).all()
    for start, length in ((0, 1), (1, 3), (2, 5)):
        *_, trace = naive(train, development, start, length, 0.0)
        nmse, weights, _ = naive(train, development, start, length, ridge * trace / width)
        at = STARTS.index(start), LENGTHS.index(length)
        assert float(found.nmse[at]) == pytest.approx(nmse, rel=1e-6)
        fitted = kernels.fit(letters, start, length, ridge=ridge)
        np.testing.assert_allclose(fitted[:-1].numpy(), weights, atol=1e-6)
        torch.testing.assert_close(
            fitted, fit_window(sums[0], letters, start, length, ridge=ridge), atol=1e-6, rtol=1e-6
        )
        written = apply_readout(
            fitted, development[0][start : start + length], letters(length)[development[1]]
        )
        assert float(written.nmse.mean()) == pytest.approx(nmse, rel=1e-6)
    assert found.nmse.max() - found.nmse.min() > 0.1  # the control: windows differ


def test_where_vectors_span_all_rows_training_is_perfect_and_the_condition_is_theirs():
    (x, classes), development = pair(60)
    kernels = WindowKernels(x, classes)
    found = kernels.regressions(x, classes, letters, [1], [4], ridge=1e-12)
    assert float(found.nmse) < 1e-12
    assert float(kernels.regressions(*development, letters, [1], [4]).nmse) > 0.1
    rows = x[1:5].flatten(0, 1)
    values = torch.linalg.svdvals(rows - rows.mean(0))[:-1]  # the last is that of the constant vector
    assert 0.3 * values[0] / values[-1] < float(found.condition) < values[0] / values[-1] * (1 + 1e-6)


def test_windows_beyond_the_last_time_have_no_value():
    train, development = pair(12)
    found = WindowKernels(*train).regressions(*development, letters, [0, 5], [2, 4])
    assert found.nmse.isnan().tolist() == [[False, False], [False, True]]


def test_a_far_mean_costs_no_digits():
    """Sums about a centre: float32 vectors at 1,000 have the errors of the same vectors at 0."""
    train, development = pair(60, dtype=torch.float32)
    near = WindowKernels(*train).regressions(*development, letters, STARTS, LENGTHS, ridge=1e-6)
    shifted = [(x.double() + 1000, c) for x, c in (train, development)]
    far = WindowKernels(*shifted[0]).regressions(*shifted[1], letters, STARTS, LENGTHS, ridge=1e-6)
    torch.testing.assert_close(near.nmse, far.nmse, rtol=1e-6, atol=0)


def test_states_that_are_all_the_same():
    x, classes = torch.full((4, 5, 9), 0.3), torch.arange(5) % 2
    found = WindowKernels(x, classes).regressions(x, classes, letters, [0], [3])
    assert found.condition.isinf().all()
    assert found.nmse.isfinite().all()
    mean = letters(3)[classes].mean((0, 1))
    expected = ((letters(3) - mean).square().sum((1, 2)) / letters(3).square().sum((1, 2)))[classes].mean()
    assert float(found.nmse) == pytest.approx(float(expected))


def test_ranks_share_the_development_sentences():
    train, (x, classes) = pair(20)
    whole = WindowKernels(*train).regressions(x, classes, letters, [0], [3])
    seen = []
    for part in (slice(0, 4), slice(4, 9)):
        with as_rank(0, 2, all_reduce_sum=lambda t: seen.append(t.clone()) or t):
            WindowKernels(*train).regressions(x[:, part], classes[part], letters, [0], [3])
    (n, error), (n2, error2) = seen[:2], seen[2:]
    assert float((error + error2) / (n + n2)) == pytest.approx(float(whole.nmse))


def test_errors():
    train, development = pair(6)
    kernels = WindowKernels(*train)
    with pytest.raises(ValueError, match="expected at least one sentence and a class for each"):
        WindowKernels(train[0], train[1][1:])
    with pytest.raises(ValueError, match="leave out the sentences"):
        WindowKernels(train[0] * torch.nan, train[1])
    with pytest.raises(ValueError, match="windows that start at times 0 to 6"):
        kernels.regressions(*development, letters, [7], [1])
    with pytest.raises(ValueError, match="relative ridge above 0"):
        kernels.regressions(*development, letters, [0], [1], ridge=0.0)
    with pytest.raises(ValueError, match="expected development vectors"):
        kernels.regressions(development[0][:3], development[1], letters, [0], [1])
    with pytest.raises(ValueError, match="must end within the 7 times"):
        kernels.fit(letters, 5, 4)
    with pytest.raises(ValueError, match="expected targets"):
        kernels.fit(lambda n: torch.ones(2, n + 1, 2), 0, 2)
