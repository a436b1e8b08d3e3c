"""Similarity of two representations with bootstrap intervals and jackknife errors over blocks, or why there is none."""

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from lmdyn.analysis.similarity.block_jackknife import jackknife_similarity, values_or_nan
from lmdyn.analysis.similarity.covariance import CrossCovariance
from lmdyn.analysis.similarity.sweep import known_measures
from lmdyn.analysis.statistics.bootstrap import basic_interval, draw_blocks

__all__ = ["block_similarity", "value_or_reason"]


def block_similarity(
    parts: Sequence[CrossCovariance],
    measures: Sequence[str],
    *,
    bootstrap: int = 0,
    jackknife: bool = False,
    confidence: float = 0.95,
    seed: int = 0,
    least: int = 5,
) -> dict[str, float | str]:
    """Compute measures of all samples, with basic bootstrap intervals and jackknife errors over blocks of samples.

    Resampled rows repeat, which raises CCA-like measures: for those, use the jackknife. Resamplings for which a measure
    has no value are left out.

    Args:
        parts: covariances of the same two representations, one for each block with samples.
        measures: names as in :func:`lmdyn.analysis.sweep`.
        bootstrap: number of resamplings of the blocks; 0 for no intervals.
        jackknife: whether to compute bias-corrected values and errors.
        confidence: confidence level of the intervals.
        seed: seed of the resamplings.
        least: number of blocks that intervals and errors require.

    Returns:
        Values by ``<measure>``, with ``<measure>_low`` and ``_high``, ``_corrected`` and ``_error`` if requested; for
        ``svcca`` also ``rank`` and ``reference_rank``, the numbers of kept directions. A text is the reason why there
        is no value; NaN follows from it.

    Raises:
        ValueError: if a measure is unknown.
    """
    functions = known_measures(measures)
    whole = parts[0] if len(parts) == 1 else CrossCovariance.combine(parts) if parts else CrossCovariance()
    values: dict[str, float | str] = {}
    for name, function in functions.items():
        values[name] = value_or_reason(lambda: function(whole.pair()))  # noqa: B023
    known = {name: value for name, value in values.items() if isinstance(value, float)}
    few = (
        f"expected at least {least} blocks of sentences, got {len(parts)}: observe more text, or text with the "
        "tokenizer's end-of-sentence token after each sentence"
    )
    enough = len(parts) >= least
    more: dict[str, float] = {}
    if bootstrap and enough:
        more |= _intervals(parts, known, draw_blocks(len(parts), bootstrap, seed).tolist(), confidence)
    if jackknife and enough and known:
        for name, found in jackknife_similarity(parts, list(known)).items():
            more |= {f"{name}_corrected": float(found.value), f"{name}_error": float(found.error)}
    ordered: dict[str, float | str] = {}
    for name, value in values.items():
        ordered[name] = value
        for end in ("low", "high") * bool(bootstrap) + ("corrected", "error") * jackknife:
            unknown = few if not enough and name in known else np.nan
            ordered[f"{name}_{end}"] = more.get(f"{name}_{end}", unknown)
    if "svcca" in values:
        ranks = whole.svcca_ranks() if "svcca" in known else (np.nan, np.nan)
        ordered |= {"rank": float(ranks[0]), "reference_rank": float(ranks[1])}
    return ordered


def value_or_reason(measure: Callable[[], Tensor]) -> float | str:
    """Return the value of a measure, or the reason why it has none."""
    try:
        return float(measure())
    except ValueError as error:
        return str(error)


def _intervals(
    parts: Sequence[CrossCovariance], values: dict[str, float], draws: Sequence[list[int]], confidence: float
) -> dict[str, float]:
    drawn = (CrossCovariance.combine(parts, weights) for weights in draws)
    resampled = values_or_nan(known_measures(list(values)), drawn)
    ends: dict[str, float] = {}
    for name, found in resampled.items():
        low, high = basic_interval(values[name], [v for v in found if v == v], confidence)
        ends |= {f"{name}_low": float(low), f"{name}_high": float(high)}
    return ends
