"""The rows of an observer as data of a chart in a page: compact, bounded, with a statement of what is left out."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from lmdyn.callbacks.observing.drawing.words import column_words, quantity_words, value_words
from lmdyn.callbacks.observing.figures import spread_out
from lmdyn.runs.schema import Quantity, declared, group_columns, is_number_column

MOST_VALUES = 60_000
"""Maximum number of values of one observer in a page: about 400 KB."""

_FEWEST_STEPS = 100  # minimum number of steps for very many lines
_DIGITS = 6


def chart_data(
    observer: str,
    scalars: pd.DataFrame,
    recorded: Sequence[Quantity] = (),
    *,
    observed: int | None = None,
    most: int = MOST_VALUES,
    begin: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the chart data of an observer's rows: one line for each quantity, site and group, over steps.

    If there are more than ``most`` values, steps are left out first, down to 100, and then the lines of the finest
    groups.

    Args:
        observer: name of the observer.
        scalars: tidy rows; of several with the same step, quantity, site and groups the last one counts.
        recorded: declarations of the quantities, for the axes.
        observed: number of observed steps; None for those of ``scalars``.
        most: maximum number of values.
        begin: what the chart shows at first, see :class:`~lmdyn.cli.pages.sentences.Finding`.

    Returns:
        ``columns`` (quantity, site, group columns), ``levels`` (the values of each column), ``numeric`` (columns of
        numbers), ``steps``, ``tokens``, ``lines`` (for each column the index of its value among the levels), ``values``
        (by line and step, None if there is none), ``quantities`` (words, meaning, better), ``words`` (those of each
        column, and of its levels), ``begin``, ``left`` (what is left out, a sentence or nothing).

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
    depth = (keys != np.array(empty)).sum(axis=1) if len(keys) else np.zeros(0)
    order = sorted(range(len(keys)), key=lambda i: (depth[i], first[i]))
    kept_steps = spread_out(range(len(steps)), max(_FEWEST_STEPS, most // max(len(order), 1)))
    kept = sorted(order[: max(1, most // max(len(kept_steps), 1))], key=lambda i: first[i])
    depths: dict[str, int] = {}
    moving = set()
    for i in kept:
        name = levels[0][keys[i, 0]]
        depths[name] = min(depths.get(name, len(columns)), int((keys[i, 2:] != np.array(empty[2:])).sum()))
        if len(set(values[i, np.isfinite(values[i])].tolist())) > 1:
            moving.add(name)
    names = quantity_order(depths, recorded, moving)
    return {
        "observer": observer,
        "columns": columns,
        "levels": list(levels),
        "numeric": [name for name in columns if is_number_column(scalars[name])],
        "steps": steps[kept_steps].tolist(),
        "tokens": _tokens(scalars, steps[kept_steps]),
        "lines": keys[kept].tolist(),
        "values": [[_short(v) for v in values[i, kept_steps].tolist()] for i in kept],
        "quantities": {name: _about(name, declared(recorded, name)) for name in names},
        "words": _words(scalars, columns[1:], levels[1:]),
        "begin": dict(begin),
        "left": _left(len(kept), len(order), len(kept_steps), observed or len(steps), observer),
    }


def quantity_order(
    depths: Mapping[str, int], recorded: Sequence[Quantity], moving: Collection[str]
) -> list[str]:
    """Return quantities in the order of the selection: as declared, and those without groups first.

    Constant quantities, such as a baseline by chance, come last.

    Args:
        depths: by quantity, the number of group columns in its coarsest rows.
        recorded: the declarations.
        moving: quantities with a value that changes.

    Example:
        >>> quantity_order({"by_word": 1, "chance": 0, "loss": 0}, [], ["by_word", "loss"])
        ['loss', 'by_word', 'chance']
    """
    places = {name: i for i, name in enumerate(depths)}

    def place(name: str) -> tuple[bool, int, int, int]:
        known = [i for i, one in enumerate(recorded) if declared([one], name) is not None]
        return name not in moving, min(known, default=len(recorded)), depths[name], places[name]

    return sorted(depths, key=place)


def _coded(column: "pd.Series[Any]") -> tuple[np.ndarray[Any, Any], list[str]]:
    """Return texts as indices into a list; missing ones are empty."""
    places, found = pd.factorize(column, use_na_sentinel=True)
    levels = [str(level) for level in found]
    if (places < 0).any():
        if "" not in levels:
            levels.append("")
        places = np.where(places < 0, levels.index(""), places)
    return places, levels


def _tokens(scalars: pd.DataFrame, steps: np.ndarray[Any, Any]) -> list[int | None] | None:
    if "tokens" not in scalars:
        return None
    of = scalars[["step", "tokens"]].dropna().drop_duplicates("step").set_index("step")["tokens"]
    return [int(of[step]) if step in of.index else None for step in steps.tolist()] if len(of) else None


def _short(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None


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


def _left(lines: int, of_lines: int, steps: int, of_steps: int, observer: str) -> str:
    said = []
    if lines < of_lines:
        said.append(f"{lines:,} of {of_lines:,} curves, those of the coarsest groups")
    if steps < of_steps:
        said.append(f"{steps:,} of {of_steps:,} observations, evenly spread")
    if not said:
        return ""
    return f"The chart holds {' and '.join(said)}; pandas.read_parquet('observations/{observer}') has all."
