"""Numbers of a run that the study of acquisition needs: where a curve is lowest or highest, and what ages depend on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from lmdyn.claims.numbers import Estimate, Number
from lmdyn.claims.rows import Rows, cached
from lmdyn.runs.observed_run import NotMeasured, ObservedRun

__all__ = ["ExtremumAt", "FrequencySlope"]


@dataclass(frozen=True)
class ExtremumAt(Number):
    """log10 of 1 + the step of the first observation at which a curve has its minimum or maximum.

    If this is the last observation, the curve may go on: the step is a lower bound.

    Attributes:
        rows: the rows of the curve.
        kind: which one.
    """

    rows: Rows
    kind: Literal["minimum", "maximum"] = "minimum"

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the logarithm of the step; NaN without a finite value."""
        from lmdyn.analysis.words.extrema import extremum

        table = self.rows.table(runs)
        found = extremum(table["step"], table["value"], self.kind)
        if found is None:
            return Estimate(math.nan)
        at = math.log10(1 + found.step)
        return Estimate(at, high=math.inf if found.censored else at)


@dataclass(frozen=True)
class FrequencySlope(Number):
    """How much later, in log10 of updates a bit, a model learns words of lower frequency and the same length.

    The age of a word is that of Chang & Bergen 2022: its surprisal is half-way from a random guess to its minimum. The
    slope is that of −log2 of the frequency in a Tobit regression of log10 ages on it and on the number of characters.

    Attributes:
        rows: the surprisals, whose rows of words are read.
        vocabulary: number of tokens, if the configuration of the run's data has no ``vocab_size``.
    """

    no_effect: ClassVar[float | None] = 0.0

    rows: Rows
    vocabulary: int

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the slope with its standard error over words.

        Raises:
            NotMeasured: if too few words have an age.
        """
        return cached(FrequencySlope._of, self, runs)  # type: ignore[no-any-return]

    def _of(self, runs: Sequence[ObservedRun]) -> Estimate:
        from lmdyn.analysis.words.acquisition import acquisition_regression, word_acquisition

        run, folder = self.rows.locate(runs)
        known = (run.condition.get(f"data.{of}vocab_size") for of in ("", "corpus."))
        vocabulary = next((size for size in known if size), self.vocabulary)
        try:
            ages = word_acquisition(run.read(folder), "2022", vocabulary=vocabulary, smoother=None)
            found = acquisition_regression(ages).coefficients
        except ValueError as error:
            raise NotMeasured(f"{folder} of {run.name}: {error}") from error
        slope = found[found["predictor"].eq("unigram")]
        return Estimate(float(slope["value"].iloc[0]), float(slope["error"].iloc[0]))
