"""Quantities of ``DepthPerformance``."""

from lmdyn.callbacks.observing.schema import Quantity

__all__ = ["DEPTH_PERFORMANCE"]

_AT_DEPTH = ("<how>/t=<t>", "<how>/mask/t=<t>")

DEPTH_PERFORMANCE = (
    Quantity(
        "accuracy", "Masked tokens with the highest logit, by the fixed or the retrained decoder, at all labelled "
        "positions or only at mask tokens.", "share", low=0.0, high=1.0, better="higher", tags=_AT_DEPTH,
    ),
    Quantity("cross_entropy", "Mean −ln p of the masked tokens.", "nats", low=0.0, better="lower", tags=_AT_DEPTH),
    Quantity(
        "floor", "Accuracy of the decoder retrained at t = 0, and of the most frequent label.", "share",
        low=0.0, high=1.0, tags=("retrained", "most_frequent", "<how>/mask"),
    ),
    Quantity(
        "pearson", "Correlation with the scores of the regression task, for frozen states or fine-tuned copies.",
        low=-1.0, high=1.0, better="higher", tags=("<how>/t=<t>",),
    ),
    Quantity("depth", "L, the number of times that the model itself applies its layers.", "steps", low=1.0),
)  # fmt: skip
