"""The section of a report on one observer: figures, tables, animated images and numbers."""

import html
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lmdyn.callbacks.gathered.drawn_observations import DrawnObservations
from lmdyn.callbacks.observing.loggers import scalar_tags
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.schema import Quantity, declarations
from lmdyn.callbacks.observing.store import UnreadableError
from lmdyn.cli.drawing.chart_data import MOST_VALUES, chart, chart_data, escaped_json
from lmdyn.cli.drawing.final_numbers import final_numbers
from lmdyn.cli.drawing.page import animation, csv_table, file_beside, html_table, picture
from lmdyn.cli.recorded_observers import UnknownObserverError

__all__ = [
    "DrawnSection",
    "Find",
    "ObserverSection",
    "Others",
    "Parts",
    "data_of",
    "known_observer",
    "together_of",
]

log = logging.getLogger(__name__)

_MOST_NUMBERS = 1000  # of an unknown observer, some of whose rows are not scalars
_MOST_FRAMES = 20
_MOST_ROWS = 2_000_000  # of an unknown observer, most of which may not be scalars

Find = Callable[[DrawnObservations], type[Observer]]
"""Function that returns the observer of observations."""


def known_observer(drawn: DrawnObservations, find: Find) -> type[Observer] | None:
    """Return the observer, or None if it is unknown."""
    try:
        return find(drawn)
    except UnknownObserverError:
        return None


def together_of(runs: Mapping[Path, DrawnObservations], rows: Any = None) -> pd.DataFrame:
    """Return the concatenated observations of several runs."""
    tables = [one.read(rows).assign(run=str(run)) for run, one in runs.items()]
    return pd.concat(tables, ignore_index=True)


class Parts:
    """Creates parts of a page; if one fails, the others are created and a line reports it.

    Attributes:
        failed: whether a part failed.
    """

    def __init__(self) -> None:
        self.failed = False

    def survived(self, what: str, make: Callable[[], Iterable[str]]) -> Iterator[str]:
        """Yield parts of the page; after an error, those created so far and a line that reports it."""
        try:
            yield from make()
        except UnreadableError:  # a file to remove; without it the page would look complete
            raise
        except Exception as error:
            self.failed = True
            log.exception("%s could not be made; the report goes on", what)
            yield f"<p>Without {html.escape(what)}: {html.escape(f'{type(error).__name__}: {error}')}</p>"

    def drawn(
        self,
        observer: type[Observer],
        whole: Callable[[], pd.DataFrame],
        some: Callable[[Any], pd.DataFrame],
        settings: Mapping[str, Any],
        others: Mapping[str, pd.DataFrame],
        base: Path,
    ) -> Iterator[str]:
        """Yield figures and tables of an observer, also those with other observers; files begin with ``base``.

        Args:
            observer: the observer.
            whole: function that returns its observations.
            some: function that returns their rows for which an expression holds.
            settings: its settings.
            others: records of other observers.
            base: prefix of the files' names.
        """
        few = _figure_rows(observer)

        def made(method: str, about: Any, part: Callable[[Any, str], str]) -> Callable[[], Iterator[str]]:
            make = getattr(observer, method, None)
            if make is None:
                return lambda: iter(())
            table = partial(some, few) if few is not None and method == "figures" else whole
            return lambda: (part(one, name) for name, one in make(table(), about).items())

        for kind, about in (("", settings), ("_beside", others)):
            figures = made(f"figures{kind}", about, lambda figure, name: picture(figure, base, name))
            yield from self.survived(f"figures{kind} of {base.name}", figures)
            tables = made(
                f"tables{kind}",
                about,
                lambda table, name: csv_table(table, file_beside(base, name, "csv"), name),
            )
            yield from self.survived(f"tables{kind} of {base.name}", tables)


def _figure_rows(observer: type[Observer]) -> pc.Expression | Callable[[Sequence[int]], pc.Expression] | None:
    """Return the rows that an observer's figures require; None for all, also if this depends on a running observer."""
    rows = observer.figure_rows
    return rows if isinstance(rows, pc.Expression) or callable(rows) else None


def data_of(name: str) -> str:
    """Return the id of the script element with the data of a section's chart."""
    return f"data of {name}"


@dataclass(frozen=True)
class DrawnSection:
    """A section of the page.

    Attributes:
        html: its part of the page.
        last: for its last observation ``step``, ``tokens`` (or None) and ``numbers``
            (:class:`~lmdyn.cli.drawing.final_numbers.FinalNumber`, plain).
    """

    html: str
    last: Mapping[str, Any]


@dataclass(frozen=True)
class ObserverSection:
    """Records of one observer of a run, as a section of its page.

    Attributes:
        drawn: its observations.
        every: those of all observers of the run.
        run: folder of the run.
        base: prefix of the names of its files.
        together: whether its figures are drawn elsewhere, with those of other runs.
        find: function that returns the observer of observations.
        most: maximum number of values in its chart.
    """

    drawn: DrawnObservations
    every: Sequence[DrawnObservations]
    run: Path
    base: Path
    together: bool
    find: Find
    most: int = MOST_VALUES
    parts: Parts = field(default_factory=Parts)

    def make(self) -> DrawnSection:
        """Write its files, and return its part of the page."""
        last: dict[str, Any] = {"step": self.drawn.steps[-1], "tokens": None, "numbers": []}
        found = DrawnSection("".join(self._made(last)), last)
        pa.default_memory_pool().release_unused()  # otherwise it keeps the size of the largest observer's data
        return found

    @property
    def failed(self) -> bool:
        """Whether a part of it failed."""
        return self.parts.failed

    def _made(self, last: dict[str, Any]) -> Iterator[str]:
        drawn, base = self.drawn, self.base
        settings, steps = drawn.store.about()["settings"], drawn.store.steps()
        yield f"<h2 id='{html.escape(base.name)}'>{html.escape(drawn.folder.name)}</h2>"
        try:
            observer = self.find(drawn)
        except UnknownObserverError as error:
            yield f"<p>Without figures: {html.escape(str(error))}.</p>"
            at_ends = drawn.ends()
            few = max(2, _MOST_ROWS // max(len(at_ends) // 2, 1))
            yield from self._chart(at_ends, drawn.read(most=few), (), last)
            yield _last_values(at_ends, drawn.steps[0], _MOST_NUMBERS)
        else:
            summary = ((observer.__doc__ or "").strip().splitlines() or [""])[0]
            yield f"<p>{html.escape(summary)}</p>"
            if drawn.left_out:
                yield (
                    f"<p>Drawn are {len(drawn.steps):,} of {len(steps):,} observations, evenly spread; "
                    "<code>lmdyn report --all</code> draws all.</p>"
                )
            read = cache(drawn.read)  # once for all parts
            some = _read_once(drawn)
            ends = cache(
                lambda: _ends(read(), drawn.steps) if _figure_rows(observer) is None else drawn.ends()
            )
            others = Others({self.run: (drawn, self.every)}, self.find)
            yield from self.parts.survived(
                f"chart of {base.name}", partial(self._curves, observer, read, some, ends, last)
            )
            if not self.together:
                yield from self.parts.drawn(observer, read, some, settings, others, base)
            yield from self.parts.survived(
                f"animations and numbers of {base.name}",
                partial(_moving_and_last, observer, drawn, read, ends, settings, base),
            )
        text = json.dumps(settings, indent=1, ensure_ascii=False)
        yield (
            f"<details><summary>{len(steps)} observations, steps {steps[0]} to {steps[-1]}; settings</summary>"
            f"<pre>{html.escape(text)}</pre></details>"
        )

    def _curves(
        self,
        observer: type[Observer],
        read: Callable[[], pd.DataFrame],
        some: Callable[[Any], pd.DataFrame],
        ends: Callable[[], pd.DataFrame],
        last: dict[str, Any],
    ) -> Iterator[str]:
        """Yield the chart of the scalars of a known observer."""
        few = _figure_rows(observer)
        table = _scalars(observer, read() if few is None else some(few))
        at_ends = _scalars(observer, ends())
        if len(at_ends) > table["step"].isin(at_ends["step"].unique()).sum():
            table = _scalars(observer, read())  # figures may use only some of them
        yield from self._chart(at_ends, table, declarations(observer), last)

    def _chart(
        self, ends: pd.DataFrame, scalars: pd.DataFrame, recorded: Sequence[Quantity], last: dict[str, Any]
    ) -> Iterator[str]:
        """Yield a chart and its data; store the final numbers in ``last``."""
        if not len(scalars):
            return
        if len(tokens := ends["tokens"].dropna() if "tokens" in ends else ()):
            last["tokens"] = int(max(tokens))
        last["numbers"] = [
            number.plain() for number in final_numbers(ends, recorded, first_step=self.drawn.steps[0])
        ]
        name, observed = self.drawn.folder.name, len(self.drawn.store.steps())
        data = escaped_json(chart_data(name, scalars, recorded, observed=observed, most=self.most))
        place = data_of(self.base.name)
        if not self.together:
            yield chart([{"data": place, "run": "", "condition": ""}], f"chart of {name}")
        yield f"<script type='application/json' id='{html.escape(place)}'>{data}</script>"


def _read_once(drawn: DrawnObservations) -> Callable[[Any], pd.DataFrame]:
    """Return a function that reads and caches rows for an expression, since expressions cannot be keys of a cache."""
    kept: list[tuple[Any, pd.DataFrame]] = []

    def read(rows: Any) -> pd.DataFrame:
        for other, table in kept:
            if other is rows:
                return table
        kept.append((rows, drawn.read(rows)))
        return kept[-1][1]

    return read


def _moving_and_last(
    observer: type[Observer],
    drawn: DrawnObservations,
    read: Callable[[], pd.DataFrame],
    ends: Callable[[], pd.DataFrame],
    settings: Mapping[str, Any],
    base: Path,
) -> Iterator[str]:
    """Yield animations of observers that have some, and the scalars."""
    moving = getattr(observer, "animations", None)
    if moving is not None:
        few = len(drawn.steps) <= _MOST_FRAMES
        observations = read() if few else drawn.read(most=_MOST_FRAMES)
        for name, frames in moving(observations, settings).items():
            yield animation(frames, file_beside(base, name, "gif"), name)
    yield _last_values(_scalars(observer, ends()), drawn.steps[0])


def _scalars(observer: type[Observer], table: pd.DataFrame) -> pd.DataFrame:
    return table[observer.is_scalar(table)]


def _ends(table: pd.DataFrame, steps: Sequence[int]) -> pd.DataFrame:
    """Return the first and the last observation, from a table of all."""
    return table[table["step"].isin([steps[0], steps[-1]])]


class Others(Mapping[str, pd.DataFrame]):
    """Records of other observers of the same runs, by their class and one of each; read on access.

    Args:
        runs: for each run the observer's own observations, and those of all.
        find: function that returns the observer of observations.
    """

    def __init__(
        self, runs: Mapping[Path, tuple[DrawnObservations, Sequence[DrawnObservations]]], find: Find
    ) -> None:
        self._runs = runs
        self._find = find
        self._read: dict[str, pd.DataFrame] = {}

    @cached_property
    def _by_class(self) -> dict[str, dict[Path, DrawnObservations]]:
        """By class, the observations of each run that has some."""
        found: dict[str, dict[Path, DrawnObservations]] = {}
        for run, (own, every) in self._runs.items():
            for one in every:
                observer = known_observer(one, self._find) if one is not own else None
                if observer is not None:
                    found.setdefault(observer.__name__, {}).setdefault(run, one)
        return found

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self._read:
            together = together_of(self._by_class[name])
            self._read[name] = together if len(self._runs) > 1 else together.drop(columns="run")
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_class

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_class)

    def __len__(self) -> int:
        return len(self._by_class)


def _last_values(scalars: pd.DataFrame, first_step: int, most: int | None = None) -> str:
    """Return the scalars of the first observation, which may have none, and of the last as columns."""
    steps = sorted(scalars["step"].unique())
    if not steps:
        return ""
    shown = first_step, steps[-1]
    first, last = (scalar_tags("", scalars[scalars["step"].eq(step)]) for step in shown)
    rows = [
        (tag.removeprefix("/").replace("/", " · "), first.get(tag), value)
        for tag, value in list(last.items())[:most]
    ]
    title = "all numbers" if len(rows) == len(last) else f"the first {len(rows):,} of {len(last):,} numbers"
    table = html_table(["", *(f"step {step}" for step in shown)], rows)
    return f"<details><summary>{title}</summary>{table}</details>"
