"""Shapley interaction of all pairs of words of whole sentences, in any model.

Computed in float64, on the device of the model's outputs, and without gradients.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.interdependence.coalition_sums import PairValues, drawn_means, exact_sums, norms_of_all
from lmdyn.analysis.interdependence.coalitions import Forward, Outputs, Reading, games_of
from lmdyn.analysis.interdependence.shapley import check_baseline

__all__ = ["pairwise_shapley_interaction"]


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

    The weights are those of the Shapley–Taylor index, w(S) = (2/n) / C(n − 1, |S|); for other weights, and for spans,
    see :func:`~lmdyn.analysis.shapley_interaction`. The value is 0 if the contributions of both words add up. In a game
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
    for name, number, least in (
        ("max_distance", max_distance, 1),
        ("samples", samples, 2),
        ("exact_up_to", exact_up_to, 0),
        ("max_rows", max_rows, 1),
    ):
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}")
    if reading not in ("causal", "bidirectional"):
        raise ValueError(f"expected reading causal or bidirectional, got {reading!r}")
    if exact_up_to > _MOST_EXACT:
        raise ValueError(
            f"exact_up_to must be at most {_MOST_EXACT}, got {exact_up_to}, which requires 2^{exact_up_to} coalitions "
            "of a sentence; longer sentences are sampled"
        )
    if words is None:
        words = torch.arange(inputs.shape[1]).expand(inputs.shape[:2])
    games = games_of(words, max_distance, reading)
    seeds = [seed + b for b in range(len(inputs))] if isinstance(seed, int) else list(seed)
    if len(seeds) != len(inputs):
        raise ValueError(f"expected one seed or one for each of {len(inputs)} sentences, got {len(seeds)}")
    baseline = check_baseline(inputs, baseline, inputs.shape[2:])
    outputs = Outputs(forward, inputs, baseline, max_rows, reading == "causal")
    width = max((1 + int(g.number[-1]) for g in games if g.players), default=0)
    games = [game for game in games if len(game.left)]
    if not games:
        outputs.call(inputs)  # finds the names of the outputs
    found = PairValues(len(inputs), width, max_distance, norms_of_all(outputs, games) if games else {})
    few = [game.where(game.visible() <= exact_up_to) for game in games]
    exact_sums(outputs, [game for game in few if len(game.left)], found)
    for game in games:
        many = game.where(game.visible() > exact_up_to)
        drawn_means(outputs, many, samples, seeds[game.sentence], found)
    answer = {name: found.of(name) for name in outputs.widths}
    return answer[""] if list(answer) == [""] else answer


_MOST_EXACT = 20
