"""Quantities of ``Geometry``."""

from lmdyn.callbacks.observing.schema import Quantity

__all__ = ["GEOMETRY", "OF_SAMPLE", "OF_VECTORS", "PARTS"]

_AT = ("<site>/<over>",)

PARTS = {"intrinsic_dimension": 1, "intrinsic_dimension_half": 2, "intrinsic_dimension_quarter": 4}
"""Estimates of the intrinsic dimension, by what the number of distinct vectors is divided."""

OF_VECTORS = (
    Quantity("vectors", "Number of vectors.", "count", low=1.0, tags=_AT),
    Quantity(
        "rankme", "RankMe: exponential entropy of the singular values of the uncentred vectors.", low=1.0, tags=_AT
    ),
    Quantity(
        "rankme_covariance", "Exponential entropy of the eigenvalues of the centred covariance.", low=1.0, tags=_AT
    ),
    Quantity("rankme_white_noise", "RankMe of as many Gaussian vectors of the same width.", low=1.0, tags=_AT),
    Quantity("participation_ratio", "(Σλ)²/Σλ² of the eigenvalues of the centred covariance.", low=1.0, tags=_AT),
    Quantity("alpha", "Exponent α of λ_i ~ i^−α over the range of indices, by least squares.", low=0.0, tags=_AT),
    Quantity("alpha_error", "Standard error of alpha, from the residuals of the line.", low=0.0, tags=_AT),
    Quantity("alpha_r2", "Share of the variance of ln λ that the power law explains.", low=0.0, high=1.0, tags=_AT),
    Quantity("anisotropy", "Mean cosine of all pairs of vectors.", low=-1.0, high=1.0, tags=_AT),
    Quantity(
        "token_kurtosis", "Excess kurtosis over a vector's components, mean over vectors.", low=-2.0, tags=_AT
    ),
    Quantity("unit_kurtosis", "Excess kurtosis of a unit over vectors, mean over units.", low=-2.0, tags=_AT),
    Quantity("largest_magnitude", "Largest magnitude of any unit in any vector.", low=0.0, tags=_AT),
)  # fmt: skip

OF_SAMPLE = (
    Quantity("distinct_vectors", "Number of distinct vectors in the sample.", "count", low=1.0, tags=_AT),
    Quantity(
        "intrinsic_dimension", "TwoNN intrinsic dimension of the distinct vectors of the sample.", low=0.0, tags=_AT
    ),
    Quantity("intrinsic_dimension_half", "The same of half of them.", low=0.0, tags=_AT),
    Quantity("intrinsic_dimension_quarter", "The same of a quarter of them.", low=0.0, tags=_AT),
    Quantity("median_magnitude", "Median magnitude of all units in all vectors of the sample.", low=0.0, tags=_AT),
    Quantity(
        "largest_to_median", "Largest magnitude of all vectors over the sample's median magnitude.", low=1.0, tags=_AT
    ),
)  # fmt: skip

GEOMETRY = (
    *OF_VECTORS,
    *OF_SAMPLE,
    Quantity(
        "dead_units", "Share of units of an activation function that are above 0 for no token.", "share", low=0.0,
        high=1.0, tags=_AT,
    ),
    Quantity(
        "always_on_units", "Share of units of an activation function that are above 0 for all tokens.", "share",
        low=0.0, high=1.0, tags=_AT,
    ),
    Quantity(
        "first_token_attention", "Mean weight of a head's queries on the first token of their sequence.", low=0.0,
        high=1.0, tags=("<attention_site>/head=<head>",),
    ),
    Quantity(
        "first_token_equal", "Mean weight on the first token for equal weights on all positions that a query sees.",
        low=0.0, high=1.0, tags=("<attention_site>",),
    ),
)  # fmt: skip
