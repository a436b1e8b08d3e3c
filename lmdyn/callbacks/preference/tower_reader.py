"""Predictions of each tower of a frozen model by itself, from text, for ``TowerPreference``."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor, nn

from lmdyn.analysis.inspection.forward import IGNORED, Forward, device_of
from lmdyn.analysis.inspection.predictions import activations_at
from lmdyn.analysis.preference.preference import most_frequent_tag
from lmdyn.analysis.preference.tower_predictions import Predictions, TowerPredictions
from lmdyn.analysis.probing.tower_heads import Encoded, HeadTraining, TowerHead, train_tower_heads
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.analysis.statistics.hashing import splitmix64
from lmdyn.callbacks.observing.probe import ProbeSet, to_device, token_vectors
from lmdyn.callbacks.observing.run import announce

__all__ = ["TowerReader", "tags_in", "tags_of"]

_EVERY, _MOST = 20, 16
"""If heads are trained until they stop improving, every 20th batch of the training text is held out, at most 16."""


class TowerReader:
    """Reads text with a module, trains an output layer for each tower, and averages their predictions.

    Args:
        sites: module paths of the towers' encodings by name.
        forward: dotted path to ``(module, batch) -> output``, or None.
        mask_id: for a masked language model, the token at the positions that count; None for all labelled ones.
        vocab_size: number of token types.
        seed: seed of the two halves of the rows of text.
    """

    def __init__(
        self,
        sites: Mapping[str, str],
        forward: Forward | None,
        mask_id: int | None,
        vocab_size: int,
        seed: int,
    ) -> None:
        self.sites, self.forward, self.mask_id = sites, forward, mask_id
        self.vocab_size, self.seed = vocab_size, seed

    def predictions(
        self, module: nn.Module, train: ProbeSet, test: ProbeSet, training: HeadTraining, *, printed: bool
    ) -> Predictions | None:
        """Return the mean probabilities of each tower's output layer on ``test``, after training on ``train``.

        Every rank must call it. None if encodings, or the output layers trained on them, are not finite.

        Args:
            module: the frozen module, in eval mode.
            train: training data of the output layers; its batches are repeated. With
                ``training.patience`` every 20th of the first 320 is held out.
            test: data for the averages.
            training: training of the output layers.
            printed: whether to average also over all positions, which the variant ``printed`` requires.

        Raises:
            ValueError: if there is no training data.
        """
        held_out = []
        if training.patience is not None:  # the small batches are kept and encoded again
            held_out = [b for b in islice(_numbered(train), _MOST * _EVERY) if _is_held_out(b[0])]
        heads, losses = train_tower_heads(
            self._updates(module, train, all_of_it=not held_out), self.vocab_size, training,
            lambda: (_flat(encoded) for encoded, _ in self._encoded(module, train, held_out)),
        )  # fmt: skip
        if not bool(losses.isfinite().all()):
            return None
        sums = TowerPredictions(self.vocab_size, len(self.sites))
        for encoded, rows in self._encoded(module, test, _numbered(test)):
            half = (splitmix64(rows + (self.seed << 32)) >> 17) & 1  # a whole row of text is in one half
            _add(sums, heads, encoded, half, printed=printed)
        return sums.reduce()

    def _updates(self, module: nn.Module, train: ProbeSet, *, all_of_it: bool) -> Iterator[Encoded]:
        """Yield this rank's share of the training batches repeatedly."""
        some = True
        while some:
            some = False
            batches = (b for b in _numbered(train) if all_of_it or not _is_held_out(b[0]))
            for encoded, _ in self._encoded(module, train, batches):
                some = True
                yield _flat(encoded)

    @torch.no_grad()
    def _encoded(
        self, module: nn.Module, part: ProbeSet, batches: Iterable[tuple[int, dict[str, Any]]]
    ) -> Iterator[tuple[Encoded, Int[Tensor, "rows"]]]:
        """Yield encodings (rows, positions, d) and labels (rows, positions) of this rank's batches, and row numbers."""
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
                encodings = {
                    site: x.gather(1, at[..., None].expand(-1, -1, x.shape[-1]))
                    for site, x in encodings.items()
                }
            rows = batch.get("example")
            if rows is None:
                rows = part.rows(number, len(labels), rank, world_size, streams="continues" in batch)
            yield Encoded(encodings, labels), rows.to(device)


def _add(
    sums: TowerPredictions, heads: Mapping[str, TowerHead], rows: Encoded, halves: Tensor, *, printed: bool
) -> None:
    """Add the probabilities of a batch."""
    encoded = _flat(rows)
    half = halves[:, None].expand(rows.labels.shape).flatten()
    log_p = [
        head.target_log_probabilities(encoded.encodings[name], encoded.labels) for name, head in heads.items()
    ]
    sums.update(torch.stack(log_p), encoded.labels, half)
    if printed:
        over_all = [
            head.probability_sums(encoded.encodings[name], encoded.labels) for name, head in heads.items()
        ]
        sums.update_all(torch.stack(over_all), (encoded.labels >= 0).sum())


def _numbered(part: ProbeSet) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield this rank's batches with their numbers."""
    return enumerate(part.batches(*rank_and_world_size()))


def _is_held_out(number: int) -> bool:
    return number % _EVERY == 0 and number < _MOST * _EVERY


def _flat(rows: Encoded) -> Encoded:
    return Encoded({name: x.flatten(0, 1) for name, x in rows.encodings.items()}, rows.labels.flatten())


def tags_of(token_counts: pd.DataFrame | None, size: int) -> Any:
    """Return the most frequent tag of each token type, None if it has none; None if tags were not counted."""
    names = [
        c for c in (token_counts.columns if token_counts is not None else []) if c not in ("token", "count")
    ]
    if token_counts is None or not names or len(token_counts) < size:
        return None
    best = most_frequent_tag(torch.from_numpy(token_counts[names].to_numpy(dtype="int64")[:size].copy()))
    return np.array([*names, None], dtype=object)[best.numpy()]


def tags_in(probe_set: ProbeSet, size: int, whose: str) -> Any:
    """Return the most frequent tag of each token type among the targets of a probe set; None without tags.

    For the observer ``whose``, it is announced that the probe set and not the training data is used.
    """
    names = probe_set.label_names.get("upos")
    if not names:
        return None
    counts = torch.zeros(size * len(names), dtype=torch.int64)
    for batch in probe_set.batches():
        if "target_upos" not in batch:
            return None
        labels, tags = batch["labels"].cpu(), batch["target_upos"].cpu()
        known = (labels >= 0) & (labels < size) & (tags >= 0)
        counts += torch.bincount(labels[known] * len(names) + tags[known], minlength=len(counts))
    announce(whose, "there are no training counts of tags: they are counted in the probe set")
    return np.array([*names, None], dtype=object)[most_frequent_tag(counts.view(size, len(names))).numpy()]
