"""The batch of all ranks together, which does not change when a run resumes on other ranks."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["ORDER_VERSION", "GlobalBatch", "ResumeError", "accumulated_batches", "size_that"]

ORDER_VERSION = 2
"""Version of the order of training data. 2: epochs of rows end with a whole update. 1, of earlier runs: also within."""


_FORK = "; `lmdyn fork --set trainer.accumulate_grad_batches=N` continues with other updates"


class ResumeError(ValueError):
    """A loader cannot resume from a state; commands show only its message, although it is raised in training."""


@dataclass(frozen=True)
class GlobalBatch:
    """The number of rows of an update and its division over ranks and consecutive batches.

    A run may resume with another division if updates have the same number of rows.

    Attributes:
        rows: rows of a batch of all ranks together.
        ranks: number of processes that share them.
        accumulated: batches per update.

    Example:
        >>> GlobalBatch(rows=32, ranks=2).update, GlobalBatch(rows=8, accumulated=4).update
        (32, 32)
    """

    rows: int
    ranks: int = 1
    accumulated: int = 1

    @property
    def update(self) -> int:
        """Rows per update."""
        return self.rows * self.accumulated

    def state(self) -> dict[str, int]:
        """Return the entry ``global_batch`` of a loader's state."""
        return asdict(self)

    @classmethod
    def saved(cls, state: Mapping[str, Any]) -> "GlobalBatch | None":
        """Return the batch saved in a loader's state; None for states of earlier versions."""
        found = state.get("global_batch")
        return None if found is None else cls(**found)

    def check(self, saved: "GlobalBatch") -> None:
        """Refuse updates of another size than those of the saved run.

        Raises:
            ResumeError: if they differ; the message has the setting to change.

        Example:
            >>> GlobalBatch(rows=32, ranks=4).check(GlobalBatch(rows=32, ranks=2))
        """
        if self.update == saved.update:
            return
        parts = self.ranks * self.accumulated
        if saved.update % parts == 0:
            remedy = f"set --data.init_args.batch_size {saved.update // parts}"
        else:
            fitting = [str(n) for n in range(1, saved.update + 1) if saved.update % n == 0]
            listed = ", ".join(fitting[:12]) + (", …" if len(fitting) > 12 else "")
            remedy = (
                f"{saved.update} rows cannot be divided into {parts} equal parts: choose ranks and "
                f"accumulate_grad_batches whose product is one of {listed}"
            )
        raise ResumeError(
            f"the saved run has updates of {saved._in_words}, this one would have {self._in_words}: {remedy}{_FORK}"
        )

    def check_streams(self, saved: "GlobalBatch") -> None:
        """Refuse another number of streams, or of their windows per update, than those of the saved run.

        Each stream is a row of each batch, and its hidden state is carried from batch to batch: rows can be
        distributed differently over ranks, but not over batches.

        Raises:
            ResumeError: if they differ; the message has the settings to change.
        """
        if (self.rows, self.accumulated) == (saved.rows, saved.accumulated):
            return
        remedies = []
        if self.rows != saved.rows:
            remedies.append(
                f"set --data.init_args.batch_size {saved.rows // self.ranks}"
                if saved.rows % self.ranks == 0
                else f"{saved.rows} streams cannot be divided among {self.ranks} ranks: choose a divisor"
            )
        if self.accumulated != saved.accumulated:
            remedies.append(f"set --trainer.accumulate_grad_batches {saved.accumulated}")
        raise ResumeError(
            f"the saved run reads its text in {saved.rows} streams, with updates of {saved._in_words}, this one would "
            f"read it in {self.rows}, with updates of {self._in_words}; the number of streams and "
            f"accumulate_grad_batches must stay: {' and '.join(remedies)}{_FORK}"
        )

    @property
    def _in_words(self) -> str:
        return (
            f"{self.update} rows = batch_size {self.rows // self.ranks} × {self.ranks} ranks × "
            f"accumulate_grad_batches {self.accumulated}"
        )

    def position(self, position: int, saved: "GlobalBatch") -> int:
        """Convert the saved number of batches to a number of batches in this division.

        Raises:
            ResumeError: if the saved position lies within an update, and the divisions differ.

        Example:
            >>> GlobalBatch(rows=8, accumulated=4).position(3, GlobalBatch(rows=32, ranks=2))
            12
        """
        if self.accumulated == saved.accumulated:
            return position
        if position % saved.accumulated:
            raise ResumeError(
                f"the checkpoint lies within an update, after {position % saved.accumulated} of its "
                f"{saved.accumulated} batches: resume from another one, or with accumulate_grad_batches "
                f"{saved.accumulated}"
            )
        return position // saved.accumulated * self.accumulated

    def check_epoch(self, batches: int, saved: "GlobalBatch", saved_batches: int, setting: str) -> None:
        """Refuse epochs with another number of rows than those of the saved run, if the division differs.

        Args:
            batches: batches per epoch of this run.
            saved: the batch of the saved run.
            saved_batches: batches per epoch of the saved run.
            setting: name of the setting of the number of batches.

        Raises:
            ResumeError: if epochs have different numbers of rows.
        """
        here, there = batches * self.rows, saved_batches * saved.rows
        if self == saved or here == there:
            return
        remedy = (
            f"set {setting} {there // self.rows}"
            if there % self.rows == 0
            else f"resume with {saved.ranks} ranks and accumulate_grad_batches {saved.accumulated}, as before"
        )
        raise ResumeError(f"the saved run has epochs of {there} rows, this one would have {here}: {remedy}")


def accumulated_batches(trainer: Any) -> int:
    """Return the batches per update, for a loader created for a trainer; 1 without a trainer."""
    return int(getattr(trainer, "accumulate_grad_batches", 1))


_LARGEST = 4096
"""Maximum batch size that is tried: each costs a hash of a few settings."""


def size_that(fits: Callable[[int], bool]) -> int | None:
    """Return the smallest batch size for which ``fits`` returns True, to match a saved hash; None if there is none."""
    return next((size for size in range(1, _LARGEST + 1) if fits(size)), None)
