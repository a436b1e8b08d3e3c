"""Hessian of a loss: products with vectors, its largest eigenvalues, and its trace."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.statistics.distributed import all_reduce_sum
from lmdyn.analysis.statistics.precision import at_least_float32, exact_float

__all__ = ["Hessian", "HessianTrace"]

_DENSE = 64
"""Up to this many parameters, all entries are computed."""


@dataclass(frozen=True)
class HessianTrace:
    """Trace of a Hessian.

    Attributes:
        value: the trace, or its estimate.
        error: standard error of the estimate over probes; 0 if the trace is exact.
    """

    value: float
    error: float


class Hessian:
    """Hessian of a sum of losses, divided by ``scale``, as a linear map of parameter space.

    The matrix is never stored: a product costs a forward pass and two backward passes of all losses (Pearlmutter
    1994). All ranks must call its methods; each contributes its own losses.

    Args:
        losses: function that returns the losses of this rank, such as one sum of token losses per batch, each with
            its graph, computed again at each call. Operations must have a second derivative: fused attention and
            the LSTM of cuDNN have none.
        parameters: parameters with respect to which derivatives are computed; they must require grad.
        scale: divisor of the sum over ranks, such as the number of tokens of all ranks.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> hessian = Hessian(lambda: [(x**2 * torch.tensor([1.0, 3.0])).sum()], [x])
        >>> hessian.product(torch.tensor([1.0, 1.0]))
        tensor([2., 6.])
        >>> hessian.largest(1), hessian.trace(probes=2)
        ([6.0], HessianTrace(value=8.0, error=0.0))
    """

    def __init__(
        self, losses: Callable[[], Iterable[Tensor]], parameters: Sequence[Tensor], scale: float = 1.0
    ) -> None:
        self._losses = losses
        self._parameters = list(parameters)
        self._scale = scale
        self._dtype = max((at_least_float32(p) for p in parameters), key=lambda dtype: dtype.itemsize)

    @property
    def size(self) -> int:
        """Number of parameters n."""
        return sum(p.numel() for p in self._parameters)

    def product(self, vector: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        """Multiply the Hessian by a vector.

        Args:
            vector: in the order of the parameters, each flattened.

        Returns:
            Product of the same shape, on every rank, on the CPU if there are several ranks or devices.
        """
        split = vector.split([p.numel() for p in self._parameters])
        parts = [part.view_as(p).to(p) for part, p in zip(split, self._parameters, strict=True)]
        sums = [torch.zeros_like(p, dtype=self._dtype) for p in self._parameters]
        for loss in self._losses():
            gradients = torch.autograd.grad(loss, self._parameters, create_graph=True, allow_unused=True)
            # the scalar ⟨∇L, v⟩; a part of the gradient without graph is constant, so that its derivative is 0
            inner = [
                (g * v).sum()
                for g, v in zip(gradients, parts, strict=True)
                if g is not None and g.requires_grad
            ]
            if not inner:
                continue
            seconds = torch.autograd.grad(torch.stack(inner).sum(), self._parameters, allow_unused=True)
            for own, second in zip(sums, seconds, strict=True):
                if second is not None:
                    own += second
        flat = torch.cat([own.flatten().to(vector.device) for own in sums])
        return all_reduce_sum(flat) / self._scale

    def along(self, vector: Float[Tensor, "n"]) -> float:
        """Compute vᵀHv / vᵀv, the curvature along a direction, at most the largest eigenvalue; NaN for v = 0.

        Args:
            vector: direction, of any length.
        """
        exact = exact_float(vector)
        size = float(exact @ exact)
        return float(exact @ exact_float(self.product(vector))) / size if size > 0 else torch.nan

    def dense(self) -> Float[Tensor, "n n"]:
        """Compute all entries by n products: for tests and small models."""
        unit = torch.eye(self.size, dtype=self._dtype)
        return torch.stack([self.product(row) for row in unit])

    def largest(
        self, count: int, *, tolerance: float = 1e-3, seed: int = 0, most_products: int = 200
    ) -> list[float]:
        """Compute the algebraically largest eigenvalues by Lanczos' method (ARPACK, ``scipy``).

        Args:
            count: number of eigenvalues.
            tolerance: relative accuracy.
            seed: seed of the starting vector.
            most_products: approximate number of products after which eigenvalues are given up.

        Returns:
            Eigenvalues, largest first; NaN for those that did not converge, or if a derivative is not finite.

        Raises:
            ValueError: for a count below 1 or above the number of parameters.
        """
        if not 1 <= count <= self.size:
            raise ValueError(f"expected a number of eigenvalues from 1 to {self.size}, got {count}")
        if self.size <= max(_DENSE, 2 * count + 1):
            matrix = self.dense().double()
            if not matrix.isfinite().all():
                return [torch.nan] * count
            values = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
            return [float(v) for v in values.flip(0)[:count]]
        dtype = np.float64 if self._dtype == torch.float64 else np.float32
        generator = np.random.default_rng(seed)

        def multiply(vector: np.ndarray) -> np.ndarray:
            found = self.product(torch.from_numpy(vector.reshape(-1)).to(self._dtype))
            if not found.isfinite().all():
                raise FloatingPointError
            return found.numpy()

        basis = min(self.size, max(2 * count + 1, 20))
        operator = scipy.sparse.linalg.LinearOperator((self.size, self.size), matvec=multiply, dtype=dtype)
        start = generator.standard_normal(self.size).astype(dtype)
        restarts = max(1, most_products // max(1, basis - count))
        try:
            values = scipy.sparse.linalg.eigsh(
                operator,
                k=count,
                which="LA",
                ncv=basis,
                tol=tolerance,
                v0=start,
                maxiter=restarts,
                return_eigenvectors=False,
            )
        except scipy.sparse.linalg.ArpackNoConvergence as error:
            values = error.eigenvalues
        except FloatingPointError:
            values = np.zeros(0)
        found = sorted((float(v) for v in values), reverse=True)
        return found + [torch.nan] * (count - len(found))

    def trace(self, probes: int, *, seed: int = 0) -> HessianTrace:
        """Compute the trace, exactly if there are at least as many probes as parameters, else an estimate.

        The estimate is the mean of vᵀHv over random vectors v of ±1 (Hutchinson 1990).

        Args:
            probes: number of products, at least 2.
            seed: seed of the random vectors.
        """
        if probes >= self.size:
            return HessianTrace(float(self.dense().double().trace()), 0.0)
        generator = torch.Generator().manual_seed(seed)
        values = []
        for _ in range(probes):
            vector = torch.randint(2, (self.size,), generator=generator).to(self._dtype) * 2 - 1
            values.append(exact_float(self.product(vector)) @ exact_float(vector))
        found = torch.stack(values)
        return HessianTrace(float(found.mean()), float(found.std() / probes**0.5))
