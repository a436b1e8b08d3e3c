"""Preparing the data before a run: text is encoded into the cache, and the tokenizer saved for other runs."""

import logging
from collections.abc import Sequence
from pathlib import Path

from lmdyn.analysis.inspection.attributes import read_attribute
from lmdyn.cli.fit import ONE_PROCESS, LmdynCLI, as_option
from lmdyn.runs.atomic_files import remove_links

__all__ = ["prepare"]

log = logging.getLogger(__name__)


def prepare(args: Sequence[str], tokenizer_folder: str | None = None) -> None:
    """Prepare the data of a configuration.

    Args:
        args: arguments as for ``fit``.
        tokenizer_folder: folder in which the tokenizer is saved, for models that are compared token by token.

    Raises:
        ValueError: if a folder is given but the data has no tokenizer, or if the folder is a file.
    """
    if tokenizer_folder is not None and Path(tokenizer_folder).is_file():
        raise ValueError(f"--tokenizer {tokenizer_folder} is a file: expected a folder or a new name")
    cli = LmdynCLI([*args, as_option({"trainer": {**ONE_PROCESS, "logger": False}})], run=False)
    cli.datamodule.prepare_data()
    cli.datamodule.setup("fit")
    log.info("data prepared")
    if tokenizer_folder is not None:
        tokenizer = read_attribute(cli.datamodule, "tokenizer")
        if tokenizer is None:
            raise ValueError(f"{type(cli.datamodule).__name__} has no tokenizer: omit --tokenizer")
        remove_links(Path(tokenizer_folder))
        tokenizer.save_pretrained(tokenizer_folder)
        log.info("tokenizer: %s (%d tokens)", tokenizer_folder, len(tokenizer))
