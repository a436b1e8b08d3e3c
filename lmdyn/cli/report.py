"""One self-contained page of figures from the observations of a run."""

import html
import json
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from lmdyn.callbacks.gathered.drawn_observations import DrawnObservations, drawn_observations
from lmdyn.callbacks.observing.figures import MOST_STEPS
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.training.atomic_files import make_writable, write_file
from lmdyn.cli.configurations import model_configurations, read_yaml
from lmdyn.cli.drawing.chart_data import MOST_VALUES, chart
from lmdyn.cli.drawing.claims_block import CLAIMS_ANCHOR, claims_block
from lmdyn.cli.drawing.kept_sections import KeptSections
from lmdyn.cli.drawing.observer_section import (
    DrawnSection,
    Find,
    ObserverSection,
    Others,
    Parts,
    data_of,
    known_observer,
    together_of,
)
from lmdyn.cli.drawing.overview import conditions, final_table, known_facts, run_names, runs_table, sheet
from lmdyn.cli.drawing.page import (
    CLAIMS_PAGE,
    PHASES_PAGE,
    REPORT_PAGE,
    Place,
    csv_table,
    html_table,
    many_objects,
    page,
)
from lmdyn.cli.drawing.phases_block import PHASES_ANCHOR, phases_block
from lmdyn.cli.drawing.side_by_side import made_side_by_side
from lmdyn.cli.recorded_observers import recorded_observer

__all__ = ["write_report"]

_NO_SETTINGS = ("probe_set", "train_set", "references", "previous")
_FEWEST_VALUES = 10_000  # minimum for the chart of an observer of one of many runs


@many_objects()
def write_report(
    runs: Sequence[Path],
    out: Path,
    *,
    untrusted: bool = False,
    every_step: bool = False,
    processes: int = 1,
) -> Path:
    """Write ``<out>/index.html``, self-contained, and each figure as ``<out>/<observer>_<figure>.{png,svg}``.

    Observers may have further static methods in addition to ``figures``; each returns results by name:

    - ``tables(observations, settings)`` returns data frames: each is a table of the page, and
      ``<out>/<observer>_<name>.csv`` in full precision.
    - ``figures_beside(observations, others)`` and ``tables_beside(observations, others)`` also receive the complete
      records of other observers of the run, by their class (for several of one class the first folder by name). A table
      of ``others`` is read on access.
    - ``animations(observations, settings)`` returns sequences of figures, each read once: an animated image,
      ``<out>/<observer>_<name>.gif``. Only for single runs.

    Observers with ``several_runs`` are drawn once for all runs that they observed; observations, and those of
    others, then have a column ``run``, the run's folder. Reports of several runs begin with a table of the differences
    between their models, ``<out>/configurations.csv``.

    A file of observations names its observer, which is imported only if it is one of lmdyn's, was imported before,
    or is in the run's ``config.yaml``; for others the page has the numbers, and states why there are no figures.

    Args:
        runs: run folders; those with a ``test.json`` (``lmdyn test``) give a row of a table, with or without
            observations.
        out: folder of the report; created if necessary.
        untrusted: whether to import nothing that the runs' ``config.yaml`` name, and to ignore their caches.
        every_step: whether to draw all observations.
        processes: number of processes for drawing, forks of this one, which must have no threads then.

    Returns:
        The path of the page.

    Raises:
        FileNotFoundError: for a folder without observations.
        UnwritableError: if ``out`` cannot be written.
    """
    tested = [run for run in runs if (run / "test.json").is_file()]
    observed = [run for run in runs if run not in tested or (run / "observations").is_dir()]
    most = None if every_step else MOST_STEPS
    drawn = {
        run: _observed(run, most, cached=not untrusted) for run in observed
    }  # before anything is written
    make_writable(out, "choose another folder with --out")
    names = run_names(runs)
    find = partial(_find, untrusted=untrusted)
    together = _shared(drawn, find) if len(observed) > 1 else {}
    prefix = {run: f"{names[run]}_".replace("/", "_") if len(observed) > 1 else "" for run in observed}
    of_observers = {
        run: [
            ObserverSection(
                one,
                drawn[run],
                run,
                out / f"{prefix[run]}{one.folder.name}",
                one.folder.name in together,
                find,
                max(MOST_VALUES // len(observed), _FEWEST_VALUES),
            )
            for one in drawn[run]
        ]
        for run in observed
    }
    made = _made(
        [one for some in of_observers.values() for one in some], out, processes, cached=not untrusted
    )
    title = ", ".join(names[run] for run in runs[:3]) + (
        f" and {len(runs) - 3} more" if len(runs) > 3 else ""
    )
    contents, sections = [Place("top", "overview")], [_top(title, names, of_observers, made, out)]
    if (out / CLAIMS_PAGE).is_file():
        contents.append(Place(CLAIMS_ANCHOR, "claims"))
    if (out / PHASES_PAGE).is_file():
        contents.append(Place(PHASES_ANCHOR, "phases"))
    if len(runs) > 1:
        contents.append(Place("configurations", "configurations"))
        differing = _configurations({names[run]: run for run in runs}, out)
        sections.append(f"<section id='configurations'>{differing}</section>")
    if len(observed) > 1:
        charts = _charts(of_observers, names)
        for name, part in _all_runs(charts, together, drawn, out, find).items():
            contents.append(Place(f"together {name}", f"{name}, all runs"))
            sections.append(part)
    for run in observed:
        several = len(observed) > 1
        if several:
            contents.append(Place(f"run {names[run]}", names[run]))
        contents += [Place(one.base.name, one.drawn.folder.name, several) for one in of_observers[run]]
        if (run / "config.yaml").exists():
            contents.append(Place(f"configuration {names[run]}", "configuration", several))
        sections.append(_run_section(run, names[run], of_observers[run], made, headed=several))
    if tested:
        contents.append(Place("test", "test"))
        sections.append(_test_table({names[run]: run for run in tested}))
    path = out / REPORT_PAGE
    text = page(f"lmdyn: {title}", sections, contents)
    whole = text.encode("utf-8", "replace")  # names of files and JSON may hold halves of characters
    write_file(path, lambda unfinished: unfinished.write_bytes(whole))
    return path


def _top(
    title: str,
    names: Mapping[Path, str],
    sections: Mapping[Path, Sequence[ObserverSection]],
    made: Mapping[Path, DrawnSection],
    out: Path,
) -> str:
    """Return the model, data and training, the final numbers, and the existing verdicts."""
    last = {
        run: {one.drawn.folder.name: made[one.base].last for one in sections.get(run, ())} for run in names
    }
    facts = {names[run]: known_facts(run, list(of.values())) for run, of in last.items()}
    parts = [f"<header id='top'><h1 class='title'>{html.escape(title)}</h1></header>"]
    parts.append(sheet(next(iter(facts.values()))) if len(facts) == 1 else runs_table(facts))
    of = conditions({name: run for run, name in names.items()})
    mixed = _mixed({run: [one.drawn for one in some] for run, some in sections.items()})
    if table := final_table({names[run]: found for run, found in last.items() if found}, of, mixed):
        parts.append(
            f"<h2>final numbers</h2>{table}<p>At most eight of each observer, whose section has all; ± is the error "
            "that it recorded.</p>"
        )
    return "".join([*parts, claims_block(out), phases_block(out)])


def _charts(sections: Mapping[Path, Sequence[ObserverSection]], names: Mapping[Path, str]) -> dict[str, str]:
    """Return, by observer, a chart of all runs that it observed, if there are several."""
    of = conditions({names[run]: run for run in sections})
    mixed = _mixed({run: [one.drawn for one in some] for run, some in sections.items()})
    sources: dict[str, list[dict[str, str]]] = {}
    for run, some in sections.items():
        for one in some:
            name = one.drawn.folder.name
            condition = names[run] if name in mixed else of[names[run]]
            about = {"data": data_of(one.base.name), "run": names[run], "condition": condition}
            sources.setdefault(name, []).append(about)
    return {
        name: chart(several, f"chart of {name}, all runs")
        for name, several in sources.items()
        if len(several) > 1
    }


def _observed(run: Path, most: int | None, *, cached: bool) -> list[DrawnObservations]:
    """Return the observations of a run."""
    found = drawn_observations(run, most, cached=cached)
    if not found:
        raise FileNotFoundError(
            f"{run} has no observations: expected {run / 'observations'}/<observer>/*.parquet; "
            "`lmdyn analyze` creates them"
        )
    return found


def _find(drawn: DrawnObservations, *, untrusted: bool) -> type[Observer]:
    return recorded_observer(drawn.folder, untrusted=untrusted, name=str(drawn.store.about()["observer"]))


def _made(
    sections: Sequence[ObserverSection], out: Path, processes: int, *, cached: bool
) -> dict[Path, DrawnSection]:
    """Return sections by the prefix of their files' names: kept ones, otherwise drawn ones."""
    kept = KeptSections(out, cached=cached)
    found = {section.base: one for section in sections if (one := kept.find(section)) is not None}
    missing = [one for one in sections if one.base not in found]
    if processes > 1:  # the slowest first: presumably that of the largest files
        missing.sort(key=_size, reverse=True)

    def drawn(section: ObserverSection) -> DrawnSection:
        one = section.make()
        kept.keep(section, one)
        return one

    return found | dict(
        zip(
            (one.base for one in missing),
            made_side_by_side([partial(drawn, one) for one in missing], processes),
            strict=True,
        )
    )


def _size(section: ObserverSection) -> int:
    return sum(source.size for source in section.drawn.store.sources)


def _shared(
    drawn: Mapping[Path, Sequence[DrawnObservations]], find: Find
) -> dict[str, dict[Path, DrawnObservations]]:
    """Return observers of several runs that are drawn together: by name, the observations of each run."""
    return {
        name: several
        for name, several in _of_runs(drawn).items()
        if len(several) > 1
        and len(kinds := {known_observer(one, find) for one in several.values()}) == 1
        and (observer := kinds.pop()) is not None
        and observer.several_runs
    }


def _of_runs(
    drawn: Mapping[Path, Sequence[DrawnObservations]],
) -> dict[str, dict[Path, DrawnObservations]]:
    """Return, by observer, the observations of each run."""
    by_name: dict[str, dict[Path, DrawnObservations]] = {}
    for run, found in drawn.items():
        for one in found:
            by_name.setdefault(one.folder.name, {})[run] = one
    return by_name


def _mixed(drawn: Mapping[Path, Sequence[DrawnObservations]]) -> set[str]:
    """Return the observers whose settings differ between runs: their numbers have no mean."""
    found = set()
    for name, several in _of_runs(drawn).items():
        about = [one.store.about() for one in several.values()]
        settings = [{**one["settings"], "observer": one["observer"]} for one in about]
        if _different_settings(settings, (*_NO_SETTINGS, "seed")):
            found.add(name)
    return found


def _all_runs(
    charts: Mapping[str, str],
    together: Mapping[str, Mapping[Path, DrawnObservations]],
    drawn: Mapping[Path, Sequence[DrawnObservations]],
    out: Path,
    find: Find,
) -> dict[str, str]:
    """Return, by observer, the section of all runs: with figures and tables, if it draws several runs together."""
    parts = {
        name: _together_section(name, shared, drawn, out, find, charts.get(name, ""))
        for name, shared in together.items()
    }
    of_runs = _of_runs(drawn)
    for name in (name for name in charts if name not in together):
        told = _observed_differently([one.store.about()["settings"] for one in of_runs[name].values()])
        heading = f"<h2 id='{html.escape(f'together {name}')}'>{html.escape(name)}, all runs</h2>"
        parts[name] = f"{heading}{told}{charts[name]}"
    return parts


def _together_section(
    name: str,
    shared: Mapping[Path, DrawnObservations],
    drawn: Mapping[Path, Sequence[DrawnObservations]],
    out: Path,
    find: Find,
    curves: str,
) -> str:
    """Return the figures and tables of several runs, after the chart of their curves."""
    settings_of = [one.store.about()["settings"] for one in shared.values()]
    observer = find(next(iter(shared.values())))
    others = Others({run: (one, drawn[run]) for run, one in shared.items()}, find)
    parts = [
        f"<section id='{html.escape(f'together {name}')}'>"
        f"<h1>{html.escape(name)} of {len(shared)} runs</h1>{curves}"
    ]
    parts.append(_observed_differently(settings_of))
    read = partial(together_of, shared)
    parts += Parts().drawn(observer, cache(read), read, settings_of[0], others, out / name)
    return "".join([*parts, "</section>"])


def _observed_differently(settings: Sequence[Mapping[str, Any]]) -> str:
    """Return paragraphs on the differences of settings and data between the observations of runs."""
    parts = []
    if different := _different_settings(settings, _NO_SETTINGS):
        told = "; ".join(f"{name}: {', '.join(values)}" for name, values in different.items())
        parts.append(f"<p><strong>Observed with different settings</strong>: {html.escape(told)}.</p>")
    data = [{name: one.get(name) for name in ("probe_set", "train_set")} for one in settings]
    if texts := _different_settings(data):
        parts.append(f"<p>Observed on different data: {html.escape(', '.join(texts))}.</p>")
    return "".join(parts)


def _different_settings(
    settings: Sequence[Mapping[str, Any]], but: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Return settings that differ between runs, with their values, as JSON."""
    names = dict.fromkeys(name for one in settings for name in one if name not in but)
    values = {n: list(dict.fromkeys(json.dumps(one.get(n)) for one in settings)) for n in names}
    return {name: found for name, found in values.items() if len(found) > 1}


def _run_section(
    run: Path,
    name: str,
    sections: Sequence[ObserverSection],
    made: Mapping[Path, DrawnSection],
    *,
    headed: bool,
) -> str:
    """Return the sections of a run's observers, and its configuration; ``headed`` adds the run's name."""
    heading = f"<h1>{html.escape(name)}</h1>" if headed else ""
    parts = [f"<section id='{html.escape(f'run {name}')}'>{heading}"]
    parts += [made[one.base].html for one in sections]
    config = run / "config.yaml"
    if config.exists():
        parts.append(
            f"<h2 id='{html.escape(f'configuration {name}')}'>configuration</h2><details><summary>config.yaml</summary>"
            f"<pre>{html.escape(_tidy_yaml(config))}</pre></details>"
        )
    return "".join([*parts, "</section>"])


def _configurations(runs: Mapping[str, Path], out: Path) -> str:
    """Return the differences between the models of the runs; empty if no run has a configuration."""
    table = model_configurations(runs)
    if table["class"].isna().all():
        return ""
    return "<h2>configurations</h2>" + csv_table(
        table, out / "configurations.csv", "models that were trained"
    )


def _test_table(runs: Mapping[str, Path]) -> str:
    """Return the results of ``lmdyn test``, a row for each run."""
    numbers = {name: _tested(run / "test.json") for name, run in runs.items()}
    metrics = list(
        dict.fromkeys(name for found in numbers.values() for name, v in found.items() if isinstance(v, float))
    )
    head = ["run", *(name.removeprefix("test_") for name in metrics)]
    rows = [[run, *(found.get(name) for name in metrics)] for run, found in numbers.items()]
    return f"<h2 id='test'>test</h2>{html_table(head, rows)}"


def _tested(path: Path) -> dict[str, Any]:
    """Return the content of a file of ``lmdyn test``."""
    try:
        numbers = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}): remove it; `lmdyn test` writes it again"
        ) from error
    if not isinstance(numbers, dict):
        raise ValueError(f"{path} contains no numbers by name: remove it; `lmdyn test` writes it again")
    return numbers


def _tidy_yaml(path: Path) -> str:
    try:
        return str(yaml.safe_dump(read_yaml(path), sort_keys=False, allow_unicode=True))
    except ValueError as error:
        return str(error)
