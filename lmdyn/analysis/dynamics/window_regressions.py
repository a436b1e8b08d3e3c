"""Linear readouts of trajectories over all windows of time, from one pass: least squares by running sums."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.dynamics.window_sums import WindowSums

__all__ = ["WindowMap", "window_regressions"]

_FIRST_ITERATIONS, _ITERATIONS = 12, 2  # of the condition's estimate: without and with a neighbour's vectors


@dataclass(frozen=True)
class WindowMap:
    """Error of a linear readout in each window [t₀, t₀ + ΔT), t₀ from 0 and ΔT from 1.

    Attributes:
        nmse: (starts, lengths) float64: mean over development sentences of Σ_k ‖error‖² / Σ_k ‖target‖². 0 is perfect;
            an output of 0 has 1. NaN if the window ends after the last time, or if a target is 0 throughout.
        condition: (starts, lengths) estimate, from below, of the condition number of the centred design with its
            ridge: the square root of the ratio of the largest and the smallest eigenvalue of the normal matrix, by a
            few power and inverse iterations that start from the vectors of the window before. Well below 1e6, the
            square root of 1 / ``ridge``, the ridge has no influence. Infinite if all vectors of a window are equal.
        ridge: (starts, lengths) the relative ridge; larger than requested if the normal matrix was not positive
            definite.
        best: (t₀, ΔT) of the smallest NMSE among the windows that are long enough; None if none has a value.
        readout: (d + 1, outputs) weights of the best window, of which the last row is the bias.
    """

    nmse: Float[Tensor, "starts lengths"]
    condition: Float[Tensor, "starts lengths"]
    ridge: Float[Tensor, "starts lengths"]
    best: tuple[int, int] | None
    readout: Float[Tensor, "_ outputs"]


@torch.no_grad()
def window_regressions(
    train: WindowSums,
    development: WindowSums,
    targets: Sequence[Float[Tensor, "classes _ outputs"]],
    starts: int,
    *,
    ridge: float = 1e-12,
    shortest: int = 1,
    memory: float = 2**28,
) -> WindowMap:
    """Compute least squares for every window [t₀, t₀ + ΔT) at once, each with its error on development sentences.

    One linear readout with bias, shared by all steps of the window, is fitted to the target outputs y_{c,k} of a
    sentence of class c at step k, over all training sentences and steps: the regression of N·ΔT rows on d + 1 columns.
    Its normal matrix, centred within the window, is a running sum over ΔT of the contribution of each further time:
    the scatter at this time, and that of its mean about the mean so far. No rows are required, and all terms are
    positive. The error on development sentences is a sum of positive terms of their means and scatter. A window costs
    O(d³ / 3), whatever the number of sentences.

    The weights W minimise Σ ‖Wᵀ(x − x̄) + ȳ − y‖² + r ‖W‖², with r equal to ``ridge`` times the mean diagonal of the
    centred normal matrix; the bias is not penalised. For ``ridge`` → 0, this is the least-squares solution of minimum
    norm. If Cholesky's factorisation fails, the ridge is increased tenfold until it succeeds.

    Args:
        train: sums of the training sentences, which are the same at all times.
        development: sums of the development sentences, by class (not pooled).
        targets: outputs (classes, ΔT, outputs) in windows of ΔT = 1, 2, … steps.
        starts: number of start times t₀, from 0.
        ridge: relative ridge.
        shortest: minimum number of steps of the best window.
        memory: maximum bytes of normal matrices in memory at a time.

    Reference: Inoue et al. 2022, section III C, appendix E and figure 3C.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> x, classes = torch.randn(9, 20, 3, generator=g), torch.arange(20) % 2
        >>> sums = WindowSums(9, 3, 2)
        >>> for t in range(9):
        ...     sums.update(t, x[t], classes)
        >>> found = window_regressions(sums, sums, [torch.ones(2, n, 1) for n in range(1, 6)], 5)
        >>> found.nmse.shape, bool((found.nmse < 1e-20).all())  # the bias is sufficient
        (torch.Size([5, 5]), True)
    """
    n, m = train.counts[:, 0], development.counts[:, 0]
    n_classes, n_times, width = train.means.shape
    longest = len(targets)
    # (lengths, classes, longest, outputs), with zeros after the end of a window
    y = torch.stack([F.pad(of.to(n), (0, 0, 0, longest - k)) for k, of in enumerate(targets, 1)])
    lengths = torch.arange(1, longest + 1, device=n.device)
    y_means = torch.einsum("lcko,c->lo", y, n) / (n.sum() * lengths)[:, None]
    inside = (lengths <= lengths[:, None]).to(n)[:, None, :, None]
    centred = (y - y_means[:, None, None]) * inside
    scale = y.square().sum((2, 3))
    at_once = max(1, int(memory / (8 * width**2 * (4 + 2 * n_classes))))
    nmse, condition, used = (n.new_full((starts, longest), torch.nan) for _ in range(3))
    vectors = torch.randn(longest, width, 2, dtype=n.dtype, generator=torch.Generator().manual_seed(0)).to(n)
    best = None
    least = torch.inf
    readout = n.new_full((width + 1, y.shape[3]), torch.nan)
    for start in range(starts):
        steps = min(longest, n_times - start)
        x, z = (sums.means[:, start : start + steps] for sums in (train, development))
        middle = torch.einsum("ckd,c->kd", x, n) / n.sum()
        means = middle.cumsum(0) / lengths[:steps, None]
        # the y − ȳ of a window add up to 0, so any vector may be subtracted from all x: use one that is near them
        right = torch.einsum("ckd,c,lcko->ldo", x - middle[0], n, centred[:steps, :, :steps])
        carried = torch.zeros_like(development.scatter[:, 0])
        for first, normals in _normal_matrices(train, start, middle, means, at_once):
            some = slice(first, first + len(normals))
            added = development.scatter[:, start + some.start : start + some.stop].clone()
            scatter = _running_sums(added, carried)
            carried = scatter[:, -1].clone()
            trace = normals.diagonal(dim1=-2, dim2=-1).sum(-1)
            flat = trace <= train.resolution**2 * n.sum() * lengths[some] * means[some].square().sum(1)
            unit = torch.where(flat, 1 / ridge, trace / width)  # without influence if there is nothing to fit
            factor, used[start, some] = _ridged_factor(normals, ridge, unit)
            iterations = _ITERATIONS if start else _FIRST_ITERATIONS
            weights, conditions, vectors[some] = _solved(
                normals,
                factor,
                right[some],
                vectors[some],
                iterations,
            )
            condition[start, some] = conditions.masked_fill(flat, torch.inf)
            bias = y_means[some] - torch.einsum("ld,ldo->lo", means[some] - means[first], weights)
            outputs = torch.einsum("ckd,ldo->lcko", z - means[first], weights) + bias[:, None, None]
            # errors of class means plus scatter about them, both positive
            wrong = ((outputs - y[some, :, :steps]) * inside[some, :, :steps]).square().sum((2, 3))
            spread = (scatter @ weights).mul_(weights).sum((2, 3)).T
            errors = torch.where(scale[some] > 0, (spread + m * wrong) / scale[some], torch.nan)
            nmse[start, some] = torch.where(m > 0, errors, 0.0).sum(1) / m.sum()
            for i, value in enumerate(nmse[start, some].tolist()):
                if first + i + 1 >= shortest and value < least:
                    best, least = (start, first + i + 1), value
                    offset = bias[i] - means[first] @ weights[i]
                    readout = torch.cat([weights[i], offset[None]])
    return WindowMap(nmse, condition, used, best, readout)


def _normal_matrices(
    train: WindowSums,
    start: int,
    middle: Float[Tensor, "steps d"],
    means: Float[Tensor, "steps d"],
    at_once: int,
) -> Iterator[tuple[int, Float[Tensor, "some d d"]]]:
    """Yield centred normal matrices of the windows of 1, 2, … steps from ``start``, and the number of earlier ones."""
    n, steps = train.counts[:, 0], len(middle)
    number = torch.arange(1, steps + 1, dtype=n.dtype, device=n.device)[:, None]
    # a time adds its scatter, that of its class means, and the distance from the mean of the times before
    moves = torch.zeros_like(middle)
    moves[1:] = (n.sum() * number[:-1] / number[1:]).sqrt() * (middle[1:] - means[:-1])
    between = n.sqrt()[:, None, None] * (train.means[:, start : start + steps] - middle)
    added = torch.cat([between, moves[None]]).transpose(0, 1)  # (steps, C + 1, d)
    carried = torch.zeros_like(train.scatter[:1, 0])
    for first in range(0, steps, at_once):
        part = added[first : first + at_once]
        scatter = train.scatter[:, start + first : start + first + len(part)].sum(0)
        normals = _running_sums(torch.baddbmm(scatter, part.mT, part)[None], carried)[0]
        carried = normals[-1:].clone()
        yield first, normals


def _running_sums(terms: Tensor, before: Tensor) -> Tensor:
    """Cumulate in place along the second axis, matrix by matrix: several times as fast as the strided ``cumsum``."""
    for k in range(terms.shape[1]):
        terms[:, k] += before if k == 0 else terms[:, k - 1]
    return terms


def _ridged_factor(
    normal: Float[Tensor, "windows m m"],
    ridge: float,
    unit: Float[Tensor, "windows"],
) -> tuple[Float[Tensor, "windows m m"], Float[Tensor, "windows"]]:
    """Factorise matrices by Cholesky, with their ridge added in place; also return the relative ridge required."""
    diagonal = normal.diagonal(dim1=-2, dim2=-1)
    used = torch.full_like(unit, ridge)
    diagonal += (ridge * unit)[:, None]
    factor, failed = torch.linalg.cholesky_ex(normal)
    while failed.any():
        again = failed > 0
        diagonal[again] += (9 * used * unit)[again][:, None]
        used[again] *= 10
        factor[again], failed[again] = torch.linalg.cholesky_ex(normal[again])
    return factor, used


def _solved(
    normal: Tensor,
    factor: Tensor,
    right: Tensor,
    vectors: Tensor,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights, the root of the ratio of extreme eigenvalues from below, and their vectors, (windows, m, 2)."""
    greatest, least = F.normalize(vectors, dim=1).split(1, 2)
    solved = torch.cholesky_solve(torch.cat([right, least], 2), factor)
    weights, least = solved.split([right.shape[2], 1], 2)
    for i in range(iterations):
        if i:
            least = torch.cholesky_solve(F.normalize(least, dim=1), factor)
        greatest = normal @ F.normalize(greatest, dim=1)
    ratio = greatest.norm(dim=1) * least.norm(dim=1)
    return weights, ratio[:, 0].sqrt(), torch.cat([greatest, least], 2)
