"""Natural sparsity of activations and gradients (Saphra & Lopez 2019)."""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pandas as pd
import pyarrow.compute as pc
import torch
from jaxtyping import Bool
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.inspection.transformer import is_encoder_decoder
from lmdyn.analysis.statistics.grouped import GroupedMeans
from lmdyn.analysis.words.frequency_matching import match_frequency
from lmdyn.analysis.words.sparsity import (
    CLOSED_CLASSES,
    OPEN_CLASSES,
    attention_entropy,
    concentration,
    concentration_and_norm,
    expected_concentration,
    frequency_correlation,
    frequency_correlation_error,
    normalized_attention_entropy,
    unigram_entropy,
    word_tags,
)
from lmdyn.callbacks.conditions.amounts import count_types
from lmdyn.callbacks.conditions.finding import Cost, Foreseen, expected
from lmdyn.callbacks.observing.probe import ObservedBatch, token_vectors
from lmdyn.callbacks.observing.run import announce
from lmdyn.callbacks.observing.streaming_observer import LSTM_SITES, StreamingObserver, given_sites
from lmdyn.callbacks.observing.token_groups import (
    FrequencySource,
    SentenceBlocks,
    check_counts,
    special_tokens,
    token_frequencies,
)
from lmdyn.callbacks.words.frequency_cells import FrequencyCells, frequency_samples, is_frequency_sample
from lmdyn.callbacks.words.sparsity_figures import sparsity_figures
from lmdyn.callbacks.words.sparsity_quantities import SPARSITY

__all__ = ["Sparsity"]

_LEAST = 3  # words of a correlation, see frequency_correlation


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
        **kwargs: see :class:`~lmdyn.callbacks.Observer`.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Bands of training frequency are ``0-9``, ``10-99``, ``100-999`` and ``1000+`` occurrences; for a class there are
    halves of them (``open_1000-2999``). Means of χ, of ‖·‖₁ and of the entropies are also stored for each ``word``, but
    not logged.

    Raises:
        ValueError: without training counts, or for matched samples that do not exist, with the largest possible size.

    Reference: Saphra & Lopez 2019, "Sparsity emerges naturally in neural language models", sections 2 to 4;
        attention entropy: Saphra 2021, section 6.1.2.
    """

    uses_labels = True
    sharded = True

    recorded = SPARSITY

    figure_rows = (
        pc.field("word").is_null()
        | (pc.field("quantity") == "frequency")
        | (
            (pc.field("quantity") == "chi_gradient")
            & (pc.field("role") == "target")
            & (pc.field("site") != "logits")
        )
    )

    default_sites = MappingProxyType({**LSTM_SITES, "logits": "decoder"})
    site_kinds = ("embedding", "block", "norm", "logits")

    def __init__(
        self,
        *,
        sites: Mapping[str, str] | str | None = None,
        attention_sites: Mapping[str, str] | str | None = None,
        gradients: bool = True,
        frequency: FrequencySource | None = None,
        min_count: int = 1,
        pos_classes: bool | None = None,
        class_min_count: int = 100,
        matched_size: int | None = 120,
        matched_tolerance: float = 0.05,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.attention_sites = given_sites(attention_sites, {})
        self.sites = given_sites(sites, self.default_sites)
        self.gradients = gradients
        self.frequency = frequency
        self.min_count = min_count
        self.pos_classes = pos_classes
        self.class_min_count = class_min_count
        self.matched_size = matched_size
        self.matched_tolerance = matched_tolerance
        self.counts: Tensor | None = None
        self.words: list[str] = []
        self.upos: list[str] = []
        self.samples: dict[str, Bool[Tensor, vocabulary]] = {}

    def prepare(self) -> None:
        """Determine the words, their frequencies and their classes."""
        self.counts = token_frequencies(self, self.frequency)
        size = len(self.counts)
        special = special_tokens(self, size)
        self.words = _token_names(self.run.tokenizer, size)
        self.upos = [""] * size
        self.samples = {"": ~special}
        self.pos_classes = self.found("pos_classes", self._tags_known)
        if self.pos_classes:
            self.samples |= self._class_samples(special)
        self.samples |= frequency_samples(self.counts, self.samples)

    def _tags_known(self) -> bool:
        """Return whether the training counts have tags; announce it if they have none."""
        counts = self.run.token_counts
        known = counts is not None and any(tag in counts for tag in (*OPEN_CLASSES, *CLOSED_CLASSES))
        if not known:
            announce(
                self.name, "the training counts have no POS: ρ within open and closed classes is left out"
            )
        return known

    def _class_samples(self, special: Bool[Tensor, "vocabulary"]) -> dict[str, Bool[Tensor, "vocabulary"]]:
        table = self.token_counts
        tags = [tag for tag in (*OPEN_CLASSES, *CLOSED_CLASSES) if tag in table]
        if not tags:
            raise ValueError(
                f"{self.name}: the training counts have no POS: add a layer `upos` to the datamodule (gold, or by "
                "a `tagger`), or set `pos_classes: false`"
            )
        check_counts(self, len(special))
        table = table.iloc[: len(special)]  # ids beyond the tokenizer's do not occur
        tag_counts = torch.from_numpy(table[tags].to_numpy(dtype="int64").copy())
        counts = torch.from_numpy(table["count"].to_numpy(dtype="int64").copy())
        tag = torch.where(special, -1, word_tags(tag_counts, counts, min_count=self.class_min_count))
        self.upos = [tags[i] if i >= 0 else "" for i in tag.tolist()]
        n_open = sum(t in OPEN_CLASSES for t in tags)
        samples = {"open": (tag >= 0) & (tag < n_open), "closed": tag >= n_open}
        if self.matched_size is not None:
            open_ids, closed_ids = (samples[name].nonzero().squeeze(1) for name in ("open", "closed"))
            try:
                matched = match_frequency(
                    counts[open_ids],
                    counts[closed_ids],
                    size=self.matched_size,
                    tolerance=self.matched_tolerance,
                )
            except ValueError as error:
                if self.hparams["pos_classes"] is None:  # not requested
                    announce(self.name, f"the samples matched in frequency are left out: {error}")
                    return samples
                raise ValueError(
                    f"{self.name}: matched_size: {error}; `matched_size: null` omits them"
                ) from None
            for name, ids in (
                ("open_matched", open_ids[matched.first]),
                ("closed_matched", closed_ids[matched.second]),
            ):
                samples[name] = torch.zeros(len(counts), dtype=torch.bool).index_fill(0, ids, True)
        return samples

    def check_module(self, module: nn.Module) -> None:
        """Find the sites; raise an error for an encoder-decoder, whose sites read another text than it predicts."""
        if is_encoder_decoder(module):
            raise ValueError(
                f"{self.name}: {type(module).__name__} is an encoder-decoder: it predicts the words of the "
                "decoder, but its sites have those of the encoder; observe it with LearningCurves and Similarity"
            )
        super().check_module(module)
        if self.gradients and not self.sites:
            raise ValueError(
                f"{self.name}: gradients require `sites`, got none: set some, or `gradients: false`"
            )

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report fewer than the three words that a correlation requires, in the text or in a class; sums by word."""
        assert self.counts is not None
        for name, sample in self.samples.items():
            if name and not is_frequency_sample(name) and int(sample.sum()) < _LEAST:
                yield expected(
                    f"{_LEAST} words of the sample {name!r} for a correlation",
                    f"{int(sample.sum())} with {self.class_min_count} training occurrences under a tag of it",
                    "lower `class_min_count`, or use more training text",
                    stops=False,
                )
        special = (~self.samples[""]).nonzero()[:, 0].tolist()
        words = count_types(self.probe_set, "labels", _LEAST, self.min_count, special)
        if words < _LEAST:
            yield expected(
                f"{_LEAST} words of {self.min_count} occurrences in the probe set for a correlation",
                str(words),
                "use more text (`max_tokens`, `probe`), or lower `min_count`",
            )
        quantities = len(self.sites) * (3 if self.gradients else 1) + len(self.attention_sites)
        size = 2 * 2 * 8 * quantities * len(self.counts)  # roles, sum and count, float64
        yield Cost(
            f"sums of {quantities} quantities for {len(self.counts):,} words", size, "observe fewer `sites`"
        )

    def accumulator(self, module: nn.Module, step: int) -> "_WordMeans":
        """Return an accumulator of means per word in both roles."""
        return _WordMeans(self, step)

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return all rows except those per word."""
        return observations["word"].isna()

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw the publication's figures 2 to 5."""
        return sparsity_figures(
            observations, list(settings["sites"] or []), settings.get("frequency", "train")
        )


def _token_names(tokenizer: Any, size: int) -> list[str]:
    if tokenizer is None:
        return [str(i) for i in range(size)]
    return [str(t) for t in tokenizer.convert_ids_to_tokens(list(range(min(size, len(tokenizer)))))] + [
        str(i) for i in range(len(tokenizer), size)
    ]


class _WordMeans:
    def __init__(self, observer: Sparsity, step: int) -> None:
        assert observer.counts is not None
        self._observer = observer
        self._counts = observer.counts
        self._roles = {
            "target": GroupedMeans(len(observer.counts)),
            "input": GroupedMeans(len(observer.counts)),
        }
        self._cells = FrequencyCells(observer.counts, observer.samples)
        self._blocks = SentenceBlocks(observer.run.tokenizer, seed=0)
        self._step = step
        self._units = GroupedMeans(1)

    def update(self, seen: ObservedBatch) -> None:
        labels = seen.labels
        inputs = seen.batch.get("input_ids", torch.full_like(labels, -1))
        groups = {"target": labels, "input": torch.where(seen.tokens, inputs, -1)}
        values: dict[str, Tensor] = {}
        unlabelled = labels == -100
        for name in seen.activations:
            if name.split("@")[0] not in self._observer.sites:
                continue  # a site of an observer that shares the pass
            vectors = token_vectors(name, seen.activations[name], seen.tokens)
            values[f"chi_activation/{name}"] = concentration(vectors)
            self._units.update(
                vectors.new_zeros(1, dtype=torch.int64), {name: vectors.new_full((1,), vectors.shape[-1])}
            )
            if self._observer.gradients:
                gradient = seen.gradients[name].flatten(2)
                chi, norm = concentration_and_norm(gradient)
                # an unlabelled position has no loss of its own: χ is NaN if no other loss reaches it
                norm = torch.where(unlabelled & (norm == 0), torch.nan, norm)
                values[f"chi_gradient/{name}"], values[f"l1_gradient/{name}"] = chi, norm
        for name, weights in seen.attentions.items():
            if name.split("@")[0] in self._observer.attention_sites:
                values[f"attention_entropy/{name}"] = attention_entropy(weights).mean(1)
                values[f"normalized_attention_entropy/{name}"] = normalized_attention_entropy(weights).mean(1)
        flat = {name: value.flatten() for name, value in values.items()}
        concentrations = {name: value for name, value in flat.items() if not name.startswith("l1_")}
        blocks = self._blocks.of(seen).flatten()
        for role, means in self._roles.items():
            means.update(groups[role].flatten(), flat)
            self._cells.update(role, groups[role].flatten(), blocks, concentrations)

    def table(self) -> pd.DataFrame:
        observer, tables = self._observer, [self._cells.table(self._observer.name, self._step)]
        words, upos = pd.Series(observer.words), pd.Series(observer.upos)
        classes = pd.Series("", index=words.index)
        for name in ("open", "closed"):
            if name in observer.samples:
                classes[observer.samples[name].numpy()] = name
        seen_words = torch.zeros(len(self._counts), dtype=torch.bool)
        frequency = self._counts.double()
        for role, means in self._roles.items():
            means.reduce()
            measured_words = torch.zeros_like(seen_words)
            summary: list[tuple[str, str, str, float]] = []
            for key in means.names:
                quantity, site = key.split("/")
                mean, count = means.mean(key), means.count(key)
                summary.append((quantity, site, "", means.total_mean(key)))
                measured = torch.where(count >= observer.min_count, mean, torch.nan)
                measured_words |= ~measured.isnan()
                name = f"rho_{quantity.removeprefix('chi_')}"
                for pos_class, sample in observer.samples.items():
                    of_sample = torch.where(sample, measured, torch.nan)
                    if is_frequency_sample(pos_class) and int((~of_sample.isnan()).sum()) < _LEAST:
                        continue
                    rho = frequency_correlation(of_sample, frequency)
                    summary.append((name, site, pos_class, rho))
                    error = frequency_correlation_error(of_sample, frequency)
                    if not math.isnan(error):
                        summary.append((f"{name}_error", site, pos_class, error))
                there = ((count > 0) & observer.samples[""]).numpy()
                seen_words |= torch.from_numpy(there)
                tables.append(
                    _word_rows(quantity, site, role, there, words, upos, classes, mean.numpy()[there])
                )
            for pos_class, sample in observer.samples.items():
                summary.append(("words", "", pos_class, float((sample & measured_words).sum())))
            found = pd.DataFrame(summary, columns=["quantity", "site", "pos_class", "value"])
            tables.append(found.assign(role=role))
            tables.append(self._cells.words(role, measured_words))
        there = seen_words.numpy()
        tables.append(
            _word_rows("frequency", "", "", there, words, upos, classes, self._counts.numpy()[there])
        )
        tables.append(self._references())
        table = pd.concat(tables, ignore_index=True)
        texts = ["role", "pos_class", "upos"]
        table[texts] = table[texts].fillna("")
        scalar = table["word"].isna()
        table = pd.concat([table[scalar], table[~scalar]], ignore_index=True)
        return table[["quantity", "site", "role", "pos_class", "word", "upos", "value"]]

    def _references(self) -> pd.DataFrame:
        """Return χ of vectors without structure, at each site, and the loss of a model of frequencies alone."""
        self._units.reduce()
        rows = [("unigram_entropy", "", unigram_entropy(self._counts))]
        for site in self._units.names:
            units = round(float(self._units.mean(site)))
            rows.append(("chi_uniform", site, expected_concentration(units, "uniform")))
            rows.append(("chi_gaussian", site, expected_concentration(units, "gaussian")))
        return pd.DataFrame(rows, columns=["quantity", "site", "value"])


def _word_rows(
    quantity: str, site: str, role: str, there: Any, words: Any, upos: Any, classes: Any, values: Any
) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "quantity": quantity,
            "site": site,
            "role": role,
            "pos_class": classes[there].to_numpy(),
            "word": words[there].to_numpy(),
            "upos": upos[there].to_numpy(),
            "value": values,
        }
    )
