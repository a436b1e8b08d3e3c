"""LAMB, the optimizer of ALBERT's pretraining."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT


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
                "expected lr, eps and weight_decay of at least 0, and betas from 0 to below 1, got lr "
                f"{lr}, eps {eps}, weight_decay {weight_decay} and betas {', '.join(map(str, betas))}"
            )
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all parameters that have a gradient, without synchronizing with the device."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._update(group, params)
        return loss

    def _update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        grads: list[Any] = [p.grad for p in params]
        for p in params:
            if not self.state[p]:
                self.state[p] = {"step": 0, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            self.state[p]["step"] += 1
        first: list[Any] = [self.state[p]["exp_avg"] for p in params]
        second: list[Any] = [self.state[p]["exp_avg_sq"] for p in params]
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1 - beta2)
        steps = [self.state[p]["step"] for p in params]
        corrected = group["bias_correction"]
        size = [1 / (1 - beta1**t) if corrected else 1.0 for t in steps]
        scale = [(1 - beta2**t) ** 0.5 if corrected else 1.0 for t in steps]
        below = torch._foreach_sqrt(second)
        torch._foreach_div_(below, scale)
        torch._foreach_add_(below, group["eps"])
        update = torch._foreach_div(first, below)
        torch._foreach_mul_(update, size)
        if group["weight_decay"]:
            weights: list[Any] = list(params)
            torch._foreach_add_(update, weights, alpha=group["weight_decay"])
            norms = zip(torch._foreach_norm(weights), torch._foreach_norm(update), strict=True)
            ratios = [torch.where((w > 0) & (r > 0), w / r, 1.0) for w, r in norms]
            torch._foreach_mul_(update, ratios)
        torch._foreach_add_(params, update, alpha=-group["lr"])
