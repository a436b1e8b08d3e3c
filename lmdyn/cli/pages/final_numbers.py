"""Final results of an observer: a few most informative numbers, with their errors or intervals."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from lmdyn.cli.pages.chart_data import quantity_order
from lmdyn.runs.schema import ENDS, Quantity, declared, group_columns, is_number_column, last_step

_MOST = 40  # per observer: a page shows fewer, and finds them in other runs

_Key = tuple[str, ...]  # quantity, site, groups


@dataclass(frozen=True)
class FinalNumber:
    """A number of the first and of the last observation.

    Attributes:
        label: label of the quantity, with its unit.
        of: site and groups; empty for a value over everything.
        first: value at the first observation, None if it was not measured.
        last: value at the last observation.
        low: lower end of the recorded interval, or the number minus its error.
        high: upper end.
        kind: ``interval`` or ``error``; empty if neither is known.
        better: ``higher``, ``lower`` or empty.
    """

    label: str
    of: str
    first: float | None
    last: float
    low: float | None = None
    high: float | None = None
    kind: str = ""
    better: str = ""


def final_numbers(
    scalars: pd.DataFrame, recorded: Sequence[Quantity] = (), most: int = _MOST, first_step: int | None = None
) -> list[FinalNumber]:
    """Return numbers of the last observation, one per quantity: overall, else of its first group and last block.

    Args:
        scalars: tidy rows of the first and of the last observation.
        recorded: the declarations.
        most: maximum number of results.
        first_step: step of the first observation, which may have no rows; by default the first step of ``scalars``.

    Example:
        >>> rows = pd.DataFrame({"step": 9, "quantity": ["loss", "loss_error"], "site": "", "value": [4.0, 0.5]})
        >>> (found,) = final_numbers(rows)
        >>> found.label, found.last, found.low, found.high
        ('loss', 4.0, 3.5, 4.5)
    """
    groups = group_columns(scalars)
    begin = scalars["step"].min() if first_step is None else first_step
    first = _values(scalars[scalars["step"].eq(begin)], groups)
    last = _values(last_step(scalars), groups)
    by_name: dict[str, list[_Key]] = {}
    for key in last:
        by_name.setdefault(key[0], []).append(key)
    accompanying = {f"{name}{end}" for name in by_name for end in ENDS}
    depths = {
        name: min(sum(map(bool, key[2:])) for key in keys)
        for name, keys in by_name.items()
        if name != "learning_rate" and name not in accompanying
    }
    moving = {key[0] for key, value in last.items() if first.get(key) != value}
    chosen: list[_Key] = []
    names = quantity_order(depths, recorded, moving)
    for name in sorted(names, key=lambda name: (name not in moving, depths[name])):
        keys = [key for key in by_name[name] if sum(map(bool, key[2:])) == depths[name]]
        chosen.append(_last_block([key for key in keys if key[2:] == keys[0][2:]]))
    found = []
    for key in chosen[:most]:
        name, value = key[0], last[key]
        known = declared(recorded, name)
        error, low, high = (last.get((f"{name}{end}", *key[1:])) for end in ENDS)
        kind = "interval" if low is not None and high is not None else "error" if error is not None else ""
        if kind == "error" and error is not None:
            low, high = value - error, value + error
        of = [
            f"{c}={level}" if c and is_number_column(scalars[c]) else level
            for c, level in zip(["", *groups], key[1:], strict=True)
            if level
        ]
        label, better = (known.label, known.better) if known else (name.replace("_", " "), "")
        low, high = (low, high) if kind else (None, None)
        found.append(FinalNumber(label, " · ".join(of), first.get(key), value, low, high, kind, better or ""))
    return found


def _last_block(keys: Sequence[_Key]) -> _Key:
    """Return the site nearest to the output that is no readout of it; else the last one."""
    blocks = [key for key in keys if not re.match(r"embedding|logits|norm|output", key[1])]
    return (blocks or list(keys))[-1]


def _values(table: pd.DataFrame, groups: Sequence[str]) -> dict[_Key, float]:
    """Return values by quantity, site and groups, as strings; NaN is left out."""
    names = ["quantity", "site", *groups]
    columns = [table[name].astype(object).where(table[name].notna(), "").map(str) for name in names]
    keys = zip(*columns, strict=True)
    return {key: float(v) for key, v in zip(keys, table["value"].tolist(), strict=True) if v == v}
