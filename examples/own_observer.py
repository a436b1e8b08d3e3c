"""Your own observer: it measures how well calibrated a model is (expected calibration error, Guo et al. 2017).

``L.Trainer(callbacks=[Calibration(schedule=Steps(per_decade=4))])`` attaches the observer. A configuration names it by
its path, ``class_path: own_observer.Calibration``. ``lmdyn analyze`` replays it over checkpoints.
"""

# [readme]
import pandas as pd
import torch
from matplotlib.figure import Figure

from lmdyn.analysis import all_reduce_sum
from lmdyn.callbacks import ObservedBatch, Quantity, StreamingObserver


class Calibration(StreamingObserver):
    """Sort tokens into bins by the probability of the likeliest word; compare confidence and accuracy of a bin."""

    uses_labels = True
    recorded = (
        Quantity("confidence", "Mean probability of the likeliest word.", "share", low=0.0, high=1.0),
        Quantity(
            "accuracy", "Tokens whose likeliest word is right.", "share", low=0.0, high=1.0, better="higher"
        ),
        Quantity(
            "calibration_error", "Mean gap of both over bins.", "share", low=0.0, high=1.0, better="lower"
        ),
    )

    def __init__(self, *, bins: int = 10, **kwargs):
        super().__init__(**kwargs)
        self.bins = bins

    def accumulator(self, module, step):
        return BinSums(self.bins)

    @staticmethod
    def figures(observations, settings):
        figure = Figure(figsize=(5, 3.4), layout="constrained")
        axes = figure.subplots()
        for quantity, rows in observations.groupby("quantity"):
            axes.plot(rows["step"], rows["value"], ".-", label=quantity)
        axes.set(xlabel="optimizer updates", ylabel="share of tokens", xscale="symlog")
        axes.legend(frameon=False)
        return {"calibration": figure}


class BinSums:
    """For each bin: the number of tokens, the sum of their confidence, and the number of correct predictions."""

    def __init__(self, bins):
        self.sums = torch.zeros(bins, 3, dtype=torch.float64)

    def update(self, seen: ObservedBatch):
        labelled = seen.labels >= 0
        confidence, best = seen.logits[labelled].float().softmax(-1).max(-1)
        hits = (best == seen.labels[labelled]).float()
        bins = (confidence * len(self.sums)).long().clamp(max=len(self.sums) - 1)
        values = torch.stack([torch.ones_like(hits), confidence, hits], 1).double()
        self.sums = self.sums.to(values.device).index_add(0, bins, values)

    def table(self):
        tokens, confidence, hits = (
            all_reduce_sum(self.sums).cpu().T
        )  # every rank calls this, and gets the same numbers
        of_all = {"confidence": confidence, "accuracy": hits, "calibration_error": (confidence - hits).abs()}
        shares = {quantity: float(sums.sum() / tokens.sum()) for quantity, sums in of_all.items()}
        return pd.DataFrame({"quantity": list(shares), "site": "", "value": list(shares.values())})


# [end]
