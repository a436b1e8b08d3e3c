"""What the heads of a transformer attend to: entropy, diagonal, vertical and block scores, and mean maps."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.statistics.distributed import all_reduce_sums
from lmdyn.analysis.statistics.precision import at_least_float32, exact_float

__all__ = [
    "AttentionPatternSums",
    "attention_scores",
    "check_map_shape",
    "on_tokens",
    "pattern_sums",
]

_CACHED = 2**17  # numbers


def attention_scores(
    attention: Float[Tensor, "batch heads time time"],
    tokens: Bool[Tensor, "batch time"],
    special: Bool[Tensor, "batch time"] | None = None,
    segments: Int[Tensor, "batch time"] | None = None,
) -> dict[str, Float[Tensor, "batch heads time"]]:
    """Compute scores of each query's attention, a row p of weights over the keys that hold a token.

    i is the query, and all sums are over keys that are not padding. Rows are renormalised on these keys, which changes
    nothing for a model that masks padding:

    ============ ============================================ ======================================================
    ``entropy``  −Σ_j p_ij ln p_ij, in nats                   0 (one key) to ln(number of keys) (uniform)
    ``diagonal`` p_i,i−1 + p_i,i+1                            0 to 1; uniform: number of neighbours / number of
                                                              keys; excludes the token itself
    ``itself``   p_ii                                         0 to 1
    ``vertical`` Σ p_ij over special tokens j                 0 to 1; uniform: their share of the keys
    ``block``    Σ p_ij over j of i's segment, minus the      −1 to 1; uniform: 0; all in the query's segment, one
                 segment's share of the keys                  of two equal ones: 0.5
    ============ ============================================ ======================================================

    Kovaleva et al. 2019 name the classes vertical ([CLS], [SEP]), diagonal (the previous or following token), block
    (within the segment), their mixture, and heterogeneous, and distinguish them by a network trained on annotated
    maps. The scores here are the weights by which these classes are described, and require no training. All scores
    except ``diagonal`` are invariant to permutations of the tokens; all are the same for any amount of padding.

    Args:
        attention: weights by query and key, not negative.
        tokens: whether each position holds a token.
        special: whether each token is a special one; if None, ``vertical`` is left out.
        segments: the segment of each token; if None, ``block`` is left out.

    Returns:
        A dict from each score to its value for each query, at least float32. The value is NaN for queries that are
        padding or attend to padding only, for ``block`` if the row of the batch has only one segment, and if weights
        are NaN or infinite.

    Raises:
        ValueError: if batch or time of the weights are not those of the tokens.

    Example:
        >>> uniform = torch.full((1, 1, 4, 4), 0.25)
        >>> scores = attention_scores(uniform, torch.ones(1, 4, dtype=torch.bool))
        >>> scores["entropy"][0, 0].exp(), scores["diagonal"][0, 0]
        (tensor([4., 4., 4., 4.]), tensor([0.2500, 0.5000, 0.5000, 0.2500]))
    """
    check_map_shape("attention", attention, tokens)
    scores = _scores(*on_tokens(attention, tokens), tokens, special, segments)
    return {name: score.where(there, torch.nan) for name, (score, there) in scores.items()}


def check_map_shape(name: str, attention: Tensor, tokens: Tensor) -> None:
    """Raise an error unless weights are (batch, heads, time, time) of the (batch, time) tokens."""
    batch, time = tokens.shape
    if attention.shape[:1] + attention.shape[2:] != (batch, time, time):
        raise ValueError(
            f"{name} is {tuple(attention.shape)}: expected (batch, heads, time, time) for tokens {tuple(tokens.shape)}"
        )


def _scores(
    p: Float[Tensor, "batch heads time time"],
    total: Float[Tensor, "batch heads time"],
    valid: Bool[Tensor, "batch heads time"],
    tokens: Bool[Tensor, "batch time"],
    special: Bool[Tensor, "batch time"] | None,
    segments: Int[Tensor, "batch time"] | None,
) -> dict[str, tuple[Float[Tensor, "batch heads time"], Bool[Tensor, "batch heads time"]]]:
    """Return the values of each score, and which queries have it; NaN among these is NaN of the weights."""
    scores = {
        "entropy": total.log() + _entropies(p) / total,
        "diagonal": _neighbours(p) / total,
        "itself": p.diagonal(dim1=-2, dim2=-1) / total,
    }
    if special is not None:
        scores["vertical"] = torch.einsum("bhqk,bk->bhq", p, (special & tokens).to(p.dtype)) / total
    found = {name: (score, valid) for name, score in scores.items()}
    if segments is not None:
        same = (segments[:, :, None] == segments[:, None, :]) & tokens[:, None, :]
        within = torch.einsum("bhqk,bqk->bhq", p, same.to(p.dtype)) / total
        share = same.sum(-1) / tokens.sum(-1, keepdim=True)
        several = (tokens[:, None, :] & ~same).any(-1)  # the row has a token of another segment
        found["block"] = (within - share[:, None], valid & several[:, None])
    return found


def _entropies(p: Float[Tensor, "batch heads time time"]) -> Float[Tensor, "batch heads time"]:
    """Return −Σ p ln p of each row, of a few heads at a time, which stay in the cache of a CPU."""
    maps, tiny = p.flatten(0, 1), torch.finfo(p.dtype).tiny  # the logarithm of a smaller number is slow
    size = max(1, _CACHED // max(1, p.shape[-1] ** 2) if p.device.type == "cpu" else len(maps))
    # the logarithm is vectorized, and torch.special.entr is not
    parts = [part.clamp(min=tiny).log_().mul_(part).sum(-1) for part in maps.split(size)]
    return -torch.cat(parts).view(p.shape[:-1])


def on_tokens(
    attention: Float[Tensor, "batch heads time time"], tokens: Bool[Tensor, "batch time"]
) -> tuple[
    Float[Tensor, "batch heads time time"],
    Float[Tensor, "batch heads time"],
    Bool[Tensor, "batch heads time"],
]:
    """Return the weights on tokens only, their sums by row (1 for none, NaN for NaN or ∞), and which rows have any."""
    p = attention.to(at_least_float32(attention))
    if tokens.device.type != "cpu" or not tokens.all():  # another device would have to be waited for
        p = p.where(tokens[:, None, None, :], 0)
    total = p.sum(-1)
    total = total.where(total.isfinite(), torch.nan)  # divided by infinity, all others would be 0
    valid = tokens[:, None, :] & (total != 0)  # True for NaN
    return p, total.where(valid, 1), valid


def _neighbours(p: Float[Tensor, "batch heads time time"]) -> Float[Tensor, "batch heads time"]:
    mass = torch.zeros_like(p[..., 0])
    mass[..., 1:] += p.diagonal(-1, dim1=-2, dim2=-1)
    mass[..., :-1] += p.diagonal(1, dim1=-2, dim2=-1)
    return mass


def pattern_sums(
    site: str,
    attention: Float[Tensor, "batch heads time time"],
    tokens: Bool[Tensor, "batch time"],
    special: Bool[Tensor, "batch time"] | None = None,
    segments: Int[Tensor, "batch time"] | None = None,
    *,
    size: int,
) -> dict[str, Float[Tensor, "2 heads *places"]]:
    """Return sums and numbers by head of the :func:`attention_scores` of a batch, and of its map.

    Args:
        site: name of the site, for messages.
        attention: as in :func:`attention_scores`, like the next three.
        tokens: whether each position holds a token.
        special: whether each token is a special one.
        segments: the segment of each token.
        size: positions of the map.

    Returns:
        For each score and for ``map`` the sum over queries or rows, and their number; float64.

    Raises:
        ValueError: if batch or time of the weights are not those of the tokens.
    """
    check_map_shape(f"attention of {site!r}", attention, tokens)
    p, total, valid = on_tokens(attention, tokens)
    found = {}
    for name, (score, there) in _scores(p, total, valid, tokens, special, segments).items():
        found[name] = torch.stack([exact_float(part).sum((0, 2)) for part in (score.where(there, 0), there)])
    n = min(size, attention.shape[2])
    both = valid[:, :, :n, None] & tokens[:, None, None, :n]
    rows = (p[:, :, :n, :n] / total[:, :, :n, None]).where(both, 0)
    maps = torch.stack([exact_float(part).sum(0) for part in (rows, both)])
    return {**found, "map": F.pad(maps, (0, size - n, 0, size - n))}


class AttentionPatternSums:
    """Streaming float64 sums of the :func:`pattern_sums` of one attention site.

    Sums add over batches and ranks, so two ranks give the means of one. Memory is O(heads × size²).

    Example:
        >>> sums = AttentionPatternSums()
        >>> tokens = torch.ones(1, 3, dtype=torch.bool)
        >>> sums.add(pattern_sums("layer1", torch.eye(3)[None, None], tokens, size=2))
        >>> found = sums.result()
        >>> found["itself"][0], found["map"][0]
        (tensor([1.], dtype=torch.float64), tensor([[[1., 0.],
                 [0., 1.]]], dtype=torch.float64))
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, sums: Mapping[str, Tensor]) -> None:
        """Add the :func:`pattern_sums` of a batch."""
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0) + value

    def reduce(self) -> None:
        """Sum over ranks; call it once, on every rank, after the last update."""
        self._sums = all_reduce_sums(self._sums)

    def result(self) -> dict[str, tuple[Float[Tensor, "heads *places"], Float[Tensor, "heads *places"]]]:
        """Return means and numbers, of each score by head, and of ``map`` by head, query and key.

        A mean is NaN if no query has the score, no sequence has both positions, or if weights are NaN.
        """
        return {name: ((total / n).cpu(), n.cpu()) for name, (total, n) in self._sums.items()}
