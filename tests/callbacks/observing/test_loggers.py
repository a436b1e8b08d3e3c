"""An error while drawing or logging ends no training, is told once, and costs no observation."""

import lightning as L
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader

from lmdyn.callbacks import Observer, Steps


class Broken(Observer):
    """Its observations are fine; what is made of them is not, as ``fails`` says."""

    fails = ""
    drawn = 0

    def measure(self, module, step):
        return pd.DataFrame({"quantity": ["n"], "site": [""], "value": [float(step)]})

    @classmethod
    def figures(cls, observations, settings):
        Broken.drawn += 1
        if Broken.fails == "figures":
            raise KeyError("a bug in drawing")
        return {}

    @staticmethod
    def is_scalar(observations):
        if Broken.fails == "is_scalar":
            raise ValueError("a bug in choosing")
        return pd.Series(True, index=observations.index)


class Logger(L.pytorch.loggers.CSVLogger):
    """Loses its connection."""

    def log_metrics(self, metrics, step=None):
        if Broken.fails == "log_metrics" and any(name.startswith("broken") for name in metrics):
            raise ConnectionError("gone")
        super().log_metrics(metrics, step)

    def log_image(self, *args, **kwargs):
        """Takes images."""


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Embedding(5, 5)

    def forward(self, input_ids):
        return self.layer(input_ids)

    def training_step(self, batch, batch_idx):
        return self(batch["input_ids"]).sum()

    def validation_step(self, batch, batch_idx):
        """Nothing; without it Lightning warns."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize("fails", ["", "figures", "is_scalar", "log_metrics"])
def test_the_training_goes_on(tmp_path, survived, monkeypatch, fails):
    monkeypatch.setattr(Broken, "fails", fails)
    monkeypatch.setattr(Broken, "drawn", 0)
    trainer = L.Trainer(
        max_steps=3, callbacks=[Broken(schedule=Steps(every=1))], default_root_dir=tmp_path, accelerator="cpu",
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, val_check_interval=0.0,
        limit_val_batches=0, logger=[Logger(tmp_path, "a"), Logger(tmp_path, "b")],
    )  # fmt: skip
    loader = DataLoader([{"input_ids": torch.tensor([i % 5])} for i in range(6)])
    trainer.fit(Module(), loader, loader)
    assert trainer.global_step == 3
    table = pd.read_parquet(trainer.log_dir + "/observations/broken")
    table = table[table["quantity"] == "n"]
    assert table["value"].tolist() == [0.0, 1.0, 2.0, 3.0]  # kept, all of them
    assert Broken.drawn == 4  # what is not broken is done at each
    assert len(survived) == (0 if not fails else 1)  # of four times, and two loggers
    for record in survived:
        assert "broken: " in record.getMessage()
        assert record.exc_info is not None  # the traceback
        assert str(record.exc_info[1]) in ("'a bug in drawing'", "a bug in choosing", "gone")
    survived.clear()
