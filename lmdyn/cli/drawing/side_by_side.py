"""Work of a command in two parallel processes."""

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any, TypeVar

__all__ = ["made_side_by_side", "processes_to_draw"]

_T = TypeVar("_T")
_MOST = 2  # a report of very many observations takes less than 1 GB with two
_WORK: list[Callable[[], Any]] = []  # known to the processes from the start: it need not be sent to them
_NUMBER = 2  # bytes: a pipe cannot hold more work at once
_PR_SET_PDEATHSIG = 1  # of Linux' prctl


def processes_to_draw() -> int:
    """Return how many processes may draw for a command: two with two cores and Linux' fork."""
    if sys.platform != "linux":
        return 1
    return min(_MOST, len(os.sched_getaffinity(0)))


def made_side_by_side(work: Sequence[Callable[[], _T]], processes: int) -> list[_T]:
    """Return the result of each function, in order, computed in this process and forks; failed ones again here.

    Only for a process without active threads: those of a training do not exist in a fork, but the locks that they hold
    do. Forks end with this process, however it ends.

    Args:
        work: functions without arguments whose results can be sent; the longest first.
        processes: number of processes including this one; 1 for no forks.

    Example:
        >>> made_side_by_side([lambda: "a", lambda: "b"], 2)
        ['a', 'b']
    """
    forks = min(processes, len(work)) - 1
    if forks < 1:
        return [make() for make in work]
    _WORK[:] = work
    fork = multiprocessing.get_context("fork")
    numbers, full = os.pipe()  # of work that has not begun: each process takes the next one
    os.write(full, b"".join(i.to_bytes(_NUMBER) for i in range(len(work))))
    os.close(full)
    answers: dict[int, _T] = {}
    try:
        with ProcessPoolExecutor(forks, fork, initializer=_end_with, initargs=(os.getpid(),)) as pool:
            try:
                with warnings.catch_warnings():
                    # Python 3.12 warns of any threads: those of pyarrow wait for work, and are created again in a fork
                    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
                    futures = [pool.submit(_made_in_a_fork, numbers) for _ in range(forks)]
                for i in _taken(numbers):
                    answers[i] = work[i]()
            finally:
                list(_taken(numbers))  # after an error no work begins
            for future in futures:
                with suppress(BrokenProcessPool):  # without memory, or killed
                    answers |= {i: pickle.loads(answer) for i, answer in future.result().items()}
    finally:
        _WORK.clear()
        os.close(numbers)
    return [answers[i] if i in answers else make() for i, make in enumerate(work)]


def _taken(numbers: int) -> Iterator[int]:
    """Yield the numbers of the work of this process."""
    while number := os.read(numbers, _NUMBER):
        yield int.from_bytes(number)


def _made_in_a_fork(numbers: int) -> dict[int, bytes]:
    """Return results, except those that could not be computed or sent."""
    answers = {}
    for i in _taken(numbers):
        with suppress(Exception):  # it is raised again when this is computed again
            answers[i] = pickle.dumps(_WORK[i]())
    return answers


def _end_with(parent: int) -> None:
    """Let this process be killed when its parent ends, which may itself be killed without notice.

    Ctrl-C ends it without a traceback, since parent and fork receive it at once: the parent reports it.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
