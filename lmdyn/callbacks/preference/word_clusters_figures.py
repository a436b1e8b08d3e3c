"""Figures 5 and 6 of He & Toyoizumi 2022 and a table of clusters, from observations of word clusters."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from lmdyn.callbacks.observing import figures as fig
from lmdyn.runs.schema import last_step, select, wide

__all__ = ["cluster_figures", "cluster_table"]

_PUBLISHED = {0: 0.13, 1: 0.45}  # share of words by number of clusters, section 5.3
_PUBLISHED_MEAN = 1.45
_LARGEST = 22  # clusters of table 3
_TYPICAL = 5


@fig.in_style
def cluster_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw the figures of the last observations, of one run or several (a column ``run``); none without clusters.

    Returns:
        ``matrix`` (figure 5) of the first run, ``clusters_per_word`` (figure 6).
    """
    last = _clustered(observations)
    if not last:
        return {}
    run, rows = next(iter(last.items()))
    of = fig.of_run(run, f"step {_step(rows)}", "run" in observations)
    figures = {"clusters_per_word": _clusters_per_word(last)}
    if rows["quantity"].eq("component_value").any():
        figures["matrix"] = _matrix(rows, of)
    return figures


def cluster_table(observations: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the 22 largest clusters of the last observation; of the first run, if there are several.

    Returns: ``clusters``: ``cluster``, ``words`` (their number), ``typical`` (those of the largest values),
        ``frequent`` (the most frequent ones). Empty if there are no clusters.
    """
    last = _clustered(observations)
    return {"clusters": _largest(next(iter(last.values())))} if last else {}


def _clustered(observations: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the finite rows of each run's last observation, if it has clusters."""
    finite = fig.named_runs(observations[np.isfinite(observations["value"])])
    last = {str(run): last_step(rows) for run, rows in finite.groupby("run", sort=False)}
    return {run: rows for run, rows in last.items() if rows["quantity"].eq("count").any()}


def _step(rows: pd.DataFrame) -> str:
    return f"{int(rows['step'].iloc[0]):,}"


def _largest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the largest clusters, with their words by value and by frequency, the order of the rows."""
    found = []
    members: Any = select(rows, quantity="membership").groupby("group", sort=False, observed=True)
    for cluster, by_frequency in members:
        by_value = by_frequency.sort_values("value", key=abs, ascending=False, kind="stable")
        some = (", ".join(words["token"].head(_TYPICAL)) for words in (by_value, by_frequency))
        found.append((cluster, len(by_frequency), *some))
    table = pd.DataFrame(found, columns=["cluster", "words", "typical", "frequent"])
    return table.sort_values("words", ascending=False, kind="stable", ignore_index=True).head(_LARGEST)


def _matrix(rows: pd.DataFrame, of: str) -> Figure:
    """Draw figure 5: words by frequency, components, values in colour."""
    values = select(rows, quantity="component_value")
    matrix = wide(values, "token", "group", sort=False).loc[values["group"].unique()]
    y = matrix.to_numpy(dtype=float)
    limit = max(2.5, float(np.nanquantile(np.abs(y), 0.999)))
    figure, ax = fig.new_figure(10.0, 4.6)
    image = fig.show_image(
        ax,
        y,
        aspect="auto",
        cmap="RdBu_r",
        vmin=-limit,
        vmax=limit,
        extent=(0.5, y.shape[1] + 0.5, len(y) - 0.5, -0.5),
    )
    ax.set_xlabel("word, by frequency (1 = the most frequent)")
    ax.set_ylabel("independent component")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    label = "value (standard deviations of the component)"
    figure.colorbar(image, ax=ax, label=label, extend="both" if (np.abs(y) > limit).any() else "neither")
    ax.set_title(f"the {y.shape[1]} most frequent words after ICA, {of}")
    return figure


def _clusters_per_word(last: dict[str, pd.DataFrame]) -> Figure:
    """Draw figure 6: share of words by number of clusters, with adjacent bars for several runs."""
    figure, ax = fig.new_figure(7.6 + 2.4 * (len(last) > 1), 4.0)
    width = 0.8 / len(last)
    for i, (run, rows) in enumerate(last.items()):
        shares = select(rows, quantity="share_of_words")
        mean = select(rows, quantity="mean_clusters")["value"].mean()
        at = np.arange(len(shares)) + (i - (len(last) - 1) / 2) * width
        label = f"{run} (mean {mean:.2f})"
        ax.bar(at, shares["value"], width * 0.95, color=fig.line_style(i)["color"], label=label)
        ax.set_xticks(range(len(shares)), list(shares["group"]))
    ax.plot(
        list(_PUBLISHED),
        list(_PUBLISHED.values()),
        "D",
        color="black",
        mfc="white",
        ms=7,
        ls="none",
        clip_on=False,
        label=f"He & Toyoizumi 2022\n(128 components;\nmean {_PUBLISHED_MEAN})",
    )
    ax.set_xlabel("clusters that a word belongs to")
    ax.set_ylabel("share of words")
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    fig.from_zero(ax)
    steps = {_step(rows) for rows in last.values()}
    ax.set_title(f"clusters per word, step {', '.join(sorted(steps))}")
    fig.outer_legend(ax)
    return figure
