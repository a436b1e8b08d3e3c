"""
Which layer decreases the loss?
===============================

:class:`~lmdyn.callbacks.LossChangeAllocation` divides each change of the loss between two checkpoints among all
parameters. The share of a parameter is the gradient along the straight line between the checkpoints, times the change
of the parameter. The shares add up to the change of the loss, also for each class of words.
"""

import matplotlib.pyplot as plt
import shared_runs

from lmdyn.callbacks import LossChangeAllocation

run = shared_runs.lstm()
rows = run.observe(LossChangeAllocation(layers=["upos"], bands=[], max_tokens=800))
shares = rows[(rows["quantity"] == "allocation") & (rows["parameter"] == "") & (rows["site"] != "")]
layers = {"embedding": "word vectors", "h1": "first layer", "h2": "last layer", "logits": "output layer"}
by_layer = shares[shares["by"] == ""].pivot(index="step", columns="site", values="value").cumsum()
closed = ["ADP", "AUX", "CCONJ", "DET", "PART", "PRON", "SCONJ"]
opened = ["ADJ", "ADV", "INTJ", "NOUN", "PROPN", "VERB"]
of_class = {
    name: shares[(shares["by"] == "upos") & shares["group"].isin(tags)].groupby("site")["value"].sum()
    for name, tags in (("closed classes", closed), ("open classes", opened))
}

figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.4), layout="constrained")
for site, label in layers.items():
    left.plot(by_layer.index, by_layer[site], ".-", label=label)
left.axhline(0, color="0.7", lw=0.8)
left.set(
    xlabel="optimizer updates",
    ylabel="change of the loss (nats)",
    xscale="log",
    title="sum of the shares so far",
)
left.legend(frameon=False, fontsize=8)
for i, (name, values) in enumerate(of_class.items()):
    at = [j + 0.4 * i - 0.2 for j in range(len(layers))]
    right.bar(at, [values[site] / values.sum() for site in layers], width=0.38, label=name)
right.set_xticks(range(len(layers)), [label.replace(" ", "\n") for label in layers.values()])
right.axhline(0, color="0.7", lw=0.8)
right.set(ylabel="share of the fall", title="by class of the word")
right.legend(frameon=False, fontsize=8)

# %%
# The figure shows the shares along straight lines between checkpoints. ``allocation: path`` follows the updates during
# training, and gives other shares. A parameter can decrease the loss along one path and increase the loss along the
# other path. In five LSTMs like the LSTM of this script, the output layer's share of the fall was about 0.24 higher
# along lines than along updates.
whole = rows[(rows["quantity"] == "loss_change")]["value"].sum()
added = by_layer.iloc[-1].sum()
print(f"the loss changes by {whole:.2f} nats; the shares add up to {added:.2f}")
for name, values in of_class.items():
    print(f"{name}: the output layer pays {values['logits'] / values.sum():.0%} of {-values.sum():.2f} nats")
assert abs(added - whole) < 0.02 * abs(whole)
