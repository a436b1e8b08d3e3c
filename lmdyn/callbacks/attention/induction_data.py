"""What Induction reads: rows of repeated tokens, and a text whose rows begin anew."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.batches import next_token_labels
from lmdyn.analysis.inspection.transformer import is_encoder_decoder
from lmdyn.callbacks.observing.probe import ProbeSet

__all__ = ["FreshRows", "first_of", "repeated_batch", "row_lengths"]


def repeated_batch(module: nn.Module, ids: Tensor, numbers: Sequence[int]) -> dict[str, Any]:
    """Return rows of repeated tokens as a batch for a module; ``numbers`` are those of the rows."""
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    # an encoder-decoder creates its decoder's input from labels
    labels = ids if is_encoder_decoder(module) else next_token_labels(batch)["labels"]
    return {**batch, "labels": labels, "example": torch.tensor(numbers)}


class FreshRows(ProbeSet):
    """A probe set whose rows continue no others: no recurrent state is carried, so the context is that of the row."""

    def batches(self, rank: int = 0, world_size: int = 1) -> Iterator[dict[str, Any]]:
        """Return the batches of one rank."""
        for batch in super().batches(rank, world_size):
            yield {name: value for name, value in batch.items() if name != "continues"}


def first_of(tokenizer: Any, *names: str) -> tuple[int, ...]:
    """Return the first special token that the tokenizer has, of these names."""
    found = (getattr(tokenizer, name, None) for name in names)
    return tuple(i for i in found if i is not None)[:1]


def row_lengths(batch: Mapping[str, Any], whose: str) -> list[int]:
    """Return the number of tokens of each row.

    Raises:
        ValueError: for a batch without ``input_ids``.
    """
    ids, mask = batch.get("input_ids"), batch.get("attention_mask")
    if not isinstance(ids, Tensor):
        raise ValueError(
            f"{whose}: expected batches with `input_ids`, got {sorted(batch)}: name them by `batch: {{input_ids: …}}`"
        )
    if isinstance(mask, Tensor) and mask.shape == ids.shape:
        return [int(n) for n in mask.bool().sum(1)]
    return [ids.shape[1]] * len(ids)
