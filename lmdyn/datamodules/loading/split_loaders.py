"""The loaders that Lightning asks a datamodule for."""

from typing import Any

import lightning as L

from lmdyn.datamodules.loading.global_batch import ORDER_VERSION

__all__ = ["SplitLoaders"]


class SplitLoaders(L.LightningDataModule):
    """The loaders that Lightning asks for, by :meth:`loader` and ``splits``."""

    splits: Any

    order_version: int = ORDER_VERSION
    """How training data is ordered; :class:`~lmdyn.callbacks.RunState` sets that of the run that is resumed."""

    def loader(self, split: str) -> Any:
        """Batches of a split."""
        raise NotImplementedError

    def train_dataloader(self) -> Any:
        """Batches of the training split."""
        return self.loader("train")

    def val_dataloader(self) -> Any:
        """Batches of the validation split; an empty list, which skips validation, where there is none."""
        return self.loader("validation") if "validation" in self.splits else []

    def test_dataloader(self) -> Any:
        """Batches of the test split."""
        return self.loader("test")
