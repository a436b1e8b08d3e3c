"""One self-contained page of figures from the observations of a run."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from lmdyn.callbacks.observing.figures import MOST_STEPS
from lmdyn.cli.pages.chart_data import MOST_VALUES
from lmdyn.cli.pages.drawn_observations import DrawnObservations, drawn_observations
from lmdyn.cli.pages.html_parts import Place, csv_table, html_table, many_objects, page, part
from lmdyn.cli.pages.linked_pages import CLAIMS_PAGE, PHASES_PAGE, REPORT_PAGE, linked
from lmdyn.cli.pages.observer_section import (
    DrawnSection,
    Find,
    ObserverSection,
    ReadOnce,
    data_of,
    draw_parts,
    known_observer,
)
from lmdyn.cli.pages.overview import conditions, facts_table, final_table, known_facts, run_names, trained
from lmdyn.cli.pages.sentences import Finding, card, finding
from lmdyn.cli.recorded_observers import recorded_observer
from lmdyn.cli.trust.folders import check_folder
from lmdyn.runs.atomic_files import make_writable, write_file
from lmdyn.runs.observed_run import RunFolder
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
            f"{folder} contains {len(below)} runs: give those to draw, such as {', '.join(map(str, below[:5]))}{more}"
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
    names, several = run_names(runs), len(observed) > 1
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
            section = ObserverSection(one, run, base, name in together, find, most_values)
            made[run][name] = section.make()
    more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
    title = ", ".join(names[run] for run in runs[:3]) + more
    mixed, condition = _mixed(shared), conditions({names[run]: run for run in observed})
    of_all = conditions({name: run for run, name in names.items()})
    final = final_table({names[run]: of_run for run, of_run in made.items()}, of_all, mixed)
    facts = {names[run]: known_facts(run, list(made.get(run, {}).values())) for run in runs}
    pages = (CLAIMS_PAGE, PHASES_PAGE)
    beside = [Path(p).stem for p in pages if (out / p).is_file()]
    contents = [Place("top", "overview"), *(Place(name, name) for name in beside)]
    cards_of = _Together(names, condition, made, mixed)
    cards = [cards_of.loss()]
    contents += [Place("loss", "loss")] if cards[0] else []
    for name, of_runs in shared.items() if several else ():
        if len(of_runs) > 1:
            contents.append(Place(f"together {name}", f"{name.replace('_', ' ')}, all runs"))
            more = _of_all_runs(name, of_runs, out, find if name in together else None)
            cards.append(cards_of.observer(name, of_runs, more))
    if not several:
        cards += [one.html for of_run in made.values() for one in of_run.values()]
    top = part("top", title, trained(facts), "".join(cards), facts_table(facts), final)
    parts = [top, *(linked(out, p) for p in pages)]
    if len(runs) > 1:
        contents.append(Place("configurations", "configurations"))
        parts.append(part("section", "configurations", "", _configurations(names, out)))
    for run in observed:
        body = part("cards", "".join(one.html for one in made[run].values())) if several else ""
        inner = [Place(one.anchor, name.replace("_", " "), several) for name, one in made[run].items()]
        if (run / "config.yaml").exists():
            anchor = f"configuration {names[run]}"
            body += part("heading", anchor, "configuration") + part("folded", "config.yaml", _tidy_yaml(run))
            inner.append(Place(anchor, "configuration", several))
        contents += [*([Place(f"run {names[run]}", names[run])] if several else []), *inner]
        parts.append(
            part("run" if several else "section", f"run {names[run]}", names[run] if several else "", body)
        )
    if tested:
        contents.append(Place("test", "test"))
        parts.append(_test_table({names[run]: run for run in tested}))
    path = out / REPORT_PAGE
    # names may hold halves of characters
    whole = page(f"lmdyn: {title}", parts, contents).encode("utf-8", "replace")
    write_file(path, lambda unfinished: unfinished.write_bytes(whole))
    return path


def _observed(run: Path, most: int | None) -> list[DrawnObservations]:
    """Return the observations of a run."""
    if not run.exists():
        raise FileNotFoundError(
            f"there is no {run}: expected the folder of a run, which contains observations/"
        )
    found = drawn_observations(run, most)
    if not found:
        raise FileNotFoundError(
            f"{run} has no observations: expected {run / 'observations'}/<observer>/*.parquet; "
            "`lmdyn analyze` creates them"
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


@dataclass(frozen=True)
class _Together:
    """Cards of all runs of a report.

    Attributes:
        names: names of the runs.
        condition: the condition of each name: runs of one condition differ in seeds.
        made: sections of each run, by observer.
        mixed: observers whose settings differ between runs: they have no means.
    """

    names: Mapping[Path, str]
    condition: Mapping[str, str]
    made: Mapping[Path, Mapping[str, DrawnSection]]
    mixed: Set[str]

    def loss(self) -> str:
        """Return the card of the loss of the runs that recorded it; empty if none did."""
        found = {run: (name, one) for run, of in self.made.items() for name, one in of.items() if one.loss}
        sections = {run: one for run, (_, one) in found.items()}
        if not found:
            return ""
        return self._card("loss", "loss", sections, {name for name, _ in found.values()}, "loss")

    def observer(self, name: str, runs: Collection[Path], more: str) -> str:
        """Return the card of an observer of several runs."""
        sections = {run: self.made[run][name] for run in runs}
        return self._card(f"together {name}", f"{name}, all runs", sections, {name}, more=more)

    def _card(
        self,
        anchor: str,
        title: str,
        sections: Mapping[Path, DrawnSection],
        observers: Collection[str],
        quantity: str = "",
        more: str = "",
    ) -> str:
        mixed = not self.mixed.isdisjoint(observers)
        several = len(sections) > 1
        sources = [
            {
                "data": data_of(one.anchor),
                "run": self.names[run] if several else "",
                "independent": not self.condition[self.names[run]].endswith(("seed)", "seeds)")),
                "condition": (self.names[run] if mixed else self.condition[self.names[run]])
                if several
                else "",
            }
            for run, one in sections.items()
        ]
        found = _mean_finding(list(sections.values()), quantity)
        if several and found:
            mean = len({one["condition"] for one in sources}) == 1
            recorded_by = sum(_measured(one) for one in sections.values())
            seeds = re.search(r"\(\d+ seeds?\)$", str(sources[0]["condition"]))
            said = f"Mean of {recorded_by} runs{f' {seeds[0]}' if seeds else ''}. {found.sentence}"
            found = replace(
                found,
                sentence=said if mean else _NO_MEAN.format("settings" if mixed else _different(sections)),
            )
        begin = {"begin": found.begin} if found else {}
        return card(anchor, title, found, part("chart", [one | begin for one in sources], title), more)


_NO_MEAN = (
    "These runs have no mean, since they differ in {}, not only in seeds. Each condition has its own line."
)


def _different(runs: Collection[Path]) -> str:
    """Return three of the entries in which the conditions of runs differ."""
    known = pd.DataFrame(list(_known_conditions(runs)), dtype=object)
    names = [str(c).rpartition(".")[2] for c in known if len({repr(value) for value in known[c]}) > 1]
    return ", ".join(dict.fromkeys(names[:3])) or "models or data"


def _known_conditions(runs: Collection[Path]) -> Iterator[Mapping[str, Any]]:
    for run in runs:
        condition: Mapping[str, Any] = {}
        with suppress(ValueError, FileNotFoundError):  # damaged; a run that was only tested
            condition = RunFolder(run).condition
        yield condition


def _mean_finding(sections: Sequence[DrawnSection], quantity: str = "") -> Finding | None:
    """Return the finding of the mean over runs, at the steps that all have."""
    tables = [one.scalars for one in sections if one.scalars is not None and _measured(one)]
    if not tables:
        return None
    rows = pd.concat(tables)
    rows = rows[np.isfinite(rows["value"])]
    keys = [c for c in rows if c not in ("value", "tokens")]
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
    drawings = draw_parts(observer, ReadOnce(of_runs), settings[0], out / name)
    return told + part("folded", "All figures and tables", rows="".join(drawings))


def _different_settings(
    settings: Sequence[Mapping[str, Any]], but: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Return settings that differ between runs, with their values, as JSON."""
    names = dict.fromkeys(name for one in settings for name in one if name not in but)
    values = {n: list(dict.fromkeys(json.dumps(one.get(n)) for one in settings)) for n in names}
    return {name: found for name, found in values.items() if len(found) > 1}


def _configurations(names: Mapping[Path, str], out: Path) -> str:
    """Return the differences between the conditions of the runs: model, data and trainer; empty if none is known."""
    known = dict(zip(names.values(), _known_conditions(names), strict=True))
    if not any(known.values()):
        return ""
    table = pd.DataFrame(list(known.values()), dtype=object)
    table = table[[c for c in table if c == "model" or len({repr(value) for value in table[c]}) > 1]]
    table.insert(0, "run", list(known))
    return f"<h2>configurations</h2>{csv_table(table, out / 'configurations.csv', 'conditions of the runs')}"


def _test_table(runs: Mapping[str, Path]) -> str:
    """Return the results of ``lmdyn test``, a row for each run."""
    numbers = {name: _tested(run / "test.json") for name, run in runs.items()}
    found = (item for one in numbers.values() for item in one.items())
    metrics = list(dict.fromkeys(name for name, value in found if isinstance(value, float)))
    head = ["run", *(name.removeprefix("test_") for name in metrics)]
    rows = [[run, *(one.get(name) for name in metrics)] for run, one in numbers.items()]
    return f"{part('heading', 'test', 'test')}{html_table(head, rows)}"


def _tested(path: Path) -> dict[str, Any]:
    """Return the content of a file of ``lmdyn test``."""
    try:
        numbers = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(numbers, dict):
            return numbers
        why = "contains no numbers by name"
    except (ValueError, RecursionError) as error:
        why = f"cannot be read ({error})"
    raise ValueError(f"{path} {why}: remove it; `lmdyn test` writes it again")


def _tidy_yaml(run: Path) -> str:
    try:
        content = read_yaml(run / "config.yaml")
        return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    except ValueError as error:
        return str(error)
