"""Losses along lines and in planes of weight space: barriers to other checkpoints, seeds and forks."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.inspection.forward import device_of, logits_of
from lmdyn.analysis.landscape.barrier import LossLine
from lmdyn.analysis.landscape.plane import course_of_training, random_plane
from lmdyn.analysis.landscape.unit_groups import unit_groups
from lmdyn.analysis.landscape.unit_matching import match_units
from lmdyn.analysis.parameters.at_point import at_point, parameter_values, running_statistics
from lmdyn.analysis.parameters.exchangeable_units import UnitGroup, exchange_error, permuted_units
from lmdyn.analysis.parameters.line import point_between, point_distance
from lmdyn.analysis.statistics.distributed import all_reduce_sum, rank_and_world_size
from lmdyn.callbacks.conditions.amounts import parameter_bytes
from lmdyn.callbacks.conditions.finding import Cost, Foreseen, expected
from lmdyn.callbacks.landscape.landscape_figures import landscape_figures
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import ObservedBatch, Reader, Watch, probe_pass, to_device
from lmdyn.callbacks.observing.reference import (
    Earlier,
    OwnInitial,
    Reference,
    named_references,
    own_past,
    which_past,
)
from lmdyn.callbacks.observing.run import announce
from lmdyn.callbacks.observing.schema import Quantity
from lmdyn.callbacks.observing.token_groups import BLOCKS, SentenceBlocks, bootstrap_settings, enough_blocks

__all__ = ["Landscape"]

log = logging.getLogger(__name__)

Point = dict[str, Tensor]
_EXCHANGEABLE = 1e-4
"""Largest relative change of the output by permutations of exchangeable units: rounding makes about 1e-5 in float32."""
_PAIR = ("<reference>/<units>",)
_COLUMNS = ["quantity", "site", "reference", "units", "alpha", "x", "y", "direction", "at", "value"]


class Landscape(Observer):
    """Loss of the probe set along straight lines to other models, and in a plane around the model.

    A line leads from a reference (α = 0) to the observed model (α = 1), through all parameters. Its barrier is
    max over α of L(α) − [(1 − α) L(0) + α L(1)]: 0 if the loss is nowhere above the line between its ends. References
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
        plane: ``random``: two filter-normalised random directions, from −``extent`` to ``extent``; ``course``: the two
            principal directions of the run's checkpoints so far, as far as they reach; None for no plane.
        plane_size: number of positions along each side of the plane, odd.
        extent: half of the side of a random plane, in norms of the weights.
        course_points: maximum number of earlier checkpoints of ``course``, all in memory.
        bootstrap: number of resamplings of sentences (in at most 64 blocks) for intervals of barriers; 0 for none.
        confidence: confidence level of the intervals.
        seed: seed of directions, blocks, bootstrap and matching.
        max_tokens: approximate number of tokens to observe; None for all.
        **kwargs: see :class:`~lmdyn.callbacks.Observer`.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for numbers out of range, neither reference nor plane, a reference that this run cannot provide or
            whose parameters differ, a module with running statistics, or one whose units cannot be matched.

    Reference: Goodfellow, Vinyals & Saxe 2015 (lines); Li et al. 2018 (planes); Frankle et al. 2020 (instability);
        Ainsworth, Hayase & Srinivasa 2023 (matching); Saphra 2021, sections 3.3.1 and 7.2.1.
    """

    uses_labels = True
    recorded = (
        Quantity("barrier", "Highest rise of the loss above the line between its ends.", "nats", low=0.0, tags=_PAIR),
        Quantity("barrier_low", "Lower end of the barrier's interval over text.", "nats", low=0.0, tags=_PAIR),
        Quantity("barrier_high", "Upper end of the barrier's interval over text.", "nats", tags=_PAIR),
        Quantity("distance", "Euclidean distance of all weights from the reference.", low=0.0, tags=_PAIR),
        Quantity(
            "cosine", "Cosine of all weights and those of the reference.", low=-1.0, high=1.0, tags=_PAIR
        ),
        Quantity("line_loss", "Mean token loss at a position on the line.", "nats", low=0.0, tags=()),
        Quantity("plane_loss", "Mean token loss at a position of the plane.", "nats", low=0.0, tags=()),
        Quantity(
            "explained_variance", "Variance of the course that a direction of its plane explains.", "share", low=0.0,
            high=1.0, tags=("<direction>",),
        ),
        Quantity("course_position", "Position of an earlier checkpoint in the plane of the course.", tags=()),
    )  # fmt: skip

    not_settings = Observer.not_settings | {"reference"}

    def __init__(
        self,
        *,
        reference: Reference | dict[str, Reference] | None = None,
        points: int = 11,
        match: bool = False,
        plane: Literal["random", "course"] | None = None,
        plane_size: int = 11,
        extent: float = 1.0,
        course_points: int = 20,
        bootstrap: int = 200,
        confidence: float = 0.95,
        seed: int = 0,
        max_tokens: int | None = 5_000,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_tokens=max_tokens, **kwargs)
        if points < 3:
            raise ValueError(f"points is {points}: expected at least 3 positions on a line")
        if plane not in (None, "random", "course"):
            raise ValueError(f"plane is {plane!r}: expected random, course or null")
        if plane_size < 3 or plane_size % 2 == 0 or not extent > 0:
            raise ValueError(
                f"expected plane_size odd and from 3, and extent positive, got {plane_size} and {extent}"
            )
        if course_points < 2:
            raise ValueError(f"course_points is {course_points}: expected at least 2 earlier checkpoints")
        if reference == {} and plane is None:
            raise ValueError("expected a reference or a plane, got neither")
        self.references = (
            own_past() if reference is None else named_references(reference) if reference else {}
        )
        self.own_references = reference is None
        self.alphas = tuple(np.linspace(0, 1, points).tolist())
        self.match, self.plane, self.plane_size, self.extent = match, plane, plane_size, extent
        self.course_points, self.seed = course_points, seed
        self.bootstrap, self.confidence = bootstrap_settings(bootstrap, confidence)
        self._groups: tuple[UnitGroup, ...] = ()

    def prepare(self) -> None:
        """Raise an error for references that this run cannot provide; say which of its own are the default ones."""
        if self.own_references:
            which = which_past(self.run)
            if not which and self.plane is None:
                raise ValueError(
                    f"{self.name}: lines lead to the run's own checkpoints, but none are saved: attach a "
                    "ScheduledCheckpoint, or give a `reference` or a `plane`"
                )
            left_out = "lines are left out: the run saves no checkpoints; attach a ScheduledCheckpoint"
            announce(self.name, f"lines lead to {which}" if which else left_out)
        for reference in self._all_references():
            reference.check(self.run)

    def _all_references(self) -> Iterator[Reference]:
        yield from self.references.values()
        if self.plane == "course":
            yield Earlier()

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that affect the numbers, including what identifies the references."""
        found = {name: reference.settings(self.run) for name, reference in self.references.items()}
        return super().settings | {"reference": found}

    def check_module(self, module: nn.Module) -> None:
        """Raise an error for a module whose loss at other weights is not defined, or whose units are not known."""
        if normed := running_statistics(module):
            raise ValueError(
                f"{self.name}: {normed!r} has running statistics of activations, which belong to no point between "
                "two models: expected a model without batch normalisation"
            )
        if self.match and self.references:
            self._find_units(module)

    def _find_units(self, module: nn.Module) -> None:
        """Find the exchangeable units, and check that their permutations leave the output unchanged."""
        batch = next(iter(self.probe_set.batches()), None)
        if batch is None:
            return
        few = to_device(_first_rows(batch), device_of(module))

        def run() -> Tensor:
            return logits_of(Reader(module, self.forward)(few))

        try:
            self._groups = unit_groups(module, run)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}: set `match: false`") from error
        change = exchange_error(module, parameter_values(module), self._groups, run, self.seed)
        if not change <= _EXCHANGEABLE:
            raise ValueError(
                f"{self.name}: permutations of its units change the output of {type(module).__name__} by "
                f"{change:.2g} of its largest value: set `match: false`"
            )

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report the memory of copies of the weights, and a course without checkpoints."""
        copies = 5 * bool(self.references) + (
            3 + self.course_points if self.plane == "course" else 4 * bool(self.plane)
        )
        yield Cost(
            f"{copies} copies of the weights",
            copies * parameter_bytes(module),
            "lower `course_points`",
            host=False,
        )
        if self.match and self.references:
            number = sum(p.numel() for p in module.parameters())
            yield Cost(f"matching of {number:,} weights in float64", 28 * number, "set `match: false`")
        if self.match and any(type(r) in (OwnInitial, Earlier) for r in self.references.values()):
            yield expected(
                "references of other seeds for `match`", "the run's own checkpoints, whose units have one order",
                "set `match: false`, or read `matched` as a control", stops=False,
            )  # fmt: skip

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Measure the lines to all references, and the plane."""
        own = parameter_values(module)
        rows: list[dict[str, Any]] = []
        for name, reference in self.references.items():
            for part, other in reference.modules(module, self.run, step).items():
                label = " ".join(word for word in (name, part) if word)
                rows += self._line(module, own, self._values(other, own), label, step)
        if self.plane is not None:
            rows += self._plane_rows(module, own, step)
        table = pd.DataFrame(rows, columns=_COLUMNS)
        for name in ("alpha", "x", "y"):  # columns of groups are text or whole numbers
            table[name] = [f"{value:.9g}" if value == value else "" for value in table[name].astype(float)]
        table[["reference", "units"]] = table[["reference", "units"]].astype(object).fillna("")
        return table.assign(site="").astype({"direction": "Int64", "at": "Int64", "value": float})

    def _values(self, other: nn.Module, own: Point) -> Point:
        """Return the reference's parameters on the devices of the own ones."""
        found = parameter_values(other)
        return {name: v.to(own[name].device) if name in own else v for name, v in found.items()}

    def _line(
        self, module: nn.Module, own: Point, other: Point, name: str, step: int
    ) -> list[dict[str, Any]]:
        ends = {"own": other}
        if self.match:
            found = match_units(own, other, self._groups, seed=self.seed)
            ends["matched"] = permuted_units(other, self._groups, found.permutations)
        rows: list[dict[str, Any]] = []
        for units, start in ends.items():
            sums = [self._sums(module, point_between(start, own, alpha), step) for alpha in self.alphas]
            line = LossLine(self.alphas, np.stack([s for s, _ in sums]), sums[0][1])
            apart = point_distance(start, own)
            values = {"barrier": line.barrier, "distance": apart.distance, "cosine": apart.cosine}
            if self.bootstrap and enough_blocks(line.blocks, self.name, step):
                low, high = line.interval(self.bootstrap, self.confidence, seed=self.seed)
                values |= {"barrier_low": low, "barrier_high": high}
            about = {"reference": name, "units": units}
            rows += [{"quantity": quantity, "value": value, **about} for quantity, value in values.items()]
            rows += [
                {"quantity": "line_loss", "value": loss, "alpha": alpha, **about}
                for alpha, loss in zip(self.alphas, line.losses, strict=True)
            ]
            if values["barrier"] != values["barrier"] and rank_and_world_size()[0] == 0:
                log.warning("%s: the loss on the line to %r is not finite at step %d", self.name, name, step)
        return rows

    def _plane_rows(self, module: nn.Module, own: Point, step: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        if self.plane == "random":
            plane = random_plane(own, self.seed)
            sides = [np.linspace(-self.extent, self.extent, self.plane_size)] * 2
        else:
            earlier = self._earlier(module, own, step)
            if len(earlier) < 2:
                return []
            try:
                course = course_of_training([*earlier.values(), own])
            except ValueError as error:
                log.warning("%s: no plane at step %d: %s", self.name, step, error)
                return []
            plane, sides = course.plane, [_side(course.coordinates[:, i], self.plane_size) for i in (0, 1)]
            for i, share in enumerate(course.explained, 1):
                rows.append({"quantity": "explained_variance", "value": share, "direction": i})
            for at, position in zip([*earlier, step], course.coordinates, strict=True):
                for i, value in enumerate(position, 1):
                    rows.append({"quantity": "course_position", "value": value, "direction": i, "at": at})
        for x in sides[0].tolist():
            for y in sides[1].tolist():
                sums, tokens = self._sums(module, plane.at(x, y), step)
                rows.append({"quantity": "plane_loss", "x": x, "y": y, "value": sums.sum() / tokens.sum()})
        return rows

    def _earlier(self, module: nn.Module, own: Point, step: int) -> dict[int, Point]:
        """Return the weights of earlier checkpoints by step."""
        steps = list(self.run.checkpoints_before(step))
        if len(steps) > self.course_points:
            kept = np.linspace(0, len(steps) - 1, self.course_points).round().astype(int)
            steps = [steps[i] for i in np.unique(kept)]
        if not steps:
            return {}
        modules = Earlier(at=steps).modules(module, self.run, step)
        return {s: self._values(m, own) for s, m in zip(sorted(steps), modules.values(), strict=True)}

    def _sums(
        self, module: nn.Module, point: Point, step: int
    ) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
        """Return the sums of token losses and the numbers of tokens by block, over all ranks, at a point."""
        consumer = _BlockSums(SentenceBlocks(self.run.tokenizer, self.seed), device_of(module))
        with at_point(module, point):
            probe_pass(module, self.probe_set, [Watch(consumer)], forward=self.forward)
        sums, tokens = all_reduce_sum(consumer.sums).numpy()
        if not tokens.sum():
            raise ValueError(f"{self.name}: no token of the probe set has a label: expected text with labels")
        return sums, tokens

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return all rows except those of positions."""
        return ~observations["quantity"].isin(["line_loss", "plane_loss", "course_position"])

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw the lines at the last step, barriers over steps, and the plane."""
        return landscape_figures(observations)


class _BlockSums:
    """Sums of losses and numbers of labelled tokens by block of sentences."""

    def __init__(self, blocks: SentenceBlocks, device: torch.device) -> None:
        self._blocks = blocks
        self._device = torch.device("cpu") if device.type == "mps" else device
        self._sums = torch.zeros(2, BLOCKS, dtype=torch.float64, device=self._device)

    def update(self, seen: ObservedBatch) -> None:
        block = self._blocks.of(seen)
        if block.shape != seen.labels.shape:  # of an encoder-decoder: a block for each row
            block = block[:, :1].expand_as(seen.labels)
        block = block.flatten().to(self._device)
        labelled = (seen.labels >= 0).flatten().to(self._device, torch.float64)
        losses = seen.losses.flatten().to(self._device).double() * labelled
        self._sums.index_add_(1, block, torch.stack([losses, labelled]))

    @property
    def sums(self) -> Tensor:
        return self._sums.cpu()


def _first_rows(batch: Mapping[str, Any], number: int = 2) -> dict[str, Any]:
    """Return the first rows of a batch."""
    rows = len(batch["input_ids"]) if "input_ids" in batch else 0
    return {
        key: value[:number] if isinstance(value, Tensor) and value.ndim and len(value) == rows else value
        for key, value in batch.items()
    }


def _side(coordinates: "np.ndarray[Any, Any]", size: int) -> "np.ndarray[Any, Any]":
    """Return positions that contain all coordinates, with a margin of a tenth."""
    low, high = float(coordinates.min()), float(coordinates.max())
    margin = 0.1 * max(high - low, 1e-12)
    return np.linspace(low - margin, high + margin, size)
