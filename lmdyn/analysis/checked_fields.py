"""Settings: annotated fields of dataclasses, checked by one function."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

__all__ = ["Above", "From", "check_fields", "type_words"]


@dataclass(frozen=True)
class From:
    """Range of a number in an annotation, ends included: ``Annotated[int, From(2)]``.

    Attributes:
        low: smallest value.
        high: largest value.
    """

    low: float | int
    high: float | int = math.inf

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high and value < math.inf

    def __str__(self) -> str:
        return f"a number from {self.low:g}" + (f" to {self.high:g}" if self.high < math.inf else "")


@dataclass(frozen=True)
class Above(From):
    """Range of a number in an annotation, ends excluded: ``Annotated[float, Above(0)]``.

    Attributes:
        low: number below all values.
        high: number above all values.
    """

    def __contains__(self, value: float) -> bool:
        return self.low < value < self.high

    def __str__(self) -> str:
        return f"a number above {self.low:g}" + (f" and below {self.high:g}" if self.high < math.inf else "")


def check_fields(owner: Any) -> None:
    """Check the fields of a dataclass by their annotations; lists given for tuples become tuples.

    Raises:
        TypeError: for a value of another type.
        ValueError: for one outside of the range or the choices in the annotation.

    Example:
        >>> @dataclass
        ... class Settings:
        ...     indices: tuple[Annotated[int, From(1)], int | None] = (3, 100)
        ...     kind: Literal["linear", "rbf"] = "linear"
        >>> settings = Settings([1, None])
        >>> check_fields(settings)
        >>> settings.indices
        (1, None)
        >>> check_fields(Settings((0, 2)))
        Traceback (most recent call last):
        ValueError: indices[0] is 0: expected a number from 1
    """
    hints = get_type_hints(type(owner), include_extras=True)
    for name in (field.name for field in fields(owner)):
        object.__setattr__(owner, name, _checked(name, getattr(owner, name), hints[name]))


def _checked(name: str, value: Any, hint: Any) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        value = _checked(name, value, args[0])
        for rule in args[1:]:
            if isinstance(rule, From) and value not in rule:
                raise ValueError(f"{name} is {value!r}: expected {rule}")
        return value
    if origin in (Union, UnionType):
        return _checked_union(name, value, args)
    if origin is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in args):
            raise ValueError(f"{name} is {value!r}: expected one of {', '.join(map(repr, args))}")
        return value
    if origin is tuple:
        return _checked_tuple(name, value, args)
    if not _is_instance(value, origin or hint):
        raise TypeError(f"{name} is {value!r}: expected {_words(hint)}")
    if args and isinstance(value, Mapping):
        if args == (str, str) and (wrong := [key for key in value if not (isinstance(key, str) and key)]):
            raise TypeError(f"{name} has the key {wrong[0]!r}: expected a name, or a number in quotes")
        return {key: _checked(f"{name}[{key!r}]", item, args[1]) for key, item in value.items()}
    if args and isinstance(value, Collection) and origin is not type:
        kind: Any = list if isinstance(value, range) else type(value)  # a list, a tuple or a set
        return kind(_checked(f"{name}[{i}]", item, args[0]) for i, item in enumerate(value))
    return value


def _checked_union(name: str, value: Any, options: Sequence[Any]) -> Any:
    errors: list[TypeError | ValueError] = []
    for option in options:
        try:
            return _checked(name, value, option)
        except (TypeError, ValueError) as error:
            errors.append(error)
    inner = [error for error in errors if f"{name} is" not in str(error) or isinstance(error, ValueError)]
    if len(inner) == 1:  # one option has the type, but another range
        raise inner[0]
    raise TypeError(f"{name} is {value!r}: expected {' or '.join(map(_words, options))}")


def _checked_tuple(name: str, value: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name} is {value!r}: expected a list")
    hints = [args[0]] * len(value) if args[1:] == (...,) else args
    if len(value) != len(hints):
        raise ValueError(f"{name} is {value!r}: expected {len(hints)} values")
    return tuple(
        _checked(f"{name}[{i}]", item, hint) for i, (item, hint) in enumerate(zip(value, hints, strict=True))
    )


def _is_instance(value: Any, kind: Any) -> bool:
    if kind is Any or not isinstance(kind, type):
        return True
    if kind in (int, float) and isinstance(value, bool):
        return False
    if isinstance(value, str) and kind is not str and issubclass(kind, Collection):  # no list of letters
        return False
    numbers: dict[Any, Any] = {int: Integral, float: Real}  # numpy's numbers, too
    return isinstance(value, numbers.get(kind, kind))


def _words(hint: Any) -> str:
    if hint is None or hint is type(None):
        return "null"
    if get_origin(hint) is Annotated:
        return _words(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return ", ".join(map(repr, get_args(hint)))
    kind = get_origin(hint) or hint
    return type_words(getattr(kind, "__name__", str(kind)))


_TYPES = {
    **dict.fromkeys(("list", "tuple", "set", "Sequence", "Collection", "Iterable"), "a list"),
    **dict.fromkeys(("dict", "Mapping"), "a mapping"),
    **{
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "str": "text",
        "NoneType": "null",
    },
}


def type_words(name: str) -> str:
    """Return what a type of Python is called in yaml and in messages.

    Example:
        >>> type_words("int"), type_words("NoneType"), type_words("Steps")
        ('a whole number', 'null', 'Steps')
    """
    return _TYPES.get(name, name)
