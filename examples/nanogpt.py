"""Attach observers to nanoGPT's loop.

Its `get_batch` returns pairs (x, y), and its forward maps (idx, targets) to (logits, loss). This script
has a small model with the same forward. Replace it by nanoGPT's own `GPT(GPTConfig(...))`.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

# [readme]
import lmdyn
from lmdyn.callbacks import LearningCurves, Similarity, Sparsity, Steps

# [end]

BLOCK_SIZE, BATCH_SIZE, WIDTH, HEADS = 64, 16, 64, 4


class Block(nn.Module):
    """Attention and a multilayer perceptron, each after a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of one layer."""
        rows, time, _ = x.shape
        qkv = self.c_attn(self.ln_1(x)).view(rows, time, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.c_proj(y)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """A model with the forward of nanoGPT: without targets, it returns only the logits of the last position."""

    def __init__(self, vocab_size: int, n_layer: int) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocab_size, WIDTH),
                "wpe": nn.Embedding(BLOCK_SIZE, WIDTH),
                "h": nn.ModuleList([Block() for _ in range(n_layer)]),
                "ln_f": nn.LayerNorm(WIDTH),
            }
        )
        self.lm_head = nn.Linear(WIDTH, vocab_size, bias=False)

    def forward(
        self, idx: torch.Tensor, targets: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return logits and, with targets, the loss."""
        positions = torch.arange(idx.size(1), device=idx.device)
        x = self.transformer["wte"](idx) + self.transformer["wpe"](positions)
        for block in self.transformer["h"]:  # type: ignore[union-attr]
            x = block(x)
        x = self.transformer["ln_f"](x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def main(folder: str = "runs/nanogpt", max_steps: int = 200, text: bytes | None = None) -> None:
    """Train on the source code of lmdyn, byte by byte."""
    if text is None:
        sources = sorted(Path(__file__).parents[1].glob("lmdyn/**/*.py"))
        text = b"\n".join(path.read_bytes() for path in sources)
    torch.manual_seed(1)
    ids = torch.tensor(list(text))
    parts = {"train": ids[: len(ids) * 9 // 10], "val": ids[len(ids) * 9 // 10 :]}

    def get_batch(split: str) -> tuple[torch.Tensor, torch.Tensor]:
        data = parts[split]
        starts = torch.randint(len(data) - BLOCK_SIZE, (BATCH_SIZE,)).tolist()
        x = torch.stack([data[i : i + BLOCK_SIZE] for i in starts])
        y = torch.stack([data[i + 1 : i + 1 + BLOCK_SIZE] for i in starts])
        return x, y

    model = GPT(vocab_size=256, n_layer=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    # [readme]
    with torch.random.fork_rng():  # batches to observe, the same for every seed of the training
        torch.manual_seed(0)
        probe = [get_batch("val") for _ in range(20)]
    observers = [LearningCurves(), Sparsity(), Similarity()]
    schedule = Steps(per_decade=4, every=100)
    watcher = lmdyn.watch(model, observers, probe=probe, folder=folder, schedule=schedule)
    for step in range(1, max_steps + 1):
        _, loss = model(*get_batch("train"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        watcher.step(step)  # optimizer updates so far; observes only at scheduled steps
    watcher.close()
    # [end]
    print(f"python -m lmdyn.cli report {folder}")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:2])
