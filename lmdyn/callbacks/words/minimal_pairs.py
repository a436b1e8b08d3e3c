"""Minimal pairs: how often a language model prefers the right one of two sentences, during training."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from matplotlib.figure import Figure
from torch.nn import Module

from lmdyn.analysis.statistics.intervals import share_interval
from lmdyn.analysis.words.minimal_pairs import Ties, onset, pair_accuracy, sentence_scores
from lmdyn.analysis.words.ngram_models import NgramModels
from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.checked_fields import From
from lmdyn.callbacks.observing.findings import Foreseen, expected
from lmdyn.callbacks.observing.protocols import HasPairs, HasTrainingPart, require
from lmdyn.callbacks.observing.sums import Row, tabulate
from lmdyn.callbacks.words.ngram_divergence import count_ngrams
from lmdyn.callbacks.words.scored_texts import ScoredTexts, first_row
from lmdyn.runs.schema import Quantity, select, wide

__all__ = ["MinimalPairs"]

_GROUPINGS = ("paradigm", "field", "term", "attractors")
_OF_GROUPS = ("", "<by>/<group>")
_SCORES = {
    "accuracy": "log_probability",
    "accuracy_by_token": "by_token",
    "accuracy_by_character": "by_character",
}
_MOST_ROWS = 36  # of a heat map

_accuracy = partial(Quantity, unit="share", low=0.0, high=1.0, better="higher", tags=_OF_GROUPS)
_count = partial(Quantity, unit="count", low=0.0)


class MinimalPairs(ScoredTexts):
    """Share of minimal pairs of which the model gives the right sentence the higher probability.

    The probe has ``pairs``, such as :class:`~lmdyn.datamodules.PairFiles`. A sentence's score is the sum of the
    log-probabilities of its pieces, as :func:`~lmdyn.analysis.surprisals` computes them: for a causal model, from the
    token that begins a text (without one, the first piece has no probability and is left out, as is reported); for a
    masked one, the pseudo-log-likelihood; a recurrent one reads each sentence from a fresh state. Variants are the mean
    by token and the sum by character. Sentences that begin alike are read together from where they differ, by causal
    models that can continue.

    Ties count half. So do pairs whose sentences differ in an unknown word, or not at all (``indistinct``), whose
    ``log_ratio`` is 0. Means are over pairs: of a paradigm, field, term, number of attractors, and of all. Intervals
    are Wilson's, for other pairs: a tie counts as half a right one. Accuracies that include logits that are not finite
    are NaN.

    Accuracies are compared with ``chance``, ½, with that of always preferring the sentence of fewer tokens
    (``shorter``), and with that of the Kneser-Ney model of the run's training text (``ngram``), if an order is given.

    The records have the ``log_ratio`` of each pair: onsets, flips and the agreement of runs are computed from them by
    :func:`~lmdyn.analysis.onset`, :func:`~lmdyn.analysis.flips` and :func:`~lmdyn.analysis.pair_agreement`.

    Args:
        scoring: ``causal``, ``masked`` or ``mntp``, by default causal or masked, as measured; for encoder-decoders
            ``enc_dec_mask`` or ``enc_dec_prefix``, see :func:`~lmdyn.analysis.surprisals`.
        pseudo: what is masked when a masked model predicts a piece: the ``piece``, or also the ``rest_of_word``.
        start: the token before a causal model's text; see :func:`~lmdyn.analysis.surprisals`.
        most: number of pairs of a paradigm, the first ones; None for all.
        ties: a tie counts ``half``, or 0 or 1 as drawn (``draw``), the same at each step.
        seed: seed of the draws.
        batch_tokens: maximum number of tokens of a batch.
        ngram: order of an n-gram model of the run's training text, such as 5, which is counted once; None for none.
        probe: datamodule with ``pairs``, required.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`; of paradigms, ``accuracy`` only.

    Raises:
        ValueError: for data without pairs, a run without tokenizer, an encoder-decoder, sentences longer than the model
            can read (with file and line), or without a predicted piece; for ``ngram`` without a training text.

    Reference: Marvin & Linzen 2018; Warstadt et al. 2020 (BLiMP); masked models: Salazar et al. 2020, Kauf & Ivanova
        2023.
    """

    most: Annotated[int, From(1)] | None = None
    ties: Ties = "half"
    seed: int = 0
    ngram: Annotated[int, From(2)] | None = None

    needs = (HasPairs,)
    figure_rows = pc.field("quantity") != "log_ratio"
    recorded = (
        _accuracy(
            "accuracy",
            "Share of pairs in which the right sentence has the higher probability.",
            panel="accuracy",
            lines="group",
            floor="chance",
            headline=True,
            where=(("by", ("", "field", "attractors")),),
        ),
        _accuracy("accuracy_low", "Lower end of the accuracy's 95 % interval over pairs.", tags=()),
        _accuracy("accuracy_high", "Upper end of the accuracy's 95 % interval over pairs.", tags=()),
        _accuracy("accuracy_by_token", "Accuracy of comparing the mean log-probability of a token."),
        _accuracy(
            "accuracy_by_character",
            "Accuracy of comparing the log-probability divided by the number of characters.",
        ),
        _accuracy("shorter", "Accuracy of always choosing the sentence with fewer tokens.", better=None),
        _accuracy("ngram", "Accuracy of an n-gram model of the training text.", better=None),
        _accuracy("chance", "Accuracy of choosing by chance.", tags=("",), better=None),
        _count("pairs", "Number of pairs of sentences.", tags=_OF_GROUPS),
        _count("indistinct", "Pairs that differ in an unknown word, or not at all; each counts half."),
        _count("unknown_words", "Words or pieces that the tokenizer does not know, in all sentences."),
        Quantity(
            "log_ratio",
            "Log-probability of the right sentence minus the log-probability of the wrong sentence.",
            "nats",
            tags=(),
        ),
    )

    @property
    def content(self) -> Any:
        """The pairs."""
        return self.pairs[["good", "bad", *_GROUPINGS, "pair"]].to_numpy().tolist()

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments, what was determined from the model, and the content of the pairs."""
        settings = super().settings
        if self.ngram is None:  # as before there was this argument
            settings.pop("ngram")
        return settings

    def prepare(self) -> None:
        """Read the pairs."""
        data = self.open_texts("a `probe` with pairs, such as PairFiles")
        if self.ngram is not None:
            if self.run.datamodule is None:
                raise ValueError(
                    f"{self.name}: `ngram` requires training text, but the run has no datamodule: omit `ngram`"
                )
            require((HasTrainingPart,), self.name, datamodule=self.run.datamodule)
            self._train = self.part("train", data=self.run.datamodule)
            self._found["train_set"] = self._train.fingerprint
        pairs = data.pairs
        if self.most is not None:
            pairs = pairs.groupby("paradigm", sort=False).head(self.most)
        self.pairs = pairs.reset_index(drop=True).astype(dict.fromkeys((*_GROUPINGS, "pair"), str))
        numbers, texts = pd.factorize(pd.concat([self.pairs["good"], self.pairs["bad"]]))
        self.good, self.bad = np.split(numbers, 2)
        self.texts: list[str] = texts.tolist()
        self.groups = [("", "", np.arange(len(self.pairs)))] + [
            (by, group, np.flatnonzero(self.pairs[by] == group))
            for by in _GROUPINGS
            for group in self.pairs[by].unique()
            if group
        ]

    def check_module(self, module: Module) -> None:
        """Encode the sentences as the module reads them."""
        self.encoded = self.encode(module, self.texts)
        unknown = self.run.tokenizer.unk_token_id
        ids = [text.ids for text in self.encoded.encoded]
        both = zip(self.good, self.bad, strict=True)
        self.indistinct = np.array([_indistinct(ids[g], ids[b], unknown) for g, b in both])
        if self.ngram is not None:
            masked = self.encoded.objective != "causal"
            size = len(self.run.tokenizer)
            counts = count_ngrams(self, self._train, None, self.ngram, size, masked=masked)
            found = NgramModels(counts).log_probabilities(self.ngram, ids)
            self._by_ngrams = np.array([p.sum() for p in found])

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report sentences that cannot be scored, and pairs that count half; the memory of logits."""
        yield from self.unscored(self.encoded, self._where)
        if self.indistinct.any():
            yield expected(
                "pairs that differ in words that the tokenizer knows",
                f"{self.indistinct.sum()} of {len(self.pairs)} pairs that differ in unknown words or not at all, such "
                f"as {first_row(self.pairs, self.indistinct)}",
                "choose pairs of known words; lmdyn counts the other pairs as half right",
                stops=False,
            )
        yield from super().foresee(module)

    def _where(self, wrong: "np.ndarray[Any, np.dtype[np.bool_]]") -> str:
        """Return file and line of the first pair with one of these texts."""
        return first_row(self.pairs, wrong[self.good] | wrong[self.bad])

    def measure(self, module: Module, step: int) -> pd.DataFrame:
        """Score the sentences, divided among ranks."""
        found = self.encoded.log_probabilities(module, self.batch_tokens)
        pieces = pd.DataFrame({"text": self.encoded.text, "log_probability": found})
        scores = sentence_scores(pieces[self.encoded.scored], self.texts)
        return tabulate(self._rows(scores), {"by": "", "group": "", "pair": ""}, self.name, step)

    def _rows(self, scores: pd.DataFrame) -> Iterator[Row | pd.DataFrame]:
        good, bad = (scores.iloc[numbers].reset_index(drop=True) for numbers in (self.good, self.bad))
        bad[self.indistinct] = good[self.indistinct]
        right = {name: pair_accuracy(good[c], bad[c], self.ties, self.seed) for name, c in _SCORES.items()}
        tokens = np.bincount(self.encoded.text, minlength=len(self.texts))
        right["shorter"] = pair_accuracy(-tokens[self.good], -tokens[self.bad])
        if self.ngram is not None:
            ratio = self._by_ngrams[self.good] - self._by_ngrams[self.bad]
            floor = np.where(self.indistinct, 0, ratio)
            right["ngram"] = pair_accuracy(floor, np.zeros_like(floor))
        yield (
            {},
            {
                "chance": 0.5,
                "indistinct": self.indistinct.sum(),
                "unknown_words": self.encoded.unknown.sum(),
            },
        )
        for by, group, rows in self.groups:
            values = {name: of[rows].mean() for name, of in right.items()}
            mean, n = values["accuracy"], len(rows)
            low, high = share_interval(mean, n) if np.isfinite(mean) else (mean, mean)
            ends = {"accuracy_low": low, "accuracy_high": high, "pairs": n}
            yield {"by": by, "group": group}, {**values, **ends}
        names = {"group": self.pairs["paradigm"], "pair": self.pairs["pair"]}
        ratios = good["log_probability"] - bad["log_probability"]
        yield pd.DataFrame({"quantity": "log_ratio", "by": "pair", **names, "value": ratios})

    @classmethod
    def is_scalar(cls, observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return rows of logged quantities, of paradigms only accuracy."""
        of_logged = observations["by"].ne("paradigm") | observations["quantity"].eq("accuracy")
        return super().is_scalar(observations) & of_logged

    @classmethod
    def figures(cls, observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw accuracies by field and by attractors, and a heat map of paradigms over training, by onset."""
        return super().figures(observations, settings) | _onsets(select(observations, by="paradigm"))


def _indistinct(one: Sequence[int], other: Sequence[int], unknown: int | None) -> bool:
    """Return whether two sentences differ in an unknown token, or not at all."""
    if one == other or unknown not in (*one, *other):
        return one == other
    if len(one) == len(other):
        return any(unknown in both for both in zip(one, other, strict=True) if both[0] != both[1])
    changes = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    return any(unknown in (*one[a:b], *other[c:d]) for kind, a, b, c, d in changes if kind != "equal")


@fig.in_style
def _onsets(rows: pd.DataFrame) -> dict[str, Figure]:
    """Draw the accuracy of each paradigm at each step, in the order in which it exceeds chance (marked)."""
    accuracy = wide(select(rows, quantity="accuracy"), "step", "group", sort=False)
    if not np.isfinite(accuracy.to_numpy(dtype=float)).any():
        return {}
    steps: list[Any] = sorted(accuracy.columns)
    pairs = select(rows, quantity="pairs").groupby("group")["value"].max()
    onsets = pd.Series(
        {
            name: onset(steps, values, float(pairs[str(name)]), above=True)
            for name, values in accuracy[steps].iterrows()
        },
        dtype=float,
    ).sort_values(kind="stable")
    figures = {}
    for i, part in enumerate(fig.portions(list(onsets.index), _MOST_ROWS)):
        figure, axes = fig.new_figure(8.0, 1.6 + 0.2 * len(part))
        image = fig.show_image(
            axes, accuracy.loc[part, steps].to_numpy(dtype=float), aspect="auto", cmap="RdBu", vmin=0, vmax=1
        )
        for y, at in enumerate(onsets[part]):
            if at in steps:
                axes.plot(steps.index(at), y, "k.", ms=4, clip_on=False)
        axes.set_yticks(range(len(part)), [name.replace("_", " ") for name in part], fontsize=7)
        shown = fig.spread_out(range(len(steps)), 12)
        axes.set_xticks(shown, [f"{steps[i]:,}" for i in shown], rotation=45, ha="right")
        axes.set_xlabel("training step (optimizer updates), one column an observation")
        axes.set_title("paradigms by the step from which accuracy exceeds chance (dot)")
        figure.colorbar(image, ax=axes, label="accuracy")
        figures["onsets" if not i else f"onsets_{i + 1}"] = figure
    return figures
