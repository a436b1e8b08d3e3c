"""Quantities that ``WeightSpectra`` records."""

from lmdyn.callbacks.observing.schema import Quantity

__all__ = ["LOGGED", "WEIGHT_SPECTRA"]

_MATRIX = ("<site>/<matrix>",)
_REFERENCE = ("<site>/<matrix>/<reference>",)

WEIGHT_SPECTRA = (
    Quantity("frobenius_norm", "Square root of the sum of the squares of all entries.", low=0.0, tags=_MATRIX),
    Quantity("spectral_norm", "Largest singular value.", low=0.0, tags=_MATRIX),
    Quantity("nuclear_norm", "Sum of the singular values.", low=0.0, tags=()),
    Quantity("mean_singular_value", "Mean of the singular values.", low=0.0, tags=()),
    Quantity("median_singular_value", "Median of the singular values.", low=0.0, tags=()),
    Quantity("singular_value_variance", "Variance of the singular values.", low=0.0, tags=()),
    Quantity("stable_rank", "Squared Frobenius norm over squared spectral norm.", low=0.0, tags=_MATRIX),
    Quantity("effective_rank", "Exponential of the entropy of the normalized singular values.", low=0.0, tags=_MATRIX),
    Quantity("numerical_rank", "Number of singular values above the tolerance.", "count", low=0.0, tags=()),
    Quantity("condition_number", "Largest singular value over the smallest above the tolerance.", low=1.0, tags=()),
    Quantity("gini", "Gini index of the magnitudes of the entries.", low=0.0, high=1.0, tags=()),
    Quantity("hoyer", "Hoyer's sparsity of the entries.", low=0.0, high=1.0, tags=()),
    Quantity("singular_value", "The k-th largest singular value.", low=0.0, tags=()),
    Quantity("distance", "Frobenius norm of the difference from the reference.", low=0.0, tags=()),
    Quantity("relative_distance", "Distance over the Frobenius norm of the reference.", low=0.0, tags=_REFERENCE),
    Quantity("angle", "Angle between the weights and the reference as vectors.", "degrees", low=0.0, high=180.0,
             tags=_REFERENCE),
    Quantity("output_cosine", "Mean cosine of a token's vectors in the embedding and in the output layer.", low=-1.0,
             high=1.0, tags=_MATRIX),
    Quantity("output_cka", "Linear CKA of the embedding and the output layer, with tokens as samples.", low=0.0,
             high=1.0, tags=_MATRIX),
)  # fmt: skip

LOGGED = tuple(q.name for q in WEIGHT_SPECTRA if q.tags)
"""Quantities of whole matrices that loggers receive; all others are only stored."""
