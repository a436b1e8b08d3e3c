"""The text on which observers train output layers of their own."""

from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import ProbeSet
from lmdyn.callbacks.observing.protocols import Rebatchable, Resumable, Shardable, offers

__all__ = ["TrainingPart"]


class TrainingPart:
    """The training part of what an observer looks at, the same batches at each observation.

    Args:
        observer: attached.
        batch_rows: rows of an update, over all ranks; of a PretrainingCorpus. Other data is taken in its own batches.

    Raises:
        ValueError: data without a training part; fewer rows than ranks.
    """

    def __init__(self, observer: Observer, batch_rows: int) -> None:
        self._observer = observer
        self._part = observer.part("train")
        if (ranks := rank_and_world_size()[1]) > batch_rows:
            raise ValueError(
                f"{observer.name}: batch_rows is {batch_rows}, expected at least one for each of {ranks} ranks"
            )
        loader = self._part.loader
        # a stream goes on where it stopped: each observation opens it anew, and sees its first batches
        self._reopen = offers(loader, Resumable) and not offers(loader, Shardable)
        if offers(loader, Rebatchable):
            self._part = ProbeSet(loader.with_batch_size(batch_rows))

    @property
    def fingerprint(self) -> str | None:
        """A hash of the content, where the loader has one."""
        return self._part.fingerprint

    def open(self) -> ProbeSet:
        """The batches, from the first on."""
        return self._observer.part("train") if self._reopen else self._part
