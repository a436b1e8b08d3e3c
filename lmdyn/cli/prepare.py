"""Preparing a run's data ahead of it: text is encoded into the cache, the tokenizer saved for others to share."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["prepare_command"]

log = logging.getLogger(__name__)


def prepare_command(args: Sequence[str]) -> None:
    """``lmdyn prepare --config FILE [--data.… VALUE] [--tokenizer DIR]``.

    Raises:
        ValueError: ``--tokenizer`` for data without a tokenizer.
    """
    from lmdyn.cli.fit import LmdynCLI

    rest = list(args)
    if {"-h", "--help"} & set(rest) or not rest:
        sys.stdout.write(
            "usage: lmdyn prepare --config FILE [--data.… VALUE] [--tokenizer DIR]\n\n"
            "Encodes the text of a configuration into the cache, so that a run on a GPU does not wait for it.\n"
            "--tokenizer DIR saves its tokenizer, for models that are to be compared token by token.\n"
        )
        return
    folder = _take(rest, "--tokenizer")
    cli = LmdynCLI(rest, run=False)
    cli.datamodule.prepare_data()
    cli.datamodule.setup("fit")
    log.info("data prepared")
    if folder is not None:
        tokenizer: Any = getattr(cli.datamodule, "tokenizer", None)
        if tokenizer is None:
            raise ValueError(f"{type(cli.datamodule).__name__} has no tokenizer: leave --tokenizer out")
        tokenizer.save_pretrained(str(Path(folder)))
        log.info("tokenizer: %s (%d tokens)", folder, len(tokenizer))


def _take(args: list[str], option: str) -> str | None:
    """The value of an option of ours, taken out of the arguments that LightningCLI parses."""
    for i, arg in enumerate(args):
        if arg == option and (i + 1 == len(args) or args[i + 1].startswith("--")):
            raise ValueError(f"{option} needs a folder: {option} DIR")
        if arg == option:
            value = args[i + 1]
            del args[i : i + 2]
            return value
        if arg.startswith(f"{option}="):
            del args[i]
            return arg.partition("=")[2]
    return None
