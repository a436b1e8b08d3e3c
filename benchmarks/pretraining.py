"""How fast does lmdyn pretrain a masked language model, against transformers' Trainer?

Question: tokens per second of ``MaskedLanguageModel`` on ``PretrainingCorpus`` under Lightning's Trainer, over those of
``AlbertForMaskedLM`` (or BERT's) under ``transformers.Trainer`` with its ``DataCollatorForLanguageModeling``: the same
sizes, text, length, batch, optimizer, precision and machine, in one run. Goal: at least 1.

Run: ``python benchmarks/pretraining.py`` (some 5 minutes on 2 cores; ``--smoke`` for seconds)

- Trainer: rows of the text, cut to the same length beforehand, as a list of tensors; 15 % of the tokens masked by the
  collator; all positions are projected onto the vocabulary.
- lmdyn: rows, pairs none, and whole-word masks are made from the memory-mapped text in each step; only masked positions
  are projected.

Both leave out evaluation, checkpoints, progress bars and logging. The two alternate; the first updates are not timed.
On a GPU, also the share of the measured matrix-product peak that the model's own products reach, 6 × parameters of the
layers + 12 × layers × width × length for each token (Chowdhery et al. 2022, appendix B).
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import lightning as L
import torch
from common import Seconds, ZipfCorpus, machine, now, quiet, spread, table
from torch.utils.data import Dataset
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from lmdyn.datamodules import PretrainingCorpus
from lmdyn.models import MaskedLanguageModel

GOAL = 1.0
SIZES = {
    "mini": {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 12, "num_attention_heads": 2},
    "base": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    },
    "tiny": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=["albert", "bert"], default="albert")
    parser.add_argument("--size", choices=sorted(SIZES), default="mini")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--types", type=int, default=30_000)
    parser.add_argument("--updates", type=int, default=15, help="timed, after 3 that are not")
    parser.add_argument("--precision", choices=["bf16", "float32"], default="bf16")
    parser.add_argument("--compile", action="store_true", help="both")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, whose numbers mean nothing")
    args = parser.parse_args()
    if args.smoke:
        args.threads = 1
        args.size, args.length, args.batch, args.types, args.updates, args.reps = "tiny", 16, 2, 200, 2, 1
    torch.set_num_threads(args.threads)
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        run(args, Path(folder))


def config_of(args: argparse.Namespace) -> dict[str, Any]:
    extra = {"embedding_size": 128, "hidden_act": "gelu_pytorch_tanh"} if args.family == "albert" else {}
    return {**SIZES[args.size], **extra, "max_position_embeddings": max(512, args.length)}


def run(args: argparse.Namespace, folder: Path) -> None:
    rows = args.batch * (args.updates + 3) + 1
    corpus = ZipfCorpus(rows * args.length, args.length * 4, types=args.types, cache_dir=str(folder))
    corpus.tokenizer.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"})
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(machine())
    theirs, ours = [], []
    tokens = args.batch * args.length * args.updates
    for _ in range(args.reps):
        theirs.append(transformers_trainer(args, corpus, folder, device))
        ours.append(lmdyn_trainer(args, corpus, folder, device))
    ratios = [t.wall / o.wall for t, o in zip(theirs, ours, strict=True)]
    print(
        f"{args.family}-{args.size}, {args.batch} × {args.length} tokens, {len(corpus.tokenizer)} types, "
        f"{args.precision}, {args.threads} threads, {device}\n"
    )
    lines = [
        [
            name,
            spread([tokens / s.wall for s in seconds], "{:,.0f}"),
            spread([tokens / s.cpu for s in seconds], "{:,.0f}"),
        ]
        for name, seconds in (("transformers' Trainer", theirs), ("lmdyn", ours))
    ]
    print(table(["", "tokens a second", "tokens a second of CPU"], lines))
    print(f"\nlmdyn over Trainer: {spread(ratios, '{:.2f}')}; goal at least {GOAL:g}")
    if device.type == "cuda":
        peak = matrix_peak(device)
        width, layers = SIZES[args.size]["hidden_size"], SIZES[args.size]["num_hidden_layers"]
        weights = layers * (4 * width**2 + 2 * width * SIZES[args.size]["intermediate_size"])
        products = 6 * weights + 12 * layers * width * args.length
        shares = [products * tokens / s.wall / peak for s in ours]
        print(
            f"matrix products: {spread(shares, '{:.0%}')} of the measured {peak / 1e12:.0f} Tflop/s; goal 45%"
        )


class Updates(TrainerCallback):
    """Notes the time after the updates that are not timed, and at the end."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.start, self.end = device, Seconds(0.0, 0.0), Seconds(0.0, 0.0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            self.start = now(self.device)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.end = now(self.device)


class Rows(Dataset[dict[str, torch.Tensor]]):
    """The text in rows of equal length, with special tokens at their ends."""

    def __init__(self, tokens: Any, tokenizer: PreTrainedTokenizerFast, length: int) -> None:
        text = torch.from_numpy(tokens[: len(tokens) // (length - 2) * (length - 2)].astype("int64"))
        body = text.view(-1, length - 2)
        first = torch.full((len(body), 1), int(tokenizer.cls_token_id))
        last = torch.full((len(body), 1), int(tokenizer.sep_token_id))
        self.rows = torch.cat([first, body, last], 1)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[i]}


def transformers_trainer(
    args: argparse.Namespace, corpus: ZipfCorpus, folder: Path, device: torch.device
) -> Seconds:
    corpus.prepare_data()
    tokenizer = corpus.tokenizer
    configs = {"albert": (AlbertConfig, AlbertForMaskedLM), "bert": (BertConfig, BertForMaskedLM)}
    config, model = configs[args.family]
    torch.manual_seed(0)
    settings = TrainingArguments(
        output_dir=str(folder / "trainer"), per_device_train_batch_size=args.batch, max_steps=args.updates + 3,
        bf16=args.precision == "bf16", use_cpu=device.type == "cpu", learning_rate=1e-4, weight_decay=0.01,
        optim="adamw_torch", report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        torch_compile=args.compile,
    )  # fmt: skip
    clock = Updates(device)
    trainer = Trainer(
        model=model(config(vocab_size=len(tokenizer), **config_of(args))),
        args=settings,
        train_dataset=Rows(corpus.encoded("train").tokens, tokenizer, args.length),
        data_collator=DataCollatorForLanguageModeling(tokenizer),
        callbacks=[clock],
    )
    trainer.train()
    return clock.end.since(clock.start)


class Steps(L.Callback):
    """As :class:`Updates`."""

    def __init__(self) -> None:
        self.start = self.end = Seconds(0.0, 0.0)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        if trainer.global_step == 3:
            self.start = now(pl_module.device)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.end = now(pl_module.device)


def lmdyn_trainer(
    args: argparse.Namespace, corpus: ZipfCorpus, folder: Path, device: torch.device
) -> Seconds:
    data = PretrainingCorpus(corpus, sequence_length=args.length, batch_size=args.batch)
    torch.manual_seed(0)
    module = MaskedLanguageModel(args.family, config_of(args), compile=args.compile)
    clock = Steps()
    trainer = L.Trainer(
        accelerator=device.type, devices=1, max_steps=args.updates + 3, limit_val_batches=0, logger=False,
        precision="bf16-mixed" if args.precision == "bf16" else "32-true", enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[clock], default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    return clock.end.since(clock.start)


def matrix_peak(device: torch.device) -> float:
    """Floating point operations per second of large products in bf16, the best of several sizes."""
    best = 0.0
    for size in (4096, 8192, 16384):
        a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
        for _ in range(3):
            a @ a
        start = now(device)
        for _ in range(10):
            a @ a
        best = max(best, 20 * size**3 / now(device).since(start).wall)
    return best


if __name__ == "__main__":
    main()
