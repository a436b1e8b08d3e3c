"""Readouts of all windows from covariances of the states, over all processes."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from lmdyn.analysis.dynamics.window_regressions import Targets, WindowMap, fit_window, window_regressions
from lmdyn.analysis.dynamics.window_sums import WindowSums
from lmdyn.analysis.statistics.distributed import all_reduce_sum

__all__ = ["Readouts", "WindowsAsked", "by_sums", "bytes_of_sums"]

_PARTS = ("train", "development")

Vectors = Callable[[str], Iterable[tuple[Tensor, Tensor]]]
"""Maps ``train`` or ``development`` to batches of this process's sentences: the letters of n, and (T, n, d)."""


class WindowsAsked(NamedTuple):
    """The requested windows, and their ridge."""

    targets: Targets
    starts: range
    lengths: range
    ridge: float


class Readouts(NamedTuple):
    """Result for the sentences.

    Attributes:
        found: the map of windows; None if no sentence of a letter is left.
        fit: function of (t₀, ΔT) that returns the readout of this window, (d + 1, 2).
        numbers: numbers of sentences of each letter, for each part.
        dropped: number of sentences that were left out because their states are not finite.
    """

    found: WindowMap | None
    fit: Callable[[int, int], Tensor]
    numbers: dict[str, list[float]]
    dropped: int


def bytes_of_sums(times: int, width: int) -> int:
    """Return the memory of :func:`by_sums`: covariances of the training set, and of each development letter."""
    return 8 * 3 * times * width**2


def by_sums(vectors: Vectors, asked: WindowsAsked, shape: tuple[int, int], device: torch.device) -> Readouts:
    """Compute readouts from covariances, to which all processes contribute.

    Args:
        vectors: vectors of each part.
        asked: the windows.
        shape: (T, d).
        device: device of the sums.
    """
    sums, dropped = {}, 0
    for part in _PARTS:
        sums[part] = WindowSums(*shape, 2, pooled=part == "train", device=device)
        for letters, x in vectors(part):
            finite = x.isfinite().all(2).all(0)
            letters = letters.masked_fill(~finite, -1)  # which is in no sum
            for t, rows in enumerate(x):
                sums[part].update(t, rows.where(finite[:, None], 0), letters)
            dropped += int((~finite).sum())
        sums[part].reduce()
    train, development = (sums[part] for part in _PARTS)
    numbers = {part: of.counts[:, 0].tolist() for part, of in sums.items()}
    found = None
    if min(min(n) for n in numbers.values()) > 0:
        found = window_regressions(
            train, development, asked.targets, asked.starts, asked.lengths, ridge=asked.ridge
        )

    def fit(start: int, length: int) -> Tensor:
        return fit_window(train, asked.targets, start, length, ridge=asked.ridge)

    return Readouts(found, fit, numbers, int(all_reduce_sum(torch.tensor(dropped))))
