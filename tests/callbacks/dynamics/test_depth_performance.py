"""DepthPerformance: the model's own numbers at its own depth, trained decoders and readouts, errors."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from lmdyn.analysis.inspection.transformer import encoder_of
from lmdyn.analysis.probing.depth_heads import ReadoutTraining
from lmdyn.analysis.probing.task_metrics import regression_metrics
from lmdyn.analysis.probing.tower_heads import HeadTraining
from lmdyn.callbacks import Run
from lmdyn.callbacks.dynamics.depth_performance import DepthPerformance
from lmdyn.callbacks.training.fine_tuning import Budget, fine_tune, predict
from lmdyn.datamodules import GrammarCorpus, GrammarTasks, PretrainingCorpus
from lmdyn.models import MaskedLanguageModel
from tests.helpers.refusals import assert_refused
from tests.helpers.small_runs import PIECES

GRAMMAR = {**PIECES, "n_train_tokens": 3000, "n_validation_tokens": 1200}
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 128,
}  # fmt: skip
DEPTH = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMDYN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        corpus = PretrainingCorpus(GrammarCorpus(**GRAMMAR), sequence_length=24, batch_size=8)
        corpus.prepare_data()
        yield corpus


@pytest.fixture(scope="module")
def tasks(data):
    found = GrammarTasks(GrammarCorpus(**GRAMMAR), n_train=60, n_evaluation=40, max_sequence_length=64)
    found.tokenizer = data.tokenizer
    found.setup()
    return found


def model(data, family="albert", **changes):
    torch.manual_seed(0)
    module = MaskedLanguageModel(
        family, config={**SIZES, **({"embedding_size": 8} if family == "albert" else {}), **changes},
        vocab_size=len(data.tokenizer),
    )  # fmt: skip
    with torch.no_grad():  # larger weights than at the start of training: states and logits differ
        for p in module.parameters():
            if p.ndim > 1:
                p.mul_(6)
    return module


def attached(folder, data, tasks=None, **settings):
    settings = {"times": [0, 1, 3, 5], "training": HeadTraining(updates=3), "batch_rows": 8, **settings}
    observer = DepthPerformance(tasks=tasks, **settings)
    observer.attach(Run(folder, data.tokenizer, datamodule=data))
    return observer


def values(table: pd.DataFrame, quantity: str, how: str, where: str | None = None) -> "pd.Series[float]":
    there = table["where"].isna() if where is None else table["where"].eq(where)
    rows = table[table["quantity"].eq(quantity) & table["how"].eq(how) & there]
    return rows.set_index(rows["t"].astype(int))["value"]


def own_numbers(module, data):
    module = copy.deepcopy(module).eval()
    right, loss, n = 0, 0.0, 0
    for batch in data.val_dataloader():
        logits = module(batch["input_ids"], token_type_ids=batch.get("token_type_ids")).logits
        there = batch["labels"] != -100
        right += int((logits.argmax(-1) == batch["labels"])[there].sum())
        loss += float(nn.functional.cross_entropy(logits[there], batch["labels"][there], reduction="sum"))
        n += int(there.sum())
    return right / n, loss / n


@pytest.mark.slow
@torch.no_grad()
def test_at_the_models_depth_the_numbers_are_the_models(tmp_path, data):
    module = model(data, "bert")
    table = attached(tmp_path, data, times=[0, 1, DEPTH]).observe(module, 2)
    accuracy, cross_entropy = own_numbers(module, data)
    assert values(table, "accuracy", "fixed")[DEPTH] == pytest.approx(accuracy, abs=2e-3)  # near ties
    found = values(table, "cross_entropy", "fixed")
    assert found[DEPTH] == pytest.approx(cross_entropy, rel=1e-5)
    assert max(abs(found[t] - cross_entropy) for t in (0, 1)) > 2e-4  # the vocabulary is not always the same
    assert table[table["quantity"].eq("depth")]["value"].tolist() == [DEPTH]
    assert (table["step"] == 2).all()


def test_every_time_is_that_of_a_model_with_so_many_layers(tmp_path, data):
    module = model(data)
    found = values(attached(tmp_path, data).observe(module, 0), "cross_entropy", "fixed")
    for t in (1, 5):
        module.encoder.config.num_hidden_layers = t
        with torch.no_grad():
            assert found[t] == pytest.approx(own_numbers(module, data)[1], rel=1e-5)


def test_positions_that_show_the_mask_token(tmp_path, data):
    """Fixed accuracy of these alone, and both floors, counted one by one; the other positions are left out."""
    module = model(data)
    table = attached(tmp_path, data, times=[DEPTH]).observe(module, 0)
    module.eval()
    right, labels, masked = [], [], []
    for batch in data.val_dataloader():
        logits = module(batch["input_ids"], token_type_ids=batch.get("token_type_ids")).logits
        for row, at in (batch["labels"] != -100).nonzero().tolist():
            labels.append(int(batch["labels"][row, at]))
            right.append(int(logits[row, at].argmax()) == labels[-1])
            masked.append(int(batch["input_ids"][row, at]) == data.tokenizer.mask_token_id)
    assert 0 < sum(masked) < len(masked)
    shown = [y for y, m in zip(labels, masked, strict=True) if m]
    expected = np.mean([r for r, m in zip(right, masked, strict=True) if m])
    assert values(table, "accuracy", "fixed", "mask")[DEPTH] == pytest.approx(expected, abs=3e-3)
    assert values(table, "accuracy", "fixed")[DEPTH] == pytest.approx(np.mean(right), abs=3e-3)
    floors = table[table["quantity"].eq("floor")].set_index(["how", "where"])["value"]
    for where, of in ((None, labels), ("mask", shown)):
        assert floors["most_frequent", where] == pytest.approx(max(map(of.count, of)) / len(of))
    assert floors["most_frequent", None] != floors["most_frequent", "mask"]


@pytest.mark.slow
def test_the_floor_is_the_decoder_retrained_at_0(tmp_path, data):
    """Also where t = 0 is none of the times."""
    module = model(data)
    floors = {}
    for times in ([0, 2], [2]):
        table = attached(tmp_path / str(len(times)), data, times=times).observe(module, 0)
        floors[len(times)] = table[table["quantity"].eq("floor")].set_index(["how", "where"])["value"]
        assert values(table, "accuracy", "retrained").index.tolist() == times
        if 0 in times:
            for where in (None, "mask"):
                accuracy = values(table, "accuracy", "retrained", where)[0]
                assert floors[2]["retrained", where] == accuracy
    assert floors[1].to_dict() == floors[2].to_dict()


def test_without_a_tokenizer_there_are_no_mask_positions(tmp_path, data):
    observer = DepthPerformance(times=[1], training=HeadTraining(updates=1))
    observer.probe = list(data.val_dataloader())[:2]
    observer.attach(Run(tmp_path))
    table = observer.observe(model(data), 0)
    assert table["where"].isna().all()
    assert set(table["quantity"]) == {"accuracy", "cross_entropy", "floor", "depth"}


# ------------------------------------------------------------------------------------------ similarity


@pytest.mark.slow
def test_pearson_is_that_of_readouts_trained_one_by_one(tmp_path, data, tasks):
    """From the encoder's own pooled output of single sentences, with as many layers as t says."""
    module, how = model(data), ReadoutTraining(epochs=8, learning_rate=0.02, seed=1)
    table = attached(tmp_path, data, tasks, readout=how, times=[0, 3, 5]).observe(module, 0)
    task = tasks.tasks["similarity"]
    encoder = copy.deepcopy(encoder_of(module)).eval()
    for t in (0, 3, 5):
        encoder.config.num_hidden_layers = t
        features, labels = {}, {}
        for part, examples in (("train", task.train), ("evaluation", task.evaluation[""])):
            keys = ("input_ids", "token_type_ids")
            with torch.no_grad():
                pooled = [encoder(**{k: torch.from_numpy(e[k])[None] for k in keys}) for e in examples]
            features[part] = torch.cat([p.pooler_output for p in pooled])
            labels[part] = torch.tensor([float(e["label"]) for e in examples])
        layer = nn.Linear(16, 1)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        optimizer = torch.optim.Adam(layer.parameters(), lr=how.learning_rate)
        generator = torch.Generator().manual_seed(how.seed)
        for _ in range(how.epochs):
            for rows in torch.randperm(60, generator=generator).split(how.batch_size):
                loss = (layer(features["train"][rows])[:, 0] - labels["train"][rows]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        predictions = layer(features["evaluation"])[:, 0].detach()
        expected = regression_metrics(predictions, labels["evaluation"])["pearson"]
        assert values(table, "pearson", "frozen")[t] == pytest.approx(expected, abs=1e-3)
        assert (abs(expected) > 1e-3) == (t > 0)  # x_0 of the first token is the same in all sentences


@pytest.mark.slow
def test_fine_tuned_copies_have_t_layers(tmp_path, data, tasks):
    module = model(data)
    settings = {
        "times": [1], "fine_tuned_times": [0, 4], "budget": Budget(max_updates=6), "seed": 5,
        "fine_tuning": {"learning_rate": 5e-3},
    }  # fmt: skip
    observer = attached(tmp_path, data, tasks, **settings)
    found = values(observer.observe(module, 0), "pearson", "fine_tuned")
    assert list(found.index) == [0, 4]
    assert encoder_of(module).config.num_hidden_layers == DEPTH
    task = tasks.tasks["similarity"]
    labels = torch.tensor([float(e["label"]) for e in task.evaluation[""]])
    for t in (0, 4):
        module.encoder.config.num_hidden_layers = t
        tuned, _ = fine_tune(module.encoder, task, observer.fine_tuning_settings(), seed=5)
        expected = regression_metrics(predict(tuned, task, task.evaluation[""])[0], labels)["pearson"]
        assert found[t] == pytest.approx(expected, abs=1e-5)
    assert observer.fine_tuning_settings().learning_rate == 5e-3
    assert observer.fine_tuning_settings().updates == 6


def test_what_makes_no_sense_is_refused(tmp_path, data, tasks):
    assert_refused(
        DepthPerformance,
        ({"times": []}, "times is empty"),
        ({"times": [3, 1]}, "increasing whole numbers"),
        ({"fine_tuned_times": [1]}, "requires data to fine-tune on"),
        ({"training": HeadTraining(patience=2)}, "remove `training.patience`"),
    )

    def check(family="albert", sizes=None, tasks=tasks, times=(0,), **settings):
        observer = attached(tmp_path, data, tasks, times=list(times), **settings)
        observer.check_module(model(data, family, **sizes or {}))

    longest = GrammarTasks(GrammarCorpus(**GRAMMAR), n_train=60, n_evaluation=40)
    acceptability = GrammarTasks(GrammarCorpus(**GRAMMAR), ["acceptability"], n_train=20, n_evaluation=20)
    assert_refused(
        check,
        ({"family": "bert", "times": [0, 4]}, "expected `times` up to 3"),
        ({"family": "bert", "fine_tuned_times": [1]}, "remove `fine_tuned_times`"),
        ({"family": "electra"}, "only the generator"),
        ({"tasks": longest, "sizes": {"max_position_embeddings": 24}}, "of similarity of at most 24 tokens"),
        ({"tasks": acceptability}, "expected `tasks` with one regression"),
        ({"tasks": data}, "depth_performance, as `tasks`, requires tasks to fine-tune on"),
    )
    causal = PretrainingCorpus(GrammarCorpus(**GRAMMAR), sequence_length=24, objective="causal")
    causal.prepare_data()
    with pytest.raises(ValueError, match="the objective 'causal'"):
        attached(tmp_path, causal)
    with pytest.raises(ValueError, match="requires the run's tokenizer"):
        DepthPerformance(tasks=acceptability).attach(Run(tmp_path, datamodule=data))
