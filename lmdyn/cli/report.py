"""One self-contained page of figures from the observations of a run."""

import base64
import html
import io
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure
from PIL import Image

from lmdyn.analysis.inspection.forward import dotted
from lmdyn.callbacks.observing.figures import short_names
from lmdyn.callbacks.observing.loggers import scalar_tags
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.store import ObservationStore
from lmdyn.cli.configurations import model_configurations

__all__ = ["write_report"]

log = logging.getLogger(__name__)

_FRAME_MS = 500  # of an animated image

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1080px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em } h2 { font-size: 1.2em; border-bottom: 1px solid #ddd; margin-top: 2.2em }
figure { margin: 1.2em 0; overflow-x: auto } figcaption { color: #555; font-size: .9em } img { max-width: 100% }
table { border-collapse: collapse; font-size: .9em } td, th { padding: .15em .8em .15em 0; text-align: left }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
pre { background: #f6f6f6; padding: 1em; overflow-x: auto }
details { margin: .6em 0 } nav a { margin-right: 1em }
"""


def write_report(runs: Sequence[Path], out: Path) -> Path:
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

    Args:
        runs: run folders; those with a ``test.json`` (``lmdyn test``) give a row of a table, with or without
            observations.
        out: folder of the report; made if need be.

    Returns:
        The page.

    Raises:
        FileNotFoundError: a folder without observations.
    """
    tested = [run for run in runs if (run / "test.json").is_file()]
    observed = [run for run in runs if run not in tested or (run / "observations").is_dir()]
    folders = {run: _observed(run) for run in observed}  # before anything is made
    out.mkdir(parents=True, exist_ok=True)
    shortened = short_names([str(run.resolve()) for run in runs])
    names = {run: shortened[str(run.resolve())] for run in runs}
    together = _shared(folders) if len(observed) > 1 else {}
    sections = [_configurations({names[run]: run for run in runs}, out)] if len(runs) > 1 else []
    sections += [_together_section(name, shared, folders, out) for name, shared in together.items()]
    sections += [
        _run_section(
            run,
            folders[run],
            out,
            prefix=f"{names[run]}_".replace("/", "_") if len(observed) > 1 else "",
            drawn=frozenset(together),
        )
        for run in observed
    ]
    sections += [_test_table({names[run]: run for run in tested})] if tested else []
    title = ", ".join(run.name if run.name else str(run) for run in runs)
    page = out / "index.html"
    page.write_text(
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>lmdyn: {html.escape(title)}</title>"
        f"<style>{_STYLE}</style><body>{''.join(sections)}</body></html>",
        encoding="utf-8",
    )
    return page


def _observed(run: Path) -> list[Path]:
    """The folders of observations of a run."""
    folders = sorted(p for p in (run / "observations").glob("*") if ObservationStore(p).steps())
    if not folders:
        raise FileNotFoundError(
            f"{run} has no observations: expected {run / 'observations'}/<observer>/*.parquet; "
            "`lmdyn analyze` makes them"
        )
    return folders


def _observer_of(store: ObservationStore) -> type[Observer]:
    observer = dotted(store.about()["observer"])
    assert isinstance(observer, type)
    assert issubclass(observer, Observer)
    return observer


def _shared(folders: Mapping[Path, Sequence[Path]]) -> dict[str, list[ObservationStore]]:
    """Observations of several runs that are drawn together, by the name of the observer."""
    stores: dict[str, list[ObservationStore]] = {}
    for found in folders.values():
        for folder in found:
            stores.setdefault(folder.name, []).append(ObservationStore(folder))
    return {
        name: several
        for name, several in stores.items()
        if len(several) > 1
        and len(kinds := {_observer_of(s) for s in several}) == 1
        and kinds.pop().several_runs
    }


def _together_section(
    name: str, stores: Sequence[ObservationStore], folders: Mapping[Path, Sequence[Path]], out: Path
) -> str:
    """The figures and tables of several runs."""
    observer, settings = _observer_of(stores[0]), stores[0].about()["settings"]
    shared = {str(store.folder.parents[1]): store.folder for store in stores}
    others = _Others({run: (shared[str(run)], found) for run, found in folders.items() if str(run) in shared})
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
    for kind, about in (("", settings), ("_beside", others)):
        draw = getattr(observer, f"figures{kind}", None)
        for name, figure in (draw(observations, about) if draw else {}).items():
            yield _figure(figure, base.with_name(f"{base.name}_{name}"), name)
        tabulate = getattr(observer, f"tables{kind}", None)
        for name, table in (tabulate(observations, about) if tabulate else {}).items():
            yield _table(table, base.with_name(f"{base.name}_{name}.csv"), name)


def _run_section(
    run: Path, folders: Sequence[Path], out: Path, prefix: str, drawn: frozenset[str] = frozenset()
) -> str:
    parts = [f"<h1>{html.escape(str(run))}</h1>"]
    parts.append(
        "<nav>"
        + " ".join(f"<a href='#{prefix}{p.name}'>{html.escape(p.name)}</a>" for p in folders)
        + "</nav>"
    )
    for folder in folders:
        store = ObservationStore(folder)
        about, observations = store.about(), store.read()
        observer = _observer_of(store)
        summary = ((observer.__doc__ or "").strip().splitlines() or [""])[0]
        parts.append(
            f"<h2 id='{prefix}{folder.name}'>{html.escape(folder.name)}</h2><p>{html.escape(summary)}</p>"
        )
        if folder.name not in drawn:
            others, base = _Others({run: (folder, folders)}), out / f"{prefix}{folder.name}"
            parts += _drawn(observer, observations, about["settings"], others, base)
        moving = getattr(observer, "animations", None)  # of those that have some
        for name, frames in (moving(observations, about["settings"]) if moving else {}).items():
            parts.append(_animation(frames, out / f"{prefix}{folder.name}_{name}.gif", name))
        parts.append(_last_values(observer, observations))
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


class _Others(Mapping[str, pd.DataFrame]):
    """What other observers recorded of the same runs, by their class and one of each; read when asked for.

    Args:
        runs: for each run the observer's own folder, and those of all.
    """

    def __init__(self, runs: Mapping[Path, tuple[Path, Sequence[Path]]]) -> None:
        self._runs = runs
        self._read: dict[str, pd.DataFrame] = {}

    @cached_property
    def _folders(self) -> dict[str, dict[str, Path]]:
        """By class, the folder in each run that has one."""
        found: dict[str, dict[str, Path]] = {}
        for run, (own, folders) in self._runs.items():
            for folder in folders:
                if folder != own:
                    found.setdefault(_observer_of(ObservationStore(folder)).__name__, {}).setdefault(
                        str(run), folder
                    )
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
    return "<h2>configurations</h2>" + _table(table, out / "configurations.csv", "models that were trained")


def _test_table(runs: Mapping[str, Path]) -> str:
    """What ``lmdyn test`` found, a row for each run."""
    numbers = {
        name: json.loads((run / "test.json").read_text(encoding="utf-8")) for name, run in runs.items()
    }
    metrics = list(
        dict.fromkeys(name for found in numbers.values() for name, v in found.items() if isinstance(v, float))
    )
    head = ["run", *(name.removeprefix("test_") for name in metrics)]
    rows = [[run, *(found.get(name) for name in metrics)] for run, found in numbers.items()]
    return f"<h2>test</h2>{_rows(head, rows)}"


def _table(table: pd.DataFrame, path: Path, name: str) -> str:
    """Write a table as CSV, and answer it as part of the page; an index of names is its first column."""
    if not isinstance(table.index, pd.RangeIndex):
        table = table.reset_index(names=None if any(table.index.names) else "")
    table.to_csv(path, index=False)
    title = html.escape(name.replace("_", " "))
    rows = _rows([str(c) for c in table.columns], table.astype(object).to_numpy())
    return f"<figure>{rows}<figcaption>{title} (<a href='{html.escape(path.name)}'>CSV</a>)</figcaption></figure>"


def _rows(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """An HTML table; columns of numbers are right aligned, also their names."""
    cells = [list(row) for row in rows]
    numeric = [any(_is_number(row[i]) for row in cells) for i in range(len(head))]
    kinds = [" class='n'" if number else "" for number in numeric]
    lines = [
        "".join(f"<{tag}{kind}>{text}</{tag}>" for kind, text in zip(kinds, texts, strict=True))
        for tag, texts in [
            ("th", [html.escape(name) for name in head]),
            *(("td", [_text(value) for value in row]) for row in cells),
        ]
    ]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _is_number(value: Any) -> bool:
    # a text that is missing is NaN too
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and value == value


def _text(value: Any) -> str:
    """A cell: whole numbers as they are, others with four digits, what is missing empty."""
    if value is None or value is pd.NA or value != value:
        return ""
    if isinstance(value, (float, np.floating)):
        return _number(value)
    return html.escape(str(value))


def _figure(figure: Figure, path: Path, name: str) -> str:
    """Write a figure as PNG and SVG, and answer it as part of the page."""
    files = {kind: path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")}
    for file in files.values():
        figure.savefig(file, dpi=150)
    encoded = base64.b64encode(files["png"].read_bytes()).decode()
    title = html.escape(name.replace("_", " "))
    links = ", ".join(
        f"<a href='{html.escape(file.name)}'>{kind.upper()}</a>" for kind, file in files.items()
    )
    return (
        f"<figure><img alt='{title}' src='data:image/png;base64,{encoded}'>"
        f"<figcaption>{title} ({links})</figcaption></figure>"
    )


def _animation(frames: Sequence[Figure], path: Path, name: str) -> str:
    """Write figures as the frames of an animated GIF, and answer it as part of the page."""
    pictures = []
    for figure in frames:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110)
        pictures.append(Image.open(buffer).convert("RGB"))
    # one palette for all frames, or the colours would flicker; the last frame has the most of them
    palette = pictures[-1].quantize(256)
    first, *others = (picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures)
    durations = [_FRAME_MS] * len(others) + [4 * _FRAME_MS]
    first.save(path, save_all=True, append_images=others, duration=durations, loop=0)
    encoded = base64.b64encode(path.read_bytes()).decode()
    title = html.escape(name.replace("_", " "))
    return (
        f"<figure><img alt='{title}' src='data:image/gif;base64,{encoded}'>"
        f"<figcaption>{title}, {len(pictures)} observations (<a href='{html.escape(path.name)}'>GIF</a>)</figcaption>"
        "</figure>"
    )


def _last_values(observer: type[Observer], observations: pd.DataFrame) -> str:
    """The scalars of the first and the last observation, side by side."""
    scalars = observations[observer.is_scalar(observations)]
    steps = sorted(scalars["step"].unique())
    if not steps:
        return ""
    first, last = (scalar_tags("", scalars[scalars["step"].eq(s)]) for s in (steps[0], steps[-1]))
    rows = [
        f"<tr><td>{html.escape(tag.removeprefix('/').replace('/', ' · '))}</td>"
        f"<td class='n'>{_number(first.get(tag))}</td><td class='n'>{_number(value)}</td></tr>"
        for tag, value in last.items()
    ]
    return (
        f"<details><summary>all numbers</summary><table><tr><th></th><th>step {steps[0]}</th>"
        f"<th>step {steps[-1]}</th></tr>"
        f"{''.join(rows)}</table></details>"
    )


def _number(value: Any) -> str:
    return "" if value is None or value != value else f"{float(value):.4g}"


def _tidy_yaml(path: Path) -> str:
    tidy: str = yaml.safe_dump(
        yaml.safe_load(path.read_text(encoding="utf-8")), sort_keys=False, allow_unicode=True
    )
    return tidy
