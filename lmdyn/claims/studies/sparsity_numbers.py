"""Numbers of the sparsity study: ratios, which other studies use as well, the largest of several sites, reductions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd

from lmdyn.claims.numbers import Estimate, Number
from lmdyn.claims.rows import Rows
from lmdyn.runs.observed_run import NotMeasured, ObservedRun


@dataclass(frozen=True)
class LogRatio(Number):
    """ln(a / b).

    Attributes:
        a: numerator.
        b: denominator.
        exact: whether b has no error (a reference value); otherwise errors are added as if they were independent.
    """

    no_effect: ClassVar[float | None] = 0.0

    a: Number
    b: Number
    exact: bool = False

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the logarithm; NaN if a number is not positive."""
        a, b = self.a.of(runs), self.b.of(runs)
        if not (a.value > 0 and b.value > 0):
            return Estimate(math.nan)
        errors = [a.error, 0.0 if self.exact else b.error]
        if errors[0] is None or errors[1] is None:
            return Estimate(math.log(a.value / b.value))
        error = math.hypot(errors[0] / a.value, errors[1] / b.value)
        return Estimate(math.log(a.value / b.value), error, df=a.df)


@dataclass(frozen=True)
class OtherSites(Number):
    """The largest absolute correlation among sites and quantities at a step, with its error.

    Attributes:
        rows: the rows at one site, which is left out if ``but`` is set.
        also: further quantities, at all sites.
        but: whether to leave out ``rows.quantity`` at the site of ``rows``.
        step: the ``last`` observation or the ``first``.
    """

    rows: Rows
    also: tuple[str, ...] = ()
    but: bool = True
    step: str = "last"

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the largest |ρ|: selection biases it upwards, which is against the claim that all are small."""
        own = str(self.rows.frame(runs)["site"].iloc[0])
        run, folder = self.rows.locate(runs)
        quantities = (self.rows.quantity, *self.also)
        table = run.read(folder, quantities=[q + end for q in quantities for end in ("", "_error")])
        at = table["step"].min() if self.step == "first" else table["step"].max()
        table = table[table["step"].eq(at) & table["word"].isna()]
        for column, value in self.rows.where:
            table = table[table[column].eq(value)]
        if self.but:
            table = table[~(table["site"].eq(own) & table["quantity"].str.startswith(self.rows.quantity))]
        values = {
            (q, s): float(v) for q, s, v in zip(table["quantity"], table["site"], table["value"], strict=True)
        }
        found = {key: abs(v) for key, v in values.items() if not (key[0].endswith("_error") or math.isnan(v))}
        if not found:
            raise NotMeasured(f"{folder} of {run.name} has no correlations at other sites than {own}")
        quantity, site = max(found, key=lambda key: found[key])
        error = values.get((f"{quantity}_error", site), math.nan)
        return Estimate(found[quantity, site], None if math.isnan(error) else error)


@dataclass(frozen=True)
class SinceReduction(Number):
    """The last value minus that of the last observation before the learning rate was first reduced."""

    rows: Rows

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the change.

        Raises:
            NotMeasured: if there are no rates, there was no reduction, or nothing was observed before it.
        """
        table = self.rows.table(runs)
        run, folder = self.rows.locate(runs)
        rates = run.read(folder, quantities=["learning_rate"]).sort_values("step")
        below = rates[rates["value"] < rates["value"].cummax()]
        before = table[table["step"] < below["step"].min()] if len(below) else table[:0]
        if before.empty:
            raise NotMeasured(
                f"{run.name}: the learning rate was never reduced between two observations; train longer, with "
                "`anneal_factor`, or reduce it by `lmdyn fork`"
            )
        return Estimate(float(table["value"].iloc[-1]) - float(before["value"].iloc[-1]))


@dataclass(frozen=True)
class Tokens(Number):
    """Number of tokens that the model had seen at the last observation of some rows."""

    rows: Rows

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the number of tokens."""
        tokens = self.rows.table(runs)["tokens"].iloc[-1]
        if pd.isna(tokens):
            raise NotMeasured(f"{self.rows.observer}: how many tokens the model has seen was not recorded")
        return Estimate(float(tokens))
