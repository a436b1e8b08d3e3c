"""What an observer found, in one or two sentences with its numbers, and the chart that shows it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lmdyn.callbacks.observing.drawing.named_charts import NamedChart, named_charts
from lmdyn.callbacks.observing.drawing.words import column_words, quantity_words
from lmdyn.runs.schema import Quantity, declared, wide

_LEARNED = 0.25  # of the largest change of a line, from which a line has a time of its change


@dataclass(frozen=True)
class Finding:
    """A finding and its chart.

    Attributes:
        sentence: sentences with numbers.
        chart: the chart.
        whole: the chart over everything, whose line is drawn with the others; None if there is none.
        of: declaration of the quantity.
    """

    sentence: str
    chart: NamedChart
    whole: NamedChart | None = None
    of: Quantity | None = None

    @property
    def begin(self) -> dict[str, Any]:
        """What a page's chart shows at first: the quantity, and the value of each column, ``*`` for a line each."""
        fixed = {c: f"={value}" for c, value in self.chart.fixed.items()}
        return {"quantity": self.chart.quantity, "filters": fixed | dict.fromkeys(self.chart.columns, "*")}


def finding(scalars: pd.DataFrame, recorded: Sequence[Quantity] = (), quantity: str = "") -> Finding | None:
    """Return the finding of an observer from its headline quantity, or from another one's value over everything.

    Args:
        scalars: tidy rows of all drawn steps; of several runs, means are said.
        recorded: declarations of the quantities.
        quantity: name of a quantity, whose groups are not told.

    Returns:
        The finding; None without rows.

    Example:
        >>> loss = Quantity("loss", "Mean loss.", "nats", better="lower")
        >>> table = pd.DataFrame({"step": [0, 5, 9], "quantity": "loss", "site": "", "value": [8.0, 5.0, 4.0]})
        >>> finding(table, [loss]).sentence
        'Loss fell from 8 nats at step 0 to 4 at step 9, and kept at least half of this change from step 5 on.'
    """
    steps = scalars["step"]
    scalars = scalars[np.isfinite(scalars["value"].astype(float))]
    charts = list(named_charts(scalars, recorded))
    charts = [chart for chart in charts if chart.quantity == (quantity or charts[0].quantity)]
    if not charts:
        return None
    of = declared(recorded, charts[0].quantity)
    end = int(steps.max())
    whole = next((chart for chart in charts if not chart.by), None)
    grouped = None if quantity else next((c for c in charts if len(set(c.rows["line"])) > 1), None)
    said = [] if whole is None else [_of_all(whole, of)]
    if whole is not None and (last := int(whole.rows["step"].max())) < end:
        said.append(f"After step {last:,}, the value is not finite.")
    if grouped is not None:
        said += _of_groups(grouped, of, named=whole is None)
    shown = grouped or whole or charts[0]
    return Finding(" ".join(said) or _of_all(charts[0], of), shown, whole if shown is grouped else None, of)


def _name(of: Quantity | None, name: str, averaged: Sequence[str]) -> tuple[str, str]:
    """Return the name of a quantity as the beginning of a sentence, and its unit with a space."""
    unit = of.unit if of and of.unit in ("nats", "bits", "degrees") else ""
    words = (
        quantity_words(name, of).removesuffix(f" ({of.unit})" if of and of.unit else "").strip()
        or "the number"
    )
    words += f", mean over {', '.join(f'{column_words(each)}s' for each in averaged)}," if averaged else ""
    return words[0].upper() + words[1:], f" {unit}" if unit else ""


def _of_all(chart: NamedChart, of: Quantity | None) -> str:
    name, unit = _name(of, chart.quantity, chart.averaged)
    lines = wide(chart.rows, "line")
    course = lines.dropna(axis=1).mean(axis=1) if lines.notna().all().any() else lines.iloc[:, 0].dropna()
    return f"{name} {_moved(course, unit)}"


def _moved(course: "pd.Series[float]", unit: str) -> str:
    (first, last), (begin, end) = course.iloc[[0, -1]], course.index[[0, -1]]
    if (turn := _turn(course)) is not None:
        there, back = ("rose", "fell") if course[turn] > first else ("fell", "rose")
        back += f" to {last:.3g} at step {end:,}"
        return f"{there} from {first:.3g}{unit} at step {begin:,} to {course[turn]:.3g} at step {turn:,}, and {back}."
    if begin == end or first == last:
        return f"is {last:.3g}{unit} at step {end:,}."
    half = (
        f", and kept at least half of this change from step {_half(course):,} on" if len(course) > 2 else ""
    )
    moved = "rose" if last > first else "fell"
    return f"{moved} from {first:.3g}{unit} at step {begin:,} to {last:.3g} at step {end:,}{half}."


def _turn(course: "pd.Series[float]") -> int | None:
    """Return the observed step farthest outside both ends, if farther than a quarter of the ends' distance."""
    half = course / 2  # of the largest numbers, differences are infinite
    ends = half.iloc[[0, -1]]
    outside = (half - ends.max()).clip(lower=0) + (ends.min() - half).clip(lower=0)
    return int(course.index[int(outside.argmax())]) if outside.max() > (ends.max() - ends.min()) / 4 else None


def _half(course: "pd.Series[float]") -> int:
    """Return the first observed step from which on at least half of the change from the first to the last is done."""
    half = course / 2  # of the largest numbers, differences are infinite
    done = (half - half.iloc[0]) / (half.iloc[-1] - half.iloc[0]) >= 0.5
    return int(course.index[len(done) - int(done[::-1].to_numpy().argmin()) if not done.all() else 0])


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{names[0]}, {names[1]} and {len(names) - 2} more"


def _of_groups(chart: NamedChart, of: Quantity | None, *, named: bool) -> list[str]:
    """Return the extremes at the end; where a direction is better, also the groups that were learned first and last.

    Without a sentence over everything (``named``), the line that changed most tells when.
    """
    name, unit = _name(of, chart.quantity, chart.averaged)
    lines = wide(chart.rows, "line", sort=False)
    ends = {str(line): float(value) for line, value in lines.iloc[-1].dropna().items()}
    if len(ends) < 2:
        return []
    said = _learned(lines, of.better if of else None)
    top = max(ends, key=ends.__getitem__)
    low = min(ends, key=ends.__getitem__)
    subject = name if named else "The value"
    at = f"at step {lines.index[-1]:,}"
    if f"{ends[top]:.3g}" == f"{ends[low]:.3g}":
        return [*said, f"{subject} is {ends[top]:.3g}{unit} for all {len(ends)} lines {at}."]
    extremes = f"highest for {top} ({ends[top]:.3g}{unit}) and lowest for {low} ({ends[low]:.3g}{unit})"
    changes = (lines.iloc[-1] / 2 - lines.iloc[0] / 2).abs()
    if named and changes.max() > 0:
        most = changes.idxmax()
        said += [f"The line with the largest change is {most}, which {_moved(lines[most].dropna(), unit)}"]
    return [f"{subject} is {extremes} {at}.", *said] if named else [*said, f"{subject} is {extremes} {at}."]


def _learned(lines: pd.DataFrame, better: str | None) -> list[str]:
    """Return which lines had half of their gain first, and which last."""
    if better is None or lines.shape[1] < 3:
        return []
    courses = [course for line in lines if len(course := lines[line].dropna())]
    sign = -1 if better == "lower" else 1
    gains = [sign * float(course.iloc[-1] - course.iloc[0]) for course in courses]
    halves = {
        str(course.name): _half(course)
        for course, gain in zip(courses, gains, strict=True)
        if gain > 0 and gain >= _LEARNED * max(gains)
    }
    early = min(halves.values(), default=0)
    late = max(halves.values(), default=0)
    if early == late:
        return []
    first, last = (_listed([line for line, step in halves.items() if step == at]) for at in (early, late))
    some = "" if len(halves) == len(courses) else "Among lines with a quarter of the largest gain or more, "
    half = f"{some}half of the change is reached and kept"
    return [
        f"{half[0].upper()}{half[1:]} first for {first} (from step {early:,} on), and last "
        f"for {last} (from step {late:,} on)."
    ]
