"""Loggers of a replay: those of the configuration or of ``--logger``, separate from the training's."""

import inspect
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger

from lmdyn.analysis.inspection.attributes import did_you_mean
from lmdyn.analysis.inspection.forward import dotted
from lmdyn.callbacks.observing.loggers import where_curves_are
from lmdyn.callbacks.training.lightning_internals import process_rank, start_wandb_run
from lmdyn.cli.configurations import Config
from lmdyn.cli.parsing.errors import causes
from lmdyn.cli.parsing.lightning_parser import Parser

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Destination:
    """Name and place of a replay's logs.

    Attributes:
        out: folder that receives the replay's observations.
        name: name of the replayed run.
        shard: (i, n), see :func:`~lmdyn.cli.commands.parse_shard`.
    """

    out: Path
    name: str
    shard: tuple[int, int] = (0, 1)


def logger_settings(own: Any, overlays: Sequence[Any], named: Sequence[str], to: Destination) -> list[Config]:
    """Return the loggers of a replay in the format of ``trainer.logger``; none writes to the place of the training.

    A logger's configuration (project, prefix, offline) is kept, except for the place to which it writes:

    - TensorBoard: ``<out>/replay``, which all workers and all replays share;
    - CSV, and other loggers with ``save_dir``, ``name`` and ``version``: ``<out>/replay/version_<n>``, a new one each
      time;
    - Weights & Biases: a new run ``<name>-replay`` of job type ``replay`` in the same project, workers in one group;
    - a configured logger that has none of these is left out with a warning; it is used unchanged if it is ``named``.

    Args:
        own: ``trainer.logger`` of the run's own configuration; a run without one uses TensorBoard.
        overlays: ``trainer.logger`` of each configuration on top of it that has one; the last one is used.
        named: classes given by ``--logger``, which replace these; ``none`` for no logger.
        to: name and place.

    Raises:
        ValueError: if a class is unknown, or ``none`` is given with others.

    Example:
        >>> to = Destination(Path("runs/a"), "a")
        >>> logger_settings(None, [], [], to)[0]["init_args"]
        {'save_dir': 'runs/a', 'name': '', 'version': 'replay'}
        >>> logger_settings(None, [], ["none"], to)
        []
    """
    nothing = {"none", "null", "false"}
    if any(name.lower() in nothing for name in named):
        if len(named) > 1:
            raise ValueError(f"--logger {' --logger '.join(named)}: give either none, or only loggers")
        return []
    own_ones = _listed(own) or [{"class_path": "TensorBoardLogger"}]
    configured = own_ones if not overlays else _listed(overlays[-1])
    if not overlays or overlays[-1] is True or named:
        wanted = [_described(name, [*configured, *own_ones]) for name in named] or own_ones
    else:
        wanted = configured
    found = []
    for settings in wanted:
        cls = _logger_class(settings["class_path"])
        moved = _moved(cls, settings, to)
        if moved is None and not named:
            log.warning(
                "lmdyn leaves out the logger %s, which has no argument to separate a replay from the training. To use "
                "the logger unchanged, pass `--logger %s`",
                cls.__name__,
                settings["class_path"],
            )
            continue
        found.append(settings if moved is None else moved)
    return found


def _listed(given: Any) -> list[Config]:
    """Return ``trainer.logger`` (a class, one with arguments, a list of both, true or false) as a list."""
    items = given if isinstance(given, list) else [given]
    described = [{"class_path": item} if isinstance(item, str) else item for item in items]
    return [dict(item) for item in described if isinstance(item, Mapping) and "class_path" in item]


def _described(name: str, configured: Sequence[Config]) -> Config:
    """Return the configured settings of a class, or the class without settings."""
    cls = _logger_class(name)
    for one in configured:
        with suppress(ValueError):  # another class, which may not exist
            if _logger_class(one["class_path"]) is cls:
                return {**one, "class_path": name}
    return {"class_path": name}


def _logger_class(name: str) -> type[Logger]:
    """Return a logger class by its short name or its dotted path."""
    known: dict[str, type[Logger]] = {}
    pending: list[type[Logger]] = Logger.__subclasses__()
    for cls in pending:  # pending grows during the loop
        known.setdefault(cls.__name__, cls)
        pending += cls.__subclasses__()
    found: Any = dotted(name) if "." in name else known.get(name)
    if not (isinstance(found, type) and issubclass(found, Logger)):
        public = sorted(n for n in known if n[0] != "_" and n != "DummyLogger")
        raise ValueError(
            f"unknown logger {name!r}{did_you_mean(name, public) or ':'} loggers are {', '.join(public)}. Name "
            "other loggers by their dotted path, package.Class. To use no logger, pass `--logger none`"
        )
    return found


def _moved(cls: type[Logger], settings: Config, to: Destination) -> Config | None:
    """Return the settings with the replay's own place; None if the class has no argument for it."""
    known = inspect.signature(cls).parameters
    given = dict(settings.get("init_args") or {})
    more = dict(settings.get("dict_kwargs") or {})
    i, n = to.shard
    worker = f"-{i}of{n}" if n > 1 else ""
    if issubclass(cls, TensorBoardLogger):  # each writer has its own file
        more.pop("purge_step", None)
        given.pop("sub_dir", None)
        given |= {"save_dir": str(to.out), "name": "", "version": "replay"}
    elif issubclass(cls, WandbLogger):
        for key in ("id", "dir", "experiment", "log_model"):
            given.pop(key, None)
        for key in ("resume", "resume_from", "fork_from", "reinit"):
            more.pop(key, None)
        name = f"{given.get('name') or to.name}-replay"
        # its own id, since $WANDB_RUN_ID may be the training's; seeded generators would give all workers the same
        given |= {"save_dir": str(to.out), "name": name + worker, "version": f"replay-{secrets.token_hex(4)}"}
        more |= {"job_type": "replay"}
        if worker and not more.get("group"):
            more["group"] = name
    elif {"save_dir", "name", "version"} <= known.keys():
        given |= {"save_dir": str(to.out), "name": "replay", "version": None}
    else:
        return None
    return {
        "class_path": settings["class_path"],
        "init_args": given,
        **({"dict_kwargs": more} if more else {}),
    }


def _claimed(folder: Path) -> int:
    """Create a new folder ``version_<n>`` and return n: exclusive creation separates simultaneous workers."""
    folder.mkdir(parents=True, exist_ok=True)
    for n in count():
        with suppress(FileExistsError):
            (folder / f"version_{n}").mkdir()
            return n
    raise AssertionError


def make_loggers(settings: Sequence[Config]) -> list[Logger]:
    """Instantiate the loggers that the settings describe.

    A logger that numbers its folders gets the next number here, which no other process can take afterwards.

    Raises:
        ValueError: if a logger's package is not installed.
    """
    made: list[Logger] = []
    for one in settings:
        cls = _logger_class(one["class_path"])
        given = dict(one.get("init_args") or {})
        if given.get("name") == "replay" and given.get("version", 0) is None:
            given["version"] = _claimed(Path(given["save_dir"]) / "replay")
        parser = Parser()
        parser.add_subclass_arguments(Logger, "logger")
        parsed = parser.parse_object({"logger": {**one, "init_args": given}})
        try:
            made.append(parser.instantiate_classes(parsed).logger)
        except Exception as error:
            missing = next((e for e in causes(error) if isinstance(e, ImportError)), None)
            if missing is None:
                raise
            remedy = " (pip install 'lmdyn[wandb]')" if issubclass(cls, WandbLogger) else ""
            raise ValueError(
                f"{cls.__name__} requires a package that is not installed{remedy}: {missing}"
            ) from error
    return made


@contextmanager
def logging_to(loggers: Sequence[Logger]) -> Iterator[None]:
    """Open loggers for a replay, and close them afterwards, also after an error, so that all entries are written.

    Workers are independent processes that all log: in processes started by torchrun or SLURM as rank 1 and above,
    Lightning's loggers would do nothing.
    """
    rank = process_rank(0)
    status = "failed"
    opened: list[Logger] = []
    try:
        for logger in loggers:
            if isinstance(logger, WandbLogger):
                _start(logger)
            opened.append(logger)
        yield
        status = "success"
    finally:
        for logger in opened:
            try:
                _close(logger, status)
            except Exception:  # the observations are already stored
                log.exception(
                    "the logger %s did not close: its last entries may be missing", type(logger).__name__
                )
        process_rank(rank)


def _start(logger: WandbLogger) -> None:
    try:
        start_wandb_run(logger)
    except Exception as error:  # from its service or the network
        raise ValueError(
            f"Weights & Biases is unavailable ({error}). Log in with `wandb login`, or choose another --logger. To "
            "work offline, set WANDB_MODE=offline, and upload later with `wandb sync`"
        ) from error


def _close(logger: Logger, status: str) -> None:
    folder = logger.log_dir
    if folder is None or Path(folder).exists():
        log.info("to see the curves: %s", where_curves_are(logger))
    logger.finalize(status)
    if isinstance(logger, WandbLogger):
        logger.experiment.finish(exit_code=0 if status == "success" else 1)
