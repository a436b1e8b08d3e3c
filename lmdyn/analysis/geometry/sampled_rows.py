"""A random sample of the rows of a stream: the same for any batches and any number of ranks."""

from collections.abc import Mapping

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

    Raises:
        ValueError: if ``size`` is below 1.

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
        if size < 1:
            raise ValueError(f"the sample's size is {size}: expected a number of rows from 1")
        self.size = size
        self._keys: list[Tensor] = []
        self._rows: dict[str, list[Tensor]] = {}
        self._held = 0
        self._limit: Tensor | None = None  # the greatest key of the sample so far

    def update(self, keys: Int[Tensor, "n"], rows: Mapping[str, Float[Tensor, "n _"]]) -> None:
        """Add n rows; n may be 0.

        Args:
            keys: (n,) different keys.
            rows: (n, d) rows by name, each name with a d of its own; the same names at each call.
        """
        if self._limit is not None:
            there = keys < self._limit
            keys, rows = keys[there], {name: x[there] for name, x in rows.items()}
        elif len(keys):
            rows = {name: x.clone() for name, x in rows.items()}
        if not len(keys):
            return
        self._keys.append(keys)
        for name, x in rows.items():
            self._rows.setdefault(name, []).append(x)
        self._held += len(keys)
        if self._held >= 2 * self.size:
            self._select()

    def _select(self) -> None:
        keys = torch.cat(self._keys)
        best = keys.argsort()[: self.size]
        self._keys = [keys[best]]
        self._rows = {name: [torch.cat(parts)[best]] for name, parts in self._rows.items()}
        self._held = len(best)
        if self._held == self.size:
            self._limit = self._keys[0][-1]

    def reduce(self) -> None:
        """Take the sample of all ranks' rows; call it once, on every rank, after the last update."""
        if self._keys:
            self._select()
        mine = (
            torch.cat(self._keys).cpu() if self._keys else torch.zeros(0, dtype=torch.int64),
            {name: torch.cat(parts).cpu() for name, parts in self._rows.items()},
        )
        everyone = [part for part in gather(mine) if len(part[0])]
        if len(everyone) > 1 or not self._keys:
            self._keys = [keys for keys, _ in everyone]
            names = dict.fromkeys(name for _, rows in everyone for name in rows)
            self._rows = {name: [rows[name] for _, rows in everyone] for name in names}
            if everyone:
                self._select()

    def rows(self, name: str) -> Float[Tensor, "m d"]:
        """Return the sample of a tensor, m ≤ size rows in the order of their keys, on every rank; after :meth:`reduce`.

        Raises:
            KeyError: if there is no such tensor.
        """
        (rows,) = self._rows[name]
        return rows
