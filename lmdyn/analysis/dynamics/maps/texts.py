"""Rows of a batch for a map: in the required number and length, and others for comparison."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lmdyn.analysis.inspection.batches import rows_at, rows_of

__all__ = ["padding_of", "repeated", "resized", "some_texts", "tokens_of"]

_ROWS = 4


def tokens_of(batch: Mapping[str, Tensor]) -> int | None:
    """Return the number of tokens of a row, by ``input_ids``, or by the first tensor of at least two axes.

    Example:
        >>> tokens_of({"input_ids": torch.ones(2, 3)})
        3
    """
    name = _name_of(batch)
    return None if name is None or batch[name].ndim < 2 else batch[name].shape[1]


def _name_of(batch: Mapping[str, Tensor]) -> str | None:
    return "input_ids" if "input_ids" in batch else next((n for n, t in batch.items() if t.ndim > 1), None)


def repeated(batch: Mapping[str, Tensor], times: int) -> dict[str, Tensor]:
    """Repeat the rows of a batch several times one after the other.

    Example:
        >>> repeated({"input_ids": torch.tensor([[1], [2]])}, 2)["input_ids"].flatten().tolist()
        [1, 2, 1, 2]
    """
    rows = rows_of(batch)
    by_row = {name: t for name, t in batch.items() if len(t) == rows}
    return {**batch, **{name: torch.cat([t] * times) for name, t in by_row.items()}}


def resized(row: Mapping[str, Tensor], rows: int, tokens: int) -> dict[str, Tensor]:
    """Resize a batch of one row to this number of rows and tokens, by repetition and truncation.

    Example:
        >>> resized({"input_ids": torch.tensor([[1, 2]])}, 2, 3)["input_ids"].tolist()
        [[1, 2, 1], [1, 2, 1]]
    """
    length = tokens_of(row)

    def fitted(t: Tensor) -> Tensor:
        if len(t) != 1:  # shared by all rows, such as positions (tokens,)
            return _cut(t, tokens, 0) if len(t) == length else t
        t = _cut(t, tokens, 1) if t.ndim > 1 and t.shape[1] == length else t
        return t.expand(rows, *[-1] * (t.ndim - 1))

    return {name: fitted(t) for name, t in row.items()}


def _cut(t: Tensor, tokens: int, axis: int) -> Tensor:
    return torch.cat([t] * -(-tokens // t.shape[axis]), axis).narrow(axis, 0, tokens)


def some_texts(batch: Mapping[str, Tensor], padding: Iterable[int] = (0,)) -> list[dict[str, Tensor]]:
    """Return the first row of a batch, and other rows with the same number of tokens.

    These are the next rows, and variants of the first one: with its first token throughout, with the neighbours of its
    tokens in the vocabulary, in reverse order, and with padding, from which a model may create a mask. All have the
    first row's mask.

    Args:
        batch: tensors by name.
        padding: ids that a model may treat as padding.

    Example:
        >>> texts = some_texts({"input_ids": torch.tensor([[5, 6]])})
        >>> [text["input_ids"].tolist() for text in texts]
        [[[5, 6]], [[5, 5]], [[4, 5]], [[6, 5]], [[5, 0]]]
    """
    rows = [rows_at(batch, slice(i, i + 1)) for i in range(min(_ROWS, rows_of(batch)))]
    name = _name_of(batch)
    if name is None or not rows:
        return rows
    ids = rows[0][name]
    # at the ends of a text, transformers warn of padding
    middle = torch.tensor([ids.shape[1] // 2]).to(ids.device)
    changed = [
        ids[:, :1].expand_as(ids).contiguous(),
        torch.where(ids > 1, ids - 1, ids + 1),  # avoids 0, which is often padding
        ids.flip(1),
        *(ids.index_fill(1, middle, i) for i in sorted({*padding})),
    ]
    mask = {n: t for n, t in rows[0].items() if n == "attention_mask"}
    return [{**row, **mask} for row in rows] + [{**rows[0], name: t} for t in changed]


def padding_of(configs: Iterable[Any]) -> Iterator[int]:
    """Yield the ids of padding in the configurations of transformers, if they have a vector.

    Example:
        >>> from transformers import LlamaConfig
        >>> list(padding_of([LlamaConfig(vocab_size=9, pad_token_id=i) for i in (2, 9, None)]))
        [2]
    """
    for config in configs:
        i = getattr(config, "pad_token_id", None)
        n = getattr(config, "vocab_size", None)
        if isinstance(i, int) and isinstance(n, int) and 0 <= i < n:
            yield i
