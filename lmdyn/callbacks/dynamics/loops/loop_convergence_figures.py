"""Figures of ``LoopConvergence``: over depth, by position, over training."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmdyn.callbacks.observing.figures import (
    COLOURS,
    MOST_LINES,
    from_zero,
    in_style,
    line_styles,
    named_runs,
    new_figure,
    new_panels,
    outer_legend,
    say_why_empty,
    set_step_axis,
    shades,
    spread_out,
)
from lmdyn.callbacks.observing.schema import select

__all__ = ["loop_convergence_figures"]

_OVER_DEPTH = {
    "residual": ("relative change of the state\n‖xₜ₊₁ − xₜ‖ / ‖xₜ‖", True),
    "divergence": ("KL(p_T ‖ pₜ), nats", True),
    "cross_entropy": ("cross-entropy, nats a token", False),
    "accuracy": ("accuracy", False),
}
_RULES = {"argmax": ("most probable class", "-"), "divergence": ("KL within the tolerance", "--")}


@in_style
def loop_convergence_figures(observations: pd.DataFrame) -> dict[str, Figure]:
    """Draw figures for one run or several (a column ``run``).

    Args:
        observations: observations of ``LoopConvergence``.

    Returns:
        ``over_depth``: change of the state, divergence from the last prediction, loss and accuracy over t; ``settled``:
        share of settled predictions over t; ``by_position``: change of the state and settling depth by position in the
        text, at the last step; ``over_training`` for more than one step: loss at the model's depth, lowest loss over t,
        and settling depth.
    """
    observations = named_runs(observations)
    whole = observations[observations["position"].isna()]
    figures = {"over_depth": _over_depth(whole), "settled": _settled(whole)}
    figures["by_position"] = _by_position(observations)
    if len(observations["step"].unique()) > 1:
        figures["over_training"] = _over_training(whole)
    return figures


def _over_depth(rows: pd.DataFrame) -> Figure:
    present = [name for name in _OVER_DEPTH if rows["quantity"].eq(name).any()]
    panels = new_panels(len(present), 4.6, 3.2, most=2, margin=(1.8, 0.2))
    for ax, name in zip(panels, present, strict=True):
        label, logarithmic = _OVER_DEPTH[name]
        of_quantity = select(rows, quantity=name)
        if logarithmic and (of_quantity["value"] > 0).any():
            of_quantity = of_quantity[of_quantity["value"] > 0]  # 0 at the horizon, by definition
            ax.set_yscale("log")
        _lines(ax, of_quantity)
        ax.set_ylabel(label)
        _depth_axis(ax, rows)
    panels.legend(of_all=False)
    return panels.figure


def _settled(rows: pd.DataFrame) -> Figure:
    figure, ax = new_figure(8.4, 4.2)
    for rule, (name, dashes) in _RULES.items():
        _lines(ax, select(rows, quantity="settled_share", rule=rule), dashes, name)
    ax.set_ylabel("share of settled predictions")
    from_zero(ax, 1)
    _depth_axis(ax, rows)
    outer_legend(ax)
    return figure


def _lines(ax: Axes, rows: pd.DataFrame, dashes: str = "-", name: str = "") -> None:
    """Draw a line for each step of each run; steps by brightness, runs by colour if there are several."""
    runs = list(rows["run"].unique())
    styles = line_styles(runs)
    for run, of_run in rows.groupby("run", sort=False):
        steps = sorted(of_run["step"].unique())
        shown = [steps[0], steps[-1]] if len(runs) > 1 else spread_out(steps, MOST_LINES)
        colours = shades(shown)
        for step in dict.fromkeys(shown):
            curve = of_run[of_run["step"] == step].sort_values("t")
            colour = styles[run]["color"] if len(runs) > 1 else colours[step]["color"]
            ax.plot(
                curve["t"].astype(int), curve["value"], ls=dashes, marker=".", color=colour,
                alpha=1.0 if step == steps[-1] or len(runs) == 1 else 0.35,
                label=", ".join([str(run)] * (len(runs) > 1) + [name] * bool(name) + [f"step {step:,}"]),
            )  # fmt: skip


def _depth_axis(ax: Axes, rows: pd.DataFrame) -> None:
    for i, depth in enumerate(sorted(select(rows, quantity="depth")["value"].unique())):
        ax.axvline(depth, color="0.5", lw=0.9, ls=":", zorder=0, label=None if i else "the model's depth")
    ax.set_xlabel("depth t (iterations of the core)")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _by_position(rows: pd.DataFrame) -> Figure:
    """Draw, for the last step, the change of the state at some depths, and the settling depth of both rules."""
    at = rows[rows["position"].notna() & rows["step"].eq(rows["step"].max())]
    at = at[at["run"].eq(at["run"].iloc[-1])] if len(at) else at
    panels = new_panels(2, 5.2, 3.4, most=2, margin=(1.4, 0.2))
    change, settling = list(panels)
    changes = select(at, quantity="residual")
    depths = spread_out(sorted(changes["t"].dropna().unique()), 5)
    colours = shades(depths)
    for t in depths:
        curve = changes[changes["t"] == t].sort_values("position")
        change.plot(curve["position"].astype(int), curve["value"], lw=1.3, label=f"t = {t}", **colours[t])
    change.set_ylabel(_OVER_DEPTH["residual"][0])
    if (changes["value"] > 0).any():
        change.set_yscale("log")
    if depths:
        change.legend()
    else:
        say_why_empty(change, "these observations hold no change\nof the state by position")
    for rule, (name, dashes) in _RULES.items():
        curve = select(at, quantity="settling_depth", rule=rule).sort_values("position")
        if not len(curve):
            say_why_empty(settling, "these observations hold no\nsettling depth by position")
            break
        settling.plot(
            curve["position"].astype(int),
            curve["value"],
            ls=dashes,
            lw=1.3,
            color=COLOURS["blue"],
            label=name,
        )
    settling.set_ylabel("mean settling depth, restricted to T")
    outer_legend(settling)
    for ax in (change, settling):
        ax.set_xlabel("position in the text (tokens)")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return panels.figure


def _over_training(rows: pd.DataFrame) -> Figure:
    """Draw the loss at the model's depth and the lowest over t, and the settling depth."""
    panels = new_panels(2, 5.2, 3.4, most=2, margin=(1.6, 0.2))
    loss, settling = list(panels)
    styles = line_styles(list(rows["run"].unique()))
    several = len(styles) > 1
    for run, of_run in rows.groupby("run", sort=False):
        prefix = f"{run}, " if several else ""
        losses = select(of_run, quantity="cross_entropy")
        depth = select(of_run, quantity="depth")["value"].iloc[-1]
        own, best = losses[losses["t"] == depth].sort_values("step"), losses.groupby("step")["value"].min()
        colour = styles[run]["color"]
        loss.plot(own["step"], own["value"], color=colour, marker=".", label=f"{prefix}the model's depth")
        loss.plot(best.index, best, color=colour, ls=":", marker=".", label=f"{prefix}best t")
        for rule, (name, dashes) in _RULES.items():
            curve = select(of_run, quantity="settling_depth", rule=rule).sort_values("step")
            settling.plot(
                curve["step"], curve["value"], color=colour, ls=dashes, marker=".", label=f"{prefix}{name}"
            )
    loss.set_ylabel(_OVER_DEPTH["cross_entropy"][0])
    settling.set_ylabel("mean settling depth, restricted to T")
    for ax in (loss, settling):
        set_step_axis(ax, rows["step"])
        ax.legend()
    return panels.figure
