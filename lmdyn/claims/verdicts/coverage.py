"""Which claims of a study can be answered by what runs have recorded, and which observers would measure the others."""

from collections import Counter
from collections.abc import Collection, Mapping
from inspect import signature
from typing import Any

import yaml
from rich.table import Table

from lmdyn.claims.recorded import public_class
from lmdyn.claims.rows import OneOf, Rows, Source, parts_of
from lmdyn.claims.verdicts.tables import Judged
from lmdyn.claims.verdicts.words import slug
from lmdyn.runs.observed_run import NotMeasured, by_seed

__all__ = ["coverage_table", "lacking_sources", "observers_yaml"]


def lacking_sources(one: Judged, elsewhere: Collection[str] = ()) -> dict[Source, list[str]]:
    """Return what no seed of the runs has recorded, with the names of the claims that read it.

    Args:
        one: the judged runs.
        elsewhere: claims that other runs answer.
    """
    groups = by_seed(one.profile.runs).values()
    found: dict[Source, list[str]] = {}
    for row in one.judgement:
        if row.verdict == "not measured" and row.claim.name not in elsewhere:
            parts: tuple[Any, ...] = (*row.claim.parts, *row.claim.void_unless)
            for source in dict.fromkeys(source for part in parts for source in parts_of(part.number)):
                if not any(_has(runs, source) for runs in groups):
                    found.setdefault(source, []).append(row.claim.name)
    return found


def _has(runs: Any, source: Source) -> bool:
    try:
        run, folder = source.locate(runs)
        return not isinstance(source, Rows) or len(run.read(folder, quantities=(source.quantity,))) > 0
    except NotMeasured:
        return False


def coverage_table(one: Judged, lacking: Mapping[Source, list[str]]) -> Table:
    """Return a row for each observer: its claims, those that are answered, and what would measure the others."""
    claims, answered = Counter[str](), Counter[str]()
    for row in one.judgement:
        parts: tuple[Any, ...] = (*row.claim.parts, *row.claim.void_unless)
        observers = sorted({name.partition("/")[0] for part in parts for name in part.number.reads()})
        claims.update(observers)
        answered.update(observers if row.verdict != "not measured" else ())
    columns = ("observer", "claims", "answered", "other claims require (--write FILE.yaml)")
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for observer, number in claims.items():
        own = {s: s.described() for s in lacking if s.names()[0].startswith(f"{observer}/")}
        # of an observer that is there, its quantity
        words = (s.names()[0] if answered[observer] and told == observer else told for s, told in own.items())
        needed = list(dict.fromkeys(words))
        more = f"; and {len(needed) - 2} more" if len(needed) > 2 else ""
        table.add_row(observer, str(number), str(answered[observer]), "; ".join(needed[:2]) + more)
    return table


def observers_yaml(study: str, lacking: Mapping[Source, list[str]]) -> str:
    """Return a yaml for ``analyze`` with the observers that would record what is lacking."""
    lines = [f"# Observers for claims of {study} that are not measured: lmdyn analyze RUN --config THIS_FILE"]
    callbacks: list[dict[str, Any]] = []
    for source in lacking:
        if not isinstance(source, Rows):  # a test
            lines.append(f"# {source.described()}")
            continue
        cls = public_class(f"lmdyn.callbacks.{source.observer}")
        arguments = {} if cls is None else signature(cls).parameters
        init: dict[str, Any] = {}
        for key, value in (*source.settings, *source.run, *source.where):
            one = value.values[0] if isinstance(value, OneOf) else value
            if key in arguments and (key, value) not in source.where:
                init[key] = list(one) if isinstance(one, tuple) else one
            elif key == "reference" or (key, value) not in source.where:
                lines.append(f"# {source.observer}, {key}: {one}")
        if init or source.name:
            init["name"] = source.name or slug(f"{source.observer} {init}").lower()
        entry = {"class_path": source.observer, "init_args": {"schedule": {"per_decade": 4}, **init}}
        callbacks += [entry] if entry not in callbacks else []
    text = yaml.safe_dump({"trainer": {"callbacks": callbacks}}, sort_keys=False)
    return "\n".join([*dict.fromkeys(lines), text])
