"""WordClusters: its numbers are those of a direct call, its figures and tables say what the records say."""

import pandas as pd
import pytest
import torch
from torch import nn

from lmdyn.callbacks import Run, WordClusters
from tests.helpers.foreign_tokenizers import NumberedWords
from tests.helpers.refusals import assert_refused

V, D = 260, 12
SPECIAL = [0, 3]
SETTINGS = {"words": 200, "components": 6, "learning_rate": 0.1, "matrix_words": 50}


class Model(nn.Module):
    """An embedding of sparse (Laplace) sources, some words of two of them, and other layers of the same height."""

    def __init__(self, seed=0):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        u = torch.rand(V, D, generator=g).clamp(1e-6) - 0.5
        weight = -u.sign() * torch.log1p(-2 * u.abs()) @ torch.randn(D, D, generator=g) * 0.02 + 1
        self.embedding = nn.Embedding(V, D)
        self.embedding.weight = nn.Parameter(weight)
        self.decoder = nn.Linear(4, V)
        self.norm = nn.LayerNorm(V)


def counts():
    """Every id is as frequent as it is large, but for 20 that never occur."""
    table = pd.DataFrame({"token": [f"w{i}" for i in range(V)], "count": range(V)})
    table.loc[V - 20 :, "count"] = 0
    table.loc[SPECIAL, "count"] = 10_000
    return table


def attach(folder, table=None, **settings):
    observer = WordClusters(**{**SETTINGS, **settings})
    observer.probe = [{"labels": torch.zeros(1, 1, dtype=torch.int64)}]  # of no account
    observer.attach(Run(folder, NumberedWords(V, SPECIAL), counts() if table is None else table))
    return observer


IDS = list(range(V - 21, 0, -1))
IDS.remove(3)
IDS = IDS[:200]


def rows(table, quantity):
    return table[table["quantity"].eq(quantity)]


def test_without_tokenizer_the_counts_name_the_words(tmp_path):
    observer = WordClusters(**SETTINGS)
    observer.probe = [{"input_ids": torch.tensor([[V - 1]])}]
    observer.attach(Run(tmp_path, None, counts()))
    table = observer.observe(Model(), 0)
    assert {"w0", "w3"} <= set(rows(table, "count")["token"])  # nobody says which are special


def test_what_cannot_be_clustered_is_nan_with_a_warning(tmp_path, caplog):
    observer, flat, sound = attach(tmp_path), Model(), Model()
    flat.embedding.weight.data[:, 3:] = 1.0
    table = observer.observe(flat, 4)
    assert "got rank 3" in caplog.text
    assert table[table["quantity"].ne("converged")]["value"].isna().all()
    assert rows(table, "converged")["value"].tolist() == [0]
    assert WordClusters.tables(table, {}) == {}
    unused = Model()  # what is never looked at may be anything
    unused.embedding.weight.data[[0, 3, V - 1]] = torch.nan
    pd.testing.assert_frame_equal(observer.observe(unused, 4), observer.observe(sound, 4))


def test_a_rule_that_does_not_converge(tmp_path, caplog):
    table = attach(tmp_path, max_iterations=3).observe(Model(), 2)
    assert "the components did not converge at step 2 in 3 iterations" in caplog.text
    assert rows(table, "converged")["value"].tolist() == [0]
    assert rows(table, "within_one")["value"].notna().all()
    caplog.clear()
    table = attach(tmp_path / "large", learning_rate=100.0).observe(Model(), 2)
    assert "the unmixing matrix diverged" in caplog.text
    assert rows(table, "within_one")["value"].isna().all()


FEW = counts()
FEW.loc[6:, "count"] = 0


def test_refusals(tmp_path):
    assert_refused(
        lambda **settings: attach(tmp_path, **settings).observe(Model(), 0),
        ({"words": 6}, r"expected more words than components \(6\)"),
        ({"table": FEW}, r"components \(6\), got 4: lower `components`"),
        (
            {"embedding": "word_embeddings"},
            r"token ids in 'word_embeddings', got no weight: .*\(embedding, decoder\)",
        ),
        ({"embedding": "norm"}, "each of .* token ids in 'norm', got shape"),
        ({"embedding": "decoder"}, "components is 6: expected at most 4, the width of 'decoder'"),
    )


@pytest.fixture
def observations(tmp_path):
    """Three steps of one run, from a Gaussian embedding to a sparse one."""
    observer = attach(tmp_path)
    sparse, g = Model().embedding.weight.detach(), torch.Generator().manual_seed(1)
    noise = torch.randn(V, D, generator=g) * sparse.std()
    tables = []
    for step, share in ((0, 0.0), (10, 0.5), (100, 1.0)):
        model = Model()
        model.embedding.weight.data = share * sparse + (1 - share) * noise
        tables.append(observer.observe(model, step))
    return pd.concat(tables, ignore_index=True)


def test_table_of_clusters(observations):
    table = WordClusters.tables(observations, {})["clusters"]
    last = observations[observations["step"].eq(100)]
    members = rows(last, "membership")
    assert table["words"].sum() == len(members)  # no more than 12 clusters
    assert (table["words"].diff().dropna() <= 0).all()
    best = members[members["group"].eq(table["cluster"][0])]
    by_value = best.sort_values("value", key=abs, ascending=False)["token"][:5]
    assert table["typical"][0] == ", ".join(by_value)
    assert table["frequent"][0] == ", ".join(sorted(best["token"], key=lambda t: -int(t[1:]))[:5])


def test_what_a_record_keeps(tmp_path):
    table = attach(tmp_path).observe(Model(), 7)
    kept = WordClusters.record_rows(pd.concat([table.assign(step=s) for s in (0, 7)], ignore_index=True), {})
    members = rows(kept, "membership")
    assert set(members["step"]) == {7}
    columns = ["group", "token"]
    whole = rows(table, "membership")[columns]
    assert sorted(members[columns].to_numpy().tolist()) == sorted(whole.to_numpy().tolist())
    assert set(members["value"]) == {-1.0, 1.0}
    assert (members["group"].str.endswith("+") == members["value"].gt(0)).all()
    assert rows(kept, "component_value").empty
    assert len(rows(kept, "mean_clusters")) == 2
