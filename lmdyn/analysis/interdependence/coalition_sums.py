"""Interactions of pairs of words as sums over coalitions of the other words: all of them, or drawn ones."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.interdependence.coalitions import Game, Outputs
from lmdyn.analysis.interdependence.shapley import size_weights

__all__ = ["Norms", "PairValues", "PairwiseShapley", "drawn_means", "exact_sums", "norms_of_all"]

_BLOCKS = 16  # of draws; the standard error comes from their means

Norms = dict[tuple[str, int], Tensor]
"""‖v(N)‖ of each output and sentence, at the position read for each player."""


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


class PairValues:
    """Values of pairs relative to ‖v(N)‖, collected game by game."""

    def __init__(self, batch: int, words: int, max_distance: int, norms: Norms) -> None:
        self._shape = (batch, words, max_distance)
        self._norms = norms
        self._value: dict[str, Tensor] = {}
        self._error: dict[str, Tensor] = {}
        self._exact = torch.zeros(self._shape, dtype=torch.bool)

    def put(self, name: str, game: Game, norm: Tensor, error: Tensor | None = None) -> None:
        """Store ‖I‖ of all pairs of a game, and its standard error; None if it is exact."""
        left, right = game.number[game.left], game.number[game.right]
        at = (torch.full_like(left, game.sentence), left, right - left - 1)
        whole = self._norms[name, game.sentence][game.right.to(norm.device)]
        values = norm, torch.zeros_like(norm) if error is None else error
        for stored, of in zip((self._value, self._error), values, strict=True):
            empty = torch.full(self._shape, torch.nan, dtype=torch.float64)
            stored.setdefault(name, empty)[at] = torch.where(whole > 0, of / whole, torch.nan).cpu()
        self._exact[at] = error is None

    def of(self, name: str) -> PairwiseShapley:
        """Return all stored values of an output."""
        empty = torch.full(self._shape, torch.nan, dtype=torch.float64)
        return PairwiseShapley(
            self._value.get(name, empty), self._error.get(name, empty.clone()), self._exact.clone()
        )


def norms_of_all(outputs: Outputs, games: Sequence[Game]) -> Norms:
    """Compute ‖v(N)‖ with all words present."""
    sentence = torch.tensor([game.sentence for game in games])
    row = torch.cat([torch.full_like(g.read, i) for i, g in enumerate(games)])
    kept = torch.ones(len(games), len(games[0].token), dtype=torch.bool)
    found = outputs.at(sentence, kept, row, torch.cat([g.read for g in games]))
    players = [g.players for g in games]
    return {
        (name, game.sentence): norms
        for name, v in found.items()
        for game, norms in zip(games, torch.linalg.vector_norm(v, dim=1).split(players), strict=True)
    }


def _turned(game: Game) -> tuple[Bool[Tensor, "rows players"], Int[Tensor, "pairs 4"]]:
    """Return which players are toggled in each row (none, each one, both of each pair), and the rows of each pair."""
    one, of = torch.cat([game.left, game.right]).unique(return_inverse=True)
    rows = torch.zeros(1 + len(one) + len(game.left), game.players, dtype=torch.bool)
    rows[1 + torch.arange(len(one)), one] = True
    both = 1 + len(one) + torch.arange(len(game.left))
    rows[both, game.left] = True
    rows[both, game.right] = True
    return rows, torch.stack([torch.zeros_like(both), *(1 + of.view(2, -1)), both], 1)


def _differences(
    outputs: Outputs, game: Game, sets: Bool[Tensor, "sets players"]
) -> dict[str, Float[Tensor, "sets pairs d"]]:
    """Compute δ of each pair of a game, with S a set of the present players without the pair."""
    turned, of_pair = _turned(game)
    kept = game.kept((sets[:, None] ^ turned).flatten(0, 1))
    reads = len(turned) * torch.arange(len(sets))[:, None, None] + of_pair  # (sets, pairs, 4)
    position = game.read[game.right][None, :, None].expand_as(reads)
    sentence = torch.full((len(kept),), game.sentence)
    found = outputs.at(sentence, kept, reads.flatten(), position.flatten())
    # both or neither of the two are present if none or both are toggled
    same = (sets[:, game.left] == sets[:, game.right]).double() * 2 - 1
    sign = same[..., None] * torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
    return {
        name: (v.view(*reads.shape, -1) * sign[..., None].to(v.device)).sum(2) for name, v in found.items()
    }


def _groups(games: Sequence[Game], rows: Sequence[int], most: int) -> Iterator[list[Game]]:
    """Group consecutive games as long as the number of their rows is at most ``most``."""
    group: list[Game] = []
    total = 0
    for game, number in zip(games, rows, strict=True):
        if group and total + number > most:
            yield group
            group, total = [], 0
        group.append(game)
        total += number
    if group:
        yield group


def exact_sums(outputs: Outputs, games: Sequence[Game], found: PairValues) -> None:
    """Sum over all subsets: the pairs of a game have at most its players."""
    rows = [1 << int(game.visible().max()) for game in games]
    cut = [int(game.read[int(game.right.max())]) + 1 if game.causal else len(game.token) for game in games]
    for time in sorted(set(cut)):
        these = [i for i, end in enumerate(cut) if end == time]
        for group in _groups([games[i] for i in these], [rows[i] for i in these], outputs.max_rows):
            _exact_group(outputs, group, time, found)


def _exact_group(outputs: Outputs, games: Sequence[Game], time: int, found: PairValues) -> None:
    sentence, kept, row, position, where = [], [], [], [], []
    members: list[Tensor] = []
    before = 0
    for game in games:
        players = int(game.visible().max())
        code = torch.arange(1 << players)
        there = (code[:, None] >> torch.arange(game.players)) & 1 == 1
        members.append(there)
        kept.append(game.kept(there)[:, :time])
        sentence.append(torch.full((len(code),), game.sentence))
        for r in game.right.unique().tolist():
            coalitions = 2 << r if game.causal else len(code)  # of the players visible at r
            row.append(before + code[:coalitions])
            position.append(game.read[r].expand(coalitions))
            where.append(coalitions)
        before += len(code)
    values = outputs.at(torch.cat(sentence), torch.cat(kept), torch.cat(row), torch.cat(position))
    parts = {name: iter(v.split(where)) for name, v in values.items()}
    for game, there in zip(games, members, strict=True):
        for r in game.right.unique().tolist():
            chosen = game.where(game.right == r)
            n = int(chosen.visible()[0])
            bits = there[: 2 << r if game.causal else None, :n].double()
            left, right = bits[:, chosen.left].T, bits[:, r]
            size = (bits.sum(1) - left - right).long()  # of S
            weight = size_weights(n, "taylor") / torch.tensor([math.comb(n - 2, k) for k in range(n - 1)])
            signed = weight[size] * torch.where(left == right, 1.0, -1.0)  # (pairs, coalitions)
            for name, part in parts.items():
                v = next(part)
                found.put(name, chosen, torch.linalg.vector_norm(signed.to(v) @ v, dim=1))


def drawn_means(outputs: Outputs, game: Game, samples: int, seed: int, found: PairValues) -> None:
    """Average over drawn sets and their complements."""
    if len(game.left) == 0:
        return
    pairs = (samples + 1) // 2
    blocks = min(pairs, _BLOCKS)
    strata = -(-pairs // blocks)
    generator = torch.Generator().manual_seed(seed)
    shape = (strata, blocks, 1)
    # each block has one u in each stratum of 0 to ½; the complements are in ½ to 1
    u = torch.rand(shape, generator=generator, dtype=torch.float64)
    u = (torch.arange(strata)[:, None, None] + u) / (2 * strata)
    there = torch.rand(strata, blocks, game.players, generator=generator, dtype=torch.float64) < u
    sets = torch.stack([there, ~there], 2)  # (strata, blocks, 2, players)
    rows = 1 + game.players + len(game.left)
    at_once = max(1, outputs.max_rows // (2 * rows))
    visible = game.visible()
    tilt = torch.zeros(len(visible), game.players - 1, dtype=torch.float64)
    for n in visible.unique().tolist():
        tilt[visible == n, : n - 1] = size_weights(n, "taylor") * (n - 1)
    means: dict[str, Tensor] = {}
    order = torch.arange(blocks).repeat(strata)
    for some, block in zip(sets.flatten(0, 1).split(at_once), order.split(at_once), strict=True):
        delta = _differences(outputs, game, some.flatten(0, 1))
        weight = _of_sizes(game, some.flatten(0, 1), tilt)
        for name, v in delta.items():
            mean = means.setdefault(name, v.new_zeros(blocks, *v.shape[1:]))
            drawn = (v * weight[..., None].to(v.device)).unflatten(0, (-1, 2)).mean(1) / strata
            for k, of in zip(block.tolist(), drawn, strict=True):
                mean[k] += of
    for name, mean in means.items():
        found.put(name, game, *_norm_of_mean(mean))


def _of_sizes(game: Game, sets: Tensor, tilt: Tensor) -> Float[Tensor, "sets pairs"]:
    """Return the weight of each pair's S, a subset of uniform size, in the index."""
    number = sets.long().cumsum(1)  # of players up to and including each
    last = game.right if game.causal else torch.full_like(game.right, game.players - 1)
    size = number[:, last] - sets[:, game.left].long() - sets[:, game.right].long()
    return tilt[torch.arange(len(game.left)), size]


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
