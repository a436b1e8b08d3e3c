"""Tables of He & Toyoizumi 2022 on token preference, for one or several runs."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from lmdyn.analysis.preference.preference_agreement import compare_preferences
from lmdyn.analysis.statistics.correlation import pearson, spearman
from lmdyn.callbacks.observing.figures import named_runs
from lmdyn.callbacks.observing.schema import last_step, select, wide

__all__ = ["BEFORE", "FREQUENCY_RANK", "LAST", "TAGS", "last_types", "preference_tables", "top_types"]

_TOP = 5000  # default: rarer types are noise (section 5.1)

FREQUENCY_RANK = "rank by frequency (of the types compared)"
"""1 is the most frequent type, so that rare types with larger preference give a positive correlation. The publication
has 0.16 to 0.22 in table 4 and does not state which end is 1."""

BEFORE, LAST = "the observation before", "the last observation"
"""Groups of correlations between the steps of one run."""

_PUBLISHED = ("PROPN", "NOUN", "ADJ", "AUX", "ADP", "ADV", "VERB")  # of figure 4, in its order
TAGS = (*_PUBLISHED, "DET", "PRON", "NUM", "SCONJ", "CCONJ", "PART")
"""Drawn tags: those of the publication, and further ones that may have enough types."""


def preference_tables(
    observations: pd.DataFrame, settings: Mapping[str, Any] | None = None, *, resamplings: int = 1000
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
    several = "run" in observations
    observations = named_runs(observations)
    types = last_types(observations, settings)
    tables = {"instances": _instances(observations, types)}
    if types:
        pairs = _pairs(types, _reliability(observations), resamplings)
        tables["frequency"] = _rank_matrix(types, pairs)
        if len(types) > 1:
            tables["correlations"] = pairs
        if observations.groupby("run")["step"].nunique().max() > 1:
            tables["over_training"] = _over_training(observations, types)
    if any(of["upos"].notna().any() for of in types.values()):
        tables["by_upos"] = _means_by_upos(types)
    if not several:
        for name in tables.keys() & {"instances", "by_upos", "over_training"}:
            tables[name] = tables[name].drop(columns="run")
    return tables


def top_types(settings: Mapping[str, Any] | None) -> int:
    """Return the maximum number of compared types."""
    return int((settings or {}).get("top", _TOP))


def last_types(
    observations: pd.DataFrame, settings: Mapping[str, Any] | None = None
) -> dict[str, pd.DataFrame]:
    """Return, for each run, the most frequent types of its last observation with types, in order of frequency.

    Columns are ``preference, standard_error, count, upos, rank``, the index is the token; ``rank`` is the rank among
    these types.
    """
    rows = select(observations, by="token").dropna(subset="value")
    found = {}
    for run, of in rows.groupby("run", sort=False):
        scored = select(of, quantity="preference")
        if scored.empty:
            continue
        of = of[of["step"].eq(scored["step"].max())]
        scored = select(of, quantity="preference").set_index("group")
        columns = {
            quantity: select(of, quantity=quantity).set_index("group")["value"]
            for quantity in ("preference", "standard_error", "count")
        }
        table = pd.DataFrame({**columns, "upos": scored["upos"]}).loc[scored.index]
        table = table.fillna({"count": 0.0}).sort_values("count", ascending=False, kind="stable")
        table = table.head(top_types(settings))
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
        told = reliability.reindex([first, second]).to_numpy()
        noise = np.sqrt(told.prod()) if (told > 0).all() else np.nan
        rows.append(
            {
                "first": first, "second": second, "types": of.types,
                "pearson": of.pearson, "pearson_low": of.pearson_low, "pearson_high": of.pearson_high,
                "pearson_disattenuated": of.pearson / noise,
                "spearman": of.spearman, "spearman_low": of.spearman_low, "spearman_high": of.spearman_high,
                "spearman_given_frequency": of.spearman_given_frequency,
                "shuffled": of.shuffled, "shuffled_high": of.shuffled_high,
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def _rank_matrix(types: Mapping[str, pd.DataFrame], pairs: pd.DataFrame) -> pd.DataFrame:
    """Return table 4: Spearman's correlations of runs, and of each with the frequency rank of its own types."""
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
        of = of.dropna(subset="upos")
        there = [tag for tag in TAGS if of["upos"].eq(tag).any()]
        for tag in [*there, *sorted(set(of["upos"]) - set(there))]:
            scores = of["preference"][of["upos"].eq(tag)]
            rows.append((run, tag, scores.mean(), scores.gt(0).mean(), len(scores)))
    columns = ["run", "upos", "mean_preference", "share_to_primary", "types"]
    return pd.DataFrame(rows, columns=columns)


def _instances(observations: pd.DataFrame, types: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    rows = []
    for run, of in observations.groupby("run", sort=False):
        of = last_step(of)
        row: dict[str, Any] = {"run": run, "step": int(of["step"].max())}
        for quantity in ("head_loss", "mean_probability"):
            by_tower = select(of, quantity=quantity, by="tower")
            row |= {f"{quantity}_{t}": v for t, v in zip(by_tower["group"], by_tower["value"], strict=True)}
        for quantity in ("primary_tower", "spread", "reliability"):
            found = select(of, quantity=quantity)["value"]
            row[quantity] = found.iloc[0] if len(found) else np.nan
        rows.append({**row, "types": len(types.get(str(run), ()))})
    table = pd.DataFrame(rows)
    return table.astype({"primary_tower": "Int64"})


# ---------------------------------------------------------------- over training


def _over_training(observations: pd.DataFrame, types: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return mean preference by tag, single numbers per step, and correlations between steps, in one orientation.

    Rows are the recorded ones, and: ``orientation``, −1 if another tower was primary than at the end, which
    reversed the values; ``correlation`` and ``rank_correlation`` with the previous observation and with the last one.
    """
    orientation = _orientation(observations)
    oriented = _oriented(observations, orientation)
    single = oriented["quantity"].isin(("spread", "reliability", "frequency_rank_correlation"))
    kept = single | oriented["by"].isin(("upos", "reference"))
    parts = (
        orientation.assign(quantity="orientation", group="").rename(columns={"sign": "value"}),
        oriented[kept],
        _between_steps(oriented, types),
    )
    columns = ["run", "step", "quantity", "group", "value"]
    table = pd.concat([part[columns].astype({"group": str}) for part in parts], ignore_index=True)
    order = {run: i for i, run in enumerate(dict.fromkeys(observations["run"]))}
    return table.sort_values(
        ["run", "quantity", "group", "step"], kind="stable", ignore_index=True,
        key=lambda column: column.map(order) if column.name == "run" else column,
    )  # fmt: skip


def _orientation(observations: pd.DataFrame) -> pd.DataFrame:
    """Return ``sign`` for each ``run`` and ``step``: 1 as at the end, −1 if the two towers were reversed.

    NaN if there are none, or, for more than two towers, if others were compared than at the last step.
    """
    pairs = _pairs_of_towers(observations)
    last = pairs.sort_values("step").groupby("run")[["primary", "other"]].last()
    final = last.loc[pairs["run"]].to_numpy()
    now = pairs[["primary", "other"]].to_numpy()
    same, turned = (now == final).all(1), (now == final[:, ::-1]).all(1)
    pairs = pairs.assign(sign=np.select([same, turned], [1.0, -1.0], np.nan))[["run", "step", "sign"]]
    return observations[["run", "step"]].drop_duplicates().merge(pairs, on=["run", "step"], how="left")


def _oriented(observations: pd.DataFrame, orientation: pd.DataFrame) -> pd.DataFrame:
    """Return scores and correlations relative to the tower that is primary at the end.

    Correlations with the previous checkpoint use the towers in their order, independent of the primary one.
    """
    table = observations.merge(orientation, on=["run", "step"], how="left")
    ours = ("preference", "correlation", "rank_correlation", "frequency_rank_correlation")
    turn = table["quantity"].isin(ours) & table["group"].ne("previous")
    return table.assign(value=table["value"].where(~turn, table["value"] * table["sign"]))


def _pairs_of_towers(observations: pd.DataFrame) -> pd.DataFrame:
    """Return, for each step, the primary tower and the one compared with it, of the next highest mean probability."""
    means = select(observations, quantity="mean_probability", by="tower")
    primary = select(observations, quantity="primary_tower").dropna(subset="value")
    primary = primary[["run", "step"]].assign(primary=primary["value"].astype(int).astype(str))
    others = means[["run", "step", "group", "value"]].merge(primary, on=["run", "step"])
    others = others[others["group"].ne(others["primary"])]
    others = others.sort_values("value", ascending=False, kind="stable").drop_duplicates(["run", "step"])
    return others.rename(columns={"group": "other"})[["run", "step", "primary", "other"]]


def _between_steps(oriented: pd.DataFrame, types: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return correlations of the scores at each step with the previous and the last ones, over the last types."""
    rows = select(oriented, by="token", quantity="preference").dropna(subset="value")
    found = []
    for run, last in types.items():
        table = wide(select(rows, run=run), "step", "group").reindex(last.index).sort_index(axis=1)
        steps, scores = list(table), table.to_numpy(dtype=np.float64).T
        for i, step in enumerate(steps):
            others = {LAST: -1} | ({BEFORE: i - 1} if i else {})
            for other, j in others.items():
                both = np.isfinite(scores[i]) & np.isfinite(scores[j])
                x, y = scores[i][both], scores[j][both]
                found.append((run, step, "correlation", other, pearson(x, y)))
                rank = spearman(x, y) if len(x) > 2 else np.nan
                found.append((run, step, "rank_correlation", other, rank))
    return pd.DataFrame(found, columns=["run", "step", "quantity", "group", "value"])
