"""
What did the second half of training change?
============================================

This script compares a model with its own earlier weights. ``Previous`` is the checkpoint before each observation.
``Earlier(at=[156])`` is the checkpoint of step 156, at half of the training. The measure is linear CKA over 5,000
tokens. If the value is 1, the geometry of a layer did not change.
"""

import matplotlib.pyplot as plt
import pandas as pd
import shared_runs

from lmdyn.callbacks import Earlier, Previous, Similarity

run = shared_runs.lstm()
half = run.last // 2
references = {"previous": Previous(), "half": Earlier(at=[half])}
rows = run.observe(Similarity(reference=references, measures=["linear_cka"], max_tokens=5000))
rows = rows[(rows["site"] == rows["reference_site"]) & (rows["quantity"] == "linear_cka")]
curves = rows.pivot(index="step", columns=["reference", "site"], values="value")
loss = pd.read_parquet(run.folder / "observations" / "learning_curves").query(
    "quantity == 'loss' and by == ''"
)
loss = loss.set_index("step")["value"]

figure, (left, right) = plt.subplots(1, 2, figsize=(7.8, 3.4), layout="constrained", width_ratios=[3, 2])
labels = {"embedding": "word vectors", "h1": "first layer", "h2": "last layer"}
for marker, (site, label) in zip("o^s", labels.items(), strict=True):
    left.plot(curves.index, 1 - curves["previous"][site], marker=marker, ms=4, label=label)
left.set(
    xlabel="optimizer updates", ylabel="1 − CKA with the checkpoint before", xscale="symlog", xlim=(0, None)
)
left.legend(frameon=False, fontsize=8)
end = curves[f"half step {half}"].iloc[-1]
right.bar(list(labels.values()), [1 - end[site] for site in labels], color=["C0", "C1", "C2"])
right.set(ylabel=f"1 − CKA of step {run.last} with step {half}")
right.tick_params(axis="x", labelsize=8)

# %%
# The geometry changes most in the first half of training, between steps 32 and 100. Between steps 32 and 100, the loss
# falls below the entropy of the word frequencies. A model can reach the entropy of the word frequencies without
# context. The second half of training reduces the loss further, but changes the layers only a little. The word vectors
# change least.
print(
    f"loss: {loss[0]:.2f} at step 0, {loss[half]:.2f} at step {half}, {loss[run.last]:.2f} at step {run.last}"
)
print("1 − CKA over the second half:", *(f"{label} {1 - end[site]:.2f}" for site, label in labels.items()))
sparsity = pd.read_parquet(run.folder / "observations" / "sparsity")
entropy = sparsity[sparsity["quantity"] == "unigram_entropy"]["value"].iloc[-1]
print(
    f"entropy of the words' frequencies {entropy:.2f}; loss {loss[32]:.2f} at step 32, {loss[100]:.2f} at step 100"
)
most = (1 - curves["previous"]).idxmax()
print("most change up to step:", most.to_dict())
assert loss[32] > entropy - 0.1 and loss[100] < entropy - 0.2
assert most[["embedding", "h2"]].between(32, 100).all()
assert 0.2 < loss[half] - loss[run.last] < loss[0] - loss[half]
assert end["embedding"] > max(end["h1"], end["h2"]) and end.min() > 0.7
