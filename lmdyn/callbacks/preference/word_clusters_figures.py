"""Figures 5 to 7 and table 3 of He & Toyoizumi 2022, from observations of word clusters."""

import logging

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from lmdyn.analysis.preference.word_clusters import (
    Membership,
    cluster_means,
    cluster_name,
    cluster_number,
    typical_words,
)
from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import last_step, select, wide

__all__ = ["cluster_figures", "cluster_preferences", "cluster_table"]

log = logging.getLogger(__name__)

_AUTHORS = "He & Toyoizumi 2022"
_PUBLISHED = {0: 0.13, 1: 0.45}  # share of words by number of clusters, section 5.3
_PUBLISHED_MEAN = 1.45
_PUBLISHED_WITHIN_ONE = 0.80
_WITHIN_ONE = {_AUTHORS: _PUBLISHED_WITHIN_ONE, "a Laplace variable": 0.757, "a Gaussian variable": 0.683}
_CLOUDS = 3
_CLOUD_WORDS = 60
_LARGEST = 22  # clusters of table 3
_TYPICAL = 5


@fig.in_style
def cluster_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw all figures that the observations allow, for one run or several (a column ``run``).

    Returns:
        ``matrix`` (figure 5) and ``word_clouds`` (figure 7) of the first run's last observation;
        ``clusters_per_word`` (figure 6) of every run's last; ``over_training`` if there are two or more steps.
    """
    several = "run" in observations
    observations = fig.named_runs(observations)
    runs = list(dict.fromkeys(observations["run"]))
    last = {run: last_step(select(observations, run=run)) for run in runs}
    clustered = {run: rows for run, rows in last.items() if rows["quantity"].eq("count").any()}
    figures = {}
    if clustered:
        first, rows = next(iter(clustered.items()))
        of = fig.of_run(first, f"step {_step(rows)}", several)
        if rows["quantity"].eq("component_value").any():
            figures["matrix"] = _matrix(rows, of)
        figures["clusters_per_word"] = _clusters_per_word(clustered)
        clouds = _word_clouds(rows, of)
        if clouds is not None:
            figures["word_clouds"] = clouds
    if len(set(observations["step"])) > 1:
        figures["over_training"] = _over_training(observations)
    return figures


def cluster_table(observations: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the 22 largest clusters of the last observation; of the first run, if there are several.

    Returns: ``clusters``: ``cluster``, ``words`` (their number), ``typical`` (those of the largest values),
        ``frequent`` (the most frequent ones). Empty if there are no clusters.
    """
    rows = _first(fig.named_runs(observations))
    return {} if rows is None else {"clusters": _largest(*_members(rows))}


def cluster_preferences(observations: pd.DataFrame, preferences: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the mean preference of the words of each cluster: table 3 of the publication, for the 22 largest clusters.

    Clusters are those of the first run's last observation; preferences those of each run's last step.

    Args:
        observations: observations of ``WordClusters``.
        preferences: observations of ``TowerPreference``: rows of quantity ``preference`` by ``token``, the token in
            ``group``.

    Returns:
        ``preference``: :func:`cluster_table`'s columns; for each run the mean ``preference`` over the members that
        have one, and its ``rank`` (1 for the largest); in descending order of the first run's. Empty if either
        is missing.
    """
    rows = _first(fig.named_runs(observations))
    preferences = fig.named_runs(select(preferences, quantity="preference", by="token"))
    if rows is None or preferences.empty:
        return {}
    clusters, counts = _members(rows)
    table = _largest(clusters, counts)
    runs = list(dict.fromkeys(preferences["run"]))
    for run in runs:
        scores = last_step(select(preferences, run=run)).set_index("group")["value"]
        of_word = torch.from_numpy(scores.reindex(counts.index).to_numpy(dtype=np.float64, copy=True))
        means, _ = cluster_means(clusters, of_word)
        mean = pd.Series(means[[cluster_number(name) for name in table["cluster"]]].numpy())
        ending = f" {run}" if len(runs) > 1 else ""
        table[f"preference{ending}"] = mean
        table[f"rank{ending}"] = mean.rank(ascending=False, method="min").astype("Int64")
    order = table[next(c for c in table if str(c).startswith("preference"))]
    order = order.sort_values(ascending=False, kind="stable")
    return {"preference": table.loc[order.index].reset_index(drop=True)}


# ---------------------------------------------------------------- content of the observations


def _first(observations: pd.DataFrame) -> pd.DataFrame | None:
    """Return the last observation of the first run; None if it has no clusters."""
    if observations.empty:
        return None
    rows = last_step(select(observations, run=observations["run"].iloc[0]))
    return rows if rows["quantity"].eq("membership").any() else None


def _step(rows: pd.DataFrame) -> str:
    return f"{int(rows['step'].iloc[0]):,}"


def _counts(rows: pd.DataFrame) -> "pd.Series[float]":
    """Return the number of occurrences of each word, most frequent first."""
    return select(rows, quantity="count").set_index("token")["value"]


def _members(rows: pd.DataFrame) -> "tuple[Membership, pd.Series[float]]":
    """Return the clusters of the rows, with words numbered by frequency, and the occurrences of each word."""
    counts = _counts(rows)
    members = select(rows, quantity="membership")
    cluster = np.array([cluster_number(str(name)) for name in members["group"]], dtype=np.int64)
    found = Membership(
        words=len(counts),
        number=int(cluster.max(initial=0)) + 1,  # the following ones are empty
        word=torch.from_numpy(counts.index.get_indexer(pd.Index(members["token"])).astype(np.int64)),
        cluster=torch.from_numpy(cluster),
        value=torch.from_numpy(members["value"].to_numpy(dtype=np.float64, copy=True)),
    )
    return found, counts


def _largest(clusters: Membership, counts: "pd.Series[float]") -> pd.DataFrame:
    """Return the largest clusters, with their words by value and by frequency."""
    found = []
    for cluster in clusters.sizes.argsort(descending=True, stable=True)[:_LARGEST].tolist():
        typical, frequent = (
            ", ".join(map(str, counts.index[typical_words(clusters, cluster, _TYPICAL, by).numpy()]))
            for by in ("value", "frequency")
        )
        found.append((cluster_name(cluster), int(clusters.sizes[cluster]), typical, frequent))
    table = pd.DataFrame(found, columns=["cluster", "words", "typical", "frequent"])
    return table[table["words"] > 0]


# ---------------------------------------------------------------- figures


def _matrix(rows: pd.DataFrame, of: str) -> Figure:
    """Draw figure 5: words by frequency, components, values in colour."""
    values = select(rows, quantity="component_value")
    matrix = wide(values, "token", "group", sort=False).loc[values["group"].unique()]
    y = matrix.to_numpy(dtype=float)
    limit = max(2.5, float(np.quantile(np.abs(y), 0.999)))
    figure, ax = fig.new_figure(10.0, 4.6)
    image = fig.show_image(ax,
        y, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit,
        extent=(0.5, y.shape[1] + 0.5, len(y) - 0.5, -0.5),
    )  # fmt: skip
    ax.set_xlabel("word, by frequency (1 = the most frequent)")
    ax.set_ylabel("independent component")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    figure.colorbar(
        image, ax=ax, label="value (standard deviations of the component)",
        extend="both" if np.abs(y).max() > limit else "neither",
    )  # fmt: skip
    ax.set_title(f"the {y.shape[1]} most frequent words after ICA, {of}")
    return figure


def _clusters_per_word(last: dict[str, pd.DataFrame]) -> Figure:
    """Draw figure 6: share of words by number of clusters, with adjacent bars for several runs."""
    figure, ax = fig.new_figure(7.6 + 2.4 * (len(last) > 1), 4.0)
    width, groups = 0.8 / len(last), list[str]()
    for i, (run, rows) in enumerate(last.items()):
        shares = select(rows, quantity="share_of_words").set_index("group")["value"]
        groups = groups or [str(group) for group in shares.index]
        mean = select(rows, quantity="mean_clusters")["value"].iloc[0]
        at = np.arange(len(groups)) + (i - (len(last) - 1) / 2) * width
        heights = shares.reindex(groups).to_numpy()
        ax.bar(at, heights, width * 0.95, color=fig.line_style(i)["color"], label=f"{run} (mean {mean:.2f})")
    ax.plot(
        list(_PUBLISHED), list(_PUBLISHED.values()), "D", color="black", mfc="white", ms=7, ls="none", clip_on=False,
        label=f"{_AUTHORS}\n(128 components;\nmean {_PUBLISHED_MEAN})",
    )  # fmt: skip
    ax.set_xticks(range(len(groups)), groups)
    ax.set_xlabel("clusters that a word belongs to")
    ax.set_ylabel("share of words")
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    fig.from_zero(ax)
    steps = {_step(rows) for rows in last.values()}
    ax.set_title(f"clusters per word, step {', '.join(sorted(steps))}")
    fig.outer_legend(ax)
    return figure


def _word_clouds(rows: pd.DataFrame, of: str) -> Figure | None:
    """Draw figure 7: the words of the three largest clusters; None without the package.

    Size depends half on frequency and half on its rank: proportional to frequency, as published, one "be" leaves no
    space for others.
    """
    clusters, counts = _members(rows)
    largest = [cluster_number(name) for name in _largest(clusters, counts)["cluster"][:_CLOUDS]]
    if not largest:
        return None
    try:
        from wordcloud import WordCloud
    except ImportError:
        log.info("no word clouds: they require the package wordcloud, `pip install 'lmdyn[figures]'`")
        return None
    panels = fig.new_panels(len(largest), max(3.6, 5.6 / len(largest)), 3.4)  # wide enough for the title
    for i, (ax, cluster) in enumerate(zip(panels, largest, strict=True)):
        words = counts.iloc[clusters.word[clusters.cluster == cluster].numpy()]
        colour = _colour(i)
        cloud = WordCloud(
            width=700, height=560, background_color="white", prefer_horizontal=1.0, relative_scaling=0.5,
            min_font_size=14, max_words=_CLOUD_WORDS, random_state=0, color_func=lambda *_, c=colour, **__: c,
        )  # fmt: skip
        # a token as long as a line would leave nothing to draw, which raises an error
        cloud.generate_from_frequencies({str(word)[:30]: float(n) for word, n in words.items()})
        fig.show_image(ax, cloud.to_array(), interpolation="bilinear")
        ax.set(xticks=[], yticks=[])
        ax.set_title(f"cluster {cluster_name(cluster)}: {len(words)} words", loc="center")
    title = f"the largest clusters, {of}; size grows with frequency"
    panels.figure.suptitle(title, x=0.01, ha="left")
    return panels.figure


def _colour(i: int) -> str:
    return ("#1f4e79", "#7a3b00", "#2b5d34")[i % 3]


def _over_training(observations: pd.DataFrame) -> Figure:
    """Draw the sparsity of the components, and the number of clusters per word, over steps."""
    scalars = {
        "within_one": "share of values within ±1 standard deviation",
        "mean_clusters": "clusters that a word belongs to, mean",
    }
    runs = list(dict.fromkeys(observations["run"]))
    figure, axes = fig.new_figure(9.4 + 2.2 * (len(runs) > 1), 3.8, ncols=2)
    for ax, (quantity, label) in zip(axes, scalars.items(), strict=True):
        rows = select(observations, quantity=quantity)
        fig.draw_lines(ax, rows, "run", fig.line_styles(runs), ms=4, lw=1.3)
        ax.set_ylabel(label)
        fig.set_step_axis(ax, rows["step"])
    axes[0].set_title("static embeddings after ICA")
    _levels(axes[0], _WITHIN_ONE)
    _levels(axes[1], {_AUTHORS: _PUBLISHED_MEAN})
    fig.outer_legend(axes[1], of=list(axes))
    return figure


def _levels(ax: Axes, levels: dict[str, float]) -> None:
    for (name, level), style in zip(levels.items(), ("--", ":", "-."), strict=False):
        ax.axhline(level, lw=1.0, ls=style, color="0.4", zorder=0, label=name)
