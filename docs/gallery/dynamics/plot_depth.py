"""
How many applications of the layer does the prediction of a masked word need?
=============================================================================

:class:`~lmdyn.callbacks.DepthPerformance` predicts masked words from the state after t applications of ALBERT's layer.
The training of the model used three applications, and t is below and above three. The observer uses two decoders: the
model's own decoder, and a decoder that the observer retrains for each t.
"""

import matplotlib.pyplot as plt
import shared_runs

from lmdyn.analysis import HeadTraining
from lmdyn.callbacks import DepthPerformance

run = shared_runs.albert()
observer = DepthPerformance(
    times=[0, 1, 2, 3, 4, 6, 10], training=HeadTraining(updates=80, learning_rate=1e-3)
)
rows = run.observe(observer, steps=[run.last])
masked = rows[
    rows["where"] == "mask"
]  # places that show the mask token; at others the word itself may be read
accuracy = masked[masked["quantity"] == "accuracy"].pivot(index="t", columns="how", values="value")
floor = masked[masked["quantity"] == "floor"].set_index("how")["value"]
depth = int(rows[rows["quantity"] == "depth"]["value"].iloc[0])

figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
ax.plot(accuracy.index, accuracy["fixed"], "o-", label="the model's own decoder")
ax.plot(accuracy.index, accuracy["retrained"], "s--", label="decoder retrained for each t")
ax.axhline(floor["most_frequent"], color="k", ls=":", label="most frequent word")
ax.axvline(depth, color="0.8", zorder=0)
ax.text(depth + 0.1, 0.02, "the model's own depth", color="0.4", fontsize=8)
ax.set(xlabel="t, applications of the layer", ylabel="share of masked words predicted", ylim=(0, None))
ax.legend(frameon=False, fontsize=8, loc="lower right")

# %%
# Before the first application, the state contains no information about other words. Even a retrained decoder then only
# reaches the floor. The accuracy rises up to about the depth of training. Beyond this depth, the accuracy of the
# model's own decoder falls to the floor. A retrained decoder still finds most of the information. The state therefore
# still contains the word, but in a different form.
print(accuracy.round(3).to_string(), f"floor {floor['most_frequent']:.3f}", sep="\n")
assert accuracy["retrained"][0] < floor["most_frequent"] + 0.03
assert accuracy["fixed"].idxmax() in (2, 3, 4) and accuracy["fixed"].max() > 1.5 * floor["most_frequent"]
lost = accuracy.loc[depth] - accuracy.loc[10]
assert accuracy["fixed"][10] < floor["most_frequent"] + 0.03
assert lost["fixed"] > 2 * max(lost["retrained"], 0)
