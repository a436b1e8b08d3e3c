"""Reading: surprisals against one word at a time, regressions against reading_fit, refusals."""

import copy
import math

import numpy as np
import pandas as pd
import pytest
import torch

from lmdyn.analysis import reading_fit, surprisals
from lmdyn.callbacks import Reading, Run
from lmdyn.callbacks.observing.loggers import scalar_tags
from lmdyn.runs.schema import select
from tests.callbacks.words.test_minimal_pairs import CAUSAL, MASKED, bigrams, lstm, made, pieces
from tests.helpers.observing import assert_leaves_alone

SENTENCES = [
    "the unbelievable cat near the small lamps sleeps .",
    "a bird sees the keys",
    "the dog near the unbelievable bird sees a small cat",
]


def table(sentences=SENTENCES, readers=("",), seed=0):
    """Rows as ReadingFiles has them, of whole sentences."""
    rng = np.random.default_rng(seed)
    rows = [
        {"text": text, "index": i, "word": word, "item": f"{number}/{i}", "subject": reader, "length": len(word),
         "frequency": rng.normal(), "before": i, "file": "x.csv", "line": 2 + i, "spr": 200 + rng.normal()}
        for reader in readers for number, text in enumerate(sentences) for i, word in enumerate(text.split())
    ]  # fmt: skip
    return pd.DataFrame(rows)


class Times:
    """Any object with reading times."""

    def __init__(self, rows, times=("spr",)):
        self.reading_times, self.times = rows, list(times)


def attached(folder, tokenizer, rows, **settings):
    observer = Reading(probe=Times(rows), **settings)
    observer.attach(Run(folder, tokenizer))
    return observer


def by_item(observed):
    return select(observed, quantity="surprisal").set_index("item")["value"].drop("")


@torch.no_grad()
def one_word_at_a_time(model, tokenizer, text, before):
    """Bits of each word, by the model's answer to all that is before each of its pieces."""
    found = []
    words = text.split()
    for i in range(len(words)):
        start = tokenizer(" ".join(words[:i]), add_special_tokens=False)["input_ids"] if i else []
        ids = tokenizer(" ".join(words[: i + 1]), add_special_tokens=False)["input_ids"]
        assert ids[: len(start)] == start
        bits = 0.0
        for at in range(len(start), len(ids)):
            logits = model(input_ids=torch.tensor([[*before, *ids[:at]]])).logits
            bits -= float(logits[0, -1].log_softmax(-1)[ids[at]]) / math.log(2)
        found.append(bits)
    return found


@pytest.mark.parametrize("kind", ["gpt2", "llama", "lstm"])
def test_a_causal_models_words(tmp_path, kind):
    tokenizer = pieces()
    model = made({**CAUSAL, "lstm": lstm}[kind], tokenizer)
    observed = assert_leaves_alone(attached(tmp_path, tokenizer, table()), model.train())
    exact = copy.deepcopy(model).double().eval()
    before = tokenizer.convert_tokens_to_ids(["<s>"])
    expected = [bits for text in SENTENCES for bits in one_word_at_a_time(exact, tokenizer, text, before)]
    np.testing.assert_allclose(by_item(observed), expected, rtol=1e-5)
    mean = select(observed, quantity="surprisal", item="")["value"].item()
    assert mean == pytest.approx(np.mean(expected), rel=1e-5)


@torch.no_grad()
def test_a_masked_model_sees_three_masks_and_nothing_after(tmp_path):
    tokenizer = pieces(template="[CLS] $A [SEP]")
    model = made(MASKED["bert"], tokenizer)
    observer = attached(tmp_path, tokenizer, table())
    observed = by_item(observer.observe(model, 0))
    assert observer.settings["scoring"] == "masked"
    exact = copy.deepcopy(model).double().eval()
    first, last, mask = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id
    for number, text in enumerate(SENTENCES):
        encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids, bits = encoding["input_ids"], dict.fromkeys(range(len(text.split())), 0.0)
        for at, (begin, _) in enumerate(encoding["offset_mapping"]):
            logits = exact(input_ids=torch.tensor([[first, *ids[:at], mask, mask, mask, last]])).logits
            word = len(text[: begin + 1].split()) - 1 + (text[begin] == " ")
            bits[word] -= float(logits[0, 1 + at].log_softmax(-1)[ids[at]]) / math.log(2)
        for word, value in bits.items():
            assert observed[f"{number}/{word}"] == pytest.approx(value, rel=1e-5)


def test_words_after_their_context_are_those_of_whole_sentences(tmp_path):
    """The BabyLM protocol's layout has each beginning of a sentence; only the longest is read."""
    tokenizer = pieces()
    model = made(CAUSAL["gpt2"], tokenizer)
    whole = table()
    cut = whole.assign(
        text=[" ".join(t.split()[: i + 1]) for t, i in zip(whole["text"], whole["index"], strict=True)]
    )
    cut = cut.sample(frac=1, random_state=0)
    one, other = attached(tmp_path / "1", tokenizer, whole), attached(tmp_path / "2", tokenizer, cut)
    assert sorted(other.texts) == sorted(SENTENCES)
    values = [by_item(observer.observe(model, 0)).sort_index() for observer in (one, other)]
    pd.testing.assert_series_equal(*values)
    fits = [select(o.observe(model, 0), quantity="partial_r2")["value"].to_numpy() for o in (one, other)]
    np.testing.assert_allclose(*fits, rtol=1e-6)


def test_fits_are_those_of_reading_fit(tmp_path):
    tokenizer = pieces()
    model = made(CAUSAL["gpt2"], tokenizer)
    rows = table(readers=("x", "y", "z"))
    found = surprisals(model, tokenizer, SENTENCES).groupby(["text", "word_index"])["surprisal"].sum()
    bits = np.tile(found.to_numpy(), 3)
    rows["spr"] += 3 * bits + 5 * (rows["subject"] == "y")
    rows["nothing"] = np.random.default_rng(1).normal(300, 10, len(rows))
    observer = Reading(probe=Times(rows, ("spr", "nothing")))
    observer.attach(Run(tmp_path, tokenizer))
    observed = observer.observe(model, 0)
    numbers = observed.set_index(["quantity", "time", "baseline"])["value"]
    first = (rows["index"] == 0).to_numpy()
    before = np.where(first, np.nan, np.roll(bits, 1))
    lengths = np.where(first, np.nan, np.roll(rows["length"], 1))
    word = rows[["frequency", "length", "before"]].to_numpy(dtype=float)
    for time in ("spr", "nothing"):
        for baseline, predictors in (("word", word), ("spillover", np.column_stack([word, lengths, before]))):
            fit = reading_fit(rows[time], bits, predictors, rows["subject"])
            for quantity in ("partial_r2", "chance", "delta_log_likelihood", "slope", "slope_error"):
                assert numbers[quantity, time, baseline] == pytest.approx(getattr(fit, quantity), rel=1e-4)
            assert numbers["times", time, baseline] == fit.observations
    assert numbers["times", "spr", "word"] - numbers["times", "spr", "spillover"] == first.sum()
    assert numbers["slope", "spr", "word"] == pytest.approx(3, abs=0.3)
    assert numbers["partial_r2", "spr", "word"] > 0.8
    assert numbers["partial_r2", "nothing", "word"] < 0.2
    tags = scalar_tags(observer.name, observed[Reading.is_scalar(observed)])
    assert {"reading/partial_r2/spr/spillover", "reading/surprisal"} <= tags.keys()
    assert not any("slope_error" in tag or "0/0" in tag for tag in tags)


def test_words_without_a_number_are_left_out_and_counted(tmp_path, caplog):
    tokenizer, model = bigrams()
    rows = table(["a b a c a b a b a b a c a b c a b"] * 1 + ["b a c a b a c a b a"])
    rows.loc[3, "spr"] = 0.0
    observer = attached(tmp_path, tokenizer, rows, start="")
    observed = observer.observe(model, 0)
    assert len(by_item(observed)) == len(rows) - 2  # the first words follow nothing
    numbers = observed.set_index(["quantity", "baseline"])["value"]
    assert numbers["times", "word"] == len(rows) - 2
    assert numbers["times", "spillover"] == len(rows) - 4
    assert "expected times above 0 in spr, got 1 of 27 times of 0 or less, such as x.csv:5" in caplog.text


def test_what_is_refused_before_the_first_observation(tmp_path, caplog):
    tokenizer, model = bigrams()
    with pytest.raises(ValueError, match=r"requires reading times, got \w+ without `reading_times`"):
        Reading(probe=[]).attach(Run(tmp_path, tokenizer))
    with pytest.raises(ValueError, match="expected 18 words with spr, got 2: observe more words"):
        attached(tmp_path, tokenizer, table(["a b c"])).bind(model)
    constant = table(["a b c b a"] * 9).assign(spr=200.0)
    with pytest.raises(
        ValueError, match="expected different times in spr, got the same for all words: remove spr"
    ):
        attached(tmp_path, tokenizer, constant).bind(model)
    attached(tmp_path, tokenizer, table(["a b c"]).assign(frequency=np.nan))
    assert "the data has no log frequency" in caplog.text
