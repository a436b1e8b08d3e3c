"""Conversion of batches to dicts with the names of Hugging Face."""

import copy
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, Literal, TypeGuard

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from lmdyn.analysis.checked_fields import type_words
from lmdyn.analysis.inspection.forward import Batch

__all__ = [
    "aligned_labels",
    "documents_of",
    "drawn_alike",
    "in_order",
    "labels_of",
    "named_batch",
    "next_token_labels",
    "own_copy",
    "padding_mask",
    "rows_at",
    "rows_of",
    "targets_of",
    "text_labels",
    "text_of",
    "tokens_of",
    "unread_entries",
    "whole_numbers",
]

log = logging.getLogger(__name__)

_IDS = ("input_ids", "idx", "ids", "tokens", "token_ids", "inputs", "input", "x")
_LABELS = ("labels", "targets", "target", "label", "y")
_NO_LABELS = (
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "position_ids",
    "special_tokens_mask",
    "words",
    "example",
)


def named_batch(batch: Any, names: Mapping[str, str | int] | None = None) -> dict[str, Any]:
    """Convert a batch to a dict with ``input_ids`` and, if it has them, ``labels``.

    Without ``names``, a tensor of integers is ``input_ids``; a tuple of two of them is ``input_ids`` and ``labels``; a
    dict may use ``idx``, ``ids``, ``tokens``, ``inputs`` or ``x`` for the ids, and ``targets``, ``target``, ``label``
    or ``y`` for the labels.

    Args:
        batch: a dict, a tuple or list of tensors, or a tensor of ids (batch, time).
        names: name of an entry in the batch by its name in lmdyn: keys of a dict, indices from 0 in a tuple.

    Returns:
        The entries by name; entries that are not named keep their own.

    Raises:
        ValueError: if these rules do not cover the batch, or if it has no entry of ``names``; the message describes
            the batch.

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
        if names is None and of_ids(batch):
            names = {"input_ids": 0}
    elif isinstance(batch, Mapping):
        entries = dict(batch)
        names = _recognised(entries) if names is None else names
    else:
        raise ValueError(
            f"expected batches that are dicts, tuples or tensors, got {type_words(type(batch).__name__)}: pass a "
            "loader of dicts, tuples or tensors to the observer as `probe:`"
        )
    if names is None:
        raise ValueError(
            f"lmdyn cannot tell what the batches contain: {seen(batch)}. Set `batch: {{input_ids: …, labels: …}}` with "
            "the keys of a dict or the indices, from 0, of a tuple"
        )
    missing = {name: key for name, key in names.items() if key not in entries}
    if missing:
        raise ValueError(
            f"`batch` names {', '.join(map(str, missing.values()))}, but batches are {seen(batch)}: name other entries"
        )
    renamed = {name: entries[key] for name, key in names.items()}
    if names and "input_ids" not in renamed and "input_ids" not in entries:
        raise ValueError(
            f"`batch` names {', '.join(names)}, but no `input_ids`; the batches are {seen(batch)}: name the token ids, "
            "`batch: {input_ids: …}`"
        )
    rest = {k: v for k, v in entries.items() if k not in names.values() and isinstance(k, str)}
    return {**rest, **renamed}


def rows_of(batch: Mapping[str, Any]) -> int:
    """Return the number of rows of a batch, by ``input_ids``, or by the longest tensor.

    Example:
        >>> rows_of({"input_ids": torch.ones(2, 3), "position_ids": torch.ones(1, 3)})
        2
    """
    tensors = [value for value in batch.values() if isinstance(value, Tensor) and value.ndim]
    return len(batch["input_ids"]) if "input_ids" in batch else max(map(len, tensors), default=0)


def rows_at(batch: Mapping[str, Any], rows: Tensor | slice) -> dict[str, Any]:
    """Select rows of a batch; what is shared by all rows, such as positions (1, tokens), is unchanged.

    Args:
        batch: values by name.
        rows: their numbers, or a mask of all rows.

    Example:
        >>> part = rows_at({"input_ids": torch.ones(2, 3), "position_ids": torch.ones(1, 3)}, slice(1, 2))
        >>> {name: tuple(t.shape) for name, t in part.items()}
        {'input_ids': (1, 3), 'position_ids': (1, 3)}
    """
    n = rows_of(batch)
    return {k: v[rows] if isinstance(v, Tensor) and v.ndim and len(v) == n else v for k, v in batch.items()}


def aligned_labels(labels: Int[Tensor, "_ _"], convention: Literal["aligned", "next"]) -> Int[Tensor, "_ _"]:
    """Align labels with the logits at the same position.

    Args:
        labels: (batch, time), -100 for none.
        convention: convention of the labels.

    Returns:
        Labels (batch, time); for ``next``, each label is moved one position earlier, with -100 at the last.

    Example:
        >>> aligned_labels(torch.tensor([[5, 6, 7]]), "next")
        tensor([[   6,    7, -100]])
    """
    if convention == "aligned":
        return labels
    return torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], dim=1)


def padding_mask(batch: Batch, decodes: bool = False) -> Bool[Tensor, "batch time"] | None:
    """Return where the text that labels belong to is padding; None if the batch has no mask for it.

    Args:
        batch: a batch with the names of Hugging Face.
        decodes: whether the model is an encoder-decoder: its labels belong to the decoder's text, so that
            ``decoder_attention_mask`` decides, and not the ``attention_mask`` of the encoder's text.
    """
    mask = batch.get("decoder_attention_mask" if decodes else "attention_mask")
    labels = batch.get("labels", batch.get("input_ids"))
    if isinstance(mask, Tensor) and isinstance(labels, Tensor) and mask.shape == labels.shape:
        return mask == 0
    return None


def text_labels(batch: Batch, decodes: bool = False) -> dict[str, Any]:
    """Set labels on padding, and layers that describe them (``target_…``), to -100: padding counts in no measure.

    Without a mask nothing changes: padding that is also the end of a text, as GPT-2's, cannot be told from it.

    Args:
        batch: a batch with the names of Hugging Face.
        decodes: see :func:`padding_mask`.

    Example:
        >>> ids = torch.tensor([[4, 5, 0]])
        >>> text_labels({"input_ids": ids, "labels": ids, "attention_mask": ids.clamp(max=1)})["labels"]
        tensor([[   4,    5, -100]])
    """
    padding = padding_mask(batch, decodes)
    return dict(batch) if padding is None else _with_labels(batch, lambda of: of.masked_fill(padding, -100))


def next_token_labels(batch: Batch) -> dict[str, Any]:
    """Convert labels that a model shifts inside to labels that belong to the logits of their own position.

    Causal models of transformers predict ``labels[:, t + 1]`` at t. A batch without labels uses its ``input_ids``.
    Layers that describe the labels (``target_…``) are shifted with them. Neither padding is predicted, nor what
    follows padding on the left, which no text precedes: rows give the same labels padded on either side.

    Args:
        batch: ``labels`` or ``input_ids`` (batch, time), and any other entries.

    Returns:
        The batch with ``labels[:, t]`` to be predicted at t; -100 at the last position.

    Example:
        >>> next_token_labels({"input_ids": torch.tensor([[4, 5, 6]])})["labels"]
        tensor([[   5,    6, -100]])
    """
    given = text_labels({**batch, "labels": batch.get("labels", batch["input_ids"])})
    return text_labels(_with_labels(given, lambda labels: aligned_labels(labels, "next")))


def _with_labels(batch: Batch, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Return the batch with changed labels and layers that describe them, all (batch, time)."""
    changed = {
        name: change(value)
        for name, value in batch.items()
        if (name == "labels" or name.startswith("target_")) and isinstance(value, Tensor) and value.ndim == 2
    }
    return {**batch, **changed}


def documents_of(batch: dict[str, Any]) -> dict[str, Any]:
    """Return packed documents as rows, padded on the right; a batch without such documents is returned unchanged.

    Documents are packed if ``position_ids`` begin again at 0 within rows and there is no ``attention_mask``, as with
    transformers' ``DataCollatorWithFlattening`` and TRL's ``padding_free``. In rows of their own, no document attends
    to another, is predicted from it, or has positions that count from another's beginning.

    Args:
        batch: a batch with the names of Hugging Face, on the CPU.

    Returns:
        Its entries of the shape (batch, time) without ``position_ids``, with an ``attention_mask`` and ``labels``.

    Example:
        >>> ids = torch.tensor([[4, 5, 6, 7, 8]])
        >>> documents_of({"input_ids": ids, "position_ids": torch.tensor([[0, 1, 0, 1, 2]])})["input_ids"]
        tensor([[4, 5, 0],
                [6, 7, 8]])
    """
    ids = batch.get("input_ids")
    positions = batch.get("position_ids")
    if not (isinstance(ids, Tensor) and isinstance(positions, Tensor)) or positions.shape != ids.shape:
        return batch
    if "attention_mask" in batch or not (positions[:, 1:] == 0).any():
        return batch
    begins = positions == 0
    begins[:, 0] = True
    sizes = begins.flatten().nonzero().flatten().diff(append=torch.tensor([ids.numel()])).tolist()
    if max(sizes) == 1:  # positions that are not those of documents
        return batch
    given = {"labels": ids, **batch, "attention_mask": torch.ones_like(ids)}
    of_text = {
        k: v
        for k, v in given.items()
        if isinstance(v, Tensor) and v.shape == ids.shape and k != "position_ids"
    }
    return {
        name: pad_sequence(
            # nothing to predict, or padding
            [part for part in value.flatten().split(sizes) if len(part) > 1],
            batch_first=True,
            padding_value=-100 if name == "labels" or name.startswith("target_") else 0,
        )
        for name, value in of_text.items()
    }


def labels_of(batch: Batch) -> Tensor:
    """Return the labels of a batch.

    Raises:
        ValueError: if it has none.
    """
    labels = batch.get("labels")
    if not isinstance(labels, Tensor):
        raise ValueError(
            f"expected `labels` in the probe set's batches, got {', '.join(sorted(batch))}: add labels "
            "(Hugging Face's collators create labels), or name the entry of labels, `batch: {labels: …}`"
        )
    return labels


def text_of(batch: Batch) -> Tensor:
    """Return the text of a batch: its ``input_ids``, else its ``labels``."""
    ids = batch.get("input_ids")
    return ids if isinstance(ids, Tensor) else labels_of(batch)


def targets_of(batch: Batch) -> Tensor:
    """Return what is predicted in a batch: its ``labels``, else its ``input_ids``."""
    return labels_of(batch) if "labels" in batch else text_of(batch)


def tokens_of(batch: Batch) -> Bool[Tensor, "batch time"]:
    """Return the mask of positions with a token of the text, that is, all except padding."""
    mask = batch.get("attention_mask")
    return torch.ones_like(text_of(batch), dtype=torch.bool) if mask is None else mask.bool()


def whole_numbers(batch: Batch) -> dict[str, Any]:
    """Convert ids and labels to int64, and labels below 0, such as nanoGPT's -1, to -100; lists and arrays to tensors.

    Example:
        >>> whole_numbers({"input_ids": [[1, 2]], "labels": np.array([[2, -1]])})
        {'input_ids': tensor([[1, 2]]), 'labels': tensor([[   2, -100]])}
    """
    found = dict(batch)
    for name in ("input_ids", "labels", "attention_mask"):
        if isinstance(found.get(name), (list, np.ndarray)):
            try:
                found[name] = torch.as_tensor(np.asarray(found[name]))
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"expected numbers in rows of equal length in `{name}`, got text or different lengths: pad the "
                    "rows, or pass a DataLoader with a collator"
                ) from error
    for name in ("input_ids", "labels"):
        value = found.get(name)
        if isinstance(value, Tensor) and not value.is_floating_point() and value.dtype != torch.bool:
            found[name] = value.long()
            if name == "labels":
                found[name] = found[name].masked_fill(found[name] < 0, -100)
    return found


def own_copy(collate: Any) -> Any:
    """Copy a collator in its present state, so that the generator of the original is not advanced."""
    try:
        return copy.deepcopy(collate)
    except Exception:  # for example, of a collator with an open file
        return collate


def in_order(loader: Iterable[Any], collate: Any = None) -> Iterable[Any]:
    """Return a loader's examples in the order of its dataset, in this process, independent of its sampler's order.

    For a sampler of a subset, these are its subset; for an unknown sampler, the whole dataset, with a warning.

    Args:
        loader: any loader; objects other than a ``DataLoader`` are returned unchanged.
        collate: a collator that is copied before it is used, instead of the loader's; None uses the loader's.
    """
    if not isinstance(loader, DataLoader):
        return loader
    dataset, batches = loader.dataset, loader.batch_sampler
    collate = loader.collate_fn if collate is None else own_copy(collate)
    if isinstance(dataset, IterableDataset) or batches is None:
        return DataLoader(dataset, batch_size=loader.batch_size, collate_fn=collate)
    sampler = getattr(batches, "sampler", None)
    while (inner := getattr(getattr(sampler, "dataset", None), "_sampler", None)) is not None:
        sampler = inner  # the sampler of Lightning that distributes another over ranks
    indices = getattr(sampler, "indices", None)
    if indices is not None:
        dataset = Subset(dataset, sorted(int(i) for i in indices))
    elif not isinstance(sampler, (SequentialSampler, RandomSampler, DistributedSampler)):
        log.warning(
            "lmdyn does not know the sampler %s of the probe set, and uses all %d examples of the dataset. To select "
            "examples, pass a loader of the selected examples as `probe`",
            type(sampler or batches).__name__,
            len(dataset),  # type: ignore[arg-type] # it has an order
        )
    size = getattr(batches, "batch_size", loader.batch_size) or 1
    return DataLoader(dataset, batch_size=size, collate_fn=collate)


def drawn_alike(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches created from fixed random states, so that collators that draw masks draw the same ones each time.

    The states of the generators of Python, NumPy and the CPU are restored between batches and after them.

    Example:
        >>> def rows():
        ...     yield torch.rand(2)
        ...     yield torch.rand(2)
        >>> first, again = list(drawn_alike(rows())), list(drawn_alike(rows()))
        >>> torch.equal(first[0], again[0]), torch.equal(first[1], again[1]), torch.equal(first[0], first[1])
        (True, True, False)
    """
    iterator: Iterator[Any] | None = None
    for number in count():
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 (to be restored)
        try:
            random.seed(number)
            np.random.seed(number)  # noqa: NPY002
            torch.default_generator.manual_seed(number)
            iterator = iter(batches) if iterator is None else iterator
            batch = next(iterator)
        except StopIteration:
            return
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
            torch.set_rng_state(states[2])
        yield batch


def unread_entries(batch: Batch) -> list[str]:
    """Return entries of a batch that could be labels: integers of the shape of ``input_ids``, with an unknown name.

    Example:
        >>> ids = torch.tensor([[1, 2]])
        >>> unread_entries({"input_ids": ids, "attention_mask": ids, "next": ids})
        ['next']
    """
    ids = batch.get("input_ids")
    return [
        name
        for name, value in batch.items()
        if name not in _NO_LABELS and isinstance(ids, Tensor) and of_ids(value) and value.shape == ids.shape
    ]


def seen(batch: Any) -> str:
    """Describe a batch in words.

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


def of_ids(value: Any) -> TypeGuard[Tensor]:
    """Return whether a value is a tensor of integers (batch, time)."""
    integers = isinstance(value, Tensor) and not value.is_floating_point() and value.dtype != torch.bool
    return bool(integers and value.ndim == 2)


def _two_of_ids(batch: Any) -> bool:
    if len(batch) != 2 or not all(map(of_ids, batch)) or batch[0].shape != batch[1].shape:
        return False
    first, second = (tensor.long() for tensor in batch)
    return bool(not second.numel() or second.max() > 1 or first.max() <= 1)  # the second is not a mask


def _recognised(entries: Mapping[str, Any]) -> dict[str, str | int] | None:
    """Return the usual names of ids and labels, if there is at most one of each."""
    if "input_ids" in entries and ("labels" in entries or not entries.keys() & set(_LABELS)):
        return {}
    ids = [k for k in _IDS if of_ids(entries.get(k))]
    labels = [k for k in _LABELS if of_ids(entries.get(k))]
    if len(ids) != 1 or len(labels) > 1:
        return {} if not ids and "labels" in entries else None
    return {"input_ids": ids[0], **({"labels": labels[0]} if labels else {})}
