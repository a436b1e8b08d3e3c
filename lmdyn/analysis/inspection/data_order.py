"""Which argument of a datamodule decides the order of its training data."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["order_argument", "order_of"]


def order_argument(data: type | Iterable[str]) -> str | None:
    """The name of the argument that is the order of data, apart from the seed of initialisation.

    It is ``order_seed`` where there is one: of text that is read as it stands, whose documents this permutes (null: as
    published). Else it is ``seed``, from which data that is drawn anew in each epoch (``PretrainingCorpus``) takes
    windows, masks and their order. Corpora with both mean other things by ``seed``.

    Args:
        data: class of the datamodule, or the names of its arguments.

    Returns:
        The name; None where there is neither.

    Example:
        >>> order_argument(["batch_size", "seed", "order_seed"]), order_argument(["seed"]), order_argument([])
        ('order_seed', 'seed', None)
    """
    names = set(_arguments(data) if isinstance(data, type) else data)
    return next((name for name in ("order_seed", "seed") if name in names), None)


def order_of(data: Mapping[str, Any]) -> int | None:
    """The order of data of a run, from the section ``data`` of its saved configuration.

    Args:
        data: ``class_path`` and ``init_args``, in which ``fit`` names each argument.

    Returns:
        The number; None where the text was read as published, and where no argument says.

    Example:
        >>> order_of({"class_path": "lmdyn.datamodules.GrammarCorpus", "init_args": {"seed": 0, "order_seed": 3}})
        3
    """
    arguments = data.get("init_args") or {}
    name = order_argument(arguments)
    return None if name is None else arguments[name]


def _arguments(cls: type) -> Iterable[str]:
    """Arguments of a class and, as far as it hands others on, of its bases."""
    for base in cls.__mro__:
        if (init := vars(base).get("__init__")) is None:
            continue
        parameters = inspect.signature(init).parameters.values()
        yield from (p.name for p in parameters)
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            return
