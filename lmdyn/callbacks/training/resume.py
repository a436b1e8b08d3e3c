"""State for resuming and replay in addition to the weights: tokens seen, random states, recurrent state, tokenizer."""

import logging
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import lightning as L
import numpy as np
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from transformers import AutoTokenizer

from lmdyn.analysis.inspection.attributes import has_attribute, read_attribute
from lmdyn.analysis.statistics.distributed import all_reduce_sum, gather, rank_and_world_size
from lmdyn.callbacks.training.lightning_internals import (
    State,
    callbacks_of,
    continue_events,
    datamodule_of,
    recount_batches,
    restore_loaders,
    settle_loops,
    write_out,
)
from lmdyn.callbacks.training.run_folder import recorded_folder, run_folder
from lmdyn.callbacks.training.updates import UpdateCount, updates
from lmdyn.runs.atomic_files import remove_links, remove_unfinished, write_file
from lmdyn.runs.checkpoint_files import COUNTED
from lmdyn.runs.schedule import Progress, Steps

log = logging.getLogger(__name__)


class RunState(UpdateCount):
    """Make resuming exact, count updates and tokens, and save the tokenizer with the run. The CLI always attaches it.

    Full checkpoints contain the state of every random number generator and the module's carried recurrent state
    (``module.resume_state()``), one entry per rank; both are restored in the first ``on_train_batch_start``. Loaders
    continue within an epoch if they have ``state_dict`` and ``load_state_dict``, as lmdyn's; others begin it again.
    The tokenizer of the datamodule (or module) and its training counts are saved in ``<log_dir>/tokenizer/``, so that
    replay requires neither the training corpus nor its settings.

    A run can resume on another number of ranks if its training loaders declare that their batches are parts of one
    batch over all ranks (the entry ``global_batch`` of their states; lmdyn's do): it then sees the same samples in the
    same order. The size of updates must not change; the loaders raise an error otherwise. The recurrent state is
    redistributed (``module.redistribute_resume_state(states, rank, world_size)``). Rank r continues the generators of
    rank r modulo the former number: dropout, and other random numbers of a module, are different then.

    Raises:
        ValueError: if a checkpoint of another number of ranks is resumed, but data or module cannot be redistributed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._forget()
        self._starts: Tensor | None = None  # millionths of a word that each token begins; None: not counted
        self._restored: State | None = None
        self._saved = False  # whether the last batch was followed by a full checkpoint
        self._loaders: list[State] = []

    def _forget(self) -> None:
        self._tokens: Tensor | int = 0  # of this rank, since the start or since resuming
        self._base = 0  # of all ranks, before resuming
        self._words: Tensor | int = 0  # as tokens, in millionths
        self._words_base = 0
        self._reached = (Progress(0, 0, None, 0), Progress(0, 0, None, 0))

    @property
    def tokens(self) -> int:
        """Labelled tokens trained on so far, over all ranks (every rank must call it)."""
        return self._base + int(all_reduce_sum(torch.as_tensor(self._tokens).clone()))

    @property
    def words(self) -> int | None:
        """Words of the training text read so far, over all ranks (every rank must call it); None: not counted.

        A token counts as the share of its occurrences in the training text that begin a word.
        """
        if self._starts is None:
            return None
        return self._words_base + int(all_reduce_sum(torch.as_tensor(self._words).clone())) // 10**6

    def last_update(self, trainer: L.Trainer) -> tuple[Progress, Progress]:
        """Return the progress before and after the last update. Every rank must call it after each update."""
        if self.updates(trainer) != self._reached[1].step:
            self._reached = self._reached[1], progress(trainer)
        return self._reached

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Reset the state of a previous fit; save the tokenizer with the run."""
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        self._restored = None
        if trainer.global_step == 0:  # a Trainer that fits again continues its step count, and so does this
            self._forget()
        self._starts = _word_starts(trainer)
        folder = run_folder(trainer)  # a broadcast: every rank must call it
        if trainer.is_global_zero:
            data = datamodule_of(trainer)
            save_tokenizer(folder / "tokenizer", tokenizer_of(data, pl_module), token_counts_of(data))

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore the loaders' positions at the end of an epoch; Lightning restores those within one."""
        if self._restored is not None and self._loaders and at_epoch_start(trainer):
            restore_loaders(trainer, self._loaders)
        self._loaders = []

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """After resuming, continue with the random states and the recurrent state of the checkpoint; count tokens."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if self._saved:  # metrics of the batch, or the epoch, that are logged after the checkpoint
            write_out(trainer.loggers)
            self._saved = False
        if self._restored is not None:
            ranks = self._restored["ranks"]
            rank, world_size = rank_and_world_size()
            self._restored = None
            _set_random_state(ranks[rank % len(ranks)]["random"])
            if ranks[0]["module"] is not None:
                states = [state["module"] for state in ranks]
                module = cast(Any, pl_module)
                same = len(ranks) == world_size
                module.load_resume_state(
                    states[rank] if same else module.redistribute_resume_state(states, rank, world_size)
                )
        labels = batch.get("labels") if isinstance(batch, dict) else None
        if isinstance(labels, Tensor):  # counted on the device, without waiting for it
            self._tokens = self._tokens + (labels != -100).sum()
        if self._starts is not None:
            self._starts = self._starts.to(batch["input_ids"].device)
            ids = batch["input_ids"] if labels is None else labels.where(labels != -100, batch["input_ids"])
            self._words = self._words + self._starts[ids].sum()  # labels, since inputs may be masked

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: State) -> None:
        """Add the states of all ranks to a full checkpoint (Lightning skips this hook for weights only)."""
        write_out(trainer.loggers)  # a resumed run does not repeat what was logged up to here
        self._saved = True
        module_state = (
            cast(Any, pl_module).resume_state() if has_attribute(pl_module, "resume_state") else None
        )
        ranks = gather({"random": _random_state(), "module": module_state})
        settle_loops(trainer, checkpoint["loops"]["fit_loop"])
        checkpoint["lmdyn"] = {
            **about_checkpoint(trainer),
            **recorded_folder(trainer),
            "ranks": ranks,
            "accumulate_grad_batches": trainer.accumulate_grad_batches,
            "reached": [asdict(at) for at in self._reached],
        }

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: State) -> None:
        """Store the state to restore at the first batch."""
        if trainer.state.fn != TrainerFn.FITTING:  # evaluation requires weights only, on any number of ranks
            return
        super().on_load_checkpoint(trainer, pl_module, checkpoint)
        state = checkpoint.get("lmdyn") or {}
        for logger in trainer.loggers:
            continue_events(logger, self.updates(trainer))
        self._tokens, self._base = 0, state.get("tokens") or 0
        words = state.get("words")
        if self._starts is not None and words is None:
            raise ValueError(
                "the schedule counts words, but this checkpoint has no number of words: resume from another "
                "checkpoint, or schedule steps or tokens"
            )
        self._words, self._words_base = 0, words or 0
        # what was reached is not due again
        now = asdict(Progress(self.updates(trainer), self._base, None, words))
        before, after = state.get("reached") or (now, now)
        self._reached = Progress(**before), Progress(**after)
        if "ranks" not in state:
            log.warning(
                "the checkpoint was saved without RunState, so resuming is inexact: add RunState() to new runs"
            )
            return
        fit_loop = checkpoint["loops"]["fit_loop"]
        self._loaders = fit_loop["state_dict"].get("combined_loader", [])
        divided = [s.get("global_batch") if isinstance(s, dict) else None for s in self._loaders]
        if len(state["ranks"]) != rank_and_world_size()[1]:
            _check_ranks(state["ranks"], divided, pl_module)
        accumulated = state.get("accumulate_grad_batches")
        # the number of batches changes only with a loader that accumulated with the trainer
        if divided and divided[0] is not None and divided[0]["accumulated"] == accumulated:
            recount_batches(fit_loop, accumulated, trainer.accumulate_grad_batches)
        self._restored = state


def _check_ranks(ranks: Sequence[State], divided: Sequence[State | None], module: L.LightningModule) -> None:
    """Raise an error if data or module cannot be redistributed over another number of ranks.

    Args:
        ranks: states of the ranks.
        divided: division of the global batch by each training loader; None if it declares none.
        module: the trained module.
    """
    now = rank_and_world_size()[1]
    before = f"the checkpoint has world size {len(ranks)}, but this run has world size {now}. "
    if not divided or None in divided:
        raise ValueError(
            f"{before}The training data, or a checkpoint from before lmdyn 0.1, does not declare how ranks divide the "
            f"batches: use world size {len(ranks)}, or start a new run from the checkpoint's weights"
        )
    if ranks[0]["module"] is not None and not has_attribute(module, "redistribute_resume_state"):
        raise ValueError(
            f"{before}Use world size {len(ranks)}, or add `redistribute_resume_state(states, rank, world_size)` to "
            f"{type(module).__name__}, which has a `resume_state`"
        )


def at_epoch_start(trainer: L.Trainer) -> bool:
    """Return, in ``on_train_start``, whether no batch of the current epoch has been trained on."""
    return bool(trainer.fit_loop.epoch_loop.batch_progress.current.ready == 0)


def progress(trainer: L.Trainer) -> Progress:
    """Return step, tokens and learning rate of the training. Every rank must call it."""
    counter = next((c for c in callbacks_of(trainer) if isinstance(c, RunState)), None)
    rates = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]
    return Progress(
        step=updates(trainer),
        tokens=None if counter is None else counter.tokens,
        learning_rate=float(rates[0]) if rates else None,
        words=None if counter is None else counter.words,
    )


def is_due(trainer: L.Trainer, schedule: Steps) -> bool:
    """Return whether the last update reached a step or an amount of a schedule. Every rank must call it.

    For a schedule with amounts, this reads the counts from the device after each update.

    Raises:
        ValueError: if a schedule has amounts, and the trainer no :class:`RunState`.
    """
    step = updates(trainer)
    if not schedule.amounts:
        return step in schedule
    counter = next((c for c in callbacks_of(trainer) if isinstance(c, RunState)), None)
    if counter is None:
        raise ValueError("a schedule of words or tokens requires a RunState: add lmdyn.callbacks.RunState()")
    before, now = counter.last_update(trainer)
    return step in schedule or schedule.passed(before, now)


def _word_starts(trainer: L.Trainer) -> Tensor | None:
    """Return millionths of a word that each token begins, if a schedule has amounts of words.

    Raises:
        ValueError: if the data does not know.
    """
    schedules = [getattr(c, "schedule", None) for c in callbacks_of(trainer)]
    if not any(isinstance(s, Steps) and s.words for s in schedules):
        return None
    found = read_attribute(datamodule_of(trainer), "word_starts")
    if found is None:
        raise ValueError(
            "a schedule counts words, but this data does not count words: use `tokens`, or give the datamodule "
            "`word_starts`, the share of each token id's occurrences that begin a word"
        )
    return torch.as_tensor(np.asarray(found) * 1e6).round().long()


def about_checkpoint(trainer: L.Trainer) -> State:
    """Return the entry ``lmdyn`` of a checkpoint: step, tokens, learning rate, and the tokenizer's folder."""
    at = progress(trainer)
    return {
        "step": at.step,
        "tokens": at.tokens,
        **({} if at.words is None else {"words": at.words}),
        "learning_rate": at.learning_rate,
        "tokenizer": "tokenizer",
        **COUNTED,
    }


def tokenizer_of(datamodule: Any, module: L.LightningModule) -> Any:
    """Return the run's tokenizer: the datamodule's, else the module's, else None."""
    tokenizer = read_attribute(datamodule, "tokenizer")
    return read_attribute(module, "tokenizer") if tokenizer is None else tokenizer


def token_counts_of(datamodule: Any) -> Any:
    """Return the training counts of the run's tokens, or None."""
    return read_attribute(datamodule, "token_counts")


def save_tokenizer(folder: Path, tokenizer: Any, counts: Any) -> None:
    """Save a run's tokenizer (``save_pretrained`` format) and its training counts (``token_counts.parquet``)."""
    if hasattr(tokenizer, "save_pretrained"):
        folder.mkdir(parents=True, exist_ok=True)
        remove_links(folder)
        remove_unfinished(folder)
        tokenizer.save_pretrained(str(folder))
    if counts is not None:
        write_file(folder / "token_counts.parquet", counts.to_parquet)


def read_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a folder in transformers' format, such as a run's ``tokenizer/``; None without a folder.

    Raises:
        ValueError: if the files cannot be read.
    """
    if not folder.is_dir():
        return None
    try:
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # OSError, ValueError, KeyError, and plain Exception from Rust
        raise ValueError(
            f"lmdyn cannot load the tokenizer in {folder} ({error}): restore the files, or remove the folder"
        ) from error


_NUMPY_STATE = ("bit_generator", "key", "pos", "has_gauss", "gauss")


def _random_state() -> State:
    """Return the state of every generator, in types that load with ``weights_only=True``."""
    version, internal, gauss = random.getstate()
    state: Any = np.random.get_state()  # noqa: NPY002 (the global state)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": [version, list(internal), gauss],
        "numpy": dict(zip(_NUMPY_STATE, (state[0], state[1].tolist(), *state[2:]), strict=True)),
    }


def _set_random_state(state: State) -> None:
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(tuple(state["numpy"][name] for name in _NUMPY_STATE))  # noqa: NPY002 (the global state)
