"""Quantities of ``Similarity``."""

import math

from lmdyn.callbacks.observing.schema import Quantity

__all__ = ["SIMILARITY"]

_PAIR = ("<site>/<reference>/<reference_site>",)
_AND_HEADS = (*_PAIR, f"{_PAIR[0]}/head=<head>")


def _with_errors(measure: str, meaning: str, low: float = 0.0) -> tuple[Quantity, ...]:
    """Return a measure from covariances: its value, the ends of its interval, and its jackknife correction and error.

    For values from ``low`` to 1, the ends 2θ − q of a basic bootstrap interval are from 2·low − 1 to 2 − low.
    """
    least, most = 2 * low - 1, 2 - low
    return (
        Quantity(measure, meaning, low=low, high=1.0, tags=_PAIR),
        Quantity(
            f"{measure}_low",
            f"Lower end of the bootstrap interval of {measure}.",
            "",
            least,
            most,
            tags=_PAIR,
        ),
        Quantity(
            f"{measure}_high",
            f"Upper end of the bootstrap interval of {measure}.",
            "",
            least,
            most,
            tags=_PAIR,
        ),
        Quantity(f"{measure}_corrected", f"{measure} with the bias correction of the jackknife.", tags=_PAIR),
        Quantity(
            f"{measure}_error", f"Standard error of {measure} over texts (jackknife).", low=0.0, tags=_PAIR
        ),
    )


def _of_heads(
    name: str, meaning: str, high: float | None, tags: tuple[str, ...] = _PAIR
) -> tuple[Quantity, ...]:
    """Return a divergence of single heads, and its error."""
    return (
        Quantity(name, meaning, "bits", low=0.0, high=high, tags=tags),
        Quantity(f"{name}_error", f"Standard error of {name} over texts (jackknife).", "bits", low=0.0, tags=_PAIR),
    )  # fmt: skip


SIMILARITY = (
    *_with_errors("svcca", "Mean canonical correlation of the directions that explain 99 % of the variance."),
    *_with_errors("svcca_<k>", "Mean canonical correlation of k directions of largest variance of each side."),
    *_with_errors("cca", "Mean canonical correlation of all directions."),
    *_with_errors("pwcca", "Canonical correlations, weighted by their projections of this model's activations."),
    *_with_errors("linear_cka", "Linear centred kernel alignment."),
    *_with_errors("debiased_linear_cka", "Linear CKA by the unbiased HSIC₁, which may be below 0.", low=-1.0),
    *_with_errors("procrustes", "Cosine between the reference and the best rotation of the activations."),
    Quantity("kernel_cka", "Centred kernel alignment of RBF kernels, on a subsample.", low=0.0, high=1.0, tags=_PAIR),
    Quantity(
        "rsa", "Spearman's correlation of the dissimilarities of all pairs of a subsample.", low=-1.0, high=1.0,
        tags=_PAIR,
    ),
    Quantity("rank", "Directions of the site that svcca keeps.", "count", low=1.0, tags=_PAIR),
    Quantity("reference_rank", "Directions of the reference's site that svcca keeps.", "count", low=1.0, tags=_PAIR),
    Quantity(
        "attention_jensen_shannon", "Divergence of attention, averaged over heads first; mean over queries.", "nats",
        low=0.0, high=math.log(2), tags=_PAIR,
    ),
    Quantity(
        "attention_kullback_leibler", "Divergence from the reference's attention, averaged over heads first.",
        "nats", low=0.0, tags=_PAIR,
    ),
    *_of_heads(
        "attention_head_jensen_shannon", "Divergence of heads of the same number: mean over heads, or of a head.",
        1.0, _AND_HEADS,
    ),
    *_of_heads("attention_head_kullback_leibler", "Divergence from the reference's head of the same number.", None),
    *_of_heads(
        "attention_matched_jensen_shannon",
        "Divergence of heads in the pairs of least total divergence: mean over heads, or of a head of this model.",
        1.0, _AND_HEADS,
    ),
    *_of_heads("attention_matched_kullback_leibler", "Divergence from the reference's head of the same pairs.", None),
    *_of_heads("attention_unmatched_jensen_shannon", "Divergence of all other pairs of heads: a baseline.", 1.0),
    *_of_heads("attention_uniform_jensen_shannon", "Divergence of this model's heads from equal weights.", 1.0),
)  # fmt: skip
