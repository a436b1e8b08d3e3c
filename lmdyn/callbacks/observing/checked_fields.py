"""Arguments of observers: annotated fields, which are checked, and recorded as settings."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any

from lmdyn.analysis.checked_fields import Above, From, check_fields

__all__ = ["Above", "From", "check_fields", "recording_arguments"]


def recording_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap a constructor so that the arguments that it names are kept in ``_own_arguments``.

    A subclass with its own ``__init__`` and ``**kwargs`` thereby has all its arguments among its settings.
    """
    named = signature(init)

    @wraps(init)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = named.bind(self, *args, **kwargs)
        bound.apply_defaults()
        kept = vars(self).setdefault("_own_arguments", {})
        for parameter in list(named.parameters.values())[1:]:
            if parameter.kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL):
                kept.setdefault(parameter.name, bound.arguments[parameter.name])
        init(self, *args, **kwargs)

    return recorded
