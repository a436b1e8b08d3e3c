"""``python -m lmdyn.cli`` and ``lmdyn``: dispatch the command line to its command."""

import gc
import importlib
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib.metadata import version

from lmdyn.cli.parsing.errors import of_users_code
from lmdyn.cli.parsing.shipped import with_shipped
from lmdyn.cli.trust.own_modules import find_modules


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
    try:
        find_modules(args)
        _run(with_shipped(args))
    except KeyboardInterrupt:
        if os.environ.get("LMDYN_TRACEBACK"):
            raise
        logger.error("Ctrl-C stopped the command")
        raise SystemExit(128 + signal.SIGINT) from None
    except Exception as error:
        if os.environ.get("LMDYN_TRACEBACK") or not _of_configuration(error):
            raise
        while isinstance(error.__cause__, (ValueError, TypeError)) and _of_jsonargparse(error):
            error = error.__cause__  # jsonargparse wraps a class's error; lmdyn's wrappers add the place
        said = str(error).replace("NoneType", "null")
        logger.error("error: %s\n(LMDYN_TRACEBACK=1 shows the traceback)", said)
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


_COMMANDS = {
    "inspect": "see which observers run on a model     inspect MODEL [--data DATA] [--write my.yaml]",
    "check": "find known errors before training       check --config FILE [--replay OVERLAY]",
    "fit": "train with observers                    fit --config FILE [--config OVERLAY] [--ckpt_path last]",
    "validate": "evaluate a checkpoint                   validate --config FILE --ckpt_path CHECKPOINT",
    "test": "evaluate a checkpoint on test data      test --config FILE --ckpt_path CHECKPOINT",
    "predict": "collect predictions of a checkpoint     predict --config FILE --ckpt_path CHECKPOINT",
    "prepare": "encode the data before a run            prepare --config FILE [--tokenizer DIR]",
    "analyze": "replay observers over checkpoints       analyze RUN [--observe NAME …] [--config FILE] [--shard i/n]",
    "babylm": "evaluate as the BabyLM challenge does   babylm MODEL [--data evaluation_data]",
    "report": "draw the figures of a run               report RUN",
    "phases": "find change points of curves, in order  phases RUN … [--select PATTERN …] [--page DIR] [--map]",
    "fork": "continue a run with other settings      fork RUN --step K [--set KEY=VALUE …] [--data-seed N]",
    "claims": "test a publication's claims on runs     claims STUDY RUN … [--markdown FILE] [--out DIR]",
    "configs": "list or copy shipped configurations     configs [STUDY] [--to DIR]",
    "records": "store what claims need from runs        records RUN … --out docs/records/STUDY/PROFILE",
}
_REMOVED = {
    "surprisal": "attach the observer Surprisals, or call lmdyn.analysis.surprisals(module, tokenizer, texts) and "
    "lmdyn.analysis.word_surprisals(pieces, texts)"
}
_OF_TRAINER = {"fit", "validate", "test", "predict"}
_MEASURE_MEMORY = {"inspect", "check"}
_OF_CLAIMS = {"claims", "records", "phases"}


def _run(args: list[str]) -> None:
    command = args[0] if args else None
    if command in (None, "-h", "--help"):
        lines = "\n".join(f"{name:<11}{about}" for name, about in _COMMANDS.items())
        logging.getLogger("lmdyn").info(
            "usage: lmdyn COMMAND …\n\n%s\n\nlmdyn COMMAND --help shows all options. To see the arguments of a class:\n"
            "lmdyn fit --model.help LSTMLanguageModel, --data.help GrammarCorpus or --trainer.callbacks.help Sparsity",
            lines,
        )
    elif command == "--version":
        logging.getLogger("lmdyn").info("lmdyn %s", version("lmdyn"))
    elif command in _OF_TRAINER or (str(command).startswith("-") and _OF_TRAINER & set(args)):
        _import_training()
        from lmdyn.cli.fit import LmdynCLI

        LmdynCLI(args)
    elif command in _COMMANDS:
        if command in _MEASURE_MEMORY:  # torch's profiler writes to the terminal otherwise
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        from lmdyn.cli.command_parser import run_command

        module = importlib.import_module(
            "lmdyn.claims.claim_commands" if command in _OF_CLAIMS else "lmdyn.cli.commands"
        )
        run_command(str(command), getattr(module, str(command)), args[1:])
    elif str(command).startswith("-"):  # LightningCLI would name the Trainer's commands only
        raise ValueError(
            f"{command} must follow the command: lmdyn COMMAND {command} …; commands are {', '.join(_COMMANDS)}"
        )
    elif command in _REMOVED:
        raise ValueError(f"the command {command} was removed: {_REMOVED[command]}")
    else:
        from lmdyn.analysis.inspection.attributes import did_you_mean  # slow import

        raise ValueError(
            f"unknown command {command!r}{did_you_mean(str(command), list(_COMMANDS)) or ':'} commands are "
            f"{', '.join(_COMMANDS)}"
        )


def _import_training() -> None:
    """Import what ``fit`` needs without looking for garbage, a third of the CPU time: these objects stay for good."""
    if "lmdyn.cli.fit" not in sys.modules:
        gc.disable()
        importlib.import_module("lmdyn.cli.fit")
        gc.freeze()
        gc.enable()


if __name__ == "__main__":
    main()
