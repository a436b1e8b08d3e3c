"""Reading of checkpoints: find them by step, load their weights into a module, build a module from their content."""

import hashlib
import inspect
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.inspection.forward import dotted
from lmdyn.runs.atomic_files import compare_checksums
from lmdyn.runs.hub_checkpoints import StoredNames, is_pretrained, name_step, read_pretrained, read_stored
from lmdyn.runs.sharded_checkpoints import is_sharded_checkpoint, read_sharded

COUNTED = {"counts": "updates"}
"""Entry of a checkpoint whose step is a number of updates, unlike Lightning's ``global_step``."""


def read_checkpoint(path: Path, stored: StoredNames | None = None) -> dict[str, Any]:
    """Read a checkpoint on the CPU: a file of Lightning, with ``weights_only=True``, or a folder.

    Folders have Hugging Face's format or that of sharded checkpoints. Files of Lightning are compared
    with their checksums, which torch ignores (0.3 s for a gigabyte).

    Args:
        path: the file or folder.
        stored: names of the weights in files of Hugging Face's format, if known: no model is built to read them.

    Raises:
        ValueError: if a file or folder cannot be read, is damaged, or is not a checkpoint.
    """
    if is_pretrained(path):
        return (stored and read_stored(path, stored)) or read_pretrained(path)
    if is_sharded_checkpoint(path):
        return read_sharded(path)
    try:
        if path.exists() and not path.is_file():
            raise ValueError("the path is not a file")
        compare_checksums(path)
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(
            f"{path} cannot be read as a checkpoint ({error}): use another file, or write the file again"
        ) from error
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise ValueError(f"{path} is not a Lightning checkpoint: expected an entry 'state_dict'")
    return checkpoint


def find_checkpoints(pattern: str) -> dict[int, Path]:
    """Find the checkpoints of a folder or glob by step, in the order of steps.

    These are files ``*.ckpt``, and folders ``checkpoint-*`` of transformers' Trainer or ``chck_*`` of the BabyLM
    challenge, whose number counts words. The step is the one in the name
    (``step=000000123.ckpt``, ``checkpoint-123``), else the file's own ``global_step``. A folder that itself contains
    one model of Hugging Face's format is a single checkpoint, with step 0 if its name contains neither ``step`` nor
    ``checkpoint-``.

    Raises:
        FileNotFoundError: if there are none.
        ValueError: for two checkpoints of one step, unless one is of a ``ScheduledCheckpoint``, or one without a step.
    """
    folder = Path(pattern)
    found = sorted(
        [*folder.glob("*.ckpt"), *checkpoint_folders(folder)]
        if folder.is_dir()
        else Path(folder.anchor).glob(str(folder.relative_to(folder.anchor)))
    ) or ([folder] if is_pretrained(folder) else [])
    if not found:
        raise FileNotFoundError(
            f"{pattern} has no checkpoints: expected a folder with *.ckpt or checkpoint-*/, or a glob of such paths"
        )
    steps: dict[int, Path] = {}
    for path in found:
        step = _step_of(path, single=path == folder)
        other = steps.get(step)
        scheduled = _is_scheduled(path)
        if other is not None and _is_scheduled(other) == scheduled:
            raise ValueError(f"{other} and {path} both have step {step}: select one with a glob")
        if other is None or scheduled:  # the other is of a ModelCheckpoint
            steps[step] = path
    return dict(sorted(steps.items()))


def _is_scheduled(path: Path) -> bool:
    """Return whether a file has the name that a ``ScheduledCheckpoint`` gives it."""
    return re.fullmatch(r"step=\d{9}\.ckpt", path.name) is not None


def checkpoint_folders(folder: Path) -> list[Path]:
    """Return the folders in ``folder`` that are named like checkpoints in Hugging Face's format."""
    return [p for pattern in ("checkpoint-*", "chck_*") for p in folder.glob(pattern) if p.is_dir()]


def _step_of(path: Path, single: bool) -> int:
    if not (path.is_dir() and (is_pretrained(path) or path.name.startswith("checkpoint-"))):
        step = checkpoint_step(path)
        return updates_in(read_checkpoint(path)) if step is None else step
    if single and not path.name.startswith("checkpoint-") and "step" not in path.name:
        return 0  # the number in llama3 is not a step
    if (named := name_step(path.name)) is None:
        raise ValueError(
            f"{path} has no step: expected a folder name that ends in the step, such as checkpoint-123"
        )
    return named


def newest_checkpoint(path: str, step: int | None = None) -> Path:
    """Return the checkpoint that a path denotes: a file, or the last step in a run's or another folder.

    Args:
        path: a checkpoint (also of Hugging Face's format), a run's folder (with ``checkpoints/``) or a
            folder of checkpoints; ``$VAR`` and ``~`` are expanded.
        step: for a folder, the step of the checkpoint; None for the last.

    Raises:
        FileNotFoundError: if there is no checkpoint, or none of this step.
    """
    found = Path(os.path.expandvars(path)).expanduser()
    if found.is_file() or is_pretrained(found) or is_sharded_checkpoint(found):
        return found
    folder = found / "checkpoints" if (found / "checkpoints").is_dir() else found
    checkpoints = find_checkpoints(str(folder))
    if step is not None and step not in checkpoints:
        raise FileNotFoundError(
            f"{folder} has no checkpoint of step {step}, only of {', '.join(map(str, checkpoints))}"
        )
    return checkpoints[max(checkpoints) if step is None else step]


def load_weights(module: Module, state_dict: Mapping[str, Tensor], path: Path) -> None:
    """Load all weights of a checkpoint.

    Raises:
        ValueError: if names or shapes do not fit the model; the message lists all of them.
    """
    own = module.state_dict()
    problems = [f"missing in the checkpoint: {name}" for name in own if name not in state_dict]
    problems += [f"not in the model: {name}" for name in state_dict if name not in own]
    problems += [
        f"{name}: {tuple(state_dict[name].shape)} in the checkpoint, {tuple(own[name].shape)} in the model"
        for name in own
        if name in state_dict and state_dict[name].shape != own[name].shape
    ]
    if problems:
        raise ValueError(f"{path} does not fit {type(module).__name__}: {'; '.join(problems)}")
    module.load_state_dict(state_dict)


def build_module(checkpoint: Mapping[str, Any], path: Path, class_path: str | None = None) -> Module:
    """Build a module with the hyperparameters and the weights of its checkpoint, in eval mode, frozen.

    A checkpoint cannot run code of its choice: the class that it records is used only if it is one of lmdyn's or was
    imported before, as are the classes of the run's configuration.

    Args:
        checkpoint: result of :func:`read_checkpoint`.
        path: its path, for messages.
        class_path: dotted path of its class, which is imported; by default the one that ``fit`` recorded.

    Raises:
        ValueError: if no class is known, if the recorded one is not imported or not a subclass of ``Module``,
            or if hyperparameters or weights do not fit it.
    """
    hyperparameters = dict(checkpoint.get("hyper_parameters", {}))
    recorded = hyperparameters.get("_class_path")
    if class_path is None and recorded is None:
        raise ValueError(
            f"{path} does not record the class of the module (`lmdyn fit` records the class if the module calls "
            "save_hyperparameters()). Pass the dotted path of the class, `module: my_package.MyModule`"
        )
    cls = _recorded_class(str(recorded), path) if class_path is None else dotted(class_path)
    class_path = class_path or recorded
    if not (isinstance(cls, type) and issubclass(cls, Module)):
        raise ValueError(f"{path}: expected a subclass of torch.nn.Module, got {class_path}")
    known = inspect.signature(cls).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in known.values())
    arguments = {k: v for k, v in hyperparameters.items() if k[0] != "_" and (anything or k in known)}
    try:
        module = cls(**arguments)
        if isinstance(module, L.LightningModule):
            module.configure_model()
    except (TypeError, ValueError) as error:
        given = f"{', '.join(f'{k}={v!r}' for k, v in arguments.items()) or 'no arguments'}"
        raise ValueError(f"{path}: {class_path} cannot be created with {given}: {error}") from error
    load_weights(module, checkpoint["state_dict"], path)
    return module.eval().requires_grad_(False)


def _recorded_class(class_path: str, path: Path) -> Any:
    """Return the class that a checkpoint records; only modules of lmdyn are imported for it."""
    module, _, name = class_path.rpartition(".")
    if module.partition(".")[0] == "lmdyn":
        return dotted(class_path)
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    if found is None:
        raise ValueError(
            f"{path} has the class {class_path}, which is not a class of lmdyn and not imported in this "
            f"run. A checkpoint may not import classes. If you trust the class, name it: `module: {class_path}`"
        )
    return found


def weights_digest(state_dict: Mapping[str, Tensor]) -> str:
    """Return a hash of all weights and their names."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(state_dict):
        digest.update(name.encode())
        digest.update(state_dict[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def checkpoint_step(path: Path) -> int | None:
    """Return the step in a checkpoint's file name, ``step=000000123.ckpt``; None for other names.

    Example:
        >>> checkpoint_step(Path("checkpoints/step=000000123.ckpt"))
        123
    """
    match = re.fullmatch(r"step=(\d+)\.ckpt", path.name)
    return int(match[1]) if match else None


def updates_in(checkpoint: Mapping[str, Any]) -> int:
    """Return the number of updates in a checkpoint of Lightning: its ``global_step``, under automatic optimization.

    Raises:
        ValueError: if the number is unknown: under manual optimization, ``global_step`` counts all optimizers' steps.
    """
    about = checkpoint.get("lmdyn") or {}
    if about.items() >= COUNTED.items():
        return int(about["step"])
    if not isinstance(checkpoint.get("global_step"), int):
        raise ValueError(
            "a checkpoint has no step in its name or in an entry global_step: rename the file to step=STEP.ckpt"
        )
    loops = checkpoint.get("loops", {}).get("fit_loop", {})
    manual = loops.get("epoch_loop.manual_optimization.optim_step_progress")
    if manual and manual["total"]["completed"]:
        raise ValueError(
            "the checkpoint does not record the number of updates, and under manual optimization, global_step adds the "
            "steps of all optimizers. Train again with this version, which records the number of updates"
        )
    return int(checkpoint["global_step"])
