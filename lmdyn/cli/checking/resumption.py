"""What a run that goes on was trained with, against what it is asked to go on with."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmdyn.claims.runs import flat_configuration
from lmdyn.cli.configurations import read_yaml

__all__ = ["changed_settings", "check_resumed"]

log = logging.getLogger(__name__)

_TRAINER: dict[str, dict[str, Any]] = {
    "accumulate_grad_batches": {},
    "gradient_clip_val": {"0": None, "0.0": None},
    "gradient_clip_algorithm": {"None": "norm"},
    "precision": {"None": "32-true", "32": "32-true", "64": "64-true", "16": "16-mixed", "bf16": "bf16-mixed"},
    "limit_train_batches": {"None": "all", "1.0": "all"},
    "overfit_batches": {"0": 0.0, "None": 0.0},
}  # fmt: skip
"""Arguments that act on training; values that mean the same as others, as text, with these."""
_FOUND = "vocab_size"  # left open (null) it is found, and is another number only with another tokenizer
_FREE = ("cache_dir", "num_workers", "pin_memory")  # they change no batch


def check_resumed(
    run: Path,
    config: Mapping[str, Any],
    saved: Mapping[str, Any],
    loaders: Sequence[Any] = (),
    optimizers: Sequence[Any] = (),
) -> None:
    """Compare what trains in a configuration with the ``config.yaml`` of the run that goes on.

    A checkpoint brings back the state of the optimizer, its rates and other settings among it, so that others would be
    without effect; they are refused. What does act from here on, such as clipping or another order of the data, is
    warned of: the two parts of the run are trained otherwise.

    Args:
        run: the run's folder; without a ``config.yaml`` in it only the optimizer is compared, with its saved state.
        config: ``trainer``, ``model`` and ``data``, plain values.
        saved: hyperparameters of the checkpoint, which are compared elsewhere.
        loaders: states of the training loaders in it; those that know the batch of all ranks compare themselves how it
            is divided.
        optimizers: states of the optimizers in it.

    Raises:
        ValueError: another optimizer, or other settings of it; a ``config.yaml`` that cannot be read.
    """
    lines = changed_settings(run, config)
    kept = [line for k, line in lines.items() if k.startswith("model.optimizer")]
    if not (run / "config.yaml").is_file():
        kept = _other_than_saved(config, optimizers)
    if kept:
        raise ValueError(
            f"{run} was trained with another optimizer ({'; '.join(kept)}), whose state and rates its checkpoint "
            "brings back: a run goes on with what it had. `lmdyn fork RUN --step K --set model.init_args.optimizer…=…` "
            "trains on with other settings, in a folder of its own"
        )
    model = config["model"].get("init_args") or {}
    compared = [f"model.{name}" for name in saved if model.get(name) is not None or name == _FOUND]
    if loaders and all(isinstance(state, Mapping) and "global_batch" in state for state in loaders):
        divided = {"trainer.accumulate_grad_batches", "data.batch_size"}
        compared += [*divided, *(["trainer.limit_train_batches"] if divided & lines.keys() else [])]
    below = tuple(f"{name}." for name in compared)
    if acting := [line for k, line in lines.items() if k not in compared and not k.startswith(below)]:
        log.warning(
            "%s goes on with other settings than it was trained with so far: %s. Where that is not meant, stop it and "
            "give those from before; `lmdyn fork` changes settings in a folder of its own",
            run,
            "; ".join(acting),
        )


def changed_settings(run: Path, config: Mapping[str, Any], *, from_begin: bool = False) -> dict[str, str]:
    """Settings that act on training and differ from those in a run's ``config.yaml``: by name, a line about each.

    What ends a run, observes it or says where things are does not act; a vocabulary's size that is left open (null) and
    paths, which move, do not differ. Without a ``config.yaml`` nothing does.

    Args:
        run: the run's folder.
        config: what it is asked to go on with, plain values.
        from_begin: whether nothing is restored, so that the seed acts, too.

    Raises:
        ValueError: a ``config.yaml`` that cannot be read.
    """
    if not (run / "config.yaml").is_file():
        return {}
    before = read_yaml(run / "config.yaml")
    there, here = _trains(before, run), _trains(config, run)
    if from_begin:  # a checkpoint brings back its random states
        there["seed_everything"], here["seed_everything"] = (
            c.get("seed_everything") for c in (before, config)
        )
    return {
        name: f"{name}: {value!r} before, {here[name]!r} now"
        for name, value in there.items()
        if name in here and _other(name, value, here[name])
    }


def _trains(config: Any, run: Path) -> dict[str, Any]:
    """What the batches, the model and its updates depend on, flat."""
    if not isinstance(config, Mapping) or not isinstance(config.get("trainer"), Mapping):
        raise ValueError(f"{run / 'config.yaml'} is no configuration of a run: it has no `trainer`")
    found = {f"trainer.{k}": same.get(str(v := config["trainer"].get(k)), v) for k, same in _TRAINER.items()}
    for part in ("model", "data"):
        found |= dict(flat_configuration(config.get(part) or {}, part))
    return {k: v for k, v in found.items() if k.rpartition(".")[2] not in _FREE}


def _other(name: str, there: Any, here: Any) -> bool:
    """Whether two values differ; paths, which move, and a size that is found do not."""
    if any(isinstance(v, str) and "/" in v for v in (there, here)):
        return False
    if (there is None or here is None) and name.rpartition(".")[2] == _FOUND:
        return False
    return bool(there != here)


def _other_than_saved(config: Mapping[str, Any], optimizers: Sequence[Any]) -> list[str]:
    """What an optimizer is asked for and its saved state lacks or has otherwise, a line each.

    A rate that was lowered without a schedule of torch's does not say what it began with: another one is warned of.
    """
    asked = (config["model"].get("init_args") or {}).get("optimizer")
    groups = optimizers[0].get("param_groups") if len(optimizers) == 1 else None
    if not isinstance(asked, Mapping) or "class_path" not in asked or not groups:
        return []
    of_torch = str(asked["class_path"]).startswith("torch.optim.")  # their groups hold all arguments
    lines = []
    for name, value in (asked.get("init_args") or {}).items():
        began = "initial_lr" if name == "lr" and "initial_lr" in groups[0] else name
        there = [group.get(began) for group in groups]
        if any(v == value or (isinstance(v, tuple) and list(v) == value) for v in there):
            continue
        if began == "lr" and there[0] is not None:
            log.warning(
                "the checkpoint goes on with its learning rate %s: lr %s is without effect", there[0], value
            )
        elif name in groups[0] or of_torch:
            lines.append(f"model.optimizer.{name}: {there[0]!r} before, {value!r} now")
    return lines
