"""DiagnosticProbe against the pure function on features that are gathered by hand."""

import lightning as L
import pytest
import torch
from torch import nn

from lmdyn.analysis import DiagnosticClassifier
from lmdyn.callbacks import DiagnosticProbe, Run
from tests.helpers.refusals import assert_refused

V, TAGS = 12, ["DET", "NOUN", "VERB"]


class Loader:
    """Batches with the names of their labels, cut by rank as lmdyn's streams are."""

    label_names = {"upos": TAGS}

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

    def limit(self, max_tokens):
        return Loader(self.batches[: -(-max_tokens // self.batches[0]["labels"].numel())])

    def shard(self, rank, world_size):
        return Loader([{k: v[rank::world_size] for k, v in b.items()} for b in self.batches])


def batches(seed, n=12):
    g = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(n):
        ids = torch.randint(0, V, (4, 11), generator=g)
        now, following = ids[:, :-1], ids[:, 1:]
        found.append({"input_ids": now, "labels": following, "upos": now % 3, "target_upos": following % 3})
    return Loader(found)


class Data(L.LightningDataModule):
    def train_dataloader(self):
        return batches(0, 40)

    def val_dataloader(self):
        return batches(1)


class Model(nn.Module):
    """A site that knows the word, and one that knows nothing."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(V, 16)
        self.nothing = nn.Identity()

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        self.nothing(torch.ones_like(x))
        return x


SITES = {"word": "embedding", "nothing": "nothing"}
TRAINING = DiagnosticClassifier(epochs=20, learning_rate=1e-2)


def attach(folder, probe=None, **settings):
    settings = {"sites": SITES, "classifier": TRAINING, "train_tokens": 10_000, **settings}
    observer = DiagnosticProbe(**settings)
    observer.probe = Data() if probe is None else probe
    observer.attach(Run(folder))
    return observer


def value(table, quantity, site, target):
    rows = table[table["quantity"].eq(quantity) & table["site"].eq(site) & table["target"].eq(target)]
    assert len(rows) == 1
    return float(rows["value"].iloc[0])


def test_information_is_entropy_less_loss(tmp_path):
    """All of the entropy from the word; none from a constant or shuffled labels, or about an independent next word."""
    table = attach(tmp_path, shuffled=True).observe(Model(), 0)
    tags = torch.cat([b["upos"].flatten() for b in batches(1)])
    shares = tags.bincount() / len(tags)
    entropy = float(-(shares * shares.log()).sum())
    for site in SITES:
        for target in ("current", "next"):
            assert value(table, "information", site, target) < entropy
    bound = entropy - value(table, "probe_loss", "word", "current")
    assert value(table, "information", "word", "current") == pytest.approx(bound, abs=1e-6)
    assert value(table, "information", "word", "current") > 0.9 * entropy
    for quantity, site, target in (
        ("information", "nothing", "current"), ("information", "word", "next"),
        ("information_shuffled", "word", "current"), ("information_shuffled", "nothing", "next"),
    ):  # fmt: skip
        assert abs(value(table, quantity, site, target)) < 0.05


def test_bootstrap_intervals(tmp_path):
    observer = attach(tmp_path, bootstrap=200)
    table = observer.observe(Model(), 0)
    for target in ("current", "next"):
        for quantity in ("accuracy", "selectivity"):
            ends = [value(table, f"{quantity}{end}", "nothing", target) for end in ("_low", "", "_high")]
            assert ends == sorted(ends)
    low, high = (value(table, f"accuracy_{end}", "nothing", "next") for end in ("low", "high"))
    p, n = value(table, "accuracy", "nothing", "next"), 12 * 4 * 10
    # tokens are independent here, so the interval is about that of a binomial share
    assert (high - low) / 2 == pytest.approx(1.96 * (p * (1 - p) / n) ** 0.5, rel=0.3)
    assert {value(table, f"accuracy_{end}", "word", "current") for end in ("low", "high")} == {1}


def test_refusals(tmp_path):
    assert_refused(
        lambda **settings: attach(tmp_path, **settings),
        ({"tasks": []}, "Choose `tasks` among these layers and"),
        ({"tasks": ["semtag"]}, r"the train split has no gold layers semtag; the layers are upos"),
    )


def test_an_empty_loader_is_not_replaced_by_the_runs_data(tmp_path):
    """Its length is 0, which was taken for no probe at all: the run's training part was used instead."""
    observer = DiagnosticProbe()
    observer.probe = []
    with pytest.raises(ValueError, match="requires a training part, got list"):
        observer.attach(Run(tmp_path, datamodule=Data()))
