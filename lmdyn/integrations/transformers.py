"""Observers in transformers' ``Trainer``, and what inherits from it, such as TRL's ``SFTTrainer``."""

import inspect
import logging
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from traceback import walk_stack
from typing import Any

from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments

from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.training.modes import NO_DEEPSPEED
from lmdyn.integrations.watcher import Watcher, watch
from lmdyn.runs.schedule import Steps

log = logging.getLogger(__name__)


class WatchCallback(TrainerCallback):
    """Observe a model while transformers' ``Trainer`` trains it; the training itself does not change.

    Steps are the Trainer's ``global_step``. Observations and curves are written to ``<output_dir>/lmdyn``, which
    ``lmdyn report`` reads.

    Args:
        observers: observers, with the arguments that they have under Lightning.
        probe: batches to observe; by default the Trainer's ``eval_dataset``, with its own collator.
        folder: folder of the run; None for ``<output_dir>/lmdyn``.
        schedule: schedule of each observer that has none of its own.
        checkpoints: whether to write weights for observers that compare steps, in addition to the Trainer's own.
        train: training batches or texts, counted once; see :func:`lmdyn.watch`.
        token_counts: frequencies of tokens, instead of ``train``.
        logger: see :func:`lmdyn.watch`; None for the run of Weights & Biases or trackio if ``report_to`` names it, else
            for TensorBoard.
        words: words of the training text, which an epoch reads once: for schedules in words, and ``words_seen``.

    Raises:
        ValueError: when training begins: with DeepSpeed, without a probe set, or if an observer cannot read the model.

    Example:
        >>> from lmdyn.callbacks import LearningCurves, Steps
        >>> callback = WatchCallback([LearningCurves()], schedule=Steps(per_decade=4))
        >>> # Trainer(model, arguments, train_dataset=…, eval_dataset=…, callbacks=[callback])
    """

    def __init__(
        self,
        observers: Iterable[Observer],
        *,
        probe: Any = None,
        folder: str | Path | None = None,
        schedule: Steps | None = None,
        checkpoints: bool | Steps = False,
        train: Any = None,
        token_counts: Any = None,
        logger: Any = None,
        words: int | None = None,
    ) -> None:
        self.words = words
        self.observers = list(observers)
        self.probe = probe
        self.folder = folder
        self.logger = logger
        self._options: dict[str, Any] = {
            "schedule": schedule, "checkpoints": checkpoints, "train": train, "token_counts": token_counts,
        }  # fmt: skip
        self.watcher: Watcher | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attach the observers, and observe the model at the step at which training begins."""
        if args.deepspeed:
            raise ValueError(NO_DEEPSPEED)
        if self.watcher is not None:  # of a training that ended with an error
            self.watcher.release()
        self.watcher = watch(
            kwargs["model"],
            self.observers,
            probe=self._probe(args) if self.probe is None else self.probe,
            folder=Path(str(args.output_dir)) / "lmdyn" if self.folder is None else self.folder,
            tokenizer=_tokenizer(kwargs.get("processing_class")),
            seed=args.seed,
            step=state.global_step or None,
            optimizer=kwargs.get("optimizer"),
            logger=_logger(args) if self.logger is None else self.logger,
            **self._options,
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Observe if a schedule contains this step."""
        self._step(state, kwargs.get("lr_scheduler"))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Observe if epochs are scheduled."""
        self._step(state, kwargs.get("lr_scheduler"), epoch_end=True)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Observe the last step if it is scheduled: after these logs, the best checkpoint may replace the model."""
        if "train_runtime" in kwargs.get("logs", {}):
            self.on_train_end(args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the watcher."""
        if self.watcher is not None:
            self.watcher.close()

    def _step(self, state: TrainerState, rates: Any, *, epoch_end: bool = False) -> None:
        if self.watcher is None or self.watcher.closed:
            return
        tokens = int(state.num_input_tokens_seen) or None  # 0 if they are not counted
        rate = None if rates is None else float(rates.get_last_lr()[0])
        words = None if self.words is None else round((state.epoch or 0) * self.words)
        self.watcher.step(
            state.global_step, tokens=tokens, words=words, learning_rate=rate, epoch_end=epoch_end
        )

    def _probe(self, args: TrainingArguments) -> Any:
        """Return the batches of the Trainer's evaluation, undivided among ranks.

        Raises:
            ValueError: if it has none, or several sets.
        """
        trainer = self._trainer()
        data = trainer.eval_dataset
        if data is None or isinstance(data, dict):
            has = "no eval_dataset" if data is None else f"several eval_datasets ({', '.join(data)})"
            raise ValueError(
                f"WatchCallback needs one set of batches to observe, and the Trainer has {has}: pass `probe`"
            )
        collate = trainer.data_collator
        if hasattr(data, "remove_columns"):  # a Dataset of Hugging Face
            data = trainer._remove_unused_columns(data, description="probe")
        else:
            collate = trainer._get_collator_with_removed_columns(collate, description="probe")
        return DataLoader(data, batch_size=args.per_device_eval_batch_size, collate_fn=collate)

    def _trainer(self) -> Any:
        """Return the Trainer that calls this callback, which it does not pass."""
        for frame, _ in walk_stack(inspect.currentframe()):
            if isinstance(found := frame.f_locals.get("self"), Trainer):
                return found
        raise ValueError("outside of a Trainer, WatchCallback has no batches to observe: pass `probe`")


def _tokenizer(processing: Any) -> Any:
    """Return the tokenizer of a Trainer's processor, or the processor itself; None if it is none."""
    found = getattr(processing, "tokenizer", processing)
    return found if hasattr(found, "convert_ids_to_tokens") else None


def _logger(args: TrainingArguments) -> Any:
    """Return the user's run to which ``report_to`` sends curves; else TensorBoard."""
    run = None
    if "wandb" in (args.report_to or ()):
        run = import_module("wandb").run
    elif "trackio" in (args.report_to or ()):
        run = import_module("trackio").context_vars.current_run.get()
    return "tensorboard" if run is None else run
