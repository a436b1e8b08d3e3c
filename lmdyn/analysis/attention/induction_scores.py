"""Scores of attention heads on repeated random tokens: prefix matching, previous token, duplicate token."""

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["SCORES", "induction_scores", "uniform_attention"]

SCORES = ("prefix_matching", "previous_token", "duplicate_token")


def induction_scores(
    attention: Float[Tensor, "batch heads time time"], length: int, start: int = 0
) -> dict[str, Float[Tensor, "batch heads"]]:
    """Compute scores of attention on rows of :func:`~lmdyn.analysis.attention.repeated_tokens.repeated_tokens`.

    Each is the mean weight of one key, over the queries i of the second repetition:

    =================== ============================================================= ==========================
    ``prefix_matching`` p_i,i−length+1: the token after the earlier occurrence of i   induction heads
    ``previous_token``  p_i,i−1                                                       previous-token heads
    ``duplicate_token`` p_i,i−length: the earlier occurrence of i itself              duplicate-token heads
    =================== ============================================================= ==========================

    All are from 0 to 1, and all have the floor :func:`uniform_attention`. A weight that is NaN gives NaN.

    Args:
        attention: weights by query and key.
        length: number of tokens of a repetition, from 2.
        start: number of tokens before the first repetition.

    Returns:
        Scores by name for each row and head, float64.

    Raises:
        ValueError: for a length below 2, or if rows are shorter than both repetitions.

    Reference: Olsson et al. 2022, prefix matching.

    Example:
        >>> weights = torch.zeros(1, 1, 4, 4)
        >>> weights[..., 2, 1] = weights[..., 3, 2] = 1.0  # each attends to the token before it, which is also
        >>> {name: float(score) for name, score in induction_scores(weights, 2).items()}  # the one after its first
        {'prefix_matching': 1.0, 'previous_token': 1.0, 'duplicate_token': 0.0}
    """
    time = attention.shape[-1]
    if length < 2 or attention.shape[-2] != time or time < start + 2 * length:
        raise ValueError(
            f"attention is {tuple(attention.shape)}, length {length} and start {start}: expected (batch, heads, time, "
            "time) with time at least start + 2 · length, and length from 2"
        )
    query = torch.arange(start + length, start + 2 * length, device=attention.device)
    keys = {
        "prefix_matching": query - length + 1,
        "previous_token": query - 1,
        "duplicate_token": query - length,
    }
    return {name: exact_float(attention[..., query, key]).mean(-1) for name, key in keys.items()}


def uniform_attention(length: int, start: int = 0, total: int | None = None, *, causal: bool = True) -> float:
    """Return the value of each of :func:`induction_scores` for attention that is the same on all visible keys.

    Causal: (H(start + 2 · length) − H(start + length)) / length with harmonic numbers H, since query i sees i + 1 keys.
    Otherwise 1 / total.

    Args:
        length: number of tokens of a repetition.
        start: number of tokens before the first.
        total: number of tokens of a row; start + 2 · length by default.
        causal: whether a query sees no later tokens.

    Example:
        >>> uniform_attention(2), uniform_attention(2, causal=False)  # (1/3 + 1/4) / 2
        (0.2916..., 0.25)
    """
    if not causal:
        return 1 / (total or start + 2 * length)
    return sum(1 / (i + 1) for i in range(start + length, start + 2 * length)) / length
