"""This process as one rank of several, where the others are not needed."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from lmdyn.analysis.statistics import distributed


@contextmanager
def as_rank(rank: int = 0, world_size: int = 1, **functions: Any) -> Iterator[None]:
    """All of lmdyn is told this rank and number of ranks; what would talk to others does not.

    Args:
        functions: what takes the place of ``gather`` or ``all_reduce_sum``; else each gives back what it is given, as
            without a process group.

    Example:
        >>> from lmdyn.callbacks.words import token_learning
        >>> with as_rank(1, 3):
        ...     token_learning.rank_and_world_size()
        (1, 3)
        >>> token_learning.rank_and_world_size()
        (0, 1)
    """
    with ExitStack() as patches:
        for name, new in {"rank_and_world_size": lambda: (rank, world_size), **functions}.items():
            old = getattr(distributed, name)
            for path, module in list(sys.modules.items()):
                if path.startswith("lmdyn.") and module is not distributed and vars(module).get(name) is old:
                    patches.enter_context(mock.patch.object(module, name, new))
        yield
