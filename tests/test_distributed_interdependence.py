"""Interdependence and ScaffoldRule over two gloo processes: the numbers of one, on both ranks.

Each process runs ``rank_main``. Without a Trainer: what is split by ranks is the observation alone.
"""

import warnings

import pandas as pd
import pytest
import torch

import lmdyn.callbacks.interdependence.scaffold_rule as scaffold_rule
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.callbacks import Interdependence, Run, ScaffoldRule
from lmdyn.datamodules import GrammarCorpus, ScaffoldCorpus
from lmdyn.models import LSTMLanguageModel
from tests.helpers.ranks import run_ranks


def corpora():
    made = [
        GrammarCorpus(
            n_train_tokens=300, n_validation_tokens=200, n_test_tokens=50, n_topics=3, n_nouns=40, n_verbs=20,
            n_adjectives=10, n_adverbs=3, n_names=20, n_facts=5,
        ),
        ScaffoldCorpus(
            length=2, n_rules=20, n_phrases=10, n_outside=5, n_types=20, n_train_tokens=1000, n_validation_tokens=100,
            n_test_tokens=100,
        ),
    ]  # fmt: skip
    for corpus in made:
        corpus.prepare_data()
        corpus.setup()
    return made


def observe(folder, rank_zero=True):
    """What each observer answers; more batches than ranks, an uneven number of them, and fewer than ranks."""
    scaffold_rule._BATCH = 7
    grammar, scaffold = corpora()
    found = {}
    pairs = {"max_distance": 3, "min_pairs": 5}
    few = {"backend": "shapley", "max_tokens": 60, "exact_up_to": 4, "samples": 4, "batch_tokens": 40}
    for name, data, observer in (
        ("interdependence", grammar, Interdependence(**pairs, batch_tokens=30)),
        ("one_batch", grammar, Interdependence(**pairs)),
        ("no_logits", grammar, Interdependence(**pairs, decoder=None)),
        ("shapley", grammar, Interdependence(**pairs, **few)),
        ("scaffold_rule", scaffold, ScaffoldRule(instances=31, context=4)),
        ("one_instance", scaffold, ScaffoldRule(instances=1, context=4)),
    ):
        torch.manual_seed(0)
        words = len(data.tokenizer)
        module = LSTMLanguageModel(vocab_size=words, embedding_size=8, hidden_size=8, init_range=1.0)
        observer.attach(
            Run(folder / name, data.tokenizer, data.token_counts, datamodule=data), rank_zero=rank_zero
        )
        found[name] = observer.observe(module, 3)
        if isinstance(observer, Interdependence):
            found[name].attrs["batches"] = len(observer.pairs.batches)
    return found


def rank_main(folder):
    warnings.simplefilter("error")
    torch.distributed.init_process_group("gloo")
    rank, world_size = rank_and_world_size()
    assert world_size == 2
    for name, table in observe(folder, rank == 0).items():
        table.to_pickle(folder / f"{name}{rank}.pickle")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Folder of what the two processes found."""
    folder = tmp_path_factory.mktemp("two")
    run_ranks(__file__, folder, tmp_path_factory.getbasetemp() / "cache", timeout=120)
    return folder


@pytest.mark.slow
def test_two_ranks_observe_what_one_observes(two, tmp_path, monkeypatch):
    monkeypatch.setattr(scaffold_rule, "_BATCH", 7)
    expected = observe(tmp_path)
    assert expected["interdependence"].attrs["batches"] > 3
    assert expected["one_batch"].attrs["batches"] == 1  # the second rank has none
    for name, table in expected.items():
        ranks = [pd.read_pickle(two / f"{name}{rank}.pickle") for rank in (0, 1)]
        pd.testing.assert_frame_equal(*ranks, check_exact=True)
        # DI of a pair is found by one rank, sums of instances are added in another order, and this process may
        # have more threads than a rank, which split the float32 products otherwise
        pd.testing.assert_frame_equal(ranks[0], table, rtol=1e-7, atol=0)
        assert table["value"].notna().any()
    assert set(expected["no_logits"]["site"]) == {"hidden"}
    assert expected["shapley"].attrs["batches"] > 3
    assert expected["shapley"]["quantity"].eq("sampling_error").any()
