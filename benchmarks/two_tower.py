"""What do two towers cost, what do their output layers, and how much memory does a large vocabulary take?

Three questions:

- ``step``: forward and backward pass of a ``TwoTowerLanguageModel``, over the sum of its parts: two encoders of the
  same shape, each transformers' own blocks (PyTorch's LSTMs) alone, and one output layer with a plain cross-entropy.
  Without the optimizer on either side. Goal: at most 1.1.
- ``heads``: training of both towers' output layers by ``train_tower_heads`` (the frozen pass, the optimizer and all
  else included), over the frozen pass of both towers plus the forward and backward pass of the two output layers, each
  timed alone with a plain cross-entropy. Goal: at most 1.1.
- ``memory``: peak memory of the loss and its gradients at 128 × 128 tokens and 30,000 types, over that of
  ``F.cross_entropy`` of all logits. Goal: at most 0.25.

Run: ``python benchmarks/two_tower.py --threads 2 --reps 5`` (minutes; ``--smoke`` for seconds)

Ratios are taken pair by pair, ways alternating; seconds are of the clock on the wall, and of all threads on the CPU,
which other processes disturb less. Memory is the growth of the process's peak in a process of its own (of the device's
allocator on a GPU).
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from common import Seconds, machine, memory, now, quiet, spread, table
from torch import Tensor, nn
from transformers import BertConfig, GPT2Config
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from lmdyn.analysis.inspection.linear_cross_entropy import linear_cross_entropy
from lmdyn.analysis.inspection.predictions import activations_at
from lmdyn.analysis.probing.tower_heads import Encoded, HeadTraining, TowerHead, train_tower_heads
from lmdyn.callbacks.preference.tower_preference import TOWERS
from lmdyn.models import TwoTowerLanguageModel
from lmdyn.models.stacked_lstm import run_lstm

GOALS = {"step": 1.1, "heads": 1.1, "memory": 0.25}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--towers", nargs="+", default=["elmo", "gpt", "bert"])
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--types", type=int, default=30_000)
    parser.add_argument("--tokens", type=int, default=128 * 128, help="of the memory question")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16", help="of the step")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--updates", type=int, default=4, help="of the output layers")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    parser.add_argument("--loss", choices=["ours", "plain"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.smoke:
        args.threads = 1
        args.rows, args.length, args.hidden_size, args.layers = 4, 16, 16, 1
        args.types, args.tokens, args.reps, args.updates = 500, 512, 1, 2
    torch.set_num_threads(args.threads)
    quiet()
    if args.loss:
        print(peak_of_loss(args))
        return
    rows = []
    for tower in args.towers:
        rows += step(args, tower)
    for tower in args.towers:
        rows += heads(args, tower)
    memory = {kind: child(args, kind) for kind in ("plain", "ours")}
    rows.append(
        [
            f"memory: {args.tokens} tokens, {args.types} types, d {args.hidden_size}",
            f"{memory['plain'] / 1e6:.0f} MB", f"{memory['ours'] / 1e6:.0f} MB",
            f"{memory['ours'] / max(1, memory['plain']):.3f}", "", f"{GOALS['memory']}",
        ]
    )  # fmt: skip
    print(machine())
    print(table(["question", "parts", "ours", "ratio (wall)", "ratio (CPU)", "goal"], rows))


def child(args: argparse.Namespace, kind: str) -> float:
    """Peak memory of the loss, in a process of its own."""
    sizes = ["hidden_size", "types", "tokens", "device", "threads"]
    options = [part for s in sizes for part in (f"--{s.replace('_', '-')}", str(getattr(args, s)))]
    command = [sys.executable, __file__, *options, "--loss", kind]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def peak_of_loss(args: argparse.Namespace) -> float:
    device = torch.device(args.device)
    hidden = torch.randn(args.tokens, args.hidden_size, device=device, requires_grad=True)
    weight = torch.randn(args.types, args.hidden_size, device=device, requires_grad=True)
    bias = torch.zeros(args.types, device=device, requires_grad=True)
    labels = torch.randint(args.types, (args.tokens,), device=device)
    small = slice(0, 8)  # libraries' own memory is there before

    def loss(h: Tensor, y: Tensor) -> Tensor:
        if args.loss == "ours":
            return linear_cross_entropy(h, weight, bias, y)
        return F.cross_entropy(F.linear(h, weight, bias), y, reduction="sum")

    loss(hidden[small], labels[small]).backward()
    hidden.grad = weight.grad = bias.grad = None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        loss(hidden, labels).backward()
        return float(torch.cuda.max_memory_allocated(device) - before)
    before = memory("VmRSS")  # below the peak so far, so that the growth is an upper bound
    loss(hidden, labels).backward()
    return memory("VmHWM") - before


def model_of(args: argparse.Namespace, tower: str) -> TwoTowerLanguageModel:
    torch.manual_seed(0)
    model = TwoTowerLanguageModel(
        tower, hidden_size=args.hidden_size, num_layers=2 if tower == "elmo" else args.layers,
        num_attention_heads=max(1, args.hidden_size // 64), max_position_embeddings=args.length,
        vocab_size=args.types,
    )  # fmt: skip
    return model.to(args.device)


def alone(args: argparse.Namespace, tower: str) -> tuple[Callable[[Tensor], Tensor], list[nn.Parameter]]:
    """One encoder of the same shape, plain, and its weights."""
    d, n = args.hidden_size, max(1, args.hidden_size // 64)
    if tower == "elmo":
        ahead, back = (
            nn.LSTM(d, d, num_layers=2, batch_first=True, dropout=0.1).to(args.device) for _ in range(2)
        )
        parameters = [*ahead.parameters(), *back.parameters()]
        return (lambda x: run_lstm(ahead, x)[0] + run_lstm(back, x.flip(1))[0].flip(1)), parameters
    if tower == "gpt":
        config: Any = GPT2Config(
            vocab_size=1, bos_token_id=None, eos_token_id=None, n_embd=d, n_head=n, n_inner=4 * d
        )
        blocks = [GPT2Block(config, layer_idx=i) for i in range(args.layers)]
    else:
        config = BertConfig(vocab_size=1, hidden_size=d, num_attention_heads=n, intermediate_size=4 * d)
        blocks = [BertLayer(config, layer_idx=i) for i in range(args.layers)]
    config._attn_implementation = "sdpa"
    stack = nn.ModuleList(blocks).to(args.device)
    norm, dropout = nn.LayerNorm(d).to(args.device), nn.Dropout(0.1)

    def run(x: Tensor) -> Tensor:
        x = dropout(x if tower == "gpt" else norm(x))
        for block in stack:
            x = block(x)
        return norm(x) if tower == "gpt" else x

    return run, [*stack.parameters(), *norm.parameters()]


def precision(args: argparse.Namespace) -> torch.autocast:
    return torch.autocast(args.device, torch.bfloat16, enabled=args.precision == "bf16")


def timed(args: argparse.Namespace, work: Callable[[], Any]) -> Seconds:
    device = torch.device(args.device)
    start = now(device)
    work()
    return now(device).since(start)


def compared(
    args: argparse.Namespace, name: str, goal: float, parts: list[Callable[[], Any]], ours: Callable[[], Any]
) -> list[list[str]]:
    """A row of the table; every way is run once before."""
    for work in (*parts, ours):
        work()
    sums, whole = [], []
    for _ in range(args.reps):
        times = [timed(args, part) for part in parts]
        sums.append(Seconds(sum(t.wall for t in times), sum(t.cpu for t in times)))
        whole.append(timed(args, ours))
    wall = [w.wall / s.wall for w, s in zip(whole, sums, strict=True)]
    cpu = [w.cpu / s.cpu for w, s in zip(whole, sums, strict=True)]
    seconds = [spread([s.wall for s in values]) + " s" for values in (sums, whole)]
    return [[name, *seconds, spread(wall), spread(cpu), f"{goal}"]]


def step(args: argparse.Namespace, tower: str) -> list[list[str]]:
    model = model_of(args, tower).train()
    ids = torch.randint(args.types, (args.rows, args.length), device=args.device)
    batch = {"input_ids": ids, "labels": ids}
    if tower == "bert":  # a seventh of the tokens is predicted
        masked = max(1, round(0.15 * args.length))
        batch["masked_positions"] = torch.rand(ids.shape, device=args.device).argsort(1)[:, :masked]

    def ours() -> None:
        with precision(args):
            loss = model.loss(batch)
        loss.backward()
        model.zero_grad(set_to_none=True)

    d, positions = args.hidden_size, batch.get("masked_positions", ids).numel()
    x = torch.randn(args.rows, args.length, d, device=args.device, requires_grad=True)
    gradient = torch.randn_like(x)
    weights = dict(alone(args, tower) for _ in range(2))
    encoders = list(weights)

    def encode(encoder: Callable[[Tensor], Tensor]) -> None:
        with precision(args):
            y = encoder(x)
        torch.autograd.grad(y, [x, *weights[encoder]], gradient.to(y.dtype))

    hidden = torch.randn(positions, 2 * d, device=args.device, requires_grad=True)
    head = nn.Sequential(nn.LayerNorm(2 * d), nn.Linear(2 * d, 2 * d), nn.GELU(), nn.LayerNorm(2 * d))
    head.append(nn.Linear(2 * d, args.types))
    head.to(args.device)
    labels = torch.randint(args.types, (positions,), device=args.device)

    def predict() -> None:
        with precision(args):
            loss = F.cross_entropy(head(hidden).float(), labels)
        torch.autograd.grad(loss, [hidden, *head.parameters()])

    parts: list[Callable[[], Any]] = [lambda e=e: encode(e) for e in encoders]  # type: ignore[misc]
    name = f"step: {tower}, {args.rows} × {args.length} tokens, d {d}, {args.types} types, {args.precision}"
    return compared(args, name, GOALS["step"], [*parts, predict], ours)


def heads(args: argparse.Namespace, tower: str) -> list[list[str]]:
    model = model_of(args, tower).eval().requires_grad_(False)
    n = args.updates
    ids = torch.randint(args.types, (n, args.rows, args.length), device=args.device)

    def batches() -> Iterator[Encoded]:
        for some in ids:
            encodings = activations_at(model, {"input_ids": some}, TOWERS)  # as the observer does it
            yield Encoded({name: x.flatten(0, 1) for name, x in encodings.items()}, some.flatten())

    def ours() -> None:
        train_tower_heads(batches(), args.types, HeadTraining(updates=n))

    @torch.no_grad()
    def frozen() -> None:
        for some in ids:
            model.encode(some)

    encoding = next(batches()).encodings["tower1"]
    plain = [TowerHead(args.hidden_size, args.types, 0.02, 0).to(args.device) for _ in range(2)]

    def one(head: TowerHead) -> None:
        for some in ids:
            logits = F.linear(head(encoding), head.weight, head.bias)
            torch.autograd.grad(F.cross_entropy(logits, some.flatten()), list(head.parameters()))

    parts: list[Callable[[], Any]] = [frozen, *(lambda h=h: one(h) for h in plain)]  # type: ignore[misc]
    name = f"heads: {tower}, {n} × {args.rows} × {args.length} tokens, d {args.hidden_size}, {args.types} types, fp32"
    return compared(args, name, GOALS["heads"], parts, ours)


if __name__ == "__main__":
    main()
