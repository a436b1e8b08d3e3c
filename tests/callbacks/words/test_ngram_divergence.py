"""NgramDivergence on networks that are n-gram models, and on masked ones against the definition."""

import numpy as np
import pandas as pd
import pytest
import torch
import transformers as hf
from torch import nn

from lmdyn.analysis import NgramCounts, NgramModels, extremum_order, ngram_extrema
from lmdyn.analysis.words.extrema import Extremum
from lmdyn.callbacks import NgramDivergence, Run
from lmdyn.datamodules.corpora.tokenization import word_tokenizer
from lmdyn.integrations.loop_data import data_of
from lmdyn.runs.schema import select

WORDS, TIME = 5, 40


def language(rows, seed):
    """Return text in which two words decide on the next one."""
    step = np.random.default_rng(7).dirichlet(np.full(WORDS, 0.3), (WORDS, WORDS))
    random = np.random.default_rng(seed)
    text = np.zeros((rows, TIME), np.int64)
    for row in text:
        row[:2] = random.integers(0, WORDS, 2)
        for t in range(2, TIME):
            row[t] = random.choice(WORDS, p=step[row[t - 2], row[t - 1]])
    return torch.from_numpy(text)


TRAIN, PROBE = language(150, 0), language(6, 1)


class Ngrams(nn.Module):
    """A network whose predictions are a mixture of the n-gram models of the training text."""

    def __init__(self, *weights):
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(weights, dtype=torch.float64))
        rows = [row.tolist() for row in TRAIN]
        self.tables = [torch.zeros((WORDS,) * n, dtype=torch.float64) for n in (1, 2, 3)]
        for n, table in enumerate(self.tables, 1):
            for row in rows:
                for t in range(TIME - n + 1):
                    table[tuple(row[t : t + n])] += 1
            table /= table.sum(-1, keepdim=True)

    def forward(self, input_ids, attention_mask=None, labels=None):
        before = torch.cat([input_ids[:, :1] * 0, input_ids[:, :-1]], 1)
        one, two, three = self.tables
        of_orders = one.expand(*input_ids.shape, -1), two[input_ids], three[before, input_ids]
        mixed = sum(weight * p for weight, p in zip(self.weights, of_orders, strict=True))
        return hf.modeling_outputs.CausalLMOutput(logits=mixed.log())


def batches(text):
    labels = torch.cat([text[:, 1:], torch.full_like(text[:, :1], -100)], 1)
    return [{"input_ids": i, "labels": j} for i, j in zip(text.split(4), labels.split(4), strict=True)]


def attached(folder, module, *, data=None, tokenizer=None, **arguments):
    observer = NgramDivergence(**{"order": 3, "drawn_tokens": 400, "labels": "aligned", **arguments})
    observer.attach(
        Run(folder, tokenizer=tokenizer, datamodule=data or data_of(batches(PROBE), batches(TRAIN)))
    )
    observer.bind(module)
    return observer


def values(table, quantity, smoothing):
    return select(table, quantity=quantity, smoothing=smoothing).set_index("order")["value"]


def test_a_bigram_network_is_at_its_order_and_known_distances_from_the_others(tmp_path):
    module = Ngrams(0.0, 1.0, 0.0)
    observer = attached(tmp_path, module)
    table = observer.observe(module, 0)
    models = NgramModels(NgramCounts.read(*(tmp_path / "ngrams").iterdir()))
    one, two, three = module.tables
    text, before = PROBE[:, 1:-1].flatten(), PROBE[:, :-2].flatten()
    expected = {
        1: (one * (one / two[PROBE[:, :-1].flatten()]).log2()).sum(-1).mean(),
        3: (three * (three / two).log2()).nansum(-1)[before, text].mean(),
    }
    kl = values(table, "kl", "raw")
    assert kl[2] == pytest.approx(0, abs=1e-7)  # 1e-9 is added to both
    # raw scores need contexts of all orders: the first position of each row has none
    first = (one * (one / two[PROBE[:, 0]]).log2()).sum(-1)
    of_all = (expected[1] * (TIME - 1) - first.mean()) / (TIME - 2)
    assert kl[1] == pytest.approx(float(of_all), abs=1e-6)
    assert kl[3] == pytest.approx(float(expected[3]), abs=1e-6)
    assert values(table, "pearson", "raw")[2] == pytest.approx(1, abs=1e-6)
    assert values(table, "positions", "raw")[2] == 6 * (TIME - 2)
    assert values(table, "positions", "kneser_ney")[2] == 6 * (TIME - 1)
    assert models.counts.levels[0].counts.sum() == TRAIN.numel()


def test_a_planted_course_through_the_orders_has_its_extrema_in_order(tmp_path):
    course = [(1, 0, 0), (0.7, 0.3, 0), (0.1, 0.9, 0), (0.02, 0.98, 0), (0.02, 0.5, 0.48), (0.01, 0.01, 0.98)]
    observer = attached(tmp_path, Ngrams(*course[0]))
    steps = [10**i for i in range(len(course))]
    tables = [observer.observe(Ngrams(*weights), step) for step, weights in zip(steps, course, strict=True)]
    extrema = ngram_extrema(pd.concat(tables))
    for quantity, smoothing in (("kl", "raw"), ("pearson", "kneser_ney"), ("drawn_loss", "kneser_ney")):
        found = select(extrema, quantity=quantity, smoothing=smoothing).sort_values("order")
        runs = [Extremum(row.step, row.value, row.censored) for row in found.itertuples()]
        assert extremum_order(runs) == "strict", found
        assert [one.censored for one in runs] == [False, False, True]
    losses = pd.concat([values(table, "drawn_loss", "kneser_ney") for table in tables], axis=1)
    assert (losses.sub(values(tables[0], "drawn_entropy", "kneser_ney"), axis=0) > -0.05).all(axis=None)


def test_rows_that_continue_others_keep_their_contexts(tmp_path):
    module = Ngrams(0.2, 0.3, 0.5)
    whole = attached(tmp_path / "whole", module, drawn_tokens=0).observe(module, 0)
    halves = [
        {name: x[:, part] for name, x in batch.items()}
        | {"continues": torch.full((len(batch["labels"]),), i > 0)}
        for batch in batches(PROBE)
        for i, part in enumerate((slice(0, 17), slice(17, TIME)))
    ]
    train = [
        {"input_ids": x, "labels": x, "continues": torch.full((len(x),), i > 0)}
        for text in TRAIN.split(50)
        for i, x in enumerate(text.split(9, 1))
    ]
    cut = attached(tmp_path / "cut", module, data=data_of(halves, train), drawn_tokens=0)
    found = cut.observe(module, 0)
    # the network itself reads each row anew, so that its own predictions after the cut differ
    exact = whole["quantity"] == "positions"
    pd.testing.assert_frame_equal(found[exact], whole[exact])
    counts = [NgramCounts.read(*(tmp_path / name / "ngrams").iterdir()) for name in ("whole", "cut")]
    assert all(
        np.array_equal(*pair)
        for pair in zip(*([level.counts for level in c.levels] for c in counts), strict=True)
    )


def test_masked_models_predict_one_position_a_row(tmp_path):
    words = [f"w{i}" for i in range(WORDS)]
    tokenizer = word_tokenizer(dict.fromkeys(words, 1))
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    shift = tokenizer.convert_tokens_to_ids("w0")
    config = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    torch.manual_seed(0)
    module = hf.BertForMaskedLM(hf.BertConfig(vocab_size=len(tokenizer), **config)).eval()
    text = PROBE + shift
    hidden = torch.zeros_like(text, dtype=torch.bool)
    hidden[:, 3::7] = True
    corrupted = [
        {"input_ids": text.masked_fill(hidden, tokenizer.mask_token_id), "labels": text.where(hidden, -100)}
    ]
    data = data_of(corrupted, [{"input_ids": TRAIN + shift, "labels": torch.full_like(TRAIN, -100)}])
    observer = attached(tmp_path, module, data=data, tokenizer=tokenizer)
    table = observer.observe(module, 0)
    (batch,) = observer.probe_set.batches()
    row, at = (batch["labels"] >= 0).nonzero(as_tuple=True)
    assert row.tolist() == list(range(6))
    assert (at > 0).all()
    assert torch.equal(torch.where(batch["labels"] >= 0, batch["labels"], batch["input_ids"]), text)
    with torch.no_grad():
        q = module(batch["input_ids"]).logits[row, at].double().softmax(-1)[:, shift : shift + WORDS] + 1e-9
    two = Ngrams(0, 1, 0).tables[1]
    forward = two[text[row, at - 1] - shift]
    inside = at < TIME - 1
    both = forward[inside] * two[:, text[row[inside], at[inside] + 1] - shift].T
    both = both / both.sum(-1, keepdim=True)
    for name, p, kept in (("raw", forward, slice(None)), ("bidirectional", both, inside)):
        p = p + 1e-9
        assert values(table, "kl", name)[2] == pytest.approx(
            float((p * (p / q[kept]).log2()).sum(-1).mean()), abs=1e-5
        )
    assert "drawn_loss" not in set(table["quantity"])


def test_counts_of_the_same_text_are_used_again(tmp_path, monkeypatch):
    class Known(list):
        fingerprint = "text"

    data = data_of(batches(PROBE), Known(batches(TRAIN)))
    module = Ngrams(0.0, 1.0, 0.0)
    before = attached(tmp_path, module, data=data).observe(module, 0)
    monkeypatch.setattr(NgramCounts, "of", None)
    pd.testing.assert_frame_equal(attached(tmp_path, module, data=data).observe(module, 0), before)


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="smoothings is empty"):
        attached(tmp_path, Ngrams(1, 0, 0), smoothings=())
    with pytest.raises(ValueError, match="requires a training part"):
        attached(tmp_path, Ngrams(1, 0, 0), data=data_of(batches(PROBE)))
