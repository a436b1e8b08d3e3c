"""Figures of diagnostic probes: accuracy and selectivity, and compression, over training."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import select

__all__ = ["probe_figures"]

_OF = {"current": "the word read", "next": "the next word"}


@fig.in_style
def probe_figures(observations: pd.DataFrame, targets: Sequence[str]) -> dict[str, Figure]:
    """Draw accuracy and selectivity over steps; compression if it is recorded.

    Args:
        observations: observations of ``DiagnosticProbe``.
        targets: targets of the probed labels: ``current``, ``next``.

    Returns:
        ``accuracy_<target>`` and ``compression_<target>``: a panel for each site, a colour for each task, with
        bootstrap intervals; the accuracy of the most frequent label is dotted.
    """
    figures = {f"accuracy_{target}": _curves(observations, target) for target in targets}
    if observations["quantity"].eq("compression").any():
        for target in targets:
            figures[f"compression_{target}"] = _curves(observations, target, ("compression",))
    return figures


def _curves(
    observations: pd.DataFrame, target: str, quantities: Sequence[str] = ("accuracy", "selectivity")
) -> Figure:
    """Draw a panel for each site: accuracy solid, selectivity dashed."""
    rows = select(observations, target=target, quantity=quantities)
    sites, tasks = list(rows["site"].unique()), list(rows["task"].unique())
    panels = fig.new_panels(len(sites), 4.0, 3.3, margin=(1.8, 0), sharey=True)
    majority = select(observations, target=target, quantity="majority").drop_duplicates("task", keep="last")
    floors = dict(zip(majority["task"], majority["value"], strict=True)) if "accuracy" in quantities else {}
    for ax, site in zip(panels, sites, strict=True):
        here = select(rows, site=site)
        for task, look in fig.line_styles(tasks).items():
            color = look["color"]
            looks = {
                quantity: {"ls": dash, "label": f"{task}, {quantity}"}
                for quantity, dash in zip(quantities, ("-", "--"), strict=False)
            }
            fig.draw_lines(ax, select(here, task=task), "quantity", looks, color=color)
            for quantity in quantities:
                of = {"site": site, "task": task, "target": target}
                ends = [
                    select(observations, quantity=f"{quantity}_{end}", **of).set_index("step")["value"]
                    for end in ("low", "high")
                ]
                if all(map(len, ends)):
                    low, high = (end.sort_index() for end in ends)
                    fig.draw_band(ax, low.index, low, high, color=color, alpha=0.12)
            if task in floors:
                ax.axhline(floors[task], color=color, lw=0.9, ls=":", zorder=0)
        ax.set_title(f"{site}: label of {_OF[target]}")
        fig.set_step_axis(ax, here["step"], rates=observations)
    if len(floors):
        panels.grid[0, -1].plot([], [], color="0.4", lw=0.9, ls=":", label="most frequent label")
    panels.set_ylabel(" and ".join(quantities))
    panels.legend()
    return panels.figure
