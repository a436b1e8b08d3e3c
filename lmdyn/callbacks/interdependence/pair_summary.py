"""Means, intervals and rank correlations of the interdependence of pairs of words, by what is known of them."""

import logging

import numpy as np
import numpy.typing as npt
import pandas as pd

from lmdyn.analysis.statistics.clustered import clustered_means
from lmdyn.analysis.statistics.correlation import spearman

__all__ = ["summary"]

log = logging.getLogger(__name__)

_Z = 1.959964  # of a 95 % interval
_GROUPS = ["quantity", "site", "distance", "syntactic", "pos_class", "word", "value"]


def summary(
    table: pd.DataFrame,
    site: str,
    values: npt.NDArray[np.float64],
    min_pairs: int,
    *,
    errors: npt.NDArray[np.float64] | None = None,
    without_unknown: bool = False,
) -> pd.DataFrame:
    """Means with intervals and counts for each stratum, and rank correlations within distances.

    Args:
        table: of the pairs: see :func:`~lmdyn.callbacks.interdependence.word_pairs.pair_table`.
        site: where the values are from.
        values: by the ``index`` of the table.
        min_pairs: no mean is reported from fewer pairs.
        errors: standard errors of the values where they are estimates or may be: their root mean square is reported.
        without_unknown: leave pairs with unknown words out, and report their number.
    """
    trees = bool(table["syntactic"].notna().any())
    table = table.assign(di=values[table["index"].to_numpy()])
    if trees:
        table = table[table["syntactic"] >= 0]
    rows = []
    if without_unknown:
        lost = table[table["unknown"]].groupby("distance").size()
        numbers = lost.reindex(sorted(table["distance"].unique()), fill_value=0).astype(float)
        rows.append(numbers.rename("value").reset_index().assign(quantity="unknown_pairs"))
        table = table[~table["unknown"]]
    if not np.isfinite(table["di"]).all():
        log.warning("interdependence: %d pairs have no finite value: the means of their strata are NaN",
                    int((~np.isfinite(table["di"])).sum()))  # fmt: skip
    strata = [["distance"], ["distance", "pos_class"]]
    if trees:
        strata += [["distance", "syntactic"], ["distance", "syntactic", "pos_class"]]
    rows += [_means(table, columns, min_pairs) for columns in strata]
    rows.append(_correlations(table, min_pairs, trees))
    if errors is not None:
        rows.append(_sampling_errors(table.assign(error=errors[table["index"].to_numpy()]), min_pairs))
    whole = pd.concat([part for part in rows if len(part)] or rows[:1], ignore_index=True)
    whole["site"] = site
    for column in ("syntactic", "pos_class", "word"):
        if column not in whole:
            whole[column] = None
    whole = whole.astype({"distance": "Int64", "syntactic": "Int64", "value": "float64"})
    text = {c: whole[c].astype(object).where(whole[c].notna(), None) for c in ("pos_class", "word")}
    return whole.assign(**text)[_GROUPS]


def _sampling_errors(table: pd.DataFrame, min_pairs: int) -> pd.DataFrame:
    """The root mean square of the standard errors of the pairs of each distance."""
    rows = [
        ("sampling_error", distance, float(np.sqrt(np.mean(pairs["error"].to_numpy() ** 2))))
        for distance, pairs in table.groupby("distance")
        if len(pairs) >= min_pairs
    ]
    return pd.DataFrame(rows, columns=["quantity", "distance", "value"])


def _correlations(table: pd.DataFrame, min_pairs: int, trees: bool) -> pd.DataFrame:
    """Rank correlations of DI within each distance, over all classes and in each."""
    rows = []
    counts = [side for side in ("left", "right") if side in table]
    for distance, pairs in table.groupby("distance"):
        for pos_class, group in ((None, pairs), *pairs.groupby("pos_class")):
            if len(group) < min_pairs:
                continue
            di = group["di"].to_numpy()
            held = [group[side].to_numpy() for side in counts]
            found: list[tuple[str, str | None, float]] = [
                ("frequency_correlation", side, spearman(n, di)) for side, n in zip(counts, held, strict=True)
            ]
            if trees:
                syntactic = group["syntactic"].to_numpy()
                found.insert(0, ("syntactic_correlation", None, spearman(syntactic, di)))
                if counts:
                    found.append(("partial_correlation", None, spearman(syntactic, di, held)))
            rows += [(quantity, distance, pos_class, word, value) for quantity, word, value in found]
    return pd.DataFrame(rows, columns=["quantity", "distance", "pos_class", "word", "value"])


def _means(table: pd.DataFrame, strata: list[str], min_pairs: int) -> pd.DataFrame:
    """Mean DI of each stratum, its interval and its number of pairs; sentences are clusters."""
    table = table.dropna(subset=strata)
    grouped = table.groupby(strata)
    stratum = np.asarray(grouped.ngroup(), dtype=np.int64)
    found = clustered_means(table["di"].to_numpy(), stratum, table["sentence"].to_numpy())
    names = grouped.size().index  # in the order of the groups' numbers
    columns = {
        "di": found.mean,
        "di_low": found.mean - _Z * found.error,
        "di_high": found.mean + _Z * found.error,
    }
    means = pd.DataFrame({**columns, "pairs": found.number.astype(float)}, index=names)
    return means[found.number >= min_pairs].reset_index().melt(id_vars=strata, var_name="quantity")
