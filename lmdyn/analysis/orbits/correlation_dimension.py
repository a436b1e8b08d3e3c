"""Correlation dimension of a set of points: 1 for curves, less for Cantor sets."""

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["correlation_dimension"]


@torch.no_grad()
def correlation_dimension(
    points: Float[Tensor, "times batch observables"], low: float = 5e-3, high: float = 5e-2, most: int = 1500
) -> Float[Tensor, "batch"]:
    """Compute the slope of ln C(r) over ln r, with C(r) the share of pairs of points that are less than r apart.

    The slope is taken between the distances below which a share ``low`` and a share ``high`` of the pairs lie, for at
    most ``most`` points, evenly spaced in time. It is a rough number (±0.1 with 1,500 points), sufficient to
    distinguish a curve from a Cantor set such as the attractor of the logistic map at the end of its period doublings,
    which has 0.50.

    Args:
        points: (times, batch, observables) states, or observables, of which 2 · (dimension of the states) + 1 are
            enough.
        low: smallest share of pairs.
        high: largest share of pairs.
        most: maximum number of points that are compared.

    Returns:
        Tensor of shape (batch,), float64; infinite if both shares lie at one distance, NaN if points are not finite or
        all equal.

    Raises:
        ValueError: if there are fewer than 50 points, or unless 0 < ``low`` < ``high`` < 1.

    Reference: Grassberger & Procaccia 1983.

    Example:
        >>> turn = torch.arange(1000, dtype=torch.float64)[:, None] * 1.7
        >>> circle = torch.stack([turn.cos(), turn.sin()], 2)
        >>> correlation_dimension(circle).round(decimals=1)
        tensor([1.], dtype=torch.float64)
    """
    if len(points) < 50 or not 0 < low < high < 1:
        raise ValueError(
            f"expected at least 50 points and 0 < low < high < 1, got {len(points)} points, {low=:g} and {high=:g}"
        )
    at = torch.linspace(0, len(points) - 1, min(most, len(points))).long().to(points.device)
    chosen = points[at].double()
    pairs = len(at) * (len(at) - 1) // 2
    ranks = [max(1, round(pairs * share)) for share in (low, high)]
    found = []
    for row in chosen.unbind(1):
        if not row.isfinite().all():
            found.append(row.new_tensor(torch.nan))
            continue
        apart = torch.pdist(row)
        near = apart.kthvalue(ranks[0]).values
        far = apart.kthvalue(ranks[1]).values
        smallest = torch.finfo(torch.float64).tiny  # pairs of points may coincide
        slope = row.new_tensor(ranks[1] / ranks[0]).log() / (far / near.clamp(min=smallest)).log()
        found.append(torch.where(far > 0, slope, torch.nan))
    return torch.stack(found) if found else chosen.new_empty(0)
