"""Code of a user's own with errors in it, which tests of errors import."""

from pathlib import Path

import lightning as L
import torch

from lmdyn.models import LSTMLanguageModel


class InInit(LSTMLanguageModel):
    def __init__(self, **arguments):
        super().__init__(**arguments)
        int("no number in __init__")


class InNestedLibrary(L.Callback):
    def __init__(self, shape: int = -1):
        torch.zeros(2).reshape(shape, 3)


class WithoutAttribute(L.Callback):
    def __init__(self):
        self.nothing.at_all()


class PassesOn(LSTMLanguageModel):
    def __init__(self, **arguments):
        super().__init__(**arguments, tie_weights=True)


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        raise TypeError("a bug in the dataset")


class Data(L.LightningDataModule):
    def train_dataloader(self):
        return torch.utils.data.DataLoader(Texts())

    val_dataloader = train_dataloader


class Setup(Data):
    def setup(self, stage):
        Path("/nowhere/at/all").read_text()


def forward(module, batch):
    raise ValueError("a bug in a callable")
