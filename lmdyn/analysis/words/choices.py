"""Multiple choice: whether the right one of some options has the highest score."""

from typing import Literal

import numpy as np
import numpy.typing as npt

__all__ = ["choice_accuracy"]


def choice_accuracy(
    scores: npt.ArrayLike,
    items: npt.ArrayLike,
    right: npt.ArrayLike,
    ties: Literal["share", "first", "draw"] = "share",
    seed: int = 0,
) -> npt.NDArray[np.float64]:
    """Return whether the right option of each item has the highest score.

    Args:
        scores: (options,) score of each option.
        items: (options,) number of its item, from 0.
        right: (options,) whether it is the right one; one of each item is.
        ties: options with the highest score count the ``share`` 1 / their number; or the ``first`` of them is chosen;
            or one is drawn (``draw``), the same at each call.
        seed: seed of the draws.

    Returns:
        (items,) 0 to 1; NaN where a score is not finite.

    Raises:
        ValueError: for unequal lengths, or an item without exactly one right option.

    Reference: ties: in the BabyLM protocol the first is chosen (2025), or one is drawn (2026).

    Example:
        >>> choice_accuracy([-1.0, -2.0, -3.0, -3.0], [0, 0, 1, 1], [True, False, False, True]).tolist()
        [1.0, 0.5]
    """
    score = np.asarray(scores, np.float64)
    item = np.asarray(items, np.int64)
    hit = np.asarray(right, bool)
    if not score.shape == item.shape == hit.shape or (np.bincount(item, hit) != 1).any():
        raise ValueError(
            "expected scores, items and right of one shape, with one right option per item, got shapes "
            f"{score.shape}, {item.shape} and {hit.shape} and {hit.sum()} right options"
        )
    found = np.bincount(item, chosen_options(score, item, ties, seed) * hit)
    return np.where(np.bincount(item, ~np.isfinite(score)) > 0, np.nan, found)


def chosen_options(
    scores: npt.NDArray[np.float64],
    items: npt.NDArray[np.int64],
    ties: Literal["share", "first", "draw"] = "share",
    seed: int = 0,
) -> npt.NDArray[np.float64]:
    """Return how much each option is chosen: 1 for the highest score of its item, shared as ``ties`` says.

    A score that is not finite is lower than all others. The arguments are those of :func:`choice_accuracy`.

    Returns:
        (options,) 0 to 1; 1 in the sum over an item.

    Example:
        >>> chosen_options(np.array([-1.0, -2.0, -3.0, -3.0]), np.array([0, 0, 1, 1])).tolist()
        [1.0, 0.0, 0.5, 0.5]
    """
    order = {
        "share": np.zeros(len(scores)),
        "first": np.arange(len(scores), 0, -1),
        "draw": np.random.default_rng(seed).permutation(len(scores)),
    }[ties]
    score = np.where(np.isfinite(scores), scores, -np.inf)
    best = np.full(items.max() + 1, -np.inf)
    np.maximum.at(best, items, score)
    tied = score == best[items]
    first = np.full(len(best), -1.0)
    np.maximum.at(first, items, np.where(tied, order, -1.0))
    chosen = tied & (order == first[items])
    found: npt.NDArray[np.float64] = chosen / np.bincount(items, chosen)[items]
    return found
