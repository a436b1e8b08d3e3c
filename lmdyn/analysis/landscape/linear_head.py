"""The linear layer at the end of a language model: whether all losses pass through it, token by token."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import first_tensor, paths_of
from lmdyn.analysis.parameters.loss_gradient import losses_of

__all__ = ["LinearHead", "requiring_grad", "splits_at", "watched"]


def splits_at(
    module: nn.Module, batch: Mapping[str, Any], call: Callable[[Mapping[str, Any]], Any], head: str
) -> bool:
    """Return whether losses depend on the parameters only through a linear layer, and token by token: tried on a batch.

    Args:
        module: the module.
        batch: batch on the module's device, labels aligned with the logits.
        call: function that calls the module on a batch.
        head: path of the layer.

    Example:
        >>> model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3))
        >>> batch = {"input_ids": torch.tensor([[0, 1]]), "labels": torch.tensor([[1, 2]])}
        >>> splits_at(model, batch, lambda b: model(b["input_ids"]), "1")
        True
    """
    if type(paths_of(module).get(head)) is not nn.Linear:
        return False
    parameters = list(module.parameters())
    with requiring_grad(parameters), watched(module, head) as linear, torch.enable_grad():
        losses = losses_of(call(batch), batch)
        if not linear.fits(losses) or not linear.output.requires_grad:
            return False
        every_other = torch.zeros_like(losses)
        every_other.flatten()[::2] = 1

        def gradient(weights: Tensor) -> list[Tensor]:
            found = torch.autograd.grad(
                losses, [linear.output, *parameters], weights, retain_graph=True, allow_unused=True
            )
            return [
                0 * t if g is None else g for t, g in zip([linear.output, *parameters], found, strict=True)
            ]

        whole, half = gradient(torch.ones_like(losses)), gradient(every_other)
        rows = whole[0].view(losses.numel(), -1) * every_other.view(-1, 1)
        if not _close(half[0].view_as(rows), rows):
            return False
        below = (
            torch.autograd.grad(
                linear.input, parameters, linear.into(whole[0]), retain_graph=True, allow_unused=True
            )
            if linear.input.requires_grad
            else [None] * len(parameters)
        )
        own = {id(p): g for p, g in linear.own_gradients(whole[0])}
        for parameter, found, expected in zip(parameters, below, whole[1:], strict=True):
            parts = [g for g in (found, own.get(id(parameter))) if g is not None]
            if not _close(sum(parts, torch.zeros_like(parameter)), expected):
                return False
    return True


def _close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).norm() <= 1e-4 * b.norm())


@contextmanager
def requiring_grad(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Let parameters require gradients in this context, also frozen ones."""
    frozen = [p for p in parameters if not p.requires_grad]
    try:
        for p in frozen:
            p.requires_grad_(True)
        yield
    finally:
        for p in frozen:
            p.requires_grad_(False)


class LinearHead:
    """The last call of a linear layer, recorded by :func:`watched`.

    Attributes:
        layer: the layer.
        input: its input, with its graph.
        output: its output, with its graph.
    """

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer
        self.clear()

    def clear(self) -> None:
        """Forget the call; call it before each forward pass."""
        self.calls = 0
        self.input = self.output = torch.zeros(0)

    def check(self, losses: Tensor) -> None:
        """Raise a RuntimeError if the layer did not run as on the batch on which it was tried."""
        if not self.fits(losses):
            raise RuntimeError(
                f"the output layer ran {self.calls} times and returned {tuple(self.output.shape)} for "
                f"{tuple(losses.shape)} tokens: expected one call and a row for each token, as on the first batch"
            )

    def fits(self, losses: Tensor) -> bool:
        """Return whether it ran once, and returned a row for each token."""
        return self.calls == 1 and self.output.shape[:-1].numel() == losses.numel()

    def into(self, of_output: Tensor) -> Tensor:
        """Return the gradient of its input for one of its output."""
        return (of_output @ self.layer.weight.detach().to(of_output.dtype)).to(self.input.dtype)

    def own_gradients(self, of_output: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return its parameters and their gradients for one of its output."""
        rows = of_output.flatten(0, -2).to(self.layer.weight.dtype)  # autocast computes in another one
        found = [(self.layer.weight, rows.T @ self.input.detach().flatten(0, -2).to(rows.dtype))]
        return found if self.layer.bias is None else [*found, (self.layer.bias, rows.sum(0))]


@contextmanager
def watched(module: nn.Module, head: str) -> Iterator[LinearHead]:
    """Record the calls of a linear layer in this context.

    Args:
        module: the model.
        head: path of the layer.
    """
    layer = paths_of(module)[head]
    assert isinstance(layer, nn.Linear)
    seen = LinearHead(layer)

    def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        seen.calls += 1
        given, answer = first_tensor(args), first_tensor(output)
        assert given is not None
        assert answer is not None
        seen.input, seen.output = given, answer

    handle = layer.register_forward_hook(hook)
    try:
        yield seen
    finally:
        handle.remove()
