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

__all__ = ["FREQUENCY_RANK", "TAGS", "last_types", "over_training", "preference_tables"]

_TOP = 5000  # default: rarer types are noise (section 5.1)

FREQUENCY_RANK = "rank by frequency (of the types compared)"
"""1 is the most frequent type, so that rare types with larger preference give a positive correlation. The publication
has 0.16 to 0.22 in table 4 and does not state which end is 1."""

TAGS = ("PROPN", "NOUN", "ADJ", "AUX", "ADP", "ADV", "VERB", "DET", "PRON", "NUM", "SCONJ", "CCONJ", "PART")
"""Drawn tags: first those of the publication's figure 4, in its order, then further ones."""

_SCALARS = ("spread", "reliability", "head_reliability", "frequency_rank_correlation")
_OF_A_SIGN = ("preference", "correlation", "rank_correlation", "frequency_rank_correlation")


def preference_tables(
    observations: pd.DataFrame, settings: Mapping[str, Any], *, resamplings: int = 1000
) -> dict[str, pd.DataFrame]:
    """Return tables 2 and 4, preference by part of speech, information on each run, and all of it over training.

    All except the last are for the last observation.

    Args:
        observations: observations of ``TowerPreference``; for several runs with a column ``run``.
        settings: settings of the observer: ``top`` is the number of the most frequent types to use.
        resamplings: number of bootstrap resamplings; 0 for no intervals and controls (NaN).

    Returns:
        ``instances``, a row per run. If there are scores, ``frequency``, Spearman's correlations of runs and
        of the rank by frequency; ``by_upos`` if there are tags. For several runs ``correlations``, a row for each
        pair: see :class:`~lmdyn.analysis.Agreement`, and ``pearson_disattenuated``: Pearson's
        correlation r / √(reliability · reliability) that would be found without the noise of either preference
        (Spearman 1904), NaN if a reliability is missing or not above 0; it may exceed 1 by chance. For more than one
        step ``over_training``: ``step, quantity, group, value``, relative to the tower that is primary at the end.
    """
    named = named_runs(observations)
    types = last_types(named, settings)
    tables = {"instances": _instances(named, types)}
    if types:
        pairs = _pairs(types, _reliability(named), resamplings)
        tables["frequency"] = _rank_matrix(types, pairs)
        if len(types) > 1:
            tables["correlations"] = pairs
        if len(course := over_training(named, settings)):
            tables["over_training"] = course.drop(columns=["site", "by"])
    if any(of["upos"].notna().any() for of in types.values()):
        tables["by_upos"] = _means_by_upos(types)
    if "run" not in observations:
        for name in tables.keys() & {"instances", "by_upos", "over_training"}:
            tables[name] = tables[name].drop(columns="run")
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


def _reliability(observations: pd.DataFrame) -> "pd.Series[float]":
    """Return the last reliability of each run; for diverged runs, that of an earlier step, as the preferences."""
    rows = select(observations, quantity="reliability").dropna(subset="value")
    return rows.sort_values("step").groupby("run")["value"].last()


def _pairs(
    types: Mapping[str, pd.DataFrame], reliability: "pd.Series[float]", resamplings: int
) -> pd.DataFrame:
    """Return table 2, with intervals and controls, over the types of both runs.

    ``spearman_given_frequency`` controls for the first run's frequencies.
    """
    rows = []
    for first, second in combinations(types, 2):
        both = types[first].join(types[second]["preference"].rename("other"), how="inner")
        columns = (both[name].to_numpy(dtype=np.float64) for name in ("preference", "other", "count"))
        of = compare_preferences(*columns, top=max(1, len(both)), resamplings=resamplings)
        known = reliability.reindex([first, second]).to_numpy()
        noise = np.sqrt(known.prod()) if (known > 0).all() else np.nan
        rows.append(
            {"first": first, "second": second, **asdict(of), "pearson_disattenuated": of.pearson / noise}
        )
    return pd.DataFrame(rows)


def _rank_matrix(types: Mapping[str, pd.DataFrame], pairs: pd.DataFrame) -> pd.DataFrame:
    """Return Spearman's correlations of table 4: of runs, and of each with the rank by frequency."""
    names = [*types, FREQUENCY_RANK]
    matrix = pd.DataFrame(np.eye(len(names)), index=pd.Index(names), columns=names)
    for _, pair in pairs.iterrows():
        first, second = pair["first"], pair["second"]
        matrix.loc[first, second] = matrix.loc[second, first] = pair["spearman"]
    for run, of in types.items():
        value = spearman(of["preference"].to_numpy(), -of["count"].to_numpy())  # rank 1 has the most
        matrix.loc[run, FREQUENCY_RANK] = matrix.loc[FREQUENCY_RANK, run] = value
    return matrix


def _means_by_upos(types: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    rows = []
    for run, of in types.items():
        scores = dict(iter(of.groupby("upos")["preference"]))  # sorted by name
        for tag in [*(tag for tag in TAGS if tag in scores), *(tag for tag in scores if tag not in TAGS)]:
            of_tag = scores[tag]
            rows.append((run, tag, of_tag.mean(), of_tag.gt(0).mean(), len(of_tag)))
    columns = ["run", "upos", "mean_preference", "share_to_primary", "types"]
    return pd.DataFrame(rows, columns=columns)


def _instances(observations: pd.DataFrame, types: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the numbers of each run at its last step: those of each tower, and single ones."""
    rows = []
    for run, of in observations.groupby("run", sort=False):
        of = last_step(of)
        towers, single = select(of, by="tower"), select(of, quantity=("primary_tower", *_SCALARS))
        names = [*(towers["quantity"].astype(str) + "_" + towers["group"].astype(str)), *single["quantity"]]
        numbers = dict(zip(names, [*towers["value"], *single["value"]], strict=True))
        numbers |= {name: numbers.get(name, np.nan) for name in ("primary_tower", *_SCALARS)}
        rows.append({"run": run, "step": of["step"].max(), **numbers, "types": len(types.get(str(run), ()))})
    return pd.DataFrame(rows).astype({"primary_tower": "Int64"})


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
