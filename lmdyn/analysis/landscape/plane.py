"""Planes of weight space: random directions of the scale of the weights."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["Plane", "filter_normalized", "random_plane"]

Point = Mapping[str, Tensor]


@dataclass(frozen=True)
class Plane:
    """A plane in weight space: origin + x · first + y · second.

    Attributes:
        origin: values by name of parameter.
        first: direction of the first coordinate.
        second: direction of the second one.
    """

    origin: Point
    first: Point
    second: Point

    def at(self, x: float, y: float) -> dict[str, Tensor]:
        """Return a point of the plane, in the dtype of the origin; exactly the origin at (0, 0).

        Example:
            >>> one = {"w": torch.ones(1)}
            >>> Plane(one, one, one).at(2.0, 3.0)["w"]
            tensor([6.])
        """
        if x == 0 and y == 0:
            return dict(self.origin)
        return {
            name: value + (x * self.first[name] + y * self.second[name]).to(value)
            for name, value in self.origin.items()
        }


def filter_normalized(direction: Point, at: Point) -> dict[str, Tensor]:
    """Scale each row of a direction to the norm of the same row of the weights; 0 for vectors.

    A row is what one output unit (or one token of an embedding) reads, over all axes but the first. Vectors (biases,
    gains of norm layers) have direction 0, since the loss does not change with their scale as with that of weights.
    A row of weights that is 0 stays 0.

    Args:
        direction: random direction, by name of parameter.
        at: weights of the same names and shapes.

    Reference: Li et al. 2018, section 4.

    Example:
        >>> filter_normalized({"w": torch.tensor([[3.0, 4.0]])}, {"w": torch.tensor([[0.0, 10.0]])})["w"]
        tensor([[6., 8.]])
    """
    found = {}
    for name, weight in at.items():
        drawn = direction[name]
        if weight.ndim < 2:
            found[name] = torch.zeros_like(drawn)
            continue
        own, other = (exact_float(t).flatten(1).norm(dim=1) for t in (drawn, weight))
        ratio = torch.where(own > 0, other / own, 0.0).to(drawn)
        found[name] = drawn * ratio.view(-1, *([1] * (weight.ndim - 1)))
    return found


def random_plane(at: Point, seed: int) -> Plane:
    """Draw a plane through a point with two filter-normalised Gaussian directions.

    Gaussian vectors of many dimensions are almost orthogonal; they are not made exactly so, which filter normalisation
    would undo.

    Example:
        >>> plane = random_plane({"w": torch.ones(2, 3)}, seed=0)
        >>> plane.first["w"].norm(dim=1)
        tensor([1.7321, 1.7321])
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for _ in range(2):
        direction = {k: torch.randn(v.shape, generator=generator).to(v) for k, v in at.items()}
        drawn.append(filter_normalized(direction, at))
    return Plane(at, *drawn)
