"""Figures of claims: each number with its seeds, interval and floor, against the region of the claim."""

import math
from collections.abc import Iterator, Sequence
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmdyn.callbacks.observing.figures import in_style, line_style, new_figure
from lmdyn.claims.judge import ClaimJudgement
from lmdyn.claims.summary import PartJudgement

__all__ = ["question_figure"]


@in_style
def question_figure(title: str, rows: Sequence[ClaimJudgement]) -> Figure | None:
    """Draw the numbers of the claims of one question; None if nothing was measured.

    Numbers with the same label share a panel. A green band is where the claim is true; circles are seeds, the bar is
    the interval of their mean for other seeds and other texts, the red line the floor, and the star what was published.
    """
    panels: dict[str, list[tuple[ClaimJudgement, PartJudgement]]] = {}
    for row in rows:
        for part in row.parts:
            panels.setdefault(part.label or title, []).append((row, part))
    if not panels:
        return None
    heights = [0.6 + 0.35 * len(of) for of in panels.values()]
    figure, grid = new_figure(
        8.5, 0.8 + sum(heights), nrows=len(panels), squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    figure.suptitle(title)
    for axes, (label, of) in zip(grid[:, 0], panels.items(), strict=True):
        _draw(axes, of)
        axes.set_xlabel(fill(label, 90))
    handles, labels = grid[0, 0].get_legend_handles_labels()
    entries = dict(zip(labels, handles, strict=True))
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=5)
    return figure


def _draw(axes: Axes, rows: Sequence[tuple[ClaimJudgement, PartJudgement]]) -> None:
    shown = [value for row, part in rows for value in _values(row, part) if math.isfinite(value)]
    margin = 0.08 * (max(shown) - min(shown)) or 0.1
    low, high = min(shown) - margin, max(shown) + margin
    for y, (row, part) in enumerate(rows):
        left, right = max(part.region.low, low), min(part.region.high, high)
        axes.fill_betweenx([y - 0.4, y + 0.4], left, right, color="#d9ead9", lw=0, label="the claim is true")
        seeds = [e.value for e in part.estimates.values()]
        axes.plot(seeds, [y - 0.1] * len(seeds), "o", ms=4, mfc="none", label="seeds", **line_style(y))
        if part.interval is not None:
            axes.plot(part.interval, [y + 0.15] * 2, "k-", lw=2, label="95 % interval")
        axes.plot(part.mean, y + 0.15, "kD", ms=4, label="mean")
        if row.floor is not None and part is row.parts[0]:
            axes.plot([row.floor.mean] * 2, [y - 0.4, y + 0.4], "--", color="#b0413e", label="floor")
        if row.claim.published is not None and part is row.parts[0]:
            axes.plot(row.claim.published.value, y - 0.25, "*", color="0.45", label="published")
    axes.set_xlim(low, high)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [fill(row.claim.variant or row.claim.name, 40) for row, _ in rows])


def _values(row: ClaimJudgement, part: PartJudgement) -> Iterator[float]:
    yield from (end for e in part.estimates.values() for end in (e.low, e.high))
    yield from (part.region.low, part.region.high, part.mean, *(part.interval or ()))
    yield from () if row.floor is None else (row.floor.mean,)
    yield from () if row.claim.published is None else (row.claim.published.value,)
