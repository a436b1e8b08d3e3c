"""Numbers of Inoue et al. 2022 on encoders as dynamical systems, for one or several runs."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from lmdyn.callbacks.observing.figures import named_runs
from lmdyn.callbacks.observing.schema import last_step, select, wide

__all__ = [
    "curve",
    "curves",
    "dynamics_numbers",
    "dynamics_tables",
    "last_observations",
    "main_length",
    "sentences",
]

_WIDTH = 20  # windows of the running mean of λ that ends a transient, if several were recorded
_LENGTH = 32  # tokens of the publication's sentences, the default

_NUMBERS = (
    "synchronization_offset", "mean_exponent", "chaotic_share", "transient_length", "censored_share",
    "attractors", "peak_effective_dimension", "transverse_exponent",
)  # fmt: skip
_WHERE_RECORDED = (
    "full_map_exponent", "reduced_map_exponent", "orbit_lyapunov_exponent", "full_lyapunov_exponent",
    "transient_share", "undetermined_transient_share", "ended_share", "restricted_mean_length",
)  # fmt: skip
_RUN_AND_STEP = ["run", "step"]
_BY_RUNNING_MEANS = ["mean_exponent", "without_chaotic_transient", "censored_share", "transient_length"]


def dynamics_tables(
    observations: pd.DataFrame, settings: Mapping[str, Any] | None = None
) -> dict[str, pd.DataFrame]:
    """Return the numbers in the publication's text: figures 2B and 4D, sections II.A and II.B.

    Args:
        observations: observations of ``EncoderDynamics``; for several runs with a column ``run``.
        settings: settings of the observer: ``length`` is the number of tokens of the offset, see :func:`main_length`.

    Returns: ``dynamics``, a row for each step of one run, or for the last step of each of several:
        ``synchronization_offset`` (mean, steps of the map), ``attractors`` (their number), ``peak_effective_dimension``
        and ``transverse_exponent`` (nats per step); if available, ``full_map_exponent`` and ``reduced_map_exponent`` of
        the same sentences, and results by the kinds of orbits:
        ``orbit_lyapunov_exponent``, ``full_lyapunov_exponent``, ``transient_share``, ``undetermined_transient_share``,
        ``ended_share`` and ``restricted_mean_length``.
        ``running_means``, for which chaos ends with a running mean of λ (the publication states no rule):
        ``mean_exponent`` (λ in chaotic transients, nats per step), ``without_chaotic_transient`` and ``censored_share``
        (shares of sentences; censored: not ended at the horizon) and ``transient_length`` (mean, steps of the map).
        They are in ``dynamics`` if the kinds of orbits are unknown.
        ``offsets`` if available, at the last step: mean, median and ``synchronized_share`` for each number of
        tokens. ``attractors`` if their kinds are known: the share of sentences of each, rows as in ``dynamics``.
        Quantities that were not recorded are missing.
    """
    several = "run" in observations
    named = _named(observations)
    numbers = dynamics_numbers(named, settings)
    numbers = numbers.assign(chaotic_share=1 - numbers["chaotic_share"])
    numbers = numbers.rename(columns={"chaotic_share": "without_chaotic_transient"})
    numbers = numbers.astype({"attractors": "Int64"})
    tables = {"dynamics": numbers}
    if len(select(named, quantity="orbit_share")):
        tables["dynamics"] = numbers.drop(columns=_BY_RUNNING_MEANS)
        if numbers[_BY_RUNNING_MEANS].notna().any(axis=None):
            tables["running_means"] = numbers[[*_RUN_AND_STEP, *_BY_RUNNING_MEANS]]
    kinds = select(named, quantity=("orbit_share", "attractor_share"))
    if len(kinds):
        shares = wide(kinds, "kind", _RUN_AND_STEP, sort=False, dropna=False)
        tables["attractors"] = numbers[_RUN_AND_STEP].merge(shares.reset_index(), on=_RUN_AND_STEP)
    if several:
        last = named.groupby("run")["step"].max()
        tables = {name: table[table["step"].eq(table["run"].map(last))] for name, table in tables.items()}
    offsets = [table for run, rows in last_observations(named).items() if len(table := _offsets(run, rows))]
    if offsets:
        tables["offsets"] = pd.concat(offsets)
    unnamed = [] if several else ["run"]
    return {name: table.drop(columns=unnamed).reset_index(drop=True) for name, table in tables.items()}


def dynamics_numbers(observations: pd.DataFrame, settings: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """Return single numbers for each run and step: a row for each, in the order of runs, then of steps.

    Columns are ``run``, ``step`` and the quantities as recorded, NaN if they were not: offsets of
    :func:`main_length`, transients ended by a running mean over 20 windows (fewer in a run with fewer windows).
    """
    named = _named(observations)
    selected = named["quantity"].isin((*_NUMBERS, *_WHERE_RECORDED))
    width = _among(select(named, quantity="transient_length")["width"], _WIDTH)
    for column, number in (("length", main_length(named, settings)), ("width", width)):
        selected &= named[column].isna() | named[column].isin((number,))
    numbers = wide(named[selected], "quantity", _RUN_AND_STEP)
    optional = [name for name in _WHERE_RECORDED if name in numbers and numbers[name].notna().any()]
    numbers = numbers.reindex(columns=[*_NUMBERS, *optional]).reset_index()
    rows = named[_RUN_AND_STEP].drop_duplicates()
    order = {run: i for i, run in enumerate(rows["run"].unique())}
    rows = rows.sort_values("step", kind="stable").sort_values(
        "run", kind="stable", key=lambda column: column.map(order)
    )
    return rows.merge(numbers, on=_RUN_AND_STEP, how="left").rename_axis(columns=None)


def main_length(observations: pd.DataFrame, settings: Mapping[str, Any] | None = None) -> int | None:
    """Return the number of tokens of the offsets in tables: the settings' ``length`` (32), else the longest recorded.

    None if there are no offsets.
    """
    offsets = select(observations, quantity=("synchronization_offset", "sentence_offset"))
    return _among(offsets["length"], int((settings or {}).get("length") or _LENGTH))


def _among(recorded: "pd.Series[Any]", preferred: int) -> int | None:
    """Return the preferred number if it was recorded, else the highest."""
    numbers = {int(number) for number in recorded.dropna().unique()}
    return preferred if preferred in numbers else max(numbers, default=None)


# ---------------------------------------------------------------- reading records


def last_observations(observations: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of each run's last step, by its short name."""
    named = _named(observations)
    return {str(run): last_step(rows) for run, rows in named.groupby("run", sort=False, observed=True)}


def curve(rows: pd.DataFrame, quantity: str, **groups: Any) -> "pd.Series[float]":
    """Return values over ``t`` of one observation for given values of other columns; empty if none has a value.

    Example:
        >>> rows = pd.DataFrame({"quantity": "deviation", "t": [1, 0], "value": [2.0, 8.0]})
        >>> curve(rows, "deviation").to_dict()
        {0: 8.0, 1: 2.0}
    """
    found = _valued(rows, quantity, groups)
    return pd.Series(found["value"].to_numpy(), index=found["t"].astype(int)).sort_index()


def curves(rows: pd.DataFrame, quantity: str, by: str, **groups: Any) -> pd.DataFrame:
    """Return several curves of one observation as columns: rows are ``t``, columns the values of the column ``by``.

    Example:
        >>> rows = pd.DataFrame({"quantity": "first_element", "t": [0, 0], "token": [0, 1], "value": [2.0, 8.0]})
        >>> curves(rows, "first_element", "token").to_dict()
        {0: {0: 2.0}, 1: {0: 8.0}}
    """
    found = _valued(rows, quantity, groups)
    if pd.api.types.is_numeric_dtype(found[by]):  # integers with missing values
        found = found.astype({by: int})
    table = wide(found.astype({"t": int}), by, "t", dropna=False)
    return table.dropna(axis="columns", how="all").rename_axis(index=None, columns=None)


def sentences(rows: pd.DataFrame, quantity: str, **groups: Any) -> "pd.Series[float]":
    """Return the record of each sentence, by its number; those without a value are left out."""
    found = select(rows, quantity=quantity, **groups)
    found = found[found["value"].notna()]
    return pd.Series(found["value"].to_numpy(), index=found["sentence"].astype(int)).sort_index()


def _valued(rows: pd.DataFrame, quantity: str, groups: Mapping[str, Any]) -> pd.DataFrame:
    found = select(rows, quantity=quantity, **groups)
    return found if found["value"].notna().any() else found.iloc[:0]


def _named(observations: pd.DataFrame) -> pd.DataFrame:
    """Add short names of runs; remove learning rates, which may have other steps than observations."""
    rows = observations[observations["quantity"].ne("learning_rate")]
    return named_runs(rows)


def _offsets(run: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the offsets at one step of a run for each number of tokens."""
    recorded = select(rows, quantity=("synchronization_offset", "synchronized_share", "sentence_offset"))
    table = []
    for length in sorted(int(n) for n in recorded["length"].dropna().unique()):
        of = select(recorded, length=length)
        one = of[of["quantity"].ne("sentence_offset")].set_index("quantity")["value"]
        by_sentence = sentences(of, "sentence_offset")
        table.append(
            {
                "run": run, "step": int(rows["step"].iloc[0]), "tokens": length,
                "mean": one.get("synchronization_offset"), "median": by_sentence[by_sentence >= 0].median(),
                "synchronized_share": one.get("synchronized_share"),
            }
        )  # fmt: skip
    return pd.DataFrame(table)
