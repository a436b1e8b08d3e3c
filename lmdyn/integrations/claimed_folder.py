"""The folder of a watched run: one process writes it, and no later step is overwritten."""

import logging
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

from lmdyn.runs.checkpoint_files import checkpoint_step
from lmdyn.runs.folder_lock import FolderLock

log = logging.getLogger(__name__)


def claim_folder(lock: FolderLock, folder: Path, step: int | None) -> str | None:
    """Lock the folder and move later steps of a continued run aside; return why not, if that is refused."""
    try:
        lock.acquire()
    except ValueError as error:
        if f"process {os.getpid()} on" in str(error):
            return f"{folder} is watched by this process: call close() of the other watcher first"
        return str(error)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"{folder} cannot be a folder ({error.strerror}): choose another one"
    files = [*folder.glob("observations/*/*.parquet"), *folder.glob("checkpoints/step=*.ckpt")]
    steps = {p: int(p.stem) if p.stem.isdecimal() else checkpoint_step(p) for p in files}
    later = sorted(p for p, at in steps.items() if at is not None and at > (step or 0))
    if later and step is None:
        return (
            f"{folder} contains {later[-1].relative_to(folder)}, later than step 0: choose another folder, or, "
            "if the training continues, say at which step the model stands: lmdyn.watch(…, step=…)"
        )
    if later:
        aside = folder / "later_steps" / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        for path in later:
            to = aside / path.relative_to(folder)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, to)
        log.warning("lmdyn moved %d files of steps after %d to %s", len(later), step, aside)
    return None
