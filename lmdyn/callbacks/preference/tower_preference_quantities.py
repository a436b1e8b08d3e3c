"""Quantities of ``TowerPreference``."""

from lmdyn.callbacks.observing.schema import Quantity

__all__ = ["TOWER_PREFERENCE"]

_REFERENCE = ("reference/<name>",)

TOWER_PREFERENCE = (
    Quantity(
        "mean_probability", "Mean probability of the word, over all positions, of the output layer of each tower, in "
        "the order of the sites.", low=0.0, high=1.0, better="higher", tags=("tower/<number>",),
    ),
    Quantity("head_loss", "Mean −ln p of the output layer.", "nats", low=0.0, better="lower", tags=("tower/<number>",)),
    Quantity("primary_tower", "Number of the tower with the higher mean probability.", low=1.0),
    Quantity("spread", "Standard deviation of the preference over words.", "nats", low=0.0),
    Quantity(
        "reliability", "Reliability of the preference, from two halves of the text (Spearman–Brown): only the noise of "
        "the text; that of an untrained model may be near 1.", high=1.0,
    ),
    Quantity(
        "head_reliability", "Pearson's correlation of the preferences by output layers of two seeds (second_seed).",
        low=-1.0, high=1.0,
    ),
    Quantity(
        "frequency_rank_correlation", "Spearman's correlation with the frequency rank, 1 for the most frequent word.",
        low=-1.0, high=1.0,
    ),
    Quantity(
        "preference", "Logarithm of the ratio of the towers' mean probabilities, above 0 if the primary one is "
        "better: mean of words by their most frequent tag; stored by word.", "nats", tags=("upos/<tag>",),
    ),
    Quantity(
        "correlation", "Pearson's correlation with the preference of a reference.", low=-1.0, high=1.0, tags=_REFERENCE,
    ),
    Quantity(
        "rank_correlation", "Spearman's correlation with that preference.", low=-1.0, high=1.0, tags=_REFERENCE,
    ),
    Quantity("count", "Occurrences of a word in the text of the frequencies.", "count", low=1.0, tags=()),
    Quantity("standard_error", "Standard error of a word's preference, over texts.", "nats", low=0.0, tags=()),
)  # fmt: skip
