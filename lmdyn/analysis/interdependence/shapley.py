"""Shapley interaction of two spans: by how much their contributions fail to add up, in any model.

Computed in float64, on the device of the model's outputs, and without gradients.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.statistics.precision import exact_float

__all__ = [
    "Index",
    "ShapleyInteraction",
    "check_baseline",
    "check_output",
    "shapley_interaction",
    "size_weights",
]

Index = Literal["taylor", "grabisch"]
"""Weights of the coalitions of the other players; n is the number of players, S a coalition without the pair.

``taylor``: the Shapley–Taylor index of order 2, (2/n) / C(n − 1, |S|): all that two players do together, divided
among all pairs, so that the indices and each player's own contribution add up to v(N) − v(∅). Small S weigh more.
``grabisch``: the Shapley interaction index, |S|! (n − |S| − 2)! / (n − 1)!: every size of S has the same weight.
"""

_BLOCKS = 64  # of draws; the standard error comes from their sums, so memory does not grow with the draws
_ROUNDING = 4  # a joint contribution below this many units of rounding of the outputs counts as none


@dataclass(frozen=True)
class ShapleyInteraction:
    """Interaction of two spans A and B: see :func:`shapley_interaction`. Tensors are float64.

    Attributes:
        value: ‖I‖ / ‖φ‖ or ‖I‖ / ‖v(N)‖, at least 0; NaN if the denominator is 0.
        interaction: (d,) I, the interaction index of A and B.
        joint: (d,) φ, the Shapley value of A and B as one player.
        standard_error: standard error of ``value``, by the delta method over pairs of draws; 0 if the sum is exact,
            None if there was only one pair or ``value`` is NaN.
        exact: whether the sum runs over all subsets.
        subsets: number of subsets of the other players in the sum; drawn ones count as often as drawn.
    """

    value: Float[Tensor, ""]
    interaction: Float[Tensor, "d"]
    joint: Float[Tensor, "d"]
    standard_error: Float[Tensor, ""] | None
    exact: bool
    subsets: int


@torch.no_grad()
def shapley_interaction(
    forward: Callable[[Tensor], Tensor],
    inputs: Int[Tensor, "time"] | Float[Tensor, "time dim"],
    left: Bool[Tensor, "time"],
    right: Bool[Tensor, "time"],
    *,
    baseline: Tensor | int | float,
    at: int | None = None,
    others: Bool[Tensor, "time"] | None = None,
    exact_up_to: int = 10,
    samples: int = 512,
    max_rows: int = 1024,
    seed: int = 0,
    index: Index = "grabisch",
    relative_to: Literal["joint", "whole"] = "joint",
) -> ShapleyInteraction:
    """Compute ‖I(A, B)‖ / ‖φ(AB)‖ or ‖I(A, B)‖ / ‖v(N)‖, which is 0 if the contributions of two spans add up.

    For any model, it measures what :func:`lmdyn.analysis.decompositional_interdependence` measures for an LSTM. The
    players are the span A, the span B, and each other position. v(S) is the output at ``at`` with the positions of all
    players outside S replaced by the baseline. With n players, and S running over the subsets of the players other
    than A and B::

        I(A, B) = Σ_S w(S) [v(S ∪ AB) − v(S ∪ A) − v(S ∪ B) + v(S)]
        φ(AB)   = Σ_S w(S) [v(S ∪ AB) − v(S)]              w(S) = |S|! (n − |S| − 2)! / (n − 1)!

    I is the Shapley interaction index, φ the Shapley value of A and B merged into one player. With ``index="taylor"``,
    the weights of I, but not those of φ, are (2/n) / C(n − 1, |S|). The value is 0 for a model that adds A and B; 1 if
    they have an effect only together (v = a · b, baseline 0), and if either has the effect of both (v = max(a, b));
    above 1 if they cancel each other. It is symmetric in A and B, and invariant to scale and shift of the outputs, but
    not to the choice of the baseline. Without other players, and with v(∅) = 0, it is the formula of decompositional
    interdependence. Relative to the ``whole``, v(N), the value is that of
    :func:`~lmdyn.analysis.pairwise_shapley_interaction`; it is invariant to scale, not to shift.

    With at most ``exact_up_to`` other players, the sum is exact. With more, subsets are drawn: first the size,
    uniformly, then a subset of this size. Each is drawn with its complement, which makes the joint effects of three
    players exact. I and φ are then unbiased. The ratio is not: the norm of noise is above 0, so a small ratio is too
    high, by the order of its standard error if it is at most that large. Draw more samples in this case.

    Each different subset costs 4 rows. In a causal model, positions after ``at`` have no effect: end ``inputs`` and
    masks at ``at``, or pass ``others=torch.arange(time) <= at``. The value is the same, with fewer players.

    Args:
        forward: maps (rows, time) ids or (rows, time, dim) vectors to (rows, time, d) outputs; rows are independent
            and the outputs deterministic, as in a module in eval mode. Differences of the outputs are computed, so run
            it in at least float32.
        inputs: (time,) ids or (time, dim) vectors of one sentence.
        left: (time,) bool, the positions of A.
        right: (time,) bool, the positions of B.
        baseline: replaces an absent position: an id, such as that of the mask token, or a (dim,) vector, such as the
            mean embedding.
        at: the position of the output; by default the last position of either span.
        others: (time,) bool, the positions that are players in addition to A and B; all by default. Positions of the
            spans are ignored here; all remaining positions keep their input, as special tokens may have to.
        exact_up_to: maximum number of other players for which all 2^(n − 2) subsets are evaluated.
        samples: number of subsets that are drawn otherwise, rounded up to an even number.
        max_rows: maximum number of rows in one call of ``forward``.
        seed: seed of the draw; the global generators are not used.
        index: see :data:`Index`.
        relative_to: ``joint``, the norm of φ(AB), or ``whole``, the norm of the output with nothing absent.

    Raises:
        ValueError: if spans overlap or are empty; if baseline or outputs have a wrong shape or type; if outputs are NaN
            or infinite; if ``at`` is outside the sentence; if there are fewer than 2 samples or 4 rows, or
            ``exact_up_to`` is negative; if the index is unknown.

    Reference: Grabisch & Roubens 1999, "An axiomatic approach to the concept of interaction among players in
    cooperative games" (I); Marichal et al. 2007, "Axiomatic characterizations of generalized values" (φ); normalised
    as in Saphra & Lopez 2020, equation 2. Singhvi et al. 2024 measure language models with ``index="taylor"`` and
    ``relative_to="whole"``, which gives other numbers. Sundararajan et al. 2020, "The Shapley Taylor Interaction
    Index".

    Example:
        >>> word = torch.eye(3, dtype=torch.bool)
        >>> model = lambda x: (x[:, :1] * x[:, 1:2] + x[:, 2:]).expand(x.shape)  # x₀ x₁ + x₂ at each position
        >>> x, zero = torch.full((3, 1), 2.0), torch.zeros(1)
        >>> found = shapley_interaction(model, x, word[0], word[1], baseline=zero)
        >>> found.value, found.interaction, found.exact
        (tensor(1., dtype=torch.float64), tensor([4.], dtype=torch.float64), True)
        >>> shapley_interaction(model, x, word[0], word[2], baseline=zero).value
        tensor(0., dtype=torch.float64)
    """
    for name, number, least in (
        ("samples", samples, 2),
        ("exact_up_to", exact_up_to, 0),
        ("max_rows", max_rows, 4),  # the four coalitions of a subset are evaluated together
    ):
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}")
    if index not in get_args(Index) or relative_to not in ("joint", "whole"):
        raise ValueError(
            "expected index taylor or grabisch and relative_to joint or whole, got "
            f"{index!r} and {relative_to!r}"
        )
    baseline = check_baseline(inputs, baseline, inputs.shape[1:])
    time = len(inputs)
    left, right, players = _checked_spans(left.cpu(), right.cpu(), others)
    at = int((left | right).nonzero()[-1]) if at is None else at
    if not 0 <= at < time:
        raise ValueError(f"at must be a position from 0 to {time - 1}, got {at}: count from the start")

    positions = players.nonzero()[:, 0]
    m, chunk = len(positions), max_rows // 4
    exact = m <= exact_up_to
    pairs = (samples + 1) // 2
    subsets = _all_subsets(m, chunk) if exact else _drawn_subsets(m, pairs, seed, chunk)
    without_spans = ~(left | right)
    # the four coalitions of a subset S: S, S ∪ A, S ∪ B, S ∪ AB
    spans = torch.stack([without_spans, without_spans | left, without_spans | right, torch.ones_like(left)])
    tilt = size_weights(m + 2, index) * (m + 1)
    second, first, greatest, resolution = _sums(
        forward, inputs, baseline, spans, positions, subsets, at, tilt
    )

    interaction, joint = second.sum(0), first.sum(0)
    whole = joint
    if relative_to == "whole":
        whole = exact_float(forward(inputs[None])[0, at])
        first = whole.expand_as(first) / len(first)  # v(N) is known, without an error
    norm = torch.linalg.vector_norm(whole)
    # if the outputs agree up to rounding, the ratio would be one of two rounding errors
    defined = float(norm) > _ROUNDING * resolution * greatest
    value = torch.linalg.vector_norm(interaction) / norm if defined else norm.new_tensor(math.nan)
    standard_error = norm.new_zeros(()) if exact else None
    if not exact and defined and len(second) > 1:
        standard_error = _standard_error(second, first)
    return ShapleyInteraction(
        value, interaction, joint, standard_error, exact, 1 << m if exact else 2 * pairs
    )


def check_baseline(inputs: Tensor, baseline: Tensor | int | float, shape: torch.Size) -> Tensor:
    """Return the baseline in the type of the inputs, as ids or vectors of this shape, or raise a ValueError."""
    ids = not inputs.is_floating_point()
    wanted = "one id, an integer tensor" if ids else "one vector, a floating tensor"
    if not isinstance(baseline, Tensor):
        baseline = torch.as_tensor(baseline)
    same_kind = baseline.is_floating_point() != ids and baseline.dtype != torch.bool
    if baseline.shape != shape or not same_kind:
        raise ValueError(
            f"baseline must be {wanted} of shape {tuple(shape)}, got {_described(baseline)}: "
            "it replaces each absent position"
        )
    return baseline.to(inputs)


def size_weights(players: int, index: Index) -> Float[Tensor, "sizes"]:
    """Compute Σ w(S) over the subsets of each size 0 … n − 2 of the others, in float64; the sum over sizes is 1.

    Example:
        >>> size_weights(4, "grabisch"), size_weights(4, "taylor")
        (tensor([0.3333, 0.3333, 0.3333], dtype=torch.float64), tensor([0.5000, 0.3333, 0.1667], dtype=torch.float64))
    """
    m = players - 2
    even = torch.full((m + 1,), 1 / (m + 1), dtype=torch.float64)
    if index == "grabisch":
        return even
    return even * 2 * (m + 1 - torch.arange(m + 1, dtype=torch.float64)) / (m + 2)


def _checked_spans(
    left: Tensor, right: Tensor, others: Tensor | None
) -> tuple[Bool[Tensor, "time"], Bool[Tensor, "time"], Bool[Tensor, "time"]]:
    """Return both spans and the positions of the other players, or raise a ValueError."""
    for name, mask in (("left", left), ("right", right)):
        if not bool(mask.any()):
            raise ValueError(f"{name} must contain at least one position, got an empty span")
    both = left & right
    if bool(both.any()):
        raise ValueError(
            f"left and right overlap at {both.nonzero()[:, 0].tolist()}: the interaction requires disjoint spans"
        )
    free = ~(left | right)
    return left, right, free if others is None else free & others.cpu()


def _all_subsets(m: int, chunk: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield every subset of m players with its weight |S|! (m − |S|)! / (m + 1)!, ``chunk`` at a time.

    Yields:
        (chunk, m) members, and (1, chunk) weights: the whole sum is one block.
    """
    by_size = [1 / ((m + 1) * math.comb(m, size)) for size in range(m + 1)]
    weights = torch.tensor(by_size, dtype=torch.float64)
    for start in range(0, 1 << m, chunk):
        codes = torch.arange(start, min(start + chunk, 1 << m))
        members = (codes[:, None] >> torch.arange(m)) & 1 == 1
        yield members, weights[members.sum(1)][None]


def _drawn_subsets(m: int, pairs: int, seed: int, chunk: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield drawn subsets of m players and their complements, ``chunk`` at a time, each different one once.

    The few subsets of hardly any or nearly all players are drawn often; they have that weight, but are evaluated once.

    Yields:
        (chunk, m) members, and (blocks, chunk) weights: the share of all draws that the subset has in each block.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(m + 1, (pairs, 1), generator=generator)
    # a row is a random order of 0 … m − 1; in float64, because ties would favour the first players
    order = torch.rand(pairs, m, generator=generator, dtype=torch.float64).argsort(1)
    drawn = order < sizes
    # the complement is always added: of both, take the one without the first player, so that equal pairs are found
    distinct, index = (drawn ^ drawn[:, :1]).unique(dim=0, return_inverse=True)
    weights = torch.zeros(min(pairs, _BLOCKS), len(distinct), dtype=torch.float64)
    share = torch.tensor(0.5 / pairs, dtype=torch.float64)
    weights.index_put_((torch.arange(pairs) % len(weights), index), share, accumulate=True)
    members = torch.stack([distinct, ~distinct], 1).flatten(0, 1)
    yield from zip(members.split(chunk), weights.repeat_interleave(2, 1).split(chunk, 1), strict=True)


def _sums(
    forward: Callable[[Tensor], Tensor],
    inputs: Tensor,
    baseline: Tensor,
    spans: Bool[Tensor, "4 time"],
    positions: Tensor,
    subsets: Iterator[tuple[Tensor, Tensor]],
    at: int,
    tilt: Float[Tensor, "sizes"],
) -> tuple[Float[Tensor, "blocks d"], Float[Tensor, "blocks d"], float, float]:
    """Return sums of second and first differences by block, the largest ‖v‖, and the resolution of the outputs."""
    second = first = torch.zeros(0)
    greatest, resolution, d = 0.0, 0.0, None
    for members, weights in subsets:
        kept = spans.repeat(len(members), 1, 1)
        kept[:, :, positions] = members[:, None]
        here = kept.flatten(0, 1).to(inputs.device)
        rows = torch.where(here if inputs.ndim == 1 else here[..., None], inputs, baseline)
        output = forward(rows)
        check_output(output, rows, d)
        v = exact_float(output[:, at])
        if not bool(v.isfinite().all()):
            raise ValueError(
                f"forward returned NaN or infinite values at position {at}: check the model and the baseline"
            )
        greatest = max(greatest, float(torch.linalg.vector_norm(v, dim=1).max()))
        none, a, b, ab = v.view(len(members), 4, -1).unbind(1)
        of_index = (weights * tilt[members.sum(1)]).to(v.device)
        added_second, added_first = of_index @ (ab - a - b + none), weights.to(v.device) @ (ab - none)
        if d is None:
            second, first = added_second, added_first
            resolution, d = torch.finfo(output.dtype).eps, output.shape[2]
        else:
            second += added_second
            first += added_first
    return second, first, greatest, resolution


def check_output(output: object, rows: Tensor, d: int | None) -> None:
    """Raise an error if the output is not (rows, time, d), with the d of earlier calls."""
    expected = rows.shape[:2]
    if (
        not isinstance(output, Tensor)
        or output.ndim != 3
        or output.shape[:2] != expected
        or not output.is_floating_point()
    ):
        got = _described(output) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(
            f"forward must return a floating tensor of shape ({expected[0]}, {expected[1]}, d) for this many rows, "
            f"got {got}: of a model's output take a field, such as lambda ids: model(ids).last_hidden_state"
        )
    if d is not None and output.shape[2] != d:
        raise ValueError(f"forward must return {d} features as in earlier calls, got {output.shape[2]}")


def _standard_error(second: Float[Tensor, "blocks d"], first: Float[Tensor, "blocks d"]) -> Float[Tensor, ""]:
    """Compute the error of ‖Σ second‖ / ‖Σ first‖ by the delta method, from sums over independent blocks of draws.

    If the interaction is exactly 0, its norm has no derivative: the length of each block's deviation, in any
    direction, is used, which is an upper bound.
    """
    interaction, joint = second.sum(0), first.sum(0)
    size, norm = torch.linalg.vector_norm(interaction), torch.linalg.vector_norm(joint)
    along = second @ (interaction / size) if bool(size > 0) else torch.linalg.vector_norm(second, dim=1)
    deviations = (along - size / norm * (first @ (joint / norm))) / norm  # with a sum of 0
    blocks = len(second)
    error: Tensor = (deviations.square().sum() * (blocks / (blocks - 1))).sqrt()
    return error


def _described(tensor: Tensor) -> str:
    """Describe the type and shape of a tensor for messages."""
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"
