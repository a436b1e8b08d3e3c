"""Trajectory: means are those of the tokens, groups, floors of random groups, bad input, what is logged, figures."""

import logging
import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from lmdyn.analysis import GroupSums, group_variance, nested_variance
from lmdyn.callbacks import Run, Trajectory
from lmdyn.callbacks.gathered.drawn_observations import drawn_observations
from lmdyn.callbacks.geometry import trajectory
from lmdyn.callbacks.geometry.trajectory_figures import pictured_rows, pictured_steps, trajectory_figures
from lmdyn.callbacks.observing.loggers import scalar_tags
from tests.callbacks.geometry.test_geometry import Transformer, batches, captured
from tests.helpers.figure_faults import figure_faults
from tests.helpers.observing import assert_leaves_alone
from tests.helpers.recorded import check_values

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


def attach(folder, probe=None, **settings):
    observer = Trajectory(
        **{"labels": "aligned", "log_figures": False, "words": 6, "min_count": 2, **settings}
    )
    observer.probe = Tagged() if probe is None else probe
    observer.attach(Run(folder))
    return observer


def value(table, quantity, site, by, **group):
    rows = table[table["quantity"].eq(quantity) & table["site"].eq(site) & table["by"].eq(by)]
    for column, name in group.items():
        rows = rows[rows[column].eq(name)]
    assert len(rows) <= 1
    return float(rows["value"].item()) if len(rows) else None


def tokens(probe, key):
    return torch.cat([b[key][b["attention_mask"].bool()] for b in probe])


@pytest.mark.parametrize("kind", ["gpt2", "albert"])
def test_numbers_are_those_of_the_tokens(tmp_path, kind):
    module, probe = Transformer(kind), Tagged()
    table = attach(tmp_path, probe, layers=["upos", "topic"]).observe(module, 0)
    check_values(Trajectory, table)
    site, path = ("block_01", "net.transformer.h.1") if kind == "gpt2" else (
        "block@2", "net.albert.encoder.albert_layer_groups.0"
    )  # fmt: skip
    x = captured(module, path, probe)["all"].double()
    ids, upos, topic = (tokens(probe, key) for key in ("input_ids", "upos", "topic"))
    often = ids.bincount().argsort(descending=True, stable=True)[:6].tolist()
    of_word = table[table["quantity"].eq("count") & table["by"].eq("word")]
    assert of_word["group"].tolist() == [str(i) for i in often]
    assert of_word["value"].tolist() == [int((ids == i).sum()) for i in often]
    wanted = [("word", str(i), x[ids == i], TAGS[i % 2]) for i in often]
    wanted += [("upos", name, x[upos == i], "") for i, name in enumerate(TAGS[:2])]
    wanted += [("topic", name, x[topic == i], "") for i, name in enumerate("ab")]
    for by, group, rows, parent in wanted:
        mean = table[
            table["quantity"].eq("mean")
            & table["site"].eq(site)
            & table["by"].eq(by)
            & table["group"].eq(group)
        ].sort_values("dimension")
        assert mean["parent"].unique().tolist() == [parent]
        np.testing.assert_allclose(mean["value"], rows.mean(0), rtol=1e-5, atol=1e-6)
    sums = GroupSums(6)
    place = torch.tensor([often.index(i) if i in often else -1 for i in ids.tolist()])
    sums.update(x, place)
    found = group_variance(sums.result())
    for quantity, name in trajectory._OF_ALL.items():
        assert value(table, quantity, site, "word") == pytest.approx(getattr(found, name), rel=1e-4), quantity
    tree = nested_variance(sums.result(), torch.tensor([i % 2 for i in often]))
    for quantity, name in trajectory._OF_TREE.items():
        assert value(table, quantity, site, "word", parent="upos") == pytest.approx(
            getattr(tree, name), rel=1e-4
        ), quantity
    cells = GroupSums(4)
    cells.update(x, 2 * upos + topic)
    tree = nested_variance(cells.result(), torch.tensor([0, 0, 1, 1]))
    assert value(table, "fine_share", site, "topic") == pytest.approx(tree.fine, rel=1e-4)
    assert value(table, "coarse_share", site, "upos") is None  # a layer is no tree within itself


def test_embeddings_of_words_are_whole_groups(tmp_path):
    table = attach(tmp_path).observe(Transformer(), 0)
    assert value(table, "between_share", "embedding", "word") == pytest.approx(1)
    assert value(table, "separation", "embedding", "word") is None  # no two tokens of a word differ
    assert value(table, "between_share", "block_01", "word") < 0.999


def test_batches_do_not_matter(tmp_path):
    tables = [
        attach(tmp_path / str(n), Tagged(batches(size=n))).observe(Transformer(), 0).drop(columns="tokens")
        for n in (1, 3, 8)
    ]
    for other in tables[1:]:
        pd.testing.assert_frame_equal(tables[0], other, rtol=1e-4, atol=1e-6)


def test_it_leaves_no_trace(tmp_path):
    assert_leaves_alone(attach(tmp_path), Transformer().train())


def test_special_tokens_and_padding_are_in_no_group(tmp_path, word_tokenizer):
    probe = Tagged()
    observer = Trajectory(labels="aligned", words=40, min_count=1)
    observer.probe = probe
    observer.attach(Run(tmp_path, tokenizer=word_tokenizer))
    special = torch.tensor(word_tokenizer.all_special_ids)
    ids = tokens(probe, "input_ids")
    assert torch.isin(ids, special).any()
    kept = ids[~torch.isin(ids, special)]
    words, upos = observer.groups.groupings
    assert sum(words.counts) == sum(upos.counts) == len(kept)
    assert not set(words.names) & set(word_tokenizer.all_special_tokens)
    index = observer.groups.of(probe[0], probe[0]["attention_mask"].bool())
    outside = ~probe[0]["attention_mask"].bool() | torch.isin(probe[0]["input_ids"], special)
    assert index[outside].eq(-1).all()
    assert index[~outside][:, :2].ge(0).all()


@pytest.fixture
def word_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<unk>", "<eos>", "<x>", "<y>", *(f"w{i}" for i in range(5, 40))]
    base = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    base.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=base, unk_token="<unk>", pad_token="<x>", eos_token="<y>")


def test_words_may_be_named(tmp_path, word_tokenizer):
    def named(words, **settings):
        observer = Trajectory(labels="aligned", words=words, **{"min_count": 1, **settings})
        observer.probe = Tagged()
        observer.attach(Run(tmp_path, tokenizer=word_tokenizer))
        return observer.groups.groupings[0].names

    assert named(["w17", "w9"]) == ("w17", "w9")
    with pytest.raises(ValueError, match=r"\['W9'\] are not tokens of the vocabulary.*choose others"):
        named(["w17", "W9"])
    with pytest.raises(ValueError, match=r"at least 50 tokens, got \{'w17': 5, 'w9': 7\}"):
        named(["w17", "w9"], min_count=50)
    with pytest.raises(ValueError, match="expected a list of different words"):
        named(["w17", "w17"])
    with pytest.raises(ValueError, match="expected a list of different words"):
        named("w17")


def test_groups_with_few_tokens_are_left_out_and_named(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    observer = attach(tmp_path, min_count=4)
    assert "groups by upos with fewer than 4 tokens are left out: X" in caplog.text
    assert observer.groups.groupings[1].names == ("NOUN", "VERB")
    assert min(observer.groups.groupings[0].counts) >= 4
    table = observer.observe(Transformer(), 0)
    assert "X" not in set(table["group"])


def test_without_layers_there_are_words_only(tmp_path):
    table = attach(tmp_path, batches()).observe(Transformer(), 0)
    assert set(table["by"]) == {"word"}
    assert set(table["parent"]) == {""}
    assert not table["quantity"].isin(["coarse_share", "fine_share"]).any()


def test_bad_input(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="words is -1: expected a number from 0"):
        Trajectory(words=-1)
    with pytest.raises(ValueError, match="min_count is 0: expected a number from 1"):
        Trajectory(min_count=0)
    with pytest.raises(ValueError, match="no layers \\['semtag'\\]"):
        attach(tmp_path, layers=["semtag"])
    with pytest.raises(ValueError, match="no grouping has two groups of at least 2 tokens"):
        attach(tmp_path, batches(), words=0)
    with pytest.raises(ValueError, match="no grouping has two groups of at least 99 tokens"):
        attach(tmp_path, min_count=99)
    with pytest.raises(ValueError, match="no grouping has two groups"):
        attach(tmp_path, [])
    with pytest.raises(ValueError, match="expected batches with the layer 'upos'"):
        probe = Tagged()
        for batch in probe:
            del batch["upos"]
        attach(tmp_path, probe)
    one = {"sites": {"last": "net.transformer.h.1"}}
    monkeypatch.setattr(trajectory, "MOST_NUMBERS", 127)
    with pytest.raises(
        ValueError, match=r"at most 127 numbers to keep, got 128: 8 groups of 16 .* at most 7 groups"
    ):
        attach(tmp_path, **one).observe(Transformer(), 0)
    monkeypatch.setattr(trajectory, "MOST_NUMBERS", 128)
    attach(tmp_path, **one).observe(Transformer(), 0)


def test_one_token_sequences(tmp_path):
    probe = Tagged(batches(lengths=(1,) * 40, size=8))
    table = attach(tmp_path, probe, words=3).observe(Transformer(), 0)
    assert value(table, "between_share", "block_01", "word") == pytest.approx(
        1, abs=1e-6
    )  # no context, one position
    assert value(table, "separation", "block_01", "word") is None


def test_a_diverged_model_gives_nan_and_a_warning(tmp_path, caplog):
    module = Transformer()
    with torch.no_grad():
        module.net.transformer.h[0].mlp.c_fc.weight.fill_(math.nan)
    table = attach(tmp_path).observe(module, 3)
    assert "activations are not finite at step 3 in ['block_00', 'block_01', 'norm']" in caplog.text
    assert math.isnan(value(table, "between_share", "block_01", "word"))
    assert math.isnan(value(table, "fine_share", "block_01", "word"))
    means = table[table["quantity"].eq("mean")]
    assert set(means["site"]) == {"embedding"}
    assert means["value"].notna().all()
    assert set(trajectory_figures(table, [])) >= {"groups", "differentiation", "pca_word_embedding"}


def test_vectors_are_no_scalars(tmp_path):
    observer = attach(tmp_path)
    table = observer.observe(Transformer(), 0)
    tags = scalar_tags("trajectory", table[Trajectory.is_scalar(table)])
    assert "trajectory/between_share/block_01/word" in tags
    assert "trajectory/fine_share/block_01/word/upos" in tags
    assert len(tags) < 40 < len(table)
    kept = Trajectory.record_rows(table, {})
    assert not kept["quantity"].eq("mean").any()
    assert kept["quantity"].eq("count").any()


class Learning(nn.Module):
    """Vectors of a tree: 2 classes, 6 words of each; ``coarse`` and ``fine`` are the sizes of its distinctions."""

    def __init__(self, coarse, fine, noise=0.3):
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.embed = nn.Embedding(40, 16)
        upper, lower, rest = (torch.randn(n, 16, generator=g) for n in (2, 40, 40))
        with torch.no_grad():
            self.embed.weight.copy_(coarse * upper[torch.arange(40) % 2] + fine * lower + 0.01 * rest)
        self.noise, self.out = noise, nn.Linear(16, 40)
        self.mix = nn.Identity()

    def forward(self, input_ids, attention_mask=None):
        x = self.embed(input_ids)
        return self.out(self.mix(x + self.noise * x.roll(1, 1)))


COURSE = {0: (0.0, 0.0), 10: (0.5, 0.0), 40: (2.0, 0.05), 100: (2.0, 0.5), 300: (2.0, 2.0), 1000: (2.0, 4.0)}


@pytest.fixture
def learned(tmp_path):
    observer = attach(tmp_path, words=12, sites={"mix": "mix"})
    return pd.concat(
        [observer.observe(Learning(*at), step) for step, at in COURSE.items()], ignore_index=True
    )


def test_coarse_distinctions_come_before_fine_ones(learned):
    tree = learned[learned["by"].eq("word")].pivot_table(index="step", columns="quantity", values="value")
    coarse, fine = (tree[f"{name}_share"] * tree["tree_variance"] for name in ("coarse", "fine"))
    assert (coarse >= coarse.iloc[-1] / 2).idxmax() < (fine >= fine.iloc[-1] / 2).idxmax()
    assert tree["coarse_share"].idxmax() < tree["fine_share"].loc[40:].idxmax()
    assert tree.loc[1000, "fine_share"] > 3 * tree.loc[1000, "fine_floor"]


def test_figures(learned):
    figures = trajectory_figures(learned, ["mix"])
    assert set(figures) == {
        "differentiation",
        "groups",
        "pca_word_mix",
        "mds_word_mix",
    }  # two classes: no picture
    for name, figure in figures.items():
        assert not figure_faults(figure), name
    pca = figures["pca_word_mix"]
    panels = [ax for ax in pca.axes if ax.axison]
    assert [ax.get_title(loc="left") for ax in panels] == [f"step {step:,}" for step in COURSE]
    assert len({ax.get_xlim() for ax in panels}) == len({ax.get_ylim() for ax in panels}) == 1
    assert "common to all steps" in pca.get_suptitle()
    spread = [np.concatenate([line.get_xdata() for line in ax.lines]).std() for ax in panels]
    assert spread[0] < 0.1 * spread[2]
    for ax in panels[2:]:  # classes are apart on the first axis: the sign is the same at each step
        first, second = (np.asarray(line.get_xdata()) for line in ax.lines if line.get_xdata().size > 1)
        if ax is panels[2]:
            assert first.mean() * second.mean() < 0
    mds = figures["mds_word_mix"]
    assert "metric MDS of cosine distances" in mds.get_suptitle()
    assert all("stress" in ax.get_title(loc="left") for ax in mds.axes if ax.axison)


def test_no_figures_without_rows(learned):
    assert trajectory_figures(learned.iloc[:0], []) == {}
    bare = learned[learned["quantity"].ne("mean")]
    assert set(trajectory_figures(bare, [])) == {"differentiation", "groups"}
    assert trajectory_figures(learned.assign(value=math.nan), []) == {}


def test_only_means_of_drawn_steps_are_read(tmp_path):
    steps = [*range(0, 30), 100, 1000]
    assert pictured_steps(steps) == [0, 2, 6, 18, 29, 100, 1000]
    assert pictured_steps([7, 3]) == [3, 7]
    observer = attach(tmp_path, words=4)
    for step in steps[:12]:
        observer.store.write(step, observer.observe(Transformer(), step))
    (drawn,) = drawn_observations(tmp_path, None)
    table = drawn.read(Trajectory.figure_rows)
    assert sorted(table.loc[table["quantity"].eq("mean"), "step"].unique()) == pictured_steps(steps[:12])
    assert table.loc[table["quantity"].eq("between_share"), "step"].nunique() == 12
    assert len(drawn.read(pictured_rows([0]))) < len(table)
