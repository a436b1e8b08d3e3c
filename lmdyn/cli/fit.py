"""Training and evaluation by LightningCLI, with exact resuming."""

import logging
import os
import signal
import sys
from collections.abc import Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

import lightning as L
import yaml
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities.exceptions import SIGTERMException

# imported so that yaml can name their classes without module paths
import lmdyn.callbacks
import lmdyn.datamodules
import lmdyn.models  # noqa: F401
from lmdyn.analysis.inspection.attributes import order_argument
from lmdyn.callbacks.observing.loggers import where_curves_are
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.training.checkpoint import ScheduledCheckpoint
from lmdyn.callbacks.training.lightning_internals import SHARDING, callbacks_of, continue_csv, hide_events
from lmdyn.callbacks.training.resume import RunState
from lmdyn.callbacks.training.run_folder import (
    claim_folder,
    has_own_folder,
    holds_run,
    run_folder,
    runs_of_logger,
)
from lmdyn.callbacks.training.updates import updates
from lmdyn.cli import INSPECT_FIRST
from lmdyn.cli.configurations import OF_FIT, Config
from lmdyn.cli.parsing.errors import one_line
from lmdyn.cli.parsing.lightning_parser import ConfigFile, Parser
from lmdyn.cli.training.preflight import Preflight
from lmdyn.cli.training.progress_lines import ProgressLines
from lmdyn.cli.training.resumption import changed_settings, check_resumed
from lmdyn.runs.atomic_files import write_file
from lmdyn.runs.checkpoint_files import checkpoint_step, read_checkpoint
from lmdyn.runs.folder_lock import CHAIN, FolderLock
from lmdyn.runs.provenance import Settings, begin_session, end_session, write_json
from lmdyn.runs.sharded_checkpoints import about_sharded, is_sharded_checkpoint
from lmdyn.runs.store import current_name

log = logging.getLogger(__name__)

ONE_PROCESS: Config = {
    "accelerator": "cpu",
    "devices": 1,
    "num_nodes": 1,
    "strategy": "auto",
    "plugins": None,
    "precision": None,
}
"""Settings of a trainer that does not train, but builds model or data, perhaps on a machine without accelerators."""

_DESCRIPTIONS = {
    "fit": "Train a model with observers.",
    "validate": "Evaluate a checkpoint on the validation data.",
    "test": "Evaluate a checkpoint on the test data.",
    "predict": "Collect the predictions of a checkpoint.",
}


class SaveRunConfig(SaveConfigCallback):
    """Saves ``config.yaml`` and ``provenance.json`` when a run is trained; a later test does not overwrite them.

    Args:
        *args: arguments of Lightning's callback.
        command: the words of the command line, for the provenance.
        **kwargs: arguments of Lightning's callback.
    """

    def __init__(self, *args: Any, command: Sequence[str] = (), **kwargs: Any) -> None:
        kwargs["save_to_log_dir"] = False  # Lightning would leave a partial file if it is killed
        super().__init__(*args, **kwargs)
        self.command = command
        self._folder = Path()
        self._session: int | None = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Save both files in ``fit`` only."""
        if stage == "fit":
            self._folder = run_folder(trainer)  # a broadcast: every rank must call it
            super().setup(trainer, pl_module, stage)

    def save_config(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Write both files; called on rank 0, before anything is observed."""
        how: Config = {"skip_none": False, "overwrite": True, "multifile": self.multifile}
        write_file(
            self._folder / self.config_filename,
            lambda path: self.parser.save(self.config, str(path), **how),
        )
        self._session = begin_session(self._folder, self.command, str(trainer.strategy.root_device))

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Record the end of the run in the provenance."""
        if trainer.is_global_zero:
            size = sum(parameter.numel() for parameter in pl_module.parameters())
            end_session(self._folder, self._session, step=updates(trainer), parameters=size)


class LmdynCLI(LightningCLI):
    """LightningCLI with lmdyn's classes, exact resuming, and a report at the end of ``fit``.

    ``--ckpt_path last`` resumes from the newest full checkpoint in the run's folder; if there is none, it is an error.
    A new ``fit`` refuses a folder that already contains a run; every ``fit`` refuses one that another process uses.
    Checkpoints must be local files; all subcommands read them with ``weights_only=True``.

    Args:
        args: words of the command line.
        run: whether to run the subcommand at the start of ``args``.
        command: the words that the user typed, for the provenance, if they differ from ``args``.
    """

    def __init__(
        self, args: Sequence[str], *, run: bool = True, command: Sequence[str] | None = None
    ) -> None:
        self._writer: FolderLock | None = None
        self._folder: Path | None = None
        self._trains = run
        self._failed = False  # whether the report could not be written
        self._resumed: tuple[Any, ...] = ()  # arguments of check_resumed if the run is resumed
        super().__init__(
            L.LightningModule,
            L.LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            trainer_defaults={"callbacks": [RunState()]} if run else {},
            save_config_callback=SaveRunConfig,
            save_config_kwargs={"overwrite": True, "command": command or ["lmdyn", *args]},
            seed_everything_default=0,
            parser_kwargs={
                "description": "lmdyn: train a language model and observe how it learns",
                **{name: {"description": f"{what} {INSPECT_FIRST}"} for name, what in _DESCRIPTIONS.items()},
            },
            parser_class=Parser,
            args=list(args),
            run=run,
        )

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Return LightningCLI's parser, except that a later ``callbacks:`` replaces the list."""
        parser = super().init_parser(**kwargs)
        action = next(a for a in parser._actions if a.dest == "config")
        action.__class__ = ConfigFile  # Lightning has already added its own action under these names
        for name in () if self._trains else OF_FIT:
            parser.add_argument(f"--{name}", type=Any, help="an option of `fit`; this command ignores it")
        return parser

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the seed of the order of data, which is saved as the argument of the data that it sets."""
        about = "the seed for the order of data, independent of --seed_everything"
        parser.add_argument("--data_seed", "--data-seed", type=int | None, default=None, help=about)

    def parse_arguments(self, parser: Any, args: Any) -> None:
        """Parse ``args`` regardless of ``sys.argv`` (Lightning warns of it); ``--data_seed`` sets the order of data."""
        self.config = parser.parse_args(args)
        if unused := [f"{name} {self.config[name]}" for name in OF_FIT if self.config.get(name) is not None]:
            log.info("lmdyn ignores these options, which only `fit` uses: %s", ", ".join(unused))
        config = self.config[self.config.subcommand] if "subcommand" in self.config else self.config
        seed, data = config.pop("data_seed", None), config.data
        if seed is not None:
            name = order_argument(data.init_args.keys()) if "init_args" in data else None
            if name is None or seed < 0:
                lacks = f"{data.class_path} has neither order_seed nor seed: omit --data_seed"
                why = "expected an integer of at least 0" if seed < 0 else lacks
                raise ValueError(f"--data_seed {seed}: {why}")
            data.init_args[name] = seed

    def before_instantiate_classes(self) -> None:
        """Record the errors of constructors; LightningCLI itself calls those of model and data."""
        self.parser.add_instantiator(_construct, object, subclasses=True)

    def instantiate_classes(self) -> None:
        """Instantiate the configured classes; reraise a constructor's own error instead of jsonargparse's."""
        try:
            super().instantiate_classes()
        except Exception:
            assert isinstance(self.parser, Parser)
            if not self.parser.raised:
                raise
            error = self.parser.raised[-1]
            raise error from error.__cause__

    def _parse_ckpt_path(self) -> None:
        """Refuse a missing file, and hyperparameters that differ: Lightning lets them override the configuration."""
        subcommand = self.config.get("subcommand")
        if not subcommand:
            return
        config = self.config[subcommand]
        if config.get("weights_only") is False:
            raise ValueError(
                "weights_only: expected true or null, got false. With false, a checkpoint could execute code when "
                "lmdyn loads it. Save only weights and plain values in checkpoints"
            )
        path = config.get("ckpt_path")
        if path is None or (subcommand == "fit" and path == "last"):  # before_fit finds the last one
            return
        sharded = is_sharded_checkpoint(Path(path))
        if not (sharded or Path(path).is_file()):
            raise FileNotFoundError(
                f"ckpt_path: checkpoint {path} does not exist. Give a local file, or the folder of a sharded "
                "checkpoint. Download a remote checkpoint first"
            )
        checkpoint = about_sharded(Path(path)) if sharded else read_checkpoint(Path(path))
        if subcommand == "fit" and "optimizer_states" not in checkpoint:
            raise ValueError(
                f"ckpt_path: {path} contains weights but no resume state. Give a full checkpoint from the folder "
                "resume/ of the run. A ScheduledCheckpoint with weights_only: false writes full checkpoints"
            )
        for key in ("pytorch-lightning_version", *(("loops",) if subcommand == "fit" else ())):
            if key not in checkpoint:
                raise ValueError(
                    f"ckpt_path: {path} lacks {key!r}, which Lightning writes into each checkpoint. Another program "
                    "may have written the file. Give a checkpoint of a Lightning Trainer, such as those of `lmdyn fit`"
                )
        saved = checkpoint.get("hyper_parameters", {})
        saved = saved if isinstance(saved, dict) else {}
        check_hyperparameters(config.model.as_dict(), saved, path)
        if subcommand == "fit":
            loaders = checkpoint["loops"].get("fit_loop", {}).get("state_dict", {}).get("combined_loader", ())
            self._resumed = (plain(config), saved, loaders)
            check_resumed(Path(path).absolute().parent.parent, *self._resumed)

    def _prepare_subcommand_kwargs(self, subcommand: str) -> Config:
        """Return the arguments of the Trainer's method; with weights_only=None, it would unpickle."""
        return {**super()._prepare_subcommand_kwargs(subcommand), "weights_only": True}

    def before_fit(self) -> None:
        """Resolve ``last``; refuse to start a run in a used folder; check in advance what would fail later."""
        callbacks_of(self.trainer).insert(0, Preflight())
        if isinstance(self.trainer.progress_bar_callback, RichProgressBar) and not sys.stdout.isatty():
            callbacks_of(self.trainer).append(ProgressLines())
        config = self.config["fit"]
        path = config.get("ckpt_path")
        folder = self._folder = self._claim_folder(path)
        if self.trainer.is_global_zero:
            self._writer = FolderLock(folder)
            # a chain has already terminated the processes that it could
            self._writer.acquire(wait=CHAIN in os.environ)
        if path is None:
            self._refuse_used_folder(folder)
        elif path == "last":
            last = self._last_checkpoint(folder)
            path = config["ckpt_path"] = self.config_init["fit"]["ckpt_path"] = last and str(last)
            self._parse_ckpt_path()
        elif (folder / "config.yaml").is_file() and Path(path).resolve().parent.parent != folder.resolve():
            check_resumed(folder, *self._resumed)  # the checkpoint may be a copy
        if path is None:
            for logger in self.trainer.loggers if _holds_something(folder) else ():
                hide_events(logger)
                continue_csv(logger, -1)
        elif (step := checkpoint_step(Path(path))) is not None:  # RunState does it for TensorBoard
            for logger in self.trainer.loggers:
                continue_csv(logger, step)

    def _claim_folder(self, path: str | None) -> Path:
        """Choose the run's folder; of a run to be resumed by ``last`` from a logger without one, the only one there is.

        Raises:
            ValueError: if there are several, or the folder holds another run.
        """
        if path != "last":
            return claim_folder(self.trainer, path, restarts=path is None)  # a used one is refused later
        if has_own_folder(self.trainer):
            return claim_folder(self.trainer, restarts=True)
        runs = runs_of_logger(self.trainer)
        if len(runs) > 1:
            raise ValueError(
                f"ckpt_path: last: expected one run, got {', '.join(map(str, runs))}. Name the checkpoint from which "
                "`fit` resumes: --ckpt_path RUN/resume/step=….ckpt"
            )
        return claim_folder(self.trainer, runs[0] / "resume" / "step=last" if runs else None, restarts=True)

    def _run_subcommand(self, subcommand: str) -> None:
        """Run the subcommand; report a terminated run, for which Lightning would exit as if it had finished."""
        self._refuse_whole_module_for_sharded(self.config[subcommand].get("ckpt_path"))
        try:
            super()._run_subcommand(subcommand)
        except SIGTERMException:
            self._say_how_to_go_on()
            raise SystemExit(128 + signal.SIGTERM) from None
        except SystemExit:  # Ctrl-C, which Lightning catches
            self._say_how_to_go_on()
            raise
        finally:
            if self._writer is not None:
                self._writer.release()
        if self._failed:
            raise SystemExit(1)

    def _say_how_to_go_on(self) -> None:
        """Log how to resume a training that was stopped; this must not wait for other ranks."""
        if self._folder is None or not self.trainer.is_global_zero:
            return
        said = f"the training stopped at step {updates(self.trainer)}"
        if not self._full_savers:
            log.info("%s; to resume, a run requires a ScheduledCheckpoint with weights_only: false", said)
            return
        full = self._full_checkpoints(self._folder)
        start = f"step {checkpoint_step(full[-1])}" if full else "the beginning"
        path = full[-1] if full else "last"
        log.info("%s; to resume from %s, run the same command with --ckpt_path %s", said, start, path)

    def _refuse_whole_module_for_sharded(self, path: str | None) -> None:
        """Refuse a sharded checkpoint, of which each rank reads its part, if each rank holds the whole module."""
        strategy = self.trainer.strategy
        if path is not None and is_sharded_checkpoint(Path(path)) and not isinstance(strategy, SHARDING):
            raise ValueError(
                f"ckpt_path: {path} is a sharded checkpoint, but the strategy {type(strategy).__name__} keeps the "
                "whole module on each rank. Use the strategy that wrote the checkpoint, on any number of ranks. "
                "With `save_distributed_checkpoint: false`, ModelParallelStrategy writes single files"
            )

    def _refuse_used_folder(self, folder: Path) -> None:
        """Refuse a used folder; every rank checks and raises, because rank 0 writes only after a later barrier."""
        savers = [c for c in callbacks_of(self.trainer) if isinstance(c, ScheduledCheckpoint)]
        kept = {"checkpoints", "resume", "observations", *(c.folder for c in savers)}
        started = (folder / "config.yaml").exists() and any(_holds_something(folder / name) for name in kept)
        if started or holds_run(folder):
            raise ValueError(
                f"{folder} contains a run. Resume the run with --ckpt_path last, remove the folder, or choose another "
                "folder, e.g. with --trainer.logger.init_args.version NAME"
            )

    def _last_checkpoint(self, folder: Path) -> Path | None:
        """Return the newest full checkpoint of a run; None to restart a run that was stopped before its first one."""
        savers = self._full_savers
        found = self._full_checkpoints(folder)
        if not found and savers and (folder / "config.yaml").exists():
            if changed := changed_settings(folder, plain(self.config["fit"]), from_begin=True):
                raise ValueError(
                    f"the run {folder} stopped before its first full checkpoint and cannot restart with other settings "
                    f"({'; '.join(changed.values())}). Use the previous settings or another folder, or remove {folder}"
                )
            log.warning("the run %s stopped before its first full checkpoint: the run restarts", folder)
            return None
        if not found:
            raise FileNotFoundError(
                f"ckpt_path: last: {folder} contains no checkpoint to resume from. Select the folder of the run, e.g. "
                "with --trainer.logger.init_args.version version_0"
                + ("" if savers else ", or attach a ScheduledCheckpoint with weights_only: false")
            )
        return found[-1]

    @property
    def _full_savers(self) -> list[ScheduledCheckpoint]:
        callbacks = callbacks_of(self.trainer)
        return [c for c in callbacks if isinstance(c, ScheduledCheckpoint) and not c.weights_only]

    def _full_checkpoints(self, folder: Path) -> list[Path]:
        """Return the checkpoints from which a run can resume, in the order of steps."""
        found = [p for saver in self._full_savers for p in (folder / saver.folder).glob("step=*.ckpt")]
        for path in [p for p in found if p.is_dir() and not is_sharded_checkpoint(p)]:
            log.warning("lmdyn ignores %s: the folder has no complete checkpoint", path)
            found.remove(path)
        return sorted(found, key=lambda path: checkpoint_step(path) or 0)

    def after_fit(self) -> None:
        """Write the report, and log the paths of the outputs."""
        folder = run_folder(self.trainer)  # a broadcast: every rank must call it
        if self.trainer.fast_dev_run:  # type: ignore[attr-defined] # Lightning sets it undeclared
            log.info("fast_dev_run: lmdyn removes the temporary folder with all observations and checkpoints")
            return
        observed = any(isinstance(c, Observer) for c in callbacks_of(self.trainer))
        if not self.trainer.is_global_zero or not observed:
            return
        self._failed = not _write_report(folder)
        for logger in self.trainer.loggers:
            log.info("to see the curves: %s", where_curves_are(logger))

    def _write_metrics(self, name: str) -> None:
        """Write the metrics to ``test.json``, which ``report`` shows, or ``validate.json`` in the run's folder."""
        folder = run_folder(self.trainer)  # a broadcast: every rank must call it
        if self.trainer.is_global_zero:
            metrics: Config = {k: float(v) for k, v in self.trainer.callback_metrics.items()}
            checkpoint = self.config[name].get("ckpt_path")
            if checkpoint and Path(checkpoint).is_file():
                metrics["checkpoint"] = str(checkpoint)
                run = Path(checkpoint).absolute().parent.parent
                folder = run if (run / "config.yaml").exists() else folder  # the run that was tested
            path = folder / f"{name}.json"
            write_json(path, metrics)
            log.info("metrics: %s", path)

    after_test = partialmethod(_write_metrics, "test")
    after_validate = partialmethod(_write_metrics, "validate")


def _construct(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Return ``cls(*args, **kwargs)``; at module level, since ``ddp_spawn`` pickles the parser."""
    return cls(*args, **kwargs)


def _write_report(folder: Path) -> bool:
    """Write the report of a run that was observed; log why there is none, and return False if that is a failure."""
    if not _holds_something(folder / "observations"):
        log.warning("lmdyn wrote no report: no observer was due in this training; set another `schedule`")
        return True
    try:
        from lmdyn.cli.report import write_report

        log.info("report: %s", write_report([folder], folder / "report"))
    except Exception as error:
        if os.environ.get("LMDYN_TRACEBACK"):
            raise
        said = "error: the run is complete, but the report failed; to write the report, run `lmdyn report %s` (%s: %s)"
        log.error(said, folder, type(error).__name__, one_line(error))
        return False
    return True


def _holds_something(folder: Path) -> bool:
    """Return whether the folder has files, except hidden ones, such as those left by a killed process."""
    files = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    return any(not any(part.startswith(".") for part in path.parts) for path in files)


def check_hyperparameters(model: Config, saved: Config, path: str) -> None:
    """Compare a model's configuration with the hyperparameters of a checkpoint.

    An argument that the configuration leaves open (null, such as a vocabulary size) agrees with any number.

    Raises:
        ValueError: if they differ; the message lists the differences.
    """
    here = {"_class_path": model.get("class_path"), **model.get("init_args", {})}
    differences = [
        f"{key.removeprefix('_')}: {value!r} in the checkpoint, {here[key]!r} in the configuration"
        for key, value in saved.items()
        if here.get(key) is not None and _named(key, here[key]) != _named(key, value)
    ]
    if differences:
        raise ValueError(
            f"{path} is a checkpoint of another model ({'; '.join(differences)}): use the configuration of that "
            "model, or give another checkpoint"
        )


def _named(key: str, value: Any) -> Any:
    """Return a plain value as it is, and a class by its public name, since its module can be given in several ways."""
    return current_name(value) if key == "_class_path" and isinstance(value, str) else plain(value)


def as_option(config: Settings) -> str:
    """Return a configuration as a word of the command line."""
    return f"--config={yaml.safe_dump(dict(config), sort_keys=False)}"


def plain(value: Any) -> Any:
    """Convert jsonargparse's namespaces to dicts and tuples to lists, recursively."""
    if hasattr(value, "as_dict"):
        value = value.as_dict()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value
