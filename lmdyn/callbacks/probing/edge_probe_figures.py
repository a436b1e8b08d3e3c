"""Figure of edge probing: F1 by task beside the language model, over training."""

import math

import pandas as pd
from matplotlib.figure import Figure

from lmdyn.callbacks.observing import figures as fig
from lmdyn.runs.schema import select

__all__ = ["language_model_figure", "shown_site"]


def shown_site(observations: pd.DataFrame) -> str:
    """Return the site at two thirds of those that have values, layer 8 of 12 as published.

    It is chosen by its position: choosing the best of many noisy sites would bias the score upwards.
    """
    sites = select(observations, quantity="f1").dropna(subset="value")["site"].unique()
    return str(sites[math.ceil(2 * len(sites) / 3) - 1])


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
    tasks = rows.sort_values("step", kind="stable")["task"].unique()
    fig.draw_lines(right, rows, "task", fig.line_styles(tasks), label=lambda task: f"{task}, F1")
    right.set_ylabel("accuracy, test micro-F1")
    fig.from_zero(right, 1)
    right.set_title(f"probes of {fig.site_label(site)}")
    loss, accuracy = (select(curves, quantity=quantity)["step"] for quantity in ("loss", "accuracy"))
    fig.set_step_axis(left, loss, rates=observations)
    fig.set_step_axis(right, [*rows["step"], *accuracy], rates=observations)
    fig.outer_legend(right)
    return figure
