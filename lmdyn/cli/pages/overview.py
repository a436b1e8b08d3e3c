"""The top of a report: model, data and training, and final results."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from os.path import commonprefix
from pathlib import Path

import pandas as pd

from lmdyn.callbacks.observing.figures import short_names
from lmdyn.cli.pages.html_parts import frame_table, html_table
from lmdyn.cli.pages.observer_section import DrawnSection
from lmdyn.runs.observed_run import RunFolder
from lmdyn.runs.provenance import Settings, read_provenance, read_record

_MOST_ARGUMENTS = 8
_MOST_NUMBERS = 8  # per observer
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


def known_run(run: Path) -> tuple[Settings, str]:
    """Return the condition of a run and its seeds, as far as its files say; the page reports damaged ones elsewhere."""
    condition: Settings = {}
    seeds = "?"
    with suppress(ValueError, FileNotFoundError):
        folder = RunFolder(run)
        condition = folder.condition
        seeds = str(folder.seeds)
    return condition, seeds


def known_facts(run: Path, drawn: Sequence[DrawnSection]) -> dict[str, str]:
    """Return the known facts of a run, by name: model, parameters, optimizer, data, updates, tokens, seed, origin.

    Where steps count words, ``words`` takes the place of ``updates``.

    Args:
        run: folder of the run; ``config.yaml`` and ``provenance.json`` may be missing.
        drawn: sections of its observers.
    """
    condition, seeds = known_run(run)
    facts = {} if seeds == "?" else {"seed": seeds}
    session: Settings = {}
    described: Settings = {}
    with suppress(ValueError):
        described = read_record(run / "run.json")
    with suppress(ValueError):
        sessions = read_provenance(run)["sessions"]
        session = next((s for s in sessions if "ended" in s), sessions[0] if sessions else {})
    for name, argument in (("model", "model"), ("optimizer", "model.optimizer"), ("data", "data")):
        if condition.get(argument, "list") != "list":  # a list of batches does not say what the data is
            facts[name] = f"{condition[argument]}{_arguments(condition, argument)}"
    model, data = described.get("model"), described.get("data")
    configured = (run / "config.yaml").exists()
    if "data" in facts and not configured and isinstance(data, Mapping) and "train" not in data:
        facts["data"] = f"observed on {facts['data']}"  # the training data is unknown
    of_model = model.get("parameters") if isinstance(model, Mapping) else None  # of a replay
    if isinstance(parameters := session.get("parameters", of_model), int):
        facts["parameters"] = f"{parameters:,}"
    if steps := [one.step for one in drawn]:
        facts["words" if any(one.unit == "words" for one in drawn) else "updates"] = f"{max(steps):,}"
    if tokens := [one.tokens for one in drawn if one.tokens]:
        facts["tokens"] = f"{max(tokens):,}"
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
        said.append(f"{seconds / 60:.3g} min")
    versions = session.get("versions")
    of = versions if isinstance(versions, Mapping) else {}
    said += [str(session[name]) for name in ("device", "processor") if session.get(name)]
    said += [f"{name} {of[name]}" for name in ("lmdyn", "torch") if name in of]
    return ", ".join(said)


def trained(facts: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return what was trained, in two lines: of several runs, what they have in common, and their seeds."""
    short = [{name: fact.partition(" (")[0] for name, fact in one.items()} for one in facts.values()]
    known = {name: fact for name, fact in short[0].items() if all(one.get(name) == fact for one in short)}
    counts = ("parameters", "updates", "words", "tokens")
    words = {"seed": "seed {}", **{name: f"{{}} {name}" for name in counts}}
    if seeds := dict.fromkeys(one["seed"] for one in short[1:] and short if "seed" in one):
        words["seed"] = f"{len(short)} runs with the seeds {{}}"
        known["seed"] = ", ".join(seeds)
    lines = ("model", "parameters", "data"), ("updates", "words", "tokens", "seed", "optimizer")
    said = [", ".join(words.get(n, "{}").format(known[n]) for n in names if n in known) for names in lines]
    return [line for line in said if line]


def facts_table(facts: Mapping[str, Mapping[str, str]]) -> str:
    """Return the facts of runs, a row for each."""
    counts = ["parameters", "updates", "words", "tokens"]
    names = ["run", "model", "optimizer", "data", *counts, "seed", "computed"]
    rows = [{"run": run, **one} for run, one in facts.items()]
    return frame_table(pd.DataFrame(rows, dtype=object).reindex(columns=names).dropna(axis=1, how="all"))


def conditions(runs: Mapping[str, Path]) -> dict[str, str]:
    """Return the conditions of runs by name: runs that differ only in seeds have the same condition.

    Example:
        >>> conditions({"lm_1": Path("nowhere"), "lm_2": Path("nowhere")})  # nobody knows what they were trained on
        {'lm_1': 'lm_1', 'lm_2': 'lm_2'}
    """
    alike: dict[str, list[str]] = {}
    seeds: dict[str, str] = {}
    for name, path in runs.items():
        condition, seeds[name] = known_run(path)
        alike.setdefault(json.dumps(dict(condition), sort_keys=True) if condition else name, []).append(name)
    found: dict[str, str] = {}
    taken: set[str] = set()
    for names in alike.values():
        label = re.sub(r"[\W_]*(version)?[\W_]*\d*$", "", commonprefix(names)) if len(names) > 1 else ""  # noqa: RUF071
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
    of: Mapping[str, str],
    mixed: Collection[str],
) -> str:
    """Return the final numbers of runs: for each run, and for several that differ in seeds mean and range.

    Args:
        drawn: sections by run and observer.
        of: the condition of each run, see :func:`conditions`.
        mixed: observers with different settings in different runs: they have no means.
    """
    rows = [
        {"observer": observer, "run": run, "step": section.step, **one._asdict()}
        for run, sections in drawn.items()
        for observer, section in sections.items()
        for one in section.numbers[:_MOST_NUMBERS]
    ]
    if not rows:
        return ""
    table = pd.DataFrame(rows, dtype=object).rename(
        columns={"label": "number", "first": "first observation", "spread": "error or interval"}
    )
    if len(drawn) == 1:
        return frame_table(table.drop(columns=["run", "step"]))
    found = []
    for key, numbers in table.groupby(["observer", "number", "of"], sort=False):
        cells = dict(zip(("observer", "number", "of"), key, strict=True))
        for condition in dict.fromkeys(map(of.get, drawn)):
            runs = [run for run in drawn if of.get(run) == condition]
            there = numbers[numbers["run"].isin(runs)]
            if len(there) > 1:
                mean = "different settings" if key[0] in mixed else _mean(there, len(runs))
                cells[f"{condition} [range]"] = mean
        found.append(cells | dict(zip(numbers["run"], numbers["last"], strict=True)))
    head = dict.fromkeys(name for row in found for name in row)
    return html_table(list(head), [[row.get(name) for name in head] for row in found])


def _mean(numbers: pd.DataFrame, runs: int) -> str:
    """Return mean and range, and the number of runs if some lack the value."""
    values, steps = numbers["last"], numbers["step"]
    said = f"{values.mean():.4g} [{values.min():.4g}, {values.max():.4g}]"
    if len(values) < runs:
        said += f", of {len(values)}"
    return said if steps.min() == steps.max() else f"{said}, at different steps"
