"""A copy of a module that dynamics can be computed with: in the asked precision, in eval mode, without a kept cache."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["apart", "private_copy", "same_values", "with_first_tensor"]


def private_copy(module: nn.Module, dtype: torch.dtype, attention: str) -> nn.Module:
    """A copy that shares nothing with the module, which may go on training.

    Its configurations keep no cache (``use_cache``), its attention is computed by the asked implementation, GELU's tanh
    approximation by one kernel, its parameters have no gradients, and nothing of it is compiled.

    Args:
        module: any module; a trainer that it is attached to is not copied.
        dtype: of all its floating parameters and buffers; complex ones get the complex type of this precision.
        attention: transformers' implementation, ``sdpa`` or ``eager``.

    Raises:
        ValueError: it cannot be copied.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> private_copy(layer, torch.float64, "sdpa").weight.dtype, layer.weight.dtype
        (torch.float64, torch.float32)
    """
    # what a module kept of a forward pass has a graph, which cannot be copied
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
            f"{type(module).__name__} cannot be copied, so there is no map of it that is independent of its training "
            f"({type(error).__name__}: {error})"
        ) from error
    copied = _of_precision(_uncompiled(copied), dtype).eval().requires_grad_(False)
    without: list[Any] = []
    for m in copied.modules():
        config: Any = getattr(m, "config", None)
        if hasattr(config, "_attn_implementation"):
            config._attn_implementation = attention
        if getattr(config, "_experts_implementation", None) is not None:
            config._experts_implementation = "eager"  # the grouped product takes no float64
        if getattr(config, "use_cache", None) is True:
            config.use_cache = False
        if attention == "sdpa" and getattr(m, "_supports_sdpa", True) is False:
            without.append(config)
        for name, child in m.named_children():
            if type(child).__name__ in _TANH_GELUS:
                setattr(m, name, nn.GELU(approximate="tanh"))
    for config in without:  # its masks would be those of an attention that it does not compute
        config._attn_implementation = "eager"
    return copied


def _of_precision(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module with all its numbers in a precision; complex ones, as of rotary tables, stay complex."""
    if not any(t.is_complex() for t in (*module.parameters(), *module.buffers())):
        return module.to(dtype)
    complexes = dtype.to_complex()  # `to` would leave the real part alone
    moved: nn.Module = module._apply(
        lambda t: t.to(complexes) if t.is_complex() else t.to(dtype) if t.is_floating_point() else t
    )
    return moved


def _uncompiled(module: nn.Module) -> nn.Module:
    """The module with plain ones in the place of those that ``torch.compile`` wraps."""
    while isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
        module = inner
    for m in list(module.modules()):
        m._compiled_call_impl = None
        for name, child in m.named_children():
            if isinstance(getattr(child, "_orig_mod", None), nn.Module):
                m._modules[name] = _uncompiled(child)
    return module


_TANH_GELUS = ("NewGELUActivation", "GELUTanh")


def with_first_tensor(output: Any, x: Tensor) -> Any:
    """What a module answered, with another first tensor.

    Example:
        >>> with_first_tensor((None, torch.zeros(2), 3), torch.ones(2))
        (None, tensor([1., 1.]), 3)
    """
    replaced = False

    def walk(value: Any) -> Any:
        nonlocal replaced
        if replaced:
            return value
        if isinstance(value, Tensor):
            replaced = True
            return x
        if isinstance(value, dict):  # of transformers' outputs too
            made: Any = copy.copy(value)
            for key in list(value):
                made[key] = walk(value[key])
            return made
        if isinstance(value, (tuple, list)):
            parts = [walk(v) for v in value]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        return value

    return walk(output)


def same_values(a: Any, b: Any) -> bool:
    """Whether two arguments are the same: tensors by their values, containers by their items, others by ``==``.

    Example:
        >>> same_values((torch.ones(2), {"n": 1}), (torch.ones(2), {"n": 1})), same_values(torch.ones(2), None)
        (True, False)
    """
    if a is b:
        return True
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return (
            isinstance(a, Tensor)
            and isinstance(b, Tensor)
            and (a.shape, a.dtype) == (b.shape, b.dtype)
            and bool(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)))
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_values(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(same_values(x, y) for x, y in zip(a, b, strict=True))
    try:
        return bool(a == b)
    except (RuntimeError, ValueError):
        return False


def apart(found: Tensor, expected: Tensor) -> float:
    """The largest difference relative to the largest entry, where both are finite; infinite for other shapes.

    Example:
        >>> apart(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))
        0.25
    """
    if found.shape != expected.shape:
        return float("inf")
    found, expected = found.detach().double(), expected.detach().double()
    finite = found.isfinite() & expected.isfinite()
    if not bool(finite.any()):
        return 0.0
    largest = float(expected[finite].abs().amax())
    off = float((found - expected)[finite].abs().amax())
    return off / largest if largest else float(off > 0)
