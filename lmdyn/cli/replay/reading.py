"""Reading the next checkpoint while this one is observed."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import nn

from lmdyn.callbacks.training.checkpoint_files import load_weights, read_checkpoint
from lmdyn.callbacks.training.hub_checkpoints import StoredNames, is_pretrained, read_stored
from lmdyn.cli.replay.weights_record import SeenWeights

__all__ = ["ReadAhead", "ReadCheckpoint", "Weights"]


@dataclass(frozen=True)
class ReadCheckpoint:
    """A checkpoint that was read.

    Attributes:
        path: where it is.
        content: what :func:`~lmdyn.callbacks.training.checkpoint_files.read_checkpoint` answers.
        seen: what is noted of its weights; None where that is known already.
    """

    path: Path
    content: dict[str, Any]
    seen: SeenWeights | None


class ReadAhead:
    """Reads checkpoints in a thread, one after the other.

    Only what draws no random numbers is done there, since these are global: a model of transformers whose weights have
    other names in the file, which transformers must build to read, is fetched there and built by whoever asks for it.

    Args:
        paths: by step; asking one for a step of a hub model fetches it.
        fits: names of the weights in files of transformers, where they can be read without building a model.
        known: whether the weights of a step are noted already.
        done: told of each step that is not needed any more.
    """

    def __init__(
        self,
        paths: Mapping[int, Path],
        fits: StoredNames | None,
        known: Callable[[int], bool],
        done: Callable[[int], None] = lambda step: None,
    ) -> None:
        self._paths, self._fits, self._known, self.done = paths, fits, known, done
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")
        self._begun: dict[int, Future[tuple[Path, ReadCheckpoint | None]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=kind is None, cancel_futures=True)

    def start(self, step: int) -> None:
        """Begin to read a checkpoint."""
        if step not in self._begun:
            self._begun[step] = self._thread.submit(self._read, step)

    def get(self, step: int) -> ReadCheckpoint:
        """A checkpoint, once it is read.

        Raises:
            ValueError: it cannot be.
        """
        self.start(step)
        path, read = self._begun.pop(step).result()
        return read or self._noted(step, path, read_checkpoint(path))

    def drop(self, step: int) -> None:
        """It is not needed any more."""
        begun = self._begun.pop(step, None)
        if begun is not None and not begun.cancel():
            begun.add_done_callback(lambda _: self.done(step))

    def _read(self, step: int) -> tuple[Path, ReadCheckpoint | None]:
        path = self._paths[step]
        content = None
        if not is_pretrained(path):
            content = read_checkpoint(path)
        elif self._fits is not None:
            content = read_stored(path, self._fits)
        return path, None if content is None else self._noted(step, path, content)

    def _noted(self, step: int, path: Path, content: dict[str, Any]) -> ReadCheckpoint:
        seen = None if self._known(step) else SeenWeights.of(content["state_dict"])
        return ReadCheckpoint(path, content, seen)


class Weights:
    """A module that receives the weights of one checkpoint after the other, in place; equal ones once only."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._digest: str | None = None

    def load(self, read: ReadCheckpoint, digest: str | None) -> bool:
        """Load a checkpoint.

        Args:
            read: it.
            digest: of its weights, where that is known.

        Returns:
            False where the module holds these weights already.

        Raises:
            ValueError: names or shapes that do not fit the module.
        """
        if digest is not None and digest == self._digest:
            return False
        self._digest = None
        load_weights(self.module, read.content["state_dict"], read.path)
        self._digest = digest
        return True
