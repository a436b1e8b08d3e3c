"""Figures of He & Toyoizumi 2022 on token preference, for one or several runs, and over training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure, SubFigure
from scipy.stats import gaussian_kde, iqr, norm

from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import select
from lmdyn.callbacks.preference.tower_preference_tables import (
    BEFORE,
    LAST,
    TAGS,
    last_types,
    preference_tables,
)

__all__ = ["preference_figures"]

SHOWN = 1000
"""Number of the most frequent types that are drawn individually (figures 3 and 8)."""

_LEAST = 5  # types for a distribution
_WINDOW = 51  # types of a running median
_SCORE = "preference score s (nats)"
_DOTTED: dict[str, Any] = {"ms": 4, "lw": 1.2, "clip_on": False}  # complete at the axis' ends
_HOLLOW: dict[str, Any] = {"marker": "o", "ms": 5, "mfc": "w", "ls": ""}
_LINES: dict[str, dict[str, Any]] = {"Pearson": {}, "Spearman": {"ls": "--"}}
_KINDS = {"rank_correlation": "Spearman", "frequency_rank_correlation": "Spearman"}  # others as Pearson's


@fig.in_style
def preference_figures(
    observations: pd.DataFrame, settings: Mapping[str, Any] | None = None
) -> dict[str, Figure]:
    """Draw figures 3, 4 and 8, correlations as pictures, and preference over training.

    Scores are relative to each run's own primary tower, and of its last observation; over training they are
    relative to the tower that is primary at the end.

    Args:
        observations: observations of ``TowerPreference``; for several runs with a column ``run``.
        settings: settings of the observer: see ``preference_tables``, whose numbers
            are drawn.

    Returns:
        ``sorted`` (figure 3), ``by_upos`` (4, if there are tags) and ``frequency`` (8); ``correlations`` for
        several runs (tables 2 and 4); ``over_training`` for more than one step. Empty without scores.
    """
    observations = fig.named_runs(observations)
    types = last_types(observations, settings)
    if not types:
        return {}
    tables = preference_tables(observations, settings, resamplings=0)
    figures = {"sorted": _sorted(types), "frequency": _by_frequency(types)}
    if tags := _tags(types):
        figures["by_upos"] = _by_upos(types, tags)
    if len(types) > 1:
        figures["correlations"] = _heat_maps(types, tables["correlations"], tables["frequency"])
    if "over_training" in tables:
        colours = {run: _colour(i) for i, run in enumerate(types)}
        if (course := _over_training(tables["over_training"], colours)) is not None:
            figures["over_training"] = course
    return figures


# ---------------------------------------------------------------- data


def _tags(types: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return the tags for which some run has enough types."""
    most = pd.concat([of["upos"].value_counts() for of in types.values()], axis=1).max(axis=1)
    return [tag for tag in TAGS if most.get(tag, 0) >= _LEAST]


def _run_panels(runs: Sequence[str], **shared: Any) -> fig.Panels:
    """Create a panel for each run, with its name if there are several."""
    width, height = (3.7, 2.9) if len(runs) > 1 else (5.6, 3.8)
    panels = fig.new_panels(len(runs), width, height, margin=(1.6, 0.4), **shared)
    if len(runs) > 1:
        for ax, run in zip(panels, runs, strict=True):
            ax.set_title(run)
    return panels


def _colour(run: int) -> str:
    return str(fig.line_style(run)["color"])


def _running_median(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the median of the types around each, with fewer types at both ends."""
    window = min(_WINDOW, max(1, len(values) // 5))
    return pd.Series(values).rolling(window, center=True, min_periods=1).median().to_numpy()


# ---------------------------------------------------------------- figures


def _sorted(types: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw figure 3: types in the order of the first run."""
    name, *others = types
    first = types[name].head(SHOWN).sort_values("preference", ascending=False, kind="stable")
    x = np.arange(1, len(first) + 1)
    figure, ax = fig.new_figure(9.4 if others else 7.4, 4.4)
    fig.zero_line(ax)
    label = f"{name}, which orders" if others else "preference"
    ax.plot(x, first["preference"], color=_colour(0), lw=2.4, label=label, zorder=3)
    for i, run in enumerate(others, start=1):
        values = types[run]["preference"].reindex(first.index).to_numpy()
        there = np.isfinite(values)
        ax.plot(x[there], values[there], color=_colour(i), lw=0.4, alpha=0.35)
        ax.plot(x[there], _running_median(values[there]), color=_colour(i), lw=1.2, label=run)
    ax.set_title(f"the {len(first):,} most frequent types")
    if others:
        ax.plot([], [], color="0.4", lw=0.4, label="single types")
        ax.plot([], [], color="0.4", lw=1.2, label="running median")
        fig.outer_legend(ax)
    elif first["standard_error"].notna().any():
        error = 2 * first["standard_error"]
        low, high = first["preference"] - error, first["preference"] + error
        ax.fill_between(x, low, high, color=_colour(0), alpha=0.25, lw=0, label="± 2 standard errors")
        ax.legend()
    ax.set_xlabel("type, by descending preference" + (f" in {name}" if others else ""))
    ax.set_ylabel(_SCORE)
    ax.set_xlim(1, max(2, len(first)))
    return figure


def _by_upos(types: Mapping[str, pd.DataFrame], tags: Sequence[str]) -> Figure:
    """Draw figure 4: densities of the scores of each part of speech; for one run, a few of them per panel.

    Several runs have a panel each, with at most as many tags as colours: those with the most types.
    """
    runs = list(types)
    if len(runs) > 1:
        shown = [(run, part) for run in runs for part in [_frequent(types, tags)]]
        panels = _run_panels(runs, sharex=True)
    else:
        shown = [(runs[0], part) for part in fig.portions(tags)]
        panels = fig.new_panels(len(shown), 5.2, 3.6, most=2, margin=(1.2 * len(shown), 0.3), sharex=True)
    every = np.concatenate([of["preference"].to_numpy() for of in types.values()])
    low, high = np.quantile(every, [0.002, 0.998])
    margin = 0.1 * (high - low) or 1.0
    x = np.linspace(low - margin, high + margin, 400)
    for ax, (run, part) in zip(panels, shown, strict=True):
        of = types[run]
        for tag, style in fig.line_styles(part).items():
            scores = of["preference"][of["upos"].eq(tag)].to_numpy()
            if len(scores) >= _LEAST:
                density = _density(scores, x)
                label = tag if len(runs) > 1 else f"{tag} (n = {len(scores):,})"
                ax.plot(x, density, lw=1.3, label=label, **style)
                ax.fill_between(x, density, color=style["color"], alpha=0.08, lw=0)
        ax.axvline(0, color="0.4", lw=0.8, zorder=0)
        fig.from_zero(ax)
        ax.margins(y=0.16)
        for at, side, text in ((0.02, "left", "← secondary"), (0.98, "right", "primary →")):
            ax.text(at, 0.97, text, transform=ax.transAxes, ha=side, va="top", fontsize=8, color="0.35")
        ax.set_xlabel(_SCORE)
        ax.set_ylabel("normalised distribution")
        ax.tick_params(labelbottom=True)
        if len(runs) == 1:
            fig.outer_legend(ax, title="most frequent tag")
    if len(runs) > 1:
        panels.legend(of_all=True, title="most frequent tag")
    return panels.figure


def _frequent(types: Mapping[str, pd.DataFrame], tags: Sequence[str]) -> list[str]:
    """Return at most as many tags as colours, those with the most types; in the order of ``tags``."""
    counts = pd.concat([of["upos"] for of in types.values()]).value_counts()
    most = sorted(tags, key=lambda tag: -counts.get(tag, 0))[: fig.MOST_LINES]
    return [tag for tag in tags if tag in most]


def _density(values: npt.NDArray[np.float64], x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return a Gaussian kernel density with Silverman's bandwidth (1986, equation 3.31), at least 1.5 % of the axis.

    Without the minimum, a class of a few similar types would be a spike that flattens all others.
    """
    spread, least = values.std(ddof=1), 0.015 * (x[-1] - x[0])
    if spread <= 1e-6 * least:  # scipy cannot estimate the density of a constant
        return np.asarray(norm.pdf(x, values.mean(), least))
    width = max(0.9 * min(spread, iqr(values, scale="normal")) * len(values) ** -0.2, least)
    return np.asarray(gaussian_kde(values, width / spread)(x))


def _by_frequency(types: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw figure 8: scores against frequency rank, a panel for each run."""
    panels = _run_panels(list(types), sharex=True, sharey=True)
    for i, (ax, of) in enumerate(zip(panels, types.values(), strict=True)):
        of = of.head(SHOWN)
        fig.zero_line(ax)
        ax.plot(of["rank"], of["preference"], ".", ms=2.5, alpha=0.5, color=_colour(i))
        ax.plot(of["rank"], _running_median(of["preference"].to_numpy()), color="0.1", lw=1.4)
        ax.set_xlabel("rank by frequency, of the types\ncompared (1: most frequent)")
        ax.tick_params(labelbottom=True, labelleft=True)
    panels.set_ylabel(_SCORE)
    last = panels.grid[0, -1]
    last.plot([], [], ".", ms=5, color="0.5", label="type")
    last.plot([], [], color="0.1", lw=1.4, label="running median")
    panels.legend()
    return panels.figure


def _heat_maps(types: Mapping[str, pd.DataFrame], pairs: pd.DataFrame, ranks: pd.DataFrame) -> Figure:
    """Draw tables 2 and 4 as pictures."""
    runs = list(types)
    linear = pd.DataFrame(np.eye(len(runs)), index=pd.Index(runs), columns=runs)
    for _, pair in pairs.iterrows():
        first, second = pair["first"], pair["second"]
        linear.loc[first, second] = linear.loc[second, first] = pair["pearson"]
    side = 2.2 + 0.5 * len(runs)
    figure, axes = fig.new_figure(2 * side + 1.4, side + 0.6, ncols=2)
    compared = list(pairs["types"])
    for ax, table, title, numbers in (
        (axes[0], linear, "Pearson", compared),
        (axes[1], ranks, "Spearman", [*compared, *map(len, types.values())]),
    ):
        image = fig.show_image(ax, table, cmap="RdBu_r", vmin=-1, vmax=1)
        names = [str(name) for name in table]
        below = [
            name.removesuffix(" (of the types compared)") for name in names
        ]  # the adjacent axis contains it
        ax.set_xticks(range(len(names)), below, rotation=50, ha="right", fontsize=8)
        ax.set_yticks(range(len(names)), [name.replace(" (", "\n(") for name in names], fontsize=8)
        fig.cell_values(ax, table.to_numpy(), lambda value: abs(value) <= 0.65, fontsize=8)
        least, most = f"{min(numbers):,}", f"{max(numbers):,}"
        of = most if least == most else f"{least} to {most}"
        ax.set_title(f"{title}, {of} types")
    figure.colorbar(image, ax=axes, shrink=0.8).set_label("correlation of preference")
    return figure


# ---------------------------------------------------------------- over training


def _over_training(course: pd.DataFrame, colours: Mapping[str, str]) -> Figure | None:
    """Draw preference by part of speech for each run, then single numbers per step; None if nothing has a value."""
    seen = course.groupby("run")["step"].nunique()
    runs = [run for run in colours if seen[run] > 1]
    tagged = set(select(course, quantity="preference").dropna(subset="value")["run"])
    with_tags = [run for run in runs if run in tagged]
    series = _series(course)
    shown = _shown_tags(course, with_tags)
    rows = [-(-len(panels) // 3) for panels in (shown, series) if panels]
    if not rows:
        return None
    figure = fig.PlainTextFigure(11.5, 2.9 * sum(rows) + 0.4)
    parts = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=rows)
    if with_tags:
        _tags_over_training(parts[0, 0], course, shown)
    if series:
        steps = sorted(course["step"].unique())
        _numbers_over_training(parts[-1, 0], series, {run: colours[run] for run in runs}, steps)
    return figure


def _numbers_over_training(
    part: SubFigure,
    series: Sequence[tuple[str, bool, pd.DataFrame]],
    runs: Mapping[str, str],
    steps: Sequence[int],
) -> None:
    """Draw a panel for each series, with a line for each run in its colour."""
    panels = fig.new_panels(len(series), 0, 0, within=part)
    for ax, (title, correlation, numbers) in zip(panels, series, strict=True):
        numbers = numbers.dropna(subset="value")
        looks = {q: _LINES[_KINDS.get(q, "Pearson")] for q in sorted(numbers["quantity"].unique())}
        for run, colour in runs.items():
            of = select(numbers, run=run)
            fig.draw_lines(ax, of, "quantity", looks, label=lambda _: "_nolegend_", color=colour, **_DOTTED)
        if correlation:
            fig.zero_line(ax)
        ax.set_title(title)
        fig.set_step_axis(ax, steps)
    legend = panels.grid[0, -1]
    if len(runs) > 1:
        for run, colour in runs.items():
            legend.plot([], [], color=colour, label=run)
    for name, look in _LINES.items():
        legend.plot([], [], color="0.4", label=name, **look)
    panels.legend()


def _shown_tags(course: pd.DataFrame, runs: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return runs and tags of each panel: for one run all tags, for several those that end furthest from 0."""
    by_tag = select(course, quantity="preference", run=runs).dropna(subset="value")
    there = [tag for tag in TAGS if by_tag["group"].eq(tag).any()]
    if len(runs) == 1:
        return [(runs[0], part) for part in fig.portions(there)]
    last = by_tag.drop_duplicates(["run", "group"], keep="last").groupby("group")["value"].mean().abs()
    furthest = list(last.nlargest(fig.MOST_LINES).index)
    return [(run, [tag for tag in there if tag in furthest]) for run in runs]


def _tags_over_training(
    part: SubFigure, course: pd.DataFrame, shown: Sequence[tuple[str, Sequence[str]]]
) -> None:
    """Draw a line for each tag of a panel, with hollow markers if the other tower was primary."""
    by_tag = select(course, quantity="preference").dropna(subset="value")
    turned = select(course[course["value"].lt(0)], quantity="orientation")
    several = len({run for run, _ in shown}) > 1
    panels = fig.new_panels(len(shown), 0, 0, within=part)
    for ax, (run, tags) in zip(panels, shown, strict=True):
        of, other = select(by_tag, run=run), select(turned, run=run)["step"]
        fig.zero_line(ax)
        hollow = of[of["step"].isin(other)]
        for tag, style in fig.line_styles(tags).items():
            fig.draw_lines(ax, of, "group", {tag: style}, **_DOTTED)
            look = {**_HOLLOW, "color": style["color"], "label": "_nolegend_", "clip_on": False}
            fig.draw_lines(ax, hollow, "group", {tag: look})
        if len(hollow):
            ax.plot([], [], color="0.4", label="the other tower\nwas primary", **_HOLLOW)
        ax.set_title("mean preference by tag" + (f", {run}" if several else ""))
        fig.set_step_axis(ax, by_tag["step"])
        if not several:
            fig.outer_legend(ax, title="most frequent tag")
    panels.set_ylabel(_SCORE)
    if several:
        panels.legend(of_all=True, title="most frequent tag")


def _series(course: pd.DataFrame) -> list[tuple[str, bool, pd.DataFrame]]:
    """Return the series of single numbers per step: titles, whether it is a correlation, rows of the table."""
    found = [
        (title, quantity != "spread", select(course, quantity=quantity))
        for quantity, title in (
            ("spread", "spread of preference (standard deviation, nats)"),
            ("reliability", "split-half reliability"),
            ("frequency_rank_correlation", "correlation with frequency rank"),
        )
    ]
    between = select(course, quantity=("correlation", "rank_correlation"))
    there = dict.fromkeys(between["group"])
    names = {name: name for name in there if name not in ("previous", BEFORE, LAST)}
    names |= {"previous": "the previous checkpoint"} if "previous" in there else {BEFORE: BEFORE}
    names[LAST] = LAST
    found += [
        (f"correlation with {title}", True, select(between, group=name)) for name, title in names.items()
    ]
    return [(title, correlation, of) for title, correlation, of in found if of["value"].notna().any()]
