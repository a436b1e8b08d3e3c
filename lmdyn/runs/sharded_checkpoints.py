"""Sharded checkpoints: folders of torch.distributed.checkpoint, with a ``meta.pt`` of Lightning.

torch reads their index and the settings of their optimizers by pickle, which can run code. Here both are read as plain
values, and a checkpoint with anything else raises an error before torch reads it.
"""

import io
import json
import operator
import pickle
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, _validate_global_plan
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan

from lmdyn.runs.atomic_files import compare_checksums

_ABOUT = "meta.pt"
_INDEX = ".metadata"
_SEAL = "seal.json"
_END = 1 << 16  # bytes
_WEIGHTS = ("state_dict.", "model.")  # of ModelParallelStrategy, of FSDPStrategy

_IN_INDEX = {
    "torch": {"Size", "device"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "collections": {"OrderedDict"},
    "pathlib": {"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"},
}
"""Parts of an index, by module; and the dtypes of torch."""


def is_sharded_checkpoint(path: Path) -> bool:
    """Return whether a path is a sharded checkpoint."""
    return (path / _INDEX).is_file() and (path / _ABOUT).is_file()


def seal(path: Path) -> None:
    """Record which files belong together, and a checksum of each index and of both ends of each part.

    torch records neither: it would read a part of another step without an error.
    """
    (path / _SEAL).write_text(json.dumps(_sealed(path), indent=1) + "\n", encoding="utf-8")


def _sealed(path: Path) -> dict[str, list[int]]:
    files = [path / _INDEX, *sorted(path.glob("*.distcp"))]
    return {file.name: [file.stat().st_size, _checksum(file, whole=file.name == _INDEX)] for file in files}


def _checksum(file: Path, *, whole: bool) -> int:
    with file.open("rb") as content:
        first = content.read() if whole else content.read(_END)
        content.seek(max(content.tell(), file.stat().st_size - _END))
        return zlib.crc32(content.read(), zlib.crc32(first))


def _compare_seal(path: Path) -> None:
    """Raise an error for files that were not written together, if this was recorded."""
    if not (path / _SEAL).is_file():
        return
    noted = json.loads((path / _SEAL).read_text(encoding="utf-8"))
    for name, found in _sealed(path).items():
        if noted.get(name) not in (None, found) or (name == _INDEX and name not in noted):
            raise ValueError(f"{name} in the folder differs from what was written")


def about_sharded(path: Path) -> dict[str, Any]:
    """Read all except the tensors: the content of a file of Lightning without weights and optimizer states.

    The index and the optimizers' settings are also read, and must be plain.

    Returns:
        As :func:`~lmdyn.runs.checkpoint_files.read_checkpoint`, without ``state_dict``;
        ``optimizer_states`` is an empty list if there are any.

    Raises:
        ValueError: if files cannot be read, or contain more than plain values and tensors.
    """
    return _read(path)[0]


def read_sharded(path: Path) -> dict[str, Any]:
    """Read all including the whole weights, on the CPU.

    Raises:
        ValueError: as in :func:`about_sharded`.
    """
    about, weights = _read(path, *_WEIGHTS)
    return {**about, "state_dict": weights}


def _read(path: Path, *parts: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values that are not tensors, and the tensors with a prefix among ``parts``, without the prefix."""
    reader = _Reader(path)
    try:
        _compare_seal(path)
        compare_checksums(path / _ABOUT)
        about = torch.load(path / _ABOUT, map_location="cpu", weights_only=True)
        whole = reader.read_metadata()
        index = whole.state_dict_metadata
        if sum(any(name.startswith(part) for name in index) for part in _WEIGHTS) > 1:
            raise ValueError("the folder has weights of both ModelParallelStrategy and FSDPStrategy")
        tensors = {
            name: torch.empty(what.size, dtype=what.properties.dtype)
            for name, what in index.items()
            if isinstance(what, TensorStorageMetadata) and name.startswith(parts)
        }
        plain = {name for name, what in index.items() if isinstance(what, BytesStorageMetadata)}
        fits = _validate_global_plan([SavePlan([])] * 2, whole)
        if fits not in (True, []):  # True in older versions of torch
            raise ValueError("the parts of a tensor overlap or leave gaps")
        _compare_checksums(path, whole, tensors.keys() | plain)
        reader.set_up_storage_reader(whole, is_coordinator=True)
        planner = _Planner(flatten_state_dict=False)
        planner.set_up_planner({**tensors, **dict.fromkeys(plain)}, whole, is_coordinator=True)
        plan = planner.finish_plan(reader.prepare_local_plan(planner.create_local_plan()))
        reader.read_data(plan, planner).wait()
    except Exception as error:
        raise ValueError(
            f"{path} cannot be read as a sharded checkpoint ({error}): use another checkpoint, or write this one again"
        ) from error
    if not isinstance(about, dict):
        raise ValueError(
            f"{path / _ABOUT} is not from Lightning: expected a mapping, got {type(about).__name__}"
        )
    if any(name.startswith("optimizer_0.") for name in index):
        about["optimizer_states"] = []
    return about, {name.partition(".")[2]: tensor for name, tensor in tensors.items()}


def _compare_checksums(path: Path, index: Metadata, names: Collection[str]) -> None:
    """Raise an error for parts that differ from what was written: each is an archive with checksums."""
    for part, where in (index.storage_data or {}).items():
        if part.fqn not in names:
            continue
        with (path / where.relative_path).open("rb") as file:
            file.seek(where.offset)
            stored = io.BytesIO(file.read(where.length))
        compare_checksums(stored)


class _Reader(FileSystemReader):
    """Reader of an index of plain values only."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        content = (Path(self.path) / _INDEX).read_bytes()
        index = cast(Metadata, _Index(io.BytesIO(content)).load())
        index.storage_meta = None
        return index


_InPython: Any = pickle._Unpickler  # its operations can be restricted


class _Index(_InPython):
    """Unpickler for the parts of an index, and nothing else; it cannot change classes or functions."""

    dispatch: ClassVar[dict[int, Any]] = dict(_InPython.dispatch)

    def load_build(self) -> None:
        """Set the attributes of a value, never those of a class, a function or a dtype."""
        if not type(self.stack[-2]).__module__.startswith("torch.distributed.checkpoint"):
            raise pickle.UnpicklingError("the index changes objects outside the index")
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return operator.getitem  # of an enum
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if name not in _IN_INDEX.get(module, ()):
            raise pickle.UnpicklingError(f"the index contains {module}.{name}, which no index requires")
        return super().find_class(module, name)


class _Planner(DefaultLoadPlanner):
    """Planner that reads the values that are not tensors without running code."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, map_location="cpu", weights_only=True)
