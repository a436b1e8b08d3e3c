"""Geometry: values of the measures on captured vectors, groups of tokens, dead units, bad input."""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertForMaskedLM, GPT2Config, GPT2LMHeadModel

from lmdyn.analysis import anisotropy, effective_dimension, rankme
from lmdyn.callbacks import Geometry, Run
from tests.helpers.modules import Own
from tests.helpers.recorded import check_values
from tests.helpers.refusals import assert_refused

V, D = 40, 16
BLOCKS = {
    "gpt2": ("block_01", "net.transformer.h.1"),
    "albert": ("block@2", "net.albert.encoder.albert_layer_groups.0"),
}


class Transformer(Own):
    """A causal model of two layers, or the shared one of ALBERT."""

    def __init__(self, kind="gpt2"):
        torch.manual_seed(0)
        if kind == "gpt2":
            sizes = {"n_layer": 2, "n_head": 2, "n_embd": D, "n_positions": 24, "vocab_size": V}
            net = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
        else:
            net = AlbertForMaskedLM(AlbertConfig(
                vocab_size=V, embedding_size=8, hidden_size=D, intermediate_size=32, num_hidden_layers=3,
                num_attention_heads=2, max_position_embeddings=24,
            ))  # fmt: skip
        super().__init__(net)

    def forward(self, input_ids, attention_mask=None):
        return self.net(input_ids=input_ids, attention_mask=attention_mask).logits


class Rectified(nn.Module):
    """Two units of six are dead, one is always on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.up, self.act = nn.Embedding(V, D), nn.Linear(D, 6), nn.ReLU()
        self.out = nn.Linear(6, V)
        with torch.no_grad():
            self.up.bias.copy_(torch.tensor([-99.0, -99.0, 99.0, 0.0, 0.0, 0.0]))

    def forward(self, input_ids):
        return self.out(self.act(self.up(self.embed(input_ids))))


def batches(lengths=(12, 9, 1, 7, 12, 12, 5, 12), size=4, seed=1):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, V, (len(lengths), max(lengths)), generator=g)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    labels = ids.where(mask == 1, -100)
    return [
        {"input_ids": i, "labels": y, "attention_mask": m}
        for i, y, m in zip(ids.split(size), labels.split(size), mask.split(size), strict=True)
    ]


def plain(n=8, time=12, size=4):
    return [{k: b[k] for k in ("input_ids", "labels")} for b in batches((time,) * n, size)]


def attach(folder, probe=None, **settings):
    observer = Geometry(**{"labels": "aligned", "log_figures": False, **settings})
    observer.probe = batches() if probe is None else probe
    observer.attach(Run(folder))
    return observer


def value(table, quantity, site, over="all"):
    rows = table[table["quantity"].eq(quantity) & table["site"].eq(site) & table["over"].eq(over)]
    assert len(rows) <= 1
    return float(rows["value"].item()) if len(rows) else None


def captured(module, path, probe):
    """Vectors of all tokens, and of last ones, by a hook of this test's own."""
    every, last, outputs = [], [], []
    handle = module.get_submodule(path).register_forward_hook(
        lambda _, __, out: outputs.append(out[0] if isinstance(out, tuple) else out)
    )
    with torch.no_grad():
        for batch in probe:
            outputs.clear()
            module.eval()(batch["input_ids"], batch["attention_mask"])
            for row, mask in zip(outputs[-1], batch["attention_mask"].bool(), strict=True):
                every.append(row[mask])
                last.append(row[mask][-1:])
    handle.remove()
    return {"all": torch.cat(every), "last": torch.cat(last)}


@pytest.mark.parametrize("kind", ["gpt2", "albert"])
def test_values_are_those_of_the_functions(tmp_path, kind):
    module = Transformer(kind)
    table = attach(tmp_path, attention_sites="auto").observe(module, 0)
    check_values(Geometry, table)
    site, path = BLOCKS[kind]
    for over, x in captured(module, path, batches()).items():
        assert value(table, "vectors", site, over) == len(x) == (70 if over == "all" else 8)
        expected = {
            "rankme": rankme(x), "rankme_covariance": rankme(x, variant="covariance"),
            "participation_ratio": effective_dimension(x), "anisotropy": anisotropy(x),
            "largest_magnitude": x.abs().max(), "median_magnitude": np.median(x.abs()),
            "largest_to_median": x.abs().max() / np.median(x.abs()), "distinct_vectors": len(x),
        }  # fmt: skip
        for quantity, number in expected.items():
            assert value(table, quantity, site, over) == pytest.approx(float(number), rel=1e-4), quantity
    heads = table[table["quantity"].eq("first_token_attention")]
    assert heads.groupby("site")["head"].nunique().tolist() == [2] * (2 if kind == "gpt2" else 3)
    equal = table[table["quantity"].eq("first_token_equal")]["value"].tolist()
    lengths = (12, 9, 1, 7, 12, 12, 5, 12)
    causal = sum(1 / (i + 1) for n in lengths for i in range(n)) / 70
    assert equal == pytest.approx([causal if kind == "gpt2" else 8 / 70] * len(equal), rel=1e-6)


def test_continuing_streams_have_no_last_tokens(tmp_path):
    module = Transformer()
    assert set(attach(tmp_path / "a", plain()).observe(module, 0)["over"]) == {"all", "last"}
    streams = [{**b, "continues": torch.ones(4, dtype=torch.bool)} for b in plain()]
    assert set(attach(tmp_path / "b", streams).observe(module, 0)["over"]) == {"all"}


def test_dead_and_always_on_units(tmp_path):
    observer = attach(tmp_path, plain(), sites={"embedding": "embed"})
    table = observer.observe(Rectified(), 0)
    assert observer.settings["activation_functions"] == {"act": "act"}
    assert value(table, "dead_units", "act") == pytest.approx(2 / 6)
    assert value(table, "always_on_units", "act") == pytest.approx(1 / 6)
    assert value(table, "rankme", "act") is None
    none = attach(tmp_path / "none", plain(), sites={"embedding": "embed"}, activation_functions=None)
    assert set(none.observe(Rectified(), 0)["site"]) == {"embedding"}
    named = attach(tmp_path / "named", plain(), sites={"e": "embed"}, activation_functions={"up": "up"})
    assert value(named.observe(Rectified(), 0), "always_on_units", "up") == pytest.approx(1 / 6)


def test_zero_and_constant_vectors(tmp_path):
    module = Rectified()
    with torch.no_grad():
        module.embed.weight.zero_()
    table = attach(tmp_path, plain(), sites={"zero": "embed", "constant": "up"}).observe(module, 0)
    of_zero, of_constant = (
        set(table[table["site"].eq(site) & table["over"].eq("all")]["quantity"])
        for site in ("zero", "constant")
    )
    always = {"vectors", "rankme_white_noise", "largest_magnitude", "median_magnitude", "distinct_vectors"}
    assert of_zero == always
    assert of_constant == always | {"rankme", "anisotropy", "largest_to_median", "token_kurtosis"}
    assert value(table, "rankme", "constant") == pytest.approx(1)
    assert value(table, "anisotropy", "constant") == pytest.approx(1)


def test_bad_settings(tmp_path):
    assert_refused(
        Geometry,
        ({"alpha_range": [9, 3]}, "expected a first index from 1"),
        ({"alpha_range": [None, 9]}, r"alpha_range\[0\] is None: expected a whole number"),
    )
    twice = {"sites": {"act": "embed"}, "activation_functions": {"act": "act"}}
    assert_refused(
        lambda **settings: attach(tmp_path, plain(), **settings).bind(Rectified()),
        ({"activation_functions": {"x": "nowhere"}}, "no module 'nowhere'"),
        (twice, "give each site its own name"),
        ({"sites": {"e": "embed"}, "attention_sites": "auto"}, "no attention module that returns weights"),
    )


@pytest.mark.parametrize(("last", "found"), [(3, 1), (4, 0)])
def test_few_tokens_are_foreseen(tmp_path, last, found):
    observer, module = attach(tmp_path, batches((12, 12, 12, 12, 12, last))), Transformer()
    observer.check_module(module)
    words = "expected at least 64 tokens, 4 for each of 16 dimensions, got 63"
    assert sum(str(one).startswith(words) for one in observer.foresee(module)) == found
