"""Batches as they come, as dicts in Hugging Face's names."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["named_batch", "next_token_labels"]

_IDS = ("input_ids", "idx", "ids", "tokens", "token_ids", "inputs", "input", "x")
_LABELS = ("labels", "targets", "target", "y")


def named_batch(batch: Any, names: Mapping[str, str | int] | None = None) -> dict[str, Any]:
    """A batch as a dict with ``input_ids`` and, where it has them, ``labels``.

    Without ``names``: a tensor of integers is ``input_ids``; a tuple of two of them is ``input_ids`` and ``labels``; a
    dict may call them ``idx``, ``ids``, ``tokens``, ``inputs`` or ``x``, and the labels ``targets``, ``target`` or
    ``y``.

    Args:
        batch: a dict, a tuple or list of tensors, or a tensor of ids (batch, time).
        names: what the batch calls an entry, by its name in lmdyn: keys of a dict, places from 0 in a tuple.

    Returns:
        The entries by name; what is not named keeps its own.

    Raises:
        ValueError: a batch that these rules do not cover, or without what ``names`` says, with what was seen.

    Example:
        >>> ids = torch.tensor([[1, 2]])
        >>> sorted(named_batch((ids, ids))), sorted(named_batch({"idx": ids, "mask": ids}, {"input_ids": "idx"}))
        (['input_ids', 'labels'], ['input_ids', 'mask'])
    """
    if isinstance(batch, (tuple, list)):
        entries: dict[Any, Any] = dict(enumerate(batch))
        if names is None and _two_of_ids(batch):
            names = {"input_ids": 0, "labels": 1}
    elif isinstance(batch, Tensor):
        entries = {0: batch}
        if names is None and _of_ids(batch):
            names = {"input_ids": 0}
    elif isinstance(batch, Mapping):
        entries = dict(batch)
        if (
            names is None
            and "input_ids" in entries
            and ("labels" in entries or not entries.keys() & set(_LABELS))
        ):
            return entries
        if names is None:
            names = _recognised(entries)
    else:
        raise ValueError(
            f"expected batches that are dicts, tuples or tensors, got {type(batch).__name__}: give the observer "
            "`probe:`, a loader of such batches"
        )
    if names is None:
        raise ValueError(
            f"the batches are {seen(batch)}: say which entries are which by `batch: {{input_ids: …, labels: …}}`, with "
            "the keys of a dict or the places, from 0, of a tuple"
        )
    missing = {name: key for name, key in names.items() if key not in entries}
    if missing:
        raise ValueError(
            f"`batch` names {missing}, and the batches are {seen(batch)}: name entries that exist"
        )
    renamed = {name: entries[key] for name, key in names.items()}
    rest = {k: v for k, v in entries.items() if k not in names.values() and isinstance(k, str)}
    return {**rest, **renamed}


def next_token_labels(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch with labels that belong to the logits of their own place, from labels that a model shifts inside.

    Causal models of transformers predict ``labels[:, t + 1]`` at t. A batch without labels has its ``input_ids`` as
    such, but for padding. Layers that describe the labels (``target_…``) move with them.

    Args:
        batch: ``labels`` or ``input_ids`` (batch, time), and any others.

    Returns:
        The batch with ``labels[:, t]`` to be predicted at t; -100 at the last place.

    Example:
        >>> next_token_labels({"input_ids": torch.tensor([[4, 5, 6]])})["labels"]
        tensor([[   5,    6, -100]])
    """
    labels = batch.get("labels")
    if labels is None:
        labels = batch["input_ids"]
        mask = batch.get("attention_mask")
        if isinstance(mask, Tensor) and mask.shape == labels.shape:
            labels = labels.masked_fill(mask == 0, -100)
    moved = {"labels": labels, **{k: v for k, v in batch.items() if k.startswith("target_")}}
    shifted = {
        name: torch.cat([tensor[:, 1:], torch.full_like(tensor[:, :1], -100)], dim=1)
        for name, tensor in moved.items()
        if isinstance(tensor, Tensor) and tensor.ndim >= 2
    }
    return {**batch, **shifted}


def seen(batch: Any) -> str:
    """What a batch is, in words.

    Example:
        >>> seen((torch.zeros(2, 3), "a"))
        'a tuple of [float32 (2, 3), str]'
    """
    if isinstance(batch, Mapping):
        return f"a dict of {{{', '.join(f'{k}: {_kind(v)}' for k, v in batch.items())}}}"
    if isinstance(batch, (tuple, list)):
        return f"a {type(batch).__name__} of [{', '.join(map(_kind, batch))}]"
    return f"a {_kind(batch)}" if isinstance(batch, Tensor) else type(batch).__name__


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return type(value).__name__


def _of_ids(value: Any) -> bool:
    integers = isinstance(value, Tensor) and not value.is_floating_point() and value.dtype != torch.bool
    return bool(integers and value.ndim == 2)


def _two_of_ids(batch: Any) -> bool:
    return len(batch) == 2 and all(map(_of_ids, batch)) and batch[0].shape == batch[1].shape


def _recognised(entries: Mapping[str, Any]) -> dict[str, str | int] | None:
    """The usual names of ids and labels, where there is one of each at most."""
    ids = [k for k in _IDS if _of_ids(entries.get(k))]
    labels = [k for k in _LABELS if isinstance(entries.get(k), Tensor)]
    if len(ids) != 1 or len(labels) > 1:
        return {} if not ids and "labels" in entries else None
    return {"input_ids": ids[0], **({"labels": labels[0]} if labels else {})}
