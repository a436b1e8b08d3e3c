"""Means, intervals and rank correlations of the interdependence of pairs of words, by their properties."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from lmdyn.analysis.statistics.clustered import clustered_means
from lmdyn.analysis.statistics.jackknife import jackknife
from lmdyn.analysis.statistics.rank_blocks import RankCorrelation, RankCorrelations, blocks_of_clusters

__all__ = ["pair_statistics"]

_Z = 1.959964  # of a 95 % interval
_BLOCKS = 32  # of sentences, for errors of correlations
_CONTROL_TREES = ("off_by_one", "shuffled")

_Found = tuple[RankCorrelation, RankCorrelations]
"""A correlation and its ranks."""


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
    table = table.assign(block=blocks_of_clusters(table["sentence"].to_numpy(), _BLOCKS))
    trees: list[str | None] = [None]
    strata = [["distance"]]
    if table["syntactic"].notna().any():
        table = table[table["syntactic"] >= 0]
        trees = ["syntactic", *(_CONTROL_TREES if controls else ())]
        strata.append(["distance", "syntactic"])
    rows = [_means(table, by, min_pairs) for columns in strata for by in (columns, [*columns, "pos_class"])]
    rows.append(_correlations(table, min_pairs, trees))
    if controls and table["unknown"].any():
        known = _correlations(table[~table["unknown"]], min_pairs, trees)
        names = known["quantity"].str.replace("^(mean_)?", r"\1known_", regex=True)
        rows.append(known.assign(quantity=names))
    if "error" in table:
        squares = (table["error"] ** 2).groupby(table["distance"]).agg(["mean", "size"]).reset_index()
        squares = squares[squares["size"] >= min_pairs]
        errors = squares.assign(quantity="sampling_error", value=np.sqrt(squares["mean"]))
        rows.append(errors[["quantity", "distance", "value"]])
    return pd.concat([part for part in rows if len(part)] or rows[:1], ignore_index=True)


def _means(table: pd.DataFrame, strata: list[str], min_pairs: int) -> pd.DataFrame:
    """Return the mean DI of each stratum, its interval and its number of pairs; sentences are clusters."""
    table = table.dropna(subset=strata)
    grouped = table.groupby(strata)
    stratum = np.asarray(grouped.ngroup(), np.int64)
    found = clustered_means(table["di"].to_numpy(), stratum, table["sentence"].to_numpy())
    columns = {
        "di": found.mean,
        "di_low": found.mean - _Z * found.error,
        "di_high": found.mean + _Z * found.error,
        "pairs": found.number.astype(float),
    }
    means = pd.DataFrame(columns, index=grouped.size().index)  # in the order of the groups' numbers
    return means[found.number >= min_pairs].reset_index().melt(id_vars=strata, var_name="quantity")


def _correlations(table: pd.DataFrame, min_pairs: int, trees: Sequence[str | None]) -> pd.DataFrame:
    """Return rank correlations of DI within each distance, over all classes and in each, and their means."""
    rows: list[tuple[Any, ...]] = []
    each: dict[tuple[Any, ...], list[_Found]] = defaultdict(list)
    for distance, pairs in table.groupby("distance"):
        for pos_class, group in ((None, pairs), *pairs.groupby("pos_class")):
            for name, word, found in chain.from_iterable(_of_tree(group, tree, min_pairs) for tree in trees):
                rows.append((name, distance, pos_class, word, *found[0][:2]))
                each[name, pos_class, word].append(found)
    for (name, pos_class, word), parts in each.items():
        rows.append((f"mean_{name}", None, pos_class, word, *_mean(parts)))
    values = pd.DataFrame(rows, columns=["quantity", "distance", "pos_class", "word", "value", "error"])
    errors = values.assign(quantity=values["quantity"] + "_error", value=values["error"])
    return pd.concat([values, errors]).sort_index(kind="stable").drop(columns="error")


def _of_tree(
    group: pd.DataFrame, tree: str | None, min_pairs: int
) -> Iterator[tuple[str, str | None, _Found]]:
    """Yield the correlations of some pairs with the distances in a column, with name and word."""
    prefix = f"{tree}_" if tree in _CONTROL_TREES else ""
    if prefix:
        group = group[group[tree] >= 0]
    if len(group) < min_pairs:
        return
    sides = [side for side in ("left", "right") if side in group]
    di, blocks, *counts = (group[column].to_numpy() for column in ("di", "block", *sides))
    distances = [] if tree is None else [group[tree].to_numpy(dtype=np.float64)]
    ranked = RankCorrelations([di, *counts, *distances], blocks)
    last = 1 + len(counts)
    if tree:
        yield f"{prefix}syntactic_correlation", None, (ranked.of(last, 0), ranked)
    for number, side in enumerate(() if prefix else sides, 1):
        yield "frequency_correlation", side, (ranked.of(number, 0), ranked)
    if tree and counts:
        yield f"{prefix}partial_correlation", None, (ranked.of(last, 0, range(1, last)), ranked)
        # counts up to a factor of two, and separately a count of 0
        left, right = (np.frexp(number)[1] for number in counts)
        matched = RankCorrelations([di, *distances], blocks, left * 64 + right)
        yield f"{prefix}matched_correlation", None, (matched.of(1, 0), matched)


def _mean(parts: Sequence[_Found]) -> tuple[float, float]:
    """Return the mean over distances, and its error over blocks, which the distances share."""
    mean = float(np.mean([of.value for of, _ in parts]))
    sizes = pd.concat([pd.Series(ranked.sizes, ranked.blocks) for _, ranked in parts])
    sizes = sizes.groupby(level=0).sum()
    if len(sizes) < 2:
        return mean, np.nan
    without = []
    for of, ranked in parts:
        own = pd.Series(of.without if len(of.without) else np.nan, ranked.blocks)
        without.append(own.reindex(sizes.index, fill_value=of.value))  # for blocks without a part in it
    return mean, float(jackknife(mean, np.mean(without, axis=0), sizes.to_numpy()).error)
