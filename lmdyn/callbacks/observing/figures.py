"""What the observers' figures have in common, and their way to the loggers."""

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmdyn.analysis.inspection.transformer import layer_number

__all__ = [
    "line_style",
    "log_figure",
    "mark_rate_drops",
    "named_runs",
    "new_figure",
    "outer_legend",
    "set_step_axis",
    "short_names",
    "site_label",
]


def new_figure(width: float = 7.0, height: float = 4.2, **subplots: Any) -> tuple[Figure, Any]:
    """A figure without pyplot's global state, and its axes."""
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    return figure, figure.subplots(**subplots)


def set_step_axis(axes: Axes, steps: Sequence[int]) -> None:
    """Label and limit the axis of training steps; logarithmic (0 included) where observations are spaced so."""
    axes.set_xlabel("training step (optimizer updates)")
    different = sorted(set(steps))
    if len(different) < 2:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return
    early = sum(step < different[-1] / 10 for step in different)
    if early > max(3, len(different) / 3):
        axes.set_xscale("symlog", linthresh=max(1, different[1]), linscale=0.3)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.set_xlim(different[0], different[-1])


def outer_legend(axes: Axes, of: Sequence[Axes] = (), title: str | None = None, fontsize: float = 8) -> None:
    """A legend to the right of ``axes``: each line of ``of`` (of ``axes`` itself by default) once, by its label."""
    entries = {
        label: handle
        for panel in of or (axes,)
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    axes.legend(
        entries.values(), entries.keys(), title=title, frameon=False, fontsize=fontsize, title_fontsize=fontsize,
        loc="center left", bbox_to_anchor=(1.0, 0.5),
    )  # fmt: skip


def site_label(site: str) -> str:
    """What figures call a site: layers by their number from 1, also those that share one module.

    Example:
        >>> site_label("layer@0"), site_label("layer3"), site_label("embedding")
        ('layer 1', 'layer 3', 'embedding')
    """
    return f"layer {layer_number(site)}" if re.fullmatch(r"layer@?\d+", site) else site


def line_style(i: int) -> dict[str, str]:
    """Colour and dashes of the i-th of many lines: ten colours, then dashed, then dotted."""
    return {"color": f"C{i % 10}", "ls": ("-", "--", ":")[i // 10 % 3]}


def mark_rate_drops(axes: Axes, observations: pd.DataFrame) -> None:
    """A vertical dashed line at each observation whose learning rate is below the one before, with one legend entry.

    None where the rate falls all the time after its height, as by a warmup and decay.
    """
    rates = (
        observations[observations["quantity"] == "learning_rate"].drop_duplicates("step").sort_values("step")
    )
    values = rates["value"].reset_index(drop=True)
    if len(values) == 0 or (len(values) > 2 and (values[values.idxmax() :].diff().dropna() < 0).all()):
        return
    drops = rates["step"][rates["value"].diff() < 0]
    for i, step in enumerate(drops):
        axes.axvline(
            step, color="0.6", lw=0.8, ls="--", zorder=0, label=None if i else "learning rate reduced"
        )


def short_names(runs: Sequence[str]) -> dict[str, str]:
    """What figures and tables call runs: the last part of each one's path, or as many as tell all apart.

    Example:
        >>> short_names(["runs/a/gpt", "runs/b/gpt"])
        {'runs/a/gpt': 'a/gpt', 'runs/b/gpt': 'b/gpt'}
    """
    parts = {run: PurePath(run).parts for run in runs}
    names = {run: run for run in runs}
    for length in range(1, max(map(len, parts.values()), default=0) + 1):
        names = {run: "/".join(p[-length:]) for run, p in parts.items()}
        if len(set(names.values())) == len(names):
            break
    return names


def named_runs(observations: pd.DataFrame) -> pd.DataFrame:
    """With short names (:func:`short_names`) in the column ``run``: ``this run`` where there is none.

    Example:
        >>> named_runs(pd.DataFrame({"run": ["runs/a/gpt", "runs/a/bert"]}))["run"].tolist()
        ['gpt', 'bert']
        >>> named_runs(pd.DataFrame({"step": [0]}))["run"].tolist()
        ['this run']
    """
    if "run" not in observations:
        return observations.assign(run="this run")
    runs = observations["run"].astype(str)
    return observations.assign(run=runs.map(short_names(list(runs.unique()))))


def log_figure(loggers: Sequence[Any], tag: str, figure: Figure, step: int) -> None:
    """Send a figure to every logger that takes images: TensorBoard's ``add_image``, or ``log_image``."""
    picture: np.ndarray[Any, Any] | None = None
    for logger in loggers:
        add_image = getattr(getattr(logger, "experiment", None), "add_image", None)
        if add_image is None and not hasattr(logger, "log_image"):
            continue
        if picture is None:
            picture = _pixels(figure)
        if add_image is not None:
            add_image(tag, picture, step, dataformats="HWC")
        else:
            logger.log_image(key=tag, images=[picture], step=step)


def _pixels(figure: Figure) -> np.ndarray[Any, Any]:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
