"""Figures of edge probing: F1 by task, and by layer, over training."""

import math

import pandas as pd
from matplotlib.figure import Figure

from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import select

__all__ = ["language_model_figure", "layer_figure", "shown_site", "task_figure"]


def shown_site(observations: pd.DataFrame) -> str:
    """Return the site at two thirds of those that have values, layer 8 of 12 as published.

    It is chosen by its position: choosing the best of many noisy sites would bias the score upwards.
    """
    sites = select(observations, quantity="f1").dropna(subset="value")["site"].unique()
    return str(sites[math.ceil(2 * len(sites) / 3) - 1])


@fig.in_style
def task_figure(observations: pd.DataFrame) -> Figure:
    """Draw F1 of each task over steps at :func:`shown_site`; the mean over sites dashed, the majority label dotted."""
    site = shown_site(observations)
    every = select(observations, quantity="f1")
    rows = select(every, site=site)
    means = every.groupby(["step", "task"], sort=False)["value"].mean().reset_index()
    figure, axes = fig.new_figure(7.2, 3.8)
    looks = {task: {"color": fig.line_style(i)["color"]} for i, task in enumerate(_tasks(rows))}
    for task, look in looks.items():
        fig.draw_lines(axes, rows, "task", {task: look})
        dashed = {**look, "label": "_nolegend_"}
        fig.draw_lines(axes, means, "task", {task: dashed}, ls="--", lw=0.9, marker="", alpha=0.8)
        for share in _majority(observations, task):
            axes.axhline(share, lw=0.9, ls=":", **look)
    axes.plot([], [], color="0.4", lw=0.9, ls="--", label="mean over sites")
    axes.plot([], [], color="0.4", lw=0.9, ls=":", label="most frequent label")
    axes.set_title(f"{fig.site_label(site)}, of {every['site'].nunique()}: two thirds of the depth")
    axes.set_ylabel("test micro-F1")
    fig.from_zero(axes, 1)
    fig.set_step_axis(axes, rows["step"], rates=observations)
    fig.outer_legend(axes, title="edge probing task")
    return figure


@fig.in_style
def language_model_figure(observations: pd.DataFrame, curves: pd.DataFrame) -> Figure:
    """Draw the loss over steps, and accuracy of the predicted tokens with F1 of each task at :func:`shown_site`.

    Args:
        observations: observations of edge probing.
        curves: ``loss`` and ``accuracy`` over all tokens, of the same run.

    Reference: Chiang, Huang & Lee 2020, figure 2.
    """
    site = shown_site(observations)
    rows = select(observations, quantity="f1", site=site)
    figure, (left, right) = fig.new_figure(10, 3.8, ncols=2)
    fig.draw_lines(left, curves, "quantity", {"loss": {"color": "0.2"}})
    left.set_ylabel("loss (nats per predicted token)")
    look = {"color": "0.2", "ls": "--", "label": "predicted tokens, accuracy"}
    fig.draw_lines(right, curves, "quantity", {"accuracy": look})
    fig.draw_lines(
        right,
        rows,
        "task",
        fig.line_styles(_tasks(rows)),
        label=lambda task: f"{task}, F1",
    )
    right.set_ylabel("accuracy, test micro-F1")
    fig.from_zero(right, 1)
    right.set_title(f"probes of {fig.site_label(site)}")
    loss, accuracy = (select(curves, quantity=quantity)["step"] for quantity in ("loss", "accuracy"))
    fig.set_step_axis(left, loss, rates=observations)
    fig.set_step_axis(right, [*rows["step"], *accuracy], rates=observations)
    fig.outer_legend(right)
    return figure


@fig.in_style
def layer_figure(observations: pd.DataFrame) -> Figure:
    """Draw a panel for each task: F1 of each site over steps, with many sites from dark (first) to bright (last)."""
    rows = select(observations, quantity="f1")
    tasks = _tasks(rows)
    panels = fig.new_panels(len(tasks), 4.2, 3.1, most=2, margin=(1.4, 0.3))
    for ax, task in zip(panels, tasks, strict=True):
        here = select(rows, task=task)
        looks = fig.site_styles(list(rows["site"].unique()))
        fig.draw_lines(ax, here, "site", looks, label=fig.site_label)
        for share in _majority(observations, task):
            ax.axhline(share, color="0.4", lw=0.9, ls=":", label="most frequent label", zorder=0)
        ax.set_title(task)
        fig.set_step_axis(ax, here["step"], rates=observations)
        fig.from_zero(ax, 1)
    panels.set_ylabel("test micro-F1")
    panels.legend()
    return panels.figure


def _tasks(rows: pd.DataFrame) -> list[str]:
    return list(rows.sort_values("step", kind="stable")["task"].unique())


def _majority(observations: pd.DataFrame, task: str) -> list[float]:
    """Return the last score of the most frequent label, if it is known."""
    return select(observations, quantity="majority", task=task)["value"].tolist()[-1:]
