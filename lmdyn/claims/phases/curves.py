"""Curves of runs: one for each quantity, site and group that an observer recorded, over steps."""

import json
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import numpy as np
import pandas as pd

from lmdyn.callbacks.observing.loggers import scalar_tags
from lmdyn.runs.observed_run import ObservedRun
from lmdyn.runs.schema import group_columns

__all__ = ["curves_of", "one_of_each_seed"]

_NO_CURVES = ("learning_rate",)


def one_of_each_seed(runs: Sequence[ObservedRun]) -> tuple[list[ObservedRun], list[str]]:
    """Return the first run of each condition and seed, and sentences on the others: copies are no further seeds.

    A run of which the seed or the condition is not known counts as one of its own.
    """
    first: dict[tuple[str, str], ObservedRun] = {}
    known = set()
    for run in runs:
        condition, seeds = json.dumps(dict(run.condition), sort_keys=True), str(run.seeds)
        if run.condition:
            known.add(condition)
        first.setdefault((condition, seeds if run.condition and seeds != "?" else run.name), run)
    kept, said = list(first.values()), []
    if len(kept) < len(runs):
        said.append(f"lmdyn leaves out {len(runs) - len(kept)} runs, since other runs have the same seeds")
    if len(known) > 1:
        said.append(f"the runs differ in more than their seeds ({len(known)} conditions)")
    return kept, said


def curves_of(run: ObservedRun, select: Sequence[str] = ()) -> dict[str, "pd.Series[float]"]:
    """Return the curves of a run by name: values by step, without step 0 and without values that are not finite.

    The name is that of the logger's tag, ``<observer>/<quantity>/<site>/<groups>``.

    Args:
        run: run folder with ``observations/``, or a run that is kept as records, which have its scalars.
        select: patterns of names to keep, as for a shell (``sparsity/*``); all if there are none.

    Raises:
        FileNotFoundError: if the run has no observations.
        ValueError: if a pattern fits none of the curves (the message lists the observers), or if two curves have one
            name.
    """
    observers = sorted(run.observers())
    if not observers:
        raise FileNotFoundError(f"{run.name} has no observations: run `lmdyn analyze RUN` first")
    wanted = [
        name
        for name in observers
        if not select or any(fnmatchcase(name, pattern.split("/", 1)[0]) for pattern in select)
    ]
    found: dict[str, pd.Series[float]] = {}
    for name, curve in (pair for observer in wanted for pair in _curves(run, observer, select)):
        if name in found:
            raise ValueError(
                f"two curves of {run.name} have the name {name!r}: rename a site or a group of the observer"
            )
        found[name] = curve
    for pattern in select:
        if not any(fnmatchcase(name, pattern) for name in found):
            raise ValueError(
                f"--select: no curve of {run.name} fits {pattern!r}: expected names such as OBSERVER/QUANTITY/SITE, "
                f"with * for any text, of the observers {', '.join(observers)}"
            )
    return found


def _curves(
    run: ObservedRun, observer: str, select: Sequence[str]
) -> Iterator[tuple[str, "pd.Series[float]"]]:
    rows = run.read(observer)
    rows = rows[(rows["step"] > 0) & ~rows["quantity"].isin(_NO_CURVES) & np.isfinite(rows["value"])]
    names = ["quantity", "site", *group_columns(rows)]
    for _, curve in rows.groupby(names, dropna=False, observed=True, sort=False):
        (name,) = scalar_tags(observer, curve.iloc[:1])
        if not select or any(fnmatchcase(name, pattern) for pattern in select):
            yield name, curve.set_index("step")["value"].astype(float).sort_index()
