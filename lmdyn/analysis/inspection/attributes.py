"""Attributes of a user's objects, looked up without evaluating properties and without hiding errors inside them."""

import inspect
from functools import cached_property
from typing import Any

__all__ = ["has_attribute", "read_attribute"]

_MISSING = object()


def has_attribute(owner: object, name: str) -> bool:
    """Whether an object has an attribute; unlike ``hasattr``, no property of that name is evaluated.

    An object whose class defines ``__getattr__`` (a wrapper that delegates, an ``nn.Module``) is asked by it for what
    its class and its ``__dict__`` lack.

    Example:
        >>> class Data:
        ...     @property
        ...     def tokenizer(self):
        ...         raise AttributeError("a bug in here")
        >>> has_attribute(Data(), "tokenizer"), hasattr(Data(), "tokenizer")
        (True, False)
    """
    if inspect.getattr_static(owner, name, _MISSING) is not _MISSING:
        return True
    if not hasattr(type(owner), "__getattr__"):
        return False
    try:
        getattr(owner, name)
    except AttributeError:
        return False
    return True


def read_attribute(owner: object, name: str, default: Any = None) -> Any:
    """The attribute, or ``default`` where there is none; unlike ``getattr``, errors inside a property are not hidden.

    Example:
        >>> read_attribute([], "tokenizer") is None
        True
    """
    if not has_attribute(owner, name):
        return default
    found = inspect.getattr_static(owner, name, None)
    if isinstance(found, (property, cached_property)):
        # an AttributeError within is the property's own: plain access would call __getattr__ of an nn.Module next
        return found.__get__(owner, type(owner))
    return getattr(owner, name)
