"""What Induction reads, and what it gathers: rows of repeated tokens, and a text whose rows begin anew."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lmdyn.analysis.attention.induction_scores import SCORES, induction_scores
from lmdyn.analysis.inspection.batches import next_token_labels
from lmdyn.analysis.inspection.forward import IGNORED, Batch
from lmdyn.analysis.inspection.transformer import is_encoder_decoder
from lmdyn.analysis.parameters.loss_gradient import losses_of
from lmdyn.analysis.statistics.distributed import all_reduce_sum
from lmdyn.analysis.statistics.grouped import GroupedMeans
from lmdyn.analysis.statistics.precision import exact_float
from lmdyn.callbacks.observing.probe import ObservedBatch, ProbeSet

__all__ = ["FreshRows", "RepeatedRows", "TextLosses", "repeated_batch", "row_lengths"]


def repeated_batch(module: nn.Module, ids: Tensor, first: int = 0) -> dict[str, Any]:
    """Return rows of repeated tokens as a batch for a module; ``first`` is the number of the first row."""
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    # an encoder-decoder creates its decoder's input from labels
    labels = ids if is_encoder_decoder(module) else next_token_labels(batch)["labels"]
    return {**batch, "labels": labels, "example": first + torch.arange(len(ids))}


class FreshRows(ProbeSet):
    """A probe set whose rows continue no others: no recurrent state is carried, so the context is that of the row."""

    def counted(self, rank: int = 0, world_size: int = 1) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the batches of one rank, each with the number of tokens before it."""
        for before, batch in super().counted(rank, world_size):
            yield before, {name: value for name, value in batch.items() if name != "continues"}


def row_lengths(batch: Mapping[str, Any], whose: str) -> list[int]:
    """Return the number of tokens of each row.

    Raises:
        ValueError: for a batch without ``input_ids``.
    """
    ids, mask = batch.get("input_ids"), batch.get("attention_mask")
    if not isinstance(ids, Tensor):
        raise ValueError(
            f"{whose}: expected batches with `input_ids`, got {', '.join(batch)}: set `batch: {{input_ids: …}}`"
        )
    if isinstance(mask, Tensor) and mask.shape == ids.shape:
        return [int(n) for n in mask.bool().sum(1)]
    return [ids.shape[1]] * len(ids)


class RepeatedRows:
    """Consumer of a pass over repeated tokens: scores of heads, and losses of the next token, of each row.

    Args:
        shape: number of rows over all ranks, and of their tokens.
        length: number of tokens of a repetition.
        start: number of tokens before the first.
        heads: number of heads by attention site.
        with_losses: whether the module predicts next tokens.

    Attributes:
        scores: by attention site (rows, heads, 3), in the order of ``SCORES``; float64.
        losses: loss of the next token at each position, (rows, time), the last is 0; float64.
    """

    def __init__(
        self, shape: tuple[int, int], length: int, start: int, heads: Mapping[str, int], *, with_losses: bool
    ) -> None:
        self._length = length
        self._start = start
        self._with_losses = with_losses
        self.scores = {
            site: torch.zeros(shape[0], n, len(SCORES), dtype=torch.float64) for site, n in heads.items()
        }
        self.losses = torch.zeros(shape, dtype=torch.float64)

    def read(self, batch: Batch, path: str, weights: Tensor) -> Float[Tensor, "rows heads scores"]:
        """Return the scores of the heads of an attention site on each row."""
        found = induction_scores(weights, self._length, self._start)
        return torch.stack([found[name] for name in SCORES], -1)

    def update(self, seen: ObservedBatch) -> None:
        """Add a batch, with what was read of each site."""
        rows = seen.rows.cpu()
        for site, scores in seen.attentions.items():
            self.scores[site][rows] = scores.cpu()
        if self._with_losses:
            self.losses[rows] = exact_float(losses_of(seen.logits, seen.batch)).cpu()

    def reduce(self) -> None:
        """Put the rows of all ranks together; every rank must call it."""
        self.scores = {site: all_reduce_sum(values) for site, values in self.scores.items()}
        self.losses = all_reduce_sum(self.losses)


class TextLosses:
    """Consumer of a pass over a text: losses of the next token by context, the number of tokens read in the row.

    Args:
        longest: largest number of tokens of a row.
        windows: first and last context of the early and of the late loss, inclusive; none if empty. Both are of rows
            that contain the first late context.
    """

    def __init__(self, longest: int, windows: Sequence[Sequence[int]]) -> None:
        self._windows = windows
        self._by_context = GroupedMeans(longest + 1, skip_nan=False)
        self._by_window = GroupedMeans(2, skip_nan=False)

    def update(self, seen: ObservedBatch) -> None:
        """Add a batch."""
        ids, tokens = seen.batch["input_ids"], seen.tokens
        labels = next_token_labels({"input_ids": ids, "attention_mask": tokens})["labels"]
        losses = {"loss": losses_of(seen.logits, {"labels": labels}).flatten()}
        context = tokens.long().cumsum(1)
        there = (labels != IGNORED) & tokens  # not of padding before the first token
        self._by_context.update(context.where(there, -1).flatten(), losses)
        if self._windows:
            group = torch.full_like(context, -1)
            for i, (first, last) in enumerate(self._windows):
                group = group.masked_fill((context >= first) & (context <= last), i)
            long = tokens.sum(1, keepdim=True) > self._windows[1][0]
            self._by_window.update(group.where(there & long, -1).flatten(), losses)

    def reduce(self) -> None:
        """Add the sums of all ranks; every rank must call it."""
        for means in (self._by_context, self._by_window):
            means.reduce()

    @property
    def by_context(self) -> dict[int, float]:
        """Mean loss by context."""
        if not self._by_context.names:
            return {}
        count = self._by_context.count("loss")
        return {i: loss for i, loss in enumerate(self._by_context.mean("loss").tolist()) if count[i] > 0}

    @property
    def early_and_late(self) -> list[float]:
        """Early and late loss; empty without tokens of both."""
        if not self._by_window.names or (self._by_window.count("loss") == 0).any():
            return []
        return self._by_window.mean("loss").tolist()
