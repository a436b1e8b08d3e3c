"""Quantities that ``LossChangeAllocation`` records."""

from lmdyn.callbacks.observing.schema import Quantity

__all__ = ["LOSS_CHANGE"]

_FORMS = ("<site>", "<by>/<group>")

LOSS_CHANGE = (
    Quantity("loss", "Mean token loss of the probe set, each row read on its own.", "nats", low=0.0, better="lower"),
    Quantity("loss_change", "Loss at this step less the loss at the start of the interval.", "nats"),
    Quantity(
        "allocation",
        "Share of the change of the loss: of a layer, an application or a parameter, of a class of tokens, or of a "
        "class of rows of the embedding; below 0 it helps.",
        "nats", tags=_FORMS,
    ),
    Quantity(
        "first_order", "The same to first order: gradient at the start times difference.", "nats", tags=("", *_FORMS)
    ),
    Quantity("residual", "Error of the quadrature: all allocations less the change of the loss.", "nats"),
    Quantity("gross_change", "Changes of the loss at the updates of a path, without signs.", "nats", low=0.0, tags=()),
    Quantity("gross_residual", "Residuals of these updates, without signs.", "nats", low=0.0, tags=()),
    Quantity(
        "helping_share", "Entries of the parameters with an allocation below 0, of those with one.", "share",
        low=0.0, high=1.0, tags=("", "<site>"),
    ),
    Quantity("updates", "Updates from the start of the interval.", "count", low=0.0, tags=()),
    Quantity("points", "Gradients of the quadrature, over all lines.", "count", low=0.0, tags=()),
    Quantity("class_tokens", "Tokens of the class in the probe set.", "count", low=0.0, tags=()),
)  # fmt: skip
