"""Planes of weight space: random directions of the scale of the weights, and the plane of a training's course."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lmdyn.analysis.statistics.precision import exact_float

__all__ = ["CourseOfTraining", "Plane", "course_of_training", "filter_normalized", "random_plane"]

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


@dataclass(frozen=True)
class CourseOfTraining:
    """Principal plane of the points that a training went through.

    Attributes:
        plane: plane through the last point; its directions are orthonormal, the principal ones of the course.
        coordinates: coordinates of each point in the plane, (points, 2).
        explained: share of the variance of the points that each direction explains, (2,).
        distances: distance of each point from the plane, (points,).
    """

    plane: Plane
    coordinates: npt.NDArray[np.float64]
    explained: npt.NDArray[np.float64]
    distances: npt.NDArray[np.float64]


def course_of_training(points: Sequence[Point]) -> CourseOfTraining:
    """Compute the plane of the two principal directions of a course, through its last point.

    The directions are those of the principal component analysis of all points, centred at their mean, by the Gram
    matrix of the differences from the last point, in float64. They point to the side on which the first point is.

    The first two directions of a long random walk in many dimensions explain about 61 % and 15 % of its variance
    (Antognini & Sohl-Dickstein 2018): a high share alone does not show a simple course.

    Args:
        points: at least three points, in order.

    Raises:
        ValueError: for fewer than three points, or if they do not span a plane.

    Reference: Li et al. 2018, section 7 (PCA of the differences from the last point).

    Example:
        >>> points = [{"w": torch.tensor([float(t), float(t) ** 2, 0.0])} for t in range(4)]
        >>> course_of_training(points).distances.round(6).tolist()
        [0.0, 0.0, 0.0, 0.0]
    """
    if len(points) < 3:
        raise ValueError(f"expected at least 3 points of a training, got {len(points)}")
    last = points[-1]
    gram = np.zeros((len(points), len(points)))
    for rows in _differences(points):
        gram += (rows @ rows.T).numpy()
    centring = np.eye(len(points)) - 1 / len(points)
    centred = centring @ gram @ centring
    values, vectors = np.linalg.eigh((centred + centred.T) / 2)
    values, vectors = values[::-1], vectors[:, ::-1]
    if not np.isfinite(values).all() or values[1] <= 1e-12 * max(values[0], 1e-300):
        raise ValueError("expected points that span a plane, got points on a line or equal points")
    weights = (centring @ vectors[:, :2]) / np.sqrt(values[:2])  # of the points, in each direction
    coordinates = gram @ weights
    signs = np.where(coordinates[0] < 0, -1.0, 1.0)
    weights, coordinates = weights * signs, coordinates * signs
    directions: list[dict[str, Tensor]] = [{}, {}]
    for (name, value), rows in zip(last.items(), _differences(points), strict=True):
        for own, mine in zip(directions, torch.from_numpy(weights).T @ rows, strict=True):
            own[name] = mine.view(value.shape).to(value)
    squared = np.diag(gram) - (coordinates**2).sum(1)
    return CourseOfTraining(
        Plane(last, *directions), coordinates, values[:2] / values.sum(), np.sqrt(np.maximum(squared, 0))
    )


def _differences(points: Sequence[Point]) -> Iterable[Tensor]:
    """Yield the differences from the last point of one parameter at a time, (points, numbers), in float64."""
    for name, value in points[-1].items():
        end = exact_float(value).cpu().flatten()
        yield torch.stack([exact_float(p[name]).cpu().flatten() - end for p in points])
