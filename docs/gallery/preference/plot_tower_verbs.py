"""
Which tower predicts verbs?
===========================

The script trains two encoders (towers) with different random weights together, to predict each word from its context.
After this training, :class:`~lmdyn.callbacks.TowerPreference` freezes the encoders, and trains an output layer on each
encoder alone. The preference of a word is the logarithm of the ratio of the two probabilities. The preference is above
0 if the primary tower predicts the word better (He & Toyoizumi 2022).
"""

import matplotlib.pyplot as plt
import shared_runs

from lmdyn.analysis import HeadTraining
from lmdyn.callbacks import TowerPreference

run = shared_runs.towers()
heads = HeadTraining(updates=100, learning_rate=3e-3)
rows = run.observe(TowerPreference(training=heads, batch_rows=16, second_seed=1), steps=[0, run.last])
words = rows[(rows["by"] == "token") & (rows["quantity"] == "preference")]
number = rows[rows["by"].ne("token")].set_index(["step", "quantity"])["value"]

tags = ["NOUN", "VERB", "ADJ", "ADP", "DET", "PRON"]
figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
for i, (step, label) in enumerate(((0, "untrained"), (run.last, "trained"))):
    by_tag = words[words["step"] == step].groupby("upos", observed=True)["value"]
    for j, tag in enumerate(tags):
        values = by_tag.get_group(tag)
        ax.scatter(
            [j + (i - 0.5) * 0.3] * len(values),
            values,
            s=8,
            color=["0.6", "C0"][i],
            alpha=0.5,
            label=None if j else label,
        )
        ax.plot([j + (i - 0.5) * 0.3 - 0.1, j + (i - 0.5) * 0.3 + 0.1], [values.mean()] * 2, "k", lw=1.5)
ax.axhline(0, color="0.7", lw=0.8, zorder=0)
ax.set(
    xticks=range(len(tags)),
    xticklabels=tags,
    ylabel="preference of a word, nats\n(above 0: the primary tower)",
)
ax.legend(frameon=False, fontsize=8)

# %%
# The points are words, and the bars are the means of the words. Before training, no tower has a preference. After
# training, the towers have divided the words between them. The verbs do not belong to one tower: each tower predicts
# some verbs better. Output layers with other initial weights give similar preferences, so the preferences are mostly
# those of the encoders. The *primary* tower is the tower with the higher mean probability, by definition.
verbs = words[(words["step"] == run.last) & (words["upos"] == "VERB")]["value"]
print(
    f"{len(verbs)} verbs, mean {verbs.mean():+.2f}; {(verbs > 0).mean():.0%} are better predicted by the primary tower"
)
print(
    f"spread over words: {number[0, 'spread']:.2f} untrained, {number[run.last, 'spread']:.2f} trained;",
    end=" ",
)
print(f"correlation with other output layers: {number[run.last, 'head_reliability']:.2f}")
assert number[run.last, "spread"] > 5 * number[0, "spread"]
assert number[run.last, "head_reliability"] > 0.6
assert 0.1 < (verbs > 0).mean() < 0.9
