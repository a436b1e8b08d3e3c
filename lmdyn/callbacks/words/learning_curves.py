"""Loss and accuracy over training, by tag and by frequency of the target word."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lmdyn.analysis.inspection.predictions import hits
from lmdyn.analysis.statistics.grouped import GroupedMeans
from lmdyn.callbacks.observing.probe import ObservedBatch
from lmdyn.callbacks.observing.streaming_observer import StreamingObserver
from lmdyn.callbacks.observing.sums import Row, Sums
from lmdyn.callbacks.observing.token_groups import (
    FrequencySource,
    check_bands,
    frequency_bands,
    gold_layers,
)
from lmdyn.runs.schema import Quantity

__all__ = ["LearningCurves"]

_BANDS = (10, 100, 1000)
_FORMS = ("", "<layer>/<tag>", "rank/<band>")


class LearningCurves(StreamingObserver):
    """Loss, perplexity and accuracy of next-word prediction: overall, by tag and by frequency band of the target.

    Means are over tokens. Losses are in nats; accuracy is the share of targets with the highest logit. A token whose
    logits are not finite makes the means NaN that include it, with a warning.

    Args:
        layers: gold layers to group by; the probe set's batches must have ``target_<layer>``. By default ``upos``
            if available.
        bands: first frequency ranks of the bands after the first: (10, 100, 1000) gives the ranks 1-9, 10-99,
            100-999 and 1000+; empty for no bands. Special tokens (end of sentence, unknown) are in no band.
        frequency: count words in the training data (``train``) or targets in the probe set (``probe``); by default in
            the training data if its counts are known.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for a layer that the probe set lacks, bands that do not increase, or without training counts.
    """

    layers: Sequence[str] | None = None
    bands: Sequence[int] = _BANDS
    frequency: FrequencySource | None = None

    uses_labels = True
    sharded = True
    columns = {"by": "", "group": ""}
    recorded = (
        Quantity(
            "loss",
            "Mean loss of a token: over all targets, those with a tag, or those in a band of frequency ranks.",
            "nats",
            low=0.0,
            better="lower",
            tags=_FORMS,
            panel="loss",
            lines="group",
        ),
        Quantity("perplexity", "Exponential of the mean token loss.", low=1.0, better="lower"),
        Quantity(
            "accuracy",
            "Share of targets to which the model gives the highest probability.",
            "share",
            low=0.0,
            high=1.0,
            better="higher",
            tags=_FORMS,
            panel="accuracy",
            lines="group",
            headline=True,
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bands(self.bands)

    def prepare(self) -> None:
        """Determine the groupings of targets, and the band of each token."""
        names = self.probe_set.label_names
        self.groupings: dict[str, Sequence[str]] = {"": [""]}
        self.groupings |= {layer: names[layer] for layer in gold_layers(self, "curves")}
        self.band_of: Tensor | None = None
        if self.bands:
            self.groupings["rank"], self.band_of = frequency_bands(self, self.bands, self.frequency)

    def sums(self) -> Mapping[str, Callable[[], Any]]:
        """Return means by group, for each grouping."""
        return {by: partial(GroupedMeans, len(names), skip_nan=False) for by, names in self.groupings.items()}

    def update(self, seen: ObservedBatch, sums: Sums) -> None:
        """Add losses and hits to the groups of their targets."""
        labels = seen.labels.flatten()
        values = {"loss": seen.losses.flatten(), "accuracy": hits(seen.logits, seen.labels).flatten()}
        for by in self.groupings:
            if by == "":
                groups = torch.zeros_like(labels)
            elif by == "rank":
                assert self.band_of is not None
                self.band_of = self.band_of.to(labels.device)
                groups = self.band_of[labels.clamp(min=0)]
            else:
                groups = seen.batch[f"target_{by}"].flatten()
            sums[by].update(torch.where(labels >= 0, groups, -1), values)

    def rows(self, sums: Sums) -> Iterator[Row]:
        """Yield the means of groups that occur."""
        for by, names in self.groupings.items():
            means = sums[by]
            for quantity in means.names:
                mean = means.mean(quantity)
                count = means.count(quantity)
                for i in (count > 0).nonzero()[:, 0].tolist():
                    values = {quantity: float(mean[i])}
                    if by == "" and quantity == "loss":
                        values["perplexity"] = float(mean[i].exp())
                    yield {"by": by, "group": names[i]}, values
