"""The charts of an observer: a quantity by group is one chart, with a line for each group, named in words."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pandas import DataFrame

from lmdyn.callbacks.observing.drawing.words import column_words, site_label, value_words
from lmdyn.runs.schema import ENDS, Quantity, declared, group_columns, is_number_column, select

_SEPARATE = ("by", "reference")  # columns whose values have charts of their own
_MOST_LINES = 8  # of a column of numbers; means over more


@dataclass(frozen=True)
class NamedChart:
    """A chart of one quantity.

    Attributes:
        quantity: its name.
        by: what lines are, in words; empty for the value over everything.
        columns: columns that lines differ in.
        fixed: value of each column that has one in the whole chart.
        rows: its rows; the column ``line`` has the names of lines, in words where these tell them apart.
        averaged: columns of numbers over which values are means.
    """

    quantity: str
    by: str
    columns: tuple[str, ...]
    fixed: dict[str, str]
    rows: DataFrame
    averaged: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Name of the chart: the quantity, and what lines are."""
        return f"{self.quantity} by {self.by}" if self.by else self.quantity


def named_charts(scalars: DataFrame, recorded: Sequence[Quantity]) -> Iterator[NamedChart]:
    """Yield the charts of an observer in order: its headline, quantities with a panel, others as declared.

    Standard errors and ends of intervals have no chart. Of a quantity with finer and coarser groups, only the
    coarsest have lines.

    Args:
        scalars: tidy rows of one or more steps.
        recorded: declarations of the quantities.

    Example:
        >>> rows = {"step": 1, "quantity": "loss", "site": "", "upos": ["", "NOUN", "DET"], "value": [2.0, 3.0, 1.0]}
        >>> for chart in named_charts(DataFrame(rows), ()):
        ...     print(chart.title, chart.rows["line"].tolist())
        loss ['']
        loss by part of speech ['nouns', 'determiners']
        >>> rows = {"step": 1, "quantity": "kl", "site": "", "order": [1, 2], "value": [2.0, 3.0]}
        >>> kl = Quantity("kl", "Divergence.", lines="order")  # without lines, the mean over orders
        >>> [chart.rows["line"].tolist() for chart in named_charts(DataFrame(rows), [kl])]
        [['order 1', 'order 2']]
    """
    texts = [c for c in ("quantity", "site", *group_columns(scalars)) if not is_number_column(scalars[c])]
    scalars = scalars.assign(**{c: scalars[c].astype(object).where(scalars[c].notna(), "") for c in texts})
    names = [str(name) for name in scalars["quantity"].unique() if name != "learning_rate"]
    companions = {f"{name}{end}" for name in names for end in ENDS}
    known = {name: declared(recorded, name) for name in names if name not in companions}
    meanings = [q.meaning for q in sorted(recorded, key=lambda q: (not q.headline, not q.panel))]
    places = {name: meanings.index(of.meaning) if of else len(meanings) for name, of in known.items()}
    for name, of in sorted(known.items(), key=lambda found: places[found[0]]):
        rows = select(scalars, quantity=name)
        restricted = rows
        for column, value in of.where if of else ():
            if column in restricted:
                restricted = select(restricted, **{column: value})
        lines = of.lines if of and not of.over else ""
        shown = _spelled(restricted if len(restricted) else rows, lines)
        yield from _of_quantity(name, shown, [column for column, _ in of.where] if of else ())


def _spelled(rows: DataFrame, column: str) -> DataFrame:
    """Return rows with a column of numbers in words if a quantity has lines for it, so that it is not averaged."""
    if column not in rows or not is_number_column(rows[column]) or rows[column].isna().any():
        return rows
    if not 1 < rows[column].nunique() <= _MOST_LINES:
        return rows
    return rows.assign(**{column: [value_words(column, number) for number in rows[column]]})


def _of_quantity(name: str, rows: DataFrame, where: Collection[str]) -> Iterator[NamedChart]:
    groups = group_columns(rows)
    numbers = [c for c in groups if is_number_column(rows[c])]
    texts = ["site", *(c for c in groups if c not in numbers)]
    averaged = []
    for column in numbers:  # over everything where such a row exists, else the mean
        whole = rows[rows[column].isna()]
        averaged += [column] if not len(whole) and len(set(rows[column])) > 1 else []
        rows = whole if len(whole) else rows
    # of numbers such as heads, or of several runs
    rows = rows.groupby(["step", *texts], sort=False)["value"].mean().reset_index()
    rows = rows.assign(quantity=name)
    separate = [c for c in _SEPARATE if c in texts]
    depth = (rows[texts] != "").sum(axis=1)
    if len(plain := rows[depth == 0]):
        yield NamedChart(name, "", (), dict.fromkeys(texts, ""), plain.assign(line=""), tuple(averaged))
    rows, depth = rows[depth > 0], depth[depth > 0]
    cuts: Any = rows.groupby(separate, sort=False) if separate else [((), rows)]
    for values, part in cuts:
        if not len(part):
            continue
        part = part[depth[part.index] == depth[part.index].min()]
        fixed = dict(zip(separate, map(str, values), strict=True))
        fixed |= {c: "" for c in texts if part[c].eq("").all()}
        fixed |= {c: str(part[c].iloc[0]) for c in texts if c in where and len(set(part[c])) == 1}
        columns = tuple(c for c in texts if c not in fixed)
        by = fixed.get("by", "")
        keys = list(part[[*columns]].itertuples(index=False, name=None))
        words = {row: _line(columns, row, by) for row in keys}
        alike = Counter(words.values())
        lines = {row: line if alike[line] == 1 else "" for row, line in words.items()}
        part = part.assign(line=[lines[row] or ", ".join(map(str, row)) for row in keys])
        what = column_words(by) if by else ", ".join(dict.fromkeys(map(column_words, columns)))
        if reference := fixed.get("reference"):
            what += f", compared with {reference.replace('_', ' ')}"
        yield NamedChart(name, what, columns, fixed, part, tuple(averaged))


def _line(columns: Sequence[str], values: Sequence[Any], by: str) -> str:
    known = [(column, value) for column, value in zip(columns, values, strict=True) if value != ""]
    sites = [site_label(str(value)) for column, value in known if column in ("site", "reference_site")]
    words = [value_words(c, value, by) for c, value in known if c not in ("site", "reference_site")]
    return ", ".join(filter(None, [" – ".join(dict.fromkeys(sites)), *dict.fromkeys(words)]))


def scalar_tags(name: str, observation: DataFrame) -> dict[str, float]:
    """Return values by logger tag: ``<observer>/<quantity>/<site>/<groups>``, without empty parts.

    A group that is an integer is prefixed by its column, as in ``distance=3``.

    Example:
        >>> rows = DataFrame({"step": [1], "quantity": ["loss"], "site": [""], "upos": ["NOUN"], "value": [2.0]})
        >>> scalar_tags("learning_curves", rows)
        {'learning_curves/loss/NOUN': 2.0}
    """
    names = ["quantity", "site", *group_columns(observation)]
    parts = observation[names].astype(object).to_numpy()
    values = observation["value"].to_numpy()
    whole = [is_number_column(observation[c]) for c in names]

    def named(row: Any) -> list[str]:
        numbered = zip(names, row, whole, strict=True)
        return [
            f"{c}={p}" if n else p for c, p, n in numbered if isinstance(p, str) or (n and not pd.isna(p))
        ]

    return {
        "/".join([name, *(part for part in named(row) if part)]): float(v)
        for row, v in zip(parts, values, strict=True)
        if v == v  # NaN (no value at this step) is not logged
    }
