"""
Do two seeds agree?
===================

Two language models with equal settings and data, but different initial weights, have no units in common.
:class:`~lmdyn.callbacks.Similarity` measures whether the layers of the two models span the same directions. The
observer compares each checkpoint of one model with the other model at the end of training. The floor is the other model
before training.
"""

import matplotlib.pyplot as plt
import shared_runs

from lmdyn.callbacks import Checkpoint, Similarity

run, other = shared_runs.lstm(seed=1), shared_runs.lstm(seed=2)
kind = "lmdyn.models.LSTMLanguageModel"
references = {"trained": Checkpoint(other.folder, kind), "untrained": Checkpoint(other.folder, kind, step=0)}
rows = run.observe(Similarity(reference=references, max_tokens=5000))
rows = rows[rows["site"] == rows["reference_site"]]
curves, ranks = (
    rows[rows["quantity"] == name].pivot(index="step", columns=["reference", "site"], values="value")
    for name in ("svcca", "rank")
)

labels = {"embedding": "word vectors", "h1": "first layer", "h2": "last layer"}
figure, panels = plt.subplots(1, 3, figsize=(8, 3.2), sharey=True, layout="constrained")
for ax, (site, label) in zip(panels, labels.items(), strict=True):
    ax.plot(curves.index, curves["trained"][site], "o-", ms=4, label="other seed, trained")
    ax.plot(curves.index, curves["untrained"][site], "k:", label="other seed, untrained")
    ax.set(title=label, xscale="symlog", xlim=(0, None), ylim=(0, 1.02), xlabel="optimizer updates")
panels[0].set_ylabel("SVCCA, 5,000 tokens")
panels[0].legend(frameon=False, fontsize=8, loc="lower left")

# %%
# At the end, the layers of the two models agree far above the floor. The agreement of the word vectors is hardly above
# the floor. Before step 100, one or two directions contain 99 % of the variance of the last layer, and the floor is
# above the curve. The curves of the last layer are therefore meaningless before step 100.
end = curves.iloc[-1]
print(f"two seeds; at step {curves.index[-1]} (trained, floor):")
print(
    *(
        f"  {label}: {end['trained', site]:.2f}, {end['untrained', site]:.2f}"
        for site, label in labels.items()
    ),
    sep="\n",
)
rank = ranks["trained"]["h2"]
print(f"directions of the last layer at step 10: {rank[10]:.0f}, at the end: {rank.iloc[-1]:.0f}")
assert all(end["trained", site] > end["untrained", site] + 0.15 for site in ("h1", "h2"))
assert end["trained", "embedding"] < end["untrained", "embedding"] + 0.1
assert rank[10] <= 4 < rank.iloc[-1]
assert curves["untrained"]["h2"][10] > curves["trained"]["h2"][10] + 0.2
