"""Audit of a series of checkpoints: identical weights, checkpoints at a wrong step.

Distances between checkpoints are computed from sketches of their weights, so the weights themselves are not kept.
"""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from lmdyn.analysis.statistics.precision import unit_size

__all__ = ["WeightsAudit", "audit_weights", "out_of_order", "squared_distances", "weights_sketch"]

SKETCH_SIZE = 4093
"""Numbers in a sketch: a prime, so that no row or column of a matrix falls into few of them."""

_STRANGER = 0.25
_TURNED = 0.75
_TURNED_AT_THE_ENDS = 0.4
_STRETCH = 64  # points
_POINTS = 1024  # points of a sketch's size at a time: 32 MB
_ROWS = 256  # rows of SKETCH_SIZE weights at a time: 8 MB in float64


def weights_sketch(weights: Mapping[str, Tensor], size: int = SKETCH_SIZE) -> Float64[Tensor, "size"]:
    """Compute a fixed random projection of all weights to ``size`` numbers, which approximately preserves distances.

    It is a count sketch: weight i of a tensor is added to number (i + offset) mod ``size`` with a random sign; offset
    and signs are functions of the tensor's name alone, the same on every machine. For weights x, E‖sketch‖² = ‖x‖² and
    Var ‖sketch‖² ≤ 2 Σ_b (Σ_{i in b} x_i²)², which is 2‖x‖⁴ / ``size`` if the squares are spread evenly: squared
    distances are accurate to about 2 %. The sketch is linear: equal weights have equal sketches.

    Args:
        weights: tensors by name, of any shape and real type; a tensor with two names (tied weights) counts once.
        size: number of entries of the sketch.

    Returns:
        Tensor of shape (size,), float64; not finite if the weights are not.

    Reference: Charikar, Chen & Farach-Colton 2002; Weinberger et al. 2009, "Feature hashing", lemma 2.

    Example:
        >>> weights = {"w": torch.ones(100, 100)}
        >>> sketch = weights_sketch(weights)
        >>> sketch.shape, 0.95 < sketch.norm() / weights["w"].norm() < 1.05
        (torch.Size([4093]), tensor(True))
    """
    total = torch.zeros(size, dtype=torch.float64)
    block = 64 * size * max(1, _ROWS // 64)
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for name in sorted(weights):
        identity = (weights[name].data_ptr(), tuple(weights[name].shape))
        if identity in seen or not weights[name].numel():
            continue
        seen.add(identity)
        flat = weights[name].detach().cpu().flatten()
        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
        generator = np.random.PCG64(key)  # numpy guarantees its raw stream
        own = torch.zeros(size, dtype=torch.float64)
        for start in range(0, len(flat), block):
            part = flat[start : start + block].double()
            words = generator.random_raw(-(-len(part) // 64)).astype("<u8")
            bits = torch.from_numpy(np.unpackbits(words.view(np.uint8))[: len(part)])
            signed = torch.where(bits.bool(), part, -part)
            rows = -(-len(part) // size)
            own += torch.nn.functional.pad(signed, (0, rows * size - len(part))).view(rows, size).sum(0)
        total += own.roll(key % size)
    return total


def squared_distances(points: Float[Tensor, "n d"], width: int) -> Float[Tensor, "n width"]:
    """Compute squared distances of each point to the next ``width``, (i, k): D(i, i + 1 + k); inf past the end.

    They are computed from differences: a Gram matrix would lose small ones.
    """
    points = points.double()
    n = len(points)
    found = points.new_full((n, width), torch.inf)
    for k in range(1, min(width, n - 1) + 1):
        for start in range(0, n - k, _POINTS):
            end = min(start + _POINTS, n - k)
            difference = points[start + k : end + k] - points[start:end]
            found[start:end, k - 1] = difference.square_().sum(1)
    return found


def out_of_order(points: Float[Tensor, "n d"]) -> Bool[Tensor, "n"]:
    """Return which points of a trajectory are not at their place, by their distances to neighbouring points.

    Along a trajectory on which distances do not decrease with separation, D(i, k) ≥ D(i, j), D(j, k) for i < j < k,
    with D the squared distance. There are two rules, neither of which such a trajectory can break:

    1. A point i with D(i−1, i+1) < 0.25 min(D(i−1, i), D(i, i+1)) is a stranger: the distance of its neighbours from
       each other is less than half of that from it. (Found: a checkpoint of another run, or of a distant step.)
    2. Among the others, a stretch i … j with D(i−1, j) + D(i, j+1) < 0.75 (D(i−1, i) + D(j, j+1)) is reversed; the
       stretch (of at most 64 points) with the smallest quotient is turned, until there is none. Points that have moved
       are out of order. (Found: two exchanged neighbours.) At the ends, one of the two terms is missing and the factor
       is 0.4.

    The quotients of both rules are at least 1 on a straight line and in random walks of many dimensions, and 1 for
    noise around a fixed point (those of rule 2 even if its strength changes), so an error of 2 % in the sketches
    causes no false alarm. At the ends, they may fall to 1/2 if noise begins with its mean or ends in it, annealed:
    hence 0.4. Rule 1 has a larger margin: if the order of the data within an epoch matters, a checkpoint in mid-epoch
    between ends of epochs has had quotients down to 0.32. Checkpoints with more than 7 times the variance of noise of
    their neighbours, as from a peak of the learning rate, and a run that ends at its start are flagged, rightly or
    not.

    Two exchanged neighbours within a straight line are found if their distance b and those around them, a and c,
    satisfy a² + c² < 0.75 ((a + b)² + (b + c)²): always for equal steps (quotient 1/4). In a random walk with
    variances a, b, c, they are found if 6 b > a + c (equal steps: quotient 1/2). At an end, they are found on a line
    of equal steps (1/4), not in a random walk (1/2). Not detectable are a stranger at the beginning or the end, which
    looks like a large step; two adjacent strangers from the same place; and the whole series, or more than 64 points,
    reversed.

    Time and memory are linear in the number of points.

    Args:
        points: consecutive points, such as sketches of weights.

    Example:
        >>> line = torch.tensor([[0.0], [1.0], [2.0], [9.0], [4.0], [6.0], [5.0], [7.0]])
        >>> out_of_order(line).nonzero().flatten().tolist()
        [3, 5, 6]
    """
    points = unit_size(points.double())
    n = len(points)
    stranger = torch.zeros(n, dtype=torch.bool, device=points.device)
    if n > 2:
        near = squared_distances(points, 2)
        stranger[1:-1] = near[:-2, 1] < _STRANGER * torch.minimum(near[:-2, 0], near[1:-1, 0])
    kept = (~stranger).nonzero().flatten()
    order = kept.clone()
    width = min(_STRETCH, len(order))
    squared = squared_distances(points[order], width)
    while (turn := _stretch_to_turn(squared)) is not None:
        first, last = turn
        order[first : last + 1] = order[first : last + 1].flip(0)
        start, end = max(0, first - width), last + 1  # rows whose distances have changed
        squared[start:end] = squared_distances(points[order[start : end + width]], width)[: end - start]
    flags = stranger
    flags[kept[order != kept]] = True
    return flags


def _stretch_to_turn(squared: Float[Tensor, "n width"]) -> tuple[int, int] | None:
    """Return the stretch whose reversal shortens the path most, relatively, if by enough, so that this terminates."""
    n, width = squared.shape
    if n < 3:
        return None
    first = torch.arange(n, device=squared.device)[:, None]
    last = first + torch.arange(1, width, device=squared.device)  # (i, k): the stretch i … i + 1 + k
    within = last < n
    ends = last.clamp(max=n - 1)
    into = torch.cat([squared.new_zeros(1), squared[:-1, 0]])[:, None]  # D(i − 1, i)
    out_of = squared[:, 0].masked_fill(torch.arange(n, device=squared.device) == n - 1, 0.0)[
        ends
    ]  # D(j, j + 1)
    before = into + out_of
    turned_into = torch.cat([squared.new_zeros(1, width - 1), squared[:-1, 1:]])  # D(i − 1, j)
    turned_out_of = squared[:, 1:].masked_fill(last == n - 1, 0.0)  # D(i, j + 1)
    after = turned_into + turned_out_of
    at_an_end = (first == 0) | (last == n - 1)
    fits = (after < torch.where(at_an_end, _TURNED_AT_THE_ENDS, _TURNED) * before) & within
    fits &= ~((first == 0) & (last == n - 1))
    if not fits.any():
        return None
    best = int((after / before).masked_fill(~fits, torch.inf).argmin())
    i, k = divmod(best, width - 1)
    return i, i + 1 + k


@dataclass(frozen=True)
class WeightsAudit:
    """Audit of a series of checkpoints, checkpoint by checkpoint.

    Attributes:
        steps: numbers of optimizer updates, in order.
        to_previous: approximate Euclidean distance of the weights to those of the previous checkpoint; NaN for the
            first.
        to_first: approximate distance to the first checkpoint.
        identical_to: the earliest step with exactly the same weights; None if there is no earlier one.
        out_of_order: see :func:`out_of_order`.
        finite: whether all weights are finite.
    """

    steps: tuple[int, ...]
    to_previous: tuple[float, ...]
    to_first: tuple[float, ...]
    identical_to: tuple[int | None, ...]
    out_of_order: tuple[bool, ...]
    finite: tuple[bool, ...]


def audit_weights(
    steps: Sequence[int], digests: Sequence[str], sketches: Float64[Tensor, "n size"]
) -> WeightsAudit:
    """Audit a series of checkpoints: identical weights, weights out of order, weights that are not finite.

    Args:
        steps: increasing numbers of updates.
        digests: a hash of each checkpoint's weights.
        sketches: :func:`weights_sketch` of each checkpoint.

    Raises:
        ValueError: if lengths differ, or if steps do not increase.

    Example:
        >>> sketches = torch.tensor([0.0, 1.0, 2.0, 2.0], dtype=torch.float64)[:, None]
        >>> audit = audit_weights([0, 10, 20, 30], ["a", "b", "c", "c"], sketches)
        >>> audit.identical_to, audit.to_first
        ((None, None, None, 20), (0.0, 1.0, 2.0, 2.0))
    """
    if not len(steps) == len(digests) == len(sketches):
        raise ValueError(
            f"expected one digest and one sketch for each step, got {len(steps)} steps, {len(digests)} digests and "
            f"{len(sketches)} sketches"
        )
    if any(b <= a for a, b in itertools.pairwise(steps)):
        raise ValueError(f"expected increasing steps, got {list(steps)}")
    first_with: dict[str, int] = {}
    identical = [first_with.setdefault(digest, step) for step, digest in zip(steps, digests, strict=True)]
    finite = sketches.isfinite().all(1)
    flags = torch.zeros(len(steps), dtype=torch.bool)
    flags[finite] = out_of_order(sketches[finite])
    to_previous = (sketches[1:] - sketches[:-1]).norm(dim=1)
    return WeightsAudit(
        steps=tuple(steps),
        to_previous=(float("nan"), *to_previous.tolist())[: len(steps)],
        to_first=tuple((sketches - sketches[:1]).norm(dim=1).tolist()),
        identical_to=tuple(None if a == step else a for a, step in zip(identical, steps, strict=True)),
        out_of_order=tuple(flags.tolist()),
        finite=tuple(finite.tolist()),
    )
