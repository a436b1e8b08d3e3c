"""The tidy table of an observation: step, tokens, quantity, site, group columns, value; and its parquet schema."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas import DataFrame

from lmdyn.runs.schedule import Progress

ENDS = ("_error", "_low", "_high")
"""How the name of a quantity continues in rows with its standard error, and the ends of its interval."""

IF_KNOWN = {"words_seen": "words", "training_stage": "stage"}
"""Columns that a table has if the number is known, and what ``Progress`` calls the number."""

_BEFORE_GROUPS = ("step", "tokens", *IF_KNOWN, "quantity", "site")
_PART = re.compile(r"<\w+>")  # part of a name or tag that depends on settings or data


@dataclass(frozen=True)
class Quantity:
    """Description of one quantity: an observer declares each quantity that it records.

    The tables of the documentation, the axes of a report and the layouts of TensorBoard are generated from these.

    Attributes:
        name: name in the column ``quantity``; ``<...>`` is a part that depends on settings or data.
        meaning: one sentence, without unit and range.
        unit: ``nats``, ``bits``, ``share``, ``count``, ``steps`` and so on; empty for a pure number.
        low: lower bound by definition, inclusive; None if there is none.
        high: upper bound by definition, inclusive; None if there is none.
        better: direction in which a model is better, if this is meaningful.
        tags: forms of a logger's tag after the quantity: empty, or column names such as
            ``<site>`` or ``<layer>/<tag>``; no forms if the quantity is stored but not logged.
        panel: name of the standard figure that shows it; empty for none.
        headline: whether a report says the observer's finding by this quantity; by default, the first one.
        short: title of its panel; by default the name.
        floor: name of a quantity that is drawn with it, dotted: what chance or an untrained model has.
        lines: column whose values are lines, if the table has it; by default the site, or the first group column if
            there is one site.
        over: column of numbers that is the horizontal axis of its panel; by default the step. Lines are then steps, or
            at the last step the values of ``lines``.
        where: group columns and their values to which the panel is restricted; None for rows without a value.

    Example:
        >>> loss = Quantity("loss", "Mean token loss.", unit="nats", low=0.0, better="lower")
        >>> loss.label
        'loss (nats)'
    """

    name: str
    meaning: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    better: Literal["higher", "lower"] | None = None
    tags: tuple[str, ...] = ("",)
    panel: str = ""
    headline: bool = False
    short: str = ""
    floor: str = ""
    lines: str = ""
    over: str = ""
    where: tuple[tuple[str, tuple[str, ...] | None], ...] = ()

    @property
    def label(self) -> str:
        """Axis label: words, and the unit in brackets, unless the name ends with it."""
        words = self.name.replace("_", " ")
        return f"{words} ({self.unit})" if self.unit and not words.endswith(self.unit) else words

    @property
    def bounds(self) -> str:
        """Range in words; empty if there is none.

        Example:
            >>> [Quantity("rho", "", low=-1.0, high=1.0).bounds, Quantity("loss", "", low=0.0).bounds]
            ['−1 to 1', 'from 0']
        """
        low, high = (None if end is None else f"{end:g}".replace("-", "−") for end in (self.low, self.high))
        if low is not None and high is not None:
            return f"{low} to {high}"
        return f"from {low}" if low is not None else f"up to {high}" if high is not None else ""

    def tags_of(self, observer: str) -> tuple[str, ...]:
        """Return the forms of its tags in a logger, for an observer of this name.

        Example:
            >>> Quantity("loss", "Mean token loss.", tags=("", "<layer>/<tag>")).tags_of("learning_curves")
            ('learning_curves/loss', 'learning_curves/loss/<layer>/<tag>')
        """
        return tuple("/".join(part for part in (observer, self.name, tag) if part) for tag in self.tags)


def declarations(observer: Any) -> tuple[Quantity, ...]:
    """Return what an observer declares in ``recorded``; empty if this attribute is not a sequence of quantities.

    Example:
        >>> from types import SimpleNamespace
        >>> declarations(SimpleNamespace(recorded=["loss"])), declarations(object())
        ((), ())
    """
    found = getattr(observer, "recorded", ())
    known = isinstance(found, (tuple, list)) and all(isinstance(q, Quantity) for q in found)
    return tuple(found) if known else ()


def declared(recorded: Iterable[Quantity], name: str) -> Quantity | None:
    """Return the declaration of a quantity, under its own name; None if there is none, as for a user's observer.

    Of several that match, such as ``svcca_<k>`` and ``svcca_low``, this is the one with the most fixed letters.

    Example:
        >>> at, low = Quantity("svcca_<k>", "Of k directions."), Quantity("svcca_low", "Lower end.")
        >>> declared([at, low], "svcca_30").label, declared([at, low], "svcca_low").meaning, declared([at], "cka")
        ('svcca 30', 'Lower end.', None)
    """
    fitting = [(_PART.sub("", q.name), q) for q in recorded if pattern(q.name).fullmatch(name)]
    return replace(max(fitting, key=lambda found: len(found[0]))[1], name=name) if fitting else None


def pattern(form: str) -> re.Pattern[str]:
    """Compile a pattern for a name or a tag with parts ``<...>``.

    Example:
        >>> bool(pattern("transient_length/width=<windows>").fullmatch("transient_length/width=20"))
        True
    """
    return re.compile("[^/]+".join(map(re.escape, _PART.split(form))))


def group_columns(table: DataFrame) -> list[str]:
    """Return the group columns of a table, that is, columns that describe its values in addition to quantity and site.

    Example:
        >>> group_columns(DataFrame(columns=["step", "quantity", "site", "upos", "value"]))
        ['upos']
    """
    return [c for c in table.columns if c not in (*_BEFORE_GROUPS, "value")]


def is_number_column(column: "pd.Series[Any]") -> bool:
    """Return whether a group column contains integers (missing is ``<NA>``) and not names (missing is "")."""
    return bool(pd.api.types.is_integer_dtype(column))


def tidy(measured: DataFrame, at: Progress) -> DataFrame:
    """Add the state of the training to a measurement: columns in order, tokens seen, a row for the learning rate.

    Args:
        measured: columns ``quantity``, ``site``, any group columns, ``value``.
        at: progress of the training.
    """
    if own := sorted(IF_KNOWN.keys() & set(measured.columns)):
        raise ValueError(f"the column {own[0]!r} is one that lmdyn adds itself: give the column another name")
    groups = group_columns(measured)
    table = measured
    if at.learning_rate is not None:
        rate = DataFrame({"quantity": ["learning_rate"], "site": [""], "value": [at.learning_rate]})
        for c in groups:  # missing values as in the table
            empty = pd.NA if is_number_column(table[c]) else None if table[c].isna().any() else ""
            rate[c] = pd.Series([empty], dtype="Int64" if is_number_column(table[c]) else object)
        table = pd.concat([table, rate], ignore_index=True)
    table = table[["quantity", "site", *groups, "value"]].reset_index(drop=True)
    table.insert(0, "step", at.step)
    table.insert(1, "tokens", pd.Series(at.tokens, index=table.index, dtype="Int64"))
    for column, name in IF_KNOWN.items():
        if (known := getattr(at, name)) is not None:
            table.insert(2, column, pd.Series(known, index=table.index, dtype="Int64"))
    return table


def step_unit(observations: DataFrame) -> str:
    """Return what steps count: ``words`` of the training text, as in the names of checkpoints, or ``updates``.

    Example:
        >>> step_unit(DataFrame({"step": [10**6, 10**7], "words_seen": [10**6, 10**7]})), step_unit(DataFrame())
        ('words', 'updates')
    """
    if "words_seen" not in observations or not (observations["step"] > 0).any():
        return "updates"
    same = observations["words_seen"] == observations["step"]
    return "words" if same.fillna(False).all() else "updates"  # not known is not the same


def select(table: DataFrame, **wanted: Any) -> DataFrame:
    """Return the rows with certain values in certain columns.

    Args:
        table: a tidy table.
        **wanted: for a column, its value, several alternative values, or None for a missing value.

    Example:
        >>> table = DataFrame({"quantity": ["loss", "loss", "rate"], "site": ["a", None, "a"], "value": [1, 2, 3]})
        >>> select(table, quantity="loss", site="a")["value"].tolist()
        [1]
        >>> select(table, quantity=["loss", "rate"], site=None)["value"].tolist()
        [2]
    """
    found = np.ones(len(table), dtype=bool)
    for column, value in wanted.items():
        if value is None:
            found &= table[column].isna().to_numpy()
        elif isinstance(value, Collection) and not isinstance(value, str):
            found &= table[column].isin(list(value)).to_numpy(dtype=bool)
        else:
            found &= table[column].eq(value).fillna(False).to_numpy(dtype=bool)
    return table[found]


def last_step(table: DataFrame) -> DataFrame:
    """Return the rows of the last step."""
    return table[table["step"].eq(table["step"].max())]


def wide(table: DataFrame, columns: str, index: str | list[str] = "step", *, sort: bool = True) -> DataFrame:
    """Return values with a row per step (or other ``index``) and a column per value of ``columns``; sorted rows.

    Rows and columns of NaN only are kept, so that a figure draws a gap.

    Args:
        table: a tidy table; rows that differ only in other columns are averaged, so :func:`select` one quantity first.
        columns: name of the column whose values become columns.
        index: name of the column whose values become rows, or several.
        sort: whether to sort the columns; otherwise, they are in the order of the table.

    Example:
        >>> table = DataFrame({"step": [0, 0, 9], "site": ["a", "b", "a"], "value": [1.0, 2.0, 3.0]})
        >>> wide(table, "site").loc[0].tolist(), wide(table, "site").loc[9].tolist()
        ([1.0, 2.0], [3.0, nan])
    """
    keys = [*([index] if isinstance(index, str) else index), columns]
    means = table.groupby(keys, observed=True, sort=False)["value"].mean(skipna=False)
    return means.unstack(columns, sort=sort).sort_index()  # noqa: PD010 (a pivot table drops NaN)


def to_arrow(table: DataFrame) -> pa.Table:
    """Convert a tidy table for parquet: one schema for every step, so that a column of nulls keeps its type.

    ``step``, ``tokens``, ``words_seen`` and ``training_stage`` are int64, ``value`` is float64, columns of integers
    are int64, all others are dictionaries of strings.

    Raises:
        KeyError: if a column is missing.
    """
    columns: dict[str, Any] = {"step": table["step"].astype("int64")}
    tokens = table["tokens"] if "tokens" in table else pd.Series(None, index=table.index, dtype="Int64")
    columns["tokens"] = tokens.astype("Int64").array
    for name in IF_KNOWN:
        if name in table:
            columns[name] = table[name].astype("Int64")
    for name in ("quantity", "site", *group_columns(table)):
        if is_number_column(table[name]):
            columns[name] = table[name].astype("Int64")
            continue
        columns[name] = table[name].astype("category")
        if not isinstance(columns[name].cat.categories.dtype, pd.StringDtype):
            columns[name] = columns[name].cat.rename_categories(columns[name].cat.categories.astype("str"))
    columns["value"] = table["value"].astype("float64")
    return pa.Table.from_pandas(DataFrame(columns), preserve_index=False)


def from_arrow(table: pa.Table) -> pa.Table:
    """Convert dictionaries to strings: dictionaries of different files cannot be concatenated."""
    for i, column in enumerate(table.schema):
        if pa.types.is_dictionary(column.type):
            table = table.set_column(i, column.name, table[i].cast(pa.large_string()))
    return table
