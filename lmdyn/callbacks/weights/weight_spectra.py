"""Spectra of a model's weight matrices during training, their distance from references; no data is required."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import plain_path
from lmdyn.analysis.inspection.forward import device_of, is_sharded
from lmdyn.analysis.parameters.head_matrices import FoundHeads, find_heads
from lmdyn.analysis.parameters.loss_gradient import loss_gradient
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.analysis.weights.matrices import WeightMatrix, find_matrices, token_tables
from lmdyn.callbacks.conditions.finding import Cost, Foreseen
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import Reader
from lmdyn.callbacks.observing.reference import Reference, named_references, own_past, which_past
from lmdyn.callbacks.observing.run import announce
from lmdyn.callbacks.weights.weight_rows import (
    Job,
    distance_jobs,
    head_jobs,
    measured,
    parameters_of,
    spectrum_jobs,
    table_job,
)
from lmdyn.callbacks.weights.weight_spectra_figures import weight_spectra_figures
from lmdyn.callbacks.weights.weight_spectra_quantities import LOGGED, WEIGHT_SPECTRA

__all__ = ["WeightSpectra"]

log = logging.getLogger(__name__)

_NUMBERS = ["head", "index", "k"]
_MISSING = {"matrix": "", "part": "", "reference": "", **dict.fromkeys(_NUMBERS, pd.NA)}


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
        **kwargs: see :class:`~lmdyn.callbacks.Observer`.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`; heads, parts and experts are stored, but not logged.

    Raises:
        ValueError: for a negative number of singular values, a module without matrices, a reference that this run
            cannot provide or that has none of the module's parameters, gradients of sharded weights, and weights that
            are sharded in another way than by ``fully_shard``.

    Reference: effective rank: Roy & Vetterli 2007; spectra of trained weights: Martin & Mahoney 2021, "Implicit
        self-regularization in deep neural networks"; QK and OV: Elhage et al. 2021, "A mathematical framework for
        transformer circuits".
    """

    recorded = WEIGHT_SPECTRA
    uses_labels = True  # of gradients
    in_step = True
    sharded = True
    not_settings = Observer.not_settings | {"reference"}

    def __init__(
        self,
        *,
        reference: Reference | dict[str, Reference] | None = None,
        heads: bool = True,
        gradients: bool = False,
        singular_values: int = 0,
        max_tokens: int | None = 20_000,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_tokens=max_tokens, **kwargs)
        if singular_values < 0:
            raise ValueError(f"singular_values is {singular_values}: expected a number from 0")
        self.references = (
            own_past() if reference is None else named_references(reference) if reference else {}
        )
        self.own_references = reference is None
        self.heads, self.gradients, self.singular_values = heads, gradients, singular_values
        self.reads_data = gradients

    def prepare(self) -> None:
        """Check the given references; say which of the run's own checkpoints are the default ones."""
        if self.own_references:
            which = which_past(self.run)
            left_out = "distances are left out: the run saves no checkpoints; attach a ScheduledCheckpoint"
            announce(self.name, f"distances are those from {which}" if which else left_out)
        for reference in self.references.values():
            reference.check(self.run)

    def check_module(self, module: nn.Module) -> None:
        """Raise an error for a module whose matrices or references cannot be read."""
        found = find_matrices(module)
        sharded = is_sharded(module)
        if any(hasattr(p, "ds_id") for p in module.parameters()) or (
            sharded and not any(hasattr(p, "full_tensor") for p in module.parameters())
        ):
            raise ValueError(
                f"{self.name}: expected weights that are whole or sharded by fully_shard, got another kind of shards: "
                "remove the observer from this training, and replay it afterwards by `lmdyn analyze`"
            )
        if not found.matrices:
            raise ValueError(
                f"{self.name}: expected parameters with at least two rows and two columns, got none in "
                f"{type(module).__name__}: remove the observer"
            )
        if sharded and self.gradients:
            raise ValueError(
                f"{self.name}: gradients of sharded weights are computed in a training step only: set "
                "`gradients: false`, and replay them by `lmdyn analyze`"
            )
        for sentence in found.notes:
            announce(self.name, sentence)
        for path, why in self._found_heads(module).left_out.items():
            announce(self.name, f"QK and OV of {path} are left out: {why}")
        if isinstance(tables := token_tables(module), str):
            announce(self.name, f"the alignment of embedding and output layer is left out: {tables}")
        for name, reference in self.references.items():
            if not (reference.copies and sharded):
                self._check_reference(name, reference.example(module), found.matrices)
            elif self.own_references:
                announce(
                    self.name, f"distances from {name} are left out: the weights are sharded; replay for them"
                )
            else:
                raise ValueError(
                    f"{self.name}: reference {name!r} is a copy of the module, whose weights are sharded: remove it "
                    "from this training and replay it afterwards, or compare with a Checkpoint"
                )

    def _check_reference(self, name: str, other: nn.Module, matrices: Sequence[WeightMatrix]) -> None:
        theirs = parameters_of(other)
        there = {name: p.shape for name, p in theirs.items()}
        missing = [m.site for m in matrices if there.get(plain_path(m.name)) != m.parameter.shape]
        if len(missing) == len(matrices):
            raise ValueError(
                f"{self.name}: reference {name!r} ({type(other).__name__}) has none of the matrices of this module, "
                "by name and shape: compare with a checkpoint of the same architecture"
            )
        if missing:
            announce(self.name, f"distances from {name} of {', '.join(missing)} are left out: it has none")

    def _found_heads(self, module: nn.Module) -> FoundHeads:
        return find_heads(module) if self.heads else FoundHeads({}, {})

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report the memory of copies of the module for references and of gradients."""
        size = sum(p.numel() * p.element_size() for p in module.parameters())
        if any(r.copies for r in self.references.values()):
            yield Cost(
                "a copy of the module with the weights of a reference", size, "set `reference: {}`", host=True
            )
        if self.gradients:
            both = 2 * sum(p.numel() * max(4, p.element_size()) for p in module.parameters())
            yield Cost(
                "gradients of all parameters, of a batch and their sum", both, "set `gradients: false`"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments, the references and, for gradients, the content of the probe set."""
        references = {name: r.settings(self.run) for name, r in self.references.items()}
        return {**super().settings, "reference": references}

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Measure all matrices; each rank measures some of them."""
        rows = [{**_MISSING, **row} for row in measured(self._jobs(module, step), module)]
        table = pd.DataFrame(rows, columns=["quantity", "site", *_MISSING, "value"])
        sites = {m.site: i for i, m in enumerate(find_matrices(module).matrices)}
        place = table["site"].map(lambda site: sites.get(site, len(sites)))
        table = table.iloc[place.argsort(kind="stable")].reset_index(drop=True)
        broken = sorted(table.loc[table["value"].isna(), "site"].unique())
        if broken and rank_and_world_size()[0] == 0:
            log.warning(
                "%s: weights or gradients are not finite at step %d in %s: the model has diverged",
                self.name, step, ", ".join(broken[:5]) + (" …" if len(broken) > 5 else ""),
            )  # fmt: skip
        return table.astype({"value": "float64", **dict.fromkeys(_NUMBERS, "Int64")})

    def _jobs(self, module: nn.Module, step: int) -> Iterator[Job]:
        matrices, top = find_matrices(module).matrices, self.singular_values
        yield from spectrum_jobs(matrices, "weight", None, top)
        yield from head_jobs(self._found_heads(module).layouts.values(), top)
        if not isinstance(tables := token_tables(module), str):
            yield table_job(tables)
        for name, reference in self.references.items():
            if reference.copies and is_sharded(module):
                continue
            for which, other in reference.modules(module, self.run, step).items():
                yield from distance_jobs(matrices, other, " ".join(part for part in (name, which) if part))
        if self.gradients:
            yield from spectrum_jobs(matrices, "gradient", self._gradients(module), top)

    def _gradients(self, module: nn.Module) -> Mapping[str, Tensor]:
        batches = self.probe_set.of_this_rank(device_of(module))
        return loss_gradient(module, batches, Reader(module, self.forward)).gradients

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return rows of whole matrices, of the quantities that are logged."""
        whole = observations[_NUMBERS].isna().all(axis=1) & observations["part"].fillna("").eq("")
        return whole & observations["quantity"].isin(LOGGED)

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw ranks, norms and distances of the matrices over steps, and ranks of the heads."""
        return weight_spectra_figures(observations)
