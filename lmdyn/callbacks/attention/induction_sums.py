"""What Induction gathers in a pass: scores and losses of rows of repeated tokens, losses of a text by position."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.attention.head_ablation import HeadInputs
from lmdyn.analysis.attention.induction_scores import SCORES, induction_scores
from lmdyn.analysis.inspection.batches import next_token_labels
from lmdyn.analysis.inspection.forward import IGNORED
from lmdyn.analysis.parameters.loss_gradient import losses_of
from lmdyn.analysis.statistics.distributed import all_reduce_sum, gather
from lmdyn.analysis.statistics.grouped import GroupedMeans
from lmdyn.analysis.statistics.precision import exact_float
from lmdyn.callbacks.observing.probe import Consumer, ObservedBatch

__all__ = ["Keeping", "Repeated", "RepeatedRows", "TextLosses"]


@dataclass(frozen=True)
class Repeated:
    """What was measured on rows of repeated tokens.

    Attributes:
        scores: by attention site (rows, heads, 3), in the order of ``SCORES``; float64.
        losses: loss of the next token at each position, (rows, time), the last is 0; None if they were not wanted.
    """

    scores: dict[str, Float[Tensor, "rows heads scores"]]
    losses: Float[Tensor, "rows time"] | None


class RepeatedRows:
    """Consumer of a pass over repeated tokens. Each row is kept, so that ranks' rows can be put together.

    Args:
        rows: number of rows over all ranks.
        length: number of tokens of a repetition.
        start: number of tokens before the first.
        losses: whether losses are wanted.
    """

    def __init__(self, rows: int, length: int, start: int, *, losses: bool) -> None:
        self._rows, self._length, self._start, self._wanted = rows, length, start, losses
        self._numbers: list[Tensor] = []
        self._scores: dict[str, list[Tensor]] = {}
        self._losses: list[Tensor] = []

    def update(self, seen: ObservedBatch) -> None:
        """Add a batch."""
        self._numbers.append(seen.rows)
        for site, weights in seen.attentions.items():
            found = induction_scores(weights, self._length, self._start)
            self._scores.setdefault(site, []).append(torch.stack([found[name] for name in SCORES], -1))
        if self._wanted:
            self._losses.append(exact_float(losses_of(seen.logits, seen.batch)))

    def result(self) -> Repeated:
        """Return the rows of all ranks; every rank must call it."""
        own = torch.cat(self._numbers).cpu() if self._numbers else torch.zeros(0, dtype=torch.int64)
        shapes: dict[str, tuple[int, ...]] = {}
        for rank in gather({site: tuple(parts[0].shape[1:]) for site, parts in self._scores.items()}):
            shapes |= rank
        time = max(gather(self._losses[0].shape[1] if self._losses else 0))

        def whole(parts: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
            values = torch.zeros(self._rows, *shape, dtype=torch.float64)
            if parts:
                values[own] = torch.cat(list(parts)).cpu()
            return all_reduce_sum(values)

        scores = {site: whole(self._scores.get(site, []), shape) for site, shape in shapes.items()}
        return Repeated(scores, whole(self._losses, (time,)) if self._wanted else None)


class Keeping:
    """Consumer of a pass that keeps the heads' outputs of each batch, of all tokens, for another consumer.

    Ranks that share weights repeat batches in order to make equally many passes; consumers do not see these.
    """

    def __init__(self, inputs: HeadInputs, consumer: Consumer) -> None:
        self._inputs, self._consumer = inputs, consumer

    def update(self, seen: ObservedBatch) -> None:
        """Process one batch."""
        self._inputs.keep(seen.tokens)
        self._consumer.update(seen)


class TextLosses:
    """Consumer of a pass over a text: losses of the next token by context, the number of tokens read in the row.

    Args:
        longest: largest number of tokens of a row.
        windows: first and last context of the early and of the late loss, inclusive; None for none. Both are of rows
            that contain the first late context.
    """

    def __init__(self, longest: int, windows: tuple[Sequence[int], Sequence[int]] | None) -> None:
        self._windows = windows
        self._by_context = GroupedMeans(longest + 1, skip_nan=False)
        self._by_window = GroupedMeans(2, skip_nan=False)

    def update(self, seen: ObservedBatch) -> None:
        """Add a batch."""
        ids, tokens = seen.batch["input_ids"], seen.tokens
        labels = next_token_labels({"input_ids": ids, "attention_mask": tokens})["labels"]
        losses = losses_of(seen.logits, {"labels": labels}).flatten()
        context = tokens.long().cumsum(1)
        there = (labels != IGNORED) & tokens  # not of padding before the first token
        self._by_context.update(context.where(there, -1).flatten(), {"loss": losses})
        if self._windows is not None:
            group = _window_of(context, self._windows)
            long = tokens.sum(1, keepdim=True) > self._windows[1][0]
            self._by_window.update(group.where(there & long, -1).flatten(), {"loss": losses})

    def result(self) -> tuple[dict[int, float], tuple[float, float] | None]:
        """Return the mean loss by context, and early and late loss, None without; every rank must call it."""
        for means in (self._by_context, self._by_window):
            means.reduce()
        contexts: dict[int, float] = {}
        if self._by_context.names:
            mean, count = self._by_context.mean("loss"), self._by_context.count("loss")
            contexts = {i: float(mean[i]) for i in range(len(mean)) if count[i] > 0}
        if not self._by_window.names or bool((self._by_window.count("loss") == 0).any()):
            return contexts, None
        early, late = self._by_window.mean("loss").tolist()
        return contexts, (early, late)


def _window_of(context: Int[Tensor, "batch time"], windows: tuple[Sequence[int], Sequence[int]]) -> Tensor:
    group = torch.full_like(context, -1)
    for i, (first, last) in enumerate(windows):
        group = group.masked_fill((context >= first) & (context <= last), i)
    return group
