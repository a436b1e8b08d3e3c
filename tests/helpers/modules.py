"""A user's own module, as small as one can be that is trained."""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn


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
