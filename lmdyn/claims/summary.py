"""One number over seeds: its mean, three intervals, and its position relative to a region."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, Self

import numpy as np

from lmdyn.analysis.statistics.mean_over_seeds import BoundedMean, Bounds, MeanOverSeeds, mean_over_seeds
from lmdyn.analysis.statistics.scales import error_on_scale, from_scale, to_scale
from lmdyn.analysis.statistics.variance_components import VarianceComponents, variance_components
from lmdyn.claims.claim import SCALE_ENDS, Part, Region
from lmdyn.claims.numbers import Estimate, Scale
from lmdyn.claims.precision import Precision, seeds_needed
from lmdyn.runs.observed_run import SeedPair, independent_seeds

__all__ = [
    "ENOUGH",
    "FEWEST",
    "SMALLER",
    "Interval",
    "PartJudgement",
    "Summary",
    "Verdict",
    "judge_part",
    "summarize",
]

Interval = tuple[float, float]

Verdict = Literal[
    "holds", "smaller than required", "fails", "not within N tokens", "undecided", "void", "not measured"
]

SMALLER: Final = "smaller than required"

FEWEST = 3
"""Minimum number of seeds for a verdict."""

ENOUGH = 5
"""Number of seeds from which on the interval alone decides."""


@dataclass(frozen=True)
class Summary:
    """A number over seeds, in its own units; intervals are computed on ``scale``.

    Attributes:
        estimates: estimates of all seeds, including those of a crossed design that share a number.
        seeds: the independent seeds, from which everything except ``components`` is computed.
        mean: mean over them.
        range: the smallest and the largest of them, including bounds of censored ones.
        interval: for another seed and another text; None for one seed, unless its error over texts is known.
        seeds_interval: for another seed and this text; None for one seed.
        text_interval: for these models and another text; None if no error over texts is known.
        scale: scale on which the mean was computed.
        components: for a complete crossed design, the variances (on ``scale``) of initialisation and order.
    """

    estimates: Mapping[SeedPair, Estimate]
    seeds: tuple[SeedPair, ...]
    mean: float
    range: Interval
    interval: Interval | None
    seeds_interval: Interval | None
    text_interval: Interval | None
    scale: Scale
    components: VarianceComponents | None = None

    @property
    def n(self) -> int:
        """Number of independent seeds."""
        return len(self.seeds)

    @property
    def of_this_text(self) -> bool:
        """Whether nothing is known about other texts: the intervals are for this one."""
        return self.text_interval is None

    @property
    def censored(self) -> bool:
        """Whether only bounds are known for some seed."""
        return any(self.estimates[s].censored for s in self.seeds)


@dataclass(frozen=True, kw_only=True)
class PartJudgement(Summary):
    """A part of a claim over seeds.

    Attributes:
        label: label of the part.
        region: region in which the number must lie.
        verdict: verdict of this part by itself, at the level that its claim requires.
        p_holds: one-sided p of "the mean is not in the region"; None below three seeds.
        p_fails: one-sided p of "the mean is in the region".
        p_sign: one-sided p of "the mean is not on the region's side of the number without an effect"; None if the
            region is no half-line on one side of such a number.
        precision: half-width and the seeds that would decide, if it is undecided by the spread of seeds or texts.
        of_texts: estimated variances over texts, and over the seeds of one text, in the number's own units; None if no
            text has several runs.
    """

    label: str
    region: Region
    verdict: Verdict
    p_holds: float | None
    p_fails: float | None
    p_sign: float | None = None
    precision: Precision | None = None
    of_texts: tuple[float, float] | None = None

    def beside(self, repeated: Sequence[float]) -> Self:
        """Return it with the variances over texts and seeds, by the values of several seeds with one of its texts.

        Of one run each, texts vary by σ²_text + σ²_seed: σ²_text is the difference of the two, which can be negative.
        """
        seeds = float(np.var(repeated, ddof=1))
        both = float(np.var([self.estimates[s].value for s in self.seeds], ddof=1))
        return replace(self, of_texts=(both - seeds, seeds))


def summarize(
    estimates: Mapping[SeedPair, Estimate],
    scale: Scale = "plain",
    confidence: float = 0.95,
    between: Interval | None = None,
) -> Summary:
    """Compute mean and intervals of a number over seeds.

    Args:
        estimates: one per seed, none of them NaN.
        scale: scale of the mean; ``plain`` is used if a value lies at the end of the range of another scale.
        confidence: confidence of the intervals.
        between: the smallest and the largest possible value of the number, if they exist.
    """
    return _Scaled(estimates, scale, between).summary(confidence)


def judge_part(
    part: Part,
    estimates: Mapping[SeedPair, Estimate],
    *,
    holds_confidence: float,
    fails_confidence: float,
    shown_confidence: float,
) -> PartJudgement:
    """Determine the position of a part's number relative to its region, over seeds.

    From five seeds on, it is inside (outside) if its interval for another seed and another text is. With three or
    four, each seed's own interval must be too: these alone would all be inside in 1/8 of the cases in which the mean of
    three is on the boundary. Below three seeds it is undecided.

    What is outside of a half-line is smaller than required if it is on its side of the number without an effect
    (:meth:`~lmdyn.claims.Number.null`), by the same intervals; otherwise it fails.

    Args:
        part: number and region.
        estimates: one per seed, none of them NaN.
        holds_confidence: confidence for "holds"; one-sided levels are half of the rest.
        fails_confidence: confidence for "fails", which differs if several parts are tested.
        shown_confidence: confidence of the intervals that are shown.
    """
    scaled = _Scaled(estimates, part.mean_scale, part.number.between())
    summary = scaled.summary(shown_confidence)
    without = scaled.inside(part.number.null())
    null = math.nan if without is None else scaled.to(without)
    low, high = (to_scale(end, scaled.scale) for end in (part.region.low, part.region.high))
    above = part.region.high == math.inf and null < low
    below = part.region.low == -math.inf and null > high
    own = {c: [scaled.own(s, c) for s in scaled.seeds] for c in {holds_confidence, fails_confidence}}

    def within(interval: Interval) -> bool:
        return low <= interval[0] and interval[1] <= high

    def outside(interval: Interval) -> bool:
        return interval[1] < low or interval[0] > high

    def with_sign(interval: Interval) -> bool:
        return null < interval[0] if above else interval[1] < null

    verdict: Verdict = "undecided"
    p_holds = p_fails = p_sign = None
    if summary.n >= FEWEST:
        mean = scaled.mean
        p_holds = max(mean.p_above(low), mean.p_below(high))
        p_fails = min(mean.p_below(low), mean.p_above(high))
        few = summary.n < ENOUGH
        if p_holds <= (1 - holds_confidence) / 2 and (not few or all(map(within, own[holds_confidence]))):
            verdict = "holds"
        elif p_fails <= (1 - fails_confidence) / 2 and (not few or all(map(outside, own[fails_confidence]))):
            verdict = "fails"
        if above or below:
            p_sign = mean.p_above(null) if above else mean.p_below(null)
            signed = p_sign <= (1 - holds_confidence) / 2
            if verdict == "fails" and signed and (not few or all(map(with_sign, own[holds_confidence]))):
                verdict = SMALLER
    return PartJudgement(
        **vars(summary),
        label=part.label,
        region=part.region,
        verdict=verdict,
        p_holds=p_holds,
        p_fails=p_fails,
        p_sign=p_sign,
        precision=scaled.precision(
            part.region, without, holds_confidence if summary.mean in part.region else fails_confidence
        )
        if verdict == "undecided"
        else None,
    )


class _Scaled:
    """Estimates on a scale."""

    def __init__(
        self, estimates: Mapping[SeedPair, Estimate], scale: Scale, between: Interval | None = None
    ) -> None:
        ends = [end for e in estimates.values() for end in (e.low, e.high) if math.isfinite(end)]
        self.seeds = tuple(independent_seeds(estimates))
        # rounding errors neither leave the range nor tell two values apart
        self.numbers = numbers = [
            (round(estimates[s].low, 12), round(estimates[s].high, 12)) for s in self.seeds
        ]
        # a user's quantity may have the name of a share without being one, or a range without an end
        low, high = between or (math.nan, math.nan)
        within = math.isfinite(high - low) and all(low <= v <= high for pair in numbers for v in pair)
        self.between = between if within else None
        # far from normal: all seeds are equal, or half of them are at an end of the range
        equal = numbers.count((numbers[0][0],) * 2) == len(numbers)
        at_an_end = max((numbers.count((end, end)) for end in self.between or ()), default=0)
        self.range = self.between if equal or 2 * at_an_end >= len(numbers) else None
        inside = self.range is None and all(math.isfinite(to_scale(end, scale)) for end in ends)
        self.scale: Scale = scale if inside else "plain"
        self.estimates = estimates
        self.bounds = {s: (self.to(e.low), self.to(e.high)) for s, e in estimates.items()}
        self.errors = {
            s: None if e.error is None else error_on_scale(e.value, e.error, self.scale)
            for s, e in estimates.items()
        }

    def to(self, value: float) -> float:
        return to_scale(value, self.scale)

    def inside(self, null: float | None) -> float | None:
        """Return the number without an effect if it lies within the scale and the range; otherwise None."""
        least, greatest = self.between or (-math.inf, math.inf)
        if null is None or not least <= null <= greatest:
            return None
        low, high = SCALE_ENDS[self.scale]
        return null if low < null < high else None

    @cached_property
    def mean(self) -> Bounds | BoundedMean:
        low, high = zip(*(self.bounds[s] for s in self.seeds), strict=True)
        texts = [self.errors[s] or 0.0 for s in self.seeds], [self.estimates[s].df for s in self.seeds]
        if self.range is None:
            return Bounds(low, high, *texts)
        text = mean_over_seeds(low, *texts)
        low, high = zip(*self.numbers, strict=True)
        return BoundedMean(low, *self.range, highest=high, text_error=text.text_error, text_df=text.text_df)

    def own(self, seed: SeedPair, confidence: float) -> Interval:
        """Return a seed's own interval: this model, another text."""
        error, df = self.errors[seed] or 0.0, float(self.estimates[seed].df or math.inf)
        low, high = self.bounds[seed]
        half = MeanOverSeeds(0.0, 0.0, 1.0, error, df).text_interval(confidence)[1]
        return low - half, high + half

    def precision(self, region: Region, null: float | None, confidence: float) -> Precision | None:
        """Return the precision, if the interval of exact numbers that differ contains one bound of the region."""
        if (
            self.range is not None
            or len(self.seeds) < FEWEST
            or any(low < high for low, high in self.numbers)
        ):
            return None
        texts = [self.errors[s] or 0.0 for s in self.seeds], [self.estimates[s].df for s in self.seeds]
        mean = mean_over_seeds([self.bounds[s][0] for s in self.seeds], *texts)
        low, high = mean.interval(confidence)
        inside = [end for end in (region.low, region.high) if low <= self.to(end) <= high]
        if len(inside) != 1 or mean.seeds_error == 0:
            return None
        half = (from_scale(high, self.scale) - from_scale(low, self.scale)) / 2
        matters = None if null is None else abs(inside[0] - null)
        return Precision(half, matters, seeds_needed(mean, self.to(inside[0]), confidence))

    def summary(self, confidence: float) -> Summary:
        least, greatest = self.between or (-math.inf, math.inf)

        def back(interval: Interval) -> Interval:
            low, high = (from_scale(end, self.scale) for end in interval)
            return max(low, least), min(high, greatest)

        known = all(self.errors[s] is not None for s in self.seeds)
        used = [self.estimates[s] for s in self.seeds]
        interval: Interval | None
        if len(self.seeds) > 1:
            mean = self.mean
            interval, seeds = back(mean.interval(confidence)), back(mean.seeds_interval(confidence))
            text = back(mean.text_interval(confidence)) if known else None
        else:
            text = back(self.own(self.seeds[0], confidence)) if known else None
            interval, seeds = text, None
        return Summary(
            self.estimates,
            self.seeds,
            from_scale(math.fsum(self.to(e.value) for e in used) / len(used), self.scale),
            (min(e.low for e in used), max(e.high for e in used)),
            interval,
            seeds,
            text,
            self.scale,
            self._components(),
        )

    def _components(self) -> VarianceComponents | None:
        crossed = [s for s in self.estimates if s.init is not None and s.order is not None]
        numbers = [[s[i] for s in crossed] for i in (0, 1)]
        # a seed that shares neither number is not part of the crossed design
        inits, orders = (sorted({n for n in found if found.count(n) > 1}) for found in numbers)  # type: ignore[type-var]
        cells = [[SeedPair(i, j) for j in orders] for i in inits]
        whole = all(s in self.estimates and not self.estimates[s].censored for row in cells for s in row)
        if min(len(inits), len(orders)) < 2 or not whole:
            return None
        return variance_components(
            np.array([[self.to(self.estimates[s].value) for s in row] for row in cells])
        )
