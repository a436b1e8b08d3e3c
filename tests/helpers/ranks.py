"""Processes for tests, forked from one that has imported everything; with an end, and stacks where they hang.

Importing torch, Lightning and transformers takes 8 seconds: a process that a test starts here pays none
of them. It is forked from a clean server process (multiprocessing's), which has run no test.
"""

import faulthandler
import importlib.util
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).parents[2])
TORCHRUN = {"LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test"}

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["lmdyn.cli.fit", "lmdyn.callbacks", "lmdyn.datamodules", "lmdyn.models", "pandas"]
)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _enter(
    log: str, directory: str, environment: dict[str, str], call: Callable[..., None], *args: Any
) -> None:
    """In the new process: output to ``log``, stacks of all threads there at SIGUSR2, then the call."""
    with Path(log).open("w", encoding="utf-8") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    # as in a user's process on Linux; of a forkserver's, workers of a DataLoader would outlive one that is killed
    multiprocessing.set_start_method("fork", force=True)
    import torch  # by the server already

    torch.set_num_threads(1)
    call(*args)


def start(log: Path, call: Callable[..., None], *args: Any, **environment: str) -> BaseProcess:
    """A process that runs ``call(*args)``, in the current folder, with its output in ``log``."""
    process = _context.Process(
        target=_enter, args=(str(log), str(Path.cwd()), {**os.environ, **environment}, call, *args)
    )
    process.start()
    return process


GRACE, STACKS = 10.0, 2.0  # seconds for the others when one has failed, and for writing stacks


def finish(processes: list[BaseProcess], logs: list[Path], timeout: float) -> None:
    """Wait for all; where one fails, or is late, the others are ended and the failure shows what each was doing.

    A rank that waits for one that has failed would wait for minutes: only what the others leave is then waited for.
    """
    end = time.monotonic() + timeout
    try:
        while running := [p for p in processes if p.is_alive()]:
            if any(p.exitcode for p in processes):
                end = min(end, time.monotonic() + GRACE)
            if not wait([p.sentinel for p in running], max(0.0, end - time.monotonic())):
                break
        for process in running:
            os.kill(process.pid or 0, signal.SIGUSR2)  # faulthandler writes the stacks of all threads
            process.join(STACKS)
        texts = "\n".join(
            f"--- process {rank}: {'ended late' if p in running else f'exit code {p.exitcode}'}\n{tail(log)}"
            for rank, (p, log) in enumerate(zip(processes, logs, strict=True))
        )
        failed = bool(running) or any(p.exitcode for p in processes)
        assert not failed, f"within {timeout:g} seconds:\n{texts}"
    finally:
        for process in processes:
            process.kill()
            process.join()


def tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-6000:] if log.exists() else "(no output)"


def _rank_main(script: str, folder: str) -> None:
    """``rank_main`` of a test file."""
    spec = importlib.util.spec_from_file_location("rank_script", script)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["rank_script"] = module
    spec.loader.exec_module(module)
    module.rank_main(Path(folder))


def run_ranks(
    script: str, folder: Path, cache: Path, timeout: float = 120, ranks: int = 2, **environment: str
) -> None:
    """Run ``rank_main(folder)`` of the file ``script`` as rank 0, 1, …; fail with the log of one that fails.

    The ranks have the environment of ``init_process_group("gloo")``; with ``**TORCHRUN`` that of a Trainer, too.
    """
    common = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks),
        "LMDYN_CACHE": str(cache), **environment,
    }  # fmt: skip
    logs = [folder / f"log{rank}.txt" for rank in range(ranks)]
    processes = [
        start(log, _rank_main, script, str(folder), **common, RANK=str(rank), LOCAL_RANK=str(rank))
        for rank, log in enumerate(logs)
    ]
    finish(processes, logs, timeout)
