"""A random sample of the rows of a stream: the same for any batches and any number of ranks."""

from collections.abc import Mapping
from itertools import chain

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.statistics.distributed import gather

__all__ = ["SampledRows"]


class SampledRows:
    """The rows of the smallest keys of a stream, of several named tensors with the same rows.

    If a key is a pseudo-random function of its row's position in the data, the sample is uniform, and does not depend
    on the order of rows, on batches or on ranks. Memory is that of at most twice the sample and one batch.

    Args:
        size: rows of the sample; all rows if the stream has fewer.

    Example:
        >>> sample = SampledRows(2)
        >>> for keys in torch.tensor([[5, 1], [9, 3]]):
        ...     sample.update(keys, {"x": 10.0 * keys[:, None]})
        >>> sample.reduce()
        >>> sample.rows("x")
        tensor([[10.],
                [30.]])
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._parts: list[tuple[Tensor, Mapping[str, Tensor]]] = []
        self._held = 0
        self._limit: Tensor | None = None  # the greatest key of the sample so far

    def update(self, keys: Int[Tensor, "n"], rows: Mapping[str, Float[Tensor, "n _"]]) -> None:
        """Add n rows; n may be 0.

        Args:
            keys: (n,) different keys.
            rows: (n, d) rows by name, each name with a d of its own; the same names at each call.
        """
        there = slice(None) if self._limit is None else keys < self._limit
        keys = keys[there]
        if len(keys):
            self._parts.append((keys, {name: x[there].clone() for name, x in rows.items()}))
            self._held += len(keys)
        if self._held >= 2 * self.size:
            self._select()

    def _select(self) -> None:
        keys = torch.cat([keys for keys, _ in self._parts])
        best = keys.argsort()[: self.size]
        names = self._parts[0][1]
        rows = {name: torch.cat([rows[name] for _, rows in self._parts])[best] for name in names}
        self._parts, self._held = [(keys[best], rows)], len(best)
        if self._held == self.size:
            self._limit = keys[best[-1]]

    def reduce(self) -> None:
        """Take the sample of all ranks' rows; call it once, on every rank, after the last update."""
        if self._parts:
            self._select()
        mine = [(keys.cpu(), {name: x.cpu() for name, x in rows.items()}) for keys, rows in self._parts]
        self._parts = list(chain.from_iterable(gather(mine)))
        if self._parts:
            self._select()

    def rows(self, name: str) -> Float[Tensor, "m d"]:
        """Return the sample of a tensor, m ≤ size rows in the order of their keys, on every rank; after :meth:`reduce`.

        Raises:
            KeyError: if there is no such tensor.
        """
        found = self._parts[0][1] if self._parts else {}
        return found[name]
