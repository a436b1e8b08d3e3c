"""Figures 2A (attention), 2B, 4C and 4D of Inoue et al. 2022, for one or several runs."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame

from lmdyn.callbacks.observing import figures as fig
from lmdyn.runs.schema import last_step, select, wide

__all__ = ["dynamics_figures", "last_steps"]

_BINS = 24  # of transient lengths
_MAPS = 11  # attention maps next to each other


@fig.in_style
def dynamics_figures(observations: DataFrame, tau: int) -> dict[str, Figure]:
    """Draw what has no standard panel, for the last step of each run; a figure without values is left out.

    Args:
        observations: observations of ``EncoderDynamics``; for several runs with a column ``run``.
        tau: steps of a window of the long term.

    Returns:
        ``attention`` of the first sentence (2A), ``synchronization_offset`` by number of tokens (2B),
        ``attractor_view``, a trajectory in its principal components (4C), and ``transient_lengths`` (4D).
    """
    runs = last_steps(observations[observations["value"].notna()])
    kinds = (
        ("attention", "attention", _attention),
        ("synchronization_offset", "sentence_offset", _offsets),
        ("attractor_view", "principal_component", _attractor),
        ("transient_lengths", "sentence_orbit_", lambda of: _transient_lengths(of, tau)),
    )
    figures = {}
    for name, quantity, draw in kinds:
        there = {label: last[last["quantity"].str.startswith(quantity)] for label, last in runs.items()}
        if there := {label: of for label, of in there.items() if len(of)}:
            figures[name] = draw(there)
    return figures


def last_steps(observations: DataFrame) -> dict[str, DataFrame]:
    """Return the rows of the last step of each run, by its label."""
    several, runs = "run" in observations, {}
    for run, rows in fig.named_runs(observations).groupby("run", sort=False):
        last = last_step(rows)
        runs[fig.of_run(str(run), f"step {int(last['step'].iloc[0]):,}", several)] = last
    return runs


def _attention(runs: Mapping[str, DataFrame]) -> Figure:
    """Draw attention maps of each run next to each other, rows are queries."""
    panels = fig.new_panels(len(runs), 9.0, 1.6, most=1, margin=(0.6, 0.3))
    for ax, (label, weights) in zip(panels, runs.items(), strict=True):
        times = fig.spread_out(sorted(weights["t"].unique()), _MAPS)
        maps = [wide(select(weights, t=t), "key", "token").to_numpy(float) for t in times]
        side = len(maps[0]) + 1
        row = np.hstack([np.pad(of, ((0, 0), (0, 1)), constant_values=np.nan) for of in maps])
        image = fig.show_image(ax, row, aspect="auto", vmin=0, cmap="viridis")
        ax.set_xticks([i * side + side / 2 - 1 for i in range(len(times))], [f"t = {t}" for t in times])
        ax.set_yticks([])
        ax.set_title(label)
        ax.set_ylabel("queries")
        panels.figure.colorbar(image, ax=ax, label="attention")
    return panels.figure


def _offsets(runs: Mapping[str, DataFrame]) -> Figure:
    """Draw box plots of the synchronization offsets by number of tokens; whiskers extend 1.5 interquartile ranges."""
    lengths = sorted({int(n) for of in runs.values() for n in of["length"].unique()})
    figure, ax = fig.new_figure(max(6.4, 2.2 + 0.3 * len(lengths) * (len(runs) + 1)), 4.0)
    width = 0.8 / len(runs)
    for i, (label, of) in enumerate(runs.items()):
        ax.boxplot(
            [select(of, length=n)["value"] for n in lengths],
            positions=(i - (len(runs) - 1) / 2) * width + np.arange(len(lengths)),
            widths=0.8 * width,
            manage_ticks=False,
            showmeans=True,
            patch_artist=True,
            boxprops={"facecolor": fig.line_style(i)["color"]},
            label=label,
        )
    ax.set_xticks(range(len(lengths)), list(map(str, lengths)))
    fig.from_zero(ax)
    ax.set_xlabel("tokens of a sentence")
    ax.set_ylabel("synchronization offset (steps of the map)")
    fig.outer_legend(ax)
    return figure


def _attractor(runs: Mapping[str, DataFrame]) -> Figure:
    """Draw the trajectory of synchronized tokens in its first two principal components, by time."""
    panels = fig.new_panels(len(runs), 4.6, 3.9, most=2)
    for ax, (label, of) in zip(panels, runs.items(), strict=True):
        table = wide(of, "component", "t").reindex(columns=[1, 2])  # a state may have one dimension
        points = ax.scatter(
            table[1], table[2], c=table.index.to_numpy(int), s=5, lw=0, cmap="viridis", rasterized=True
        )
        ax.set_title(label)
        ax.locator_params(axis="x", nbins=4)
        ax.set_xlabel("principal component 1")
        ax.set_ylabel("principal component 2")
        panels.figure.colorbar(points, ax=ax, label="t since synchronization (steps)")
    return panels.figure


def _transient_lengths(runs: Mapping[str, DataFrame], tau: int) -> Figure:
    """Draw shares of sentences by the length of their transient; the others, and those without an end, are in words.

    Lengths are those up to the arrival on a regular orbit.
    """
    figure, ax = fig.new_figure(9.4, 3.8)
    tables = {label: wide(of, "quantity", "sentence") for label, of in runs.items()}
    longest = max(of["sentence_orbit_length"].max() for of in tables.values())
    bins = np.geomspace(tau / 2, max(longest, tau) + tau / 2, _BINS + 1)
    for i, (label, of) in enumerate(tables.items()):
        length = of["sentence_orbit_length"]
        censored = of["sentence_orbit_censored"].gt(0)
        none = length.eq(0) & ~censored
        heights, _ = np.histogram(length[~none & ~censored], bins)
        told = f"{label}: {none.mean():.0%} without a transient, {censored.mean():.0%} not over"
        ax.stairs(heights / len(of), bins, color=fig.line_style(i)["color"], label=told)
    ax.set_xscale("log")
    ax.set_xlabel("length of the chaotic transient (steps of the map)")
    ax.set_ylabel("share of sentences")
    fig.from_zero(ax)
    figure.legend(loc="outside upper left")
    return figure
