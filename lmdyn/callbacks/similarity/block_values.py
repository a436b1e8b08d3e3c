"""Values of similarity from covariances of blocks of sentences: with ranks, bootstrap intervals, jackknife errors."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan

from torch import Tensor

from lmdyn.analysis.similarity.block_jackknife import jackknife_similarity
from lmdyn.analysis.similarity.covariance import CrossCovariance
from lmdyn.analysis.similarity.sweep import measure_of
from lmdyn.analysis.statistics.bootstrap import basic_interval, draw_blocks
from lmdyn.callbacks.observing.token_groups import enough_blocks

__all__ = ["BlockValues"]

log = logging.getLogger(__name__)

Attempt = Callable[[str, Callable[[], Tensor | float]], float]
"""Function of a quantity's name and a function that computes it: returns the value, or NaN with a warning."""


@dataclass(frozen=True)
class BlockValues:
    """Values of one pair of sites, computed from the covariances of its blocks.

    Attributes:
        measures: names as in :func:`lmdyn.analysis.sweep`.
        bootstrap: number of resamplings of the blocks; 0 for none.
        jackknife: whether each block is left out in turn.
        confidence: confidence level of bootstrap intervals.
        seed: seed of the bootstrap.
        name: name of the observer, for warnings.
        step: step of the observation, for warnings.
    """

    measures: tuple[str, ...]
    bootstrap: int
    jackknife: bool
    confidence: float
    seed: int
    name: str
    step: int

    def of(self, parts: Sequence[CrossCovariance], attempt: Attempt) -> dict[str, float]:
        """Return quantities in the order of the records: each measure with its error or interval, then ranks."""
        parts = [part for part in parts if part.n]
        whole = CrossCovariance.combine(parts) if parts else CrossCovariance()
        values = {m: attempt(m, lambda m=m: _of(m, whole)) for m in self.measures}  # type: ignore[misc]
        more = self._ends(parts, values) if self.bootstrap else {}
        more |= self._errors(parts, values) if self.jackknife else {}
        ordered = [f"{m}{end}" for m in values for end in ("", "_low", "_high", "_corrected", "_error")]
        found = values | more
        found = {quantity: found[quantity] for quantity in ordered if quantity in found}
        if "svcca" in values:
            for i, quantity in enumerate(("rank", "reference_rank")):
                known = values["svcca"] == values["svcca"]
                found[quantity] = float(whole.svcca_ranks()[i]) if known else nan
        return found

    def _ends(self, parts: Sequence[CrossCovariance], values: dict[str, float]) -> dict[str, float]:
        if not enough_blocks(len(parts), self.name, self.step):
            return {f"{m}_{end}": nan for m in values for end in ("low", "high")}
        draws = draw_blocks(len(parts), self.bootstrap, self.seed)
        resampled: dict[str, list[float]] = {m: [] for m in values}
        for weights in draws:
            try:
                drawn = CrossCovariance.combine(parts, [int(w) for w in weights])
                for m, found in resampled.items():
                    found.append(float(_of(m, drawn)))
            except ValueError:  # reported once, for the whole
                continue
        ends: dict[str, float] = {}
        for m, found in resampled.items():
            low, high = basic_interval(values[m], found, self.confidence)
            ends |= {f"{m}_low": float(low), f"{m}_high": float(high)}
        return ends

    def _errors(self, parts: Sequence[CrossCovariance], values: dict[str, float]) -> dict[str, float]:
        errors = {f"{m}_{what}": nan for m in values for what in ("corrected", "error")}
        known = [m for m, value in values.items() if value == value]
        if not enough_blocks(len(parts), self.name, self.step) or not known:
            return errors
        for m, found in jackknife_similarity(parts, known).items():
            errors |= {f"{m}_corrected": float(found.value), f"{m}_error": float(found.error)}
        return errors


def _of(measure: str, covariance: CrossCovariance) -> Tensor:
    function = measure_of(measure)
    assert function is not None
    return function(covariance.pair())
