"""Procrustes similarity: the alignment of two representations under the best rotation."""

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.similarity.scatter import Pair

__all__ = ["procrustes"]


def procrustes(x: Float[Tensor, "n d1"], y: Float[Tensor, "n d2"]) -> Float[Tensor, ""]:
    """Compute the Procrustes similarity ‖XᵀY‖⁎ / (‖X‖ ‖Y‖) of the centred X and Y (nuclear over Frobenius norms).

    This is the cosine between Y and the best rotation of X. It is 1 for representations that agree up to shift,
    rotation and isotropic scaling, to which it is invariant on either side; it is not invariant to other linear maps.
    The narrower side is padded with zeros. Computed in float64 on the device of the arguments; not differentiable.

    Args:
        x: (n, d₁) first representation.
        y: (n, d₂) second representation of the same samples.

    Returns:
        Scalar float64 tensor s in [0, 1]. The squared Procrustes distance of Ding et al., of matrices of unit norm, is
        2(1 − s); the ``disparity`` of ``scipy.spatial.procrustes`` is 1 − s².

    Raises:
        ValueError: if there are fewer than 3 samples (with 2 the value is 1 whatever the data), if the numbers of
            samples differ, or if the input is NaN, infinite or constant.

    Reference: Schönemann 1966; Ding et al. 2021, "Grounding representation similarity through statistical testing",
    section 2.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> procrustes(x, x.flip(1) * 3 + 1), procrustes(x, x * torch.tensor([3.0, 1.0]))
        (tensor(1., dtype=torch.float64), tensor(0.8944, dtype=torch.float64))
    """
    return procrustes_of(Pair.of(x, y))


def procrustes_of(pair: Pair) -> Tensor:
    """Compute :func:`procrustes` of a pair."""
    if pair.n < 3:
        raise ValueError(f"procrustes requires at least 3 samples, got {pair.n}")
    x, y = pair.x, pair.y
    cross = pair.cross / (x.variance**0.5 * y.variance**0.5)
    similarity: Tensor = torch.linalg.svdvals(cross).sum()
    return similarity.clamp(0, 1)
