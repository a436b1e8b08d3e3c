"""The batch of all ranks together, which does not change when a run resumes on other ranks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_FORK = "; `lmdyn fork --set trainer.accumulate_grad_batches=N` continues with other updates"


class ResumeError(ValueError):
    """A loader cannot resume from a state; commands show only its message, although it is raised in training."""


def check_settings(saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to resume with other settings; ``batch_size`` and ``world_size`` are compared apart.

    Raises:
        ResumeError: names the settings that differ.
    """
    differ = {name for name in now if saved.get(name) != now[name]} - {"batch_size", "world_size"}
    if differ:
        said = ", ".join(f"{name} {saved.get(name)} (now {now[name]})" for name in sorted(differ))
        raise ResumeError(
            f"the saved run read the text with {said}: to resume exactly, keep the settings (for `order`, the version "
            "of lmdyn) of that run"
        )


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

    def position(
        self, state: Mapping[str, Any], batches: int, setting: str, *, rows_stay: bool = False
    ) -> tuple[int, bool]:
        """Convert a saved number of batches to this division.

        Args:
            state: a loader's state, with ``position``, ``global_batch`` and ``epoch_batches``.
            batches: batches per epoch of this run.
            setting: name of the setting of their number.
            rows_stay: whether each row of a batch continues that of the previous one, so that rows can be distributed
                differently over ranks, but not over batches.

        Returns:
            The number of batches, and whether the epoch has ended.

        Raises:
            ResumeError: if updates or epochs differ, or the saved position lies within an update, and the divisions
                differ; the message has the setting to change.

        Example:
            >>> state = {"position": 3, "epoch_batches": 9, "global_batch": {"rows": 32, "ranks": 2}}
            >>> GlobalBatch(rows=8, accumulated=4).position(state, 36, "limit")
            (12, False)
        """
        saved = GlobalBatch(**state["global_batch"])
        position = int(state["position"])
        there = int(state.get("epoch_batches", batches))
        if self.update != saved.update or (rows_stay and self.rows != saved.rows):
            stay = (
                f"batch_size × ranks must be {saved.rows}, and accumulate_grad_batches {saved.accumulated}"
                if rows_stay
                else f"batch_size × ranks × accumulate_grad_batches must be {saved.update}"
            )
            raise ResumeError(
                f"the saved run has updates of {saved._in_words}, this run would have {self._in_words}: {stay}{_FORK}"
            )
        if self == saved:
            return position, position >= batches
        if batches * self.rows != there * saved.rows:
            raise ResumeError(
                f"the saved run has epochs of {there * saved.rows} rows, this run would have {batches * self.rows}: "
                f"set {setting} to {there * saved.rows / self.rows:.15g}, or resume with {saved._in_words}, as before"
            )
        ended = position >= there
        if self.accumulated == saved.accumulated:
            return position, ended
        updates, within = divmod(position, saved.accumulated)
        if within and not ended:
            raise ResumeError(
                f"the checkpoint is from within an update, after {within} of {saved.accumulated} batches: resume from "
                f"another checkpoint, or with {saved._in_words}"
            )
        return updates * self.accumulated, ended

    @property
    def _in_words(self) -> str:
        return (
            f"{self.update} rows = batch_size {self.rows // self.ranks} × ranks {self.ranks} × "
            f"accumulate_grad_batches {self.accumulated}"
        )
