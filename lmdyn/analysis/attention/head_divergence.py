"""Divergence of the attention heads of two models on the same text, head by head and for the best assignment."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.attention.attention_scores import check_map_shape, on_tokens
from lmdyn.analysis.statistics.distributed import all_reduce_sums
from lmdyn.analysis.statistics.jackknife import jackknife

__all__ = ["HeadDivergence", "HeadDivergenceSums", "head_divergences"]

Kind = Literal["jensen_shannon", "kullback_leibler"]
Heads = Literal["same", "matched", "unmatched", "uniform"]

_BITS = 1 / np.log(2)
_NAMES = {"same": "head"}
_MEANS: tuple[tuple[Kind, Heads], ...] = (
    ("jensen_shannon", "same"),
    ("kullback_leibler", "same"),
    ("jensen_shannon", "matched"),
    ("kullback_leibler", "matched"),
    ("jensen_shannon", "unmatched"),
    ("jensen_shannon", "uniform"),
)


def head_divergences(
    p: Float[Tensor, "batch heads time time"],
    q: Float[Tensor, "_ other _ _"],
    tokens: Bool[Tensor, "batch time"],
) -> dict[Kind, Float[Tensor, "batch time heads other"]]:
    """Compute the divergence of each head of one model from each head of another, for each query, in bits.

    Weights on padding are left out and the rest is renormalised, which changes nothing for a model that masks padding.
    A query counts if it has at least two *places*, tokens on which some head of one of the models puts weight: token i
    of a causal model has i + 1 places, and its first token has one, for which all distributions are equal by
    construction.

    ==================== ========================================= ================================================
    ``jensen_shannon``   (KL(p‖m) + KL(q‖m)) / 2, m = (p + q) / 2  0 (equal) to 1 (no place in common); symmetric
    ``kullback_leibler`` Σ p log2(p / q)                           0 (equal) to ∞ (p > 0, q = 0)
    ==================== ========================================= ================================================

    Args:
        p: weights by query and key, not negative.
        q: weights of the other model on the same tokens; its number of heads may differ.
        tokens: whether each position holds a token.

    Returns:
        Divergences in float64; NaN for queries that do not count, and if weights are NaN.

    Raises:
        ValueError: if batch or time of the weights are not those of the tokens.

    Reference: Lin 1991; Kullback & Leibler 1951; of attention, Saphra 2021, section 4.1.1.

    Example:
        >>> looks_back = torch.tensor([[1.0, 0.0], [1.0, 0.0]])[None, None]
        >>> itself = torch.eye(2)[None, None]
        >>> tokens = torch.ones(1, 2, dtype=torch.bool)
        >>> head_divergences(looks_back, itself, tokens)["jensen_shannon"].flatten()
        tensor([nan, 1.], dtype=torch.float64)
    """
    for name, weights in (("attention p", p), ("attention q", q)):
        check_map_shape(name, weights, tokens)
    (p, of_p, there), (q, of_q, also) = (on_tokens(weights.double(), tokens) for weights in (p, q))
    p, q = p / of_p[..., None], q / of_q[..., None]  # NaN where weights are NaN or infinite
    places = ((p != 0).any(1) | (q != 0).any(1)).sum(-1)
    counts = there.any(1) & also.any(1) & (places > 1)  # (batch, time)
    negentropy = {name: torch.xlogy(w, w).sum(-1) for name, w in (("p", p), ("q", q))}
    columns: dict[Kind, list[Tensor]] = {"jensen_shannon": [], "kullback_leibler": []}
    for g in range(q.shape[1]):  # one head at a time bounds the memory
        other = q[:, g : g + 1]
        middle = (p + other) / 2
        mean = (negentropy["p"] + negentropy["q"][:, g : g + 1]) / 2
        columns["jensen_shannon"].append(mean - torch.xlogy(middle, middle).sum(-1))
        columns["kullback_leibler"].append(negentropy["p"] - torch.xlogy(p, other).sum(-1))
    found: dict[Kind, Tensor] = {}
    for kind, parts in columns.items():
        values = torch.stack(parts, -1).transpose(1, 2) * _BITS  # (batch, time, heads, other)
        values = values.clamp(0, 1) if kind == "jensen_shannon" else values.clamp(min=0)
        found[kind] = values.where(counts[:, :, None, None], torch.nan)
    return found


@dataclass(frozen=True)
class HeadDivergence:
    """Mean divergences of the heads of two models, over the queries of each block of text.

    Attributes:
        sums: (blocks, heads, other) sums over queries, for each kind of divergence.
        uniform: (blocks, heads) sums of the Jensen–Shannon divergence from equal weights on all places.
        queries: (blocks,) number of queries in the sums.
    """

    sums: dict[Kind, Float[Tensor, "blocks heads other"]]
    uniform: Float[Tensor, "blocks heads"]
    queries: Float[Tensor, "blocks"]

    def matrix(self, kind: Kind = "jensen_shannon") -> Float[Tensor, "heads other"]:
        """Return the mean divergence of each head from each head of the other model, in bits; NaN without queries."""
        return self.sums[kind].sum(0) / self.queries.sum()

    def matches(self) -> list[tuple[int, int]]:
        """Return pairs of heads, one of each model, with the smallest total Jensen–Shannon divergence (an assignment).

        Heads of two models have no common order: head 0 of one model may correspond to head 3 of another. If one model
        has more heads, some have no match. The list is empty if a divergence is not finite.
        """
        matrix = self.matrix()
        if not matrix.isfinite().all():
            return []
        own, other = scipy.optimize.linear_sum_assignment(matrix.numpy())
        return list(zip(own.tolist(), other.tolist(), strict=True))

    def by_head(
        self, kind: Kind = "jensen_shannon", heads: Heads = "matched"
    ) -> Float[Tensor, "blocks found"]:
        """Return the sums over queries, by block, for each of the selected pairs of heads.

        Args:
            kind: kind of divergence; ``uniform`` is available for Jensen–Shannon only.
            heads: ``same``: heads of the same number (none if the numbers of heads differ); ``matched``: see
                :meth:`matches`; ``unmatched``: all other pairs, a baseline of what any two heads have in common;
                ``uniform``: each head and equal weights.
        """
        sums = self.sums[kind]
        _, own, other = sums.shape
        if heads == "uniform":
            return self.uniform
        matches = self.matches()
        if heads == "same":
            pairs = [(h, h) for h in range(own)] if own == other else []
        elif heads == "matched":
            pairs = matches
        else:
            every = itertools.product(range(own), range(other))
            pairs = [pair for pair in every if pair not in matches] if matches else []
        return torch.stack([sums[:, h, g] for h, g in pairs], 1) if pairs else sums.new_zeros(len(sums), 0)

    def mean(self, kind: Kind = "jensen_shannon", heads: Heads = "matched") -> tuple[float, float]:
        """Return the mean over heads and queries, and its standard error over blocks of text.

        The error is by the delete-one-block jackknife. The matches are those of the whole text: the error is that of
        the divergence of these pairs.

        Returns:
            Value and error, in bits; both NaN if there are no such heads, the error also for a single block.
        """
        found = self.by_head(kind, heads)
        if not found.shape[1] or not float(self.queries.sum()):
            return torch.nan, torch.nan
        kept = self.queries > 0
        totals, queries = found[kept].mean(1), self.queries[kept]
        value = float(totals.sum() / queries.sum())
        if len(queries) < 2:
            return value, torch.nan
        without = (totals.sum() - totals) / (queries.sum() - queries)
        with np.errstate(invalid="ignore"):  # infinite divergences
            return value, float(jackknife(value, without.numpy(), queries.numpy()).error)

    def named(self) -> Iterator[tuple[str, int | None, float, float | None]]:
        """Yield name, head of this model, value and error: means over heads that exist, then of each head.

        Names are as ``matched_jensen_shannon``; ``head_…`` for heads of the same number. A mean has no head, a single
        head and a single block have no error.
        """
        for kind, heads in _MEANS:
            if heads in ("matched", "uniform") or self.by_head(kind, heads).shape[1]:
                value, error = self.mean(kind, heads)
                yield (
                    f"{_NAMES.get(heads, heads)}_{kind}",
                    None,
                    value,
                    error if len(self.queries) > 1 else None,
                )
        matched = [own for own, _ in self.matches()]
        for heads, numbers in (("same", range(self.uniform.shape[1])), ("matched", matched)):
            means = (self.by_head("jensen_shannon", heads).sum(0) / self.queries.sum()).tolist()
            # no heads are the same if their numbers differ
            for head, value in zip(numbers, means, strict=False):
                yield f"{_NAMES.get(heads, heads)}_jensen_shannon", head, value, None


class HeadDivergenceSums:
    """Streaming float64 sums of :func:`head_divergences`, by blocks of text.

    Sums add over batches and ranks. Memory is O(blocks × heads × other).

    Args:
        blocks: number of blocks of text, for standard errors.

    Example:
        >>> sums = HeadDivergenceSums()
        >>> p = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]])[None]
        >>> sums.update(p, p.flip(1), torch.ones(1, 2, dtype=torch.bool))  # the heads are swapped
        >>> found = sums.result()
        >>> found.matches(), found.mean(heads="matched")[0], round(found.mean(heads="same")[0], 4)
        ([(0, 1), (1, 0)], 0.0, 0.3113)
    """

    def __init__(self, blocks: int = 1) -> None:
        self.blocks = blocks
        self._sums: list[Tensor] = []

    def update(
        self,
        p: Float[Tensor, "batch heads time time"],
        q: Float[Tensor, "_ other _ _"],
        tokens: Bool[Tensor, "batch time"],
        blocks: Int[Tensor, "batch time"] | None = None,
    ) -> None:
        """Add a batch.

        Args:
            p: weights of one model, see :func:`head_divergences`.
            q: weights of the other model.
            tokens: whether each position holds a token.
            blocks: block of each query, from 0; if None, all queries are in the first.
        """
        if tokens.device.type == "mps":  # does not support float64
            p, q, tokens = p.cpu(), q.cpu(), tokens.cpu()
            blocks = None if blocks is None else blocks.cpu()
        found = head_divergences(p, q, tokens)
        of_places = ((p != 0).any(1) | (q != 0).any(1)) & tokens[:, None, :]
        flat = of_places.double() / of_places.sum(-1, keepdim=True).clamp(min=1)
        uniform = head_divergences(p, flat[:, None], tokens)["jensen_shannon"][..., 0]
        # a query whose weights are NaN counts, so the mean of a diverged model is NaN
        counts = tokens & (of_places.sum(-1) > 1)
        at = torch.zeros_like(tokens, dtype=torch.int64) if blocks is None else blocks.long()
        parts = [*found.values(), uniform, counts.double()]
        index = at[counts]
        sums = []
        for values in parts:
            zeros = values.new_zeros(self.blocks, *values.shape[2:])
            sums.append(zeros.index_add_(0, index, values[counts]))
        self._sums = [a + b for a, b in zip(self._sums, sums, strict=True)] if self._sums else sums

    def reduce(self) -> None:
        """Sum over ranks; call it once, on every rank, after the last update."""
        self._sums = [*all_reduce_sums(dict(enumerate(self._sums))).values()]

    def result(self) -> HeadDivergence:
        """Return the divergences.

        Raises:
            ValueError: if nothing was added.
        """
        if not self._sums:
            raise ValueError("no attention was added: call update() before result()")
        js, kl, uniform, queries = (t.cpu() for t in self._sums)
        return HeadDivergence({"jensen_shannon": js, "kullback_leibler": kl}, uniform, queries)
