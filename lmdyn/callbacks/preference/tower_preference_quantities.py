"""What ``TowerPreference`` records."""

from lmdyn.callbacks.observing.schema import Quantity

__all__ = ["TOWER_PREFERENCE"]

_REFERENCE = ("reference/<name>",)

TOWER_PREFERENCE = (
    Quantity(
        "mean_probability", "Mean probability of the word, over all positions, of the output layer of each tower, in "
        "the order of the sites.", low=0.0, high=1.0, better="higher", tags=("tower/<number>",),
    ),
    Quantity("head_loss", "Its mean −ln p.", "nats", low=0.0, better="lower", tags=("tower/<number>",)),
    Quantity("primary_tower", "Number of the tower with the higher mean probability.", low=1.0),
    Quantity("spread", "Standard deviation of the preference over words.", "nats", low=0.0),
    Quantity(
        "reliability", "Of the preference, from two halves of the text (Spearman–Brown): the noise of the text alone; "
        "an untrained model's may be near 1.", high=1.0,
    ),
    Quantity(
        "head_reliability", "Pearson's correlation of the preferences by output layers of two seeds (second_seed).",
        low=-1.0, high=1.0,
    ),
    Quantity(
        "frequency_rank_correlation", "Spearman's, of the preference with the frequency rank, 1 of the most frequent.",
        low=-1.0, high=1.0,
    ),
    Quantity(
        "preference", "Logarithm of the ratio of the towers' mean probabilities, above 0 where the primary one is "
        "better: mean of words by their most frequent tag; by word it is stored.", "nats", tags=("upos/<tag>",),
    ),
    Quantity(
        "correlation", "Pearson's, with the preference of a reference.", low=-1.0, high=1.0, tags=_REFERENCE,
    ),
    Quantity(
        "rank_correlation", "Spearman's, with the preference of a reference.", low=-1.0, high=1.0, tags=_REFERENCE,
    ),
    Quantity("count", "Occurrences of a word in the text that frequencies are from.", "count", low=1.0, tags=()),
    Quantity("standard_error", "Of a word's preference, over texts.", "nats", low=0.0, tags=()),
)  # fmt: skip
