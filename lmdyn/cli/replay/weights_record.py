"""The record of checkpoints' weights, from which the audit of a replay is made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from lmdyn.analysis.inspection.weights_audit import (
    SKETCH_SIZE,
    TENSOR_SIZE,
    audit_weights,
    tensor_sketches,
    weights_sketch,
)
from lmdyn.runs.atomic_files import remove_unfinished, write_file
from lmdyn.runs.checkpoint_files import weights_digest


@dataclass(frozen=True)
class SeenWeights:
    """Summary of a checkpoint's weights.

    Attributes:
        digest: a hash of all weights.
        sketch: (4093,) random projection of the floating ones.
        tensors: by name, a hash of a tensor and (61,) its random projection.
    """

    digest: str
    sketch: Tensor
    tensors: Mapping[str, tuple[str, Tensor]]

    @classmethod
    def of(cls, weights: Mapping[str, Tensor]) -> "SeenWeights":
        """Return the summary of a checkpoint; every weight is read."""
        # counters, such as of batches, would outweigh the weights
        floating = {name: tensor for name, tensor in weights.items() if tensor.is_floating_point()}
        tensors = {
            name: (weights_digest({name: weights[name]}), sketch)
            for name, sketch in tensor_sketches(floating).items()
        }
        return cls(weights_digest(weights), weights_sketch(floating), tensors)


class WeightsRecord:
    """Digests and sketches of the checkpoints that a replay has read, and the audit of all of them.

    ``<out>/weights_audit/<step:09d>.parquet`` has a digest and a sketch (32 KB) of one checkpoint, and of each of its
    tensors (0.5 KB; a file of an earlier version that lacks these is made anew), so that neither a later replay
    nor another worker reads it again for the audit, unless names, sizes or times of its files (or a hub model's name
    and revision) change. Each worker writes the checkpoints that it reads, then ``weights_audit.parquet`` from all that
    exist at that time: the table of the last worker to finish is complete.

    Args:
        out: folder that receives both.
    """

    def __init__(self, out: Path) -> None:
        self.folder = out / "weights_audit"
        self.path = out / "weights_audit.parquet"

    def file(self, step: int) -> Path:
        """Return the path of a checkpoint's digest and sketch."""
        return self.folder / f"{step:09d}.parquet"

    def digest(self, step: int, stamp: str) -> str | None:
        """Return the hash of exactly this checkpoint's weights; None if it was not read yet."""
        row = self._row(step, stamp)
        return None if row is None else str(row["digest"])

    def add(self, step: int, stamp: str, seen: "SeenWeights") -> None:
        """Record a checkpoint."""
        digests, sketches = zip(*seen.tensors.values(), strict=True) if seen.tensors else ((), ())
        row = {
            "step": step,
            "stamp": stamp,
            "digest": seen.digest,
            "sketch": seen.sketch.numpy(),
            "tensors": list(seen.tensors),
            "tensor_digests": list(digests),
            "tensor_sketches": torch.cat(sketches).numpy() if sketches else np.empty(0),
        }
        # arrays of numpy keep NaN, which pandas would store as null
        table = pa.table({name: pa.array([value]) for name, value in row.items()})
        write_file(self.file(step), lambda path: pq.write_table(table, path))

    def audit(self, stamps: Mapping[int, str]) -> list[str]:
        """Audit the checkpoints that were read, and write the table.

        Its columns are ``step, digest, distance_to_previous, distance_to_first, flag`` (empty if nothing is wrong).

        Args:
            stamps: stamp of each step; records of other files for these steps are ignored.

        Returns:
            A sentence for each flag, for each pair of identical weights, and for all that are not finite.
        """
        rows = [row for step in sorted(stamps) if (row := self._row(step, stamps[step])) is not None]
        steps = [int(row["step"]) for row in rows]
        digests = [str(row["digest"]) for row in rows]
        sketches = np.stack([row["sketch"] for row in rows]) if rows else np.zeros((0, SKETCH_SIZE))
        audit = audit_weights(steps, digests, torch.from_numpy(sketches), _tensors(rows))
        flags, said, not_finite = [], [], []
        for i, step in enumerate(steps):
            found = []
            if (twin := audit.identical_to[i]) is not None:
                found.append(f"identical to step {twin}")
                said += [f"steps {twin} and {step} have identical weights"] if twin < step else []
            if audit.out_of_order[i]:
                found.append("out of order")
                said.append(
                    f"step {step} is out of order: according to the distances of weights, the checkpoint is not "
                    "between the previous and the next one. The file may belong to another run or step"
                )
            if names := audit.tensors_out_of_order[i]:
                some = ", ".join(names[:3]) + (
                    f" and {len(names) - 3} more tensors" if len(names) > 3 else ""
                )
                found.append(f"out of order: {some}")
                said.append(
                    f"some tensors of step {step} are out of order, and may be of another step or layer: {some}"
                )
            if not audit.finite[i]:
                found.append("not finite")
                not_finite.append(str(step))
            flags.append("; ".join(found))
        if audit.unrelated_start:
            unrelated = f"unrelated to step {steps[0]}"
            flags[1] = f"{flags[1]}; {unrelated}" if flags[1] else unrelated
            said.append(
                f"step {steps[1]} does not descend from step {steps[0]}: the weights of both differ like two "
                f"initialisations, but the weights of steps {steps[1]} and {steps[2]} differ little"
            )
        if not_finite:
            plural = "s" * (len(not_finite) > 1)
            said.append(f"weights are infinite or NaN at step{plural} {', '.join(not_finite)}")
        table = pd.DataFrame(
            {
                "step": pd.Series(steps, dtype="int64"),
                "digest": pd.Series(digests, dtype="str"),
                "distance_to_previous": pd.Series(audit.to_previous, dtype="float64"),
                "distance_to_first": pd.Series(audit.to_first, dtype="float64"),
                "flag": pd.Series(flags, dtype="str"),
            }
        )
        remove_unfinished(self.folder)
        write_file(self.path, lambda path: table.to_parquet(path, index=False))
        return said

    def _row(self, step: int, stamp: str) -> dict[str, Any] | None:
        try:
            table = pd.read_parquet(self.file(step))
        except (OSError, pa.ArrowException):  # missing or damaged
            return None
        if len(table) != 1 or not {"stamp", "tensor_sketches"} <= set(table):
            return None
        row: dict[Any, Any] = table.iloc[0].to_dict()
        if row["stamp"] != stamp or len(row["sketch"]) != SKETCH_SIZE:
            return None
        points = row["tensor_sketches"].reshape(-1, TENSOR_SIZE)
        parts = zip(row["tensor_digests"], points, strict=True)
        return row | {"tensors": dict(zip(row["tensors"], parts, strict=True))}


def _tensors(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[list[str], Tensor]]:
    """Return hashes and sketches of all checkpoints by tensor; NaN where a checkpoint lacks it."""
    found = {}
    unknown = ("", np.full(TENSOR_SIZE, np.nan))
    for name in dict.fromkeys(name for row in rows for name in row["tensors"]):
        hashes, points = zip(*(row["tensors"].get(name, unknown) for row in rows), strict=True)
        found[name] = (list(hashes), torch.from_numpy(np.stack(points)))
    return found
