"""Reading checkpoints: finding them by step, their weights into a module, a module from what they say."""

import hashlib
import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.forward import dotted
from lmdyn.callbacks.training.atomic_files import compare_checksums
from lmdyn.callbacks.training.checkpoint import checkpoint_step
from lmdyn.callbacks.training.hub_checkpoints import is_pretrained, name_step, read_pretrained
from lmdyn.callbacks.training.sharded_checkpoints import is_sharded_checkpoint, read_sharded

__all__ = [
    "build_module",
    "find_checkpoints",
    "load_weights",
    "newest_checkpoint",
    "read_checkpoint",
    "weights_digest",
]


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint on the CPU: a file of Lightning's, read with ``weights_only=True``, or a folder.

    Folders are of Hugging Face's format, or those that ranks write together. What Lightning has written is compared
    with the checksums that it holds, which torch does not look at (0.3 s for a gigabyte).

    Raises:
        ValueError: a file or folder that cannot be read, that is damaged, or that is no checkpoint.
    """
    if is_pretrained(path):
        return read_pretrained(path)
    if is_sharded_checkpoint(path):
        return read_sharded(path)
    try:
        compare_checksums(path)
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(
            f"{path} cannot be read as a checkpoint: damaged, or none ({error}): take another, or write it anew"
        ) from error
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise ValueError(f"{path} is no Lightning checkpoint: it has no 'state_dict'")
    return checkpoint


def find_checkpoints(pattern: str) -> dict[int, Path]:
    """Checkpoints of a folder or glob by step, in the order of steps.

    These are files ``*.ckpt``, and folders ``checkpoint-*`` as transformers' Trainer writes them. The step is the one
    in the name (``step=000000123.ckpt``, ``checkpoint-123``), else the file's own ``global_step``. A folder that itself
    holds one model of Hugging Face's is a single checkpoint, of step 0 where its name says neither ``step`` nor
    ``checkpoint-``.

    Raises:
        FileNotFoundError: there are none.
        ValueError: two checkpoints of one step; a checkpoint that tells no step.
    """
    folder = Path(pattern)
    found = sorted(
        [*folder.glob("*.ckpt"), *(p for p in folder.glob("checkpoint-*") if p.is_dir())]
        if folder.is_dir()
        else Path(folder.anchor).glob(str(folder.relative_to(folder.anchor)))
    ) or ([folder] if is_pretrained(folder) else [])
    if not found:
        raise FileNotFoundError(
            f"no checkpoints: {pattern} is neither a folder that holds *.ckpt or checkpoint-*/ nor a glob of these"
        )
    steps: dict[int, Path] = {}
    for path in found:
        step = name_step(path.name) if _of_trainer(path) else checkpoint_step(path)
        if path == folder and not path.name.startswith("checkpoint-") and "step" not in path.name:
            step = 0  # a single model: the number in llama3 is none of its steps
        if step is None and _of_trainer(path):
            raise ValueError(
                f"{path} tells no step: expected a folder's name that ends in it, checkpoint-123"
            )
        if step is None:
            step = _own_step(path)
        if step in steps:
            raise ValueError(
                f"{steps[step]} and {path} are both of step {step}: name the ones you mean by a glob"
            )
        steps[step] = path
    return dict(sorted(steps.items()))


def _own_step(path: Path) -> int:
    step = read_checkpoint(path).get("global_step")
    if not isinstance(step, int):
        raise ValueError(
            f"{path} tells no step, neither by its name nor by an entry global_step: name it step=000000123.ckpt"
        )
    return step


def _of_trainer(path: Path) -> bool:
    """Whether it is of Hugging Face's format, or was meant to be."""
    return path.is_dir() and (is_pretrained(path) or path.name.startswith("checkpoint-"))


def newest_checkpoint(path: str, step: int | None = None) -> Path:
    """The checkpoint that a path stands for: a file, or the last step in a run's or another folder.

    Args:
        path: a checkpoint (of Hugging Face's format too), a run's folder (``checkpoints/`` in it is looked at) or a
            folder of checkpoints; ``$VAR`` and ``~`` are expanded.
        step: of a folder, the checkpoint of this step in the place of the last.

    Raises:
        FileNotFoundError: nothing there, or nothing of this step.
    """
    found = Path(os.path.expandvars(path)).expanduser()
    if found.is_file() or is_pretrained(found) or is_sharded_checkpoint(found):
        return found
    folder = found / "checkpoints" if (found / "checkpoints").is_dir() else found
    checkpoints = find_checkpoints(str(folder))
    if step is not None and step not in checkpoints:
        raise FileNotFoundError(
            f"{folder} has no checkpoint of step {step}: it has {', '.join(map(str, checkpoints))}"
        )
    return checkpoints[max(checkpoints) if step is None else step]


def load_weights(module: nn.Module, state_dict: Mapping[str, Tensor], path: Path) -> None:
    """Load a checkpoint's weights, all of them.

    Raises:
        ValueError: names or shapes that do not fit the model, all of them named.
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


def build_module(checkpoint: Mapping[str, Any], path: Path, class_path: str | None = None) -> nn.Module:
    """A module with the hyperparameters and the weights of its checkpoint, in eval mode, frozen.

    A checkpoint runs no code of its own choice: the class that it records is taken where it is one of lmdyn's or was
    imported before, as the classes of the run's configuration are.

    Args:
        checkpoint: what :func:`read_checkpoint` returns.
        path: where it was, for messages.
        class_path: dotted path of its class, which is imported; by default the one that ``fit`` recorded.

    Raises:
        ValueError: no class is known, the recorded one would have to be imported, it is no subclass of ``nn.Module``,
            or hyperparameters or weights do not fit it.
    """
    hyperparameters = dict(checkpoint.get("hyper_parameters", {}))
    recorded = hyperparameters.get("_class_path")
    if class_path is None and recorded is None:
        raise ValueError(
            f"{path} does not say which class it is of (`lmdyn fit` records it where the module calls "
            "save_hyperparameters()): give its dotted path, `module: my_package.MyModule`"
        )
    cls = _recorded_class(str(recorded), path) if class_path is None else dotted(class_path)
    class_path = class_path or recorded
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise ValueError(f"{path}: expected a subclass of torch.nn.Module, got {class_path}")
    known = inspect.signature(cls).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in known.values())
    arguments = {k: v for k, v in hyperparameters.items() if k[0] != "_" and (anything or k in known)}
    try:
        module = cls(**arguments)
        if isinstance(module, L.LightningModule):
            module.configure_model()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {class_path} cannot be made with {arguments}: {error}") from error
    load_weights(module, checkpoint["state_dict"], path)
    return module.eval().requires_grad_(False)


def _recorded_class(class_path: str, path: Path) -> Any:
    """What a checkpoint's record of its class names; only modules of lmdyn's are imported for it."""
    module, _, name = class_path.rpartition(".")
    if module.partition(".")[0] == "lmdyn":
        return dotted(class_path)
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    if found is None:
        raise ValueError(
            f"{path} says that it is of the class {class_path}, which is none of lmdyn's and is not imported in this "
            f"run; a checkpoint may import nothing. If you trust it, name the class: `module: {class_path}`"
        )
    return found


def weights_digest(state_dict: Mapping[str, Tensor]) -> str:
    """Hash of all weights and their names."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(state_dict):
        digest.update(name.encode())
        digest.update(
            state_dict[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()
