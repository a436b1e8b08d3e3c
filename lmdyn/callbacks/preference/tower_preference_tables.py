"""Tables of He & Toyoizumi 2022 on token preference, for one or several runs."""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from lmdyn.analysis.preference.preference_agreement import compare_preferences
from lmdyn.analysis.statistics.correlation import pearson, spearman
from lmdyn.callbacks.observing.figures import named_runs
from lmdyn.runs.schema import last_step, select, wide

__all__ = ["TAGS", "last_types", "over_training", "preference_tables"]

_TOP = 5000  # default: rarer types are noise (section 5.1)

TAGS = ("PROPN", "NOUN", "ADJ", "AUX", "ADP", "ADV", "VERB", "DET", "PRON", "NUM", "SCONJ", "CCONJ", "PART")
"""Drawn tags: first those of the publication's figure 4, in its order, then further ones."""

_SCALARS = ("spread", "reliability", "head_reliability", "frequency_rank_correlation")
_OF_A_SIGN = ("preference", "correlation", "rank_correlation", "frequency_rank_correlation")


def preference_tables(
    observations: pd.DataFrame, settings: Mapping[str, Any], *, resamplings: int = 1000
) -> dict[str, pd.DataFrame]:
    """Return table 2 of the publication, for the last observations of several runs, and numbers over training.

    Args:
        observations: observations of ``TowerPreference``; for several runs with a column ``run``.
        settings: settings of the observer: ``top`` is the number of the most frequent types to use.
        resamplings: number of bootstrap resamplings; 0 for no intervals and controls (NaN).

    Returns:
        For several runs with scores ``correlations``, a row for each pair: see
        :class:`~lmdyn.analysis.Agreement`. For more than one step ``over_training``: ``step, quantity, group, value``,
        relative to the tower that is primary at the end.
    """
    named = named_runs(observations)
    types = last_types(named, settings)
    tables = {"correlations": _pairs(types, resamplings)} if len(types) > 1 else {}
    if types and len(course := over_training(named, settings)):
        unused = ["site", "by"] if "run" in observations else ["site", "by", "run"]
        tables["over_training"] = course.drop(columns=unused)
    return tables


def last_types(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
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
        table = pd.DataFrame({"preference": scored["value"], "upos": scored["upos"]})
        for quantity in ("standard_error", "count"):
            table[quantity] = select(of, quantity=quantity).set_index("group")["value"]
        table = table.fillna({"count": 0.0}).sort_values("count", ascending=False, kind="stable")
        table = table.head(settings.get("top", _TOP))
        found[str(run)] = table.assign(rank=np.arange(1, len(table) + 1))
    return found


def _pairs(types: Mapping[str, pd.DataFrame], resamplings: int) -> pd.DataFrame:
    """Return table 2, with intervals and controls, over the types of both runs.

    ``spearman_given_frequency`` controls for the first run's frequencies.
    """
    rows = []
    for first, second in combinations(types, 2):
        both = types[first].join(types[second]["preference"].rename("other"), how="inner")
        columns = (both[name].to_numpy(dtype=np.float64) for name in ("preference", "other", "count"))
        of = compare_preferences(*columns, top=max(1, len(both)), resamplings=resamplings)
        rows.append({"first": first, "second": second, **asdict(of)})
    return pd.DataFrame(rows)


def over_training(observations: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
    """Return mean preference by tag, single numbers per step, and correlations between steps, in one orientation.

    Scores and correlations are relative to the tower that is primary at the end; correlations with the previous
    checkpoint use the towers in their order, independent of the primary one.

    Returns:
        Columns ``run, step, quantity, site, by, group, value``: the recorded rows; ``orientation``, −1 if another
        tower was primary than at the end, which reversed the values, NaN if others were compared; ``correlation`` and
        ``rank_correlation`` with the previous observation and with the last one. Empty for a single step.
    """
    observations = named_runs(observations)
    runs = list(dict.fromkeys(observations["run"]))
    steps = observations[["run", "step"]].drop_duplicates()
    sign = steps.merge(_signs(observations), on=["run", "step"], how="left")
    table = observations.merge(sign, on=["run", "step"])
    turn = table["quantity"].isin(_OF_A_SIGN) & table["group"].ne("previous")
    table["value"] = table["value"].where(~turn, table["value"] * table["sign"])
    kept = table["quantity"].isin(_SCALARS) | table["by"].isin(("upos", "reference"))
    orientation = sign.rename(columns={"sign": "value"}).assign(quantity="orientation", by="", group="")
    between = _between_steps(table, last_types(observations, settings))
    columns = ["run", "step", "quantity", "site", "by", "group", "value"]
    found = pd.concat([orientation, table[kept], between], ignore_index=True).assign(site="")[columns]
    several = found.groupby("run")["step"].transform("nunique").max() > 1
    found["run"] = pd.Categorical(found["run"], runs)  # sorted in this order
    found = found.sort_values(["run", "quantity", "group", "step"], kind="stable", ignore_index=True)
    return found.astype({"run": object, "value": "float64"})[: len(found) if several else 0]


def _signs(observations: pd.DataFrame) -> pd.DataFrame:
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


def _between_steps(oriented: pd.DataFrame, types: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return correlations of the scores at each step with the previous and the last ones, over the last types."""
    rows = select(oriented, by="token", quantity="preference").dropna(subset="value")
    found = []
    for run, last in types.items():
        table = wide(select(rows, run=run), "step", "group").reindex(last.index).sort_index(axis=1)
        scores = table.to_numpy(dtype=np.float64).T
        for i, step in enumerate(table):
            before = {"the observation before": i - 1} if i else {}
            for other, j in ({"the last observation": -1} | before).items():
                both = np.isfinite(scores[i]) & np.isfinite(scores[j])
                x, y = scores[i][both], scores[j][both]
                found.append((run, step, "correlation", "reference", other, pearson(x, y)))
                found.append((run, step, "rank_correlation", "reference", other, spearman(x, y)))
    return pd.DataFrame(found, columns=["run", "step", "quantity", "by", "group", "value"])
