"""Models and data of a user's own."""

from dataclasses import dataclass

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class GPTConfig:
    block_size: int = 16
    vocab_size: int = 200
    n_layer: int = 2


class GPT(nn.Module):
    """As nanoGPT: (logits, loss), and without targets the last logits only."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.wte, self.wpe = nn.Embedding(config.vocab_size, 8), nn.Embedding(config.block_size, 8)
        self.h = nn.ModuleList(
            [nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(config.n_layer)]
        )
        self.lm_head = nn.Linear(8, config.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx, targets=None):
        assert idx.size(1) <= self.config.block_size, "too long"
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = x + block(x)
        if targets is None:
            return self.lm_head(x[:, [-1]]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


class Lit(L.LightningModule):
    def __init__(self, vocab_size: int = 200, n_layer: int = 2):
        super().__init__()
        self.gpt = GPT(GPTConfig(vocab_size=vocab_size, n_layer=n_layer))

    def forward(self, input_ids):
        return self.gpt(input_ids, input_ids)[0]

    def training_step(self, batch, batch_idx):
        return self.gpt(batch["input_ids"], batch["labels"])[1]

    def validation_step(self, batch, batch_idx):
        """Nothing; without it Lightning warns."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class OnlyForward(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Embedding(200, 200)

    def forward(self, input_ids):
        return self.net(input_ids)


class Broken(OnlyForward):
    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.net.weight[0, :2] = float("nan")


class NoLogits(OnlyForward):
    def forward(self, input_ids):
        return {"loss": self.net(input_ids).mean()}


def by_function(module, batch):
    return module.net(batch["input_ids"])


class Needs(nn.Module):
    def __init__(self, depth, width: int, drop: float = 0.0):
        super().__init__()


class Pairs(L.LightningDataModule):
    """Tuples (x, y), as nanoGPT's."""

    def __init__(self, rows: int):
        super().__init__()
        ids = torch.randint(0, 200, (rows, 17), generator=torch.Generator().manual_seed(0))
        self.pairs = TensorDataset(ids[:, :-1], ids[:, 1:])

    def train_dataloader(self):
        return DataLoader(self.pairs, batch_size=4)

    val_dataloader = train_dataloader


class Nothing(L.LightningDataModule):
    pass
