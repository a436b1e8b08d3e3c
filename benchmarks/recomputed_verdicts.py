"""Are published verdicts what the records say? Recomputed with pandas and scipy alone, without lmdyn's claims.

    python benchmarks/recomputed_verdicts.py

The script reads ``docs/records/changbergen2022_acquisition/organism`` and states numbers, regions and the rule again: a
number of each run, Student's t over the eight runs of a model (each has a text of its own), a verdict by the interval.
Claims with censored numbers, the regression and the order of peaks are left out. The script fails if a mean, an end of
an interval or a verdict differs from ``docs/results/changbergen2022_acquisition.csv``.
"""

import argparse
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from common import table
from scipy import stats

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs/records/changbergen2022_acquisition/organism"
PAGE = ROOT / "docs/results/changbergen2022_acquisition.csv"

Number = Callable[[str], float]
"""The number of the run of this name."""


def rows(observer: str, **where: object) -> pd.DataFrame:
    """Rows of an observer in all runs, by step."""
    found = pd.read_parquet(RECORDS / f"{observer}.parquet")
    for column, value in where.items():
        found = found[found[column] == value]
    return found.sort_values("step")


def curve(found: pd.DataFrame, run: str) -> "pd.Series[float]":
    """The values of one run, by step."""
    return found[found["run"] == run].set_index("step")["value"].astype(float)


def last(found: pd.DataFrame, run: str) -> float:
    """The last value of one run."""
    return float(curve(found, run).iloc[-1])


def minimum(found: pd.DataFrame) -> Number:
    """log10 of 1 + the first step with the least value."""
    return lambda run: math.log10(1 + int(str(curve(found, run).idxmin())))


def numbers() -> dict[str, tuple[Number, float, float]]:
    """Number and region of each claim, by name."""
    inf = math.inf
    unigram, bigram = (rows("ngram_divergence", quantity="kl", smoothing="raw", order=n) for n in (1, 2))
    fit = rows("ngram_divergence", quantity="pearson", smoothing="backoff", order=1)
    claims: dict[str, tuple[Number, float, float]] = {}
    for model in ("gpt2", "lstm"):
        claims[f"unigram_first_{model}"] = (lambda r: minimum(bigram)(r) - minimum(unigram)(r), 0.1, inf)
        claims[f"unigram_fit_falls_{model}"] = (
            lambda r: last(fit, r) - float(curve(fit, r)[100]), -inf, -0.1,
        )  # fmt: skip
    for model in ("gpt2", "lstm", "bert"):
        for pairs, low, high in (
            ("verb_agreement", 0.6, inf), ("determiner_agreement", 0.6, inf), ("anaphor_agreement", 0.6, inf),
            ("control", 0.45, 0.55),
        ):  # fmt: skip
            right = rows("minimal_pairs", quantity="accuracy", by="paradigm", group=pairs)
            claims[f"{pairs}_{model}"] = (partial(last, right), low, high)
    return claims


def main() -> None:
    """Print the table; exit with status 1 if anything differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="the same: it takes seconds")
    parser.parse_args()
    page = pd.read_csv(PAGE).query("runs == 'organism'").dropna(subset=["verdict"]).set_index("claim")
    shown, wrong = [], 0
    for name, (number, low, high) in numbers().items():
        runs = [f"{name.rpartition('_')[2]}_{seed}" for seed in range(2, 10)]
        values = [number(run) for run in runs]
        mean, error = float(pd.Series(values).mean()), float(stats.sem(values))
        ends = stats.t.interval(0.95, len(values) - 1, mean, error)
        inside, outside = low <= ends[0] and ends[1] <= high, ends[1] < low or ends[0] > high
        verdict = "holds" if inside else "fails" if outside else "undecided"
        there: dict[Any, Any] = page.loc[name].to_dict()
        same = verdict == there["verdict"] and all(
            math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-9)
            for a, b in zip((mean, *ends), (there[end] for end in ("mean", "low", "high")), strict=True)
        )
        wrong += not same
        mine, its = f"{mean:.4f} [{ends[0]:.4f}, {ends[1]:.4f}]", f"{float(there['mean']):.4f}"
        shown.append([name, mine, verdict, its, str(there["verdict"]), "yes" if same else "NO"])
    print(table(["claim", "recomputed", "verdict", "page, mean", "page, verdict", "same"], shown))
    print(f"\n{len(shown)} verdicts, {wrong} differ")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
