"""Figures of world knowledge: precision by relation, facts gained and lost, predictions for some facts."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmdyn.callbacks.observing.figures import (
    COLOURS,
    MOST_LINES,
    from_zero,
    in_style,
    line_style,
    new_figure,
    outer_legend,
    set_step_axis,
    spread_out,
)
from lmdyn.runs.schema import select, wide

__all__ = ["changes", "knowledge_figures"]

_EXAMPLES = 3  # of facts learned, forgotten, oscillating
_COLUMNS = 7  # steps of the table of predictions


@in_style
def knowledge_figures(observations: pd.DataFrame, templates: Mapping[str, str]) -> dict[str, Figure]:
    """Draw all figures that the observations allow.

    Args:
        observations: the records; rows of known facts are sufficient for all figures except the table.
        templates: template of each relation.
    """
    if not len(_by_relation(observations)):
        return {}
    figures = {"by_relation": _lines(observations, templates)}
    steps = sorted(observations["step"].unique())
    if len(steps) > 1:
        figures["gained_lost"] = _gained_lost(observations, steps)
        examples = _examples(observations, templates)
        if examples is not None:
            figures["examples"] = examples
    return figures


def changes(observations: pd.DataFrame) -> pd.DataFrame:
    """Return the number of facts known at each step, and gained and lost since the previous observation.

    Returns:
        Columns ``step, known, gained, lost``; gained and lost are NaN at the first step. All are NaN at a step at which
        some answers are not finite, and the latter two also at the next.
    """
    rows = select(observations, quantity="hit")
    facts = rows.groupby(["relation", "fact"], sort=False, observed=True).ngroup()
    table, before = [], None
    for step in sorted(observations["step"].unique()):
        here = rows["step"].eq(step)
        now = facts[here & rows["value"].eq(1)].to_numpy() if rows.loc[here, "value"].notna().all() else None
        changed = (np.nan, np.nan)
        if now is not None and before is not None:
            changed = len(np.setdiff1d(now, before)), len(np.setdiff1d(before, now))
        table.append((step, np.nan if now is None else len(now), *changed))
        before = now
    return pd.DataFrame(table, columns=["step", "known", "gained", "lost"])


def _by_relation(observations: pd.DataFrame) -> pd.DataFrame:
    """Return P@1 of the whole vocabulary: steps by relations."""
    rows = select(observations[observations["relation"].ne("")], quantity="p_at_1")
    return wide(rows, "relation", sort=False)


def _worded(relation: str, templates: Mapping[str, str]) -> str:
    return f"{relation}  {templates[relation]}" if relation in templates else relation


def _lines(observations: pd.DataFrame, templates: Mapping[str, str]) -> Figure:
    table = _by_relation(observations)
    title = "P@1 by relation"
    if table.shape[1] > MOST_LINES:
        moved = (table.max() - table.min()).sort_values(ascending=False, kind="stable")
        title = f"P@1 of the {MOST_LINES} of {table.shape[1]} relations that change most"
        table = table[moved.index[:MOST_LINES]]
    table = table[table.iloc[-1].sort_values(ascending=False, kind="stable").index]
    figure, ax = new_figure(10, 4.2)
    for i, relation in enumerate(table.columns):
        ax.plot(
            table.index,
            table[relation],
            marker=".",
            label=_worded(str(relation), templates),
            **line_style(i),
        )
    ax.set_ylabel("P@1, whole vocabulary")
    from_zero(ax)
    ax.set_title(title)
    set_step_axis(ax, list(table.index))
    outer_legend(ax)
    return figure


def _gained_lost(observations: pd.DataFrame, steps: Sequence[int]) -> Figure:
    table = changes(observations)
    asked = select(observations, quantity="facts", relation="")["value"]
    figure, ax = new_figure(8, 3.4)
    at = np.arange(len(table))
    ax.bar(at, table["gained"], color=COLOURS["green"], label="gained since the observation before")
    ax.bar(at, -table["lost"], color=COLOURS["vermilion"], label="lost since the observation before")
    ax.axhline(0, color="0.3", lw=0.8)
    ax.set_title(f"of {asked.max():,.0f} facts asked, whole vocabulary")
    ax.set_ylabel("facts")
    ax.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.legend()
    shown = spread_out(range(len(table)), 12)
    ax.set_xticks(shown, [f"{steps[i]:,}" for i in shown], rotation=45, ha="right", fontsize=8)
    ax.set_xlabel("training step (optimizer updates), one column an observation")
    return figure


def _examples(observations: pd.DataFrame, templates: Mapping[str, str]) -> Figure | None:
    """Draw a table of predictions, after table 9 of the publication; None if no fact has all steps."""
    every = sorted(observations["step"].unique())
    steps = spread_out(every, _COLUMNS)
    rows = select(observations, quantity="hit", step=steps)
    whole = rows.groupby(["relation", "fact"], observed=True)["step"].transform("size") == len(steps)
    rows = rows[whole].sort_values(["relation", "fact", "step"], kind="stable")
    hits = rows["value"].eq(1).to_numpy().reshape(-1, len(steps))
    predictions = rows["prediction"].to_numpy(dtype=object).reshape(-1, len(steps))
    facts = rows[["relation", "fact"]].to_numpy(dtype=object)[:: len(steps)]
    chosen = _chosen(hits, facts[:, 0])
    if not chosen:
        return None
    labels, cells, colours = [], [], []
    for i, story in chosen:
        relation, fact = facts[i]
        subject, _, answer = str(fact).rpartition(" → ")
        query = templates.get(relation, f"{relation}: [X] [Y]").replace("[Y]", "____").replace("[X]", subject)
        labels.append(["\n".join(textwrap.wrap(query, 42)), answer, story])
        cells.append([_word(p) for p in predictions[i]])
        colours.append(["#cde8cd" if hit else "white" for hit in hits[i]])
    figure, ax = new_figure(5.2 + 0.95 * len(steps), 0.7 + 0.42 * len(chosen))
    ax.set_axis_off()
    head = ["query", "answer", "", *(f"{step:,}" for step in steps)]
    widths = np.array([3.4, 0.9, 0.8, *[0.95] * len(steps)])
    table = ax.table(
        [head, *(a + b for a, b in zip(labels, cells, strict=True))],
        cellColours=[["#eeeeee"] * len(head), *(["white"] * 3 + c for c in colours)],
        colWidths=list(widths / widths.sum()),
        bbox=(0, 0, 1, 1),
        cellLoc="left",
    )
    table.auto_set_font_size(False)
    for cell in table.get_celld().values():
        cell.set_fontsize(8)
        cell.set_edgecolor("0.8")
        cell.PAD = 0.03
    ax.set_title("first prediction at the mask by training step; green where right")
    return figure


def _chosen(hits: npt.NDArray[np.bool_], relations: npt.NDArray[np.object_]) -> list[tuple[int, str]]:
    """Return some facts of different relations: learned and kept, learned and forgotten, and oscillating ones."""
    turns = (hits[:, 1:] != hits[:, :-1]).sum(1)
    first, last = hits[:, 0], hits[:, -1]
    known = hits.sum(1)
    stories = {
        "learned": (~first & last & (turns == 1), -known),
        "forgotten": (hits.any(1) & ~last & (turns <= 2), -known),
        "oscillating": (turns >= 3, -turns),
    }
    chosen = []
    for story, (fits, order) in stories.items():
        candidates = np.flatnonzero(fits)
        candidates = candidates[np.argsort(order[candidates], kind="stable")]
        firsts = np.unique(relations[candidates].astype(str), return_index=True)[1]
        different = [*np.sort(firsts), *np.setdiff1d(np.arange(len(candidates)), firsts)][:_EXAMPLES]
        chosen += [(int(candidates[i]), story) for i in different]
    return chosen


def _word(piece: str) -> str:
    """Return a piece for display, without the mark of a word's beginning."""
    return str(piece).lstrip("▁Ġ") or str(piece)
