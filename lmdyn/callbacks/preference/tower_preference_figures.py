"""Figures of He & Toyoizumi 2022 on token preference, for one or several runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import iqr, norm

from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.preference.tower_preference_tables import TAGS, last_types

__all__ = ["preference_figures"]

_SHOWN = 1000  # most frequent types that are drawn individually (figures 3 and 8)
_LEAST = 5  # types for a distribution
_WINDOW = 51  # types of a running median
_SCORE = "preference score s (nats)"


@fig.in_style
def preference_figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
    """Draw figures 3, 4 and 8, of the last observation of each run.

    Scores are relative to each run's own primary tower.

    Args:
        observations: observations of ``TowerPreference``; for several runs with a column ``run``.
        settings: settings of the observer: see ``preference_tables``.

    Returns:
        ``sorted`` (figure 3), ``by_upos`` (4, if there are tags) and ``frequency`` (8). Empty without scores.
    """
    types = last_types(fig.named_runs(observations), settings)
    if not types:
        return {}
    figures = {"sorted": _sorted(types), "frequency": _by_frequency(types)}
    tags = [(run, part) for run, of in types.items() if (there := _tags(of)) for part in fig.portions(there)]
    if tags:
        figures["by_upos"] = _by_upos(types, tags)
    return figures


def _tags(of: pd.DataFrame) -> list[str]:
    """Return the tags with enough types."""
    types = of["upos"].value_counts()
    return [tag for tag in TAGS if types.get(tag, 0) >= _LEAST]


def _colour(run: int) -> str:
    return str(fig.line_style(run)["color"])


def _running_median(values: "pd.Series[float]") -> "pd.Series[float]":
    """Return the median of the types around each, with fewer types at both ends."""
    window = min(_WINDOW, max(1, len(values) // 5))
    return values.rolling(window, center=True, min_periods=1).median()


def _sorted(types: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw figure 3: types in the order of the first run; of others each type, and the running median."""
    name, *others = types
    first = types[name].head(_SHOWN).sort_values("preference", ascending=False, kind="stable")
    x = np.arange(1, len(first) + 1)
    figure, ax = fig.new_figure(9.4, 4.4)
    fig.zero_line(ax)
    ax.plot(
        x, first["preference"], color=_colour(0), lw=2.4, label=name if others else "preference", zorder=3
    )
    for i, run in enumerate(others, start=1):
        values = types[run]["preference"].reindex(first.index)
        ax.plot(x, values, color=_colour(i), lw=0.4, alpha=0.35)
        ax.plot(x, _running_median(values), color=_colour(i), lw=1.2, label=f"{run}, running median")
    if not others and first["standard_error"].notna().any():
        error = 2 * first["standard_error"]
        ends = (first["preference"] - error, first["preference"] + error)
        fig.draw_band(ax, x, *ends, color=_colour(0), alpha=0.25, label="± 2 standard errors")
    ax.set_title(f"the {len(first):,} most frequent types")
    ax.set_xlabel("type, by descending preference" + (f" in {name}" if others else ""))
    ax.set_ylabel(_SCORE)
    ax.set_xlim(1, max(2, len(first)))
    fig.outer_legend(ax)
    return figure


def _by_upos(types: Mapping[str, pd.DataFrame], shown: Sequence[tuple[str, Sequence[str]]]) -> Figure:
    """Draw figure 4: densities of the scores of each part of speech of a run, a few of them per panel."""
    panels = fig.new_panels(len(shown), 5.2, 3.6, most=2, margin=(1.2 * min(2, len(shown)), 0.3), sharex=True)
    every = np.concatenate([of["preference"].to_numpy() for of in types.values()])
    low, high = np.quantile(every, [0.002, 0.998])
    margin = 0.1 * (high - low) or 1.0
    x = np.linspace(low - margin, high + margin, 400)
    for ax, (run, part) in zip(panels, shown, strict=True):
        for tag, style in fig.line_styles(part).items():
            scores = types[run]["preference"][types[run]["upos"].eq(tag)].to_numpy()
            # Silverman's bandwidth (1986, equation 3.31): a class of a few similar types alone would be a spike
            spread = min(scores.std(ddof=1), iqr(scores, scale="normal"))
            width = max(0.9 * spread * len(scores) ** -0.2, 0.015 * (x[-1] - x[0]))
            density = norm.pdf(x[:, None], scores, width).mean(axis=1)
            ax.plot(x, density, lw=1.3, label=f"{tag} (n = {len(scores):,})", **style)
        ax.axvline(0, color="0.4", lw=0.8, zorder=0)
        fig.from_zero(ax)
        ax.margins(y=0.16)
        for at, side, text in ((0.02, "left", "← secondary"), (0.98, "right", "primary →")):
            ax.text(at, 0.97, text, transform=ax.transAxes, ha=side, va="top", fontsize=8, color="0.35")
        ax.set_title(run if len(types) > 1 else "")
        ax.set_xlabel(_SCORE)
        ax.set_ylabel("normalised distribution")
        ax.tick_params(labelbottom=True)
        fig.outer_legend(ax, title="most frequent tag")
    return panels.figure


def _by_frequency(types: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw figure 8: scores against frequency rank, a panel for each run."""
    panels = fig.new_panels(len(types), 4.0, 3.2, margin=(1.6, 0.4), sharex=True, sharey=True)
    for i, (ax, (run, of)) in enumerate(zip(panels, types.items(), strict=True)):
        of = of.head(_SHOWN)
        fig.zero_line(ax)
        ax.plot(of["rank"], of["preference"], ".", ms=2.5, alpha=0.5, color=_colour(i), label="_nolegend_")
        ax.plot(of["rank"], _running_median(of["preference"]), color="0.1", lw=1.4, label="running median")
        ax.set_title(run if len(types) > 1 else "")
        ax.set_xlabel("rank by frequency, of the types\ncompared (1: most frequent)")
        ax.tick_params(labelbottom=True, labelleft=True)
    panels.set_ylabel(_SCORE)
    panels.legend()
    return panels.figure
