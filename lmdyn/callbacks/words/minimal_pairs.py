"""Minimal pairs: how often a language model prefers the right one of two sentences, during training."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Annotated, Any, Literal, cast

import lightning as L
import numpy as np
import pandas as pd
import pyarrow.compute as pc
from matplotlib.figure import Figure
from torch.nn import Module

from lmdyn.analysis.statistics.distributed import gather, rank_and_world_size
from lmdyn.analysis.statistics.intervals import share_interval
from lmdyn.analysis.words.minimal_pairs import Ties, onset, pair_accuracy, sentence_scores
from lmdyn.analysis.words.surprisal import EncodedTexts, PseudoLikelihood
from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.checked_fields import From
from lmdyn.callbacks.observing.findings import Cost, Foreseen, expected
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.protocols import HasPairs, require
from lmdyn.callbacks.observing.run import open_data
from lmdyn.callbacks.observing.sums import Row, tabulate
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


def _accuracy(name: str, meaning: str, tags: tuple[str, ...] = _OF_GROUPS, **more: Any) -> Quantity:
    return Quantity(
        name, meaning, "share", **{"low": 0.0, "high": 1.0, "better": "higher", "tags": tags, **more}
    )


def _count(name: str, meaning: str, tags: tuple[str, ...] = ("",)) -> Quantity:
    return Quantity(name, meaning, "count", low=0.0, tags=tags)


class MinimalPairs(Observer):
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

    Accuracies are compared with ``chance``, ½, and with that of always preferring the sentence of fewer tokens
    (``shorter``). An n-gram model, another floor, is not among them: it would have to be counted from training text.

    The records have the ``log_ratio`` of each pair: onsets, flips and the agreement of runs are computed from them by
    :func:`~lmdyn.analysis.onset`, :func:`~lmdyn.analysis.flips` and :func:`~lmdyn.analysis.pair_agreement`.

    Args:
        scoring: ``causal`` or ``masked``; by default as measured.
        pseudo: what is masked when a masked model predicts a piece: the ``piece``, or also the ``rest_of_word``.
        start: the token before a causal model's text; see :func:`~lmdyn.analysis.surprisals`.
        most: number of pairs of a paradigm, the first ones; None for all.
        ties: a tie counts ``half``, or 0 or 1 as drawn (``draw``), the same at each step.
        seed: seed of the draws.
        batch_tokens: maximum number of tokens of a batch.
        probe: datamodule with ``pairs``, required.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`; of paradigms, ``accuracy`` only.

    Raises:
        ValueError: for data without pairs, a run without tokenizer, an encoder-decoder, sentences longer than the model
            can read (with file and line), or without a predicted piece.

    Reference: Marvin & Linzen 2018; Warstadt et al. 2020 (BLiMP); masked models: Salazar et al. 2020, Kauf & Ivanova
        2023.
    """

    scoring: Literal["causal", "masked"] | None = None
    pseudo: PseudoLikelihood = "piece"
    start: str | None = None
    most: Annotated[int, From(1)] | None = None
    ties: Ties = "half"
    seed: int = 0
    batch_tokens: Annotated[int, From(16)] = 4096

    needs = (HasPairs,)
    not_settings = Observer.not_settings | {"batch_tokens"}
    figure_rows = pc.field("quantity") != "log_ratio"
    recorded = (
        _accuracy(
            "accuracy",
            "Pairs whose right sentence has the higher probability.",
            panel="accuracy",
            lines="group",
            floor="chance",
            headline=True,
            where=(("by", ("", "field", "attractors")),),
        ),
        _accuracy("accuracy_low", "Lower end of its interval of 95 %, for other pairs.", ()),
        _accuracy("accuracy_high", "Upper end.", ()),
        _accuracy(
            "accuracy_by_token",
            "The same by the mean log-probability of a token.",
        ),
        _accuracy(
            "accuracy_by_character",
            "The same by the log-probability over the number of characters.",
        ),
        _accuracy(
            "shorter",
            "Accuracy of preferring the sentence of fewer tokens.",
            better=None,
        ),
        _accuracy(
            "chance",
            "Accuracy of a coin.",
            ("",),
            better=None,
        ),
        _count(
            "pairs",
            "Number of pairs.",
            _OF_GROUPS,
        ),
        _count("indistinct", "Pairs that differ in an unknown word, or not at all: they count half."),
        _count(
            "unknown_words", "Words of all sentences, or pieces of words, that the tokenizer does not know."
        ),
        Quantity(
            "log_ratio",
            "Log-probability of the right sentence less that of the other.",
            "nats",
            tags=(),
        ),
    )

    @property
    def reads_data(self) -> bool:
        """Whether it reads batches: it reads the sentences of its probe itself."""
        return False

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments, what was determined from the model, and the content of the pairs."""
        content = repr(self.pairs[["good", "bad", *_GROUPINGS, "pair"]].to_numpy().tolist())
        digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
        return {**super().settings, "forward": self.forward, "probe_set": digest}

    def prepare(self) -> None:
        """Read the pairs."""
        data = self.data
        if isinstance(self.probe, L.LightningDataModule):
            first = rank_and_world_size()[0] == 0
            open_data(self.probe, self.run, self.name, rank_zero=first, barrier=_wait)
        if data is None or self.run.tokenizer is None:
            lacks = "a `probe` with pairs, such as PairFiles" if data is None else "the run's tokenizer"
            raise ValueError(f"{self.name} requires {lacks}, but there is none")
        require(self.needs, self.name, datamodule=data)
        pairs = cast(HasPairs, data).pairs
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
        try:
            self.encoded = EncodedTexts(
                module,
                self.run.tokenizer,
                self.texts,
                objective=self.scoring,
                pseudo=self.pseudo,
                start=self.start,
                forward=self.forward,
            )
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error
        self._found |= {"scoring": self.encoded.objective, "start": self.encoded.start}
        unknown = self.run.tokenizer.unk_token_id
        ids = [text.ids for text in self.encoded.encoded]
        both = zip(self.good, self.bad, strict=True)
        self.indistinct = np.array([_indistinct(ids[g], ids[b], unknown) for g, b in both])

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report sentences that cannot be scored, and pairs that count half; the memory of logits."""
        lengths, context = np.array(self.encoded.lengths), self.encoded.context
        if context is not None and (lengths > context).any():
            yield expected(
                f"sentences of at most {context} tokens, the positions of the model",
                f"{lengths.max()} in {self._where(lengths > context)}",
                "remove the pair",
            )
        scored = np.bincount(self.encoded.text[self.encoded.scored], minlength=len(self.texts))
        if (scored == 0).any():
            yield expected(
                "sentences with a piece to predict",
                f"none in {self._where(scored == 0)}",
                "set `start` to a token, or remove the pair",
            )
        if self.indistinct.any():
            first = self.pairs.iloc[self.indistinct.argmax()]
            yield expected(
                "pairs that differ in words that the tokenizer knows",
                f"{self.indistinct.sum()} of {len(self.pairs)} that differ in unknown ones or not at all, such as "
                f"{first['file']}:{first['line']}",
                "they count half; choose pairs of the model's words",
                stops=False,
            )
        size = self.batch_tokens * len(self.run.tokenizer) * 8
        yield Cost(f"logits of {self.batch_tokens} tokens, twice", size, "lower `batch_tokens`")

    def _where(self, wrong: "np.ndarray[Any, np.dtype[np.bool_]]") -> str:
        """Return file and line of the first pair with one of these texts."""
        first = self.pairs.iloc[(wrong[self.good] | wrong[self.bad]).argmax()]
        return f"{first['file']}:{first['line']}"

    def measure(self, module: Module, step: int) -> pd.DataFrame:
        """Score the sentences, divided among ranks."""
        read = self.encoded.read(module, self.batch_tokens, rank_and_world_size(), whole=False)
        found = np.full(len(self.encoded.ids), np.nan)
        for part in gather([(np.array(asked, dtype=int), values[:, 0]) for asked, values in read]):
            for asked, values in part:
                found[asked] = values
        pieces = pd.DataFrame({"text": self.encoded.text, "log_probability": found})
        scores = sentence_scores(pieces[self.encoded.scored], self.texts)
        return tabulate(self._rows(scores), {"by": "", "group": "", "pair": ""}, self.name, step)

    def _rows(self, scores: pd.DataFrame) -> Iterator[Row | pd.DataFrame]:
        good, bad = (scores.iloc[numbers].reset_index(drop=True) for numbers in (self.good, self.bad))
        bad[self.indistinct] = good[self.indistinct]
        right = {name: pair_accuracy(good[c], bad[c], self.ties, self.seed) for name, c in _SCORES.items()}
        tokens = np.bincount(self.encoded.text, minlength=len(self.texts))
        right["shorter"] = pair_accuracy(-tokens[self.good], -tokens[self.bad])
        yield (
            {},
            {
                "chance": 0.5,
                "indistinct": float(self.indistinct.sum()),
                "unknown_words": float(self.encoded.unknown.sum()),
            },
        )
        for by, group, rows in self.groups:
            values = {name: float(of[rows].mean()) for name, of in right.items()}
            mean, n = values["accuracy"], len(rows)
            low, high = share_interval(mean, n) if np.isfinite(mean) else (mean, mean)
            ends = {"accuracy_low": low, "accuracy_high": high, "pairs": float(n)}
            yield {"by": by, "group": group}, {**values, **ends}
        names = {"group": self.pairs["paradigm"], "pair": self.pairs["pair"]}
        ratios = good["log_probability"] - bad["log_probability"]
        yield pd.DataFrame({"quantity": "log_ratio", "by": "pair", **names, "value": ratios})

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return all rows except those of pairs, ends of intervals, and other numbers of paradigms than accuracy."""
        stored = observations["quantity"].isin(["log_ratio", "accuracy_low", "accuracy_high"])
        return ~stored & (observations["by"].ne("paradigm") | observations["quantity"].eq("accuracy"))

    @classmethod
    def figures(cls, observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw accuracies by field and by attractors, and a heat map of paradigms over training, by onset."""
        return super().figures(observations, settings) | _onsets(select(observations, by="paradigm"))


def _wait() -> None:
    """Wait for all ranks."""
    gather(None)


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
