"""Attach observers to a causal model of transformers that trains on batches of transformers' own collator."""

import sys
from pathlib import Path

import lightning as L
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorForLanguageModeling,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

# [readme]
from lmdyn.callbacks import AttentionPatterns, LearningCurves, Similarity, Sparsity, Steps

# [end]


class CausalLM(L.LightningModule):
    """The two methods that Lightning requires. The attribute `tokenizer` gives observers the names of words."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return the model's own loss; the model shifts the labels inside."""
        return self.model(**batch).loss

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        """Log the same loss of the validation text as `val_loss`."""
        self.log("val_loss", self.model(**batch).loss)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return your optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def words(lines: list[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer that splits on white space; use `AutoTokenizer.from_pretrained(...)` for your model."""
    known = sorted({word for line in lines for word in line.split()})
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<unk>", *known])}
    whole = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # type: ignore[arg-type]
    whole.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=whole, pad_token="<pad>", unk_token="<unk>")


def main(folder: str = "runs/hugging_face", max_steps: int = 200, text: str | None = None) -> None:
    """Train on the README of lmdyn."""
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8") if text is None else text
    L.seed_everything(1)
    lines = [line for line in text.splitlines() if len(line.split()) > 2]
    tokenizer = words(lines)
    rows = [tokenizer(line, truncation=True, max_length=64, return_token_type_ids=False) for line in lines]
    held_out = max(1, len(rows) // 10)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    module = CausalLM(LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)), tokenizer)
    # [readme]
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)  # labels = input_ids
    train = DataLoader(rows[held_out:], batch_size=8, shuffle=True, collate_fn=collate)
    validation = DataLoader(rows[:held_out], batch_size=8, collate_fn=collate)
    kinds = (LearningCurves, Sparsity, Similarity, AttentionPatterns)
    schedule = Steps(per_decade=4)  # optimizer updates: 0, 1, 2, 3, 6, 10, 18, …
    observers = [Observer(schedule=schedule) for Observer in kinds]
    trainer = L.Trainer(max_steps=max_steps, default_root_dir=folder, callbacks=observers)
    trainer.fit(module, train, validation)
    # [end]
    print(f"python -m lmdyn.cli report {trainer.log_dir}")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:2])
