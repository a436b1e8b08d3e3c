"""Word frequencies as observers need them: counts by token id, ranks, special tokens."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lmdyn.callbacks.observing.observer import Observer

__all__ = ["FrequencySource", "check_counts", "frequency_ranks", "special_tokens", "token_frequencies"]

FrequencySource = Literal["train", "probe"]


def token_frequencies(observer: Observer, source: FrequencySource) -> Int[Tensor, "vocabulary"]:
    """Occurrences of each token id, in the training data or as targets in the observer's probe set.

    Raises:
        ValueError: an unknown source, no training counts, or counts that lack ids.
    """
    if source == "train":
        counts = torch.from_numpy(observer.token_counts["count"].to_numpy(dtype="int64").copy())
        tokenizer = observer.run.tokenizer
        check_counts(observer, _ids_of_probe_set(observer) if tokenizer is None else len(tokenizer))
        return counts
    if source != "probe":
        raise ValueError(f"{observer.name}: frequency is {source!r}: expected 'train' or 'probe'")
    size = len(observer.run.tokenizer) if observer.run.tokenizer is not None else 1
    counts = torch.zeros(size, dtype=torch.int64)
    for batch in observer.probe_set.batches():
        labels = batch["labels"][batch["labels"] >= 0].cpu()
        size = max(len(counts), _ids_of(batch))  # words that are read and never predicted have the count 0
        counts = torch.cat([counts, counts.new_zeros(size - len(counts))])
        counts += torch.bincount(labels, minlength=size)
    return counts


def check_counts(observer: Observer, size: int) -> None:
    """Refuse training counts of fewer than ``size`` token ids.

    Raises:
        ValueError: no training counts, or counts that lack ids.
    """
    rows = len(observer.token_counts)
    if rows < size:
        raise ValueError(
            f"{observer.name}: `token_counts` has {rows} rows for {size} token ids: give it one row for each id, 0 "
            "for what does not occur, or count the probe set instead with `frequency: probe`"
        )


def _ids_of_probe_set(observer: Observer) -> int:
    return max((_ids_of(batch) for batch in observer.probe_set.batches()), default=0)


def _ids_of(batch: Mapping[str, Any]) -> int:
    """One more than the highest token id of a batch."""
    tensors = [batch[key] for key in ("input_ids", "labels") if isinstance(batch.get(key), Tensor)]
    return max((int(t.max()) + 1 for t in tensors if t.numel()), default=0)


def special_tokens(observer: Observer, size: int) -> Bool[Tensor, "vocabulary"]:
    """Which token ids are no words: padding, unknown, end of sentence."""
    special = torch.zeros(size, dtype=torch.bool)
    if observer.run.tokenizer is not None:
        special[[i for i in observer.run.tokenizer.all_special_ids if i < size]] = True
    return special


def frequency_ranks(
    counts: Int[Tensor, "vocabulary"], special: Bool[Tensor, "vocabulary"]
) -> Int[Tensor, "vocabulary"]:
    """Frequency rank of each token id, 1 for the most frequent word; 0 for special tokens. Ties by id.

    Example:
        >>> frequency_ranks(torch.tensor([9, 5, 7]), torch.tensor([True, False, False]))
        tensor([0, 2, 1])
    """
    order = torch.argsort(torch.where(special, -1, counts), descending=True, stable=True)
    ranks = torch.empty_like(counts)
    ranks[order] = torch.arange(1, len(counts) + 1)
    return torch.where(special, 0, ranks)
