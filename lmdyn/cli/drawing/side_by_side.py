"""Work of a command, done by two processes at once."""

import ctypes
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, TypeVar

__all__ = ["made_side_by_side", "processes_to_draw"]

_T = TypeVar("_T")
_MOST = 2  # a report of very many observations takes less than 1 GB so
_WORK: list[Callable[[], Any]] = []  # what the processes know from the beginning: it need not be sent to them
_PR_SET_PDEATHSIG = 1  # of Linux' prctl


def processes_to_draw() -> int:
    """How many processes may draw for a command: two where there are two cores and Linux' fork."""
    if sys.platform != "linux":
        return 1
    return min(_MOST, len(os.sched_getaffinity(0)))


def made_side_by_side(work: Sequence[Callable[[], _T]], processes: int) -> list[_T]:
    """What each function answers, in their order, made in this process and in forks of it; what fails there, here.

    Only for a process without threads at work: those of a training do not live on in a fork, but what they hold locked
    does. Forks end with this process, however it ends.

    Args:
        work: functions of no arguments whose answers can be sent; the longest first.
        processes: this one included; 1 to fork none.

    Example:
        >>> made_side_by_side([lambda: "a", lambda: "b"], 2)
        ['a', 'b']
    """
    forks = min(processes, len(work)) - 1
    if forks < 1:
        return [make() for make in work]
    _WORK[:] = work
    fork = multiprocessing.get_context("fork")
    try:
        with ProcessPoolExecutor(forks, fork, initializer=_end_with, initargs=(os.getpid(),)) as pool:
            with warnings.catch_warnings():
                # Python 3.12 warns of any threads: pyarrow's wait for work, and are made anew in a fork
                warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
                futures = [pool.submit(_make, i) for i in range(len(work) - 1)]
            # forks begin with the first, this process with the last
            answers = {len(futures): work[-1]()}
            for i in reversed(range(len(futures))):
                if futures[i].cancel():
                    answers[i] = work[i]()
            for i, future in enumerate(futures):
                if i not in answers:
                    answers[i] = _answer(future, work[i])
            return [answers[i] for i in range(len(work))]
    finally:
        _WORK.clear()


def _make(i: int) -> Any:
    return _WORK[i]()


def _answer(future: "Future[_T]", make: Callable[[], _T]) -> _T:
    try:
        return future.result()
    except Exception:  # of the work, which raises it again here, or of a process: memory, a signal
        return make()


def _end_with(parent: int) -> None:
    """Let this process be killed when its parent ends, which may be killed itself and tell nobody."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
