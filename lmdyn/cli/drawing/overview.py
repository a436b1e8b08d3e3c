"""The top of a report: model, data and training, and final results."""

import html
import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lmdyn.callbacks.observing.figures import short_names
from lmdyn.claims.runs import RunFolder
from lmdyn.cli.drawing.page import html_table
from lmdyn.cli.studies.provenance import read_provenance

__all__ = ["conditions", "final_table", "known_facts", "run_names", "runs_table", "sheet"]

_MOST_ARGUMENTS = 8
_MOST_NUMBERS = 8  # per observer
_MOST_RUNS = 6  # columns of a table
_VERSIONED = re.compile(
    r"version_\d+"
)  # Lightning's name of a folder, which says nothing without the one above


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


def known_facts(run: Path, last: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the known facts of a run, by name: model, parameters, optimizer, data, updates, tokens, seed, origin.

    Args:
        run: folder of the run; ``config.yaml`` and ``provenance.json`` may be missing.
        last: for each observer ``step`` and ``tokens`` of its last observation.
    """
    folder, facts = RunFolder(run), {}
    condition: Mapping[str, Any] = {}
    session: Mapping[str, Any] = {}
    with suppress(ValueError):  # the section of the configuration reports the error
        condition = folder.condition
    with suppress(ValueError):
        sessions = read_provenance(run)["sessions"]
        session = next((s for s in sessions if "ended" in s), sessions[0] if sessions else {})
    for name, argument in (("model", "model"), ("optimizer", "model.optimizer"), ("data", "data")):
        if argument in condition:
            facts[name] = f"{condition[argument]}{_arguments(condition, argument)}"
    if isinstance(parameters := session.get("parameters"), int):
        facts["parameters"] = f"{parameters:,}"
    steps = [one["step"] for one in last]
    tokens = [one["tokens"] for one in last if one["tokens"]]
    if steps:
        facts["updates"] = f"{max(steps):,}"
    if tokens:
        facts["tokens"] = f"{max(tokens):,}"
    with suppress(ValueError):
        if (seeds := str(folder.seeds)) != "?":
            facts["seed"] = seeds
    if made := _made(session):
        facts["computed"] = made
    return facts


def _arguments(condition: Mapping[str, Any], of: str) -> str:
    """Return plain arguments of a class in brackets, without those of nested classes."""
    begin = f"{of}."
    within = [
        name
        for name in condition
        if name.startswith(begin) and any(other.startswith(f"{name}.") for other in condition)
    ]
    said = [
        f"{name.removeprefix(begin)} {value}"
        for name, value in condition.items()
        if name.startswith(begin)
        and not any(name == other or name.startswith(f"{other}.") for other in within)
        and not isinstance(value, bool)
        and value not in ("", 0, 0.0)
    ]
    more = [f"and {len(said) - _MOST_ARGUMENTS} more"] if len(said) > _MOST_ARGUMENTS else []
    return f" ({', '.join([*said[:_MOST_ARGUMENTS], *more])})" if said else ""


def _made(session: Mapping[str, Any]) -> str:
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


def sheet(facts: Mapping[str, str]) -> str:
    """Return the facts of one run."""
    rows = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in facts.items()
    )
    return f"<dl class='facts'>{rows}</dl>"


def runs_table(facts: Mapping[str, Mapping[str, str]]) -> str:
    """Return the facts of several runs, a row for each."""
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
        condition: Mapping[str, Any] = {}
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
            label = f"{label}, mean of {len(names)}" if label else f"mean of {len(names)} runs"
            different = len({name if seeds[name] == "?" else seeds[name] for name in names})
            if different < len(names):  # another run of the same seed is no independent one
                label += f" ({different} seed{'s' if different > 1 else ''})"
        if not label or label in taken:
            label = f"{label} with {names[0]}" if label else names[0]
        taken.add(label)
        found |= dict.fromkeys(names, label)
    return {name: found[name] for name in runs}


def final_table(
    numbers: Mapping[str, Mapping[str, Mapping[str, Any]]],
    of: Mapping[str, str] = MappingProxyType({}),
    mixed: Collection[str] = (),
) -> str:
    """Return the final numbers of runs: for each run, and for several that differ in seeds only mean and range.

    Args:
        numbers: by run and observer, ``step`` and ``numbers`` of its last observation.
        of: the condition of each run, see :func:`conditions`.
        mixed: observers with different settings in different runs: they have no means.
    """
    if len(numbers) == 1:
        (of_run,) = numbers.values()
        return _of_one(of_run)
    alike: dict[str, list[str]] = {}
    for run in numbers:
        alike.setdefault(of.get(run, run), []).append(run)
    single = list(numbers) if len(numbers) <= _MOST_RUNS else []
    several = [name for name, runs in alike.items() if len(runs) > 1 or not single]
    if len(several) > _MOST_RUNS:
        several, alike = ["all runs"], {"all runs": list(numbers)}
    rows = []
    for observer in dict.fromkeys(name for of_run in numbers.values() for name in of_run):
        known = {
            run: {(one["label"], one["of"]): one for one in of_run[observer]["numbers"]}
            for run, of_run in numbers.items()
            if observer in of_run
        }
        for key in list(next((there for there in known.values() if there), {}))[:_MOST_NUMBERS]:
            there = {run: one[key] for run, one in known.items() if key in one}
            cells = [_with_ends(there.get(run)) for run in single]
            means = [
                "different settings"
                if observer in mixed
                else _mean(
                    [there[run]["last"] for run in alike[name] if run in there],
                    [numbers[run][observer]["step"] for run in alike[name] if run in there],
                    len(alike[name]),
                )
                for name in several
            ]
            rows.append([observer, *key, *cells, *means, next(iter(there.values()))["better"]])
    head = ["observer", "number", "of", *single, *(f"{name} [range]" for name in several), "better"]
    return _told_once(head, rows) if rows else ""


def _with_ends(one: Mapping[str, Any] | None) -> str | float | None:
    if one is None or not one["kind"]:
        return None if one is None else float(one["last"])
    return f"{one['last']:.4g} {_ends(one)}"


def _mean(values: Sequence[float], steps: Sequence[int], runs: int) -> str:
    """Return mean and range; also the number of runs if some lack the value, and the steps if they differ."""
    if not values:
        return ""
    said = f"{sum(values) / len(values):.4g} [{min(values):.4g}, {max(values):.4g}]"
    if len(values) < runs:
        said += f", of {len(values)}"
    return said if min(steps) == max(steps) else f"{said}, at steps {min(steps):,} to {max(steps):,}"


def _of_one(observers: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        [observer, one["label"], one["of"], one["first"], one["last"], _ends(one), one["better"]]
        for observer, last in observers.items()
        for one in last["numbers"][:_MOST_NUMBERS]
    ]
    if not rows:
        return ""
    head = ["observer", "number", "of", "first observation", "last", "error or interval", "better"]
    return _told_once(head, rows)


def _told_once(head: Sequence[str], rows: list[list[Any]]) -> str:
    """Return a table whose first column names each observer once, without empty columns."""
    names = [row[0] for row in rows]
    rows = [
        ["" if i and name == names[i - 1] else name, *row[1:]]
        for i, (name, row) in enumerate(zip(names, rows, strict=True))
    ]
    there = [i for i in range(len(head)) if any(row[i] not in ("", None) for row in rows)]
    return html_table([head[i] for i in there], [[row[i] for i in there] for row in rows])


def _ends(one: Mapping[str, Any]) -> str:
    if one["kind"] == "error":
        return f"± {one['high'] - one['last']:.2g}"
    return f"[{one['low']:.4g}, {one['high']:.4g}]" if one["kind"] else ""
