"""Shapley interaction of all pairs of words of whole sentences, in any model.

Sentences are games: their words are the players, and outputs are computed with some of them absent. Computed in
float64, on the device of the model's outputs, and without gradients.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
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
            "of a sentence; longer sentences are sampled"
        )
    if words is None:
        words = torch.arange(inputs.shape[1]).expand(inputs.shape[:2])
    games = _games(words, max_distance, reading)
    seeds = [seed + b for b in range(len(inputs))] if isinstance(seed, int) else list(seed)
    if len(seeds) != len(inputs):
        raise ValueError(f"expected one seed or one for each of {len(inputs)} sentences, got {len(seeds)}")
    baseline = torch.as_tensor(baseline).to(inputs)
    if baseline.shape != inputs.shape[2:]:
        raise ValueError(f"expected a baseline of {tuple(inputs.shape[2:])}, got {tuple(baseline.shape)}")
    outputs = _Outputs(forward, inputs, baseline, max_rows, reading == "causal")
    width = max((1 + int(g.number[-1]) for g in games if g.players), default=0)
    games = [game for game in games if len(game.left)]
    if not games:
        outputs.call(inputs)  # finds the names of the outputs
    found = _PairValues((len(inputs), width, max_distance), _norms_of_all(outputs, games) if games else {})
    for game in games:
        few, many = (game.where(of) for of in (game.visible() <= exact_up_to, game.visible() > exact_up_to))
        if len(few.left):
            _exact_sums(outputs, few, found)
        if len(many.left):
            _drawn_means(outputs, many, samples, seeds[game.sentence], found)
    answer = {name: found.of(name) for name in outputs.names}
    return answer[""] if list(answer) == [""] else answer


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
            "expected sentences of at least two positions, to measure which words are visible at a position"
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


@dataclass(frozen=True)
class _Game:
    """Words of a sentence as players, in order, and the pairs of players.

    Attributes:
        sentence: row of the sentence.
        number: (players,) number of each player's word.
        token: (time,) player that each token belongs to, -1 for none.
        read: (players,) last token of each player.
        left: (pairs,) first player l of each pair.
        right: (pairs,) second player r of each pair.
        causal: whether players after r are invisible at r.
    """

    sentence: int
    number: Tensor
    token: Tensor
    read: Tensor
    left: Tensor
    right: Tensor
    causal: bool

    @property
    def players(self) -> int:
        """Number of players."""
        return len(self.number)

    def visible(self) -> Tensor:
        """Number of players in the game of each pair, (pairs,)."""
        return self.right + 1 if self.causal else torch.full_like(self.right, self.players)

    def where(self, chosen: Tensor) -> "_Game":
        """Return the game with a subset of the pairs."""
        return replace(self, left=self.left[chosen], right=self.right[chosen])

    def kept(self, present: Bool[Tensor, "*rows players"]) -> Bool[Tensor, "*rows time"]:
        """Return which tokens are present."""
        always = present.new_ones(*present.shape[:-1], 1)
        return torch.cat([present, always], -1)[..., self.token]  # index -1 is the last column


def _games(words: Int[Tensor, "batch time"], max_distance: int, reading: Reading) -> list[_Game]:
    """Return the game of each sentence, or raise a ValueError."""
    games = []
    for b, row in enumerate(words.cpu()):
        numbers = row[row >= 0]
        if bool((numbers[1:] < numbers[:-1]).any()):
            raise ValueError(
                f"words must increase along the sentence, those of sentence {b} are {row.tolist()}: a word's tokens "
                "must be together"
            )
        number, of = numbers.unique(return_inverse=True)
        token = torch.full_like(row, -1)
        token[row >= 0] = of
        last = torch.ones_like(of, dtype=torch.bool)
        last[:-1] = of[1:] != of[:-1]
        read = (row >= 0).nonzero()[:, 0][last]
        left, right = torch.triu_indices(len(number), len(number), 1)
        near = number[right] - number[left] <= max_distance
        games.append(_Game(b, number, token, read, left[near], right[near], reading == "causal"))
    return games


@dataclass
class _Outputs:
    """Outputs of forward at some positions of sentences with absent words."""

    forward: Forward
    inputs: Tensor
    baseline: Tensor
    max_rows: int
    causal: bool
    names: tuple[str, ...] = ()

    def at(
        self,
        sentence: Int[Tensor, "rows"],
        kept: Bool[Tensor, "rows time"],
        row: Int[Tensor, "reads"],
        position: Int[Tensor, "reads"],
    ) -> dict[str, Float[Tensor, "reads d"]]:
        """Compute the output at each (row, position), in float64.

        Args:
            sentence: sentence of each row.
            kept: whether each token is present, for the first tokens of the sentence, one per column.
            row: row of each requested output.
            position: position of each requested output.
        """
        if self.causal:  # words after the last one that is read in a row have no effect
            end = np.zeros(len(kept), dtype=np.int64)
            np.maximum.at(end, row.numpy(), position.numpy() + 1)
            length, by_length = torch.from_numpy(end).sort(stable=True)
            sentence, kept, row = sentence[by_length], kept[by_length], by_length.argsort()[row]
        else:
            length = torch.full((len(kept),), kept.shape[1])
        order = row.argsort(stable=True)
        bounds = torch.searchsorted(row[order], torch.arange(0, len(kept) + self.max_rows, self.max_rows))
        parts: list[dict[str, Tensor]] = []
        for k, (start, end_of) in enumerate(pairwise(bounds.tolist())):
            these = slice(k * self.max_rows, (k + 1) * self.max_rows)
            reads, cut = order[start:end_of], int(length[these].max())
            parts.append(
                self._chunk(sentence[these], kept[these, :cut], row[reads] - these.start, position[reads])
            )
        back = order.argsort()
        found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return {name: v[back.to(v.device)] for name, v in found.items()}

    def _chunk(self, sentence: Tensor, kept: Tensor, row: Tensor, position: Tensor) -> dict[str, Tensor]:
        device = self.inputs.device
        tokens, here = self.inputs[:, : kept.shape[1]][sentence.to(device)], kept.to(device)
        rows = torch.where(here if tokens.ndim == 2 else here[..., None], tokens, self.baseline)
        found = {
            name: exact_float(v[row.to(v.device), position.to(v.device)])
            for name, v in self.call(rows).items()
        }
        if not all(bool(v.isfinite().all()) for v in found.values()):
            raise ValueError("forward returned NaN or infinite values: check the model and the baseline")
        return found

    def call(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the outputs of forward, by name."""
        named = _named(self.forward(rows), rows)
        self.names = tuple(named)
        return named


def _named(output: Any, rows: Tensor) -> dict[str, Tensor]:
    """Return the outputs of forward by name, "" for a single tensor."""
    named = dict(output) if isinstance(output, Mapping) else {"": output}
    expected = tuple(rows.shape[:2])
    for found in named.values():
        if not isinstance(found, Tensor) or found.ndim != 3 or found.shape[:2] != expected:
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"forward must return a tensor of shape {(*expected, 'd')} for this many rows, got {got}: of a model's "
                "output take a field, such as lambda ids: model(ids).last_hidden_state"
            )
    return named


class _PairValues:
    """Values of pairs relative to ‖v(N)‖, collected game by game."""

    def __init__(self, shape: tuple[int, int, int], norms: Mapping[tuple[str, int], Tensor]) -> None:
        self._empty = torch.full(shape, torch.nan, dtype=torch.float64)
        self._norms = norms
        self._found: dict[str, PairwiseShapley] = {}

    def of(self, name: str) -> PairwiseShapley:
        """Return the values of an output so far."""
        none = torch.zeros(self._empty.shape, dtype=torch.bool)
        return self._found.setdefault(name, PairwiseShapley(self._empty.clone(), self._empty.clone(), none))

    def put(self, name: str, game: _Game, norm: Tensor, error: Tensor | None = None) -> None:
        """Store ‖I‖ of all pairs of a game, and its standard error; None if it is exact."""
        left, right = game.number[game.left], game.number[game.right]
        at = (torch.full_like(left, game.sentence), left, right - left - 1)
        whole = self._norms[name, game.sentence][game.right.to(norm.device)]
        found, errors = self.of(name), torch.zeros_like(norm) if error is None else error
        for stored, values in ((found.value, norm), (found.standard_error, errors)):
            stored[at] = torch.where(whole > 0, values / whole, torch.nan).cpu()
        found.exact[at] = error is None


def _norms_of_all(outputs: _Outputs, games: Sequence[_Game]) -> dict[tuple[str, int], Tensor]:
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


def _turned(game: _Game) -> tuple[Bool[Tensor, "rows players"], Int[Tensor, "pairs 4"]]:
    """Return which players are toggled in each row (none, each one, both of each pair), and the rows of each pair."""
    one, of = torch.cat([game.left, game.right]).unique(return_inverse=True)
    rows = torch.zeros(1 + len(one) + len(game.left), game.players, dtype=torch.bool)
    rows[1 + torch.arange(len(one)), one] = True
    both = 1 + len(one) + torch.arange(len(game.left))
    rows[both, game.left] = True
    rows[both, game.right] = True
    return rows, torch.stack([torch.zeros_like(both), *(1 + of.view(2, -1)), both], 1)


def _differences(
    outputs: _Outputs, game: _Game, sets: Bool[Tensor, "sets players"]
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


def _exact_sums(outputs: _Outputs, game: _Game, found: _PairValues) -> None:
    """Sum over all subsets of the players."""
    code = torch.arange(1 << int(game.visible().max()))
    there = (code[:, None] >> torch.arange(game.players)) & 1 == 1
    time = int(game.read[int(game.right.max())]) + 1 if game.causal else len(game.token)
    rights = game.right.unique().tolist()
    counts = [2 << r if game.causal else len(code) for r in rights]  # coalitions of the players visible at r
    row = torch.cat([code[:count] for count in counts])
    position = game.read[rights].repeat_interleave(torch.tensor(counts))
    values = outputs.at(torch.full_like(code, game.sentence), game.kept(there)[:, :time], row, position)
    for name, of_all in values.items():
        for r, v in zip(rights, of_all.split(counts), strict=True):
            chosen = game.where(game.right == r)
            n = int(chosen.visible()[0])
            bits = there[: len(v), :n].double()
            left, right = bits[:, chosen.left].T, bits[:, r]
            size = (bits.sum(1) - left - right).long()  # of S
            weight = _size_weights(n) / torch.tensor([math.comb(n - 2, k) for k in range(n - 1)])
            signed = weight[size] * torch.where(left == right, 1.0, -1.0)  # (pairs, coalitions)
            found.put(name, chosen, torch.linalg.vector_norm(signed.to(v) @ v, dim=1))


def _drawn_means(outputs: _Outputs, game: _Game, samples: int, seed: int, found: _PairValues) -> None:
    """Average over drawn sets and their complements."""
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
        tilt[visible == n, : n - 1] = _size_weights(n) * (n - 1)
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


def _of_sizes(game: _Game, sets: Tensor, tilt: Tensor) -> Float[Tensor, "sets pairs"]:
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


def _size_weights(players: int) -> Float[Tensor, "sizes"]:
    """Compute Σ w(S) over the subsets of each size 0 … n − 2 of the others; the sum over sizes is 1."""
    n = players
    return 2 * torch.arange(n - 1, 0, -1, dtype=torch.float64) / (n * (n - 1))
