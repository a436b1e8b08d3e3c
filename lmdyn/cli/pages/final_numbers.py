"""Final results of an observer: one number for each quantity, with its error or interval."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import pandas as pd

from lmdyn.callbacks.observing.drawing.named_charts import named_charts, scalar_tags
from lmdyn.callbacks.observing.drawing.words import quantity_words
from lmdyn.runs.schema import ENDS, Quantity, declared, last_step, select

_READOUT = "embedding|logits|norm|output"  # sites that are no blocks


class FinalNumber(NamedTuple):
    """A number of the first and of the last observation.

    Attributes:
        label: the quantity in words, with its unit.
        of: layer and groups; empty for a value over everything.
        first: value at the first observation, None if it was not measured.
        last: value at the last observation.
        spread: the recorded error or interval; empty if neither is known.
        better: ``higher``, ``lower`` or empty.
    """

    label: str
    of: str
    first: float | None
    last: float
    spread: str
    better: str


def final_numbers(
    ends: pd.DataFrame, recorded: Sequence[Quantity] = (), first_step: int | None = None
) -> list[FinalNumber]:
    """Return the last value of each quantity: over everything, else of its last block, or its last group.

    Args:
        ends: tidy rows of the first and of the last observation.
        recorded: the declarations.
        first_step: step of the first observation, which may have no rows; by default the first step of ``ends``.

    Example:
        >>> rows = pd.DataFrame({"step": 9, "quantity": ["loss", "loss_error"], "site": "", "value": [4.0, 0.5]})
        >>> final_numbers(rows)
        [FinalNumber(label='loss', of='', first=4.0, last=4.0, spread='± 0.5', better='')]
    """
    begin = ends["step"].min() if first_step is None else first_step
    known = scalar_tags("", last_step(ends))
    found = []
    for name, charts in groupby(named_charts(ends, recorded), key=lambda chart: chart.quantity):
        chart = next(charts)
        rows = last_step(chart.rows.dropna(subset="value"))
        if not len(rows):
            continue
        blocks = rows[~rows["site"].str.match(_READOUT)]
        last = (blocks if len(blocks) else rows).iloc[-1]
        first = select(chart.rows, step=begin, line=last["line"])["value"].dropna()
        groups = last.drop(["step", "quantity", "line", "value"])
        place = "".join(f"/{group}" for group in groups if group)
        error, low, high = (known.get(f"/{name}{end}{place}") for end in ENDS)
        spread = "" if error is None else f"± {error:.2g}"
        if low is not None and high is not None:
            spread = f"[{low:.4g}, {high:.4g}]"
        of = declared(recorded, name)
        found.append(
            FinalNumber(
                quantity_words(name, of),
                last["line"],
                float(first.iloc[0]) if len(first) else None,
                float(last["value"]),
                spread,
                (of and of.better) or "",
            )
        )
    return found
