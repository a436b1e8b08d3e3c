"""lmdyn's own commands. Each parses its arguments before it imports large packages, so that ``--help`` is fast."""

import argparse
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lmdyn.cli import INSPECT_FIRST

__all__ = [
    "CommandParser",
    "analyze_command",
    "configs_command",
    "inspect_command",
    "parse_shard",
    "prepare_command",
    "report_command",
    "surprisal_command",
]

log = logging.getLogger(__name__)


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one line and propose the nearest option for an unknown one."""

    def error(self, message: str) -> NoReturn:
        """Report an error and exit."""
        near = ""
        if message.startswith("unrecognized arguments: -"):
            from lmdyn.analysis.inspection.attributes import did_you_mean  # slow import

            near = did_you_mean(message.split()[2].partition("=")[0], self._option_string_actions)
        self.exit(2, f"error: {message}{near}\n({self.prog} --help lists the options)\n")


def analyze_command(args: Sequence[str]) -> None:
    """``lmdyn analyze RUN [--checkpoints GLOB] [--config FILE …] [--only NAME …] [--out DIR] [--shard i/n] …``.

    RUN may also be a folder of ``checkpoint-*`` written by transformers' Trainer or, with ``--revisions``, the name of
    a hub model; both require ``--config`` and ``--out``.
    """
    parser = CommandParser(
        "lmdyn analyze",
        description="Replay observers over checkpoints. Existing observations are skipped.",
        epilog=INSPECT_FIRST,
    )
    parser.add_argument(
        "run",
        help="run folder, whose config.yaml defines model, data and observers; or a folder of checkpoint-*; or a "
        "folder written by save_pretrained; or a hub model",
    )
    parser.add_argument("--checkpoints", help="folder or glob of checkpoints; default: RUN/checkpoints")
    parser.add_argument(
        "--revisions",
        help="revisions of a hub model: step0,step1000, or a pattern such as 'step*', or all; if the name contains {}, "
        "which stands for each of several models: the values of {}, e.g. 0k,20k",
    )
    parser.add_argument(
        "--config", action="append", default=[], type=Path,
        help="yaml applied on top of the run's, e.g. other observers under trainer.callbacks (`callbacks+:` appends)",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", action="extend", default=[], metavar="NAME",
        help="run only these of the configured observers; NAME is the name of an observer's folder, * matches any text",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="folder that receives observations/; default: RUN")
    parser.add_argument(
        "--shard",
        help="i/n: observe only checkpoints i, i+n, … (i from 0); default: any number of workers share all "
        "checkpoints, and each takes the next free one",
    )
    parser.add_argument(
        "--scheduled", action="store_true",
        help="call each observer only at the steps of its schedule (the last checkpoint counts as its last step)",
    )  # fmt: skip
    parser.add_argument(
        "--keep", metavar="N|SIZE",
        help="for a hub model: keep at most N downloaded checkpoints (or 20GB of them) in the cache at a time, for all "
        "workers together; each is deleted after it was observed. Checkpoints downloaded earlier are kept",
    )  # fmt: skip
    parser.add_argument(
        "--status", action="store_true",
        help="only show what is done, running, stale and failed (with reasons) for the same command",
    )  # fmt: skip
    parser.add_argument(
        "--strict", action="store_true",
        help="stop at the first checkpoint that fails; default: go on with the others and report failures at the end",
    )  # fmt: skip
    parser.add_argument(
        "--untrusted", action="store_true",
        help="do not trust the run: its config.yaml may name only classes of lmdyn, optimizers of torch and two "
        "loggers; your own files (--config) are trusted",
    )  # fmt: skip
    parser.add_argument("--device", help="cpu, cuda, …; default: cuda if available")
    parser.add_argument(
        "--logger", action="append", default=[],
        help="TensorBoardLogger, CSVLogger, WandbLogger or your own class, package.Class; may be repeated; none: no "
        "logger. It receives all requested observations, including existing ones. Default: the loggers of the "
        "configuration, which receive only new ones",
    )  # fmt: skip
    options = parser.parse_args(list(args))
    shard = (0, 1) if options.shard is None else parse_shard(options.shard)
    worker = parse_shard(None) if options.shard is None else (0, 1)
    from lmdyn.cli.analyze import analyze, replay_status
    from lmdyn.cli.replay.downloads import parse_keep

    keep = None if options.keep is None else parse_keep(options.keep)
    if keep is not None and options.revisions is None:
        raise ValueError(
            "--keep applies to hub models, whose checkpoints are downloaded: give --revisions, or omit --keep"
        )

    asked = {
        "checkpoints": options.checkpoints, "revisions": options.revisions, "configs": options.config,
        "only": options.only, "out": options.out, "shard": shard, "scheduled": options.scheduled,
        "untrusted": options.untrusted,
    }  # fmt: skip
    if options.status:
        sys.stdout.write("\n".join(replay_status(options.run, **asked)) + "\n")
        return
    analyze(
        options.run,
        **asked,
        worker=worker,
        strict=options.strict,
        keep=keep,
        device=_device(options.device),
        loggers=options.logger,
        command=["lmdyn", "analyze", *args],
    )
    log.info("report: python -m lmdyn.cli report %s", shlex.quote(str(options.out or options.run)))


def _device(name: str | None) -> str:
    """Return an available device: the given one, or if None, ``cuda`` if available, else ``cpu``."""
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1).to(name)
    except Exception as error:  # raised by torch or by the backend's library
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"--device {name!r} is unavailable ({reason}): expected cpu, cuda, cuda:1, mps, …"
        ) from error
    return name


def parse_shard(text: str | None) -> tuple[int, int]:
    """Parse ``"i/n"`` as (i, n); None reads torchrun's or SLURM's environment and returns (0, 1) without either.

    Raises:
        ValueError: if not 0 ≤ i < n.

    Example:
        >>> parse_shard("1/4")
        (1, 4)
    """
    source = "--shard"
    if text is None:
        for rank, size in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
            if rank in os.environ and size in os.environ:
                text, source = f"{os.environ[rank]}/{os.environ[size]}", f"the environment's {rank}/{size}"
                break
        else:
            return 0, 1
    try:
        i, n = (int(part) for part in text.split("/"))
    except ValueError:
        i, n = -1, 0
    if not 0 <= i < n:
        raise ValueError(f"{source} is {text!r}: expected i/n with 0 <= i < n, e.g. 0/4")
    return i, n


def report_command(args: Sequence[str]) -> None:
    """``lmdyn report RUN [RUN …] [--out DIR] [--config FILE …] [--all]``.

    Raises:
        ValueError: if several runs are given without ``--out``.
    """
    parser = CommandParser(
        "lmdyn report",
        description="Draw the figures and tables of all observations on one page, with PNG, SVG and CSV files.",
        epilog=INSPECT_FIRST,
    )
    parser.add_argument("run", nargs="+", type=Path, help="run folder, which contains observations/")
    parser.add_argument(
        "--out", type=Path, help="folder of the report; default: RUN/report; required for several runs"
    )
    parser.add_argument(
        "--config", action="append", default=[], type=Path,
        help="yaml that names your own observers, as given to analyze, if a run's config.yaml does not name them",
    )  # fmt: skip
    parser.add_argument(
        "--untrusted", action="store_true",
        help="do not trust the runs: classes named in their config.yaml are not imported; only numbers are drawn",
    )  # fmt: skip
    parser.add_argument(
        "--all", action="store_true",
        help="draw every observation; default: at most 300 of each observer, evenly spaced",
    )  # fmt: skip
    options = parser.parse_args(list(args))
    if len(options.run) > 1 and options.out is None:
        raise ValueError("a report of several runs requires its own folder: give --out DIR")
    from lmdyn.cli.drawing.side_by_side import processes_to_draw
    from lmdyn.cli.recorded_observers import import_configured
    from lmdyn.cli.report import write_report

    for config in options.config:
        import_configured(config)
    out = options.out or options.run[0] / "report"
    path = write_report(
        options.run,
        out,
        untrusted=options.untrusted,
        every_step=options.all,
        processes=processes_to_draw(),
    )
    log.info("report: %s", path)


def prepare_command(args: Sequence[str]) -> None:
    """``lmdyn prepare --config FILE [--data.… VALUE] [--tokenizer DIR]``.

    Raises:
        ValueError: if ``--tokenizer`` has no folder, or the data has no tokenizer.
    """
    parser = argparse.ArgumentParser(
        "lmdyn prepare",
        usage="lmdyn prepare --config FILE [--data.… VALUE] [--tokenizer DIR]",
        description="Encode the text of a configuration into the cache, so that a run on a GPU does not wait for it.",
        epilog=INSPECT_FIRST,
        allow_abbrev=False,
        exit_on_error=False,
    )
    parser.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="folder in which the tokenizer is saved, for models that are compared token by token",
    )
    if not args:
        parser.print_help()
        return
    try:
        options, rest = parser.parse_known_args(list(args))  # LightningCLI parses the rest
    except argparse.ArgumentError as error:
        raise ValueError("--tokenizer requires a folder: --tokenizer DIR") from error
    from lmdyn.analysis.inspection.attributes import nearest

    if near := [option for option in rest if nearest(option.partition("=")[0], ["--tokenizer"], cutoff=0.85)]:
        raise ValueError(f"unrecognized argument: {near[0]}, did you mean '--tokenizer'?")
    from lmdyn.cli.prepare import prepare

    prepare(rest, options.tokenizer)


def inspect_command(args: Sequence[str]) -> None:
    """``lmdyn inspect MODEL [--data DATA] [--write my.yaml] [--model.ARG VALUE …] [--data.ARG VALUE …]``."""
    parser = CommandParser(
        "lmdyn inspect",
        usage="lmdyn inspect MODEL [--data DATA] [--write my.yaml] [--model.ARG VALUE …] [--data.ARG VALUE …]",
        description="Show what a model is, its sites and which observers run on it, before anything is trained; and "
        "write a starting yaml.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model", metavar="MODEL",
        help="a yaml with model: (and data:); a run folder; a folder written by save_pretrained, or a hub name; or "
        "package.Class of a LightningModule or another nn.Module, with arguments --model.ARG VALUE",
    )  # fmt: skip
    parser.add_argument(
        "--data",
        help="a yaml with data:, a text file, or package.Class of a LightningDataModule, with arguments --data.ARG "
        "VALUE; default: the data of the yaml, otherwise a small synthetic corpus",
    )
    parser.add_argument(
        "--write", type=Path, metavar="YAML", help="write a starting yaml, ready for `lmdyn fit`"
    )
    parser.add_argument(
        "--forward",
        metavar="PACKAGE.FUNCTION",
        help="a function (module, batch) -> logits, for models with their own calling convention",
    )
    parser.add_argument("--device", help="cpu, cuda, …; default: cuda if available")
    if not args:
        parser.print_help()
        return
    of_classes, own = _of_classes(args)
    options = parser.parse_args(own)
    import torch

    from lmdyn.cli.inspect import inspect_model

    inspect_model(
        options.model,
        data=options.data,
        arguments=of_classes,
        forward=options.forward,
        write=options.write,
        device=options.device or ("cuda" if torch.cuda.is_available() else "cpu"),
    )


def configs_command(args: Sequence[str]) -> None:
    """``lmdyn configs [STUDY] [--to DIR]``."""
    parser = CommandParser(
        "lmdyn configs",
        description="The configurations shipped with lmdyn. Without arguments: list their names, for `--config NAME`. "
        "With a study: copy its configurations and workflow, for `snakemake --profile configs/STUDY/PROFILE`.",
    )
    parser.add_argument("study", nargs="?", help="a study, such as he2022_twotower")
    parser.add_argument(
        "--to", type=Path, default=Path("configs"), help="destination folder; default: configs"
    )
    options = parser.parse_args(list(args))
    from lmdyn.cli.shipped import copy_shipped, shipped_files

    if options.study is None:
        sys.stdout.write("\n".join(shipped_files()) + "\n")
        return
    copied = copy_shipped(options.study, options.to)
    log.info("%d files in %s", len(copied), options.to)


def surprisal_command(args: Sequence[str]) -> None:
    """``lmdyn surprisal MODEL TEXT [--out DIR] …``."""
    parser = CommandParser(
        "lmdyn surprisal",
        usage="lmdyn surprisal MODEL TEXT [--out DIR] [--pseudo rest_of_word] [--model.revision step3000] …",
        description="Compute how surprising each word and each piece of a text is to a model: log-probability (nats), "
        "surprisal (bits), rank and entropy (nats), in words.parquet and pieces.parquet. Masked models yield "
        "pseudo-log-likelihoods.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model", metavar="MODEL",
        help="a run folder, one of its checkpoints, a folder written by save_pretrained, or a hub name",
    )  # fmt: skip
    parser.add_argument(
        "text", metavar="TEXT", help="UTF-8 file with one text per line; - reads standard input"
    )
    parser.add_argument("--out", type=Path, help="folder for the tables; default: <TEXT>.surprisal")
    parser.add_argument("--tokenizer", help="folder, hub name or tokenizer.json; default: the model's own")
    parser.add_argument(
        "--pseudo", choices=["piece", "rest_of_word"], default="piece",
        help="what is hidden from masked models: the scored piece (Salazar et al. 2020), or also the rest of its word "
        "(Kauf & Ivanova 2023)",
    )  # fmt: skip
    parser.add_argument(
        "--start",
        help="token before the first piece, for causal models; '' for none; default: bos, or eos without bos",
    )
    parser.add_argument("--context", type=int, help="maximum tokens per input; default: the model's limit")
    parser.add_argument("--objective", choices=["causal", "masked"], help="default: measured on the model")
    parser.add_argument(
        "--batch_tokens", type=int, default=1024, help="maximum tokens per batch; default: 1024"
    )
    parser.add_argument("--forward", metavar="PACKAGE.FUNCTION", help="a function (module, batch) -> logits")
    parser.add_argument("--device", help="cpu, cuda, …; default: cuda if available")
    if not args:
        parser.print_help()
        return
    of_classes, own = _of_classes(args)
    options = vars(parser.parse_args(own))
    device = _device(options.pop("device"))
    from lmdyn.cli.inspection.surprisal import write_surprisals

    log.info("written: %s", write_surprisals(**options, device=device, arguments=of_classes))


def _of_classes(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words into ``--model.ARG VALUE`` and ``--data.ARG VALUE``, and all others."""
    of_classes: list[str] = []
    own: list[str] = []
    words = iter(args)
    for word in words:
        if not word.startswith(("--model.", "--data.")):
            own.append(word)
            continue
        of_classes.append(word)
        if "=" not in word:
            of_classes.extend([value] if (value := next(words, None)) is not None else [])
    return of_classes, own
