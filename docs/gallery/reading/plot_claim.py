"""
A claim with a verdict from three seeds
=======================================

A claim defines one number of a run, and the region in which the claim is true. A claim also defines a floor, and the
conditions that make the number meaningless. lmdyn judges a claim on runs of several seeds. The verdict is holds, fails,
undecided, void or not measured. Three seeds decide a claim only if the intervals of all three seeds are on the same
side.
"""

import matplotlib.pyplot as plt
import shared_runs

from lmdyn.claims import Above, At, Below, Change, Claim, Condition, Part, Rows, RunFolder, Study
from lmdyn.claims.judge import judge

LOSS = Rows("LearningCurves", "loss")


def rho(site):
    """Return the correlation ρ of the gradient's concentration with word frequency, at one layer."""
    where = (("role", "target"), ("pos_class", "no_top20"))
    return Rows("Sparsity", "rho_gradient", site, where=where, error="rho_gradient_error")


study = Study(
    "gallery2026_gradients", "Gradients and frequency", "this page",
    tuple(
        Claim(
            site, f"At {layer}, gradients are the sparser the more frequent the word", "example",
            (Part(At(rho(site)), Above(0.1), f"ρ at {layer}", "fisher"),),
            matters="0.1: a correlation below is called slight", floor=At(rho(site), 0),
            void_unless=(Condition("the loss has fallen by two nats", Change(LOSS), Below(-2.0)),),
        )
        for site, layer in (("h1", "the first layer"), ("h2", "the last layer"))
    ),
)  # fmt: skip
runs = [RunFolder(shared_runs.lstm(seed).folder) for seed in (1, 2, 3)]
judgement = judge(study, runs)
for row in judgement:
    print(f"{row.claim.says}: {row.verdict}", *row.reasons, sep="\n    ")

# %%
# The points are seeds with 95 % intervals over words. The bar is the interval for another seed (Student's t). For the
# last layer, all three intervals lie in the region, so the claim holds. For the first layer, no interval lies in the
# region. The verdict states that both claims are exploratory, because we defined the claims after we had seen runs.
figure, ax = plt.subplots(figsize=(7, 2.8), layout="constrained")
for y, row in enumerate(judgement):
    (part,) = row.parts
    for i, (seeds, estimate) in enumerate(part.estimates.items()):
        ax.errorbar(
            estimate.value,
            y + 0.12 * (i - 1),
            xerr=1.96 * estimate.error,
            fmt="o",
            color="C0",
            ms=4,
            label=None if y or i else "one seed",
        )
        ax.plot(
            row.floor.estimates[seeds].value,
            y + 0.12 * (i - 1),
            "x",
            color="0.4",
            label=None if y or i else "the same, untrained",
        )
    ax.plot(part.interval, [y - 0.28] * 2, "k", lw=2, label=None if y else "interval of another seed")
    ax.text(0.42, y, row.verdict, va="center")
ax.axvspan(0.1, 1, color="C2", alpha=0.12, label="where the claim is true")
ax.set(
    yticks=[0, 1],
    yticklabels=["first layer", "last layer"],
    xlim=(-0.4, 0.6),
    ylim=(-0.5, 1.5),
    xlabel="ρ of the gradient's concentration with word frequency",
)
figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
assert judgement["h2"].verdict == "holds"
assert judgement["h1"].verdict in ("undecided", "fails")
assert all(row.exploratory and len(row.seeds) == 3 for row in judgement)
