"""Tables, and the state of the machine that they are of; without the imports of lmdyn."""

import os
import platform
import statistics
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(values: Sequence[float], form: str = "{:.3f}") -> str:
    """Median, and least and greatest value."""
    low, middle, high = (form.format(f(values)) for f in (min, statistics.median, max))
    return middle if len(values) == 1 else f"{middle} ({low} to {high})"


def machine() -> str:
    """Processor, cores, versions, and how busy the machine is with other things."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":")[1].strip() if names else model
    return (
        f"{model}, {os.cpu_count()} cores; Python {platform.python_version()}, torch {version('torch')}, "
        f"lightning {version('lightning')}; load {os.getloadavg()[0]:.2f} at {time.strftime('%Y-%m-%d %H:%M')}"
    )
