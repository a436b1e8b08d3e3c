"""EdgeProbe against the pure function on features that are gathered sentence by sentence."""

import lightning as L
import pandas as pd
import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertForPreTraining, BertConfig, BertForMaskedLM

from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.probing.edge_probe_training import EdgeClassifier
from lmdyn.analysis.probing.edge_probes import EdgeData, edge_probes
from lmdyn.callbacks import Run
from lmdyn.callbacks.probing.edge_probe import EdgeProbe
from lmdyn.callbacks.probing.edge_probe_figures import shown_site
from lmdyn.datamodules import GrammarCorpus
from lmdyn.datamodules.spans.spans import SpanCorpus
from tests.helpers.observing import assert_leaves_alone
from tests.helpers.one_rank import as_rank

TRAINING = EdgeClassifier(max_updates=80, evaluate_every=20, patience=2, learning_rate=0.02)
SIZES = {
    "n_train_tokens": 900, "n_validation_tokens": 300, "n_test_tokens": 300, "n_topics": 2, "n_nouns": 30,
    "n_verbs": 15, "n_adjectives": 6, "n_adverbs": 2, "n_names": 12, "n_facts": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def spans():
    corpus = SpanCorpus(GrammarCorpus(**SIZES), layers=["upos"], batch_tokens=300)
    corpus.setup()
    return corpus


class Model(L.LightningModule):
    def __init__(self, vocab_size, kind="albert"):
        super().__init__()
        torch.manual_seed(0)
        sizes = {
            "vocab_size": vocab_size, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
            "intermediate_size": 16, "max_position_embeddings": 128, "initializer_range": 0.3,
        }  # fmt: skip
        if kind == "albert":
            self.model = AlbertForPreTraining(AlbertConfig(embedding_size=16, **sizes))
        else:
            self.model = BertForMaskedLM(BertConfig(**sizes))
        self.heads_ran = 0

    def forward(self, input_ids, attention_mask=None):
        self.heads_ran += 1
        return self.model(input_ids=input_ids, attention_mask=attention_mask)


def attach(folder, spans, **settings):
    observer = EdgeProbe(
        **{
            "classifier": TRAINING,
            "train_tokens": None,
            "validation_tokens": None,
            "test_tokens": None,
            **settings,
        }
    )
    observer.probe = spans
    observer.attach(Run(folder, tokenizer=getattr(spans, "tokenizer", None)))
    return observer


def by_sentence(model, loader, tasks):
    """One sentence a time, without padding: what the pass is to give."""
    layers, spans, labels, start = [[], [], []], {t: [] for t in tasks}, {t: [] for t in tasks}, 0
    for example in loader.examples:
        ids = torch.tensor(example["input_ids"])[None]
        states = model(ids, output_hidden_states=True).hidden_states[1:]
        for kept, state in zip(layers, states, strict=True):
            kept.append(state[0])
        for task in tasks:
            for *edges, label in example[f"spans_{task}"].tolist():
                spans[task].append([e if e < 0 else e + start for e in edges])
                labels[task].append(label)
        start += ids.shape[1]  # a word-level tokenizer: no special tokens
    return EdgeData(
        {f"layer@{i}": torch.cat(kept) for i, kept in enumerate(layers)},
        {t: torch.tensor(s) for t, s in spans.items()},
        {t: torch.tensor(y) for t, y in labels.items()},
    )


def test_values_are_those_of_the_function(tmp_path, spans):
    module = Model(len(spans.tokenizer))
    observer = attach(tmp_path, spans)
    assert observer.tasks == ("pos", "constituents", "roles", "coreference")
    table = observer.observe(module, 4)
    assert module.heads_ran == 0  # no projection to the vocabulary
    loaders = (spans.train_dataloader(), spans.val_dataloader(), spans.test_dataloader())
    with observing(module), torch.no_grad():
        parts = [by_sentence(module.model.albert, loader, observer.tasks) for loader in loaders]
    sizes = {task: len(spans.label_names[task]) for task in observer.tasks}
    expected = edge_probes(*parts, sizes, classifier=TRAINING)
    assert list(table.columns) == ["step", "tokens", "quantity", "site", "task", "value"]
    assert len(table) == 2 * 3 * 4 + 4
    for j, task in enumerate(expected.tasks):
        for quantity, values in (("f1", expected.f1), ("validation_f1", expected.validation_f1)):
            rows = table[table["quantity"].eq(quantity) & table["task"].eq(task)]
            assert list(rows["site"]) == ["layer@0", "layer@1", "layer@2"]
            # padding changes activations in the last digits, which may turn an answer over
            torch.testing.assert_close(
                torch.tensor(rows["value"].to_numpy()), values[:, j], atol=0.01, rtol=0
            )
        majority = table[table["quantity"].eq("majority") & table["task"].eq(task)]["value"]
        assert float(majority.iloc[0]) == pytest.approx(float(expected.majority[j]))
    assert expected.f1[0, 0] > expected.majority[0] + 0.1  # 16 random dimensions tell some of the words apart


@pytest.mark.parametrize(("room", "groups"), [(1, [1, 1, 1]), (2, [2, 1]), (3, [3])])
def test_features_of_some_sites_at_a_time_give_the_same(tmp_path, spans, room, groups, monkeypatch):
    """``memory_gb`` for so many of three sites: equal numbers, and no more features at once."""
    module = Model(len(spans.tokenizer))
    whole = attach(tmp_path / "whole", spans, tasks=["pos", "roles"])
    pieces, width = whole._pieces(), module.model.albert.config.hidden_size
    gigabytes = 2 * 4 * pieces * width * (room + 0.5) / 1e9
    some = attach(tmp_path / "some", spans, tasks=["pos", "roles"], memory_gb=gigabytes)
    held = []
    features = some._features

    def counted(*arguments):
        found = features(*arguments)
        held.append(len(found.activations))
        return found

    monkeypatch.setattr(some, "_features", counted)
    pd.testing.assert_frame_equal(some.observe(module, 4), whole.observe(module, 4))
    assert held == [n for n in groups for _ in range(3)]
    assert some.settings == whole.settings


def features_of(observer, module):
    """What the classifiers are fitted to, of the probe set."""
    observer.check_module(module)
    return observer._features(module, observer.probe_set)


def test_features_are_those_of_the_sentences(tmp_path, spans):
    module = Model(len(spans.tokenizer))
    observer = attach(tmp_path, spans)
    with observing(module), torch.no_grad():
        expected = by_sentence(module.model.albert, spans.test_dataloader(), observer.tasks)
        found = features_of(observer, module)
    for site, x in expected.activations.items():
        torch.testing.assert_close(found.activations[site], x, atol=1e-5, rtol=1e-4)
    for task in observer.tasks:
        assert torch.equal(found.spans[task], expected.spans[task])
        assert torch.equal(found.labels[task], expected.labels[task])


def test_two_ranks_have_the_features_of_one(tmp_path, spans):
    module = Model(len(spans.tokenizer))
    observer = attach(tmp_path, spans, test_tokens=150)
    with observing(module):
        whole = features_of(observer, module)
        ranks = []
        for rank in (0, 1):
            with as_rank(rank, 2, gather=lambda mine: ranks.append(mine) or [mine]):
                features_of(observer, module)
        with as_rank(gather=lambda mine: ranks):
            both = features_of(observer, module)
    assert min(len(r) for r in ranks) > 0
    for site, x in whole.activations.items():  # batches are padded alike on all ranks
        torch.testing.assert_close(both.activations[site], x, atol=1e-5, rtol=1e-4)
    for task in observer.tasks:
        assert torch.equal(both.spans[task], whole.spans[task])
        assert torch.equal(both.labels[task], whole.labels[task])


def test_it_leaves_no_trace(tmp_path, spans):
    training = EdgeClassifier(kind="tenney", hidden_size=4, max_updates=4, evaluate_every=2, dropout=0.1)
    observer = attach(tmp_path, spans, tasks=["roles"], classifier=training, train_tokens=200)
    table = assert_leaves_alone(observer, Model(len(spans.tokenizer), "bert").train())
    assert set(table["site"]) == {"", "layer1", "layer2", "layer3"}
    assert set(table["task"]) == {"roles"}


def test_a_model_of_another_kind(tmp_path, spans):
    """Any module with sites, called as a whole."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.broken = nn.Embedding(len(spans.tokenizer), 6), nn.Identity()

        def forward(self, input_ids):
            x = self.embedding(input_ids)
            self.broken(x / 0)
            return x

    with pytest.raises(ValueError, match="no block was found"):
        attach(tmp_path, spans).check_module(Words())
    with pytest.raises(ValueError, match="has no module 'x'"):
        attach(tmp_path, spans, sites={"x": "x"}).check_module(Words())
    observer = attach(tmp_path, spans, tasks=["pos"], sites={"words": "embedding"})
    assert observer.observe(Words(), 0)["value"].notna().all()


def test_a_broken_site_is_nan_with_a_warning(tmp_path, spans, caplog):
    module = Model(len(spans.tokenizer), "bert")
    nn.init.constant_(module.model.bert.encoder.layer[2].output.LayerNorm.weight, float("nan"))
    table = attach(tmp_path, spans, tasks=["pos"]).observe(module, 3)
    assert table[table["site"].eq("layer3")]["value"].isna().all()
    assert len(table[table["site"].eq("layer3")]) == 2
    assert table[table["site"].ne("layer3")]["value"].notna().all()
    assert "step 3: activations of ['layer3'] are not finite" in caplog.text


def test_bad_settings(tmp_path, spans):
    with pytest.raises(ValueError, match="expected a number above 0, or null"):
        EdgeProbe(memory_gb=0)
    with pytest.raises(ValueError, match=r"has no tasks \['parse'\], it has \['pos', 'constituents'"):
        attach(tmp_path, spans, tasks=["parse"])
    with pytest.raises(ValueError, match="expected tasks"):
        EdgeProbe(tasks=[])
    with pytest.raises(ValueError, match="pass as `probe` a datamodule"):
        attach(tmp_path, spans.train_dataloader())
    empty = EdgeProbe()  # whose length was taken for no probe at all
    empty.probe = []
    with pytest.raises(ValueError, match="requires a training part, got list"):
        empty.attach(Run(tmp_path, datamodule=spans))
    two = GrammarCorpus(**SIZES)
    two.splits = ("train", "test")
    two_parts = SpanCorpus(two, tasks=["pos"])
    two_parts.setup()
    with pytest.raises(
        ValueError,
        match="edge_probe: SpanCorpus has no validation data; it has train, test: pass a `probe:` to the observer",
    ):
        attach(tmp_path, two_parts, tasks=["pos"])


def curves():
    rows = []
    for step in (0, 10, 100, 1000):
        for i, site in enumerate(("layer@0", "layer@1", "layer@2")):
            for j, task in enumerate(("pos", "roles", "coreference")):
                value = 0.3 + 0.1 * j + (0.1 * i if site != "layer@2" else 0.05) * (step > 10)
                rows.append((step, "f1", site, task, value))
        rows += [(step, "majority", "", task, 0.2) for task in ("pos", "roles", "coreference")]
    rows.append((1000, "learning_rate", "", "", 1e-3))
    return pd.DataFrame(rows, columns=["step", "quantity", "site", "task", "value"])


def test_figures():
    table = curves()
    assert shown_site(table) == "layer@1"
    figures = EdgeProbe.figures(table, {})
    (axes,) = figures["tasks"].axes
    assert axes.get_title(loc="left") == "layer 2, of 3: two thirds of the depth"
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines["roles"].get_xdata()) == [0, 10, 100, 1000]
    assert list(lines["roles"].get_ydata()) == pytest.approx([0.4, 0.4, 0.5, 0.5])
    (mean,) = [
        line
        for line in axes.lines
        if line.get_linestyle() == "--" and line.get_color() == lines["roles"].get_color()
    ]
    assert list(mean.get_ydata()) == pytest.approx([0.4, 0.4, 0.45, 0.45])
    twelve = pd.concat([table.assign(site=f"layer{i}") for i in range(1, 13)])
    assert shown_site(twelve[twelve["quantity"].eq("f1")]) == "layer8"  # whatever its values
    panels = figures["layers"].axes
    assert [ax.get_title(loc="left") for ax in panels[:3]] == ["pos", "roles", "coreference"]
    assert [line.get_label() for line in panels[0].lines][:3] == ["layer 1", "layer 2", "layer 3"]
    table.loc[table["quantity"].eq("f1"), "value"] = float("nan")
    assert EdgeProbe.figures(table, {}) == {}
