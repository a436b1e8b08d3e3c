"""Observation of any training loop: ``lmdyn.watch``."""

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

import lightning as L
import pandas as pd
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info
from torch import nn

from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.inspection.forward import device_of, is_sharded
from lmdyn.analysis.statistics.distributed import gather, rank_and_world_size
from lmdyn.callbacks.observing.loggers import where_curves_are
from lmdyn.callbacks.observing.observer import NOT_SHARDED, Observer
from lmdyn.callbacks.observing.probe import text_digest
from lmdyn.callbacks.observing.recording import Recording, check_names, continue_after
from lmdyn.callbacks.observing.run import Run, open_data
from lmdyn.callbacks.training.modes import refuse_mode, unwrapped
from lmdyn.callbacks.training.resume import save_tokenizer
from lmdyn.integrations.claimed_folder import claim_folder
from lmdyn.integrations.loop_data import counted_tokens, data_of, named_counts
from lmdyn.integrations.writers import loggers_of
from lmdyn.runs.atomic_files import write_file
from lmdyn.runs.checkpoint_files import COUNTED
from lmdyn.runs.folder_lock import FolderLock
from lmdyn.runs.provenance import begin_session, end_session
from lmdyn.runs.run_identity import tell_changes, write_identity
from lmdyn.runs.schedule import Progress, Steps

_WATCHING: WeakSet[Observer] = WeakSet()
"""Observers of watchers that are not closed: each writes to one folder."""


class Watcher:
    """Observes a model in any training loop; :func:`watch` creates it, and every rank must call its methods.

    Args:
        model: the trained module, unwrapped.
        observers: observers, attached to the run.
        recording: records their observations.
        folder: the run's folder.
        start: step at which the model stands.
        checkpoints: steps of checkpoints; None for none.
        lock: of the folder, held by rank 0.

    Attributes:
        closed: whether it was closed or released.
    """

    def __init__(
        self,
        model: nn.Module,
        observers: Sequence[Observer],
        recording: Recording,
        folder: Path,
        start: int,
        checkpoints: Steps | None,
        lock: FolderLock,
    ) -> None:
        self.model, self.observers, self.folder = model, list(observers), folder
        self._recording, self._checkpoints = recording, checkpoints
        self._followers: list[Any] = [o for o in self.observers if o.follows_updates]
        self._at = Progress(start)
        self._saved: int | None = None
        self.closed = False
        self._writes = rank_and_world_size()[0] == 0
        self._lock = lock

    def _begin(self, *, continued: bool) -> None:
        """Record the state at which the model stands, unless a continued run has recorded it."""
        if self._writes:
            words = [Path(sys.argv[0]).name, *sys.argv[1:]]
            self._session = begin_session(self.folder, words, str(device_of(self.model)))
        for observer in self.observers if continued else ():
            if gather(self._writes and observer.store.has(self._at.step))[0]:  # rank 0 sees the folder
                continue_after(observer, self._at.step, self._recording.loggers, writes=self._writes)
        for follower in self._followers:
            follower.begin_anew()
            follower.follow(self.model, self._at.step)
        self._record(lambda schedule: self._at.step in schedule)

    def step(
        self,
        step: int,
        *,
        tokens: int | None = None,
        words: int | None = None,
        learning_rate: float | None = None,
        epoch_end: bool = False,
    ) -> None:
        """Note that ``step`` optimizer updates are done; observe if a schedule contains it, or passed a step of it.

        Args:
            step: optimizer updates done. It may repeat, as between the batches of one update, but not decrease.
            tokens: tokens trained on so far, if known.
            words: words trained on so far, if known: the column ``words_seen`` of observations.
            learning_rate: the current one, if known.
            epoch_end: whether an epoch ends here.

        Raises:
            ValueError: if ``step`` is smaller than before, or the watcher is closed.
        """
        earlier, before, step = self._at, self._at.step, whole(step)
        if step == before and not epoch_end:
            return
        if step < before or self.closed:
            raise ValueError(
                f"step {step} comes after close(): create another watcher with lmdyn.watch(…, step={before})"
                if self.closed
                else f"step {step} comes after step {before}: expected the number of optimizer updates so far"
            )
        at = self._at = Progress(step, tokens, learning_rate, words)
        for follower in self._followers:
            follower.follow(self.model, step)
        if step >= self._next or epoch_end or any(s.passed(earlier, at) for s in self._of_amounts):
            self._record(lambda s: s.passed(earlier, at) or (epoch_end and s.epochs))

    def close(self) -> None:
        """Observe the last step if it is scheduled, draw the figures, release the folder; may be repeated."""
        if self.closed:
            return
        try:
            self._record(lambda schedule: schedule.last)
        finally:
            self.release()

    def state_dict(self) -> dict[str, Any]:
        """Return what observers have summed since their last observations, for exact resuming.

        Only :class:`~lmdyn.callbacks.LossChangeAllocation` with ``allocation="path"`` has such sums.
        """
        return {o.name: o.path_state(self.model, self._at.step) for o in self._followers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the sums of :meth:`state_dict`; call it after :func:`watch` with the model at this step.

        Raises:
            ValueError: if an observer that follows each update is not in ``state``.
        """
        for follower in self._followers:
            if follower.name not in state:
                raise ValueError(f"the state has no {follower.name}: load a state of the same observers")
            if follower.seen_step != self._at.step:  # an observation begins new sums
                follower.begin_anew()
                follower.load_state_dict(state[follower.name])
                follower.follow(self.model, self._at.step)

    def release(self) -> None:
        """Draw the figures and release the folder, without an observation; repeated calls do nothing."""
        if self.closed:
            return
        self.closed = True
        _WATCHING.difference_update(self.observers)
        for observer in self.observers:
            self._recording.finish(observer)
        for logger in self._recording.loggers:
            logger.finalize("success")
            if isinstance(logger, TensorBoardLogger):
                rank_zero_info(f"to see the curves: {where_curves_are(logger)}")
        command = [sys.executable, "-m", "lmdyn.cli", "report", str(self.folder)]
        rank_zero_info(f"to write the report: {shlex.join(command)}")
        if self._writes:
            parameters = sum(p.numel() for p in self.model.parameters())
            end_session(self.folder, self._session, step=self._at.step, parameters=parameters)
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None:
            self.close()
        self.release()  # the state after an error is no end of training

    def _record(self, due: Callable[[Steps], bool]) -> None:
        """Observe and save what is due, and note the next step at which anything is."""
        at, saving = self._at, self._checkpoints
        self._recording.observe(self.observers, self.model, at.step, lambda: at, lambda o: due(o.schedule))
        if saving is not None and due(saving) and self._saved != at.step and self._writes:
            self._saved = at.step
            self._save()
        schedules = [o.schedule for o in self.observers] + ([] if saving is None else [saving])
        self._of_amounts = [s for s in schedules if s.amounts]
        self._next = min((s.following(at.step) for s in schedules), default=float("inf"))

    def _save(self) -> None:
        """Write the weights, in the form of Lightning's checkpoints."""
        path = self.folder / "checkpoints" / f"step={self._at.step:09d}.ckpt"
        content = {
            "state_dict": self.model.state_dict(),
            "global_step": self._at.step,
            "lmdyn": {**asdict(self._at), **COUNTED, "tokenizer": "tokenizer"},
        }
        path.parent.mkdir(exist_ok=True)
        write_file(path, lambda unfinished: torch.save(content, unfinished))


def whole(step: Any) -> int:
    """Return a number of updates as Python's integer.

    Raises:
        ValueError: for anything but a whole number from 0.
    """
    with suppress(TypeError, ValueError, OverflowError):
        if int(step) == step >= 0:
            return int(step)
    raise ValueError(f"step is {step!r}: expected the number of optimizer updates, a whole number from 0")


def watch(
    model: nn.Module,
    observers: Iterable[Observer],
    *,
    probe: Any,
    folder: str | Path,
    tokenizer: Any = None,
    schedule: Steps | None = None,
    seed: int | None = None,
    checkpoints: bool | Steps = False,
    step: int | None = None,
    train: Any = None,
    token_counts: pd.DataFrame | Mapping[int, int] | None = None,
    logger: Any = "tensorboard",
    optimizer: torch.optim.Optimizer | None = None,
) -> Watcher:
    """Attach observers to a model that any loop trains; the training itself does not change.

    Observations, TensorBoard's curves and checkpoints are written to ``folder``, which ``lmdyn report`` reads. The
    state at which the model stands is observed at once.

    Args:
        model: the model; wrappers of ``DistributedDataParallel`` and Accelerate are removed.
        observers: observers, with the arguments that they have under Lightning.
        probe: batches to observe: a list of batches, a DataLoader, a Dataset, whose rows are stacked, or a
            LightningDataModule, whose validation data it is.
        folder: folder of the run, created if it does not exist.
        tokenizer: the tokenizer of the model, one of transformers; it is saved with the run.
        schedule: schedule of each observer that has none of its own, and of ``checkpoints=True``.
        seed: seed of the training, for comparison of runs; by default the one set by Lightning's ``seed_everything``.
        checkpoints: whether to write weights to ``folder/checkpoints``, or the steps at which to write them.
        step: optimizer updates that the model has behind it, for a continued run: later observations and checkpoints
            in the folder are moved to ``later_steps``. By default 0, and such a folder is refused.
        train: training batches or texts, counted once for observers that need the frequencies of tokens.
        token_counts: these frequencies, by token id, instead of ``train``.
        logger: ``tensorboard``; an object with ``add_scalar``, such as a ``SummaryWriter``; a run of Weights & Biases
            or trackio (an object with ``log``); a logger of Lightning; None.
        optimizer: the optimizer, to note it with the run.

    Returns:
        A watcher: call its :meth:`~Watcher.step` after each update and :meth:`~Watcher.close` at the end, or use it as
        a context.

    Raises:
        ValueError: if two observers have one name, if the folder holds later steps or is in use, if an observer does
            not support sharded weights, or if an observer cannot read the model.

    Example:
        >>> import tempfile
        >>> from lmdyn.callbacks import LearningCurves
        >>> model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10))
        >>> ids = torch.arange(8).view(2, 4)
        >>> probe = [{"input_ids": ids, "labels": ids}]
        >>> folder = Path(tempfile.mkdtemp()) / "run"
        >>> with watch(model, [LearningCurves(labels="next")], probe=probe, folder=folder, logger=None) as watcher:
        ...     for step in range(1, 3):
        ...         watcher.step(step)  # after optimizer.step()
        >>> sorted(path.name for path in (folder / "observations" / "learning_curves").glob("*.parquet"))
        ['000000000.parquet', '000000002.parquet']
    """
    model, folder = unwrapped(model), Path(folder)
    alone: list[Any] = [observers]
    observers = alone if isinstance(observers, Observer | type | str) else list(observers)
    if not isinstance(schedule, Steps | None):
        raise ValueError(f"schedule is {schedule!r}: expected steps, such as Steps(every=100)")
    step = None if step is None else whole(step)
    needed = ("__len__", "all_special_ids", "convert_ids_to_tokens")
    lacking = [name for name in needed if not hasattr(tokenizer, name)]
    if tokenizer is not None and lacking:
        raise ValueError(
            f"tokenizer has type {type(tokenizer).__name__}, which has no {', '.join(lacking)}: expected a tokenizer "
            "of transformers, such as PreTrainedTokenizerFast(tokenizer_object=…), or None to name tokens by ids"
        )
    check_names(observers)
    if watched := [o.name for o in observers if o in _WATCHING]:
        raise ValueError(
            f"another watcher uses {', '.join(watched)}: create new observers, or call close() of the other watcher"
        )
    refuse_mode(model)
    if is_sharded(model) and (untested := [o.name for o in observers if not o.sharded]):
        raise ValueError(
            f"{', '.join(untested)}: {NOT_SHARDED}: omit these observers, and observe checkpoints"
        )
    if is_sharded(model) and checkpoints:
        raise ValueError(
            "watch saves no sharded weights: omit `checkpoints`, and save the weights in your loop"
        )
    rank = rank_and_world_size()[0]
    with ExitStack() as undo:
        lock = FolderLock(folder.resolve())
        refused = claim_folder(lock, folder, step) if rank == 0 else None
        undo.callback(lock.release)
        if reason := gather(refused)[0]:
            raise ValueError(reason)
        for observer in observers:
            if observer.arguments["schedule"] == Steps():  # it may have that of an earlier watcher
                observer.schedule = schedule or Steps()
        saving = (schedule or Steps(per_decade=4)) if checkpoints is True else checkpoints or None
        counts = named_counts(token_counts, tokenizer) if token_counts is not None else None
        if counts is None and train is not None:
            with observing(model):  # a loader that shuffles draws from the training's generators
                counts = gather(counted_tokens(train, tokenizer))[0]  # of ranks that read parts, a part
        run = Run(
            log_dir=folder,
            tokenizer=tokenizer,
            token_counts=counts,
            datamodule=data_of(probe, train),
            checkpoint_folder=None if saving is None else folder / "checkpoints",
        )
        if isinstance(probe, L.LightningDataModule):  # which a Trainer would prepare
            open_data(probe, run, "the probe set")
        for observer in observers:
            observer.seen_step = None
            observer.attach(run)
            observer.ensure_bound(model)
        if rank == 0:
            save_tokenizer(folder / "tokenizer", tokenizer, counts)
            probed = text_digest(next((o.probe_set for o in observers if o.reads_data), None), model)
            if step is not None:
                tell_changes(folder, model, probed)
            write_identity(
                folder, model, tokenizer=tokenizer, seed=seed, data={"probe": probe, "train": train}, text=probed,
                optimizer=optimizer, keep=step is not None,
            )  # fmt: skip
        loggers = loggers_of(logger, folder, step) if rank == 0 else []
        watcher = Watcher(model, observers, Recording(loggers), folder, step or 0, saving, lock)
        watcher._begin(continued=step is not None)
        undo.pop_all()
        _WATCHING.update(observers)
    return watcher
