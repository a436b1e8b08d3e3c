"""A GPU for a job: ``python -m lmdyn.cli.studies.cards N COMMAND …`` waits for N free cards and runs the command there.

Jobs of a chain on one machine would else all begin on its first card. A card is taken by a lock on a file, which the
system lets go when the command ends, however it ends; it holds against all chains of the same user. Cards are those
of ``CUDA_VISIBLE_DEVICES`` (a cluster's scheduler sets it), else all of the machine; where there are none, the command
runs as it is.
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
    """The cards that a process may use, as ``CUDA_VISIBLE_DEVICES`` names them.

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
    """Wait for ``n`` of the cards; they are held for as long as the locks are.

    Args:
        n: how many.
        cards: by their names.
        folder: of the locks.

    Raises:
        ValueError: more than there are.
    """
    if n > len(cards):
        raise ValueError(
            f"{n} cards are asked for, and there are {len(cards)} ({', '.join(cards)}): ask for fewer"
        )
    said = -_SAY_S
    while True:
        taken: dict[str, FolderLock] = {}
        for card in cards:
            lock = FolderLock(folder / f"card-{card}")
            try:
                lock.acquire()
            except ValueError:  # another process holds it
                continue
            taken[card] = lock
            if len(taken) == n:
                return list(taken), list(taken.values())
        for lock in taken.values():  # all or none, so that two that want several do not wait for each other
            lock.release()
        if time.monotonic() - said >= _SAY_S:
            log.warning("waiting for %d of the cards %s", n, ", ".join(cards))
            said = time.monotonic()
        time.sleep(_LOOK_S)


def main(arguments: Sequence[str]) -> None:
    """Become a command that has cards of its own, for as long as it runs."""
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
