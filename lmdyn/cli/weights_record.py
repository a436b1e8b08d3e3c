"""The record of what checkpoints' weights were, from which the audit of a replay is made."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor

from lmdyn.analysis.inspection.weights_audit import SKETCH_SIZE, audit_weights, weights_sketch
from lmdyn.callbacks.training.checkpoint_files import weights_digest

__all__ = ["WeightsRecord"]


class WeightsRecord:
    """Digests and sketches of the checkpoints that a replay has read, and the audit of all of them.

    ``<out>/weights_audit/<step:09d>.parquet`` holds a digest and a sketch (32 KB) of one checkpoint, so that neither
    a later replay nor another worker reads it again only to audit it: as long as names, sizes and times of its files
    (or a hub model's name and revision) are the same. Each worker writes what it reads, then ``weights_audit.parquet``
    from what all have written so far: that of the last to finish is complete.

    Args:
        out: folder that receives both.
    """

    def __init__(self, out: Path) -> None:
        self.folder = out / "weights_audit"
        self.path = out / "weights_audit.parquet"

    def has(self, step: int, stamp: str) -> bool:
        """Whether this very checkpoint was read already."""
        return self._row(step, stamp) is not None

    def add(self, step: int, stamp: str, weights: Mapping[str, Tensor]) -> None:
        """Take down a checkpoint."""
        row = {
            "step": [step],
            "stamp": [stamp],
            "digest": [weights_digest(weights)],
            "sketch": [weights_sketch(weights).numpy()],
        }
        _write(pd.DataFrame(row), self._file(step))

    def audit(self, stamps: Mapping[int, str]) -> tuple[pd.DataFrame, list[str]]:
        """Audit those of the checkpoints that were read, and write the table.

        Args:
            stamps: each step's stamp; what was read of other files under these steps plays no part.

        Returns:
            Columns ``step, digest, distance_to_previous, distance_to_first, flag`` (empty where all is well), and a
            sentence for each flag.
        """
        rows = [row for step in sorted(stamps) if (row := self._row(step, stamps[step])) is not None]
        steps = [int(row["step"]) for row in rows]
        digests = [str(row["digest"]) for row in rows]
        sketches = torch.from_numpy(np.stack([row["sketch"] for row in rows])) if rows else None
        audit = audit_weights(
            steps, digests, torch.zeros(0, SKETCH_SIZE, dtype=torch.float64) if sketches is None else sketches
        )
        flags: list[str] = []
        sentences: list[str] = []
        for i, step in enumerate(steps):
            found: list[str] = []
            if (twin := audit.identical_to[i]) is not None:
                found.append(f"identical to step {twin}")
                sentences.append(f"steps {twin} and {step} hold identical weights")
            if audit.out_of_order[i]:
                found.append("out of order")
                sentences.append(
                    f"step {step} is out of order: by the distances of weights, it does not lie between the "
                    "checkpoints before and after it (of another run, or of another step?)"
                )
            if not audit.finite[i]:
                found.append("not finite")
                sentences.append(f"step {step} holds weights that are infinite or NaN")
            flags.append("; ".join(found))
        table = pd.DataFrame(
            {
                "step": pd.Series(steps, dtype="int64"),
                "digest": pd.Series(digests, dtype="str"),
                "distance_to_previous": pd.Series(audit.to_previous, dtype="float64"),
                "distance_to_first": pd.Series(audit.to_first, dtype="float64"),
                "flag": pd.Series(flags, dtype="str"),
            }
        )
        _write(table, self.path)
        return table, sentences

    def _file(self, step: int) -> Path:
        return self.folder / f"{step:09d}.parquet"

    def _row(self, step: int, stamp: str) -> dict[str, Any] | None:
        try:
            table = pd.read_parquet(self._file(step))
        except (OSError, pa.ArrowException):  # not there, or damaged: it is made again
            return None
        row: dict[str, Any] = {str(name): table[name].iloc[0] for name in table}
        return row if row.get("stamp") == stamp and len(row.get("sketch", ())) == SKETCH_SIZE else None


def _write(table: pd.DataFrame, path: Path) -> None:
    """Under another name first, so that a killed worker leaves no half file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    try:
        table.to_parquet(temporary, index=False)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
