"""Downstream: fine-tuning against transformers' own models, tasks with a known answer, and that nothing is touched."""

import copy
import hashlib
from dataclasses import replace

import lightning as L
import numpy as np
import pytest
import torch
import transformers
from transformers import BertConfig, BertForPreTraining, BertForQuestionAnswering

from lmdyn.analysis.probing.warmup_decay import warmup_decay_factor
from lmdyn.callbacks.observing.run import Run
from lmdyn.callbacks.probing.downstream import Downstream
from lmdyn.callbacks.training.fine_tuning import (
    PUBLISHED,
    Budget,
    Classifier,
    FineTuning,
    fine_tune,
    predict,
    settings_of,
)
from lmdyn.datamodules.corpora.tokenization import subword_tokenizer
from lmdyn.datamodules.tasks.tasks import Question, RawTask, TaskData, TextExample
from tests.helpers.recorded import check_elsewhere
from tests.helpers.refusals import assert_refused

WORDS = "good bad red blue cat dog sat ran here there who what it . ?".split()  # noqa: SIM905
TOKENIZER = subword_tokenizer("wordpiece", dict.fromkeys(WORDS, 20), vocab_size=100)
SIZES = {
    "vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 40,
}  # fmt: skip
FAST = FineTuning(5e-3, 16, 60, 6)
QUICK = {"all": {"learning_rate": 5e-3, "batch_size": 16, "updates": 60, "warmup": 6}}


def sentences(n, seed, shuffled=False):
    """A sentence is good or bad; with shuffled labels, nothing can be told."""
    random = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    found = []
    for label in labels:
        words = random.choice(WORDS[2:], 4 + random.integers(4)).tolist()
        words[random.integers(len(words))] = WORDS[label]
        found.append(" ".join(words))
    if shuffled:
        labels = random.permutation(labels)
    return [TextExample(text, None, float(y)) for text, y in zip(found, labels, strict=True)]


def amounts(n, seed):
    """How often a sentence says good."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        k = int(random.integers(6))
        words = random.permutation(["good"] * k + random.choice(WORDS[2:], 5 - k).tolist())
        found.append(TextExample(" ".join(words), "it .", float(k)))
    return found


def questions(n, seed):
    """The answer is the animal, if there is one."""
    random = np.random.default_rng(seed)
    found = []
    for i in range(n):
        words = random.choice(["red", "blue", "sat", "here", "there"], 6).tolist()
        answer = ()
        if i % 2:
            at, animal = int(random.integers(6)), WORDS[4 + random.integers(2)]
            words[at] = animal
            answer = ((animal, len(" ".join([*words[:at], ""]))),)
        found.append(Question(str(i), "who sat ?", " ".join(words), answer))
    return found


class Toys(TaskData):
    """Small tasks under the names of published ones."""

    def __init__(self, names=("CoLA", "STS-B", "SQuAD2.0"), seed=0):
        super().__init__(max_sequence_length=40)
        self.names, self.seed, self.tokenizer = names, seed, TOKENIZER

    def read(self):
        a, b = self.seed, self.seed + 100
        for name in self.names:
            if name == "STS-B":
                yield RawTask(name, "regression", amounts(200, a), {"": amounts(60, b)})
            elif name == "SQuAD2.0":
                yield RawTask(name, "span", questions(200, a), {"": questions(60, b)})
            elif name == "MNLI":
                sets = {"matched": sentences(60, b), "mismatched": sentences(40, b + 1)}
                yield RawTask(name, "classification", sentences(200, a), sets, ("0", "1"))
            else:
                train, evaluation = (
                    sentences(n, of, shuffled=name == "WNLI") for n, of in ((200, a), (60, b))
                )
                yield RawTask(name, "classification", train, {"": evaluation}, ("0", "1"))


class Model(L.LightningModule):
    def __init__(self, cls=BertForPreTraining, config=BertConfig, **changes):
        super().__init__()
        torch.manual_seed(0)
        self.lm = cls(config(**{**SIZES, **changes}))

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        return self.lm(input_ids, attention_mask, token_type_ids)


def attach(folder, names=("CoLA", "STS-B", "SQuAD2.0"), *, toys=None, **settings):
    observer = Downstream(probe=toys or Toys(names), **{"fine_tuning": QUICK, **settings})
    observer.attach(Run(folder, tokenizer=TOKENIZER))
    return observer


def value(table, quantity, task):
    rows = table[table["quantity"].eq(quantity) & table["task"].eq(task)]
    assert len(rows) == 1, table
    return float(rows["value"].iloc[0])


def tasks_of(*names):
    toys = Toys(names)
    toys.setup()
    return list(toys.tasks.values())


# ------------------------------------------------------------------------------------------ the settings


def test_table_7():
    """Learning rate, batch size, training and warmup steps as printed; dropout 0 and 0.1, length 512 throughout."""
    printed = """CoLA 1e-5 16 5336 320 | STS-B 2e-5 16 3598 214 | SST-2 1e-5 32 20935 1256 | MNLI 3e-5 128 10000 1000
        | QNLI 1e-5 32 33112 1986 | QQP 5e-5 128 14000 1000 | RTE 3e-5 32 800 200 | MRPC 2e-5 32 800 200
        | SQuAD2.0 3e-5 48 8144 814"""
    rows = [row.split() for row in printed.split("|")]
    assert [name for name, *_ in rows] == list(PUBLISHED)
    for name, rate, size, updates, warmup in rows:
        how = PUBLISHED[name]
        assert how == FineTuning(float(rate), int(size), int(updates), int(warmup), 0.0, 0.1, 512, 0.0, 1.0)


def test_budgets_shorten_the_warmup_in_proportion():
    rte = PUBLISHED["RTE"]
    assert Budget().of(rte, 2490) == rte
    assert Budget(max_updates=80).of(rte, 2490) == replace(rte, updates=80, warmup=20)
    assert Budget(epochs=3).of(rte, 320) == replace(rte, updates=30, warmup=7)
    assert Budget(epochs=3, max_updates=4).of(rte, 320).updates == 4
    assert Budget(epochs=0.001).of(rte, 320) == replace(rte, updates=1, warmup=0)
    assert Budget(epochs=1000).of(rte, 2490) == rte  # never more than published
    for bad in ({"max_updates": 0}, {"epochs": 0.0}):
        with pytest.raises(ValueError, match=r"^(max_updates|epochs) is 0"):
            Budget(**bad)


def test_settings_by_task():
    changed = {"all": {"batch_size": 4}, "x": {"learning_rate": 1.0}}
    expected = replace(PUBLISHED["STS-B"], batch_size=4, learning_rate=1.0)
    assert settings_of("x", "regression", changed) == expected
    assert settings_of("RTE", "classification", changed) == replace(PUBLISHED["RTE"], batch_size=4)
    for bad in ({"rate": 1}, {"updates": 0}, {"warmup": 999_999}, {"dropout": 1.0}, {"clip_norm": 0.0}):
        with pytest.raises(ValueError, match="expected"):
            settings_of("x", "span", {"all": bad})
    with pytest.raises(ValueError, match="RTE: unknown setting 'learning_rat', did you mean 'learning_rate'"):
        settings_of("RTE", "classification", {"RTE": {"learning_rat": 1.0}})


def test_the_rate_is_transformers_linear_schedule():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 6, 60)
    for step in range(61):
        factor = warmup_decay_factor(step / 60, 6 / 60)
        assert factor == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()


# ------------------------------------------------------------------------------------------- the model


@pytest.mark.parametrize("family", ["Bert", "Albert", "Electra"])
def test_classifiers_are_transformers_own(family):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES, num_labels=3)
    reference = getattr(transformers, f"{family}ForSequenceClassification")(config).eval()
    model = Classifier(copy.deepcopy(reference.base_model), 3, False, FAST).eval()
    head = reference.classifier
    model.out.load_state_dict(getattr(head, "out_proj", head).state_dict())
    if family == "Electra":
        model.dense.load_state_dict(head.dense.state_dict())
    batch = {
        "input_ids": torch.randint(5, 90, (3, 9)), "attention_mask": torch.ones(3, 9, dtype=torch.long),
        "token_type_ids": torch.randint(0, 2, (3, 9)),
    }  # fmt: skip
    batch["attention_mask"][1, 6:] = 0
    torch.testing.assert_close(model(batch), reference(**batch).logits)
    assert (model.dense is None) == (family != "Electra")


def test_spans_are_transformers_own():
    torch.manual_seed(0)
    reference = BertForQuestionAnswering(BertConfig(**SIZES)).eval()
    model = Classifier(copy.deepcopy(reference.base_model), 2, True, FAST).eval()
    model.out.load_state_dict(reference.qa_outputs.state_dict())
    ids = torch.randint(5, 90, (3, 9))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    batch["token_type_ids"] = torch.zeros_like(ids)
    start, end = model(batch).unbind(-1)
    torch.testing.assert_close(start, reference(ids).start_logits)
    torch.testing.assert_close(end, reference(ids).end_logits)


def test_dropout_is_the_published():
    encoder = Model().lm.base_model
    assert {m.p for m in encoder.modules() if isinstance(m, torch.nn.Dropout)} == {0.1}
    model = Classifier(encoder, 2, False, FAST).train()
    assert {m.p for m in model.encoder.modules() if isinstance(m, torch.nn.Dropout)} == {0.0}
    ids = torch.randint(5, 90, (3, 9))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    batch["token_type_ids"] = torch.zeros_like(ids)
    hidden = [model.encoder(ids).last_hidden_state for _ in range(2)]
    assert torch.equal(*hidden)
    assert not torch.equal(model(batch), model(batch))  # the classifier's is 0.1


def test_an_update_is_that_of_a_plain_loop():
    """Two updates by hand, without dropout: AdamW, the rates 0.5 and 1 of the highest, gradients clipped to norm 1."""
    (task,) = tasks_of("CoLA")
    how = FineTuning(1e-3, 200, 4, 2, classifier_dropout=0.0)  # a batch has everything
    encoder = Model().lm.base_model
    tuned, _ = fine_tune(encoder, task, replace(how, updates=2, warmup=2), seed=3)
    by_hand = Classifier(copy.deepcopy(encoder), 2, False, how, seed=tuned_seed(3, "CoLA")).train()
    optimizer = torch.optim.AdamW(by_hand.parameters(), lr=1e-3, weight_decay=0.0)
    text = [TOKENIZER.decode(e["input_ids"][1:-1]) for e in task.train]
    batch = TOKENIZER(text, padding=True, return_tensors="pt", return_token_type_ids=True)
    labels = torch.tensor([int(e["label"]) for e in task.train])
    for rate in (0.0, 0.5):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * rate
        loss = torch.nn.functional.cross_entropy(by_hand(batch), labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 1.0)
        optimizer.step()
    before = dict(encoder.named_parameters())
    for name, p in by_hand.encoder.named_parameters():
        torch.testing.assert_close(dict(tuned.encoder.named_parameters())[name], p, atol=2e-5, rtol=0)
    moved = max((p - before[n]).abs().max() for n, p in by_hand.encoder.named_parameters())
    assert moved > 3e-4


def tuned_seed(seed, name):
    return int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=4).digest(), "big")


def test_frozen_and_half_precision_weights_are_trained_in_float32():
    encoder = Model().lm.base_model.to(torch.bfloat16).requires_grad_(False)
    tuned, loss = fine_tune(encoder, tasks_of("CoLA")[0], replace(FAST, updates=3, warmup=1))
    assert {p.dtype for p in tuned.parameters()} == {torch.float32}
    assert loss == loss
    start = encoder.embeddings.word_embeddings.weight.float()
    assert not torch.equal(tuned.encoder.embeddings.word_embeddings.weight, start)


def test_answers_do_not_depend_on_batches():
    for task in tasks_of("CoLA", "STS-B", "SQuAD2.0"):
        model, _ = fine_tune(Model().lm.base_model, task, replace(FAST, updates=10, warmup=1))
        one, some = (predict(model, task, task.evaluation[""], n) for n in (1, 300))
        torch.testing.assert_close(one[0], some[0])
        assert one[1] == some[1]


# ----------------------------------------------------------------------------------------- the observer


@pytest.mark.slow
def test_what_can_be_learnt_is_and_what_cannot_is_not(tmp_path):
    observer = attach(tmp_path, ("CoLA", "STS-B", "SQuAD2.0", "WNLI"), fine_tuning={
        "all": {**QUICK["all"], "updates": 80, "warmup": 8},
    })  # fmt: skip
    table = observer.observe(Model(), 7)
    check_elsewhere(observer, table)
    assert value(table, "score", "CoLA") == value(table, "accuracy", "CoLA") == 1
    assert value(table, "score", "STS-B") == value(table, "spearman", "STS-B") > 0.9
    assert value(table, "score", "SQuAD2.0") > 0.9
    f1, exact = value(table, "f1", "SQuAD2.0"), value(table, "exact_match", "SQuAD2.0")
    assert value(table, "score", "SQuAD2.0") == pytest.approx((f1 + exact) / 2)
    assert value(table, "score", "WNLI") < 0.75  # the control: shuffled labels
    for task, baseline in (("CoLA", 0.5), ("STS-B", 0), ("SQuAD2.0", 0.5), ("WNLI", 0.5)):
        assert value(table, "baseline", task) == pytest.approx(baseline)
    # neither spans nor WNLI are averaged over
    scores = [value(table, "score", task) for task in ("CoLA", "STS-B")]
    assert value(table, "average", "CoLA+STS-B") == pytest.approx(np.mean(scores))
    assert value(table, "average_baseline", "CoLA+STS-B") == pytest.approx(0.25)
    assert list(table.columns) == ["step", "tokens", "quantity", "site", "task", "value"]


@pytest.mark.slow
def test_tasks_that_start_from_another(tmp_path):
    names = ("RTE", "MNLI", "CoLA")
    observer = attach(tmp_path, names, budget=Budget(max_updates=25))
    assert observer.parents == {"RTE": "MNLI"}
    module = Model()
    table = observer.observe(module, 0)
    rte, mnli, _ = tasks_of(*names)
    parent, _ = fine_tune(module.lm.base_model, mnli, observer.fine_tuning_of("MNLI"))
    _, loss = fine_tune(parent.encoder, rte, observer.fine_tuning_of("RTE"))
    assert value(table, "train_loss", "RTE") == pytest.approx(loss)
    alone = attach(tmp_path / "alone", names, budget=Budget(max_updates=25), init_from={}).observe(module, 0)
    assert value(alone, "train_loss", "RTE") != pytest.approx(loss, rel=1e-2)
    for task in ("MNLI", "CoLA"):
        assert value(alone, "train_loss", task) == value(table, "train_loss", task)
    both = [value(table, "accuracy", f"MNLI-{part}") for part in ("matched", "mismatched")]
    assert value(table, "score", "MNLI") == pytest.approx(np.mean(both))


def test_a_missing_parent_is_said(tmp_path, caplog):
    assert attach(tmp_path, ("RTE", "CoLA")).parents == {}
    assert "fine-tuning on RTE starts from the pretrained weights" in caplog.text
    assert_refused(
        lambda names, parents: attach(tmp_path, names, init_from=parents),
        ({"names": ("RTE",), "parents": {"RTE": "MNLI"}}, r"init_from names MNLI"),
        ({"names": ("RTE", "CoLA"), "parents": {"RTE": "CoLA", "CoLA": "RTE"}}, "init_from is cyclic"),
        ({"names": ("RTE", "SQuAD2.0"), "parents": {"RTE": "SQuAD2.0"}}, r"init_from names SQuAD2.0"),
    )


def test_processes_share_the_tasks(tmp_path):
    names = ("RTE", "CoLA", "MNLI", "SST-2", "QNLI")
    observer = attach(tmp_path, names, init_from={"RTE": "MNLI", "SST-2": "RTE"})
    for world_size in (1, 2, 3, 9):
        ranks = observer._ranks(world_size)
        assert sorted(ranks) == sorted(names)
        assert ranks["SST-2"] == ranks["RTE"] == ranks["MNLI"]
        order = list(ranks)
        assert order.index("MNLI") < order.index("RTE") < order.index("SST-2")
        assert len(set(ranks.values())) == min(world_size, 3)


def test_glues_own_metrics(tmp_path):
    observer = attach(tmp_path, ("CoLA",), metrics="glue", budget=Budget(max_updates=8))
    table = observer.observe(Model(), 0)
    assert value(table, "score", "CoLA") == value(table, "matthews", "CoLA")


class NoTasks(L.LightningDataModule):
    def val_dataloader(self):
        return [{"labels": torch.zeros(1, 1)}]


def test_refusals(tmp_path):
    def check(module=None, **settings):
        attach(tmp_path, **settings).check_module(module)

    assert_refused(
        check,
        ({"tasks": ["MNLI"]}, "`tasks` has MNLI: expected CoLA, STS-B"),
        ({"tasks": []}, "`tasks` has none: expected CoLA"),
        ({"fine_tuning": {"Cola": {}}}, r"got Cola"),
        ({"max_tokens": 9}, "Remove `max_tokens`, `forward` and `split`"),
        ({"fine_tuning": {"all": {"max_sequence_length": 5}}}, "has examples of .* expected at most 5"),
        ({"toys": NoTasks()}, "requires tasks to fine-tune on, got NoTasks without `tasks`"),
        ({"module": L.LightningModule()}, "contains 0 models of transformers"),
        ({"module": Model(max_position_embeddings=8)}, "of at most 8 tokens, the positions of"),
    )
