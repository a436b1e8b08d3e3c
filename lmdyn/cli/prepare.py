"""Preparing a run's data ahead of it: text is encoded into the cache, the tokenizer saved for others to share."""

import logging
from collections.abc import Sequence
from pathlib import Path

from lmdyn.analysis.inspection.attributes import read_attribute
from lmdyn.cli.fit import LmdynCLI

__all__ = ["prepare"]

log = logging.getLogger(__name__)


def prepare(args: Sequence[str], tokenizer_folder: str | None = None) -> None:
    """Prepare the data of a configuration.

    Args:
        args: as of ``fit``.
        tokenizer_folder: where to save the tokenizer, for models that are to be compared token by token.

    Raises:
        ValueError: a folder for data without a tokenizer.
    """
    if tokenizer_folder is not None and Path(tokenizer_folder).is_file():
        raise ValueError(f"--tokenizer {tokenizer_folder} is a file: expected a folder, or a new name")
    cli = LmdynCLI(args, run=False)
    cli.datamodule.prepare_data()
    cli.datamodule.setup("fit")
    log.info("data prepared")
    if tokenizer_folder is not None:
        tokenizer = read_attribute(cli.datamodule, "tokenizer")
        if tokenizer is None:
            raise ValueError(f"{type(cli.datamodule).__name__} has no tokenizer: leave --tokenizer out")
        tokenizer.save_pretrained(tokenizer_folder)
        log.info("tokenizer: %s (%d tokens)", tokenizer_folder, len(tokenizer))
