"""lmdyn's own commands: each parses its arguments before it imports anything heavy, so that ``--help`` is instant."""

import argparse
import logging
import os
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
    """Mistakes are one line, and an unknown option gets the nearest."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and exit."""
        near = ""
        if message.startswith("unrecognized arguments: -"):
            from lmdyn.analysis.inspection.attributes import (
                did_you_mean,  # costs seconds, by what is next to it
            )

            near = did_you_mean(message.split()[2].partition("=")[0], self._option_string_actions)
        self.exit(2, f"error: {message}{near}\n({self.prog} --help: what there is)\n")


def analyze_command(args: Sequence[str]) -> None:
    """``lmdyn analyze RUN [--checkpoints GLOB] [--config FILE …] [--only NAME …] [--out DIR] [--shard i/n] …``.

    RUN may also be a folder of ``checkpoint-*`` that transformers' Trainer wrote, or, with ``--revisions``, the name
    of a hub model; then ``--config`` and ``--out`` are needed.
    """
    parser = CommandParser(
        "lmdyn analyze",
        description="Replay observers over checkpoints. Observations that are there already are skipped.",
        epilog=INSPECT_FIRST,
    )
    parser.add_argument(
        "run",
        help="run folder: its config.yaml says model, data and observers; or a folder of checkpoint-*, or of a model "
        "that save_pretrained wrote, or a hub model",
    )
    parser.add_argument("--checkpoints", help="folder or glob of checkpoints; default: RUN/checkpoints")
    parser.add_argument(
        "--revisions",
        help="of a hub model: step0,step1000 or a pattern, 'step*', or all; where {} in the name stands for each of "
        "several models: what it stands for, e.g. 0k,20k",
    )
    parser.add_argument(
        "--config", action="append", default=[], type=Path,
        help="yaml over the run's own, e.g. other observers under trainer.callbacks (`callbacks+:` appends)",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", action="extend", default=[], metavar="NAME",
        help="of the observers that are configured these, by the names of their folders, with * for any text",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="folder that receives observations/; default: RUN")
    parser.add_argument(
        "--shard",
        help="i/n: take checkpoints i, i+n, … only (i from 0); default: any number of workers share all of them, each "
        "takes the next that nobody has",
    )
    parser.add_argument(
        "--scheduled", action="store_true",
        help="ask each observer at the steps of its schedule only (the last checkpoint is its last step)",
    )  # fmt: skip
    parser.add_argument(
        "--keep", metavar="N|SIZE",
        help="of a hub model: at most N downloaded checkpoints (or 20GB of them) are in the cache at once, of all "
        "workers; each is removed once it is observed. What was there before stays",
    )  # fmt: skip
    parser.add_argument(
        "--status", action="store_true",
        help="only say what is done, running, stale and failed, and why, of what the same command would make",
    )  # fmt: skip
    parser.add_argument(
        "--strict", action="store_true",
        help="stop at the first checkpoint that fails; default: go on with the others and report it at the end",
    )  # fmt: skip
    parser.add_argument(
        "--untrusted", action="store_true",
        help="the run is somebody else's: its config.yaml may name classes of lmdyn's, optimizers of torch's and two "
        "loggers only; what files of your own (--config) name is trusted",
    )  # fmt: skip
    parser.add_argument("--device", help="cpu, cuda, …; default: cuda where there is one")
    parser.add_argument(
        "--logger", action="append", default=[],
        help="TensorBoardLogger, CSVLogger, WandbLogger or a class of yours, package.Class; may be repeated; none: no "
        "logger. Gets all observations that are asked for, also those that are there. Default: the loggers of the "
        "configuration, which get the new ones",
    )  # fmt: skip
    options = parser.parse_args(list(args))
    shard = (0, 1) if options.shard is None else parse_shard(options.shard)
    worker = parse_shard(None) if options.shard is None else (0, 1)
    from lmdyn.cli.analyze import analyze, replay_status
    from lmdyn.cli.replay.downloads import parse_keep

    keep = None if options.keep is None else parse_keep(options.keep)
    if keep is not None and options.revisions is None:
        raise ValueError(
            "--keep is for hub models, whose checkpoints are downloaded: give --revisions, or leave it out"
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
    log.info("report: python -m lmdyn.cli report %s", options.out or options.run)


def _device(name: str | None) -> str:
    """A device that is there; ``cuda`` or ``cpu`` where none is named."""
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1).to(name)
    except Exception as error:  # of torch, of a backend's own library
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"--device {name!r} cannot be used ({reason}): expected cpu, cuda, cuda:1, mps, …"
        ) from error
    return name


def parse_shard(text: str | None) -> tuple[int, int]:
    """``"i/n"`` as (i, n); None reads torchrun's or SLURM's environment, (0, 1) without either.

    Raises:
        ValueError: anything but 0 ≤ i < n.

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
        ValueError: several runs without ``--out``.
    """
    parser = CommandParser(
        "lmdyn report",
        description="Draw the figures and tables of all observations into one page; PNG, SVG and CSV next to it.",
        epilog=INSPECT_FIRST,
    )
    parser.add_argument("run", nargs="+", type=Path, help="run folder (it holds observations/)")
    parser.add_argument(
        "--out", type=Path, help="folder of the report; default: RUN/report; needed for several runs"
    )
    parser.add_argument(
        "--config", action="append", default=[], type=Path,
        help="yaml that names observers of your own which a run's config.yaml does not name, as given to analyze",
    )  # fmt: skip
    parser.add_argument(
        "--untrusted", action="store_true",
        help="the runs are somebody else's: what their config.yaml names is not imported, and drawn by numbers only",
    )  # fmt: skip
    parser.add_argument(
        "--all", action="store_true",
        help="draw every observation; default: of more than 300 of an observer at most 300, evenly spread",
    )  # fmt: skip
    options = parser.parse_args(list(args))
    if len(options.run) > 1 and options.out is None:
        raise ValueError("a report of several runs needs a folder of its own: give --out DIR")
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
        ValueError: ``--tokenizer`` without a folder, or for data without a tokenizer.
    """
    parser = argparse.ArgumentParser(
        "lmdyn prepare",
        usage="lmdyn prepare --config FILE [--data.… VALUE] [--tokenizer DIR]",
        description="Encodes the text of a configuration into the cache, so that a run on a GPU does not wait for it.",
        epilog=INSPECT_FIRST,
        allow_abbrev=False,
        exit_on_error=False,
    )
    parser.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="folder to save its tokenizer in, for models that are to be compared token by token",
    )
    if not args:
        parser.print_help()
        return
    try:
        options, rest = parser.parse_known_args(list(args))  # LightningCLI parses the rest
    except argparse.ArgumentError as error:
        raise ValueError("--tokenizer needs a folder: --tokenizer DIR") from error
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
        description="Say what a model is, where to look into it and which observers run on it, before anything is "
        "trained; and write a yaml to start from.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model", metavar="MODEL",
        help="a yaml with model: (and data:); the folder of a run; a folder that save_pretrained wrote, or a hub name; "
        "or package.Class of a LightningModule or another nn.Module, its arguments by --model.ARG VALUE",
    )  # fmt: skip
    parser.add_argument(
        "--data",
        help="a yaml with data:, a text file, or package.Class of a LightningDataModule, its arguments by --data.ARG "
        "VALUE; default: the yaml's own, else a small synthetic corpus",
    )
    parser.add_argument(
        "--write", type=Path, metavar="YAML", help="write a yaml to start from, which then runs"
    )
    parser.add_argument(
        "--forward",
        metavar="PACKAGE.FUNCTION",
        help="a function (module, batch) -> logits, for models that are called in a way of their own",
    )
    parser.add_argument("--device", help="cpu, cuda, …; default: cuda where there is one")
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
        description="The configurations that lmdyn brings. Without arguments: their names, for `--config NAME`. "
        "With a study: a copy of its configurations and workflow, for `snakemake --profile configs/STUDY/PROFILE`.",
    )
    parser.add_argument("study", nargs="?", help="such as he2022_twotower")
    parser.add_argument(
        "--to", type=Path, default=Path("configs"), help="folder of the copy; default: configs"
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
        description="How surprising each word and each piece of a text is to a model: log-probability (nats), "
        "surprisal (bits), rank and entropy (nats), in words.parquet and pieces.parquet. Masked models give "
        "pseudo-log-likelihoods.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model", metavar="MODEL",
        help="the folder of a run, one of its checkpoints, a folder that save_pretrained wrote, or a hub name",
    )  # fmt: skip
    parser.add_argument(
        "text", metavar="TEXT", help="file of UTF-8 text, a text a line; - reads standard input"
    )
    parser.add_argument("--out", type=Path, help="folder of the tables; default: <TEXT>.surprisal")
    parser.add_argument("--tokenizer", help="folder, hub name or tokenizer.json; default: the model's own")
    parser.add_argument(
        "--pseudo", choices=["piece", "rest_of_word"], default="piece",
        help="what masked models do not see: the piece that is asked for (Salazar et al. 2020), or with it the rest of "
        "its word (Kauf & Ivanova 2023)",
    )  # fmt: skip
    parser.add_argument(
        "--start", help="token before the first piece, for causal models; '' for none; default: bos, else eos"
    )
    parser.add_argument("--context", type=int, help="most tokens of an input; default: the model's")
    parser.add_argument("--objective", choices=["causal", "masked"], help="default: measured")
    parser.add_argument(
        "--batch_tokens", type=int, default=1024, help="most tokens of a batch; default: 1024"
    )
    parser.add_argument("--forward", metavar="PACKAGE.FUNCTION", help="a function (module, batch) -> logits")
    parser.add_argument("--device", help="cpu, cuda, …; default: cuda where there is one")
    if not args:
        parser.print_help()
        return
    of_classes, own = _of_classes(args)
    options = vars(parser.parse_args(own))
    device = _device(options.pop("device"))
    from lmdyn.cli.inspection.surprisal import write_surprisals

    log.info("written: %s", write_surprisals(**options, device=device, arguments=of_classes))


def _of_classes(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """``--model.ARG VALUE`` and ``--data.ARG VALUE``, and all other words."""
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
