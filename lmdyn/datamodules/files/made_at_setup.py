"""Data that is made once, in ``setup``: anything, or a table."""

from typing import Generic, TypeVar

import lightning as L
import pandas as pd

T = TypeVar("T")


class MadeAtSetup(L.LightningDataModule, Generic[T]):
    """A datamodule that makes everything in ``setup``, once, into memory: a subclass defines :meth:`make`."""

    _made: T | None = None

    def make(self) -> T:
        """Return what is served."""
        raise NotImplementedError

    def setup(self, stage: str | None = None) -> None:
        """Make the data, once; ``stage`` has no effect."""
        if self._made is None:
            self._made = self.make()

    @property
    def ready(self) -> T:
        """What was made.

        Raises:
            RuntimeError: if read before ``setup``.
        """
        if self._made is None:
            raise RuntimeError(f"{type(self).__name__} is not set up: call setup() first")
        return self._made


class TableData(MadeAtSetup[pd.DataFrame]):
    """A datamodule whose data is one table: a ``probe`` of an observer that reads it by itself."""
