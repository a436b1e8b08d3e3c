"""EdgeProbe: some sites at a time, a module of any kind, refusals; its numbers: golden and registry tests."""

import lightning as L
import pandas as pd
import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertForPreTraining

from lmdyn.analysis.probing.edge_probes import EdgeClassifier
from lmdyn.callbacks import Run
from lmdyn.callbacks.probing.edge_probe import EdgeProbe
from lmdyn.datamodules import GrammarCorpus
from lmdyn.datamodules.spans.spans import SpanCorpus
from tests.helpers.refusals import assert_refused
from tests.helpers.small_runs import GRAMMAR

TRAINING = EdgeClassifier(max_updates=80, evaluate_every=20, patience=2, learning_rate=0.02)
SIZES = {**GRAMMAR, "n_train_tokens": 900, "n_validation_tokens": 300, "n_test_tokens": 300}


@pytest.fixture(scope="module")
def spans():
    corpus = SpanCorpus(GrammarCorpus(**SIZES), layers=["upos"], batch_tokens=300)
    corpus.setup()
    return corpus


class Model(L.LightningModule):
    def __init__(self, vocab_size):
        super().__init__()
        torch.manual_seed(0)
        sizes = {
            "vocab_size": vocab_size, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
            "intermediate_size": 16, "max_position_embeddings": 128, "initializer_range": 0.3,
        }  # fmt: skip
        self.model = AlbertForPreTraining(AlbertConfig(embedding_size=16, **sizes))

    def forward(self, input_ids, attention_mask=None):
        return self.model(input_ids=input_ids, attention_mask=attention_mask)


def attach(folder, spans, **settings):
    whole = dict.fromkeys(("train_tokens", "validation_tokens", "test_tokens"))
    observer = EdgeProbe(**{"classifier": TRAINING, **whole, **settings})
    observer.probe = spans
    observer.attach(Run(folder, tokenizer=getattr(spans, "tokenizer", None)))
    return observer


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


def test_a_model_of_another_kind(tmp_path, spans):
    """Any module with sites, called as a whole."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(len(spans.tokenizer), 6)

        def forward(self, input_ids):
            return self.embedding(input_ids)

    with pytest.raises(ValueError, match="found no block"):
        attach(tmp_path, spans).check_module(Words())
    observer = attach(tmp_path, spans, tasks=["pos"], sites={"words": "embedding"})
    assert observer.observe(Words(), 0)["value"].notna().all()


def test_refusals(tmp_path, spans):
    assert_refused(
        lambda **settings: attach(tmp_path, spans, **settings),
        ({"tasks": []}, "Choose `tasks` among the split's tasks"),
        ({"tasks": ["parse"]}, r"has no tasks parse \(tasks: pos, constituents"),
    )
