"""Work of a command, done by two processes at once."""

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
_MOST = 2  # a report of very many observations takes less than 1 GB so
_WORK: list[Callable[[], Any]] = []  # what the processes know from the beginning: it need not be sent to them
_NUMBER = 2  # bytes: more work does not go into a pipe at once
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
    numbers, full = os.pipe()  # of what nobody has begun: each takes the next one
    os.write(full, b"".join(i.to_bytes(_NUMBER) for i in range(len(work))))
    os.close(full)
    answers: dict[int, _T] = {}
    try:
        with ProcessPoolExecutor(forks, fork, initializer=_end_with, initargs=(os.getpid(),)) as pool:
            try:
                with warnings.catch_warnings():
                    # Python 3.12 warns of any threads: pyarrow's wait for work, and are made anew in a fork
                    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
                    futures = [pool.submit(_made_in_a_fork, numbers) for _ in range(forks)]
                for i in _taken(numbers):
                    answers[i] = work[i]()
            finally:
                list(_taken(numbers))  # after an error nobody begins anything
            for future in futures:
                with suppress(BrokenProcessPool):  # without memory, or killed
                    answers |= {i: pickle.loads(answer) for i, answer in future.result().items()}
    finally:
        _WORK.clear()
        os.close(numbers)
    return [answers[i] if i in answers else make() for i, make in enumerate(work)]


def _taken(numbers: int) -> Iterator[int]:
    """Numbers of what this process is to do."""
    while number := os.read(numbers, _NUMBER):
        yield int.from_bytes(number)


def _made_in_a_fork(numbers: int) -> dict[int, bytes]:
    """Answers, but for those that could not be made, or sent."""
    answers = {}
    for i in _taken(numbers):
        with suppress(Exception):  # it is raised again where this is made again
            answers[i] = pickle.dumps(_WORK[i]())
    return answers


def _end_with(parent: int) -> None:
    """Let this process be killed when its parent ends, which may be killed itself and tell nobody.

    Ctrl-C ends it without a traceback, which reaches parent and fork at once: the parent has the line for it.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
