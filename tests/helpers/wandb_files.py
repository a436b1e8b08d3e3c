"""Reading what Weights & Biases writes offline: its package has no public reader.

A file ``run-*.wandb`` is a LevelDB log (blocks of 32 KiB; records of checksum, length, type and data) of protobuf
records, after a header of seven bytes.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32 * 1024, 7
FULL, FIRST, LAST = 1, 2, 4


def records(path: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    content = path.read_bytes()
    at, parts = HEADER, b""
    while at + HEADER <= len(content):
        left = BLOCK - at % BLOCK
        if left < HEADER:  # padding
            at += left
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        parts = (b"" if kind in (FULL, FIRST) else parts) + content[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (FULL, LAST):
            yield wandb_internal_pb2.Record.FromString(parts)


def offline_runs(folder: Path) -> dict[str, dict[str, Any]]:
    """By the name of each offline run below a folder: its ``run``, ``history`` (one dict a call) and ``axes``."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.rglob("run-*.wandb")):
        run, history, axes = None, [], {}
        for record in records(path):
            match record.WhichOneof("record_type"):
                case "run":
                    run = record.run
                case "history":
                    keys = [item.key or "/".join(item.nested_key) for item in record.history.item]
                    values = [json.loads(item.value_json) for item in record.history.item]
                    history.append(dict(zip(keys, values, strict=True)))
                case "metric":
                    axes[record.metric.glob_name or record.metric.name] = record.metric.step_metric
        assert run is not None
        assert run.display_name not in found
        found[run.display_name] = {"run": run, "history": history, "axes": axes, "folder": path.parent}
    return found
