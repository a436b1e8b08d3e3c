"""How far two distributions are apart, as those of two models' attention."""

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["jensen_shannon", "kullback_leibler"]


def kullback_leibler(p: Float[Tensor, "*batch k"], q: Float[Tensor, "*_"]) -> Float[Tensor, "*batch"]:
    """Kullback–Leibler divergence Σ p log(p/q) in nats, from 0 (equal) to ∞ (p where q has nothing).

    Not symmetric. 0 log 0 = 0. In float64.

    Args:
        p: (…, k) distributions: at least 0, adding up to 1.
        q: the same, of the other model.

    Raises:
        ValueError: different shapes, or rows that do not add up to 1.

    Reference: Kullback & Leibler 1951; of attention, Saphra 2021, section 4.1.1.

    Example:
        >>> kullback_leibler(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]))
        tensor(0.6931, dtype=torch.float64)
    """
    p, q = _checked(p, q)
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(-1).clamp(min=0)


def jensen_shannon(p: Float[Tensor, "*batch k"], q: Float[Tensor, "*_"]) -> Float[Tensor, "*batch"]:
    """Jensen–Shannon divergence in nats: the mean divergence of both from their mean, 0 (equal) to log 2 (disjoint).

    Symmetric and always finite. In float64.

    Args:
        p: (…, k) distributions: at least 0, adding up to 1.
        q: the same, of the other model.

    Raises:
        ValueError: different shapes, or rows that do not add up to 1.

    Reference: Lin 1991, equation 4.1; of attention ("Shannon divergence"), Saphra 2021, section 4.1.1.

    Example:
        >>> jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
        tensor(0.6931, dtype=torch.float64)
    """
    p, q = _checked(p, q)
    mean = (p + q) / 2
    return ((_negentropy(p) + _negentropy(q)) / 2 - _negentropy(mean)).clamp(min=0)


def _negentropy(p: Tensor) -> Tensor:
    return torch.xlogy(p, p).sum(-1)


def _checked(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    if p.shape != q.shape:
        raise ValueError(f"p is {tuple(p.shape)} and q {tuple(q.shape)}: distributions over the same things")
    p, q = p.double(), q.double()
    for name, v in (("p", p), ("q", q)):
        if not bool(((v.sum(-1) - 1).abs() < 1e-3).all() & (v >= 0).all()):
            raise ValueError(f"{name} holds rows that are no distributions: at least 0, adding up to 1")
    return p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
