"""Attributes and names of users: lookup without evaluating properties or hiding errors; suggestions for typos."""

import difflib
import inspect
from collections.abc import Iterable
from functools import cached_property
from typing import Any

__all__ = [
    "did_you_mean",
    "has_attribute",
    "nearest",
    "nearest_first",
    "order_argument",
    "read_attribute",
    "refuse_unknown",
]

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
    return inspect.getattr_static(owner, name, _MISSING) is not _MISSING or hasattr(owner, name)


def read_attribute(owner: object, name: str) -> Any:
    """Return the attribute, or None if there is none; unlike ``getattr``, do not hide errors inside a property.

    Example:
        >>> read_attribute([], "tokenizer") is None
        True
    """
    if not has_attribute(owner, name):
        return None
    found = inspect.getattr_static(owner, name, None)
    if isinstance(found, (property, cached_property)):
        # an AttributeError here belongs to the property: plain access would then call __getattr__ of an nn.Module
        return found.__get__(owner, type(owner))
    return getattr(owner, name)


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Return the three ``names`` most similar to ``name``, ignoring case, in descending order of similarity.

    Names that are much less similar than the first one are left out.

    Args:
        name: name that was typed.
        names: existing names.
        cutoff: minimum similarity, from 0 to 1: twice the number of common characters over the characters of both, see
            :meth:`difflib.SequenceMatcher.ratio`.

    Example:
        >>> nearest("Sparsty", ["Similarity", "Sparsity", "EdgeProbe"])
        ['Sparsity']
        >>> nearest("layers.7", ["layers.1", "layers.2", "norm"])
        ['layers.1', 'layers.2']
        >>> nearest("nonsense", ["Similarity", "Sparsity"])
        []
    """
    ratios = _ratios(name, names)
    least = max(cutoff, max(ratios.values(), default=0.0) - 0.05)
    return [there for there, ratio in ratios.items() if ratio >= least][:3]


def _ratios(name: str, names: Iterable[str]) -> dict[str, float]:
    """Return the similarities of names, in descending order."""
    matcher = difflib.SequenceMatcher(b=name.lower())  # its analysis of b is reused
    ratios: dict[str, float] = {}
    for there in names:
        matcher.set_seq1(there.lower())
        ratios[there] = matcher.ratio()
    return dict(sorted(ratios.items(), key=lambda item: -item[1]))


def did_you_mean(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Return the part of a message that suggests the nearest names, three at most; empty if none is near.

    Example:
        >>> did_you_mean("analize", ["fit", "analyze"]), did_you_mean("nonsense", ["fit", "analyze"])
        (", did you mean 'analyze'?", '')
    """
    found = [repr(prefix + near) for near in nearest(name, names)]
    return f", did you mean {' or '.join(found)}?" if found else ""


def refuse_unknown(cls: type, given: Iterable[str]) -> None:
    """Raise an error with the nearest arguments of a class for one that it does not have.

    Raises:
        TypeError: for an unknown argument. A user's class with ``**kwargs`` may read any.

    Example:
        >>> class Schedule:
        ...     def __init__(self, per_decade=1):
        ...         self.per_decade = per_decade
        >>> refuse_unknown(Schedule, ["per_decad"])
        Traceback (most recent call last):
        TypeError: Schedule has no argument 'per_decad', did you mean 'per_decade'? the arguments are per_decade
    """
    known = [name for name in dict.fromkeys(_arguments(cls)) if name not in ("self", "args", "kwargs")]
    unknown = next((name for name in given if name not in known), None)
    own: Any = cls.__init__  # type: ignore[misc] # its own
    parameters = () if unknown is None else inspect.signature(own).parameters.values()
    open_to_any = any(p.kind is p.VAR_KEYWORD for p in parameters) and not cls.__module__.startswith("lmdyn.")
    if unknown is not None and not open_to_any:
        near = did_you_mean(unknown, known) or ";"
        raise TypeError(
            f"{cls.__name__} has no argument {unknown!r}{near} the arguments are {nearest_first(unknown, known)}"
        )


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
    first = [*_ratios(name, there)][:most]
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
