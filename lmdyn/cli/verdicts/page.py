"""The verdicts of a study as a page of a report, each claim with its figure."""

import html
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from lmdyn.callbacks.observing.figures import pixels
from lmdyn.claims import Published, Study
from lmdyn.claims.judge import ClaimJudgement
from lmdyn.claims.numbers import Number
from lmdyn.claims.runs import NotMeasured, ObservedRun, SeedPair, by_seed
from lmdyn.cli.drawing.claims_block import renew_claims, write_verdicts
from lmdyn.cli.drawing.page import CLAIMS_PAGE, Place, html_table, links_between, page, picture
from lmdyn.cli.studies.costs import cost_words
from lmdyn.cli.studies.made_by import made_by
from lmdyn.cli.verdicts.figures import Curve, ForestRow, claims_figure
from lmdyn.cli.verdicts.tables import Group, Judged, details_of, elsewhere, groups_of, heading, shown, tally
from lmdyn.cli.verdicts.words import how_words, number_words, quantity_words

__all__ = ["draw_figures", "figure_files", "group_figure", "write_page"]

_DPI, _LEAST_DPI = 110, 80
_MOST_PIXELS = 1_900_000  # of a picture: taller ones are made smaller
_COLOURS = 32


def draw_figures(judged: Sequence[Judged], folder: Path) -> dict[tuple[str, str], Path]:
    """Draw each group of claims as ``<folder>/<study>_<profile>_<group>.png``.

    Returns:
        The files, by profile and group (:attr:`~lmdyn.cli.verdicts.tables.Group.slug`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = figure_files(judged, folder)
    for one, group, figure in _figures(judged):
        _save(figure, files[one.profile.name, group.slug])
    return files


def _save(figure: Figure, path: Path) -> None:
    """Save with a palette, at a third of matplotlib's file size: repositories keep every version."""
    width, height = figure.get_size_inches()
    figure.set_dpi(min(_DPI, max(_LEAST_DPI, math.sqrt(_MOST_PIXELS / (width * height)))))
    picture = Image.fromarray(pixels(figure))
    picture.quantize(_COLOURS, Image.Quantize.FASTOCTREE).save(path, optimize=True)


def figure_files(judged: Sequence[Judged], folder: Path) -> dict[tuple[str, str], Path]:
    """Return the paths of the files that :func:`draw_figures` writes."""
    return {
        (one.profile.name, group.slug): folder / f"{_base(one)}_{group.slug}.png"
        for one in judged
        for group in groups_of(one.judgement)
        if any(row.parts for row in group.rows)
    }


def write_page(study: Study, judged: Sequence[Judged], out: Path) -> Path:
    """Write ``<out>/claims.html``, self-contained, and its figures as PNG and SVG next to it.

    A report in the same folder and this page link to each other.
    """
    out.mkdir(parents=True, exist_ok=True)
    drawn = {(id(one), group.slug): figure for one, group, figure in _figures(judged)}
    sections = [
        f"<h1 class='title'>{html.escape(study.title)}</h1><p>{html.escape(study.publication)}</p>",
        *links_between(out),
    ]
    contents, profiles = [], []
    how = html.escape(how_words(judged[0].judgement.confidence)) if judged else ""
    how = re.sub(r"[*](.+?)[*]", r"<em>\1</em>", how)
    sections.append(f"<p>{how}</p>")
    if study.terms:
        told = "".join(f"<li><em>{html.escape(t)}</em>: {html.escape(m)}</li>" for t, m in study.terms)
        sections.append(f"<ul>{told}</ul>")
    for number, one in enumerate(judged):
        measured = elsewhere(one, judged)
        name, counted = heading(one.profile), tally(one.judgement, measured)
        profiles.append({"heading": name, "tally": counted, "claims": [*map(_verdict, one.judgement)]})
        contents.append(Place(f"runs{number}", name))
        sections.append(f"<h1 id='runs{number}'>{html.escape(name)}</h1>")
        sections.append(f"<p>{shown(one.judgement)} {html.escape(counted)}.</p>")
        made = [line for line in (*made_by(one.profile.runs), cost_words(one.profile.costs)) if line]
        sections.append(f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in made)}</ul>")
        for group in groups_of(one.judgement):
            if not group.measured and all(row.claim.name in measured for row in group.rows):
                continue
            figure = drawn.get((id(one), group.slug))
            anchor = f"runs{number} {group.slug}"
            contents.append(Place(anchor, group.title, inner=True))
            sections += _section(group, figure, out / _base(one), anchor)
    path = out / CLAIMS_PAGE
    path.write_text(page(f"lmdyn: {study.name}", sections, contents), encoding="utf-8")
    write_verdicts(out, study.title, profiles)
    renew_claims(out)
    return path


def _verdict(row: ClaimJudgement) -> dict[str, str]:
    tested = row.after_holm if row.p is not None else ""
    return {"name": row.claim.name, "says": row.claim.says, "verdict": row.verdict, "after_holm": tested}


def _base(judged: Judged) -> str:
    return "_".join(part for part in (judged.judgement.study.name, judged.profile.name) if part)


def _section(group: Group, figure: Figure | None, base: Path, anchor: str) -> Iterator[str]:
    yield f"<h2 id='{html.escape(anchor)}'>{html.escape(group.title)}</h2>"
    head = ["", "number", "other seeds and texts", "other seeds, this text", "these models, other texts or words",
            "true where", "floor", "verdict", "after Holm"]  # fmt: skip
    yield html_table(
        head,
        [
            [c.name, c.mean, c.interval, c.seeds, c.text, c.region, c.floor, c.verdict, c.after_holm]
            for c in group.cells()
        ],
    )
    if group.decides:
        yield f"<p><strong>Of all variants:</strong> {html.escape(group.decides)}</p>"
    if figure is not None:
        yield picture(figure, base, group.slug)
    yield from map(_details, group.rows)


def _details(row: ClaimJudgement) -> str:
    claim = row.claim
    numbers = "; ".join(dict.fromkeys(number_words(part.number) for part in claim.parts))
    items = [
        ("says", f"{claim.says} ({claim.where})"),
        (f"{claim.combine} of" if len(claim.parts) > 1 else "number", numbers),
        *details_of(row),
    ]
    told = "".join(f"<li>{html.escape(name)}: {html.escape(text)}</li>" for name, text in items)
    return f"<details><summary>{html.escape(claim.name)}</summary><ul>{told}</ul></details>"


def _figures(judged: Sequence[Judged]) -> Iterator[tuple[Judged, Group, Figure]]:
    for one in judged:
        runs = by_seed(one.profile.runs)
        for group in groups_of(one.judgement):
            if (figure := group_figure(group, runs)) is not None:
                yield one, group, figure


def group_figure(group: Group, runs: Mapping[SeedPair, Sequence[ObservedRun]]) -> Figure | None:
    """Draw the figure of the claims of one question; None if nothing was measured.

    Args:
        group: the claims.
        runs: runs by their seeds.
    """
    rows = [row for judgement in group.rows for row in _rows(judgement, runs, variants=len(group.rows) > 1)]
    return claims_figure(group.title, rows) if rows else None


def _rows(
    judgement: ClaimJudgement, runs: Mapping[SeedPair, Sequence[ObservedRun]], *, variants: bool
) -> Iterator[ForestRow]:
    claim = judgement.claim
    name = (claim.variant or claim.name) if variants else ""
    nowhere = (math.nan, math.nan)
    several = len(claim.parts) > 1
    for i, (part, judged) in enumerate(zip(claim.parts, judgement.parts, strict=False)):
        yield ForestRow(
            label=": ".join(text for text in (name, several and part.label) if text) or claim.name,
            axis=number_words(part.number, brief=True),
            quantity=quantity_words(part.number),
            low=part.region.low,
            high=part.region.high,
            points=[(e.value, e.low, e.high) for e in judged.estimates.values()],
            interval=judged.interval or nowhere,
            mean=judged.mean,
            floor=judgement.floor.mean if judgement.floor is not None and i == 0 else math.nan,
            published=_published(judgement.published if i == 0 else None),
            curves=list(_curves(part.number, judged.estimates, runs)),
            says=part.label,
            seeds=[str(seed) for seed in judged.estimates],
        )


def _published(published: Published | None) -> tuple[float, float, float]:
    if published is None:
        return math.nan, math.nan, math.nan
    low, high = published.interval() or (math.nan, math.nan)
    return published.value, low, high


def _curves(
    number: Number, seeds: Iterable[SeedPair], runs: Mapping[SeedPair, Sequence[ObservedRun]]
) -> Iterator[Curve]:
    for seed in seeds:
        try:
            table = number.curve(runs[seed])
        except (NotMeasured, ValueError):  # a user's number may have no curve
            continue
        if table is not None and len(table) > 1:
            yield Curve(str(seed), table)
