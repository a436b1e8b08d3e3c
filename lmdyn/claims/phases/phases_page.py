"""The page of phases: curves above each other with their change points, and the training map."""

from pathlib import Path

import pandas as pd
from markupsafe import Markup

from lmdyn.claims.phases.map_figures import map_figures
from lmdyn.claims.phases.phases import Curves, not_tested, order_table, tested_words
from lmdyn.claims.phases.seed_map import SeedMap, map_tables, map_words, paths_table
from lmdyn.claims.phases.stacked_curves import MOST_DRAWN, order_to_draw, stacked_curves
from lmdyn.claims.rendering import render
from lmdyn.cli.pages.html_parts import Place, html_table, page, picture
from lmdyn.cli.pages.linked_pages import PHASES_PAGE, links_between, renew
from lmdyn.runs.atomic_files import make_writable, write_file

__all__ = ["write_phases_page", "write_table"]


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
        phases: table of :func:`~lmdyn.claims.phases.phases.phases_of`.
        out: folder; created if necessary.
        level: largest p-value of a change.
        found: the training map, if one is asked for; its paths are written as ``training_map.parquet``.
        void: why there is none, if one was asked for.

    Returns:
        The path of the page.
    """
    make_writable(out, "choose another folder with --page")
    write_table(phases, out / "phases.parquet")
    if found is not None:
        write_table(paths_table(found), out / "training_map.parquet")
    figures = {"phases": stacked_curves(curves, phases), "training_map": map_figures(found) if found else {}}
    pictures = {
        kind: "".join(picture(f, out / kind, name) for name, f in of.items()) for kind, of in figures.items()
    }
    body = render(
        __package__,
        "phases.html",
        title=", ".join(list(curves)[:3]) + (f" and {len(curves) - 3} more" if len(curves) > 3 else ""),
        links=Markup("".join(links_between(out, PHASES_PAGE))),
        figures=Markup(pictures["phases"]),
        not_drawn=order_to_draw(phases)[MOST_DRAWN:],
        order=_table(order_table(phases)),
        tested=tested_words(phases, level),
        not_tested=not_tested(phases),
        void=void,
        map_words=map_words(found) if found else [],
        map_figures=Markup(pictures["training_map"]),
        map_tables={name: _table(table) for name, table in map_tables(found).items()} if found else {},
    )
    contents = [
        Place("curves", "curves"),
        Place("order", "order"),
        *([Place("map", "training map")] if found else []),
    ]
    whole = page("lmdyn: phases", [body], contents).encode("utf-8", "replace")
    write_file(out / PHASES_PAGE, lambda unfinished: unfinished.write_bytes(whole))
    renew(out, PHASES_PAGE)
    return out / PHASES_PAGE


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table as parquet."""
    write_file(path, lambda unfinished: table.to_parquet(unfinished, index=False))


def _table(table: pd.DataFrame) -> Markup:
    return Markup(html_table(list(table.columns), table.astype(object).to_numpy()))
