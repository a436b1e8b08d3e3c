"""Commands for studies. Each parses its arguments before it imports large packages, so that ``--help`` is fast."""

import logging
from collections.abc import Sequence
from pathlib import Path

from lmdyn.cli.commands import CommandParser

__all__ = ["check_command", "claims_command", "fork_command", "phases_command", "records_command"]

log = logging.getLogger(__name__)


def check_command(args: Sequence[str]) -> None:
    """``lmdyn check --config FILE … [--replay OVERLAY …] [--snakefile FILE | --profile DIR] [--json]``.

    Raises:
        SystemExit: with status 1 if something would fail.
    """
    parser = CommandParser(
        "lmdyn check",
        usage="lmdyn check --config FILE … [--replay OVERLAY …] [--data.… VALUE] [--json]\n"
        "       lmdyn check --profile DIR | --snakefile FILE [--json]",
        description="Build data, model and observers as `fit` would, and report in one line each what would fail or be "
        "meaningless later. Nothing is trained, and no run folder is written to. The exit status is 1 for errors; "
        "warnings are about numbers that will be missing.",
        epilog="Other arguments of `fit` may follow --config FILE.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--replay", action="append", default=[], metavar="OVERLAY",
        help="yaml that `analyze` will apply on top of the run's configuration: its observers are checked on the "
        "checkpoints that the run will have",
    )  # fmt: skip
    parser.add_argument(
        "--scheduled", action="store_true", help="as in `analyze`: each observer at the steps of its schedule"
    )
    parser.add_argument("--snakefile", metavar="FILE", help="check all commands of a chain, in order")
    parser.add_argument("--profile", metavar="DIR", help="the same for a Snakemake profile")
    parser.add_argument("--json", action="store_true", help="write the lines as JSON, for scripts")
    if not args:
        parser.print_help()
        return
    options, rest = parser.parse_known_args(list(args))  # LightningCLI parses the rest
    if options.snakefile is not None or options.profile is not None:
        if rest or options.replay:
            raise ValueError(f"--snakefile and --profile already define the configurations: omit {rest[0]}")
        from lmdyn.cli.checking.planned_chain import check_chain

        good = check_chain(options.snakefile, options.profile, as_json=options.json)
    elif not any(word == "--config" or word.startswith("--config=") for word in rest):
        raise ValueError("expected --config FILE, --snakefile FILE or --profile DIR, got none")
    else:
        from lmdyn.cli.checking.check import check

        good = check(rest, options.replay, scheduled=options.scheduled, as_json=options.json)
    if not good:
        raise SystemExit(1)


def claims_command(args: Sequence[str]) -> None:
    """``lmdyn claims STUDY RUN… [--markdown FILE] [--figures DIR] [--out DIR] [--only CLAIM …]``.

    Without RUN it lists the claims of a study; without STUDY it lists the studies.
    """
    parser = CommandParser(
        "lmdyn claims",
        usage="lmdyn claims [STUDY [RUN …]] [--markdown FILE] [--figures DIR] [--out DIR] [--only CLAIM …]",
        description="Test the claims of a publication on runs, your own or recorded ones. Each verdict is computed: "
        "holds, fails, undecided, void, not measured. Without runs: list the claims and the conditions under which "
        "they hold; without a study: list the studies.",
        epilog="A run is judged by what its observers have recorded; `lmdyn analyze` adds observations to a run.",
    )
    parser.add_argument(
        "study", nargs="?", help="a study, such as saphra2019_sparsity; `lmdyn claims` lists them"
    )
    parser.add_argument(
        "run", nargs="*", type=Path,
        help="run folders (judged together), folders of runs (each judged separately), or folders of records",
    )  # fmt: skip
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    parser.add_argument(
        "--figures", type=Path, metavar="DIR",
        help="folder for figures of the claims, as PNG; with --markdown, the file shows them",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="DIR",
        help="folder for a report: the page claims.html, with its figures (PNG, SVG) next to it",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="CLAIM",
        help="show only these claims, by name (* matches any text); all claims are judged and corrected for",
    )  # fmt: skip
    parser.add_argument(
        "--confidence", type=_confidence, default=0.95, help="confidence of the intervals; default: 0.95"
    )
    options = parser.parse_args(list(args))
    if not options.run and (options.markdown or options.figures or options.out or options.only):
        raise ValueError("--markdown, --figures, --out and --only require runs: `lmdyn claims STUDY RUN …`")
    if not options.run:
        from lmdyn.cli.verdicts.lists import list_claims, list_studies

        if options.study is None:
            list_studies()
        else:
            list_claims(options.study)
    else:
        from lmdyn.cli.verdicts.show import show_claims

        show_claims(
            options.study,
            options.run,
            markdown=options.markdown,
            figures=options.figures,
            out=options.out,
            only=options.only,
            confidence=options.confidence,
        )


def _confidence(text: str) -> float:
    value = float(text)
    if not 0.5 <= value < 1:
        raise ValueError
    return value


def records_command(args: Sequence[str]) -> None:
    """``lmdyn records RUN… --out docs/records/<study>/<profile> [--study STUDY] [--keep | --drop] [--most MB]``."""
    parser = CommandParser(
        "lmdyn records",
        description="Store what claims and figures need from runs: scalars, settings, seeds, commands, versions and "
        "times, small enough for a repository, without paths and names of the machine. `lmdyn claims` reads "
        "records like runs.",
    )
    parser.add_argument("run", nargs="+", type=Path, help="run folders, folders of runs, or records")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="docs/records/<study>/<profile>"
    )
    parser.add_argument(
        "--study", help="study whose claims use them; default: the parent folder's name, if it is that of a study"
    )  # fmt: skip
    others = parser.add_mutually_exclusive_group()
    others.add_argument(
        "--keep", dest="others", action="store_const", const="keep", default="refuse",
        help="keep the runs in DIR that are not among the given ones, e.g. because their folders no longer exist",
    )  # fmt: skip
    others.add_argument(
        "--drop", dest="others", action="store_const", const="drop", help="remove runs in DIR that are not given"
    )  # fmt: skip
    parser.add_argument("--most", type=float, default=3.0, metavar="MB", help="maximum size; default: 3")
    options = parser.parse_args(list(args))
    from lmdyn.cli.studies.records import keep_records

    keep_records(options.run, options.out, study=options.study, others=options.others, most_mb=options.most)


def fork_command(args: Sequence[str]) -> None:
    """``lmdyn fork RUN (--step K | --epoch E) [--set KEY=VALUE …] [--data-seed N] [--out DIR]``."""
    parser = CommandParser(
        "lmdyn fork",
        description="Continue from a full checkpoint of a run with other settings, in a new folder. Without changes, "
        "the fork equals the run bit by bit. If a fork was killed, the same command resumes it.",
    )
    parser.add_argument("run", type=Path, help="folder of the run")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--step", type=int, metavar="K", help="step of a full checkpoint (in RUN/resume/)")
    where.add_argument("--epoch", type=int, metavar="E", help="the full checkpoint after E epochs")
    parser.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE",
        help="a setting, by its name on the command line of fit: model.init_args.optimizer.init_args.lr=5, "
        "trainer.max_epochs=15; the current learning rate is scaled by the ratio of the configured ones",
    )  # fmt: skip
    parser.add_argument(
        "--data-seed", "--data_seed", type=int, metavar="N", help="another order of data from this step on"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of the fork; default: RUN_fork_K_<digest of the changes>",
    )
    options = parser.parse_args(list(args))
    changes = {}
    for word in options.set:
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise ValueError(f"--set {word!r}: expected KEY=VALUE, such as trainer.max_epochs=15")
        changes[key.lstrip("-")] = value
    from lmdyn.cli.studies.fork import fork

    folder = fork(
        options.run,
        options.step,
        epoch=options.epoch,
        changes=changes,
        data_seed=options.data_seed,
        out=options.out,
        command=["lmdyn", "fork", *args],
    )
    log.info("fork: %s", folder)


def phases_command(args: Sequence[str]) -> None:
    """``lmdyn phases RUN … [--select PATTERN …] [--most N] [--level P] [--out FILE] [--page DIR] [--map]``.

    Raises:
        SystemExit: with status 3 if a training map is asked for and void.
    """
    parser = CommandParser(
        "lmdyn phases",
        description="Find where recorded curves bend, in log10 of the step, against smooth monotone courses without a "
        "break (a curve may be smooth), and order curves by their first change. Runs are seeds: differences are paired "
        "by run. Curves require at least eight observations a decade of steps.",
        epilog="The exit status is 3 if a training map is asked for and void.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run folders, folders of runs, or records"
    )
    parser.add_argument(
        "--select", nargs="+", action="extend", default=[], metavar="PATTERN",
        help="curves to test, OBSERVER/QUANTITY/SITE/GROUP as in TensorBoard; * matches any text",
    )  # fmt: skip
    parser.add_argument(
        "--most", type=int, default=2, help="maximum change points per curve, 1 to 3 (default: 2)"
    )
    parser.add_argument(
        "--level", type=float, default=0.05, help="largest p-value of a change (default: 0.05)"
    )
    parser.add_argument(
        "--resamplings", type=int, default=199, help="resampled curves for each p-value (default: 199)"
    )
    parser.add_argument("--out", type=Path, help="parquet file for all change points, such as phases.parquet")
    parser.add_argument(
        "--page", type=Path, metavar="DIR",
        help="folder for phases.html, on which all curves are above each other on one axis with their change points; "
        "in the folder of a report, both pages link to each other",
    )  # fmt: skip
    parser.add_argument(
        "--map", action="store_true",
        help="also fit a training map: a hidden Markov model of the curves, whose states divide training; requires "
        "runs of at least 20 seeds, below which it is void",
    )  # fmt: skip
    parser.add_argument(
        "--states", type=int, default=8, help="largest number of states of the training map (default: 8)"
    )
    options = parser.parse_args(list(args))
    from lmdyn.cli.phases.phases import phases_of, print_phases, read_curves, write_phases

    curves = read_curves(options.runs, options.select)
    found = phases_of(curves, most=options.most, level=options.level, resamplings=options.resamplings)
    print_phases(found, options.level)
    if options.out is not None:
        write_phases(found, options.out)
    seed_map, void = None, ""
    if options.map:
        from lmdyn.cli.phases.seed_map import TooFewSeedsError, map_of, print_map

        try:
            seed_map = map_of(curves, most=options.states)
            print_map(seed_map)
        except TooFewSeedsError as error:
            void = str(error)
    if options.page is not None:
        from lmdyn.cli.phases.page import write_phases_page

        path = write_phases_page(curves, found, options.page, options.level, seed_map, void)
        log.info("phases: %s", path)
    if void:
        log.error("void: %s", void)
        raise SystemExit(3)
