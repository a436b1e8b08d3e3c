"""Two gloo processes that run a test file's own script."""

import os
import socket
import subprocess
import sys
from pathlib import Path


def run_two_ranks(script: str, folder: Path, cache: Path, timeout: float, **environment: str) -> None:
    """Run ``script FOLDER`` as rank 0 and rank 1; fail with the end of the log of one that fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = str(Path(__file__).parents[2])  # the script imports this file too
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    ranks = []
    try:
        for rank in (0, 1):
            of_rank = {
                **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2",
                "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1", "LMDYN_CACHE": str(cache),
                "PYTHONPATH": path, **environment,
            }  # fmt: skip
            with (folder / f"log{rank}.txt").open("w", encoding="utf-8") as log:
                command = [sys.executable, script, str(folder)]
                ranks.append(subprocess.Popen(command, env=of_rank, stdout=log, stderr=subprocess.STDOUT))
        codes = [process.wait(timeout=timeout) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    for rank, code in enumerate(codes):
        assert code == 0, (folder / f"log{rank}.txt").read_text(encoding="utf-8")[-4000:]
