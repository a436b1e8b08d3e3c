"""The sums of one observation, by what they are of, and the table that is made from them."""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from pandas import DataFrame
from torch import Tensor

from lmdyn.analysis.statistics.distributed import gather, rank_and_world_size, union_over_ranks
from lmdyn.callbacks.observing.run import warn

Row = tuple[Mapping[str, Any], Mapping[str, float | str | None]]
"""Values of quantities at one place: ``({"site": "h1", "over": "all"}, {"rankme": 3.2})``.

None has no row; a text is the reason why there is no value, which is NaN.
"""

_MOST_PLACES = 3  # in a warning


class Sums:
    """Sums of an observation, made when they are first used: ``sums["vectors", "h1", "all"]``.

    Args:
        kinds: function that makes an empty sum, by the name of its kind. A sum has the method ``reduce``, which adds
            those of all ranks.
        step: step of the observation.

    Example:
        >>> import torch
        >>> from lmdyn.analysis.statistics.grouped import GroupedMeans
        >>> sums = Sums({"losses": lambda: GroupedMeans(1)})
        >>> sums["losses", "h1"].update(torch.tensor([0]), {"loss": torch.tensor([2.0])})
        >>> [(place, means.total_mean("loss")) for place, means in sums.of("losses")]
        [(('h1',), 2.0)]
    """

    def __init__(self, kinds: Mapping[str, Callable[[], Any]], step: int = 0) -> None:
        self._kinds, self.step = kinds, step
        self._sums: dict[tuple[Hashable, ...], Any] = {}

    def __getitem__(self, key: str | tuple[Any, ...]) -> Any:
        kind, *place = (key,) if isinstance(key, str) else key
        if (kind, *place) not in self._sums:
            self._sums[kind, *place] = self._kinds[kind]()
        return self._sums[kind, *place]

    def of(self, kind: str) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Yield the places and sums of a kind, in the order in which they were first used."""
        yield from ((key[1:], total) for key, total in self._sums.items() if key[0] == kind)

    def reduce(self) -> None:
        """Add the sums of all ranks, of which some may have no data. Every rank must call it."""
        for key in union_over_ranks(self._sums):
            self[key].reduce()


def gather_rows(parts: Sequence[Mapping[Any, Tensor]], device: torch.device) -> dict[Any, Tensor]:
    """Return the rows of all parts of all ranks by name, on a device; empty without a part. All ranks must call it.

    Example:
        >>> gather_rows([{"x": torch.zeros(1)}, {"x": torch.ones(2)}], torch.device("cpu"))
        {'x': tensor([0., 1., 1.])}
    """
    if rank_and_world_size()[1] > 1:
        own = [{name: rows.cpu() for name, rows in part.items()} for part in parts]
        parts = [part for of_rank in gather(own) for part in of_rank]
    names = parts[0] if parts else ()
    return {name: torch.cat([part[name].to(device) for part in parts]) for name in names}


def tabulate(
    rows: Iterable[Row | DataFrame],
    groups: Mapping[str, Any],
    name: str,
    step: int,
    why: str = "the model has diverged",
) -> DataFrame:
    """Return the table of an observation: columns ``quantity``, ``site``, the groups, ``value``.

    NaN stands for what is not finite: it is kept, with a warning that names the sites, or the reason if there is one.

    Args:
        rows: values at places, or tables with some of the columns, in which the value "" is one that is undefined and
            expected to be: NaN without a warning.
        groups: value of each group column in rows without it; ``int`` for a column of numbers, where it is missing.
        name: the observer, for the warning.
        step: step of the observation, for the warning.
        why: the reason, for the warning; empty for tables in which NaN is expected: there is no warning.
    """
    plain: list[dict[str, Any]] = []
    tables: list[DataFrame] = []
    for row in rows:
        if isinstance(row, DataFrame):
            tables.append(row)
        else:
            place, values = row
            plain += [{"quantity": q, **place, "value": v} for q, v in values.items() if v is not None]
    columns = ["quantity", "site", *groups, "value"]
    parts = [part for part in (DataFrame(plain), *tables) if len(part)]
    undefined = np.concatenate([np.zeros(0, dtype=bool), *(_texts(part["value"]) for part in parts)])
    table = pd.concat(parts, ignore_index=True) if parts else DataFrame()
    if unknown := [str(c) for c in table.columns if c not in columns]:
        raise ValueError(
            f"{name}: the observer's rows have undeclared columns {', '.join(unknown)}: add these columns to "
            f"`columns`, as in columns = {{{unknown[0]!r}: int}}"
        )
    table = table.reindex(columns=columns)
    for column, empty in {"site": "", **groups}.items():
        if empty is int:
            table[column] = table[column].astype("Int64")
        elif empty is not None:
            table[column] = empty if table[column].isna().all() else table[column].fillna(empty)
    table["value"] = table["value"].mask(undefined, math.nan).astype("float64")
    broken = list(dict.fromkeys(table["site"][~np.isfinite(table["value"]) & ~undefined]))
    if why and broken:
        sites = ", ".join(filter(None, broken))
        warn(name, f"values are not finite at step {step}{f' in {sites}' if sites else ''}: {why}")
    for reason in dict.fromkeys(one["value"] for one in plain if isinstance(one["value"], str)):
        held = [one for one in plain if one["value"] == reason]
        some = "; ".join(", ".join(map(str, list(one.values())[:-1])) for one in held[:_MOST_PLACES])
        more = f"; {len(held) - _MOST_PLACES} more" if len(held) > _MOST_PLACES else ""
        warn(name, f"no value at step {step} of ({some}{more}): {reason}")
    return table


def _texts(values: "pd.Series[Any]") -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Return which values are texts; there are none in a column of numbers, which may be long."""
    if pd.api.types.is_numeric_dtype(values):
        return np.zeros(len(values), dtype=bool)
    return np.array([isinstance(value, str) for value in values.tolist()], dtype=bool)
