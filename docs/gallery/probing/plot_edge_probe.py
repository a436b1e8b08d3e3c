"""
Which structure can be read from a masked language model?
=========================================================

:class:`~lmdyn.callbacks.EdgeProbe` trains a linear classifier on the frozen states of one or two spans of words. The
observer trains a classifier for each layer and task: part of speech, kind of phrase, semantic role, coreference (Tenney
et al. 2018). The figure has two floors: the most frequent label, and the untrained model.
"""

import matplotlib.pyplot as plt
import numpy as np
import shared_runs

from lmdyn.analysis.probing.edge_probes import EdgeClassifier
from lmdyn.callbacks import EdgeProbe
from lmdyn.datamodules import SpanCorpus

run = shared_runs.albert()
observer = EdgeProbe(
    probe=SpanCorpus(run.data.corpus), train_tokens=5000, validation_tokens=2000, test_tokens=4000,
    classifier=EdgeClassifier(learning_rate=3e-3, max_updates=300, evaluate_every=100),
)  # fmt: skip
rows = run.observe(observer, steps=[0, run.last])
f1 = rows[rows["quantity"] == "f1"].groupby(["task", "step"], observed=True)["value"].max().unstack()
majority = rows[rows["quantity"] == "majority"].groupby("task", observed=True)["value"].first()

tasks = ["pos", "constituents", "roles", "coreference"]
labels = ["part of speech", "kind of phrase", "semantic role", "coreference"]
figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
places = np.arange(len(tasks))
bars = (
    ("most frequent label", majority[tasks], "0.8"),
    ("untrained", f1.loc[tasks, 0], "C1"),
    ("trained", f1.loc[tasks, run.last], "C0"),
)
for i, (label, heights, color) in enumerate(bars):
    drawn = ax.bar(places + (i - 1) * 0.27, heights, 0.25, label=label, color=color)
    ax.bar_label(drawn, fmt="{:.2f}", fontsize=8)
ax.set(xticks=places, xticklabels=labels, ylabel="micro-F1, best of three layers", ylim=(0, 1.05))
ax.legend(frameon=False, fontsize=8, loc="upper left")

# %%
# Most of the probe's score comes from the words themselves. Random weights keep the words distinct, so the untrained
# model is far above the most frequent label. The effect of training is the distance between the last two bars. Parts of
# speech and phrases gain most from training. For coreference, training has no visible effect. Nearly all pairs of
# mentions have the same label, and the scores are hardly above the most frequent label.
gain = (f1[run.last] - f1[0])[tasks]
print("gain by training:", *(f"{label} {g:+.2f}" for label, g in zip(labels, gain, strict=True)))
assert f1[0]["pos"] > 3 * majority["pos"]
assert gain[["pos", "constituents"]].min() > gain[["roles", "coreference"]].max() > -0.01
assert gain[["pos", "constituents"]].min() > 0.04
assert f1.loc["coreference"].max() - majority["coreference"] < 0.05
