"""Data of training loops: probe sets and frequencies of tokens from what a user has at hand."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lmdyn.analysis.checked_fields import type_words
from lmdyn.analysis.inspection.batches import named_batch, text_of
from lmdyn.callbacks.observing.amounts import add_counts

_ROWS = 8  # of a batch of a Dataset


def data_of(probe: Any, train: Any = None) -> Any:
    """Return a datamodule of loaders or Datasets; training texts are not batches; None without a probe set.

    Raises:
        ValueError: for a single batch, or what is no data.
    """
    if probe is None or isinstance(probe, L.LightningDataModule):
        return probe
    data: Any = L.LightningDataModule()
    observed = [_batches(probe, "probe")]  # a list of batches alone would look like several loaders
    data.val_dataloader = lambda: observed
    if train is not None and not _are_texts(train):
        trained = [_batches(train, "train")]
        data.train_dataloader = lambda: trained
    return data


def _batches(data: Any, name: str) -> Any:
    """Return a loader: for a Dataset, batches of its rows in their order."""
    pair = isinstance(data, tuple) and all(isinstance(part, Tensor) for part in data)
    one = pair or isinstance(data, Mapping | Tensor | str)  # a single batch, or its text
    if one or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        given = "a tuple of tensors" if pair else type_words(type(data).__name__)
        raise ValueError(f"`{name}` is {given}: expected batches, such as [batch] or a DataLoader")
    rows = hasattr(data, "__getitem__") and not isinstance(data, list | tuple)
    if not rows or isinstance(data, DataLoader):
        return data
    return DataLoader(data, batch_size=_ROWS, collate_fn=_stacked)


def _stacked(rows: list[Any]) -> Any:
    from transformers import default_data_collator

    try:
        return default_data_collator(rows)
    except (ValueError, RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"rows of the Dataset cannot be stacked ({reason}): instead of the Dataset, pass "
            "`DataLoader(dataset, collate_fn=…)` with the collator of the training"
        ) from error


def counted_tokens(train: Any, tokenizer: Any) -> pd.DataFrame:
    """Count the tokens of training batches, or of texts; padding, according to ``attention_mask``, is not counted.

    Returns:
        A table with the columns ``token`` and ``count``, one row for each token id.

    Raises:
        ValueError: for texts without a tokenizer, data without tokens, or an iterator, which the training would find
            empty.
    """
    if isinstance(train, Iterator):
        raise ValueError("`train` is an iterator, which counting would use up: pass a list or a DataLoader")
    counts = torch.zeros(0, dtype=torch.int64)
    for ids in _token_ids(train, tokenizer):
        counts = add_counts(counts, ids)
    if not counts.sum():
        raise ValueError("`train` has no tokens: expected training batches or texts")
    return named_counts(dict(enumerate(counts.tolist())), tokenizer)


def named_counts(counts: Any, tokenizer: Any) -> pd.DataFrame:
    """Return counts by token id as a table with the columns ``token`` and ``count``; a table is returned unchanged.

    Args:
        counts: counts by id: a mapping, a Series, a tensor, an array or a list; or a table with a row for each id, in
            order.
        tokenizer: names the tokens; None names them by their ids.

    Raises:
        ValueError: for counts that are no whole numbers from 0, or a table in another order.

    Example:
        >>> named_counts({0: 5, 2: 1}, None)["count"].tolist()
        [5, 0, 1]
    """
    if isinstance(counts, pd.DataFrame):
        if "count" not in counts or list(counts.index) != list(range(len(counts))):
            raise ValueError(
                "the table `token_counts` must have a column `count` and a row for each token id, in the order of ids "
                f"from 0, got columns {', '.join(map(str, counts))} and rows {', '.join(map(str, counts.index[:3]))}…: "
                "pass a dict of counts by id, or use `.sort_index().reindex(range(len(tokenizer)), fill_value=0)`"
            )
        return counts
    listed = counts.tolist() if hasattr(counts, "tolist") else counts
    by_id = pd.Series(dict(counts.items() if hasattr(counts, "items") else enumerate(listed)))
    for i, count in by_id.items():
        if not (_is_whole(i) and _is_whole(count)):
            raise ValueError(
                f"`token_counts` has {count!r} for {i!r}: expected whole numbers from 0 by token id, such as {{0: 5}}"
            )
    size = max(len(tokenizer) if hasattr(tokenizer, "__len__") else 0, int(max(by_id.index, default=-1)) + 1)
    ids = list(range(size))
    named = hasattr(tokenizer, "convert_ids_to_tokens")
    tokens = [str(t) for t in tokenizer.convert_ids_to_tokens(ids)] if named else [str(i) for i in ids]
    in_order = by_id.reindex(ids, fill_value=0).astype("int64").to_numpy()
    return pd.DataFrame({"token": tokens, "count": in_order}, index=pd.RangeIndex(size, name="id"))


def _is_whole(number: Any) -> bool:
    return isinstance(number, int | float | np.number) and bool(number >= 0) and float(number).is_integer()


def _are_texts(train: Any) -> bool:
    return isinstance(train, list | tuple) and bool(train) and all(isinstance(text, str) for text in train)


def _token_ids(train: Any, tokenizer: Any) -> Iterable[Any]:
    if _are_texts(train):
        if tokenizer is None:
            raise ValueError(
                "`train` is text, and there is no tokenizer: pass `tokenizer`, or batches of token ids"
            )
        for text in train:
            yield torch.tensor(tokenizer(text)["input_ids"], dtype=torch.int64)
        return
    for given in _batches(train, "train"):
        batch = named_batch(given, None)
        ids, mask = text_of(batch), batch.get("attention_mask")
        ids = ids[mask.bool()] if isinstance(mask, Tensor) and mask.shape == ids.shape else ids
        yield ids.flatten().cpu()
