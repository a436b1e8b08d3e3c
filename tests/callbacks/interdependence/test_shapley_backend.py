"""Interdependence by Shapley interaction against every pair by itself, for models and words of many kinds."""

import functools
import itertools
import logging

import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from lmdyn.callbacks import Interdependence
from lmdyn.datamodules import ConlluCorpus
from tests.analysis.interdependence.test_pairwise_shapley import enumerated
from tests.callbacks.interdependence.test_interdependence import (
    MAX_DISTANCE,
    about,
    attach,
    check_means,
    conllu,
    counts,
    found,
    language_model,
    sentences,
    tokenizer,
)
from tests.helpers.architectures import ARCHITECTURES
from tests.helpers.refusals import assert_refused

LENGTHS = (5, 1, 4, 2, 5, 3)
TEXT = sentences(LENGTHS)
SHAPLEY = {"backend": "shapley", "min_pairs": 2}


def pieces():
    """A tokenizer that makes three tokens of each word, ``w``, ``0``, ``3``, between [CLS] and [SEP]."""
    tokens = ["<unk>", "<pad>", "</s>", "[CLS]", "[SEP]", "[MASK]", "w", *"0123456789"]
    vocabulary = {t: i for i, t in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(t, vocabulary[t]) for t in ("[CLS]", "[SEP]")]
    )
    names = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>"}
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names, **special)


def rows_of(text, encode, values):
    """A row for each pair of each sentence, as ``direct`` of the decomposition's tests has it."""
    rows = []
    for number, (tokens, heads, tags) in enumerate(text):
        ids, words = encode(tokens)
        for a, b in itertools.combinations(range(len(tokens)), 2):
            if b - a > MAX_DISTANCE:
                continue
            distance, syntactic, pos_class = about(heads, tags, a, b)
            pair = {"sentence": number, "distance": distance, "syntactic": syntactic, "pos_class": pos_class}
            rows.append({**pair, **values(ids, words, a, b)})
    return pd.DataFrame(rows)


def one_by_one(forwards, vectors, baseline, causal=True):
    """The values of a pair by its definition, on word vectors: nothing of the observer takes part."""

    def values(ids, words, a, b):
        at = max(i for i, w in enumerate(words) if w == b)
        x = vectors(torch.tensor(ids))
        players = frozenset(w for w in words if w >= 0 and (w <= b or not causal))

        def relative(forward):
            @functools.cache
            def v(there):
                gone = torch.tensor([w in players - there for w in words])
                return forward(torch.where(gone[:, None], baseline, x)[None])[0, at]

            whole = enumerated(lambda there: v(frozenset(there)), a, b, players)
            return float(whole.norm() / v(players).norm())

        with torch.no_grad():
            return {site: relative(forward) for site, forward in forwards.items()}

    return values


@pytest.fixture(scope="module")
def lstm():
    return language_model().eval()


def lstm_forwards(module):
    def hidden(x):
        for layer in module.lstm.layers:
            x = layer(x)[0]
        return x

    return {"hidden": hidden, "logits": lambda x: module.decoder(hidden(x))}


def words_and_start(tokens):
    words = tokenizer()
    return [words.eos_token_id, *words.convert_tokens_to_ids(tokens)], [-1, *range(len(tokens))]


def mean_vector(module, text=TEXT):
    ids = torch.tensor(tokenizer().convert_tokens_to_ids([w for words, _, _ in text for w in words]))
    return module.embedding(ids).mean(0).detach()


def shapley(folder, **settings):
    settings = {"text": TEXT, **SHAPLEY, "max_distance": MAX_DISTANCE, **settings}
    return attach(folder, **settings)


def test_every_mean_is_that_of_its_pairs(lstm, tmp_path):
    table = shapley(tmp_path).observe(lstm, 3)
    values = one_by_one(lstm_forwards(lstm), lambda i: lstm.embedding(i).detach(), mean_vector(lstm))
    pairs = rows_of(TEXT, words_and_start, values)
    assert check_means(table, pairs, min_pairs=2) > 100
    assert float((pairs["hidden"] - pairs["logits"]).abs().max()) > 1e-3
    errors = table[table["quantity"].eq("sampling_error")]
    assert errors["value"].eq(0).all()
    assert len(errors) == 2 * MAX_DISTANCE
    assert not Interdependence.is_scalar(table)[errors.index].any()


def test_few_samples_cost_little_and_are_near(lstm, tmp_path):
    exact = shapley(tmp_path / "a").observe(lstm, 0)
    drawn = shapley(tmp_path / "b", exact_up_to=2, samples=256).observe(lstm, 0)
    other = shapley(tmp_path / "c", exact_up_to=2, samples=256, seed=1).observe(lstm, 0)
    for distance in range(1, MAX_DISTANCE + 1):
        of = {"site": "logits", "distance": distance}
        error = found(drawn, quantity="sampling_error", **of)
        values = [found(table, quantity="di", **of) for table in (exact, drawn, other)]
        assert error > 0
        assert abs(values[1] - values[0]) < 4 * error
        assert values[1] != values[2]


def bert(vocab_size, dtype=torch.float64):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = BertConfig(vocab_size=vocab_size, initializer_range=0.6, max_position_embeddings=40, **sizes)
    return BertForMaskedLM(config).to(dtype).eval()


def gpt2(vocab_size, positions=40, dtype=torch.float64):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=vocab_size, n_embd=16, n_layer=2, n_head=2, n_positions=positions, initializer_range=0.6,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).to(dtype).eval()


SHORT = [t for t in TEXT if len(t[0]) <= 4]


def test_words_of_several_tokens_of_a_bidirectional_model(tmp_path):
    """Between [CLS] and [SEP]; every word of the sentence is a player, and is read at its last token."""
    words = pieces()
    model = bert(len(words))
    observer = shapley(tmp_path, words=words, text=SHORT)
    table = observer.observe(model, 0)

    def hidden(x):
        return model.bert(inputs_embeds=x).last_hidden_state

    forwards = {"hidden": hidden, "logits": lambda x: model.cls(hidden(x))}
    embedding = model.bert.embeddings.word_embeddings

    def encode(tokens):
        ids = [i for t in tokens for i in words.convert_tokens_to_ids(list(t))]
        of = [w for w in range(len(tokens)) for _ in range(3)]
        return [words.cls_token_id, *ids, words.sep_token_id], [-1, *of, -1]

    assert encode(["w01"])[0] == words("w01")["input_ids"]
    of_words = [i for tokens, _, _ in SHORT for i in encode(tokens)[0][1:-1]]
    baseline = embedding.weight[of_words].detach().mean(0)
    values = one_by_one(forwards, lambda i: embedding(i).detach(), baseline, causal=False)
    check_means(table, rows_of(SHORT, encode, values), min_pairs=2)
    one_way = one_by_one(forwards, lambda i: embedding(i).detach(), baseline)
    control = rows_of(SHORT, encode, one_way)
    group = control[control["distance"].eq(1)]["hidden"].mean()
    assert found(table, quantity="di", site="hidden", distance=1) != pytest.approx(group, rel=1e-4)


def test_words_without_tokens_are_left_out_and_counted(tmp_path, caplog):
    words = pieces()
    words.backend_tokenizer.normalizer = normalizers.Replace("w07", "")
    text = [(["w01", "w07", "w02"], [1, -1, 1], ["NOUN"] * 3)] * 2
    with caplog.at_level(logging.INFO):
        observer = shapley(tmp_path, words=words, text=text)
    assert "words that have no token of this tokenizer (4 of 6 pairs; 2 of 6 words)" in caplog.text
    assert observer.pairs.table["distance"].tolist() == [2, 2]
    table = observer.observe(bert(len(words)), 0)
    assert found(table, quantity="pairs", site="hidden", distance=2) == 2
    assert found(table, quantity="pairs", site="hidden", distance=1) is None


# ---------------------------------------------------------------- both backends


@pytest.mark.parametrize("backend", ["decomposition", "shapley"])
def test_without_trees_or_tags_there_are_distances_all_the_same(lstm, tmp_path, backend, caplog):
    settings = {"backend": backend, "min_pairs": 2, "max_distance": MAX_DISTANCE, "token_counts": counts()}
    whole = attach(tmp_path / "whole", text=TEXT, **settings).observe(lstm, 0)
    by_distance = whole[whole["syntactic"].isna() & whole["pos_class"].isna()]
    for missing, gone in (("heads", "syntactic"), ("upos", "pos_class")):
        caplog.clear()
        (tmp_path / missing).mkdir()
        path = conllu(tmp_path / missing / "x.conllu", TEXT, **{missing: False})
        observer = attach(tmp_path / missing, probe=ConlluCorpus(validation=path), **settings)
        assert f"no {missing} in {len(TEXT)} of {len(TEXT)} sentences, so lmdyn records no" in caplog.text
        table = observer.observe(lstm, 0)
        assert table[gone].isna().all()
        assert set(table["quantity"]) <= set(whole["quantity"])
        expected = by_distance
        if missing == "heads":
            kinds = ("syntactic", "partial", "matched")
            of_trees = [q for q in set(whole["quantity"]) if any(kind in q for kind in kinds)]
            assert len(of_trees) == 12  # each with its error, by distance and over distances
            assert set(table["quantity"]) == set(whole["quantity"]) - set(of_trees)
            expected = expected[~expected["quantity"].isin(of_trees)]
        got = table[table["syntactic"].isna() & table["pos_class"].isna()]
        got, expected = (t.drop(columns="pos_class").fillna({"word": ""}) for t in (got, expected))
        whole_rows = got.reset_index(drop=True), expected.reset_index(drop=True)
        pd.testing.assert_frame_equal(*whole_rows, rtol=1e-12, atol=1e-12, check_dtype=False)


# ---------------------------------------------------------------- models


class Odd(nn.Module):
    """No embedding that can be watched, no block, no logits of each word."""

    def __init__(self, kind):
        super().__init__()
        self.table = nn.Parameter(torch.randn(64, 4))
        self.words = nn.Embedding(64, 4) if kind == "pooled" else None
        self.inner = nn.Linear(4, 6)

    def forward(self, input_ids):
        return self.inner(self.table[input_ids]) if self.words is None else self.words(input_ids).mean(1)


def test_modules_that_do_not_fit_are_refused_with_the_remedy(tmp_path):
    def check(module, **settings):
        shapley(tmp_path, text=SHORT, **settings).check_module(module)

    plain, pooled, gpt = Odd("plain"), Odd("pooled"), ARCHITECTURES["gpt2"]()
    assert_refused(
        check,
        ({"module": plain, "spaces": ["logits"]}, "found no embedding.*set `embedding`"),
        ({"module": plain}, "found no norm or block.*`spaces: .logits.`"),
        (
            {"module": pooled, "spaces": ["logits"], "embedding": "words"},
            r"expected logits as \(batch, time, features\).*`spaces: .hidden.`",
        ),
        ({"module": gpt2(64, positions=4)}, "cannot read a sentence of 5 tokens.*`max_length`"),
        ({"module": gpt2(10)}, "with ids up to .*the model's own tokenizer"),
        ({"module": gpt, "hidden": "h.9"}, "has no module 'h.9'; the modules are: "),
        (
            {"module": ARCHITECTURES["t5"](), "spaces": ["logits"]},
            "an encoder-decoder belong to the decoder's",
        ),
    )
