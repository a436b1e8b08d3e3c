"""Means, intervals and rank correlations of the interdependence of pairs of words, by their properties."""

import logging

import numpy as np
import numpy.typing as npt
import pandas as pd

from lmdyn.analysis.statistics.clustered import clustered_means
from lmdyn.analysis.statistics.rank_blocks import blocks_of_clusters
from lmdyn.callbacks.interdependence.pair_correlations import correlations

__all__ = ["recorded_rows", "summary"]

log = logging.getLogger(__name__)

_Z = 1.959964  # of a 95 % interval
_BLOCKS = 32  # of sentences, for errors of correlations
_CONTROLS = "(mean_)?(known_|off_by_one_|shuffled_)"
_GROUPS = ["quantity", "site", "distance", "syntactic", "pos_class", "word", "value"]


def summary(
    table: pd.DataFrame,
    site: str,
    values: npt.NDArray[np.float64],
    min_pairs: int,
    *,
    errors: npt.NDArray[np.float64] | None = None,
    without_unknown: bool = False,
    controls: bool = False,
) -> pd.DataFrame:
    """Return means with intervals and counts for each stratum, and rank correlations within distances.

    Args:
        table: table of the pairs: see :func:`~lmdyn.callbacks.interdependence.word_pairs.pair_table`.
        site: site of the values.
        values: values by the ``index`` of the table.
        min_pairs: minimum number of pairs of a reported mean.
        errors: standard errors of the values if they may be estimates: their root mean square is reported.
        without_unknown: whether to leave pairs with unknown words out, and report their number.
        controls: whether to compute correlations with the trees of ``off_by_one`` and ``shuffled``, and of known words.
    """
    trees = bool(table["syntactic"].notna().any())
    table = table.assign(
        di=values[table["index"].to_numpy()], block=blocks_of_clusters(table["sentence"].to_numpy(), _BLOCKS)
    )
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
    named = correlations(table, min_pairs, trees, controls)
    if controls and not without_unknown and table["unknown"].any():
        known = correlations(table[~table["unknown"]], min_pairs, trees, controls)
        named = pd.concat([named, known.assign(quantity=_prefixed(known["quantity"]))], ignore_index=True)
    rows.append(named)
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


def _prefixed(quantities: "pd.Series[str]") -> "pd.Series[str]":
    """Insert ``known_`` before a name, after ``mean_``."""
    return quantities.str.replace("^(mean_)?", r"\1known_", regex=True)


def _sampling_errors(table: pd.DataFrame, min_pairs: int) -> pd.DataFrame:
    """Return the root mean square of the standard errors of the pairs of each distance."""
    rows = [
        ("sampling_error", distance, float(np.sqrt(np.mean(pairs["error"].to_numpy() ** 2))))
        for distance, pairs in table.groupby("distance")
        if len(pairs) >= min_pairs
    ]
    return pd.DataFrame(rows, columns=["quantity", "distance", "value"])


def _means(table: pd.DataFrame, strata: list[str], min_pairs: int) -> pd.DataFrame:
    """Return the mean DI of each stratum, its interval and its number of pairs; sentences are clusters."""
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


def recorded_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that figures over all runs and claims require.

    For each observation the means and correlations of hidden states (else of the existing space) over all classes; for
    the first and the last one those of all spaces, and those by class and by syntactic distance, except for numbers of
    pairs.
    """
    space = "hidden" if rows["site"].eq("hidden").any() else rows["site"].iloc[0] if len(rows) else ""
    whole = rows["syntactic"].isna() & rows["pos_class"].isna()
    control = rows["quantity"].str.match(_CONTROLS) | rows["quantity"].eq("pairs")
    ends = rows["step"].isin(
        [rows["step"].min(), rows["step"].max()]
    )  # the first is the baseline of the last
    of_space = rows["site"].eq(space)
    return rows[
        (whole & of_space & ~control) | (ends & of_space & rows["quantity"].ne("pairs")) | (ends & whole)
    ]
