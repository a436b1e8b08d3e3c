"""Progress of a replay: which observations exist, and which are missing."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from lmdyn.runs.store import ObservationStore

__all__ = ["status_lines"]

_SHOWN = 20


def status_lines(out: Path, asked: Mapping[int, Sequence[str]]) -> list[str]:
    """Return a table of numbers, followed by the missing observations: not made yet, or failed.

    Args:
        out: folder that contains ``observations/``.
        asked: by step, the names of the observers called at it.

    Example:
        >>> for line in status_lines(Path("nowhere"), {0: ["curves"], 10: ["curves"]}):
        ...     print(line)
        observer  checkpoints  done  missing
        curves              2     0        2
        missing  curves: steps 0, 10
    """
    names = list(dict.fromkeys(name for every in asked.values() for name in every))
    width = max(map(len, [*names, "observer"]))
    lines, missing_lines = [f"{'observer':<{width}}  checkpoints  done  missing"], []
    for name in names:
        there = set(ObservationStore(out / "observations" / name).steps())
        steps = [step for step, every in asked.items() if name in every]
        missing = [step for step in steps if step not in there]
        lines.append(f"{name:<{width}}  {len(steps):>11}  {len(steps) - len(missing):>4}  {len(missing):>7}")
        if missing:
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            missing_lines.append(f"missing  {name}: steps {', '.join(map(str, missing[:_SHOWN]))}{more}")
    return lines + missing_lines
