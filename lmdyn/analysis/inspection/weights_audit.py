"""Whether a series of checkpoints is what it says: the same weights twice, a checkpoint at the wrong step.

Distances between checkpoints come from sketches of their weights, so that none need be kept.
"""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

__all__ = ["WeightsAudit", "audit_weights", "out_of_order", "squared_distances", "weights_sketch"]

SKETCH_SIZE = 4093
"""Numbers in a sketch: a prime, so that no row or column of a matrix falls into few of them."""

_STRANGER = 0.25
_TURNED = 0.75
_TURNED_AT_THE_ENDS = 0.4
_ROWS = 256  # of SKETCH_SIZE weights at a time: 8 MB in float64


def weights_sketch(weights: Mapping[str, Tensor], size: int = SKETCH_SIZE) -> Float64[Tensor, "size"]:
    """A fixed random projection of all weights onto ``size`` numbers, which keeps distances, about.

    A count sketch: weight i of a tensor goes into number (i + offset) mod ``size`` with a random sign; offset and
    signs are functions of the tensor's name alone, the same on every machine. For weights x, E‖sketch‖² = ‖x‖² and
    Var ‖sketch‖² ≤ 2 Σ_b (Σ_{i in b} x_i²)², which is 2‖x‖⁴ / ``size`` where the squares are spread evenly: squared
    distances are within about 2 %. The sketch is linear: equal weights have equal sketches.

    Args:
        weights: tensors by name, of any shape and real type; one that has two names (tied weights) counts once.
        size: numbers to keep.

    Returns:
        (size,) float64; not finite where the weights are not.

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
        generator = np.random.PCG64(key)  # its raw stream is fixed by numpy's promise
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


def squared_distances(points: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Squared Euclidean distance of each point to each, from differences (a Gram matrix would lose small ones)."""
    rows = [(points - point).square().sum(1) for point in points]
    return torch.stack(rows) if rows else points.new_zeros(0, 0)


def out_of_order(squared: Float[Tensor, "n n"]) -> Bool[Tensor, "n"]:
    """Which points of a trajectory do not lie where they stand, by the distances to the others.

    Along a trajectory of which distances do not fall as points lie further apart, D(i, k) ≥ D(i, j), D(j, k) for
    i < j < k, with D the squared distance. Two rules, both of which such a trajectory can never break:

    1. A point i with D(i−1, i+1) < 0.25 min(D(i−1, i), D(i, i+1)) is a stranger: its neighbours are less than half as
       far from each other as from it. (Found: a checkpoint of another run, one from a far step.)
    2. Of the others, a stretch i … j with D(i−1, j) + D(i, j+1) < 0.75 (D(i−1, i) + D(j, j+1)) stands the wrong way
       round; the stretch with the smallest quotient is turned, until there is none. What then has moved is out of
       order. (Found: two neighbours exchanged.) At the ends one of the two terms is missing and the factor is 0.4.

    The quotients of both rules are at least 1 on a straight line and in random walks of many dimensions, and 1 for
    noise around a fixed point (those of rule 2 even if its strength changes): no false alarm by 2 % of error of
    sketches. At the ends they may fall to 1/2, where noise begins with its mean or ends in it, annealed: hence 0.4.
    Rule 1 leaves more room: where the order of the data within an epoch matters, a checkpoint in mid-epoch between
    ends of epochs has had quotients down to 0.32. Flagged, rightly or not, are a checkpoint with more than 7 times the
    variance of noise of its neighbours, as from a peak of the learning rate, and a run that ends where it began.

    Two neighbours exchanged inside of a straight line are found if their distance b and those around them, a and c,
    have a² + c² < 0.75 ((a + b)² + (b + c)²): always for equal steps (quotient 1/4). Of a random walk with variances
    a, b, c: if 6 b > a + c (equal steps: quotient 1/2). At an end: on a line of equal steps (1/4), not in a random
    walk (1/2). Not to be found at all: a stranger that is first or last, which is no other than a large step; two
    strangers from the same place side by side; the whole series the wrong way round.

    Args:
        squared: squared distances.

    Example:
        >>> line = torch.tensor([[0.0], [1.0], [2.0], [9.0], [4.0], [6.0], [5.0], [7.0]])
        >>> out_of_order(squared_distances(line)).nonzero().flatten().tolist()
        [3, 5, 6]
    """
    n = len(squared)
    stranger = torch.zeros(n, dtype=torch.bool, device=squared.device)
    if n > 2:
        steps = squared.diagonal(1)
        stranger[1:-1] = squared.diagonal(2) < _STRANGER * torch.minimum(steps[:-1], steps[1:])
    kept = (~stranger).nonzero().flatten()
    order = kept.clone()
    while (turn := _stretch_to_turn(squared[order][:, order])) is not None:
        first, last = turn
        order[first : last + 1] = order[first : last + 1].flip(0)
    flags = stranger
    flags[kept[order != kept]] = True
    return flags


def _stretch_to_turn(squared: Float[Tensor, "n n"]) -> tuple[int, int] | None:
    """The stretch whose turning shortens the path most, relatively, if enough. Ends: paths only get shorter."""
    n = len(squared)
    if n < 3:
        return None
    steps = squared.diagonal(1)
    nothing = steps.new_zeros(1)
    before = torch.cat([nothing, steps])[:, None] + torch.cat([steps, nothing])
    after = squared.new_zeros(n, n)
    after[1:] += squared[:-1]  # (i, j): D(i−1, j)
    after[:, :-1] += squared[:, 1:]  # D(i, j+1)
    factor = squared.new_full((n, n), _TURNED)
    factor[0] = factor[:, -1] = _TURNED_AT_THE_ENDS
    fits = (after < factor * before).triu(1)
    fits[0, -1] = False
    if not fits.any():
        return None
    best = int((after / before).masked_fill(~fits, torch.inf).argmin())
    return best // n, best % n


@dataclass(frozen=True)
class WeightsAudit:
    """What a series of checkpoints looks like, checkpoint by checkpoint.

    Attributes:
        steps: optimizer updates, in order.
        to_previous: Euclidean distance of the weights to those of the checkpoint before, about; NaN at the first.
        to_first: the same to the first checkpoint.
        identical_to: the earliest step of the very same weights; None where there is no earlier one.
        out_of_order: see :func:`out_of_order`.
        finite: whether no weight is infinite or NaN.
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
        steps: increasing.
        digests: a hash of each checkpoint's weights.
        sketches: :func:`weights_sketch` of each.

    Raises:
        ValueError: lengths differ, or steps that do not increase.

    Example:
        >>> sketches = torch.tensor([0.0, 1.0, 2.0, 2.0], dtype=torch.float64)[:, None]
        >>> audit = audit_weights([0, 10, 20, 30], ["a", "b", "c", "c"], sketches)
        >>> audit.identical_to, audit.to_first
        ((None, None, None, 20), (0.0, 1.0, 2.0, 2.0))
    """
    if not len(steps) == len(digests) == len(sketches):
        raise ValueError(
            f"expected as many digests and sketches as steps, got {len(steps)} steps, {len(digests)} digests and "
            f"{len(sketches)} sketches"
        )
    if any(b <= a for a, b in itertools.pairwise(steps)):
        raise ValueError(f"expected steps that increase, got {list(steps)}")
    first_with: dict[str, int] = {}
    identical = [first_with.setdefault(digest, step) for step, digest in zip(steps, digests, strict=True)]
    finite = sketches.isfinite().all(1)
    squared = squared_distances(sketches)
    flags = torch.zeros(len(steps), dtype=torch.bool)
    flags[finite] = out_of_order(squared[finite][:, finite])
    return WeightsAudit(
        steps=tuple(steps),
        to_previous=(float("nan"), *squared.diagonal(1).sqrt().tolist())[: len(steps)],
        to_first=tuple(squared[0].sqrt().tolist()) if len(steps) else (),
        identical_to=tuple(None if a == step else a for a, step in zip(identical, steps, strict=True)),
        out_of_order=tuple(flags.tolist()),
        finite=tuple(finite.tolist()),
    )
