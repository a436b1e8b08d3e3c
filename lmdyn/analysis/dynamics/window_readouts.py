"""Readouts of all windows from covariances of the states or from their inner products, over all processes."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from lmdyn.analysis.dynamics.window_kernels import WindowKernels
from lmdyn.analysis.dynamics.window_regressions import Targets, WindowMap, fit_window, window_regressions
from lmdyn.analysis.dynamics.window_sums import WindowSums
from lmdyn.analysis.statistics.distributed import all_reduce_sum, gather, rank_and_world_size

__all__ = ["Readouts", "WindowsAsked", "by_products", "by_sums", "bytes_of_products", "bytes_of_sums"]

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


def bytes_of_products(n: int, m: int, times: int, width: int, longest: int) -> int:
    """Return the memory of :func:`by_products`.

    Args:
        n: number of training sentences.
        m: number of development sentences.
        times: T.
        width: d.
        longest: number of steps of the longest window.
    """
    return 4 * times * (n + m) * width + 8 * (times**2 * n * (n + m) + 3 * (n * longest) ** 2)


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
    if _of_both(numbers):
        found = window_regressions(
            train, development, asked.targets, asked.starts, asked.lengths, ridge=asked.ridge
        )

    def fit(start: int, length: int) -> Tensor:
        return fit_window(train, asked.targets, start, length, ridge=asked.ridge)

    return Readouts(found, fit, numbers, _total(dropped))


def by_products(
    vectors: Vectors, asked: WindowsAsked, shape: tuple[int, int], device: torch.device
) -> Readouts:
    """Compute readouts from inner products: each process has all training and its own development sentences.

    The arguments are those of :func:`by_sums`.
    """
    dropped, parts, numbers = 0, {}, {}
    for part in _PARTS:
        states = [torch.zeros(shape[0], 0, shape[1], device=device)]
        of = [torch.zeros(0, dtype=torch.int64, device=device)]
        for letters, x in vectors(part):
            finite = x.isfinite().all(2).all(0)
            states.append(x[:, finite])
            of.append(letters[finite])
            dropped += int((~finite).sum())
        mine = torch.cat(states, 1), torch.cat(of)
        numbers[part] = all_reduce_sum(torch.stack([(mine[1] == i).sum() for i in (0, 1)]).double()).tolist()
        if part == "train" and rank_and_world_size()[1] > 1:
            of_ranks = gather([tensor.cpu() for tensor in mine])
            mine = (
                torch.cat([x for x, _ in of_ranks], 1).to(device),
                torch.cat([letters for _, letters in of_ranks]).to(device),
            )
        parts[part] = mine
    kernels = WindowKernels(*parts["train"]) if _of_both(numbers) else None
    found = None
    if kernels is not None:
        found = kernels.regressions(
            *parts["development"], asked.targets, asked.starts, asked.lengths, ridge=asked.ridge
        )

    def fit(start: int, length: int) -> Tensor:
        assert kernels is not None
        return kernels.fit(asked.targets, start, length, ridge=asked.ridge)

    return Readouts(found, fit, numbers, _total(dropped))


def _of_both(numbers: dict[str, list[float]]) -> bool:
    return min(min(n) for n in numbers.values()) > 0


def _total(n: int) -> int:
    return int(all_reduce_sum(torch.tensor(n)))
