"""From an observation to the loggers: scalars and figures."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from lmdyn.callbacks.observing.figures import log_figure

if TYPE_CHECKING:
    from lmdyn.callbacks.observing.observer import Observer

__all__ = ["publish", "scalar_tags"]


def scalar_tags(name: str, observation: pd.DataFrame) -> dict[str, float]:
    """Logger tags of an observation's rows: ``<observer>/<quantity>/<site>/<groups>``, empty parts left out.

    A group that is a whole number is named by its column, as in ``distance=3``.

    Example:
        >>> rows = pd.DataFrame({"step": [1], "quantity": ["loss"], "site": [""], "upos": ["NOUN"], "value": [2.0]})
        >>> scalar_tags("learning_curves", rows)
        {'learning_curves/loss/NOUN': 2.0}
    """
    groups = [c for c in observation.columns if c not in ("step", "tokens", "quantity", "site", "value")]
    parts = observation[["quantity", "site", *groups]].astype(object).to_numpy()
    values = observation["value"].to_numpy()
    whole = [pd.api.types.is_integer_dtype(observation[c]) for c in ("quantity", "site", *groups)]

    def named(row: Any) -> list[str]:
        numbered = zip(("quantity", "site", *groups), row, whole, strict=True)
        return [
            f"{c}={p}" if n else p for c, p, n in numbered if isinstance(p, str) or (n and not pd.isna(p))
        ]

    return {
        "/".join([name, *(part for part in named(row) if part)]): float(v)
        for row, v in zip(parts, values, strict=True)
        if v == v  # what has no value at this step (NaN) is no scalar
    }


def publish(observer: "Observer", table: pd.DataFrame, loggers: Sequence[Any], step: int) -> None:
    """Send an observation's scalars to every logger, and its figures to those that take images."""
    scalars = scalar_tags(
        observer.name, table[observer.is_scalar(table) & (table["quantity"] != "learning_rate")]
    )
    for logger in loggers:
        logger.log_metrics(scalars, step=step)
    if observer.log_figures and any(
        hasattr(logger, "log_image") or _has_figures(logger) for logger in loggers
    ):
        observations = observer.store.read(until=step, where=observer.figure_rows)
        figures = observer.figures(observations, observer.settings)
        for name, figure in figures.items():
            log_figure(loggers, f"{observer.name}/{name}", figure, step)


def _has_figures(logger: Any) -> bool:
    return hasattr(getattr(logger, "experiment", None), "add_figure")
