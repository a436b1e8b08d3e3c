"""Means, intervals and rank correlations of the interdependence of pairs of words, by their properties."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from lmdyn.analysis.statistics.clustered import clustered_means
from lmdyn.analysis.statistics.jackknife import jackknife
from lmdyn.analysis.statistics.rank_blocks import RankCorrelation, RankCorrelations, blocks_of_clusters

__all__ = ["pair_statistics"]

_Z = 1.959964  # of a 95 % interval
_BLOCKS = 32  # of sentences, for errors of correlations
_CONTROL_TREES = ("off_by_one", "shuffled")

_Found = tuple[RankCorrelation, RankCorrelations]
"""A correlation, and the ranks of which it is."""


def pair_statistics(table: pd.DataFrame, min_pairs: int, *, controls: bool = False) -> pd.DataFrame:
    """Return means with intervals and counts for each stratum, and rank correlations within distances.

    Sentences are clusters of the means' intervals, and blocks of the correlations' errors.

    Args:
        table: a row for each pair of words: its value ``di``; optionally the standard ``error`` of this value, whose
            root mean square is reported; ``sentence``, ``distance``, ``syntactic`` distance (-1 under different roots,
            missing without trees), ``pos_class``, whether a word is ``unknown``, and optionally training counts
            ``left`` and ``right``, and distances in control trees, ``off_by_one`` and ``shuffled``.
        min_pairs: minimum number of pairs of a reported number.
        controls: whether to compute correlations with the trees of ``off_by_one`` and ``shuffled``, and of known words.

    Returns:
        Columns ``quantity``, ``distance``, ``value``, and ``syntactic``, ``pos_class`` and ``word`` if some rows have
        them.
    """
    trees: list[str] = []
    if table["syntactic"].notna().any():
        trees = ["syntactic", *(_CONTROL_TREES if controls else ())]
    table = table.assign(block=blocks_of_clusters(table["sentence"].to_numpy(), _BLOCKS))
    if trees:
        table = table[table["syntactic"] >= 0]
    rows = []
    for strata in [["distance"], ["distance", "syntactic"]] if trees else [["distance"]]:
        rows += [_means(table, columns, min_pairs) for columns in (strata, [*strata, "pos_class"])]
    rows.append(_correlations(table, min_pairs, trees))
    if controls and table["unknown"].any():
        known = _correlations(table[~table["unknown"]], min_pairs, trees)
        names = known["quantity"].str.replace("^(mean_)?", r"\1known_", regex=True)
        rows.append(known.assign(quantity=names))
    if "error" in table:
        groups = [group for _, group in table.groupby("distance") if len(group) >= min_pairs]
        errors = [np.sqrt(np.mean(group["error"].to_numpy() ** 2)) for group in groups]
        distances = [group["distance"].iloc[0] for group in groups]
        rows.append(pd.DataFrame({"quantity": "sampling_error", "distance": distances, "value": errors}))
    return pd.concat([part for part in rows if len(part)] or rows[:1], ignore_index=True)


def _means(table: pd.DataFrame, strata: list[str], min_pairs: int) -> pd.DataFrame:
    """Return the mean DI of each stratum, its interval and its number of pairs; sentences are clusters."""
    table = table.dropna(subset=strata)
    grouped = table.groupby(strata)
    stratum = np.asarray(grouped.ngroup(), dtype=np.int64)
    found = clustered_means(table["di"].to_numpy(), stratum, table["sentence"].to_numpy())
    columns = {
        "di": found.mean,
        "di_low": found.mean - _Z * found.error,
        "di_high": found.mean + _Z * found.error,
        "pairs": found.number.astype(float),
    }
    means = pd.DataFrame(columns, index=grouped.size().index)  # in the order of the groups' numbers
    return means[found.number >= min_pairs].reset_index().melt(id_vars=strata, var_name="quantity")


def _correlations(table: pd.DataFrame, min_pairs: int, trees: Sequence[str]) -> pd.DataFrame:
    """Return rank correlations of DI within each distance, over all classes and in each, and their means."""
    each: dict[tuple[str, str | None, str | None], list[_Found]] = {}
    rows: list[tuple[str, Any, str | None, str | None, float]] = []
    for distance, pairs in table.groupby("distance"):
        for pos_class, group in ((None, pairs), *pairs.groupby("pos_class")):
            found: dict[tuple[str, str | None], _Found] = {}
            for tree in trees or (None,):
                joined = group[group[tree] >= 0] if tree in _CONTROL_TREES else group
                if len(joined) < min_pairs:
                    continue
                own = _of_group(joined, tree)
                if tree in _CONTROL_TREES:
                    own = {(f"{tree}_{name}", word): of for (name, word), of in own.items() if word is None}
                found |= own
            for (name, word), of in found.items():
                rows.append((name, distance, pos_class, word, of[0].value))
                rows.append((f"{name}_error", distance, pos_class, word, of[0].error))
                each.setdefault((name, pos_class, word), []).append(of)
    for (name, pos_class, word), parts in each.items():
        mean, error = _mean(parts)
        rows.append((f"mean_{name}", None, pos_class, word, mean))
        rows.append((f"mean_{name}_error", None, pos_class, word, error))
    return pd.DataFrame(rows, columns=["quantity", "distance", "pos_class", "word", "value"])


def _of_group(group: pd.DataFrame, tree: str | None) -> dict[tuple[str, str | None], _Found]:
    """Return the correlations of some pairs with the distances in a column, by name and word."""
    blocks, di = group["block"].to_numpy(), group["di"].to_numpy()
    sides = [side for side in ("left", "right") if side in group]
    counts = [group[side].to_numpy() for side in sides]
    if not np.isfinite(di).all():
        di = np.zeros(len(di))  # constant, which gives NaN
    distances = [] if tree is None else [group[tree].to_numpy(dtype=np.float64)]
    ranked = RankCorrelations([di, *distances, *counts], blocks)
    first = 1 + len(distances)
    found: dict[tuple[str, str | None], _Found] = {}
    if distances:
        found["syntactic_correlation", None] = ranked.of(1, 0), ranked
    for i, side in enumerate(sides):
        found["frequency_correlation", side] = ranked.of(first + i, 0), ranked
    if distances and counts:
        held = ranked.of(1, 0, range(first, first + len(counts)))
        found["partial_correlation", None] = held, ranked
        # counts up to a factor of two, and separately a count of 0
        levels = [np.where(n > 0, np.floor(np.log2(np.maximum(n, 1))) + 1, 0).astype(int) for n in counts]
        matched = RankCorrelations([di, *distances], blocks, levels[0] * 64 + levels[1])
        found["matched_correlation", None] = matched.of(1, 0), matched
    return found


def _mean(parts: Sequence[_Found]) -> tuple[float, float]:
    """Return the mean over distances, and its error over blocks, which the distances share."""
    blocks = np.unique(np.concatenate([ranked.blocks for _, ranked in parts]))
    without: npt.NDArray[np.float64] = np.empty((len(parts), len(blocks)))
    sizes = np.zeros(len(blocks))
    for row, (of, ranked) in zip(without, parts, strict=True):
        at = np.searchsorted(blocks, ranked.blocks)
        row[:] = of.value  # for blocks without a part in it
        row[at] = of.without if len(of.without) else np.nan
        sizes[at] += ranked.sizes
    mean = float(np.mean([of.value for of, _ in parts]))
    if len(blocks) < 2:
        return mean, float("nan")
    return mean, float(jackknife(mean, without.mean(0), sizes).error)
