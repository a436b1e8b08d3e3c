"""Linear readouts of trajectories over all windows of time, from one pass: least squares by running sums."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.dynamics.window_sums import WindowSums

__all__ = [
    "FIRST_ITERATIONS",
    "ITERATIONS",
    "AppliedReadout",
    "Targets",
    "WindowMap",
    "apply_readout",
    "check_windows",
    "fit_window",
    "ridge_unit",
    "ridged_factor",
    "solve_windows",
    "window_regressions",
]

Targets = Callable[[int], Tensor] | Mapping[int, Tensor]
"""Function of the number of steps ΔT of a window to the target outputs in it, (classes, ΔT, outputs)."""

FIRST_ITERATIONS, ITERATIONS = 12, 2  # of the condition's estimate: without and with a neighbour's vectors


@dataclass(frozen=True)
class WindowMap:
    """Error of a linear readout in each window [t₀, t₀ + ΔT).

    Attributes:
        starts: the start times t₀.
        lengths: the window lengths ΔT.
        nmse: (starts, lengths) float64: mean over development sentences of Σ_k ‖error‖² / Σ_k ‖target‖². 0 is perfect;
            an output of 0 has 1. NaN if the window ends after the last time, or if a target is 0 throughout.
        condition: (starts, lengths) estimate, from below, of the condition number of the centred design with its
            ridge: the square root of the ratio of the largest and the smallest eigenvalue of the normal matrix, by a
            few power and inverse iterations that start from the vectors of the window before. Well below 1e6, the
            square root of 1 / ``ridge``, the ridge has no influence. Infinite if all vectors of a window are equal.
        ridge: (starts, lengths) the relative ridge; larger than requested if the normal matrix was not positive
            definite.

    Example:
        >>> nmse = torch.tensor([[0.9, 0.5]], dtype=torch.float64)
        >>> WindowMap((3,), (1, 8), nmse, nmse, nmse).best()
        (3, 8)
    """

    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    nmse: Float[Tensor, "starts lengths"]
    condition: Float[Tensor, "starts lengths"]
    ridge: Float[Tensor, "starts lengths"]

    def best(self, shortest: int = 1) -> tuple[int, int]:
        """Return (t₀, ΔT) of the smallest NMSE among the windows of at least ``shortest`` steps.

        Raises:
            ValueError: if none of them has a value.
        """
        long_enough = torch.tensor([length >= shortest for length in self.lengths], device=self.nmse.device)
        nmse = torch.where(long_enough & ~self.nmse.isnan(), self.nmse, torch.inf)
        if not bool(nmse.isfinite().any()):
            raise ValueError(
                f"no window of at least {shortest} steps has an NMSE: all end after the last time, or have no target"
            )
        i = int(nmse.argmin())
        return self.starts[i // len(self.lengths)], self.lengths[i % len(self.lengths)]


@torch.no_grad()
def window_regressions(
    train: WindowSums,
    development: WindowSums,
    targets: Targets,
    starts: Sequence[int],
    lengths: Sequence[int],
    *,
    ridge: float = 1e-12,
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
        train: sums of the training sentences.
        development: sums of the development sentences, by class (not pooled).
        targets: function of the number of steps ΔT of a window to its outputs (classes, ΔT, outputs).
        starts: the start times t₀, from 0.
        lengths: the window lengths ΔT, from 1.
        ridge: relative ridge.
        memory: maximum bytes of normal matrices in memory at a time.

    Raises:
        ValueError: if sums have different times, widths or classes; if development sums are pooled; if there are no
            sentences; if sums are not finite; if windows or targets are not possible.

    Reference: Inoue et al. 2022, section III C, appendix E and figure 3C.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> x, classes = torch.randn(9, 20, 3, generator=g), torch.arange(20) % 2
        >>> sums = WindowSums(9, 3, 2)
        >>> for t in range(9):
        ...     sums.update(t, x[t], classes)
        >>> found = window_regressions(sums, sums, lambda n: torch.ones(2, n, 1), range(5), range(1, 6))
        >>> found.nmse.shape, bool((found.nmse < 1e-20).all())  # the bias is sufficient
        (torch.Size([5, 5]), True)
    """
    _check(train, development, starts, lengths, ridge)
    n, m = train.sizes(), development.sizes()
    plan = _PaddedTargets.of(n, targets, lengths)
    n_classes, n_times, width = train.shape
    at_once = max(1, int(memory / (8 * width**2 * (4 + 2 * n_classes))))
    nmse, condition, used = (n.new_full((len(starts), len(lengths)), torch.nan) for _ in range(3))
    vectors = torch.randn(len(lengths), width, 2, dtype=n.dtype, generator=torch.Generator().manual_seed(0))
    vectors, warm = vectors.to(n.device), [False] * len(lengths)
    for i, start in enumerate(starts):
        steps = min(max(lengths), n_times - start)
        means, right = plan.right_hand_sides(train, n, start, steps)
        carried = torch.zeros_like(development.scatter[:, 0])
        for first, normals in _normal_matrices(train, n, start, steps, at_once):
            past = first + len(normals)
            scatter = _running_sums(development.scatter[:, start + first : start + past].clone(), carried)
            carried = scatter[:, -1].clone()
            here = [j for j, length in enumerate(lengths) if first < length <= past]
            if not here:
                continue
            at = torch.tensor(here, device=n.device)
            if [lengths[j] for j in here] != list(range(first + 1, past + 1)):
                nth = plan.lengths[at] - 1 - first
                normals, scatter = normals[nth], scatter[:, nth]
            constant = train.resolution**2 * n.sum() * plan.lengths[at] * means[at].square().sum(1)
            unit, flat = ridge_unit(normals, width, ridge, constant)
            factor, used[i, at] = ridged_factor(normals, ridge, unit)
            iterations = ITERATIONS if all(warm[j] for j in here) else FIRST_ITERATIONS
            weights, conditions, vectors[at] = solve_windows(
                normals, factor, right[at], vectors[at], iterations
            )
            condition[i, at] = conditions.masked_fill(flat, torch.inf)
            nmse[i, at] = plan.nmse(at, weights, means[at], scatter, development, m, start, steps)
            for j in here:
                warm[j] = True
    return WindowMap(tuple(starts), tuple(lengths), nmse, condition, used)


@torch.no_grad()
def fit_window(
    train: WindowSums, targets: Targets, start: int, length: int, *, ridge: float = 1e-12
) -> Float[Tensor, "_ outputs"]:
    """Fit the readout of one window: (d + 1, outputs) weights, of which the last row is the bias.

    See :func:`window_regressions`.

    Example:
        >>> sums = WindowSums(n_times=2, width=1, n_classes=1)
        >>> for t in range(2):
        ...     sums.update(t, torch.tensor([[float(t)]]), torch.tensor([0]))
        >>> fit_window(sums, lambda n: torch.tensor([[[1.0], [3.0]]]), 0, 2).flatten().round(decimals=6).tolist()
        [2.0, 1.0]
    """
    _check(train, train, [start], [length], ridge)
    if start + length > train.shape[1]:
        raise ValueError(f"the window [{start}, {start + length}) must end within the {train.shape[1]} times")
    n = train.sizes()
    plan = _PaddedTargets.of(n, targets, [length])
    means, right = plan.right_hand_sides(train, n, start, length)
    for _, normals in _normal_matrices(train, n, start, length, at_once=1):
        normal = normals  # the last one is that of the whole window
    constant = train.resolution**2 * n.sum() * length * means.square().sum(1)
    unit, _ = ridge_unit(normal, train.shape[2], ridge, constant)
    weights = torch.cholesky_solve(right, ridged_factor(normal, ridge, unit)[0])[0]
    return torch.cat([weights, plan.output_means - means @ weights])


class AppliedReadout(NamedTuple):
    """Outputs of a readout for sentences in a window, and their errors.

    Attributes:
        outputs: (ΔT, sentences, outputs).
        nmse: (sentences,) Σ_k ‖error‖² / Σ_k ‖target‖² of each sentence.
    """

    outputs: Float[Tensor, "steps sentences outputs"]
    nmse: Float[Tensor, "sentences"]


def apply_readout(
    weights: Float[Tensor, "_ outputs"],
    x: Float[Tensor, "steps sentences d"],
    targets: Float[Tensor, "sentences steps outputs"],
) -> AppliedReadout:
    """Apply the readout of a window, from :func:`fit_window`, to the sentences' vectors in it.

    Args:
        weights: (d + 1, outputs), the last row the bias.
        x: (ΔT, sentences, d).
        targets: (sentences, ΔT, outputs) outputs of each sentence.

    Example:
        >>> line = torch.tensor([[1.0], [0.5]])
        >>> apply_readout(line, torch.ones(2, 1, 1), torch.ones(1, 2, 1)).nmse
        tensor([0.2500])
    """
    outputs = x.to(weights) @ weights[:-1] + weights[-1]
    expected = targets.to(weights).transpose(0, 1)
    return AppliedReadout(outputs, (outputs - expected).square().sum((0, 2)) / expected.square().sum((0, 2)))


@dataclass(frozen=True)
class _PaddedTargets:
    """The targets in windows of each length, padded with zeros to the longest length D.

    Attributes:
        lengths: (L,) the window lengths ΔT.
        targets: (L, C, D, o) outputs.
        output_means: (L, o) mean of the outputs over training sentences and steps.
        inside: (L, 1, D, 1) 1 for the steps of the window, 0 after them.
    """

    lengths: Int[Tensor, "lengths"]
    targets: Tensor
    output_means: Tensor
    inside: Tensor

    @classmethod
    def of(cls, n: Tensor, targets: Targets, lengths: Sequence[int]) -> "_PaddedTargets":
        found = [targets[k] if isinstance(targets, Mapping) else targets(k) for k in lengths]
        for k, y in zip(lengths, found, strict=True):
            if y.ndim != 3 or y.shape[:2] != (len(n), k) or y.shape[2] != found[0].shape[2]:
                raise ValueError(
                    f"expected targets of (classes, steps, outputs) = {(len(n), k, found[0].shape[-1])} for a window "
                    f"of {k} steps, got {tuple(y.shape)}"
                )
        longest = max(lengths)
        padded = torch.stack(
            [F.pad(y.to(n), (0, 0, 0, longest - k)) for k, y in zip(lengths, found, strict=True)]
        )
        numbers = torch.tensor(list(lengths), device=n.device)
        means = torch.einsum("lcko,c->lo", padded, n) / (n.sum() * numbers)[:, None]
        inside = (torch.arange(longest, device=n.device) < numbers[:, None]).to(n)[:, None, :, None]
        return cls(numbers, padded, means, inside)

    def right_hand_sides(
        self, train: WindowSums, n: Tensor, start: int, steps: int
    ) -> tuple[Float[Tensor, "lengths d"], Float[Tensor, "lengths d outputs"]]:
        """Compute the mean of each window from ``start`` and Σ (x − x̄)(y − ȳ)ᵀ; undefined beyond ``steps``."""
        rows = train.means[:, start : start + steps]
        middle = torch.einsum("ckd,c->kd", rows, n) / n.sum()
        last = (self.lengths - 1).clamp(max=steps - 1)
        means = (middle.cumsum(0) / torch.arange(1, steps + 1, device=n.device)[:, None])[last]
        centred = ((self.targets - self.output_means[:, None, None]) * self.inside)[:, :, :steps]
        # the y − ȳ of a window add up to 0, so any vector may be subtracted from all x: use one that is near them
        return means, torch.einsum("ckd,c,lcko->ldo", rows - middle[0], n, centred)

    def nmse(
        self,
        at: Tensor,
        weights: Tensor,
        means: Tensor,
        scatter: Tensor,
        development: WindowSums,
        m: Tensor,
        start: int,
        steps: int,
    ) -> Float[Tensor, "windows"]:
        """Compute the NMSE for the lengths ``at``: errors of class means plus scatter about them, both positive."""
        rows = development.means[:, start : start + steps]
        middle = means[0]
        outputs = torch.einsum("ckd,ldo->lcko", rows - middle, weights)
        outputs += (self.output_means[at] - torch.einsum("ld,ldo->lo", means - middle, weights))[
            :, None, None
        ]
        wrong = ((outputs - self.targets[at, :, :steps]) * self.inside[at, :, :steps]).square().sum((2, 3))
        spread = (scatter @ weights).mul_(weights).sum((2, 3)).T
        scale = self.targets[at].square().sum((2, 3))
        errors = torch.where(scale > 0, (spread + m * wrong) / scale, torch.nan)
        return torch.where(m > 0, errors, 0.0).sum(1) / m.sum()


def _normal_matrices(
    train: WindowSums, n: Tensor, start: int, steps: int, at_once: int
) -> Iterator[tuple[int, Float[Tensor, "some d d"]]]:
    """Yield centred normal matrices of the windows of 1, 2, … steps from ``start``, and the number of earlier ones."""
    rows = train.means[:, start : start + steps]
    total = n.sum()
    middle = torch.einsum("ckd,c->kd", rows, n) / total
    number = torch.arange(1, steps + 1, dtype=n.dtype, device=n.device)[:, None]
    so_far = middle.cumsum(0) / number
    # a time adds its scatter, that of its class means, and the distance from the mean of the times before
    moves = torch.zeros_like(middle)
    moves[1:] = (total * number[:-1] / number[1:]).sqrt() * (middle[1:] - so_far[:-1])
    between = n.sqrt()[:, None, None] * (rows - middle)
    added = torch.cat([between, moves[None]]).transpose(0, 1)  # (steps, C + 1, d)
    carried = torch.zeros_like(train.scatter[0, 0])
    for first in range(0, steps, at_once):
        some = slice(start + first, start + min(first + at_once, steps))
        scatter = train.scatter[0, some] if train.pooled else train.scatter[:, some].sum(0)
        part = added[first : first + at_once]
        normals = _running_sums(torch.baddbmm(scatter, part.mT, part)[None], carried[None])[0]
        carried = normals[-1].clone()
        yield first, normals


def _running_sums(terms: Tensor, before: Tensor) -> Tensor:
    """Cumulate in place along the second axis, matrix by matrix: several times as fast as the strided ``cumsum``."""
    for k in range(terms.shape[1]):
        terms[:, k] += before if k == 0 else terms[:, k - 1]
    return terms


def ridge_unit(
    normal: Float[Tensor, "windows m m"], width: int, ridge: float, constant: Float[Tensor, "windows"]
) -> tuple[Float[Tensor, "windows"], Bool[Tensor, "windows"]]:
    """Return the unit of a relative ridge, the trace divided by ``width``, and which windows have no variance.

    Args:
        normal: normal or Gram matrices.
        width: number of dimensions d of a vector.
        ridge: relative ridge.
        constant: a trace of at most this is rounding of vectors that are all equal.
    """
    trace = normal.diagonal(dim1=-2, dim2=-1).sum(-1)
    flat = trace <= constant
    return torch.where(flat, 1 / ridge, trace / width), flat  # without influence if there is nothing to fit


def ridged_factor(
    normal: Float[Tensor, "windows m m"], ridge: float, unit: Float[Tensor, "windows"]
) -> tuple[Float[Tensor, "windows m m"], Float[Tensor, "windows"]]:
    """Factorise matrices by Cholesky, with their ridge added in place; also return the relative ridge required."""
    diagonal = normal.diagonal(dim1=-2, dim2=-1)
    used = torch.full_like(unit, ridge)
    diagonal += (ridge * unit)[:, None]
    factor, failed = torch.linalg.cholesky_ex(normal)
    while bool(failed.any()):
        again = failed > 0
        diagonal[again] += (9 * used * unit)[again][:, None]
        used[again] *= 10
        factor[again], failed[again] = torch.linalg.cholesky_ex(normal[again])
    return factor, used


def solve_windows(
    normal: Tensor, factor: Tensor, right: Tensor, vectors: Tensor, iterations: int
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


def _check(
    train: WindowSums, development: WindowSums, starts: Sequence[int], lengths: Sequence[int], ridge: float
) -> None:
    if train.shape != development.shape:
        raise ValueError(
            f"expected sums of the same (classes, times, width), got {train.shape} of training and {development.shape} "
            "of development sentences"
        )
    if development is not train and development.pooled:
        raise ValueError("errors require the development sums of each class: create them with pooled=False")
    n_times = train.shape[1]
    check_windows(n_times, starts, lengths, ridge)


def check_windows(n_times: int, starts: Sequence[int], lengths: Sequence[int], ridge: float) -> None:
    """Raise an error for windows that are not possible, and for a ridge that is not positive."""
    if not starts or not lengths or min(starts) < 0 or max(starts) >= n_times or min(lengths) < 1:
        raise ValueError(
            f"expected windows that start at times 0 to {n_times - 1} and have at least 1 step, got starts {starts} "
            f"and lengths {lengths}"
        )
    if not ridge > 0:
        raise ValueError(f"ridge must be a relative ridge above 0, such as 1e-12, got {ridge}")
