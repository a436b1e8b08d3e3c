"""Natural sparsity of activations and gradients (Saphra & Lopez 2019)."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool
from matplotlib.figure import Figure
from pyarrow.compute import field
from torch import Tensor, nn

from lmdyn.analysis.inspection.forward import Batch
from lmdyn.analysis.inspection.transformer import is_encoder_decoder
from lmdyn.analysis.statistics.grouped import GroupedMeans
from lmdyn.analysis.words.concentration import (
    CLOSED_CLASSES,
    OPEN_CLASSES,
    concentration_and_norm,
    mean_entropies,
    sample_correlations,
    without_structure,
)
from lmdyn.analysis.words.frequency_cells import FrequencyCells, class_samples, frequency_samples, word_rows
from lmdyn.callbacks.observing.amounts import count_labels, site_widths
from lmdyn.callbacks.observing.findings import Cost, Foreseen, expected
from lmdyn.callbacks.observing.probe import ObservedBatch, token_vectors
from lmdyn.callbacks.observing.run import report
from lmdyn.callbacks.observing.streaming_observer import LSTM_SITES, Sites, StreamingObserver, Watched
from lmdyn.callbacks.observing.sums import Sums
from lmdyn.callbacks.observing.token_groups import (
    FrequencySource,
    SentenceBlocks,
    check_counts,
    enough_blocks,
    special_tokens,
    token_frequencies,
    token_names,
)
from lmdyn.callbacks.words.sparsity_figures import sparsity_figures
from lmdyn.runs.schema import Quantity

__all__ = ["Sparsity"]

_LEAST = 3  # words of a correlation

_BANDS = ("0-9", "10-99", "100-999", "1000+")
_MEANS = {  # what is averaged, and the title of its panel
    "chi_activation": ("χ = ‖v‖₂/‖v‖₁ of the activation", "concentration χ of activations"),
    "chi_gradient": ("χ = ‖v‖₂/‖v‖₁ of the gradient of the summed loss", "concentration χ of gradients"),
    "l1_gradient": (
        "the gradient's ‖·‖₁, without tokens that no loss reaches",
        "gradient norm ‖·‖₁",
    ),
    "attention_entropy": ("the entropy of attention, mean over heads", "attention entropy"),
    "normalized_attention_entropy": (
        "the entropy of attention divided by that of equal weights, without tokens that see one position only",
        "normalized attention entropy",
    ),
}
_WITHOUT_STRUCTURE = {
    "chi_uniform": "χ of vectors of the site's width, uniform around 0, as in gradients of an untrained LSTM.",
    "chi_gaussian": "χ of Gaussian vectors of the site's width.",
}

_from_0 = partial(Quantity, low=0.0)


def _quantities() -> Iterator[Quantity]:
    for name, (what, short) in _MEANS.items():
        at = "<attention_site>/<role>" if "entropy" in name else "<site>/<role>"
        unit, high = ("nats", None) if name == "attention_entropy" else ("", None if "l1" in name else 1.0)
        of_class = (f"{at}/<pos_class>",)
        yield _from_0(name, f"Mean over tokens of {what}.", unit, high=high, tags=(at,), short=short)
        if name != "l1_gradient":
            meaning = (
                f"Mean over word types with equal weights of {what}: in a band of training frequency, in half of such "
                "a band of a POS class, or in a matched sample."
            )
            yield _from_0(
                f"{name}_types",
                meaning,
                unit,
                high=high,
                tags=of_class,
                floor="chi_gaussian",
                panel=f"{name}_types" if name == "chi_gradient" else "",
                short=f"{short},\nmean over word types",
                where=(("role", ("target",)), ("pos_class", _BANDS)),
            )
            yield _from_0(
                f"{name}_types_error",
                f"Standard error of {name}_types, over blocks of sentences.",
                unit,
                tags=of_class,
            )
        rho, tags, of = f"rho_{name.removeprefix('chi_')}", (at, *of_class), what.partition(",")[0]
        yield _from_0(
            rho,
            f"Pearson's correlation of {of} with frequency, over all words, a POS class or a sample.",
            low=-1.0,
            high=1.0,
            tags=tags,
            panel="rho_by_site",
            lines="site",
            headline=rho == "rho_gradient",
            short=f"correlation ρ of {short}\nwith word frequency",
            where=(("pos_class", ("",)),),
        )
        yield _from_0(f"{rho}_error", "Standard error of ρ, over word types (jackknife).", tags=tags)
    yield _from_0(
        "words",
        "Number of word types in a correlation, or in a band of training frequency.",
        "count",
        tags=("<role>", "<role>/<pos_class>"),
    )
    for name, what in _WITHOUT_STRUCTURE.items():
        yield _from_0(name, what, high=1.0, tags=("<site>",))
    yield _from_0("unigram_entropy", "Entropy of the words' frequencies: a unigram model's loss.", "nats")
    yield _from_0("frequency", "Count of a word in the text named by `frequency`.", "count", tags=())


class Sparsity(StreamingObserver):
    """Concentration χ(v) = ‖v‖₂/‖v‖₁ of activations and gradients by word, and its correlation ρ with frequency.

    Gradients are those of the *summed* token loss with respect to a site's activation. For each word type, the
    mean of χ is taken over the positions that predict it (role ``target``) and over those that read it (role
    ``input``). ρ is the Pearson correlation over word types of this mean with the word's frequency: ρ← for the
    role ``target``, ρ→ for ``input``; over all words, without the 20 most frequent (``no_top20``), over words of at
    least 100 occurrences as published (``count100``), within open and closed POS classes, and within a sample of each
    of similar average frequency (``open_matched``, ``closed_matched``). A word belongs to a class if the majority of
    its training occurrences, and at least ``class_min_count``, have a tag of that class. Special tokens (end of
    sentence, unknown) are not words. For attention sites, the entropy of the attention distribution, averaged over
    heads, replaces χ. The error of ρ is for other words of the same language; that of a mean for other sentences.

    Args:
        sites: module path by display name; a pattern of paths (``"*.layers.*"``); or ``auto`` for found sites.
            By default those of ``LSTMLanguageModel``, and found ones in other modules.
        attention_sites: path of an attention module by display name, or ``auto``; none by default.
        gradients: whether to observe also gradients.
        frequency: count words in the training data (``train``) or in the probe set (``probe``); by default in the
            training data if its counts are known.
        min_count: minimum number of occurrences of a word in the probe set, in the respective role, for ρ.
        pos_classes: whether to compute also ρ within POS classes; requires training counts by Universal POS (``NOUN`` …
            columns of the datamodule's ``token_counts``).
        class_min_count: minimum number of training occurrences with the tag; 100 as published.
        matched_size: words in each of the two samples of similar average frequency, 120 as published; null for
            none. WikiText-2 allows 40 to 60.
        matched_tolerance: maximum difference of the logarithms of the samples' average frequencies.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Bands of training frequency are ``0-9``, ``10-99``, ``100-999`` and ``1000+`` occurrences; for a class there are
    halves of them (``open_1000-2999``). Means of χ, of ‖·‖₁ and of the entropies are also stored for each ``word``, but
    not logged.

    Raises:
        ValueError: without training counts, or for matched samples that do not exist, with the largest possible size.

    Reference: Saphra & Lopez 2019, "Sparsity emerges naturally in neural language models", sections 2 to 4;
        attention entropy: Saphra 2021, section 6.1.2.
    """

    sites: Sites = None
    attention_sites: Sites = None
    gradients: bool = True
    frequency: FrequencySource | None = None
    min_count: int = 1
    pos_classes: bool | None = None
    class_min_count: int = 100
    matched_size: int | None = 120
    matched_tolerance: float = 0.05

    uses_labels = True
    sharded = True
    watches = (
        Watched("sites", {**LSTM_SITES, "logits": "decoder"}, ("embedding", "block", "norm", "logits")),
        Watched("attention_sites", {}, attention=True),
    )
    columns = {"role": "", "pos_class": "", "word": None, "upos": ""}
    recorded = tuple(_quantities())
    figure_rows = (
        field("word").is_null()
        | (field("quantity") == "frequency")
        | (field("quantity") == "chi_gradient") & (field("role") == "target") & (field("site") != "logits")
    )

    def prepare(self) -> None:
        """Determine the words, their frequencies and their classes."""
        self.counts: Tensor = token_frequencies(self, self.frequency)
        size = len(self.counts)
        special = special_tokens(self, size)
        self.words: list[str] = token_names(self.run.tokenizer, size)
        self.upos = [""] * size
        self.samples: dict[str, Bool[Tensor, vocabulary]] = {"": ~special}
        counts = self.run.token_counts
        tagged = counts is not None and not {*OPEN_CLASSES, *CLOSED_CLASSES}.isdisjoint(counts)
        if self.found("pos_classes", lambda: tagged):
            check_counts(self, size)
            least, tolerance = self.class_min_count, self.matched_tolerance
            find = partial(class_samples, self.token_counts, special, min_count=least, tolerance=tolerance)
            try:
                self.upos, samples = find(matched_size=self.matched_size)
            except ValueError as error:
                if self.pos_classes is not None:  # requested
                    raise ValueError(f"{self.name}: {error}, or set `pos_classes: false`") from None
                report(self.name, f"lmdyn leaves out the samples matched in frequency: {error}")
                self.upos, samples = find(matched_size=None)
            self.samples |= samples
        elif self.pos_classes is None:
            report(
                self.name, "the training data has no layer `upos`: lmdyn leaves out ρ within parts of speech"
            )
        self.samples |= frequency_samples(self.counts, self.samples)

    def check_module(self, module: nn.Module) -> None:
        """Find the sites; raise an error for an encoder-decoder, whose sites read another text than it predicts."""
        if is_encoder_decoder(module):
            raise ValueError(
                f"{self.name}: {type(module).__name__} is an encoder-decoder: its losses belong to the decoder's "
                "words, but its sites to the encoder's words. Use LearningCurves and Similarity"
            )
        super().check_module(module)
        if self.gradients and not self.paths("sites"):
            raise ValueError(
                f"{self.name}: `gradients` requires `sites`: name `sites`, or set `gradients: false`"
            )

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report fewer than the three words that a correlation requires, and sums by word."""
        self.widths = site_widths(module, self.probe_set, self.paths("sites"), self.forward)
        counts = count_labels(self.probe_set, ["labels"])["labels"]
        words = int((self.samples[""][: len(counts)] & (counts[: len(self.counts)] >= self.min_count)).sum())
        if words < _LEAST:
            what = f"{_LEAST} words of {self.min_count} occurrences in the probe set for a correlation"
            yield expected(what, str(words), "use more text (`max_tokens`, `probe`), or lower `min_count`")
        number = len(self.paths("sites")) * (3 if self.gradients else 1) + len(self.paths("attention_sites"))
        size = 2 * 2 * 8 * number * len(self.counts)  # roles, sum and count, float64
        what = f"sums of {number} quantities of {len(self.counts):,} words"
        yield Cost(what, size, "observe fewer `sites`")

    def sums(self) -> Mapping[str, Callable[[], Any]]:
        """Return means by word in both roles and by band of frequency."""
        return {
            "words": partial(GroupedMeans, len(self.counts)),
            "cells": partial(FrequencyCells, self.counts, self.samples),
            "blocks": partial(SentenceBlocks, self.run.tokenizer, seed=0),
        }

    def read_weights(self, batch: Batch, path: str, weights: Tensor) -> dict[str, Tensor]:
        """Return the mean entropies of each token."""
        return mean_entropies(weights)

    def update(self, seen: ObservedBatch, sums: Sums) -> None:
        """Add χ of each token to the means of the word that it predicts, and of the word that it reads."""
        labels = seen.labels
        inputs = seen.batch.get("input_ids", torch.full_like(labels, -1))
        groups = {"target": labels, "input": torch.where(seen.tokens, inputs, -1)}
        values: dict[str, Tensor] = {}
        for name, activation in seen.activations.items():
            vectors = token_vectors(name, activation, seen.tokens)
            kinds = {"activation": vectors}
            if self.gradients:
                kinds["gradient"] = seen.gradients[name].flatten(2)
            for kind, of in kinds.items():
                chi, norm = concentration_and_norm(of)  # NaN leaves zero vectors out, infinity does not
                values[f"chi_{kind}/{name}"] = torch.where(norm.isfinite(), chi, torch.inf)
            if self.gradients:
                # a position without a label has no loss of its own: NaN if no other reaches it
                norm = torch.where(norm.isnan(), torch.inf, norm)
                values[f"l1_gradient/{name}"] = torch.where((labels == -100) & (norm == 0), torch.nan, norm)
        for name, entropies in seen.attentions.items():
            values |= {f"{kind}/{name}": entropy for kind, entropy in entropies.items()}
        flat = {name: value.flatten() for name, value in values.items()}
        concentrations = {name: value for name, value in flat.items() if not name.startswith("l1_")}
        blocks = sums["blocks"].of(seen).flatten()
        for role, words in groups.items():
            sums["words", role].update(words.flatten(), flat)
            sums["cells"].update(role, words.flatten(), blocks, concentrations)

    def rows(self, sums: Sums) -> Iterator[pd.DataFrame]:
        """Yield means and correlations, means over word types, references, and the means of each word."""
        cells, of_words = sums["cells"], []
        if (blocks := cells.blocks()) is not None:
            enough_blocks(blocks, self.name, sums.step)
        yield cells.table()
        seen_words = torch.zeros(len(self.counts), dtype=torch.bool)
        for (role,), means in sums.of("words"):
            measured_words = torch.zeros_like(seen_words)
            summary: list[tuple[str, str, str, float | str]] = []
            for key in means.names:
                quantity, site = key.split("/")
                mean, count, overall = means.mean(key), means.count(key), means.total_mean(key)
                summary.append((quantity, site, "", overall if math.isfinite(overall) else math.nan))
                measured = mean.where(count >= self.min_count, torch.nan)
                measured_words |= measured.isfinite()
                rho = f"rho_{quantity.removeprefix('chi_')}"
                for ending, sample, value in sample_correlations(measured, self.samples, self.counts):
                    summary.append((rho + ending, site, sample, value))
                there = (count > 0) & self.samples[""]
                seen_words |= there
                of_words.append(((quantity, site, role), there.nonzero()[:, 0], mean[there]))
            in_samples = {name: float((of & measured_words).sum()) for name, of in self.samples.items()}
            summary += [("words", "", name, number) for name, number in in_samples.items()]
            yield pd.DataFrame(summary, columns=["quantity", "site", "pos_class", "value"]).assign(role=role)
            yield cells.words(role, measured_words)
        of_words.append((("frequency", "", ""), seen_words.nonzero()[:, 0], self.counts.double()[seen_words]))
        yield pd.DataFrame(without_structure(self.widths, self.counts), columns=["quantity", "site", "value"])
        yield word_rows(of_words, self.words, self.upos, self.samples)

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return all rows except those per word."""
        return observations["word"].isna()

    @classmethod
    def figures(cls, observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw the publication's figures 2 to 5, and the standard ones."""
        published = sparsity_figures(observations, settings.get("frequency", "train"))
        return published | super().figures(observations, settings)
