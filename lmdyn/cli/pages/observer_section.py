"""The section of a report on one observer: figures, tables and numbers."""

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pandas import DataFrame

from lmdyn.callbacks.observing.drawing.sentences import Finding, finding
from lmdyn.callbacks.observing.drawing.step_axis import unit_of
from lmdyn.callbacks.observing.loggers import scalar_tags
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.cli.pages.chart_data import MOST_VALUES, chart_data
from lmdyn.cli.pages.drawn_observations import DrawnObservations
from lmdyn.cli.pages.final_numbers import FinalNumber, final_numbers
from lmdyn.cli.pages.html_parts import csv_table, file_beside, html_table, part, picture
from lmdyn.cli.parsing.errors import of_users_code
from lmdyn.cli.recorded_observers import UnknownObserverError
from lmdyn.runs.schema import Quantity, declarations, select, step_unit
from lmdyn.runs.store import UnreadableError

log = logging.getLogger(__name__)

_MOST_NUMBERS = 1000  # of an unknown observer, some of whose rows are not scalars
_MOST_STEPS = 30  # of an unknown observer, most of whose rows may not be scalars

Find = Callable[[Path], type[Observer]]
"""Function that returns the observer of the observations in a folder."""


def known_observer(drawn: DrawnObservations, find: Find) -> type[Observer] | None:
    """Return the observer, or None if it is unknown."""
    try:
        return find(drawn.folder)
    except UnknownObserverError:
        return None


def _survived(what: str, make: Callable[[], Iterable[str]]) -> Iterator[str]:
    """Yield parts of the page; after an error, those created so far and a line that reports it."""
    try:
        yield from make()
    except UnreadableError:  # a file to remove; without it the page would look complete
        raise
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        own = os.environ.get("LMDYN_TRACEBACK") or of_users_code(error) is not None
        log.error(
            "the report lacks the %s (LMDYN_TRACEBACK=1 shows more): %s", what, said, exc_info=bool(own)
        )
        yield part("paragraph", f"Without {what}: {said}")


def draw_parts(
    observer: type[Observer],
    pictured: Callable[[], DataFrame],
    read: Callable[[], DataFrame],
    settings: Mapping[str, Any],
    base: Path,
) -> Iterator[str]:
    """Yield figures and tables of an observer; if some fail, a line reports it.

    Args:
        observer: the observer.
        pictured: function that returns the observations that its figures require.
        read: function that returns all.
        settings: its settings.
        base: prefix of the files' names.
    """

    def made(method: str) -> Iterator[str]:
        if (make := getattr(observer, method, None)) is not None:
            pictures = method == "figures"
            observations = pictured() if pictures else read()
            with unit_of(observations):
                found = make(observations, settings)
            for name, one in found.items():
                file = file_beside(base, name, "csv")
                yield picture(one, base, name) if pictures else csv_table(one, file, name)

    for method in ("figures", "tables"):
        yield from _survived(f"{method} of {base.name}", partial(made, method))


def figure_rows(observer: type[Observer]) -> Any:
    """Return the rows that an observer's figures require; None for all, also if this depends on a running observer."""
    rows = observer.figure_rows
    return rows if isinstance(rows, pc.Expression) or callable(rows) else None


def data_of(name: str) -> str:
    """Return the id of the script element with the data of a section's chart."""
    return f"data of {name}"


def card(anchor: str, observer: str, found: Finding | None, chart: str, more: str = "") -> str:
    """Return an observer's part of a page: its name in words, the finding, the chart, and what is folded."""
    title = observer.replace("_", " ")
    said = found.sentence if found else ""
    return part("card", anchor, observer, title[0].upper() + title[1:], said, chart, more)


@dataclass
class DrawnSection:
    """A section of the page.

    Attributes:
        step: its last observation.
        tokens: tokens seen until then; None if unknown.
        numbers: its final numbers.
        html: its part of the page.
        anchor: id of its heading.
        scalars: rows of its headline quantity and of the loss.
        recorded: declarations of its quantities.
        learned: its finding.
        loss: whether it has the loss that the page begins with, that of learning curves.
        unit: what its steps count.
    """

    step: int
    tokens: int | None = None
    numbers: Sequence[FinalNumber] = ()
    html: str = ""
    anchor: str = ""
    scalars: DataFrame | None = None
    recorded: Sequence[Quantity] = ()
    learned: Finding | None = None
    loss: bool = False
    unit: str = "updates"


@dataclass(frozen=True)
class ObserverSection:
    """Records of one observer of a run, as a section of its page.

    Attributes:
        drawn: its observations.
        base: prefix of the names of its files.
        together: whether its figures are drawn elsewhere, with those of other runs.
        find: function that returns the observer of observations.
        most: maximum number of values in its chart.
    """

    drawn: DrawnObservations
    base: Path
    together: bool
    find: Find
    most: int = MOST_VALUES

    def make(self) -> DrawnSection:
        """Write its files, and return its part of the page."""
        made = DrawnSection(self.drawn.steps[-1], anchor=self.base.name)
        settings = self.drawn.store.about()["settings"]
        steps = self.drawn.existing
        with np.errstate(over="ignore", invalid="ignore"):  # of infinite values and the largest numbers
            body = [*_survived(f"section of {self.base.name}", partial(self._body, settings, made))]
        pa.default_memory_pool().release_unused()  # otherwise it keeps the size of the largest observer's data
        text = json.dumps(settings, indent=1, ensure_ascii=False)
        about = f"{len(steps)} observations, steps {steps[0]} to {steps[-1]}; settings"
        more = part(
            "folded", "All figures, tables and numbers", rows="".join([*body, part("folded", about, text)])
        )
        source = {"data": data_of(self.base.name), "run": "", "condition": ""}
        chart = part("chart", [source], self.drawn.folder.name) if made.learned and not self.together else ""
        made.html = card(made.anchor, self.drawn.folder.name, made.learned, chart, more)
        return made

    def _body(self, settings: Mapping[str, Any], made: DrawnSection) -> Iterator[str]:
        """Yield charts, figures, tables and numbers."""
        drawn, base = self.drawn, self.base
        _check_columns(drawn.store.schema(drawn.steps[-1]))
        ends = cache(partial(drawn.read, most=2))
        try:
            observer = self.find(drawn.folder)
        except UnknownObserverError as error:
            yield part("paragraph", f"Without figures: {error}.")
            yield from self._chart(ends(), drawn.read(most=_MOST_STEPS), (), made)
            yield _last_values(ends(), drawn.steps[0], _MOST_NUMBERS)
            return
        yield part("paragraph", ((observer.__doc__ or "").strip().splitlines() or [""])[0])
        made.recorded = declarations(observer)
        if len(drawn.steps) < len(drawn.existing):
            told = f"The figures show {len(drawn.steps):,} of {len(drawn.existing):,} observations, evenly spread;"
            yield part("paragraph", told, "lmdyn report --all", " draws all.")
        pictured = cache(partial(drawn.read, figure_rows(observer)))

        def scalars(table: DataFrame) -> DataFrame:
            return table[observer.is_scalar(table)]

        def curves() -> Iterator[str]:
            table, at_ends = scalars(pictured()), scalars(ends())
            if len(at_ends) > table["step"].isin(at_ends["step"].unique()).sum():
                table = scalars(drawn.read())  # figures may use only some of them
            yield from self._chart(at_ends, table, made.recorded, made)

        yield from _survived(f"chart of {base.name}", curves)
        if not self.together:
            yield from draw_parts(observer, pictured, drawn.read, settings, base)
        numbers = f"numbers of {base.name}"
        yield from _survived(numbers, lambda: [_last_values(scalars(ends()), drawn.steps[0])])

    def _chart(
        self, ends: DataFrame, scalars: DataFrame, recorded: Sequence[Quantity], made: DrawnSection
    ) -> Iterator[str]:
        """Yield the data of the chart; store the finding and the final numbers."""
        if not len(scalars):
            return
        if len(tokens := ends["tokens"].dropna() if "tokens" in ends else ()):
            made.tokens = int(max(tokens))
        made.unit = step_unit(scalars)
        made.numbers = final_numbers(ends, recorded, first_step=self.drawn.steps[0])
        name = self.drawn.folder.name
        made.learned = finding(scalars, recorded)
        curves = self.drawn.store.about()["observer"].endswith("LearningCurves")
        made.loss = curves and bool(scalars["quantity"].eq("loss").any())
        begin = made.learned.begin if made.learned else {}
        made.scalars = select(scalars, quantity=["loss", begin.get("quantity", "")])
        data = chart_data(name, scalars, recorded, most=self.most, begin=begin)
        yield part("data", data_of(self.base.name), data)


def _check_columns(schema: pa.Schema) -> None:
    """Refuse a table that is not that of an observation, as in a file that was edited."""
    types = dict(zip(schema.names, schema.types, strict=True))
    if lacking := [name for name in ("step", "quantity", "site", "value") if name not in types]:
        raise ValueError(f"the observations lack columns ({', '.join(lacking)}): restore the files")
    for name in ("step", "value"):
        if not (pa.types.is_integer(types[name]) or pa.types.is_floating(types[name])):
            raise ValueError(f"the column {name} of the observations is {types[name]}, expected numbers")
    if nested := [name for name, kind in types.items() if pa.types.is_nested(kind)]:
        raise ValueError(f"the column {nested[0]} of the observations is nested, expected numbers or names")


def _last_values(scalars: DataFrame, first_step: int, most: int | None = None) -> str:
    """Return the scalars of the first observation, which may have none, and of the last as columns."""
    steps = sorted(scalars["step"].unique())
    if not steps:
        return ""
    shown = first_step, steps[-1]
    first, last = (scalar_tags("", scalars[scalars["step"].eq(step)]) for step in shown)
    names = {tag: tag.removeprefix("/").replace("/", " · ") for tag in list(last)[:most]}
    rows = [(name, first.get(tag), last[tag]) for tag, name in names.items()]
    title = "all numbers" if len(rows) == len(last) else f"the first {len(rows):,} of {len(last):,} numbers"
    table = html_table(["", *(f"step {step}" for step in shown)], rows)
    return part("folded", title, rows=table)
