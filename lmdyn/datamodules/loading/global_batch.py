"""The batch of all ranks together, which stays what it is where a run goes on, on other ranks."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["ORDER_VERSION", "GlobalBatch", "ResumeError", "accumulated_batches", "size_that"]

ORDER_VERSION = 2
"""How training data is ordered. 2: epochs of rows end with a whole update. 1, of runs begun before: also within one."""


_FORK = "; `lmdyn fork --set trainer.accumulate_grad_batches=N` trains on with other updates"


class ResumeError(ValueError):
    """A loader does not go on from a state; commands show its message alone, though it is raised in a training."""


@dataclass(frozen=True)
class GlobalBatch:
    """How many rows an update has, and how they are divided: over ranks, and over batches one after the other.

    A run may go on with another division, if updates have as many rows as before.

    Attributes:
        rows: of a batch of all ranks together.
        ranks: processes that share them.
        accumulated: batches of an update.

    Example:
        >>> GlobalBatch(rows=32, ranks=2).update, GlobalBatch(rows=8, accumulated=4).update
        (32, 32)
    """

    rows: int
    ranks: int = 1
    accumulated: int = 1

    @property
    def update(self) -> int:
        """Rows of an update."""
        return self.rows * self.accumulated

    def state(self) -> dict[str, int]:
        """What a loader's state keeps of it, as its entry ``global_batch``."""
        return asdict(self)

    @classmethod
    def saved(cls, state: Mapping[str, Any]) -> "GlobalBatch | None":
        """That of a loader's state; None in a state of earlier versions."""
        found = state.get("global_batch")
        return None if found is None else cls(**found)

    def check(self, saved: "GlobalBatch") -> None:
        """Refuse updates of another size than those of the saved run.

        Raises:
            ResumeError: they differ, with the number to set.

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
                f"{saved.update} rows cannot be divided into {parts} equal parts: take ranks and "
                f"accumulate_grad_batches whose product is one of {listed}"
            )
        raise ResumeError(
            f"the saved run has updates of {saved._in_words}, this one would have {self._in_words}: {remedy}{_FORK}"
        )

    def check_streams(self, saved: "GlobalBatch") -> None:
        """Refuse another number of streams, or of their windows in an update, than those of the saved run.

        Each stream is a row of each batch, and its hidden state is carried from batch to batch: rows can be
        distributed over ranks otherwise, but not over batches.

        Raises:
            ResumeError: they differ, with the numbers to set.
        """
        if (self.rows, self.accumulated) == (saved.rows, saved.accumulated):
            return
        remedies = []
        if self.rows != saved.rows:
            remedies.append(
                f"set --data.init_args.batch_size {saved.rows // self.ranks}"
                if saved.rows % self.ranks == 0
                else f"{saved.rows} streams cannot be divided among {self.ranks} ranks, take as many as divide them"
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
        """The saved number of batches, as a number of batches of this division.

        Raises:
            ResumeError: the saved position lies within an update, and the divisions differ.

        Example:
            >>> GlobalBatch(rows=8, accumulated=4).position(3, GlobalBatch(rows=32, ranks=2))
            12
        """
        if self.accumulated == saved.accumulated:
            return position
        if position % saved.accumulated:
            raise ResumeError(
                f"the checkpoint lies within an update, after {position % saved.accumulated} of its "
                f"{saved.accumulated} batches: go on from another one, or with accumulate_grad_batches "
                f"{saved.accumulated}"
            )
        return position // saved.accumulated * self.accumulated

    def check_epoch(self, batches: int, saved: "GlobalBatch", saved_batches: int, setting: str) -> None:
        """Refuse epochs of other rows than those of the saved run, where the division differs.

        Args:
            batches: of an epoch of this run.
            saved: the saved run's.
            saved_batches: of its epochs.
            setting: what sets the number of batches.

        Raises:
            ResumeError: epochs have other numbers of rows.
        """
        here, there = batches * self.rows, saved_batches * saved.rows
        if self == saved or here == there:
            return
        remedy = (
            f"set {setting} {there // self.rows}"
            if there % self.rows == 0
            else f"go on with {saved.ranks} ranks and accumulate_grad_batches {saved.accumulated}, as before"
        )
        raise ResumeError(f"the saved run has epochs of {there} rows, this one would have {here}: {remedy}")


def accumulated_batches(trainer: Any) -> int:
    """Batches of an update, for a loader that a trainer asks for; 1 without trainer."""
    return int(getattr(trainer, "accumulate_grad_batches", 1))


_LARGEST = 4096
"""Of batch sizes that are tried: each costs a hash of a few settings."""


def size_that(fits: Callable[[int], bool]) -> int | None:
    """The smallest batch size that fits, as that of which a hash was kept; None where none does."""
    return next((size for size in range(1, _LARGEST + 1) if fits(size)), None)
