"""Costs of a chain of runs: CPU time, memory and disk, including killed processes."""

import atexit
import json
import logging
import os
import platform
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lmdyn.cli.studies.provenance import write_json

__all__ = ["COSTS", "FILE", "account", "cost_words", "read_costs", "total_costs"]

log = logging.getLogger(__name__)

COSTS = "LMDYN_COSTS"
"""Environment variable: the folder in which each process of lmdyn records its own costs."""

FILE = "costs.json"
"""The file of the total, in the folder of a profile's runs."""

_EVERY_S = 10.0
_MB = 2**20


def account(folder: Path, command: Sequence[str]) -> None:
    """Record the costs of this process in its own file: now, every ten seconds and at its end.

    A killed process leaves the costs up to at most ten seconds earlier.

    Args:
        folder: receives ``<time>-<process>.json`` with ``command, began, host, seconds, cpu_seconds, peak_memory_mb,
            ended``.
        command: words of the command line.
    """
    began = time.time()
    about = {
        "command": list(command),
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
    }
    path = folder / f"{time.time_ns()}-{os.getpid()}.json"
    stop = threading.Event()
    writing = threading.Lock()

    def write(ended: bool) -> None:
        used = {"seconds": round(time.time() - began, 1), **_used(), "ended": ended}
        try:
            with writing:
                write_json(path, about | used)
        except OSError as error:  # must not fail the run
            log.debug("%s is not written: %s", path, error)

    def keep() -> None:
        while not stop.wait(_EVERY_S):
            write(ended=False)

    def end() -> None:
        stop.set()
        write(ended=True)

    write(ended=False)
    threading.Thread(target=keep, name="costs", daemon=True).start()
    atexit.register(end)


def total_costs(runs: Path) -> dict[str, Any]:
    """Return the costs of all commands of a chain so far.

    Args:
        runs: the folder of the profile's runs, with ``costs/``.

    Returns:
        ``cpu_hours``; ``peak_memory_mb`` (of the largest process); ``disk_mb`` of all files under ``runs``, of which
        ``checkpoints_mb``; ``commands``: for each command of lmdyn its ``processes``, those ``killed`` (without a
        recorded end), ``cpu_hours`` and ``peak_memory_mb``; the number of ``machines``; the time when it ``began``.

    Raises:
        FileNotFoundError: if no costs were recorded.
    """
    records = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted((runs / "costs").glob("*.json"))
    ]
    if not records:
        raise FileNotFoundError(
            f"{runs}/costs has no recorded costs: expected the folder of a profile's runs, runs/<study>/<profile>"
        )
    commands = {}
    for name in sorted({record["command"][0] for record in records}):
        of = [record for record in records if record["command"][0] == name]
        commands[name] = {"processes": len(of), "killed": sum(not r["ended"] for r in of), **_sum(of)}
    from lmdyn.callbacks.gathered.gathered_store import CACHE  # slow import, and account() runs first of all

    # reports may change the cache at the same time
    files = (path for path in runs.rglob("*") if CACHE not in path.parts)
    sizes = {path: path.stat().st_size for path in files if path.is_file()}
    checkpoints = sum(size for path, size in sizes.items() if path.suffix == ".ckpt")
    return {
        **_sum(records),
        "disk_mb": round(sum(sizes.values()) / _MB),
        "checkpoints_mb": round(checkpoints / _MB),
        "commands": commands,
        "machines": len({record["host"] for record in records}),
        "began": min(record["began"] for record in records),
    }


def read_costs(folder: Path) -> dict[str, Any]:
    """Return the result of :func:`total_costs` stored in a folder of runs or records; empty without such a file."""
    try:
        content = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        log.warning("%s cannot be read (%s): the costs of the runs are unknown", folder / FILE, error)
        return {}
    return content if isinstance(content, dict) else {}


def cost_words(costs: Mapping[str, Any]) -> str:
    """Return the costs as a sentence; empty if they are unknown.

    Example:
        >>> each = {"fit": {"cpu_hours": 1.16, "killed": 2}, "analyze": {"cpu_hours": 0.41, "killed": 0}}
        >>> cost_words({"cpu_hours": 1.57, "peak_memory_mb": 2441, "disk_mb": 2211, "commands": each})
        'cost 1.57 CPU hours (fit 1.16, analyze 0.41), 2.4 GB of memory in the largest process, 2.2 GB on disk; with 2
        killed processes'
    """
    if "cpu_hours" not in costs:
        return ""
    commands = dict(costs.get("commands", {}))
    most = sorted(commands, key=lambda name: -commands[name]["cpu_hours"])[:3]
    each = ", ".join(f"{name} {commands[name]['cpu_hours']:.2f}" for name in most)
    killed = sum(int(one.get("killed", 0)) for one in commands.values())
    told = f"cost {costs['cpu_hours']:.2f} CPU hours" + (f" ({each})" if each else "")
    for key, what in (("peak_memory_mb", "of memory in the largest process"), ("disk_mb", "on disk")):
        if costs.get(key):
            told += f", {costs[key] / 1024:.1f} GB {what}"
    return told + (f"; with {killed} killed process{'es' * (killed > 1)}" if killed else "")


def _sum(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "cpu_hours": round(sum(record["cpu_seconds"] for record in records) / 3600, 4),
        "peak_memory_mb": max(record["peak_memory_mb"] for record in records),
    }


def _used() -> dict[str, Any]:
    times = os.times()  # of this process and of its ended children
    used: dict[str, Any] = {"cpu_seconds": round(sum(times[:4]), 1), "peak_memory_mb": 0}
    try:
        import resource  # unavailable on Windows
    except ImportError:
        return used
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return used | {"peak_memory_mb": round(peak / 1024 / (1024 if sys.platform == "darwin" else 1))}


def main() -> None:
    """``python -m lmdyn.cli.studies.costs RUNS``: write the total into ``RUNS/costs.json``."""
    runs = Path(sys.argv[1])
    write_json(runs / FILE, total_costs(runs))


if __name__ == "__main__":
    main()
