"""Rows of weight matrices: each job reads the weights that it needs, on every rank if sharded, and measures them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import plain_path
from lmdyn.analysis.inspection.forward import is_sharded
from lmdyn.analysis.parameters.head_matrices import HeadLayout, HeadMatrices
from lmdyn.analysis.parameters.linear_weight import whole_tensor
from lmdyn.analysis.statistics.distributed import gather, rank_and_world_size
from lmdyn.analysis.weights.alignment import TableAlignment, table_alignment
from lmdyn.analysis.weights.distances import weight_distance
from lmdyn.analysis.weights.matrices import TokenTables, WeightMatrix
from lmdyn.analysis.weights.spectra import MatrixSpectrum, matrix_spectrum, product_spectrum

__all__ = ["Job", "distance_jobs", "head_jobs", "measured", "parameters_of", "spectrum_jobs", "table_job"]

Row = dict[str, Any]

_BATCH = 1 << 22  # entries of the matrices of one shape that are decomposed together: 32 MB in float64
_NAMES = {
    "mean": "mean_singular_value",
    "median": "median_singular_value",
    "variance": "singular_value_variance",
}
_OF_ENTRIES = ("gini", "hoyer")


@dataclass(frozen=True)
class Job:
    """A part of an observation.

    Attributes:
        read: function that returns the weights; every rank calls it if they are sharded.
        rows: function that measures them; one rank calls it.
    """

    read: Callable[[], Any]
    rows: Callable[[Any], Iterable[Row]]


def measured(jobs: Iterable[Job], module: nn.Module) -> list[Row]:
    """Do the jobs, divided among ranks, and return their rows in order, on every rank."""
    rank, ranks = rank_and_world_size()
    together = is_sharded(module)
    own: list[tuple[int, list[Row]]] = []
    for number, job in enumerate(jobs):
        mine = number % ranks == rank
        values = job.read() if mine or together else None
        if mine:
            own.append((number, list(job.rows(values))))
    by_job = sorted((pair for part in gather(own) for pair in part), key=lambda pair: pair[0])
    return [row for _, rows in by_job for row in rows]


def spectrum_jobs(
    matrices: Iterable[WeightMatrix], kind: str, values: Mapping[str, Tensor] | None, top: int
) -> Iterator[Job]:
    """Yield jobs of all matrices, those of one shape together.

    Args:
        matrices: the matrices.
        kind: column ``matrix`` of the rows.
        values: values by parameter name; the parameters themselves by default.
        top: number of the largest singular values that have rows.
    """
    for group in _groups(matrices):
        yield Job(partial(_read, group, values), partial(_group_rows, group, kind, top))


def _read(group: list[WeightMatrix], values: Mapping[str, Tensor] | None) -> list[Tensor]:
    return [m.shaped(whole_tensor(m.parameter) if values is None else values[m.name]) for m in group]


def _groups(matrices: Iterable[WeightMatrix]) -> list[list[WeightMatrix]]:
    """Group matrices of one shape and type, as many as are decomposed at once, in the order of the first of each."""
    groups: dict[Any, list[list[WeightMatrix]]] = {}
    for m in matrices:
        same = groups.setdefault((m.rows, m.columns, m.parameter.dtype, m.parameter.device), [[]])
        held = sum(other.parameter.numel() for other in same[-1])
        if same[-1] and held + m.parameter.numel() > _BATCH:
            same.append([])
        same[-1].append(m)
    return [group for same in groups.values() for group in same]


def _group_rows(group: list[WeightMatrix], kind: str, top: int, values: list[Tensor]) -> Iterator[Row]:
    found = matrix_spectrum(values[0] if len(values) == 1 else torch.cat(values))
    place = 0
    for matrix, own in zip(group, values, strict=True):
        labels = {"site": matrix.site, "matrix": kind}
        for index in range(matrix.stacked):
            yield from _rows_of(
                found, place, top, **labels, **({"index": index} if matrix.stacked > 1 else {})
            )
            place += 1
        for part, (first, last) in matrix.parts.items():
            yield from _rows_of(matrix_spectrum(own[:, first:last]), 0, top, **labels, part=part)


def _rows_of(spectrum: MatrixSpectrum, place: int, top: int, **labels: Any) -> Iterator[Row]:
    """Yield rows of one matrix of a batch; undefined values have none, those of a matrix that is not finite are NaN."""
    values = spectrum.singular_values[place].cpu()
    broken = bool(values.isnan().any())
    product = labels["matrix"] in ("qk", "ov")
    for name in MatrixSpectrum.__dataclass_fields__:
        if name == "singular_values" or (product and name in _OF_ENTRIES):
            continue
        value = float(getattr(spectrum, name)[place])
        if value == value or broken:
            yield {"quantity": _NAMES.get(name, name), "value": value, **labels}
    for k, value in enumerate(values[:top].tolist(), start=1):
        yield {"quantity": "singular_value", "k": k, "value": value, **labels}


def head_jobs(layouts: Iterable[HeadLayout], top: int) -> Iterator[Job]:
    """Yield jobs of the products QK and OV of all heads, computed from their factors."""
    for layout in layouts:
        yield Job(layout.read, partial(_head_rows, layout, top))


def _head_rows(layout: HeadLayout, top: int, heads: HeadMatrices) -> Iterator[Row]:
    group = heads.query_group
    for name, left, right in (("qk", heads.q.mT, heads.k[group]), ("ov", heads.o, heads.v[group])):
        found = product_spectrum(left, right)
        for head in range(layout.heads):
            yield from _rows_of(found, head, top, site=layout.path, matrix=name, head=head)


def distance_jobs(matrices: Iterable[WeightMatrix], other: nn.Module, reference: str) -> Iterator[Job]:
    """Yield jobs of the distances from the parameters of the same name and shape in another module."""
    theirs = parameters_of(other)
    for m in matrices:
        there = theirs.get(plain_path(m.name))
        if there is not None and there.shape == m.parameter.shape:
            yield Job(partial(_read_both, m.parameter, there), partial(_distance_rows, m.site, reference))


def parameters_of(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters by their names without the parts that wrappers insert; tied ones by all their names."""
    return {plain_path(name): p for name, p in module.named_parameters(remove_duplicate=False)}


def _read_both(own: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    return whole_tensor(own), whole_tensor(other).to(own.device)


def _distance_rows(site: str, reference: str, weights: tuple[Tensor, Tensor]) -> Iterator[Row]:
    found = weight_distance(*weights)
    for name in ("distance", "relative_distance", "angle"):
        value = getattr(found, name)
        if value == value or found.distance != found.distance:
            yield {"quantity": name, "site": site, "matrix": "weight", "reference": reference, "value": value}


def table_job(tables: TokenTables) -> Job:
    """Return the job of the alignment of embedding and output layer."""

    def read() -> tuple[Tensor, Tensor] | None:
        return None if tables.tied else (whole_tensor(tables.inputs), whole_tensor(tables.outputs))

    def rows(values: tuple[Tensor, Tensor] | None) -> Iterator[Row]:
        found = TableAlignment(1.0, 1.0) if values is None else table_alignment(*values)
        for name, value in (("output_cosine", found.mean_cosine), ("output_cka", found.linear_cka)):
            if value == value:
                yield {"quantity": name, "site": tables.site, "matrix": "weight", "value": value}

    return Job(read, rows)
