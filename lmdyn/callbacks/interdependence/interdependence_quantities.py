"""Quantities of ``Interdependence``."""

from lmdyn.callbacks.observing.schema import Quantity

__all__ = ["INTERDEPENDENCE"]

_DISTANCE = ("<site>/distance=<d>",)
_DI = "interdependence of words d apart"
_CONTROLS = {
    "mean_": "Mean over distances of a correlation.",
    "known_": "A correlation over the pairs of known words (controls).",
    "off_by_one_": "A correlation with distances in the tree that is shifted by one word (controls).",
    "shuffled_": "A correlation with distances in the tree of another sentence (controls).",
}
"""Meaning by prefix of a correlation's name, which may have several prefixes."""


def _correlation(name: str, meaning: str, tags: tuple[str, ...]) -> Quantity:
    return Quantity(name, meaning, low=-1.0, high=1.0, tags=tags)


INTERDEPENDENCE = (
    Quantity("di", f"Mean {_DI}: 0 if contributions add up.", low=0.0, tags=_DISTANCE),
    Quantity("di_low", f"Lower end of the 95 % interval of the mean {_DI}.", tags=_DISTANCE),
    Quantity("di_high", f"Upper end of the 95 % interval of the mean {_DI}.", low=0.0, tags=_DISTANCE),
    _correlation("syntactic_correlation", f"Spearman's ρ of the {_DI} with syntactic distance.", _DISTANCE),
    _correlation(
        "frequency_correlation", f"Spearman's ρ of the {_DI} with the training count of the left or the right word.",
        (f"{_DISTANCE[0]}/<word>",),
    ),
    _correlation(
        "partial_correlation", f"Spearman's ρ of the {_DI} with syntactic distance, given the ranks of both counts.",
        _DISTANCE,
    ),
    _correlation(
        "matched_correlation", f"Spearman's ρ of the {_DI} with syntactic distance, among pairs of similar counts.",
        _DISTANCE,
    ),
    _correlation("mean_syntactic_correlation", "Mean of syntactic_correlation over distances.", ("<site>",)),
    _correlation("mean_matched_correlation", "Mean of matched_correlation over distances.", ("<site>",)),
    *(_correlation(f"{prefix}<correlation>", meaning, ()) for prefix, meaning in _CONTROLS.items()),
    *(
        Quantity(f"{prefix}<correlation>_error", "Standard error over blocks of sentences.", low=0.0, tags=())
        for prefix in ("", *_CONTROLS)
    ),
    Quantity("pairs", "Number of pairs of a mean.", "count", low=0.0, tags=()),
    Quantity("unknown_pairs", "Pairs left out because of an unknown word.", "count", low=0.0, tags=()),
    Quantity(
        "sampling_error", "Root mean square of the pairs' standard errors over drawn coalitions (shapley).", low=0.0,
        tags=(),
    ),
)  # fmt: skip
