"""A copy of a module for dynamics: in the requested precision, in eval mode, without a cache."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import first_tensor
from lmdyn.analysis.inspection.forward import uncompiled

__all__ = ["apart", "private_copy", "with_first_tensor"]


def private_copy(module: nn.Module, dtype: torch.dtype, attention: str) -> nn.Module:
    """Return a copy that shares nothing with the module, which may continue training.

    Its configurations disable the cache (``use_cache``), its attention uses the requested implementation, GELU's tanh
    approximation is computed by one kernel, its parameters have no gradients, and nothing is compiled.

    Args:
        module: any module; a trainer attached to it is not copied.
        dtype: dtype of all its floating parameters and buffers; complex ones get the complex type of this precision.
        attention: attention implementation of transformers, ``sdpa`` or ``eager``.

    Raises:
        ValueError: if the module cannot be copied.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> private_copy(layer, torch.float64, "sdpa").weight.dtype, layer.weight.dtype
        (torch.float64, torch.float32)
    """
    # tensors that a module keeps from a forward pass have a graph, which cannot be copied
    memo: dict[int, Any] = {
        id(value): value.detach().clone()
        for m in module.modules()
        for value in vars(m).values()
        if isinstance(value, Tensor) and value.grad_fn is not None
    }
    try:
        copied = copy.deepcopy(module, memo)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(
            f"lmdyn cannot copy {type(module).__name__} ({error}): remove attributes that copy.deepcopy cannot copy"
        ) from error
    kinds = {True: dtype.to_complex(), False: dtype}  # complex ones, such as rotary tables, stay complex
    copied = _uncompiled(copied).eval().requires_grad_(False)
    copied._apply(lambda t: t.to(kinds[t.is_complex()]) if t.is_complex() or t.is_floating_point() else t)
    without: list[Any] = []
    for m in copied.modules():
        config: Any = getattr(m, "config", None)
        if hasattr(config, "_attn_implementation"):
            config._attn_implementation = attention
        if getattr(config, "_experts_implementation", None) is not None:
            config._experts_implementation = "eager"  # the grouped product does not support float64
        if getattr(config, "use_cache", None) is True:
            config.use_cache = False
        if attention == "sdpa" and getattr(m, "_supports_sdpa", True) is False:
            without.append(config)
        for name, child in m.named_children():
            if type(child).__name__ in _TANH_GELUS:
                setattr(m, name, nn.GELU(approximate="tanh"))
    for config in without:  # otherwise, its masks would be for another attention implementation
        config._attn_implementation = "eager"
    return copied


def _uncompiled(module: nn.Module) -> nn.Module:
    """Replace the modules that ``torch.compile`` wraps by plain ones."""
    module = uncompiled(module)
    for m in list(module.modules()):
        m._compiled_call_impl = None
        for name, child in m.named_children():
            if isinstance(getattr(child, "_orig_mod", None), nn.Module):
                m._modules[name] = _uncompiled(child)
    return module


_TANH_GELUS = ("NewGELUActivation", "GELUTanh")


def with_first_tensor(output: Any, x: Tensor) -> Any:
    """Return the output of a module, with the tensor replaced that ``first_tensor`` finds.

    Example:
        >>> with_first_tensor((None, torch.zeros(2), 3), torch.ones(2))
        (None, tensor([1., 1.]), 3)
    """
    if isinstance(output, Tensor):
        return x
    keys = list(output) if isinstance(output, Mapping) else range(len(output))
    parts: Any = copy.copy(output) if isinstance(output, Mapping) else list(output)
    at = next(key for key in keys if first_tensor(output[key]) is not None)
    parts[at] = with_first_tensor(output[at], x)
    if isinstance(output, Mapping):
        return parts
    return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)


def apart(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference relative to the largest entry, if both are finite; infinite for different shapes.

    Example:
        >>> apart(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))
        0.25
    """
    if found.shape != expected.shape:
        return torch.inf
    found = found.detach().double()
    expected = expected.detach().double()
    finite = found.isfinite() & expected.isfinite()
    if not finite.any():
        return 0.0
    largest = float(expected[finite].abs().amax())
    off = float((found - expected)[finite].abs().amax())
    return off / largest if largest else float(off > 0)
