"""Attributes and names of users: lookup without evaluating properties or hiding errors; suggestions for typos."""

import difflib
import inspect
from collections.abc import Iterable
from functools import cached_property
from typing import Any

__all__ = ["did_you_mean", "has_attribute", "nearest", "nearest_first", "order_argument", "read_attribute"]

_MISSING = object()


def has_attribute(owner: object, name: str) -> bool:
    """Return whether an object has an attribute; unlike ``hasattr``, this evaluates no property of that name.

    If the class of the object defines ``__getattr__`` (a wrapper that delegates, an ``nn.Module``), that method is
    called for names that are not in its class and its ``__dict__``.

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
    """Return the attribute, or ``default`` if there is none; unlike ``getattr``, do not hide errors inside a property.

    Example:
        >>> read_attribute([], "tokenizer") is None
        True
    """
    if not has_attribute(owner, name):
        return default
    found = inspect.getattr_static(owner, name, None)
    if isinstance(found, (property, cached_property)):
        # an AttributeError here belongs to the property: plain access would then call __getattr__ of an nn.Module
        return found.__get__(owner, type(owner))
    return getattr(owner, name)


def nearest(name: str, names: Iterable[str], number: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the ``names`` most similar to ``name``, ignoring case, in descending order of similarity.

    Args:
        name: name that was typed.
        names: existing names.
        number: maximum number of results.
        cutoff: minimum similarity, from 0 to 1: twice the number of common characters over the characters of both, see
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
    """Return the part of a message that suggests the nearest name; empty if none is near.

    Example:
        >>> did_you_mean("analize", ["fit", "analyze"]), did_you_mean("nonsense", ["fit", "analyze"])
        (", did you mean 'analyze'?", '')
    """
    found = nearest(name, names)
    return f", did you mean {found[0]!r}?" if found else ""


def nearest_first(name: str, names: Iterable[str], most: int = 12) -> str:
    """Return existing names as part of a message: all if there are few, otherwise the most similar to ``name``.

    Example:
        >>> nearest_first("layers.7", ["layers", "layers.0", "norm"])
        'layers, layers.0, norm'
        >>> nearest_first("norms", [*(f"layers.{i}" for i in range(20)), "norm"], most=2)
        'norm, layers.0, … (21 in all)'
    """
    there = list(names)
    if len(there) <= most:
        return ", ".join(there)
    matcher = difflib.SequenceMatcher(b=name.lower())  # its analysis of b is reused

    def similarity(other: str) -> float:
        matcher.set_seq1(other.lower())
        return matcher.ratio()

    first = sorted(there, key=similarity, reverse=True)[:most]
    return f"{', '.join(first)}, … ({len(there)} in all)"


def order_argument(data: type | Iterable[str]) -> str | None:
    """Return the name of the argument that determines the order of data, separate from the seed of initialisation.

    It is ``order_seed`` if it exists, for text that is read in its published order: this argument permutes its
    documents (null: the published order). Otherwise it is ``seed``, from which data that is drawn for each epoch
    (``PretrainingCorpus``) derives windows, masks and their order. Corpora with both use ``seed`` for something else.

    Args:
        data: class of the datamodule, or the names of its arguments.

    Returns:
        The name; None if there is neither.

    Example:
        >>> order_argument(["batch_size", "seed", "order_seed"]), order_argument(["seed"]), order_argument([])
        ('order_seed', 'seed', None)
    """
    names = set(_arguments(data) if isinstance(data, type) else data)
    return next((name for name in ("order_seed", "seed") if name in names), None)


def _arguments(cls: type) -> Iterable[str]:
    """Yield arguments of a class and, if it passes others on, of its bases."""
    for base in cls.__mro__:
        if (init := vars(base).get("__init__")) is None:
            continue
        parameters = inspect.signature(init).parameters.values()
        yield from (p.name for p in parameters)
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            return
