"""Observers in transformers' Trainer and TRL's SFTTrainer."""

import warnings

import pandas as pd
import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import lmdyn
from lmdyn.callbacks import AttentionPatterns, Geometry, LearningCurves, Steps
from lmdyn.integrations.transformers import WatchCallback
from lmdyn.runs.observed_run import RunFolder
from tests.helpers.ranks import TORCHRUN, run_ranks

TYPES, SCHEDULE = 23, Steps(per_decade=3)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\.|accelerate\.|transformers\.")
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"trl\.|transformers\.|<string>")
        yield


def model():
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=TYPES, n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0
        )
    )


def words():
    """A tokenizer of white space."""
    known = {
        word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", "<mask>", *(f"w{i}" for i in range(30))])
    }
    whole = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    whole.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = {f"{name}_token": f"<{name}>" for name in ("pad", "eos", "unk", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=whole, **named)


def rows(number, seed):
    drawn = torch.randint(1, TYPES, (number, 12), generator=torch.Generator().manual_seed(seed)).tolist()
    return Dataset.from_list([{"input_ids": ids, "labels": ids, "source": "text"} for ids in drawn])


def arguments(folder, **changed):
    return TrainingArguments(
        str(folder), max_steps=10, per_device_train_batch_size=4, per_device_eval_batch_size=4, use_cpu=True,
        report_to="none", disable_tqdm=True, save_strategy="steps", save_steps=4, seed=5, logging_steps=100, **changed,
    )  # fmt: skip


def kinds():
    quiet = {"log_figures": False}
    return [LearningCurves(**quiet), Geometry(max_samples=40, **quiet), AttentionPatterns(**quiet)]


def train(folder, *callbacks, resume=None, **changed):
    trainer = Trainer(
        model(),
        arguments(folder, **changed),
        train_dataset=rows(48, 1),
        eval_dataset=rows(8, 2),
        callbacks=[*callbacks],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer.model


class Weights(TrainerCallback):
    def __init__(self):
        self.after = {}

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.after[state.global_step] = {k: v.clone() for k, v in model.state_dict().items()}


def test_numbers_are_those_of_the_weights_and_the_training_is_unchanged(tmp_path):
    weights = Weights()
    watched = train(tmp_path / "watched", WatchCallback(kinds(), schedule=SCHEDULE), weights)
    plain = train(tmp_path / "plain")
    for ours, theirs in zip(watched.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    run = RunFolder(tmp_path / "watched" / "lmdyn")
    assert run.seeds.init == 5
    assert list((tmp_path / "watched" / "lmdyn").glob("events*"))

    other, batches = model(), [rows(8, 2).with_format("torch")[i : i + 4] for i in (0, 4)]
    probe = [{k: b[k] for k in ("input_ids", "labels")} for b in batches]
    with lmdyn.watch(
        other, kinds(), probe=probe, folder=tmp_path / "loop", schedule=SCHEDULE, logger=None
    ) as watcher:
        for step in range(1, 11):
            other.load_state_dict(weights.after[step])
            watcher.step(step)
    for name in run.observers():
        found, expected = run.read(name), RunFolder(tmp_path / "loop").read(name)
        found, expected = (
            t[t["quantity"] != "learning_rate"].reset_index(drop=True) for t in (found, expected)
        )
        assert set(found["step"]) == {0, 1, 2, 5, 10}
        pd.testing.assert_frame_equal(found, expected, check_like=True)
    rates = run.read("learning_curves", quantities=["learning_rate"])
    assert rates["value"].is_monotonic_decreasing


@pytest.mark.slow
def test_a_resumed_training_goes_on_and_a_new_one_is_refused(tmp_path):
    train(tmp_path, WatchCallback(kinds(), schedule=SCHEDULE))
    before = RunFolder(tmp_path / "lmdyn").read("learning_curves")
    with pytest.raises(ValueError, match="later than step 0"):
        train(tmp_path, WatchCallback(kinds(), schedule=SCHEDULE))
    train(tmp_path, WatchCallback(kinds(), schedule=SCHEDULE), resume=str(tmp_path / "checkpoint-4"))
    pd.testing.assert_frame_equal(RunFolder(tmp_path / "lmdyn").read("learning_curves"), before)
    assert len(list((tmp_path / "lmdyn" / "later_steps").glob("*/observations/geometry/*"))) == 2


@pytest.mark.parametrize(
    "schedule", [pytest.param(Steps(), marks=pytest.mark.slow), Steps(epochs=True, last=False)]
)
def test_the_last_step_is_that_of_the_training_not_the_best_checkpoint(tmp_path, schedule):
    weights, callback = Weights(), WatchCallback(kinds()[:1], schedule=schedule)
    settings = arguments(tmp_path, load_best_model_at_end=True, eval_strategy="steps", eval_steps=4)
    data = {"train_dataset": rows(48, 1), "eval_dataset": rows(8, 2)}
    trainer = Trainer(model(), settings, callbacks=[callback, weights], **data)
    trainer.train()
    assert not torch.equal(trainer.model.lm_head.weight, weights.after[10]["lm_head.weight"])  # the control
    table = RunFolder(tmp_path / "lmdyn").read("learning_curves", quantities=["loss"])
    assert set(table["step"]) == {0, 10}
    other = model().eval()
    other.load_state_dict(weights.after[10])
    with torch.no_grad():
        ids = torch.tensor(rows(8, 2)["input_ids"][:])
        expected = float(other(input_ids=ids, labels=ids).loss)
    assert float(table[table["step"] == 10]["value"].iloc[0]) == pytest.approx(expected, rel=1e-5)


class Skipping(torch.optim.SGD):
    """Leaves out the third update, as a gradient scaler after an overflow."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        return None if self.calls == 3 else super().step(closure)


def test_words_are_those_of_the_epochs_read(tmp_path):
    callback = WatchCallback(kinds()[:1], schedule=Steps(words=(100, 500, 900), last=False), words=1000)
    train(tmp_path, callback)  # 12 updates an epoch
    found = RunFolder(tmp_path / "lmdyn").read("learning_curves", quantities=["loss"])
    assert found.groupby("step")["words_seen"].first().dropna().to_dict() == {2: 167, 6: 500}


def test_a_skipped_update_counts_as_in_the_trainer(tmp_path):
    small, callback = model(), WatchCallback(kinds()[:1], schedule=Steps(every=1))
    Trainer(
        small, arguments(tmp_path), train_dataset=rows(48, 1), eval_dataset=rows(8, 2), callbacks=[callback],
        optimizers=(Skipping(small.parameters(), lr=0.1), None),
    ).train()  # fmt: skip
    losses = RunFolder(tmp_path / "lmdyn").read("learning_curves", quantities=["loss"])
    at = losses.groupby("step")["value"].first()
    assert list(at.index) == [*range(11)]
    assert [step for step in range(1, 11) if at[step] == at[step - 1]] == [3]


class SkipsLogits(GPT2LMHeadModel):
    """As Liger's kernels and older versions of TRL: no logits in training, nor beside labels."""

    def forward(self, input_ids, labels=None, **kwargs):
        output = super().forward(input_ids, labels=labels, **kwargs)
        if self.training or labels is not None:
            output.logits = None
        return output


def mixture():
    """Its loss has an auxiliary part, for the balance of its experts."""
    torch.manual_seed(0)
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=TYPES, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, num_local_experts=4, output_router_logits=True, router_aux_loss_coef=0.5,
        )
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["skips_logits", pytest.param("mixture", marks=pytest.mark.slow)])
def test_the_loss_is_the_cross_entropy_of_the_logits(tmp_path, kind):
    trained = mixture() if kind == "mixture" else SkipsLogits(model().config)
    callback = WatchCallback(kinds()[:1], schedule=Steps(every=5))
    settings = arguments(tmp_path)
    Trainer(
        trained, settings, train_dataset=rows(48, 1), eval_dataset=rows(8, 2), callbacks=[callback]
    ).train()
    found = RunFolder(tmp_path / "lmdyn").read("learning_curves", quantities=["loss"])
    ids = torch.tensor(rows(8, 2)["input_ids"][:])
    with torch.no_grad():
        logits = trained.eval()(input_ids=ids).logits[:, :-1]
    expected = float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))
    assert float(found[found["step"] == 10]["value"].iloc[0]) == pytest.approx(expected, rel=1e-5)
    if kind == "mixture":
        assert float(trained(input_ids=ids, labels=ids).loss.detach()) > expected + 0.1  # the control


def test_masked_models_are_read_by_the_trainer_s_own_collator(tmp_path):
    tokenizer = words()
    torch.manual_seed(0)
    bert = BertForMaskedLM(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
        )
    )
    texts = [" ".join(f"w{(3 * i + j) % 30}" for j in range(5 + i % 4)) for i in range(24)]
    data = Dataset.from_list([dict(tokenizer(text)) for text in texts])
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5)
    callback = WatchCallback([LearningCurves(log_figures=False)], schedule=Steps(every=5))
    Trainer(
        bert, arguments(tmp_path), train_dataset=data, eval_dataset=data, data_collator=collate,
        processing_class=tokenizer, callbacks=[callback],
    ).train()  # fmt: skip
    table = RunFolder(tmp_path / "lmdyn").read("learning_curves", quantities=["loss"])
    assert set(table["step"]) == {0, 5, 10}
    assert (tmp_path / "lmdyn" / "tokenizer" / "tokenizer.json").is_file()


def test_what_is_missing_is_said(tmp_path):
    trainer = Trainer(
        model(), arguments(tmp_path), train_dataset=rows(8, 1), callbacks=[WatchCallback([LearningCurves()])]
    )
    with pytest.raises(ValueError, match="the Trainer has no eval_dataset: pass `probe`"):
        trainer.train()
    data = {"a": rows(4, 1), "b": rows(4, 2)}
    trainer = Trainer(
        model(), arguments(tmp_path), train_dataset=rows(8, 1), eval_dataset=data,
        callbacks=[WatchCallback([LearningCurves()])],
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"has several eval_datasets \(a, b\): pass `probe`"):
        trainer.train()


@pytest.mark.slow
def test_sft_trainer_with_packed_rows(tmp_path):
    """``bfd`` makes one row of several documents, without a mask: none attends to, or is predicted from, another."""
    trl = pytest.importorskip("trl")
    tokenizer = words()
    texts = [" ".join(f"w{(5 * i + j) % 30}" for j in range(4 + i % 5)) for i in range(40)]
    settings = trl.SFTConfig(
        str(tmp_path), max_steps=4, per_device_train_batch_size=2, per_device_eval_batch_size=2, use_cpu=True,
        report_to="none", disable_tqdm=True, save_strategy="no", packing=True, eval_packing=True, max_length=16,
        bf16=False, packing_strategy="bfd",
    )  # fmt: skip
    torch.manual_seed(0)
    gpt = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1)
    )
    data = Dataset.from_list([{"text": text} for text in texts])
    callback = WatchCallback(
        [LearningCurves(log_figures=False), AttentionPatterns(log_figures=False)], schedule=Steps(every=2)
    )
    trainer = trl.SFTTrainer(
        gpt, settings, train_dataset=data, eval_dataset=data, processing_class=tokenizer, callbacks=[callback]
    )
    trainer.train()
    run = RunFolder(tmp_path / "lmdyn")
    table = run.read("learning_curves", quantities=["loss"])
    assert set(table["step"]) == {0, 2, 4}
    entropies = run.read("attention_patterns", quantities=["entropy"])["value"]
    # documents have five to nine tokens with their end: nowhere are more than nine keys seen
    assert entropies.max() < torch.tensor(9.0).log()
    gpt.eval()
    losses = []
    for text in texts:
        ids = torch.tensor([[*tokenizer(text)["input_ids"], tokenizer.eos_token_id]])
        with torch.no_grad():
            logits = gpt(input_ids=ids).logits
        losses.append(torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none"))
    expected = float(torch.cat(losses).mean())
    assert float(table[table["step"] == 4]["value"].iloc[0]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_two_ranks_give_the_numbers_of_one(tmp_path):
    run_ranks(__file__, tmp_path, tmp_path / "cache", timeout=240, **TORCHRUN)
    found = RunFolder(tmp_path / "two" / "lmdyn").read("learning_curves", quantities=["loss"])
    train(tmp_path / "one", WatchCallback(kinds()[:1], schedule=SCHEDULE), max_grad_norm=1.0)
    start = RunFolder(tmp_path / "one" / "lmdyn").read("learning_curves", quantities=["loss"])
    assert set(found["step"]) == {0, 1, 2, 5, 10}
    at = {name: float(t[t["step"] == 0]["value"].iloc[0]) for name, t in (("two", found), ("one", start))}
    assert at["two"] == pytest.approx(at["one"], rel=1e-6)


def rank_main(folder):
    train(folder / "two", WatchCallback(kinds()[:1], schedule=SCHEDULE))
