"""Weights of linear layers as (out, in) matrices: plain, transposed, with adapters, sharded."""

from typing import Any, cast

import torch
from torch import Tensor, nn

__all__ = ["is_linear", "linear_bias", "linear_shape", "linear_weight", "whole_tensor"]


def whole_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor without its graph; of a sharded one (``DTensor``) the whole, which every rank must request.

    Example:
        >>> whole_tensor(nn.Linear(2, 1).weight).shape
        torch.Size([1, 2])
    """
    tensor = tensor.detach()
    return cast(Any, tensor).full_tensor() if hasattr(tensor, "full_tensor") else tensor


def is_linear(layer: object) -> bool:
    """Return whether a module is a linear layer that :func:`linear_weight` reads.

    These are ``nn.Linear`` and its subclasses, the ``Conv1D`` of transformers (GPT-2) and those with LoRA adapters of
    PEFT, if their weights are floating-point numbers: a quantized layer is none.

    Example:
        >>> is_linear(nn.Linear(2, 2)), is_linear(nn.Embedding(2, 2))
        (True, False)
    """
    if not isinstance(layer, nn.Module):
        return False
    base = getattr(layer, "base_layer", None)
    if base is not None:
        return is_linear(base) and hasattr(layer, "get_delta_weight") and hasattr(layer, "active_adapters")
    weight = getattr(layer, "weight", None)
    plain = isinstance(layer, nn.Linear) or type(layer).__name__ == "Conv1D"
    return plain and isinstance(weight, Tensor) and weight.ndim == 2 and weight.is_floating_point()


def linear_shape(layer: nn.Module) -> tuple[int, int]:
    """Return (out, in) of a linear layer without reading its weight.

    Example:
        >>> linear_shape(nn.Linear(2, 3))
        (3, 2)
    """
    base = cast(nn.Module, getattr(layer, "base_layer", layer))
    rows, columns = cast(Tensor, base.weight).shape
    return (columns, rows) if type(base).__name__ == "Conv1D" else (rows, columns)


def linear_weight(layer: nn.Module) -> Tensor:
    """Return the weight (out, in) with which a linear layer computes x Wᵀ, active adapters included, without graph.

    Every rank must call it if the weights are sharded.

    Example:
        >>> linear_weight(nn.Linear(2, 3)).shape
        torch.Size([3, 2])
    """
    base = getattr(layer, "base_layer", None)
    if base is not None:
        adapted = cast(Any, layer)
        weight = linear_weight(base)
        if adapted.merged or adapted.disable_adapters:
            return weight
        transpose = type(base).__name__ == "Conv1D"
        with torch.no_grad():
            for adapter in adapted.active_adapters:
                if adapter in adapted.lora_A:
                    delta = whole_tensor(adapted.get_delta_weight(adapter))
                    weight = weight + (delta.T if transpose else delta)
        return weight
    weight = whole_tensor(cast(Tensor, layer.weight))
    return weight.T if type(layer).__name__ == "Conv1D" else weight


def linear_bias(layer: nn.Module) -> Tensor | None:
    """Return the bias of a linear layer without its graph, None if it has none.

    Example:
        >>> linear_bias(nn.Linear(2, 3, bias=False)) is None
        True
    """
    bias = getattr(getattr(layer, "base_layer", layer), "bias", None)
    return whole_tensor(bias) if isinstance(bias, Tensor) else None
