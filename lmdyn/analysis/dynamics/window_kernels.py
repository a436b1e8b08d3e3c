"""Linear readouts of trajectories over windows of time, for vectors with more dimensions than rows."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.dynamics.window_regressions import (
    FIRST_ITERATIONS,
    Targets,
    WindowMap,
    check_windows,
    ridge_unit,
    ridged_factor,
    solve_windows,
)
from lmdyn.analysis.statistics.distributed import all_reduce_sum
from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["WindowKernels"]

_CHUNK = 2**22  # numbers of the vectors that are in float64 at a time


class WindowKernels:
    """The readouts of :func:`window_regressions`, from inner products of the vectors instead of their covariances.

    The readouts are the same: with centred rows X and targets Y of a window, the weights (XᵀX + r)⁻¹XᵀY of the normal
    matrix are Xᵀ(XXᵀ + r)⁻¹Y of the Gram matrix. Memory is O((N T)²) for N training sentences at T times, in addition
    to the vectors themselves, whatever the number d of dimensions, whereas sums of scatter require O(T d²); a window
    of ΔT steps costs O((N ΔT)³ / 3). Use it for vectors of many dimensions, such as those of all tokens together, and
    few sentences.

    Sums and products are in float64, of vectors minus the mean of the training vectors.

    Args:
        x: (T, N, d) vectors of the training sentences, the same on every rank.
        classes: (N,) their classes, from 0.

    Raises:
        ValueError: if there are no sentences, if the numbers of classes and sentences differ, or if vectors are not
            finite.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> x, classes = torch.randn(4, 5, 300, generator=g), torch.arange(5) % 2
        >>> targets = lambda n: torch.stack([torch.ones(n, 1), -torch.ones(n, 1)])
        >>> found = WindowKernels(x, classes).regressions(x, classes, targets, [0], [4])
        >>> bool(found.nmse < 1e-12)  # 20 rows of 300 dimensions: any targets can be fitted
        True
    """

    def __init__(self, x: Float[Tensor, "times n d"], classes: Int[Tensor, "_"]) -> None:
        n = x.shape[1]
        if n == 0 or len(classes) != n:
            raise ValueError(
                f"expected at least one sentence and a class for each, got {len(classes)} classes for {n} sentences"
            )
        if not bool(x.isfinite().all()):
            raise ValueError("vectors are not finite: leave out the sentences whose states diverge")
        self._x, self._classes = x, classes
        self._resolution = 1e-12 if x.dtype == torch.float64 else max(1e-12, 100 * torch.finfo(x.dtype).eps)
        self._means = torch.stack([exact_float(rows).mean(0) for rows in x])
        self._centre = self._means.mean(0)
        self._gram = self._products(x)  # (T N, T N)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (T, N, d)."""
        times, n, d = self._x.shape
        return times, n, d

    def _pieces(self, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
        rows = x.flatten(0, 1)
        size = max(1, _CHUNK // rows.shape[1])
        for first in range(0, len(rows), size):
            part = slice(first, min(first + size, len(rows)))
            yield part, exact_float(rows[part]) - self._centre

    def _products(self, x: Tensor) -> Tensor:
        """Compute inner products of vectors, times before sentences, with those of training."""
        times, n, _ = self.shape
        found = self._centre.new_empty(x.shape[0] * x.shape[1], times * n)
        for part, rows in self._pieces(x):
            for columns, others in self._pieces(self._x):
                found[part, columns] = rows @ others.T
        return found

    @torch.no_grad()
    def regressions(
        self,
        x: Float[Tensor, "_ m _"],
        classes: Int[Tensor, "_"],
        targets: Targets,
        starts: Sequence[int],
        lengths: Sequence[int],
        *,
        ridge: float = 1e-12,
    ) -> WindowMap:
        """Fit the readout of every window, and compute its errors on development sentences.

        Args:
            x: (T, M, d) vectors of this rank's development sentences.
            classes: (M,) their classes.
            targets: see :func:`window_regressions`.
            starts: the start times t₀.
            lengths: the window lengths ΔT.
            ridge: relative ridge, as in :func:`window_regressions`: relative to the trace of the centred normal matrix
                divided by d.

        Returns:
            See :class:`WindowMap`. The condition number is that of the centred rows in the space that they span, with
            the ridge.

        Raises:
            ValueError: if a window is not possible, or if the vectors have other times or dimensions.
        """
        times, n, d = self.shape
        check_windows(times, starts, lengths, ridge)
        if (x.shape[0], x.shape[2]) != (times, d) or len(classes) != x.shape[1]:
            raise ValueError(
                f"expected development vectors of (times, d) = {(times, d)} and a class for each, got "
                f"{tuple(x.shape)} and {len(classes)} classes"
            )
        cross = self._products(x).unflatten(0, x.shape[:2]).unflatten(2, (times, n))
        count = all_reduce_sum(torch.tensor(float(x.shape[1]), dtype=torch.float64, device=cross.device))
        nmse, condition, used = (cross.new_full((len(starts), len(lengths)), torch.nan) for _ in range(3))
        for i, start in enumerate(starts):
            for j, length in enumerate(lengths):
                if start + length > times:
                    continue
                steps = slice(start, start + length)
                y = self._targets_of(targets, length, self._classes)
                dual, middle, condition[i, j], used[i, j] = self._solve(y, steps, ridge)
                read = cross[steps, :, steps].flatten(2)  # (ΔT, M, ΔT N)
                outputs = (read - middle) @ dual + y.flatten(0, 1).mean(0)
                expected = self._targets_of(targets, length, classes)
                errors = (outputs - expected).square().sum((0, 2)) / expected.square().sum((0, 2))
                nmse[i, j] = all_reduce_sum(errors.sum()) / count
        # 0 / 0 of a target that is 0 throughout is NaN; so is any number without sentences
        return WindowMap(
            tuple(starts), tuple(lengths), nmse.masked_fill(nmse.isinf(), torch.nan), condition, used
        )

    @torch.no_grad()
    def fit(
        self, targets: Targets, start: int, length: int, *, ridge: float = 1e-12
    ) -> Float[Tensor, "_ outputs"]:
        """Fit the readout of one window: (d + 1, outputs) weights, of which the last row is the bias.

        Raises:
            ValueError: if the window is not possible.
        """
        times, _, d = self.shape
        check_windows(times, [start], [length], ridge)
        if start + length > times:
            raise ValueError(f"the window [{start}, {start + length}) must end within the {times} times")
        y, steps = self._targets_of(targets, length, self._classes), slice(start, start + length)
        dual, *_ = self._solve(y, steps, ridge)
        weights = self._centre.new_zeros(d, y.shape[2])
        for part, rows in self._pieces(
            self._x[steps]
        ):  # the dual adds up to 0, so any vector may be subtracted from all
            weights += rows.T @ dual[part]
        mean = self._means[steps].mean(0, keepdim=True)
        return torch.cat([weights, y.flatten(0, 1).mean(0, keepdim=True) - mean @ weights])

    def _solve(self, y: Tensor, steps: slice, ridge: float) -> tuple[Tensor, Tensor, float, float]:
        """Solve a window: (ΔT N, outputs) dual weights, products of its mean vector, its condition, and its ridge."""
        times, n, d = self.shape
        gram = self._gram.unflatten(0, (times, n)).unflatten(2, (times, n))[steps, :, steps]
        gram = gram.flatten(2).flatten(0, 1).clone()
        m = len(gram)
        middle = gram.mean(0)
        gram += middle.mean() - middle - middle[:, None]
        mean = self._means[steps].mean(0)
        # below it are rounding errors of the vectors, and of their products about the centre
        constant = m * (
            self._resolution**2 * mean.square().sum() + 1e-13 * (mean - self._centre).square().sum()
        )
        unit, flat = ridge_unit(gram[None], d, ridge, constant[None])
        # centred rows and targets have no component along the constant vector: a mean eigenvalue there has no effect
        gram += torch.where(flat, 1.0, gram.trace() / m) / m
        factor, used = ridged_factor(gram[None], ridge, unit)
        vectors = torch.randn(m, 2, dtype=gram.dtype, generator=torch.Generator().manual_seed(0)).to(gram)
        right = (y - y.mean((0, 1))).flatten(0, 1)
        dual, condition, _ = solve_windows(gram[None], factor, right[None], vectors[None], FIRST_ITERATIONS)
        return dual[0], middle, float("inf") if bool(flat) else float(condition), float(used)

    def _targets_of(self, targets: Targets, length: int, classes: Tensor) -> Float[Tensor, "steps n outputs"]:
        of_length = targets(length) if callable(targets) else targets[length]
        if of_length.ndim != 3 or of_length.shape[1] != length:
            raise ValueError(
                f"expected targets of (classes, steps, outputs) for a window of {length} steps, got "
                f"{tuple(of_length.shape)}"
            )
        return of_length.to(self._centre)[classes].transpose(0, 1)
