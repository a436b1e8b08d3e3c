"""Shapley interaction of all pairs of words of whole sentences, in any model.

Float64 inside, on the device of what the model answers, and without gradients.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, overload

import torch
from jaxtyping import Int
from torch import Tensor

from lmdyn.analysis.interdependence.coalition_sums import (
    PairValues,
    PairwiseShapley,
    drawn_means,
    exact_sums,
    in_context,
    norms_of_all,
)
from lmdyn.analysis.interdependence.coalitions import Forward, Outputs, Reading, games_of
from lmdyn.analysis.interdependence.shapley import INDICES, Index, check_baseline

__all__ = ["Coalitions", "pairwise_shapley_interaction"]

Coalitions = Literal["all", "context"]
"""Over which sets S of the other words: ``all`` of them, as the index weighs them, or the full ``context`` alone."""


@overload
def pairwise_shapley_interaction(
    forward: Callable[[Tensor], Tensor],
    inputs: Tensor,
    max_distance: int,
    *,
    baseline: Tensor | int | float | None = None,
    absence: Literal["replace", "delete"] = "replace",
    words: Int[Tensor, "batch time"] | None = None,
    reading: Reading = "causal",
    index: Index = "taylor",
    coalitions: Coalitions = "all",
    exact_up_to: int = 10,
    samples: int = 64,
    max_rows: int = 256,
    seed: int | Sequence[int] = 0,
) -> PairwiseShapley: ...


@overload
def pairwise_shapley_interaction(
    forward: Callable[[Tensor], Mapping[str, Tensor]],
    inputs: Tensor,
    max_distance: int,
    *,
    baseline: Tensor | int | float | None = None,
    absence: Literal["replace", "delete"] = "replace",
    words: Int[Tensor, "batch time"] | None = None,
    reading: Reading = "causal",
    index: Index = "taylor",
    coalitions: Coalitions = "all",
    exact_up_to: int = 10,
    samples: int = 64,
    max_rows: int = 256,
    seed: int | Sequence[int] = 0,
) -> dict[str, PairwiseShapley]: ...


@torch.no_grad()
def pairwise_shapley_interaction(
    forward: Forward,
    inputs: Tensor,
    max_distance: int,
    *,
    baseline: Tensor | int | float | None = None,
    absence: Literal["replace", "delete"] = "replace",
    words: Int[Tensor, "batch time"] | None = None,
    reading: Reading = "causal",
    index: Index = "taylor",
    coalitions: Coalitions = "all",
    exact_up_to: int = 10,
    samples: int = 64,
    max_rows: int = 256,
    seed: int | Sequence[int] = 0,
) -> PairwiseShapley | dict[str, PairwiseShapley]:
    """‖I(l, r)‖ / ‖v(N)‖ of every two words at most ``max_distance`` apart, at the later word r, in any model.

    The players are the words that are visible at r: all up to r in a ``causal`` model, all of the sentence in a
    ``bidirectional`` one; N is all of them, n their number. v(S) is the output at the last token of r with the words
    outside of S absent, and I(l, r) = Σ_S w(S) δ(S) over the sets S of the other players, with

        δ(S) = v(S ∪ lr) − v(S ∪ l) − v(S ∪ r) + v(S)

    taylor: w(S) = (2/n) / C(n − 1, |S|); grabisch: w(S) = |S|! (n − |S| − 2)! / (n − 1)!. The value is 0 where both
    words' contributions add up. In a game that is won by a set T with both words in it, and by no less, I is
    1 / C(|T|, 2) by taylor, 1 / (|T| − 1) by grabisch. ``coalitions="context"`` is no such index: it is
    ‖δ(N without l and r)‖ / ‖v(N)‖, what both words do together with all others there, at about one row a pair.

    An absent word is replaced in its place. With ``absence="delete"`` it is left out, which moves all words behind it
    to other positions; where r itself is left out, the last word before it is read, and where none is left, v is 0.

    What pairs have in common is computed once. With at most ``exact_up_to`` players the sum is exact, and the 2ⁿ
    coalitions of the first n words serve all their pairs. Beyond, sets T of words are drawn: each word is there with
    probability u, and u is uniform from 0 to 1, so that the others among the players of *every* pair are a subset
    whose size is uniform; T serves all pairs, by at most one row for each word and each pair in which this one is
    turned. Each T comes with its complement, which makes what three words do together exact (grabisch).

    The square of a norm of noise is above 0 by its variance, which is subtracted (and the result not below 0). The
    standard error is that of this square, so that it covers small interactions too. Values below it are still too
    high on average, since none is below 0: draw more ``samples`` where such values matter.

    Args:
        forward: (rows, time) ids or (rows, time, dim) vectors to (rows, time, d) outputs, or several of these by
            name; row by row and always the same: a module in eval mode.
        inputs: (batch, time) ids or (batch, time, dim) vectors of sentences of one length, without padding.
        max_distance: of the words of a pair, r − l, from 1.
        baseline: what stands for each token of an absent word: an id, such as the mask token's, or a (dim,) vector,
            such as the mean embedding. None with ``absence="delete"``.
        absence: ``replace`` or ``delete``.
        words: number of the word that a token belongs to, rising; -1 for tokens that always stay, such as special
            ones. Each token is a word by default. Pairs with a number that has no token are NaN.
        reading: what the model sees; :func:`~lmdyn.analysis.reading_of` measures it.
        index: see :data:`~lmdyn.analysis.interdependence.shapley.Index`.
        coalitions: see :data:`Coalitions`.
        exact_up_to: players up to which all subsets are taken.
        samples: sets T that are drawn beyond; rounded up to pairs, and from 32 to a multiple of 32.
        max_rows: most rows in one call of ``forward``, which bounds the memory; a GPU wants more. Draws need about
            16 · words · ``max_distance`` · d numbers besides.
        seed: of the draws, one for all sentences (which adds their number) or one for each; the global generators are
            not touched.

    Returns:
        The interactions; by name where ``forward`` answers outputs by name.

    Raises:
        ValueError: arguments out of range or of another shape or type; NaN or infinite outputs.

    Reference: Sundararajan et al. 2020, "The Shapley Taylor Interaction Index" (taylor); Grabisch & Roubens 1999
    (grabisch); measured of language models, relative to v(N), by Singhvi et al. 2024; Owen 1972 for draws by u.

    Example:
        >>> model = lambda x: x.cumsum(1) + x[:, :1] * x[:, 1:2]  # words 0 and 1 also work together
        >>> found = pairwise_shapley_interaction(model, torch.ones(1, 3, 1), 2, baseline=torch.zeros(1))
        >>> found.value[0, :2].round(decimals=4)  # I is 1 of v(N) = 3 at word 1; other pairs just add up
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
    for name, choice, known in (
        ("absence", absence, ("replace", "delete")),
        ("reading", reading, ("causal", "bidirectional")),
        ("index", index, INDICES),
        ("coalitions", coalitions, ("all", "context")),
    ):
        if choice not in known:
            raise ValueError(f"expected {name} {' or '.join(known)}, got {choice!r}")
    if exact_up_to > _MOST_EXACT:
        raise ValueError(
            f"exact_up_to is {exact_up_to}, which is 2^{exact_up_to} coalitions of a sentence: at most {_MOST_EXACT}; "
            "longer ones are sampled"
        )
    games = games_of(inputs, words, max_distance, reading)
    seeds = [seed + b for b in range(len(inputs))] if isinstance(seed, int) else list(seed)
    if len(seeds) != len(inputs):
        raise ValueError(f"expected one seed or one for each of {len(inputs)} sentences, got {len(seeds)}")
    if (baseline is None) != (absence == "delete"):
        raise ValueError(
            f"absence {absence!r} with baseline {baseline!r}: give a baseline to replace by, and none to delete"
        )
    if baseline is not None:
        baseline = check_baseline(inputs, baseline, inputs.shape[2:])
    outputs = Outputs(forward, inputs, baseline, max_rows, reading == "causal")
    found = PairValues(
        len(inputs), max((1 + int(g.number[-1]) for g in games if g.players), default=0), max_distance
    )
    games = [game for game in games if len(game.left)]
    if not games:
        outputs.call(inputs)  # by which names it answers
    elif coalitions == "context":
        in_context(outputs, games, found, norms_of_all(outputs, games))
    else:
        norms = norms_of_all(outputs, games)
        few = [game.where(game.visible() <= exact_up_to) for game in games]
        exact_sums(outputs, [game for game in few if len(game.left)], index, found, norms)
        for game in games:
            many = game.where(game.visible() > exact_up_to)
            drawn_means(outputs, many, index, samples, seeds[game.sentence], found, norms)
    answer = {name: found.of(name) for name in outputs.widths}
    return answer[""] if list(answer) == [""] else answer


_MOST_EXACT = 20
