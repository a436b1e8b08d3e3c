"""Figures of Inoue et al. 2022 on encoders as dynamical systems, for one or several runs, and over training."""

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from lmdyn.analysis.dynamics.synchronization import THRESHOLD
from lmdyn.callbacks.dynamics.encoder_dynamics_examples_figures import (
    TIME,
    attractor_figure,
    perturbation_figure,
    positive,
    synchronization_figure,
)
from lmdyn.callbacks.dynamics.encoder_dynamics_tables import (
    curve,
    curves,
    dynamics_numbers,
    last_observations,
    sentences,
)
from lmdyn.callbacks.dynamics.encoder_orbits_figures import orbits_figure
from lmdyn.callbacks.observing import figures as fig
from lmdyn.callbacks.observing.schema import select

__all__ = ["dynamics_figures"]

_STEPS = 8  # number of training steps in one panel
_FEW = 60  # maximum number of points of a line with markers
_BINS = 24  # of transient lengths

_Runs = Mapping[str, pd.DataFrame]


@fig.in_style
def dynamics_figures(
    observations: pd.DataFrame, settings: Mapping[str, Any] | None = None
) -> dict[str, Figure]:
    """Draw figures 2 and 4 (and A1, which is 2C for another corpus), and their numbers over training.

    All except the last are for the last step of each run. A figure is left out if nothing was recorded for it.

    Args:
        observations: observations of ``EncoderDynamics``; for several runs with a column ``run``.
        settings: settings of the observer: ``threshold``, ``long_tau`` and ``length`` are read.

    Returns:
        ``synchronization`` (2A), ``synchronization_offset`` (2B), ``short_term`` (2C, with D(t) below; for one run
        also for earlier steps, at most eight; for layers that differ, over the depth, with the exponent up to each),
        ``perturbation`` (4A), ``long_term`` (4B), ``attractor_view`` (4C), ``transient_lengths`` (4D), ``orbit_kinds``
        and, for more than one step, ``over_training``.
    """
    settings = settings or {}
    several = "run" in observations
    observations = fig.named_runs(observations)
    last = last_observations(observations)
    if not last:
        return {}
    titles = {
        run: fig.of_run(run, f"step {int(rows['step'].iloc[0]):,}", several) for run, rows in last.items()
    }
    colours = {run: fig.line_style(i)["color"] for i, run in enumerate(last)}
    drawn = {
        "synchronization": synchronization_figure(last, titles, float(settings.get("threshold", THRESHOLD))),
        "synchronization_offset": _offsets(last, titles, colours),
        "short_term": _short_term(observations, last, titles, colours),
        "perturbation": perturbation_figure(last, titles),
        "long_term": _long_term(last, titles),
        "attractor_view": attractor_figure(last, titles),
        "transient_lengths": _transient_lengths(last, titles, colours, int(settings.get("long_tau", 50))),
        "orbit_kinds": orbits_figure(
            _shown(observations, last, titles, colours), int(settings.get("long_steps", 0))
        ),
        "over_training": _over_training(dynamics_numbers(observations, settings), colours),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


# ---------------------------------------------------------------- figure 2B


def _offsets(last: _Runs, titles: Mapping[str, str], colours: Mapping[str, str]) -> Figure | None:
    """Draw box plots of the synchronization offsets by number of tokens; whiskers extend 1.5 interquartile ranges."""
    recorded = pd.concat([select(rows, quantity="sentence_offset")["length"] for rows in last.values()])
    lengths = recorded.dropna().astype(int).unique()
    found = {
        run: {n: sentences(rows, "sentence_offset", length=n) for n in sorted(lengths)}
        for run, rows in last.items()
    }
    there = [run for run, by_length in found.items() if any(len(of) for of in by_length.values())]
    if not there:
        return None
    figure, ax = fig.new_figure(max(6.4, 2.2 + 0.3 * len(lengths) * (len(there) + 1)), 4.0)
    width = 0.8 / len(there)
    for i, run in enumerate(there):
        for x, (length, offsets) in enumerate(found[run].items()):
            at = x + (i - (len(there) - 1) / 2) * width
            reached = offsets[offsets >= 0]  # negative: not within the steps
            if len(reached):
                _box(ax, reached.to_numpy(), at, 0.8 * width, colours[run])
            share = select(last[run], quantity="synchronized_share", length=length)["value"]
            if len(share) and share.iloc[0] < 1:
                ax.annotate(
                    f"{share.iloc[0]:.0%}", (at, 1.0), xycoords=ax.get_xaxis_transform(), xytext=(0, 2),
                    textcoords="offset points", ha="center", fontsize=8, color=colours[run],
                )  # fmt: skip
    partly = len(ax.texts) > 0
    ax.set_xticks(range(len(lengths)), [str(n) for n in sorted(lengths)])
    ax.set_xlim(-0.6, len(lengths) - 0.4)
    fig.from_zero(ax)
    ax.set_xlabel(
        "tokens of a sentence" + ("\n(above: share of sentences that synchronized)" if partly else "")
    )
    ax.set_ylabel("synchronization offset (steps of the map)")
    for run in there:
        faint = mpl.colors.to_rgba(colours[run], 0.35)
        ax.plot([], [], "s", ms=8, mfc=faint, mec=colours[run], label=titles[run])
    ax.plot([], [], "^", color="0.2", ms=5, label="mean")
    ax.plot([], [], "D", mfc="none", mec="0.4", ms=3.5, label="outlier")
    fig.outer_legend(ax)
    return figure


def _box(ax: Axes, values: npt.NDArray[Any], at: float, width: float, colour: str) -> None:
    line = {"color": colour, "lw": 1.2}
    ax.boxplot(
        [values], positions=[at], widths=width, manage_ticks=False, patch_artist=True, showmeans=True,
        boxprops={"facecolor": mpl.colors.to_rgba(colour, 0.35), "edgecolor": colour},
        medianprops=line, whiskerprops=line, capprops=line,
        meanprops={"marker": "^", "markerfacecolor": "0.2", "markeredgecolor": "0.2", "markersize": 5},
        flierprops={"marker": "D", "markerfacecolor": "none", "markeredgecolor": colour, "markersize": 3.5},
    )  # fmt: skip


def _shown(
    observations: pd.DataFrame, last: _Runs, titles: Mapping[str, str], colours: Mapping[str, str]
) -> dict[str, tuple[pd.DataFrame, str]]:
    """Return observations by label, with colours: the last of each run, or several steps of a single run."""
    if len(last) > 1:
        return {titles[run]: (rows, colours[run]) for run, rows in last.items()}
    return _by_step(observations)


# ---------------------------------------------------------------- figure 2C


def _short_term(
    observations: pd.DataFrame, last: _Runs, titles: Mapping[str, str], colours: Mapping[str, str]
) -> Figure | None:
    """Draw λ(t), N_eff(t) and D(t): a line for each run, or for steps of one run; over the depth if layers differ."""
    shown = _shown(observations, last, titles, colours)
    local = {label: curve(rows, "local_exponent", term="short") for label, (rows, _) in shown.items()}
    depth = {label: curve(rows, "depth_exponent") for label, (rows, _) in shown.items()}
    kinds = {bool(len(depth[label])) for label in shown if len(local[label])} or {False}
    step = " or ".join({False: "step", True: "layer"}[kind] for kind in sorted(kinds))
    panels = {
        f"λ(t) (nats a {step}{_windows(local)})": local,
        "λ of the first t layers\n(nats a layer)": depth,
        "effective dimension N_eff(t)": {
            label: curve(rows, "effective_dimension") for label, (rows, _) in shown.items()
        },
        "deviation D(t)\n(mean of sentences)": {
            label: positive(curve(rows, "deviation")) for label, (rows, _) in shown.items()
        },
    }
    panels = {name: lines for name, lines in panels.items() if any(map(len, lines.values()))}
    if not panels:
        return None
    grid = fig.new_panels(len(panels), 8.2, 2.3, most=1, margin=(0, 0.6), sharex=True)
    for ax, (name, lines) in zip(grid, panels.items(), strict=True):
        for label, line in lines.items():
            dots: dict[str, Any] = {"marker": ".", "ms": 4} if len(line) < _FEW else {}
            if len(line):
                ax.plot(line.index, line, color=shown[label][1], lw=1.4, label=label, **dots)
        ax.set_ylabel(name)
        if name.startswith("λ"):
            fig.zero_line(ax)
        elif name.startswith("deviation"):
            ax.set_yscale("log")
    ax.set_xlabel(
        {"layer": "t (layers)", "step": TIME}.get(step, "t (steps of the map, or layers where they differ)")
    )
    grid.legend(of_all=True)
    return grid.figure


def _windows(lines: Mapping[str, "pd.Series[float]"]) -> str:
    """Return how many steps their windows have, from the times of the windows."""
    taus = {int(np.diff(line.index).min()) for line in lines.values() if len(line) > 1}
    return f", τ = {' or '.join(map(str, sorted(taus)))}" if taus else ""


def _by_step(observations: pd.DataFrame) -> dict[str, tuple[pd.DataFrame, Any]]:
    """Return steps of one run, from the first to the last and evenly spaced in between, and their colours."""
    observations = observations[observations["quantity"].ne("learning_rate")]
    steps = fig.spread_out(sorted(observations["step"].unique()), _STEPS)
    looks = fig.shades(steps) if len(steps) > 1 else {steps[0]: {"color": fig.COLOURS["blue"]}}
    return {
        f"step {step:,}": (select(observations, step=step), look["color"]) for step, look in looks.items()
    }


# ---------------------------------------------------------------- figure 4B


def _long_term(last: _Runs, titles: Mapping[str, str]) -> Figure | None:
    """Draw λ over the long run, a panel for each run: example sentences, and the mean of all."""
    found = {
        run: (
            curves(rows, "sentence_local_exponent", "sentence", term="long"),
            curve(rows, "local_exponent", term="long"),
        )
        for run, rows in last.items()
    }
    found = {run: of for run, of in found.items() if len(of[0]) or len(of[1])}
    if not found:
        return None
    n, windows = len(found), _windows({run: mean for run, (_, mean) in found.items()})
    panels = fig.new_panels(n, 8.6, 2.9 if n == 1 else 2.1, most=1, margin=(0, 0.8), sharex=True, sharey=True)
    numbers = sorted({int(str(number)) for examples, _ in found.values() for number in examples})
    looks = fig.site_styles(numbers)
    for ax, (run, (examples, mean)) in zip(panels, found.items(), strict=True):
        fig.zero_line(ax)
        for number in [number for number in numbers if number in examples]:
            ax.plot(
                examples.index,
                examples[number],
                lw=0.6,
                alpha=0.7,
                label=f"sentence {number}",
                **looks[number],
            )
        if len(mean):
            ax.plot(mean.index, mean, color="0.1", lw=1.8, label="mean of sentences")
        ax.set_title(titles[run])
        ax.set_ylabel(f"λ (nats a step{windows})")
    ax.set_xlabel(TIME)
    panels.legend(of_all=True)
    return panels.figure


# ---------------------------------------------------------------- figure 4D


def _transient_lengths(
    last: _Runs, titles: Mapping[str, str], colours: Mapping[str, str], tau: int
) -> Figure | None:
    """Draw shares of sentences: without a transient, by its length, and with one that exceeds the horizon."""
    prefix = "sentence_orbit" if _kinds_are_told(last) else "sentence_transient"
    lengths = {run: sentences(rows, f"{prefix}_length") for run, rows in last.items()}
    lengths = {run: of for run, of in lengths.items() if len(of)}
    if not lengths:
        return None
    censored = {run: _censored(last[run], of, prefix) for run, of in lengths.items()}
    over = {run: of[~censored[run] & (of > 0)].to_numpy() for run, of in lengths.items()}
    edges = _edges(np.concatenate(list(over.values())), tau)
    figure, (none, ax, outlast) = fig.new_figure(9.4, 3.8, ncols=3, sharey=True, width_ratios=(1, 6, 1))
    for i, (run, of) in enumerate(lengths.items()):
        colour = colours[run]
        heights = np.histogram(over[run], edges)[0] / len(of)
        label = f"{titles[run]} ({len(of):,} sentences)"
        ax.stairs(heights, edges, color=colour, lw=1.4, label=label)
        ax.stairs(heights, edges, color=colour, fill=True, alpha=0.2)
        for side, share in ((none, (of.eq(0) & ~censored[run]).mean()), (outlast, censored[run].mean())):
            side.bar(i, share, color=mpl.colors.to_rgba(colour, 0.35), edgecolor=colour)
            side.annotate(
                f"{share:.1%}",
                (i, share),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                rotation=90 if len(lengths) > 2 else 0,
            )
    horizons = sorted({int(h) for run, of in lengths.items() for h in of[censored[run]]})
    beyond = " or ".join(f"{horizon:,}" for horizon in horizons)
    none.set_xlabel("no chaotic\ntransient")
    outlast.set_xlabel("not over" + (f"\nat {beyond}" if horizons else "\nat the horizon"))
    for side in (none, outlast):
        side.set_xticks([])
        side.set_xlim(-0.8, len(lengths) - 0.2)
    ax.set_xscale("log")
    ax.set_xlim(edges[0], edges[-1])
    ax.set_xlabel("length of the chaotic transient (steps of the map)")
    none.set_ylabel("share of sentences")
    none.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    none.margins(y=0.12 if len(lengths) <= 2 else 0.3)
    if not any(map(len, over.values())):
        ax.text(
            0.5, 0.5, "no chaotic transient ends\nwithin the steps looked at", transform=ax.transAxes, ha="center",
            color="0.4",
        )  # fmt: skip
    fig.from_zero(none)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper left")
    return figure


def _kinds_are_told(last: _Runs) -> bool:
    """Return whether lengths are those up to the arrival on a regular orbit, in all of the runs."""
    return all(rows["quantity"].eq("sentence_orbit_length").any() for rows in last.values())


def _censored(rows: pd.DataFrame, lengths: "pd.Series[float]", prefix: str) -> "pd.Series[bool]":
    name = "sentence_orbit_censored" if prefix == "sentence_orbit" else "sentence_censored"
    return sentences(rows, name).reindex(lengths.index).fillna(0).gt(0)


def _edges(lengths: npt.NDArray[np.float64], tau: int) -> npt.NDArray[np.float64]:
    """Return bins with equal widths in the logarithm, except for few windows: edges are between whole windows of τ."""
    windows = np.maximum(lengths / tau, 1) if len(lengths) else np.array([1.0, 10.0])
    first, last = np.floor(windows.min()), np.ceil(windows.max()) + 1
    return np.asarray((np.unique(np.geomspace(first, last, _BINS + 1).round()) - 0.5) * tau)


# ---------------------------------------------------------------- over training


_OFFSET = {"synchronization_offset": "synchronization offset\n(steps of the map)"}
_DIMENSION = {"peak_effective_dimension": "highest effective dimension"}
_BY_RUNNING_MEANS = {  # for observations without kinds of orbits
    "mean_exponent": "mean λ in chaotic transients\n(nats a step)",
    "chaotic_share": "share of sentences\nwith a chaotic transient",
    "transient_length": "length of the transient\n(mean, steps of the map)",
}
_BY_KINDS = {
    "orbit_lyapunov_exponent": "mean λ, whatever the orbit\n(nats a step)",
    "transverse_exponent": "λ⊥, growth of differences between\nequal tokens (nats a step)",
    "transient_share": "share of sentences\nthat are chaotic, or were",
    "restricted_mean_length": "length of their chaos, up to the\nhorizon (mean, steps of the map)",
}
_SIGNED, _SHARES = (
    ("mean_exponent", "orbit_lyapunov_exponent", "transverse_exponent"),
    ("chaotic_share", "transient_share"),
)
_LENGTHS = ("transient_length", "restricted_mean_length")


def _over_training(numbers: pd.DataFrame, colours: Mapping[str, str]) -> Figure | None:
    """Draw a panel for each number, a line for each run; None if no run has two steps.

    A run with a single step is a point, with a dashed line through it.
    """
    told = "transient_share" in numbers  # by kinds; earlier files lack their λ
    panels_of = {**_OFFSET, **(_BY_KINDS if told else _BY_RUNNING_MEANS), **_DIMENSION}
    there = [name for name in panels_of if name in numbers and numbers[name].notna().any()]
    if not there or numbers.groupby("run")["step"].nunique().max() < 2:
        return None
    panels = fig.new_panels(len(there), 3.6, 2.7, margin=(1.6, 0.3))
    looks = {run: {"color": colour} for run, colour in colours.items()}
    for ax, name in zip(panels, there, strict=True):
        rows = numbers.assign(value=numbers[name]).dropna(subset="value")
        fig.draw_lines(ax, rows, "run", looks, ms=5, lw=1.3, clip_on=False)  # complete at the axis' ends
        for run, of in rows.groupby("run", sort=False):
            if len(of) == 1:  # for example, an untrained control: a level for comparison
                ax.axhline(of["value"].iloc[0], color=colours[str(run)], lw=1, ls="--", zorder=1)
        ax.set_title(panels_of[name])
        fig.set_step_axis(ax, numbers["step"])
        if name in _SIGNED:
            fig.zero_line(ax)
        elif name in _SHARES:
            fig.from_zero(ax, 1)
            ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        elif name in _LENGTHS and numbers[name].max() > 1000:
            ax.set_yscale("symlog", linthresh=100)  # decades, and 0
            fig.from_zero(ax)
        else:
            fig.from_zero(ax)
    if len(colours) > 1:
        panels.legend(of_all=True)
    return panels.figure
