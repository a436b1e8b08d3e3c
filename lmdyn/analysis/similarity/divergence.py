"""Divergence of two distributions, such as the attention of two models."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lmdyn.analysis.statistics.distributed import all_reduce_sum

__all__ = ["DivergenceSums", "jensen_shannon", "kullback_leibler"]


def kullback_leibler(p: Float[Tensor, "*batch k"], q: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch"]:
    """Compute the Kullback–Leibler divergence Σ p log(p/q) in nats, from 0 (equal) to ∞ (p > 0 and q = 0 somewhere).

    It is not symmetric; 0 log 0 = 0. Computed in float64.

    Args:
        p: (…, k) distributions: nonnegative, with a sum of 1.
        q: the same for the other model.

    Raises:
        ValueError: if the shapes differ, or if a row is not a distribution.

    Reference: Kullback & Leibler 1951; of attention, Saphra 2021, section 4.1.1.

    Example:
        >>> kullback_leibler(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]))
        tensor(0.6931, dtype=torch.float64)
    """
    p, q = _checked(p, q)
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(-1).clamp(min=0)


def jensen_shannon(p: Float[Tensor, "*batch k"], q: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch"]:
    """Compute the Jensen–Shannon divergence in nats, from 0 (equal) to log 2 (disjoint).

    It is the mean divergence of both distributions from their mean, symmetric and always finite. Computed in float64.

    Args:
        p: (…, k) distributions: nonnegative, with a sum of 1.
        q: the same for the other model.

    Raises:
        ValueError: if the shapes differ, or if a row is not a distribution.

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
    p, q = p.double(), q.double()
    for name, v in (("p", p), ("q", q)):
        if not bool(((v.sum(-1) - 1).abs() < 1e-3).all() & (v >= 0).all()):
            raise ValueError(f"rows of {name} are not distributions: expected values >= 0 with a sum of 1")
    return p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)


class DivergenceSums:
    """Streaming sums of both divergences of distributions, in nats; NaN if a row is not a distribution.

    Example:
        >>> sums = DivergenceSums()
        >>> p, q = torch.eye(2)[None], torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
        >>> sums.update(p, q, torch.ones(1, 2, dtype=torch.bool))
        >>> sums.result()["kullback_leibler"]
        0.34657359027997264
    """

    def __init__(self) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64)
        self.error = ""
        """Why there is no value."""

    def update(
        self, p: Float[Tensor, "batch time k"], q: Float[Tensor, "_ _ _"], there: Bool[Tensor, "batch time"]
    ) -> None:
        """Add the divergences of distributions p from q.

        Args:
            p: (batch, time, k) distributions.
            q: the same of the other model.
            there: (batch, time) which of them to add.

        Raises:
            ValueError: if the shapes differ.
        """
        if p.shape != q.shape:
            raise ValueError(f"expected p and q of one shape, got {tuple(p.shape)} and {tuple(q.shape)}")
        p, q = p[there].double(), q[there].double()
        try:
            found = [jensen_shannon(p, q).sum(), kullback_leibler(p, q).sum()]
        except ValueError as error:
            self.error = str(error)
            found = [p.new_tensor(torch.nan)] * 2
        self._sums = self._sums.to(p.device) + torch.stack([*found, p.new_tensor(len(p))])

    def reduce(self) -> None:
        """Sum over ranks; call it once, on every rank, after the last update."""
        self._sums = all_reduce_sum(self._sums)

    def result(self) -> dict[str, float]:
        """Return the mean of each divergence."""
        js, kl = (self._sums[:2] / self._sums[2]).tolist()
        return {"jensen_shannon": js, "kullback_leibler": kl}
