"""Kaplan–Yorke dimension of an attractor, from its Lyapunov exponents."""

import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.statistics.precision import at_least_float32

__all__ = ["kaplan_yorke_dimension"]


def kaplan_yorke_dimension(
    exponents: Float[Tensor, "*batch k"], state_size: int | None = None
) -> Float[Tensor, "*batch"]:
    """Compute the Kaplan–Yorke dimension j + Σ_{i≤j} λ_i / |λ_{j+1}|, with j the last index for which Σ_{i≤j} λ_i ≥ 0.

    The value is 0 if all exponents are negative. It is NaN if the sum of all k exponents is not negative (more
    exponents are required), unless k is the dimension of the state: then volumes do not shrink, and the value is that
    dimension. It is NaN for NaN and +∞; −∞, for a direction that is lost at once, adds nothing.

    Args:
        exponents: (…, k) the largest k exponents, in any order.
        state_size: number of dimensions of the state, to know whether k exponents are all of them; unknown by default.

    Raises:
        ValueError: if there are no exponents.

    Reference: Kaplan & Yorke 1979; Eckmann & Ruelle 1985, equation 4.22.

    Example:
        >>> kaplan_yorke_dimension(torch.tensor([[0.4192, -1.6232], [-1.0, -2.0], [0.5, 0.1]]))
        tensor([1.2583, 0.0000,    nan])
    """
    k = exponents.shape[-1]
    out = exponents.dtype if exponents.is_floating_point() else torch.float32
    if k == 0:
        raise ValueError(f"expected at least one exponent, got shape {tuple(exponents.shape)}")
    exponents = exponents.to(at_least_float32(exponents))
    falling = exponents.sort(-1, descending=True).values
    sums = falling.cumsum(-1)
    j = (sums >= 0).long().cumprod(-1).sum(-1, keepdim=True)
    held = torch.where(j > 0, sums.gather(-1, (j - 1).clamp(min=0)), 0)
    dimension = (j + held / falling.gather(-1, j.clamp(max=k - 1)).abs()).squeeze(-1)
    all_held = float(k) if k == state_size else torch.nan
    dimension = torch.where(j.squeeze(-1) == k, all_held, dimension)
    unknown = (exponents.isnan() | (exponents == torch.inf)).any(-1)
    return torch.where(unknown, torch.nan, dimension).to(out)
