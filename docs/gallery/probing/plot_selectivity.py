"""
Does the probe or the model know the part of speech?
====================================================

A classifier on the states of a layer predicts the part of speech with high accuracy. However, the classifier may have
memorised the words. :class:`~lmdyn.callbacks.DiagnosticProbe` trains the same classifier on a control task, with a
random label for each word type. The selectivity is the difference of the two accuracies (Hewitt & Liang 2019).
"""

import matplotlib.pyplot as plt
import shared_runs

from lmdyn.callbacks import DiagnosticProbe

run = shared_runs.lstm()
observer = DiagnosticProbe(
    tasks=["upos"], targets=["current", "next"], train_tokens=8000, max_tokens=4000, bootstrap=50
)
rows = run.observe(observer, steps=[0, run.last])
accuracy, control, majority, low, high = (
    rows[rows["quantity"] == name].set_index(["step", "site", "target"])["value"]
    for name in ("accuracy", "control_accuracy", "majority", "selectivity_low", "selectivity_high")
)
sites = ["embedding", "h1", "h2"]

figure, panels = plt.subplots(1, 2, figsize=(7.6, 3.6), sharey=True, layout="constrained")
for ax, target in zip(panels, ("current", "next"), strict=True):
    for step, fill, name in ((0, "none", "untrained"), (run.last, "full", "trained")):
        for values, style, label in ((accuracy, "C0o-", "part of speech"), (control, "C1s--", "control")):
            of_sites = values[step].xs(target, level="target")[sites]
            ax.plot(sites, of_sites, style, fillstyle=fill, label=f"{label}, {name}")
    ax.axhline(
        majority[run.last].xs(target, level="target").iloc[0], color="0.6", ls=":", label="most frequent tag"
    )
    ax.set(title=f"of the {target} word", ylim=(0, 1))
panels[0].set_ylabel("accuracy, 4,000 test tokens")
figure.legend(
    *panels[0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside lower center", ncols=3
)

# %%
# With the untrained model, the probe itself learns the tags. From random states, the probe predicts the part of speech
# far more accurately than the most frequent tag does. However, the probe predicts random labels equally well, so the
# selectivity is 0 or less. After training, the probe predicts the part of speech of the current word better from each
# layer. From no layer does the probe predict the random label better. The layers distinguish words by their function,
# and the model has learned this distinction. In the right panel, the control task also labels the types of the current
# word. The intervals below are over sentences (bootstrap).
print("selectivity for the current word, h2, 95 % interval:")
for step in (0, run.last):
    print(f"  step {step}: {low[step, 'h2', 'current']:+.2f} to {high[step, 'h2', 'current']:+.2f}")
assert accuracy[0, "embedding", "current"] > 2 * majority[0].iloc[0]
assert high[0].max() < 0.05 and low[run.last, "h2", "current"] > 0.3
assert all(accuracy[run.last, s, "current"] > accuracy[0, s, "current"] + 0.04 for s in sites)
assert all(control[run.last, s, "current"] < control[0, s, "current"] + 0.02 for s in sites)
assert control[run.last, "embedding", "current"] < control[0, "embedding", "current"] - 0.1
