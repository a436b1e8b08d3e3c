"""Procrustes similarity: how well does the best rotation lay one representation over the other?"""

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.similarity.scatter import Pair

__all__ = ["procrustes"]


def procrustes(x: Float[Tensor, "n d1"], y: Float[Tensor, "_ d2"]) -> Float[Tensor, ""]:
    """Procrustes similarity ‖XᵀY‖⁎ / (‖X‖ ‖Y‖) of the centred X and Y (nuclear norm over Frobenius norms).

    The cosine between Y and the best rotation of X: 1 for representations that agree up to shift, rotation and
    isotropic scaling, to which it is invariant on either side; not to other linear maps. The narrower side is taken
    as padded with zeros. Float64 inside, on the device of the arguments, not differentiable.

    Args:
        x: (n, d₁) first representation.
        y: (n, d₂) second representation of the same samples.

    Returns:
        Scalar s in [0, 1], float64. The squared Procrustes distance of Ding et al. is 2(1 − s), of matrices of unit
        norm; the ``disparity`` of ``scipy.spatial.procrustes`` is 1 − s².

    Raises:
        ValueError: fewer than 3 samples (with 2 the value is 1 whatever the data); different numbers of samples;
            NaN, infinite or constant input.

    Reference: Schönemann 1966; Ding et al. 2021, "Grounding representation similarity through statistical testing",
    section 2.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> procrustes(x, x.flip(1) * 3 + 1), procrustes(x, x * torch.tensor([3.0, 1.0]))
        (tensor(1., dtype=torch.float64), tensor(0.8944, dtype=torch.float64))
    """
    return procrustes_of(Pair.of(x, y))


def procrustes_of(pair: Pair) -> Tensor:
    """:func:`procrustes` of a pair."""
    if pair.n < 3:
        raise ValueError(f"{pair.n} samples: at least 3 are needed for this measure to say anything")
    x, y = pair.x, pair.y
    cross = pair.cross / (x.variance**0.5 * y.variance**0.5)
    similarity: Tensor = torch.linalg.svdvals(cross).sum()
    return similarity.clamp(0, 1)
