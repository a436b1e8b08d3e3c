"""Figures of the curvature of the loss over training."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import select

__all__ = ["curvature_figures"]

_LABELS = {
    "gradient_curvature": "along the gradient, gᵀHg / gᵀg",
    "critical_sharpness_gradient": "2 / critical step along the gradient",
    "critical_sharpness_update": "2 / critical step along the update",
}


@fig.in_style
def curvature_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw the largest eigenvalues with the sharpness along directions, and the trace with two standard errors.

    Args:
        observations: observations of ``Curvature``.

    Returns:
        ``curvature``, with one panel for each of both that has been observed.
    """
    eigenvalues = select(observations, quantity="eigenvalue")
    along = [name for name in _LABELS if name in set(observations["quantity"])]
    trace = select(observations, quantity="trace")
    panels = fig.new_panels(1 + bool(len(trace)), 5.0, 3.4, most=2, margin=(2.4, 0))
    first, *rest = panels
    indices = [int(i) for i in eigenvalues["index"].dropna().unique()] if len(eigenvalues) else []
    names = [f"eigenvalue {i}" for i in indices] + along
    looks = dict(zip(names, fig.line_styles(names).values(), strict=True))
    named = pd.concat(
        [
            eigenvalues.assign(line="eigenvalue " + eigenvalues["index"].astype(str)),
            observations[observations["quantity"].isin(along)].assign(
                line=lambda rows: rows["quantity"].astype(str)
            ),
        ]
    )
    fig.draw_lines(first, named, "line", looks, label=lambda name: _LABELS.get(name, name))
    _finish(first, observations, named, "curvature (nats)")
    fig.outer_legend(first)
    for ax in rest:
        look = {"color": fig.COLOURS["blue"], "label": "_nolegend_"}
        fig.draw_lines(ax, trace, "quantity", {"trace": look})
        errors = select(observations, quantity="trace_error").set_index("step")["value"]
        rows = trace.sort_values("step")
        low, high = fig.error_band(rows["value"], errors.reindex(rows["step"]))
        fig.draw_band(ax, rows["step"], low, high, color=fig.COLOURS["blue"], alpha=0.2)
        _finish(ax, observations, trace, "trace of the Hessian (nats),\nwith two standard errors")
    return {"curvature": panels.figure}


def _finish(ax: Axes, observations: pd.DataFrame, rows: pd.DataFrame, label: str) -> None:
    ax.set_ylabel(label)
    values = rows["value"].to_numpy(dtype=float)
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0 and values.max() > 30 * values.min():
        ax.set_yscale("log")
    else:
        fig.zero_line(ax)
    fig.set_step_axis(ax, rows["step"], rates=observations)
