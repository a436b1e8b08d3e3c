"""Rows, conditions and smallest differences that the claims of the sparsity study have in common."""

from lmdyn.claims.claim import Above, Below, Condition
from lmdyn.claims.forks import at_rate
from lmdyn.claims.numbers import At, Difference, Layer, Rows

__all__ = [
    "CONCENTRATED",
    "ENTROPY",
    "FIRST",
    "HOW_CONCENTRATED",
    "HOW_MUCH_STRONGER",
    "HOW_SLIGHT",
    "HOW_STRONG",
    "LAST",
    "LEARNED",
    "LEVEL",
    "LOSS",
    "SAMPLES",
    "SLIGHT",
    "STRONG",
    "chi",
    "rho",
    "suffix",
    "words",
]

SLIGHT = 0.1
STRONG = 0.3
CONCENTRATED = 0.02
FIRST, LAST = Layer("first"), Layer("last")


def rho(what: str, site: str | Layer, role: str, sample: str = "", *, error: bool = True) -> Rows:
    """ρ of an ``activation``, a ``gradient`` or an ``l1_gradient``."""
    of = (("role", role), ("pos_class", sample))
    return Rows("Sparsity", f"rho_{what}", site, of, error=f"rho_{what}_error" if error else None)


def chi(sample: str) -> Rows:
    """Mean χ of the gradient at the last hidden layer over the types of a sample as targets."""
    of = (("role", "target"), ("pos_class", sample))
    return Rows("Sparsity", "chi_gradient_types", LAST, of, error="chi_gradient_types_error")


def words(sample: str, role: str, least: int, *, rate: float | None = None) -> Condition:
    """At least so many words are behind the number; of the fork at a rate, where one is given."""
    rows = Rows("Sparsity", "words", where=(("role", role), ("pos_class", sample)))
    rows = rows if rate is None else at_rate(rows, rate)
    return Condition(f"at least {least} words ({sample or 'all'}, {role})", At(rows), Above(least - 0.5))


def suffix(sample: str) -> str:
    """What the name of a claim, or of a sample of a class, ends in."""
    return f"_{sample}" if sample else ""


ENTROPY = Rows("Sparsity", "unigram_entropy")
LOSS = Rows("LearningCurves", "loss", where=(("by", ""), ("group", "")))
LEARNED = Condition(
    "the loss is at least 0.1 nats below the entropy of the words' frequencies",
    Difference(At(LOSS), At(ENTROPY)),
    Below(-0.1),
)
SAMPLES = {
    "": "all words",
    "no_top20": "without the 20 most frequent words",
    "count100": "words of at least 100 occurrences, as published",
}
HOW_SLIGHT = "0.1: the publication calls a correlation of −0.1 slight (section 4)"
HOW_STRONG = "0.3 is what Cohen (1988) calls medium: less is not strong; 0.1 is slight (section 4)"
HOW_MUCH_STRONGER = "0.2, between strong (0.3) and slight (0.1)"
HOW_CONCENTRATED = (
    "2 % of χ: a quarter of the way from uniform to Gaussian vectors, neither of which has any structure; 4 % of the "
    "number of equal units that would have this χ"
)
LEVEL = "0: a curve that has levelled off; the rise from the untrained model is not what is meant"
