"""AttentionPatterns on ALBERT and BERT against transformers' own attention weights."""

import pytest
import torch

from lmdyn.analysis.attention.attention_scores import attention_scores
from lmdyn.callbacks import Run, select
from lmdyn.callbacks.attention.attention_patterns import AttentionPatterns
from tests.helpers.architectures import ARCHITECTURES

V, CLS, SEP, PAD = 30, 1, 2, 0


class Tokenizer:
    cls_token_id, sep_token_id, bos_token_id, eos_token_id = CLS, SEP, None, None


def make(kind="albert"):
    model = ARCHITECTURES[kind]()
    torch.manual_seed(0)
    for p in model.parameters():  # sharper than at the start of training
        torch.nn.init.normal_(p, std=0.5)
    return model


def batches(n=2, lengths=(10, 10, 7)):
    g = torch.Generator().manual_seed(1)
    found = []
    for _ in range(n):
        ids = torch.randint(3, V, (len(lengths), 10), generator=g)
        mask = (torch.arange(10) < torch.tensor(lengths)[:, None]).long()
        ids[:, 0], ids[:, 4] = CLS, SEP
        ids[mask == 0] = PAD
        types = (torch.arange(10) > 4).long().expand(len(lengths), 10)
        labels = ids.where(mask == 1, -100)
        found.append({"input_ids": ids, "labels": labels, "attention_mask": mask, "token_type_ids": types})
    return found


def attach(folder, probe=None, tokenizer=Tokenizer, **settings):
    observer = AttentionPatterns(**{"size": 6, **settings})
    observer.probe = batches() if probe is None else probe
    observer.attach(Run(folder, tokenizer=tokenizer))
    return observer


@pytest.mark.parametrize(
    ("kind", "sites"), [("albert", ["layer@0", "layer@1"]), ("bert", ["layer1", "layer2"])]
)
def test_values_are_those_of_transformers_attentions(tmp_path, kind, sites):
    model = make(kind)
    table = attach(tmp_path).observe(model, 0)
    assert table["site"].unique().tolist() == sites
    model.set_attn_implementation("eager")
    parts = {site: [] for site in sites}
    maps = {site: [] for site in sites}
    with torch.no_grad():
        for b in batches():
            inputs = {k: b[k] for k in ("input_ids", "attention_mask", "token_type_ids")}
            special = (b["input_ids"] == CLS) | (b["input_ids"] == SEP)
            for site, p in zip(sites, model(**inputs, output_attentions=True).attentions, strict=True):
                tokens = b["attention_mask"].bool()
                parts[site].append(attention_scores(p, tokens, special, b["token_type_ids"]))
                maps[site].append(p[:, :, :6, :6])
    for site in sites:
        for quantity in parts[site][0]:
            expected = torch.cat([part[quantity] for part in parts[site]]).nanmean((0, 2))
            rows = select(table, site=site, quantity=quantity).sort_values("head")
            assert rows["head"].tolist() == [0, 1, 2, 3]
            assert rows["value"].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
        rows = select(table, site=site, quantity="map").sort_values(["head", "query", "key"])
        expected = torch.cat(maps[site]).mean(0).flatten()
        assert rows["value"].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_keys_that_a_batch_may_lack(tmp_path, caplog):
    probe = [{k: b[k] for k in ("input_ids", "labels")} for b in batches(lengths=(10, 10))]
    table = attach(tmp_path, probe, tokenizer=None).observe(make(), 0)
    assert set(table["quantity"]) == {"entropy", "diagonal", "itself", "map"}
    assert "no vertical score" in caplog.text


def test_sites_of_ones_own(tmp_path):
    sites = {"second": "bert.encoder.layer.1.attention.self"}
    table = attach(tmp_path, attention_sites=sites).observe(make("bert"), 0)
    assert table["site"].unique().tolist() == ["second"]
