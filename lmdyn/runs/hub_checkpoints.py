"""Checkpoints in Hugging Face's format: folders of them, and hub models with revisions."""

import fnmatch
import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from lmdyn.analysis.inspection.forward import dotted
from lmdyn.runs.provenance import Record, read_record

log = logging.getLogger(__name__)

MODULE = "lmdyn.models.PretrainedLM"
"""Path of the class that reads such checkpoints, in the form of the entry of other checkpoints."""


def is_pretrained(path: Path) -> bool:
    """Return whether a folder contains one model in Hugging Face's format."""
    return (path / "config.json").is_file()


def check_same_model(module: Any, path: Path, first: Path) -> None:
    """Check that a checkpoint's configuration is that of the one as which a ``PretrainedLM`` was built.

    Raises:
        ValueError: if both have Hugging Face's format, and their configurations differ in what may change numbers.
    """
    config = getattr(getattr(module, "model", None), "config", None)
    if path == first or config is None or not (is_pretrained(path) and is_pretrained(first)):
        return
    # the model's own class: not every folder names its kind
    ours, theirs = (type(config).from_pretrained(str(folder)).to_dict() for folder in (path, first))
    keys = [k for k in sorted({*ours, *theirs} - _NO_NUMBERS) if ours.get(k) != theirs.get(k)]
    if keys:
        said = ", ".join(f"{k} {ours.get(k)} instead of {theirs.get(k)}" for k in keys[:3])
        raise ValueError(
            f"{path} contains another model than {first} ({said}): analyze each model in a separate command"
        )


_SIZES = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_NO_NUMBERS = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "architectures"}


def name_step(name: str) -> int | None:
    """Return the step in a name: the number after ``step``, else the one at its end; ``k`` and ``M`` multiply.

    Example:
        >>> [name_step(name) for name in ("checkpoint-500", "step143000", "stage1-step1000-tokens4B", "20k", "main")]
        [500, 143000, 1000, 20000, None]
    """
    match = re.search(r"step[_\-=]?(\d+)([kM]?)(?![A-Za-z\d])", name) or re.search(r"(\d+)([kM]?)$", name)
    return int(match[1]) * _SIZES[match[2]] if match else None


def name_amounts(name: str) -> dict[str, int]:
    """Return the tokens and words that a name counts, and its stage, as in names of OLMo and of the BabyLM challenge.

    Example:
        >>> name_amounts("stage1-step150-tokens1B"), name_amounts("chck_10M"), name_amounts("step500")
        ({'tokens': 1000000000, 'stage': 1}, {'words': 10000000}, {})
    """
    patterns = {
        "tokens": r"tokens[_\-=]?(\d+)([kMBT]?)",
        "words": r"(?:chck_|words[_\-=]?)(\d+)([kMBT]?)",
        "stage": r"(?<![A-Za-z])stage[_\-=]?(\d+)()",
    }
    found = {kind: re.search(rf"{pattern}(?![A-Za-z\d])", name) for kind, pattern in patterns.items()}
    return {kind: int(match[1]) * _SIZES[match[2]] for kind, match in found.items() if match}


def read_pretrained(path: Path) -> Record:
    """Read a checkpoint in Hugging Face's format, in the form of ``read_checkpoint``.

    Weights have the names of a ``PretrainedLM``: transformers renames those of older files, and ties
    those that are stored once. Tokens seen are those that the Trainer counted, if any.

    Raises:
        ValueError: if transformers cannot load the folder as a language model.
    """
    module: Any = dotted(MODULE)(name=str(path))
    return pretrained_content(path, module.state_dict())


@dataclass(frozen=True)
class StoredNames:
    """Names of a model's weights in its files, found by comparing the two once.

    Attributes:
        names: name in the files by the name of a weight in a ``PretrainedLM``; tied weights share one.
        shapes: shape by the name in the files.
        dtype: dtype of the model's weights by the name in the files.
    """

    names: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, torch.dtype]

    @classmethod
    def find(cls, path: Path, state: Mapping[str, Tensor]) -> "StoredNames | None":
        """Compare a folder's files with the state of the ``PretrainedLM`` that transformers has created from it.

        Most weights have the same name in both; for others, the one with equal numbers is used.

        Returns: None if the files have another format, or if a weight occurs in none of them or may be several, or is
            one that transformers has combined from several.
        """
        stored = _load_files(path)
        by_size: dict[tuple[int, ...], list[str]] = {}
        for key, tensor in stored.items():
            by_size.setdefault(tuple(tensor.shape), []).append(key)
        names, dtypes = {}, {}
        for name, tensor in state.items():
            like = by_size.get(tuple(tensor.shape), [])
            own = [key for key in like if key == name.removeprefix("model.") and _equal(stored[key], tensor)]
            found = own or [key for key in like if _equal(stored[key], tensor)]
            if len(found) != 1:
                return None
            names[name], dtypes[found[0]] = found[0], tensor.dtype
        if set(names.values()) != stored.keys():
            return None
        return cls(names, {key: tuple(tensor.shape) for key, tensor in stored.items()}, dtypes)


def read_stored(path: Path, fits: StoredNames) -> Record | None:
    """Return the result of :func:`read_pretrained` from files that are mapped into memory.

    No model is built, no random number is drawn, and no weight is read before it is used.

    Args:
        path: the folder.
        fits: names found in another checkpoint of the series.

    Returns:
        None if these files have other names or shapes.

    Raises:
        ValueError: if a file cannot be read.
    """
    stored = _load_files(path)
    if {key: tuple(tensor.shape) for key, tensor in stored.items()} != fits.shapes:
        return None
    cast = {key: tensor.to(fits.dtypes[key]) for key, tensor in stored.items()}
    return pretrained_content(path, {name: cast[key] for name, key in fits.names.items()})


def _equal(stored: Tensor, read: Tensor) -> bool:
    return torch.equal(stored.to(read.dtype), read.cpu())


def _load_files(path: Path) -> dict[str, Tensor]:
    try:
        return {key: t for file in sorted(path.glob("*.safetensors")) for key, t in load_file(file).items()}
    except Exception as error:  # from safetensors or the file system
        raise ValueError(f"{path} cannot be read ({error}): download or write the files again") from error


def pretrained_content(path: Path, weights: Record) -> Record:
    """Return weights with what is beside them in their folder, in the form of ``read_checkpoint``."""
    state = read_record(path / "trainer_state.json")
    about = {"tokens": state.get("num_input_tokens_seen") or None} if state else {}
    hyperparameters = {"_class_path": MODULE, "name": str(path)}
    return {"state_dict": weights, "hyper_parameters": hyperparameters, "lmdyn": about}


def stamp(path: Path) -> str:
    """Return a hash that changes if a checkpoint is rewritten: of names, sizes and times of its files."""
    files = [path]
    if path.is_dir():
        weights = (f for pattern in ("*.safetensors", "*.bin", "config.json") for f in path.glob(pattern))
        files = sorted(weights) or sorted(path.iterdir())  # the folder of a sharded strategy
    facts = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()


class HubCheckpoints(Mapping[int, Path]):
    """Checkpoints of a hub model by step; each is downloaded on access.

    Args:
        name: hub name, with ``{}`` if each checkpoint is a separate model (``google/multiberts-seed_0-step_{}``).
        revisions: revisions (or replacements of ``{}``), separated by commas, that contain their step, as
            ``step1000`` or ``20k``; ``7=main`` for one that does not; patterns such as ``step*``, or ``all``.
        fetch: function that returns the folder of (name, revision).
        refs: function that returns the branches and tags of a model; called only if there are patterns.

    Raises: ValueError: without a revision, for one without a step, for two of one step, for a pattern without a match,
        or for
            a pattern if each checkpoint is a separate model.

    Example:
        >>> checkpoints = HubCheckpoints("org/lm", "step0,step500", lambda n, r: Path("cache", n, r), lambda n: [])
        >>> checkpoints[500].as_posix()
        'cache/org/lm/step500'
    """

    def __init__(
        self,
        name: str,
        revisions: str,
        fetch: Callable[[str, str | None], Path],
        refs: Callable[[str], Sequence[str]],
    ) -> None:
        self.name = name
        self._fetch = fetch
        self._revisions: dict[int, str] = {}
        for item in (part.strip() for part in revisions.split(",") if part.strip()):
            pattern = "*" if item == "all" else item
            if not set(pattern) & set("*?["):
                self._add(item)
                continue
            if "{}" in name:
                raise ValueError(
                    f"--revisions {item!r} is a pattern, but {name} means several models: list the revisions"
                )
            there = refs(name)
            found = [ref for ref in there if fnmatch.fnmatchcase(ref, pattern)]
            steps = [ref for ref in found if name_step(ref) is not None]
            if not steps:
                raise ValueError(
                    f"no revision of {name} with a step matches {item!r}: the revisions are {', '.join(sorted(there))}"
                )
            if others := sorted(set(found) - set(steps)):
                log.info("%s: lmdyn leaves out revisions without a step: %s", name, ", ".join(others))
            for ref in steps:
                self._add(ref)
        if not self._revisions:
            raise ValueError("--revisions is empty: list revisions, such as step0,step1000, or use `all`")

    def _add(self, item: str) -> None:
        given = re.fullmatch(r"(\d+)=(.+)", item)
        step, revision = (int(given[1]), given[2]) if given else (name_step(item), item)
        if step is None:
            raise ValueError(f"revision {item!r} of {self.name} has no step: write STEP={item}")
        if self._revisions.setdefault(step, revision) != revision:
            raise ValueError(
                f"revisions {self._revisions[step]!r} and {revision!r} of {self.name} both have step {step}: remove "
                "one revision, or analyze each stage of the training in a separate command, with its own --out"
            )

    def model(self, step: int) -> tuple[str, str | None]:
        """Return name and revision of a step."""
        revision = self._revisions[step]
        return (self.name.replace("{}", revision), None) if "{}" in self.name else (self.name, revision)

    def stamp(self, step: int) -> str:
        """Return name and revision: their content on the hub is assumed to be constant."""
        name, revision = self.model(step)
        return f"{name}@{revision or 'main'}"

    def __getitem__(self, step: int) -> Path:
        return self._fetch(*self.model(step))

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._revisions))

    def __len__(self) -> int:
        return len(self._revisions)
