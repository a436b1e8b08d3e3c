"""Rows of ``LossChangeAllocation``: shares by layer, application, matrix, class of token and row of the embedding."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import paths_of, plain_path
from lmdyn.analysis.landscape.followed_path import AllocationSums

__all__ = ["Divisions", "Places", "first_table", "interval_table"]

_COLUMNS = ["quantity", "site", "parameter", "by", "group", "value"]
OTHER = "other"
REST = "rest"


@dataclass(frozen=True)
class Divisions:
    """Divisions of the tokens, and of the rows of the embedding.

    Attributes:
        tokens: names of the classes of predicted tokens by division.
        rows: for each division of the vocabulary, names of the classes, and the class of each token id, -1 for none.
    """

    tokens: Mapping[str, Sequence[str]]
    rows: Mapping[str, tuple[Sequence[str], Tensor]]


@dataclass(frozen=True)
class Places:
    """Where parameters are.

    Attributes:
        layer_of: layer by name of the parameter.
        size: number of rows by name of the parameter.
        embedding: name of the matrix of token embeddings; empty if there is none.
    """

    layer_of: Mapping[str, str]
    size: Mapping[str, int]
    embedding: str

    @classmethod
    def of(cls, module: nn.Module, sites: Mapping[str, str], repeated: Mapping[str, str]) -> "Places":
        """Find the places of all parameters: each is in the innermost of the sites and shared layers around it."""
        prefixes = {
            **{path: name for name, path in repeated.items()},
            **{plain_path(p): n for n, p in sites.items()},
        }
        layer_of, size = {}, {}
        for name, parameter in module.named_parameters():
            plain = plain_path(name)
            around = [p for p in prefixes if f"{plain}.".startswith(f"{p}.")]
            layer_of[name] = prefixes[max(around, key=len)] if around else OTHER
            size[name] = len(parameter) if parameter.ndim else 1
        names = {id(p): name for name, p in module.named_parameters()}
        paths = paths_of(module)
        of_tokens = [paths[plain_path(path)] for name, path in sites.items() if name.endswith("embedding")]
        table = next((m for m in of_tokens if isinstance(m, nn.Embedding)), None)
        return cls(layer_of, size, "" if table is None else names[id(table.weight)])

    def row_classes(self, rows: Mapping[str, tuple[Tensor, int]]) -> dict[str, tuple[Tensor, int]]:
        """Return the class of each row of the embedding, which may have rows for no token."""
        if not self.embedding:
            return {}
        fitted = {}
        for name, (of_token, number) in rows.items():
            of_row = torch.full((self.size[self.embedding],), -1)
            most = min(len(of_row), len(of_token))
            of_row[:most] = of_token[:most]
            fitted[name] = of_row, number
        return fitted


def first_table(loss: float) -> pd.DataFrame:
    """Return the rows of an observation without an interval before it: its loss."""
    return pd.DataFrame([("loss", "", "", "", "", loss)], columns=_COLUMNS)


def interval_table(
    sums: AllocationSums,
    loss: float,
    updates: int,
    tokens: Mapping[str, Tensor],
    divisions: Divisions,
    places: Places,
) -> pd.DataFrame:
    """Return the rows of an interval; shares are NaN if they are void.

    Args:
        sums: the sums of the interval.
        loss: loss at its end.
        updates: number of updates in it.
        tokens: for each division, the number of tokens of each class; the last entry is of the others.
        divisions: names of the classes.
        places: layers of the parameters.
    """
    rows: list[tuple[Any, ...]] = [
        ("loss", "", "", "", "", loss),
        ("loss_change", "", "", "", "", sums.loss_change),
        ("residual", "", "", "", "", sums.residual),
        *(
            (name, "", "", "", "", getattr(sums, name))
            for name in ("gross_change", "gross_residual")
            if sums.lines > 1  # of one line, they are the same without signs
        ),
        ("first_order", "", "", "", "", sums.first_order),
        ("updates", "", "", "", "", float(updates)),
        ("points", "", "", "", "", float(sums.points)),
    ]
    void = sums.void
    first = next(iter(divisions.tokens))
    for quantity, parts in (("allocation", sums.parts), ("first_order", sums.first_order_parts)):
        missing = void and quantity == "allocation"
        by_place = _by_place(parts, places, {name: len(of) for name, of in divisions.tokens.items()})
        for (division, site, parameter), values in by_place.items():
            if division == first and site:  # every division adds up to the same
                rows.append((quantity, site, parameter, "", "", math.nan if missing else float(values.sum())))
            if division and not parameter:
                for group, value, number in zip(
                    [*divisions.tokens[division], REST],
                    values.tolist(),
                    tokens[division].tolist(),
                    strict=True,
                ):
                    if number:
                        rows.append((quantity, site, "", division, group, math.nan if missing else value))
    for division, counts in tokens.items():
        if division:
            named = zip([*divisions.tokens[division], REST], counts.tolist(), strict=True)
            rows += [("class_tokens", "", "", division, group, number) for group, number in named if number]
    rows += _helping(sums, places, void)
    layer = places.layer_of.get(places.embedding, "")
    for division, values in sums.row_parts.items():
        for group, value in zip([*divisions.rows[division][0], REST], values.tolist(), strict=True):
            rows.append(("allocation", layer, places.embedding, division, group, math.nan if void else value))
    return pd.DataFrame(rows, columns=_COLUMNS)


def _by_place(
    parts: Mapping[tuple[str, str, str], Tensor], places: Places, classes: Mapping[str, int]
) -> dict[tuple[str, str, str], Tensor]:
    """Sum parts by (division, layer or application, matrix); "" is the sum over all. What did not move has 0."""
    found: dict[tuple[str, str, str], Tensor] = {}
    still = {
        (division, parameter, ""): torch.zeros(number + 1, dtype=torch.float64)
        for division, number in classes.items()
        for parameter in places.layer_of
    }
    for (division, parameter, application), values in (*still.items(), *parts.items()):
        layer = places.layer_of[parameter]
        keys = (("", ""), (layer, ""), (layer, parameter), (application or layer, ""))
        for site, matrix in dict.fromkeys(keys):  # in one order in every process
            key = (division, site, matrix)
            found[key] = found[key] + values if key in found else values
    return found


def _helping(sums: AllocationSums, places: Places, void: bool) -> list[tuple[Any, ...]]:
    counts: dict[tuple[str, str], Tensor] = {}
    for parameter, count in sums.helping.items():
        layer = places.layer_of[parameter]
        for key in (("", ""), (layer, ""), (layer, parameter)):
            counts[key] = counts.get(key, 0) + count
    rows = []
    for (site, parameter), count in counts.items():
        below, there = count.tolist()
        if there:
            share = math.nan if void else below / there
            rows.append(("helping_share", site, parameter, "", "", share))
    return rows
