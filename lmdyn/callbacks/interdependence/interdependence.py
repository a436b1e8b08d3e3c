"""Interdependence of word pairs by their distance in the sentence and in its dependency tree."""

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal, get_args

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.interdependence.coalitions import Reading
from lmdyn.analysis.interdependence.decomposition import Variant
from lmdyn.analysis.interdependence.interdependence import pairwise_interdependence
from lmdyn.analysis.interdependence.pairwise_shapley import Coalitions
from lmdyn.analysis.interdependence.shapley import Index
from lmdyn.analysis.statistics.distributed import all_reduce_sum, rank_and_world_size
from lmdyn.callbacks.conditions.finding import Foreseen
from lmdyn.callbacks.interdependence.foreseen_pairs import foreseen_pairs
from lmdyn.callbacks.interdependence.interdependence_figures import beside_figures, interdependence_figures
from lmdyn.callbacks.interdependence.interdependence_quantities import INTERDEPENDENCE
from lmdyn.callbacks.interdependence.lstm_parts import LSTMParts
from lmdyn.callbacks.interdependence.pair_summary import recorded_rows, summary
from lmdyn.callbacks.interdependence.shapley_parts import Absence, ShapleyParts, Space, absent_token
from lmdyn.callbacks.interdependence.token_pairs import TokenPairs
from lmdyn.callbacks.interdependence.word_pairs import WordPairs, encode_words
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.protocols import AnnotatedText, Sentence
from lmdyn.callbacks.observing.store import UNDECIDED

__all__ = ["Interdependence"]

log = logging.getLogger(__name__)

_SHAPLEY = (
    "index", "coalitions", "absence", "reading", "spaces", "hidden", "embedding", "exact_up_to", "samples", "seed",
)  # fmt: skip


_SCALARS = (
    "di", "di_low", "di_high", "syntactic_correlation", "frequency_correlation", "partial_correlation",
    "matched_correlation", "mean_syntactic_correlation", "mean_matched_correlation",
)  # fmt: skip


class Interdependence(Observer):
    """Interdependence (DI) of word pairs by sequential distance, syntactic distance and part of speech.

    With the backend ``decomposition``, for LSTMs, the DI of two words is the norm of the part of their joint
    contribution to the hidden state that exceeds the sum of the contributions of each, over the norm of the joint
    contribution, at the later word (:func:`~lmdyn.analysis.pairwise_interdependence`). With ``shapley``, for any model,
    it is the norm of their Shapley interaction over that of the model's output, at the last token of the later word
    (:func:`~lmdyn.analysis.pairwise_shapley_interaction`). Both are 0 if contributions add up; they are different
    numbers. Each sentence is read separately, after the end-of-sentence token if the tokenizer has one (``shapley``:
    with the tokenizer's special tokens, else after its first or end-of-sentence token).

    Means are over pairs; their 95 % intervals account for the dependence of pairs of one sentence (clustered standard
    errors), and include the error of drawn coalitions, since each sentence has its own draws. A pair is ``open`` or
    ``closed`` if both words are of such a class of Universal POS, ``mixed`` if there is one of each; pairs with other
    tags (punctuation, symbols) are only in the means over all classes, words under different roots in none. Without
    dependency trees there is no syntactic distance, and without Universal POS there are no classes: both are logged,
    and the rest is measured.

    Args:
        max_distance: maximum sequential distance of the words of a pair.
        min_pairs: minimum number of pairs of a reported mean.
        max_length: maximum number of words of a sentence; None for no limit.
        longer: treatment of longer sentences: raise an error (``error``), or leave them out (``skip``).
        unknown: treatment of pairs with a word that the tokenizer does not know, which are counted: ``keep``, or
            leave them out (``skip``).
        controls: whether to compute also the correlations with distances in other trees than the sentence's own, and,
            if unknown words occur and are kept, all correlations for the pairs of known words.
        backend: ``decomposition`` or ``shapley``.
        embedding: path of the module that maps ids to word vectors; None for ``embedding``, and with shapley,
            if there is none, for the one that is found.
        lstm: path of the ``nn.LSTM`` or stack of LSTMs (decomposition).
        decoder: path of the linear layer to logits; None for hidden states only (decomposition).
        variant: relevant products (decomposition), ``published``, ``released`` or ``generalized``: see
            :data:`~lmdyn.analysis.interdependence.decomposition.Variant`.
        index: weights of coalitions (shapley), ``taylor`` or ``grabisch``: see
            :data:`~lmdyn.analysis.interdependence.shapley.Index`.
        coalitions: ``all``, or ``context``: only the four with all other words, which is much cheaper, but not a
            Shapley interaction (shapley).
        absence: replacement of absent words (shapley): the ``mean`` word vector of the probe set, the ``mask``,
            ``pad`` or ``unk`` token; ``delete`` removes them, which moves later words.
        reading: whether the model sees the words up to a position (``causal``) or all (``bidirectional``), which are
            the players (shapley); None measures it at each observation.
        spaces: spaces to read, ``hidden`` and ``logits`` (shapley). For an encoder-decoder, the encoder's ``hidden``.
        hidden: path of the module that returns the hidden state (shapley); None finds the final norm, or else the last
            block.
        exact_up_to: maximum number of players for which all coalitions are used (shapley).
        samples: number of coalitions drawn for a sentence with more players (shapley).
        seed: seed of the draws (shapley).
        batch_tokens: number of tokens read at once; limits the memory.
        max_rows: see :func:`~lmdyn.analysis.pairwise_interdependence`; limits the memory (decomposition).
        **kwargs: see :class:`~lmdyn.callbacks.Observer`. ``probe`` is a corpus, preferably with dependency trees and
            Universal POS; for the decomposition, with one token per word.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Columns of groups: ``distance``, ``syntactic`` and ``pos_class`` of the stratum, missing if it is over all, and
    ``word``. Rows by class or by syntactic distance are in the store only; so are the number of ``pairs`` of each mean,
    the ``unknown_pairs`` of each distance that are left out, the ``sampling_error`` of each distance, the root mean
    square of the standard errors of its pairs (shapley; 0 if nothing is drawn), and the standard error of each
    correlation, ``<correlation>_error``, over at most 32 blocks of sentences (delete-one-block jackknife, with one
    degree of freedom less than blocks). For each correlation there is the mean over distances, ``mean_<correlation>``.

    With ``controls``, those of hidden states with syntactic distance are also computed in other trees: ``off_by_one_…``
    in the tree whose heads, counted from 1, are interpreted as positions from 0
    (:func:`~lmdyn.analysis.off_by_one_distances`); ``shuffled_…`` in the tree of another sentence with the same number
    of words, which shows the effect of position alone. All of them are also computed as ``known_…``, for the pairs of
    known words.

    Raises:
        ValueError: for a probe set without a sentence of two words, or with longer ones than ``max_length``; for words
            of several tokens, or modules that are missing or no LSTM (decomposition); for a tokenizer without the token
            of ``absence``, or a model that cannot read the longest sentence or has no such site (shapley).

    Reference: Saphra & Lopez 2020, section 3, figures 3 and 4 (Saphra 2021, chapter 5; section 5.1.2 proposes other
    models); Singhvi et al. 2024 (Shapley interaction of language models).
    """

    uses_labels = False

    recorded = INTERDEPENDENCE
    needs = (AnnotatedText,)
    several_runs = True
    not_settings = Observer.not_settings | {"batch_tokens", "max_rows"}
    legacy_settings: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            "controls": False, "unknown": "keep", "backend": "decomposition", "index": "taylor", "coalitions": "all",
            "absence": "mean", "reading": None, "spaces": ["hidden", "logits"], "hidden": None, "exact_up_to": 10,
            "samples": 64, "seed": 0,
        }
    )  # fmt: skip

    def __init__(
        self,
        *,
        max_distance: int = 8,
        min_pairs: int = 100,
        max_length: int | None = None,
        longer: Literal["error", "skip"] = "error",
        unknown: Literal["keep", "skip"] = "keep",
        controls: bool = False,
        backend: Literal["decomposition", "shapley"] = "decomposition",
        embedding: str | None = None,
        lstm: str = "lstm",
        decoder: str | None = "decoder",
        variant: Variant = "published",
        index: Index = "taylor",
        coalitions: Coalitions = "all",
        absence: Absence = "mean",
        reading: Reading | None = None,
        spaces: Sequence[Space] = ("hidden", "logits"),
        hidden: str | None = None,
        exact_up_to: int = 10,
        samples: int = 64,
        seed: int = 0,
        batch_tokens: int = 4096,
        max_rows: int = 4096,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, value, least in (
            ("max_distance", max_distance, 1),
            ("min_pairs", min_pairs, 1),
            ("batch_tokens", batch_tokens, 1),
            ("max_rows", max_rows, 1),
            ("samples", samples, 2),
            ("exact_up_to", exact_up_to, 0),
        ):
            if value < least:
                raise ValueError(f"{name} is {value}: expected a number from {least}")
        for name, choice, known in (
            ("unknown", unknown, ("keep", "skip")),
            ("backend", backend, ("decomposition", "shapley")),
            ("variant", variant, get_args(Variant)),
            ("index", index, get_args(Index)),
            ("coalitions", coalitions, get_args(Coalitions)),
            ("absence", absence, get_args(Absence)),
            ("reading", reading, (None, *get_args(Reading))),
        ):
            if choice not in known:
                raise ValueError(f"{name} is {choice!r}: expected one of {list(known)}")
        if not spaces or not set(spaces) <= set(get_args(Space)):
            raise ValueError(f"spaces are {list(spaces)}: expected one or both of {list(get_args(Space))}")
        self.max_distance = max_distance
        self.min_pairs = min_pairs
        self.max_length = max_length
        self.longer = longer
        self.unknown = unknown
        self.controls = controls
        self.backend = backend
        self.parts = LSTMParts(embedding or "embedding", lstm, decoder)
        self.variant = variant
        self.batch_tokens = batch_tokens
        self.max_rows = max_rows
        self._shapley: ShapleyParts | None = None
        self._pairs: WordPairs | TokenPairs | None = None

    def prepare(self) -> None:
        """Read the sentences and list their pairs."""
        data: AnnotatedText = self.data
        tokenizer = data.tokenizer
        if self.backend == "shapley":
            self._shapley = ShapleyParts(
                self.name, baseline=absent_token(self.hparams["absence"], tokenizer, self.name),
                batch_tokens=self.batch_tokens, forward=self.forward, **{name: self.hparams[name] for name in _SHAPLEY},
            )  # fmt: skip
        sentences = self._read(itertools.chain.from_iterable(data.documents(self.split)))
        counts = None
        if self.run.token_counts is not None:
            counts = self.run.token_counts["count"].to_numpy()
        if self._shapley is None:
            ids = encode_words(sentences, tokenizer, self.name)
            self._pairs = WordPairs(
                sentences, ids, counts, self.max_distance, tokenizer.eos_token_id, self.batch_tokens,
                tokenizer.unk_token_id, self.controls,
            )  # fmt: skip
        else:
            self._pairs = TokenPairs(
                sentences, tokenizer, counts, self.max_distance, self.batch_tokens, self.name, self.controls
            )
            self._shapley.check_cost(self._pairs, self.max_distance)
        table = self._pairs.table
        log.info(
            "%s: %d pairs of words in %d sentences; %d pairs have a word that the tokenizer does not know%s",
            self.name, len(table), len(sentences), int(table["unknown"].sum()),
            " and are left out" if self.unknown == "skip" else "",
        )  # fmt: skip

    def _read(self, given: Iterable[Sentence]) -> list[Sentence]:
        sentences: list[Sentence] = []
        words = skipped = 0
        for number, sentence in enumerate(given, 1):
            if self.max_length is not None and len(sentence.words) > self.max_length:
                if self.longer == "error":
                    raise ValueError(
                        f"{self.name}: sentence {number} has {len(sentence.words)} words, more than max_length = "
                        f"{self.max_length}: raise it, or skip longer sentences by `longer: skip`"
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
            raise ValueError(
                f"{self.name}: expected a sentence of two words or more in the probe set, got none"
            )
        for layer, what in (("heads", "syntactic distances"), ("upos", "word classes")):
            missing = sum(getattr(s, layer) is None for s in sentences)
            if missing:
                log.warning(
                    "%s: %d of %d sentences have no %s: there are no %s; a `probe` such as ConlluCorpus has both",
                    self.name, missing, len(sentences), layer, what,
                )  # fmt: skip
        return sentences

    @property
    def pairs(self) -> WordPairs | TokenPairs:
        """The observed pairs of words."""
        if self._pairs is None:
            raise RuntimeError(f"{self.name}: not attached to a run")
        return self._pairs

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments, and the content of the sentences with their trees."""
        settings = super().settings
        if self.backend == "decomposition":
            settings["embedding"] = self.parts.embedding
        elif settings["hidden"] is None:
            settings["hidden"] = UNDECIDED
        settings["sentences"] = None if self._pairs is None else self._pairs.fingerprint
        return settings

    def check_module(self, module: nn.Module) -> None:
        """Raise an error for modules that are missing or no LSTM; with backend shapley, try the longest sentence."""
        pairs, parts = self.pairs, self._shapley
        if isinstance(pairs, WordPairs) or parts is None:
            try:
                self.parts.of(module, self.name)
            except ValueError as error:
                raise ValueError(f"{error}; `backend: shapley` supports models of any kind") from error
            return
        paths: dict[str, Any] = {
            argument: self.found(argument, partial(parts.find, module, pairs, argument))
            for argument in ("hidden", "embedding")
        }
        self._shapley = replace(parts, **paths)
        self._shapley.check(module, pairs)

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report distances with too few pairs, trees without syntactic distances, and unknown frequencies."""
        yield from foreseen_pairs(self.pairs, self.max_distance, self.min_pairs, self.unknown == "skip")

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Measure DI of all pairs, each rank for some of the sentences, and its means."""
        pairs = self.pairs
        rank, world_size = rank_and_world_size()
        found: dict[str, tuple[Tensor, Tensor | None]]
        if isinstance(pairs, WordPairs):
            values = self._decomposed(module, pairs, rank, world_size)
            found = {site: (of, None) for site, of in values.items()}
        else:
            assert self._shapley is not None
            found = {**self._shapley.measure(module, pairs, self.max_distance, rank, world_size)}
        tables: list[pd.DataFrame] = []
        for site, parts in found.items():
            of, errors = (
                None if part is None else all_reduce_sum(part).flatten().cpu().double().numpy()
                for part in parts
            )
            assert of is not None
            tables.append(
                summary(
                    pairs.table,
                    site,
                    of,
                    self.min_pairs,
                    errors=errors,
                    without_unknown=self.unknown == "skip",
                    controls=self.controls and not tables,  # for hidden states
                )
            )
        return pd.concat(tables, ignore_index=True)

    def _decomposed(
        self, module: nn.Module, pairs: WordPairs, rank: int, world_size: int
    ) -> dict[str, Tensor]:
        """Return DI by the contextual decomposition of an LSTM, (words, max_distance) for each site."""
        embedding, lstm, decoder = self.parts.of(module, self.name)
        device = next(module.parameters()).device
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
        return found

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return the rows of means by sequential distance, and of correlations."""
        whole = observations["syntactic"].isna() & observations["pos_class"].isna()
        return whole & observations["quantity"].isin(_SCALARS)

    @staticmethod
    def record_rows(observations: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows for a record of a run: means and correlations over all classes; more at both ends."""
        return recorded_rows(observations)

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw figures 3 and 4 of the publication, and DI over training."""
        return interdependence_figures(observations)

    @staticmethod
    def figures_beside(observations: pd.DataFrame, others: Mapping[str, pd.DataFrame]) -> dict[str, Figure]:
        """Draw both backends in one figure, if another observer of this class has the decomposition."""
        return beside_figures(observations, others.get("Interdependence"))
