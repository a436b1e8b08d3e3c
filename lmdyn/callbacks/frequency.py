"""Word frequencies as observers need them: counts by token id, ranks, special tokens."""

from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lmdyn.callbacks.observer import Observer

__all__ = ["FrequencySource", "frequency_ranks", "special_tokens", "token_frequencies"]

FrequencySource = Literal["train", "probe"]


def token_frequencies(observer: Observer, source: FrequencySource) -> Int[Tensor, "vocabulary"]:
    """Occurrences of each token id, in the training data or as targets in the observer's probe set.

    Raises:
        ValueError: an unknown source, or training counts that nobody made.
    """
    if source == "train":
        return torch.from_numpy(observer.token_counts["count"].to_numpy(dtype="int64").copy())
    if source != "probe":
        raise ValueError(f"{observer.name}: frequency is {source!r}: expected 'train' or 'probe'")
    size = len(observer.run.tokenizer) if observer.run.tokenizer is not None else 1
    counts = torch.zeros(size, dtype=torch.int64)
    for batch in observer.probe_set.batches():
        labels = batch["labels"][batch["labels"] >= 0].cpu()
        found = torch.bincount(labels, minlength=len(counts))
        counts = torch.cat([counts, counts.new_zeros(max(0, len(found) - len(counts)))]) + found
    return counts


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
