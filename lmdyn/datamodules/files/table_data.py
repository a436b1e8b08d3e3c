"""Data that is one table, made once."""

from abc import abstractmethod

import lightning as L
import pandas as pd


class TableData(L.LightningDataModule):
    """A datamodule whose data is one table: a ``probe`` of an observer that reads it by itself."""

    def __init__(self) -> None:
        super().__init__()
        self._made: pd.DataFrame | None = None

    def setup(self, stage: str) -> None:
        """Make the table, once."""
        if self._made is None:
            self._made = self.make()

    @abstractmethod
    def make(self) -> pd.DataFrame:
        """Return the table."""

    @property
    def table(self) -> pd.DataFrame:
        """The table.

        Raises:
            RuntimeError: if read before ``setup``.
        """
        if self._made is None:
            raise RuntimeError(f"{type(self).__name__} has no table yet: call setup() first")
        return self._made
