"""The top of a report: model, data and training, and final results."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lmdyn.callbacks.observing.figures import short_names
from lmdyn.cli.pages.final_numbers import FinalNumber
from lmdyn.cli.pages.html_parts import html_table, part
from lmdyn.cli.pages.observer_section import DrawnSection
from lmdyn.runs.observed_run import RunFolder
from lmdyn.runs.provenance import Settings, read_provenance, read_record

_MOST_ARGUMENTS = 8
_MOST_NUMBERS = 8  # per observer
_MOST_RUNS = 6  # columns of a table
# names of folders by Lightning and by WatchCallback, which say nothing without the one above
_VERSIONED = re.compile(r"version_\d+|lmdyn")


def run_names(runs: Sequence[Path]) -> dict[Path, str]:
    """Return the names of runs in a page: the end of each path, as much as is required for uniqueness.

    Example:
        >>> list(run_names([Path("/home/me/runs/quickstart/version_0")]).values())
        ['quickstart/version_0']
    """
    paths = {run: run.resolve() for run in runs}
    shortened = short_names([str(path) for path in paths.values()])
    names = {run: shortened[str(path)] for run, path in paths.items()}
    if len(names) == 1:
        ((run, name),) = names.items()
        names[run] = f"{paths[run].parent.name}/{name}" if _VERSIONED.fullmatch(name) else name
    return names


def known_facts(run: Path, drawn: Sequence[DrawnSection]) -> dict[str, str]:
    """Return the known facts of a run, by name: model, parameters, optimizer, data, updates, tokens, seed, origin.

    Args:
        run: folder of the run; ``config.yaml`` and ``provenance.json`` may be missing.
        drawn: sections of its observers.
    """
    folder, facts = RunFolder(run), {}
    condition: Settings = {}
    session: Settings = {}
    with suppress(ValueError):  # the section of the configuration reports the error
        condition = folder.condition
    with suppress(ValueError):
        sessions = read_provenance(run)["sessions"]
        session = next((s for s in sessions if "ended" in s), sessions[0] if sessions else {})
    for name, argument in (("model", "model"), ("optimizer", "model.optimizer"), ("data", "data")):
        if argument in condition:
            facts[name] = f"{condition[argument]}{_arguments(condition, argument)}"
    described = None
    with suppress(ValueError):
        described = read_record(run / "run.json").get("model")
    of_model = described.get("parameters") if isinstance(described, Mapping) else None  # of a replay
    if isinstance(parameters := session.get("parameters", of_model), int):
        facts["parameters"] = f"{parameters:,}"
    if steps := [one.step for one in drawn]:
        facts["updates"] = f"{max(steps):,}"
    if tokens := [one.tokens for one in drawn if one.tokens]:
        facts["tokens"] = f"{max(tokens):,}"
    with suppress(ValueError):
        if (seeds := str(folder.seeds)) != "?":
            facts["seed"] = seeds
    if made := _made(session):
        facts["computed"] = made
    return facts


def _arguments(condition: Settings, of: str) -> str:
    """Return plain arguments of a class in brackets, without those of nested classes."""
    own = {name.removeprefix(f"{of}."): v for name, v in condition.items() if name.startswith(f"{of}.")}
    nested = {name.rpartition(".")[0] for name in own}
    said = [
        f"{name} {value}"
        for name, value in own.items()
        if not any(name == other or name.startswith(f"{other}.") for other in nested & own.keys())
        and not isinstance(value, bool)
        and value not in ("", 0, 0.0)
    ]
    if len(said) > _MOST_ARGUMENTS:
        said[_MOST_ARGUMENTS:] = [f"and {len(said) - _MOST_ARGUMENTS} more"]
    return f" ({', '.join(said)})" if said else ""


def _made(session: Settings) -> str:
    said = []
    with suppress(KeyError, TypeError, ValueError):
        began = datetime.fromisoformat(session["began"])
        said.append(f"{began:%Y-%m-%d}")
        seconds = (datetime.fromisoformat(session["ended"]) - began).total_seconds()
        said.append(f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min")
    if session.get("device"):
        processor = session.get("processor")
        said.append(f"{session['device']} ({processor})" if processor else str(session["device"]))
    versions = session.get("versions")
    if isinstance(versions, Mapping):
        said += [f"{name} {versions[name]}" for name in ("lmdyn", "torch") if name in versions]
    if session.get("commit"):
        said.append(f"commit {str(session['commit'])[:10]}{' with changes' if session.get('dirty') else ''}")
    return ", ".join(said)


def trained(facts: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return what was trained, in two lines: of several runs, what they have in common, and their seeds."""
    several = [{name: re.sub(r" \(.*", "", fact) for name, fact in one.items()} for one in facts.values()]
    known = {name: fact for name, fact in several[0].items() if all(one.get(name) == fact for one in several)}
    seeds = list(dict.fromkeys(one["seed"] for one in several if "seed" in one))
    if len(several) > 1:
        known["seed"] = ", ".join(seeds)
    if known.get("data") == "list":  # of batches, which says nothing
        known["data"] = ""
    words = {"parameters": "{} parameters", "updates": "{} updates", "tokens": "{} tokens"}
    words["seed"] = "seed {}" if len(several) == 1 else f"{len(several)} runs with the seeds {{}}"
    said = {name: words.get(name, "{}").format(fact) for name, fact in known.items() if fact}
    lines: tuple[tuple[str, ...], ...] = (
        ("model", "parameters", "data"),
        ("updates", "tokens", "seed", "optimizer"),
        ("unknown",),
    )
    unknown = [name for name in ("model", "optimizer", "data") if not any(name in one for one in several)]
    if len(several) > 1 and unknown:  # else known, and equal or told apart
        said["unknown"] = f"Not recorded, and perhaps different in each run: {', '.join(unknown)}."
    return [line for names in lines if (line := ", ".join(said[name] for name in names if said.get(name)))]


def facts_table(facts: Mapping[str, Mapping[str, str]]) -> str:
    """Return the facts of runs, a row for each; those of a single one as a list."""
    if len(facts) == 1:
        return part("facts", next(iter(facts.values())))
    names = ("model", "data", "parameters", "updates", "tokens", "seed")
    there = [name for name in names if any(name in one for one in facts.values())]
    rows = [[run, *(re.sub(r" \(.*", "", one.get(name, "")) for name in there)] for run, one in facts.items()]
    return html_table(["run", *there], rows)


def conditions(runs: Mapping[str, Path]) -> dict[str, str]:
    """Return the conditions of runs by name: runs that differ only in seeds have the same condition.

    Example:
        >>> conditions({"lm_1": Path("nowhere"), "lm_2": Path("nowhere")})  # nobody knows what they were trained on
        {'lm_1': 'lm_1', 'lm_2': 'lm_2'}
    """
    alike: dict[str, list[str]] = {}
    seeds: dict[str, str] = {}
    for name, path in runs.items():
        condition: Settings = {}
        with suppress(ValueError, FileNotFoundError):
            condition = RunFolder(path).condition
            seeds[name] = str(RunFolder(path).seeds)
        alike.setdefault(json.dumps(dict(condition), sort_keys=True) if condition else name, []).append(name)
    found: dict[str, str] = {}
    taken: set[str] = set()
    for names in alike.values():
        same = next((i for i, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), None)
        label = re.sub(r"[\W_]*(version)?[\W_]*\d*$", "", names[0][:same]) if len(names) > 1 else ""
        if len(names) > 1:
            label = f"{label}, mean of {len(names)} runs" if label else f"mean of {len(names)} runs"
            different = len({name if seeds[name] == "?" else seeds[name] for name in names})
            if different < len(names):  # another run of the same seed is no independent one
                label += f" ({different} seed{'s' if different > 1 else ''})"
        if not label or label in taken:
            label = f"{label} with {names[0]}" if label else names[0]
        taken.add(label)
        found |= dict.fromkeys(names, label)
    return {name: found[name] for name in runs}


def final_table(
    drawn: Mapping[str, Mapping[str, DrawnSection]],
    of: Mapping[str, str] = MappingProxyType({}),
    mixed: Collection[str] = (),
) -> str:
    """Return the final numbers of runs: for each run, and for several that differ in seeds only mean and range.

    Args:
        drawn: sections by run and observer.
        of: the condition of each run, see :func:`conditions`.
        mixed: observers with different settings in different runs: they have no means.
    """
    if len(drawn) == 1:
        head = ["observer", "number", "of", "first observation", "last", "error or interval", "better"]
        rows = [
            [observer, one.label, one.of, one.first, one.last, _ends(one), one.better]
            for observer, section in next(iter(drawn.values())).items()
            for one in section.numbers[:_MOST_NUMBERS]
        ]
        return _told_once(head, rows)
    alike: dict[str, list[str]] = {}
    for run in drawn:
        alike.setdefault(of.get(run, run), []).append(run)
    single = list(drawn) if len(drawn) <= _MOST_RUNS else []
    several = {name: runs for name, runs in alike.items() if len(runs) > 1 or not single}
    if len(several) > _MOST_RUNS:
        several = {"all runs": list(drawn)}
    rows = []
    for observer in dict.fromkeys(name for of_run in drawn.values() for name in of_run):
        sections = {run: of_run[observer] for run, of_run in drawn.items() if observer in of_run}
        known = {run: {(n.label, n.of): n for n in section.numbers} for run, section in sections.items()}
        for key in list(next((there for there in known.values() if there), {}))[:_MOST_NUMBERS]:
            there = {run: numbers[key] for run, numbers in known.items() if key in numbers}
            means = [
                "different settings"
                if observer in mixed
                else _mean([(there[run].last, sections[run].step) for run in runs if run in there], len(runs))
                for runs in several.values()
            ]
            cells = [_with_ends(there.get(run)) for run in single]
            rows.append([observer, *key, *cells, *means, next(iter(there.values())).better])
    return _told_once(
        ["observer", "number", "of", *single, *(f"{n} [range]" for n in several), "better"], rows
    )


def _with_ends(one: FinalNumber | None) -> str | float | None:
    if one is None:
        return None
    return f"{one.last:.4g} {_ends(one)}" if one.kind else float(one.last)


def _mean(found: Sequence[tuple[float, int]], runs: int) -> str:
    """Return mean and range; also the number of runs if some lack the value, and the steps if they differ."""
    if not found:
        return ""
    values, steps = zip(*found, strict=True)
    said = f"{sum(values) / len(values):.4g} [{min(values):.4g}, {max(values):.4g}]"
    if len(values) < runs:
        said += f", of {len(values)}"
    return said if min(steps) == max(steps) else f"{said}, at steps {min(steps):,} to {max(steps):,}"


def _told_once(head: Sequence[str], rows: list[list[Any]]) -> str:
    """Return a table whose first column names each observer once, without empty columns; empty without rows."""
    if not rows:
        return ""
    names = [row[0] for row in rows]
    for row, before in zip(rows, ["", *names], strict=False):
        row[0] = "" if row[0] == before else row[0]
    there = [i for i in range(len(head)) if any(row[i] not in ("", None) for row in rows)]
    return html_table([head[i] for i in there], [[row[i] for i in there] for row in rows])


def _ends(one: FinalNumber) -> str:
    if one.kind == "error" and one.high is not None:
        return f"± {one.high - one.last:.2g}"
    return f"[{one.low:.4g}, {one.high:.4g}]" if one.kind else ""
