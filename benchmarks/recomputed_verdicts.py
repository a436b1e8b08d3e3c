"""Are published verdicts what the records say? Recomputed with pandas and scipy alone, without lmdyn's claims.

    python benchmarks/recomputed_verdicts.py

The script reads the records of some profiles and states numbers, regions and rules again, for ten or more claims of
each: a number of each run, Student's t over runs (on Fisher's z for correlations, on logits for probabilities) with
the error over texts where all runs read one text, a verdict by the interval. Claims with censored numbers, the
regression, the order of peaks and gradients are left out. The script fails if a mean, an end of an interval or a
verdict differs from ``docs/results/<study>.csv``.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common import table
from scipy import stats

DOCS = Path(__file__).parents[1] / "docs"

INF = math.inf

Number = Callable[[str], float | tuple[float, float]]
"""The number of the run of this name, or its bounds."""


@dataclass(frozen=True)
class Part:
    """A number of each run, the region in which the claim is true, and how it scatters."""

    of: Number
    low: float
    high: float
    error: Callable[[str], float] | None = None
    """Its standard error over texts."""
    correlation: bool = False
    null: float | None = None
    """The number without an effect."""
    df: float = 31
    """Degrees of freedom of the error."""
    logit: bool = False
    """It scatters as a probability does."""
    least: float = -INF
    most: float = INF
    """The ends of its range."""


Claims = dict[str, tuple[list[str], list[Part]]]
"""Runs and parts of each claim, by name."""


@lru_cache
def read(folder: str, observer: str) -> pd.DataFrame:
    """Rows of an observer in all runs of a profile, by step."""
    found = pd.read_parquet(DOCS / "records" / folder / f"{observer}.parquet").sort_values("step")
    texts = found.columns.intersection(["pos_class", "word", "group", "by", "focus", "words", "head"])
    return found.assign(**{name: found[name].astype(object).fillna("") for name in texts})


def rows(folder: str, observer: str, **where: object) -> pd.DataFrame:
    """Those rows in which columns have these values; "" stands for none."""
    found = read(folder, observer)
    for column, value in where.items():
        found = found[found[column] == value]
    return found


def curve(found: pd.DataFrame, run: str) -> "pd.Series[float]":
    """The values of one run, by step."""
    return found[found["run"] == run].set_index("step")["value"].astype(float)


def last(found: pd.DataFrame, run: str) -> float:
    """The last value of one run."""
    return float(curve(found, run).iloc[-1])


def minimum(found: pd.DataFrame) -> Number:
    """log10 of 1 + the first step with the least value."""
    return lambda run: math.log10(1 + int(str(curve(found, run).idxmin())))


def acquisition(profile: str, seeds: range) -> Claims:
    """Claims about language acquisition on the grammar, and those about n-grams on WikiText-2."""
    of = partial(rows, f"changbergen2022_acquisition/{profile}")
    unigram, bigram = (of("ngram_divergence", quantity="kl", smoothing="raw", order=n) for n in (1, 2))
    both_sides = of("ngram_divergence", quantity="kl", smoothing="bidirectional")
    fit = of("ngram_divergence", quantity="pearson", smoothing="backoff", order=1)
    runs = {model: [f"{model}_{seed}" for seed in seeds] for model in ("gpt2", "lstm", "bert")}
    of_words = minimum(unigram)
    claims: Claims = {}
    if profile == "wikitext2":  # on the grammar, BERT's minima are censored
        claims["unigram_first_bert"] = (
            runs["bert"], [Part(lambda r: minimum(both_sides)(r) - of_words(r), 0.1, INF, null=0.0)],
        )  # fmt: skip
    for model in ("gpt2", "lstm"):
        first = Part(lambda r: minimum(bigram)(r) - of_words(r), 0.1, INF, null=0.0)
        falls = Part(lambda r: last(fit, r) - float(curve(fit, r)[100]), -INF, -0.1, null=0.0)
        claims[f"unigram_first_{model}"] = (runs[model], [first])
        claims[f"unigram_fit_falls_{model}"] = (runs[model], [falls])
    for model, (pairs, low, high) in product(
        runs if profile == "organism" else (),
        (("verb_agreement", 0.6, INF), ("determiner_agreement", 0.6, INF), ("anaphor_agreement", 0.6, INF),
         ("control", 0.45, 0.55)),
    ):  # fmt: skip
        right = of("minimal_pairs", quantity="accuracy", by="paradigm", group=pairs)
        claims[f"{pairs}_{model}"] = (runs[model], [Part(partial(last, right), low, high)])
    return claims


def interdependence(folder: str, runs: list[str]) -> Claims:
    """Claims about DI and syntactic distance, under three rules, and about the frequency of words."""
    claims: Claims = {}
    one_text = folder.endswith("english")

    def mean_rho(rule: str, name: str, low: float, high: float, **where: object) -> Part:
        observer = "interdependence" if rule == "published" else f"interdependence_{rule}"
        number, error = (
            rows(folder, observer, quantity=f"{name}{end}", site="hidden", **where) for end in ("", "_error")
        )
        return Part(partial(last, number), low, high, partial(last, error) if one_text else None, True, 0.0)

    for rule in ("published", "released", "generalized"):
        for held, known in product(("syntactic", "partial", "matched"), ("", "known_")):
            parts = [
                mean_rho(rule, f"mean_{known}{held}_correlation", -INF, -0.1, pos_class=c)
                for c in ("open", "closed")
            ]
            claims[f"tree_{rule}_{known}{held}"] = (runs, parts)
        parts = [
            mean_rho(rule, "mean_frequency_correlation", -0.1, 0.1, word=word, pos_class="")
            for word in ("left", "right")
        ]
        claims[f"frequency_{rule}"] = (runs, parts)
    return claims


def scaffolds(folder: str) -> Claims:
    """Claims of the intervention on scaffolds; a "run" is a seed, with a run for each arm and half of the phrases."""
    of = partial(rows, folder, "scaffold_rule", length=4, rules=8000, words="")
    seeds = [str(seed) for seed in range(21, 26)]
    use = 3428

    def learned(found: pd.DataFrame, run: str) -> tuple[float, float]:
        values = curve(found, run)
        values = values[values.index >= use]
        first = int((values >= 0.5).to_numpy().argmax())
        at = values.index.to_numpy() - use
        return math.log10(at[first - 1] + 1), math.log10(at[first])

    def of_arm(
        quantity: str, arm: str, seed: str, domain: str = "in", focus: str = ""
    ) -> tuple[float, float]:
        found = of(quantity=quantity, site=domain, focus=focus)
        each = [(learned(found, f"{arm}_{half}_{seed}") if quantity == "probability" and focus + domain != "out"
                 else (last(found, f"{arm}_{half}_{seed}"),) * 2) for half in (0, 1)]  # fmt: skip
        return (each[0][0] + each[1][0]) / 2, (each[0][1] + each[1][1]) / 2

    def less(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
        return a[0] - b[1], a[1] - b[0]

    faster, claims = round(math.log10(1 / 1.1), 4), {}
    for name, against, domain, focus in (
        ("in_domain", "unfamiliar", "in", ""), ("open_symbol", "unfamiliar", "out", "open"),
        ("order_of_words", "scrambled", "in", ""),
    ):  # fmt: skip
        arms = [
            partial(of_arm, "probability", arm, domain=domain, focus=focus) for arm in ("familiar", against)
        ]
        number = partial(lambda arms, seed: less(*(arm(seed) for arm in arms)), arms)
        claims[f"causal_{name}"] = (seeds, [Part(number, -INF, faster)])
    curves = of(quantity="probability", site="in", focus="")
    for half in (0, 1):
        number = partial(
            lambda half, seed: less(
                learned(curves, f"familiar_{half}_{seed}"), learned(curves, f"unfamiliar_{1 - half}_{seed}")
            ),
            half,
        )
        claims[f"causal_forks_{half}"] = (seeds, [Part(number, -INF, faster)])
    for name, quantity, domain, low, high in (
        ("interdependence", "di", "in", 0.05, INF), ("confinement", "probability", "out", -INF, -0.1),
    ):  # fmt: skip
        arms = [partial(of_arm, quantity, arm, domain=domain) for arm in ("familiar", "unfamiliar")]
        number = partial(lambda arms, seed: less(*(arm(seed) for arm in arms)), arms)
        claims[f"causal_{name}"] = (seeds, [Part(number, low, high, null=0.0)])
    return claims


def rule_across(folder: str, k: int, seeds: list[str]) -> Claims:
    """Claims about the rule across scaffolds of k words; a "run" is a seed, with a run for each kind of scaffold."""
    both, log_faster = ("familiar", "unfamiliar"), round(math.log10(1 / 1.1), 4)
    levels = (0.05, 0.5) if k < 8 else (0.05,)  # the other one is not reached

    def near(found: pd.DataFrame, run: str, share: float) -> float:
        values = curve(found, run)
        return float(values.iloc[int(np.abs(values.index.to_numpy() - share * values.index[-1]).argmin())])

    def part(
        quantity: str, *terms: tuple[str, float, int], low: float = -INF, high: float = INF, rule: str = "",
        logit: bool = False, most: float = INF, null: float | None = None, **where: object,
    ) -> Part:  # fmt: skip
        """A sum of kinds of scaffolds at shares of training, each with its sign; errors are those over scaffolds."""
        of = partial(rows, folder, f"scaffold_rule{rule}", length=k, rules=1000, **where)
        values, errors = of(quantity=quantity), of(quantity=f"{quantity}_error")
        return Part(
            lambda seed: sum(sign * near(values, f"{kind}_{k}_{seed}", at) for kind, at, sign in terms), low, high,
            lambda seed: math.hypot(*(near(errors, f"{kind}_{k}_{seed}", at) for kind, at, _ in terms)),
            df=INF, logit=logit, null=null, least=-most, most=most,
        )  # fmt: skip

    def earlier(level: float, site: str, focus: str) -> Part:
        found = rows(
            folder, "scaffold_rule", quantity="probability", site=site, focus=focus, length=k, rules=1000
        )

        def learned(run: str) -> tuple[float, float]:
            values = curve(found, run)
            first = int((values >= level).to_numpy().argmax())
            return math.log10(values.index[first - 1] + 1), math.log10(values.index[first])

        def number(seed: str) -> tuple[float, float]:
            (a, b), (c, d) = (learned(f"{kind}_{k}_{seed}") for kind in both)
            return a - d, b - c

        return Part(number, -INF, log_faster)

    claims = {
        f"in_domain_faster_k{k}": [earlier(0.5, "in", "")],
        f"out_of_domain_k{k}": [
            part("probability", ("familiar", 1, 1), high=0.5, logit=True, site="out", focus=""),
            part("probability", ("unfamiliar", 1, 1), low=0.5, logit=True, site="out", focus=""),
        ],
        **{f"open_symbol_earlier_{level:g}_k{k}": [earlier(level, "out", "open")] for level in levels},
        f"rises_end_k{k}": [
            part("rise", ("familiar", 1, 1), low=0.1, most=1.0, site="in", null=0.0),
            part("rise", ("unfamiliar", 1, 1), high=0.1, most=1.0, site="in"),
        ],
        f"interdependence_rises_k{k}": [
            part("di", ("familiar", b, 1), ("familiar", a, -1), low=0.05, site="in", null=0.0)
            for a, b in ((0, 0.5), (0.5, 1))
        ],
    }
    for rule in ("", "_released", "_generalized"):
        claims[f"interdependence{rule}_k{k}"] = [
            part("di", ("familiar", at, 1), ("unfamiliar", at, -1), low=0.05, rule=rule, site="in", null=0.0)
            for at in (0.5, 1)
        ]
    for kind in both:
        alone = part("probability", (kind, 1, 1), high=0.1, logit=True, site="in", focus="scaffold")
        claims[f"scaffold_alone_{kind}_k{k}"] = [alone]
    return {name: (seeds, parts) for name, parts in claims.items()}


def attention(folder: str, runs: list[str]) -> Claims:
    """Claims about attention of the first and the last layer: change of divergences and entropies, and rho."""

    def change(observer: str, quantity: str, site: str, **where: str) -> Part:
        found = rows(folder, observer, quantity=quantity, site=site, **where)
        return Part(
            lambda run: math.log(last(found, run) / float(curve(found, run)[0])), -INF, -0.1, null=0.0
        )

    claims: Claims = {}
    for layer, site in (("first", "layer1"), ("last", "layer3")):
        for reference, (name, kind) in product(("partner", "tagger"), (("", "_matched"), ("_mean", ""))):
            of = change("similarity", f"attention{kind}_jensen_shannon", site, reference=reference, head="")
            claims[f"nearer_{reference}{name}_{layer}"] = (runs, [of])
        for name, kind in (("", "normalized_"), ("_nats", "")):
            of = change("sparsity", f"{kind}attention_entropy", site, role="input", pos_class="")
            claims[f"sparser{name}_{layer}"] = (runs, [of])
        for sample in ("", "no_top20", "count100"):
            rho = {"quantity": "rho_normalized_attention_entropy", "role": "input", "pos_class": sample}
            found = rows(folder, "sparsity", site=site, **rho)
            name = "_".join(filter(None, ("frequent_sparser", layer, sample)))
            claims[name] = (runs, [Part(partial(last, found), -INF, -0.1, correlation=True, null=0.0)])
    return claims


def interval(part: Part, runs: Sequence[str], confidence: float) -> tuple[float, float, float]:
    """Mean and interval: for other runs, and another text if the error over texts is known; on Fisher's z if asked.

    If numbers are known by bounds, the interval is the union over all corners, and the mean that of their middles.
    """
    bounds = np.array([np.broadcast_to(part.of(run), 2) for run in runs])
    errors = np.array([0.0 if part.error is None else part.error(run) for run in runs])
    n, found = len(runs), []
    for corner in product(*(sorted(set(pair)) for pair in bounds.tolist())):
        values, scaled = np.array(corner), errors
        if part.correlation:
            values, scaled = np.arctanh(values), errors / (1 - values**2)
        if part.logit:
            values, scaled = np.log(values / (1 - values)), errors / (values * (1 - values))
        mean, seeds, text = values.mean(), stats.sem(values), math.sqrt((scaled**2).mean())
        half = stats.t.ppf(0.5 + confidence / 2, n - 1) * seeds
        if text:
            df = (seeds**2 + text**2) ** 2 / (seeds**4 / (n - 1) + text**4 / part.df)
            half = max(half, stats.t.ppf(0.5 + confidence / 2, df) * math.hypot(seeds, text))
        found.append((mean, mean - half, mean + half))
    mean, low, high = (
        np.mean([m for m, _, _ in found]),
        min(ends[1] for ends in found),
        max(ends[2] for ends in found),
    )
    if part.logit:
        mean, low, high = (1 / (1 + math.exp(-end)) for end in (mean, low, high))
    low, high = max(low, part.least), min(high, part.most)
    return tuple(np.tanh((mean, low, high))) if part.correlation else (mean, low, high)


def smaller(part: Part, least: float, most: float) -> bool:
    """Whether an interval lies between the bound of a half-line and the number without an effect."""
    if part.null is None or not (math.isinf(part.low) or math.isinf(part.high)):
        return False
    bound = part.low if math.isinf(part.high) else part.high
    return min(bound, part.null) < least and most < max(bound, part.null)


def verdict(parts: Sequence[Part], runs: Sequence[str]) -> str:
    """The verdict of a claim of which all parts must hold; one of k refutes it at a k-th of the level."""
    found = []
    for part in parts:
        _, low, high = interval(part, runs, 0.95)
        _, least, most = interval(part, runs, 1 - 0.05 / len(parts))
        if part.low <= low and high <= part.high:
            found.append("holds")
        elif most < part.low or least > part.high:
            found.append("smaller than required" if smaller(part, least, most) else "fails")
        else:
            found.append("undecided")
    if set(found) <= {"holds", "undecided"}:
        return "undecided" if "undecided" in found else "holds"
    return "smaller than required" if set(found) <= {"holds", "smaller than required"} else "fails"


def pages() -> Iterator[tuple[str, str, Claims]]:
    """Studies, profiles, and claims of each."""
    yield "changbergen2022_acquisition", "organism", acquisition("organism", range(2, 10))
    yield "changbergen2022_acquisition", "wikitext2", acquisition("wikitext2", range(2, 5))
    seeds = {"english": range(2, 7), "texts": range(21, 29), "languages": range(21, 29)}
    for profile, numbers in seeds.items():
        folder = f"saphra2020_di/{profile}"
        if (DOCS / "records" / folder).exists():
            yield "saphra2020_di", profile, interdependence(folder, [f"lm_{seed}" for seed in numbers])
    yield "saphra2020_di", "causal", scaffolds("saphra2020_di/causal")
    for profile, k in (("scaffold_small", 4), ("scaffold_small", 6), ("scaffold", 2), ("scaffold", 8)):
        yield "saphra2020_di", profile, rule_across(f"saphra2020_di/{profile}", k, ["2", "3", "4"])
    if (DOCS / "records/saphra2021_attention/texts").exists():
        folder = "saphra2021_attention/texts"
        yield "saphra2021_attention", "texts", attention(folder, [f"lm_{seed}" for seed in range(21, 29)])


def main() -> None:
    """Print the table; exit with status 1 if anything differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="the same: it takes seconds")
    parser.parse_args()
    shown, wrong = [], 0
    for study, profile, claims in pages():
        page = pd.read_csv(DOCS / f"results/{study}.csv").query("runs == @profile")
        for name, (runs, parts) in claims.items():
            there = page[page["claim"] == name]
            mine = verdict(parts, runs)
            same = mine == there["verdict"].iloc[0]
            for part, (_, row) in zip(parts, there.iterrows(), strict=True):
                ends: Any = (row["mean"], row["low"], row["high"])
                found = interval(part, runs, 0.95)
                same &= all(
                    math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6) for a, b in zip(found, ends, strict=True)
                )
                wrong += not same
                numbers = (f"{mean:.4f} [{low:.4f}, {high:.4f}]" for mean, low, high in (found, ends))
                shown.append(
                    [profile, name, *numbers, mine, str(there["verdict"].iloc[0]), "yes" if same else "NO"]
                )
    print(table(["profile", "claim", "recomputed", "page", "verdict", "page", "same"], shown))
    print(f"\n{len(shown)} numbers, {wrong} differ")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
