"""Attention to the first token of a sequence, by head, beside that of a head with equal weights."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lmdyn.analysis.attention.attention_scores import check_map_shape
from lmdyn.analysis.statistics.distributed import all_reduce_sums
from lmdyn.analysis.statistics.precision import at_least_float32

__all__ = ["FirstToken", "FirstTokenSums", "first_token_attention"]


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
    batch = len(attention)
    p = attention.to(at_least_float32(attention))
    total = torch.einsum("bhqk,bk->bhq", p, tokens.to(p.dtype))
    total = total.where(total.isfinite(), torch.nan)
    valid = tokens[:, None, :] & (total != 0)  # True for NaN
    row, first = torch.arange(batch, device=p.device), tokens.long().argmax(1)  # of equal numbers the first
    own = p[row, :, :, first] / total.where(valid, 1)
    seen = (p.amax(1) > 0) & tokens[:, None, :]
    number = seen.sum(-1)
    equal = seen[row, :, first].to(p.dtype) / number.where(number > 0, 1)
    broken = (total.isnan() & valid).any(1)
    return own, equal.where(~broken, torch.nan), valid


@dataclass(frozen=True)
class FirstToken:
    """Attention to the first token at one site.

    Attributes:
        weights: (heads,) mean weight over all queries; NaN if weights are NaN, or without queries.
        equal: mean weight of a head with equal weights.
    """

    weights: Float[Tensor, "heads"]
    equal: float


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
        self._sums: dict[
            str, Tensor
        ] = {}  # (2, heads + 1): weights by head and equal ones; numbers of queries

    def update(self, attentions: Mapping[str, Tensor], tokens: Bool[Tensor, "batch time"]) -> None:
        """Add a batch: the weights (batch, heads, query, key) of each site.

        Raises:
            ValueError: if batch or time of the weights are not those of the tokens.
        """
        if tokens.device.type == "mps":  # does not support float64
            attentions = {site: attention.cpu() for site, attention in attentions.items()}
            tokens = tokens.cpu()
        for site, attention in attentions.items():
            own, equal, valid = _first_token(attention, tokens)
            there = valid.any(1)
            weights, equals = own.double().where(valid, 0).sum((0, 2)), equal.double().where(there, 0).sum()
            numbers = torch.cat([valid.sum((0, 2)), there.sum()[None]]).double()
            sums = torch.stack([torch.cat([weights, equals[None]]), numbers])
            self._sums[site] = self._sums.get(site, 0) + sums

    def reduce(self) -> None:
        """Sum over ranks; call it once, on every rank, after the last update."""
        self._sums = all_reduce_sums(self._sums)

    def result(self) -> dict[str, FirstToken]:
        """Return the means of each site."""
        means = {site: (held[0] / held[1]).cpu() for site, held in self._sums.items()}
        return {site: FirstToken(mean[:-1], float(mean[-1])) for site, mean in means.items()}
