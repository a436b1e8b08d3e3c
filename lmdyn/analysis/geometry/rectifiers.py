"""Units at activation functions: modules that rectify, and units that are never or always above 0."""

import copy
from contextlib import ExitStack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import observing, paths_of
from lmdyn.analysis.inspection.batches import text_of
from lmdyn.analysis.inspection.forward import Batch, Forward, call_module
from lmdyn.analysis.inspection.sites import names_of_paths
from lmdyn.analysis.statistics.distributed import gather

__all__ = ["UnitSigns", "find_rectifiers", "is_rectifier"]

_PROBED = 30.0  # where a function is evaluated, on both sides of 0
_SMALL = 0.1  # greatest magnitude on the left, as a share of that on the right


@torch.no_grad()
def is_rectifier(module: nn.Module) -> bool:
    """Return whether a module is an activation function that passes positive numbers and suppresses negative ones.

    These are modules without children, parameters and buffers that map each number by itself, to more than 0 above 0,
    and below 0 to at most 0 and, at −30, at most a tenth of the magnitude at 30: ReLU, GELU, SiLU, ELU, Mish, leaky
    ReLU, and a user's own. In tanh the sign has no such meaning, sigmoid and softmax are always above 0, and dropout in
    eval mode is the identity.

    Example:
        >>> [is_rectifier(m) for m in (nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Tanh(), nn.Sigmoid(), nn.Linear(4, 4))]
        [True, True, True, False, False, False]
    """
    parts = (module.children(), module.parameters(), module.buffers())
    if any(next(iter(part), None) is not None for part in parts):
        return False
    x = torch.tensor([[[-_PROBED, -1.0, 1.0, _PROBED], [1.0, _PROBED, -1.0, -_PROBED]]])
    try:
        y = copy.deepcopy(module)(x.clone())  # of a copy: the module may have a state of its own
    except Exception:  # a module of other arguments, for example the attention's dropout of several tensors
        return False
    if not isinstance(y, Tensor) or y.shape != x.shape or not y.is_floating_point():
        return False
    if not torch.equal(y[0, 0], y[0, 1, [3, 2, 0, 1]]):  # other numbers have an effect
        return False
    left, right = y[0, 0, :2].max(), y[0, 0, 2:].min()
    return bool((right > 0) & (left <= 0) & (y[0, 0, 0].abs() <= _SMALL * y[0, 0, 3]))


def find_rectifiers(module: nn.Module, batch: Batch, forward: Forward | None = None) -> dict[str, str]:
    """Find the activation functions of a model that :func:`is_rectifier` recognises and that run on all tokens.

    Functions that are not modules (``F.relu``) cannot be found, nor those whose output is overwritten in place.

    Args:
        module: the model, wrapped or not.
        batch: an example batch, on the model's device.
        forward: how the module is called, see ``call_module``.

    Returns:
        Module path by display name, in the order of the model.

    Example:
        >>> layers = nn.ModuleDict({"embed": nn.Embedding(9, 4), "up": nn.Linear(4, 8), "act": nn.ReLU()})
        >>> def forward(module, batch):
        ...     return module["act"](module["up"](module["embed"](batch["input_ids"])))
        >>> find_rectifiers(layers, {"input_ids": torch.ones(2, 3, dtype=torch.long)}, forward)
        {'act': 'act'}
    """
    ran: dict[str, list[tuple[Tensor, int]]] = {}
    with observing(module), torch.inference_mode(False), torch.no_grad(), ExitStack() as stack:
        for path, m in paths_of(module).items():
            if path and is_rectifier(m):
                own = ran.setdefault(path, [])
                hook = m.register_forward_hook(lambda _, __, y, own=own: own.append((y, y._version)))
                stack.callback(hook.remove)
        call_module(module, batch, forward=forward)
    shape = text_of(batch).shape[:2]
    of_tokens = [
        p for p, runs in ran.items() if runs and all(y.ndim > 2 and y.shape[:2] == shape for y, _ in runs)
    ]
    sites = names_of_paths(of_tokens)
    return {name: p for name, p in sites.items() if all(y._version == before for y, before in ran[p])}


class UnitSigns:
    """Streaming least and greatest value of each unit, for the shares of units above 0 for no or all tokens.

    Example:
        >>> signs = UnitSigns()
        >>> signs.update(torch.tensor([[0.0, 1.0, 0.0], [0.0, 2.0, 3.0]]))
        >>> signs.reduce()
        >>> signs.result()
        {'dead_units': 0.3333333333333333, 'always_on_units': 0.3333333333333333}
    """

    def __init__(self) -> None:
        self._ends: Tensor | None = None  # least with the opposite sign, and greatest, (2, units)

    def update(self, x: Float[Tensor, "n d"]) -> None:
        """Add n tokens; n may be 0."""
        if len(x):
            x = x.detach()
            ends = torch.stack([-x.amin(0), x.amax(0)])  # faster than aminmax
            self._ends = ends if self._ends is None else torch.maximum(ends, self._ends)

    def reduce(self) -> None:
        """Combine the ranks' values; call it once, on every rank, after the last update. A rank may have no tokens."""
        found = gather(None if self._ends is None else self._ends.cpu())
        there = [ends for ends in found if ends is not None]
        self._ends = torch.stack(there).amax(0) if there else None

    def result(self) -> dict[str, float]:
        """Return the shares, after :meth:`reduce`; none without tokens, NaN if a value is not finite."""
        if self._ends is None:
            return {}
        units = {"dead_units": self._ends[1] <= 0, "always_on_units": self._ends[0] < 0}
        finite = bool(self._ends.isfinite().all())
        return {name: float(of.double().mean()) if finite else torch.nan for name, of in units.items()}
