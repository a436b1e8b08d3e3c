"""
Does a model resemble n-gram models during training?
====================================================

A language model first predicts words by their frequency, then by the word before, and then by more words. At each step,
the model is nearest to an n-gram model of some order (Chang & Bergen 2022). :class:`~lmdyn.callbacks.NgramDivergence`
counts the n-grams of the training text. The observer measures how far the model's predictions are from the predictions
of each n-gram model.
"""

import sys

import matplotlib.pyplot as plt
import shared_runs

from lmdyn.analysis import ngram_extrema
from lmdyn.callbacks import NgramDivergence

run = shared_runs.lstm()
table = run.observe(NgramDivergence(order=4, drawn_tokens=500, max_tokens=2000))

figure, panels = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
shown = {"raw": (1, 2), "kneser_ney": (3, 4)}  # most contexts of more words do not occur in another text
for ax, quantity in zip(panels, ("kl", "pearson"), strict=True):
    for smoothing, orders in shown.items():
        for n in orders:
            of = table["quantity"].eq(quantity) & table["smoothing"].eq(smoothing) & table["order"].eq(n)
            course = table[of].sort_values("step")
            ax.plot(
                course["step"], course["value"], marker=".", label=f"{n}-grams, {smoothing}".replace("_", "-")
            )
    ax.set(xlabel="optimizer updates", xscale="symlog", xlim=(0, None))
panels[0].set(ylabel="D(n-gram ‖ model) in bits", ylim=(0, None))
panels[1].set(ylabel="correlation of log-probabilities of the next word")
panels[0].legend(frameon=False, fontsize=8)

# %%
# The model is nearest to the frequencies of words first. Then the divergence from the frequencies rises, because the
# model uses the words before the predicted word. The divergence from bigrams falls for longer. A minimum at the last
# observation is censored, because the divergence may fall further. The correlations with the log-probability of the
# next word (Michaelov et al. 2025) have peaks.
extrema = ngram_extrema(table)
primary = extrema["smoothing"].eq("raw") & extrema["order"].lt(3) | extrema["smoothing"].eq(
    "kneser_ney"
) & extrema["order"].gt(2)
print(extrema[primary & extrema["quantity"].isin(["kl", "pearson"])].to_string(index=False))
minima = extrema[primary & extrema["quantity"].eq("kl")].set_index("order")["step"]
assert minima[1] < minima[2]

if "--keep" in sys.argv:  # the numbers of docs/observers/ngram_divergence.md
    shared_runs.keep(table, "ngram_divergence")
