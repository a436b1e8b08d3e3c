"""Are verdicts of claims as sure as they say? Each type of claim at each number of seeds, with its truth known.

    python benchmarks/claims.py --draws 2000

The truth lies on the boundary of the region. The table says in how many of the draws the claim "holds" and "fails"
(2.5 % each way by construction; the goal is at most 3 %), and how many of the intervals cover the truth (goal: 93 to
97 %; of censored numbers at least 93 %). Without an effect, a claim is "smaller than required" in at most 2.5 %, by its
sign. Verdicts are those of ``lmdyn.claims.judge.judge``. Two controls show what the
rules are for: the percentile bootstrap over three seeds, and three seeds that are each judged by themselves.
"""

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np

from lmdyn.claims import (
    Above,
    Below,
    Claim,
    Difference,
    Estimate,
    Number,
    ObservedRun,
    Part,
    Region,
    SeedPair,
    Study,
    Within,
)
from lmdyn.claims.judge import judge
from lmdyn.claims.rows import Source
from lmdyn.claims.summary import SMALLER

SEEDS = (3, 4, 5, 8)
TEXT_DF = 63  # of blocks of sentences: 64

Values = dict[str, Estimate]
"""What one seed's runs hold, by name."""


@dataclass
class DrawnRun:
    """A run that was drawn and not made."""

    seeds: SeedPair
    values: Values
    name: str = "drawn"
    condition: dict[str, Any] = field(default_factory=dict)
    registered: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Drawn(Number):
    """One of the values of a drawn run."""

    key: str

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """As it was drawn."""
        return cast(DrawnRun, runs[0]).values[self.key]


@dataclass(frozen=True)
class DrawnShare(Drawn):
    """The same of a number from 0 to 1."""

    def between(self) -> tuple[float, float]:
        """Return 0 and 1."""
        return 0.0, 1.0


@dataclass(frozen=True)
class DrawnOfText(Drawn, Source):
    """The same of a number that is read from a run, whose condition has the text."""

    def locate(self, runs: Sequence[ObservedRun]) -> tuple[ObservedRun, str]:
        """Return the run; what is drawn has no settings of an observer."""
        return runs[0], "test"

    def names(self) -> tuple[str, ...]:
        """Return the key."""
        return (self.key,)


class Case(NamedTuple):
    """A type of claim.

    Attributes:
        name: in the table.
        claim: the claim.
        truth: of each part, in its own units.
        draw: values of n seeds.
        wide: whether intervals are wider than was asked for: of censored numbers, an error that is counted twice, or
            seeds that agree exactly.
        texts: whether each seed has a generated text of its own, so that fewer than five are undecided.
    """

    name: str
    claim: Claim
    truth: tuple[float, ...]
    draw: Callable[[np.random.Generator, int], list[Values]]
    wide: bool = False
    texts: bool = False


def claim(*parts: Part, **about: Any) -> Claim:
    """A claim of these parts."""
    return Claim("claim", "", "", parts, **{"floor": "drawn", **about})


def normal(keys: str, sd: float = 1.0, **means: float) -> Callable[[np.random.Generator, int], list[Values]]:
    """Seeds scatter normally about a mean of 0, or another."""

    def draw(random: np.random.Generator, n: int) -> list[Values]:
        return [{k: Estimate(means.get(k, 0.0) + sd * random.normal()) for k in keys} for _ in range(n)]

    return draw


def paired(random: np.random.Generator, n: int) -> list[Values]:
    """Two conditions that share a seed's larger part."""
    own = 5 * random.normal(size=n)
    return [{k: Estimate(b + random.normal()) for k in "xy"} for b in own]


def with_text(ratio: float, df: int = TEXT_DF) -> Callable[[np.random.Generator, int], list[Values]]:
    """Seeds share a text, whose standard error is ``ratio`` times that of the mean over seeds, and estimated."""

    def draw(random: np.random.Generator, n: int) -> list[Values]:
        error = ratio / math.sqrt(n)
        text = error * random.normal()
        known = error * math.sqrt(random.chisquare(df) / df)  # the same blocks of text for all seeds
        return [{"x": Estimate(text + random.normal(), known, df=df)} for _ in range(n)]

    return draw


def own_text(random: np.random.Generator, n: int) -> list[Values]:
    """Each seed has an error over texts of its own: it is in the scatter of seeds already."""
    errors = 0.5 * np.sqrt(random.chisquare(TEXT_DF, size=n) / TEXT_DF)
    return [{"x": Estimate(math.hypot(1, 0.5) * random.normal(), e, df=TEXT_DF)} for e in errors]


def correlations(random: np.random.Generator, n: int) -> list[Values]:
    """Correlations about 0.9 whose z scatter normally, each of 500 words that all seeds share."""
    text = random.normal() / math.sqrt(500)
    r = np.tanh(np.arctanh(0.9) + 0.2 * random.normal(size=n) + text)
    return [{"x": Estimate(float(v), float((1 - v * v) / math.sqrt(500)))} for v in r]


def shares(random: np.random.Generator, n: int) -> list[Values]:
    """Accuracies about 0.97 whose logits scatter normally, each of 2,000 cases that all seeds share."""
    z = math.log(0.97 / 0.03) + 0.5 * random.normal(size=n)
    p = 1 / (1 + np.exp(-z))
    text = random.normal()
    errors = np.sqrt(p * (1 - p) / 2000)
    seen = 1 / (1 + np.exp(-(z + text * errors / (p * (1 - p)))))
    return [{"x": Estimate(float(v), float(math.sqrt(v * (1 - v) / 2000)))} for v in seen]


def ratios(random: np.random.Generator, n: int) -> list[Values]:
    """Ratios about 1 whose logarithms scatter normally."""
    return [{"x": Estimate(float(v))} for v in np.exp(0.4 * random.normal(size=n))]


def times(sd: float, per_decade: int, end: float) -> Callable[[np.random.Generator, int], list[Values]]:
    """log10 of updates about 3, seen between two observations (10^(k/per_decade)), or not by 10^end."""

    def draw(random: np.random.Generator, n: int) -> list[Values]:
        found = []
        for t in 3 + sd * random.normal(size=n):
            k = math.floor(t * per_decade)
            low, high = k / per_decade, (k + 1) / per_decade
            low, high = (end, math.inf) if t > end else (low, min(high, end))
            value = low if math.isinf(high) else (low + high) / 2
            found.append({"x": Estimate(value, low=low, high=high)})
        return found

    return draw


def one_of(low: float, high: float, share: float) -> Callable[[np.random.Generator, int], list[Values]]:
    """One of two values, the higher one in this share of seeds: all seeds often agree exactly."""

    def draw(random: np.random.Generator, n: int) -> list[Values]:
        return [{"x": Estimate(high if high_one else low)} for high_one in random.random(n) < share]

    return draw


X, Y, Z = Drawn("x"), Drawn("y"), Drawn("z")
SHARE = DrawnShare("x")


def above(bound: float = 0.0, number: Number = X, **about: Any) -> Part:
    """From a bound upwards."""
    return Part(number, Above(bound), **about)


def part(region: Region, **about: Any) -> Part:
    """x in a region."""
    return Part(X, region, **about)


CASES = (
    Case("half-line", claim(above()), (0.0,), normal("x")),
    Case("band, an edge", claim(part(Within(0, 6))), (0.0,), normal("x")),
    Case("narrow band, an edge", claim(part(Within(0, 1))), (0.0,), normal("x")),
    Case("difference, paired by seed", claim(above(number=Difference(X, Y))), (0.0,), paired),
    Case("all of three, one on the boundary", claim(*(above(number=k) for k in (X, Y, Z))), (0.0, 9.0, 9.0),
         normal("xyz", y=9.0, z=9.0)),
    Case("all of three on the boundary", claim(*(above(number=k) for k in (X, Y, Z))), (0.0,) * 3, normal("xyz")),
    Case("any of three on the boundary", claim(*(above(number=k) for k in (X, Y, Z)), combine="any"), (0.0,) * 3,
         normal("xyz")),
    Case("text variance, a quarter of the seeds'", claim(above()), (0.0,), with_text(0.5)),
    Case("text variance, equal", claim(above()), (0.0,), with_text(1.0)),
    Case("text variance, four times", claim(above()), (0.0,), with_text(2.0)),
    Case("text variance of few blocks", claim(above()), (0.0,), with_text(1.0, df=9)),
    Case("text variance, each seed its own", claim(above()), (0.0,), own_text, wide=True),
    Case("a text for each seed", claim(above(number=DrawnOfText("x"))), (0.0,), own_text, texts=True),
    Case("correlation, Fisher's z, with text", claim(above(0.9, scale="fisher")), (0.9,), correlations),
    Case("share, logit, with text", claim(above(0.97, scale="logit")), (0.97,), shares),
    Case("ratio, logarithm", claim(part(Within(1.0, 50.0), scale="log")), (1.0,), ratios),
    Case("time, 4 observations a decade", claim(above(3.0)), (3.0,), times(0.3, 4, 9.0), wide=True),
    Case("time, early enough", claim(part(Below(3.0))), (3.0,), times(0.3, 4, 9.0), wide=True),
    Case("time, 16 a decade", claim(above(3.0)), (3.0,), times(0.3, 16, 9.0), wide=True),
    Case("time, half not reached", claim(above(3.0)), (3.0,), times(0.3, 16, 3.0), wide=True),
    Case("one of two values, both as often", claim(above()), (0.0,), one_of(-1.0, 1.0, 0.5), wide=True),
    Case("share, one of two values, both as often", claim(above(0.5, SHARE)), (0.5,), one_of(0.0, 1.0, 0.5), wide=True),
    Case("share, 0.9 in most seeds", claim(above(0.81, SHARE)), (0.81,), one_of(0.0, 0.9, 0.9), wide=True),
    Case("time, some not reached", claim(above(3.0)), (3.0,), times(0.3, 16, 3.25), wide=True),
)  # fmt: skip


NO_EFFECT = Case("no effect, against twice the spread", claim(above(2.0, Difference(X, Y))), (0.0,), paired)
"""Far from the boundary: what is "smaller than required" has a sign by chance."""


class Rates(NamedTuple):
    """Shares of the draws."""

    holds: float
    smaller: float
    fails: float
    covers: float
    draws: int


def simulate(case: Case, n: int, draws: int, seed: int = 0) -> Rates:
    """Judge a case again and again.

    Args:
        case: the case.
        n: seeds.
        draws: how often.
        seed: of the draws.
    """
    random = np.random.default_rng((seed, n, *case.name.encode()))
    study = Study("drawn", "", "", (case.claim,))
    counts: Counter[str] = Counter()
    covers = 0
    together = case.claim.combine == "any"
    for _ in range(draws):
        runs = [
            DrawnRun(SeedPair(s, s), values, condition={"data.grammar_seed": s} if case.texts else {})
            for s, values in enumerate(case.draw(random, n), 2)
        ]
        (row,) = judge(study, cast(list[ObservedRun], runs))
        counts[row.verdict] += 1
        inside = [
            p.interval is not None and p.interval[0] <= t <= p.interval[1]
            for p, t in zip(row.parts, case.truth, strict=True)
        ]
        covers += all(inside) if together else inside[0]
    shares = (counts[verdict] / draws for verdict in ("holds", SMALLER, "fails"))
    return Rates(*shares, covers / draws, draws)


def bootstrap_coverage(draws: int, n: int = 3, seed: int = 0) -> float:
    """How often the percentile bootstrap of a mean over n seeds covers it: all resamplings of three are 27."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(draws, n))
    means = x[:, np.stack(np.meshgrid(*[np.arange(n)] * n), -1).reshape(-1, n)].mean(-1)
    low, high = np.quantile(means, [0.025, 0.975], axis=1)
    return float(((low <= 0) & (high >= 0)).mean())


def own_intervals_alone(draws: int, n: int = 3, seed: int = 0) -> float:
    """How often each seed's own interval lies above the boundary, where text says nearly nothing: one in 2 to the n."""
    random = np.random.default_rng(seed)
    return float((random.normal(size=(draws, n)) > 1e-3).all(1).mean())


def rows(draws: int) -> Iterator[list[str]]:
    """The table."""
    for case in (*CASES, NO_EFFECT):
        for n in SEEDS:
            found = simulate(case, n, draws)
            yield [case.name, str(n), *(f"{100 * rate:.2f}" for rate in found[:4])]


def main() -> None:
    """Print the table."""
    from common import machine, table

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=2_000)
    parser.add_argument("--smoke", action="store_true", help="few draws, to see that it runs")
    options = parser.parse_args()
    draws = 3 if options.smoke else options.draws
    start = time.process_time()
    print(
        table(
            ["claim, the truth on its boundary", "seeds", "holds %", "smaller %", "fails %", "covers %"], []
        )
    )
    for row in rows(draws):
        print(f"| {' | '.join(row)} |", flush=True)
    print()
    print(f"percentile bootstrap over 3 seeds covers {100 * bootstrap_coverage(draws):.1f} %")
    print(f"each of 3 seeds by itself holds in {100 * own_intervals_alone(draws):.1f} %")
    print(f"{draws} draws each, {time.process_time() - start:.0f} s of CPU time; {machine()}")


if __name__ == "__main__":
    main()
