"""Comparison of a resumed run's settings with those that it was trained with."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmdyn.runs.observed_run import flat_configuration
from lmdyn.runs.yaml_files import read_yaml

log = logging.getLogger(__name__)

_TRAINER = (
    "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm", "precision", "limit_train_batches",
    "overfit_batches",
)  # fmt: skip
"""Arguments that affect training."""
_FOUND = "vocab_size"  # if null, it is determined from the data, and differs only for another tokenizer
_FREE = ("cache_dir", "num_workers", "pin_memory")  # these do not change batches


def check_resumed(
    run: Path, config: Mapping[str, Any], saved: Mapping[str, Any], loaders: Sequence[Any] = ()
) -> None:
    """Compare training settings of a configuration with the ``config.yaml`` of the resumed run.

    A checkpoint restores the state of the optimizer, including its learning rates and other settings. Other settings
    would have no effect and are refused. Settings that do take effect, such as clipping or another data order, raise a
    warning: the two parts of the run are trained differently.

    Args:
        run: the run's folder; without a ``config.yaml`` nothing is compared.
        config: ``trainer``, ``model`` and ``data``, plain values.
        saved: hyperparameters of the checkpoint, which are compared elsewhere.
        loaders: states of the training loaders in it; loaders that know the batch of all ranks compare its division
            themselves.

    Raises:
        ValueError: if the optimizer or its settings differ, or ``config.yaml`` cannot be read.
    """
    lines = changed_settings(run, config)
    kept = [line for k, line in lines.items() if k.startswith("model.optimizer")]
    if kept:
        raise ValueError(
            f"{run} was trained with other settings of the optimizer ({'; '.join(kept)}), and the checkpoint restores "
            "state and learning rates of the optimizer. Resume with the previous settings. `lmdyn fork RUN --step K "
            "--set model.init_args.optimizer…=…` continues with other settings in a new folder"
        )
    model = config["model"].get("init_args") or {}
    compared = [f"model.{name}" for name in saved if model.get(name) is not None or name == _FOUND]
    if loaders and all(isinstance(state, Mapping) and "global_batch" in state for state in loaders):
        divided = {"trainer.accumulate_grad_batches", "data.batch_size"}
        compared += [*divided, *(["trainer.limit_train_batches"] if divided & lines.keys() else [])]
    below = tuple(f"{name}." for name in compared)
    if acting := [line for k, line in lines.items() if k not in compared and not k.startswith(below)]:
        log.warning(
            "%s resumes with other settings than before: %s. If you did not intend this change, stop the run and use "
            "the previous settings. `lmdyn fork` changes settings in a new folder",
            run,
            "; ".join(acting),
        )


def changed_settings(run: Path, config: Mapping[str, Any], *, from_begin: bool = False) -> dict[str, str]:
    """Return settings that affect training and differ from a run's ``config.yaml``: a line about each, by name.

    Settings that end a run, observe it or name paths do not affect training. A vocabulary size that is left open (null)
    and paths, which may be moved, do not count as differences. Without a ``config.yaml`` the result is empty.

    Args:
        run: the run's folder.
        config: the settings for resuming, plain values.
        from_begin: whether nothing is restored, so that the seed also matters.

    Raises:
        ValueError: if ``config.yaml`` cannot be read.
    """
    if not (run / "config.yaml").is_file():
        return {}
    before = read_yaml(run / "config.yaml")
    there, here = _trains(before, run), _trains(config, run)
    if from_begin:  # a checkpoint restores its random states
        there["seed_everything"] = before.get("seed_everything")
        here["seed_everything"] = config.get("seed_everything")
    return {
        name: f"{name}: {value!r} before, {here[name]!r} now"
        for name, value in there.items()
        if name in here and _other(name, value, here[name])
    }


def _trains(config: Any, run: Path) -> dict[str, Any]:
    """Return the settings on which batches, model and updates depend, flattened."""
    if not isinstance(config, Mapping) or not isinstance(config.get("trainer"), Mapping):
        raise ValueError(f"{run / 'config.yaml'} has no `trainer`: restore the file that `lmdyn fit` wrote")
    found = {f"trainer.{name}": config["trainer"].get(name) for name in _TRAINER}
    for part in ("model", "data"):
        found |= dict(flat_configuration(config.get(part) or {}, part))
    return {k: v for k, v in found.items() if k.rpartition(".")[2] not in _FREE}


def _other(name: str, there: Any, here: Any) -> bool:
    """Return whether two values differ; paths, which may be moved, and sizes determined from the data do not."""
    if any(isinstance(v, str) and "/" in v for v in (there, here)):
        return False
    if (there is None or here is None) and name.rpartition(".")[2] == _FOUND:
        return False
    return bool(there != here)
