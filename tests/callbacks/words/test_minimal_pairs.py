"""MinimalPairs against one sentence at a time by transformers in float64, and against counts by hand."""

import copy
import math
import re

import numpy as np
import pandas as pd
import pytest
import torch
import transformers as hf
from tokenizers import processors

import lmdyn
from lmdyn.analysis.statistics.intervals import share_interval
from lmdyn.analysis.words.ngram_counts import NgramCounts
from lmdyn.analysis.words.ngram_models import NgramModels
from lmdyn.callbacks import MinimalPairs, Run, Steps
from lmdyn.callbacks.observing.loggers import scalar_tags
from lmdyn.datamodules.corpora.tokenization import word_tokenizer
from lmdyn.integrations.loop_data import data_of
from lmdyn.models import LSTMLanguageModel
from lmdyn.runs.schema import select
from tests.helpers.architectures import NanoGPT
from tests.helpers.foreign_tokenizers import byte_level
from tests.helpers.observing import assert_leaves_alone
from tests.helpers.refusals import assert_refused

NOUNS = ("cat", "dog", "keys", "unbelievable lamps", "bird")
ROWS = [
    *((f"the {n} near the small {m} sleeps .", f"the {n} near the small {m} sleep .", "verb", "1") for n in NOUNS
      for m in NOUNS),
    *((f"a {n} sleeps", f"{n} a sleeps", "order", "") for n in NOUNS),
    *((f"the bird sees the {n}", f"the bird sees the {n} {n}", "length", "2") for n in NOUNS),
    ("the cat sleeps .", "the cat sleeps .", "order", ""),
]  # fmt: skip
FIELDS = {"verb": "syntax", "order": "syntax", "length": "other"}
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 24}
CAUSAL = {
    "gpt2": lambda v: hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=v, n_embd=16, n_layer=2, n_head=2, n_positions=48)),
    "llama": lambda v: hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=v, **SIZES)),
    "opt": lambda v: hf.OPTForCausalLM(
        hf.OPTConfig(vocab_size=v, hidden_size=16, num_attention_heads=2, num_hidden_layers=2, ffn_dim=24,
                     word_embed_proj_dim=16, max_position_embeddings=48)
    ),
    "gpt_neox": lambda v: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(vocab_size=v, **SIZES)),
}  # fmt: skip
MASKED = {
    "bert": lambda v: hf.BertForMaskedLM(hf.BertConfig(vocab_size=v, **SIZES)),
    "roberta": lambda v: hf.RobertaForMaskedLM(hf.RobertaConfig(vocab_size=v, **SIZES, pad_token_id=0)),
    "electra": lambda v: hf.ElectraForMaskedLM(hf.ElectraConfig(vocab_size=v, **SIZES, embedding_size=8)),
    "albert": lambda v: hf.AlbertForMaskedLM(hf.AlbertConfig(vocab_size=v, **SIZES, embedding_size=8)),
}


class Pairs:
    """Any object with pairs."""

    def __init__(self, rows=ROWS):
        self.pairs = pd.DataFrame(rows, columns=["good", "bad", "paradigm", "attractors"])
        self.pairs["field"] = self.pairs["paradigm"].map(FIELDS).fillna("")
        self.pairs["pair"] = [str(i) for i in range(len(rows))]
        self.pairs = self.pairs.assign(term="", file="pairs.tsv", line=range(2, len(rows) + 2))


def pieces(side="right", template=None):
    """Byte-level pieces, as a tokenizer that pads on a side and may put tokens around a text."""
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    special |= {"mask_token": "[MASK]", "bos_token": "<s>"}
    tokenizer = byte_level([row[0] for row in ROWS], **special)
    tokenizer.padding_side = side
    if template:
        tokens = [(t, tokenizer.convert_tokens_to_ids(t)) for t in ("[CLS]", "[SEP]", "<s>")]
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=tokens
        )
    return tokenizer


def made(kind, tokenizer):
    torch.manual_seed(0)
    model = kind(len(tokenizer))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.4 * torch.randn_like(p))
    return model


def attached(folder, tokenizer, rows=ROWS, **settings):
    observer = MinimalPairs(probe=Pairs(rows), **settings)
    observer.attach(Run(folder, tokenizer))
    return observer


def ratios(table):
    return select(table, quantity="log_ratio")["value"].to_numpy()


@torch.no_grad()
def one_at_a_time(model, tokenizer, text, before=()):
    """Of a causal model, in float64; a beginning without a token leaves the first piece out."""
    ids = torch.tensor([[*before, *tokenizer(text, add_special_tokens=False)["input_ids"]]])
    output = model(ids, ids) if isinstance(model, NanoGPT) else model(input_ids=ids)
    logits = output[0] if isinstance(output, tuple) else output.logits
    return float(logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None]).sum())


@torch.no_grad()
def pseudo_log_likelihood(model, tokenizer, text, pseudo):
    """A mask a row; rows of one length, none of which is padded."""
    encoding = tokenizer(text, return_offsets_mapping=True)
    ids, masked = encoding["input_ids"], []
    word = [
        len(text[: b + 1].strip().split()) + (text[b : b + 1] == " ") for b, _ in encoding["offset_mapping"]
    ]
    places = torch.arange(1, len(ids) - 1)
    for i in places.tolist():
        same = [j for j in range(i, len(ids) - 1) if j == i or (pseudo != "piece" and word[j] == word[i])]
        masked.append([tokenizer.mask_token_id if j in same else t for j, t in enumerate(ids)])
    logits = model(input_ids=torch.tensor(masked)).logits[places - 1, places]
    return float(logits.log_softmax(-1)[places - 1, torch.tensor(ids)[places]].sum())


def check(observer, model, score):
    model.train()
    table = assert_leaves_alone(observer, model)
    exact = copy.deepcopy(model).double().eval()
    expected = [score(exact, good) - score(exact, bad) for good, bad, *_ in ROWS]
    assert np.std(expected) > 0.5
    np.testing.assert_allclose(ratios(table), expected, atol=1e-5, rtol=1e-5)
    right = np.sign(expected) / 2 + 0.5
    right[-1] = 0.5
    accuracy = select(table, quantity="accuracy", by="")["value"].item()
    assert accuracy == pytest.approx(right.mean())
    return table


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", CAUSAL)
def test_causal_scores_are_those_of_one_sentence_at_a_time(tmp_path, name, side):
    tokenizer = pieces(side, "[CLS] <s> $A [SEP]" if side == "left" else None)
    before = tokenizer.convert_tokens_to_ids(["[CLS]", "<s>"] if side == "left" else ["<s>"])
    observer, model = attached(tmp_path, tokenizer), made(CAUSAL[name], tokenizer)
    check(observer, model, lambda m, text: one_at_a_time(m, tokenizer, text, before))
    assert observer.encoded.shares
    assert observer.settings["scoring"] == "causal"


def test_beginnings_are_not_shared_by_rotations_that_depend_on_the_length_of_a_row(tmp_path):
    tokenizer = pieces()
    sizes = {len(tokenizer(text)["input_ids"]) for row in ROWS for text in row[:2]}
    short = next(n for n in range(12, 99) if n not in sizes)  # one_at_a_time also reads the last piece
    rotations = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 2.0, "short_factor": [1.0] * 4,
                 "long_factor": [3.0] * 4, "original_max_position_embeddings": short}  # fmt: skip
    kind = hf.Phi3Config(
        vocab_size=len(tokenizer), **SIZES, pad_token_id=0, eos_token_id=0, max_position_embeddings=2 * short,
        original_max_position_embeddings=short, rope_parameters=rotations,
    )  # fmt: skip
    observer, model = attached(tmp_path, tokenizer), made(lambda _: hf.Phi3ForCausalLM(kind), tokenizer)
    before = tokenizer.convert_tokens_to_ids(["<s>"])
    check(observer, model, lambda m, text: one_at_a_time(m, tokenizer, text, before))
    assert min(sizes) < short < max(sizes)
    assert not observer.encoded.shares


@pytest.mark.parametrize("pseudo", ["piece", "rest_of_word"])
@pytest.mark.parametrize("name", MASKED)
def test_masked_scores_are_those_of_one_mask_at_a_time(tmp_path, name, pseudo):
    tokenizer = pieces("left" if pseudo == "piece" else "right", "[CLS] $A [SEP]")
    observer, model = attached(tmp_path, tokenizer, pseudo=pseudo), made(MASKED[name], tokenizer)
    check(observer, model, lambda m, text: pseudo_log_likelihood(m, tokenizer, text, pseudo))
    assert observer.settings["scoring"] == "masked"


def lstm(size):
    return LSTMLanguageModel(vocab_size=size, embedding_size=8, hidden_size=8)


@pytest.mark.parametrize("start", ["<s>", ""])
def test_recurrent_models_read_each_sentence_from_a_fresh_state(tmp_path, start):
    tokenizer = pieces()
    observer, model = attached(tmp_path, tokenizer, start=start), made(lstm, tokenizer)
    before = tokenizer.convert_tokens_to_ids([start]) if start else []
    check(observer, model, lambda m, text: one_at_a_time(m, tokenizer, text, before))
    assert observer.encoded.shares


def tokens_read(observer, model, embedding):
    """Number of tokens that reach the model in an observation."""
    counted = []
    handle = embedding.register_forward_hook(lambda _, args, __: counted.append(args[0].numel()))
    observer.observe(model, 0)
    handle.remove()
    return sum(counted)


@pytest.mark.parametrize("name", [*CAUSAL, "lstm"])
def test_tokens_through_the_model_are_hardly_more_than_necessary(tmp_path, name):
    """What the two sentences of a pair begin with is read once; sentences of several pairs, too."""
    tokenizer = pieces()
    observer, model = attached(tmp_path, tokenizer), made({**CAUSAL, "lstm": lstm}[name], tokenizer)
    observer.bind(model)
    encoded = {text: [-1, *tokenizer(text)["input_ids"][:-1]] for row in ROWS for text in row[:2]}
    necessary = apart = 0
    for good, bad, *_ in ROWS[:-1]:
        a, b = encoded[good], encoded[bad]
        shared = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        necessary += len(a) + len(b) - shared
        apart += len(a) + len(b)
    embedding = next(m for m in model.modules() if isinstance(m, torch.nn.Embedding))  # of tokens
    read = tokens_read(observer, model, embedding)
    assert read <= 1.2 * necessary
    assert read < 0.8 * apart  # the control: what is shared matters here
    observer.encoded._groups = [type(g)(0, [row]) for g in observer.encoded._groups for row in g.rows]
    assert tokens_read(observer, model, embedding) > 1.2 * necessary


@pytest.mark.parametrize("start", ["<s>", ""])
def test_models_in_the_style_of_nanogpt(tmp_path, monkeypatch, start):
    """They read whole sentences, and answer all logits only if they get labels."""
    monkeypatch.setattr("tests.helpers.architectures.VOCABULARY", 320)
    tokenizer = pieces()
    observer, model = attached(tmp_path, tokenizer, start=start), made(lambda _: NanoGPT(), tokenizer)
    before = tokenizer.convert_tokens_to_ids([start]) if start else []
    check(observer, model, lambda m, text: one_at_a_time(m, tokenizer, text, before))
    assert not observer.encoded.shares


BIGRAMS = {
    "<eos>": {"a": 0.6, "b": 0.4},
    "a": {"b": 0.5, "c": 0.5},
    "b": {"a": 0.9, "c": 0.1},
    "c": {"a": 1.0},
}
BY_HAND = [
    ("a b", "b c", "x", "0"),  # .3 and .04
    ("b c", "b a", "x", "1"),  # .04 and .36
    ("a b", "a c", "x", "1"),  # a tie
    ("a b a", "b a", "y", "0"),  # .27 and .36; by token and by character, the first is higher
    ("a zzz", "a b", "y", "0"),  # differ in an unknown word: half
    ("zzz a b", "zzz b c", "y", "0"),  # both have it: .5 and .1
    ("a b", "a b", "y", "0"),  # equal: half
]


def bigrams():
    tokenizer = word_tokenizer(dict.fromkeys("abcd", 2))
    table = torch.full((len(tokenizer), len(tokenizer)), -30.0)
    for one, following in BIGRAMS.items():
        for other, p in following.items():
            table[tuple(tokenizer.convert_tokens_to_ids([one, other]))] = math.log(p)
    return tokenizer, torch.nn.Embedding.from_pretrained(table)


def test_accuracies_by_hand(tmp_path):
    tokenizer, model = bigrams()
    observer = attached(tmp_path, tokenizer, BY_HAND)
    table = observer.observe(model, 3)
    found = table.set_index(["quantity", "by", "group"])["value"]
    groups = {("", ""): (3.5, 7), ("paradigm", "x"): (1.5, 3), ("paradigm", "y"): (2, 4), ("attractors", "1"): (0.5, 2),
              ("attractors", "0"): (3, 5)}  # fmt: skip
    for (by, group), (right, n) in groups.items():
        low, high = share_interval(right / n, n)
        values = [found[f"accuracy{end}", by, group] for end in ("", "_low", "_high")]
        assert [*values, found["pairs", by, group]] == pytest.approx([right / n, low, high, n])
    assert set(table["by"]) == {"", "paradigm", "attractors", "pair"}  # these pairs have no fields or terms
    assert (
        found["accuracy_by_token", "paradigm", "y"] == found["accuracy_by_character", "paradigm", "y"] == 0.75
    )
    assert found["shorter", "paradigm", "y"] == pytest.approx((0 + 0.5 * 3) / 4)
    assert ratios(table) == pytest.approx(
        np.log([0.3 / 0.04, 0.04 / 0.36, 1, 0.27 / 0.36, 1, 5, 1]), abs=1e-5
    )
    numbers = [found[name, "", ""] for name in ("indistinct", "unknown_words", "chance")]
    assert numbers == [2, 3, 0.5]
    tags = scalar_tags(observer.name, table[MinimalPairs.is_scalar(table)])
    assert {"minimal_pairs/accuracy/paradigm/x", "minimal_pairs/shorter/attractors/0"} <= tags.keys()
    assert not any(re.search("log_ratio|low|high|shorter/paradigm", tag) for tag in tags)
    few = attached(tmp_path / "few", tokenizer, BY_HAND, most=2).observe(model, 0)
    assert select(few, quantity="pairs")["value"].tolist() == [4, 2, 2, 3, 1]


def test_the_floor_of_n_grams_is_that_of_the_training_text(tmp_path):
    tokenizer, model = bigrams()
    texts = [tokenizer.convert_tokens_to_ids(list(text)) for text in ("abcabcabc", "cabb")]
    batches = [{"input_ids": torch.tensor([ids]), "labels": torch.tensor([ids])} for ids in texts]
    rows = [
        ("a b c", "a c b", "x", ""),
        ("c b a", "c a b", "x", ""),
        ("b c", "b c", "y", ""),
        ("b", "zz", "y", ""),
    ]
    observer = MinimalPairs(probe=Pairs(rows), ngram=3)
    observer.attach(Run(tmp_path, tokenizer, datamodule=data_of(batches, batches)))
    table = observer.observe(model, 0)
    assert "minimal_pairs/ngram" in scalar_tags(observer.name, table[MinimalPairs.is_scalar(table)])
    found = table.set_index(["quantity", "by", "group"])["value"]
    models = NgramModels(NgramCounts.of(texts, len(tokenizer), 3))
    good, bad = (
        [
            p.sum()
            for p in models.log_probabilities(
                3, [tokenizer.convert_tokens_to_ids(r[i].split()) for r in rows[:2]]
            )
        ]
        for i in (0, 1)
    )
    assert (good[0] > bad[0], good[1] > bad[1]) == (True, False)
    assert [found["ngram", by, group] for by, group in (("", ""), ("paradigm", "x"), ("paradigm", "y"))] == [
        0.5
    ] * 3
    assert "train_set" in observer.settings
    assert "ngram" not in attached(tmp_path / "none", tokenizer, rows).settings
    with pytest.raises(ValueError, match="`ngram` requires training text"):
        attached(tmp_path / "without", tokenizer, rows, ngram=3)


def test_an_unknown_word_that_both_sentences_have_makes_no_tie(tmp_path):
    tokenizer, model = bigrams()
    rows = [
        ("a zz b", "b zz a", "x", ""),
        ("a zz b", "b a", "x", ""),
        ("b zz b", "b zz b c", "x", ""),
        ("a zz", "zz zz", "x", ""),
    ]
    observer = attached(tmp_path, tokenizer, rows)
    table = observer.observe(model, 0)
    assert observer.indistinct.tolist() == [False, True, False, True]
    assert (ratios(table) == 0).tolist() == [False, True, False, True]


def test_ties_are_drawn_the_same_at_each_step(tmp_path):
    tokenizer, model = bigrams()
    rows = [("a b", "a c", "x", "")] * 400
    half, drawn, other = (
        select(attached(tmp_path / str(i), tokenizer, rows, **how).observe(model, i), quantity="accuracy")[
            "value"
        ]
        for i, how in enumerate(({}, {"ties": "draw"}, {"ties": "draw"}))
    )
    assert half.unique().tolist() == [0.5]
    assert drawn.tolist() == other.tolist()
    assert 0.4 < drawn.iloc[0] < 0.6 != drawn.iloc[0]


def test_logits_that_are_not_finite_give_no_hit(tmp_path, caplog):
    tokenizer, model = bigrams()
    observer = attached(tmp_path, tokenizer, BY_HAND)
    observer.bind(model)
    with torch.no_grad():
        model.weight[tokenizer.convert_tokens_to_ids("b")] = torch.nan
    table = observer.observe(model, 0)
    found = table.set_index(["quantity", "by", "group"])["value"]
    assert np.isnan(
        [found["accuracy", "", ""], found["accuracy_low", "", ""], found["accuracy", "paradigm", "x"]]
    ).all()
    assert np.isfinite([found["shorter", "", ""], found["chance", "", ""]]).all()
    finite = np.isfinite(ratios(table))
    assert finite.tolist() == [False, False, True, False, True, False, True]
    assert "not finite at step 0" in caplog.text


def test_what_is_refused_before_the_first_observation(tmp_path, caplog):
    tokenizer, model = bigrams()
    with pytest.raises(ValueError, match="minimal_pairs requires a `probe` with pairs, such as PairFiles"):
        MinimalPairs().attach(Run(tmp_path, tokenizer))
    with pytest.raises(ValueError, match="requires the run's tokenizer"):
        MinimalPairs(probe=Pairs(BY_HAND)).attach(Run(tmp_path))
    with pytest.raises(ValueError, match=r"requires minimal pairs, got \w+ without `pairs`.*PairFiles"):
        MinimalPairs(probe=[]).attach(Run(tmp_path, tokenizer))
    model.config = hf.GPT2Config(n_positions=32)
    t5 = hf.T5Config(vocab_size=99, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    assert_refused(
        lambda pair, of=model, **settings: attached(
            tmp_path, tokenizer, [*BY_HAND, (*pair, "z", "")], **settings
        ).bind(of),
        ({"pair": ("a b " * 20, "a")}, "positions of the model, got 40 in pairs.tsv:9"),
        ({"pair": ("a b", "a"), "start": ""}, "a token to predict, got none in pairs.tsv:9: set `start`"),
        (
            {"pair": ("a", "b"), "of": hf.T5ForConditionalGeneration(t5)},
            "minimal_pairs: .* an encoder-decoder",
        ),
    )
    attached(tmp_path, tokenizer, BY_HAND).bind(model)
    assert "got 2 of 7 pairs that differ in unknown words or not at all, such as pairs.tsv:6" in caplog.text


def test_watched_in_another_loop(tmp_path):
    tokenizer, model = bigrams()
    ids = torch.tensor([tokenizer.convert_tokens_to_ids(list("abacaba"))])
    watcher = lmdyn.watch(
        model, [MinimalPairs(probe=Pairs(BY_HAND))], probe=[{"input_ids": ids, "labels": ids}], logger=None,
        folder=tmp_path / "watched", tokenizer=tokenizer, schedule=Steps(at=(0,), last=False),
    )  # fmt: skip
    watcher.close()
    stored = pd.read_parquet(tmp_path / "watched" / "observations" / "minimal_pairs")
    table = attached(tmp_path, tokenizer, BY_HAND).observe(model, 0)
    assert stored.astype(str).to_numpy().tolist() == table.astype(str).to_numpy().tolist()
