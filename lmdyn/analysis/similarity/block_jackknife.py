"""Jackknife of similarity measures over blocks of sentences, computed from sums."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import nan

from torch import Tensor

from lmdyn.analysis.similarity.cca import ranks_of, svcca_of
from lmdyn.analysis.similarity.covariance import CrossCovariance
from lmdyn.analysis.similarity.scatter import Pair
from lmdyn.analysis.similarity.sweep import known_measures
from lmdyn.analysis.statistics.jackknife import Jackknifed, jackknife

__all__ = ["jackknife_similarity", "values_or_nan"]


def jackknife_similarity(
    parts: Sequence[CrossCovariance], measures: Sequence[str] = ("svcca",)
) -> dict[str, Jackknifed]:
    """Compute the bias-corrected value and the standard error of similarity over blocks of samples.

    Correlations of finite samples are too high by about d / n. A bootstrap raises them again, because resampled rows
    repeat: its percentile interval excludes the value that it belongs to. The jackknife leaves out one block at a
    time, estimates that bias and subtracts it. For ``svcca``, the numbers of kept directions are those of all samples:
    the jackknife requires a smooth statistic, and the error is that of the correlations at these numbers.

    If most true correlations are 0 (untrained models, unrelated labels), the bias is not linear in 1 / n: only a part
    of it is subtracted, and intervals from these errors are too narrow. In that case, use more samples or CKA.

    Args:
        parts: covariances of the same two representations, one for each block.
        measures: names as in :func:`lmdyn.analysis.sweep`.

    Returns:
        A dict from each measure to its corrected value, which may lie slightly outside [0, 1], and its error.

    Raises:
        ValueError: if fewer than two blocks have samples, if a measure is unknown, or if a measure raises one itself.

    Reference: Efron & Tibshirani 1993, chapter 11; Busing et al. 1999 (unequal blocks).

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> parts = []
        >>> for x in torch.randn(20, 50, 4, generator=g):
        ...     parts.append(CrossCovariance())
        ...     parts[-1].update(x, torch.randn(50, 4, generator=g))  # unrelated
        >>> found = jackknife_similarity(parts, ["linear_cka"])["linear_cka"]
        >>> bool(abs(found.value) < 2 * found.error), found.df
        (True, 19)
    """
    functions = dict(known_measures(measures))
    there = [part for part in parts if part.n]
    if len(there) < 2:
        raise ValueError(f"the jackknife requires at least 2 blocks with samples, got {len(there)}")
    whole = CrossCovariance.combine(there)
    if "svcca" in functions:
        functions["svcca"] = partial(svcca_of, directions=ranks_of(whole.pair()))
    estimates = [float(function(whole.pair())) for function in functions.values()]
    left_out = values_or_nan(functions, (whole.without(part) for part in there))
    sizes = [part.n for part in there]
    return {
        name: jackknife(estimate, values, sizes)
        for (name, values), estimate in zip(left_out.items(), estimates, strict=True)
    }


def values_or_nan(
    functions: Mapping[str, Callable[[Pair], Tensor]], covariances: Iterable[CrossCovariance]
) -> dict[str, list[float]]:
    """Return measures of some of the blocks; NaN if they have fewer directions than one requires, or are constant."""
    values: dict[str, list[float]] = {name: [] for name in functions}
    for covariance in covariances:
        for name, function in functions.items():
            try:
                values[name].append(float(function(covariance.pair())))
            except ValueError:
                values[name].append(nan)
    return values
