"""
Does a rule transfer to unfamiliar words?
=========================================

In a language of random words, α announces ω three words later, whatever two words (the scaffold) are between them.
In one training text, the scaffolds also occur without α and ω (familiar); in the other, they do not.
:class:`~lmdyn.callbacks.ScaffoldRule` measures the probability of ω after scaffolds of the training text, and
after other scaffolds that were never between α and ω (Saphra & Lopez 2020).
"""

import matplotlib.pyplot as plt
import pandas as pd
import shared_runs

from lmdyn.callbacks import ScaffoldRule

runs = [shared_runs.scaffold(familiar) for familiar in (True, False)]
rows = pd.concat([run.observe(ScaffoldRule(instances=200, context=10)) for run in runs])
alone = rows["focus"].isna() | rows["focus"].eq("")
curves, errors = (
    rows[alone & rows["quantity"].eq(name)].pivot(index="step", columns=["scaffold", "site"], values="value")
    for name in ("probability", "probability_error")
)

figure, panels = plt.subplots(1, 2, figsize=(7.8, 3.4), sharey=True, layout="constrained")
for ax, scaffold in zip(panels, ("familiar", "unfamiliar"), strict=True):
    for site, style, label in (("in", "o-", "scaffolds of the text"), ("out", "s--", "other scaffolds")):
        ax.errorbar(
            curves.index,
            curves[scaffold][site],
            errors[scaffold][site],
            fmt=style,
            ms=4,
            capsize=2,
            label=label,
        )
    ax.set(
        title=f"{scaffold} scaffolds",
        xlabel="optimizer updates",
        xscale="symlog",
        xlim=(0, None),
        ylim=(0, 1.02),
    )
panels[0].set_ylabel("probability of ω after α and scaffold")
panels[1].legend(frameon=False, fontsize=8, loc="upper left")

# %%
# Yes: the model predicts ω nearly as well across words that were never between α and ω. The difference is larger if
# the model knows the scaffolds only from the rule: the prediction has begun to depend on the scaffolds. The floor is
# the probability of one word out of 32. Bars are standard errors over 200 instances, clustered by scaffold, for one
# seed.
end = curves.iloc[-1]
lost = {scaffold: end[scaffold, "in"] - end[scaffold, "out"] for scaffold in ("familiar", "unfamiliar")}
print(f"probability of ω, untrained {curves.iloc[0].max():.3f}, at the end:", end.round(3), sep="\n")
print("lost across other scaffolds:", *(f"{name} {value:.3f}" for name, value in lost.items()))
assert curves.iloc[0].max() < 0.05 and end.min() > 0.85
assert lost["unfamiliar"] > lost["familiar"] > 0
