"""The rows of an observer as data of a chart in a page: compact, bounded, with a statement of what is left out."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lmdyn.callbacks.observing.drawing.words import column_words, quantity_words, value_words
from lmdyn.runs.schema import Quantity, declared, group_columns, is_number_column, step_unit

MOST_VALUES = 60_000
"""Maximum number of values of one observer in a page: about 400 KB."""


def chart_data(
    observer: str,
    scalars: pd.DataFrame,
    recorded: Sequence[Quantity] = (),
    *,
    most: int = MOST_VALUES,
    begin: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the chart data of an observer's rows: one line for each quantity, site and group, over steps.

    If there are more than ``most`` values, the lines of the finest groups are left out.

    Args:
        observer: name of the observer.
        scalars: tidy rows; of several with the same step, quantity, site and groups the last one counts.
        recorded: declarations of the quantities, for the axes.
        most: maximum number of values.
        begin: what the chart shows at first, see :class:`~lmdyn.callbacks.observing.drawing.sentences.Finding`.

    Returns:
        ``columns`` (quantity, site, group columns), ``levels`` (the values of each column), ``numeric`` (columns of
        numbers), ``steps``, what they count (``unit``), ``tokens``, ``words_seen``, ``lines`` (for each column the
        index of its value among the levels), ``values`` (by line and step, None if there is none), ``quantities``
        (words, meaning, better), ``words`` (those of each column, and of its levels), ``begin``, ``left`` (what is left
        out, a sentence or nothing).

    Example:
        >>> rows = pd.DataFrame({"step": [0, 1], "quantity": "loss", "site": "", "upos": ["", "NOUN"], "value": [8, 4]})
        >>> found = chart_data("curves", rows)
        >>> found["levels"], found["lines"], found["values"]
        ([['loss'], [''], ['', 'NOUN']], [[0, 0, 0], [0, 0, 1]], [[8.0, None], [None, 4.0]])
    """
    columns = ["quantity", "site", *group_columns(scalars)]
    steps, at = np.unique(scalars["step"].to_numpy(dtype=np.int64), return_inverse=True)
    codes, levels = zip(*(_coded(scalars[name]) for name in columns), strict=True)
    keys, first, line = np.unique(np.stack(codes, axis=1), axis=0, return_index=True, return_inverse=True)
    values = np.full((len(keys), len(steps)), np.nan)
    values[line.reshape(-1), at] = scalars["value"].to_numpy(dtype=float)
    empty = [names.index("") if "" in names else -1 for names in levels]
    depth = (keys != np.array(empty)).sum(axis=1)
    order = np.lexsort((first, depth))[: max(1, most // len(steps))]
    kept = sorted(order, key=lambda i: first[i])
    left = ""
    if len(kept) < len(keys):
        left = f"The chart contains {len(kept):,} of {len(keys):,} curves: the curves of the coarsest groups."
    return {
        "observer": observer,
        "columns": columns,
        "levels": list(levels),
        "numeric": [name for name in columns if is_number_column(scalars[name])],
        "steps": steps.tolist(),
        "unit": step_unit(scalars),
        "tokens": _amounts(scalars, "tokens", steps),
        "words_seen": _amounts(scalars, "words_seen", steps),
        "lines": keys[kept].tolist(),
        "values": [[_short(v) for v in values[i].tolist()] for i in kept],
        "quantities": {
            name: _about(name, declared(recorded, name)) for name in _in_order(levels[0], recorded)
        },
        "words": _words(scalars, columns[1:], levels[1:]),
        "begin": dict(begin or {}),
        "left": left,
    }


def _in_order(names: Sequence[str], recorded: Sequence[Quantity]) -> list[str]:
    """Return quantities as declared; others come last."""

    def place(name: str) -> int:
        known = (i for i, one in enumerate(recorded) if declared([one], name) is not None)
        return min(known, default=len(recorded))

    return sorted(names, key=place)


def _coded(column: "pd.Series[Any]") -> tuple[np.ndarray[Any, Any], list[str]]:
    """Return texts as indices into a list; missing ones are empty."""
    places, found = pd.factorize(column, use_na_sentinel=True)
    levels = [str(level) for level in found]
    if (places < 0).any():
        if "" not in levels:
            levels.append("")
        places = np.where(places < 0, levels.index(""), places)
    return places, levels


def _amounts(scalars: pd.DataFrame, name: str, steps: np.ndarray[Any, Any]) -> list[int | None] | None:
    if name not in scalars:
        return None
    of = scalars[["step", name]].dropna().drop_duplicates("step").set_index("step")[name]
    return [int(of[step]) if step in of.index else None for step in steps.tolist()] if len(of) else None


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None


def _about(name: str, quantity: Quantity | None) -> dict[str, Any]:
    of = quantity or Quantity(name, "")
    return {
        "words": quantity_words(name, quantity),
        "meaning": of.meaning,
        "better": of.better,
        "ends": [of.low, of.high],
    }


def _words(scalars: pd.DataFrame, columns: Sequence[str], levels: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return the words of columns and levels; those of the column ``group`` depend on its grouping."""
    by: dict[str, str] = {}
    if "by" in columns and "group" in columns:
        pairs = scalars[["group", "by"]].drop_duplicates("group").astype(str)
        by = dict(zip(pairs["group"], pairs["by"], strict=True))
    return {
        column: {
            "words": column_words(column),
            "levels": [
                value_words(column, level, by.get(level, "") if column == "group" else "") for level in of
            ],
        }
        for column, of in zip(columns, levels, strict=True)
    }
