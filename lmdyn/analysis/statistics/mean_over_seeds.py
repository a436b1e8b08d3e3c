"""The mean over seeds and its uncertainty: for another seed on the same text, and for another text."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import NamedTuple

import scipy

__all__ = ["BoundedMean", "Bounds", "MeanOverSeeds", "mean_over_seeds"]

_MOST_CENSORED = 12  # 4096 corners


class MeanOverSeeds(NamedTuple):
    """A mean over seeds with its two variances.

    Seeds that agree exactly have no variance, and Student's interval has no width. What is known then is a statement
    about the median of the seeds, by the sign test: if it were at or beyond a bound, all n would lie on the one side of
    it with a probability of at most 2⁻ⁿ. So five equal seeds do not decide at 95 % (0.031 for one side), and six do
    (0.016): with fewer, the interval for another seed is infinite.

    Attributes:
        mean: mean of the seeds' values.
        seeds_error: standard error of the mean for another seed on the same text: s / √n.
        seeds_df: degrees of freedom of ``seeds_error``, n - 1.
        text_error: standard error for another text and the same models; 0 if it is unknown.
        text_df: degrees of freedom of ``text_error``; infinite for many.

    Reference: Dixon & Mood 1946, "The statistical sign test"; Conover 1999, section 3.4.
    """

    mean: float
    seeds_error: float
    seeds_df: float
    text_error: float = 0.0
    text_df: float = math.inf

    @property
    def error(self) -> float:
        """Standard error of both variances together."""
        return math.hypot(self.seeds_error, self.text_error)

    @property
    def df(self) -> float:
        """Degrees of freedom of the sum of both variances, by Welch and Satterthwaite."""
        seeds, text = self.seeds_error**2, self.text_error**2
        spread = seeds**2 / self.seeds_df + text**2 / self.text_df
        return (seeds + text) ** 2 / spread if spread > 0 else self.seeds_df if text == 0 else self.text_df

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return Student's interval for the sum of both variances; never narrower than that of seeds alone."""
        ends = _interval(self.mean, self.error, self.df, confidence), self.seeds_interval(confidence)
        return min(e[0] for e in ends), max(e[1] for e in ends)

    def seeds_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the interval for another seed and the same text."""
        if self.seeds_error == 0 and self._sign_p > (1 - confidence) / 2:
            return -math.inf, math.inf
        return _interval(self.mean, self.seeds_error, self.seeds_df, confidence)

    def text_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the interval for the same models and another text."""
        return _interval(self.mean, self.text_error, self.text_df, confidence)

    def p_above(self, bound: float | int) -> float:
        """Return the one-sided p-value of "the mean is not above the bound"; 1 for an infinite bound."""
        return self._p(self.mean - bound)

    def p_below(self, bound: float | int) -> float:
        """Return the one-sided p-value of "the mean is not below the bound"."""
        return self._p(bound - self.mean)

    @property
    def _sign_p(self) -> float:
        """One-sided p of the sign test of seeds that are all on one side."""
        return float(2.0 ** -(self.seeds_df + 1))

    def _p(self, distance: float) -> float:
        both = _tail(distance, self.error, self.df)
        if self.seeds_error == 0 and 0 < distance < math.inf:
            return max(both, self._sign_p)
        return max(both, _tail(distance, self.seeds_error, self.seeds_df))


def _interval(mean: float, error: float, df: float, confidence: float) -> tuple[float, float]:
    quantile = float(scipy.special.stdtrit(min(df, 1e9), 0.5 + confidence / 2))
    half = 0.0 if error == 0 else quantile * error  # NaN stays NaN
    return mean - half, mean + half


def _tail(distance: float, error: float, df: float) -> float:
    if error == 0 or math.isinf(distance):
        return 0.0 if distance > 0 else 1.0
    return float(scipy.special.stdtr(min(df, 1e9), -distance / error))


def mean_over_seeds(
    values: Sequence[float | int],
    text_errors: Sequence[float | int] | None = None,
    text_df: Sequence[float | int | None] | None = None,
) -> MeanOverSeeds:
    """Compute the mean of one number per seed, with the variances over seeds and over texts.

    The variance of the mean is s²/n + ē², with s² the variance over seeds on this text, and ē² the mean of the
    variances over texts: all seeds read the same text, so averaging over them does not reduce it. If the errors of the
    seeds over texts are independent (an interaction of seed and text), s² also contains them, and the sum is too wide.

    Args:
        values: one per seed, at least two; on a scale on which seeds scatter evenly.
        text_errors: standard error of each value over texts; none, or 0, if unknown.
        text_df: degrees of freedom of each error; None for many.

    With few seeds and a text variance of the same size, Satterthwaite's degrees of freedom, which are also estimated,
    can give a narrower interval than the seeds alone, and cover 92 % instead of 95 % (three seeds, measured).
    :meth:`MeanOverSeeds.interval` is therefore the wider of both, which covers 94.3 to 95.6 %, and its p-values are
    the larger ones.

    Returns:
        The mean and its variances; the degrees of freedom of the text are the smallest of the seeds'. NaN if a value
        or an error is NaN, or if a value is infinite.

    Raises:
        ValueError: if there are fewer than two values, or if the number of errors differs.

    Reference: Satterthwaite 1946, "An approximate distribution of estimates of variance components"; Welch 1947.

    Example:
        >>> found = mean_over_seeds([0.1, 0.2, 0.3], [0.1, 0.1, 0.1], [63, 63, 63])
        >>> [round(end, 2) for end in found.seeds_interval()], [round(end, 2) for end in found.interval()]
        ([-0.05, 0.45], [-0.05, 0.45])
    """
    n = len(values)
    if n < 2 or (text_errors is not None and len(text_errors) != n):
        raise ValueError(
            f"expected at least two values, and one text error per value or no text errors, got {n} values and "
            f"{0 if text_errors is None else len(text_errors)} text errors"
        )
    mean = math.fsum(values) / n if all(math.isfinite(v) for v in values) else math.nan
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    if spread <= 1e-14 * abs(mean):  # rounding error of equal values
        mean, spread = float(values[0]), 0.0
    text = math.sqrt(math.fsum(e * e for e in text_errors) / n) if text_errors is not None else 0.0
    df = float(min((d for d in text_df or () if d is not None), default=math.inf))
    return MeanOverSeeds(mean, spread / math.sqrt(n), n - 1.0, text, df)


class Bounds:
    """A mean over seeds, some of whose values are known only by bounds: valid for any values within them.

    The lower end of a Student interval is concave in the values and the upper one convex, so over all values between
    the bounds their extremes lie at corners, at which each value is one of its bounds; the same holds for the
    p-values. Corners at which all values are equal are left out, since those beside them are wider.

    For the lower end, a value without an upper bound is replaced by its lower bound c: the mean of min(x, c) is at
    most that of x. The spread of the values beyond c is then unknown, and all n of them exceed a bound near c in 2⁻ⁿ
    of the cases by chance, so no p-value is below that of the two-sided sign test, 2¹⁻ⁿ. A time that was not reached
    by the end is therefore conclusive from seven seeds on. The other end is infinite. Values without a lower bound are
    treated in the same way.

    With more than 12 values between two bounds, there are too many corners (finding the largest variance is NP-hard).
    The variance is then bounded by that about the mean of the midpoints of the bounds, which is wider.

    Args:
        low: smallest possible value of each seed, which may be minus infinity.
        high: largest possible value of each seed.
        text_errors: see :func:`mean_over_seeds`.
        text_df: see :func:`mean_over_seeds`.

    Raises:
        ValueError: if there are fewer than two values, or if a bound is NaN.

    Reference: the union over unobserved values: Manski 2003, "Partial identification of probability distributions",
        chapter 1.

    Example:
        >>> exact, censored = Bounds([1, 2, 3], [1, 2, 3]), Bounds([1, 2, 3], [1, 2, 4])
        >>> [round(end, 2) for end in exact.interval()], [round(end, 2) for end in censored.interval()]
        ([-0.48, 4.48], [-1.46, 6.13])
    """

    def __init__(
        self,
        low: Sequence[float | int],
        high: Sequence[float | int],
        text_errors: Sequence[float | int] | None = None,
        text_df: Sequence[float | int | None] | None = None,
    ) -> None:
        bounds = [(float(a), float(b)) for a, b in zip(low, high, strict=True)]
        if wrong := [f"{a} and {b}" for a, b in bounds if not a <= b]:
            raise ValueError(f"expected low <= high for each seed, got {', '.join(wrong)}")
        self._least = 2.0 ** (1 - len(bounds))
        self._no_low, self._no_high = (any(math.isinf(b[i]) for b in bounds) for i in (0, 1))
        kept = [(b if math.isinf(a) else a, a if math.isinf(b) else b) for a, b in bounds]
        if sum(a < b for a, b in kept) > _MOST_CENSORED:
            self._corners = _wider(kept, text_errors, text_df)
        else:
            self._corners = [
                mean_over_seeds(corner, text_errors, text_df)
                for corner in product(*(sorted({a, b}) for a, b in kept))
                if all(map(math.isfinite, corner))
            ]
            spread = [corner for corner in self._corners if corner.seeds_error != 0]
            self._corners = spread or self._corners  # none is spread if all seeds agree exactly
        if not self._corners:  # a value is unbounded
            self._no_low = self._no_high = True

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the union of Student's intervals for both variances; infinite if it is unbounded."""
        return self._union((corner.interval(confidence) for corner in self._corners), confidence)

    def seeds_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the union of the intervals for another seed and the same text."""
        return self._union((corner.seeds_interval(confidence) for corner in self._corners), confidence)

    def text_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the union of the intervals for the same models and another text."""
        return self._union((corner.text_interval(confidence) for corner in self._corners), 0.0)

    def _union(self, intervals: Iterable[tuple[float, float]], confidence: float) -> tuple[float, float]:
        found = list(intervals)
        too_few = self._least > (1 - confidence) / 2
        no_low, no_high = self._no_low, self._no_high
        return (
            -math.inf if no_low or (no_high and too_few) else min(i[0] for i in found),
            math.inf if no_high or (no_low and too_few) else max(i[1] for i in found),
        )

    def p_above(self, bound: float | int) -> float:
        """Return the largest p-value of "the mean is not above the bound"; 0 for minus infinity."""
        return self._p(bound, -math.inf, MeanOverSeeds.p_above, self._no_low, self._no_high)

    def p_below(self, bound: float | int) -> float:
        """Return the largest p-value of "the mean is not below the bound"; 0 for infinity."""
        return self._p(bound, math.inf, MeanOverSeeds.p_below, self._no_high, self._no_low)

    def _p(
        self,
        bound: float | int,
        certain: float,
        of: Callable[[MeanOverSeeds, float | int], float],
        unbounded: bool,
        truncated: bool,
    ) -> float:
        if bound == certain:
            return 0.0
        if unbounded or math.isinf(bound):
            return 1.0
        return max(self._least if truncated else 0.0, *(of(corner, bound) for corner in self._corners))


class BoundedMean:
    """A mean over seeds of a number that is bounded on both sides, such as a share: exact for equal and for two values.

    Student's interval has no width if all values are equal, and shrinks if one of many is not: that none of 40 networks
    is chaotic does not imply that no network is, and one that is chaotic would widen the interval from nothing to
    [−0.03, 0.08]. Gaffke's bound assumes nothing of the distribution between ``low`` and ``high``, only that seeds are
    independent. The upper one is the 1 − α/2 quantile of Σ zᵢ Dᵢ + high · Dₙ₊₁, in which zᵢ are the values and D the
    spacings of n uniform numbers; the lower one is that of the mirrored values.

    For zeros and ones it is the interval of Clopper & Pearson. For n equal values v the upper bound is
    v + (high − v)(1 − (α/2)^(1/n)), which follows from Markov's inequality. For other values, its level is conjectured,
    and no law is known for which the bound fails.

    Args:
        values: one per seed, or its smallest possible value.
        low: smallest possible value of the number.
        high: largest possible value of the number.
        highest: largest possible value of each seed, if it is not known exactly.
        text_error: standard error over texts, see :class:`MeanOverSeeds`.
        text_df: its degrees of freedom.

    Raises:
        ValueError: if there are fewer than two values, or if one is out of the range.

    Reference: Gaffke 2005, "Three test statistics for a nonparametric one-sided hypothesis on the mean of a nonnegative
        variable"; Phan, Thomas & Learned-Miller 2021, "Towards practical mean bounds for small samples"; Clopper &
        Pearson 1934, "The use of confidence or fiducial limits illustrated in the case of the binomial".

    Example:
        >>> zeros, one = BoundedMean([0.0] * 40), BoundedMean([0.0] * 39 + [0.25])
        >>> [round(end, 3) for end in zeros.interval()], [round(end, 3) for end in one.interval()]
        ([0.0, 0.088], [0.0, 0.095])
    """

    def __init__(
        self,
        values: Sequence[float | int],
        low: float | int = 0.0,
        high: float | int = 1.0,
        *,
        highest: Sequence[float | int] | None = None,
        text_error: float = 0.0,
        text_df: float = math.inf,
    ) -> None:
        highest = values if highest is None else highest
        if len(values) < 2 or not all(-math.inf < low <= v <= high < math.inf for v in (*values, *highest)):
            raise ValueError(
                f"expected at least two values between {low} and {high}, both finite, got {len(values)}, from "
                f"{min(values, default=low)} to {max(highest, default=high)}"
            )
        self._below = [-v for v in (*values, low)]
        self._above = [*highest, high]
        self._means = math.fsum(values) / len(values), math.fsum(highest) / len(values)
        self._text = text_error, text_df

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the wider of the bounds of the mean and the interval over texts."""
        ends = self.text_interval(confidence), self.seeds_interval(confidence)  # NaN, if first, stays
        return min(e[0] for e in ends), max(e[1] for e in ends)

    def seeds_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the interval for another seed and the same text."""
        rest = (1 - confidence) / 2
        return -_exceeded(self._below, rest), _exceeded(self._above, rest)

    def text_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the interval for the same models and another text."""
        ends = [_interval(mean, *self._text, confidence) for mean in self._means]
        return ends[0][0], ends[1][1]

    def p_above(self, bound: float | int) -> float:
        """Return the one-sided p-value of "the mean is not above the bound"."""
        return max(_tail(self._means[0] - bound, *self._text), _p_of_spacings(self._below, -bound))

    def p_below(self, bound: float | int) -> float:
        """Return the one-sided p-value of "the mean is not below the bound"."""
        return max(_tail(bound - self._means[1], *self._text), _p_of_spacings(self._above, bound))


def _p_of_spacings(values: Sequence[float | int], bound: float | int) -> float:
    """Return the probability that the mean of the values, weighted by spacings of uniform numbers, reaches the bound.

    Spacings are exponential numbers E over their sum, so this is P(Σ (vᵢ − bound) Eᵢ ≥ 0). The difference of two
    exponential numbers of means a and b is one of mean a with probability a / (a + b), and else minus one of mean b.
    """
    above = [v - bound for v in values if v > bound]
    below = [bound - v for v in values if v < bound]
    reached = [1.0] + [0.0] * len(below)
    for a in above:
        for j, b in enumerate(below, 1):
            reached[j] = (a * reached[j - 1] + b * reached[j]) / (a + b)
    return reached[-1]


def _exceeded(values: Sequence[float | int], p: float) -> float:
    """Return the bound that their mean by :func:`_p_of_spacings` reaches with this probability."""
    least, top = float(min(values)), float(max(values))
    if least == top:
        return top
    return float(
        scipy.optimize.brentq(lambda bound: _p_of_spacings(values, bound) - p, least, top, xtol=1e-14)
    )


def _wider(
    bounds: Sequence[tuple[float, float]],
    text_errors: Sequence[float | int] | None,
    text_df: Sequence[float | int | None] | None,
) -> list[MeanOverSeeds]:
    """Return the smallest and the largest mean, with a variance that no values between the bounds exceed."""
    if not all(map(math.isfinite, sum(bounds, ()))):
        return []
    n = len(bounds)
    centre = math.fsum(a + b for a, b in bounds) / (2 * n)
    most = math.fsum(max(abs(a - centre), abs(b - centre)) ** 2 for a, b in bounds)
    error = math.sqrt(most / (n - 1) / n)
    lows, highs = zip(*bounds, strict=True)
    return [mean_over_seeds(v, text_errors, text_df)._replace(seeds_error=error) for v in (lows, highs)]
