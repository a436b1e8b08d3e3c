"""Commands for studies: each function is one, and its signature and docstring are its command line."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["claims", "phases", "records"]

log = logging.getLogger(__name__)


def claims(
    study: str | None = None,
    run: Sequence[Path] = (),
    *,
    markdown: Path | None = None,
    out: Path | None = None,
    only: tuple[str, ...] = (),
    write: Path | None = None,
    confidence: float = 0.95,
) -> None:
    """Test the claims of a publication on your own runs, or on records.

    The command first shows which claims the observations answer, and which observers would measure the other claims.
    The command then shows the verdicts: holds, fails, undecided, void, not measured. Without runs, the command lists
    the claims of a study, and the region in which each claim is true. Without a study, the command lists the studies.
    `lmdyn analyze` adds observations to a run.

    Args:
        study: a study, such as saphra2019_sparsity; `lmdyn claims` lists the studies
        run: run folders (judged together), folders of runs (each judged separately), or folders of records
        markdown: write a summary as Markdown, and a table of all numbers next to it as CSV
        out: folder for a report: the page claims.html, with its figures (PNG, SVG) next to it
        only: show only claims with these names (* matches any text); lmdyn still corrects for all claims
        write: write a yaml with the observers that would measure the other claims, for `lmdyn analyze RUN --config`
        confidence: confidence of the intervals; default: 0.95

    Raises:
        ValueError: if outputs are requested without runs, or the confidence is not in [0.5, 1).
    """
    if not 0.5 <= confidence < 1:
        raise ValueError(f"--confidence {confidence}: expected at least 0.5 and less than 1")
    if run and study is not None:
        from lmdyn.claims.verdicts.show import show_claims

        show_claims(study, run, markdown=markdown, out=out, only=only, write=write, confidence=confidence)
        return
    if markdown or out or only or write:
        raise ValueError("--markdown, --out, --only and --write require runs: `lmdyn claims STUDY RUN …`")
    from lmdyn.claims.verdicts.lists import list_claims, list_studies

    if study is None:
        list_studies()
    else:
        list_claims(study)


def records(
    run: list[Path],
    *,
    out: Path,
    study: str | None = None,
    keep: bool = False,
    drop: bool = False,
    most: float = 3.0,
) -> None:
    """Store the observations of runs that claims and figures need, small enough for a repository.

    Records contain scalars, settings, seeds, commands, versions and times, but no paths and no names of machines.
    `lmdyn claims` reads records like runs.

    Args:
        run: run folders, folders of runs, or records
        out: docs/records/<study>/<profile>
        study: study that uses the records; default: the name of the parent folder, if a study has this name
        keep: keep recorded runs that you do not give, e.g. because their folders no longer exist
        drop: remove recorded runs that you do not give
        most: maximum size of the records in MB; default: 3

    Raises:
        ValueError: if other runs are to be both kept and dropped.
    """
    if keep and drop:
        raise ValueError("expected --keep or --drop, got both options: give only one of the two")
    from lmdyn.claims.records import keep_records

    others = "keep" if keep else "drop" if drop else "refuse"
    keep_records(run, out, study=study, others=others, most_mb=most)


def phases(
    runs: list[Path],
    *,
    select: tuple[str, ...] = (),
    most: int = 2,
    level: float = 0.05,
    resamplings: int = 199,
    out: Path | None = None,
    page: Path | None = None,
    map: bool = False,
    states: int = 8,
) -> None:
    """Find where recorded curves bend, and order curves by their first change.

    The command fits straight pieces in log10 of the step, and tests them against a smooth monotone course without a
    break. The runs must be seeds of one configuration. A curve requires at least eight observations in each decade of
    steps. The exit status is 3 if you request a training map and the runs have too few seeds.

    Args:
        runs: run folders, folders of runs, or records
        select: curves to test, OBSERVER/QUANTITY/SITE/GROUP as in TensorBoard; * matches any text
        most: maximum change points per curve, 1 to 3; default: 2
        level: largest p-value of a change; default: 0.05
        resamplings: resampled curves for each p-value; default: 199
        out: parquet file for all change points, such as phases.parquet
        page: folder for phases.html, a page with all curves on one axis and their change points; in the folder of a
            report, both pages link to each other
        map: also fit a training map, a hidden Markov model that divides training into states; a map requires runs of
            at least 20 seeds
        states: largest number of states of the training map; default: 8

    Raises:
        SystemExit: with status 3 if a training map is asked for and void.
    """
    from lmdyn.claims.phases.phases import not_tested, order_table, phases_of, read_curves, tested_words
    from lmdyn.claims.phases.phases_page import write_phases_page, write_table

    curves = read_curves(runs, select)
    found = phases_of(curves, most=most, level=level, resamplings=resamplings)
    lines = [order_table(found).to_string(index=False, float_format="%.4g", na_rep="")]
    lines += tested_words(found, level)
    lines += [f"{len(of)} not tested: {why}" for why, of in not_tested(found).items()]
    if out is not None:
        write_table(found, out)
    training_map, void = None, ""
    if map:
        from lmdyn.claims.phases.seed_map import TooFewSeedsError, map_of, map_words

        try:
            training_map = map_of(curves, most=states)
            lines += ["training map", *map_words(training_map)]
        except TooFewSeedsError as error:
            void = str(error)
    sys.stdout.write("\n".join([*lines, ""]))
    if page is not None:
        log.info("phases: %s", write_phases_page(curves, found, page, level, training_map, void))
    if void:
        log.error("void: %s", void)
        raise SystemExit(3)
