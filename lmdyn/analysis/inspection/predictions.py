"""Of a forward pass only what is asked for: the vocabulary is the greater part of a small model's work."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import capture, resolve_sites
from lmdyn.analysis.inspection.forward import Forward, StopForward, call_module, logits_of

__all__ = ["activations_at", "logits_at"]


def logits_at(
    module: nn.Module,
    batch: Mapping[str, Any],
    positions: Bool[Tensor, "batch time"],
    forward: Forward | None = None,
) -> Float[Tensor, "n vocab"]:
    """The logits of ``module`` at some positions of a batch.

    A module whose forward names ``predict`` (batch, time) is asked for these positions alone, and returns logits
    (n, vocab) in row-major order. Of any other module all logits are computed, and these taken.

    Args:
        module: the module.
        batch: tensors by name, on the module's device.
        positions: where to predict; n are true.
        forward: dotted path to ``(module, batch) -> output`` for modules that are not called in Hugging Face's names.

    Returns:
        (n, vocab), in row-major order of the positions.

    Raises:
        ValueError: logits of another shape.

    Example:
        >>> module = nn.Embedding(3, 5)  # returns 5 "logits" a token
        >>> module.forward = lambda input_ids: nn.functional.embedding(input_ids, module.weight)
        >>> ids = torch.tensor([[0, 2], [1, 0]])
        >>> logits_at(module, {"input_ids": ids}, ids > 0).shape
        torch.Size([2, 5])
    """
    if forward is None and "predict" in inspect.signature(module.forward).parameters:
        logits = logits_of(call_module(module, {**batch, "predict": positions}))
        n = int(positions.sum())
        if logits.ndim != 2 or logits.shape[0] != n:
            raise ValueError(
                f"{type(module).__name__}.forward names `predict`, and answered logits {tuple(logits.shape)} for {n} "
                "positions: expected (positions, vocab)"
            )
        return logits
    logits = logits_of(call_module(module, batch, forward=forward))
    if logits.shape[:2] != positions.shape:
        raise ValueError(
            f"logits are {tuple(logits.shape)} for positions {tuple(positions.shape)}: expected (batch, time, vocab)"
        )
    return logits[positions]


@torch.no_grad()
def activations_at(
    module: nn.Module,
    batch: Mapping[str, Any],
    sites: Mapping[str, str],
    forward: Forward | None = None,
    *,
    whole: bool = False,
) -> dict[str, Tensor]:
    """Activations of some sites for a batch, without computing what follows the last of them, such as logits.

    Args:
        module: the module.
        batch: tensors by name, on the module's device.
        sites: display name to the path of a module that runs once in a forward pass.
        forward: dotted path to ``(module, batch) -> output`` for modules that are not called in Hugging Face's names.
        whole: run the forward pass to its end, which finds sites that run several times.

    Returns:
        Activation of each site, detached.

    Raises:
        ValueError: a path that names no module; with ``whole``, a site that runs several times.
        RuntimeError: a site that does not run.

    Example:
        >>> module = nn.Sequential(nn.Embedding(3, 5), nn.Linear(5, 100))
        >>> module.forward = lambda input_ids: module[1](module[0](input_ids))
        >>> found = activations_at(module, {"input_ids": torch.tensor([[0, 2]])}, {"embedding": "0"})
        >>> found["embedding"].shape
        torch.Size([1, 2, 5])
    """
    left = set(sites)

    def seen_all(name: str) -> Any:
        def hook(*_: Any) -> None:
            left.discard(name)
            if not left:
                raise StopForward

        return hook

    with capture(module, sites) as seen:
        handles = []
        if not whole:  # registered after those of the capture, so that they run after them
            handles = [
                m.register_forward_hook(seen_all(name)) for name, m in resolve_sites(module, sites).items()
            ]
        try:
            call_module(module, batch, forward=forward)
        except StopForward:
            pass
        finally:
            for handle in handles:
                handle.remove()
        found = dict(seen.activations)
    if several := sorted(set(found) - set(sites)):
        raise ValueError(
            f"sites that run once in a forward pass are expected, and there are {several}: name modules that run once"
        )
    return found
