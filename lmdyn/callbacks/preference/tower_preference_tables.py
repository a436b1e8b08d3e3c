"""Tables of He & Toyoizumi 2022 on token preference, for one or several runs."""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import combinations
from typing import Any

import numpy as np
from pandas import DataFrame

from lmdyn.analysis.preference.preference_agreement import compare_preferences
from lmdyn.callbacks.observing.figures import named_runs
from lmdyn.runs.schema import last_step, select

__all__ = ["TAGS", "last_types", "oriented", "preference_tables"]

_TOP = 5000  # default: rarer types are noise (section 5.1)

TAGS = ("PROPN", "NOUN", "ADJ", "AUX", "ADP", "ADV", "VERB", "DET", "PRON", "NUM", "SCONJ", "CCONJ", "PART")
"""Drawn tags: first those of the publication's figure 4, in its order, then further ones."""

_OF_A_SIGN = ("preference", "correlation", "rank_correlation", "frequency_rank_correlation")


def preference_tables(
    observations: DataFrame, settings: Mapping[str, Any], *, resamplings: int = 1000
) -> dict[str, DataFrame]:
    """Return table 2 of the publication, for the last observations of several runs.

    Args:
        observations: observations of ``TowerPreference``; for several runs with a column ``run``.
        settings: settings of the observer: ``top`` is the number of the most frequent types to use.
        resamplings: number of bootstrap resamplings; 0 for no intervals and controls (NaN).

    Returns:
        For several runs with scores ``correlations``, a row for each pair: see
        :class:`~lmdyn.analysis.Agreement`.
    """
    types = last_types(named_runs(observations), settings)
    return {"correlations": _pairs(types, resamplings)} if len(types) > 1 else {}


def last_types(observations: DataFrame, settings: Mapping[str, Any]) -> dict[str, DataFrame]:
    """Return, for each run, the most frequent types of its last observation with types, in order of frequency.

    Columns are ``preference, standard_error, count, upos, rank``, the index is the token; ``rank`` is the rank among
    these types.
    """
    rows = select(observations, by="token").dropna(subset="value")
    found = {}
    for run, of in rows.groupby("run", sort=False):
        scored = last_step(select(of, quantity="preference")).set_index("group")
        if scored.empty:
            continue
        of = select(of, step=scored["step"].iloc[0])
        table = DataFrame({"preference": scored["value"], "upos": scored["upos"]})
        for quantity in ("standard_error", "count"):
            table[quantity] = select(of, quantity=quantity).set_index("group")["value"]
        table = table.fillna({"count": 0.0}).sort_values("count", ascending=False, kind="stable")
        table = table.head(settings.get("top", _TOP))
        found[str(run)] = table.assign(rank=np.arange(1, len(table) + 1))
    return found


def _pairs(types: Mapping[str, DataFrame], resamplings: int) -> DataFrame:
    """Return table 2, with intervals and controls, over the types of both runs.

    ``spearman_given_frequency`` controls for the first run's frequencies.
    """
    rows = []
    for first, second in combinations(types, 2):
        both = types[first].join(types[second]["preference"].rename("other"), how="inner")
        columns = (both[name].to_numpy(dtype=np.float64) for name in ("preference", "other", "count"))
        of = compare_preferences(*columns, top=max(1, len(both)), resamplings=resamplings)
        rows.append({"first": first, "second": second, **asdict(of)})
    return DataFrame(rows)


def oriented(observations: DataFrame) -> DataFrame:
    """Return the observations of several steps relative to the tower that is primary at the end; else none.

    Scores and correlations are NaN at steps at which others were compared. Correlations with the previous checkpoint
    use the towers in their order, independent of the primary one.
    """
    observations = named_runs(observations)
    table = observations.merge(_signs(observations), on=["run", "step"], how="left")
    turn = table["quantity"].isin(_OF_A_SIGN) & table["group"].ne("previous")
    table["value"] = table["value"].where(~turn, table["value"] * table["sign"])
    several = table.groupby("run")["step"].transform("nunique").max() > 1
    return table.drop(columns="sign")[: len(table) if several else 0]


def _signs(observations: DataFrame) -> DataFrame:
    """Return ``sign`` for each ``run`` and ``step``: 1 as at the end, −1 if the two towers were reversed, else NaN.

    The primary tower has the highest mean probability, and is compared with the next.
    """
    means = select(observations, quantity="mean_probability", by="tower").dropna(subset="value")
    means = means.sort_values(["step", "value"], ascending=[True, False], kind="stable")
    place = means.groupby(["run", "step"]).cumcount()
    best = means.assign(place=place)[place.lt(2)]
    pairs = best.pivot(index=["run", "step"], columns="place", values="group")  # noqa: PD010 (text)
    now = pairs.to_numpy(dtype=object)
    end = pairs.groupby("run").last().loc[pairs.index.get_level_values("run")].to_numpy(dtype=object)
    same, turned = (now == end).all(1), (now == end[:, ::-1]).all(1)
    signs = np.select([same, turned], [1.0, -1.0], np.nan)
    return pairs.index.to_frame(index=False).assign(sign=signs)
