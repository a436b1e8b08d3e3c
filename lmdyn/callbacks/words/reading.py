"""Reading: how well a language model's surprisal predicts the reading times of people, over training."""

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from torch.nn import Module

from lmdyn.analysis.words.reading import reading_fit
from lmdyn.analysis.words.surprisal import PseudoLikelihood
from lmdyn.callbacks.observing.findings import Foreseen, expected
from lmdyn.callbacks.observing.protocols import HasReadingTimes
from lmdyn.callbacks.observing.run import report
from lmdyn.callbacks.observing.sums import Row, tabulate
from lmdyn.callbacks.words.scored_texts import ScoredTexts, first_row
from lmdyn.runs.schema import Quantity

__all__ = ["OF_WORD", "Reading"]

OF_WORD = ("frequency", "length", "before")
_SPILLOVER = ("previous_length", "previous_surprisal")
_of_times = partial(Quantity, tags=("<time>/<baseline>",))
_gain = partial(_of_times, low=0.0, better="higher", lines="time")


class Reading(ScoredTexts):
    """What the surprisal of words adds to the prediction of their reading times.

    The probe has reading times, such as :class:`~lmdyn.datamodules.ReadingFiles`. The surprisal of a word is the sum
    over its pieces, −log₂ p(piece | everything before it in its text), with white space where the tokenizer has it. A
    masked model reads the pieces before the word and three masks, of which it predicts the first (``left_context``):
    readers have not seen the rest of the text; with another ``pseudo``, it reads the rest too.

    Each column of times is predicted by least squares, from two baselines: that of the ``word``, with its log
    frequency (if the data has it), its length in characters, and the number of words before it; and ``spillover``,
    which adds length and surprisal of the word before. Both have the products of each two predictors, as the BabyLM
    protocol, which scores eye tracking by the first, and self-paced reading by the second. ``partial_r2`` is the share
    of the variance left by the baseline that surprisal predicts; ``chance`` is its mean for a predictor of noise.

    ``delta_log_likelihood`` is the gain in log-likelihood per observed time, of models with a random intercept for each
    reader, if the data names readers, else for each text.

    Words without a piece, a probability or a predictor, as the word before in ``spillover``, are left out. If a logit
    is not finite, all numbers are NaN.

    Args:
        scoring: ``causal``, ``masked`` or ``mntp``, by default causal or masked, as measured; for encoder-decoders
            ``enc_dec_mask`` or ``enc_dec_prefix``, see :func:`~lmdyn.analysis.surprisals`.
        pseudo: what is masked when a masked model predicts a piece.
        start: the token before a causal model's text; see :func:`~lmdyn.analysis.surprisals`.
        batch_tokens: maximum number of tokens of a batch.
        probe: datamodule with ``reading_times``, required.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for data without reading times, a run without tokenizer, an encoder-decoder, too few times.

    Reference: partial R²: BabyLM protocol; log-likelihood: Goodkind & Bicknell 2018, Wilcox et al. 2020.
    """

    pseudo: PseudoLikelihood = "left_context"

    needs = (HasReadingTimes,)
    columns = {"time": "", "baseline": "", "item": ""}
    figure_rows = pc.field("item") == ""
    recorded = (
        _gain(
            "partial_r2",
            "Share of the variance left by the baseline that surprisal explains.",
            "share",
            high=1.0,
            panel="partial_r2",
            floor="chance",
            headline=True,
        ),
        _of_times(
            "chance", "Mean of `partial_r2` for a predictor that is noise.", "share", low=0.0, high=1.0
        ),
        _gain(
            "delta_log_likelihood",
            "Gain in log-likelihood per observed time by surprisal, in models with random intercepts.",
            "nats",
            panel="delta_log_likelihood",
        ),
        _of_times("slope", "Additional reading time for each bit of surprisal, in the unit of the times."),
        Quantity("slope_error", "Standard error of the slope, for independent times.", low=0.0, tags=()),
        _of_times("times", "Number of reading times that were used.", "count", low=0.0),
        Quantity(
            "surprisal",
            "Surprisal of each word, and the mean of all words.",
            "bits",
            low=0.0,
            better="lower",
            panel="surprisal",
            where=(("item", ("",)),),
        ),
    )

    @property
    def content(self) -> Any:
        """The texts, and the rows without where they are from."""
        rows = self.rows.drop(columns=["text", "file", "line"]).assign(place=self.place)
        return self.texts, rows.to_numpy().tolist()

    def prepare(self) -> None:
        """Read the times, and choose the texts to read: those that begin no other one."""
        data = self.open_texts("a `probe` with reading times, such as ReadingFiles")
        self.rows, self.times = data.reading_times.reset_index(drop=True), list(data.times)
        covering: dict[str, str] = {}
        after = ""
        of_row, given = pd.factorize(self.rows["text"].astype(object))
        for text in sorted(given, reverse=True):
            after = covering[text] = after if after.startswith(f"{text} ") else text
        of_text, texts = pd.factorize(given.map(covering))
        numbers = of_text[of_row]
        self.texts = [str(text) for text in texts]
        words = [text.split() for text in self.texts]
        self.first_words = np.cumsum([0, *(len(of) for of in words)])
        self.place = self.first_words[numbers] + self.rows["index"].to_numpy(dtype=np.int64)
        lengths = np.array([len(word) for of in words for word in of], dtype=np.float64)
        self.continues = self.rows["index"].to_numpy() > 0
        self.rows["previous_length"] = np.where(self.continues, lengths[self.place - 1], np.nan)
        named = self.rows["subject"].ne("").any()
        self.groups = self.rows["subject"] if named else pd.Series(numbers)
        known = [name for name in OF_WORD if self.rows[name].notna().any()]
        self.baselines = {"word": known, "spillover": [*known, *_SPILLOVER]}
        if "frequency" not in known:
            report(self.name, "the data has no log frequency: the baselines leave out log frequency")

    def check_module(self, module: Module) -> None:
        """Encode the texts as the module reads them."""
        self.encoded = self.encode(module, self.texts)
        inside = np.array([word for text in self.encoded.encoded for word in text.words], dtype=np.int64)
        self.piece_place = self.first_words[self.encoded.text] + inside

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report words without a number, times that no one needs for a word, too few times."""
        without = ~np.isin(self.place, self.piece_place)
        if without.any():
            yield expected(
                "words with at least one token",
                f"{without.sum()} of {len(self.rows)} words without a token, such as {first_row(self.rows, without)}",
                "lmdyn leaves out words without a token",
                stops=False,
            )
        for time in self.times:
            if (zero := self.rows[time].le(0).to_numpy()).any():
                yield expected(
                    f"times above 0 in {time}",
                    f"{zero.sum()} of {len(self.rows)} times of 0 or less, such as {first_row(self.rows, zero)}",
                    "write an empty cell where a reader skipped a word",
                    stops=False,
                )
            predictors = len(self.baselines["spillover"])
            needed = 3 + predictors * (predictors + 1) // 2
            known = self.rows[[time, *self.baselines["word"]]].notna().all(axis=1)
            there = int((known & self.continues & ~without).sum())
            if there < needed:
                yield expected(f"{needed} words with {time}", str(there), "observe more words")
            elif self.rows.loc[known, time].nunique() < 2:
                yield expected(
                    f"different times in {time}", "the same for all words", f"remove {time} from `times`"
                )
        yield from super().foresee(module)

    def measure(self, module: Module, step: int) -> pd.DataFrame:
        """Score the words, divided among ranks, and predict the times."""
        pieces = -self.encoded.log_probabilities(module, self.batch_tokens) / math.log(2)
        words = np.full(self.first_words[-1], np.nan)
        words[self.piece_place] = 0
        np.add.at(words, self.piece_place, pieces)
        if not np.isfinite(pieces[self.encoded.scored]).all():
            words[:] = np.nan
        return tabulate(self._rows(words), self.columns, self.name, step)

    def _rows(self, words: "np.ndarray[Any, np.dtype[np.float64]]") -> Iterator[Row | pd.DataFrame]:
        surprisal = words[self.place]
        table = self.rows.assign(
            previous_surprisal=np.where(self.continues, words[self.place - 1], np.nan),
        )
        items = pd.DataFrame({"quantity": "surprisal", "item": self.rows["item"], "value": surprisal})
        items = items.drop_duplicates("item").dropna(subset="value")
        yield {}, {"surprisal": items["value"].mean()}
        for time in self.times:
            for baseline, predictors in self.baselines.items():
                at = {"time": time, "baseline": baseline}
                if not len(items):
                    yield at, {"partial_r2": math.nan}
                    continue
                fit = dict(vars(reading_fit(table[time], surprisal, table[predictors], self.groups)))
                times = fit.pop("observations")
                yield at, {**fit, "times": times}
        yield items

    @classmethod
    def is_scalar(cls, observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return the rows of logged quantities, except those of words."""
        return super().is_scalar(observations) & observations["item"].eq("")
