"""Rank correlations of the interdependence of pairs of words with distances in trees and with word frequency."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from lmdyn.analysis.statistics.rank_blocks import RankCorrelation, RankCorrelations

__all__ = ["CONTROL_TREES", "correlations"]

CONTROL_TREES = ("off_by_one", "shuffled")
"""Columns of distances in trees that are not the sentence's own: see
:func:`~lmdyn.callbacks.interdependence.word_pairs.pair_table`."""


def correlations(table: pd.DataFrame, min_pairs: int, trees: bool, controls: bool) -> pd.DataFrame:
    """Rank correlations of DI within each sequential distance, over all classes and in each, each with its error.

    Args:
        table: of the pairs, with their ``di`` and the ``block`` of the text that each is from.
        min_pairs: none is reported from fewer pairs.
        trees: whether there are syntactic distances.
        controls: whether control trees are looked at too.

    Returns:
        Columns ``quantity``, ``distance``, ``pos_class``, ``word`` and ``value``; of each correlation a second row has
        its standard error over blocks, ``<quantity>_error``.
    """
    rows: list[tuple[str, Any, str | None, str | None, float]] = []
    for distance, pairs in table.groupby("distance"):
        for pos_class, group in ((None, pairs), *pairs.groupby("pos_class")):
            if len(group) < min_pairs:
                continue
            found = _of_group(group, "syntactic" if trees else None)
            for tree in CONTROL_TREES if trees and controls else ():
                joined = group[group[tree] >= 0]
                if len(joined) >= min_pairs:
                    own = _of_group(joined, tree)
                    found += [(f"{tree}_{name}", word, value) for name, word, value in own if word is None]
            for name, word, value in found:
                rows.append((name, distance, pos_class, word, value.value))
                rows.append((f"{name}_error", distance, pos_class, word, value.error))
    return pd.DataFrame(rows, columns=["quantity", "distance", "pos_class", "word", "value"])


def _of_group(group: pd.DataFrame, tree: str | None) -> list[tuple[str, str | None, RankCorrelation]]:
    """The correlations of some pairs, by the distances in a column."""
    blocks, di = group["block"].to_numpy(), group["di"].to_numpy()
    words = [side for side in ("left", "right") if side in group]
    counts = [group[side].to_numpy() for side in words]
    if not np.isfinite(di).all():
        di = np.zeros(len(di))  # constant: NaN
    distances = [] if tree is None else [group[tree].to_numpy(dtype=np.float64)]
    ranked = RankCorrelations([di, *distances, *counts], blocks)
    first = 1 + len(distances)
    found: list[tuple[str, str | None, RankCorrelation]] = []
    if distances:
        found.append(("syntactic_correlation", None, ranked.of(1, 0)))
    found += [("frequency_correlation", word, ranked.of(first + i, 0)) for i, word in enumerate(words)]
    if distances and counts:
        found.append(("partial_correlation", None, ranked.of(1, 0, range(first, first + len(counts)))))
        matched = RankCorrelations([di, *distances], blocks, _frequency_strata(counts))
        found.append(("matched_correlation", None, matched.of(1, 0)))
    return found


def _frequency_strata(counts: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """A number for each combination of training counts, to a factor of two; a count of 0 is by itself."""
    levels = [np.where(n > 0, np.floor(np.log2(np.maximum(n, 1))) + 1, 0).astype(np.int64) for n in counts]
    return np.asarray(levels[0] * 64 + levels[1], dtype=np.int64)
