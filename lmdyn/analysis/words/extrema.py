"""Where courses over training have their minimum or maximum, in a run and over runs, and in which order."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmdyn.analysis.statistics.mean_over_seeds import Bounds

if TYPE_CHECKING:
    import pandas

__all__ = ["Extremum", "course_of", "extremum", "extremum_interval", "extremum_order", "ngram_extrema"]


@dataclass(frozen=True)
class Extremum:
    """Lowest or highest value of a course.

    Attributes:
        step: step of the first observation that has it.
        value: the value.
        censored: whether it is at the last observation: the course may go on in this direction.
    """

    step: float | int
    value: float | int
    censored: bool


def course_of(steps: ArrayLike, values: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return steps and values as arrays; raise an error unless steps increase, one per value."""
    at = np.asarray(steps, np.float64)
    course = np.asarray(values, np.float64)
    if at.shape != course.shape or at.ndim != 1 or (np.diff(at) <= 0).any():
        raise ValueError(
            f"expected increasing steps, one per value, got {', '.join(map(str, at.flat))} for values {course.shape}"
        )
    return at, course


def extremum(steps: ArrayLike, values: ArrayLike, kind: Literal["minimum", "maximum"]) -> Extremum | None:
    """Return the minimum or maximum of a course over steps; None without a finite value.

    Args:
        steps: (n,) increasing steps.
        values: (n,) values; those that are not finite are left out.
        kind: which one.

    Raises:
        ValueError: for unequal lengths, or steps that do not increase.

    Example:
        >>> extremum([0, 1, 10, 100], [3.0, 1.0, 2.0, 2.0], "minimum")
        Extremum(step=1.0, value=1.0, censored=False)
    """
    at, course = course_of(steps, values)
    finite = np.isfinite(course)
    at, course = at[finite], course[finite]
    if not len(at):
        return None
    place = int(course.argmin() if kind == "minimum" else course.argmax())
    return Extremum(float(at[place]), float(course[place]), place == len(at) - 1)


def extremum_interval(found: Sequence[Extremum], confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval for the step of an extremum in another run: Student's, of log₁₀(1 + step).

    Args:
        found: the extremum of each run, at least two; a censored one is at its step or later.
        confidence: of the interval.

    Returns:
        The ends, as steps; the upper one is infinite if one is censored.

    Raises:
        ValueError: for fewer than two runs.

    Example:
        >>> runs = [Extremum(step, 0.0, False) for step in (90, 100, 120)]
        >>> [round(end) for end in extremum_interval(runs)]
        [71, 147]
    """
    low = [float(np.log10(1 + one.step)) for one in found]
    high = [np.inf if one.censored else at for one, at in zip(found, low, strict=True)]
    ends = Bounds(low, high).seeds_interval(confidence)
    first, last = (max(0.0, float(10**end - 1)) for end in ends)
    return first, last


def extremum_order(found: Sequence[Extremum]) -> Literal["strict", "tied", "violated", "unknown"]:
    """Return whether extrema follow each other: each later than the one before, some at one step, or some earlier.

    It is unknown if one is censored and none after it shows that it is later: a censored extremum is at its step or
    later, so that one before the last observation that should follow it does not.

    Example:
        >>> at = [Extremum(step, 0.0, step == 100) for step in (10, 10, 100)]
        >>> extremum_order(at), extremum_order(at[1:]), extremum_order(at[::-1]), extremum_order([at[2], at[2]])
        ('tied', 'strict', 'violated', 'unknown')
    """
    pairs = list(pairwise(found))
    if any(after.step < before.step for before, after in pairs):
        return "violated"
    if any(before.censored for before, _ in pairs):
        return "unknown"
    return "tied" if any(after.step == before.step for before, after in pairs) else "strict"


def ngram_extrema(observations: "pandas.DataFrame") -> "pandas.DataFrame":
    """Return where divergences from n-gram models have their minimum, and correlations and probabilities their peak.

    Args:
        observations: the table of :class:`~lmdyn.callbacks.NgramDivergence`, of one run or with a column ``run``.

    Returns:
        A row for each quantity, ``smoothing``, ``order`` and run: ``step``, ``value`` and ``censored`` of the minimum
        (``kl``, ``cross_entropy``, ``drawn_loss``) or the maximum (``pearson``, ``spearman``).

    Example:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"step": [0, 1, 2], "quantity": "kl", "smoothing": "raw", "order": 1})
        >>> ngram_extrema(table.assign(value=[2.0, 0.5, 1.0]))[["order", "step", "value"]].to_numpy().tolist()
        [[1.0, 1.0, 0.5]]
    """
    import pandas as pd

    groups = ["quantity", "smoothing", "order", *(["run"] if "run" in observations else [])]
    rows = []
    for quantity in ("kl", "cross_entropy", "drawn_loss", "pearson", "spearman"):
        kind: Literal["minimum", "maximum"] = "maximum" if quantity in ("pearson", "spearman") else "minimum"
        courses = observations[observations["quantity"] == quantity].sort_values("step")
        for place, course in courses.groupby(groups, sort=False):
            if one := extremum(course["step"], course["value"], kind):
                rows.append({**dict(zip(groups, place, strict=True)), **vars(one)})
    return pd.DataFrame(rows, columns=[*groups, "step", "value", "censored"])
