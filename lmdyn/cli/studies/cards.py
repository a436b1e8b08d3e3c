"""GPUs for a job: ``python -m lmdyn.cli.studies.cards N COMMAND …`` waits for N free GPUs and runs the command there.

Without it, all jobs of a chain on one machine would start on the first GPU. A GPU is taken by a lock on a file, which
the system releases when the command ends for any reason; it applies to all chains of the same user. The GPUs are those
of ``CUDA_VISIBLE_DEVICES`` (set by a cluster's scheduler), otherwise all of the machine; without GPUs, the command runs
unchanged.
"""

import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lmdyn.cli.studies.run_lock import FolderLock

__all__ = ["take_cards", "visible_cards"]

log = logging.getLogger(__name__)

_LOOK_S = 2.0
_SAY_S = 60.0


def visible_cards(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that a process may use, as named in ``CUDA_VISIBLE_DEVICES``.

    Example:
        >>> visible_cards({"CUDA_VISIBLE_DEVICES": "0, 3"}), visible_cards({"CUDA_VISIBLE_DEVICES": ""})
        (['0', '3'], [])
    """
    given = environment.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [card.strip() for card in given.split(",") if card.strip()]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):  # no driver
        return []
    return [str(i) for i, line in enumerate(listed.stdout.splitlines()) if line.startswith("GPU ")]


def take_cards(n: int, cards: Sequence[str], folder: Path) -> tuple[list[str], list[FolderLock]]:
    """Wait for ``n`` of the GPUs; they are held as long as the locks are.

    Args:
        n: number of GPUs.
        cards: names of the GPUs.
        folder: folder of the locks.

    Raises:
        ValueError: if ``n`` exceeds the number of GPUs.
    """
    if n > len(cards):
        raise ValueError(f"expected at most {len(cards)} cards ({', '.join(cards)}), got {n}: request fewer")
    said = -_SAY_S
    while True:
        taken: dict[str, FolderLock] = {}
        for card in cards:
            lock = FolderLock(folder / f"card-{card}")
            try:
                lock.acquire()
            except ValueError:  # held by another process
                continue
            taken[card] = lock
            if len(taken) == n:
                return list(taken), list(taken.values())
        for lock in taken.values():  # all or none: two jobs that need several must not deadlock
            lock.release()
        if time.monotonic() - said >= _SAY_S:
            log.warning("waiting for %d of the cards %s", n, ", ".join(cards))
            said = time.monotonic()
        time.sleep(_LOOK_S)


def main(arguments: Sequence[str]) -> None:
    """Replace this process by a command that holds its own GPUs while it runs."""
    n, command = int(arguments[0]), list(arguments[1:])
    environment, cards = dict(os.environ), visible_cards(os.environ)
    if n and cards:
        folder = Path(tempfile.gettempdir()) / f"lmdyn-cards-{os.getuid()}"
        chosen, locks = take_cards(n, cards, folder)
        for lock in locks:
            lock.bequeath()
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(chosen)
        log.info("cards %s", environment["CUDA_VISIBLE_DEVICES"])
    sys.stderr.flush()
    os.execvpe(command[0], command, environment)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main(sys.argv[1:])
