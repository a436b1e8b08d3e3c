"""Attention to the first token of a sequence, by head, beside that of a head with equal weights."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lmdyn.analysis.attention.attention_scores import check_map_shape, on_tokens
from lmdyn.analysis.statistics.distributed import all_reduce_sums
from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["FirstToken", "FirstTokenSums", "first_token_attention", "first_token_sums"]


def first_token_attention(
    attention: Float[Tensor, "batch heads time time"], tokens: Bool[Tensor, "batch time"]
) -> tuple[Float[Tensor, "batch heads time"], Float[Tensor, "batch time"]]:
    """Compute each query's weight on the first token of its sequence, and the weight that equal weights give.

    Equal weights are over the positions that the query sees: those on which at least one head has a weight above 0. In
    causal attention, these are the i + 1 positions up to position i, so that a sequence of n tokens has a mean of
    (1 + 1/2 + … + 1/n)/n; without a mask, they are all n, with a mean of 1/n. A query that does not see the first
    token, in attention within a window, has 0. Rows are renormalised on the keys that are not padding.

    Args:
        attention: weights by query and key, not negative.
        tokens: whether each position holds a token.

    Returns:
        The weights, at least float32, and those of equal weights. NaN for queries that are padding or attend to padding
        only, and if weights are NaN or infinite.

    Raises:
        ValueError: if batch or time of the weights are not those of the tokens.

    Reference: Xiao et al. 2023, "Efficient streaming language models with attention sinks".

    Example:
        >>> causal = torch.ones(3, 3).tril() / torch.arange(1, 4)[:, None]
        >>> own, equal = first_token_attention(causal[None, None], torch.ones(1, 3, dtype=torch.bool))
        >>> own[0, 0], equal[0]
        (tensor([1.0000, 0.5000, 0.3333]), tensor([1.0000, 0.5000, 0.3333]))
    """
    own, equal, valid = _first_token(attention, tokens)
    return own.where(valid, torch.nan), equal.where(valid.any(1), torch.nan)


def _first_token(
    attention: Tensor, tokens: Tensor
) -> tuple[Tensor, Tensor, Bool[Tensor, "batch heads time"]]:
    """Return the two weights, and which queries have them; NaN among these is NaN of the attention."""
    check_map_shape("attention", attention, tokens)
    p, total, valid = on_tokens(attention, tokens)
    row, first = torch.arange(len(p), device=p.device), tokens.long().argmax(1)  # of equal numbers the first
    own = p[row, :, :, first] / total
    seen = p.amax(1) > 0
    number = seen.sum(-1)
    equal = seen[row, :, first].to(p.dtype) / number.where(number > 0, 1)
    return own, equal.where(~total.isnan().any(1), torch.nan), valid


@dataclass(frozen=True)
class FirstToken:
    """Attention to the first token at one site.

    Attributes:
        weights: (heads,) mean weight over all queries; NaN if weights are NaN, or without queries.
        equal: mean weight of a head with equal weights.
    """

    weights: Float[Tensor, "heads"]
    equal: float


def first_token_sums(
    attention: Float[Tensor, "batch heads time time"], tokens: Bool[Tensor, "batch time"]
) -> Float[Tensor, "2 _"]:
    """Return sums of :func:`first_token_attention` by head, then of equal weights, and numbers of queries; float64."""
    own, equal, valid = _first_token(attention, tokens)
    pairs = (own, valid), (equal[:, None], valid.any(1, keepdim=True))
    parts = [
        [exact_float(each).sum((0, 2)) for each in (value.where(there, 0), there)] for value, there in pairs
    ]
    return torch.stack([torch.cat(both) for both in zip(*parts, strict=True)])


class FirstTokenSums:
    """Streaming float64 sums of :func:`first_token_attention` by attention site; two ranks give the means of one.

    Example:
        >>> sums = FirstTokenSums()
        >>> sums.update({"layer1": torch.full((1, 2, 4, 4), 0.25)}, torch.ones(1, 4, dtype=torch.bool))
        >>> sums.reduce()
        >>> sums.result()["layer1"]
        FirstToken(weights=tensor([0.2500, 0.2500], dtype=torch.float64), equal=0.25)
    """

    def __init__(self) -> None:
        # (2, heads + 1): weights by head and equal ones; numbers of queries
        self._sums: dict[str, Tensor] = {}

    def update(self, attentions: Mapping[str, Tensor], tokens: Bool[Tensor, "batch time"]) -> None:
        """Add a batch: the weights (batch, heads, query, key) of each site.

        Raises:
            ValueError: if batch or time of the weights are not those of the tokens.
        """
        for site, attention in attentions.items():
            self.add(site, first_token_sums(attention, tokens))

    def add(self, site: str, sums: Float[Tensor, "2 _"]) -> None:
        """Add the :func:`first_token_sums` of a batch."""
        self._sums[site] = self._sums.get(site, 0) + sums

    def reduce(self) -> None:
        """Sum over ranks; call it once, on every rank, after the last update."""
        self._sums = all_reduce_sums(self._sums)

    def result(self) -> dict[str, FirstToken]:
        """Return the means of each site."""
        means = {site: (held[0] / held[1]).cpu() for site, held in self._sums.items()}
        return {site: FirstToken(mean[:-1], float(mean[-1])) for site, mean in means.items()}
