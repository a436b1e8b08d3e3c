"""Ages of acquisition: when the surprisal of a word has fallen, how steadily it stays, and on what that depends."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from lmdyn.analysis.words.extrema import course_of

if TYPE_CHECKING:
    import pandas

__all__ = [
    "Acquisition",
    "AcquisitionCriterion",
    "AcquisitionRegression",
    "Sigmoid",
    "acquisition_agreement",
    "acquisition_regression",
    "acquisition_step",
    "fit_sigmoid",
    "forgettability",
    "late_variability",
    "word_acquisition",
]

AcquisitionCriterion = Literal["unigram", "2022", "2024"]
"""One bit below the unigram's surprisal; or half-way to the least surprisal, by sigmoid (2022) or by spline (2024)."""

Smoother = Literal["scipy", "pygam"]
"""A smoothing spline by generalized cross-validation, or a GAM with 25 splines, as published."""

Numbers = npt.NDArray[np.float64]

_LEAST = 5  # observations of a sigmoid with four parameters, and of a smoothing spline
_POINTS = 1000
_GRID = 20
_TIE = 1e-2  # of the noise: what a decade from the grid's best place costs, as a normal prior of 100 decades does
_SLOPES = (-30.0, 30.0)  # logarithms: beyond, a sigmoid is a line or a step
_FLAT = 1e-9  # variance of a sigmoid outside of which the run has all its change
_SPLINES = 25
_NORMAL = 1.959963984540054  # quantile of 97.5 %


@dataclass(frozen=True)
class Sigmoid:
    """lower + (upper − lower) / (1 + exp((x − xmid) / scale)), x = log₁₀ step: from ``upper`` early to ``lower`` late.

    Attributes:
        lower: limit after training.
        upper: limit before training; below ``lower`` for a curve that rises.
        xmid: log₁₀ of the step half-way between.
        scale: above 0; 4.4 of them are the way from a tenth to nine tenths.
    """

    lower: float
    upper: float
    xmid: float
    scale: float

    def at(self, steps: npt.ArrayLike) -> Numbers:
        """Return its values at steps above 0."""
        x = np.log10(np.asarray(steps, np.float64))
        return np.asarray(
            self.lower + (self.upper - self.lower) * scipy.special.expit((self.xmid - x) / self.scale)
        )

    def step(self, value: float) -> float:
        """Return the step at which it has a value; NaN if it has it nowhere.

        Reference: Chang & Bergen 2022, there the age of acquisition.

        Example:
            >>> round(Sigmoid(2.0, 10.0, 3.0, 0.5).step(6.0), 6)
            1000.0
        """
        ratio = (self.upper - self.lower) / (self.upper - value) - 1 if value != self.upper else np.inf
        return float(10 ** (self.xmid - self.scale * np.log(ratio))) if 0 < ratio < np.inf else np.nan


@dataclass(frozen=True)
class Acquisition:
    """Age of acquisition of a word.

    Attributes:
        age: step; the first or the last one of the run if it is censored.
        low: the age is above this step: the last observation before it; 0 if censored on the left.
        high: and at most this one; infinite if censored on the right.
        censored: ``left`` if acquired at the first observation, ``right`` if not until the last, else ``interval``.
        cutoff: surprisal at which the word counts as acquired.
    """

    age: float
    low: float
    high: float
    censored: Literal["left", "right", "interval"]
    cutoff: float


def fit_sigmoid(steps: npt.ArrayLike, surprisals: npt.ArrayLike) -> Sigmoid:
    """Fit a sigmoid in log₁₀ steps by least squares.

    Observations at step 0, and those that are not finite, are left out. A fall between two observations has no single
    best place: of nearly equal fits it is the one nearest to the best of a grid, so that machines agree.

    Raises:
        ValueError: with fewer than five observations.

    Reference: Chang & Bergen 2022, section 5.
    """
    at, y = _observations(steps, surprisals)
    x, span = np.log10(at), float(np.log10(at[-1] / at[0]))
    # of given places and scales the best ends are linear: the search begins at the best of a grid over the run, and of
    # falls between two observations, which may be narrower than that
    middles = np.linspace(-0.5, 1.5, 2 * _GRID) * span + x[0]
    xmid, scale = (of.ravel() for of in np.meshgrid(middles, span / np.geomspace(2, 200, _GRID)))
    steepest = np.argsort(-np.abs(np.diff(y)))[:_GRID]
    gap, place, parts = np.meshgrid(steepest, np.linspace(0, 1, 9), np.geomspace(2, 32, 9))
    width = np.diff(x)[gap]
    xmid, scale = np.append(xmid, x[gap] + place * width), np.append(scale, width / parts)
    shapes = scipy.special.expit((xmid[:, None] - x) / scale[:, None])
    shapes -= shapes.mean(1, keepdims=True)
    spread = (shapes**2).sum(1)
    change = y - y.mean()
    explained = (shapes @ change) ** 2 / np.where(spread > _FLAT, spread, np.inf)
    # rounding orders shapes of one fall: it is the first
    best = int((explained >= explained.max() * (1 - _FLAT)).argmax())
    start = np.array([xmid[best], np.log(scale[best])])
    tie = _TIE * math.sqrt(max(change @ change - explained[best], 0) / len(y))

    def fit(p: Numbers) -> tuple[Numbers, Numbers, float]:
        """Return the residuals of the best ends, their derivatives, and the height between the ends."""
        slope = np.exp(np.clip(-p[1], *_SLOPES))
        share = scipy.special.expit((p[0] - x) * slope)
        moves = (share * (1 - share) * slope)[:, None] * np.column_stack([np.ones_like(x), x - p[0]])
        share, moves = share - share.mean(), moves - moves.mean(0)
        square = max(float(share @ share), _FLAT**2)
        height = float(share @ change) / square
        of_height = (change - 2 * height * share) @ moves / square
        derivatives = np.vstack([height * moves + np.outer(share, of_height), tie * np.eye(2)])
        return np.append(height * share - change, tie * (p - start)), derivatives, height

    how: Any = {"method": "lm", "max_nfev": 1_000, **dict.fromkeys(("xtol", "ftol", "gtol"), 1e-12)}
    near = scipy.optimize.least_squares(lambda p: fit(p)[0], start, lambda p: fit(p)[1], **how).x
    # where residuals are large and curved that ends early: the root of the slope, if it is no worse
    tie = _TIE * float(np.linalg.norm(fit(near)[0][:-2])) / math.sqrt(len(y))
    root = scipy.optimize.root(lambda p: (at_p := fit(p))[1].T @ at_p[0], near, tol=1e-12).x
    of_near, of_root = (np.linalg.norm(fit(p)[0]) for p in (near, root))
    found = root if of_root <= of_near * (1 + _FLAT) else near
    height, shape = fit(found)[2], Sigmoid(0.0, 1.0, float(found[0]), math.exp(np.clip(found[1], *_SLOPES)))
    lower = float(y.mean() - height * shape.at(at).mean())
    return Sigmoid(lower, lower + height, shape.xmid, shape.scale)


def acquisition_step(
    steps: npt.ArrayLike,
    surprisals: npt.ArrayLike,
    criterion: AcquisitionCriterion = "unigram",
    *,
    unigram: float | None = None,
    vocabulary: int | None = None,
    gain: float = 1.0,
    smoother: Smoother = "scipy",
) -> Acquisition:
    """Determine when a word is acquired.

    - ``unigram``: the fitted sigmoid falls ``gain`` bits below the word's surprisal by frequency. This is the same
      knowledge for each word: it needs more than frequency.
    - ``2022``: it falls half-way from log₂ ``vocabulary`` to the word's own least surprisal. A word that is never
      learned crosses its own half-way too. A rising curve, or a cutoff below the fit, is never; above the fit, at once.
      The publication has 10² and 10⁶ steps for these; here it is the run's first and last step.
    - ``2024``: the first of 1,000 points of a spline over log₁₀ steps at or below half-way from log₂ ``vocabulary`` to
      the spline's minimum.

    Args:
        steps: (observations,) increasing; step 0 has no logarithm, and is left out.
        surprisals: (observations,) of a word, in bits.
        criterion: see above.
        unigram: surprisal of the word by its frequency, −log₂ p, in bits.
        vocabulary: number of tokens.
        gain: in bits.
        smoother: spline of ``2024``.

    Raises:
        ValueError: with fewer than five observations, or without what the criterion requires.

    Reference: Chang & Bergen 2022, section 5; Chang, Tu & Bergen 2024.

    Example:
        >>> steps = 10 ** np.linspace(0, 5, 21)
        >>> found = acquisition_step(steps, Sigmoid(4.0, 12.0, 3.0, 0.3).at(steps), unigram=9.0)
        >>> round(found.age, 3), found.censored
        (1000.0, 'interval')
    """
    at, y = _observations(steps, surprisals)
    name, given = ("unigram", unigram) if criterion == "unigram" else ("vocabulary", vocabulary)
    if given is None:
        raise ValueError(f"the criterion {criterion!r} requires `{name}`: pass `{name}`")
    if criterion == "2024":
        points, smooth = _smooth(at, y, smoother)
        cutoff = (np.log2(given) + smooth.min()) / 2
        below = np.flatnonzero(smooth <= cutoff)
        age = 10 ** points[below[0]] if len(below) else np.inf
        return _censored(0.0 if len(below) and below[0] == 0 else float(age), at, float(cutoff))
    cutoff = given - gain if criterion == "unigram" else (np.log2(given) + y.min()) / 2
    fit = fit_sigmoid(at, y)
    if fit.upper <= fit.lower:  # rises
        age = 0.0 if fit.at(at[0]) <= cutoff and criterion == "unigram" else np.inf
    elif cutoff >= fit.upper:
        age = 0.0
    else:
        age = fit.step(cutoff) if cutoff > fit.lower else np.inf
    return _censored(float(age), at, float(cutoff))


def _censored(age: float, at: Numbers, cutoff: float) -> Acquisition:
    """Return an age with the observations around it; one outside of them is that of the first or last one."""
    after = int(np.searchsorted(at, age))
    bounds = [0.0, *at.tolist(), np.inf]
    censored: dict[int, Literal["left", "right"]] = {0: "left", len(at): "right"}
    known = min(max(age, bounds[1]), bounds[-2])
    return Acquisition(known, bounds[after], bounds[after + 1], censored.get(after, "interval"), cutoff)


def _observations(steps: npt.ArrayLike, values: npt.ArrayLike) -> tuple[Numbers, Numbers]:
    """Return steps and values of observations that have a logarithm and a value."""
    at, y = course_of(steps, values)
    kept = (at > 0) & np.isfinite(y)
    if kept.sum() < _LEAST:
        raise ValueError(
            f"expected at least {_LEAST} observations after step 0 with a finite value, got {kept.sum()} of {len(y)} "
            "observations: observe more steps, or leave out the word if its values are not finite"
        )
    return at[kept], y[kept]


def _smooth(at: Numbers, y: Numbers, smoother: Smoother) -> tuple[Numbers, Numbers]:
    """Return 1,000 points, in log₁₀ steps, and the values of a spline there."""
    x = np.log10(at)
    points = np.linspace(x[0], x[-1], _POINTS)
    if smoother == "scipy":
        return points, np.asarray(scipy.interpolate.make_smoothing_spline(x, y)(points))
    try:
        from pygam import LinearGAM, s
    except ImportError as error:
        raise ImportError("smoother='pygam' requires pygam: run pip install pygam, or use 'scipy'") from error
    return points, np.asarray(LinearGAM(s(0, n_splines=_SPLINES)).fit(x[:, None], y).predict(points[:, None]))


def late_variability(surprisals: npt.ArrayLike) -> float:
    """Return the standard deviation of the last quarter of the observations, at least two, of a word.

    Reference: Chang, Tu & Bergen 2024: of the last 11 checkpoints, a quarter of training.

    Example:
        >>> late_variability([9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 2.0, 4.0])
        1.0
    """
    values = np.asarray(surprisals, np.float64)
    return float(np.std(values[-max(2, round(len(values) / 4)) :]))


def forgettability(steps: npt.ArrayLike, surprisals: npt.ArrayLike, smoother: Smoother = "scipy") -> float:
    """Return the sum of all rises of a spline over log₁₀ steps, in bits: 0 for a word that is never forgotten.

    Reference: Chang, Tu & Bergen 2024, with ``pygam``.

    Example:
        >>> steps = 10.0 ** np.arange(8)
        >>> round(forgettability(steps, [9, 8, 7, 6, 5, 4, 3, 2]), 6)
        0.0
    """
    _, smooth = _smooth(*_observations(steps, surprisals), smoother)
    return float(np.diff(smooth).clip(min=0).sum())


def word_acquisition(
    observations: "pandas.DataFrame",
    criterion: AcquisitionCriterion = "unigram",
    *,
    vocabulary: int | None = None,
    smoother: Smoother | None = "scipy",
) -> "pandas.DataFrame":
    """Compute the age of each word from the rows of the observer ``Surprisals``.

    Args:
        observations: its table; with a column ``run`` for several.
        criterion: see :func:`acquisition_step`, as for the other arguments.
        vocabulary: number of tokens, for ``2022`` and ``2024``.
        smoother: kind of spline; None for ages without ``forgettability``, of which no spline is fitted.

    Returns:
        A row for each word, of each run: ``word``, those of :class:`Acquisition`, ``variability``
        (:func:`late_variability`), ``forgettability``, ``unigram``; and ``run``. Words without ``unigram`` have no row
        by this criterion.

    Raises:
        ValueError: without rows of words, or as in :func:`acquisition_step`.
    """
    import pandas as pd

    of_words = observations[observations["word"].ne("")]
    courses = of_words[of_words["quantity"].eq("surprisal")]
    if courses.empty:
        raise ValueError("no row of a word has the quantity 'surprisal': pass observations of Surprisals")
    by = [c for c in ("run", "word") if c in of_words]
    unigrams = of_words[of_words["quantity"].eq("unigram")].groupby(by)["value"].last().to_dict()
    rows: list[dict[str, Any]] = []
    for key, course in courses.groupby(by, sort=False):
        unigram = unigrams.get(key if len(by) > 1 else key[0])
        if unigram is None and criterion == "unigram":
            continue
        course = course.sort_values("step")
        steps = course["step"].to_numpy(dtype=float)
        values = course["value"].to_numpy(dtype=float)
        found = acquisition_step(
            steps, values, criterion, unigram=unigram, vocabulary=vocabulary, smoother=smoother or "scipy"
        )
        rows.append(
            {
                **dict(zip(by, key, strict=True)),
                **vars(found),
                "variability": late_variability(values),
                **({"forgettability": forgettability(steps, values, smoother)} if smoother else {}),
                "unigram": np.nan if unigram is None else unigram,
            }
        )
    return pd.DataFrame(rows)


def acquisition_agreement(ages: "pandas.DataFrame") -> float:
    """Return Spearman's ρ of the ages of words, the mean over pairs of runs. Censored ages are ties.

    Args:
        ages: rows of :func:`word_acquisition` with ``run``.

    Raises:
        ValueError: with one run.
    """
    table = ages.pivot_table("age", "word", "run").dropna()
    if table.shape[1] < 2 or len(table) < 3:
        raise ValueError(
            f"expected several runs with at least 3 words in common, got {len(table)} words (runs: {table.shape[1]})"
        )
    pairs = combinations(table.to_numpy(dtype=float).T, 2)
    return float(np.mean([scipy.stats.spearmanr(one, other).statistic for one, other in pairs]))


@dataclass(frozen=True)
class AcquisitionRegression:
    """Linear regression of log₁₀ ages of words.

    Attributes:
        coefficients: a row for each predictor and ``intercept``: ``value`` in decades of steps for one unit of the
            predictor; ``error``, ``low`` and ``high`` of its interval of 95 %, for other words; ``inflation``, the
            factor by which correlations with other predictors increase its variance, from 1.
        sigma: standard deviation of what is not explained, in decades.
        words: number of words.
        left_out: number of words without a value of a predictor.
        censored: number of words with a censored age.
    """

    coefficients: "pandas.DataFrame"
    sigma: float
    words: int
    left_out: int
    censored: int


def acquisition_regression(
    ages: "pandas.DataFrame",
    on: Sequence[str] = ("unigram", "length"),
    norms: "pandas.DataFrame | None" = None,
    censoring: Literal["tobit", "interval", "none"] = "tobit",
) -> AcquisitionRegression:
    """Regress log₁₀ ages of words on their frequency, length and norms, by maximum likelihood.

    Args:
        ages: rows of :func:`word_acquisition`.
        on: predictors: columns of ``ages`` or ``norms``, such as ``unigram``, which is −log₂ of frequency; ``length``
            is the number of characters.
        norms: any table with a column ``word``, one row each, such as concreteness or the surprisal of an n-gram model.
        censoring: ``tobit``: an age that is censored on the left or right is known to be below or above;
            ``interval``: other ages are also only known to be between two observations; ``none`` takes all ages as they
            are (least squares), which is biased if many are censored.

    Raises:
        ValueError: if norms match no word, a predictor does not exist or is the same for all words, or for too few
            words.

    Reference: Tobin 1958; Turnbull 1976, for intervals.
    """
    import pandas as pd

    table = ages.assign(length=ages["word"].str.len())
    if norms is not None:
        table = table.merge(norms.drop_duplicates("word"), on="word", how="left", suffixes=("", " of norms"))
        if not table["word"].isin(norms["word"]).any():
            some = [", ".join(map(str, of["word"].head(3))) for of in (norms, ages)]
            raise ValueError(
                f"none of {len(ages)} words, such as {some[1]}, is in the norms: spell the norms' words ({some[0]}) in "
                "the same way"
            )
    if missing := [name for name in on if name not in table]:
        raise ValueError(
            f"no column {', '.join(missing)} for `on`: choose among {', '.join(sorted(map(str, table)))}"
        )
    names = list(on)
    kept = table.dropna(subset=[*names, "age"])
    x = kept[names].to_numpy(dtype=np.float64)
    if len(kept) < len(names) + 3 or (len(names) and np.ptp(x, axis=0).min() == 0):
        raise ValueError(
            f"expected at least {len(names) + 3} words with all predictors and no constant predictor, got {len(kept)} "
            f"words and {', '.join(n for n in names if kept[n].nunique() < 2) or 'none'} constant: leave out predictors"
        )
    mean, spread = x.mean(0), x.std(0)
    design = np.column_stack([np.ones(len(x)), (x - mean) / spread])
    solved, sigma, covariance = _maximum_likelihood(design, kept, censoring)
    back = np.eye(len(names) + 1) / np.array([1, *spread])[:, None]
    back[0, 1:] = -mean / spread
    values = back @ solved
    errors = np.sqrt(np.diag(back @ covariance @ back.T))
    inflation = np.diag(np.linalg.pinv(np.corrcoef(x.T).reshape(len(names), len(names))))
    coefficients = pd.DataFrame(
        {
            "predictor": ["intercept", *names],
            "value": values,
            "error": errors,
            "low": values - _NORMAL * errors,
            "high": values + _NORMAL * errors,
            "inflation": [np.nan, *inflation],
        }
    )
    ends = kept["censored"].isin(["left", "right"])
    return AcquisitionRegression(coefficients, sigma, len(kept), len(table) - len(kept), int(ends.sum()))


def _maximum_likelihood(
    design: Numbers, ages: "pandas.DataFrame", censoring: str
) -> tuple[Numbers, float, Numbers]:
    """Return coefficients, the standard deviation, and the covariance of the coefficients."""
    kind = ages["censored"].to_numpy() if censoring != "none" else np.full(len(ages), "")
    exact = torch.from_numpy(kind == "") | (torch.from_numpy(kind == "interval") & (censoring != "interval"))
    known = (ages[name].to_numpy(dtype=np.float64).clip(1e-300, 1e300) for name in ("age", "low", "high"))
    age, low, high = (torch.from_numpy(np.log10(value)) for value in known)
    low = low.masked_fill(exact, -300)
    high = high.masked_fill(exact, 300)
    rows = torch.from_numpy(design)
    log_ndtr = torch.special.log_ndtr

    def loss(parameters: Tensor) -> Tensor:
        mean, log_sigma = rows @ parameters[:-1], parameters[-1]
        z, a, b = ((value - mean) * torch.exp(-log_sigma) for value in (age, low, high))
        flipped = a + b > 0  # both in the lower half, where differences are exact
        a, b = torch.where(flipped, -b, a), torch.where(flipped, -a, b)
        between = log_ndtr(b) + torch.log1p(-torch.exp(log_ndtr(a) - log_ndtr(b)))
        return -torch.where(exact, -0.5 * z**2 - log_sigma, between).sum()

    def value(p: Numbers) -> tuple[float, Numbers]:
        slope, found = torch.func.grad_and_value(loss)(torch.from_numpy(p))
        return float(found), slope.numpy()

    def curvature(p: Numbers) -> Numbers:
        hessian = torch.autograd.functional.hessian(loss, torch.from_numpy(p))
        return np.asarray(hessian.numpy())

    start, *_ = np.linalg.lstsq(design, age.numpy(), rcond=None)
    spread = np.std(age.numpy() - design @ start) + 1e-3
    found = scipy.optimize.minimize(
        value, np.append(start, np.log(spread)), jac=True, hess=curvature, method="trust-exact", tol=1e-9
    ).x
    covariance: Numbers = np.asarray(np.linalg.inv(curvature(found)), dtype=np.float64)
    return found[:-1], float(np.exp(found[-1])), covariance[:-1, :-1]
