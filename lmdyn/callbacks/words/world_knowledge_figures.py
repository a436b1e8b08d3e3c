"""Predictions for some facts over training: table 9 of Chiang, Huang & Lee 2020."""

import textwrap
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from lmdyn.callbacks.observing.figures import in_style, new_figure, spread_out
from lmdyn.runs.schema import select

__all__ = ["examples"]

_EXAMPLES = 3  # of facts learned, forgotten, oscillating
_COLUMNS = 7  # steps of the table of predictions


@in_style
def examples(observations: pd.DataFrame, templates: Mapping[str, str]) -> dict[str, Figure]:
    """Draw a table of predictions, by relations' templates; none of a single step, or if no fact has all steps."""
    every = sorted(observations["step"].unique())
    steps = spread_out(every, _COLUMNS)
    rows = select(observations, quantity="hit", step=steps)
    whole = rows.groupby(["relation", "fact"], observed=True)["step"].transform("size") == len(steps)
    rows = rows[whole].sort_values(["relation", "fact", "step"], kind="stable")
    hits = rows["value"].eq(1).to_numpy().reshape(-1, len(steps))
    predictions = rows["prediction"].to_numpy(dtype=object).reshape(-1, len(steps))
    facts = rows[["relation", "fact"]].to_numpy(dtype=object)[:: len(steps)]
    chosen = _chosen(hits, facts[:, 0])
    if len(every) < 2 or not chosen:
        return {}
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
    return {"examples": figure}


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
