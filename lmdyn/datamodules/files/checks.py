"""Checks of arguments, with equal messages everywhere."""

from collections.abc import Iterable


def at_least(minimum: float, **numbers: float | None) -> None:
    """Raise a ``ValueError`` for a number below the minimum; None is none.

    Example:
        >>> at_least(1, batch_size=0)
        Traceback (most recent call last):
        ValueError: batch_size must be at least 1, got 0
    """
    for name, number in numbers.items():
        if number is not None and number < minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {number}")


def each_once(choices: Iterable[str], minimum: int = 0, **lists: Iterable[str] | None) -> None:
    """Raise a ``ValueError`` for a list with a name twice, one that is not among the choices, or too few names.

    Example:
        >>> each_once(("pos", "roles"), tasks=["pos", "pos"])
        Traceback (most recent call last):
        ValueError: tasks must be some of pos, roles, each once, got pos, pos
    """
    known = list(choices)
    for name, given in lists.items():
        if given is not None and not minimum <= len({*given} & {*known}) == len([*given]):
            raise ValueError(
                f"{name} must be some of {', '.join(known)}, each once, got {', '.join(given) or 'none'}"
            )
