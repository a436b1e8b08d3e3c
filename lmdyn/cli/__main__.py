"""``python -m lmdyn.cli`` and ``lmdyn``: dispatch the command line to its command."""

import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from lmdyn.cli.commands import (
    analyze_command,
    configs_command,
    inspect_command,
    prepare_command,
    report_command,
    surprisal_command,
)
from lmdyn.cli.mistakes import of_users_code
from lmdyn.cli.shipped import with_shipped
from lmdyn.cli.studies.commands import (
    check_command,
    claims_command,
    fork_command,
    phases_command,
    records_command,
)

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> None:
    """Run a subcommand of the Trainer (``fit | validate | test | predict``) or of lmdyn; ``lmdyn --help`` lists them.

    An error in the configuration or in files is reported in one line with exit status 1, without a traceback; set
    ``LMDYN_TRACEBACK=1`` to see the traceback. Errors in a user's code or in training show their traceback.
    Ctrl-C is reported in one line with exit status 130.
    """
    logger = logging.getLogger("lmdyn")
    logger.setLevel(logging.INFO)
    logger.handlers = [logging.StreamHandler()]  # Lightning has its own handlers
    logger.propagate = False
    # notices of Lightning that a user cannot act on: an advertisement, and a deprecated call in Lightning itself
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
        lambda r: "litlogger" not in r.getMessage()
    )
    warnings.filterwarnings("ignore", message=".isinstance.treespec, LeafSpec.. is deprecated")
    args = list(sys.argv[1:] if argv is None else argv)
    here = str(Path.cwd())
    # the script `lmdyn` must find the same modules as `python -m lmdyn.cli`, such as my_model.py
    if not {"", here} & set(sys.path):
        sys.path.insert(0, here)
    if folder := os.environ.get("LMDYN_COSTS"):
        from lmdyn.cli.studies.costs import account

        account(Path(folder), args)
    try:
        _run(with_shipped(args))
    except KeyboardInterrupt:
        if os.environ.get("LMDYN_TRACEBACK"):
            raise
        logger.error("stopped by Ctrl-C")
        raise SystemExit(128 + signal.SIGINT) from None
    except Exception as error:
        if os.environ.get("LMDYN_TRACEBACK") or not _of_configuration(error):
            raise
        while isinstance(error.__cause__, (ValueError, TypeError)) and _of_jsonargparse(error):
            error = error.__cause__  # jsonargparse wraps a class's error; lmdyn's wrappers add the place
        logger.error("error: %s\n(LMDYN_TRACEBACK=1 shows the traceback)", error)
        raise SystemExit(1) from None


def _of_configuration(error: Exception) -> bool:
    """Return whether one line explains the error: it is about arguments or files, not a user's code or training."""
    # the last one is Lightning's class; importing it for the comparison would take seconds
    expected = isinstance(error, (ValueError, TypeError, OSError, ImportError)) or (
        type(error).__name__ == "MisconfigurationException"
    )
    # raised in Lightning's loops: before the first batch, or because the disk is full
    if type(error).__name__ in ("ForeseenError", "ResumeError", "UnwritableError"):
        return True
    return expected and not _while_training(error) and of_users_code(error) is None


def _while_training(error: BaseException) -> bool:
    """Return whether the error was raised in Lightning's loops: by a module or a callback, not by configuration."""
    loops = f"{os.sep}pytorch{os.sep}loops{os.sep}"
    return any(loops in frame.filename for frame in traceback.extract_tb(error.__traceback__))


def _of_jsonargparse(error: BaseException) -> bool:
    """Return whether jsonargparse raised the error."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and f"{os.sep}jsonargparse{os.sep}" in frames[-1].filename


_OF_TRAINER = ("fit", "validate", "test", "predict")
_COMMANDS = (
    *_OF_TRAINER,
    "prepare",
    "analyze",
    "report",
    "inspect",
    "check",
    "fork",
    "claims",
    "records",
    "surprisal",
    "phases",
    "configs",
)

_USAGE = """usage: lmdyn COMMAND …

inspect    first: what runs on a model               inspect MODEL [--data DATA] [--write my.yaml]
check      find known errors before training         check --config FILE [--replay OVERLAY] | --profile DIR
fit        train with observers                      fit --config FILE [--config OVERLAY] [--ckpt_path last]
validate   \\
test        > evaluate a checkpoint                   test --config FILE --ckpt_path CHECKPOINT
predict    /
prepare    encode the data before a run              prepare --config FILE [--tokenizer DIR]
analyze    replay observers over checkpoints         analyze RUN [--config OVERLAY] [--shard i/n] [--logger NAME]
report     draw the figures of a run                 report RUN
surprisal  compute the surprisal of words            surprisal MODEL TEXT [--out DIR]
phases     find change points of curves, in order    phases RUN … [--select PATTERN …] [--page DIR] [--map]
fork       continue a run with other settings        fork RUN --step K [--set KEY=VALUE …] [--data-seed N]
claims     test a publication's claims on runs       claims STUDY RUN … [--markdown FILE] [--out DIR]
configs    list or copy shipped configurations       configs [STUDY] [--to DIR]
records    store what claims need from runs          records RUN … --out docs/records/STUDY/PROFILE

COMMAND --help shows all options. Arguments of a class: fit --model.help LSTMLanguageModel, --data.help GrammarCorpus,
--trainer.callbacks.help Sparsity"""


def _run(args: list[str]) -> None:
    command = args[0] if args else None
    if command in (None, "-h", "--help"):
        logging.getLogger("lmdyn").info(_USAGE)
        return
    if command == "--version":
        logging.getLogger("lmdyn").info("lmdyn %s", version("lmdyn"))
        return
    # these are not methods of the Trainer, so LightningCLI cannot parse them
    if command == "analyze":
        analyze_command(args[1:])
    elif command == "report":
        report_command(args[1:])
    elif command == "check":
        check_command(args[1:])
    elif command == "inspect":
        inspect_command(args[1:])
    elif command == "prepare":
        prepare_command(args[1:])
    elif command == "fork":
        fork_command(args[1:])
    elif command == "claims":
        claims_command(args[1:])
    elif command == "records":
        records_command(args[1:])
    elif command == "configs":
        configs_command(args[1:])
    elif command == "surprisal":
        surprisal_command(args[1:])
    elif command == "phases":
        phases_command(args[1:])
    elif command not in _OF_TRAINER and not str(command).startswith("-"):
        from lmdyn.analysis.inspection.attributes import did_you_mean  # slow import

        raise ValueError(
            f"unknown command {command!r}{did_you_mean(str(command), _COMMANDS) or ':'} commands are "
            f"{', '.join(_COMMANDS)}"
        )
    elif not set(_OF_TRAINER) & set(args):  # LightningCLI would name the Trainer's commands only
        raise ValueError(
            f"the command comes first: lmdyn COMMAND {command} …; commands are {', '.join(_COMMANDS)}"
        )
    else:
        from lmdyn.cli.fit import LmdynCLI

        LmdynCLI(args)


if __name__ == "__main__":
    main()
