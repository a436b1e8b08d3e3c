"""What the heads of a transformer attend to: entropy, diagonal, vertical and block scores, and mean maps."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.statistics.distributed import all_reduce_sum, gather
from lmdyn.analysis.statistics.precision import at_least_float32

__all__ = ["AttentionPatternSums", "HeadPatterns", "attention_scores", "rows_on_tokens"]

SCORES = ("entropy", "diagonal", "itself", "vertical", "block")


def attention_scores(
    attention: Float[Tensor, "batch heads time time"],
    tokens: Bool[Tensor, "batch time"],
    special: Bool[Tensor, "batch time"] | None = None,
    segments: Int[Tensor, "batch time"] | None = None,
) -> dict[str, Float[Tensor, "batch heads time"]]:
    """Scores of each query's attention, a row p of weights over the keys that hold a token.

    With i the query and all sums over keys that are no padding (on which rows are renormalised, which changes
    nothing for a model that masks it):

    ============ ============================================ ======================================================
    ``entropy``  −Σ_j p_ij ln p_ij, in nats                   0 (one key) to ln(number of keys) (uniform)
    ``diagonal`` p_i,i−1 + p_i,i+1                            0 to 1; uniform: the number of neighbours over that of
                                                              keys; the token itself is left out
    ``itself``   p_ii                                         0 to 1
    ``vertical`` Σ p_ij over special tokens j                 0 to 1; uniform: their share of the keys
    ``block``    Σ p_ij over j of i's segment, less the       −1 to 1; uniform: 0; all within the own one of two
                 segment's share of the keys                  equal segments: 0.5
    ============ ============================================ ======================================================

    Kovaleva et al. 2019 name the classes vertical ([CLS], [SEP]), diagonal (the previous or following token), block
    (within the segment), their mixture, and heterogeneous, and have a network, trained on annotated maps, tell them
    apart. The scores here are the masses by which these classes are described, defined without training. All of
    them but ``diagonal`` do not change when the tokens are permuted; they are the same for any amount of padding.

    Args:
        attention: weights by query and key, not negative.
        tokens: which positions hold a token.
        special: which of them are special tokens; without it there is no ``vertical``.
        segments: the segment of each token; without it there is no ``block``.

    Returns:
        Score to its value for each query; NaN for queries that are padding or attend to nothing but padding, and for
        ``block`` where the row of the batch has one segment only; NaN too where the weights are, or are infinite. In
        float32 at least.

    Raises:
        ValueError: weights of another batch or time than the tokens.

    Example:
        >>> uniform = torch.full((1, 1, 4, 4), 0.25)
        >>> scores = attention_scores(uniform, torch.ones(1, 4, dtype=torch.bool))
        >>> scores["entropy"][0, 0].exp(), scores["diagonal"][0, 0]
        (tensor([4., 4., 4., 4.]), tensor([0.2500, 0.5000, 0.5000, 0.2500]))
    """
    _check_shapes("attention", attention, tokens)
    scores = _scores(*rows_on_tokens(attention, tokens), tokens, special, segments)
    return {name: score.where(there, torch.nan) for name, (score, there) in scores.items()}


def _check_shapes(name: str, attention: Tensor, tokens: Tensor) -> None:
    batch, _, queries, keys = attention.shape
    if (batch, queries) != tuple(tokens.shape) or queries != keys:
        raise ValueError(
            f"{name} is {tuple(attention.shape)}, the tokens {tuple(tokens.shape)}: expected (batch, heads, time, time)"
        )


def _scores(
    p: Float[Tensor, "batch heads time time"],
    valid: Bool[Tensor, "batch heads time"],
    tokens: Bool[Tensor, "batch time"],
    special: Bool[Tensor, "batch time"] | None,
    segments: Int[Tensor, "batch time"] | None,
) -> dict[str, tuple[Float[Tensor, "batch heads time"], Bool[Tensor, "batch heads time"]]]:
    """Score to its value for each query, and which queries have it: NaN among these is that of the weights."""
    scores = {
        "entropy": torch.special.entr(p).sum(-1),
        "diagonal": _neighbours(p),
        "itself": p.diagonal(dim1=-2, dim2=-1),
    }
    if special is not None:
        scores["vertical"] = torch.einsum("bhqk,bk->bhq", p, (special & tokens).to(p.dtype))
    found = {name: (score, valid) for name, score in scores.items()}
    if segments is not None:
        same = (segments[:, :, None] == segments[:, None, :]) & tokens[:, None, :]
        within = torch.einsum("bhqk,bqk->bhq", p, same.to(p.dtype))
        share = same.sum(-1) / tokens.sum(-1, keepdim=True)
        several = (tokens[:, None, :] & ~same).any(-1)  # there is a token of another segment
        found["block"] = (within - share[:, None], valid & several[:, None])
    return found


def rows_on_tokens(
    attention: Float[Tensor, "batch heads time time"], tokens: Bool[Tensor, "batch time"]
) -> tuple[Float[Tensor, "batch heads time time"], Bool[Tensor, "batch heads time"]]:
    """Weights on tokens only, adding up to 1, and which rows have any; what holds NaN or ∞ is NaN."""
    p = attention.to(at_least_float32(attention)).where(tokens[:, None, None, :], 0)
    total = p.sum(-1)
    total = total.where(total.isfinite(), torch.nan)  # over an infinite one all others would be 0
    valid = tokens[:, None, :] & (total != 0)  # true of NaN
    return p / total.where(valid, 1)[..., None], valid


def _neighbours(p: Float[Tensor, "batch heads time time"]) -> Float[Tensor, "batch heads time"]:
    mass = torch.zeros_like(p[..., 0])
    mass[..., 1:] += p.diagonal(-1, dim1=-2, dim2=-1)
    mass[..., :-1] += p.diagonal(1, dim1=-2, dim2=-1)
    return mass


@dataclass(frozen=True)
class HeadPatterns:
    """The patterns of the heads of one attention site.

    Attributes:
        scores: score to its mean over all queries, (heads,); NaN where no query has it, or where weights are NaN.
        map: (heads, size, size) mean weight of query on key over the sequences that have both; NaN where none has, or
            where weights are NaN.
        counts: score to the number of queries that have it, (heads,).
    """

    scores: dict[str, Float[Tensor, "heads"]]
    map: Float[Tensor, "heads size size"]
    counts: dict[str, Float[Tensor, "heads"]]


@dataclass
class _Site:
    sums: Float[Tensor, "scores heads"]
    counts: Float[Tensor, "scores heads"]
    map_sum: Float[Tensor, "heads size size"]
    map_count: Float[Tensor, "heads size size"]

    def tensors(self) -> list[Tensor]:
        return [self.sums, self.counts, self.map_sum, self.map_count]


@dataclass
class AttentionPatternSums:
    """Streaming float64 sums of :func:`attention_scores` and of the maps of the first ``size`` positions.

    Sums add over batches and ranks, so that two ranks give the means of one. Memory is O(heads × size²) a site.

    Args:
        size: positions of the map, counted from the start of each sequence.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> sums = AttentionPatternSums(size=2)
        >>> sums.update({"layer1": torch.eye(3)[None, None]}, torch.ones(1, 3, dtype=torch.bool))
        >>> sums.result()["layer1"].scores["itself"], sums.result()["layer1"].map[0]
        (tensor([1.], dtype=torch.float64), tensor([[1., 0.],
                [0., 1.]], dtype=torch.float64))
    """

    size: int
    _sites: dict[str, _Site] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size is {self.size}: a map has at least 1 position")

    def update(
        self,
        attentions: Mapping[str, Tensor],
        tokens: Bool[Tensor, "batch time"],
        special: Bool[Tensor, "batch time"] | None = None,
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> None:
        """Add a batch.

        Args:
            attentions: site to weights (batch, heads, query, key), of one time for all.
            tokens: as in :func:`attention_scores`, as are the other two.
            special: which tokens are special.
            segments: the segment of each token.

        Raises:
            ValueError: weights of another batch or time than the tokens.
        """
        if tokens.device.type == "mps":  # has no float64
            attentions = {site: attention.cpu() for site, attention in attentions.items()}
            tokens = tokens.cpu()
            special, segments = (None if t is None else t.cpu() for t in (special, segments))
        for site, attention in attentions.items():
            _check_shapes(f"attention of {site!r}", attention, tokens)
            _, heads, queries, _ = attention.shape
            if site not in self._sites:
                self._sites[site] = _empty(heads, self.size, attention.device)
            held = self._sites[site]
            p, valid = rows_on_tokens(attention, tokens)
            scores = _scores(p, valid, tokens, special, segments)
            for i, name in enumerate(SCORES):
                if name in scores:
                    score, there = scores[name]
                    held.sums[i] += score.double().where(there, 0).sum((0, 2))
                    held.counts[i] += there.sum((0, 2))
            n = min(self.size, queries)
            both = (valid[..., None] & tokens[:, None, None, :])[:, :, :n, :n]
            held.map_sum[:, :n, :n] += p[:, :, :n, :n].where(both, 0).double().sum(0)
            held.map_count[:, :n, :n] += both.sum(0)

    def reduce(self) -> None:
        """Add up over ranks; call it once, on every rank, after the last update."""
        shapes: dict[str, int] = {}
        for rank in gather({site: held.sums.shape[1] for site, held in self._sites.items()}):
            shapes |= rank
        for site, heads in shapes.items():  # a rank without data has seen none
            held = self._sites.get(site) or _empty(heads, self.size, torch.device("cpu"))
            self._sites[site] = _Site(*(all_reduce_sum(t) for t in held.tensors()))

    def result(self) -> dict[str, HeadPatterns]:
        """The patterns of each site."""
        found = {}
        for site, held in self._sites.items():
            means = (held.sums / held.counts).cpu()
            scores = {name: means[i] for i, name in enumerate(SCORES)}
            counts = {name: held.counts[i].cpu() for i, name in enumerate(SCORES)}
            found[site] = HeadPatterns(scores, (held.map_sum / held.map_count).cpu(), counts)
        return found


def _empty(heads: int, size: int, device: torch.device) -> _Site:
    shapes = [(len(SCORES), heads)] * 2 + [(heads, size, size)] * 2
    return _Site(*(torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes))
