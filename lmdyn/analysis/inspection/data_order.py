"""The argument of a datamodule that determines the order of its training data."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["order_argument", "order_of"]


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


def order_of(data: Mapping[str, Any]) -> int | None:
    """Return the order of data of a run, from the section ``data`` of its saved configuration.

    Args:
        data: ``class_path`` and ``init_args``, in which ``fit`` writes each argument.

    Returns:
        The number; None if the text was read as published, or if no argument determines it.

    Example:
        >>> order_of({"class_path": "lmdyn.datamodules.GrammarCorpus", "init_args": {"seed": 0, "order_seed": 3}})
        3
    """
    arguments = data.get("init_args") or {}
    name = order_argument(arguments)
    return None if name is None else arguments[name]


def _arguments(cls: type) -> Iterable[str]:
    """Yield arguments of a class and, if it passes others on, of its bases."""
    for base in cls.__mro__:
        if (init := vars(base).get("__init__")) is None:
            continue
        parameters = inspect.signature(init).parameters.values()
        yield from (p.name for p in parameters)
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            return
