"""How long does the chaos of untrained networks last, and what do their orbits end on? The script reads records.

Sentences of one network are alike. Every interval is therefore over networks, by the delete-one-network jackknife.
If chaos does not end within the horizon, it is censored there. No mean leaves out the censored sentences.

    python examples/network_survival.py docs/records/inoue2022_chaos/networks --figure survival.png
"""

import argparse
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch

from lmdyn.analysis import Survival, survival
from lmdyn.claims.recorded import read_records

HORIZON, DETECTED = 10_000, 1_000  # steps; chaos of λ = 1e-2 is visible after ten times 1 / λ
WAYS = ["truncated_normal 0.02", "clipped_normal 0.02", "normal 0.02", "normal 0.0192", "normal 0.0176"]


def orbits(folder: Path) -> pd.DataFrame:
    """Return a row for each sentence: network, distribution of its weights, length of the chaos, whether it ended."""
    found = []
    for run in read_records(folder):
        table = run.read("encoder_dynamics")
        of = table[(table["step"] == 0) & table["quantity"].str.startswith("sentence_orbit_")]
        kinds = of.groupby("sentence")["kind"].first()
        of = of.pivot_table(index="sentence", columns="quantity", values="value")
        drawn = {key.rsplit(".", 1)[-1]: value for key, value in run.condition.items()}
        beyond = of["sentence_orbit_length"] > HORIZON
        found.append(
            pd.DataFrame(
                {
                    "way": f"{drawn['initialization']} {drawn['initializer_range']:g}",
                    "network": run.seeds.init,
                    "length": of["sentence_orbit_length"].clip(upper=HORIZON),
                    "censored": (of["sentence_orbit_censored"] > 0) | beyond,
                    "exponent": of["sentence_orbit_exponent"],
                    "kind": kinds,
                    "whole_length": of["sentence_orbit_length"],
                }
            )
        )
    return pd.concat(found, ignore_index=True)


def of_networks(rows: pd.DataFrame) -> Survival:
    """Return Kaplan and Meier's curve, the escape rate and the restricted mean, with intervals over the networks."""
    return survival(
        torch.tensor(rows["length"].to_numpy(float)),
        torch.tensor(rows["censored"].to_numpy(bool)),
        groups=rows["network"].tolist(),
        horizon=float(HORIZON) if rows["censored"].any() else None,
        detected=float(DETECTED),
    )


def line(way: str, rows: pd.DataFrame) -> str:
    """Return a line of the table."""
    found, chaotic = of_networks(rows), rows[rows["length"] > 0]
    rate = f"{found.escape_rate:.1e} ({found.escape_interval[0]:.1e} to {found.escape_interval[1]:.1e})"
    if chaotic["censored"].all():  # without an ended chaos, there is no rate
        rate = "–"
    low, high = found.restricted_interval
    within = f"{low:,.0f} to {high:,.0f}" if low < high else "all networks alike: no interval"
    mean = f"{found.restricted_mean:,.0f} ({within})"
    ended = len(chaotic) - int(chaotic["censored"].sum())
    return f"| {way} | {found.n_groups} | {found.n} | {len(chaotic)} | {ended} | {rate} | {mean} |"


def kinds_table(rows: pd.DataFrame) -> list[str]:
    """Return what orbits end on: for each kind, the sentences, the networks and λ; and the chaos that ended."""
    lines = [
        "| weights drawn from | kind | sentences | in networks | λ, nats a step: least, median, largest |",
        "|---|---|---|---|---|",
    ]
    for (way, kind), of in rows.groupby(["way", "kind"], sort=False):
        low, middle, high = of["exponent"].quantile([0, 0.5, 1])
        lines.append(
            f"| {way} | {kind} | {len(of)} | {of['network'].nunique()} | {low:.4f}, {middle:.4f}, {high:.4f} |"
        )
    kinds = rows.groupby(["way", "network"])["kind"].nunique()
    ended = rows[(rows["whole_length"] > 0) & (rows["kind"] != "chaotic")]
    return [
        *lines,
        f"\nIn {(kinds == 1).sum()} of {len(kinds)} networks all sentences end on one kind.",
        *(
            f"{one.way}, network {one.network}: chaos ended at {one.whole_length:,.0f} steps, then {one.kind}"
            for one in ended.itertuples()
        ),
    ]


def draw(ways: dict[str, pd.DataFrame], path: Path) -> None:
    """Draw survival against steps, with a curve and its band for each distribution of the weights."""
    figure, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for i, (way, rows) in enumerate(ways.items()):
        found = of_networks(rows)
        times = [*found.times.tolist(), HORIZON]
        curves = [[*curve.tolist(), float(curve[-1])] for curve in (found.survival, found.low, found.high)]
        ax.step(times, curves[0], where="post", color=f"C{i}", label=f"{way}, {found.n_groups} networks")
        ax.fill_between(times, curves[1], curves[2], step="post", color=f"C{i}", alpha=0.15, lw=0)
    ax.set_xlim(0, HORIZON)
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("steps of the map")
    ax.set_ylabel("share of sentences whose chaos lasts longer\n(95 % over networks)")
    ax.legend(fontsize=8, title="weights drawn from", title_fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Print the table, and draw the figure for `--figure`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--kinds", action="store_true", help="also what orbits end on")
    args = parser.parse_args()
    rows = orbits(args.records)
    known = {way: rows[rows["way"] == way] for way in WAYS}
    ways = {way: of for way, of in known.items() if len(set(of["network"])) > 1}
    if not ways:
        sys.exit(f"{args.records} has no two networks drawn in one way, and intervals are over networks")
    lines = [
        "| weights drawn from | networks | sentences | chaotic | of these seen to end | escape rate, a step "
        "| mean length to 10,000 steps |",
        "|---|---|---|---|---|---|---|",
        *(line(way, of) for way, of in ways.items()),
    ]
    lines += ["", *kinds_table(rows)] if args.kinds else []
    sys.stdout.write("\n".join(lines) + "\n")
    if args.figure:
        draw(ways, args.figure)


if __name__ == "__main__":
    main()
