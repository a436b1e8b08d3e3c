"""Observers and data of masked models and of pairs of words over two gloo processes: the numbers of one process.

Each process runs ``rank_main``. Without a Trainer: what is split by ranks is the observation, and the rows to train on.
"""

import copy
import json
import warnings
from collections import defaultdict
from itertools import islice
from unittest import mock

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import lmdyn.callbacks.interdependence.scaffold_rule as scaffold_rule
import lmdyn.callbacks.probing.downstream as downstream
from lmdyn import callbacks as C
from lmdyn import datamodules as D
from lmdyn.analysis.probing.edge_probes import EdgeClassifier
from lmdyn.analysis.probing.tower_heads import HeadTraining
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.callbacks.training.fine_tuning import Budget
from lmdyn.callbacks.words.ngram_divergence import _OneMasked
from lmdyn.models import LSTMLanguageModel, MaskedLanguageModel
from tests.helpers.ranks import run_ranks

pytestmark = pytest.mark.slow

GRAMMAR = {
    "n_train_tokens": 1000, "n_validation_tokens": 400, "n_test_tokens": 200, "n_topics": 3, "n_nouns": 40,
    "n_verbs": 20, "n_adjectives": 10, "n_adverbs": 3, "n_names": 20, "n_facts": 11, "fact_rate": 0.3,
}  # fmt: skip
SIZES = {
    "embedding_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 128,
}  # fmt: skip
BATCH = 3
OBSERVERS = (
    "token_learning", "edge_probe", "world_knowledge", "attention_patterns", "downstream", "tower_preference",
    "word_clusters", "encoder_dynamics", "depth_performance", "handwriting", "loop_convergence", "geometry",
    "minimal_pairs", "ngram_divergence", "reading", "choices",
)  # fmt: skip
# ranks take every other sentence of a list
BY_NUMBER = ("encoder_dynamics", "depth_performance", "handwriting")


def grammar():
    return D.GrammarCorpus(**GRAMMAR)


def text(rank=0, world_size=1, batch_size=BATCH, stream=None):
    """Pretraining text as a Trainer's rank has it."""
    corpus = D.GrammarCorpus(**GRAMMAR, vocabulary="wordpiece", vocab_size=300)
    data = D.PretrainingCorpus(corpus, stream, sequence_length=24, batch_size=batch_size, pairs="order")
    about = {"accumulate_grad_batches": 1, "limit_train_batches": 1.0, "overfit_batches": 0.0}
    data.trainer = mock.Mock(global_rank=rank, world_size=world_size, **about)
    data.prepare_data()
    return data


def observers():
    """Small batches: more of them than ranks, an odd number of rows in some, a single row in others."""
    return [
        C.TokenLearning(
            bands=[(5, 20), (30, 90)], max_words=151, probe=D.SpanCorpus(grammar(), tasks=[], batch_tokens=70)
        ),
        C.EdgeProbe(
            classifier=EdgeClassifier(learning_rate=0.02, max_updates=30, evaluate_every=10), train_tokens=700,
            probe=D.SpanCorpus(grammar(), batch_tokens=70),
        ),
        C.WorldKnowledge(probe=D.FactCorpus(D.GrammarFacts(grammar()), batch_tokens=30)),
        C.AttentionPatterns(size=8),
        C.Geometry(attention_sites="auto", max_samples=60),
        C.Trajectory(words=12, min_count=5),
        C.Downstream(budget=Budget(max_updates=3), probe=D.GrammarTasks(grammar(), n_train=40, n_evaluation=21)),
        C.TowerPreference(  # any two sites may be called towers
            sites={"embedding": "model.albert.encoder.embedding_hidden_mapping_in", "top": "model.albert.encoder"},
            training=HeadTraining(updates=9), batch_rows=5, min_count=1,
        ),
        C.WordClusters(
            embedding="model.albert.embeddings.word_embeddings", components=5, words=100, learning_rate=0.1
        ),
        C.EncoderDynamics(
            length=12, lengths=(8,), sentences=5, short_term=C.ShortTerm(steps=40, dimension_times=(0, 20)),
            long_term=C.LongTerm(steps=200, tau=10, check=2, check_steps=60, max_period=4), examples=2,
            numerics=C.DynamicsNumerics(threshold=1e-3, dtype="float64"),
        ),
        C.DepthPerformance(
            times=[0, 2, 3], training=HeadTraining(updates=4), batch_rows=5, tasks=tasks(),
        ),
        C.Handwriting(starts=6, lengths=12, probe=tasks()),
        C.LoopConvergence(horizon=6, times=[0, 1, 3, 6], max_tokens=None),
        C.Surprisals(least_contexts=1, least_context_tokens=2, most_contexts=2),
        C.MinimalPairs(probe=D.PairFiles("tests/golden/pairs.jsonl"), batch_tokens=100),
        C.Choices(probe=D.ChoiceFiles("tests/golden/pairs.jsonl", ["{sentence_good}", "{sentence_bad}"])),
        C.Reading(probe=D.ReadingFiles("tests/golden/reading.csv"), batch_tokens=100),
        C.NgramDivergence(order=3, drawn_tokens=100),
    ]  # fmt: skip


def tasks():
    corpus = D.GrammarCorpus(**{**GRAMMAR, "n_train_tokens": 2000, "n_validation_tokens": 1500})
    return D.GrammarTasks(corpus, ["similarity"], n_train=60, n_evaluation=41)


def of_pairs():
    """Observers of an LSTM and their data; more batches than ranks, an uneven number of them, and fewer than ranks."""
    pairs = {"max_distance": 3, "min_pairs": 5}
    few = {"backend": "shapley", "max_tokens": 60, "exact_up_to": 4, "samples": 4, "batch_tokens": 40}
    grammar = D.GrammarCorpus(**{**GRAMMAR, "n_train_tokens": 300, "n_validation_tokens": 200})
    scaffold = D.ScaffoldCorpus(
        length=2, n_rules=20, n_phrases=10, n_outside=5, n_types=20, n_train_tokens=1000, n_validation_tokens=100,
        n_test_tokens=100,
    )  # fmt: skip
    for corpus in (grammar, scaffold):
        corpus.prepare_data()
        corpus.setup()
    return [
        (grammar, C.Interdependence(**pairs, batch_tokens=30)),
        (grammar, C.Interdependence(**pairs, name="one_batch")),
        (grammar, C.Interdependence(**pairs, decoder=None, name="no_logits")),
        (grammar, C.Interdependence(**pairs, **few, name="shapley")),
        (scaffold, C.ScaffoldRule(instances=31, context=4)),
        (scaffold, C.ScaffoldRule(instances=1, context=4, name="one_instance")),
    ]


PAIRS = ("interdependence", "one_batch", "no_logits", "shapley", "scaffold_rule", "one_instance")


def lstm(data):
    torch.manual_seed(0)
    words = len(data.tokenizer)
    return LSTMLanguageModel(vocab_size=words, embedding_size=8, hidden_size=8, init_range=1.0)


def model(weights=None):
    torch.manual_seed(0)
    module = MaskedLanguageModel("albert", SIZES, vocab_size=300)
    if weights is not None:
        module.load_state_dict(torch.load(weights, weights_only=True))
    # the rounding of float32 depends on the number of rows in a batch, which ranks change
    return module.double().eval()


def train(module, data):
    """Until some words and facts are known, and others are not."""
    facts = D.FactCorpus(D.GrammarFacts(grammar()))
    facts.tokenizer = data.tokenizer
    facts.setup()
    (some,) = [{k: v[::2] for k, v in batch.items()} for batch in facts.loader().shard(0, 1)]
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    loader = data.train_dataloader()
    for batch in (batch for _ in range(5) for batch in loader):
        read = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
        F.cross_entropy(module(batch["input_ids"]).logits.flatten(0, 1), read.flatten()).backward()
        asked = module(some["input_ids"], some["attention_mask"]).logits.flatten(0, 1)
        F.cross_entropy(asked, some["labels"].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return module


def observe(folder):
    """What each observer answers, and what was served to this process meanwhile."""
    data, module = text(), model(folder / "weights.pt")
    data.trainer = None
    served, tuned, serve, fine_tune = defaultdict(list), [], C.ProbeSet.counted, downstream.fine_tune

    def counted(probe_set, rank=0, world_size=1):
        for number, batch in serve(probe_set, rank, world_size):
            if "example" in batch and not isinstance(probe_set.loader, _OneMasked):  # that reads another set
                served[probe_set.fingerprint] += batch["example"].tolist()
            yield number, batch

    def noted(encoder, task, *settings):
        tuned.append(task.name)
        return fine_tune(encoder, task, *settings)

    found = {}
    of_each = [(data, observer, module) for observer in observers()]
    of_each += [(data, observer, lstm(data)) for data, observer in of_pairs()]
    for data, observer, module in of_each:
        log_dir = folder / "runs" / observer.name
        observer.attach(C.Run(log_dir, data.tokenizer, data.token_counts, datamodule=data))
        observer.bind(module)  # which looks at the first batches by itself
        served.clear()
        with (
            mock.patch.object(C.ProbeSet, "counted", counted),
            mock.patch.object(downstream, "fine_tune", noted),
            mock.patch.object(scaffold_rule, "_BATCH", 7),
        ):
            found[observer.name] = observer.observe(module, 3)
        found[observer.name].attrs["served"] = dict(served) or {"tasks": list(tuned)}
        if isinstance(observer, C.Interdependence):
            found[observer.name].attrs["batches"] = len(observer.pairs.batches)
    return found


def streamed(folder, rank, world_size):
    """Of a stream: what was read before it was saved, what comes after, and what follows when it is resumed."""

    def loader():
        stream = D.StreamedText(
            {"path": "parquet", "data_files": str(folder / "text-*.parquet")}, epoch_batches=6, block_rows=9
        )
        return text(rank, world_size, stream=stream).train_dataloader()

    def take(loader, n):
        rows = []
        while len(rows) < n:
            rows += [batch["input_ids"].tolist() for batch in islice(loader, n - len(rows))]
        return rows

    whole, resumed = loader(), loader()
    before = take(whole, 4)
    state = whole.state_dict()
    resumed.load_state_dict(copy.deepcopy(state))
    return {"before": before, "state": state, "after": take(whole, 5), "resumed": take(resumed, 5)}


def rank_main(folder):
    warnings.simplefilter("error")
    torch.distributed.init_process_group("gloo")
    rank, world_size = rank_and_world_size()
    assert world_size == 2
    for name, table in observe(folder).items():
        table.to_pickle(folder / f"{name}{rank}.pickle")
    rows = text(rank, world_size).train_dataloader()
    torch.save(list(rows), folder / f"rows{rank}.pt")
    (folder / f"stream{rank}.json").write_text(
        json.dumps(streamed(folder, rank, world_size), default=lambda tensor: tensor.tolist())
    )
    torch.distributed.destroy_process_group()


# ---------------------------------------------------------------- the tests


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMDYN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield tmp_path_factory.getbasetemp() / "cache"


@pytest.fixture(scope="module")
def two(tmp_path_factory, cache):
    """Folder of what the two processes found, with the weights that they looked at."""
    folder = tmp_path_factory.mktemp("two")
    torch.save(train(model(), text()).state_dict(), folder / "weights.pt")
    texts = [" ".join(" ".join(s.words) for s in d) for d in grammar().documents("train")]
    for part in range(2):
        pd.DataFrame({"text": texts[part::2]}).to_parquet(folder / f"text-{part}.parquet")
    run_ranks(__file__, folder, cache, timeout=290)
    return folder


@pytest.fixture(scope="module")
def one(two, cache):
    return observe(two)


@pytest.mark.parametrize("name", [*OBSERVERS, *PAIRS])
def test_two_ranks_observe_what_one_observes(two, one, name):
    ranks = [pd.read_pickle(two / f"{name}{rank}.pickle") for rank in (0, 1)]
    pd.testing.assert_frame_equal(*ranks, check_exact=True)
    # sums of attention, and gradients of heads, are added in another order; dynamics amplify what rounding differs
    tolerance = dict.fromkeys(
        ("attention_patterns", "loop_convergence", "minimal_pairs", "ngram_divergence", "reading", "choices"),
        1e-9,
    )
    tolerance |= {"geometry": 1e-8, "tower_preference": 1e-9, **dict.fromkeys(BY_NUMBER, 1e-6)}
    exact = {"rtol": 0, "atol": tolerance.get(name, 0)}
    if name == "handwriting":  # regressions of float32 states, whose condition is far from 1
        exact = {"rtol": 1e-2, "atol": 1e-3}
    # sums of instances are added in another order, and threads split float32 products otherwise
    if name in PAIRS:
        exact = {"rtol": 1e-7, "atol": 0}
    pd.testing.assert_frame_equal(ranks[0], one[name], **exact)


# the first two read no text, the third makes its map of the first batch
UNSERVED = {"word_clusters", "minimal_pairs", "reading", "choices", "loop_convergence", *BY_NUMBER}


@pytest.mark.parametrize("name", sorted({*OBSERVERS} - UNSERVED))
def test_every_example_is_seen_once(two, one, name):
    whole = one[name].attrs["served"]
    ranks = [pd.read_pickle(two / f"{name}{rank}.pickle").attrs["served"] for rank in (0, 1)]
    assert len(whole) == {"edge_probe": 3, "tower_preference": 2}.get(name, 1)
    for part, examples in whole.items():
        assert len(examples) == len(set(examples)) > 1
        shares = [rank[part] for rank in ranks]
        assert min(len(share) for share in shares) > 0
        assert sorted(shares[0] + shares[1]) == sorted(examples)


def test_there_is_something_to_see(one):
    """The control: numbers that a rank's own share would not give."""

    def value(name, quantity, **groups):
        rows = one[name].query("quantity == @quantity")
        for column in rows.columns[4:-1]:
            rows = rows[rows[column].fillna("") == groups.get(column, "")]
        return rows["value"].item()

    assert 0.2 < value("token_learning", "reconstruction") < 1
    assert 0 < value("token_learning", "prediction") < 1
    assert value("token_learning", "masked_words") == 150  # one of 151 holds an unknown letter
    assert 0 < value("world_knowledge", "known") < value("world_knowledge", "facts")
    vectors = one["geometry"].query("quantity == 'vectors'").groupby("over")["value"].unique()
    assert [len(numbers) for numbers in vectors] == [1, 1]
    assert vectors["all"][0] > 60  # the sample is a part of the tokens of both ranks
    assert vectors["last"][0] > 20
    f1 = one["edge_probe"].query("quantity == 'f1'")["value"]
    assert f1.between(0.05, 1).all()
    of_heads = {"entropy", "diagonal", "itself", "vertical", "block", "map"}
    assert set(one["attention_patterns"]["quantity"]) == of_heads
    assert one["tower_preference"].query("quantity == 'preference' and by == 'token'")["value"].std() > 0.01
    assert set(one["encoder_dynamics"]["sentence"].dropna()) == set(range(5))
    assert one["handwriting"].query("quantity == 'nmse'")["value"].notna().any()
    assert set(one["depth_performance"].query("quantity == 'accuracy'")["how"]) == {"fixed", "retrained"}
    assert set(one["downstream"].query("quantity == 'score'")["task"]) == {"acceptability", "similarity"}
    assert all(one[name]["value"].notna().any() for name in PAIRS)
    assert min(one[name].attrs["batches"] for name in ("interdependence", "shapley")) > 3
    assert one["one_batch"].attrs["batches"] == 1  # the second rank has none
    assert set(one["no_logits"]["site"]) == {"hidden"}
    assert one["shapley"]["quantity"].eq("sampling_error").any()


def test_ranks_train_on_halves_of_the_same_batches(two, cache):
    ranks = [torch.load(two / f"rows{rank}.pt", weights_only=True) for rank in (0, 1)]
    whole = list(text(batch_size=2 * BATCH).train_dataloader())
    assert len(ranks[0]) == len(ranks[1]) == len(whole) > 3
    seen = torch.cat([batch["example"] for rank in ranks for batch in rank])
    assert len(seen.unique()) == len(seen) == 2 * BATCH * len(whole)
    for rank in (0, 1):
        for mine, batch in zip(ranks[rank], whole, strict=True):
            assert all(torch.equal(mine[key], batch[key][rank::2]) for key in mine)


def test_a_stream_of_two_ranks_resumes_as_it_was(two):
    ranks = [json.loads((two / f"stream{rank}.json").read_text()) for rank in (0, 1)]
    assert ranks[0]["state"] == ranks[1]["state"]
    assert len(ranks[0]["state"]["readers"]) == 2  # one of each rank
    for rank in ranks:
        assert rank["resumed"] == rank["after"]
        assert rank["after"][0] != rank["before"][0]
    rows = [{tuple(row) for batch in rank["before"] for row in batch} for rank in ranks]
    assert len(rows[0]) == len(rows[1]) == 4 * BATCH
    assert not rows[0] & rows[1]
