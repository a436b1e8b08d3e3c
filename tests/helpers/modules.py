"""A user's own module, as small as one can be that is trained."""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from lmdyn.callbacks import ScheduledCheckpoint, Steps


class Own(L.LightningModule):
    """Trains ``net`` on batches in Hugging Face's names; knows nothing of lmdyn."""

    def __init__(self, net=None):
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 7)) if net is None else net

    def forward(self, input_ids):
        return self.net(input_ids)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())

    def validation_step(self, batch, batch_idx):
        """Nothing; without it Lightning warns."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit_four_steps(module, batches, folder, observers):
    """Trains a module for four steps with observers, and saves the weights of steps 0, 2 and 4."""
    trainer = L.Trainer(
        default_root_dir=folder, max_steps=4, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[*observers, ScheduledCheckpoint(schedule=Steps(at=(0, 2)))],
    )  # fmt: skip
    trainer.fit(module, DataLoader(batches, batch_size=None))
    return module
