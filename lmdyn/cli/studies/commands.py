"""Commands about studies; each parses its arguments before it imports anything heavy, so that ``--help`` is instant."""

import logging
from collections.abc import Sequence
from pathlib import Path

from lmdyn.cli.commands import CommandParser

__all__ = ["check_command", "claims_command", "fork_command", "records_command"]

log = logging.getLogger(__name__)


def check_command(args: Sequence[str]) -> None:
    """``lmdyn check --config FILE … [--replay OVERLAY …] [--snakefile FILE | --profile DIR] [--json]``.

    Raises:
        SystemExit: status 1 where something would fail.
    """
    parser = CommandParser(
        "lmdyn check",
        usage="lmdyn check --config FILE … [--replay OVERLAY …] [--data.… VALUE] [--json]\n"
        "       lmdyn check --profile DIR | --snakefile FILE [--json]",
        description="Builds data, model and observers as `fit` would, and says in one line each what is known to fail "
        "or to be meaningless later: nothing is trained, and no run's folder is written to. Exit status 1 for errors; "
        "warnings are of numbers that will be missing.",
        epilog="What --config FILE takes, fit takes too; other arguments of fit follow it.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--replay", action="append", default=[], metavar="OVERLAY",
        help="yaml that `analyze` will lay over the run's configuration: its observers are checked over the "
        "checkpoints that the run will have",
    )  # fmt: skip
    parser.add_argument(
        "--scheduled", action="store_true", help="as of `analyze`: each observer at its own steps"
    )
    parser.add_argument("--snakefile", metavar="FILE", help="check all commands of a chain, in its order")
    parser.add_argument("--profile", metavar="DIR", help="the same of a profile of Snakemake")
    parser.add_argument("--json", action="store_true", help="write the lines as json, for scripts")
    if not args:
        parser.print_help()
        return
    options, rest = parser.parse_known_args(list(args))  # LightningCLI parses the rest
    if options.snakefile is not None or options.profile is not None:
        if rest or options.replay:
            raise ValueError(
                f"--snakefile and --profile name the configurations themselves: leave out {rest[0]}"
            )
        from lmdyn.cli.checking.planned_chain import check_chain

        good = check_chain(options.snakefile, options.profile, as_json=options.json)
    elif not any(word == "--config" or word.startswith("--config=") for word in rest):
        raise ValueError("expected --config FILE, --snakefile FILE or --profile DIR, got none of them")
    else:
        from lmdyn.cli.checking.check import check

        good = check(rest, options.replay, scheduled=options.scheduled, as_json=options.json)
    if not good:
        raise SystemExit(1)


def claims_command(args: Sequence[str]) -> None:
    """``lmdyn claims STUDY RUN… [--markdown FILE] [--figures DIR] [--out DIR] [--only CLAIM …]``.

    Without RUN it lists the claims of a study, without STUDY the studies.
    """
    parser = CommandParser(
        "lmdyn claims",
        usage="lmdyn claims [STUDY [RUN …]] [--markdown FILE] [--figures DIR] [--out DIR] [--only CLAIM …]",
        description="Judge the claims of a publication by runs: of yours, or of records. Each verdict is computed: "
        "holds, fails, undecided, void, not measured. Without runs: the claims and when they are true; without a "
        "study: the studies.",
        epilog="A run is judged by what its observers have recorded; `lmdyn analyze` makes observations afterwards.",
    )
    parser.add_argument("study", nargs="?", help="such as saphra2019_sparsity; see `lmdyn claims`")
    parser.add_argument(
        "run", nargs="*", type=Path,
        help="run folders (judged together), folders of runs (each by itself), or folders of records",
    )  # fmt: skip
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    parser.add_argument(
        "--figures", type=Path, metavar="DIR",
        help="draw the figures of claims there, as PNG; with --markdown, it shows them",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="DIR",
        help="folder of a report: write the page claims.html there, its figures (PNG, SVG) next to it",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="CLAIM",
        help="show these claims only, by their names (with * for any text); all are judged, and corrected for",
    )  # fmt: skip
    parser.add_argument(
        "--confidence", type=_confidence, default=0.95, help="of the intervals; default: 0.95"
    )
    options = parser.parse_args(list(args))
    if not options.run and (options.markdown or options.figures or options.out or options.only):
        raise ValueError(
            "--markdown, --figures, --out and --only show verdicts: name runs, `lmdyn claims STUDY RUN …`"
        )
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
        description="Keep what claims and figures need of runs: scalars, settings, seeds, commands, versions and "
        "times, small enough for a repository, without paths and names of the machine. `lmdyn claims` reads "
        "them as runs.",
    )
    parser.add_argument("run", nargs="+", type=Path, help="run folders, folders of runs, or records")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="docs/records/<study>/<profile>"
    )
    parser.add_argument(
        "--study", help="whose claims they bear; default: the name of the folder that DIR is in, if that is a study"
    )  # fmt: skip
    others = parser.add_mutually_exclusive_group()
    others.add_argument(
        "--keep", dest="others", action="store_const", const="keep", default="refuse",
        help="keep the runs in DIR that are not among those given, as when their folders are gone",
    )  # fmt: skip
    others.add_argument(
        "--drop", dest="others", action="store_const", const="drop", help="drop the runs in DIR that are not given"
    )  # fmt: skip
    parser.add_argument(
        "--most", type=float, default=3.0, metavar="MB", help="refuse to write more; default: 3"
    )
    options = parser.parse_args(list(args))
    from lmdyn.cli.studies.records import keep_records

    keep_records(options.run, options.out, study=options.study, others=options.others, most_mb=options.most)


def fork_command(args: Sequence[str]) -> None:
    """``lmdyn fork RUN (--step K | --epoch E) [--set KEY=VALUE …] [--data-seed N] [--out DIR]``."""
    parser = CommandParser(
        "lmdyn fork",
        description="Train on from a full checkpoint of a run under other settings, in a folder of its own. Without "
        "changes the fork is the run, bit by bit; a fork that was killed goes on when it is asked for again.",
    )
    parser.add_argument("run", type=Path, help="folder of the run")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--step", type=int, metavar="K", help="of a full checkpoint (RUN/resume/)")
    where.add_argument("--epoch", type=int, metavar="E", help="the full checkpoint after so many epochs")
    parser.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE",
        help="a setting by its name on the command line of fit: model.init_args.optimizer.init_args.lr=5, "
        "trainer.max_epochs=15; a learning rate in force is changed by the ratio of the configured ones",
    )  # fmt: skip
    parser.add_argument(
        "--data-seed", "--data_seed", type=int, metavar="N", help="another order of data from there on"
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
