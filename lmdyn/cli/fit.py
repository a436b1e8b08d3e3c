"""Training and evaluation by LightningCLI, with resuming that cannot surprise."""

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

# imported so that yaml can name their classes without their modules
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
    "fit": "Train, with observers watching. --data_seed N sets the order of data, apart from --seed_everything.",
    "validate": "Evaluate a checkpoint on the validation data.",
    "test": "Evaluate a checkpoint on the test data.",
    "predict": "Collect the predictions of a checkpoint.",
}


class SaveRunConfig(SaveConfigCallback):
    """Saves ``config.yaml`` and ``provenance.json`` when a run is trained; testing it later does not overwrite them.

    Args:
        *args: those of Lightning's callback.
        command: the words of the command, for the provenance.
        **kwargs: those of Lightning's callback.
    """

    def __init__(self, *args: Any, command: Sequence[str] = (), **kwargs: Any) -> None:
        kwargs["save_to_log_dir"] = False  # Lightning would leave half a file where it is killed
        super().__init__(*args, **kwargs)
        self.command = command
        self._folder = Path()
        self._session: int | None = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Save in ``fit`` only."""
        if stage == "fit":
            self._folder = run_folder(trainer)  # a broadcast: every rank must ask
            super().setup(trainer, pl_module, stage)

    def save_config(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Write both; called on rank 0, before anything is observed."""

        def write(path: Path) -> None:
            self.parser.save(
                self.config, str(path), skip_none=False, overwrite=True, multifile=self.multifile
            )

        write_file(self._folder / self.config_filename, write)
        self._session = begin_session(self._folder, self.command, str(trainer.strategy.root_device))

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """End it."""
        if trainer.is_global_zero:
            checks = [c.compared for c in callbacks_of(trainer) if isinstance(c, Preflight)]
            parameters = sum(parameter.numel() for parameter in pl_module.parameters())
            about = {"step": trainer.global_step, "parameters": parameters, **(checks or [{}])[0]}
            end_session(self._folder, self._session, **about)


class LmdynCLI(LightningCLI):
    """LightningCLI with lmdyn's classes, exact resuming, and a report at the end of ``fit``.

    ``--ckpt_path last`` resumes from the newest full checkpoint of the run's folder; without one it is an error.
    A fresh ``fit`` refuses a folder that already holds a run, and each one a folder that another process trains in.
    Checkpoints are files of this machine, read with ``weights_only=True`` by every subcommand.

    Args:
        args: the words of the command line.
        run: whether to run the subcommand that they begin with.
        command: the words that were typed, for the provenance, where they are others.
    """

    def __init__(
        self, args: Sequence[str], *, run: bool = True, command: Sequence[str] | None = None
    ) -> None:
        self._writer: FolderLock | None = None
        self._folder: Path | None = None
        self._resumed: tuple[Any, ...] = ()  # what is compared where a run goes on
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
                "description": "lmdyn: train a language model and watch how it learns",
                **{name: {"description": f"{what} {INSPECT_FIRST}"} for name, what in _DESCRIPTIONS.items()},
            },
            parser_class=Parser,
            args=list(args),
            run=run,
        )

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """LightningCLI's parser, but a later ``callbacks:`` replaces the list."""
        parser = super().init_parser(**kwargs)
        action = next(a for a in parser._actions if a.dest == "config")
        action.__class__ = ConfigFile  # Lightning has added its own under these names already
        return parser

    def parse_arguments(self, parser: Any, args: Any) -> None:
        """Parse ``args`` whatever ``sys.argv`` says (Lightning warns of it); ``--data_seed`` is the order of data."""
        args, seed = data_seed(args)
        self.config = parser.parse_args(args)
        if seed is not None:
            data = (
                self.config[self.config.subcommand].data if "subcommand" in self.config else self.config.data
            )
            name = order_argument(data.init_args.keys()) if "init_args" in data else None
            if name is None:
                raise ValueError(
                    f"--data_seed {seed}: {data.class_path} has neither order_seed nor seed: leave --data_seed out"
                )
            data.init_args[name] = seed

    def before_instantiate_classes(self) -> None:
        """Note which error each constructor raises; those of model and data are LightningCLI's to call."""
        self.parser.add_instantiator(
            lambda cls, *args, **kwargs: cls(*args, **kwargs), object, subclasses=True
        )

    def instantiate_classes(self) -> None:
        """Make what is configured; an error is that of the constructor, not what jsonargparse makes of it."""
        try:
            super().instantiate_classes()
        except Exception:
            assert isinstance(self.parser, Parser)
            if not self.parser.raised:
                raise
            error = self.parser.raised[-1]
            raise error from error.__cause__

    def _parse_ckpt_path(self) -> None:
        """Refuse what is no file, and hyperparameters that differ: Lightning lets them override the configuration."""
        subcommand = self.config.get("subcommand")
        if not subcommand:
            return
        config = self.config[subcommand]
        if config.get("weights_only") is False:
            raise ValueError(
                "weights_only: expected true or null, got false: other checkpoints can run code when they are read; "
                "save weights and plain values"
            )
        path = config.get("ckpt_path")
        if path is None or (subcommand == "fit" and path == "last"):  # before_fit looks for the last one
            return
        sharded = is_sharded_checkpoint(Path(path))
        if not (sharded or Path(path).is_file()):
            raise FileNotFoundError(
                f"ckpt_path: there is no checkpoint {path}: expected a file on this machine, or the folder of a "
                "sharded one (download a remote one)"
            )
        checkpoint = about_sharded(Path(path)) if sharded else read_checkpoint(Path(path))
        if subcommand == "fit" and "optimizer_states" not in checkpoint:
            raise ValueError(
                f"ckpt_path: {path} holds weights and no resume state: a run goes on from a full checkpoint, one "
                "of its resume/ (which a ScheduledCheckpoint of weights_only: false writes)"
            )
        needed = (
            ("pytorch-lightning_version", "loops") if subcommand == "fit" else ("pytorch-lightning_version",)
        )
        for key in needed:
            if key not in checkpoint:
                raise ValueError(
                    f"ckpt_path: {path} lacks {key!r}, which Lightning writes into each checkpoint: was it made by "
                    "another program? expected a checkpoint of a Trainer's, as `lmdyn fit` writes it"
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
        """Arguments of the Trainer's method; it would unpickle what weights_only=None leaves open."""
        return {**super()._prepare_subcommand_kwargs(subcommand), "weights_only": True}

    def before_fit(self) -> None:
        """Resolve ``last``; refuse to begin a run where one already is; check ahead what would fail later."""
        callbacks_of(self.trainer).insert(0, Preflight())
        if isinstance(self.trainer.progress_bar_callback, RichProgressBar) and not sys.stdout.isatty():
            callbacks_of(self.trainer).append(ProgressLines())
        config = self.config["fit"]
        folder = self._folder = run_folder(self.trainer)
        if self.trainer.is_global_zero:
            self._writer = FolderLock(folder)
            self._writer.acquire(wait=CHAIN in os.environ)  # its chain has ended all that it could end
        path = config.get("ckpt_path")
        if path is None:
            self._refuse_used_folder(folder)
        elif path == "last":
            last = self._last_checkpoint(folder)
            path = config["ckpt_path"] = self.config_init["fit"]["ckpt_path"] = last and str(last)
            self._parse_ckpt_path()
        elif (folder / "config.yaml").is_file() and Path(path).resolve().parent.parent != folder.resolve():
            check_resumed(folder, *self._resumed)  # a checkpoint that was copied
        if path is None:
            for logger in self.trainer.loggers if _holds_something(folder) else ():
                purge_after(logger, -1)
        elif (step := checkpoint_step(Path(path))) is not None:
            for logger in self.trainer.loggers:
                purge_after(logger, step)

    def _run_subcommand(self, subcommand: str) -> None:
        """Run it; a run that was terminated says so, where Lightning exits as if it had ended."""
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
        """Of a training that was stopped; nothing here waits for other ranks."""
        if self._folder is None or not self.trainer.is_global_zero:
            return
        said = f"stopped at step {self.trainer.global_step}"
        if not self._full_savers:
            log.info(
                "%s; to be able to go on, a run needs a ScheduledCheckpoint with weights_only: false", said
            )
            return
        full = self._full_checkpoints(self._folder)
        start = f"step {checkpoint_step(full[-1])}" if full else "its beginning"
        logger = plain(self.config["fit"])["trainer"].get("logger")
        words = " --ckpt_path last"
        named = isinstance(logger, dict) and "version" in (logger.get("init_args") or {})
        if named and logger["init_args"]["version"] is None:  # the next run would have the next number
            words = f" --trainer.logger.init_args.version {self._folder.name}{words}"
        elif logger is not False and not named:  # Lightning's own loggers, several, or of a user's own
            words += (
                f", and its logger with the folder of this run, {self._folder} (version: {self._folder.name})"
            )
        log.info("%s; to go on, from %s: the same command with%s", said, start, words)

    def _refuse_whole_module_for_sharded(self, path: str | None) -> None:
        """A sharded checkpoint, which each rank reads its part of, where ranks have the whole module."""
        strategy = self.trainer.strategy
        if path is not None and is_sharded_checkpoint(Path(path)) and not isinstance(strategy, SHARDING):
            raise ValueError(
                f"ckpt_path: {path} is a sharded checkpoint, and ranks have the whole module here "
                f"({type(strategy).__name__}): give the strategy of the run that wrote it (on any number of ranks; "
                "its `save_distributed_checkpoint: false` writes files)"
            )

    def _refuse_used_folder(self, folder: Path) -> None:
        """Every rank looks for itself, and all of them raise: rank 0 writes only when all have met, which is later."""
        savers = [c for c in callbacks_of(self.trainer) if isinstance(c, ScheduledCheckpoint)]
        kept = {"checkpoints", "resume", "observations", *(c.folder for c in savers)}
        if (folder / "config.yaml").exists() and any(_holds_something(folder / name) for name in kept):
            raise ValueError(
                f"{folder} already holds a run: resume it with --ckpt_path last, remove it, or choose another folder, "
                "e.g. --trainer.logger.init_args.version NAME"
            )

    def _last_checkpoint(self, folder: Path) -> Path | None:
        """The newest full checkpoint of a run; None where one was begun that has none yet, to begin it again."""
        savers, found = self._full_savers, self._full_checkpoints(folder)
        if not found and savers and (folder / "config.yaml").exists():
            if changed := changed_settings(folder, plain(self.config["fit"]), from_begin=True):
                raise ValueError(
                    f"{folder} was stopped before its first full checkpoint and cannot begin again with other settings "
                    f"({'; '.join(changed.values())}): give those from before, remove it, or choose another folder"
                )
            log.warning("%s was stopped before its first full checkpoint: it begins again", folder)
            return None
        if not found:
            raise FileNotFoundError(
                f"ckpt_path: last: no checkpoint to resume from in {folder} (name the run's folder, e.g. by "
                "--trainer.logger.init_args.version version_0)"
                + ("" if savers else ": attach a ScheduledCheckpoint with weights_only: false")
            )
        return found[-1]

    @property
    def _full_savers(self) -> list[ScheduledCheckpoint]:
        callbacks = callbacks_of(self.trainer)
        return [c for c in callbacks if isinstance(c, ScheduledCheckpoint) and not c.weights_only]

    def _full_checkpoints(self, folder: Path) -> list[Path]:
        """Those from which a run goes on, in the order of steps."""
        found = [p for saver in self._full_savers for p in (folder / saver.folder).glob("step=*.ckpt")]
        for path in [p for p in found if p.is_dir() and not is_sharded_checkpoint(p)]:
            log.warning("%s is a folder and no whole checkpoint: it is passed over", path)
            found.remove(path)
        return sorted(found, key=lambda path: checkpoint_step(path) or 0)

    def after_fit(self) -> None:
        """Write the report, and say where everything is."""
        folder = run_folder(self.trainer)  # a broadcast: every rank must ask
        if not self.trainer.is_global_zero or not any(
            isinstance(c, Observer) for c in callbacks_of(self.trainer)
        ):
            return
        try:
            from lmdyn.cli.report import write_report

            log.info("report: %s", write_report([folder], folder / "report"))
        except Exception:  # the run is complete without it
            log.exception("no report: the run is complete, and `lmdyn report %s` writes it later", folder)
        for logger in self.trainer.loggers:
            log.info("curves: %s", where_curves_are(logger))

    def after_test(self) -> None:
        """Keep the numbers: ``test.json`` in the run's folder, which ``report`` shows."""
        self._write_metrics("test")

    def after_validate(self) -> None:
        """Keep the numbers: ``validate.json`` in the run's folder."""
        self._write_metrics("validate")

    def _write_metrics(self, name: str) -> None:
        folder = run_folder(self.trainer)  # a broadcast: every rank must ask
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
            log.info("numbers: %s", path)


def data_seed(args: Sequence[str]) -> tuple[list[str], int | None]:
    """Arguments without ``--data_seed N``, and N, which sets the argument that :func:`order_argument` names.

    Raises:
        ValueError: what follows is no number.

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
            raise ValueError(f"{option} is {text!r}: expected a number from 0")
        seed = int(text)
    return rest, seed


def run_folder(trainer: L.Trainer) -> Path:
    """The run's folder."""
    return Path(trainer.log_dir or trainer.default_root_dir)


def _holds_something(folder: Path) -> bool:
    """Whether there are files, other than what a killed process had begun and what is derived."""
    files = (p for p in folder.rglob("*") if CACHE not in p.relative_to(folder).parts)
    return any(not p.name.startswith(".") for p in files if p.is_file())


def check_hyperparameters(model: dict[str, Any], saved: dict[str, Any], path: str) -> None:
    """Compare a model's configuration with the hyperparameters of a checkpoint.

    What the configuration leaves open (null, as a vocabulary size to be found) agrees with any number.

    Raises:
        ValueError: they differ, with what differs.
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
            f"{path} was written by another model ({'; '.join(differences)}): give the same configuration, or another "
            "checkpoint"
        )


def _named(key: str, value: Any) -> Any:
    """A plain value; a class by its public name, as its module may be given in several ways."""
    return current_name(value) if key == "_class_path" and isinstance(value, str) else plain(value)


def plain(value: Any) -> Any:
    """Namespaces of jsonargparse's as dicts, tuples as lists, at any depth."""
    if hasattr(value, "as_dict"):
        value = value.as_dict()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value
