"""One self-contained page of figures from the observations of a run."""

import argparse
import base64
import html
import io
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from matplotlib.figure import Figure
from PIL import Image

from lmdyn.analysis.forward import dotted
from lmdyn.callbacks.observer import Observer
from lmdyn.callbacks.publishing import scalar_tags
from lmdyn.callbacks.store import ObservationStore

__all__ = ["report_command", "write_report"]

log = logging.getLogger(__name__)

_FRAME_MS = 500  # of an animated image

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1080px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em } h2 { font-size: 1.2em; border-bottom: 1px solid #ddd; margin-top: 2.2em }
figure { margin: 1.2em 0 } figcaption { color: #555; font-size: .9em } img { max-width: 100% }
table { border-collapse: collapse; font-size: .9em } td, th { padding: .15em .8em .15em 0; text-align: left }
td.n { text-align: right; font-variant-numeric: tabular-nums }
pre { background: #f6f6f6; padding: 1em; overflow-x: auto }
details { margin: .6em 0 } nav a { margin-right: 1em }
"""


def report_command(args: Sequence[str]) -> None:
    """``lmdyn report RUN [RUN …] [--out DIR]``."""
    parser = argparse.ArgumentParser(
        "lmdyn report",
        description="Draw the figures of all observations of a run into one page, PNG and SVG.",
    )
    parser.add_argument("run", nargs="+", type=Path, help="run folder (it holds observations/)")
    parser.add_argument(
        "--out", type=Path, help="folder of the report; default: RUN/report; needed for several runs"
    )
    options = parser.parse_args(list(args))
    if len(options.run) > 1 and options.out is None:
        raise ValueError("a report of several runs needs a folder of its own: give --out DIR")
    page = write_report(options.run, options.out or options.run[0] / "report")
    log.info("report: %s", page)


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write ``<out>/index.html``, self-contained, and each figure as ``<out>/<observer>_<figure>.{png,svg}``.

    An observer with a static method ``figures_beside(observations, others)`` draws its figures beside what other
    observers recorded of the run, by their class.
    One with a static method ``animations(observations, settings)``, which answers lists of figures by name,
    gives an animated image of each, ``<out>/<observer>_<name>.gif``.

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
    names = _short_names(runs)
    together = _shared(folders) if len(observed) > 1 else {}
    sections = [_together_section(name, shared, out) for name, shared in together.items()]
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


def _together_section(name: str, stores: Sequence[ObservationStore], out: Path) -> str:
    """The figures of several runs."""
    tables = [store.read().assign(run=str(store.folder.parents[1])) for store in stores]
    observations = pd.concat(tables, ignore_index=True)
    figures = _observer_of(stores[0]).figures(observations, stores[0].about()["settings"])
    parts = [f"<h1>{html.escape(name)} of {len(stores)} runs</h1>"]
    parts += [_figure(figure, out / f"{name}_{title}", title) for title, figure in figures.items()]
    return "".join(parts)


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
        alone = {} if folder.name in drawn else observer.figures(observations, about["settings"])
        beside = getattr(observer, "figures_beside", None)
        if beside and folder.name not in drawn:
            alone |= beside(observations, _others(folder, folders))
        for name, figure in alone.items():
            parts.append(_figure(figure, out / f"{prefix}{folder.name}_{name}", name))
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


def _others(folder: Path, folders: Sequence[Path]) -> dict[str, pd.DataFrame]:
    """What other observers recorded of the same run, by their class: scalars only, and one of each class."""
    tables: dict[str, pd.DataFrame] = {}
    for other in folders:
        store = ObservationStore(other)
        observer = _observer_of(store)
        if other != folder and observer.__name__ not in tables:
            table = store.read()
            tables[observer.__name__] = table[observer.is_scalar(table)]
    return tables


def _short_names(runs: Sequence[Path]) -> dict[Path, str]:
    """The last part of each run's path, or as many as tell all runs apart."""
    parts = {run: run.resolve().parts for run in runs}
    for length in range(1, max(map(len, parts.values()), default=0) + 1):
        names = {run: "/".join(p[-length:]) for run, p in parts.items()}
        if len(set(names.values())) == len(names):
            break
    return names


def _test_table(runs: Mapping[str, Path]) -> str:
    """What ``lmdyn test`` found, a row for each run."""
    numbers = {
        name: json.loads((run / "test.json").read_text(encoding="utf-8")) for name, run in runs.items()
    }
    metrics = list(
        dict.fromkeys(name for found in numbers.values() for name, v in found.items() if isinstance(v, float))
    )
    head = "".join(f"<th>{html.escape(name.removeprefix('test_'))}</th>" for name in metrics)
    rows = "".join(
        f"<tr><td>{html.escape(run)}</td>"
        + "".join(f"<td class='n'>{_number(found.get(name))}</td>" for name in metrics)
        + "</tr>"
        for run, found in numbers.items()
    )
    return f"<h2>test</h2><table><tr><th>run</th>{head}</tr>{rows}</table>"


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
