"""The boundary of the mathematics: the public functions take what can be a tensor, and check its shape."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin, no_type_check

import numpy as np
import torch
from jaxtyping import AbstractArray, jaxtyped
from torch import Tensor

__all__ = ["takes_arrays"]


def takes_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function take numpy arrays, lists and tensors that require grad wherever it is annotated with tensors.

    Arguments are converted to tensors and detached; integers become floating-point numbers where the annotation asks
    for these. The axes are checked: their number, and that sizes of one name are equal.

    Args:
        function: a function whose tensors have annotations of jaxtyping, also in a union, a mapping or an iterable.

    Returns:
        The function itself if it has none; else one of the same signature, which raises a ValueError that says the
        expected and the given shape and dtype.

    Example:
        >>> from jaxtyping import Float
        >>> def total(x: Float[Tensor, "n d"]) -> Tensor:
        ...     return x.sum()
        >>> takes_arrays(total)([[1, 2], [3, 4]])
        tensor(10.)
        >>> takes_arrays(total)([1, 2])
        Traceback (most recent call last):
        ValueError: total: expected x of Float (n d), got int64 (2,): convert, reshape or transpose x
    """
    signature = inspect.signature(function)
    tensors = {name: p.annotation for name, p in signature.parameters.items() if _has_arrays(p.annotation)}
    if not tensors:
        return function

    @functools.wraps(function)
    def converting(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        convert = _Conversion(function.__name__)
        with jaxtyped("context"):
            for name, annotation in tensors.items():
                if name in given.arguments:
                    given.arguments[name] = convert(given.arguments[name], annotation, name)
        return function(*given.args, **given.kwargs)

    converting.__module__ = "lmdyn.analysis"  # where pickle finds it
    return converting


def _is_array(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, AbstractArray)


def _has_arrays(annotation: Any) -> bool:
    return _is_array(annotation) or any(map(_has_arrays, get_args(annotation)))


@no_type_check  # under pytest, jaxtyping would forget the sizes after each method
class _Conversion:
    """Converts the arguments of one call."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._earlier: dict[str, tuple[int, ...]] = {}

    def __call__(self, value: Any, annotation: Any, name: str) -> Any:
        origin = get_origin(annotation)
        parts = get_args(annotation)
        if _is_array(annotation) or origin in (Union, UnionType):
            parts = parts or (annotation,)
            if value is None or any(
                isinstance(value, get_origin(p) or p) for p in parts if not _has_arrays(p)
            ):
                return value
            arrays = [part for part in parts if _is_array(part)]
            if arrays:
                return self._tensor(value, arrays, name)
            annotation = next(filter(_has_arrays, parts))
            origin = get_origin(annotation)
            parts = get_args(annotation)
        if issubclass(origin, Mapping):
            return {key: self(v, parts[1], f"{name}[{key!r}]") for key, v in value.items()}
        found = (self(v, parts[0], f"{name}[{i}]") for i, v in enumerate(value))
        return found if origin is Iterable else list(found)

    def _tensor(self, value: Any, arrays: list[Any], name: str) -> Tensor:
        expected = " or ".join(f"{array.dtype.__name__} ({array.dim_str})" for array in arrays)
        if isinstance(value, Tensor):
            tensor = value.detach()
        else:
            try:  # of a copy: torch warns of arrays that are read-only
                tensor = torch.as_tensor(np.array(value))
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{self._function}: expected {name} of {expected}, got {type(value).__name__}: pass a tensor, an "
                    f"array or nested lists of equal length ({error})"
                ) from error
        if tensor.is_floating_point() and not hasattr(value, "dtype"):
            tensor = tensor.to(torch.get_default_dtype())  # of lists
        integers = not tensor.is_floating_point() and not tensor.is_complex()
        for candidate in [tensor, tensor.to(torch.get_default_dtype())] if integers else [tensor]:
            if any(isinstance(candidate, array) for array in arrays):
                self._earlier[name] = tuple(candidate.shape)
                return candidate
        others = ", ".join(f"{other} of {shape}" for other, shape in self._earlier.items())
        raise ValueError(
            f"{self._function}: expected {name} of {expected}, got {str(tensor.dtype).removeprefix('torch.')} "
            f"{tuple(tensor.shape)}{f' with {others}' if others else ''}: convert, reshape or transpose {name}"
        )
