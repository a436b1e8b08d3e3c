"""Interdependence of word pairs by their distance in the sentence and in its dependency tree."""

import itertools
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.interdependence.decomposition import Variant
from lmdyn.analysis.interdependence.interdependence import pairwise_interdependence
from lmdyn.analysis.statistics.clustered import clustered_means
from lmdyn.analysis.statistics.correlation import spearman
from lmdyn.analysis.statistics.distributed import all_reduce_sum, rank_and_world_size
from lmdyn.callbacks.interdependence.interdependence_figures import interdependence_figures
from lmdyn.callbacks.interdependence.lstm_parts import LSTMParts
from lmdyn.callbacks.interdependence.word_pairs import WordPairs, encode_words
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.protocols import AnnotatedText, Sentence

__all__ = ["Interdependence"]

log = logging.getLogger(__name__)

_Z = 1.959964  # of a 95 % interval


class Interdependence(Observer):
    """Interdependence (DI) of word pairs by sequential distance, syntactic distance and part of speech.

    DI of two words is the norm of what their joint contribution to the hidden state has beyond the sum of the
    contributions of each, over the norm of the joint contribution, at the later word
    (:func:`~lmdyn.analysis.pairwise_interdependence`). Each sentence is read by itself, after the
    end-of-sentence token where the tokenizer has one. Means are over pairs; their 95 % intervals are robust to
    what pairs of one sentence have in common (clustered standard errors). A pair is ``open`` or ``closed`` where
    both words are of such a class of Universal POS, ``mixed`` where there is one of each; pairs with other tags
    (punctuation, symbols) are in the means over all classes only, words under different roots in none.

    Args:
        max_distance: sequential distance of the words of a pair.
        min_pairs: no mean is reported from fewer pairs.
        max_length: words of a sentence; None takes any.
        longer: what to do with longer sentences: refuse the probe set (``error``), or leave them out (``skip``).
        embedding: path of the module that turns ids to word vectors.
        lstm: path of the ``nn.LSTM`` or stack of LSTMs.
        decoder: path of the linear layer to logits; None looks at hidden states only.
        variant: which products are relevant, ``published``, ``released`` or ``generalized``: see
            :data:`~lmdyn.analysis.interdependence.decomposition.Variant`.
        batch_tokens: tokens of the sentences that are read at once.
        max_rows: see :func:`~lmdyn.analysis.pairwise_interdependence`; bounds the memory.
        **kwargs: see :class:`~lmdyn.callbacks.Observer`. ``probe`` is a corpus with dependency trees and
            Universal POS, one token a word.

    Logged tags:
        ``interdependence/di/<site>/distance=<d>``: mean DI of words d apart; site is ``hidden`` or ``logits``.
        ``interdependence/di_low/<site>/distance=<d>``: lower end of its 95 % interval.
        ``interdependence/di_high/<site>/distance=<d>``: upper end.
        ``interdependence/syntactic_correlation/<site>/distance=<d>``: Spearman's correlation of DI with syntactic
            distance, of words d apart.
        ``interdependence/frequency_correlation/<site>/distance=<d>/<word>``: the same with the training count of
            the ``left`` or the ``right`` word; only where training counts are known.
        ``interdependence/partial_correlation/<site>/distance=<d>``: that with syntactic distance, the ranks of both
            counts held; only where training counts are known.

    Columns of groups: ``distance``, ``syntactic`` and ``pos_class`` of the stratum, missing where it is over all, and
    ``word``. What is by class or by syntactic distance, and the number of ``pairs`` of each mean, is in the store only.

    Raises:
        ValueError: a probe set without trees or tags, with longer sentences than ``max_length``, or with words of
            several tokens; modules that are missing or no LSTM.

    Reference: Saphra & Lopez 2020, section 3, figures 3 and 4 (Saphra 2021, chapter 5).
    """

    uses_labels = False

    needs = (AnnotatedText,)
    not_settings = Observer.not_settings | {"batch_tokens", "max_rows"}

    def __init__(
        self,
        *,
        max_distance: int = 8,
        min_pairs: int = 100,
        max_length: int | None = None,
        longer: Literal["error", "skip"] = "error",
        embedding: str = "embedding",
        lstm: str = "lstm",
        decoder: str | None = "decoder",
        variant: Variant = "published",
        batch_tokens: int = 4096,
        max_rows: int = 4096,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, value in (
            ("max_distance", max_distance),
            ("min_pairs", min_pairs),
            ("batch_tokens", batch_tokens),
            ("max_rows", max_rows),
        ):
            if value < 1:
                raise ValueError(f"{name} is {value}: expected a number from 1")
        self.max_distance = max_distance
        self.min_pairs = min_pairs
        self.max_length = max_length
        self.longer = longer
        self.parts = LSTMParts(embedding, lstm, decoder)
        self.variant = variant
        self.batch_tokens = batch_tokens
        self.max_rows = max_rows
        self._pairs: WordPairs | None = None

    def prepare(self) -> None:
        """Read the sentences and list their pairs."""
        data: AnnotatedText = self.data
        sentences = self._read(itertools.chain.from_iterable(data.documents(self.split)))
        ids = encode_words(sentences, data.tokenizer, self.name)
        counts = None
        if self.run.token_counts is not None:
            counts = self.run.token_counts["count"].to_numpy()
        start = data.tokenizer.eos_token_id
        self._pairs = WordPairs(sentences, ids, counts, self.max_distance, start, self.batch_tokens)
        unknown = data.tokenizer.unk_token_id
        missing = sum(row.count(unknown) for row in ids) if unknown is not None else 0
        log.info(
            "%s: %d pairs of words in %d sentences; %.1f %% of the words are unknown to the tokenizer",
            self.name, len(self._pairs.table), len(sentences), 100 * missing / self._pairs.words,
        )  # fmt: skip

    def _read(self, given: Iterable[Sentence]) -> list[Sentence]:
        sentences: list[Sentence] = []
        words = skipped = 0
        for number, sentence in enumerate(given, 1):
            if sentence.heads is None or sentence.upos is None:
                raise ValueError(
                    f"{self.name}: sentence {number} of the probe set has no "
                    f"{'heads' if sentence.heads is None else 'upos'}: give a `probe` with dependency trees and "
                    "Universal POS, for example ConlluCorpus"
                )
            if self.max_length is not None and len(sentence.words) > self.max_length:
                if self.longer == "error":
                    raise ValueError(
                        f"{self.name}: sentence {number} has {len(sentence.words)} words, more than max_length = "
                        f"{self.max_length}: raise it, or leave longer sentences out by `longer: skip`"
                    )
                skipped += 1
                continue
            if self.max_tokens is not None and words + len(sentence.words) > self.max_tokens and sentences:
                break
            words += len(sentence.words)
            sentences.append(sentence)
        if skipped:
            log.info(
                "%s: %d sentences of more than %d words are left out", self.name, skipped, self.max_length
            )
        if not any(len(s.words) > 1 for s in sentences):
            raise ValueError(f"{self.name}: the probe set has no sentence of two words")
        return sentences

    @property
    def pairs(self) -> WordPairs:
        """The pairs of words that are looked at."""
        if self._pairs is None:
            raise RuntimeError(f"{self.name}: not attached to a run yet")
        return self._pairs

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments, and the content of the sentences with their trees."""
        sentences = None if self._pairs is None else self._pairs.fingerprint
        return {**super().settings, "sentences": sentences}

    def check_module(self, module: nn.Module) -> None:
        """Refuse modules that are missing, or no LSTM."""
        self.parts.of(module, self.name)

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """DI of all pairs, each rank some of the sentences, and its means."""
        embedding, lstm, decoder = self.parts.of(module, self.name)
        device = next(module.parameters()).device
        pairs = self.pairs
        rank, world_size = rank_and_world_size()
        found: dict[str, Tensor] = {}
        ids, mask, _ = pairs.batches[0]
        row = {"input_ids": ids[:1].to(device), "attention_mask": mask[:1].long().to(device)}
        self.parts.check_forward(module, (embedding, lstm, decoder), row, self.name, self.forward)
        with torch.no_grad():
            for batch in pairs.batches[rank::world_size]:
                ids, mask, rows = (tensor.to(device, non_blocking=True) for tensor in batch)
                vectors = embedding(ids)
                di = pairwise_interdependence(
                    lstm,
                    vectors,
                    self.max_distance,
                    mask=mask,
                    decoder=decoder,
                    variant=self.variant,
                    max_rows=self.max_rows,
                )
                for site, values in (("hidden", di.hidden), ("logits", di.logits)):
                    if values is not None:
                        shape = (pairs.words, self.max_distance)
                        whole = found.setdefault(site, torch.zeros(shape, dtype=values.dtype, device=device))
                        whole[rows[mask & (rows >= 0)]] = values[mask & (rows >= 0)]
        if not found:  # a rank without sentences
            dtype = next(lstm.parameters()).dtype
            sites = ("hidden",) if decoder is None else ("hidden", "logits")
            found = {
                s: torch.zeros(pairs.words, self.max_distance, dtype=dtype, device=device) for s in sites
            }
        tables = [
            _summary(pairs, site, all_reduce_sum(values).flatten().cpu().double().numpy(), self.min_pairs)
            for site, values in found.items()
        ]
        return pd.concat(tables, ignore_index=True)

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Means by sequential distance, and correlations."""
        whole = observations["syntactic"].isna() & observations["pos_class"].isna()
        return whole & observations["quantity"].ne("pairs")

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Figures 3 and 4 of the publication, and DI over training."""
        return interdependence_figures(observations)


def _summary(pairs: WordPairs, site: str, values: npt.NDArray[np.float64], min_pairs: int) -> pd.DataFrame:
    """Means with intervals and counts for each stratum, and rank correlations within distances."""
    table = pairs.table.assign(di=values[pairs.table["index"].to_numpy()])
    table = table[table["syntactic"] >= 0]
    if not np.isfinite(table["di"]).all():
        log.warning("interdependence: %d pairs have no finite value: the means of their strata are NaN",
                    int((~np.isfinite(table["di"])).sum()))  # fmt: skip
    by_class = ["distance", "pos_class"]
    strata = (["distance"], by_class, ["distance", "syntactic"], ["distance", "syntactic", "pos_class"])
    rows = [_means(table, columns, min_pairs) for columns in strata]
    rows.append(_correlations(table, min_pairs))
    whole = pd.concat(rows, ignore_index=True)
    whole["site"] = site
    for column in ("syntactic", "pos_class", "word"):
        if column not in whole:
            whole[column] = None
    whole = whole.astype({"distance": "Int64", "syntactic": "Int64", "value": "float64"})
    text = {c: whole[c].astype(object).where(whole[c].notna(), None) for c in ("pos_class", "word")}
    return whole.assign(**text)[["quantity", "site", "distance", "syntactic", "pos_class", "word", "value"]]


def _correlations(table: pd.DataFrame, min_pairs: int) -> pd.DataFrame:
    """Rank correlations of DI within each distance, over all classes and in each."""
    rows = []
    counts = [side for side in ("left", "right") if side in table]
    for distance, pairs in table.groupby("distance"):
        for pos_class, group in ((None, pairs), *pairs.groupby("pos_class")):
            if len(group) < min_pairs:
                continue
            di, syntactic = group["di"].to_numpy(), group["syntactic"].to_numpy()
            held = [group[side].to_numpy() for side in counts]
            found: list[tuple[str, str | None, float]] = [
                ("syntactic_correlation", None, spearman(syntactic, di)),
                *(
                    ("frequency_correlation", side, spearman(n, di))
                    for side, n in zip(counts, held, strict=True)
                ),
            ]
            if counts:
                found.append(("partial_correlation", None, spearman(syntactic, di, held)))
            rows += [(quantity, distance, pos_class, word, value) for quantity, word, value in found]
    return pd.DataFrame(rows, columns=["quantity", "distance", "pos_class", "word", "value"])


def _means(table: pd.DataFrame, strata: list[str], min_pairs: int) -> pd.DataFrame:
    """Mean DI of each stratum, its interval and its number of pairs; sentences are clusters."""
    table = table.dropna(subset=strata)
    grouped = table.groupby(strata)
    stratum = np.asarray(grouped.ngroup(), dtype=np.int64)
    found = clustered_means(table["di"].to_numpy(), stratum, table["sentence"].to_numpy())
    names = grouped.size().index  # in the order of the groups' numbers
    columns = {
        "di": found.mean,
        "di_low": found.mean - _Z * found.error,
        "di_high": found.mean + _Z * found.error,
    }
    means = pd.DataFrame({**columns, "pairs": found.number.astype(float)}, index=names)
    return means[found.number >= min_pairs].reset_index().melt(id_vars=strata, var_name="quantity")
