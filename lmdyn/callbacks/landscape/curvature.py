"""Curvature of the loss over training: eigenvalues and trace of the Hessian, and the critical sharpness."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lmdyn.analysis.inspection.attention_weights import attention_as
from lmdyn.analysis.inspection.forward import device_of
from lmdyn.analysis.landscape.critical_step import critical_step
from lmdyn.analysis.landscape.hessian import Hessian
from lmdyn.analysis.parameters.at_point import at_point
from lmdyn.analysis.parameters.loss_gradient import LossGradient, loss_gradient, losses_of, mean_loss
from lmdyn.callbacks.observing.checked_fields import Above, From
from lmdyn.callbacks.observing.findings import Cost, Foreseen
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import Reader
from lmdyn.callbacks.observing.sums import Row, tabulate
from lmdyn.runs.schema import Quantity

__all__ = ["Curvature"]

_RESOLUTION = 3e-7
"""Part of the loss that counts as rounding of float32 in differences of losses."""


class Curvature(Observer):
    """Curvature of the mean loss of the probe set: eigenvalues and trace of its Hessian, and the critical sharpness.

    Derivatives are with respect to all parameters that are trained, in the model's dtype, with attention in its
    plain form (fused attention has no second derivative). A recurrent state that enters a batch counts as a
    constant. The largest eigenvalues are computed by Lanczos' method from products of the Hessian with vectors, the
    trace by Hutchinson's estimate, with its standard error.

    The critical sharpness is 2 / η_c, where η_c is the shortest step θ − ηΔ after which the loss is as high as
    before. Along the gradient, for a quadratic loss it is gᵀHg / gᵀg, which is at most the largest eigenvalue and is
    also written as ``gradient_curvature``. It is NaN if no step lowers the loss by more than the rounding of
    float32, and 0 if no step raises it.

    Args:
        eigenvalues: number of largest eigenvalues; 0 for none.
        probes: number of random vectors for the trace, at least 2; 0 for no trace.
        directions: Δ of the critical sharpness: only ``gradient``, that of the probe set, since scheduled checkpoints
            contain no state of an optimizer.
        tolerance: relative accuracy of the eigenvalues.
        seed: seed of the starting vector and of the random vectors.
        max_tokens: approximate number of tokens to observe; None for all.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for an unknown direction, numbers out of range, or a module without trainable parameters, in half
            precision or with sharded weights.

    Reference: Pearlmutter 1994 (products); Hutchinson 1990 (trace); Ghorbani, Krishnan & Xiao 2019 (Lanczos on
        networks); Saphra 2021, sections 3.1 and 7.2.1.
    """

    eigenvalues: Annotated[int, From(0)] = 1
    probes: Literal[0] | Annotated[int, From(2)] = 10
    directions: Sequence[Literal["gradient"]] = ("gradient",)
    tolerance: Annotated[float, Above(0, 1)] = 1e-3
    seed: int = 0
    max_tokens: Annotated[int, From(1)] | None = 2_000

    uses_labels = True
    recorded = (
        Quantity(
            "eigenvalue",
            "Eigenvalue of the loss's Hessian, ranked from the largest.",
            "nats",
            tags=("<index>",),
            panel="eigenvalues",
            short="largest eigenvalues",
            lines="index",
        ),
        Quantity("trace", "Estimated trace of the loss's Hessian.", "nats", panel="curvature"),
        Quantity("trace_error", "Standard error of the trace, over random vectors.", "nats", low=0.0),
        Quantity("gradient_norm", "Norm of the gradient of the mean loss.", "nats", low=0.0),
        Quantity(
            "gradient_curvature",
            "gᵀHg / gᵀg for the gradient g and the Hessian H.",
            "nats",
            panel="curvature",
            short="along the gradient,\ngᵀHg / gᵀg",
        ),
        Quantity(
            "critical_sharpness_<direction>",
            "2 / η; after a step of size η along the direction, the loss is again as high as before.",
            "nats",
            low=0.0,
            panel="curvature",
        ),
        Quantity("loss", "Mean token loss of the probe set.", "nats", low=0.0, better="lower"),
    )

    def check_module(self, module: nn.Module) -> None:
        """Raise an error for a module without enough trainable parameters, or in half precision."""
        trained = _trained(module).values()
        if (size := sum(p.numel() for p in trained)) <= self.eigenvalues:
            raise ValueError(
                f"{self.name}: expected more than {self.eigenvalues} trainable parameters in {type(module).__name__}, "
                f"got {size}: unfreeze parameters, or lower `eigenvalues`"
            )
        if half := sorted({str(p.dtype) for p in trained if p.dtype.itemsize < 4}):
            raise ValueError(
                f"{self.name}: expected weights in float32 or float64, got {', '.join(half)}, whose rounding hides "
                "small changes of the loss. Call `module.float()`, or set the trainer's `precision: bf16-mixed`"
            )

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report the memory of Lanczos' vectors."""
        trained = _trained(module).values()
        size = sum(p.numel() for p in trained)
        largest = max(p.element_size() for p in trained)
        if self.eigenvalues:
            vectors = max(2 * self.eigenvalues + 1, 20) + 4
            yield Cost(
                f"{vectors} vectors of {size:,} parameters",
                vectors * size * max(4, largest),
                "set `eigenvalues: 0`",
                host=True,
            )

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Measure the curvature at the module's weights."""
        why = "the model has diverged, Lanczos' method did not converge, or no step lowers the loss"
        with attention_as(module, "eager"), sdpa_kernel(SDPBackend.MATH):  # which has a second derivative
            return tabulate(self._rows(module), {"index": int}, self.name, step, why)

    def _rows(self, module: nn.Module) -> Iterator[Row]:
        parameters = _trained(module)
        text = loss_gradient(module, self._batches(module), Reader(module, self.forward), parameters)
        hessian = Hessian(lambda: self._losses(module), list(parameters.values()), float(text.tokens))
        curvature = hessian.along(torch.cat([g.flatten().cpu() for g in text.gradients.values()]))
        norm = _norm(text.gradients)
        yield {}, {"loss": text.loss, "gradient_norm": norm, "gradient_curvature": curvature}
        if self.eigenvalues:
            found = hessian.largest(self.eigenvalues, tolerance=self.tolerance, seed=self.seed)
            for i, value in enumerate(found, 1):
                yield {"index": i}, {"eigenvalue": value}
        if self.probes:
            trace = hessian.trace(self.probes, seed=self.seed)
            yield {}, {"trace": trace.value, "trace_error": trace.error}
        if self.directions:
            yield {}, {"critical_sharpness_gradient": self._sharpness(module, text, curvature)}

    def _batches(self, module: nn.Module) -> Iterator[dict[str, Any]]:
        return self.probe_set.of_this_rank(device_of(module))

    def _losses(self, module: nn.Module) -> Iterator[Tensor]:
        read = Reader(module, self.forward)
        for batch in self._batches(module):
            yield losses_of(read(batch), batch).sum()

    def _sharpness(self, module: nn.Module, text: LossGradient, curvature: float) -> float:
        """Return 2 / η for the critical step η along the gradient."""
        own = dict(module.named_parameters())
        start = {name: own[name].detach().clone() for name in text.gradients}
        size = _norm(text.gradients)
        if not 0 < size < float("inf"):
            return float("nan")
        # a first guess is the step of the quadratic loss along the gradient
        first = 2 / curvature if curvature > 0 else 1e-3 * max(_norm(start), 1e-8) / size

        def loss(step: float) -> float:
            point = {n: start[n] - (step * d).to(start[n].dtype) for n, d in text.gradients.items()}
            with at_point(module, point):
                return mean_loss(self._batches(module), Reader(module, self.forward))

        return 2 / critical_step(loss, first, resolution=_RESOLUTION * abs(text.loss))


def _trained(module: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def _norm(tensors: Mapping[str, Tensor]) -> float:
    return float(torch.stack([t.double().square().sum().cpu() for t in tensors.values()]).sum().sqrt())
