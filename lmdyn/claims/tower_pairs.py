"""Numbers of pairs of two-tower models: agreement of preferences, also by chance, and its relation to a lead."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from lmdyn.claims.among_seeds import AmongSeeds
from lmdyn.claims.numbers import Estimate, Number, Scale
from lmdyn.claims.rows import Rows, cached
from lmdyn.runs.observed_run import NotMeasured, ObservedRun

Stratum = Literal["frequency", "upos"]
"""What defines strata of types: deciles of the types' frequency; their most frequent part of speech."""

TOP = 5000
_BINS = 10
_WORDS = 5  # minimum number of words of a cluster whose mean is compared

FloatArray = npt.NDArray[np.float64]


def preferences_of(rows: Rows, runs: Sequence[ObservedRun], step: str | int = "last") -> pd.DataFrame:
    """Return the preference of each word at a step, the most frequent words first.

    Args:
        rows: ``preference`` of ``TowerPreference``, with ``where=(("by", "token"),)``.
        runs: runs of one seed.
        step: the ``last`` observation, or a step.

    Returns:
        Columns ``value`` and ``upos`` (an empty text if unknown); the index is the word.

    Raises:
        NotMeasured: if there are no such rows.
    """
    found: pd.DataFrame = cached(_preferences, (rows, step), runs)
    return found.copy()


def _preferences(of: tuple[Rows, str | int], runs: Sequence[ObservedRun]) -> pd.DataFrame:
    rows, step = of
    table = rows.frame(runs).dropna(subset="value")
    if table.empty:
        raise NotMeasured(f"{rows.observer} found no preference: encodings or output layers are not finite")
    at = table["step"].max() if step == "last" else step
    table = table[table["step"].eq(at)].set_index("group")
    if table.empty:
        raise NotMeasured(f"{rows.observer} has no preference of words at step {step}")
    return table[["value", "upos"]].astype({"value": "float64", "upos": object}).fillna({"upos": ""})


@dataclass(frozen=True)
class _Aligned:
    """Preferences of several models: a row for each type of any model, most frequent first; NaN if a model lacks it."""

    values: FloatArray
    upos: npt.NDArray[Any]

    @classmethod
    def of(cls, tables: Sequence[pd.DataFrame]) -> "_Aligned":
        places = [pd.Series(np.arange(len(table)), index=table.index) for table in tables]
        order = pd.concat(places).groupby(level=0, sort=False).min().sort_values(kind="stable").index
        tags = pd.concat([table["upos"] for table in tables])
        tags = tags[~tags.index.duplicated()].reindex(order)
        values = np.column_stack([table["value"].reindex(order).to_numpy() for table in tables])
        return cls(values, tags.to_numpy(dtype=object))

    def pair(self, i: int, j: int) -> tuple[FloatArray, FloatArray, npt.NDArray[Any]]:
        """Return preferences and parts of speech of the types that both have, at most the 5,000 most frequent."""
        both = np.flatnonzero(np.isfinite(self.values[:, [i, j]]).all(1))[:TOP]
        return self.values[both, i], self.values[both, j], self.upos[both]


def _strata(upos: npt.NDArray[Any], by: Sequence[Stratum]) -> npt.NDArray[np.int64]:
    n = len(upos)
    found = np.zeros(n, dtype=np.int64)
    if "frequency" in by:
        found += np.arange(n) * _BINS // max(1, n)
    if "upos" in by:
        found += _BINS * pd.factorize(upos)[0]
    return found


@dataclass(frozen=True)
class Lead(Number):
    """|ln(p̄₁ / p̄₂)|, p̄ being the towers' mean probabilities of the text, which define the primary one (equation 3).

    Attributes:
        one: ``mean_probability`` of the first tower.
        two: that of the second tower.
    """

    one: Rows
    two: Rows

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the lead at the last observation, at least 0."""
        one, two = (float(rows.table(runs)["value"].iloc[-1]) for rows in (self.one, self.two))
        return Estimate(abs(math.log(one / two)) if one > 0 and two > 0 else math.nan)


@dataclass(frozen=True)
class AgreementOfPairs(AmongSeeds):
    """Mean over pairs of models, of two seeds each, of the agreement of their preferences.

    Attributes:
        a: preferences of words of one model, see :func:`preferences_of`.
        b: preferences of the other; None for the same.
        of_pair: ``signed``: Pearson's r, with the sign of equation 3; ``size``: |r|; ``chance``: the mean r with
            the types of one model shuffled within strata; ``beyond``: r minus that.
        by: what defines the strata.
        step: the ``last`` observation, or a step.
        lead: use only models whose lead is at least ``least``.
        least: see ``lead``.
    """

    a: Rows
    b: Rows | None = None
    of_pair: Literal["signed", "size", "chance", "beyond"] = "signed"
    by: tuple[Stratum, ...] = ()
    step: str | int = "last"
    lead: Lead | None = None
    least: float = 0.0

    def __post_init__(self) -> None:
        if (self.of_pair in ("chance", "beyond")) != bool(self.by):
            raise ValueError(
                f"of_pair is {self.of_pair!r}, and by is {' and '.join(self.by) or 'empty'}: 'chance' and 'beyond' "
                "require strata in `by`; for other values of of_pair, omit `by`"
            )

    def read(self, runs: Sequence[ObservedRun]) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the preferences of both models of a seed.

        Raises:
            NotMeasured: if preferences or parts of speech are missing, or the model's lead is too small.
        """
        one = preferences_of(self.a, runs, self.step)
        if "upos" in self.by and one["upos"].eq("").all():
            raise NotMeasured("no words have a part of speech: use a text with tags")
        other = one if self.b is None else preferences_of(self.b, runs, self.step)
        if self.lead is not None and not (lead := self.lead.of(runs).value) >= self.least:
            raise NotMeasured(f"its lead is {lead:.3f}, and models of {self.least:g} or more are compared")
        return one, other

    def table(self, found: Sequence[tuple[pd.DataFrame, pd.DataFrame]]) -> FloatArray:
        """Return (n, n), for the first model of seed i and the second of seed j; NaN for one seed."""
        n = len(found)
        aligned = _Aligned.of([one for one, _ in found] + [other for _, other in found if self.b is not None])
        matrix = np.full((n, n), np.nan)
        for i in range(n):
            for j in range(n):
                if i > j and self.b is None:
                    matrix[i, j] = matrix[j, i]
                elif i != j:
                    matrix[i, j] = self._pair(*aligned.pair(i, j if self.b is None else n + j))
        return matrix

    def null(self) -> float | None:
        """Return 0 for correlations with a sign; |r| is above 0 without an agreement."""
        return 0.0 if self.of_pair in ("signed", "beyond") else None

    def statistic(self, table: FloatArray, kept: npt.NDArray[np.int64]) -> float:
        """Return the mean over pairs of two seeds."""
        return float(table[np.ix_(kept, kept)][~np.eye(len(kept), dtype=bool)].mean())

    def _pair(self, x: FloatArray, y: FloatArray, upos: npt.NDArray[Any]) -> float:
        from lmdyn.analysis.preference.preference_agreement import shuffled_within
        from lmdyn.analysis.statistics.correlation import pearson

        r = pearson(x, y)
        if self.of_pair == "size":
            return abs(r)
        if self.of_pair == "signed":
            return r
        chance = shuffled_within(x, y, _strata(upos, self.by))
        return chance if self.of_pair == "chance" else r - chance


@dataclass(frozen=True)
class AgreementWithLead(AmongSeeds):
    """Pearson's correlation over pairs of models between r (or |r|) and the smaller lead of both.

    Attributes:
        a: preferences of words, see :func:`preferences_of`.
        lead: lead of a model.
        of_pair: ``signed`` or ``size``, as in :class:`AgreementOfPairs`.
    """

    scale: ClassVar[Scale] = "fisher"

    a: Rows
    lead: Lead
    of_pair: Literal["signed", "size"] = "signed"

    def read(self, runs: Sequence[ObservedRun]) -> tuple[pd.DataFrame, float]:
        """Return preferences and lead of a model."""
        return preferences_of(self.a, runs), self.lead.of(runs).value

    def table(self, found: Sequence[tuple[pd.DataFrame, float]]) -> tuple[FloatArray, FloatArray]:
        """Return (n, n) of r and of the smaller lead."""
        leads = np.array([lead for _, lead in found])
        pairs = AgreementOfPairs(self.a, of_pair=self.of_pair)
        return pairs.table([(one, one) for one, _ in found]), np.minimum.outer(leads, leads)

    def statistic(self, table: tuple[FloatArray, FloatArray], kept: npt.NDArray[np.int64]) -> float:
        """Return the correlation over pairs."""
        from lmdyn.analysis.statistics.correlation import pearson

        upper = np.triu_indices(len(kept), 1)
        r, lead = (matrix[np.ix_(kept, kept)][upper] for matrix in table)
        return pearson(r, lead)


@dataclass(frozen=True)
class AgreementOfClusters(AmongSeeds):
    """Mean over pairs of models of the correlation of clusters' mean preferences: table 3.

    The clusters are those of one model's word vectors; the mean preference of the words of each is computed in both
    models. Clusters with fewer than five words that both models have are left out.

    Attributes:
        clusters: memberships of ``WordClusters`` of the first model.
        a: preferences of words of the first model, see :func:`preferences_of`.
        b: preferences of the other; None for the same kind.
    """

    clusters: Rows
    a: Rows
    b: Rows | None = None

    def read(self, runs: Sequence[ObservedRun]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        """Return memberships (``group``, ``token``) and the preferences of both models of a seed."""
        members = self.clusters.frame(runs)
        one = preferences_of(self.a, runs)
        last = members[members["step"].eq(members["step"].max())]
        return last[["group", "token"]], one, one if self.b is None else preferences_of(self.b, runs)

    def table(self, found: Sequence[tuple[pd.DataFrame, ...]]) -> FloatArray:
        """Return (n, n): clusters and the first model of seed i with the second model of seed j."""
        from lmdyn.analysis.statistics.correlation import pearson

        n = len(found)
        matrix = np.full((n, n), np.nan)
        for i, j in ((i, j) for i in range(n) for j in range(n) if i != j):
            members, one, other = found[i][0], found[i][1], found[j][2]
            both = pd.DataFrame({"one": one["value"], "other": other["value"]}).dropna()
            of_words = members.join(both, on="token", how="inner").groupby("group")
            means = of_words[["one", "other"]].mean()[of_words.size().ge(_WORDS)]
            matrix[i, j] = pearson(means["one"].to_numpy(), means["other"].to_numpy())
        return matrix

    def statistic(self, table: FloatArray, kept: npt.NDArray[np.int64]) -> float:
        """Return the mean over pairs of two seeds."""
        return float(table[np.ix_(kept, kept)][~np.eye(len(kept), dtype=bool)].mean())


@dataclass(frozen=True)
class ShareToPrimary(Number):
    """Share of the types of a part of speech that the primary tower predicts better.

    Attributes:
        rows: preferences of words, see :func:`preferences_of`.
        upos: the part of speech.
        step: the ``last`` observation, or a step.
    """

    rows: Rows
    upos: str
    step: str | int = "last"

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the share, with its error over words."""
        table = preferences_of(self.rows, runs, self.step)
        values: Any = table["value"][table["upos"].eq(self.upos)]
        if values.empty:
            raise NotMeasured(f"no words have the part of speech {self.upos}: use a text with tags")
        share, n = float(values.gt(0).mean()), len(values)
        return Estimate(share, math.sqrt(share * (1 - share) / n))

    def between(self) -> tuple[float, float] | None:
        """Return 0 and 1."""
        return 0.0, 1.0
