"""Quantities of ``Sparsity``."""

from lmdyn.callbacks.observing.schema import Quantity

__all__ = ["SPARSITY"]

_ROLE, _CLASS = "<site>/<role>", "<site>/<role>/<pos_class>"
_AT, _AT_CLASS = "<attention_site>/<role>", "<attention_site>/<role>/<pos_class>"
_OVER_TYPES = (
    "Mean over word types with equal weights of {}: in a band of training frequency, in half of such a band of a "
    "POS class, or in a matched sample."
)
_TYPES_ERROR = "Standard error over blocks of sentences of the mean over word types of {}."
_RHO = "Pearson's correlation over word types of {} with word frequency: all words, a POS class or a sample."
_RHO_ERROR = "Standard error of the correlation of {} with word frequency, over word types (jackknife)."


def _of(
    name: str, what: str, mean: str, unit: str, high: float | None, tag: str, tag_class: str
) -> tuple[Quantity, ...]:
    """Return a concentration or entropy: its mean over tokens, over word types, and its correlation with frequency."""
    rho = f"rho_{name.removeprefix('chi_')}"
    return (
        Quantity(name, mean, unit, low=0.0, high=high, tags=(tag,)),
        Quantity(f"{name}_types", _OVER_TYPES.format(what), unit, low=0.0, high=high, tags=(tag_class,)),
        Quantity(f"{name}_types_error", _TYPES_ERROR.format(what), unit, low=0.0, tags=(tag_class,)),
        *_correlation(rho, what, tag, tag_class),
    )


def _correlation(rho: str, what: str, tag: str, tag_class: str) -> tuple[Quantity, ...]:
    return (
        Quantity(rho, _RHO.format(what), low=-1.0, high=1.0, tags=(tag, tag_class)),
        Quantity(f"{rho}_error", _RHO_ERROR.format(what), low=0.0, tags=(tag, tag_class)),
    )


SPARSITY = (
    *_of(
        "chi_activation", "χ of the activation",
        "Mean over tokens of χ = ‖v‖₂/‖v‖₁ of the activation, from 1/√d for equal numbers to 1 for a single one.",
        "", 1.0, _ROLE, _CLASS,
    ),
    *_of(
        "chi_gradient", "χ of the gradient",
        "Mean over tokens of χ = ‖v‖₂/‖v‖₁ of the gradient of the summed loss at the activation.",
        "", 1.0, _ROLE, _CLASS,
    ),
    Quantity(
        "l1_gradient", "Mean over tokens of the gradient's ‖·‖₁; tokens that no loss reaches are left out.",
        low=0.0, tags=(_ROLE,),
    ),
    *_correlation("rho_l1_gradient", "the gradient's ‖·‖₁", _ROLE, _CLASS),
    Quantity(
        "words", "Number of words for a correlation, or in a band of training frequency.", "count", low=0.0,
        tags=("<role>", "<role>/<pos_class>"),
    ),
    Quantity(
        "chi_uniform", "χ of vectors with the same number of units, uniform about 0, as of untrained gradients.",
        low=0.0, high=1.0, tags=("<site>",),
    ),
    Quantity("chi_gaussian", "χ of Gaussian vectors with the same width.", low=0.0, high=1.0, tags=("<site>",)),
    Quantity("unigram_entropy", "Entropy of the words' frequencies, the loss of a unigram model.", "nats", low=0.0),
    *_of(
        "attention_entropy", "the entropy of attention", "Mean over tokens and heads of the entropy of attention.",
        "nats", None, _AT, _AT_CLASS,
    ),
    *_of(
        "normalized_attention_entropy", "the normalized entropy of attention",
        "Mean of the entropy of attention over that of equal weights on all positions, without tokens of one position.",
        "", 1.0, _AT, _AT_CLASS,
    ),
    Quantity("frequency", "Occurrences of each word in the text of the frequencies.", "count", low=0.0, tags=()),
)  # fmt: skip
"""``chi_activation``, ``chi_gradient``, ``l1_gradient`` and the entropies are also stored by word, but not logged."""
