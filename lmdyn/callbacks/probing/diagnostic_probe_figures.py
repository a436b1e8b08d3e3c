"""Figures of diagnostic probes: accuracy and selectivity, and compression, over training."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

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
        bootstrap intervals; the accuracy of the most frequent label is dotted. With both targets also ``information``:
        a panel for each task, the course of each site in the plane of both targets.
    """
    figures = {f"accuracy_{target}": _curves(observations, target) for target in targets}
    if observations["quantity"].eq("compression").any():
        for target in targets:
            figures[f"compression_{target}"] = _curves(observations, target, ("compression",))
    information = select(observations, quantity="information")
    if set(targets) == {"current", "next"} and information["value"].notna().any():
        figures["information"] = _plane(information)
    return figures


def _plane(information: pd.DataFrame) -> Figure:
    """Draw the course of each site from the first to the last step: about the label of this word, and of the next."""
    tasks, sites = list(information["task"].unique()), list(information["site"].unique())
    panels = fig.new_panels(len(tasks), 4.2, 3.6, margin=(1.8, 0))
    looks = fig.site_styles(sites)
    for ax, task in zip(panels, tasks, strict=True):
        for site, look in looks.items():
            here = select(information, task=task, site=site).sort_values("step")
            x, y = (select(here, target=t).set_index("step")["value"] for t in ("current", "next"))
            y = y.reindex(x.index)
            ax.plot(x, y, marker=".", ms=4, lw=1.0, label=site, **look)
            ax.plot(
                x.iloc[:1], y.iloc[:1], "o", mfc="w", mec=look["color"], ms=6, label="_nolegend_", zorder=3
            )
            ax.plot(x.iloc[-1:], y.iloc[-1:], "o", color=look["color"], ms=6, label="_nolegend_", zorder=3)
        ax.set_title(f"{task}, from step {information['step'].min():,} (hollow) on")
        ax.set_xlabel("information about the label of this word (nats)")
        ax.xaxis.set_major_locator(MaxNLocator(nbins=4))  # long numbers where all sites are close
    panels.set_ylabel("information about the label of the next word (nats)")
    panels.legend()
    return panels.figure


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
