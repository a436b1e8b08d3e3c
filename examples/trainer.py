"""Attach observers to transformers' `Trainer` with one added argument."""

import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import (
    ByT5Tokenizer,
    DataCollatorForLanguageModeling,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

# [readme]
from lmdyn.callbacks import AttentionPatterns, LearningCurves, Steps
from lmdyn.integrations.transformers import WatchCallback

# [end]


def main(folder: str = "runs/trainer", max_steps: int = 200, text: str | None = None) -> None:
    """Train on the README of lmdyn."""
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8") if text is None else text
    torch.manual_seed(1)
    lines = [line for line in text.splitlines() if len(line.split()) > 2]
    tokenizer = ByT5Tokenizer()  # of bytes; use `AutoTokenizer.from_pretrained(...)` for your model
    rows = [dict(tokenizer(line, truncation=True, max_length=64)) for line in lines]
    held_out = max(1, len(rows) // 10)
    train, evaluation = Dataset.from_list(rows[held_out:]), Dataset.from_list(rows[:held_out])
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes))
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    arguments = TrainingArguments(
        folder, max_steps=max_steps, learning_rate=3e-3, report_to="none", use_cpu=True
    )
    # [readme]
    watch = WatchCallback([LearningCurves(), AttentionPatterns()], schedule=Steps(per_decade=4))
    trainer = Trainer(model, arguments, collate, train, evaluation, tokenizer, callbacks=[watch])
    trainer.train()
    # [end]
    print(f"python -m lmdyn.cli report {folder}/lmdyn")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:2])
