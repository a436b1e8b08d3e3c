"""Shapley interaction of all pairs of words of whole sentences, in any model.

Sentences are games: their words are the players, and outputs are computed with some of them absent. Computed in
float64, on the device of the model's outputs, and without gradients.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["PairwiseShapley", "Reading", "pairwise_shapley_interaction", "reading_of"]

Forward = Callable[[Tensor], Tensor | Mapping[str, Tensor]]
"""(rows, time) ids or (rows, time, dim) vectors to (rows, time, d) outputs, or to several of them by name."""

Reading = Literal["causal", "bidirectional"]
"""The words that are visible at a position: those up to it (``causal``), or the whole sentence."""

_ROUNDING = 8  # an effect below this many units of float32 rounding counts as none
_MOST_EXACT = 20
_BLOCKS = 16  # of draws; the standard error comes from their means


@dataclass(frozen=True)
class PairwiseShapley:
    """Interaction of all pairs of words up to a distance: see :func:`~lmdyn.analysis.pairwise_shapley_interaction`.

    Entry [b, l, d - 1] is the interaction of words l and l + d of sentence b, NaN if there is no word l + d. On the
    CPU.

    Attributes:
        value: ‖I‖ / ‖v(N)‖, at least 0, float64; NaN also if v(N) is 0.
        standard_error: change of ``value`` if its square changes by one standard error; 0 if nothing is drawn.
        exact: whether the sum runs over all subsets.
    """

    value: Float[Tensor, "batch words distance"]
    standard_error: Float[Tensor, "batch words distance"]
    exact: Bool[Tensor, "batch words distance"]


@torch.no_grad()
def pairwise_shapley_interaction(
    forward: Forward,
    inputs: Int[Tensor, "batch time"] | Float[Tensor, "batch time dim"],
    max_distance: int,
    *,
    baseline: Tensor | int | float,
    words: Int[Tensor, "batch time"] | None = None,
    reading: Reading = "causal",
    exact_up_to: int = 10,
    samples: int = 64,
    max_rows: int = 256,
    seed: int | Sequence[int] = 0,
) -> Any:
    """Compute ‖I(l, r)‖ / ‖v(N)‖ for pairs of words at most ``max_distance`` apart, at the later word r, in any model.

    The players are the words that are visible at r: all up to r in a ``causal`` model, all of the sentence in a
    ``bidirectional`` one; N is the set of all players, n their number. v(S) is the output at the last token of r with
    the words outside S absent, and I(l, r) = Σ_S w(S) δ(S) over the sets S of the other players, with

        δ(S) = v(S ∪ lr) − v(S ∪ l) − v(S ∪ r) + v(S)

    The weights are those of the Shapley–Taylor index, w(S) = (2/n) / C(n − 1, |S|). For spans of words, give
    the tokens of a span one number in ``words``. The value is 0 if the contributions of both words add up. In a game
    that is won by the players of a set T that contains both words, and by no smaller set, I is 1 / C(|T|, 2).

    What pairs have in common is computed once. With at most ``exact_up_to`` players the sum is exact, and the 2ⁿ
    coalitions of the first n words serve all their pairs. With more players, sets T of words are drawn: each word is
    present with probability u, and u is uniform from 0 to 1, so the other players of *every* pair form a subset of
    uniform size. T serves all pairs, with at most one row for each word and each pair that is toggled. Each T is drawn
    with its complement.

    The variance of the noise, which increases the square of the norm, is subtracted (the result is at least 0). The
    standard error is that of this square, so it also covers small interactions. Values below the standard error are
    still too high on average, because none is below 0: increase ``samples`` if such values matter.

    Args:
        forward: maps (rows, time) ids or (rows, time, dim) vectors to (rows, time, d) outputs, or to several of these
            by name; rows are independent and the outputs deterministic, as in a module in eval mode.
        inputs: (batch, time) ids or (batch, time, dim) vectors of sentences of equal length, without padding.
        max_distance: maximum distance r − l of the words of a pair, at least 1.
        baseline: replaces each token of an absent word: an id, such as that of the mask token, or a (dim,) vector,
            such as the mean embedding.
        words: number of the word that each token belongs to, in increasing order; -1 for tokens that are always
            present, such as special ones. By default, each token is a word. Pairs with a number that has no token are
            NaN.
        reading: the words that the model sees at a position; :func:`~lmdyn.analysis.reading_of` measures it.
        exact_up_to: maximum number of players for which all subsets are evaluated.
        samples: number of sets T that are drawn otherwise; rounded up to pairs, and from 32 on to a multiple of 32.
        max_rows: maximum number of rows in one call of ``forward``, which bounds the memory; use more on a GPU. Draws
            require about 16 · words · ``max_distance`` · d numbers in addition.
        seed: seed of the draws, one for all sentences (the sentence's index is added) or one for each; the global
            generators are not used.

    Returns:
        The interactions, :class:`~lmdyn.analysis.PairwiseShapley`; by name if ``forward`` returns outputs by name.

    Raises:
        ValueError: if arguments are out of range, or if outputs have a wrong shape, or are NaN or infinite.

    Reference: Sundararajan et al. 2020, "The Shapley Taylor Interaction Index"; measured in language models, relative
    to v(N), by Singhvi et al. 2024; Owen 1972 for draws by u.

    Example:
        >>> model = lambda x: x.cumsum(1) + x[:, :1] * x[:, 1:2]  # words 0 and 1 also interact
        >>> found = pairwise_shapley_interaction(model, torch.ones(1, 3, 1), 2, baseline=torch.zeros(1))
        >>> found.value[0, :2].round(decimals=4)  # I is 1 of v(N) = 3 at word 1; other pairs add up
        tensor([[0.3333, 0.0000],
                [0.0000,    nan]], dtype=torch.float64)
    """
    if exact_up_to > _MOST_EXACT:
        raise ValueError(
            f"exact_up_to must be at most {_MOST_EXACT}, got {exact_up_to}, which requires 2^{exact_up_to} coalitions "
            "of a sentence. lmdyn samples coalitions of longer sentences"
        )
    if words is None:
        words = torch.arange(inputs.shape[1]).expand(inputs.shape[:2])
    seeds = [seed + b for b in range(len(inputs))] if isinstance(seed, int) else list(seed)
    if len(seeds) != len(inputs):
        raise ValueError(
            f"seed is a list of {len(seeds)}: expected one number, or a list of {len(inputs)}, one for each sentence"
        )
    baseline = torch.as_tensor(baseline).to(inputs)
    if baseline.shape != inputs.shape[2:]:
        raise ValueError(
            f"baseline is {tuple(baseline.shape)}: expected {tuple(inputs.shape[2:])}, as one token"
        )
    shape = (len(inputs), int(words.max()) + 1, max_distance)
    found: dict[str, PairwiseShapley] = {}
    for b, (tokens, row, start) in enumerate(zip(inputs, words.cpu(), seeds, strict=True)):
        game = _Game(forward, tokens, row, baseline, max_rows, causal=reading == "causal")
        players = torch.arange(game.players)
        everything = game.outputs(players[None] >= 0, torch.zeros_like(players), players)
        every = torch.triu_indices(game.players, game.players, 1)  # players l and r, in two rows
        distance = game.number[every[1]] - game.number[every[0]]
        for exact in (True, False):
            few = game.visible(every[1]) <= exact_up_to
            chosen = (distance <= max_distance) & (few == exact)
            pairs = every[:, chosen]
            sums = _exact_sums(game, pairs) if exact else _drawn_means(game, pairs, samples, start)
            for name, output in everything.items():
                nothing = torch.full(shape, torch.nan, dtype=torch.float64)
                none = torch.zeros(shape, dtype=torch.bool)
                table = found.setdefault(name, PairwiseShapley(nothing, nothing.clone(), none))
                whole = torch.linalg.vector_norm(output, dim=1)[pairs[1]]
                at = (b, game.number[pairs[0]], distance[chosen] - 1)
                stored = table.value, table.standard_error
                for values, own in zip(stored, sums.get(name, (whole, whole)), strict=True):
                    values[at] = torch.where(whole > 0, own / whole, torch.nan).cpu()
                table.exact[at] = exact
    return found[""] if list(found) == [""] else found


@torch.no_grad()
def reading_of(forward: Forward, inputs: Tensor) -> Reading:
    """Measure whether a model's output at a position depends on later positions, on the inputs of some sentences.

    The second half of each sentence is replaced by its first token. Differences due to rounding are recognised by two
    equal calls and the precision of float32.

    Args:
        forward: see :func:`~lmdyn.analysis.pairwise_shapley_interaction`.
        inputs: (batch, time) ids or (batch, time, dim) vectors.

    Raises:
        ValueError: if sentences have only one position, or if outputs change their shape.

    Example:
        >>> x = torch.rand(2, 4, 3)
        >>> reading_of(lambda x: x.cumsum(1), x), reading_of(lambda x: x + x.mean(1, keepdim=True), x)
        ('causal', 'bidirectional')
    """
    half = inputs.shape[1] // 2
    if half == 0:
        raise ValueError(
            f"inputs are {tuple(inputs.shape)}: expected two or more positions, to measure which words a position reads"
        )
    changed = inputs.clone()
    changed[:, half:] = inputs[:, :1]
    one, same, other = (_named(forward(x), x) for x in (inputs, inputs, changed))
    for name, v in one.items():
        before, again, after = (exact_float(o[name])[:, :half] for o in (one, same, other))
        rounding = _ROUNDING * torch.finfo(torch.float32).eps * float(exact_float(v).abs().max())
        tolerance = max(rounding, 2 * float((again - before).abs().max()))
        if float((after - before).abs().max()) > tolerance:
            return "bidirectional"
    return "causal"


class _Game:
    """A sentence, whose words are the players, in order.

    Attributes:
        number: (players,) number of each player's word.
        players: number of players.
        max_rows: maximum number of rows in one call of the model.
    """

    def __init__(
        self,
        forward: Forward,
        tokens: Tensor,
        words: Tensor,
        baseline: Tensor,
        max_rows: int,
        *,
        causal: bool,
    ) -> None:
        self._forward = forward
        self._tokens = tokens
        self._baseline = baseline
        self.max_rows, self._causal = max_rows, causal
        there = (words >= 0).nonzero()[:, 0]
        if (words[there].diff() < 0).any():
            raise ValueError(
                f"words has {', '.join(map(str, words.tolist()))}: number the words along the sentence, with equal "
                "numbers for the tokens of one word only"
            )
        self.number, player, counts = words[there].unique(return_inverse=True, return_counts=True)
        self.players = len(self.number)
        self._player = torch.full_like(words, self.players)  # of no word: always present
        self._player[there] = player
        self._last = there[counts.cumsum(0) - 1]

    def visible(self, right: Int[Tensor, "pairs"]) -> Int[Tensor, "pairs"]:
        """Return the number of players that are visible at some."""
        return right + 1 if self._causal else torch.full_like(right, self.players)

    def outputs(
        self, present: Bool[Tensor, "rows players"], row: Int[Tensor, "reads"], player: Int[Tensor, "reads"]
    ) -> dict[str, Float[Tensor, "reads d"]]:
        """Compute the output at the last token of a player in a row, for each of several, in float64."""
        kept = F.pad(present, (0, 1), value=True)[:, self._player]
        position = self._last[player]
        end = torch.full((len(kept),), kept.shape[1])
        if self._causal:  # words after the last one that is read in a row have no effect
            end = torch.ones_like(end).scatter_reduce(0, row, position + 1, "amax")
        end, order = end.sort(stable=True)
        place = order.argsort()[row]
        reads = place.argsort(stable=True)
        number = (place // self.max_rows).bincount(minlength=-(-len(kept) // self.max_rows))
        parts: dict[str, list[Tensor]] = defaultdict(list)
        chunks = zip(order.split(self.max_rows), end.split(self.max_rows), strict=True)
        for (rows, ends), asked in zip(chunks, reads.split(number.tolist()), strict=True):
            tokens = self._tokens[: int(ends[-1])]
            here = kept[rows, : len(tokens)].to(tokens.device)
            given = torch.where(here if tokens.ndim == 1 else here[..., None], tokens, self._baseline)
            for name, v in _named(self._forward(given), given).items():
                found = exact_float(v[place[asked] % self.max_rows, position[asked]])
                if not found.isfinite().all():
                    raise ValueError("forward returned NaN or infinite values: check model and baseline")
                parts[name].append(found)
        return {name: torch.cat(found)[reads.argsort()] for name, found in parts.items()}


def _named(output: Any, rows: Tensor) -> dict[str, Tensor]:
    """Return the outputs of forward by name, "" for a single tensor."""
    named = dict(output) if isinstance(output, Mapping) else {"": output}
    expected = tuple(rows.shape[:2])
    for found in named.values():
        if not isinstance(found, Tensor) or found.ndim != 3 or found.shape[:2] != expected:
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"forward must return a tensor of shape ({expected[0]}, {expected[1]}, d) for these inputs, got {got}: "
                "return a field of the model's output, such as lambda ids: model(ids).last_hidden_state"
            )
    return named


_Sums = dict[str, tuple[Tensor, Tensor]]
"""‖I‖ of some pairs and its standard error, by name of the output."""


def _exact_sums(game: _Game, pairs: Int[Tensor, "2 pairs"]) -> _Sums:
    """Sum over all subsets of the players."""
    found: _Sums = {}
    rights = pairs[1].unique()
    if not len(rights):
        return found
    visible = game.visible(rights)
    counts = 2**visible  # coalitions of the players visible at r
    code = torch.arange(int(counts.max()))
    there = (code[:, None] >> torch.arange(game.players)) & 1 == 1
    row = torch.cat([code[:count] for count in counts.tolist()])
    for name, values in game.outputs(there, row, rights.repeat_interleave(counts)).items():
        norm = values.new_zeros(pairs.shape[1])
        for r, n, v in zip(rights, visible.tolist(), values.split(counts.tolist()), strict=True):
            own = pairs[1] == r
            bits = there[: len(v), :n].double()
            left, right = bits[:, pairs[0, own]].T, bits[:, r]
            size = (bits.sum(1) - left - right).long()  # of S
            weight = torch.tensor([2 / n / math.comb(n - 1, k) for k in range(n - 1)], dtype=torch.float64)
            signed = weight[size] * torch.where(left == right, 1.0, -1.0)  # (pairs, coalitions)
            norm[own] = torch.linalg.vector_norm(signed.to(v) @ v, dim=1)
        found[name] = norm, torch.zeros_like(norm)
    return found


def _drawn_means(game: _Game, pairs: Int[Tensor, "2 pairs"], samples: int, seed: int) -> _Sums:
    """Average over drawn sets and their complements."""
    if not pairs.numel():
        return {}
    number = (samples + 1) // 2
    blocks = min(number, _BLOCKS)
    strata = -(-number // blocks)
    generator = torch.Generator().manual_seed(seed)
    # each block has one u in each stratum of 0 to ½; the complements are in ½ to 1
    u = torch.rand(strata, blocks, 1, generator=generator, dtype=torch.float64)
    u = (torch.arange(strata)[:, None, None] + u) / (2 * strata)
    there = torch.rand(strata, blocks, game.players, generator=generator, dtype=torch.float64) < u
    sets = torch.stack([there, ~there], 2).flatten(0, 1)  # (strata · blocks, 2, players)
    toggled, of_pair = _toggled(pairs, game.players)
    n = game.visible(pairs[1])
    means: dict[str, Tensor] = {}
    order = torch.arange(blocks).repeat(strata)
    at_once = max(1, game.max_rows // (2 * (1 + game.players + len(n))))
    for drawn, block in zip(sets.split(at_once), order.split(at_once), strict=True):
        some = drawn.flatten(0, 1)
        reads = len(toggled) * torch.arange(len(some))[:, None, None] + of_pair  # (sets, pairs, 4)
        player = pairs[1, :, None].expand_as(reads)
        found = game.outputs((some[:, None] ^ toggled).flatten(0, 1), reads.flatten(), player.flatten())
        # both or neither of the two are present if none or both are toggled
        left, right = (some[:, side].long() for side in pairs)
        sign = (2 * (left == right) - 1)[..., None] * torch.tensor([1.0, -1.0, -1.0, 1.0])
        size = some.long().cumsum(1)[:, n - 1] - left - right  # of S, a subset of uniform size
        weight = (2 * (n - 1 - size) / n.double())[..., None] * sign / (2 * strata)
        for name, v in found.items():
            parts = (v.view(*reads.shape, -1) * weight[..., None].to(v)).sum(2).unflatten(0, (-1, 2)).sum(1)
            mean = means.setdefault(name, v.new_zeros(blocks, *parts.shape[1:]))
            mean.index_add_(0, block.to(v.device), parts)
    return {name: _norm_of_mean(mean) for name, mean in means.items()}


def _toggled(
    pairs: Int[Tensor, "2 pairs"], players: int
) -> tuple[Bool[Tensor, "rows players"], Int[Tensor, "pairs 4"]]:
    """Return which players are toggled in each row (none, each one, both of each pair), and the rows of each pair."""
    one, (left, right) = pairs.unique(return_inverse=True)
    single = F.one_hot(one, players).bool()
    both = 1 + len(one) + torch.arange(len(left))
    rows = torch.cat([torch.zeros_like(single[:1]), single, single[left] | single[right]])
    return rows, torch.stack([torch.zeros_like(both), 1 + left, 1 + right, both], 1)


def _norm_of_mean(blocks: Float[Tensor, "blocks pairs d"]) -> tuple[Tensor, Tensor]:
    """Compute ‖mean of the blocks‖, corrected for noise in its square, and its standard error (NaN for one block)."""
    number, mean = len(blocks), blocks.mean(0)
    square = mean.square().sum(1)
    if number == 1:
        return square.sqrt(), torch.full_like(square, torch.nan)
    off = (blocks - mean) / math.sqrt(number * (number - 1))
    gram = torch.einsum("bpd,cpd->pbc", off, off)  # it has the eigenvalues of the covariance of the mean
    along = torch.einsum("bpd,pd->pb", off, mean).square().sum(1)
    variance = 4 * along + 2 * gram.square().sum((1, 2))  # of the square
    value = (square - gram.diagonal(dim1=1, dim2=2).sum(1)).clamp(min=0)
    error = variance.sqrt()
    return value.sqrt(), error / ((value + error).sqrt() + value.sqrt()).clamp(
        min=torch.finfo(torch.float64).tiny
    )
