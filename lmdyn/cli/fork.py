"""Forks: runs that continue from a full checkpoint of another run with other settings, in their own folder."""

import copy
import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lmdyn.cli.configurations import Config, callback_entries, class_path, complete_model, run_configuration
from lmdyn.cli.fit import ONE_PROCESS, LmdynCLI, as_option, plain
from lmdyn.cli.training.optimizers import change_optimizers
from lmdyn.runs.atomic_files import write_file
from lmdyn.runs.checkpoint_files import checkpoint_step, read_checkpoint
from lmdyn.runs.provenance import Settings
from lmdyn.runs.sharded_checkpoints import is_sharded_checkpoint
from lmdyn.runs.yaml_files import read_yaml

log = logging.getLogger(__name__)

_FREE_DATA = ("cache_dir", "num_workers")  # these do not change batches
_REFUSED = {
    "seed_everything": "the checkpoint restores random states; --data-seed changes the order of data",
    "trainer.logger": "a fork logs to its own folder, --out",
    "trainer.default_root_dir": "--out sets the folder of a fork",
    "ckpt_path": "--step sets the checkpoint",
}


def fork(
    run: Path,
    step: int | None = None,
    *,
    epoch: int | None = None,
    changes: Mapping[str, str] | None = None,
    data_seed: int | None = None,
    out: Path | None = None,
    command: Sequence[str] = ("lmdyn", "fork"),
) -> Path:
    """Continue from a full checkpoint of a run with other settings.

    Everything else is restored as in resuming: weights, the optimizer's state, random states, the position in the data.
    Without changes the fork equals the run bit by bit. Its ``config.yaml`` records its origin, by a
    :class:`~lmdyn.callbacks.ForkedFrom`, so that it can be resumed, observed and forked like any run. If a fork was
    killed, calling this function again resumes it.

    A learning rate is changed by its ratio to the run's own: if annealing or a schedule has reduced 20 to 5, a fork
    with 5 instead of 20 continues with 1.25.

    Args:
        run: the run's folder.
        step: step of a checkpoint in its ``resume/``, or in the folder of another full ``ScheduledCheckpoint``.
        epoch: alternative to ``step``: the number of whole epochs after which to fork.
        changes: settings by their names on the command line: ``{"model.init_args.dropout": "0"}``.
        data_seed: seed of another order of data after the fork; see
            :func:`~lmdyn.analysis.inspection.attributes.order_argument`.
        out: folder of the fork; default: next to the run, ``<run>_fork_<step>_<digest of the changes>``.
        command: words of the command line, for the provenance.

    Returns:
        The folder of the fork.

    Raises:
        FileNotFoundError: if there is no run, or no full checkpoint of this step; the message lists existing ones.
        ValueError: if a setting cannot change (the message gives the reason), nothing is left to train, or the folder
            contains another run.
    """
    run = Path(os.path.normpath(run))
    if not (run / "config.yaml").is_file():
        raise FileNotFoundError(f"{run / 'config.yaml'} is missing: expected a run folder of `lmdyn fit`")
    changes = dict(changes or {})
    config = run_configuration(run)
    _check_names(changes)
    found, why = _full_checkpoints(run, config)
    if step is None:
        step = next(
            (s for s in sorted(found, reverse=True) if _epochs(read_checkpoint(found[s])) == epoch), None
        )
    if step is None or step not in found:
        at = "epochs: true" if step is None else f"at: [{step}]"
        raise FileNotFoundError(
            f"{run} has no full checkpoint of {f'epoch {epoch}' if step is None else f'step {step}'}: {why}. Train the "
            f"run again with an additional callback ScheduledCheckpoint {{schedule: {{{at}}}, weights_only: false, "
            "folder: forks}"
        )
    origin = found[step]
    digest = hashlib.blake2b(json.dumps([sorted(changes.items()), data_seed]).encode(), digest_size=3)
    name = f"{run.name}_fork_{step}_{digest.hexdigest()}"
    out = Path(os.path.normpath(out)) if out is not None else run.with_name(name)
    about: Config = {"run": str(run), "step": step, "changes": changes, "data_seed": data_seed}
    words = [f"--{key}={value}" for key, value in changes.items()]
    if data_seed is not None:
        words.append(f"--data_seed={data_seed}")
    known = _goes_on(out, about)
    if known is not None:
        log.info("%s contains this fork: the fork resumes from its last checkpoint", out)
        resumed = "last"
    else:
        if is_sharded_checkpoint(origin):
            raise ValueError(
                f"{origin} is a sharded checkpoint, but a fork requires a single file. ModelParallelStrategy writes "
                "single files with `save_distributed_checkpoint: false`"
            )
        checkpoint = read_checkpoint(origin)
        if "optimizer_states" not in checkpoint:
            raise ValueError(
                f"{origin} contains weights but no resume state. A fork requires a full checkpoint, which a "
                "ScheduledCheckpoint with weights_only: false writes"
            )
        before = _rates(checkpoint)
        _change(checkpoint, config, _configuration(config, out, about), words, out.name)
        for state in _loaders(checkpoint):  # another order of rows, if the loader's own seed determines it
            if data_seed is not None and "seed" in (settings := state.get("settings", {})):
                settings["seed"] = data_seed
        about["rate"] = _ratio(before, _rates(checkpoint))
        target = out / origin.parent.name / origin.name
        write_file(target, partial(torch.save, {**checkpoint, "forked_from": about}))
        resumed = str(target)
    settings = as_option(_configuration(config, out, known or about))
    LmdynCLI(["fit", settings, *words, f"--ckpt_path={resumed}"], command=command)
    return out


def _full_checkpoints(run: Path, config: Settings) -> tuple[dict[int, Path], str]:
    """Return the full checkpoints by step, and a text that says why there are no others."""
    every = [c for c in callback_entries(config) if _is_a(c, "ScheduledCheckpoint")]
    arguments = [c.get("init_args") or {} for c in every if isinstance(c, Mapping)]
    savers = [given for given in arguments if given.get("weights_only") is False]
    folders = dict.fromkeys([*(saver.get("folder") or "resume" for saver in savers), "resume"])
    found: dict[int, Path] = {}
    for path in (p for folder in folders for p in sorted((run / folder).glob("step=*.ckpt"))):
        if (number := checkpoint_step(path)) is not None:
            found.setdefault(number, path)
    why = f"full checkpoints exist of steps {', '.join(map(str, sorted(found)))}" if found else "none exist"
    if kept := [saver["keep"] for saver in savers if saver.get("keep")]:
        why += f" (the ScheduledCheckpoint keeps only the newest {max(kept)})"
    return found, f"{why}; a fork cannot start from the files in checkpoints/, which contain only weights"


def _epochs(checkpoint: Settings) -> int | None:
    """Return the number of whole epochs trained so far; None within an epoch."""
    loop = checkpoint.get("loops", {}).get("fit_loop")
    if loop is None or loop["epoch_loop.batch_progress"]["current"]["ready"]:
        return None
    return int(loop["epoch_progress"]["current"]["completed"])


def _check_names(changes: Mapping[str, str]) -> None:
    for key in changes:
        for name, reason in _REFUSED.items():
            if key == name or key.startswith(f"{name}."):
                raise ValueError(f"{key} cannot change in a fork: {reason}")
        parts = key.split(".")
        if parts[0] == "data" and parts[-1] not in _FREE_DATA:
            raise ValueError(
                f"{key} cannot change in a fork, which continues with the vocabulary and position of the run's data. "
                "Use --data-seed to change the order of data"
            )


def _configuration(config: Settings, out: Path, about: Settings) -> Config:
    """Return the run's configuration for another folder, with its origin."""
    trainer = dict(config["trainer"])
    origin = {"class_path": "lmdyn.callbacks.ForkedFrom", "init_args": dict(about)}
    trainer["callbacks"] = [*(c for c in callback_entries(config) if not _is_a(c, "ForkedFrom")), origin]
    logger = trainer.get("logger")
    if logger is False:
        trainer["default_root_dir"] = str(out)
    elif isinstance(logger, list):
        trainer["logger"] = [_moved(one, out) for one in logger]
    else:
        trainer["logger"] = _moved(logger, out)
    return {**config, "trainer": trainer}


def _is_a(callback: Any, name: str) -> bool:
    return class_path(callback).rpartition(".")[2] == name


def _moved(logger: Any, out: Path) -> Config:
    """Return a logger's settings for another folder."""
    if not isinstance(logger, Mapping):  # Lightning's default
        logger = {"class_path": "lightning.pytorch.loggers.TensorBoardLogger", "init_args": {}}
    arguments = dict(logger.get("init_args") or {})
    if str(logger["class_path"]).rpartition(".")[2] in ("TensorBoardLogger", "CSVLogger"):
        arguments |= {"save_dir": str(out.parent), "name": "", "version": out.name}
    else:
        arguments |= {"save_dir": str(out)} | ({"version": out.name} if "version" in arguments else {})
    return {**logger, "init_args": arguments}


def _goes_on(out: Path, about: Settings) -> Settings | None:
    """Return the provenance of this fork if the folder contains it, interrupted; None if it must be started.

    Raises:
        ValueError: if the folder contains another run.
    """
    if not (out / "config.yaml").is_file():
        return None
    callbacks = callback_entries(read_yaml(out / "config.yaml"))
    origin = next((c["init_args"] for c in callbacks if _is_a(c, "ForkedFrom")), None)
    if origin is None or {key: origin.get(key) for key in about} != about:
        raise ValueError(
            f"{out} contains {'another fork' if origin else 'a run'}: choose another --out, or remove the folder"
        )
    return origin if any(out.glob("*/step=*.ckpt")) else None


def _rates(checkpoint: Settings) -> list[float]:
    """Return the current learning rates of all parameter groups."""
    return [
        float(group["lr"])
        for state in checkpoint.get("optimizer_states", ())
        for group in state["param_groups"]
        if "lr" in group
    ]


def _ratio(before: Sequence[float], now: Sequence[float]) -> float | None:
    """Return the common factor of all learning rates, to six digits; None without a common factor."""
    found = {float(f"{b / a:.6g}") if a else None for a, b in zip(before, now, strict=True)}
    return found.pop() if len(found) == 1 else None


def _change(
    checkpoint: Config,
    before: Settings,
    now: Settings,
    words: Sequence[str],
    name: str,
) -> None:
    """Apply the settings to a checkpoint: optimizers, schedules and hyperparameters; refuse impossible changes."""
    there = _built(before, [], checkpoint)
    here = _built(now, words, checkpoint)
    _check_end(checkpoint, here.config.trainer)
    for state in _loaders(checkpoint):  # a resumed run may not have another number of batches per update
        if "global_batch" in state:
            state["global_batch"]["accumulated"] = here.config.trainer.accumulate_grad_batches
    model, changed = (plain(cli.config.model) for cli in (there, here))
    if model == changed:
        return
    if model["class_path"] != changed["class_path"]:
        raise ValueError(
            f"model: {changed['class_path']} cannot continue from the weights of a {model['class_path']}: keep the "
            "class of the run"
        )
    _check_sizes(there.model, here.model)
    for line in change_optimizers(checkpoint, there.model, here.model):
        log.info("%s: %s", name, line)
    saved = checkpoint.get("hyper_parameters", {})
    for key, value in changed.get("init_args", {}).items():
        if key in saved and model["init_args"].get(key) != value:
            saved[key] = value


def _built(config: Settings, words: Sequence[str], checkpoint: Config) -> LmdynCLI:
    """Build model and data of a configuration on the CPU; sizes determined in training come from the checkpoint."""
    kept = copy.deepcopy(dict(config))
    complete_model(kept, checkpoint)
    alone = as_option({"trainer": {**ONE_PROCESS, "logger": False}})
    cli = LmdynCLI([as_option(kept), *words, alone], run=False)
    cli.model.configure_model()
    return cli


def _check_sizes(there: torch.nn.Module, here: torch.nn.Module) -> None:
    shapes = {name: tuple(w.shape) for name, w in there.state_dict().items()}
    wanted = {name: tuple(w.shape) for name, w in here.state_dict().items()}
    differ = [name for name in shapes.keys() | wanted.keys() if shapes.get(name) != wanted.get(name)]
    if differ:
        name = min(differ)
        raise ValueError(
            f"sizes cannot change in a fork, which keeps the run's weights: omit the --set that changes sizes. "
            f"{name} is {shapes.get(name, 'missing')} in the checkpoint and would be {wanted.get(name, 'missing')}"
        )


def _check_end(checkpoint: Settings, trainer: Any) -> None:
    step = int(checkpoint["global_step"])
    epochs = int(checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["completed"])
    for name, done in (("max_steps", step), ("max_epochs", epochs)):
        most = trainer.get(name)
        if most is not None and 0 <= most <= done:
            raise ValueError(
                f"no update is left to train: trainer.{name} is {most}, and the checkpoint is after step {step} "
                f"(whole epochs: {epochs}). Raise the setting: --set trainer.{name}={done + 1}"
            )


def _loaders(checkpoint: Settings) -> list[Config]:
    """Return the states of the training loaders."""
    states = checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader", ())
    return [state for state in states if isinstance(state, dict)]
