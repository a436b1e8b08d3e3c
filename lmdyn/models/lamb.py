"""LAMB, the optimizer of ALBERT's pretraining."""

from typing import Any

import torch
from torch.optim.optimizer import Optimizer, ParamsT

__all__ = ["LAMB"]


class LAMB(Optimizer):
    """Adam with the update of each parameter tensor scaled to the norm of the tensor, times the learning rate.

    With m̂ and v̂ Adam's bias-corrected moments and r = m̂ / (√v̂ + ε) + λ w, a tensor w is updated to w − η (‖w‖ /
    ‖r‖) r. The factor ‖w‖ / ‖r‖ is 1 if either norm is 0, and for tensors without weight decay (λ = 0: biases and
    norms), as in ALBERT's released training code. That code omits the bias correction, as ``bias_correction: false``
    does; the printed algorithm includes it.

    Args:
        params: parameters or groups of them.
        lr: learning rate η.
        betas: decay rates of the two moments.
        eps: ε of the denominator.
        weight_decay: weight decay λ.
        bias_correction: whether to divide the moments by 1 − βᵗ.

    Raises:
        ValueError: if a number is out of range.

    Reference: You et al. 2020, algorithm 2, with φ(x) = x.

    Example:
        >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> w.grad = torch.tensor([1.0, 1.0])
        >>> LAMB([w], lr=0.1, weight_decay=1e-9).step()  # ‖w‖ = 5, so a step of length 0.5 along (1, 1)
        >>> (torch.tensor([3.0, 4.0]) - w.data).norm()
        tensor(0.5000)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= b < 1 for b in betas):
            raise ValueError(
                "expected lr, eps and weight_decay of at least 0 and betas in [0, 1), got "
                f"{lr}, {eps}, {weight_decay}, {betas}"
            )
        numbers = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**numbers, "bias_correction": bias_correction})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all parameters that have a gradient, without synchronizing with the device."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for w in (p for p in group["params"] if p.grad is not None):
                if not self.state[w]:
                    zeros = {name: torch.zeros_like(w) for name in ("exp_avg", "exp_avg_sq")}
                    self.state[w] = {"step": 0, **zeros}
                self.state[w]["step"] += 1
                t, first, second = self.state[w].values()
                first.lerp_(w.grad, 1 - beta1)
                second.mul_(beta2).addcmul_(w.grad, w.grad, value=1 - beta2)
                rest1, rest2 = (1 - beta1**t, 1 - beta2**t) if group["bias_correction"] else (1.0, 1.0)
                update = first / (second.sqrt() / rest2**0.5 + group["eps"]) * (1 / rest1)
                if group["weight_decay"]:
                    update.add_(w, alpha=group["weight_decay"])
                    size, length = w.norm(), update.norm()
                    update *= torch.where((size > 0) & (length > 0), size / length, 1.0)
                w.add_(update, alpha=-group["lr"])
        return loss
