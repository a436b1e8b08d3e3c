"""Losses along a line between two points of weight space, and the barrier between them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from lmdyn.analysis.statistics.bootstrap import basic_interval, draw_blocks

__all__ = ["LossLine", "loss_barrier", "rise_over_chord"]


def loss_barrier(alphas: Sequence[float], losses: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Compute max over α of L(α) − [(1 − α) L(0) + α L(1)]: how far the loss rises above the line between its ends.

    0 if the loss is convex along the line; never negative, since the ends count.

    Args:
        alphas: positions, which include 0 and 1.
        losses: (…, points) loss at each position; NaN anywhere gives NaN.

    Raises:
        ValueError: without the two ends.

    Reference: Frankle et al. 2020 (instability: the rise over the mean of the ends, with α = ½ or the maximum);
        Entezari et al. 2022, equation 1 (this form).

    Example:
        >>> loss_barrier([0.0, 0.5, 1.0], np.array([1.0, 4.0, 2.0]))
        array(2.5)
    """
    return np.asarray(_over_chord(alphas, losses).max(-1))


def rise_over_chord(
    alphas: Sequence[float], losses: Float[np.ndarray, "*batch points"]
) -> Float[np.ndarray, "*batch"]:
    """Compute :func:`loss_barrier` without its ends: max over 0 < α < 1, below 0 if the loss is below its chord there.

    Args:
        alphas: positions, which include 0, 1 and one between them.
        losses: loss at each position; NaN anywhere gives NaN.

    Raises:
        ValueError: without the two ends or a position between them.

    Example:
        >>> rise_over_chord([0.0, 0.5, 1.0], np.array([[1.0, 4.0, 2.0], [1.0, 0.5, 2.0]]))
        array([ 2.5, -1. ])
    """
    inner = [0 < alpha < 1 for alpha in alphas if 0 <= alpha <= 1]
    if not any(inner):
        raise ValueError(f"expected one of alphas between 0 and 1, got {', '.join(f'{a:g}' for a in alphas)}")
    return np.asarray(_over_chord(alphas, losses)[..., inner].max(-1))


def _over_chord(alphas: Sequence[float], losses: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Compute how far the loss is above the straight line between its ends, at each position from 0 to 1."""
    positions = list(alphas)
    if not {0, 1} <= {*positions}:
        raise ValueError(f"alphas are {', '.join(f'{a:g}' for a in positions)}: expected 0 and 1 in alphas")
    values = np.asarray(losses, np.float64)
    first, last = (values[..., [positions.index(end)]] for end in (0, 1))
    at = np.array(positions)
    rise: npt.NDArray[np.float64] = values - ((1 - at) * first + at * last)
    return rise[..., (at >= 0) & (at <= 1)]


@dataclass(frozen=True)
class LossLine:
    """Losses along a line, with sums by blocks of text for intervals.

    Attributes:
        alphas: positions, which include 0 and 1.
        sums: sum of token losses by position and block, (points, blocks).
        tokens: number of labelled tokens by block, (blocks,); blocks without tokens are left out.

    Example:
        >>> line = LossLine((0.0, 0.5, 1.0), np.array([[2.0, 2.0], [8.0, 8.0], [4.0, 4.0]]), np.array([2.0, 2.0]))
        >>> line.losses.tolist(), float(line.barrier), line.interval(100, 0.95, seed=0)
        ([1.0, 4.0, 2.0], 2.5, (2.5, 2.5))
    """

    alphas: tuple[float, ...]
    sums: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.float64]

    @property
    def losses(self) -> npt.NDArray[np.float64]:
        """Mean token loss at each position, nats."""
        return np.asarray(self.sums.sum(1) / self.tokens.sum())

    @property
    def barrier(self) -> float:
        """The :func:`loss_barrier`, nats."""
        return float(loss_barrier(self.alphas, self.losses))

    @property
    def rise(self) -> float:
        """The :func:`rise_over_chord`, nats."""
        return float(rise_over_chord(self.alphas, self.losses))

    @property
    def blocks(self) -> int:
        """Number of blocks that have tokens."""
        return int((self.tokens > 0).sum())

    def interval(self, bootstrap: int, confidence: float, *, seed: int) -> tuple[float, float]:
        """Compute the basic bootstrap interval of the barrier over blocks of text: this model, other text.

        The same text is read at all positions, so that what differs from block to block only by its difficulty
        cancels. The lower end is at least 0.
        """
        low, high = self._interval(loss_barrier, bootstrap, confidence, seed)
        return max(low, 0.0), high  # NaN stays

    def rise_interval(self, bootstrap: int, confidence: float, *, seed: int) -> tuple[float, float]:
        """Compute the same interval of the rise, whose ends may be below 0."""
        return self._interval(rise_over_chord, bootstrap, confidence, seed)

    def _interval(
        self, measure: Callable[..., Any], bootstrap: int, confidence: float, seed: int
    ) -> tuple[float, float]:
        kept = self.tokens > 0
        drawn = draw_blocks(int(kept.sum()), bootstrap, seed)
        losses = (drawn @ self.sums[:, kept].T) / (drawn @ self.tokens[kept])[:, None]
        whole, resampled = (measure(self.alphas, of) for of in (self.losses, losses))
        low, high = basic_interval(whole, resampled, confidence)
        return float(low), float(high)
