"""Losses along lines and in planes of weight space: barriers to other checkpoints, seeds and forks."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.inspection.batches import rows_at
from lmdyn.analysis.inspection.forward import device_of, logits_of
from lmdyn.analysis.landscape.barrier import LossLine
from lmdyn.analysis.landscape.plane import random_plane
from lmdyn.analysis.landscape.unit_groups import unit_groups
from lmdyn.analysis.landscape.unit_matching import match_units
from lmdyn.analysis.parameters.at_point import at_point, parameter_values, running_statistics
from lmdyn.analysis.parameters.exchangeable_units import UnitGroup, exchange_error, permuted_units
from lmdyn.analysis.parameters.line import point_between, point_distance
from lmdyn.analysis.statistics.grouped import GroupedMeans
from lmdyn.callbacks.landscape.landscape_figures import landscape_figures
from lmdyn.callbacks.observing.amounts import parameter_bytes
from lmdyn.callbacks.observing.checked_fields import Above, From
from lmdyn.callbacks.observing.findings import Cost, Foreseen
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import ObservedBatch, Reader, Watch, probe_pass, to_device
from lmdyn.callbacks.observing.reference import Reference, references_or_own_past, report_past
from lmdyn.callbacks.observing.run import SAVE_WEIGHTS
from lmdyn.callbacks.observing.sums import Row, tabulate
from lmdyn.callbacks.observing.token_groups import BLOCKS, SentenceBlocks, enough_blocks
from lmdyn.runs.schema import Quantity

__all__ = ["Landscape"]

Array = npt.NDArray[np.float64]
Point = dict[str, Tensor]
_EXCHANGEABLE = 1e-4
"""Largest relative change of the output by permutations of exchangeable units: rounding makes about 1e-5 in float32."""
_of_pair = partial(Quantity, tags=("<reference>/<units>",))
_COLUMNS = {"reference": "", "units": "", "alpha": "", "x": "", "y": "", "direction": int, "at": int}


class Landscape(Observer):
    """Loss of the probe set along straight lines to other models, and in a plane around the model.

    A line leads from a reference (α = 0) to the observed model (α = 1), through all parameters. Its barrier is
    max over α of L(α) − [(1 − α) L(0) + α L(1)]: 0 if the loss is nowhere above the line between its ends. ``rise`` is
    the same without the ends of the line, below 0 if the loss is lower than the line between them. References
    are the run's own checkpoints (``OwnInitial``, ``Previous``, ``Earlier``), another seed, or another fork of the
    same checkpoint with another order of data (``Checkpoint``): the barrier between forks by the step of the fork is
    the instability analysis of Frankle et al. 2020.

    Networks of two seeds compute alike with different orders of units. With ``match``, a second line leads from the
    reference with its units permuted such that its weights are close to the model's: ``units`` is ``own`` or
    ``matched`` in the rows.

    Args:
        reference: reference, or several by name; by default the run's own checkpoints ``initial`` (step 0) and
            ``previous`` (the preceding one), as far as the run saves them; ``{}`` for no lines.
        points: number of positions on a line, evenly from 0 to 1.
        match: whether to compute the lines also with matched units: for an embedding, recurrent layers and one output
            layer, and for transformers (see :func:`~lmdyn.analysis.unit_groups`). That permutations leave the output
            unchanged (within 1e-4 of its largest value, at random weights) is checked before the first observation.
            The run's own checkpoints share one order of units: for these, ``matched`` is a control.
        plane: ``random``: two filter-normalised random directions, from −``extent`` to ``extent``; None for no plane.
        plane_size: number of positions along each side of the plane; an odd number has the model in the middle.
        extent: half of the side of a random plane, in norms of the weights.
        course_points: without effect; of a kind of plane that version 0.1 had.
        bootstrap: number of resamplings of sentences (in at most 64 blocks) for intervals of barriers; 0 for none.
        confidence: confidence level of the intervals.
        seed: seed of directions, blocks, bootstrap and matching.
        max_tokens: approximate number of tokens to observe; None for all.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for numbers out of range, neither reference nor plane, a reference that this run cannot provide or
            whose parameters differ, a module with running statistics, or one whose units cannot be matched.

    Reference: Goodfellow, Vinyals & Saxe 2015 (lines); Li et al. 2018 (planes); Frankle et al. 2020 (instability);
        Ainsworth, Hayase & Srinivasa 2023 (matching); Saphra 2021, sections 3.3.1 and 7.2.1.
    """

    reference: Reference | dict[str, Reference] | None = None
    points: Annotated[int, From(3)] = 11
    match: bool = False
    plane: Literal["random"] | None = None
    plane_size: Annotated[int, From(3)] = 11
    extent: Annotated[float, Above(0)] = 1.0
    course_points: Annotated[int, From(2)] = 20
    bootstrap: Annotated[int, From(0)] = 200
    confidence: Annotated[float, Above(0, 1)] = 0.95
    seed: int = 0
    max_tokens: Annotated[int, From(1)] | None = 5_000

    uses_labels = True
    not_settings = Observer.not_settings | {"reference"}
    recorded = (
        _of_pair(
            "barrier",
            "Largest excess of the loss over the interpolation between both ends.",
            "nats",
            low=0.0,
            panel="barriers",
            lines="reference",
        ),
        _of_pair("barrier_low", "Lower end of the barrier's interval over text.", "nats", low=0.0),
        _of_pair("barrier_high", "Upper end of the barrier's interval over text.", "nats"),
        _of_pair("rise", "Largest excess of the loss strictly between the ends; can be below 0.", "nats"),
        _of_pair("rise_low", "Lower end of the rise's interval over text.", "nats"),
        _of_pair("rise_high", "Upper end of the rise's interval over text.", "nats"),
        _of_pair("distance", "Euclidean distance of all weights from the reference.", low=0.0),
        _of_pair("cosine", "Cosine between all weights and those of the reference.", low=-1.0, high=1.0),
        Quantity("line_loss", "Mean token loss at a position on the line.", "nats", low=0.0, tags=()),
        Quantity("plane_loss", "Mean token loss at a position in the plane.", "nats", low=0.0, tags=()),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference == {} and self.plane is None:
            raise ValueError("reference is empty and plane is not set: set `plane`, or remove `reference`")
        self.compared = references_or_own_past(self.reference)
        self._groups: tuple[UnitGroup, ...] = ()

    def prepare(self) -> None:
        """Raise an error for references that this run cannot provide; say which of its own are the default ones."""
        if self.reference is None and not report_past(self.name, "lines", self.run) and self.plane is None:
            raise ValueError(
                f"{self.name}: lines lead to the run's own checkpoints, but the run saves no checkpoints. Either "
                f"{SAVE_WEIGHTS}, or set `reference` or `plane`"
            )
        super().prepare()

    def check_module(self, module: Module) -> None:
        """Raise an error for a module whose loss at other weights is not defined, or whose units are not known."""
        if normed := running_statistics(module):
            raise ValueError(
                f"{self.name}: the module {normed!r} has running statistics of activations, which are undefined "
                "between two models. Use a model without batch normalisation"
            )
        batch = next(iter(self.probe_set.batches()), None)
        if self.match and self.compared and batch is not None:
            few = to_device(rows_at(batch, slice(2)), device_of(module))
            self._groups = self._exchangeable(module, few)

    def _exchangeable(self, module: Module, few: Mapping[str, Any]) -> tuple[UnitGroup, ...]:
        """Find the exchangeable units, and check that their permutations leave the output unchanged."""

        def run() -> Tensor:
            return logits_of(Reader(module, self.forward)(few))

        try:
            groups = unit_groups(module, run)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}: set `match: false`") from error
        change = exchange_error(module, parameter_values(module), groups, run, self.seed)
        if not change <= _EXCHANGEABLE:
            raise ValueError(
                f"{self.name}: expected the same output of {type(module).__name__} after its units are permuted, got a "
                f"change of {change:.2g} of the largest value: set `match: false`"
            )
        return groups

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report the memory of copies of the weights."""
        copies = 5 * bool(self.compared) + 4 * bool(self.plane)
        yield Cost(f"{copies} copies of the weights", copies * parameter_bytes(module))
        if self.match and self.compared:
            number = sum(p.numel() for p in module.parameters())
            yield Cost(f"matching of {number:,} weights in float64", 28 * number, "set `match: false`")

    def measure(self, module: Module, step: int) -> pd.DataFrame:
        """Measure the lines to all references, and the plane."""
        return tabulate(self._rows(module, step), _COLUMNS, self.name, step)

    def _rows(self, module: Module, step: int) -> Iterator[Row]:
        own = parameter_values(module)
        for name, reference in self.compared.items():
            for part, other in reference.modules(module, self.run, step).items():
                ends = {"own": _values(other, own)}
                if self.match:
                    found = match_units(own, ends["own"], self._groups, seed=self.seed)
                    ends["matched"] = permuted_units(ends["own"], self._groups, found.permutations)
                for units, start in ends.items():
                    place = {"reference": " ".join(filter(None, (name, part))), "units": units}
                    yield from self._line(module, start, own, place, step)
        if self.plane:
            plane = random_plane(own, self.seed)
            side = np.linspace(-self.extent, self.extent, self.plane_size)
            for x, y in product(side.tolist(), repeat=2):
                sums, tokens = self._sums(module, plane.at(x, y))
                yield {"x": f"{x:.9g}", "y": f"{y:.9g}"}, {"plane_loss": sums.sum() / tokens.sum()}

    def _line(
        self, module: Module, start: Point, own: Point, place: Mapping[str, str], step: int
    ) -> Iterator[Row]:
        alphas = tuple(np.linspace(0, 1, self.points).tolist())
        sums = [self._sums(module, point_between(start, own, alpha)) for alpha in alphas]
        line = LossLine(alphas, np.stack([s for s, _ in sums]), sums[0][1])
        values = {"barrier": line.barrier, "rise": line.rise, **point_distance(start, own)}
        if self.bootstrap and enough_blocks(line.blocks, self.name, step):
            how = self.bootstrap, self.confidence
            values["barrier_low"], values["barrier_high"] = line.interval(*how, seed=self.seed)
            values["rise_low"], values["rise_high"] = line.rise_interval(*how, seed=self.seed)
        yield place, values
        for alpha, loss in zip(alphas, line.losses, strict=True):
            yield {**place, "alpha": f"{alpha:.9g}"}, {"line_loss": loss}

    def _sums(self, module: Module, point: Point) -> tuple[Array, Array]:
        """Return the sums of token losses and the numbers of tokens by block, over all ranks, at a point."""
        blocks = SentenceBlocks(self.run.tokenizer, self.seed)
        means = GroupedMeans(BLOCKS, skip_nan=False)

        def update(seen: ObservedBatch) -> None:
            block = blocks.of(seen)
            if block.shape != seen.labels.shape:  # of an encoder-decoder: a block for each row
                block = block[:, :1].expand_as(seen.labels)
            labelled = torch.where(seen.labels >= 0, block, -1)
            means.update(labelled.flatten(), {"loss": seen.losses.flatten()})

        with at_point(module, point):
            watch = Watch(SimpleNamespace(update=update))
            probe_pass(module, self.probe_set, [watch], forward=self.forward)
        means.reduce()
        sums = means.sum("loss").numpy()
        tokens = means.count("loss").numpy()
        if not tokens.sum():
            raise ValueError(f"{self.name}: the probe set has no label other than -100: use text with labels")
        return sums, tokens

    @classmethod
    def figures(cls, observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw barriers over steps, and the lines and the plane of the last step."""
        return super().figures(observations, settings) | landscape_figures(observations)


def _values(other: Module, own: Point) -> Point:
    """Return the parameters of a reference on the devices of the own ones."""
    found = parameter_values(other)
    return {name: v.to(own[name].device) if name in own else v for name, v in found.items()}
