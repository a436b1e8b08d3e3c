"""The required part of a forward pass only: the vocabulary is most of a small model's work."""

import inspect
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import capture, resolve_sites
from lmdyn.analysis.inspection.forward import Batch, Forward, StopForward, call_module, logits_of

__all__ = ["activations_at", "hits", "logits_at"]


def logits_at(
    module: nn.Module,
    batch: Batch,
    positions: Bool[Tensor, "batch time"],
    forward: Forward | None = None,
) -> Float[Tensor, "n vocab"]:
    """Compute the logits of ``module`` at some positions of a batch.

    If the module's forward names ``predict`` (batch, time), only these positions are computed, and it returns logits
    (n, vocab) in row-major order. For any other module, all logits are computed, and these are selected.

    Args:
        module: the module.
        batch: tensors by name, on the module's device.
        positions: whether to predict at each position; n are True.
        forward: dotted path to ``(module, batch) -> output`` for modules whose forward does not take Hugging Face's
            arguments.

    Returns:
        Tensor of shape (n, vocab), in row-major order of the positions.

    Raises:
        ValueError: if the shape of the logits is wrong.

    Example:
        >>> module = nn.Embedding(3, 5)  # returns 5 "logits" per token
        >>> module.forward = lambda input_ids: nn.functional.embedding(input_ids, module.weight)
        >>> ids = torch.tensor([[0, 2], [1, 0]])
        >>> logits_at(module, {"input_ids": ids}, ids > 0).shape
        torch.Size([2, 5])
    """
    if forward is None and "predict" in inspect.signature(module.forward).parameters:
        logits = logits_of(call_module(module, {**batch, "predict": positions}))
        n = int(positions.sum())
        if logits.ndim != 2 or len(logits) != n:
            raise ValueError(
                f"{type(module).__name__}.forward takes `predict`, but returned logits {tuple(logits.shape)}: expected "
                f"({n}, vocab), one row for each position in `predict`"
            )
        return logits
    logits = logits_of(call_module(module, batch, forward=forward))
    if logits.shape[:2] != positions.shape:
        raise ValueError(
            f"logits are {tuple(logits.shape)}: expected (batch, time, vocab) for positions {tuple(positions.shape)}"
        )
    return logits[positions]


def hits(logits: Float[Tensor, "*batch classes"], labels: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return 1 where the label has the highest logit, and 0 where another class has it (of equal ones the first).

    It is NaN where the highest logit is not finite: a comparison with NaN would count as an answer. The mean over
    tokens, an accuracy, is then NaN as well, as the mean loss is.

    Example:
        >>> hits(torch.tensor([[1.0, 2.0], [3.0, 2.0], [torch.nan, 0.0]]), torch.tensor([1, 1, 0]))
        tensor([1., 0., nan])
    """
    highest, found = logits.max(-1)  # its indices are those of argmax, in half of its time on the CPU
    return torch.where(highest.isfinite(), (found == labels).float(), torch.nan)


@torch.no_grad()
def activations_at(
    module: nn.Module,
    batch: Batch,
    sites: Mapping[str, str],
    forward: Forward | None = None,
    *,
    whole: bool = False,
) -> dict[str, Tensor]:
    """Compute activations of some sites for a batch, without computing what follows the last of them, such as logits.

    Args:
        module: the module.
        batch: tensors by name, on the module's device.
        sites: path by display name, of modules that run once in a forward pass.
        forward: dotted path to ``(module, batch) -> output`` for modules whose forward does not take Hugging Face's
            arguments.
        whole: whether to run the forward pass to its end, which detects sites that run several times.

    Returns:
        Detached activation of each site.

    Raises:
        ValueError: if a path is not a module; with ``whole``, also if a site runs several times.
        RuntimeError: if a site does not run.

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

    with capture(module, sites) as seen, ExitStack() as stack:
        # registered after the hooks of the capture, to run after them
        for name, m in {} if whole else resolve_sites(module, sites).items():
            stack.callback(m.register_forward_hook(seen_all(name)).remove)
        with suppress(StopForward):
            call_module(module, batch, forward=forward)
        found = seen.activations
    if several := sorted({name.split("@")[0] for name in set(found) - set(sites)}):
        raise ValueError(f"a forward pass runs sites repeatedly ({', '.join(several)}): name other sites")
    return found
