"""Rank correlations of the interdependence of pairs of words with distances in trees and with word frequency."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from lmdyn.analysis.statistics.jackknife import jackknife
from lmdyn.analysis.statistics.rank_blocks import RankCorrelation, RankCorrelations

__all__ = ["CONTROL_TREES", "correlations"]

CONTROL_TREES = ("off_by_one", "shuffled")
"""Columns of distances in other trees than the sentence's own: see
:func:`~lmdyn.callbacks.interdependence.word_pairs.pair_table`."""


def correlations(table: pd.DataFrame, min_pairs: int, trees: bool, controls: bool) -> pd.DataFrame:
    """Return rank correlations of DI within each sequential distance, over all classes and in each, with their errors.

    Args:
        table: table of the pairs, with their ``di`` and the ``block`` of the text of each.
        min_pairs: minimum number of pairs of a reported correlation.
        trees: whether there are syntactic distances.
        controls: whether to use also control trees.

    Returns:
        Columns ``quantity``, ``distance``, ``pos_class``, ``word`` and ``value``; for each correlation a second row has
        its standard error over blocks, ``<quantity>_error``. Rows without a distance are means over distances,
        ``mean_<quantity>``, with their errors.
    """
    rows: list[tuple[str, Any, str | None, str | None, float]] = []
    each: dict[tuple[str, str | None, str | None], list[_Found]] = {}
    for distance, pairs in table.groupby("distance"):
        for pos_class, group in ((None, pairs), *pairs.groupby("pos_class")):
            if len(group) < min_pairs:
                continue
            found = _of_group(group, "syntactic" if trees else None)
            for tree in CONTROL_TREES if trees and controls else ():
                joined = group[group[tree] >= 0]
                if len(joined) >= min_pairs:
                    own = [part for part in _of_group(joined, tree) if part.word is None]
                    found += [replace(part, name=f"{tree}_{part.name}") for part in own]
            for part in found:
                rows.append((part.name, distance, pos_class, part.word, part.of.value))
                rows.append((f"{part.name}_error", distance, pos_class, part.word, part.of.error))
                each.setdefault((part.name, pos_class, part.word), []).append(part)
    for (name, pos_class, word), parts in each.items():
        mean, error = _mean(parts)
        rows.append((f"mean_{name}", None, pos_class, word, mean))
        rows.append((f"mean_{name}_error", None, pos_class, word, error))
    return pd.DataFrame(rows, columns=["quantity", "distance", "pos_class", "word", "value"])


@dataclass(frozen=True)
class _Found:
    """A correlation within a sequential distance, its blocks and their sizes."""

    name: str
    word: str | None
    of: RankCorrelation
    ranked: RankCorrelations


def _mean(parts: Sequence[_Found]) -> tuple[float, float]:
    """Return the mean over distances, and its error over blocks, which the distances share."""
    blocks = np.unique(np.concatenate([part.ranked.blocks for part in parts]))
    without, sizes = np.empty((len(parts), len(blocks))), np.zeros(len(blocks))
    for row, part in zip(without, parts, strict=True):
        at = np.searchsorted(blocks, part.ranked.blocks)
        row[:] = part.of.value  # for blocks without a part in it
        row[at] = part.of.without if len(part.of.without) else np.nan
        sizes[at] += part.ranked.sizes
    mean = float(np.mean([part.of.value for part in parts]))
    if len(blocks) < 2:
        return mean, float("nan")
    return mean, float(jackknife(mean, without.mean(0), sizes).error)


def _of_group(group: pd.DataFrame, tree: str | None) -> list[_Found]:
    """Return the correlations of some pairs with the distances in a column."""
    blocks, di = group["block"].to_numpy(), group["di"].to_numpy()
    words = [side for side in ("left", "right") if side in group]
    counts = [group[side].to_numpy() for side in words]
    if not np.isfinite(di).all():
        di = np.zeros(len(di))  # constant, which gives NaN
    distances = [] if tree is None else [group[tree].to_numpy(dtype=np.float64)]
    ranked = RankCorrelations([di, *distances, *counts], blocks)
    first = 1 + len(distances)
    found = []
    if distances:
        found.append(_Found("syntactic_correlation", None, ranked.of(1, 0), ranked))
    for i, word in enumerate(words):
        found.append(_Found("frequency_correlation", word, ranked.of(first + i, 0), ranked))
    if distances and counts:
        held = ranked.of(1, 0, range(first, first + len(counts)))
        found.append(_Found("partial_correlation", None, held, ranked))
        matched = RankCorrelations([di, *distances], blocks, _frequency_strata(counts))
        found.append(_Found("matched_correlation", None, matched.of(1, 0), matched))
    return found


def _frequency_strata(counts: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Return a number for each combination of training counts, up to a factor of two; a count of 0 is separate."""
    levels = [np.where(n > 0, np.floor(np.log2(np.maximum(n, 1))) + 1, 0).astype(np.int64) for n in counts]
    return np.asarray(levels[0] * 64 + levels[1], dtype=np.int64)
