"""How the suite is run: workers and order (a pytest plugin)."""

import gc
import os
from pathlib import Path

import pytest

LONGEST = ("tests/test_workflows.py", "tests/callbacks/test_registry.py")
MOST_WORKERS = 8  # each imports everything and takes some 1.5 GB


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


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config, "workerinput", {}).get("workerid") == "gw1" and config.args == ["tests", "lmdyn"]:
        # from the end: in a new clone two workers each write the bytecode of one half, and read the other's
        config.args = ["lmdyn", *sorted(map(str, Path("tests").glob("[!_]*")), reverse=True)]
