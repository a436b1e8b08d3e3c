"""Sources of claims' numbers: rows of an observer, or a metric of a test, found among the runs of one seed."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import pandas as pd

from lmdyn.runs.observed_run import NotMeasured, ObservedRun, OtherCondition, differences, is_fork
from lmdyn.runs.schema import IF_KNOWN

Pairs = tuple[tuple[str, Any], ...]
"""Names and their required values."""


@dataclass(frozen=True)
class OneOf:
    """Any of several values, in place of one in :data:`Pairs`: ``("hidden_size", OneOf((64, 384)))``.

    Example:
        >>> is_same(384, OneOf((64, 384))), is_same(96, OneOf((64, 384)))
        (True, False)
    """

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Layer:
    """A hidden layer of a model, independent of its name: ``first`` or ``last``.

    Hidden layers are the sites in the observer's settings except embedding, norm and logits.
    """

    which: Literal["first", "last"]

    def __post_init__(self) -> None:
        if self.which not in ("first", "last"):
            raise ValueError(f"Layer must be 'first' or 'last', got {self.which!r}")

    def among(self, sites: Sequence[str]) -> str | None:
        """Return the site of this layer; None if there is no hidden layer.

        Example:
            >>> Layer("last").among(["embedding", "h1", "h2", "logits"]), Layer("first").among(["embedding"])
            ('h2', None)
        """
        other = ("embedding", "norm", "logits", "decoder")
        hidden = [s for s in sites if s and not any(s == o or s.endswith(f"_{o}") for o in other)]
        return hidden[0 if self.which == "first" else -1] if hidden else None


class Source(ABC):
    """Where a number is read from: found in one of the runs of a seed."""

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Return the ``Observer/quantity`` names that are read."""

    def described(self) -> str:
        """Return what records it, in words."""
        return f"lmdyn test: {', '.join(self.names())}"

    @abstractmethod
    def locate(self, runs: Sequence[ObservedRun]) -> tuple[ObservedRun, str]:
        """Return the run that has the data, and its place: the folder of an observer, or ``test``.

        Raises:
            NotMeasured: if no run has it.
            ValueError: if several places match.
        """


@dataclass(frozen=True)
class Rows(Source):
    """The rows of an observer that have one value per step.

    Attributes:
        observer: class of the observer, the last part of its public name (``Sparsity``).
        quantity: the quantity.
        site: the site, or a :class:`Layer`.
        where: values of group columns; if some rows lack a column that is not named here, the rows without it are
            selected.
        name: name of the observer's folder, if a run has several of the class with the quantity.
        settings: settings that the observer must have; dots lead into nested ones.
        run: selects one of the seed's runs: values in its condition (``data.length``, or ``length`` if that is unique)
            or among the observer's settings; :class:`OneOf` if several values match.
        error: the quantity with the standard error over texts, or the two with a 95 % interval; if an older run lacks
            them the error is unknown, and a verdict is for this text only.
        df: degrees of freedom of that error; None for many.

    Example:
        >>> rows = Rows("Sparsity", "rho_gradient", "h1", where=(("role", "target"),))
        >>> sorted(rows.names())
        ['Sparsity/rho_gradient']
    """

    observer: str
    quantity: str
    site: str | Layer = ""
    where: Pairs = ()
    name: str | None = None
    settings: Pairs = ()
    run: Pairs = ()
    error: str | tuple[str, str] | None = None
    df: float | None = None

    def names(self) -> tuple[str, ...]:
        """Return ``Observer/quantity``."""
        return (f"{self.observer}/{self.quantity}",)

    def locate(self, runs: Sequence[ObservedRun]) -> tuple[ObservedRun, str]:
        """Return the run with the rows, and the folder in it.

        If several observers of a run have them, the one named after its class is used (``encoder_dynamics``). If
        several runs have them, forks that ``run`` does not select are left out: they are experiments on the run.

        Raises:
            NotMeasured: if no run has them, or only several forks and not the run itself.
            ValueError: if several folders of one run, or several runs, match.
        """
        found: list[tuple[ObservedRun, str]] = []
        for run in runs:
            folders = [
                folder
                for folder, name in run.observers().items()
                if name.rpartition(".")[2] == self.observer
                and self.name in (None, folder)
                and (not self.settings or _agree(self.settings, run.settings(folder), nested=True))
                and (not self.run or is_of_condition(self.run, run, folder))
            ]
            if len(folders) > 1:  # observers of one class may divide its quantities among them
                folders = [f for f in folders if len(run.read(f, quantities=(self.quantity,)))] or folders
            if len(folders) > 1:  # among several observers, prefer the one named after its class
                from lmdyn.callbacks.observing.run import snake_case

                folders = [f for f in folders if f == snake_case(self.observer)] or folders
            if len(folders) > 1:
                raise ValueError(
                    f"{run.name} has several observers {self.described()}: {', '.join(folders)}; give `name`, or "
                    "`settings` that only one observer has"
                )
            found += [(run, folder) for folder in folders]
        if not found:
            observed = {name.rpartition(".")[2] for run in runs for name in run.observers().values()}
            error = OtherCondition if self.run and self.observer in observed else NotMeasured
            raise error(f"no run has observations of {self.described()}; {_there(runs)}")
        if len(found) > 1 and not any(key.startswith("forked.") for key, _ in self.run):
            found = _without_forks(found)
        if len(found) > 1:
            several = [run for run, _ in found]
            differ = differences(several) or ["their conditions are equal"]
            raise ValueError(
                f"several runs of one seed have observations of {self.described()}: "
                f"{', '.join(r.name for r in several)} ({'; '.join(differ)}); set `run`, or give fewer runs"
            )
        return found[0]

    def frame(self, runs: Sequence[ObservedRun], *quantities: str) -> pd.DataFrame:
        """Return the stored rows at the site and with the named groups, for all steps.

        Args:
            runs: the runs of one seed.
            *quantities: further quantities to read with ``quantity``; those of ``error`` are always included.

        Raises:
            NotMeasured: if there are no such rows.
        """
        run, folder = self.locate(runs)
        table = run.read(folder, quantities={self.quantity, *_texts(self.error), *quantities})
        of = f"{folder} of {run.name}"
        own = table["quantity"].eq(self.quantity)
        if not own.any():
            raise NotMeasured(f"{of} holds no rows of {self.quantity!r}")
        site: str | None = self.site if isinstance(self.site, str) else None
        if isinstance(self.site, Layer):
            rows = list(dict.fromkeys(table.loc[own, "site"].fillna("").astype(str)))
            known = run.settings(folder).get("sites")
            in_order = known if isinstance(known, Mapping) else ()
            site = self.site.among([s for k in in_order for s in rows if s.partition("@")[0] == k] or rows)
            if site is None:
                raise NotMeasured(f"{of} has no hidden layer, only the sites {', '.join(rows)}")
        selected = self.in_groups(table, of) & _equals(table["site"], site)
        if not (selected & own).any():
            told = ", ".join(
                f"{c} {sorted(map(str, table.loc[own, c].dropna().unique()))[:12]}"
                for c in ("site", *dict(self.where))
            )
            raise NotMeasured(
                f"{of} has no rows of {self.quantity!r} at site {site!r}"
                f"{''.join(f', {c} = {v!r}' for c, v in self.where)}; there are {told}"
            )
        return table[selected]

    def in_groups(self, rows: pd.DataFrame, of: str) -> "pd.Series[bool]":
        """Return which of the rows have the values of ``where``; ``of`` names the rows in errors.

        Raises:
            NotMeasured: if there is no such column.
        """
        found = pd.Series(data=True, index=rows.index)
        for column, value in self.where:
            if column not in rows:
                raise NotMeasured(f"{of} has no column {column!r}, only {', '.join(rows.columns)}")
            found &= _equals(rows[column], value)
        return found

    def table(self, runs: Sequence[ObservedRun]) -> pd.DataFrame:
        """Return one value per step: columns ``step, tokens, value, error`` (NaN if unknown), in the order of steps.

        Raises:
            NotMeasured: if there are no such rows.
            ValueError: if there are several rows per step; the message has the columns that distinguish them.
        """
        found: pd.DataFrame = cached(type(self)._table, self, runs)
        return found.copy()

    def between(self) -> tuple[float, float] | None:
        """Return the smallest and the largest possible value; None if there are none.

        They are those that an observer of lmdyn declares; of a user's own quantity, its name decides.
        """
        from lmdyn.claims.recorded import public_class
        from lmdyn.runs.schema import declarations, declared

        cls = public_class(f"lmdyn.callbacks.{self.observer}")
        quantity = declared(declarations(cls), self.quantity)
        if quantity is None:
            return range_by_name(self.quantity)
        return None if quantity.low is None or quantity.high is None else (quantity.low, quantity.high)

    def _table(self, runs: Sequence[ObservedRun]) -> pd.DataFrame:
        selected = self.frame(runs)
        own = self._single(selected, self.quantity)
        found = own[["step", "value"]].astype({"value": "float64"})
        found.insert(1, "tokens", own.get("tokens"))
        return self._with_errors(found, selected)

    def _with_errors(self, found: pd.DataFrame, selected: pd.DataFrame) -> pd.DataFrame:
        """Return the values with their errors over texts, in the order of steps."""
        found["error"] = math.nan
        ends = [self._single(selected, q).set_index("step")["value"] for q in _texts(self.error)]
        if len(ends) == 1:
            found["error"] = found["step"].map(ends[0]).astype("float64")
        elif ends:
            width = (ends[1] - ends[0]) / (2 * 1.959963984540054)
            found["error"] = found["step"].map(width).astype("float64")
        return found.sort_values("step", ignore_index=True)

    def _single(self, selected: pd.DataFrame, quantity: str) -> pd.DataFrame:
        own = _equals(selected["quantity"], quantity)
        named = {"step", "tokens", *IF_KNOWN, "quantity", "site", "value", *dict(self.where)}
        for column in (c for c in selected.columns if c not in named):
            missing = own & _equals(selected[column], None)
            own = missing if missing.any() else own
        rows = selected[own]
        if rows["step"].duplicated().any():
            differ = [c for c in rows.columns if c not in named and len(rows[c].unique()) > 1]
            told = "; ".join(f"{c}: {', '.join(map(repr, rows[c].unique()[:8]))}" for c in differ)
            raise ValueError(
                f"{self.observer} has several rows of {quantity!r} per step: set `where` ({told or 'rows are equal'})"
            )
        return rows

    def described(self) -> str:
        """Return the observer with what identifies it."""
        more = [f"`{self.name}`"] if self.name else []
        more += [f"{key}: {value!r}" for key, value in (*self.settings, *self.run)]
        return f"{self.observer} ({', '.join(more)})" if more else self.observer


# ------------------------------------------------------------------------------------------ what they share


def cached(
    function: Callable[[Any, Sequence[ObservedRun]], Any], first: Any, runs: Sequence[ObservedRun]
) -> Any:
    """Return ``function(first, runs)``, computed once for the runs of a seed: hundreds of claims read the same rows."""
    key = tuple(runs)
    if all(isinstance(run, Hashable) for run in key):
        return _cached(function, first, key)
    return function(first, key)


@lru_cache(maxsize=4096)
def _cached(function: Callable[..., Any], first: Any, runs: tuple[ObservedRun, ...]) -> Any:
    return function(first, runs)


def parts_of(number: Any) -> Iterator[Source]:
    """Yield the sources of a number, in the order of its fields."""
    if isinstance(number, Source):
        yield number
    elif isinstance(number, (tuple, list)):
        for part in number:
            yield from parts_of(part)
    elif is_dataclass(number) and not isinstance(number, type):
        for field in fields(number):
            yield from parts_of(getattr(number, field.name))


def range_by_name(quantity: str) -> tuple[float, float] | None:
    """Return 0 and 1 for a share or an accuracy, by its name.

    Example:
        >>> range_by_name("settled_share"), range_by_name("loss")
        ((0.0, 1.0), None)
    """
    return (0.0, 1.0) if quantity.endswith(("share", "accuracy")) else None


def _texts(error: str | tuple[str, str] | None) -> tuple[str, ...]:
    return () if error is None else (error,) if isinstance(error, str) else error


def _equals(column: "pd.Series[Any]", value: Any) -> np.ndarray:
    """Return the rows with a value; None or an empty text matches a missing one: columns of names may have either."""
    if value is None or value == "":
        return column.isna().to_numpy() | column.eq("").to_numpy(dtype=bool, na_value=False)
    return column.eq(value).to_numpy(dtype=bool, na_value=False)


def is_same(a: Any, wanted: Any) -> bool:
    """Return whether values are equal after conversion by files (tuples become lists); for :class:`OneOf`, to any."""
    if isinstance(wanted, OneOf):
        return any(is_same(a, value) for value in wanted.values)
    if isinstance(a, (tuple, list)) and isinstance(wanted, (tuple, list)):
        return len(a) == len(wanted) and all(map(is_same, a, wanted))
    return bool(a == wanted) and isinstance(a, bool) == isinstance(wanted, bool)


def _agree(wanted: Pairs, values: Mapping[str, Any], *, nested: bool = False) -> bool:
    def get(key: str) -> Any:
        found: Any = values
        for part in key.split(".") if nested and key not in values else [key]:
            found = found.get(part) if isinstance(found, Mapping) else None
        return found

    return all(is_same(get(key), value) for key, value in wanted)


def is_of_condition(wanted: Pairs, run: ObservedRun, folder: str | None) -> bool:
    """Return whether a run matches: each key is a value of its condition, by its end, or of the observer's settings."""
    for key, value in wanted:
        names = [n for n in run.condition if n == key] or [n for n in run.condition if n.endswith(f".{key}")]
        if len({repr(run.condition[n]) for n in names}) > 1:
            raise ValueError(
                f"{key!r} could be {' or '.join(names)} of {run.name}: use a longer name in `run`"
            )
        values = run.condition if names else run.settings(folder) if folder is not None else {}
        if not _agree(((names[0] if names else key, value),), values, nested=not names):
            return False
    return True


def _without_forks(found: Sequence[tuple[ObservedRun, str]]) -> list[tuple[ObservedRun, str]]:
    """Return the runs among several that are not forks of others."""
    kept = [(run, folder) for run, folder in found if not is_fork(run)]
    if not kept:
        several = [run for run, _ in found]
        told = "; ".join(differences(several)) or "their conditions are equal"
        raise NotMeasured(
            f"all of these runs are forks, without the run itself: {', '.join(r.name for r in several)} ({told}); "
            "give the run, or the forks of one setting"
        )
    return kept


def _there(runs: Sequence[ObservedRun]) -> str:
    told = [
        f"{run.name}: {', '.join(sorted({n.rpartition('.')[2] for n in run.observers().values()})) or 'none'}"
        for run in runs
    ]
    return f"observers of the runs: {'; '.join(told[:4])}{' …' if len(told) > 4 else ''}"
