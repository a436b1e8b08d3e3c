"""Modules that run several times in one forward pass, with parameters of their own for each application."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import paths_of
from lmdyn.analysis.inspection.forward_trace import trace_forward

__all__ = ["repeated_modules", "separate_applications"]


def repeated_modules(module: nn.Module, run: Callable[[], Any]) -> dict[str, int]:
    """Return the outermost modules with parameters that run more than once in one forward pass.

    Args:
        module: the model.
        run: function that calls it once.

    Returns:
        Number of applications by module path.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> model = nn.Sequential(layer, nn.Tanh(), layer)
        >>> repeated_modules(model, lambda: model(torch.zeros(1, 2)))
        {'0': 2}
    """
    with torch.no_grad():
        trace = trace_forward(module, run, {})
    found: dict[str, int] = {}
    inside: set[nn.Module] = set()
    for path, part in paths_of(module).items():
        runs = len(trace.of(part))
        if runs > 1 and part not in inside and next(part.parameters(), None) is not None:
            found[path] = runs
            inside |= {*part.modules()}
    return found


@contextmanager
def separate_applications(
    module: nn.Module, repeated: Mapping[str, str]
) -> Iterator[dict[tuple[int, str], Tensor]]:
    """In this context, each application of a repeated module uses leaves of its own, which share its memory.

    Gradients with respect to the leaves are those of the applications; they add up to the gradient with respect to the
    parameters. A use of a parameter outside of the module's calls (a tied output layer) is no application.

    Args:
        module: the model.
        repeated: module path by display name, as :func:`repeated_modules` finds them.

    Yields:
        The leaves, by id of the parameter and application: ``name@0``, then ``name@1``; clear them before each forward
        pass.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> _ = layer.weight.data.fill_(3.0)
        >>> model = nn.Sequential(layer, layer)  # w·w·x
        >>> with separate_applications(model, {"layer": "0"}) as separate:
        ...     out = model(torch.ones(1, 1))
        ...     leaves = {name: leaf for (_, name), leaf in separate.items()}
        ...     gradients = torch.autograd.grad(out, list(leaves.values()))
        >>> list(leaves), [g.item() for g in gradients], layer.weight.requires_grad
        (['layer@0', 'layer@1'], [3.0, 3.0], True)
    """
    paths = paths_of(module)
    separate: dict[tuple[int, str], Tensor] = {}
    with ExitStack() as stack:
        for name, path in repeated.items():
            own = [
                (part, key, parameter)
                for part in paths[path].modules()
                for key, parameter in part._parameters.items()
                if parameter is not None
            ]

            def begin(_: nn.Module, __: Any, own: Any = own, name: str = name) -> None:
                number = len({at for _, at in separate if at.rpartition("@")[0] == name})
                for part, key, parameter in own:
                    at = id(parameter), f"{name}@{number}"
                    leaf = separate.setdefault(at, nn.Parameter(parameter.detach()))
                    setattr(part, key, leaf)  # not in _parameters: nn.LSTM keeps a list of its weights

            def end(_: nn.Module, __: Any, ___: Any, own: Any = own) -> None:
                for part, key, parameter in own:
                    setattr(part, key, parameter)

            stack.callback(paths[path].register_forward_pre_hook(begin).remove)
            stack.callback(paths[path].register_forward_hook(end, always_call=True).remove)
        yield separate
