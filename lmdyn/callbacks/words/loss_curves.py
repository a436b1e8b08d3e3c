"""Loss and accuracy over training, by tag and by frequency of the target word."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.analysis.statistics.grouped import GroupedMeans
from lmdyn.callbacks.conditions.finding import Foreseen, expected
from lmdyn.callbacks.observing.probe import ObservedBatch
from lmdyn.callbacks.observing.schema import Quantity
from lmdyn.callbacks.observing.streaming_observer import StreamingObserver
from lmdyn.callbacks.observing.token_groups import (
    FrequencySource,
    band_names,
    check_bands,
    frequency_bands,
    gold_layers,
)
from lmdyn.callbacks.words.loss_curves_figures import loss_figures

__all__ = ["LearningCurves"]

log = logging.getLogger(__name__)

_BANDS = (10, 100, 1000)
_FORMS = ("", "<layer>/<tag>", "rank/<band>")


class LearningCurves(StreamingObserver):
    """Loss, perplexity and accuracy of next-word prediction: overall, by tag and by frequency band of the target.

    Means are over tokens. Losses are in nats; accuracy is the share of targets with the highest logit. A loss that
    is NaN makes the means NaN that include it, with a warning; if it is not finite, the prediction counts as wrong.

    Args:
        layers: gold layers to group by; the probe set's batches must have ``target_<layer>``. By default ``upos``
            if available.
        bands: first frequency ranks of the bands after the first: (10, 100, 1000) gives the ranks 1-9, 10-99,
            100-999 and 1000+; empty for no bands. Special tokens (end of sentence, unknown) are in no band.
        frequency: count words in the training data (``train``) or targets in the probe set (``probe``); by default in
            the training data if its counts are known.
        **kwargs: see :class:`~lmdyn.callbacks.Observer`.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for a layer that the probe set lacks, bands that do not increase, or without training counts.
    """

    uses_labels = True
    recorded = (
        Quantity(
            "loss", "Mean token loss, of all targets, of those with a tag, or in a band of frequency ranks.", "nats",
            low=0.0, better="lower", tags=_FORMS,
        ),
        Quantity("perplexity", "exp of the mean token loss.", low=1.0, better="lower"),
        Quantity(
            "accuracy", "Targets that are predicted first.", "share", low=0.0, high=1.0, better="higher", tags=_FORMS
        ),
    )  # fmt: skip

    sharded = True

    def __init__(
        self,
        *,
        layers: Sequence[str] | None = None,
        bands: Sequence[int] = _BANDS,
        frequency: FrequencySource | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.layers = tuple(layers or ())
        self.bands = check_bands(bands)
        self.frequency = frequency
        self.band_of: Tensor | None = None

    def prepare(self) -> None:
        """Determine the band of each token."""
        self.layers = gold_layers(self, "curves")
        if self.bands:
            _, self.band_of = frequency_bands(self, self.bands, self.frequency)

    @property
    def band_names(self) -> list[str]:
        """Names of the frequency bands."""
        return band_names(self.bands)

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report bands of frequency ranks without words."""
        held = set() if self.band_of is None else set(self.band_of.unique().tolist())
        # the last band, of all remaining words, may be empty for a small vocabulary; default bands are not reported
        given = self.bands if self.bands != _BANDS else ()
        empty = [n for i, n in enumerate(self.band_names[:-1]) if i not in held] if given else []
        if empty:
            assert self.band_of is not None
            yield expected(
                f"words of the frequency ranks {', '.join(empty)}",
                f"{int((self.band_of >= 0).sum())} words",
                "set lower `bands`",
                stops=False,
            )

    def accumulator(self, module: nn.Module, step: int) -> "_Sums":
        """Return an accumulator of losses and hits."""
        return _Sums(self, step)

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw loss, and accuracy by each grouping, over steps."""
        return loss_figures(observations)


class _Sums:
    def __init__(self, observer: LearningCurves, step: int) -> None:
        self._about = (observer.name, step)
        names = observer.probe_set.label_names
        self._groupings: dict[str, Sequence[str]] = {
            "": [""],
            **{layer: names[layer] for layer in observer.layers},
        }
        if observer.bands:
            self._groupings["rank"] = observer.band_names
        self._band_of = observer.band_of
        self._means = {
            by: GroupedMeans(len(groups), skip_nan=False) for by, groups in self._groupings.items()
        }

    def update(self, seen: ObservedBatch) -> None:
        labels = seen.labels.flatten()
        labelled = labels >= 0
        best = seen.logits.max(-1).indices  # the first of equals, as argmax, in half of its time on CPU
        losses = seen.losses.flatten()
        # for NaN logits, max returns the first: an accidental hit
        hits = (best.flatten() == labels) & losses.isfinite()
        values = {"loss": losses, "accuracy": hits.float()}
        for by, means in self._means.items():
            if by == "":
                groups = torch.where(labelled, 0, -1)
            elif by == "rank":
                assert self._band_of is not None
                self._band_of = self._band_of.to(labels.device)
                groups = torch.where(labelled, self._band_of[labels.clamp(min=0)], -1)
            else:
                groups = torch.where(labelled, seen.batch[f"target_{by}"].flatten(), -1)
            means.update(groups, values)

    def table(self) -> pd.DataFrame:
        rows = []
        for by, means in self._means.items():
            means.reduce()
            if by == "" and "loss" in means.names and means.mean("loss").isnan() and means.count("loss") > 0:
                self._warn()
            for quantity in means.names:
                mean, count = means.mean(quantity), means.count(quantity)
                for i, group in enumerate(self._groupings[by]):
                    if count[i] > 0:
                        rows.append((quantity, "", by, group, float(mean[i])))
                        if by == "" and quantity == "loss":
                            rows.append(("perplexity", "", by, group, float(mean[i].exp())))
        return pd.DataFrame(rows, columns=["quantity", "site", "by", "group", "value"])

    def _warn(self) -> None:
        if rank_and_world_size()[0] == 0:
            log.warning("%s: the loss is NaN at step %d: the model has diverged", *self._about)
