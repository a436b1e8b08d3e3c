"""
Does a rule transfer to unfamiliar words?
=========================================

In a language of random words, the word α announces the word ω three words later. The two words between α and ω are the
scaffold, and may be any two words. In one training text, the scaffolds also occur without α and ω (familiar). In the
other training text, the scaffolds occur only between α and ω (unfamiliar). :class:`~lmdyn.callbacks.ScaffoldRule`
measures the probability of ω after scaffolds of the training text. The observer also measures the probability after
other scaffolds, which were never between α and ω (Saphra & Lopez 2020).
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
# The rule transfers: the model predicts ω nearly as well after scaffolds that were never between α and ω. The
# difference is larger if the training text contains the scaffolds only between α and ω. With unfamiliar scaffolds, the
# prediction has begun to depend on the scaffolds. The floor is the probability of one word out of 32. The bars show
# standard errors over 200 instances, clustered by scaffold, for one seed.
end = curves.iloc[-1]
lost = {scaffold: end[scaffold, "in"] - end[scaffold, "out"] for scaffold in ("familiar", "unfamiliar")}
print(f"probability of ω, untrained {curves.iloc[0].max():.3f}, at the end:", end.round(3), sep="\n")
print("lost across other scaffolds:", *(f"{name} {value:.3f}" for name, value in lost.items()))
assert curves.iloc[0].max() < 0.05 and end.min() > 0.85
assert lost["unfamiliar"] > lost["familiar"] > 0
