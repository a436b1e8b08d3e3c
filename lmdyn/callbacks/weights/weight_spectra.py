"""Spectra of a model's weight matrices during training, their distance from references; no data is required."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Annotated, Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.inspection.forward import device_of, is_sharded
from lmdyn.analysis.parameters.head_matrices import FoundHeads, HeadLayout, HeadMatrices, find_heads
from lmdyn.analysis.parameters.linear_weight import whole_tensor
from lmdyn.analysis.parameters.loss_gradient import loss_gradient
from lmdyn.analysis.statistics.distributed import divided
from lmdyn.analysis.weights.alignment import TableAlignment, table_alignment
from lmdyn.analysis.weights.distances import weight_distance
from lmdyn.analysis.weights.matrices import (
    WeightMatrix,
    counterparts,
    find_matrices,
    kinds,
    of_equal_shapes,
    token_tables,
)
from lmdyn.analysis.weights.spectra import MatrixSpectrum, head_spectra, matrix_spectrum
from lmdyn.callbacks.observing.checked_fields import From
from lmdyn.callbacks.observing.figures import short_names
from lmdyn.callbacks.observing.findings import Cost, Foreseen
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.panels import standard_figures
from lmdyn.callbacks.observing.probe import Reader
from lmdyn.callbacks.observing.reference import Reference, references_or_own_past, report_past
from lmdyn.callbacks.observing.run import report
from lmdyn.callbacks.observing.sums import Row, tabulate
from lmdyn.runs.schema import Quantity

__all__ = ["WeightSpectra"]

_BATCH = 1 << 22  # entries of the matrices of one shape that are decomposed together: 32 MB in float64

_of = partial(Quantity, low=0.0, tags=())
_matrix = partial(Quantity, tags=("<site>/<matrix>",))
_reference = partial(Quantity, low=0.0, tags=("<site>/<matrix>/<reference>",))
_alike = partial(_matrix, high=1.0, panel="alignment", lines="site")
_PANELS = (  # of kinds of matrices: name, quantity, matrix
    ("effective_rank", "effective_rank", "weight"),
    ("stable_rank", "stable_rank", "weight"),
    ("spectral_norm", "spectral_norm", "weight"),
    ("gradient_effective_rank", "effective_rank", "gradient"),
    ("distance", "relative_distance", "weight"),
)

_Job = tuple[Callable[[], Any], Callable[[Any], Iterable[Row]]]
"""A part of an observation: how weights are read, by every rank if they are sharded, and measured, by one rank."""


class WeightSpectra(Observer):
    """Norms, ranks and sparsity of each weight matrix, its distance from references, and heads' QK and OV products.

    No data and no forward pass are required, unless ``gradients`` is set. A matrix is a parameter with at least two
    rows and two columns, embeddings included; its site is the path of its module. Column ``matrix`` is ``weight``,
    ``gradient``, ``qk`` or ``ov``; ``part`` is a gate of an LSTM or GRU, whose whole matrix has rows as well; ``head``
    is the number of an attention head; ``index`` is the number of a matrix in a stack of experts. Products QK
    (d_in × d_in, of rank at most the width of a head) and OV are computed from their factors; biases, position
    encodings and norms of queries and keys are not part of them.

    An undefined value has no row: condition number and sparsity of a zero matrix, relative distance from one. A matrix
    that is not finite has values NaN, with a warning.

    Args:
        reference: reference of the distances, or several by name; by default the run's own checkpoints ``initial``
            (step 0) and ``previous`` (the preceding one), as far as the run saves them; ``{}`` for none.
        heads: whether to measure QK and OV of the attention heads.
        gradients: whether to measure also the gradient of the mean loss of the probe set, with one pass over it.
        singular_values: number of the largest singular values of each matrix that are stored; 0 for none.
        max_tokens: approximate number of tokens for the gradient; None for all.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`; heads, parts and experts are stored, but not logged.

    Raises:
        ValueError: for a negative number of singular values, a module without matrices, a reference that this run
            cannot provide or that has none of the module's parameters, gradients of sharded weights, and weights that
            are sharded in another way than by ``fully_shard``.

    Reference: effective rank: Roy & Vetterli 2007; spectra of trained weights: Martin & Mahoney 2021, "Implicit
        self-regularization in deep neural networks"; QK and OV: Elhage et al. 2021, "A mathematical framework for
        transformer circuits".
    """

    reference: Reference | dict[str, Reference] | None = None
    heads: bool = True
    gradients: bool = False
    singular_values: Annotated[int, From(0)] = 0
    max_tokens: Annotated[int, From(1)] | None = 20_000

    uses_labels = True  # of gradients
    in_step = True
    sharded = True
    columns = {"matrix": "", "part": "", "reference": "", "head": int, "index": int, "k": int}
    not_settings = Observer.not_settings | {"reference"}
    recorded = (
        _matrix("frobenius_norm", "Square root of the sum of the squares of all entries.", low=0.0),
        _matrix("spectral_norm", "Largest singular value.", low=0.0),
        _of("nuclear_norm", "Sum of the singular values."),
        _of("mean_singular_value", "Mean of the singular values."),
        _of("median_singular_value", "Median of the singular values."),
        _of("singular_value_variance", "Variance of the singular values."),
        _matrix("stable_rank", "Squared Frobenius norm / squared spectral norm.", low=0.0, headline=True),
        _matrix(
            "effective_rank",
            "Exponential of the entropy of the singular values, scaled to a sum of 1.",
            low=0.0,
            panel="heads",
            lines="site",
            where=(("matrix", ("qk", "ov")),),
        ),
        _of("numerical_rank", "Number of singular values above the tolerance.", "count"),
        _of("condition_number", "Largest singular value / smallest one above the tolerance.", low=1.0),
        _of("gini", "Gini index of the magnitudes of the entries.", high=1.0),
        _of("hoyer", "Hoyer's sparsity index of the entries.", high=1.0),
        _of("singular_value", "The k-th largest singular value."),
        _of("distance", "Frobenius norm of the difference from the reference's matrix."),
        _reference("relative_distance", "Distance / Frobenius norm of the reference's matrix."),
        _reference("angle", "Angle between both matrices as vectors.", "degrees", high=180.0),
        _alike(
            "output_cosine",
            "Mean over tokens of the cosine between a token's vectors in embedding and output layer.",
            low=-1.0,
        ),
        _alike("output_cka", "Linear CKA of embedding and output layer; samples are tokens.", low=0.0),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.compared = references_or_own_past(self.reference)

    @property
    def reads_data(self) -> bool:
        """Whether gradients are computed, which alone read data."""
        return self.gradients

    def prepare(self) -> None:
        """Check the given references; say which of the run's own checkpoints are the default ones."""
        if self.reference is None:
            report_past(self.name, "distances", self.run)
        super().prepare()

    def check_module(self, module: Module) -> None:
        """Raise an error for a module whose matrices or references cannot be read."""
        found = find_matrices(module)
        sharded, parts = is_sharded(module), [*module.parameters(), *module.modules()]
        if any(hasattr(x, "ds_id") for x in parts) or (
            sharded and not any(hasattr(x, "full_tensor") or hasattr(x, "unshard") for x in parts)
        ):
            raise ValueError(
                f"{self.name}: expected weights that are whole or sharded by fully_shard, got other shards. Remove the "
                "observer, and replay the observer after training with `lmdyn analyze`"
            )
        if not found.matrices:
            raise ValueError(
                f"{self.name}: no parameter of {type(module).__name__} has at least two rows and two columns: remove "
                "the observer"
            )
        if sharded and self.gradients:
            raise ValueError(
                f"{self.name}: lmdyn computes gradients of sharded weights only in a training step. Set `gradients: "
                "false`, or replay with `lmdyn analyze`"
            )
        for sentence in found.notes:
            report(self.name, sentence)
        for path, why in self._found_heads(module).left_out.items():
            report(self.name, f"lmdyn leaves out QK and OV of {path}: {why}")
        if isinstance(tables := token_tables(module), str):
            report(self.name, f"lmdyn leaves out the alignment of embedding and output layer: {tables}")
        for name, reference in self.compared.items():
            if not (reference.copies and sharded):
                other = reference.example(module)
                theirs = counterparts(found.matrices, other)
                missing = [m.site for m in found.matrices if m.name not in theirs]
                if not theirs:
                    raise ValueError(
                        f"{self.name}: reference {name!r} ({type(other).__name__}) shares no matrix with this module "
                        "by name and shape: compare with a checkpoint of the same architecture"
                    )
                if missing:
                    report(
                        self.name,
                        f"{name} lacks {', '.join(missing)}: lmdyn leaves out distances from {name}",
                    )
            elif self.reference is None:
                report(self.name, f"sharded weights have no distances from {name}: replay the observer")
            else:
                raise ValueError(
                    f"{self.name}: reference {name!r} is a copy of the module, but lmdyn cannot copy sharded weights. "
                    "Compare with a Checkpoint, or replay the observer after training"
                )

    def _found_heads(self, module: Module) -> FoundHeads:
        return find_heads(module) if self.heads else FoundHeads({}, {})

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report the memory of copies of the module for references and of gradients."""
        size = sum(p.numel() * p.element_size() for p in module.parameters())
        if any(r.copies for r in self.compared.values()):
            yield Cost("a copy of the module for a reference", size, "set `reference: {}`", host=True)
        if self.gradients:
            both = 2 * sum(p.numel() * max(4, p.element_size()) for p in module.parameters())
            yield Cost("gradients of a batch and their sum", both, "set `gradients: false`")

    def measure(self, module: Module, step: int) -> pd.DataFrame:
        """Measure all matrices; each rank measures some of them."""
        rows = divided(self._jobs(module, step), together=is_sharded(module))
        order = {m.site: i for i, m in enumerate(find_matrices(module).matrices)}
        rows.sort(key=lambda row: order.get(row[0]["site"], len(order)))
        return tabulate(rows, self.columns, self.name, step)

    def _jobs(self, module: Module, step: int) -> Iterator[_Job]:
        matrices = find_matrices(module).matrices
        yield from self._spectra(matrices, "weight", {m.name: m.parameter for m in matrices})
        for layout in self._found_heads(module).layouts.values():
            yield layout.read, partial(self._of_heads, layout)
        if not isinstance(tables := token_tables(module), str):
            both = () if tables.tied else (tables.inputs, tables.outputs)
            yield partial(_read, both), partial(_alignment, tables.site)
        for name, reference in self.compared.items():
            if reference.copies and is_sharded(module):
                continue
            for which, other in reference.modules(module, self.run, step).items():
                theirs, label = counterparts(matrices, other), f"{name} {which}".strip()
                for m in matrices:
                    if m.name in theirs:
                        both = (m.parameter, theirs[m.name])
                        yield partial(_read, both), partial(_distances, m.site, label)
        if self.gradients:
            batches = self.probe_set.of_this_rank(device_of(module))
            found = loss_gradient(module, batches, Reader(module, self.forward))
            yield from self._spectra(matrices, "gradient", found.gradients)

    def _spectra(
        self, matrices: Sequence[WeightMatrix], kind: str, tensors: Mapping[str, Tensor]
    ) -> Iterator[_Job]:
        for group in of_equal_shapes(matrices, _BATCH):
            own = [tensors[m.name] for m in group]
            yield partial(_read, own), partial(self._of_matrices, group, kind)

    def _of_matrices(
        self, group: Sequence[WeightMatrix], kind: str, tensors: Sequence[Tensor]
    ) -> Iterator[Row]:
        values = [matrix.shaped(tensor) for matrix, tensor in zip(group, tensors, strict=True)]
        found, places = matrix_spectrum(torch.cat(values) if len(values) > 1 else values[0]), count()
        for matrix, own in zip(group, values, strict=True):
            labels = {"site": matrix.site, "matrix": kind}
            for index in range(matrix.stacked):
                stacked = {"index": index} if matrix.stacked > 1 else {}
                yield from self._rows(found, next(places), {**labels, **stacked})
            for part, (first, last) in matrix.parts.items():
                yield from self._rows(matrix_spectrum(own[:, first:last]), 0, {**labels, "part": part})

    def _of_heads(self, layout: HeadLayout, heads: HeadMatrices) -> Iterator[Row]:
        for name, found in head_spectra(heads).items():
            for head in range(layout.heads):
                yield from self._rows(found, head, {"site": layout.path, "matrix": name, "head": head})

    def _rows(self, spectrum: MatrixSpectrum, place: int, labels: Mapping[str, Any]) -> Iterator[Row]:
        """Yield the values of one matrix of a batch; products of heads have none of their entries."""
        numbers, largest = spectrum.numbers(place), spectrum.singular_values[place].tolist()
        if "head" in labels:
            del numbers["gini"], numbers["hoyer"]
        yield labels, _defined(numbers, broken=math.isnan(largest[0]))
        for k, value in enumerate(largest[: self.singular_values], start=1):
            yield {**labels, "k": k}, {"singular_value": value}

    @classmethod
    def is_scalar(cls, observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return rows of whole matrices, of the quantities that are logged."""
        whole = observations[["head", "index", "k"]].isna().all(axis=1) & observations["part"].eq("")
        return whole & super().is_scalar(observations)

    @classmethod
    def figures(cls, observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw ranks, norms and distances by kind of matrix over steps, ranks of the heads, and the alignment."""
        named = {quantity.name: quantity for quantity in cls.recorded}
        of_kinds = [
            replace(named[name], panel=panel, lines="number", where=(("matrix", (matrix,)), ("part", ("",))))
            for panel, name, matrix in _PANELS
        ]
        short = _short([str(path) for path in observations["site"].unique()])
        observations = observations.assign(site=observations["site"].map(short))
        return standard_figures(_by_kind(observations), of_kinds) | super().figures(observations, {})


def _read(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [whole_tensor(tensor) for tensor in tensors]


def _distances(site: str, reference: str, weights: Sequence[Tensor]) -> Iterator[Row]:
    found = weight_distance(*weights)
    labels = {"site": site, "matrix": "weight", "reference": reference}
    yield labels, _defined(vars(found), broken=math.isnan(found.distance))


def _alignment(site: str, tables: Sequence[Tensor]) -> Iterator[Row]:
    found = table_alignment(*tables) if tables else TableAlignment(1.0, 1.0)
    values = {"output_cosine": found.mean_cosine, "output_cka": found.linear_cka}
    yield {"site": site, "matrix": "weight"}, _defined(values)


def _defined(values: Mapping[str, float], broken: bool = False) -> dict[str, float | None]:
    """Return None for values that are NaN, unless the weights are not finite."""
    return {name: None if math.isnan(value) and not broken else value for name, value in values.items()}


def _short(paths: Sequence[str]) -> dict[str, str]:
    """Return the last parts of paths, as many as make them unique."""
    found = short_names([path.replace(".", "/") for path in paths])
    return dict(zip(paths, (short.replace("/", ".") for short in found.values()), strict=True))


def _by_kind(observations: pd.DataFrame) -> pd.DataFrame:
    """Return observations with kinds of matrices as sites, and the column ``number``; single matrices are one kind."""
    found = kinds(observations["site"].unique())
    sites = {site: f"\n{kind}" if number else "\nsingle matrices" for site, (kind, number) in found.items()}
    numbers = {site: f"* = {number}" if number else site for site, (_, number) in found.items()}
    return observations.assign(site=observations["site"].map(sites), number=observations["site"].map(numbers))
