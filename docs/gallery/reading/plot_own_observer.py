"""
An observer of your own: does a model's confidence match its accuracy?
======================================================================

An observer that needs one pass over its text is a class with the method ``accumulator``. ``accumulator`` returns an
object that receives each batch and returns a table. The base class handles the schedule, the pass, replay and the
isolation from the training. The observer of this script measures the calibration error (Guo et al. 2017). The error
compares the probability of the likeliest word with the frequency at which the likeliest word occurs. The script
observes an LSTM during training.
"""

import lightning as L
import matplotlib.pyplot as plt
import pandas as pd
import shared_runs
import torch

from lmdyn.analysis import all_reduce_sum
from lmdyn.callbacks import ObservedBatch, Steps, StreamingObserver
from lmdyn.models import LSTMLanguageModel


class Calibration(StreamingObserver):
    """An observer that counts tokens in ten bins, by the probability of the likeliest word."""

    uses_labels = True

    def accumulator(self, module, step):
        """Return the object that receives each batch of this observation."""
        return BinSums()


class BinSums:
    """For each bin, the number of tokens, the sum of their confidence, and the number of right tokens."""

    def __init__(self):
        self.sums = torch.zeros(10, 3, dtype=torch.float64)

    def update(self, seen: ObservedBatch):
        """Add the tokens of a batch to the bins."""
        labelled = seen.labels >= 0
        confidence, best = seen.logits[labelled].float().softmax(-1).max(-1)
        hits = (best == seen.labels[labelled]).float()
        values = torch.stack([torch.ones_like(hits), confidence, hits], 1).double()
        self.sums.index_add_(0, (confidence * 10).long().clamp(max=9), values)

    def table(self):
        """Return a table with the columns quantity, site and value."""
        tokens, confidence, hits = all_reduce_sum(self.sums).T  # over ranks
        of_all = {"confidence": confidence, "accuracy": hits, "error": (confidence - hits).abs()}
        shares = {name: float(sums.sum() / tokens.sum()) for name, sums in of_all.items()}
        return pd.DataFrame({"quantity": list(shares), "site": "", "value": list(shares.values())})


observer = Calibration(schedule=Steps(per_decade=4, every=40), max_tokens=5000)
L.seed_everything(4)
folder = shared_runs.folder("own_observer")
trainer = L.Trainer(
    max_steps=240,
    callbacks=[observer],
    default_root_dir=folder,
    enable_checkpointing=False,
    **shared_runs.QUIET,
)
model = LSTMLanguageModel(
    embedding_size=64,
    hidden_size=64,
    dropout=0.0,
    anneal_factor=None,
    optimizer=lambda p: torch.optim.Adam(p, lr=5e-3),
)
trainer.fit(model, datamodule=shared_runs.grammar())

curves = observer.store.read().pivot(index="step", columns="quantity", values="value")

figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
for name, style in {"confidence": "o-", "accuracy": "s--", "error": "^:"}.items():
    ax.plot(curves.index, curves[name], style, ms=4, label={"error": "calibration error"}.get(name, name))
ax.set(
    xlabel="optimizer updates",
    ylabel="share of 5,000 tokens",
    xscale="symlog",
    xlim=(0, None),
    ylim=(0, None),
)
ax.legend(frameon=False)

# %%
# At the end, confidence and accuracy are within a few hundredths of each other (one seed, validation text). In the
# first updates, the model is underconfident. The model then predicts one frequent word, and this word is correct more
# often than the flat probabilities suggest. The calibration error is a mean over bins. If some bins are too confident
# and others are not confident enough, the error can be large although the two means agree.
print(curves[["confidence", "accuracy", "error"]].round(3).to_string())
assert curves["error"].iloc[-1] < 0.05
assert abs(curves["confidence"] - curves["accuracy"]).iloc[-1] < 0.05
assert (curves["confidence"] < curves["accuracy"]).loc[1:6].all()
