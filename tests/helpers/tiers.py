"""How the suite is run: workers, order, and what each room costs (a pytest plugin)."""

import gc
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

LONGEST = ("tests/test_workflows.py", "tests/callbacks/test_registry.py")
MOST_WORKERS = 8  # each imports everything and takes some 1.5 GB


def room(path: str) -> str:
    """Where a test or doctest is at home: ``callbacks/similarity``, ``models``; ``whole`` is no room's own.

    Example:
        >>> room("tests/callbacks/similarity/test_similarity.py"), room("lmdyn/callbacks/similarity/similarity.py")
        ('callbacks/similarity', 'callbacks/similarity')
        >>> room("tests/test_configs.py"), room("tests/cli/test_fit.py"), room("tests/callbacks/test_registry.py")
        ('whole', 'cli', 'callbacks')
    """
    return "/".join(Path(path).parts[1:-1]) or "whole"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """None for single files, which a worker's imports would double; else one for each core."""
    if all(Path(argument.partition("::")[0]).is_file() for argument in config.args):
        return 0
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2, MOST_WORKERS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, so that no worker is left with one at the end: those of the whole, of floors, of rooms."""

    def place(item: pytest.Item) -> tuple[bool, bool, int, str]:
        path = item.location[0]
        return path.startswith("lmdyn"), path not in LONGEST, len(Path(path).parts), path

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """What was imported stays: no collection has to look through it, half a second each."""
    gc.collect()
    gc.freeze()


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Durations:
    """Seconds and CPU seconds of each room's tests."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)
        self.last = 0.0

    def pytest_runtest_logstart(self) -> None:
        self.last = _cpu()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Any:
        report = yield
        now = _cpu()
        report.cpu, self.last = now - self.last, now  # goes from a worker to the process that reports
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = room(report.location[0])
        self.seconds[name] += report.duration
        self.cpu[name] += getattr(report, "cpu", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self.seconds) < 2:
            return
        terminalreporter.section("seconds of each room")
        terminalreporter.write_line("seconds     CPU  room")
        for key in sorted(self.seconds, key=lambda key: -self.seconds[key]):
            terminalreporter.write_line(f"{self.seconds[key]:7.1f} {self.cpu[key]:7.1f}  {key}")
        terminalreporter.write_line(f"{sum(self.seconds.values()):7.1f} {sum(self.cpu.values()):7.1f}  all")


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config, "workerinput", {}).get("workerid") == "gw1" and config.args == ["tests", "lmdyn"]:
        # from the end: in a new clone two workers each write the bytecode of one half, and read the other's
        config.args = ["lmdyn", *sorted(map(str, Path("tests").glob("[!_]*")), reverse=True)]
    config.pluginmanager.register(Durations(), "durations of rooms")
