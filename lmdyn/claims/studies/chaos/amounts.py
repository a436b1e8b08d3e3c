"""Thresholds of the claims about chaos, chosen before the runs were made."""

import math

from lmdyn.claims.claim import Below, Condition
from lmdyn.claims.numbers import Number

__all__ = [
    "ACCURACY",
    "HOW_LONGER",
    "HOW_SHARE",
    "HOW_SMALL",
    "LONGER",
    "SENTENCE",
    "SHARE",
    "SMALL",
    "below_ceiling",
]

SMALL = 1e-3
LONGER = round(math.log(1.5), 4)
SHARE = 0.1
ACCURACY = 0.05
HOW_SMALL = "1e-3 nats a step: ln T / T of T = 10,000 steps, below which λ is not distinguished from 0"
HOW_LONGER = "a factor of 1.5"
HOW_SHARE = "a tenth of the sentences"
SENTENCE = "one sentence in a hundred"


def below_ceiling(t: int, share: Number, whose: str = "") -> Condition:
    """Return the condition that sentences suffice for an effective dimension: its share of its ceiling is small."""
    return Condition(
        f"N_eff at t = {t}{whose} is below half of its ceiling, the number of sentences less one",
        share,
        Below(0.5),
    )
