"""One self-contained page of figures from the observations of a run."""

import html
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
import yaml

from lmdyn.callbacks.observing.figures import short_names
from lmdyn.callbacks.observing.loggers import scalar_tags
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.store import ObservationStore
from lmdyn.callbacks.training.atomic_files import make_writable
from lmdyn.cli.configurations import model_configurations, read_yaml
from lmdyn.cli.page import (
    REPORT_PAGE,
    animation,
    csv_table,
    file_beside,
    html_table,
    links_between,
    page,
    picture,
)
from lmdyn.cli.recorded_observers import UnknownObserverError, recorded_observer

__all__ = ["write_report"]

log = logging.getLogger(__name__)

_MOST_NUMBERS = 1000  # of an unknown observer, some of whose rows are no scalars


def write_report(runs: Sequence[Path], out: Path, *, untrusted: bool = False) -> Path:
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
        untrusted: nothing is imported that the runs' ``config.yaml`` name.

    Returns:
        The page.

    Raises:
        FileNotFoundError: a folder without observations.
        UnwritableError: ``out`` cannot be written.
    """
    tested = [run for run in runs if (run / "test.json").is_file()]
    observed = [run for run in runs if run not in tested or (run / "observations").is_dir()]
    folders = {run: _observed(run) for run in observed}  # before anything is made
    make_writable(out, "give another folder by --out")
    shortened = short_names([str(run.resolve()) for run in runs])
    names = {run: shortened[str(run.resolve())] for run in runs}
    find = partial(recorded_observer, untrusted=untrusted)
    together = _shared(folders, find) if len(observed) > 1 else {}
    sections = [_configurations({names[run]: run for run in runs}, out)] if len(runs) > 1 else []
    sections += [_together_section(name, shared, folders, out, find) for name, shared in together.items()]
    sections += [
        _run_section(
            run,
            folders[run],
            out,
            prefix=f"{names[run]}_".replace("/", "_") if len(observed) > 1 else "",
            drawn=frozenset(together),
            find=find,
        )
        for run in observed
    ]
    sections += [_test_table({names[run]: run for run in tested})] if tested else []
    title = ", ".join(run.name if run.name else str(run) for run in runs)
    path = out / REPORT_PAGE
    path.write_text(page(f"lmdyn: {title}", [*links_between(out, REPORT_PAGE), *sections]), encoding="utf-8")
    return path


def _observed(run: Path) -> list[Path]:
    """The folders of observations of a run."""
    folders = sorted(p for p in (run / "observations").glob("*") if ObservationStore(p).steps())
    if not folders:
        raise FileNotFoundError(
            f"{run} has no observations: expected {run / 'observations'}/<observer>/*.parquet; "
            "`lmdyn analyze` makes them"
        )
    return folders


_Find = Callable[[Path], type[Observer]]
"""Answers the observer whose observations a folder holds."""


def _known_observer(folder: Path, find: _Find) -> type[Observer] | None:
    try:
        return find(folder)
    except UnknownObserverError:
        return None


def _shared(folders: Mapping[Path, Sequence[Path]], find: _Find) -> dict[str, list[ObservationStore]]:
    """Observations of several runs that are drawn together, by the name of the observer."""
    stores: dict[str, list[ObservationStore]] = {}
    for found in folders.values():
        for folder in found:
            stores.setdefault(folder.name, []).append(ObservationStore(folder))
    return {
        name: several
        for name, several in stores.items()
        if len(several) > 1
        and len(kinds := {_known_observer(s.folder, find) for s in several}) == 1
        and (observer := kinds.pop()) is not None
        and observer.several_runs
    }


def _together_section(
    name: str,
    stores: Sequence[ObservationStore],
    folders: Mapping[Path, Sequence[Path]],
    out: Path,
    find: _Find,
) -> str:
    """The figures and tables of several runs."""
    observer, settings = find(stores[0].folder), stores[0].about()["settings"]
    shared = {str(store.folder.parents[1]): store.folder for store in stores}
    others = _Others(
        {run: (shared[str(run)], found) for run, found in folders.items() if str(run) in shared}, find
    )
    parts = [f"<h1>{html.escape(name)} of {len(stores)} runs</h1>"]
    settings_of = [store.about()["settings"] for store in stores]
    if different := _different_settings(settings_of, ("probe_set", "train_set", "references", "previous")):
        told = "; ".join(f"{name}: {', '.join(values)}" for name, values in different.items())
        parts.append(f"<p><strong>Observed with different settings</strong>: {html.escape(told)}.</p>")
    data = [{name: one.get(name) for name in ("probe_set", "train_set")} for one in settings_of]
    if texts := _different_settings(data):
        parts.append(f"<p>Observed on different data: {html.escape(', '.join(texts))}.</p>")
    parts += _drawn(observer, _together(shared), settings, others, out / name)
    return "".join(parts)


def _different_settings(
    settings: Sequence[Mapping[str, Any]], but: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Settings that are not the same in all runs, with their values, as JSON."""
    names = dict.fromkeys(name for one in settings for name in one if name not in but)
    values = {n: list(dict.fromkeys(json.dumps(one.get(n)) for one in settings)) for n in names}
    return {name: found for name, found in values.items() if len(found) > 1}


def _together(folders: Mapping[str, Path]) -> pd.DataFrame:
    """The observations of several runs, one after the other."""
    tables = [ObservationStore(folder).read().assign(run=run) for run, folder in folders.items()]
    return pd.concat(tables, ignore_index=True)


def _drawn(
    observer: type[Observer],
    observations: pd.DataFrame,
    settings: Mapping[str, Any],
    others: Mapping[str, pd.DataFrame],
    base: Path,
) -> Iterator[str]:
    """Figures and tables of an observer, those beside other observers' too; files begin with ``base``."""

    def made(method: str, about: Any, part: Callable[[Any, str], str]) -> Callable[[], Iterator[str]]:
        make = getattr(observer, method, None)
        return lambda: (part(one, name) for name, one in (make(observations, about) if make else {}).items())

    for kind, about in (("", settings), ("_beside", others)):
        figures = made(f"figures{kind}", about, lambda figure, name: picture(figure, base, name))
        yield from _survived(f"figures{kind} of {base.name}", figures)
        tables = made(
            f"tables{kind}", about, lambda table, name: csv_table(table, file_beside(base, name, "csv"), name)
        )
        yield from _survived(f"tables{kind} of {base.name}", tables)


def _survived(what: str, make: Callable[[], Iterable[str]]) -> Iterator[str]:
    """Parts of the page; where making one fails, those made so far and a line that says so."""
    try:
        yield from make()
    except Exception as error:
        log.exception("%s could not be made; the report goes on", what)
        yield f"<p>Without {html.escape(what)}: {html.escape(f'{type(error).__name__}: {error}')}</p>"


def _run_section(
    run: Path, folders: Sequence[Path], out: Path, prefix: str, drawn: frozenset[str], find: _Find
) -> str:
    parts = [f"<h1>{html.escape(str(run))}</h1>"]
    links = (f"<a href='#{quote(prefix + p.name)}'>{html.escape(p.name)}</a>" for p in folders)
    parts.append(f"<nav>{' '.join(links)}</nav>")
    for folder in folders:
        store, base = ObservationStore(folder), out / f"{prefix}{folder.name}"
        about, observations = store.about(), store.read()
        parts.append(f"<h2 id='{html.escape(base.name)}'>{html.escape(folder.name)}</h2>")
        try:
            observer = find(folder)
        except UnknownObserverError as error:
            parts.append(f"<p>Without figures: {html.escape(str(error))}.</p>")
            parts.append(_last_values(observations, _MOST_NUMBERS))
        else:
            summary = ((observer.__doc__ or "").strip().splitlines() or [""])[0]
            parts.append(f"<p>{html.escape(summary)}</p>")
            if folder.name not in drawn:
                parts += _drawn(
                    observer, observations, about["settings"], _Others({run: (folder, folders)}, find), base
                )
            parts += _survived(
                f"animations and numbers of {base.name}",
                partial(_moving_and_last, observer, observations, about["settings"], base),
            )
        settings = json.dumps(about["settings"], indent=1, ensure_ascii=False)
        parts.append(
            f"<details><summary>{len(store.steps())} observations, steps {store.steps()[0]} to {store.steps()[-1]}; "
            f"settings</summary><pre>{html.escape(settings)}</pre></details>"
        )
    config = run / "config.yaml"
    if config.exists():
        parts.append(
            "<h2>configuration</h2><details><summary>config.yaml</summary>"
            f"<pre>{html.escape(_tidy_yaml(config))}</pre></details>"
        )
    return "".join(parts)


def _moving_and_last(
    observer: type[Observer], observations: pd.DataFrame, settings: Mapping[str, Any], base: Path
) -> Iterator[str]:
    """Animations of observers that have some, and the scalars."""
    moving = getattr(observer, "animations", None)
    for name, frames in (moving(observations, settings) if moving else {}).items():
        yield animation(frames, file_beside(base, name, "gif"), name)
    yield _last_values(observations[observer.is_scalar(observations)])


class _Others(Mapping[str, pd.DataFrame]):
    """What other observers recorded of the same runs, by their class and one of each; read when asked for.

    Args:
        runs: for each run the observer's own folder, and those of all.
        find: answers whose a folder is.
    """

    def __init__(self, runs: Mapping[Path, tuple[Path, Sequence[Path]]], find: _Find) -> None:
        self._runs = runs
        self._find = find
        self._read: dict[str, pd.DataFrame] = {}

    @cached_property
    def _folders(self) -> dict[str, dict[str, Path]]:
        """By class, the folder in each run that has one."""
        found: dict[str, dict[str, Path]] = {}
        for run, (own, folders) in self._runs.items():
            for folder in folders:
                observer = _known_observer(folder, self._find) if folder != own else None
                if observer is not None:
                    found.setdefault(observer.__name__, {}).setdefault(str(run), folder)
        return found

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self._read:
            folders = self._folders[name]
            together = _together(folders)
            self._read[name] = together if len(self._runs) > 1 else together.drop(columns="run")
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._folders

    def __iter__(self) -> Iterator[str]:
        return iter(self._folders)

    def __len__(self) -> int:
        return len(self._folders)


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
