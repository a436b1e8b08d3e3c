"""Pictures of a few vectors over training: principal axes common to all steps, and aligned multidimensional scaling."""

from dataclasses import dataclass

import scipy
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.statistics.precision import exact_float, rounding, unit_size

__all__ = [
    "MdsPicture",
    "PrincipalCourse",
    "aligned_courses",
    "cosine_distances",
    "mds_picture",
    "principal_course",
]

_ITERATIONS = 500
_TOLERANCE = 1e-8  # of the stress, relative to its change in one iteration
_ZERO = 1e-7  # size of a deviation, relative to the largest, that has no direction


@dataclass(frozen=True)
class PrincipalCourse:
    """Vectors of several steps in two axes common to all of them.

    Attributes:
        points: (steps, n, 2) float64 coordinates.
        shares: (2,) float64 shares of the variance of all steps in each axis; NaN for vectors that do not vary.
    """

    points: Float[Tensor, "steps n 2"]
    shares: Float[Tensor, "2"]


@torch.no_grad()
def principal_course(vectors: Float[Tensor, "steps n d"]) -> PrincipalCourse:
    """Project n vectors at several steps on the two principal axes of all steps together.

    Each step's mean is subtracted first: the axes show how the vectors lie to each other, not how all of them drift.
    Steps whose vectors are farther apart have more weight, and the axes are mostly theirs. The largest coordinate of
    each axis is positive, which fixes its sign.

    Args:
        vectors: (steps, n, d), such as mean vectors of words.

    Returns:
        Coordinates and shares of the variance; for d = 1, the second coordinate is 0, for equal vectors both are.

    Raises:
        ValueError: without vectors, or if a number is NaN or infinite.

    Example:
        >>> line = torch.tensor([[-1.0, 0.0, 5.0], [1.0, 0.0, 5.0]])
        >>> found = principal_course(torch.stack([line, 3 * line]))
        >>> found.points[..., 0].abs().round(decimals=6).tolist(), found.shares.tolist()
        ([[1.0, 1.0], [3.0, 3.0]], [1.0, 0.0])
    """
    steps, n, _ = vectors.shape
    if not vectors.numel():
        raise ValueError(f"vectors are {tuple(vectors.shape)}: expected (steps, n, d), each from 1")
    exact = _finite(vectors)
    deviations = (exact - exact.mean(1, keepdim=True)).flatten(0, 1)
    deviations = deviations.where(deviations.abs().max() > _rounding(vectors), 0)
    # two axes at least
    u, s, _ = torch.linalg.svd(F.pad(deviations, (0, 1, 0, 1)), full_matrices=False)
    points = u[:-1, :2] * s[:2]
    largest = points.gather(0, points.abs().argmax(0, keepdim=True))
    points = torch.where(largest < 0, -points, points)
    return PrincipalCourse(points.reshape(steps, n, 2), s[:2].square() / s.square().sum())


@torch.no_grad()
def cosine_distances(x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Compute 1 − cos of the angles between the deviations of vectors from their mean.

    Other than Euclidean distances, these do not depend on the deviations' sizes: rare and frequent words, and early and
    late steps, count alike. A vector at the mean has no direction, and the distance 1 to all others.

    Args:
        x: (n, d) vectors.

    Returns:
        (n, n) float64 from 0 to 2, symmetric, with zeros on the diagonal.

    Raises:
        ValueError: without vectors, or if a number is NaN or infinite.

    Example:
        >>> cosine_distances(torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 1.0], [2.0, -1.0]]))[0]
        tensor([0., 2., 1., 1.], dtype=torch.float64)
    """
    if not x.numel():
        raise ValueError(f"x is {tuple(x.shape)}: expected (n, d), each from 1")
    exact = unit_size(_finite(x))
    deviations = exact - exact.mean(0)
    norms = torch.linalg.vector_norm(deviations, dim=1, keepdim=True)
    directed = norms > (_ZERO * norms.max()).clamp(min=_rounding(exact, x.dtype))
    unit = torch.where(directed, deviations / norms.where(directed, 1), 0)
    distances = (1 - unit @ unit.T).clamp(0, 2)
    return distances.fill_diagonal_(0)


@dataclass(frozen=True)
class MdsPicture:
    """Points in a plane whose distances are near given ones.

    Attributes:
        points: (n, 2) float64, centred, in their principal axes.
        stress: √(Σ(δ − d)²/Σδ²) of given distances δ and those of the points d, from 0; 0 if all δ are 0.
    """

    points: Float[Tensor, "n 2"]
    stress: float


@torch.no_grad()
def mds_picture(distances: Float[Tensor, "n _"]) -> MdsPicture:
    """Find points in a plane by metric multidimensional scaling: least squares of distances (SMACOF, scikit-learn).

    It starts at classical scaling, the principal axes of the doubly centred squared distances, so that it draws no
    random numbers, and points of a plane are returned up to rotation, reflection and shift. The minimum may be a local
    one.

    Args:
        distances: (n, n) symmetric, at least 0, with zeros on the diagonal.

    Raises:
        ValueError: if the matrix is not of this form.

    Reference: Borg & Groenen 2005, "Modern multidimensional scaling", chapters 8 and 12.

    Example:
        >>> square = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
        >>> found = mds_picture(torch.cdist(square, square))
        >>> round(found.stress, 6), [round(float(p.norm()), 3) for p in found.points]
        (0.0, [0.707, 0.707, 0.707, 0.707])
    """
    from sklearn.manifold import smacof

    given = _finite(distances)
    size = float(given.max()) if given.numel() else 0.0
    if (
        not given.numel()
        or (given < 0).any()
        or not scipy.spatial.distance.is_valid_dm(given.numpy(), tol=1e-6 * size)
    ):
        raise ValueError(
            f"distances of shape {tuple(given.shape)} are no matrix of distances: expected (n, n), symmetric, with "
            "numbers of at least 0, and with zeros on the diagonal"
        )
    if size == 0:
        return MdsPicture(given.new_zeros(len(given), 2), 0.0)
    wanted = (given + given.T).fill_diagonal_(0) / (2 * size)
    centring = torch.eye(len(given), dtype=torch.float64) - 1 / len(given)
    values, axes = torch.linalg.eigh(-centring @ wanted.square() @ centring / 2)
    points, _ = smacof(
        wanted.numpy(),
        init=(axes * values.clamp(min=0).sqrt())[:, -2:].numpy(),
        n_components=2,
        n_init=1,
        max_iter=_ITERATIONS,
        eps=_TOLERANCE,
        normalized_stress=False,
    )
    found = torch.from_numpy(points)
    stress = float((torch.cdist(found, found) - wanted).norm() / wanted.norm())
    return MdsPicture(principal_course(found[None]).points[0] * size, stress)


@torch.no_grad()
def aligned_courses(points: Float[Tensor, "steps n d"]) -> Float[Tensor, "steps n d"]:
    """Rotate or reflect each step's points to those of the next step, from the last one back (Procrustes, no scaling).

    Pictures that are made step by step, as by multidimensional scaling, are arbitrary up to rotation, reflection and
    shift; aligned, their points move as little as possible. The last picture, of the trained model, stays as it is; all
    are centred. Distances within a step do not change.

    Args:
        points: (steps, n, d) points.

    Raises:
        ValueError: if a number is NaN or infinite.

    Reference: Schönemann 1966, "A generalized solution of the orthogonal Procrustes problem" (``scipy.linalg``).

    Example:
        >>> last = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
        >>> found = aligned_courses(torch.stack([last.flip(1) + 7, last]))
        >>> bool(torch.allclose(found[0], found[1]))
        True
    """
    exact = _finite(points)
    centred = exact - exact.mean(1, keepdim=True) if exact.numel() else exact
    aligned = list(centred.unbind(0))
    for i in range(len(aligned) - 2, -1, -1):
        rotation, _ = scipy.linalg.orthogonal_procrustes(aligned[i].numpy(), aligned[i + 1].numpy())
        aligned[i] = aligned[i] @ torch.from_numpy(rotation)
    return torch.stack(aligned) if aligned else centred


def _rounding(x: Tensor, dtype: torch.dtype | None = None) -> float:
    """Return the size of deviations that are rounding errors of these numbers."""
    return rounding(torch.promote_types(dtype or x.dtype, torch.float32)) * float(x.abs().max())


def _finite(x: Tensor) -> Tensor:
    exact = exact_float(x).cpu()
    if not exact.isfinite().all():
        raise ValueError("vectors or distances contain NaN or infinite numbers: leave out such rows")
    return exact
