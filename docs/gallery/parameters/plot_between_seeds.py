"""
How much of the barrier between two seeds is the order of their units?
======================================================================

:class:`~lmdyn.callbacks.Landscape` computes the loss along the straight line between two networks. Two seeds have their
units in different orders. With ``match``, the observer first permutes the units of the other network. After the
permutation, the weights of both networks are close. The permutation does not change the output of the other network.
"""

import matplotlib.pyplot as plt
import shared_runs

from lmdyn.callbacks import Checkpoint, Landscape

run, other = shared_runs.lstm(seed=1), shared_runs.lstm(seed=2)
reference = {"seed": Checkpoint(other.folder, "lmdyn.models.LSTMLanguageModel")}
rows = run.observe(Landscape(reference=reference, match=True, points=11, max_tokens=3000), steps=[run.last])

figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
lines = rows[rows["quantity"] == "line_loss"]
for units, label in (("own", "units as they are"), ("matched", "units matched")):
    line = (
        lines[lines["units"] == units].assign(alpha=lambda t: t["alpha"].astype(float)).sort_values("alpha")
    )
    ax.plot(line["alpha"], line["value"], "o-", ms=4, label=label)
ends = line["value"].iloc[[0, -1]]
ax.plot([0, 1], ends, color="0.6", ls=":", label="between the ends")
ax.set(xlabel="position on the line: 0 is the other seed, 1 this one", ylabel="loss (nats)")
ax.legend(frameon=False)

# %%
# The barrier is the highest rise of the loss above the dotted line, with an interval over sentences. Matching removes
# most of the barrier. Three causes are possible for the rest of the barrier: the local optimum of the matching, the
# size of the networks, and what the networks learned.
barrier = rows[rows["quantity"].str.startswith("barrier")].pivot(
    index="units", columns="quantity", values="value"
)
for units, row in barrier.iterrows():
    print(f"{units}: barrier {row['barrier']:.2f} [{row['barrier_low']:.2f}, {row['barrier_high']:.2f}] nats")
assert barrier.loc["matched", "barrier_high"] < barrier.loc["own", "barrier_low"]
