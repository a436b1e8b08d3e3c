"""Rows of random tokens that repeat, on which induction can be measured."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.statistics.hashing import splitmix64
from lmdyn.analysis.statistics.precision import at_least_float32

__all__ = ["repeated_tokens", "repetition_losses"]


def repeated_tokens(
    ids: Sequence[int] | Int[Tensor, " ids"],
    length: int,
    rows: int,
    *,
    seed: int = 0,
    before: Sequence[int] = (),
    after: Sequence[int] = (),
) -> Int[Tensor, "rows time"]:
    """Return rows ``before r r after`` with r of ``length`` random tokens, different ones within a row.

    Row i depends on ``ids``, ``length``, ``seed`` and i only, so more rows extend fewer ones. The tokens of r are drawn
    without replacement: each token of the second r has exactly one earlier occurrence.

    Args:
        ids: token ids to draw from, all with the same probability.
        length: number of tokens of r.
        rows: number of rows.
        seed: seed of the draws.
        before: ids at the start of each row, such as one that begins a text.
        after: ids at its end.

    Returns:
        Ids, (rows, len(before) + 2 · length + len(after)).

    Raises:
        ValueError: for a length below 2, no rows, or fewer different ids than ``length``.

    Example:
        >>> row = repeated_tokens([5, 6, 7], 3, 1, before=[1])[0].tolist()
        >>> row[0], sorted(row[1:4]), row[1:4] == row[4:]
        (1, [5, 6, 7], True)
    """
    pool = torch.as_tensor(ids, dtype=torch.int64).unique()
    if length < 2 or rows < 1:
        raise ValueError(f"length is {length} and rows is {rows}: expected length from 2 and rows from 1")
    if len(pool) < length:
        raise ValueError(f"expected `length` = {length} different tokens, got {len(pool)}: lower `length`")
    first, last = (torch.tensor([*around], dtype=torch.int64) for around in (before, after))
    drawn = []
    for row in range(rows):
        generator = torch.Generator().manual_seed(int(splitmix64(torch.tensor((seed << 32) + row))) % 2**63)
        r = pool[torch.randperm(len(pool), generator=generator)[:length]]
        drawn.append(torch.cat([first, r, r, last]))
    return torch.stack(drawn)


def repetition_losses(
    losses: Float[Tensor, "rows time"], length: int, start: int = 0
) -> tuple[Float[Tensor, "rows"], Float[Tensor, "rows"]]:
    """Return the mean loss of each row on its first and on its second r, over the same tokens: all but the first of r.

    Args:
        losses: loss of the *next* token at each position, as of a causal model.
        length: number of tokens of r.
        start: number of tokens before the first r.

    Raises:
        ValueError: if rows are shorter than ``start + 2 · length``.

    Example:
        >>> first, second = repetition_losses(torch.tensor([[4.0, 2.0, 9.0, 1.0, 0.0, 9.0]]), 3)
        >>> first, second
        (tensor([3.]), tensor([0.5000]))
    """
    if losses.shape[1] < start + 2 * length:
        raise ValueError(f"losses have {losses.shape[1]} columns: expected {start + 2 * length} or more")
    first = losses[:, start : start + length - 1]
    second = losses[:, start + length : start + 2 * length - 1]
    dtype = at_least_float32(losses)
    return first.mean(1, dtype=dtype), second.mean(1, dtype=dtype)
