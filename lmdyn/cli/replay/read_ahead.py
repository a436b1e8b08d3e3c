"""Reading the next checkpoint while the current one is observed."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from lmdyn.cli.replay.downloads import Downloads
from lmdyn.cli.replay.weights_record import SeenWeights
from lmdyn.runs.checkpoint_files import read_checkpoint
from lmdyn.runs.hub_checkpoints import StoredNames, is_pretrained, read_stored


class ReadCheckpoint(NamedTuple):
    """A checkpoint that was read.

    Attributes:
        path: its path.
        content: result of :func:`~lmdyn.runs.checkpoint_files.read_checkpoint`.
        seen: digest and sketch of its weights; None if they are known already.
    """

    path: Path
    content: dict[str, Any]
    seen: SeenWeights | None


class ReadAhead:
    """Reads checkpoints in a thread, one after the other.

    The thread does only what draws no random numbers, since these are global. A transformers model that must be built
    to be read, because its weights have other names in the file, is downloaded there and built by the caller.

    Args:
        paths: checkpoints by step; reading an item of a hub model downloads it.
        fits: names of the weights in transformers' files, if these can be read without building a model.
        known: function that returns whether the weights of a step are recorded already.
        held: step and content of the checkpoint whose weights the module has; used if it is the first to be read, since
            the module then still has them.

    Attributes:
        done: to be called with each step that is no longer needed.
    """

    def __init__(
        self,
        paths: Mapping[int, Path] | Downloads,
        fits: StoredNames | None,
        known: Callable[[int], bool],
        held: tuple[int, dict[str, Any]] | None = None,
    ) -> None:
        self._paths = paths
        self._fits = fits
        self._known = known
        self._held = held
        self.done = paths.done if isinstance(paths, Downloads) else lambda step: None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")
        self._begun: dict[int, Future[tuple[Path, ReadCheckpoint | None]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=kind is None, cancel_futures=True)
        if isinstance(self._paths, Downloads):
            self._paths.close()

    def start(self, step: int) -> None:
        """Start to read a checkpoint."""
        if step not in self._begun:
            held, self._held = self._held, None
            content = held[1] if held is not None and held[0] == step else None
            self._begun[step] = self._thread.submit(self._read, step, content)

    def get(self, step: int) -> ReadCheckpoint:
        """Return a checkpoint, when it is read.

        Raises:
            ValueError: if it cannot be read.
        """
        self.start(step)
        path, read = self._begun.pop(step).result()
        return read or self._noted(step, path, read_checkpoint(path))

    def drop(self, step: int) -> None:
        """Discard a checkpoint that is no longer needed."""
        begun = self._begun.pop(step)
        if not begun.cancel():
            begun.add_done_callback(lambda _: self.done(step))

    def _read(self, step: int, content: dict[str, Any] | None) -> tuple[Path, ReadCheckpoint | None]:
        path = self._paths[step]
        if content is None and not is_pretrained(path):
            content = read_checkpoint(path)
        elif content is None and self._fits is not None:
            content = read_stored(path, self._fits)
        return path, None if content is None else self._noted(step, path, content)

    def _noted(self, step: int, path: Path, content: dict[str, Any]) -> ReadCheckpoint:
        seen = None if self._known(step) else SeenWeights.of(content["state_dict"])
        return ReadCheckpoint(path, content, seen)
