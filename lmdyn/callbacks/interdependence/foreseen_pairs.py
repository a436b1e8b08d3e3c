"""Pairs of words that an observation will leave out, and its memory."""

from collections.abc import Iterator
from typing import Protocol

import pandas as pd

from lmdyn.callbacks.conditions.finding import Cost, Foreseen, expected

__all__ = ["foreseen_pairs"]


class Pairs(Protocol):
    """The pairs of words of an observer."""

    words: int
    table: pd.DataFrame


def foreseen_pairs(
    pairs: Pairs, max_distance: int, min_pairs: int, without_unknown: bool
) -> Iterator[Foreseen]:
    """Yield findings about pairs that the summary will leave out, and the memory of the values of all pairs.

    Args:
        pairs: the pairs.
        max_distance: maximum distance of the words of a pair.
        min_pairs: minimum number of pairs of a reported mean.
        without_unknown: whether pairs with unknown words are left out.
    """
    table = pairs.table
    if bool(table["syntactic"].notna().any()):
        table = table[table["syntactic"] >= 0]
    if without_unknown:
        table = table[~table["unknown"]]
    counts = table.groupby("distance").size().reindex(range(1, max_distance + 1), fill_value=0)
    few = counts[counts < min_pairs]
    if len(few):
        yield expected(
            f"{min_pairs} pairs of words at each distance up to {max_distance}",
            f"{', '.join(f'{n} at {d}' for d, n in few.items())}",
            "lower `min_pairs` or `max_distance`, or use more sentences",
            stops=False,
        )
    yield Cost(
        f"values of {pairs.words:,} words at {max_distance} distances, of two sites, with standard errors",
        2 * 2 * 8 * pairs.words * max_distance,
        "lower `max_tokens`",
    )
