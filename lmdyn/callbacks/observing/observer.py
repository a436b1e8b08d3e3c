"""The base of all observers: when to look, how to stay invisible, where observations go."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import lightning as L
import pandas as pd
from lightning.pytorch.core.mixins.hparams_mixin import HyperparametersMixin
from lightning.pytorch.utilities.model_helpers import is_overridden
from matplotlib.figure import Figure
from torch import nn

from lmdyn.analysis.inspection.activations import observing, resolve_sites
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.callbacks.observing.loggers import publish
from lmdyn.callbacks.observing.probe import Accumulator, ProbeSet, merge_sites, probe_pass
from lmdyn.callbacks.observing.run import Run, callbacks_of, open_data, snake_case, split_loader
from lmdyn.callbacks.observing.store import ObservationStore
from lmdyn.callbacks.training.checkpoint import ScheduledCheckpoint
from lmdyn.callbacks.training.observation_schedule import Progress, Steps
from lmdyn.callbacks.training.resume import at_epoch_start, progress

__all__ = ["Observer", "StreamingObserver", "observe_together"]


LSTM_SITES: Mapping[str, str] = MappingProxyType(
    {"embedding": "embedding", "h1": "lstm.layers.0", "h2": "lstm.layers.1"}
)
"""Default sites of observers: the paths of the two-layer LSTM of Saphra & Lopez 2019."""


class Observer(HyperparametersMixin, L.Callback, ABC):
    """Looks at a module at chosen steps, without leaving a trace in its training.

    A subclass implements :meth:`measure` (or, as a :class:`StreamingObserver`, :meth:`accumulator`) and
    :meth:`figures`. Observations are made in :meth:`observe` only, live and in replay alike.

    Args:
        schedule: when to look.
        name: folder and tag prefix; the class name in snake_case by default. Two of one name are an error.
        probe: what to look at: a datamodule (it is given the run's tokenizer) or, from Python, any loader; the
            run's validation set by default.
        split: ``train``, ``validation`` or ``test`` part of the probe datamodule.
        max_tokens: look at about this many tokens only.
        forward: dotted path to ``(module, batch) -> output`` for modules that are not called in Hugging Face's
            names.
        log_figures: draw the figures for the attached loggers at each observation.

    Raises:
        ValueError: an unknown split, or a name that cannot be a folder.
    """

    figure_rows: Any = None
    """The rows that :meth:`figures` needs, a ``pyarrow.compute`` expression over the columns; None for all."""

    several_runs: bool = False
    """Whether :meth:`figures` also draws several runs: one table after the other, with a column ``run``."""

    _not_settings = frozenset({"schedule", "name", "probe", "log_figures"})

    def __init__(
        self,
        *,
        schedule: Steps = Steps(),  # noqa: B008 (frozen)
        name: str | None = None,
        probe: L.LightningDataModule | None = None,
        split: str = "validation",
        max_tokens: int | None = None,
        forward: str | None = None,
        log_figures: bool = True,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["probe"], logger=False)
        self.schedule = schedule
        self.name = name or snake_case(type(self).__name__)
        if not re.fullmatch(r"[\w.\-]+", self.name) or self.name in (".", ".."):
            raise ValueError(f"name {self.name!r} is to be a folder: letters, digits, '_', '-' and '.' only")
        if split not in ("train", "validation", "test"):
            raise ValueError(f"split is {split!r}: expected 'train', 'validation' or 'test'")
        self.probe = probe
        self.split = split
        self.max_tokens = max_tokens
        self.forward = forward
        self.log_figures = log_figures
        self._run: Run | None = None
        self._probe_set: ProbeSet | None = None
        self._seen_step: int | None = None

    # ---------------------------------------------------------------- what a subclass says

    @abstractmethod
    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Measure ``module`` as it is at ``step``: columns ``quantity``, ``site``, any group columns, ``value``.

        Called on every rank, inside ``observing(module)``; every rank answers the same, reduced, numbers.
        """

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Figures of all observations so far, by name; settings are the observer's own."""
        return {}

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Which rows go to the loggers as scalars: all by default."""
        return pd.Series(True, index=observations.index)

    def prepare(self) -> None:
        """Called when run and probe set are known, before training: check what can be checked."""

    def check_module(self, module: nn.Module) -> None:
        """Called when the module's layers exist, before training: check sites here."""

    # ---------------------------------------------------------------- observing

    def observe(self, module: nn.Module, step: int | Progress) -> pd.DataFrame:
        """Observe ``module`` at ``step``: the only place where an observation is made, live and in replay.

        Args:
            module: the module as it is at this step; it is left as it was found.
            step: optimizer updates done, or the whole :class:`Progress`.

        Returns:
            Columns ``step, tokens, quantity, site, <group columns>, value``. Nothing is written.

        Raises:
            RuntimeError: the observer was not attached to a run.
        """
        return observe_together([self], module, step)[0]

    @property
    def run(self) -> Run:
        """The run that the observer is attached to."""
        if self._run is None:
            raise RuntimeError(
                f"{self.name}: not attached to a run yet: a Trainer does it in setup, else call attach()"
            )
        return self._run

    @property
    def probe_set(self) -> ProbeSet:
        """The probe set that the observer looks at."""
        if self._probe_set is None:
            raise RuntimeError(
                f"{self.name}: not attached to a run yet: a Trainer does it in setup, else call attach()"
            )
        return self._probe_set

    def part(self, split: str, max_tokens: int | None = None) -> ProbeSet:
        """A split of what the observer looks at: of its ``probe``, or of the run's own data."""
        data = self.probe if self.probe is not None else self.run.datamodule
        return ProbeSet(split_loader(data, split), max_tokens=max_tokens, identity=(id(data), split))

    @property
    def token_counts(self) -> pd.DataFrame:
        """Training counts of each token of the run."""
        if self.run.token_counts is None:
            raise ValueError(
                f"{self.name} needs training frequencies: a datamodule with `token_counts`, or a run folder with "
                "tokenizer/token_counts.parquet; `frequency: probe` counts the probe set instead"
            )
        return self.run.token_counts

    @property
    def settings(self) -> dict[str, Any]:
        """What the numbers depend on: the arguments, and the content of the probe set."""
        settings = {k: _plain(v) for k, v in self.hparams.items() if k not in self._not_settings}
        probe = self._probe_set
        if probe is not None and probe.fingerprint is not None:
            settings["probe_set"] = probe.fingerprint
        elif self.probe is not None:
            settings["probe_set"] = type(self.probe).__name__
        return settings

    @property
    def store(self) -> ObservationStore:
        """Where the observations are."""
        cls = type(self)
        folder = self.run.log_dir / "observations" / self.name
        return ObservationStore(folder, f"{cls.__module__}.{cls.__qualname__}", self.settings)

    def attach(self, run: Run, *, rank_zero: bool = True, barrier: Callable[[], None] = lambda: None) -> None:
        """Get to know the run: load the probe set, check the settings. Called by a Trainer's setup and by replay.

        Args:
            run: the run.
            rank_zero: whether this process prepares the probe set's files.
            barrier: waits for all ranks.

        Raises:
            ValueError: no probe set, no tokenizer for it, or observations of other settings in the run's folder.
        """
        self._run = run
        data = self.probe if self.probe is not None else run.datamodule
        if data is None:
            raise ValueError(
                f"{self.name} has nothing to look at: fit with validation data, or give the observer a `probe`"
            )
        if isinstance(data, L.LightningDataModule) and self.probe is not None:
            stage = "test" if self.split == "test" else "fit"
            open_data(data, run, f"{self.name}: the probe set", stage, rank_zero=rank_zero, barrier=barrier)
        self._probe_set = self.part(self.split, self.max_tokens)
        with observing(nn.Module()):  # a DataLoader that is counted draws from the global generator
            self.prepare()
        self.store.check_settings()

    # ---------------------------------------------------------------- training hooks

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Attach to the run."""
        if stage != "fit":
            return
        self._seen_step = None  # of another fit
        names = [o.name for o in _observers(trainer)]
        if names.count(self.name) > 1:
            raise ValueError(
                f"{names.count(self.name)} observers are called {self.name!r}: give each a `name` of its own"
            )
        datamodule = getattr(trainer, "datamodule", None)
        if datamodule is None:  # loaders given to Trainer.fit, or hooks of the module
            datamodule = trainer.fit_loop.epoch_loop.val_loop._data_source.instance
            if datamodule is pl_module and not is_overridden("val_dataloader", pl_module):
                datamodule = None
        run = Run(
            log_dir=Path(trainer.log_dir or trainer.default_root_dir),
            tokenizer=getattr(datamodule, "tokenizer", None) or getattr(pl_module, "tokenizer", None),
            token_counts=getattr(datamodule, "token_counts", None),
            datamodule=datamodule,
            checkpoint_folder=next(
                (
                    c.directory(trainer)
                    for c in callbacks_of(trainer)
                    if isinstance(c, ScheduledCheckpoint) and c.weights_only
                ),
                None,
            ),
        )
        self.attach(run, rank_zero=trainer.is_global_zero, barrier=trainer.strategy.barrier)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Check the module's sites, before anything runs."""
        self.check_module(pl_module)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Observe the untrained model; after resuming, what was due at this very step and got lost."""
        step = trainer.global_step
        if step > 0 and trainer.strategy.broadcast(self.store.path(step).exists()):  # ranks must agree
            self._seen_step = step  # batches that accumulate gradients come before the next step
        epoch_end = step > 0 and at_epoch_start(trainer)
        # each by itself: the others have not looked yet at what is there
        _observe_due(
            trainer,
            pl_module,
            lambda o: (step == 0 or o is self) and (step in o.schedule or (epoch_end and o.schedule.epochs)),
        )

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Observe where the schedule names this step."""
        if self._seen_step != trainer.global_step and trainer.global_step in self.schedule:
            _observe_due(trainer, pl_module, lambda o: trainer.global_step in o.schedule)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Observe where epochs are scheduled."""
        _observe_due(trainer, pl_module, lambda o: o.schedule.epochs)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Observe the last step where it is scheduled."""
        _observe_due(trainer, pl_module, lambda o: o.schedule.last)


class StreamingObserver(Observer, ABC):
    """An observer that needs no more than one pass over its probe set, which it shares with its like.

    Observers that look at the same probe set at the same step share one forward (and backward) pass. The
    ``sites`` and ``attention_sites`` are display names to module paths; ``gradients`` says whether
    :attr:`ObservedBatch.gradients` are wanted.
    """

    sites: Mapping[str, str] = {}
    attention_sites: Mapping[str, str] = {}
    gradients: bool = False

    @abstractmethod
    def accumulator(self, module: nn.Module, step: int) -> Accumulator:
        """A fresh accumulator for one observation, of ``module`` at ``step``."""

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Run a pass of this observer's own."""
        return _measure_streaming([self], module, step)[0]

    def check_module(self, module: nn.Module) -> None:
        """Refuse sites that name no module."""
        resolve_sites(module, {**self.sites, **self.attention_sites})


def observe_together(
    observers: Sequence[Observer], module: nn.Module, step: int | Progress
) -> list[pd.DataFrame]:
    """Observe ``module`` with several observers; those that can share a pass do. Values are those of each alone.

    Args:
        observers: attached observers.
        module: the module.
        step: optimizer updates done, or the whole :class:`Progress`.

    Returns:
        One table for each observer: see :meth:`Observer.observe`.
    """
    at = step if isinstance(step, Progress) else Progress(step)
    tables: dict[int, pd.DataFrame] = {}
    with observing(module):
        for group in _sharing(observers):
            if isinstance(group[0], StreamingObserver):
                measured = _measure_streaming(cast(list[StreamingObserver], group), module, at.step)
            else:
                measured = [group[0].measure(module, at.step)]
            tables.update({id(o): table for o, table in zip(group, measured, strict=True)})
    return [_with_progress(tables[id(o)], at) for o in observers]


def _sharing(observers: Sequence[Observer]) -> list[list[Observer]]:
    """Group observers that can share a pass: the same probe set and way of calling, no site name in dispute."""
    groups: list[list[Observer]] = []
    for observer in observers:
        if isinstance(observer, StreamingObserver):
            for group in groups:
                first = group[0]
                streaming = [o for o in (*group, observer) if isinstance(o, StreamingObserver)]
                if (
                    isinstance(first, StreamingObserver)
                    and first.probe_set.identity == observer.probe_set.identity
                    and first.forward == observer.forward
                    and merge_sites(o.sites for o in streaming) is not None
                    and merge_sites(o.attention_sites for o in streaming) is not None
                ):
                    group.append(observer)
                    break
            else:
                groups.append([observer])
        else:
            groups.append([observer])
    return groups


def _measure_streaming(
    observers: Sequence[StreamingObserver], module: nn.Module, step: int
) -> list[pd.DataFrame]:
    accumulators = [o.accumulator(module, step) for o in observers]
    probe_pass(
        module,
        observers[0].probe_set,
        accumulators,
        sites=merge_sites(o.sites for o in observers),
        attention_sites=merge_sites(o.attention_sites for o in observers),
        gradients=any(o.gradients for o in observers),
        forward=observers[0].forward,
    )
    return [a.table() for a in accumulators]


def _with_progress(table: pd.DataFrame, at: Progress) -> pd.DataFrame:
    groups = [c for c in table.columns if c not in ("quantity", "site", "value")]
    if at.learning_rate is not None:
        rate = pd.DataFrame({"quantity": ["learning_rate"], "site": [""], "value": [at.learning_rate]})
        for c in groups:  # coded as in the table
            numbers = pd.api.types.is_integer_dtype(table[c])
            empty = pd.NA if numbers else None if table[c].isna().any() else ""
            rate[c] = pd.Series([empty], dtype="Int64" if numbers else object)
        table = pd.concat([table, rate], ignore_index=True)
    table = table[["quantity", "site", *groups, "value"]].reset_index(drop=True)
    table.insert(0, "step", at.step)
    table.insert(1, "tokens", pd.Series([at.tokens] * len(table), dtype="Int64"))
    return table


def _observers(trainer: L.Trainer) -> list[Observer]:
    return [c for c in callbacks_of(trainer) if isinstance(c, Observer)]


def _observe_due(trainer: L.Trainer, module: L.LightningModule, due: Callable[[Observer], bool]) -> None:
    """Observe with all observers that are due and have not seen this step yet; the first to be asked does it."""
    step = trainer.global_step
    observers = [o for o in _observers(trainer) if o._seen_step != step and due(o)]
    if not observers:
        return
    at = progress(trainer)
    for observer, table in zip(observers, observe_together(observers, module, at), strict=True):
        observer._seen_step = step
        if rank_and_world_size()[0] == 0:
            observer.store.write(step, table)
            publish(observer, table, trainer.loggers, step)


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return {"class": type(value).__name__, **asdict(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v) for v in value]
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, Path):
        return str(value)
    return type(value).__name__
