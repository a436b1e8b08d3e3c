"""TowerPreference: what it records against a direct computation, exchanged and identical towers, references, errors."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import pearsonr

from lmdyn.analysis.probing.tower_heads import Encoded, HeadTraining, train_tower_heads
from lmdyn.callbacks import Run, TowerPreference
from lmdyn.datamodules import GrammarCorpus, PretrainingCorpus, StreamedText
from lmdyn.models import TwoTowerLanguageModel
from tests.helpers.refusals import assert_refused
from tests.helpers.small_runs import PIECES

GRAMMAR = {**PIECES, "n_train_tokens": 2000, "n_validation_tokens": 1500}
HOW = HeadTraining(updates=12, learning_rate=0.01)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMDYN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        found = {}
        for objective in ("causal", "cloze", "masked"):
            rows = {"sequence_length": 16, "batch_size": 8, "objective": objective}
            corpus = PretrainingCorpus(GrammarCorpus(**GRAMMAR), **rows)
            corpus.prepare_data()
            found[objective] = corpus
        yield found


def model(data, tower="gpt", seed=0, **kwargs):
    torch.manual_seed(seed)
    vocab_size = len(data["causal"].tokenizer)
    module = TwoTowerLanguageModel(
        tower, **{"hidden_size": 8, "num_layers": 1, "vocab_size": vocab_size, "init_range": 0.3, **kwargs}
    )
    return module.train()


def attached(folder: Path, corpus, **kwargs) -> TowerPreference:
    settings = {"training": HOW, "batch_rows": 4, "min_count": 2, **kwargs}
    observer = TowerPreference(**settings)
    run = Run(folder, corpus.tokenizer, corpus.token_counts, datamodule=corpus)
    observer.attach(run)
    return observer


def value(table: pd.DataFrame, quantity: str, by: str = "", group: str = "") -> float:
    rows = table[table["quantity"].eq(quantity) & table["by"].eq(by) & table["group"].eq(group)]
    return rows["value"].item()


def by_token(table: pd.DataFrame, quantity: str = "preference") -> "pd.Series[float]":
    rows = table[table["quantity"].eq(quantity) & table["by"].eq("token")]
    return rows.set_index("group")["value"]


@pytest.mark.parametrize(("tower", "objective"), [("gpt", "causal"), ("elmo", "cloze"), ("bert", "masked")])
def test_numbers_are_those_of_a_direct_computation(data, tmp_path, tower, objective):
    corpus, module = data[objective], model(data, tower)
    table = attached(tmp_path, corpus).observe(module, 3)
    module.eval()

    def encoded(loader, flat):
        for batch in loader:
            with torch.no_grad():
                one, two = module.encode(batch["input_ids"])
            there = batch["labels"] != -100
            if objective == "masked":  # what the model reads it could copy
                there &= batch["input_ids"] == corpus.tokenizer.mask_token_id
            there = there if flat else torch.ones_like(batch["labels"], dtype=torch.bool)
            yield Encoded({"one": one[there], "two": two[there]}, batch["labels"][there])

    training = encoded(corpus.train_dataloader().with_batch_size(4), True)
    heads, _ = train_tower_heads(training, len(corpus.tokenizer), HOW)
    p, targets = [], []
    for batch in encoded(corpus.val_dataloader(), True):
        y, x = batch.labels, batch.encodings
        targets.append(y)
        p.append(torch.stack([h.target_log_probabilities(x[n], y).exp() for n, h in heads.items()]))
    p, targets = torch.cat(p, 1).double(), torch.cat(targets)
    means = p.mean(1)
    primary = int(means.argmax())
    for k in (0, 1):
        for name, expected in (("mean_probability", means[k]), ("head_loss", -p[k].log().mean())):
            assert value(table, name, "tower", str(k + 1)) == pytest.approx(expected.item(), rel=1e-4)
    assert value(table, "primary_tower") == primary + 1
    preference = by_token(table)
    assert len(preference) > 20
    for token, found in preference.items():
        here = targets == corpus.tokenizer.convert_tokens_to_ids(token)
        assert int(here.sum()) >= 2
        expected = (p[primary, here].mean() / p[1 - primary, here].mean()).log().item()
        assert found == pytest.approx(expected, abs=1e-4)
    assert value(table, "spread") == pytest.approx(preference.std(), rel=1e-9)
    counts = by_token(table, "count")
    assert counts.is_monotonic_decreasing
    assert (counts.values == corpus.token_counts.set_index("token")["count"][counts.index].values).all()
    tagged = table[table["quantity"].eq("preference") & table["by"].eq("token")]
    for tag, rows in tagged.groupby("upos"):
        assert value(table, "preference", "upos", str(tag)) == pytest.approx(rows["value"].mean())
    assert tagged["upos"].nunique() > 3


def test_exchanging_the_towers_changes_their_numbers_only(data, tmp_path):
    corpus, module = data["causal"], model(data)
    plain = attached(tmp_path / "a", corpus).observe(module, 0)
    sites = {"tower1": "encodings.1", "tower2": "encodings.0"}
    swapped = attached(tmp_path / "b", corpus, sites=sites).observe(module, 0)
    # the primary tower is found anew, so that the preference stays
    pd.testing.assert_series_equal(by_token(plain), by_token(swapped), check_exact=True)
    assert value(plain, "primary_tower") == 3 - value(swapped, "primary_tower")
    for quantity in ("head_loss", "mean_probability"):
        assert value(plain, quantity, "tower", "1") == value(swapped, quantity, "tower", "2")
    assert by_token(plain).abs().max() > 0.01


def test_identical_towers_have_no_preference(data, tmp_path):
    corpus, module = data["causal"], model(data)
    sites = {"tower1": "encodings.0", "tower2": "encodings.0"}
    table = attached(tmp_path, corpus, sites=sites).observe(module, 0)
    assert by_token(table).eq(0).all()
    assert by_token(table, "standard_error").eq(0).all()
    assert value(table, "spread") == 0


def test_three_towers_compare_the_best_two(data, tmp_path):
    sites = {f"tower{k + 1}": f"encodings.{k}" for k in range(3)}
    table = attached(tmp_path, data["causal"], sites=sites).observe(model(data, n_towers=3), 0)
    means = [value(table, "mean_probability", "tower", str(k + 1)) for k in range(3)]
    assert value(table, "primary_tower") == 1 + int(np.argmax(means))
    assert len(by_token(table)) > 20


def test_the_previous_checkpoint(data, tmp_path):
    corpus, now, then = data["causal"], model(data, seed=2), model(data, seed=1)
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    torch.save({"state_dict": then.state_dict()}, folder / "step=000000003.ckpt")
    observer = TowerPreference(training=HOW, batch_rows=4, min_count=2, previous=True)
    run = Run(tmp_path, corpus.tokenizer, corpus.token_counts, corpus, checkpoint_folder=folder)
    observer.attach(run)
    assert not observer.observe(now, 3)["by"].eq("reference").any()  # nothing comes before
    found = observer.observe(now, 7)
    plain = attached(tmp_path / "plain", corpus)
    # the towers in the order of the sites, whichever is primary
    x, y = (
        by_token(t) * (1 if value(t, "primary_tower") == 1 else -1)
        for t in (plain.observe(now, 0), plain.observe(then, 0))
    )
    both = x.index.intersection(y.index)
    assert len(both) > 20
    expected = pearsonr(x[both], y[both]).statistic
    assert value(found, "correlation", "reference", "previous") == pytest.approx(expected, rel=1e-6)
    again = observer.observe(now, 7)  # what is remembered is what is computed
    pd.testing.assert_frame_equal(found, again, check_exact=True)


def test_a_word_that_occurs_once_has_no_error(data, tmp_path):
    rare = attached(tmp_path / "rare", data["causal"], min_count=1).observe(model(data), 5)
    assert 0 < len(by_token(rare, "standard_error")) < len(by_token(rare))


def test_output_layers_of_a_second_seed(data, tmp_path):
    corpus, module = data["causal"], model(data)
    table = attached(tmp_path / "a", corpus, second_seed=5).observe(module, 0)
    plain = attached(tmp_path / "b", corpus).observe(module, 0)
    other = attached(tmp_path / "c", corpus, training=replace(HOW, seed=5)).observe(module, 0)
    r = value(table, "head_reliability")
    # the towers in one order, whichever is primary
    sign = 1 if value(plain, "primary_tower") == value(other, "primary_tower") else -1
    x, y = by_token(plain), by_token(other)
    assert r == pytest.approx(sign * pearsonr(x, y[x.index]).statistic, rel=1e-6)
    assert abs(r) < 1
    rest = table[table["quantity"].ne("head_reliability")].reset_index(drop=True)
    pd.testing.assert_frame_equal(rest, plain, check_exact=True)  # an option that is off changes nothing


def test_what_a_record_keeps(data, tmp_path):
    observer, module = attached(tmp_path, data["causal"]), model(data)
    tables = [observer.observe(module, 0).assign(step=step) for step in (0, 5, 9)]
    kept = TowerPreference.record_rows(pd.concat(tables, ignore_index=True), {})
    words = kept[kept["by"].eq("token")]
    assert set(words["step"]) == {0, 9}
    assert set(words["quantity"]) == {"preference"}
    assert set(kept[kept["by"].ne("token")]["step"]) == {0, 5, 9}
    whole = by_token(tables[0])
    assert list(words[words["step"].eq(9)]["group"]) == list(whole.index)  # by frequency
    assert np.allclose(words[words["step"].eq(9)]["value"], whole, rtol=1e-6)


def test_refusals(data, tmp_path):
    corpus = data["causal"]

    def observe(n_towers=2, **settings):
        attached(tmp_path, corpus, **settings).observe(model(data, n_towers=n_towers), 0)

    assert_refused(
        observe,
        ({"sites": {"tower1": "encodings.0"}}, "two towers or more"),
        ({"second_seed": 0}, "would give the same output layers"),
        ({"sites": {"a": "encodings.0", "b": "encodings.7"}}, r"encodings\.7"),
        ({"n_towers": 3}, "third tower"),
        ({"previous": True}, "saves no checkpoints"),
        ({"min_count": 10_000}, "got 0: lower `min_count`"),
        ({"probe": data["cloze"]}, "objective 'causal', but the probe is for 'cloze'"),
    )
    with pytest.raises(ValueError, match="tokenizer"):
        TowerPreference().attach(Run(tmp_path, datamodule=corpus))


def test_a_stream_is_read_from_its_start_each_time(tmp_path, data):
    corpus = data["causal"]
    texts = [" ".join(w for s in d for w in s.words) for d in corpus.corpus.documents("train")]
    pd.DataFrame({"text": texts}).to_parquet(tmp_path / "text.parquet")
    source = {"path": "parquet", "data_files": str(tmp_path / "text.parquet")}
    stream = StreamedText(source, epoch_batches=3, block_rows=8)
    streaming = PretrainingCorpus(corpus.corpus, stream, sequence_length=16, batch_size=4, objective="causal")
    streaming.prepare_data()
    observer = attached(tmp_path, streaming)
    first, second = (observer.observe(model(data), 0) for _ in range(2))
    pd.testing.assert_frame_equal(first, second, check_exact=True)
    assert len(by_token(first)) > 20


def test_tags_are_counted_in_the_probe_set_where_nobody_else_did(data, tmp_path):
    """A run on a stream has no counts; its held-out text may have tags."""
    rows = {"sequence_length": 16, "batch_size": 8, "objective": "causal"}
    corpus = PretrainingCorpus(GrammarCorpus(**GRAMMAR), **rows, layers=["upos"])
    corpus.prepare_data()
    observer = TowerPreference(training=HOW, batch_rows=4, min_count=2, frequency="probe")
    observer.attach(Run(tmp_path, corpus.tokenizer, None, datamodule=corpus))
    table = observer.observe(model(data), 0)
    names, tags = corpus.label_names["upos"], {}
    for batch in corpus.val_dataloader():
        for token, tag in zip(batch["labels"].flatten(), batch["target_upos"].flatten(), strict=True):
            if token >= 0 and tag >= 0:
                tags.setdefault(int(token), Counter())[int(tag)] += 1
    found = table[table["quantity"].eq("preference") & table["by"].eq("token")].set_index("group")["upos"]
    assert found.nunique() > 3
    for token, tag in found.items():
        counted = tags[corpus.tokenizer.convert_tokens_to_ids(token)]
        assert counted[names.index(tag)] == max(counted.values())
    without = attached(tmp_path / "without", data["causal"], frequency="probe")
    without.attach(Run(tmp_path / "without", corpus.tokenizer, None, datamodule=data["causal"]))
    assert "upos" not in set(without.observe(model(data), 0)["by"])  # the control: rows without tags
