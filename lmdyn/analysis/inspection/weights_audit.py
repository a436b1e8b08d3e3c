"""Audit of a series of checkpoints: identical weights, checkpoints at a wrong step.

Distances between checkpoints are computed from sketches of their weights, so the weights themselves are not kept.
"""

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from lmdyn.analysis.statistics.precision import unit_size

__all__ = [
    "WeightsAudit",
    "audit_weights",
    "out_of_order",
    "squared_distances",
    "tensor_sketches",
    "weights_sketch",
]

SKETCH_SIZE = 4093
"""Numbers in a sketch: a prime, so that no row or column of a matrix falls into few of them."""

TENSOR_SIZE = 61
"""Numbers in the sketch of one tensor, also a prime."""

_QUOTIENT = 0.75
_QUOTIENT_AT_THE_ENDS = 0.4
_STRANGER = 0.125
_STRETCH = 64  # points
_FEW = 5  # points
_TRIED = 16  # moves
_AROUND = 64  # increments
_ALONG = 0.5
_JUMP = 10
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
    for name, own in _sketches(weights, size):
        total += own.roll(_key(name) % size)
    return total


def tensor_sketches(weights: Mapping[str, Tensor]) -> dict[str, Float64[Tensor, "61"]]:
    """Compute a projection of each tensor to 61 numbers: sums of every 61st number of a :func:`weights_sketch` of it.

    Squared distances are accurate to √(2 / 61) = 18 %. A tensor of at most 61 numbers keeps them, up to signs.

    Args:
        weights: tensors by name, of any shape and real type; tied weights have one name, the first.

    Example:
        >>> tensor_sketches({"w": torch.ones(3)})["w"].abs().sum()
        tensor(3., dtype=torch.float64)
    """
    rows = -(-SKETCH_SIZE // TENSOR_SIZE)
    return {
        name: torch.nn.functional.pad(own, (0, rows * TENSOR_SIZE - SKETCH_SIZE)).view(rows, -1).sum(0)
        for name, own in _sketches(weights, SKETCH_SIZE)
    }


def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def _sketches(weights: Mapping[str, Tensor], size: int) -> Iterator[tuple[str, Float64[Tensor, "size"]]]:
    """Yield the count sketch of each tensor without its offset."""
    block = 64 * size * max(1, _ROWS // 64)
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for name in sorted(weights):
        identity = (weights[name].data_ptr(), tuple(weights[name].shape))
        if identity in seen or not weights[name].numel():
            continue
        seen.add(identity)
        flat = weights[name].detach().cpu().flatten()
        generator = np.random.PCG64(_key(name))  # numpy guarantees its raw stream
        own = torch.zeros(size, dtype=torch.float64)
        for start in range(0, len(flat), block):
            part = flat[start : start + block].double()
            words = generator.random_raw(-(-len(part) // 64)).astype("<u8")
            bits = torch.from_numpy(np.unpackbits(words.view(np.uint8))[: len(part)])
            signed = torch.where(bits.bool(), part, -part)
            rows = -(-len(part) // size)
            own += torch.nn.functional.pad(signed, (0, rows * size - len(part))).view(rows, size).sum(0)
        yield name, own


def squared_distances(points: Float[Tensor, "n d"], width: int) -> Float[Tensor, "n width"]:
    """Compute squared distances of each point to the next ``width``, (i, k): D(i, i + 1 + k); inf past the end.

    They are computed from differences: a Gram matrix would lose small ones.
    """
    points = points.double()
    found = points.new_full((len(points), width), torch.inf)
    for k in range(1, min(width, len(points) - 1) + 1):
        found[:-k, k - 1] = (points[k:] - points[:-k]).square_().sum(1)
    return found


def out_of_order(points: Float[Tensor, "n d"]) -> Bool[Tensor, "n"]:
    """Return the smallest set of points whose removal leaves a trajectory in order, found greedily.

    D is the squared distance. A place is wrong if the path is much shorter otherwise: a *move* replaces the distances
    ``before`` between neighbours by those ``after``. There are four, each within 64 points:

    1. exchange two points: both are marked;
    2. put one point elsewhere: it is marked. (Found: weights of a distant step of the same run.)
    3. turn a stretch: all its points are marked, except the middle one, which stays at its place;
    4. take one point out, if D of its neighbours, and the smaller of those of the steps before and after them, are less
       than 1/8 of both their distances to it. (Found: another run.)

    Of the moves with after < 3/4 before (2/5 at the ends, where one distance is missing, and where only two points that
    point backwards are turned), the one that shortens the path most is made, and its points are taken out, until there
    is none. A copy of step 50 at 20, for instance, is put elsewhere, although turning 20 … 40 shortens the path too.

    In random walks of many dimensions and on lines, after / before is at least 1; in noise around a fixed point, of
    whatever strengths, its mean is 1 (at least 1/2 at the ends), and below exp(-16 / d^0.7) by chance only with
    p < 1e-7 in d dimensions (a fit of Chernoff's bound for turning a stretch of two). d is estimated from the cosines
    between the increments around the move: it is small for few numbers and for a training that oscillates, in which
    nothing is out of order. Such moves are not made. Move 4 is not made if a quarter of the points would be taken out:
    their noise is larger, as with a cyclic learning rate. A single checkpoint of more than 15 times the variance of
    its neighbours' noise, as from a peak of the learning rate, is taken out, rightly or not.

    Not detectable are a stranger at the beginning or the end, which looks like a large step; two adjacent strangers
    from the same place; more than 64 points, or the whole series, reversed; and anything among fewer than six points.

    Time and memory are linear in the number of points, for each point that is marked.

    Args:
        points: consecutive points, such as sketches of weights.

    Example:
        >>> line = torch.arange(12.0).sqrt()[:, None] * torch.ones(1, 50)
        >>> line[[3, 8]] = line[[8, 3]]
        >>> out_of_order(line).nonzero().flatten().tolist()
        [3, 8]
    """
    points = unit_size(points.double())
    chain = torch.arange(len(points), device=points.device)
    flags = points.new_zeros(len(points), dtype=torch.bool)
    while len(chain) > _FEW and (marked := _marked(points[chain])):
        flags[chain[marked]] = True
        kept = points.new_ones(len(chain), dtype=torch.bool)
        kept[marked] = False
        chain = chain[kept]
    return flags


_EDGES = {
    "turn": ("ai jb", "aj ib"),
    "exchange": ("ai ic dj jb", "aj cj id ib"),
    "put later": ("ai ic jb", "ac ij ib"),
    "put earlier": ("dj jb ai", "db aj ij"),
    "take out": ("ai ic", "ac"),
}
"""The distances of the path that a move replaces, and by which, between points named as in :func:`_places`."""


def _places(i: Any, j: Any) -> dict[str, Any]:
    """Return the places of points i and j, and of those next to them."""
    return {"z": i - 2, "a": i - 1, "i": i, "c": i + 1, "e": i + 2, "d": j - 1, "j": j, "b": j + 1}


def _marked(points: Float[Tensor, "n d"]) -> list[int]:
    """Return the positions that the move which shortens the path most takes out; none if there is no such move."""
    possible = min(_limit(float(points.shape[1])), _QUOTIENT)
    found: list[tuple[float, float, str, int, int]] = []
    for kind, before, after, limits in _moves(points):
        fits = after < limits.clamp(max=possible) * before
        saved = (before - after).masked_fill(~fits, 0.0).flatten()
        best, where = saved.topk(min(_TRIED, len(saved)))
        quotients = (after / before).flatten()[where]
        columns = after.shape[1]
        for gain, quotient, at in zip(best.tolist(), quotients.tolist(), where.tolist(), strict=True):
            if gain > 0:
                found.append((gain, quotient, kind, at // columns, at // columns + at % columns))
    found.sort(key=lambda one: -one[0])
    refused: list[tuple[int, int]] = []
    for _, quotient, kind, i, j in found[:_TRIED]:
        if any(a <= j and i <= b for a, b in refused):
            continue  # a part of what may be chance
        limit = _limit(_dimensions(points, kind, i, j))
        if quotient < (limit / 3 if kind == "take out" else limit):
            return {
                "take out": [i],
                "put later": [i],
                "put earlier": [j],
                "exchange": [i, j],
                "turn": [at for at in range(i, j + 1) if 2 * at != i + j],
            }[kind]
        refused.append((i, j))
    return []


def _moves(points: Float[Tensor, "n d"]) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """Yield kind, length of the path before and after, and limit of the quotient, (n, width), for i and j = i + k."""
    n = len(points)
    width = min(_STRETCH, n - 1)
    near = squared_distances(points, width)
    i = torch.arange(n, device=points.device)[:, None]
    k = torch.arange(width, device=points.device)
    j = i + k
    places = _places(i, j)

    def length(edges: str) -> Tensor:
        """Return the sum of distances, 0 past an end."""
        total = torch.zeros_like(near)
        for edge in edges.split():
            one, other = (places[name].expand(n, width) for name in edge)
            a = torch.minimum(one, other)
            b = torch.maximum(one, other)
            there = (a >= 0) & (b < n) & (b > a)
            total += torch.where(there, near[a.clamp(0, n - 1), (b - a - 1).clamp(0, width - 1)], 0.0)
        return total

    end = (i == 0) | (j == n - 1)
    increments = _directions(points[1:] - points[:-1])
    along = points.new_zeros(n, dtype=torch.bool)
    along[0] = increments[0] @ increments[2] < -_ALONG  # pointing backwards
    along[n - 2] = increments[n - 2] @ increments[n - 4] < -_ALONG
    turns = (j < n) & torch.where(end, along[:, None] & (k == 1), k >= 1)
    far = (j < n) & (k >= 2)
    ends = torch.where(end, _QUOTIENT_AT_THE_ENDS, _QUOTIENT)
    fitting = {"turn": turns, "exchange": far, "put later": far & ~end, "put earlier": far & ~end}
    for kind, fits in fitting.items():
        before, after = map(length, _EDGES[kind])
        yield kind, before, after, torch.where(fits, ends, 0.0)
    least = torch.minimum(length("ai"), length("ic"))
    without = length("ac")
    step_before, step_after = length("za"), length("ce")
    around = torch.minimum(
        torch.where(i < 2, step_after, step_before), torch.where(i > n - 3, step_before, step_after)
    )
    stranger = (i > 0) & (i < n - 1) & (k == 0) & (torch.maximum(without, around) < _STRANGER * least)
    if 4 * int(stranger.sum()) <= n:
        yield "take out", least, without, torch.where(stranger, _STRANGER, 0.0)


def _directions(increments: Tensor) -> Tensor:
    return torch.nn.functional.normalize(increments, dim=1, eps=1e-300)


def _limit(dimensions: float) -> float:
    """Return the quotient that noise in so many dimensions falls below with p ≈ 1e-7."""
    return math.exp(-16 / dimensions**0.7) if dimensions > 4 else 0.0


def _dimensions(points: Float[Tensor, "n d"], kind: str, i: int, j: int) -> float:
    """Estimate the number of dimensions in which the path around a move fluctuates.

    Cosines of independent increments have the variance 1/d, around a mean that changes slowly (1 on a line). So 2/d is
    the mean square of their differences between neighbouring pairs; increments that share a point are not compared,
    and those that the move replaces are left out.
    """
    places = _places(i, j)
    replaced = {places[edge[0]] for edge in _EDGES[kind][0].split()} & set(range(len(points) - 1))
    edges = [e for e in range(len(points) - 1) if e not in replaced]
    edges = sorted(sorted(edges, key=lambda e: min(abs(e - i), abs(e - j)))[:_AROUND])
    at = torch.tensor(edges, device=points.device)
    steps = points[at + 1] - points[at]
    if kind == "turn":  # within the stretch, increments point backwards
        steps = torch.where(((at >= i) & (at < j))[:, None], -steps, steps)
    steps = _directions(steps)
    cosines = steps @ steps.T
    apart = (at[:, None] - at).abs() >= 2
    pairs = apart[:, 1:] & apart[:, :-1]
    differences = (cosines[:, 1:] - cosines[:, :-1])[pairs]
    if len(differences) < 2:
        return 0.0
    large = sorted(replaced)
    moved = _directions(points[[e + 1 for e in large]] - points[large])
    # as many normal numbers; few have changed if it is small
    spread = 3 / max(float((moved**4).sum(1).max()), 1e-300)
    return min(2 / max(float(differences.square().mean()), 1e-12), spread)


@dataclass(frozen=True)
class WeightsAudit:
    """Audit of a series of checkpoints, checkpoint by checkpoint.

    Attributes:
        steps: numbers of optimizer updates, in order.
        to_previous: approximate Euclidean distance of the weights to those of the previous checkpoint; NaN for the
            first.
        to_first: approximate distance to the first checkpoint.
        identical_to: the earliest other step with exactly the same weights; None if there is none.
        out_of_order: see :func:`out_of_order`; of identical weights, only those that are not at their place.
        tensors_out_of_order: names of tensors that are out of order in a checkpoint that is in order as a whole.
        finite: whether all weights are finite.
        unrelated_start: whether the second checkpoint does not descend from the first: it is more than 10 times as far
            from it as from the third, in proportion to the steps, and half of the tensors are as different as those
            of two initialisations, but less than a quarter of those of the second and third checkpoint.
    """

    steps: tuple[int, ...]
    to_previous: tuple[float, ...]
    to_first: tuple[float, ...]
    identical_to: tuple[int | None, ...]
    out_of_order: tuple[bool, ...]
    tensors_out_of_order: tuple[tuple[str, ...], ...]
    finite: tuple[bool, ...]
    unrelated_start: bool = False


def audit_weights(
    steps: Sequence[int],
    digests: Sequence[str],
    sketches: Float64[Tensor, "n size"],
    tensors: Mapping[str, tuple[Sequence[str], Float64[Tensor, "n 61"]]] | None = None,
) -> WeightsAudit:
    """Audit a series of checkpoints: identical weights, weights out of order, weights that are not finite.

    Args:
        steps: increasing numbers of updates.
        digests: a hash of each checkpoint's weights.
        sketches: :func:`weights_sketch` of each checkpoint.
        tensors: by name, a hash and the :func:`tensor_sketches` of a tensor in each checkpoint; NaN where unknown.

    Example:
        >>> sketches = torch.tensor([0.0, 1.0, 2.0, 2.0], dtype=torch.float64)[:, None]
        >>> audit = audit_weights([0, 10, 20, 30], ["a", "b", "c", "c"], sketches)
        >>> audit.identical_to, audit.to_first
        ((None, None, 30, 20), (0.0, 1.0, 2.0, 2.0))
    """
    same: dict[str, list[int]] = {}
    for step, digest in zip(steps, digests, strict=True):
        same.setdefault(digest, []).append(step)
    finite = sketches.isfinite().all(1)
    wrong, unclear = _misplaced(digests, sketches, finite.nonzero().flatten().tolist())
    names: list[list[str]] = [[] for _ in steps]
    for name, (hashes, points) in (tensors or {}).items():
        known = points.isfinite().all(1).nonzero().flatten().tolist()
        judged = [at for at in known if at not in wrong | unclear]
        for at in _misplaced(hashes, points, judged, chance=True)[0]:
            names[at].append(name)
    to_previous = (sketches[1:] - sketches[:-1]).norm(dim=1)
    return WeightsAudit(
        steps=tuple(steps),
        to_previous=(math.nan, *to_previous.tolist())[: len(steps)],
        to_first=tuple((sketches - sketches[:1]).norm(dim=1).tolist()),
        identical_to=tuple(
            next((other for other in same[digest] if other != step), None)
            for step, digest in zip(steps, digests, strict=True)
        ),
        out_of_order=tuple(at in wrong for at in range(len(steps))),
        tensors_out_of_order=tuple(map(tuple, names)),
        finite=tuple(finite.tolist()),
        unrelated_start=_unrelated_start(steps, sketches, [points for _, points in (tensors or {}).values()]),
    )


def _unrelated_start(
    steps: Sequence[int], sketches: Float[Tensor, "n d"], tensors: Sequence[Float[Tensor, "n 61"]]
) -> bool:
    if len(steps) < 3 or not tensors:
        return False
    first, second = (sketches[1:3] - sketches[:2]).norm(dim=1).tolist()
    longer = (steps[1] - steps[0]) / (steps[2] - steps[1])
    if not first > _JUMP * second * max(1.0, longer):
        return False
    weights = torch.stack(list(tensors))
    later, earlier = weights[:, 1:3], weights[:, :2]
    there = (earlier != 0).any(2).all(1)  # biases are 0 at first
    cosines = torch.cosine_similarity(later, earlier, dim=2)
    chance = 3 / math.sqrt(TENSOR_SIZE)
    unlike = (cosines[there].abs() < chance).double()
    at_first, then = unlike.mean(0).tolist()
    return bool(at_first >= 0.5 and then < 0.25)


def _misplaced(
    digests: Sequence[str], points: Float[Tensor, "n d"], judged: Sequence[int], *, chance: bool = False
) -> tuple[set[int], set[int]]:
    """Return the places of weights that are out of order, and those of identical ones of which either may be.

    Weights that stay the same for a while, as if frozen, are one place. If they return after others, one is wrong:
    the one that is further from its neighbours, if by a factor of 2; otherwise this is not decided.

    Args:
        digests: hashes of the weights.
        points: sketches of them.
        judged: places to judge, in order.
        chance: whether identical weights may be a coincidence, as of a few numbers of low precision: not if, between
            them, half of the numbers of the sketch, and at least 8, have changed.
    """
    runs = [list(run) for _, run in itertools.groupby(judged, key=lambda at: digests[at])]
    firsts = [run[0] for run in runs]
    places: dict[str, list[int]] = {}
    for place, at in enumerate(firsts):
        places.setdefault(digests[at], []).append(place)
    wrong: set[int] = set()
    unclear: set[int] = set()
    path = points[firsts]
    for several in places.values():
        if len(several) == 1 or (chance and not _changed_between(path, several)):
            continue
        detours = [_detour(path, place, several) for place in several]
        stays = [place for place, detour in zip(several, detours, strict=True) if detour <= 2 * min(detours)]
        if len(stays) == 1:
            wrong.update(set(several) - set(stays))
        else:
            unclear.update(several)
    rest = [place for place in range(len(firsts)) if place not in wrong | unclear]
    flags = out_of_order(path[rest])
    wrong |= {place for place, flag in zip(rest, flags.tolist(), strict=True) if flag}
    return {at for place in wrong for at in runs[place]}, {at for place in unclear for at in runs[place]}


def _changed_between(points: Float[Tensor, "n d"], several: Sequence[int]) -> bool:
    """Return whether most numbers of the sketch differ from those of identical weights somewhere between these."""
    own = points[several[0]]
    changed = (points[several[0] : several[-1]] != own).sum(1).max()
    return int(changed) >= max(8, int((own != 0).sum()) / 2)


def _detour(points: Float[Tensor, "n d"], place: int, several: Sequence[int]) -> float:
    """Return by how much a path is shorter without a place, in squared distances; at an end, its distance."""
    others = [at for at in range(len(points)) if at not in several]
    around = [at for at in others if at < place][-1:] + [at for at in others if at > place][:1]
    lengths = (points[around] - points[place]).square().sum(1).sum()
    across = (points[around[0]] - points[around[-1]]).square().sum()
    return max(float(lengths - across), 0.0)
