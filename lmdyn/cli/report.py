"""One self-contained page of figures from the observations of a run."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from lmdyn.callbacks.observing.drawing.sentences import Finding, finding
from lmdyn.callbacks.observing.figures import MOST_STEPS
from lmdyn.cli.pages import overview
from lmdyn.cli.pages.chart_data import MOST_VALUES
from lmdyn.cli.pages.drawn_observations import DrawnObservations, drawn_observations
from lmdyn.cli.pages.html_parts import Place, csv_table, html_table, many_objects, page, part
from lmdyn.cli.pages.linked_pages import CLAIMS_PAGE, PHASES_PAGE, REPORT_PAGE, linked
from lmdyn.cli.pages.observer_section import (
    DrawnSection,
    Find,
    ObserverSection,
    card,
    data_of,
    draw_parts,
    figure_rows,
    known_observer,
)
from lmdyn.cli.recorded_observers import recorded_observer
from lmdyn.cli.trust.folders import check_folder
from lmdyn.runs.atomic_files import make_writable, write_file
from lmdyn.runs.provenance import Settings, read_record
from lmdyn.runs.schema import IF_KNOWN
from lmdyn.runs.yaml_files import read_yaml

_NO_SETTINGS = ("probe_set", "train_set", "references", "previous")
_FEWEST_VALUES = 10_000  # minimum for the chart of an observer of one of many runs

_Shared = Mapping[Path, DrawnObservations]  # the observations of each run by one observer


def only_run(folder: Path) -> Path:
    """Return a folder of a run; of a folder without observations, the only run in it, up to three folders down.

    Raises:
        ValueError: if it contains several runs.
    """
    if any((folder / name).exists() for name in ("observations", "config.yaml", "test.json")):
        return folder
    found = {p.parent for depth in ("*", "*/*", "*/*/*") for p in folder.glob(f"{depth}/observations")}
    # a folder within a run holds what the run replaced when it was continued
    below = sorted(path for path in found if found.isdisjoint(path.parents))
    if len(below) > 1:
        more = f" and {len(below) - 5} more" if len(below) > 5 else ""
        raise ValueError(
            f"{folder} contains {len(below)} runs: give runs to draw, such as {', '.join(map(str, below[:5]))}{more}"
        )
    return below[0] if below else folder


@many_objects()
def write_report(
    runs: Sequence[Path], out: Path, *, untrusted: bool = False, every_step: bool = False
) -> Path:
    """Write ``<out>/index.html``, self-contained, and each figure as ``<out>/<observer>_<figure>.{png,svg}``.

    Observers may have a further static method in addition to ``figures``: ``tables(observations, settings)`` returns
    data frames by name; each is a table of the page, and ``<out>/<observer>_<name>.csv`` in full precision.

    Observers with ``several_runs`` are drawn once for all runs that they observed; observations then have a column
    ``run``, the run's folder. Reports of several runs have a table of what their
    conditions differ in, ``<out>/configurations.csv``.

    A file of observations names its observer, which is imported only if it is one of lmdyn's, was imported before,
    or is in the run's ``config.yaml``; for others the page has the numbers, and states why there are no figures.

    Args:
        runs: run folders; those with a ``test.json`` (``lmdyn test``) give a row of a table, with or without
            observations.
        out: folder of the report; created if necessary.
        untrusted: whether to import nothing that the runs' ``config.yaml`` name, and to refuse links out of
            their folders.
        every_step: whether to draw all observations.

    Returns:
        The path of the page.

    Raises:
        FileNotFoundError: for a folder without observations.
        UnwritableError: if ``out`` cannot be written.
    """
    for run in runs:
        check_folder(run, received=untrusted)
    tested = [run for run in runs if (run / "test.json").is_file()]
    observed = [run for run in runs if run not in tested or (run / "observations").is_dir()]
    most = None if every_step else MOST_STEPS
    drawn = {run: _observed(run, most) for run in observed}  # before anything is written
    make_writable(out, "choose another folder with --out")
    names, several = overview.run_names(runs), len(observed) > 1
    find = cache(partial(recorded_observer, untrusted=untrusted))
    shared: dict[str, dict[Path, DrawnObservations]] = {}
    for run, every in drawn.items():
        for one in every:
            shared.setdefault(one.folder.name, {})[run] = one
    together = [name for name, of_runs in shared.items() if _drawn_together(of_runs, find)]
    prefix = {run: f"{names[run]}_".replace("/", "_") if several else "" for run in observed}
    most_values = max(MOST_VALUES // max(len(observed), 1), _FEWEST_VALUES)
    made: dict[Path, dict[str, DrawnSection]] = {run: {} for run in observed}
    for run, every in drawn.items():
        for one in every:
            name = one.folder.name
            base = out / f"{prefix[run]}{name}"
            made[run][name] = ObserverSection(one, base, name in together, find, most_values).make()
    more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
    title = ", ".join(names[run] for run in runs[:3]) + more
    mixed = _mixed(shared)
    condition = overview.conditions({names[run]: run for run in observed})
    final = overview.final_table({names[run]: of_run for run, of_run in made.items()}, condition, mixed)
    facts = {names[run]: overview.known_facts(run, list(made.get(run, {}).values())) for run in runs}
    cards: dict[Place, str] = {}
    if with_loss := {name for of_run in made.values() for name, one in of_run.items() if one.loss}:
        sections = {names[run]: one for run, of_run in made.items() for one in of_run.values() if one.loss}
        mixed_loss = mixed & with_loss
        cards[Place("loss", "loss")] = _card("loss", "loss", sections, condition, mixed_loss, quantity="loss")
    found = {name for of_run in made.values() for name, one in of_run.items() if one.learned}
    # cards without a finding come last
    for name, of_runs in sorted(shared.items(), key=lambda item: item[0] not in found):
        sections = {names[run]: made[run][name] for run in of_runs}
        words = name.replace("_", " ")
        if not several:
            (section,) = sections.values()
            cards[Place(section.anchor, words)] = section.html
        elif len(of_runs) > 1:
            place = Place(f"together {name}", f"{words}, all runs")
            more = _of_all_runs(name, of_runs, out, find if name in together else None)
            cards[place] = _card(*place[:2], sections, condition, mixed & {name}, more=more)
    below: dict[Place, str] = {}
    if len(runs) > 1:
        configurations = part("section", "configurations", "", _configurations(names, out))
        below[Place("configurations", "configurations")] = configurations
    for run, of_run in made.items():
        body = part("cards", "".join(one.html for one in of_run.values())) if several else ""
        if (run / "config.yaml").exists():
            body += part("folded", "config.yaml", _tidy_yaml(run))
        place = Place(f"run {names[run]}", names[run] if several else "configuration")
        if body and several:
            below[place] = part("section", place.anchor, "", part("folded", place.title, rows=body))
        elif body:
            below[place] = part("section", *place[:2], body)
    if tested:
        below[Place("test", "test")] = _test_table({names[run]: run for run in tested})
    pages = (CLAIMS_PAGE, PHASES_PAGE)
    beside = [Place(Path(p).stem, Path(p).stem) for p in pages if (out / p).is_file()]
    contents = [Place("top", "overview"), *beside, *cards, *below]
    top = part(
        "top", title, overview.trained(facts), "".join(cards.values()), overview.facts_table(facts), final
    )
    parts = [top, *(linked(out, p) for p in pages), *below.values()]
    path = out / REPORT_PAGE
    # names may hold halves of characters
    whole = page(f"lmdyn: {title}", parts, contents).encode("utf-8", "replace")
    write_file(path, lambda unfinished: unfinished.write_bytes(whole))
    return path


def _observed(run: Path, most: int | None) -> list[DrawnObservations]:
    """Return the observations of a run."""
    found = drawn_observations(run, most)
    if not found:
        raise FileNotFoundError(
            f"{run} has no observations: expected {run / 'observations'}/<observer>/*.parquet; "
            "run `lmdyn analyze` to create observations"
        )
    return sorted(found, key=lambda one: not one.store.about().get("observer", "").endswith("LearningCurves"))


def _drawn_together(of_runs: _Shared, find: Find) -> bool:
    """Return whether one observer draws the observations of several runs together."""
    kinds = {known_observer(one, find) for one in of_runs.values()} if len(of_runs) > 1 else set()
    return len(kinds) == 1 and bool(getattr(kinds.pop(), "several_runs", False))


def _mixed(shared: Mapping[str, _Shared]) -> set[str]:
    """Return the observers whose settings differ between runs: their numbers have no mean."""
    mixed = set()
    for name, of_runs in shared.items():
        about = [one.store.about() for one in of_runs.values()]
        settings = [{**one["settings"], "observer": one["observer"]} for one in about]
        if _different_settings(settings, (*_NO_SETTINGS, "seed")):
            mixed.add(name)
    return mixed


def _card(
    anchor: str,
    title: str,
    sections: Mapping[str, DrawnSection],
    condition: Mapping[str, str],
    mixed: Collection[str],
    *,
    quantity: str = "",
    more: str = "",
) -> str:
    """Return the card of an observer of several runs.

    Args:
        anchor: its place in the page.
        title: its title.
        sections: the observer's section of each run.
        condition: the condition of each run: runs of one condition differ in seeds.
        mixed: observers whose settings differ between runs: these have no means.
        quantity: name of a quantity instead of the headline.
        more: what is folded.
    """
    several = len(sections) > 1
    named = {run: "" if not several else run if mixed else condition[run] for run in sections}
    sources = [
        {
            "data": data_of(one.anchor),
            "run": run if several else "",
            "independent": not condition[run].endswith(("seed)", "seeds)")),
            "condition": named[run],
        }
        for run, one in sections.items()
    ]
    found = _mean_finding(list(sections.values()), quantity)
    if several and found:
        seeds = re.search(r"\(\d+ seeds?\)$", next(iter(named.values())))
        number = f"{sum(map(_measured, sections.values()))} runs{f' {seeds[0]}' if seeds else ''}"
        mean = f"The next numbers are means of {number}. {found.sentence}"
        found = replace(found, sentence=mean if len(set(named.values())) == 1 else _NO_MEAN)
    begin = {"begin": found.begin} if found else {}
    return card(anchor, title, found, part("chart", [one | begin for one in sources], title), more)


_NO_MEAN = (
    "lmdyn computes no mean, since the runs differ in more than their seeds (see configurations). Each condition has a "
    "separate line."
)


def _mean_finding(sections: Sequence[DrawnSection], quantity: str = "") -> Finding | None:
    """Return the finding of the mean over runs, at the steps that all have."""
    tables = [one.scalars for one in sections if one.scalars is not None and _measured(one)]
    if not tables:
        return None
    rows = pd.concat(tables)
    rows = rows[np.isfinite(rows["value"])]
    keys = [c for c in rows if c not in ("value", "tokens", *IF_KNOWN)]
    of_all = rows.groupby(keys, dropna=False, observed=True)["value"].transform("size") == len(tables)
    return finding(rows[of_all], sections[0].recorded, quantity) if of_all.any() else None


def _measured(section: DrawnSection) -> bool:
    """Return whether a section has any finite number of those that are told."""
    return section.scalars is not None and bool(np.isfinite(section.scalars["value"]).any())


def _of_all_runs(
    name: str,
    of_runs: _Shared,
    out: Path,
    find: Find | None,
) -> str:
    """Return what is folded of all runs: differences, and figures if ``find`` names an observer that draws them."""
    settings = [one.store.about()["settings"] for one in of_runs.values()]
    different = _different_settings(settings, _NO_SETTINGS)
    said = "; ".join(f"{name}: {', '.join(values)}" for name, values in different.items())
    data = [{name: one.get(name) for name in ("probe_set", "train_set")} for one in settings]
    told = part("differently", said, ", ".join(_different_settings(data)))
    if find is None:
        return told
    observer = find(next(iter(of_runs.values())).folder)

    def read(rows: Any = None) -> pd.DataFrame:
        return pd.concat(
            [one.read(rows).assign(run=str(run)) for run, one in of_runs.items()], ignore_index=True
        )

    drawings = draw_parts(observer, partial(read, figure_rows(observer)), read, settings[0], out / name)
    return told + part("folded", "All figures and tables", rows="".join(drawings))


def _different_settings(settings: Sequence[Settings], but: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return settings that differ between runs, with their values, as JSON."""
    names = dict.fromkeys(name for one in settings for name in one if name not in but)
    values = {n: list(dict.fromkeys(json.dumps(one.get(n)) for one in settings)) for n in names}
    return {name: found for name, found in values.items() if len(found) > 1}


def _configurations(names: Mapping[Path, str], out: Path) -> str:
    """Return the differences between the conditions of the runs: model, data and trainer; empty if none is known."""
    known = {name: overview.known_run(run)[0] for run, name in names.items()}
    if not any(known.values()):
        return ""
    table = pd.DataFrame(list(known.values()), dtype=object)
    table = table[[c for c in table if c == "model" or len({repr(value) for value in table[c]}) > 1]]
    table.insert(0, "run", list(known))
    return f"<h2>configurations</h2>{csv_table(table, out / 'configurations.csv', 'conditions of the runs')}"


def _test_table(runs: Mapping[str, Path]) -> str:
    """Return the results of ``lmdyn test``, a row for each run."""
    numbers = {name: read_record(run / "test.json") for name, run in runs.items()}
    every = (item for one in numbers.values() for item in one.items())
    metrics = dict.fromkeys(name for name, value in every if isinstance(value, float))
    head = ["run", *(name.removeprefix("test_") for name in metrics)]
    rows = [[run, *map(one.get, metrics)] for run, one in numbers.items()]
    return part("section", "test", "test", html_table(head, rows))


def _tidy_yaml(run: Path) -> str:
    try:
        content = read_yaml(run / "config.yaml")
        return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    except ValueError as error:
        return str(error)
