"""Interdependence of word pairs by their distance in the sentence and in its dependency tree."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.inspection.forward import device_of
from lmdyn.analysis.interdependence.decomposition import Variant
from lmdyn.analysis.interdependence.pair_statistics import pair_statistics
from lmdyn.analysis.interdependence.pairwise import pairwise_interdependence
from lmdyn.analysis.interdependence.pairwise_shapley import pairwise_shapley_interaction, reading_of
from lmdyn.analysis.statistics.distributed import all_reduce_sum, rank_and_world_size
from lmdyn.callbacks.interdependence.absent_words import MEAN, AbsentWords, Space
from lmdyn.callbacks.interdependence.lstm_parts import LSTMParts
from lmdyn.callbacks.interdependence.word_pairs import SentencePairs, TokenBatch
from lmdyn.callbacks.observing.checked_fields import From
from lmdyn.callbacks.observing.findings import Foreseen, expected
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.panels import standard_figures
from lmdyn.callbacks.observing.protocols import AnnotatedText, Sentence
from lmdyn.callbacks.observing.run import report, warn
from lmdyn.callbacks.observing.sums import tabulate
from lmdyn.runs.schema import Quantity, select
from lmdyn.runs.store import UNDECIDED

__all__ = ["Interdependence"]

_DISTANCE = ("<site>/distance=<d>",)
_DI = "interdependence (DI) of two words d apart"
_WHOLE = (("syntactic", None), ("pos_class", None))
_CONTROLS = {
    "mean_": "Mean of the correlation over distances.",
    "known_": "The correlation over pairs of known words (control).",
    "off_by_one_": "The correlation with distances in the tree shifted by one word (control).",
    "shuffled_": "The correlation with distances in the tree of another sentence (control).",
}
"""Meaning by prefix of a correlation's name, which may have several prefixes."""


_correlation = partial(Quantity, low=-1.0, high=1.0)


_QUANTITIES = (
    Quantity(
        "di",
        f"Mean {_DI}; 0 if the words' contributions add up.",
        low=0.0,
        tags=_DISTANCE,
        panel="over_training",
        lines="distance",
        where=_WHOLE,
        short="mean interdependence (DI)",
    ),
    Quantity("di_low", f"Lower end of the 95 % interval of the mean {_DI}.", tags=_DISTANCE),
    Quantity("di_high", f"Upper end of the 95 % interval of the mean {_DI}.", low=0.0, tags=_DISTANCE),
    _correlation(
        "syntactic_correlation", f"Spearman's ρ of the {_DI} with syntactic distance.", tags=_DISTANCE
    ),
    _correlation(
        "frequency_correlation",
        f"Spearman's ρ of the {_DI} with the training count of the left or the right word.",
        tags=(f"{_DISTANCE[0]}/<word>",),
    ),
    _correlation(
        "partial_correlation",
        f"Spearman's ρ of the {_DI} with syntactic distance, given the ranks of both counts.",
        tags=_DISTANCE,
    ),
    _correlation(
        "matched_correlation",
        f"Spearman's ρ of the {_DI} with syntactic distance, among pairs of similar counts.",
        tags=_DISTANCE,
    ),
    _correlation(
        "mean_syntactic_correlation", "Mean of syntactic_correlation over distances.", tags=("<site>",)
    ),
    _correlation("mean_matched_correlation", "Mean of matched_correlation over distances.", tags=("<site>",)),
    *(_correlation(f"{prefix}<correlation>", meaning, tags=()) for prefix, meaning in _CONTROLS.items()),
    *(
        Quantity(
            f"{of}_error", f"Standard error of {of}, over blocks of sentences (jackknife).", low=0.0, tags=()
        )
        for of in ("<correlation>", *(f"{prefix}<correlation>" for prefix in _CONTROLS))
    ),
    Quantity("pairs", "Number of pairs over which a mean is taken.", "count", low=0.0, tags=()),
    Quantity(
        "sampling_error",
        "Root mean square of the pairs' standard errors over drawn coalitions (`backend: shapley`).",
        low=0.0,
        tags=(),
    ),
)
_SCALARS = [quantity.name for quantity in _QUANTITIES if quantity.tags]


_Backend = tuple[list[str], Callable[[TokenBatch], dict[str, tuple[Tensor, Tensor]]]]
"""The sites, and a function to the values of a batch and their standard errors, by site: (batch, words, distance)."""


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
        unknown: pairs with a word that the tokenizer does not know: only ``keep``; ``controls`` has numbers without.
        controls: whether to compute also the correlations with distances in other trees than the sentence's own, and,
            if unknown words occur, all correlations for the pairs of known words.
        backend: ``decomposition`` or ``shapley``.
        embedding: path of the module that maps ids to word vectors; None for ``embedding``, and with shapley,
            if there is none, for the one that is found.
        lstm: path of the ``nn.LSTM`` or stack of LSTMs (decomposition).
        decoder: path of the linear layer to logits; None for hidden states only (decomposition).
        variant: relevant products (decomposition), ``published``, ``released`` or ``generalized``: see
            :data:`~lmdyn.analysis.interdependence.decomposition.Variant`.
        index: weights of coalitions (shapley): only ``taylor``.
        coalitions: the sets of other words (shapley): only ``all``.
        absence: replacement of absent words (shapley): only ``mean``, the mean word vector of the probe set.
        reading: only None: at each observation, it is measured whether the model sees the words up to a position or
            all, which are the players (shapley).
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
    the ``sampling_error`` of each distance, the root mean
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
            of several tokens, or modules that are missing or no LSTM (decomposition); for a model that cannot read the
            longest sentence or has no such site (shapley).

    Reference: Saphra & Lopez 2020, section 3, figures 3 and 4 (Saphra 2021, chapter 5; section 5.1.2 proposes other
    models); Singhvi et al. 2024 (Shapley interaction of language models).
    """

    max_distance: Annotated[int, From(1)] = 8
    min_pairs: Annotated[int, From(1)] = 100
    max_length: int | None = None
    longer: Literal["error", "skip"] = "error"
    unknown: Literal["keep"] = "keep"
    controls: bool = False
    backend: Literal["decomposition", "shapley"] = "decomposition"
    embedding: str | None = None
    lstm: str = "lstm"
    decoder: str | None = "decoder"
    variant: Variant = "published"
    index: Literal["taylor"] = "taylor"
    coalitions: Literal["all"] = "all"
    absence: Literal["mean"] = "mean"
    reading: None = None
    spaces: Sequence[Space] = ("hidden", "logits")
    hidden: str | None = None
    exact_up_to: Annotated[int, From(0, 20)] = 10
    samples: Annotated[int, From(2)] = 64
    seed: int = 0
    batch_tokens: Annotated[int, From(1)] = 4096
    max_rows: Annotated[int, From(1)] = 4096

    uses_labels = False
    recorded = _QUANTITIES
    needs = (AnnotatedText,)
    several_runs = True
    not_settings = Observer.not_settings | {"batch_tokens", "max_rows"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.spaces:
            raise ValueError("spaces is empty: expected hidden, logits, or both")

    def prepare(self) -> None:
        """Read the sentences and list their pairs."""
        data: AnnotatedText = self.data
        sentences = self._read(itertools.chain.from_iterable(data.documents(self.split)))
        counts = self.run.token_counts
        self.pairs = pairs = SentencePairs(
            sentences,
            data.tokenizer,
            None if counts is None else counts["count"].to_numpy(),
            max_distance=self.max_distance,
            batch_tokens=self.batch_tokens,
            name=self.name,
            one_token=self.backend == "decomposition",
            controls=self.controls,
        )
        self._found["sentences"] = pairs.fingerprint
        if self.backend == "shapley":
            self._absent = AbsentWords(self.name, pairs, self.spaces, self.forward)
            self.found("hidden", lambda: UNDECIDED)
        else:
            self._lstm = LSTMParts(self.found("embedding", lambda: "embedding"), self.lstm, self.decoder)
        report(
            self.name,
            f"{len(pairs.table)} pairs of words in {len(sentences)} sentences; {int(pairs.table['unknown'].sum())} "
            "pairs have a word that the tokenizer does not know",
        )

    def _read(self, given: Iterable[Sentence]) -> list[Sentence]:
        sentences: list[Sentence] = []
        words = skipped = 0
        for number, sentence in enumerate(given, 1):
            if self.max_length is not None and len(sentence.words) > self.max_length:
                if self.longer == "error":
                    raise ValueError(
                        f"{self.name}: sentence {number} has {len(sentence.words)} words, more than max_length = "
                        f"{self.max_length}: raise `max_length`, or set `longer: skip`"
                    )
                skipped += 1
                continue
            if self.max_tokens is not None and words + len(sentence.words) > self.max_tokens and sentences:
                break
            words += len(sentence.words)
            sentences.append(sentence)
        if skipped:
            report(self.name, f"lmdyn leaves out {skipped} sentences of more than {self.max_length} words")
        if not any(len(s.words) > 1 for s in sentences):
            raise ValueError(f"{self.name}: no sentence has two words or more: use longer sentences")
        for layer, what in (("heads", "syntactic distances"), ("upos", "word classes")):
            missing = sum(getattr(s, layer) is None for s in sentences)
            if missing:
                warn(
                    self.name,
                    f"there are no {layer} in {missing} of {len(sentences)} sentences, so lmdyn records no {what}. "
                    "Pass a `probe` of sentences that all have `heads` and `upos`, such as a ConlluCorpus",
                )
        return sentences

    def check_module(self, module: nn.Module) -> None:
        """Raise an error for modules that are missing or no LSTM; with backend shapley, try the longest sentence."""
        if self.backend == "decomposition":
            try:
                self._lstm.of(module, self.name)
            except ValueError as error:
                raise ValueError(f"{error}. Set `backend: shapley` for models of any kind") from error
            return
        try:
            hidden = self.found("hidden", lambda: self._absent.find(module, "hidden") or UNDECIDED)
            embedding = self.found("embedding", lambda: self._absent.find(module, "embedding"))
            self._absent.check(module, hidden, embedding)
        except (IndexError, RuntimeError) as error:
            ids = self.pairs.batches[0].ids[0]
            raise ValueError(
                f"{self.name}: {type(module).__name__} cannot read a sentence of {len(ids)} tokens with ids up to "
                f"{int(ids.max())} ({type(error).__name__}: {error}). Set `max_length` and `longer: skip` to leave out "
                "longer sentences, or use the model's own tokenizer"
            ) from error

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report distances with too few pairs."""
        table = self.pairs.table
        if table["syntactic"].notna().any():
            table = table[table["syntactic"] >= 0]
        counts = table.groupby("distance").size().reindex(range(1, self.max_distance + 1), fill_value=0)
        few = counts[counts < self.min_pairs]
        if len(few):
            yield expected(
                f"{self.min_pairs} pairs of words at each distance up to {self.max_distance}",
                f"{', '.join(f'{n} at {d}' for d, n in few.items())}",
                "lower `min_pairs` or `max_distance`, or use more sentences",
                stops=False,
            )

    @torch.no_grad()
    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Measure DI of all pairs, each rank for some of the sentences, and its means."""
        pairs = self.pairs
        rank, world_size = rank_and_world_size()
        shape = (2, pairs.words, self.max_distance)  # values and their standard errors
        tables: list[pd.DataFrame] = []
        with ExitStack() as stack:
            open_backend = self._decomposition if self.backend == "decomposition" else self._interaction
            sites, read = open_backend(module, stack)
            found = {site: torch.zeros(shape, dtype=torch.float64) for site in sites}
            for batch in pairs.batches[rank::world_size]:
                for site, parts in read(batch).items():
                    values = torch.stack(parts).double().cpu()
                    for row, first in enumerate(batch.first):
                        words = int(batch.words[row].max()) + 1
                        found[site][:, first : first + words] = values[:, row, :words]
        for site, values in found.items():
            di, errors = all_reduce_sum(values).flatten(1).cpu().numpy()[:, pairs.table["index"].to_numpy()]
            table = pairs.table.assign(di=di)
            if self.backend == "shapley":
                table["error"] = errors
            controls = self.controls and not tables  # for hidden states
            numbers = pair_statistics(table, self.min_pairs, controls=controls)
            tables.append(numbers.assign(site=site))
        why = "pairs have no finite value, or all pairs of a mean are in one sentence"
        columns = {"distance": int, "syntactic": int, "pos_class": None, "word": None}
        return tabulate(tables, columns, self.name, step, why)

    def _decomposition(self, module: nn.Module, stack: ExitStack) -> _Backend:
        """Return the sites, and a function to DI of a batch by the contextual decomposition of an LSTM."""
        longest = self.pairs.batches[0].ids[:1]
        device = device_of(module)
        embedding, lstm, decoder = self._lstm.checked(module, longest, self.name, self.forward)

        def read(batch: TokenBatch) -> dict[str, tuple[Tensor, Tensor]]:
            found = pairwise_interdependence(
                lstm,
                embedding(batch.ids.to(device)),
                self.max_distance,
                mask=batch.mask.to(device),
                decoder=decoder,
                variant=self.variant,
                max_rows=self.max_rows,
            )
            before = int((batch.words[0] < 0).sum())  # special tokens; the first sentence has no padding
            values = {"hidden": found.hidden[:, before:]}
            if found.logits is not None:
                values["logits"] = found.logits[:, before:]
            return {site: (of, torch.zeros_like(of)) for site, of in values.items()}

        return (["hidden"] if decoder is None else ["hidden", "logits"]), read

    def _interaction(self, module: nn.Module, stack: ExitStack) -> _Backend:
        """Return the spaces, and a function to the Shapley interactions of a batch and their standard errors."""
        device = device_of(module)
        longest = self.pairs.batches[0].ids
        hidden, embedding = (self._found.get(name, self.arguments[name]) for name in ("hidden", "embedding"))
        forward = stack.enter_context(self._absent.opened(module, hidden, embedding))
        reading = reading_of(forward, longest.to(device))

        def read(batch: TokenBatch) -> dict[str, tuple[Tensor, Tensor]]:
            found = pairwise_shapley_interaction(
                forward,
                batch.ids.to(device),
                self.max_distance,
                baseline=MEAN,
                words=batch.words,
                reading=reading,
                exact_up_to=self.exact_up_to,
                samples=self.samples,
                max_rows=max(1, self.batch_tokens // batch.ids.shape[1]),
                seed=[self.seed * 1_000_003 + number for number in batch.numbers],
            )
            return {site: (of.value, of.standard_error) for site, of in found.items()}

        return list(forward(longest[:1].to(device))), read

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return the rows of means by sequential distance, and of correlations."""
        whole = observations["syntactic"].isna() & observations["pos_class"].isna()
        return whole & observations["quantity"].isin(_SCALARS)

    @staticmethod
    def record_rows(observations: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows that figures over all runs and claims require.

        For each observation the means and correlations of hidden states (else of the existing space) over all classes;
        for the first and the last one those of all spaces, and those by class and by syntactic distance, except for
        numbers of pairs, and for correlations over known words at single distances.
        """
        rows = observations
        quantity = observations["quantity"]
        site = observations["site"]
        of_space = (
            site.eq("hidden") if site.eq("hidden").any() else site.eq(site.iloc[0] if len(rows) else "")
        )
        whole = rows["syntactic"].isna() & rows["pos_class"].isna()
        # the first is the baseline of the last
        ends = rows["step"].isin([rows["step"].min(), rows["step"].max()])
        plain = ~quantity.str.match("(mean_)?(known_|off_by_one_|shuffled_)") & quantity.ne("pairs")
        of_known_at_distances = quantity.str.startswith("known_") & rows["distance"].notna()
        of_ends = ends & (whole | of_space & quantity.ne("pairs")) & ~of_known_at_distances
        return rows[whole & of_space & plain | of_ends]

    @classmethod
    def figures(cls, observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw figures 3 and 4 of the publication, and the standard figure, DI over training."""
        rows = select(observations, quantity=["di", "di_low", "di_high"])
        di = cls.recorded[0]
        by_distance = replace(di, panel="by_distance", over="distance", lines="run" if "run" in rows else "")
        of_trees = rows[rows["syntactic"].notna()]
        of_trees = of_trees.assign(
            distance=of_trees["distance"].map("{:.0f} apart".format),
            pos_class=of_trees["pos_class"].astype(object).fillna("all"),
        )
        by_tree = replace(di, panel="by_syntactic_distance", over="syntactic", lines="pos_class", where=())
        published = standard_figures(rows, [by_distance]) | standard_figures(of_trees, [by_tree])
        return published | super().figures(observations, settings)
