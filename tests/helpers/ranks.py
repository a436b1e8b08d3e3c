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
    """In the new process: output to ``log``, stacks of all threads there at SIGABRT, then the call."""
    with Path(log).open("w", encoding="utf-8") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    faulthandler.enable()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
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


def finish(processes: list[BaseProcess], logs: list[Path], timeout: float) -> list[int]:
    """Exit codes; past ``timeout`` seconds all are ended and the failure shows what each was doing."""
    end = time.monotonic() + timeout
    try:
        for process in processes:
            process.join(max(0.0, end - time.monotonic()))
        late = [rank for rank, process in enumerate(processes) if process.is_alive()]
        for rank in late:
            os.kill(processes[rank].pid or 0, signal.SIGABRT)  # faulthandler writes the stacks
            processes[rank].join(10)
        texts = "\n".join(f"--- process {rank}\n{tail(log)}" for rank, log in enumerate(logs))
        assert not late, f"processes {late} had not ended after {timeout:g} seconds:\n{texts}"
        return [process.exitcode or 0 for process in processes]
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
    for code, log in zip(finish(processes, logs, timeout), logs, strict=True):
        assert code == 0, tail(log)
