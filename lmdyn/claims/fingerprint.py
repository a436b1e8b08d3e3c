"""One short text for what a claim says in numbers: equal in each process and version of Python."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

__all__ = ["canonical", "fingerprint_of"]


def canonical(value: Any) -> Any:
    """A frozen dataclass, as deep as it goes, in types of JSON.

    A dataclass is its class' name and those fields that are not at their default: an argument that is added later
    changes nothing. Fields of words, ``field(metadata={"words": True})``, are left out. A ``revision`` of the class
    that is not 0 is part of it.

    Raises:
        TypeError: a value that is neither plain nor such a dataclass.

    Example:
        >>> from dataclasses import dataclass, field
        >>> @dataclass(frozen=True)
        ... class Above:
        ...     bound: float
        ...     closed: bool = True
        ...     says: str = field(default="", metadata={"words": True})
        >>> canonical((Above(0.5, says="more than half"), Above(1, closed=False)))
        [['Above', {'bound': 0.5}], ['Above', {'bound': 1, 'closed': False}]]
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, (tuple, list)):
        return [canonical(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): canonical(v) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        told = {
            f.name: canonical(getattr(value, f.name))
            for f in fields(value)
            if not f.metadata.get("words") and not _at_default(f, getattr(value, f.name))
        }
        revision = getattr(type(value), "revision", 0)
        return [type(value).__name__, told, *([revision] if revision else [])]
    raise TypeError(
        f"{value!r} cannot be part of a claim: expected texts, numbers, tuples and frozen dataclasses of them"
    )


def _at_default(field: "Field[Any]", value: Any) -> bool:
    return (
        field.default is not MISSING and type(field.default) is type(value) and bool(field.default == value)
    )


def fingerprint_of(value: Any) -> str:
    """The SHA-256 of :func:`canonical`, 64 hexadecimal digits.

    Example:
        >>> fingerprint_of((1, "a"))[:8]
        '20109453'
    """
    text = json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
