"""Rows of a batch as a map needs them: so many, so long, and others to compare with."""

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["repeated", "resized", "rows_of", "some_texts", "tokens_of"]

_ROWS = 4


def rows_of(batch: Mapping[str, Tensor]) -> int:
    """How many rows a batch has.

    Example:
        >>> rows_of({"input_ids": torch.ones(2, 3)})
        2
    """
    return max((len(t) for t in batch.values()), default=0)


def tokens_of(batch: Mapping[str, Tensor]) -> int | None:
    """Tokens of a row, by ``input_ids``, or by the first tensor of two axes or more.

    Example:
        >>> tokens_of({"input_ids": torch.ones(2, 3)})
        3
    """
    first = batch.get("input_ids", next((t for t in batch.values() if t.ndim > 1), None))
    return None if first is None or first.ndim < 2 else first.shape[1]


def repeated(batch: Mapping[str, Tensor], times: int) -> dict[str, Tensor]:
    """The rows of a batch several times one after the other.

    Example:
        >>> repeated({"input_ids": torch.tensor([[1], [2]])}, 2)["input_ids"].flatten().tolist()
        [1, 2, 1, 2]
    """
    rows = rows_of(batch)
    return {name: t.repeat(times, *[1] * (t.ndim - 1)) if len(t) == rows else t for name, t in batch.items()}


def resized(row: Mapping[str, Tensor], rows: int, tokens: int) -> dict[str, Tensor]:
    """A batch of one row as one of so many rows and tokens: again and again, and cut.

    Example:
        >>> resized({"input_ids": torch.tensor([[1, 2]])}, 2, 3)["input_ids"].tolist()
        [[1, 2, 1], [1, 2, 1]]
    """
    length = tokens_of(row)
    return {
        name: (_cut(t, tokens) if t.ndim > 1 and t.shape[1] == length else t).expand(
            rows, *[-1] * (t.ndim - 1)
        )
        for name, t in row.items()
    }


def _cut(t: Tensor, tokens: int) -> Tensor:
    return torch.cat([t] * -(-tokens // t.shape[1]), 1)[:, :tokens]


def some_texts(batch: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """The first row of a batch, and others of as many tokens.

    These are the next rows; and the first one with its first token throughout, with the neighbours of its tokens in the
    vocabulary, and in the other order. All have the first row's mask.

    Example:
        >>> texts = some_texts({"input_ids": torch.tensor([[5, 6]])})
        >>> [text["input_ids"].tolist() for text in texts]
        [[[5, 6]], [[5, 5]], [[4, 5]], [[6, 5]]]
    """
    rows = [{name: t[i : i + 1] for name, t in batch.items()} for i in range(min(_ROWS, rows_of(batch)))]
    name = "input_ids" if "input_ids" in batch else next((n for n, t in batch.items() if t.ndim > 1), None)
    if name is None or not rows:
        return rows
    ids = rows[0][name]
    changed = [ids + 1, ids.flip(1)]
    if not ids.is_floating_point():  # 0 is often padding
        changed = [
            ids[:, :1].expand_as(ids).contiguous(),
            torch.where(ids > 1, ids - 1, ids + 1),
            ids.flip(1),
        ]
    mask = {n: t for n, t in rows[0].items() if n == "attention_mask"}
    return [{**row, **mask} for row in rows] + [{**rows[0], name: t} for t in changed]
