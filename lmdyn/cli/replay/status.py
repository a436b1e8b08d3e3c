"""Progress of a replay: what is done, which worker makes what, what is stale, and what has failed and why."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from lmdyn.callbacks.observing.store import ObservationStore
from lmdyn.cli.replay.failures import read_failure
from lmdyn.cli.replay.leases import Leases

__all__ = ["STATES", "replay_states", "status_lines"]

STATES = ("done", "running", "ahead", "stale", "failed", "left")
"""States of an observation: ``ahead``, read by a worker; ``stale``, of a dead or silent worker; ``left``, not begun."""

_SHOWN = 20


def replay_states(
    out: Path, asked: Mapping[int, Sequence[str]], leases: Leases
) -> dict[str, dict[int, tuple[str, str]]]:
    """Return the state of each requested observation.

    Args:
        out: folder that contains ``observations/``.
        asked: by step, the names of the observers called at it.
        leases: reads the leases of other workers.

    Returns:
        By observer and step, one of :data:`STATES` and a description, which may be empty.
    """
    found: dict[str, dict[int, tuple[str, str]]] = {}
    stores = {
        name: ObservationStore(out / "observations" / name) for every in asked.values() for name in every
    }
    there = {name: set(store.steps()) for name, store in stores.items()}
    for step, names in asked.items():
        for name in names:
            path = stores[name].path(step)
            state: tuple[str, str] = ("left", "")
            if step in there[name]:
                state = ("done", "")
            elif (lease := leases.look(path)) is not None:
                heard = timedelta(seconds=max(0, round(lease.age_s)))
                state = (lease.state, f"{lease.holder}, last heartbeat {heard} ago")
            elif (failure := read_failure(path)) is not None:
                state = ("failed", f"{failure.error} ({failure.host}, {failure.when})")
            found.setdefault(name, {})[step] = state
    return found


def status_lines(states: Mapping[str, Mapping[int, tuple[str, str]]]) -> list[str]:
    """Return a table of numbers, followed by lines about running and failed observations.

    Example:
        >>> for line in status_lines({"curves": {0: ("done", ""), 10: ("failed", "no such file (node1, noon)")}}):
        ...     print(line)
        observer  checkpoints  done  running  ahead  stale  failed  left
        curves              2     1        0      0      0       1     0
        failed   step 10, curves: no such file (node1, noon)
    """
    width = max((len(name) for name in states), default=0)
    width = max(width, len("observer"))
    lines = [f"{'observer':<{width}}  checkpoints  " + "  ".join(f"{s:>4}" for s in STATES)]
    for name, of in states.items():
        counts = [sum(state == s for state, _ in of.values()) for s in STATES]
        cells = "  ".join(f"{n:>{max(4, len(s))}}" for s, n in zip(STATES, counts, strict=True))
        lines.append(f"{name:<{width}}  {len(of):>11}  {cells}")
    for state in ("running", "ahead", "stale", "failed"):
        of_state = [
            f"{state:<8} step {step}, {name}: {said}"
            for name, of in states.items() for step, (s, said) in of.items() if s == state
        ]  # fmt: skip
        lines += of_state[:_SHOWN]
        if len(of_state) > _SHOWN:
            lines.append(f"{state:<8} and {len(of_state) - _SHOWN} more")
    return lines
