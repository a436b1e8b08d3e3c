"""What a run that goes on was trained with, against what it is asked to go on with."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmdyn.claims.runs import flat_configuration
from lmdyn.cli.configurations import read_yaml

__all__ = ["changed_settings", "check_resumed"]

log = logging.getLogger(__name__)

_TRAINER = ("accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm", "precision")
_FREE = ("cache_dir", "num_workers", "pin_memory")  # they change no batch


def check_resumed(
    run: Path, config: Mapping[str, Any], saved: Mapping[str, Any], loaders: Sequence[Any] = ()
) -> None:
    """Compare what trains in a configuration with the ``config.yaml`` of the run that goes on.

    A checkpoint brings back the state of the optimizer, its rates and other settings among it, so that others would be
    without effect; they are refused. What does act from here on, such as clipping or another order of the data, is
    warned of: the two parts of the run are trained otherwise.

    Args:
        run: the run's folder; without a ``config.yaml`` in it nothing is compared.
        config: ``trainer``, ``model`` and ``data``, plain values.
        saved: hyperparameters of the checkpoint, which are compared elsewhere.
        loaders: states of the training loaders in it; those that know the batch of all ranks compare themselves how it
            is divided.

    Raises:
        ValueError: another optimizer, or other settings of it; a ``config.yaml`` that cannot be read.
    """
    lines = changed_settings(run, config)
    kept = [line for k, line in lines.items() if k.startswith("model.optimizer")]
    if kept:
        raise ValueError(
            f"{run} was trained with another optimizer ({'; '.join(kept)}), whose state and rates its checkpoint "
            "brings back: a run goes on with what it had. `lmdyn fork RUN --step K --set model.init_args.optimizer…=…` "
            "trains on with other settings, in a folder of its own"
        )
    compared = tuple(f"model.{name}" for name in saved)
    if loaders and all(isinstance(state, Mapping) and "global_batch" in state for state in loaders):
        compared += ("trainer.accumulate_grad_batches", "data.batch_size")
    if acting := [line for k, line in lines.items() if not k.startswith(compared)]:
        log.warning(
            "%s goes on with other settings than it was trained with so far: %s. Where that is not meant, stop it and "
            "give those from before; `lmdyn fork` changes settings in a folder of its own",
            run,
            "; ".join(acting),
        )


def changed_settings(run: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Settings that act on training and differ from those in a run's ``config.yaml``: by name, a line about each.

    What ends a run, observes it or says where things are does not act; what is left open (null) and paths, which move,
    do not differ. Without a ``config.yaml`` nothing does.

    Raises:
        ValueError: a ``config.yaml`` that cannot be read.
    """
    if not (run / "config.yaml").is_file():
        return {}
    there, here = _trains(read_yaml(run / "config.yaml"), run), _trains(config, run)
    return {
        name: f"{name}: {value!r} before, {here[name]!r} now"
        for name, value in there.items()
        if name in here and _other(name, value, here[name])
    }


def _trains(config: Any, run: Path) -> dict[str, Any]:
    """What the batches, the model and its updates depend on, flat."""
    if not isinstance(config, Mapping) or not isinstance(config.get("trainer"), Mapping):
        raise ValueError(f"{run / 'config.yaml'} is no configuration of a run: it has no `trainer`")
    found = {f"trainer.{k}": config["trainer"].get(k) for k in _TRAINER}
    for part in ("model", "data"):
        found |= dict(flat_configuration(config.get(part) or {}, part))
    return {k: v for k, v in found.items() if k.rpartition(".")[2] not in _FREE}


def _other(name: str, there: Any, here: Any) -> bool:
    """Whether two values differ; paths, which move, and what a model or data left open (null) do not."""
    if any(isinstance(v, str) and "/" in v for v in (there, here)):
        return False
    if (there is None or here is None) and not name.startswith("trainer."):
        return False
    return bool(there != here)
