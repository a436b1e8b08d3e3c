"""Trajectory: means are those of the tokens, groups, refusals, rows that figures read."""

import logging

import numpy as np
import pytest
import torch

from lmdyn.analysis import GroupSums, group_variance, nested_variance
from lmdyn.callbacks import Run, Trajectory, select
from lmdyn.callbacks.geometry import trajectory
from tests.callbacks.geometry.test_geometry import BLOCKS, Transformer, batches, captured
from tests.helpers.foreign_tokenizers import NumberedWords
from tests.helpers.refusals import assert_refused

TAGS = ["NOUN", "VERB", "X"]


class Tagged(list):
    """Batches with a part of speech of each token by its id, and a topic of each row."""

    label_names = {"upos": TAGS, "topic": ["a", "b"]}

    def __init__(self, plain=None):
        for batch in batches() if plain is None else plain:
            ids = batch["input_ids"]
            upos = torch.where(batch["labels"] < 0, -100, ids % 2)
            topic = (torch.arange(len(ids)) % 2)[:, None].expand_as(ids)
            self.append({**batch, "upos": upos, "topic": topic})


def attach(folder, probe=None, tokenizer=None, **settings):
    observer = Trajectory(
        **{"labels": "aligned", "log_figures": False, "words": 6, "min_count": 2, **settings}
    )
    observer.probe = Tagged() if probe is None else probe
    observer.attach(Run(folder, tokenizer=tokenizer))
    return observer


def value(table, quantity, site, by, **group):
    rows = select(table, quantity=quantity, site=site, by=by, **group)
    return float(rows["value"].item()) if len(rows) else None


def tokens(probe, key):
    return torch.cat([b[key][b["attention_mask"].bool()] for b in probe])


@pytest.mark.parametrize("kind", ["gpt2", "albert"])
def test_numbers_are_those_of_the_tokens(tmp_path, kind):
    module, probe = Transformer(kind), Tagged()
    table = attach(tmp_path, probe, layers=["upos", "topic"]).observe(module, 0)
    site, path = BLOCKS[kind]
    x = captured(module, path, probe)["all"].double()
    ids, upos, topic = (tokens(probe, key) for key in ("input_ids", "upos", "topic"))
    often = ids.bincount().argsort(descending=True, stable=True)[:6].tolist()
    of_word = select(table, quantity="count", by="word")
    assert of_word["group"].tolist() == [str(i) for i in often]
    assert of_word["value"].tolist() == [int((ids == i).sum()) for i in often]
    wanted = [("word", str(i), x[ids == i], TAGS[i % 2]) for i in often]
    wanted += [("upos", name, x[upos == i], "") for i, name in enumerate(TAGS[:2])]
    wanted += [("topic", name, x[topic == i], "") for i, name in enumerate("ab")]
    for by, group, rows, parent in wanted:
        mean = select(table, quantity="mean", site=site, by=by, group=group).sort_values("dimension")
        assert mean["parent"].unique().tolist() == [parent]
        np.testing.assert_allclose(mean["value"], rows.mean(0), rtol=1e-5, atol=1e-6)
    sums = GroupSums(6)
    place = torch.tensor([often.index(i) if i in often else -1 for i in ids.tolist()])
    sums.update(x, place)
    found = group_variance(sums.result())
    tree = nested_variance(sums.result(), torch.tensor([i % 2 for i in often]))
    for measured, names, level in ((found, trajectory._OF_ALL, ""), (tree, trajectory._OF_TREE, "upos")):
        for quantity, name in names.items():
            expected = pytest.approx(getattr(measured, name), rel=1e-4)
            assert value(table, quantity, site, "word", parent=level) == expected, quantity
    cells = GroupSums(4)
    cells.update(x, 2 * upos + topic)
    tree = nested_variance(cells.result(), torch.tensor([0, 0, 1, 1]))
    assert value(table, "fine_share", site, "topic") == pytest.approx(tree.fine, rel=1e-4)
    assert value(table, "coarse_share", site, "upos") is None  # a layer is no tree within itself


def test_special_tokens_and_padding_are_in_no_group(tmp_path):
    probe = Tagged()
    table = attach(tmp_path, probe, NumberedWords(40, [3, 4]), words=40, min_count=1).observe(
        Transformer(), 0
    )
    ids = tokens(probe, "input_ids")
    kept = (ids != 3) & (ids != 4)
    counts = select(table, quantity="count")
    assert counts.groupby("by")["value"].sum().tolist() == [int(kept.sum())] * 2
    assert kept.sum() < len(kept)
    assert not {"w3", "w4"} & set(counts["group"])
    x = captured(Transformer(), "net.transformer.h.1", probe)["all"].double()[kept]
    variance = float(x.var(0, correction=0).sum())
    assert value(table, "variance", "block_01", "upos") == pytest.approx(variance, rel=1e-4)


def test_words_may_be_named(tmp_path):
    observer = attach(tmp_path, words=["17", "9", "17"])
    assert observer.groupings[0].names == ["17", "9"]
    assert observer.groupings[0].counts == [5, 7]


def test_groups_with_few_tokens_are_left_out_and_named(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    words, upos = attach(tmp_path, min_count=4).groupings
    assert "lmdyn leaves out 1 groups by upos with fewer than 4 tokens: X" in caplog.text
    assert upos.names == ["NOUN", "VERB"]
    assert min(words.counts) >= 4


def test_without_layers_there_are_words_only(tmp_path):
    table = attach(tmp_path, batches()).observe(Transformer(), 0)
    assert set(table["by"]) == {"word"}
    assert set(table["parent"]) == {""}
    assert not table["quantity"].isin(["coarse_share", "fine_share"]).any()


def untagged():
    probe = Tagged()
    for batch in probe:
        del batch["upos"]
    return probe


def test_refusals(tmp_path):
    assert_refused(
        lambda **settings: attach(tmp_path, **settings),
        ({"words": ["17", "W"]}, "tokens of each of `words`, got 0 of 'W'. Choose other `words`"),
        ({"words": ["17", "9"], "min_count": 50}, "at least 50 .*, got 5 of '17', 7 of '9'"),
        ({"layers": ["semtag"]}, r"no gold layers semtag"),
        ({"words": 0, "probe": batches()}, "no grouping has two groups of at least 2 tokens"),
        ({"min_count": 99}, "no grouping has two groups of at least 99 tokens"),
        ({"probe": []}, "no grouping has two groups"),
        ({"probe": untagged()}, "expected a tensor 'upos' in batches"),
    )


def test_only_so_many_numbers_are_kept(tmp_path, monkeypatch):
    observer = attach(tmp_path, sites={"last": "net.transformer.h.1"})
    monkeypatch.setattr(trajectory, "MOST_NUMBERS", 127)
    with pytest.raises(ValueError, match=r"127 numbers to keep, got 128: 8 groups of 16 .* at most 7 groups"):
        observer.bind(Transformer())
    monkeypatch.setattr(trajectory, "MOST_NUMBERS", 128)
    observer.bind(Transformer())
