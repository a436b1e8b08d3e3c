"""One self-contained page of figures from the observations of a run."""

import html
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
import pyarrow.compute as pc
import yaml

from lmdyn.callbacks.gathered.drawn_observations import DrawnObservations, drawn_observations
from lmdyn.callbacks.observing.figures import short_names
from lmdyn.callbacks.observing.loggers import scalar_tags
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.store import UnreadableError
from lmdyn.callbacks.training.atomic_files import make_writable
from lmdyn.cli.configurations import model_configurations, read_yaml
from lmdyn.cli.page import (
    REPORT_PAGE,
    animation,
    csv_table,
    file_beside,
    html_table,
    links_between,
    many_objects,
    page,
    picture,
)
from lmdyn.cli.recorded_observers import UnknownObserverError, recorded_observer

__all__ = ["write_report"]

log = logging.getLogger(__name__)

_MOST_NUMBERS = 1000  # of an unknown observer, some of whose rows are no scalars
_MOST_STEPS = 300  # as many as a figure has room for
_MOST_FRAMES = 20


@many_objects()
def write_report(
    runs: Sequence[Path], out: Path, *, untrusted: bool = False, every_step: bool = False
) -> Path:
    """Write ``<out>/index.html``, self-contained, and each figure as ``<out>/<observer>_<figure>.{png,svg}``.

    Observers may have more static methods than ``figures``; each answers what it makes by name:

    - ``tables(observations, settings)`` answers data frames: each is a table of the page, and
      ``<out>/<observer>_<name>.csv`` in full precision.
    - ``figures_beside(observations, others)`` and ``tables_beside(observations, others)`` also have what other
      observers recorded of the run, whole and by their class (of one class the first folder by name). A table of
      ``others`` is read when it is asked for.
    - ``animations(observations, settings)`` answers lists of figures: each is an animated image,
      ``<out>/<observer>_<name>.gif``. Of single runs only.

    Observers with ``several_runs`` make them once for all runs that they looked at; observations, and those of
    others, then have a column ``run``, the run's folder. Several runs begin with a table of what tells their models
    apart, ``<out>/configurations.csv``.

    A file of observations names its observer, and imports it only where that is one of lmdyn's, was imported before,
    or is in the run's ``config.yaml``; of others the page has the numbers, and says why there are no figures.

    Args:
        runs: run folders; those with a ``test.json`` (``lmdyn test``) give a row of a table, with or without
            observations.
        out: folder of the report; made if need be.
        untrusted: nothing is imported that the runs' ``config.yaml`` name, and their caches are not believed.
        every_step: draw all observations.

    Returns:
        The page.

    Raises:
        FileNotFoundError: a folder without observations.
        UnwritableError: ``out`` cannot be written.
    """
    tested = [run for run in runs if (run / "test.json").is_file()]
    observed = [run for run in runs if run not in tested or (run / "observations").is_dir()]
    most = None if every_step else _MOST_STEPS
    drawn = {run: _observed(run, most, cached=not untrusted) for run in observed}  # before anything is made
    make_writable(out, "give another folder by --out")
    shortened = short_names([str(run.resolve()) for run in runs])
    names = {run: shortened[str(run.resolve())] for run in runs}
    find = partial(recorded_observer, untrusted=untrusted)
    together = _shared(drawn, find) if len(observed) > 1 else {}
    sections = [_configurations({names[run]: run for run in runs}, out)] if len(runs) > 1 else []
    sections += [_together_section(name, shared, drawn, out, find) for name, shared in together.items()]
    sections += [
        _run_section(
            run,
            drawn[run],
            out,
            prefix=f"{names[run]}_".replace("/", "_") if len(observed) > 1 else "",
            together=frozenset(together),
            find=find,
        )
        for run in observed
    ]
    sections += [_test_table({names[run]: run for run in tested})] if tested else []
    title = ", ".join(run.name if run.name else str(run) for run in runs)
    path = out / REPORT_PAGE
    path.write_text(page(f"lmdyn: {title}", [*links_between(out, REPORT_PAGE), *sections]), encoding="utf-8")
    return path


def _observed(run: Path, most: int | None, *, cached: bool) -> list[DrawnObservations]:
    """The observations of a run."""
    found = drawn_observations(run, most, cached=cached)
    if not found:
        raise FileNotFoundError(
            f"{run} has no observations: expected {run / 'observations'}/<observer>/*.parquet; "
            "`lmdyn analyze` makes them"
        )
    return found


_Find = Callable[[Path], type[Observer]]
"""Answers the observer whose observations a folder holds."""


def _known_observer(folder: Path, find: _Find) -> type[Observer] | None:
    try:
        return find(folder)
    except UnknownObserverError:
        return None


def _shared(
    drawn: Mapping[Path, Sequence[DrawnObservations]], find: _Find
) -> dict[str, dict[Path, DrawnObservations]]:
    """Observers of several runs that are drawn together: by name, the observations of each run."""
    by_name: dict[str, dict[Path, DrawnObservations]] = {}
    for run, found in drawn.items():
        for one in found:
            by_name.setdefault(one.folder.name, {})[run] = one
    return {
        name: several
        for name, several in by_name.items()
        if len(several) > 1
        and len(kinds := {_known_observer(one.folder, find) for one in several.values()}) == 1
        and (observer := kinds.pop()) is not None
        and observer.several_runs
    }


def _together_section(
    name: str,
    shared: Mapping[Path, DrawnObservations],
    drawn: Mapping[Path, Sequence[DrawnObservations]],
    out: Path,
    find: _Find,
) -> str:
    """The figures and tables of several runs."""
    settings_of = [one.store.about()["settings"] for one in shared.values()]
    observer = find(next(iter(shared.values())).folder)
    others = _Others({run: (one, drawn[run]) for run, one in shared.items()}, find)
    parts = [f"<h1>{html.escape(name)} of {len(shared)} runs</h1>"]
    if different := _different_settings(settings_of, ("probe_set", "train_set", "references", "previous")):
        told = "; ".join(f"{name}: {', '.join(values)}" for name, values in different.items())
        parts.append(f"<p><strong>Observed with different settings</strong>: {html.escape(told)}.</p>")
    data = [{name: one.get(name) for name in ("probe_set", "train_set")} for one in settings_of]
    if texts := _different_settings(data):
        parts.append(f"<p>Observed on different data: {html.escape(', '.join(texts))}.</p>")
    read = partial(_together, shared)
    parts += _drawn(observer, cache(read), read, settings_of[0], others, out / name)
    return "".join(parts)


def _different_settings(
    settings: Sequence[Mapping[str, Any]], but: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Settings that are not the same in all runs, with their values, as JSON."""
    names = dict.fromkeys(name for one in settings for name in one if name not in but)
    values = {n: list(dict.fromkeys(json.dumps(one.get(n)) for one in settings)) for n in names}
    return {name: found for name, found in values.items() if len(found) > 1}


def _together(runs: Mapping[Path, DrawnObservations], rows: Any = None) -> pd.DataFrame:
    """The observations of several runs, one after the other."""
    tables = [one.read(rows).assign(run=str(run)) for run, one in runs.items()]
    return pd.concat(tables, ignore_index=True)


def _drawn(
    observer: type[Observer],
    whole: Callable[[], pd.DataFrame],
    some: Callable[[Any], pd.DataFrame],
    settings: Mapping[str, Any],
    others: Mapping[str, pd.DataFrame],
    base: Path,
) -> Iterator[str]:
    """Figures and tables of an observer, those beside other observers' too; files begin with ``base``.

    Args:
        observer: whose.
        whole: answers its observations.
        some: answers the rows of them for which an expression holds.
        settings: its own.
        others: what other observers recorded.
        base: begin of the files' names.
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
        yield from _survived(f"figures{kind} of {base.name}", figures)
        tables = made(
            f"tables{kind}", about, lambda table, name: csv_table(table, file_beside(base, name, "csv"), name)
        )
        yield from _survived(f"tables{kind} of {base.name}", tables)


def _figure_rows(observer: type[Observer]) -> pc.Expression | None:
    """The rows that an observer's figures need; None for all, and where it depends on an observer at work."""
    rows = observer.figure_rows
    return rows if isinstance(rows, pc.Expression) else None


def _survived(what: str, make: Callable[[], Iterable[str]]) -> Iterator[str]:
    """Parts of the page; where making one fails, those made so far and a line that says so."""
    try:
        yield from make()
    except UnreadableError:  # a file to remove, and no page that looks whole without it
        raise
    except Exception as error:
        log.exception("%s could not be made; the report goes on", what)
        yield f"<p>Without {html.escape(what)}: {html.escape(f'{type(error).__name__}: {error}')}</p>"


def _run_section(
    run: Path,
    drawn: Sequence[DrawnObservations],
    out: Path,
    prefix: str,
    together: frozenset[str],
    find: _Find,
) -> str:
    parts = [f"<h1>{html.escape(str(run))}</h1>"]
    names = (one.folder.name for one in drawn)
    links = (f"<a href='#{quote(prefix + name)}'>{html.escape(name)}</a>" for name in names)
    parts.append(f"<nav>{' '.join(links)}</nav>")
    for one in drawn:
        others = _Others({run: (one, drawn)}, find)
        parts += _observer_section(one, others, out / f"{prefix}{one.folder.name}", together, find)
    config = run / "config.yaml"
    if config.exists():
        parts.append(
            "<h2>configuration</h2><details><summary>config.yaml</summary>"
            f"<pre>{html.escape(_tidy_yaml(config))}</pre></details>"
        )
    return "".join(parts)


def _observer_section(
    drawn: DrawnObservations,
    others: Mapping[str, pd.DataFrame],
    base: Path,
    together: frozenset[str],
    find: _Find,
) -> Iterator[str]:
    """What one observer recorded of a run."""
    name, settings, steps = drawn.folder.name, drawn.store.about()["settings"], drawn.store.steps()
    yield f"<h2 id='{html.escape(base.name)}'>{html.escape(name)}</h2>"
    try:
        observer = find(drawn.folder)
    except UnknownObserverError as error:
        yield f"<p>Without figures: {html.escape(str(error))}.</p>"
        yield _last_values(drawn.ends(), _MOST_NUMBERS)
    else:
        summary = ((observer.__doc__ or "").strip().splitlines() or [""])[0]
        yield f"<p>{html.escape(summary)}</p>"
        if drawn.left_out:
            yield (
                f"<p>Drawn are {len(drawn.steps):,} of {len(steps):,} observations, evenly spread; "
                "<code>lmdyn report --all</code> draws all.</p>"
            )
        read = cache(drawn.read)  # once for all that is made of it
        if name not in together:
            yield from _drawn(observer, read, drawn.read, settings, others, base)
        yield from _survived(
            f"animations and numbers of {base.name}",
            partial(_moving_and_last, observer, drawn, read, settings, base),
        )
    text = json.dumps(settings, indent=1, ensure_ascii=False)
    yield (
        f"<details><summary>{len(steps)} observations, steps {steps[0]} to {steps[-1]}; settings</summary>"
        f"<pre>{html.escape(text)}</pre></details>"
    )


def _moving_and_last(
    observer: type[Observer],
    drawn: DrawnObservations,
    read: Callable[[], pd.DataFrame],
    settings: Mapping[str, Any],
    base: Path,
) -> Iterator[str]:
    """Animations of observers that have some, and the scalars."""
    moving = getattr(observer, "animations", None)
    if moving is not None:
        few = len(drawn.steps) <= _MOST_FRAMES
        observations = read() if few else drawn.read(most=_MOST_FRAMES)
        for name, frames in moving(observations, settings).items():
            yield animation(frames, file_beside(base, name, "gif"), name)
    table = read() if _figure_rows(observer) is None else drawn.ends()
    yield _last_values(table[observer.is_scalar(table)])


class _Others(Mapping[str, pd.DataFrame]):
    """What other observers recorded of the same runs, by their class and one of each; read when asked for.

    Args:
        runs: for each run the observer's own observations, and those of all.
        find: answers whose a folder is.
    """

    def __init__(
        self, runs: Mapping[Path, tuple[DrawnObservations, Sequence[DrawnObservations]]], find: _Find
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
                observer = _known_observer(one.folder, self._find) if one is not own else None
                if observer is not None:
                    found.setdefault(observer.__name__, {}).setdefault(run, one)
        return found

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self._read:
            together = _together(self._by_class[name])
            self._read[name] = together if len(self._runs) > 1 else together.drop(columns="run")
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_class

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_class)

    def __len__(self) -> int:
        return len(self._by_class)


def _configurations(runs: Mapping[str, Path], out: Path) -> str:
    """What tells the models of the runs apart; nothing where no run has a configuration."""
    table = model_configurations(runs)
    if table["class"].isna().all():
        return ""
    return "<h2>configurations</h2>" + csv_table(
        table, out / "configurations.csv", "models that were trained"
    )


def _test_table(runs: Mapping[str, Path]) -> str:
    """What ``lmdyn test`` found, a row for each run."""
    numbers = {name: _tested(run / "test.json") for name, run in runs.items()}
    metrics = list(
        dict.fromkeys(name for found in numbers.values() for name, v in found.items() if isinstance(v, float))
    )
    head = ["run", *(name.removeprefix("test_") for name in metrics)]
    rows = [[run, *(found.get(name) for name in metrics)] for run, found in numbers.items()]
    return f"<h2>test</h2>{html_table(head, rows)}"


def _tested(path: Path) -> dict[str, Any]:
    """What a file of ``lmdyn test`` holds."""
    try:
        numbers = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} cannot be read ({error}): remove it; `lmdyn test` writes it again"
        ) from error
    if not isinstance(numbers, dict):
        raise ValueError(f"{path} holds no numbers by name: remove it; `lmdyn test` writes it again")
    return numbers


def _last_values(scalars: pd.DataFrame, most: int | None = None) -> str:
    """The scalars of the first and the last observation, side by side."""
    steps = sorted(scalars["step"].unique())
    if not steps:
        return ""
    first, last = (scalar_tags("", scalars[scalars["step"].eq(s)]) for s in (steps[0], steps[-1]))
    rows = [
        (tag.removeprefix("/").replace("/", " · "), first.get(tag), value)
        for tag, value in list(last.items())[:most]
    ]
    title = "all numbers" if len(rows) == len(last) else f"the first {len(rows):,} of {len(last):,} numbers"
    table = html_table(["", f"step {steps[0]}", f"step {steps[-1]}"], rows)
    return f"<details><summary>{title}</summary>{table}</details>"


def _tidy_yaml(path: Path) -> str:
    try:
        return str(yaml.safe_dump(read_yaml(path), sort_keys=False, allow_unicode=True))
    except ValueError as error:
        return str(error)
