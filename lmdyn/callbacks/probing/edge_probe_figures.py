"""Figures of edge probing: F1 by task, and by layer, over training."""

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from lmdyn.callbacks.observing.figures import (
    line_style,
    mark_rate_drops,
    new_figure,
    outer_legend,
    set_step_axis,
    site_label,
)

__all__ = ["best_site", "language_model_figure", "layer_figure", "task_figure"]


def best_site(observations: pd.DataFrame) -> str:
    """The site with the highest mean F1 over tasks at the last step that has values; the first of equals."""
    rows = observations[observations["quantity"].eq("f1") & observations["value"].notna()]
    last = rows[rows["step"].eq(rows["step"].max())]
    return str(last.groupby("site", sort=False)["value"].mean().idxmax())


def task_figure(observations: pd.DataFrame) -> Figure:
    """F1 of each task over steps at :func:`best_site`; the majority label's dotted."""
    site = best_site(observations)
    rows = observations[observations["quantity"].eq("f1") & observations["site"].eq(site)].sort_values("step")
    majority = observations[observations["quantity"].eq("majority")]
    figure, axes = new_figure(7.2, 3.8)
    for i, task in enumerate(rows["task"].unique()):
        line, color = rows[rows["task"].eq(task)], line_style(i)["color"]
        axes.plot(line["step"], line["value"], marker=".", ms=5, lw=1.4, color=color, label=task)
        share = majority[majority["task"].eq(task)]["value"]
        if len(share):
            axes.axhline(float(share.iloc[-1]), color=color, lw=0.9, ls=":")
    axes.plot([], [], color="0.4", lw=0.9, ls=":", label="most frequent label")
    axes.set_title(
        f"{site_label(site)}: highest mean over tasks at step {rows['step'].max():,}", fontsize=10, loc="left"
    )
    axes.set_ylabel("test micro-F1")
    axes.set_ylim(0, 1)
    mark_rate_drops(axes, observations)
    set_step_axis(axes, list(rows["step"]))
    outer_legend(axes, title="edge probing task")
    return figure


def language_model_figure(observations: pd.DataFrame, curves: pd.DataFrame) -> Figure:
    """Loss over steps, and accuracy of the predicted tokens beside F1 of each task at :func:`best_site`.

    Args:
        observations: of edge probing.
        curves: ``loss`` and ``accuracy`` over all tokens, of the same run.

    Reference: Chiang, Huang & Lee 2020, figure 2.
    """
    site = best_site(observations)
    rows = observations[observations["quantity"].eq("f1") & observations["site"].eq(site)].sort_values("step")
    figure, (left, right) = new_figure(10, 3.8, ncols=2)
    loss, accuracy = (curves[curves["quantity"].eq(q)].sort_values("step") for q in ("loss", "accuracy"))
    left.plot(loss["step"], loss["value"], marker=".", color="0.2")
    left.set_ylabel("loss (nats per predicted token)")
    right.plot(
        accuracy["step"],
        accuracy["value"],
        marker=".",
        color="0.2",
        ls="--",
        label="predicted tokens, accuracy",
    )
    for i, task in enumerate(rows["task"].unique()):
        line = rows[rows["task"].eq(task)]
        right.plot(
            line["step"], line["value"], marker=".", ms=5, lw=1.4, label=f"{task}, F1", **line_style(i)
        )
    right.set_ylabel("accuracy, test micro-F1")
    right.set_ylim(0, 1)
    right.set_title(f"probes of {site_label(site)}", fontsize=10, loc="left")
    for ax, steps in ((left, loss["step"]), (right, [*rows["step"], *accuracy["step"]])):
        mark_rate_drops(ax, observations)
        set_step_axis(ax, list(steps))
    outer_legend(right)
    return figure


def layer_figure(observations: pd.DataFrame) -> Figure:
    """A panel for each task: F1 of each site over steps, in the order of the sites from dark to bright."""
    rows = observations[observations["quantity"].eq("f1")].sort_values("step", kind="stable")
    tasks, sites = list(rows["task"].unique()), list(rows["site"].unique())
    majority = observations[observations["quantity"].eq("majority")]
    columns = min(2, len(tasks))
    lines = -(-len(tasks) // columns)
    figure, axes = new_figure(
        4.2 * columns + 1.4, 3.1 * lines + 0.3, nrows=lines, ncols=columns, squeeze=False
    )
    colors = mpl.colormaps["viridis"]
    for ax, task in zip(axes.flat, tasks, strict=False):
        here = rows[rows["task"].eq(task)]
        for i, site in enumerate(sites):
            line = here[here["site"].eq(site)]
            color = colors(0.95 * i / max(1, len(sites) - 1))
            ax.plot(
                line["step"], line["value"], marker=".", ms=4, lw=1.2, color=color, label=site_label(site)
            )
        share = majority[majority["task"].eq(task)]["value"]
        if len(share):
            ax.axhline(
                float(share.iloc[-1]), color="0.4", lw=0.9, ls=":", label="most frequent label", zorder=0
            )
        ax.set_title(task, fontsize=10, loc="left")
        mark_rate_drops(ax, observations)
        set_step_axis(ax, list(here["step"]))
    for ax in axes.flat[len(tasks) :]:
        ax.set_axis_off()
    for ax in axes[:, 0]:
        ax.set_ylabel("test micro-F1")
    outer_legend(axes[0, -1])
    return figure
