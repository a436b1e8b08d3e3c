"""Observers on a LightningModule that knows nothing of lmdyn: a GPT-2 over bytes, batches of a plain DataLoader."""

import sys
from pathlib import Path

import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

# [readme]
from lmdyn.callbacks import LearningCurves, Sparsity, Steps

# [end]


class ByteGPT(L.LightningModule):
    """Your module. Observers call it with the keys of the batch that its forward names, and read `.logits`."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=4))

    def forward(self, input_ids: torch.Tensor) -> object:
        """Logits for `labels`, without the labels: the data shifts, the model does not."""
        return self.gpt(input_ids=input_ids)

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Mean loss of the batch."""
        logits = self(batch["input_ids"]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        """Mean loss of the batch, as `val_loss`."""
        logits = self(batch["input_ids"]).logits
        self.log("val_loss", F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Your optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


class Bytes(L.LightningDataModule):
    """Your data: dicts with `input_ids` and `labels`; the validation set is what observers look at."""

    def __init__(self, text: bytes, length: int = 64, batch_size: int = 16) -> None:
        super().__init__()
        ids = torch.tensor(list(text))
        starts = range(0, len(ids) - length - 1, length)
        rows = [{"input_ids": ids[i : i + length], "labels": ids[i + 1 : i + length + 1]} for i in starts]
        held_out = max(1, len(rows) // 10)
        self.train, self.validation, self.batch_size = rows[held_out:], rows[:held_out], batch_size

    def train_dataloader(self) -> DataLoader:
        """Shuffled rows."""
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        """Held-out rows."""
        return DataLoader(self.validation, batch_size=self.batch_size)


def main(folder: str = "runs/own_module", max_steps: int = 200, text: bytes | None = None) -> None:
    """Train on lmdyn's own sources."""
    if text is None:
        sources = sorted(Path(__file__).parents[1].glob("lmdyn/**/*.py"))
        text = b"\n".join(path.read_bytes() for path in sources)
    L.seed_everything(1)
    module, data = ByteGPT(), Bytes(text)
    # [readme]
    schedule = Steps(per_decade=4, every=50)  # optimizer updates; step 0, the untrained model, is always seen
    observers = [
        LearningCurves(schedule=schedule, layers=[], frequency="probe", max_tokens=20_000),
        Sparsity(
            schedule=schedule,
            max_tokens=20_000,  # of the validation set
            frequency="probe",  # word counts of the validation set
            pos_classes=False,  # no tags here
            sites={"block1": "gpt.transformer.h.0", "block2": "gpt.transformer.h.1"},
            attention_sites={"attention1": "gpt.transformer.h.0.attn"},
        ),
    ]
    trainer = L.Trainer(max_steps=max_steps, default_root_dir=folder, callbacks=observers)
    trainer.fit(module, datamodule=data)
    # [end]
    print(f"python -m lmdyn.cli report {trainer.log_dir}")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:2])
