"""Base class of all observers: schedule, isolation from training, and storage of observations."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, dataclass_transform, get_args

import lightning as L
import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame
from torch.nn import Module

from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.inspection.attributes import refuse_unknown
from lmdyn.analysis.inspection.forward import Batch, Renamed, device_of
from lmdyn.analysis.inspection.label_convention import LabelConvention
from lmdyn.analysis.inspection.transformer import is_encoder_decoder
from lmdyn.callbacks.observing.checked_fields import From, check_fields, recording_arguments
from lmdyn.callbacks.observing.findings import Cost, Foreseen, raise_or_warn
from lmdyn.callbacks.observing.loggers import LogFigures
from lmdyn.callbacks.observing.module_reading import (
    Labels,
    SiteChoice,
    choose_sites,
    declared_labels,
    read_module,
)
from lmdyn.callbacks.observing.panels import standard_figures
from lmdyn.callbacks.observing.probe import ProbeSet, text_digest
from lmdyn.callbacks.observing.protocols import UnmetNeedsError, objective_of, require
from lmdyn.callbacks.observing.recording import (
    Passes,
    check_names,
    continue_after,
    finish_figures,
    observe_due,
)
from lmdyn.callbacks.observing.reference import Reference
from lmdyn.callbacks.observing.run import (
    Run,
    check_name,
    forget_reported,
    open_data,
    report,
    snake_case,
    split_loader,
)
from lmdyn.callbacks.training.lightning_internals import callbacks_of, shards_weights, tree_leaves
from lmdyn.callbacks.training.modes import refuse_mode
from lmdyn.callbacks.training.resume import at_epoch_start, is_due
from lmdyn.callbacks.training.updates import count_updates, updates
from lmdyn.runs.run_identity import write_identity
from lmdyn.runs.schedule import Progress, Steps
from lmdyn.runs.schema import Quantity, tidy
from lmdyn.runs.store import UNDECIDED, ObservationStore, plain_setting, public_name

log = logging.getLogger(__name__)

_SITES = ("sites", "attention_sites")
_FOUND = ("embedding", "components", "scoring", "start")  # determined from the module where they are None
_OF_DATA = frozenset({"split", "max_tokens", "forward", "batch"})
NOT_SHARDED = "sharded weights are not supported (the class does not set `sharded = True`)"
_UNATTACHED = "{} is not attached to a run: pass the observer to a Trainer, or call attach()"


@dataclass_transform(kw_only_default=True, eq_default=False)
@dataclass(kw_only=True, eq=False, repr=False)
class Observer(L.Callback, ABC):
    """Observes a module at chosen steps without any effect on its training.

    A subclass implements :meth:`measure`, or, as a :class:`~lmdyn.callbacks.StreamingObserver`, what one pass over its
    data requires. Its arguments are annotated fields, ``max_samples: Annotated[int, From(40)] = 500``, as in a
    dataclass; they are checked by their annotations, and are the settings of its observations. All observations are
    made in :meth:`observe`, during training and in replay.

    Args:
        schedule: steps of observations.
        name: folder and tag prefix; the class name in snake_case by default. Names must be unique.
        probe: data to observe: a datamodule (which receives the run's tokenizer) or, from Python, any loader; the
            run's validation set by default.
        split: ``train``, ``validation`` or ``test`` split of the probe datamodule.
        max_tokens: approximate number of tokens to observe; None for all.
        forward: a function ``(module, batch) -> output``, or the dotted path to it, for modules that
            :func:`~lmdyn.analysis.inspection.forward.call_module` cannot call.
        batch: names of the entries in the batches by their names in lmdyn, as ``{input_ids: idx, labels: targets}``;
            for tuples indices, from 0. Not required for common names, pairs of ids and labels, and tensors of ids.
        labels: ``aligned`` (``labels[b, t]`` belongs to ``logits[b, t]``), ``next`` (to ``logits[b, t - 1]``, as in
            causal models of transformers), or ``auto``: the convention that the data declares, otherwise measured once.
        log_figures: whether to draw the figures for the attached loggers: at the end of training, and before it so
            seldom that they take 1 % of the time; ``every`` draws them at each observation.

    Raises:
        ValueError: for an unknown split or label convention, or a name that is not a valid folder name.
    """

    figure_rows: ClassVar[Any] = None
    """Rows that :meth:`figures` requires, as a ``pyarrow.compute`` expression over the columns; None for all.

    A function of the drawn steps that returns one, if the rows depend on them.
    """

    several_runs: ClassVar[bool] = False
    """Whether :meth:`figures` can also draw several runs: their tables concatenated, with a column ``run``."""

    recorded: ClassVar[tuple[Quantity, ...]] = ()
    """Quantities that it logs or stores: for documentation, axes of reports and TensorBoard's charts; may be empty."""

    not_settings: ClassVar[frozenset[str]] = frozenset({"schedule", "name", "probe", "log_figures"})
    """Arguments that do not affect the numbers: they are excluded from the settings that a file contains."""

    needs: ClassVar[tuple[type, ...]] = ()
    """Protocols of :mod:`~lmdyn.callbacks.observing.protocols` that :meth:`attach` requires of its data."""

    uses_labels: ClassVar[bool | None] = None
    """Whether numbers depend on the labels of the probe set, which must then be known; None: only if there are any."""

    reads: ClassVar[Literal["masked", "causal"] | None] = None
    """The only supported kind of model, determined by measurement: the other kind raises an error; None for both."""

    in_step: ClassVar[bool] = False
    """Whether all ranks make the same number of forward passes, as sharded modules require; true for probe passes."""

    sharded: ClassVar[bool] = False
    """Whether a test shows that its numbers for a module with sharded weights equal those of one process."""

    schedule: Steps = Steps()  # noqa: RUF009 (frozen)
    if TYPE_CHECKING:
        name: str = ""
    else:
        name: str | None = None  # the default is determined in __post_init__
    probe: L.LightningDataModule | None = None
    split: Literal["train", "validation", "test"] = "validation"
    max_tokens: Annotated[int, From(1)] | None = None
    forward: str | Callable[[Module, Batch], Any] | None = None
    batch: Mapping[str, str | int] | None = None
    labels: Labels = "auto"
    log_figures: LogFigures = True

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Create an observer, unless it has no such argument."""
        refuse_unknown(cls, given)
        return super().__new__(cls)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = recording_arguments(cls.__init__)  # type: ignore[method-assign]
        elif not hasattr(cls.__init__, "__wrapped__"):  # no class before has a constructor of its own
            dataclass(kw_only=True, eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        probe, self.probe = self.probe, None  # from Python, any loader
        check_fields(self)
        self.probe = probe
        self.name = self.name or snake_case(type(self).__name__)
        check_name(self.name)
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        self.arguments: dict[str, Any] = {**given, **vars(self).pop("_own_arguments", {})}
        # memory that an observation requires, known after it has read its module
        self.costs: Sequence[Cost] = ()
        renamed = [(name, key) for name, key in (self.batch or {}).items() if isinstance(key, str)]
        if self.forward is None and renamed:
            self.forward = Renamed(tuple(renamed))
        self.convention: LabelConvention | None = None if self.labels == "auto" else self.labels
        # the models of the argument `reference`, where there is one
        self.compared: dict[str, Reference] = {}
        self._run: Run | None = None
        self._probe_set: ProbeSet | None = None
        self._known_hashes: Collection[str] = ()  # fingerprints of the probe sets of existing observations
        self._store: ObservationStore | None = None
        self.seen_step: int | None = None
        self._bound = False
        self._decodes = False  # until it is bound
        self._found: dict[str, Any] = {}  # settings determined by the observer because they were not given

    # ---------------------------------------------------------------- implemented by subclasses

    @abstractmethod
    def measure(self, module: Module, step: int) -> DataFrame:
        """Measure ``module`` at ``step``: columns ``quantity``, ``site``, any group columns, ``value``.

        Called on every rank, inside ``observing(module)``; every rank returns the same, reduced, numbers.
        """

    @classmethod
    def figures(cls, observations: DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw figures of all observations so far, by name: by default, the panels that quantities declare.

        Args:
            observations: all observations, or at most some hundred steps of them.
            settings: the observer's own.
        """
        return standard_figures(observations, cls.recorded, list(settings.get("sites") or []))

    @classmethod
    def is_scalar(cls, observations: DataFrame) -> "pd.Series[bool]":
        """Return which rows are sent to the loggers as scalars: by default those of all quantities with tags."""
        return ~observations["quantity"].isin(
            [quantity.name for quantity in cls.recorded if not quantity.tags]
        )

    @property
    def reads_data(self) -> bool:
        """Whether it reads its probe set."""
        return True

    @property
    def follows_updates(self) -> bool:
        """Whether it must see the module after each update, by ``follow(module, step)``."""
        return False

    def prepare(self) -> None:
        """Check the configuration before training; called when the run and the probe set are known."""
        for reference in self.compared.values():
            reference.check(self.run)

    def check_module(self, module: Module) -> None:
        """Check the module and determine its sites before training; called when the module's layers exist."""

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report missing or meaningless results and required memory; called when the module is known."""
        return ()

    def bind(self, module: Module) -> None:
        """Determine how to read the module before it is observed, or raise a ValueError. All ranks must call it."""
        # a DataLoader uses the global random generator
        with observing(module), self._named_errors(self.name):
            if not self._bound and self.reads_data:
                labels = read_module(
                    module,
                    self.probe_set,
                    self.forward,
                    self.run.tokenizer,
                    whose=self.name,
                    labels=self.convention,
                    uses_labels=self.uses_labels,
                    kind=self.reads,
                    one_pass=self.in_step,
                )
                # data prepared with other labels is prepared again
                shifts = labels == "next" and self.probe_set.labels != "next"
                self.convention, self._decodes = labels, is_encoder_decoder(module)
                if shifts or self._decodes:
                    self._probe_set = self.part(self.split, self.max_tokens)
                    self.prepare()
            self.check_module(module)
            if not self._bound:
                self.costs = raise_or_warn(self.name, self.foresee(module), device_of(module))
        self._bound = True
        self.store.check_settings()

    def ensure_bound(self, module: Module) -> None:
        """Call :meth:`bind` if this module was not bound before."""
        if not self._bound:
            self.bind(module)

    def found(self, argument: str, find: Callable[[], Any]) -> Any:
        """Return an argument, or, if it is None, the determined value, which is then a setting of the observations."""
        if self.arguments[argument] is None:
            self._found[argument] = find()
        return self._found.get(argument, self.arguments[argument])

    def choose_sites(
        self,
        module: Module,
        default: Mapping[str, str] | Callable[[Module], Mapping[str, str]] | None,
        argument: str | None = None,
        **options: Any,
    ) -> dict[str, str]:
        """Return the sites of an argument, given or found: a setting of the observations."""
        argument = argument or ("attention_sites" if options.get("attention") else "sites")
        choice: SiteChoice = self.arguments.get(argument)
        self._found[argument] = sites = choose_sites(
            choice, default, module, lambda: self.probe_set, self.forward, whose=self.name, **options
        )
        return sites

    def paths(self, argument: str = "sites") -> Mapping[str, str]:
        """Return the module paths of an argument that chooses sites by display name, for the module that was met."""
        return self._found.get(argument) or {}

    # ---------------------------------------------------------------- observing

    def observe(self, module: Module, step: int | Progress, passes: Passes | None = None) -> DataFrame:
        """Observe ``module`` at ``step``: the only place in which observations are made, in training and in replay.

        Args:
            module: the module at this step; it is left unchanged.
            step: optimizer updates done, or the whole :class:`Progress`.
            passes: passes of all observers due at this step; observers with the same :attr:`pass_key` share a pass.

        Returns:
            Table with columns ``step, tokens, quantity, site, <group columns>, value``. Nothing is written.

        Raises:
            RuntimeError: if the observer is not attached to a run.
        """
        at = step if isinstance(step, Progress) else Progress(step)
        passes = passes or Passes([self], module)
        with observing(module), self._named_errors(f"{self.name} at step {at.step}"):
            measured = passes.table(self, module, at.step)
        return tidy(measured, at)

    @contextmanager
    def _named_errors(self, whose: str) -> Iterator[None]:
        """Let errors begin with whose they are, unless they name the observer."""
        try:
            yield
        except ValueError as error:
            if len(error.args) == 1 and self.name not in str(error):
                error.args = (f"{whose}: {error}",)
            raise

    @property
    def pass_key(self) -> Hashable:
        """Key of the pass: observers with equal keys are measured together, by :meth:`measure_together`."""
        return id(self)

    @staticmethod
    def measure_together(observers: Sequence[Any], module: Module, step: int) -> list[DataFrame]:
        """Measure with observers of the same :attr:`pass_key`; the values equal those of separate measurements."""
        return [observer.measure(module, step) for observer in observers]

    @property
    def run(self) -> Run:
        """The run to which the observer is attached."""
        if self._run is None:
            raise RuntimeError(_UNATTACHED.format(self.name))
        return self._run

    @property
    def probe_set(self) -> ProbeSet:
        """The probe set of the observer."""
        if self._probe_set is None:
            raise RuntimeError(_UNATTACHED.format(self.name))
        return self._probe_set

    @property
    def data(self) -> Any:
        """Data of the observer: its ``probe``, even if empty, otherwise the run's own data."""
        return self.probe if self.probe is not None else self.run.datamodule

    def part(self, split: str, max_tokens: int | None = None, data: Any = None) -> ProbeSet:
        """Return a split of the observer's data, its ``probe`` or the run's own data, or of other data."""
        data = self.data if data is None else data
        loader = split_loader(data, split, self.name, chosen=split == self.split)
        given = ProbeSet(
            loader,
            max_tokens=max_tokens,
            identity=(id(data), split),
            names=self.batch,
            labels=self.convention or "aligned",
            decodes=self._decodes,
        )
        given.data = data
        if (part := given.recut(self._known_hashes)) is not given and split == self.split:
            report(
                self.name, f"batch_size has changed, but lmdyn keeps the earlier batches of the {split} data"
            )
        return part

    @property
    def token_counts(self) -> DataFrame:
        """Training counts of each token of the run."""
        if self.run.token_counts is None:
            raise ValueError(
                f"{self.name} requires training frequencies. Use a datamodule with `token_counts` or a run folder with "
                "tokenizer/token_counts.parquet, or set `frequency: probe` to count tokens in the probe set"
            )
        return self.run.token_counts

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that affect the numbers: the arguments, and the content of the probe set."""
        left_out = self.not_settings if self.reads_data else self.not_settings | _OF_DATA
        settings = {k: plain_setting(v) for k, v in self.arguments.items() if k not in left_out}
        settings |= {
            k: UNDECIDED for k in _SITES if k in settings and isinstance(self.arguments[k], str | None)
        }
        settings |= {k: UNDECIDED for k in _FOUND if settings.get(k, "") is None}
        if settings.get("batch", "") is None:
            del settings["batch"]  # the batches use their own names
        settings |= {k: plain_setting(v) for k, v in self._found.items()}
        if "reference" in self.not_settings:
            settings["reference"] = {name: r.settings(self.run) for name, r in self.compared.items()}
        settings |= {"labels": self.convention or UNDECIDED}
        if self.uses_labels is False or not self.reads_data:
            del settings["labels"]
        if (probe := self._probe_set) is not None and probe.fingerprint is not None:
            settings["probe_set"] = probe.fingerprint
        elif self.probe is not None:
            settings["probe_set"] = type(self.probe).__name__
        return settings

    @property
    def store(self) -> ObservationStore:
        """Storage of the observations."""
        folder = self.run.log_dir / "observations" / self.name
        if self._store is None or self._store.folder != folder:  # a store caches its checks
            observer = public_name(type(self))
            self._store = ObservationStore(folder, observer, self._own_settings)
        return self._store

    def _own_settings(self) -> dict[str, Any]:
        """Return the settings; in a copy of the observer, a bound method is the copy's."""
        return self.settings

    def attach(self, run: Run) -> None:
        """Attach to a run: load the probe set and check the settings. Called in a Trainer's setup and in replay.

        Every rank must call it.

        Raises:
            ValueError: if there is no probe set or no tokenizer for it, if the data lacks something that the observer
                :attr:`needs`, or if the run's folder contains observations with other settings.
        """
        self._run, self._store = run, None
        self._bound = self._decodes = False
        forget_reported(self.name)
        if self.reads_data:
            self._attach_data(run)
        # iterating over a DataLoader uses the global random generator
        with observing(Module()), self._named_errors(self.name):
            self.prepare()
        self.store.check_settings()

    def _attach_data(self, run: Run) -> None:
        data = self.data
        if data is None:
            raise ValueError(f"{self.name} has no data: fit with validation data, or pass a `probe`")
        if isinstance(data, L.LightningDataModule) and self.probe is not None:
            stage = "test" if self.split == "test" else "fit"
            open_data(data, run, f"{self.name}: the probe set", stage)
        given = self.labels
        self.convention = None if given == "auto" else given
        settings = self.store.about().get("settings", {})
        self._known_hashes = {found for found in tree_leaves(settings) if isinstance(found, str)}
        if self.convention is None:  # a replay uses the label convention of the existing observations
            recorded = settings.get("labels")
            self.convention = recorded if recorded in get_args(LabelConvention) else None
        self._probe_set = self.part(self.split, self.max_tokens)
        declared = declared_labels(self._probe_set)
        if given != "auto" and declared not in (None, given):
            raise ValueError(
                f"{self.name}: `labels` is {given!r}, but the data declares {declared!r}: remove `labels`"
            )
        self.convention = self.convention or declared
        require(self.needs, self.name, datamodule=data, loader=self._probe_set.loader)

    # ---------------------------------------------------------------- training hooks

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Attach to the run."""
        if stage != "fit":
            return
        self.seen_step = None  # reset for a new fit
        count_updates(trainer)
        check_names(_observers(trainer))
        run = Run.of(trainer, pl_module)
        try:
            self.attach(run)
        except UnmetNeedsError as error:  # other data would not suffice
            if self.reads == "masked" and objective_of(run.datamodule) == "causal":
                raise ValueError(f"{self.name} requires a masked model; {error}") from error
            raise

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Check the module's sites before training."""
        refuse_mode(pl_module)
        if not self.sharded and trainer.world_size > 1 and shards_weights(trainer, pl_module):
            raise ValueError(
                f"{self.name}: {NOT_SHARDED}: remove the observer, and run `lmdyn analyze` after training"
            )
        if device_of(pl_module) == trainer.strategy.root_device:  # otherwise it is moved there later
            self.bind(pl_module)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Observe the untrained model; after resuming, make an observation of this step that is missing."""
        for observer in _observers(trainer):
            observer.ensure_bound(pl_module)
        if trainer.is_global_zero and self is _observers(trainer)[0]:
            probe = next((o.probe_set for o in _observers(trainer) if o.reads_data), None)
            write_identity(
                self.run.log_dir,
                pl_module,
                tokenizer=self.run.tokenizer,
                data={"probe": self.run.datamodule, "train": trainer.train_dataloader},
                text=text_digest(probe, pl_module),
                optimizer=trainer.optimizers[0] if trainer.optimizers else None,
                keep=updates(trainer) > 0,
            )
        if (step := updates(trainer)) > 0 and trainer.strategy.broadcast(self.store.path(step).exists()):
            # batches that accumulate gradients precede the next step
            continue_after(self, step, trainer.loggers, writes=trainer.is_global_zero)
        epoch_end = step > 0 and at_epoch_start(trainer)

        # each observer on its own: the others have not checked their existing observations yet
        def due(o: Observer) -> bool:
            now = is_due(trainer, o.schedule) or (epoch_end and o.schedule.epochs)
            return (step == 0 or o is self) and now

        observe_due(_observers(trainer), trainer, pl_module, due)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Observe if the schedule contains this step."""
        step = updates(trainer)
        if self.seen_step != step and is_due(trainer, self.schedule):
            observe_due(_observers(trainer), trainer, pl_module, lambda o: is_due(trainer, o.schedule))

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Observe if epochs are scheduled."""
        observe_due(_observers(trainer), trainer, pl_module, lambda o: o.schedule.epochs)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Observe the last step if it is scheduled, and draw the figures."""
        observe_due(_observers(trainer), trainer, pl_module, lambda o: o.schedule.last)
        finish_figures(self, trainer)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Observe the untrained model if there was no batch to train on, as with ``max_steps: 0``.

        Lightning then skips all hooks of training.
        """
        if trainer.global_step == 0:
            observe_due(_observers(trainer), trainer, pl_module, lambda o: 0 in o.schedule or o.schedule.last)


def _observers(trainer: L.Trainer) -> list[Observer]:
    return [c for c in callbacks_of(trainer) if isinstance(c, Observer)]
