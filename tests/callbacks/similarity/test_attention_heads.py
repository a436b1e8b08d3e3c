"""Similarity with `attention_heads`: values of transformers' own weights, matched heads, a tagger."""

import copy

import pytest
import torch

from lmdyn.analysis import head_divergences
from lmdyn.callbacks import Reference, Run, Similarity, select
from lmdyn.datamodules.corpora.tokenization import word_tokenizer
from lmdyn.models import CausalLanguageModel, CausalTagger
from tests.helpers.recorded import check_elsewhere

V, EOS = 20, 2
SIZES = {"n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 16, "initializer_range": 0.7}
SITES = {"layer1": "model.h.0.attn", "layer2": "model.h.1.attn"}


def language_model(seed=0, **changes):
    torch.manual_seed(seed)
    return CausalLanguageModel("gpt2", {**SIZES, **changes}, vocab_size=V)


class Given(Reference):
    def __init__(self, module):
        self._module = module.eval()

    def example(self, module):
        return self._module

    def modules(self, module, run, step):
        return {"": self._module}


def batches(n=6):
    g = torch.Generator().manual_seed(1)
    found = []
    for _ in range(n):
        ids = torch.randint(EOS, V, (4, 8), generator=g)
        mask = (torch.arange(8) < torch.tensor([8, 8, 5, 7])[:, None]).long()
        found.append({"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)})
    return found


def observed(folder, reference, module=None, step=3, **settings):
    observer = Similarity(
        reference=reference, sites={}, measures=[], attention_sites=SITES, attention_heads=True, **settings
    )
    observer.probe = batches()
    observer.attach(Run(folder, word_tokenizer({f"w{i}": 1 for i in range(V - 3)})))
    return observer, observer.observe(module or language_model(), step)


def value(table, quantity, site="layer1", head=None):
    (found,) = select(table, quantity=quantity, site=site, head=head)["value"]
    return float(found)


@torch.no_grad()
def test_values_are_those_of_transformers_weights(tmp_path):
    module, other = language_model(), language_model(1)
    module.model.set_attn_implementation("sdpa")
    _, table = observed(tmp_path, Given(other), module)
    assert module.model.config._attn_implementation == "sdpa"
    for m in (module, other):
        m.eval().model.set_attn_implementation("eager")
    for layer, site in enumerate(SITES):
        js, kl = [], []
        for b in batches():
            how = {"attention_mask": b["attention_mask"], "output_attentions": True}
            p, q = (m.model(b["input_ids"], **how).attentions[layer] for m in (module, other))
            found = head_divergences(p, q, b["attention_mask"].bool())
            js.append(found["jensen_shannon"].flatten(0, 1))
            kl.append(found["kullback_leibler"].flatten(0, 1))
        js, kl = (torch.cat(parts).nanmean(0) for parts in (js, kl))
        for name, expected in (("jensen_shannon", js), ("kullback_leibler", kl)):
            found = value(table, f"attention_head_{name}", site)
            assert found == pytest.approx(float(expected.diagonal().mean()))
        assert value(table, "attention_head_jensen_shannon", site, head=2) == pytest.approx(float(js[2, 2]))
        matched = value(table, "attention_matched_jensen_shannon", site)
        assert matched <= value(table, "attention_head_jensen_shannon", site)
        rest = value(table, "attention_unmatched_jensen_shannon", site)
        assert 3 * matched + 6 * rest == pytest.approx(float(js.sum()))
        assert 0 < value(table, "attention_uniform_jensen_shannon", site) < 1


def test_a_model_with_its_heads_in_another_order(tmp_path):
    module = language_model()
    other = copy.deepcopy(module)
    order = torch.tensor([1, 2, 0])
    with torch.no_grad():
        for block in other.model.h:
            for tensor in (block.attn.c_attn.weight, block.attn.c_attn.bias):  # …, (q k v) × heads × 4
                tensor.copy_(tensor.unflatten(-1, (3, 3, 4))[..., order, :].flatten(-3))
            weight = block.attn.c_proj.weight
            weight.copy_(weight.unflatten(0, (3, 4))[order].flatten(0, 1))
    observer, table = observed(tmp_path, Given(other), module, jackknife=5)
    check_elsewhere(observer, table)
    for site in SITES:
        assert value(table, "attention_matched_jensen_shannon", site) == pytest.approx(0, abs=1e-6)
        assert value(table, "attention_head_jensen_shannon", site) > 0.01  # the control
        assert value(table, "attention_head_jensen_shannon_error", site) > 0
        assert value(table, "attention_jensen_shannon", site) == pytest.approx(0, abs=1e-6)


def test_a_tagger_and_other_numbers_of_heads(tmp_path):
    torch.manual_seed(3)
    tagger = CausalTagger("upos", config={**SIZES, "n_head": 2}, vocab_size=V, num_labels=4)
    _, table = observed(tmp_path, Given(tagger))
    quantities = set(table["quantity"])
    assert "attention_head_jensen_shannon" not in quantities
    assert value(table, "attention_matched_jensen_shannon") > 0
    heads = table[table["head"].notna()]
    assert heads.groupby("site")["head"].nunique().tolist() == [2, 2]  # of three
