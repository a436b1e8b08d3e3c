"""Shapley interaction of two spans: by how much their contributions fail to add up, in any model.

Computed in float64, on the device of the model's outputs, and without gradients.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["ShapleyInteraction", "check_baseline", "check_output", "shapley_interaction"]

_BLOCKS = 64  # of draws; the standard error comes from their sums, so memory does not grow with the draws
_ROUNDING = 4  # a joint contribution below this many units of rounding of the outputs counts as none


@dataclass(frozen=True)
class ShapleyInteraction:
    """Interaction of two spans A and B: see :func:`shapley_interaction`. Tensors are float64.

    Attributes:
        value: ‖I‖ / ‖φ‖, at least 0; NaN if φ is 0.
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
) -> ShapleyInteraction:
    """Compute ‖I(A, B)‖ / ‖φ(AB)‖, which is 0 if the contributions of two spans add up.

    For any model, it measures what :func:`lmdyn.analysis.decompositional_interdependence` measures for an LSTM. The
    players are the span A, the span B, and each other position. v(S) is the output at ``at`` with the positions of all
    players outside S replaced by the baseline. With n players, and S running over the subsets of the players other
    than A and B::

        I(A, B) = Σ_S w(S) [v(S ∪ AB) − v(S ∪ A) − v(S ∪ B) + v(S)]
        φ(AB)   = Σ_S w(S) [v(S ∪ AB) − v(S)]              w(S) = |S|! (n − |S| − 2)! / (n − 1)!

    I is the Shapley interaction index, φ the Shapley value of A and B merged into one player. The value is 0 for a
    model that adds A and B; 1 if they have an effect only together (v = a · b, baseline 0), and if either has the
    effect of both (v = max(a, b)); above 1 if they cancel each other. It is symmetric in A and B, and invariant to
    scale and shift of the outputs, but not to the choice of the baseline. Without other players, and with v(∅) = 0, it
    is the formula of decompositional interdependence. The interactions of
    :func:`~lmdyn.analysis.pairwise_shapley_interaction` have other weights (Shapley–Taylor), and are relative to v(N).

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

    Raises:
        ValueError: if spans overlap or are empty; if baseline or outputs have a wrong shape; if outputs are NaN or
            infinite; if ``at`` is outside the sentence.

    Reference: Grabisch & Roubens 1999, "An axiomatic approach to the concept of interaction among players in
    cooperative games" (I); Marichal et al. 2007, "Axiomatic characterizations of generalized values" (φ); normalised
    as in Saphra & Lopez 2020, equation 2.

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
    baseline = check_baseline(baseline, inputs, inputs.shape[1:])
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
    second, first, greatest, resolution = _sums(forward, inputs, baseline, spans, positions, subsets, at)
    interaction, joint = second.sum(0), first.sum(0)
    norm = torch.linalg.vector_norm(joint)
    # if the outputs agree up to rounding, the ratio would be one of two rounding errors
    defined = float(norm) > _ROUNDING * resolution * greatest
    value = torch.linalg.vector_norm(interaction) / norm if defined else norm.new_tensor(math.nan)
    standard_error = norm.new_zeros(()) if exact else None
    if not exact and defined and len(second) > 1:
        standard_error = _standard_error(second, first)
    return ShapleyInteraction(
        value, interaction, joint, standard_error, exact, 1 << m if exact else 2 * pairs
    )


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
) -> tuple[Float[Tensor, "blocks d"], Float[Tensor, "blocks d"], float, float]:
    """Return sums of second and first differences by block, the largest ‖v‖, and the resolution of the outputs."""
    second = first = torch.zeros(0)
    greatest = resolution = 0.0
    for members, weights in subsets:
        kept = spans.repeat(len(members), 1, 1)
        kept[:, :, positions] = members[:, None]
        here = kept.flatten(0, 1).to(inputs.device)
        rows = torch.where(here if inputs.ndim == 1 else here[..., None], inputs, baseline)
        output = forward(rows)
        v = exact_float(check_output(output, rows)[:, at])
        if not bool(v.isfinite().all()):
            raise ValueError(
                f"forward returned NaN or infinite values at position {at}: check the model and the baseline"
            )
        greatest = max(greatest, float(torch.linalg.vector_norm(v, dim=1).max()))
        none, a, b, ab = v.view(len(members), 4, -1).unbind(1)
        weights = weights.to(v.device)
        added = weights @ (ab - a - b + none), weights @ (ab - none)
        second, first = (second + added[0], first + added[1]) if len(second) else added
        resolution = torch.finfo(output.dtype).eps
    return second, first, greatest, resolution


def check_baseline(baseline: Tensor | int | float, inputs: Tensor, shape: torch.Size) -> Tensor:
    """Return the baseline as the inputs are; raise a ValueError for another shape."""
    baseline = torch.as_tensor(baseline).to(inputs)
    if baseline.shape != shape:
        raise ValueError(f"expected a baseline of {tuple(shape)}, got {tuple(baseline.shape)}")
    return baseline


def check_output(output: Any, rows: Tensor) -> Tensor:
    """Return the output of forward; raise a ValueError if it is not (rows, time, d)."""
    expected = tuple(rows.shape[:2])
    if not isinstance(output, Tensor) or output.ndim != 3 or output.shape[:2] != expected:
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(
            f"forward must return a tensor of shape {(*expected, 'd')} for this many rows, got {got}: of a model's "
            "output take a field, such as lambda ids: model(ids).last_hidden_state"
        )
    return output


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
