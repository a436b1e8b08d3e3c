"""
Attach to a Hugging Face model built from a config
==================================================

You can attach observers to any ``LightningModule``. The module of this script wraps a small Llama of transformers with
random weights. The batches come from transformers' own collator, which uses the input as labels. The observers find the
blocks of the model. The observers also measure which logits each label belongs to.
"""

import lightning as L
import matplotlib.pyplot as plt
import shared_runs
import torch
from torch.utils.data import DataLoader
from transformers import DataCollatorForLanguageModeling, LlamaConfig, LlamaForCausalLM

from lmdyn.callbacks import LearningCurves, Similarity, Steps


class CausalLM(L.LightningModule):
    """A module with the methods that Lightning requires: a training step and an optimizer."""

    def __init__(self, model, tokenizer):
        super().__init__()
        self.model, self.tokenizer = model, tokenizer

    def training_step(self, batch, batch_idx):
        """Return the model's own loss; the model shifts the labels."""
        return self.model(**batch).loss

    def validation_step(self, batch, batch_idx):
        """Log the model's own loss as ``val_loss``."""
        self.log("val_loss", self.model(**batch).loss)

    def configure_optimizers(self):
        """Return an optimizer of your choice."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


data = shared_runs.pieces().corpus  # your text and tokenizer: here, sentences of the embedded corpus
data.prepare_data()
data.setup("fit")
tokenizer = data.tokenizer
lines = [" ".join(s.words) for document in data.documents("train") for s in document][:5000]
rows = [tokenizer(line, truncation=True, max_length=32, return_token_type_ids=False) for line in lines]

L.seed_everything(1)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
module = CausalLM(LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)), tokenizer)
collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
train = DataLoader(rows[300:], batch_size=16, shuffle=True, collate_fn=collate)
validation = DataLoader(rows[:300], batch_size=50, collate_fn=collate)
observers = [Observer(schedule=Steps(per_decade=4)) for Observer in (LearningCurves, Similarity)]
folder = shared_runs.folder("hugging_face")
trainer = L.Trainer(
    max_steps=200,
    callbacks=observers,
    default_root_dir=folder,
    enable_checkpointing=False,
    **shared_runs.QUIET,
)
trainer.fit(module, train, validation)
curves, similarity = (observer.store.read() for observer in observers)

loss = curves[curves["quantity"].eq("loss") & curves["by"].eq("")].set_index("step")["value"]
pairs = similarity[similarity["quantity"].eq("svcca")].pivot(
    index="step", columns=["site", "reference_site"], values="value"
)

figure, (left, right) = plt.subplots(1, 2, figsize=(7.8, 3.4), layout="constrained")
left.plot(loss.index, loss, "o-", ms=4)
left.set(
    xlabel="optimizer updates",
    ylabel="validation loss, nats",
    xscale="symlog",
    xlim=(0, None),
    ylim=(0, None),
)
for style, pair in zip(
    ("o-", "s--", "^:"),
    [("embedding", "block_00"), ("block_00", "block_01"), ("embedding", "block_01")],
    strict=True,
):
    right.plot(pairs.index, pairs[pair], style, ms=4, label=" and ".join(pair))
right.set(xlabel="optimizer updates", ylabel="SVCCA", xscale="symlog", xlim=(0, None), ylim=(0, 1.02))
right.legend(frameon=False, fontsize=8)

# %%
# The settings of the observations name the meaning of the labels and the sites of the model. The labels are the tokens
# themselves, so each label belongs to the previous logits (``next``). As the loss decreases, the similarity of the
# blocks and the word vectors decreases.
print("labels:", observers[0].settings["labels"])
print("sites:", observers[1].settings["sites"])
assert observers[0].settings["labels"] == "next"
assert [*observers[1].settings["sites"]] == ["embedding", "block_00", "block_01", "norm"]
assert loss.iloc[-1] < loss.iloc[0] / 2
assert pairs["embedding", "block_01"].iloc[-1] < pairs["embedding", "block_01"].iloc[0] - 0.05
