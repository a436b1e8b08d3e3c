"""Divergence of a model's attention from a reference's: of means over heads, of single heads, of matched heads."""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from lmdyn.analysis.attention.head_divergence import HeadDivergence, HeadDivergenceSums, Heads, Kind
from lmdyn.analysis.similarity.divergence import jensen_shannon, kullback_leibler
from lmdyn.analysis.statistics.distributed import all_reduce_sum, union_over_ranks

__all__ = ["AttentionSums"]

Key = tuple[str, str, str]
"""Reference, own site, the reference's site."""

_OF_HEADS: dict[str, tuple[Kind, Heads]] = {
    "attention_head_jensen_shannon": ("jensen_shannon", "same"),
    "attention_head_kullback_leibler": ("kullback_leibler", "same"),
    "attention_matched_jensen_shannon": ("jensen_shannon", "matched"),
    "attention_matched_kullback_leibler": ("kullback_leibler", "matched"),
    "attention_unmatched_jensen_shannon": ("jensen_shannon", "unmatched"),
    "attention_uniform_jensen_shannon": ("jensen_shannon", "uniform"),
}
_BY_HEAD = ("attention_head_jensen_shannon", "attention_matched_jensen_shannon")


class AttentionSums:
    """Accumulator of divergences of attention, by pair of sites.

    Args:
        heads: whether to compute also divergences of single heads, in bits.
        blocks: number of blocks of sentences for their errors; 1 for none.
        warn: function that receives what has no value, the pair, and the reason.
    """

    def __init__(self, heads: bool, blocks: int, warn: Callable[[str, Key, object], None]) -> None:
        self._heads, self._blocks, self._warn = heads, blocks, warn
        self._means: dict[Key, Tensor] = {}
        self._of_heads: dict[Key, HeadDivergenceSums] = {}

    def update(self, key: Key, own: Tensor, their: Tensor, mask: Tensor, blocks: Tensor | None) -> None:
        """Add the weights (batch, heads, query, key) of both models; mask: positions with a token.

        Raises:
            ValueError: if the two attend over different positions.
        """
        reference, site, _ = key
        if own.shape[0] != their.shape[0] or own.shape[2:] != their.shape[2:]:
            raise ValueError(
                f"attention site {site!r}: expected the same positions in both models, got {tuple(own.shape)} in this "
                f"model and {tuple(their.shape)} in reference {reference!r}"
            )
        p, q = own.double().mean(1)[mask], their.double().mean(1)[mask]
        try:
            divergences = [jensen_shannon(p, q).sum(), kullback_leibler(p, q).sum()]
        except ValueError as error:  # NaN activations of a lower layer
            self._warn("the divergence", key, error)
            divergences = [p.new_tensor(float("nan"))] * 2
        sums = torch.stack([*divergences, p.new_tensor(float(len(p)))])
        self._means[key] = self._means.get(key, 0) + sums
        if self._heads:
            held = self._of_heads.setdefault(key, HeadDivergenceSums(self._blocks))
            held.update(own, their, mask, blocks)

    def rows(self) -> list[Mapping[str, Any]]:
        """Return the rows of all pairs, summed over ranks, all of which must call it."""
        found: list[Mapping[str, Any]] = []
        for key in union_over_ranks(self._means):
            place = dict(zip(("reference", "site", "reference_site"), key, strict=True))
            sums = all_reduce_sum(self._means.get(key, torch.zeros(3, dtype=torch.float64)))
            for quantity, total in zip(("jensen_shannon", "kullback_leibler"), sums[:2], strict=True):
                found.append({"quantity": f"attention_{quantity}", **place, "value": float(total / sums[2])})
            if self._heads:
                held = self._of_heads.get(key, HeadDivergenceSums(self._blocks))
                held.reduce()
                found += [{**place, **row} for row in _of_heads(held.result(), self._blocks > 1)]
        return found


def _of_heads(found: HeadDivergence, errors: bool) -> list[dict[str, Any]]:
    """Return means with their errors, then the divergences of each head of this model, with its number."""
    rows: list[dict[str, Any]] = []
    for quantity, (kind, heads) in _OF_HEADS.items():
        if heads in ("same", "unmatched") and not found.by_head(kind, heads).shape[1]:
            continue  # different numbers of heads, or only one head
        value, error = found.mean(kind, heads)
        rows.append({"quantity": quantity, "value": value})
        if errors:
            rows.append({"quantity": f"{quantity}_error", "value": error})
    queries = float(found.queries.sum())
    for quantity in _BY_HEAD:
        kind, heads = _OF_HEADS[quantity]
        totals = found.by_head(kind, heads).sum(0).tolist()
        numbers = [own for own, _ in found.matches()] if heads == "matched" else range(len(totals))
        rows += [
            {"quantity": quantity, "head": head, "value": total / queries}
            for head, total in zip(numbers, totals, strict=True)
        ]
    return rows


def attention_table(rows: list[Mapping[str, Any]], columns: list[str]) -> pd.DataFrame:
    """Return rows as a table, with a column ``head`` if there are heads."""
    table = pd.DataFrame(rows)
    if "head" in table:
        return table.reindex(columns=[*columns[:-1], "head", columns[-1]]).astype({"head": "Int64"})
    return table.reindex(columns=columns)
