"""A stranger's model and data, for configurations: a tiny architecture, batches in transformers' conventions."""

import lightning as L
import torch
from torch.utils.data import DataLoader

from lmdyn.analysis.inspection.forward import call_module, logits_of, token_losses
from tests.helpers.architectures import ARCHITECTURES, VOCABULARY


class AnyModel(L.LightningModule):
    """Trains an architecture by its own loss, where it has one; no forward of its own.

    Args:
        name: of the architecture.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = ARCHITECTURES[name]().train()

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """The loss."""
        given = {name: batch[name] for name in ("input_ids", "labels")}
        if hasattr(self.model, "config"):
            return self.model(**given).loss
        logits = logits_of(call_module(self.model, given))
        return token_losses(logits[:, :-1], batch["labels"][:, 1:]).mean()

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        """Nothing; without it Lightning warns."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain descent."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Rows(DataLoader):
    """Batches whose labels are the input, shifted inside the model, and a gold layer."""

    label_names = {"parity": ["even", "odd"]}


class Text(L.LightningDataModule):
    """Random ids in which words repeat; labels are the input.

    Args:
        labels: how many of the tokens are labels, of an encoder-decoder; None: all.
    """

    def __init__(self, labels: int | None = None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(3, 40, (40, 12), generator=generator) % VOCABULARY
        self.rows = [{"input_ids": row, "labels": row[:labels].clone(), "parity": row % 2} for row in ids]

    def train_dataloader(self) -> Rows:
        """Three quarters of the rows."""
        return Rows(self.rows[:30], batch_size=5, shuffle=True)

    def val_dataloader(self) -> Rows:
        """The others."""
        return Rows(self.rows[30:], batch_size=5)
