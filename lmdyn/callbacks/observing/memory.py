"""Free resources of the machine (memory of host and device, disk, processors), and memory of a computation."""

import os
import shutil
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile


def most_allocated(compute: Callable[[], object]) -> int:
    """Return the peak memory of tensors on the host during a computation, in bytes, without earlier tensors.

    Example:
        >>> most_allocated(lambda: torch.ones(1000).exp().sum())
        8000
    """
    with (
        patch.dict(os.environ, {"KINETO_LOG_LEVEL": "9"}),  # otherwise it writes to the terminal
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled,
    ):
        compute()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = (int(e.nbytes()) for e in sorted(events, key=lambda e: e.start_ns()))
    return max(accumulate(sizes, initial=0))


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that can be allocated on a device now; None if unknown.

    On the host, this is the available memory of the system, or the rest of the limit of a container or job if less.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + cached)
    if device.type != "cpu":
        return None
    known = [n for n in (_available(), _left_of_limit()) if n is not None]
    return min(known) if known else None


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes = {line.partition(":")[0]: line.split()[1] for line in lines}
        return 1024 * int(sizes["MemAvailable"])
    except (OSError, KeyError, ValueError, IndexError):  # not Linux
        return None


def _left_of_limit() -> int | None:
    """Return the rest of the limit of the control group, of version 2, else of version 1."""
    for folder, limit, used in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            most = int(Path(folder, limit).read_text(encoding="ascii"))
            now = int(Path(folder, used).read_text(encoding="ascii"))
            inactive = [
                int(line.split()[1])  # the file cache, which the system frees
                for line in Path(folder, "memory.stat").read_text(encoding="ascii").splitlines()
                if line.split()[0] in ("inactive_file", "total_inactive_file")
            ]
        except (OSError, ValueError, IndexError):  # no limit ("max"), no such file
            continue
        return max(0, most - now + max(inactive, default=0))
    return None


def free_disk(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, which may not exist yet."""
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    return shutil.disk_usage(there).free


def in_words(number: int) -> str:
    """Format a number of bytes.

    Example:
        >>> in_words(512), in_words(3 * 2**20), in_words(5 * 2**30 + 2**29)
        ('512 B', '3.0 MiB', '5.5 GiB')
    """
    size, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{number} B" if unit == "B" else f"{size:.1f} {unit}"
