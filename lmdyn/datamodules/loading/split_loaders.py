"""The loaders that Lightning requests from a datamodule."""

from typing import Any

import lightning as L

from lmdyn.datamodules.loading.global_batch import ORDER_VERSION

__all__ = ["SplitLoaders"]


class SplitLoaders(L.LightningDataModule):
    """The loaders that Lightning requests, defined by :meth:`loader` and ``splits``."""

    splits: Any

    order_version: int = ORDER_VERSION
    """Version of the order of training data; :class:`~lmdyn.callbacks.RunState` sets it to that of a resumed run."""

    def loader(self, split: str) -> Any:
        """Return the batches of a split."""
        raise NotImplementedError

    def train_dataloader(self) -> Any:
        """Return the batches of the training split."""
        return self.loader("train")

    def val_dataloader(self) -> Any:
        """Return the batches of the validation split; an empty list, which skips validation, if there is none."""
        return self.loader("validation") if "validation" in self.splits else []

    def test_dataloader(self) -> Any:
        """Return the batches of the test split."""
        return self.loader("test")
