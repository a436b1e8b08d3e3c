"""Surprisals against one row at a time in float64, by words of the text; contexts; and what is refused."""

import math
import re
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
import torch
import transformers as hf

from lmdyn.callbacks import Run, Surprisals
from lmdyn.datamodules.corpora.tokenization import word_tokenizer
from lmdyn.runs.schema import select
from tests.helpers.foreign_tokenizers import byte_level, trained
from tests.helpers.observing import assert_leaves_alone
from tests.helpers.refusals import assert_refused

NOUNS = ("cat", "dog", "lamp", "unbelievable")
TEXTS = [
    f"the {n} sees a {m} near the {k} , and they sleep . the {n}s sleep"
    for n in NOUNS
    for m in NOUNS
    for k in NOUNS
]
SMALL = {"least_contexts": 3, "least_context_tokens": 3}


def rows_of(tokenizer, size, texts=TEXTS, side="right"):
    tokenizer.padding_side = side
    batches = []
    for i in range(0, len(texts), size):
        encoded = tokenizer(texts[i : i + size], return_tensors="pt", padding="longest")
        labels = encoded["input_ids"].masked_fill(encoded["attention_mask"] == 0, -100)
        batches.append(
            {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"], "labels": labels}
        )
    return batches


def gpt(tokenizer):
    torch.manual_seed(0)
    config = hf.GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=2, n_head=2, n_positions=64)
    model = hf.GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def pieces():
    return byte_level(TEXTS, pad_token="<pad>", unk_token="<unk>")


def observed(folder, tokenizer, batches, model, **settings):
    observer = Surprisals(probe=batches, **{**SMALL, **settings})
    observer.attach(Run(folder, tokenizer))
    observer.bind(model)
    return observer, assert_leaves_alone(observer, model)


def of_words(table, quantity="surprisal"):
    rows = select(table, quantity=quantity)
    return rows[rows["word"].ne("")].set_index("word")["value"]


@torch.no_grad()
def one_at_a_time(model, tokenizer, texts, boundary):
    """Words by white space, with the probability that what follows is no part of them, piece by piece."""
    vocabulary = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    spelled = [
        tokenizer.convert_tokens_to_string([token]) for token in vocabulary
    ]  # a part of a character: �
    goes_on = [bool(re.match("'?[\\w�]", text)) and text[0] != "_" for text in spelled]
    ends = ~torch.tensor(goes_on)
    found = defaultdict(list)
    exact = model.double()
    for text in texts:
        encoding = tokenizer(text, return_offsets_mapping=True)
        ids, offsets = encoding["input_ids"], encoding["offset_mapping"]
        log_p = exact(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        for match in re.finditer(r"\w+", text):
            inside = [i for i, (b, e) in enumerate(offsets) if b < match.end() and e > match.start()]
            first, last = inside[0], inside[-1]
            if first < SMALL["least_context_tokens"] or match.end() == len(text):
                continue
            total = sum(float(log_p[i - 1, ids[i]]) for i in inside)
            if boundary == "before":
                total += float(log_p[last, ends].logsumexp(0) - log_p[first - 1, ends].logsumexp(0))
            found[match.group()].append(-total / math.log(2))
    model.float()
    return {word: np.mean(bits) for word, bits in found.items()}, {w: len(b) for w, b in found.items()}


@pytest.mark.parametrize(("boundary", "side", "size"), [("before", "right", 5), ("after", "left", 64)])
def test_words_of_a_causal_model_are_those_of_the_text(tmp_path, boundary, side, size):
    tokenizer = pieces()
    model = gpt(tokenizer)
    _, table = observed(tmp_path, tokenizer, rows_of(tokenizer, size, side=side), model, boundary=boundary)
    expected, contexts = one_at_a_time(model, tokenizer, TEXTS, boundary)
    found = of_words(table)
    assert set(found.index) == set(expected)
    assert of_words(table, "contexts").to_dict() == contexts
    for word, bits in expected.items():
        assert found[word] == pytest.approx(bits, abs=1e-4 if side == "left" else 1e-5), word
    assert len(tokenizer("unbelievable")["input_ids"]) > 1 or len(tokenizer(" lamps")["input_ids"]) > 1
    mean = select(table, quantity="surprisal", word="")["value"].item()
    assert mean == pytest.approx(np.mean(list(expected.values())), abs=1e-4)
    other, _ = one_at_a_time(model, tokenizer, TEXTS, "after" if boundary == "before" else "before")
    assert np.abs(np.array([found[w] - other[w] for w in found.index])).max() > 0.05  # the control


def test_batches_of_any_size_choose_the_same_contexts(tmp_path):
    tokenizer = pieces()
    model, tables = gpt(tokenizer), []
    for size in (1, 7, 64):
        batches = rows_of(tokenizer, size)
        _, table = observed(tmp_path / str(size), tokenizer, batches, model, most_contexts=10, most_words=6)
        tables.append(table)
        assert of_words(table, "contexts").eq(10).all()
        assert len(of_words(table)) == 6
    for table in tables[1:]:
        pd.testing.assert_frame_equal(table, tables[0], rtol=1e-4)
    _, whole = observed(tmp_path / "all", tokenizer, rows_of(tokenizer, 7), model, most_words=6)
    assert (of_words(whole) - of_words(tables[0])).abs().max() > 1e-3


def test_words_of_a_masked_model_are_those_whose_pieces_are_all_masked(tmp_path):
    tokenizer = trained("wordpiece")
    text = "the words of the text in a wrapped paragraph of some lines and then more words of text"
    ids = torch.tensor([tokenizer(text)["input_ids"]] * 2)
    words = tokenizer(text).word_ids()
    hidden, kept = [7, 12], 4  # words of one piece or more, and one that stays visible
    given, labels = ids.clone(), torch.full_like(ids, -100)
    for i, word in enumerate(words):
        if word in (*hidden, kept):
            labels[:, i] = ids[:, i]
            given[:, i] = ids[:, i] if word == kept else tokenizer.mask_token_id
    (part, *others) = (i for i, word in enumerate(words) if word == 10)  # the first of its pieces alone
    assert others
    given[1, part], labels[1, part] = tokenizer.mask_token_id, ids[1, part]
    batch = {"input_ids": given, "attention_mask": torch.ones_like(given), "labels": labels}
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    model = hf.BertForMaskedLM(hf.BertConfig(vocab_size=len(tokenizer), **sizes)).eval()
    _, table = observed(tmp_path, tokenizer, [batch], model, least_contexts=1)
    with torch.no_grad():
        log_p = model(input_ids=given, attention_mask=batch["attention_mask"]).logits.log_softmax(-1)
    spelled = text.split()
    expected = {
        spelled[w]: np.mean([
            -sum(float(log_p[row, i, ids[row, i]]) for i, word in enumerate(words) if word == w) / math.log(2)
            for row in (0, 1)
        ])
        for w in hidden
    }  # fmt: skip
    found = of_words(table)
    assert found.to_dict() == pytest.approx(expected, abs=1e-5)
    assert of_words(table, "contexts").eq(2).all()


def words_model(tmp_path, **settings):
    """A tokenizer of whole words, with counts of training."""
    counts = {"the": 60, "cat": 30, "dog": 10, ".": 20}
    tokenizer = word_tokenizer(counts)
    frequencies = pd.DataFrame(
        {"count": [counts.get(t, 7) for t in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]}
    )
    observer = Surprisals(
        probe=rows_of(tokenizer, 4, ["the cat . the dog the dog the cat . the the"] * 9),
        **{**SMALL, **settings},
    )
    observer.attach(Run(tmp_path, tokenizer, token_counts=frequencies))
    return observer, tokenizer


def test_unigrams_are_those_of_training_or_of_the_probe_set(tmp_path):
    for frequency, shares in (
        (None, {"the": 0.6, "cat": 0.3, "dog": 0.1}),
        ("probe", {"the": 0.6, "cat": 0.2, "dog": 0.2}),
    ):
        observer, tokenizer = words_model(tmp_path / str(frequency), frequency=frequency)
        model = gpt(tokenizer)
        observer.bind(model)
        table = observer.observe(model, 0)
        assert of_words(table, "unigram").to_dict() == pytest.approx(
            {w: -math.log2(p) for w, p in shares.items()}
        )
        assert observer.settings["frequency"] == (frequency or "train")


def test_lists_of_words(tmp_path, caplog):
    (tmp_path / "words.txt").write_text("dog\n\nDog\nbird\ndog\n", encoding="utf-8")
    observer, tokenizer = words_model(tmp_path / "file", words=str(tmp_path / "words.txt"))
    model = gpt(tokenizer)
    observer.bind(model)
    table = observer.observe(model, 0)
    assert of_words(table).index.tolist() == ["dog"]
    assert observer.settings["words"] == ["dog", "Dog", "bird", "dog"]
    assert "got 2 of 3 words without rows (Dog, bird)" in caplog.text
    few, _ = words_model(tmp_path / "few", words=["cat", "dog"], least_contexts=19)
    with pytest.raises(
        ValueError, match="expected words with 19 contexts of 3 tokens in the probe set, got none: observe"
    ):
        few.bind(model)


def test_what_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    assert_refused(
        lambda **settings: words_model(tmp_path, **settings),
        ({"words": []}, "`words` is empty: name words"),
        ({"words": str(tmp_path / "empty.txt")}, "`words` is empty"),
        ({"words": "none.txt"}, "`words` is 'none.txt': expected a file that exists"),
    )
    with pytest.raises(ValueError, match="requires the run's tokenizer"):
        Surprisals(probe=[{"input_ids": torch.ones(1, 4)}]).attach(Run(tmp_path, None))
    tokenizer = pieces()
    sizes = {"d_model": 16, "num_layers": 1, "d_ff": 16, "num_heads": 2}
    t5 = hf.T5Config(vocab_size=len(tokenizer), **sizes, decoder_start_token_id=0, pad_token_id=0)
    for settings, model, message in (
        ({"frequency": "train"}, gpt(tokenizer), "`frequency: train` requires a tokenizer of whole words"),
        ({}, hf.T5ForConditionalGeneration(t5), "got an encoder-decoder"),
    ):
        observer = Surprisals(probe=rows_of(tokenizer, 8), **SMALL, **settings)
        observer.attach(Run(tmp_path, tokenizer))
        with pytest.raises(ValueError, match=message):
            observer.bind(model)
