"""The record of checkpoints' weights, from which the audit of a replay is made."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from lmdyn.analysis.inspection.weights_audit import SKETCH_SIZE, audit_weights, weights_sketch
from lmdyn.callbacks.training.atomic_files import remove_unfinished, write_file
from lmdyn.callbacks.training.checkpoint_files import weights_digest

__all__ = ["SeenWeights", "WeightsRecord"]

_OF = b"lmdyn_audit_of"


@dataclass(frozen=True)
class SeenWeights:
    """Summary of a checkpoint's weights.

    Attributes:
        digest: a hash of all weights.
        sketch: (4093,) their random projection.
    """

    digest: str
    sketch: Tensor

    @classmethod
    def of(cls, weights: Mapping[str, Tensor]) -> "SeenWeights":
        """Return the summary of a checkpoint; every weight is read."""
        return cls(weights_digest(weights), weights_sketch(weights))


class WeightsRecord:
    """Digests and sketches of the checkpoints that a replay has read, and the audit of all of them.

    ``<out>/weights_audit/<step:09d>.parquet`` has a digest and a sketch (32 KB) of one checkpoint, so that neither
    a later replay nor another worker reads it again for the audit, unless names, sizes or times of its files (or a hub
    model's name and revision) change. Each worker writes the checkpoints that it reads, then ``weights_audit.parquet``
    from all that exist at that time: the table of the last worker to finish is complete.

    Args:
        out: folder that receives both.
    """

    def __init__(self, out: Path) -> None:
        self.folder = out / "weights_audit"
        self.path = out / "weights_audit.parquet"

    def file(self, step: int) -> Path:
        """Return the path of a checkpoint's digest and sketch."""
        return self.folder / f"{step:09d}.parquet"

    def has(self, step: int, stamp: str) -> bool:
        """Return whether exactly this checkpoint was read already."""
        return self.digest(step, stamp) is not None

    def digest(self, step: int, stamp: str) -> str | None:
        """Return the hash of exactly this checkpoint's weights; None if it was not read yet."""
        row = self._row(step, stamp)
        return None if row is None else str(row["digest"])

    def add(self, step: int, stamp: str, seen: "SeenWeights") -> None:
        """Record a checkpoint."""
        row = {"step": [step], "stamp": [stamp], "digest": [seen.digest], "sketch": [seen.sketch.numpy()]}
        write_file(self.file(step), lambda path: pd.DataFrame(row).to_parquet(path, index=False))

    def audit(self, stamps: Mapping[int, str]) -> tuple[pd.DataFrame, list[str]]:
        """Audit the checkpoints that were read, and write the table, unless it is up to date.

        Args:
            stamps: stamp of each step; records of other files for these steps are ignored.

        Returns:
            Columns ``step, digest, distance_to_previous, distance_to_first, flag`` (empty if nothing is wrong), and a
            sentence for each flag.
        """
        of = self._state(stamps)
        table = self._last(of)
        if table is None:
            remove_unfinished(self.folder)
            table = self._audit(stamps)
            arrow = pa.Table.from_pandas(table, preserve_index=False)
            arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), _OF: of})
            write_file(self.path, lambda path: pq.write_table(arrow, path))
        return table, [said for step, flag in zip(table["step"], table["flag"], strict=True)
                       for said in _sentences(int(step), flag)]  # fmt: skip

    def _audit(self, stamps: Mapping[int, str]) -> pd.DataFrame:
        rows = [row for step in sorted(stamps) if (row := self._row(step, stamps[step])) is not None]
        steps = [int(row["step"]) for row in rows]
        digests = [str(row["digest"]) for row in rows]
        sketches = torch.from_numpy(np.stack([row["sketch"] for row in rows])) if rows else None
        audit = audit_weights(
            steps, digests, torch.zeros(0, SKETCH_SIZE, dtype=torch.float64) if sketches is None else sketches
        )
        flags = [
            "; ".join(
                ([] if twin is None else [f"{_TWIN}{twin}"])
                + ([_OUT_OF_ORDER] if moved else [])
                + ([] if finite else [_NOT_FINITE])
            )
            for twin, moved, finite in zip(audit.identical_to, audit.out_of_order, audit.finite, strict=True)
        ]
        return pd.DataFrame(
            {
                "step": pd.Series(steps, dtype="int64"),
                "digest": pd.Series(digests, dtype="str"),
                "distance_to_previous": pd.Series(audit.to_previous, dtype="float64"),
                "distance_to_first": pd.Series(audit.to_first, dtype="float64"),
                "flag": pd.Series(flags, dtype="str"),
            }
        )

    def _state(self, stamps: Mapping[int, str]) -> bytes:
        """Return a key that changes when the audit may change: stamps, and sizes and times of the records."""
        facts = []
        for step in sorted(stamps):
            try:
                about = self.file(step).stat()
            except FileNotFoundError:
                continue
            facts.append((step, stamps[step], about.st_size, about.st_mtime_ns))
        return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest().encode()

    def _last(self, of: bytes) -> pd.DataFrame | None:
        """Return the existing table, if it is of this state."""
        try:
            arrow = pq.read_table(self.path)
        except (OSError, pa.ArrowException):  # missing or damaged: it is made again
            return None
        metadata = arrow.schema.metadata or {}
        table: pd.DataFrame = arrow.to_pandas()
        return table.astype({"digest": "str", "flag": "str"}) if metadata.get(_OF) == of else None

    def _row(self, step: int, stamp: str) -> dict[str, Any] | None:
        try:
            table = pq.ParquetFile(self.file(step)).read()
        except (OSError, pa.ArrowException):  # missing or damaged
            return None
        if len(table) != 1 or not {"step", "stamp", "digest", "sketch"} <= set(table.column_names):
            return None
        row: dict[str, Any] = {name: table[name][0].as_py() for name in ("step", "stamp", "digest")}
        row["sketch"] = table["sketch"].combine_chunks().flatten().to_numpy()
        return row if row["stamp"] == stamp and len(row["sketch"]) == SKETCH_SIZE else None


_TWIN, _OUT_OF_ORDER, _NOT_FINITE = "identical to step ", "out of order", "not finite"


def _sentences(step: int, flag: str) -> list[str]:
    """Yield the meaning of the flags of a step."""
    said = []
    for one in flag.split("; ") if flag else ():
        if one.startswith(_TWIN):
            said.append(f"steps {one.removeprefix(_TWIN)} and {step} have identical weights")
        if one == _OUT_OF_ORDER:
            said.append(
                f"step {step} is out of order: by the distances of weights, it does not lie between the checkpoints "
                "before and after it (of another run, or of another step?)"
            )
        if one == _NOT_FINITE:
            said.append(f"step {step} has weights that are infinite or NaN")
    return said
