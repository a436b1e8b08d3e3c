"""Preparing a run's data ahead of it: text is encoded into the cache, the tokenizer saved for others to share."""

import argparse
import logging
from collections.abc import Sequence
from typing import Any

__all__ = ["prepare_command"]

log = logging.getLogger(__name__)


def prepare_command(args: Sequence[str]) -> None:
    """``lmdyn prepare --config FILE [--data.… VALUE] [--tokenizer DIR]``.

    Raises:
        ValueError: ``--tokenizer`` without a folder, or for data without a tokenizer.
    """
    from lmdyn.cli.fit import LmdynCLI

    parser = argparse.ArgumentParser(
        "lmdyn prepare",
        usage="lmdyn prepare --config FILE [--data.… VALUE] [--tokenizer DIR]",
        description="Encodes the text of a configuration into the cache, so that a run on a GPU does not wait for it.",
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
    cli = LmdynCLI(rest, run=False)
    cli.datamodule.prepare_data()
    cli.datamodule.setup("fit")
    log.info("data prepared")
    if options.tokenizer is not None:
        tokenizer: Any = getattr(cli.datamodule, "tokenizer", None)
        if tokenizer is None:
            raise ValueError(f"{type(cli.datamodule).__name__} has no tokenizer: leave --tokenizer out")
        tokenizer.save_pretrained(options.tokenizer)
        log.info("tokenizer: %s (%d tokens)", options.tokenizer, len(tokenizer))
