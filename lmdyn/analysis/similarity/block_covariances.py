"""Covariances of each block of a text, from which intervals and errors over texts follow."""

from collections.abc import Mapping

from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.similarity.covariance import CrossCovariance
from lmdyn.analysis.statistics.distributed import gather

__all__ = ["BlockCovariances"]


class BlockCovariances:
    """Streaming covariances of named representations of the same samples, a :class:`CrossCovariance` for each block.

    Args:
        blocks: number of blocks.

    Example:
        >>> x = torch.arange(12.0).reshape(6, 2).sin()
        >>> covariances = BlockCovariances(blocks=2)
        >>> covariances.update({"x": x, "y": x[:, :1]}, torch.tensor([0, 0, 1, 1, 1, 1]))
        >>> covariances.names, [part.n for part in covariances.between(0, 1)]
        (('x', 'y'), [2, 4])
    """

    def __init__(self, blocks: int = 1) -> None:
        self.names: tuple[str, ...] = ()
        self._blocks = blocks
        self._parts: dict[int, CrossCovariance] = {}

    def _part(self, block: int) -> CrossCovariance:
        return self._parts.setdefault(block, CrossCovariance(self.names))

    def update(
        self, rows: Mapping[str, Float[Tensor, "n _"]], blocks: Int[Tensor, "n"] | None = None
    ) -> None:
        """Add n samples.

        Args:
            rows: (n, d₁), (n, d₂), … representations by name, two or more, the same ones at each call.
            blocks: (n,) block of each sample, from 0; None if there is only one.
        """
        self.names = tuple(rows)
        for block in [0] if blocks is None else blocks.unique().tolist():
            own = slice(None) if blocks is None else blocks == block
            self._part(block).update_all([x[own] for x in rows.values()])

    def reduce(self) -> None:
        """Sum over ranks; call it once, on every rank, after the last update. A rank may have no samples."""
        self.names = next((names for names in gather(self.names) if names), ())
        for block in range(self._blocks):
            self._part(block).reduce()

    def between(self, i: int, j: int) -> list[CrossCovariance]:
        """Return the covariances of the i-th and the j-th representation, of each block with samples."""
        parts = [part for _, part in sorted(self._parts.items()) if part.n]
        return parts if len(self.names) == 2 else [part.between(i, j) for part in parts]
