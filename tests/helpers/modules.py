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


class Bigrams(nn.Module):
    """Logits by the token read: the Hessian of its loss is block diagonal, with blocks (diag(p) − ppᵀ) n_w / n."""

    def __init__(self, vocabulary=11):
        super().__init__()
        self.table = nn.Embedding(vocabulary, vocabulary)

    def forward(self, input_ids):
        return self.table(input_ids)


def quiet_trainer(folder, *callbacks, **settings):
    """A Trainer of one process, which logs and shows nothing unless the settings say so."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    given = {"accelerator": "cpu", "devices": 1, **quiet, **settings}
    return L.Trainer(default_root_dir=folder, callbacks=[*callbacks], **given)


def fit_four_steps(module, batches, folder, observers):
    """Trains a module for four steps with observers, and saves the weights of steps 0, 2 and 4."""
    saver = ScheduledCheckpoint(schedule=Steps(at=(0, 2)))
    quiet_trainer(folder, *observers, saver, max_steps=4).fit(module, DataLoader(batches, batch_size=None))
    return module


def random_permutations(groups, seed=1):
    """A permutation of the units of each group."""
    generator = torch.Generator().manual_seed(seed)
    return {group.name: torch.randperm(group.size, generator=generator) for group in groups}
