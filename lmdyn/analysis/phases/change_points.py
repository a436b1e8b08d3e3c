"""Change points of a curve over training: bends of a line in log step, against smooth courses without any."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt

from lmdyn.analysis.phases.smooth_course import fit_monotone

__all__ = ["ChangePoints", "UnsuitableCurveError", "change_points"]

Array = npt.NDArray[np.float64]

_A_DECADE = 8
_LEAST = 12
_MOST_CANDIDATES = 20_000
_ROUNDING = 1e-12
"""Sum of squares that counts as none, of values whose range is 1: squares are differences of much larger sums."""
_PENALTY = 3
"""Parameters for which a change point counts: its slope, and twice its position, which is searched."""
_CORRELATIONS = np.linspace(0, 0.9, 7)
_TRIALS = 1_500
"""Observations in all simulated curves together, from which the correlation of noise is estimated."""
_APART = 3
"""Least number of observations between two change points, and between one and an end."""


class UnsuitableCurveError(ValueError):
    """A curve of which change points are not defined, such as one with too few observations."""


@dataclass(frozen=True)
class ChangePoints:
    """Result of :func:`change_points`.

    Attributes:
        steps: steps of the change points, in order; empty if the curve is smooth.
        low: lower ends of their intervals.
        high: upper ends.
        slopes: slope of each piece by decade, one more than change points; empty if the curve is smooth.
        p_value: share of smooth curves with this noise that bend as much, at least 1 / (resamplings + 1).
        fitted: values of the piecewise linear or of the smooth curve, at the observations that are used, by step.
        correlation: estimated correlation of the noise from one observation to the next, from 0 to 0.9.
        smooth: whether no change point is shown.
    """

    steps: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    slopes: tuple[float, ...]
    p_value: float
    fitted: Array
    correlation: float
    smooth: bool


def change_points(
    steps: npt.ArrayLike,
    values: npt.ArrayLike,
    *,
    most: int = 2,
    level: float = 0.05,
    confidence: float = 0.95,
    spacing: float = 0.5,
    resamplings: int = 199,
    seed: int = 0,
) -> ChangePoints:
    """Find where a curve bends: a continuous line of few straight pieces in log10 of the step.

    A learning curve that is smooth can be approximated by straight pieces as well, so that pieces alone show nothing.
    The pieces (from 1 to ``most`` change points, by BIC with three parameters for each, since positions are searched)
    are therefore compared with a monotone spline without a break, whose knots are half a decade apart: the statistic
    is the log ratio of both sums of squares, and its distribution without change points is that of curves of the
    spline with resampled residuals, fitted in the same way. A change that is smooth but sharper than the spline's
    knots counts as change points: a logistic curve whose rise from 10 to 90 % takes 1.5 decades is smooth, one of 0.55
    decades is not, and between the two it depends on the noise (``benchmarks/phases.py``, ten observations a decade).
    A course that rises and falls is not monotone: it has change points, smooth as it may be.

    Intervals are the quantiles of the change points of curves of the fitted pieces with resampled residuals. Change
    points are at observations or halfway between two: add half of this distance to either end, since an interval may
    have no width. A jump becomes a ramp of at least three observations, around it; one outlier may hide a bend.

    Noise of neighbouring observations may be correlated, and then bends by itself. Resampled residuals are therefore
    those of a first-order autoregression. Its ``correlation`` is estimated by indirect inference, since pieces follow
    a part of correlated noise: it is the one with which curves of these pieces leave, on average, residuals that are
    correlated as those of the curve. In the same way they have the size with which such curves leave residuals of the
    observed size. With few observations it is uncertain, and the test remains too ready where it is large: of constant
    curves with a correlation of 0.5 one in eight is stated to change, with 0.7 one in five (``benchmarks/phases.py``).
    0.9 is the largest that is tried; there, residuals may be misfit of the pieces rather than noise. The number of
    change points is chosen as if noise were independent: with correlated noise it is often too large. Noise whose
    neighbours have opposite signs is not covered: it makes the test too ready on rising courses.

    Args:
        steps: (n,) optimizer updates, any order; step 0 has no logarithm and is left out.
        values: (n,) values; observations that are not finite are left out.
        most: maximum number of change points, from 1 to 3.
        level: largest p-value at which change points are stated.
        confidence: confidence level of the intervals.
        spacing: least distance of knots of the smooth course, in decades.
        resamplings: number of resampled curves, for each purpose.
        seed: seed of the resampling.

    Raises:
        UnsuitableCurveError: for fewer than eight observations a decade (fewer below step 10, where steps are whole
            numbers) or 12 in total, or steps that occur twice.
        ValueError: for settings out of range, or too few resamplings for a p-value as small as the level.

    Reference: Saphra 2021, section 7.2.3 (phases); segmented regression: Muggeo 2003; number of change points: Zhang &
        Siegmund 2007; bootstrap of residuals: Davison & Hinkley 1997, section 6.2.

    Example:
        >>> steps = 10 ** np.linspace(0, 3, 30)
        >>> noise = np.random.default_rng(0).normal(0, 0.01, 30)
        >>> found = change_points(steps, np.maximum(0, np.log10(steps) - 1.5) + noise)
        >>> found.smooth, len(found.steps), bool(20 < found.steps[0] < 45)
        (False, 1, True)
    """
    if (
        not 1 <= most <= 3
        or not 0 < level < 1
        or not 0 < confidence < 1
        or not spacing > 0
        or resamplings < 19
    ):
        raise ValueError(
            "expected most from 1 to 3, level and confidence between 0 and 1, a positive spacing and at least 19 "
            f"resamplings, got {most=}, {level=}, {confidence=}, {spacing=} and {resamplings=}"
        )
    if 1 / (resamplings + 1) > level:
        raise ValueError(
            f"the smallest p-value of {resamplings} resamplings is {1 / (resamplings + 1):.2g}: a level of {level:g} "
            f"requires at least {int(np.ceil(1 / level)) - 1} resamplings"
        )
    x, y = _observed(np.asarray(steps, np.float64), np.asarray(values, np.float64))
    exponent = int(np.frexp(np.abs(y).max())[1])
    y = np.ldexp(y, -exponent)  # a power of two: exact, and sums of large numbers do not overflow
    back = float(y.mean())
    scale = float(np.ptp(y)) or 1.0
    y = (y - back) / scale  # numbers of any size have the same pieces

    def as_given(course: Array) -> Array:
        return np.ldexp(course * scale + back, exponent)

    pieces = _Pieces(x, most)
    smooth = fit_monotone(x, y, spacing)
    best = pieces.fit(y[None])
    observed = _statistic(_squares(y - smooth), float(best.squares[0]))
    course, at = best.course[0], best.breaks[0]
    correlation = _noise_correlation(pieces, course, y - course)
    generator = np.random.default_rng(seed)

    def resampled(course: Array, fit: Callable[[Array], Array]) -> Array:
        residuals = y - course - (y - course).mean()
        tried = _correlated(generator.choice(residuals, (_trials(len(y)), len(y))), correlation)
        left = _squares(course + tried - fit(course + tried)) / len(tried)
        size = np.sqrt(_squares(residuals) / left) if left > _ROUNDING else 1.0
        return course + size * _correlated(generator.choice(residuals, (resamplings, len(y))), correlation)

    def fit_smooth(curves: Array) -> Array:
        return np.stack([fit_monotone(x, curve, spacing) for curve in curves])

    curves = resampled(smooth, fit_smooth)
    found = pieces.fit(curves)
    null = [
        _statistic(_squares(curve - course), float(squares))
        for curve, course, squares in zip(curves, fit_smooth(curves), found.squares, strict=True)
    ]
    p_value = (1 + sum(value >= observed for value in null)) / (resamplings + 1)
    if p_value > level:
        return ChangePoints((), (), (), (), p_value, as_given(smooth), correlation, smooth=True)
    again = pieces.fit(resampled(course, lambda c: pieces.fit(c, exactly=len(at)).course), exactly=len(at))
    tail = (1 - confidence) / 2
    ends = np.quantile(np.array(again.breaks), [tail, 1 - tail], axis=0)
    slopes = np.diff(np.interp([x[0], *at, x[-1]], x, course)) / np.diff([x[0], *at, x[-1]])
    steps_at, low, high = (tuple(float(v) for v in 10**row) for row in (at, *ends))
    slopes_at = tuple(float(slope) for slope in np.ldexp(slopes * scale, exponent))
    return ChangePoints(steps_at, low, high, slopes_at, p_value, as_given(course), correlation, smooth=False)


def _observed(at: Array, values: Array) -> tuple[Array, Array]:
    """Return log10 of the steps, increasing, and the values."""
    if at.shape != values.shape or at.ndim != 1:
        raise UnsuitableCurveError(f"expected steps and values (n,), got {at.shape} and {values.shape}")
    kept = (at > 0) & np.isfinite(values)
    order = np.argsort(at[kept], kind="stable")
    x, y = np.log10(at[kept][order]), values[kept][order]
    if (np.diff(x) <= 0).any():
        raise UnsuitableCurveError("some steps occur twice: pass the curve of one run")
    if len(x) < _LEAST or len(x) < (required := _required(x)):
        raise UnsuitableCurveError(
            f"expected at least {_A_DECADE} observations per decade of steps"
            + (f" ({required} from step {10 ** x[0]:,.0f} to {10 ** x[-1]:,.0f})" if len(x) >= _LEAST else "")
            + f" and {_LEAST} in total, got {len(x)} with a finite value after step 0: observe with "
            f"`schedule: {{per_decade: {_A_DECADE}}}` or more"
        )
    return x, y


def _required(x: Array) -> int:
    """Return how many whole steps a schedule of eight a decade has in the range of these steps."""
    steps = np.unique(np.round(10 ** (np.arange(0, 20 * _A_DECADE) / _A_DECADE)))
    return int(((steps >= 10 ** x[0] - 0.5) & (steps <= 10 ** x[-1] + 0.5)).sum())


def _squares(residuals: Array) -> float:
    return float((residuals**2).sum())


def _statistic(smooth: float, pieces: float) -> float:
    """Return the log ratio of sums of squares; rounding counts as none."""
    return float(np.log((smooth + _ROUNDING) / (pieces + _ROUNDING)))


def _correlated(noise: Array, correlation: float) -> Array:
    """Return a first-order autoregression of independent noise (m, n), of the same variance."""
    found = noise.copy()
    for i in range(1, noise.shape[1] if correlation else 0):
        found[:, i] = correlation * found[:, i - 1] + np.sqrt(1 - correlation**2) * noise[:, i]
    return found


def _neighbours(residuals: Array) -> Array:
    """Return the correlation of the residuals of each curve (m, n) from one observation to the next; 0 without any."""
    centred = residuals - residuals.mean(1, keepdims=True)
    squares = (centred**2).sum(1)
    products = (centred[:, 1:] * centred[:, :-1]).sum(1)
    return np.where(squares > _ROUNDING, products / np.maximum(squares, _ROUNDING), 0.0)


def _trials(observations: int) -> int:
    """Return the number of curves: fewer of long ones, which say more each, and take longer."""
    return max(10, min(50, _TRIALS // observations))


def _noise_correlation(pieces: "_Pieces", course: Array, residuals: Array) -> float:
    """Return the correlation of the noise that leaves such residuals about the pieces of best fit."""
    if _squares(residuals) <= _ROUNDING:
        return 0.0
    observed = float(_neighbours(residuals[None])[0])
    # one noise for all correlations, the same in every call: their order is not left to chance
    generator = np.random.default_rng(0)
    noise = generator.choice(residuals - residuals.mean(), (_trials(len(residuals)), len(residuals)))
    curves = np.concatenate([course + _correlated(noise, one) for one in _CORRELATIONS])
    left = _neighbours(curves - pieces.fit(curves).course).reshape(len(_CORRELATIONS), -1).mean(1)
    return float(np.interp(observed, np.maximum.accumulate(left), _CORRELATIONS))


@dataclass(frozen=True)
class _Fit:
    breaks: list[Array]
    squares: Array
    course: Array


class _Pieces:
    """Least-squares lines of straight pieces, for many curves at once: all positions of change points are tried."""

    def __init__(self, x: Array, most: int) -> None:
        self._x = x
        # observations and between them
        halves = np.interp(np.arange(0, len(x) - 0.5, 0.5), np.arange(len(x)), x)
        inner = halves[2 * _APART : -2 * _APART]
        self._sets: list[list[tuple[float, ...]]] = [[]]
        self._projections: list[list[Array]] = [[]]
        for number in range(1, most + 1):
            places = range(len(inner))
            sets = [
                c for c in combinations(places, number) if all(b - a >= 2 * _APART for a, b in pairwise(c))
            ]
            if len(sets) > _MOST_CANDIDATES:  # every n-th, from the first
                sets = sets[:: -(-len(sets) // _MOST_CANDIDATES)]
            self._sets.append([tuple(float(inner[i]) for i in chosen) for chosen in sets])
            self._projections.append([self._basis(breaks) for breaks in self._sets[-1]])

    def _basis(self, breaks: Sequence[float]) -> Array:
        """Return an orthonormal basis of the lines with these change points, (n, 2 + breaks)."""
        hinges = [np.maximum(0, self._x - b) for b in breaks]
        return np.asarray(np.linalg.qr(np.column_stack([np.ones_like(self._x), self._x, *hinges]))[0])

    def fit(self, curves: Array, exactly: int | None = None) -> _Fit:
        """Fit curves (m, n), with the number of change points by BIC, or with exactly this number."""
        n = len(self._x)
        numbers = [exactly] if exactly else [k for k in range(1, len(self._sets)) if self._sets[k]]
        total = (curves**2).sum(1)
        score = np.full(len(curves), np.inf)
        squares = np.zeros(len(curves))
        chosen: list[tuple[int, int]] = [(1, 0)] * len(curves)
        for number in numbers:
            least = np.full(len(curves), np.inf)
            place = np.zeros(len(curves), int)
            for i, basis in enumerate(self._projections[number]):
                rest = np.maximum(total - ((curves @ basis) ** 2).sum(1), 0)
                better = rest < least
                least[better], place[better] = rest[better], i
            bic = n * np.log((least + _ROUNDING) / n) + _PENALTY * number * np.log(n)
            for m in np.flatnonzero(bic < score):
                chosen[m] = (number, int(place[m]))
            squares = np.where(bic < score, least, squares)
            score = np.minimum(bic, score)
        bases = [self._projections[k][i] for k, i in chosen]
        course = np.stack([basis @ (basis.T @ curve) for basis, curve in zip(bases, curves, strict=True)])
        return _Fit([np.array(self._sets[k][i]) for k, i in chosen], squares, course)
