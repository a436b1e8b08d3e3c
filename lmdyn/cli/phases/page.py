"""The page of phases: curves above each other with their change points, and the training map."""

import html
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lmdyn.callbacks.training.atomic_files import make_writable, write_file
from lmdyn.cli.drawing.page import PHASES_PAGE, Place, html_table, links_between, page, picture
from lmdyn.cli.drawing.phases_block import renew_phases
from lmdyn.cli.phases.map_figures import MOST_PANELS, map_figures
from lmdyn.cli.phases.phases import Curves, by_chance, not_tested, order_rows, write_phases
from lmdyn.cli.phases.seed_map import SeedMap, map_tables, paths_table, reading
from lmdyn.cli.phases.stacked_curves import MOST_DRAWN, order_to_draw, stacked_curves

__all__ = ["write_phases_page"]

_HOW = (
    "A curve is fitted by straight pieces in log10 of the step, against a smooth monotone course without a break. "
    "Curves are in the order of their first change, then those that change in some runs, and those without a bend. "
)
_ONE_RUN = "Line: change point; band: its interval, by resampling."
_SEVERAL_RUNS = (
    "Thin lines: runs; thick line: their mean. Short ticks: change points of each run. Vertical line and band, where "
    "all runs change: mean of log10 of the change points, and its 95 % interval for another seed."
)
_MAP = (
    "A hidden Markov model with Gaussian emissions of diagonal covariance (Hu et al. 2023): each run is a sequence, "
    "and each measure is standardised over all runs and steps, without step 0. A state is a region of values. A smooth "
    "course is divided into regions as well, as many as its noise permits, so that states are not phases by "
    "themselves. What can be told is below:"
)


def write_phases_page(
    curves: Curves,
    phases: pd.DataFrame,
    out: Path,
    level: float,
    found: SeedMap | None = None,
    void: str = "",
) -> Path:
    """Write ``<out>/phases.html``, self-contained, with its figures as PNG and SVG and ``phases.parquet``.

    A report in the same folder and this page link to each other.

    Args:
        curves: values by step, by run and name.
        phases: table of :func:`~lmdyn.cli.phases.phases.phases_of`.
        out: folder; created if necessary.
        level: largest p-value of a change.
        found: the training map, if one is asked for; its paths are written as ``training_map.parquet``.
        void: why there is none, if one was asked for.

    Returns:
        The path of the page.
    """
    make_writable(out, "choose another folder with --page")
    write_phases(phases, out / "phases.parquet")
    names = list(curves)
    title = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    contents = [Place("curves", "curves"), Place("order", "order")]
    sections = [
        f"<h1 class='title'>Phases: {html.escape(title)}</h1>",
        *links_between(out, PHASES_PAGE),
        *_curves(curves, phases, out),
        *_order(phases, level),
    ]
    if found is not None or void:
        contents.append(Place("map", "training map"))
        sections += [f"<h1 id='map'>training map</h1><p>{html.escape(_MAP)}</p>"]
        sections += (
            [f"<p><strong>void</strong>: {html.escape(void)}.</p>"] if found is None else _map(found, out)
        )
    path = out / PHASES_PAGE
    whole = page(f"lmdyn: phases of {title}", sections, contents).encode("utf-8", "replace")
    write_file(path, lambda unfinished: unfinished.write_bytes(whole))
    renew_phases(out)
    return path


def _curves(curves: Curves, phases: pd.DataFrame, out: Path) -> Sequence[str]:
    how = _HOW + (_ONE_RUN if len(curves) == 1 else _SEVERAL_RUNS)
    parts = [f"<h1 id='curves'>curves</h1><p>{html.escape(how)}</p>"]
    if left := order_to_draw(phases)[MOST_DRAWN:]:
        parts.append(
            f"<details><summary>{len(left)} of {len(left) + MOST_DRAWN} curves are not drawn: at most {MOST_DRAWN}, in "
            f"this order</summary><p>{html.escape(', '.join(left))}</p></details>"
        )
    figures = stacked_curves(curves, phases)
    return [*parts, *(picture(figure, out / "phases", name) for name, figure in figures.items())]


def _order(phases: pd.DataFrame, level: float) -> Sequence[str]:
    head, rows, smooth = order_rows(phases)
    parts = ["<h1 id='order'>order</h1>", html_table(head, rows)]
    number = phases[phases["phase"] != "not tested"].groupby(["run", "curve"]).ngroups
    parts.append(
        f"<p>{number} curves of single runs were {by_chance(phases, level)}. All change points with their intervals: "
        "<a href='phases.parquet'>phases.parquet</a>.</p>"
    )
    if smooth:
        parts.append(f"<p>No bend was found in any run: {html.escape(', '.join(smooth))}.</p>")
    for why, of in not_tested(phases).items():
        told = ", ".join(f"{curve} ({run})" for run, curve in of)
        parts.append(
            f"<details><summary>{len(of)} not tested: {html.escape(why)}</summary><p>{html.escape(told)}</p></details>"
        )
    return parts


def _map(found: SeedMap, out: Path) -> Sequence[str]:
    said = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in reading(found))
    parts = [f"<ul>{said}</ul>"]
    parts += [f"<p>Left out: {html.escape(left)}.</p>" for left in found.left]
    if len(found.measures) > MOST_PANELS:
        parts.append(f"<p>Curves by state: the first {MOST_PANELS} of {len(found.measures)}.</p>")
    parts += [picture(figure, out / "training_map", name) for name, figure in map_figures(found).items()]
    for title, (head, rows) in map_tables(found).items():
        parts.append(f"<h2>{html.escape(title)}</h2>{html_table(head, rows)}")
    table = out / "training_map.parquet"
    write_file(table, lambda unfinished: paths_table(found).to_parquet(unfinished, index=False))
    parts.append(f"<p>The state of each run at each step: <a href='{table.name}'>{table.name}</a>.</p>")
    return parts
