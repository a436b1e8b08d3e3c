"""Figures 2A (attention), 2B, 4C and 4D of Inoue et al. 2022, for one or several runs."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from pandas import DataFrame

from lmdyn.callbacks.observing import figures as fig
from lmdyn.runs.schema import last_step, select, wide

__all__ = ["dynamics_figures"]

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
    several, named = "run" in observations, fig.named_runs(observations)
    runs = {}
    for run, rows in named[named["value"].notna()].groupby("run", sort=False):
        last = last_step(rows)
        runs[fig.of_run(str(run), f"step {int(last['step'].iloc[0]):,}", several)] = last
    drawn = {
        "attention": _attention(_having(runs, "attention")),
        "synchronization_offset": _offsets(_having(runs, "sentence_offset")),
        "attractor_view": _attractor(_having(runs, "principal_component")),
        "transient_lengths": _transient_lengths(runs, tau),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _having(runs: Mapping[str, DataFrame], quantity: str) -> dict[str, DataFrame]:
    """Return the rows of a quantity, for the runs that have some."""
    rows = {label: select(last, quantity=quantity) for label, last in runs.items()}
    return {label: of for label, of in rows.items() if len(of)}


def _attention(runs: Mapping[str, DataFrame]) -> Figure | None:
    """Draw attention maps of each run next to each other, rows are queries."""
    if not runs:
        return None
    panels = fig.new_panels(len(runs), 9.0, 1.6, most=1, margin=(0.6, 0.3))
    for ax, (label, weights) in zip(panels, runs.items(), strict=True):
        times = fig.spread_out(sorted(weights["t"].astype(int).unique()), _MAPS)
        side = int(weights[["token", "key"]].max().max()) + 1
        row = np.full((side, (side + 1) * len(times) - 1), np.nan)
        for i, t in enumerate(times):
            of = select(weights, t=t)
            row[of["token"].to_numpy(int), i * (side + 1) + of["key"].to_numpy(int)] = of["value"]
        image = fig.show_image(ax, row, aspect="auto", vmin=0, cmap="viridis")
        centres = [i * (side + 1) + side / 2 - 0.5 for i in range(len(times))]
        ax.set_xticks(centres, [f"t = {t}" for t in times])
        ax.set_yticks([])
        ax.set_title(label)
        ax.set_ylabel("queries")
        panels.figure.colorbar(image, ax=ax, label="attention")
    return panels.figure


def _offsets(runs: Mapping[str, DataFrame]) -> Figure | None:
    """Draw box plots of the synchronization offsets by number of tokens; whiskers extend 1.5 interquartile ranges."""
    if not runs:
        return None
    lengths = sorted({int(n) for of in runs.values() for n in of["length"].unique()})
    figure, ax = fig.new_figure(max(6.4, 2.2 + 0.3 * len(lengths) * (len(runs) + 1)), 4.0)
    width = 0.8 / len(runs)
    for i, (label, of) in enumerate(runs.items()):
        colour = fig.line_style(i)["color"]
        line = {"color": colour}
        ax.boxplot(
            [select(of, length=n)["value"].to_numpy(float) for n in lengths],
            positions=(i - (len(runs) - 1) / 2) * width + np.arange(len(lengths)),
            widths=0.8 * width,
            manage_ticks=False,
            showmeans=True,
            medianprops=line,
            whiskerprops=line,
            capprops=line,
            boxprops=line,
            meanprops={"marker": "^", "markerfacecolor": colour, "markeredgecolor": colour},
            flierprops={"marker": "D", "markeredgecolor": colour, "markersize": 3.5},
        )
        ax.plot([], [], "^", color=colour, label=f"{label}, mean")
    ax.set_xticks(range(len(lengths)), list(map(str, lengths)))
    fig.from_zero(ax)
    ax.set_xlabel("tokens of a sentence")
    ax.set_ylabel("synchronization offset (steps of the map)")
    fig.outer_legend(ax)
    return figure


def _attractor(runs: Mapping[str, DataFrame]) -> Figure | None:
    """Draw the trajectory of synchronized tokens in its first two principal components, by time."""
    tables = {label: wide(of, "component", "t") for label, of in runs.items()}
    tables = {label: table for label, table in tables.items() if table.shape[1] > 1}
    if not tables:
        return None
    panels = fig.new_panels(len(tables), 4.6, 3.9, most=2)
    for ax, (label, table) in zip(panels, tables.items(), strict=True):
        times = table.index.to_numpy(int)
        points = ax.scatter(table[1], table[2], c=times, s=5, lw=0, cmap="viridis", rasterized=True)
        ax.set_title(label)
        ax.locator_params(axis="x", nbins=4)
        ax.set_xlabel("principal component 1")
        ax.set_ylabel("principal component 2")
        panels.figure.colorbar(points, ax=ax, label="t since synchronization (steps)")
    return panels.figure


def _transient_lengths(runs: Mapping[str, DataFrame], tau: int) -> Figure | None:
    """Draw shares of sentences: without a transient, by its length, and with one that exceeds the horizon.

    Lengths are those up to the arrival on a regular orbit.
    """
    lengths, censored = (
        {
            label: of.set_index("sentence")["value"]
            for label, of in _having(runs, f"sentence_orbit_{name}").items()
        }
        for name in ("length", "censored")
    )
    if not lengths:
        return None
    censored = {label: censored[label].reindex(of.index).gt(0) for label, of in lengths.items()}
    over = {label: of[~censored[label] & (of > 0)].to_numpy(float) for label, of in lengths.items()}
    # bins with equal widths in the logarithm, except for few windows: edges are between whole windows of τ
    windows = np.maximum(np.concatenate([[tau], *over.values()]) / tau, 1)
    bins = np.geomspace(np.floor(windows.min()), np.ceil(windows.max()) + 1, _BINS + 1)
    edges = (np.unique(bins.round()) - 0.5) * tau
    figure, (none, ax, outlast) = fig.new_figure(9.4, 3.8, ncols=3, sharey=True, width_ratios=(1, 6, 1))
    for i, (label, of) in enumerate(lengths.items()):
        colour = fig.line_style(i)["color"]
        heights = np.histogram(over[label], edges)[0] / len(of)
        ax.stairs(heights, edges, color=colour, lw=1.4, label=f"{label} ({len(of):,} sentences)")
        none.bar(i, (of.eq(0) & ~censored[label]).mean(), color=colour)
        outlast.bar(i, censored[label].mean(), color=colour)
    none.set_xlabel("no chaotic\ntransient")
    outlast.set_xlabel("not over\nat the horizon")
    for side in (none, outlast):
        side.set_xticks([])
        side.set_xlim(-0.8, len(lengths) - 0.2)
    ax.set_xscale("log")
    ax.set_xlabel("length of the chaotic transient (steps of the map)")
    none.set_ylabel("share of sentences")
    none.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    fig.from_zero(none)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper left")
    return figure
