"""Refusals in a table: what is given, and the deciding words of the error."""

from collections.abc import Callable
from typing import Any

import pytest


def assert_refused(make: Callable[..., Any], *rows: tuple[Any, str]) -> None:
    """Each row has what ``make`` is given, keyword arguments where it is a dict, and a pattern of the error's words.

    Example:
        >>> assert_refused(int, ("x", "invalid literal"), ({"base": 2}, "missing string"))
    """
    for given, words in rows:
        try:
            with pytest.raises((TypeError, ValueError), match=words):
                make(**given) if isinstance(given, dict) else make(given)
        except pytest.fail.Exception as failed:
            raise AssertionError(f"{given} was not refused") from failed
