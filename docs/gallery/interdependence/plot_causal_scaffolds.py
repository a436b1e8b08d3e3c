"""
Does a known phrase cause a rule to be learned faster?
======================================================

In a language of random words, the word α announces the word ω five words later. The four words between α and ω are the
scaffold. In these runs, the rule is first used after 3,428 updates. Before, half of the phrases occur without α and ω.
Then the rule is used across this half (known phrases), or across the other half (other phrases): two forks of one
model. Both halves take both parts. In a third arm, the words of the phrases occurred before, in any order. The runs are
those of ``configs/saphra2020_di/causal``, with five seeds of text and initialisation. Saphra 2021 (section 5.1) asks
the question.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import shared_runs

FIRST_USE = 3428
records = Path(shared_runs.__file__).parents[1] / "records/saphra2020_di/causal/scaffold_rule.parquet"
rows = pd.read_parquet(records)
rows = rows[
    rows["words"].isna()
    & rows["focus"].fillna("").eq("")
    & rows["site"].eq("in")
    & (rows["step"] > FIRST_USE)
]
rows = rows.assign(since=rows["step"] - FIRST_USE, seed=rows["run"].str.rpartition("_")[2])

figure, panels = plt.subplots(1, 2, figsize=(7.8, 3.4), layout="constrained")
for ax, (quantity, label) in zip(
    panels,
    (("probability", "probability of ω after α and scaffold"), ("di", "interdependence of α and scaffold")),
    strict=True,
):
    for arm, (colour, name) in {
        "familiar": ("C0", "known phrases"),
        "scrambled": ("C2", "known words"),
        "unfamiliar": ("C1", "other phrases"),
    }.items():
        chosen = rows[rows["quantity"].eq(quantity) & rows["scaffold"].eq(arm)]
        curves = chosen.pivot_table(index="since", columns="seed", values="value")
        ax.plot(curves.index, curves, color=colour, lw=0.6, alpha=0.6)
        ax.plot(curves.index, curves.mean(axis=1), color=colour, label=name)
    ax.set(xlabel="updates since the first use of the rule", ylabel=label, xscale="log", ylim=(0, None))
panels[0].legend(frameon=False, fontsize=8)

# %%
# Across known phrases, the rule is learned about four times as fast as across other phrases of the same model. Known
# words alone do not help. Thin lines are seeds, and thick lines are their means.
reached = (
    rows[rows["quantity"].eq("probability") & (rows["value"] >= 0.5)]
    .groupby(["scaffold", "run"])["since"]
    .min()
)
print("updates until ω has a probability of 0.5:", reached.groupby("scaffold").describe().round(), sep="\n")
assert reached["familiar"].max() < min(reached["unfamiliar"].min(), reached["scrambled"].min())
