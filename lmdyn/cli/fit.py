"""Training and evaluation by LightningCLI, with exact resuming."""

import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities.exceptions import SIGTERMException

# imported so that yaml can name their classes without module paths
import lmdyn.callbacks
import lmdyn.datamodules
import lmdyn.models  # noqa: F401
from lmdyn.analysis.inspection.data_order import order_argument
from lmdyn.callbacks.gathered.gathered_store import CACHE
from lmdyn.callbacks.observing.loggers import where_curves_are
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.store import current_name
from lmdyn.callbacks.training.atomic_files import write_file
from lmdyn.callbacks.training.checkpoint import ScheduledCheckpoint, checkpoint_step
from lmdyn.callbacks.training.checkpoint_files import read_checkpoint
from lmdyn.callbacks.training.lightning_internals import SHARDING, callbacks_of, purge_after
from lmdyn.callbacks.training.resume import RunState
from lmdyn.callbacks.training.sharded_checkpoints import about_sharded, is_sharded_checkpoint
from lmdyn.cli import INSPECT_FIRST
from lmdyn.cli.checking.preflight import Preflight
from lmdyn.cli.checking.resumption import changed_settings, check_resumed
from lmdyn.cli.parser import ConfigFile, Parser
from lmdyn.cli.progress_lines import ProgressLines
from lmdyn.cli.studies.chain import CHAIN
from lmdyn.cli.studies.provenance import begin_session, end_session
from lmdyn.cli.studies.run_lock import FolderLock

__all__ = ["LmdynCLI", "SaveRunConfig", "data_seed", "plain"]

log = logging.getLogger(__name__)

_DESCRIPTIONS = {
    "fit": "Train a model with observers. --data_seed N sets the order of data independently of --seed_everything.",
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

        def write(path: Path) -> None:
            self.parser.save(
                self.config, str(path), skip_none=False, overwrite=True, multifile=self.multifile
            )

        write_file(self._folder / self.config_filename, write)
        self._session = begin_session(self._folder, self.command, str(trainer.strategy.root_device))

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Record the end of the run in the provenance."""
        if trainer.is_global_zero:
            checks = [c.compared for c in callbacks_of(trainer) if isinstance(c, Preflight)] or [{}]
            size = sum(parameter.numel() for parameter in pl_module.parameters())
            end_session(self._folder, self._session, step=trainer.global_step, parameters=size, **checks[0])


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
        return parser

    def parse_arguments(self, parser: Any, args: Any) -> None:
        """Parse ``args`` regardless of ``sys.argv`` (Lightning warns of it); ``--data_seed`` sets the order of data."""
        args, seed = data_seed(args)
        self.config = parser.parse_args(args)
        if seed is not None:
            data = (
                self.config[self.config.subcommand].data if "subcommand" in self.config else self.config.data
            )
            name = order_argument(data.init_args.keys()) if "init_args" in data else None
            if name is None:
                raise ValueError(
                    f"--data_seed {seed}: {data.class_path} has neither order_seed nor seed: omit --data_seed"
                )
            data.init_args[name] = seed

    def before_instantiate_classes(self) -> None:
        """Record the errors of constructors; LightningCLI itself calls those of model and data."""
        self.parser.add_instantiator(
            lambda cls, *args, **kwargs: cls(*args, **kwargs), object, subclasses=True
        )

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
                "weights_only: expected true or null, got false: loading other checkpoints can execute code; "
                "save weights and plain values only"
            )
        path = config.get("ckpt_path")
        if path is None or (subcommand == "fit" and path == "last"):  # before_fit finds the last one
            return
        sharded = is_sharded_checkpoint(Path(path))
        if not (sharded or Path(path).is_file()):
            raise FileNotFoundError(
                f"ckpt_path: checkpoint {path} does not exist: expected a local file, or the folder of a sharded "
                "checkpoint (download a remote one first)"
            )
        checkpoint = about_sharded(Path(path)) if sharded else read_checkpoint(Path(path))
        if subcommand == "fit" and "optimizer_states" not in checkpoint:
            raise ValueError(
                f"ckpt_path: {path} contains weights but no resume state: resume from a full checkpoint, one in the "
                "run's resume/ (written by a ScheduledCheckpoint with weights_only: false)"
            )
        needed = (
            ("pytorch-lightning_version", "loops") if subcommand == "fit" else ("pytorch-lightning_version",)
        )
        for key in needed:
            if key not in checkpoint:
                raise ValueError(
                    f"ckpt_path: {path} lacks {key!r}, which Lightning writes into each checkpoint: was it written by "
                    "another program? Expected a checkpoint of a Trainer, as written by `lmdyn fit`"
                )
        saved = checkpoint.get("hyper_parameters", {})
        saved = saved if isinstance(saved, dict) else {}
        check_hyperparameters(config.model.as_dict(), saved, path)
        if subcommand == "fit":
            loaders = checkpoint["loops"].get("fit_loop", {}).get("state_dict", {}).get("combined_loader", ())
            optimizers = () if "forked_from" in checkpoint else checkpoint["optimizer_states"]
            self._resumed = (plain(config), saved, loaders, optimizers)
            check_resumed(Path(path).absolute().parent.parent, *self._resumed)

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        """Return the arguments of the Trainer's method; with weights_only=None, it would unpickle."""
        return {**super()._prepare_subcommand_kwargs(subcommand), "weights_only": True}

    def before_fit(self) -> None:
        """Resolve ``last``; refuse to start a run in a used folder; check in advance what would fail later."""
        callbacks_of(self.trainer).insert(0, Preflight())
        if isinstance(self.trainer.progress_bar_callback, RichProgressBar) and not sys.stdout.isatty():
            callbacks_of(self.trainer).append(ProgressLines())
        config = self.config["fit"]
        folder = self._folder = run_folder(self.trainer)
        if self.trainer.is_global_zero:
            self._writer = FolderLock(folder)
            # a chain has already terminated the processes that it could
            self._writer.acquire(wait=CHAIN in os.environ)
        path = config.get("ckpt_path")
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
                purge_after(logger, -1)
        elif (step := checkpoint_step(Path(path))) is not None:
            for logger in self.trainer.loggers:
                purge_after(logger, step)

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

    def _say_how_to_go_on(self) -> None:
        """Log how to resume a training that was stopped; this must not wait for other ranks."""
        if self._folder is None or not self.trainer.is_global_zero:
            return
        said = f"stopped at step {self.trainer.global_step}"
        if not self._full_savers:
            log.info("%s; resuming requires a ScheduledCheckpoint with weights_only: false", said)
            return
        full = self._full_checkpoints(self._folder)
        start = f"step {checkpoint_step(full[-1])}" if full else "the beginning"
        logger = plain(self.config["fit"])["trainer"].get("logger")
        words = " --ckpt_path last"
        named = isinstance(logger, dict) and "version" in (logger.get("init_args") or {})
        if named and logger["init_args"]["version"] is None:  # by default the next run gets the next number
            words = f" --trainer.logger.init_args.version {self._folder.name}{words}"
        elif (
            logger is not False and not named
        ):  # Lightning's default logger, several loggers, or a user's class
            words += (
                f", and its logger with the folder of this run, {self._folder} (version: {self._folder.name})"
            )
        log.info("%s; to resume from %s: the same command with%s", said, start, words)

    def _refuse_whole_module_for_sharded(self, path: str | None) -> None:
        """Refuse a sharded checkpoint, of which each rank reads its part, if each rank holds the whole module."""
        strategy = self.trainer.strategy
        if path is not None and is_sharded_checkpoint(Path(path)) and not isinstance(strategy, SHARDING):
            raise ValueError(
                f"ckpt_path: {path} is a sharded checkpoint, but each rank holds the whole module here "
                f"({type(strategy).__name__}): use the strategy of the run that wrote it (with any number of ranks; "
                "its `save_distributed_checkpoint: false` writes single files)"
            )

    def _refuse_used_folder(self, folder: Path) -> None:
        """Refuse a used folder; every rank checks and raises, because rank 0 writes only after a later barrier."""
        savers = [c for c in callbacks_of(self.trainer) if isinstance(c, ScheduledCheckpoint)]
        kept = {"checkpoints", "resume", "observations", *(c.folder for c in savers)}
        if (folder / "config.yaml").exists() and any(_holds_something(folder / name) for name in kept):
            raise ValueError(
                f"{folder} contains a run: resume it with --ckpt_path last, remove it, or choose another folder, "
                "e.g. --trainer.logger.init_args.version NAME"
            )

    def _last_checkpoint(self, folder: Path) -> Path | None:
        """Return the newest full checkpoint of a run; None to restart a run that was stopped before its first one."""
        savers, found = self._full_savers, self._full_checkpoints(folder)
        if not found and savers and (folder / "config.yaml").exists():
            if changed := changed_settings(folder, plain(self.config["fit"]), from_begin=True):
                raise ValueError(
                    f"{folder} was stopped before its first full checkpoint and cannot restart with other settings "
                    f"({'; '.join(changed.values())}): use the previous ones, remove it, or choose another folder"
                )
            log.warning("%s was stopped before its first full checkpoint: it restarts", folder)
            return None
        if not found:
            raise FileNotFoundError(
                f"ckpt_path: last: no checkpoint to resume from in {folder} (select the run's folder, e.g. with "
                "--trainer.logger.init_args.version version_0)"
                + ("" if savers else ": attach a ScheduledCheckpoint with weights_only: false")
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
            log.warning("%s is a folder without a complete checkpoint: it is ignored", path)
            found.remove(path)
        return sorted(found, key=lambda path: checkpoint_step(path) or 0)

    def after_fit(self) -> None:
        """Write the report, and log the paths of the outputs."""
        folder = run_folder(self.trainer)  # a broadcast: every rank must call it
        if not self.trainer.is_global_zero or not any(
            isinstance(c, Observer) for c in callbacks_of(self.trainer)
        ):
            return
        try:
            from lmdyn.cli.report import write_report

            log.info("report: %s", write_report([folder], folder / "report"))
        except Exception:  # the run is complete without it
            log.exception("no report: the run is complete, and `lmdyn report %s` writes it again", folder)
        for logger in self.trainer.loggers:
            log.info("curves: %s", where_curves_are(logger))

    def after_test(self) -> None:
        """Write the metrics to ``test.json`` in the run's folder, which ``report`` shows."""
        self._write_metrics("test")

    def after_validate(self) -> None:
        """Write the metrics to ``validate.json`` in the run's folder."""
        self._write_metrics("validate")

    def _write_metrics(self, name: str) -> None:
        folder = run_folder(self.trainer)  # a broadcast: every rank must call it
        if self.trainer.is_global_zero:
            metrics: dict[str, Any] = {k: float(v) for k, v in self.trainer.callback_metrics.items()}
            checkpoint = self.config[name].get("ckpt_path")
            if checkpoint and Path(checkpoint).is_file():
                metrics["checkpoint"] = str(checkpoint)
                run = Path(checkpoint).absolute().parent.parent
                folder = run if (run / "config.yaml").exists() else folder  # the run that was tested
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{name}.json"
            text = json.dumps(metrics, indent=1) + "\n"
            write_file(path, lambda unfinished: unfinished.write_text(text, encoding="utf-8"))
            log.info("metrics: %s", path)


def data_seed(args: Sequence[str]) -> tuple[list[str], int | None]:
    """Return the arguments without ``--data_seed N``, and N, the value of the argument given by :func:`order_argument`.

    Raises:
        ValueError: if N is not a number.

    Example:
        >>> data_seed(["fit", "--data_seed", "3", "--config", "lm.yaml"])
        (['fit', '--config', 'lm.yaml'], 3)
    """
    rest: list[str] = []
    seed: int | None = None
    words = iter(args)
    for word in words:
        option, equals, value = word.partition("=")
        if option not in ("--data_seed", "--data-seed"):
            rest.append(word)
            continue
        text = value if equals else next(words, "")
        if not text.isdecimal():
            raise ValueError(f"{option} is {text!r}: expected an integer of at least 0")
        seed = int(text)
    return rest, seed


def run_folder(trainer: L.Trainer) -> Path:
    """Return the run's folder."""
    return Path(trainer.log_dir or trainer.default_root_dir)


def _holds_something(folder: Path) -> bool:
    """Return whether the folder has files, except derived ones and those left by a killed process."""
    files = (p for p in folder.rglob("*") if CACHE not in p.relative_to(folder).parts)
    return any(not p.name.startswith(".") for p in files if p.is_file())


def check_hyperparameters(model: dict[str, Any], saved: dict[str, Any], path: str) -> None:
    """Compare a model's configuration with the hyperparameters of a checkpoint.

    An argument that the configuration leaves open (null, such as a vocabulary size) agrees with any number.

    Raises:
        ValueError: if they differ; the message lists the differences.
    """
    here = {"_class_path": model.get("class_path"), **model.get("init_args", {})}
    ignored = {"_instantiator"}
    differences = [
        f"{key.removeprefix('_')}: {value!r} in the checkpoint, {here[key]!r} in the configuration"
        for key, value in saved.items()
        if key in here
        and key not in ignored
        and here[key] is not None
        and _named(key, here[key]) != _named(key, value)
    ]
    if differences:
        raise ValueError(
            f"{path} was written by another model ({'; '.join(differences)}): use the same configuration, or another "
            "checkpoint"
        )


def _named(key: str, value: Any) -> Any:
    """Return a plain value as it is, and a class by its public name, since its module can be given in several ways."""
    return current_name(value) if key == "_class_path" and isinstance(value, str) else plain(value)


def plain(value: Any) -> Any:
    """Convert jsonargparse's namespaces to dicts and tuples to lists, recursively."""
    if hasattr(value, "as_dict"):
        value = value.as_dict()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value
