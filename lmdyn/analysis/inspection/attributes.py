"""Names of a user's: attributes, looked up without evaluating properties or hiding errors; what a typo meant."""

import difflib
import inspect
from collections.abc import Iterable
from functools import cached_property
from typing import Any

__all__ = ["did_you_mean", "has_attribute", "nearest", "nearest_first", "read_attribute"]

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


def nearest(name: str, names: Iterable[str], number: int = 1, cutoff: float = 0.6) -> list[str]:
    """Those of ``names`` that are most like ``name``, upper and lower case alike, the most similar first.

    Args:
        name: what was typed.
        names: what there is.
        number: how many at most.
        cutoff: how similar at least, from 0 to 1: twice the characters in common over the characters of both, see
            :meth:`difflib.SequenceMatcher.ratio`.

    Example:
        >>> nearest("Sparsty", ["Similarity", "Sparsity", "EdgeProbe"])
        ['Sparsity']
        >>> nearest("nonsense", ["Similarity", "Sparsity"])
        []
    """
    by_lower: dict[str, list[str]] = {}
    for there in dict.fromkeys(names):
        by_lower.setdefault(there.lower(), []).append(there)
    found = difflib.get_close_matches(name.lower(), by_lower, n=number, cutoff=cutoff)
    return [there for lower in found for there in by_lower[lower]][:number]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The part of a message that proposes the nearest name; empty where none is near.

    Example:
        >>> did_you_mean("analize", ["fit", "analyze"]), did_you_mean("nonsense", ["fit", "analyze"])
        (", did you mean 'analyze'?", '')
    """
    found = nearest(name, names)
    return f", did you mean {found[0]!r}?" if found else ""


def nearest_first(name: str, names: Iterable[str], most: int = 12) -> str:
    """The names that there are, as part of a message: all of a few, of many those that are most like ``name``.

    Example:
        >>> nearest_first("layers.7", ["layers", "layers.0", "norm"])
        'layers, layers.0, norm'
        >>> nearest_first("norms", [*(f"layers.{i}" for i in range(20)), "norm"], most=2)
        'norm, layers.0, … (21 in all)'
    """
    there = list(names)
    if len(there) <= most:
        return ", ".join(there)
    matcher = difflib.SequenceMatcher(b=name.lower())  # what it knows of b is used again

    def similarity(other: str) -> float:
        matcher.set_seq1(other.lower())
        return matcher.ratio()

    first = sorted(there, key=similarity, reverse=True)[:most]
    return f"{', '.join(first)}, … ({len(there)} in all)"
