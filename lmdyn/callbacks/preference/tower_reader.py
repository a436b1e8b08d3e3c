"""Predictions of each tower of a frozen model by itself, from text, for ``TowerPreference``."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.inspection.forward import IGNORED, Forward, device_of
from lmdyn.analysis.inspection.predictions import activations_at
from lmdyn.analysis.preference.tower_predictions import Predictions, TowerPredictions
from lmdyn.analysis.probing.tower_heads import Encoded, HeadTraining, train_tower_heads
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.analysis.statistics.hashing import splitmix64
from lmdyn.callbacks.observing.probe import ProbeSet, to_device, token_vectors

__all__ = ["TowerReader"]

_EVERY, _MOST = 20, 16
"""If heads are trained until they stop improving, every 20th batch of the training text is held out, at most 16."""

Numbered = tuple[int, dict[str, Any]]


@dataclass(frozen=True)
class TowerReader:
    """Reads text with a module, trains an output layer for each tower, and averages their predictions.

    Attributes:
        sites: module paths of the towers' encodings by name.
        forward: dotted path to ``(module, batch) -> output``, or None.
        mask_id: for a masked language model, the token at the positions that count; None for all labelled ones.
        vocab_size: number of token types.
        seed: seed of the two halves of the rows of text.
    """

    sites: Mapping[str, str]
    forward: Forward | None
    mask_id: int | None
    vocab_size: int
    seed: int

    def predictions(
        self, module: Module, train: ProbeSet, test: ProbeSet, training: HeadTraining
    ) -> Predictions | None:
        """Return the mean probabilities of each tower's output layer on ``test``, after training on ``train``.

        Every rank must call it. None if encodings, or the output layers trained on them, are not finite.

        Args:
            module: the frozen module, in eval mode.
            train: training data of the output layers; its batches are repeated. With
                ``training.patience`` every 20th of the first 320 is held out.
            test: data for the averages.
            training: training of the output layers.

        Raises:
            ValueError: if there is no training data.
        """
        held_out: list[Numbered] = []
        if training.patience is not None:  # the small batches are kept and encoded again
            held_out = list(islice(_numbered(train), 0, _MOST * _EVERY, _EVERY))
        heads, losses = train_tower_heads(
            self._updates(module, train, held_out),
            self.vocab_size,
            training,
            lambda: (encoded for encoded, _ in self._encoded(module, train, held_out)),
        )
        if not losses.isfinite().all():
            return None
        sums = TowerPredictions(self.vocab_size, len(self.sites))
        for (encodings, labels), halves in self._encoded(module, test, _numbered(test)):
            log_p = [head.target_log_probabilities(encodings[name], labels) for name, head in heads.items()]
            sums.update(torch.stack(log_p), labels, halves)
        return sums.reduce()

    def _updates(self, module: Module, train: ProbeSet, held_out: Iterable[Numbered]) -> Iterator[Encoded]:
        """Yield this rank's share of the training batches, without those held out, repeatedly."""
        left_out = {number for number, _ in held_out}
        some = True
        while some:
            some = False
            batches = ((number, batch) for number, batch in _numbered(train) if number not in left_out)
            for encoded, _ in self._encoded(module, train, batches):
                some = True
                yield encoded

    @torch.no_grad()
    def _encoded(
        self, module: Module, part: ProbeSet, batches: Iterable[Numbered]
    ) -> Iterator[tuple[Encoded, Int[Tensor, "n"]]]:
        """Yield encodings (n, d) and labels (n,) of this rank's batches, and the half of the text of each position."""
        device = device_of(module)
        rank, world_size = rank_and_world_size()
        first = True
        for number, batch in batches:
            batch = to_device(batch, device)
            labels = batch["labels"]
            if self.mask_id is not None:  # the model could copy tokens that it reads
                labels = labels.masked_fill(batch["input_ids"] != self.mask_id, IGNORED)
            found = activations_at(module, batch, self.sites, self.forward, whole=first)
            first = False
            encodings = {site: token_vectors(site, x, labels != IGNORED) for site, x in found.items()}
            positions = batch.get("masked_positions")
            if positions is not None:
                at = positions.clamp(min=0)
                labels = labels.gather(1, at).masked_fill(positions < 0, IGNORED)
                row = torch.arange(len(at), device=device)[:, None]
                encodings = {site: x[row, at] for site, x in encodings.items()}
            rows = batch.get("example")
            if rows is None:
                rows = part.rows(number, len(labels), rank, world_size, streams="continues" in batch)
            half = (splitmix64(rows + (self.seed << 32)) >> 17) & 1  # a whole row of text is in one half
            halves = half.to(device)[:, None].expand(labels.shape).flatten()
            flat = {site: x.flatten(0, 1) for site, x in encodings.items()}
            yield Encoded(flat, labels.flatten()), halves


def _numbered(part: ProbeSet) -> Iterator[Numbered]:
    """Yield this rank's batches with their numbers."""
    return enumerate(part.batches(*rank_and_world_size()))
