"""Rows of the table of Induction."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from lmdyn.analysis.attention.repeated_tokens import repetition_losses
from lmdyn.callbacks.attention.induction_sums import Repeated

__all__ = ["losses_by_context", "position_rows", "row", "second_losses", "table_of", "window_rows"]

_MISSING = {"site": "", "head": pd.NA, "ablated": "", "draw": pd.NA, "data": "", "position": pd.NA}


def table_of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return the rows as a table."""
    table = pd.DataFrame(rows, columns=["quantity", *_MISSING, "value"])
    return table.astype(dict.fromkeys(("head", "draw", "position"), "Int64"))


def row(quantity: str, value: Any, **where: Any) -> dict[str, Any]:
    """Return one row; ``where`` are its site and group columns, the others are missing: NA of numbers, empty names."""
    return {"quantity": quantity, **_MISSING, **where, "value": float(value)}


def second_losses(repeated: Repeated, length: int, start: int) -> dict[str, float]:
    """Return first and second loss, their difference, and its standard error."""
    assert repeated.losses is not None
    first, second = repetition_losses(repeated.losses, length, start)
    difference = second - first
    return {
        "first_loss": float(first.mean()),
        "second_loss": float(second.mean()),
        "second_minus_first": float(difference.mean()),
        "second_minus_first_error": float(difference.std()) / len(difference) ** 0.5,
    }


def window_rows(windows: tuple[float, float] | None) -> list[dict[str, Any]]:
    """Return rows of early and late loss and their difference."""
    if windows is None:
        return []
    early, late = windows
    return [row("early_loss", early), row("late_loss", late), row("late_minus_early", late - early)]


def losses_by_context(repeated: Repeated, tokens: int) -> dict[int, float]:
    """Return the mean loss by context, the number of tokens read."""
    assert repeated.losses is not None
    return {i + 1: float(loss) for i, loss in enumerate(repeated.losses.mean(0)[: tokens - 1])}


def position_rows(data: str, losses: Mapping[int, float]) -> list[dict[str, Any]]:
    """Return rows of the loss by context, of ``random`` tokens or of the ``probe`` set."""
    return [row("position_loss", loss, data=data, position=context) for context, loss in losses.items()]
