"""Information about a run for observers, and preparation of data for it."""

import logging
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import pandas as pd
from lightning.pytorch.utilities import rank_zero_info
from torch.utils.data import DataLoader

from lmdyn.analysis.statistics.distributed import gather, rank_and_world_size
from lmdyn.callbacks.observing.protocols import PARTS, HasSplits, HasTokenizer, members, offers
from lmdyn.callbacks.training.checkpoint import ScheduledCheckpoint
from lmdyn.callbacks.training.lightning_internals import callbacks_of, datamodule_of, validation_source
from lmdyn.callbacks.training.resume import token_counts_of, tokenizer_of
from lmdyn.callbacks.training.run_folder import run_folder
from lmdyn.runs.checkpoint_files import checkpoint_step
from lmdyn.runs.hub_checkpoints import StoredNames

log = logging.getLogger(__name__)

SAVE_WEIGHTS = "attach a ScheduledCheckpoint (in lmdyn.watch, `checkpoints=True`)"
"""How a run saves the weights that some observers read."""


@dataclass(frozen=True)
class Run:
    """Information about the run that an observer observes.

    Attributes:
        log_dir: the run's folder; observations are written to ``<log_dir>/observations/<name>``.
        tokenizer: the run's tokenizer; None if neither datamodule nor module has one.
        token_counts: for each token id its ``token``, its ``count`` in the training data and, for each Universal
            POS tag, the number of its occurrences with this tag; None if they were not counted.
        datamodule: the run's own datamodule, or another provider of its validation set, the default probe set.
        checkpoints: in replay, all checkpoints of the run by step; None during training.
        checkpoint_folder: folder in which the run saves weights on schedule; None if it saves none.
        stored_names: names of the weights in the checkpoints, if these have Hugging Face's format.
    """

    log_dir: Path
    tokenizer: Any = None
    token_counts: pd.DataFrame | None = None
    datamodule: Any = None
    checkpoints: Mapping[int, Path] | None = None
    checkpoint_folder: Path | None = None
    stored_names: StoredNames | None = None

    @classmethod
    def of(cls, trainer: L.Trainer, module: L.LightningModule) -> "Run":
        """Create the run in which a trainer trains a module."""
        data = datamodule_of(trainer)
        data = validation_source(trainer, module) if data is None else data
        savers = (c for c in callbacks_of(trainer) if isinstance(c, ScheduledCheckpoint) and c.weights_only)
        return cls(
            log_dir=run_folder(trainer),
            tokenizer=tokenizer_of(data, module),
            token_counts=token_counts_of(data),
            datamodule=data,
            checkpoint_folder=next((c.directory(trainer) for c in savers), None),
        )

    def required_tokenizer(self, whose: str) -> Any:
        """Return the tokenizer; raise a ValueError for a run without one."""
        if self.tokenizer is None:
            raise ValueError(
                f"{whose} requires the run's tokenizer: give the datamodule, module or lmdyn.watch a `tokenizer`"
            )
        return self.tokenizer

    @property
    def live(self) -> bool:
        """Whether the run is in training (and not replayed)."""
        return self.checkpoints is None

    def checkpoints_before(self, step: int) -> dict[int, Path]:
        """Return the scheduled checkpoints before ``step``, in order: the same ones in training and in replay."""
        found: Mapping[int, Path] = self.checkpoints or {}
        if self.checkpoint_folder is not None:  # independent of the checkpoints chosen for replay
            steps = {checkpoint_step(p): p for p in self.checkpoint_folder.glob("step=*.ckpt")}
            found = {s: p for s, p in steps.items() if s is not None}
        return {s: found[s] for s in sorted(found) if s < step}


_LONGEST = 200  # bytes; file systems allow 255 for a name


def check_name(name: str) -> None:
    """Raise a ValueError for a name that is not a valid folder name."""
    if not re.fullmatch(r"[\w.\-]+", name) or name in (".", ".."):
        raise ValueError(f"name is {name!r}: expected a folder name of letters, digits, '_', '-' and '.'")
    if (size := len(name.encode())) > _LONGEST:
        raise ValueError(f"name {name[:40]}… has {size} bytes: expected at most {_LONGEST} bytes")


def snake_case(name: str) -> str:
    """Convert a class name to a name for folders and tags.

    Example:
        >>> snake_case("OwnFinal"), snake_case("LSTMCurves")
        ('own_final', 'lstm_curves')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def open_data(data: L.LightningDataModule, run: Run, whose: str, stage: str = "fit") -> None:
    """Prepare the data of an observer's ``probe`` with the run's tokenizer. Every rank must call it.

    Args:
        data: the datamodule.
        run: the run.
        whose: name of the data in messages.
        stage: ``fit`` or ``test``.

    Raises:
        ValueError: if the data takes a tokenizer, but the run has none.
    """
    if offers(data, HasTokenizer):
        data.tokenizer = run.required_tokenizer(whose)
    if rank_and_world_size()[0] == 0:
        data.prepare_data()
    gather(None)  # wait for the files
    data.setup(stage)


def split_loader(data: Any, split: str, whose: str, *, chosen: bool = True) -> Any:
    """Return the loader of a split of a datamodule (or module with such hooks); a loader is returned unchanged.

    Args:
        data: datamodule, module or loader.
        split: ``train``, ``validation`` or ``test``.
        whose: the observer, for messages.
        chosen: whether ``split`` is the observer's setting, and not another split that it requires.

    Raises:
        ValueError: if the data has no such split, or several loaders for it.
    """
    if isinstance(data, L.LightningDataModule | L.LightningModule):
        splits = data.splits if offers(data, HasSplits) else PARTS
        there = [s for s, part in PARTS.items() if s in splits and offers(data, part)]
        if split not in there:
            raise ValueError(
                f"{whose}: {type(data).__name__} has no {split} data (splits: {', '.join(there) or 'none'}): pass "
                f"{'another `split:` or ' if chosen else ''}a `probe:` to the observer"
            )
        (hook,) = members(PARTS[split])
        loader = getattr(data, hook)()
        source = f" from {type(data).__name__}.{hook}()"
        several = isinstance(loader, list | tuple)
    else:
        loader, source = data, ""
        parts = data if isinstance(data, list | tuple) else ()
        several = bool(parts) and all(isinstance(part, DataLoader) for part in parts)
    if not several:
        return loader
    if len(loader) != 1:
        raise ValueError(
            f"{whose}: expected one loader{source}, got {len(loader)}: pass one loader to the observer as `probe:`"
        )
    return loader[0]


_SAID: defaultdict[str, set[str]] = defaultdict(set)
"""Messages reported since an observer last read its data, by observer."""


def report(whose: str, message: str) -> None:
    """Report a decision for an observer to the user, once, in Lightning's log, which is shown by default."""
    if message not in _SAID[whose]:
        _SAID[whose].add(message)
        rank_zero_info(f"{whose}: {message}")


def warn(whose: str, message: str) -> None:
    """Warn for an observer, once for all ranks."""
    if rank_and_world_size()[0] == 0:
        log.warning("%s: %s", whose, message)


def reported(whose: str) -> list[str]:
    """Return the messages reported for an observer since it was last attached."""
    return sorted(_SAID[whose])


def forget_reported(whose: str) -> None:
    """Forget the messages of an observer, so that decisions for another run are reported again."""
    _SAID.pop(whose, None)
