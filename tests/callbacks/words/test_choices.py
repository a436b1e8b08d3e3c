"""Choices against one option at a time by transformers in float64, and against counts by hand."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch

from lmdyn.analysis.statistics.intervals import share_interval
from lmdyn.callbacks import Choices, Run
from lmdyn.callbacks.observing.loggers import scalar_tags
from lmdyn.runs.schema import select
from tests.callbacks.words.test_minimal_pairs import CAUSAL, MASKED, bigrams, lstm, made, pieces, tokens_read
from tests.helpers.observing import assert_leaves_alone

NOUNS = ("cat", "dog", "keys", "unbelievable lamps")
ROWS = [
    *((f"item{i}_{j}", f"the {n} near the", [f" {m}", f" small {m}", f" bird {n}"], "moves")
      for i, n in enumerate(NOUNS) for j, m in enumerate(NOUNS)),
    *((f"whole{i}", "", [f"a {n} sleeps", f"{n} a sleeps"], "order") for i, n in enumerate(NOUNS)),
]  # fmt: skip


class Items:
    """Any object with choices."""

    def __init__(self, rows=ROWS, right=0):
        self.choices = pd.DataFrame(
            {"item": item, "option": i, "text": prefix + option, "begin": len(prefix), "right": i == right,
             "group": group, "file": "x.jsonl", "line": 1 + line}
            for line, (item, prefix, options, group) in enumerate(rows) for i, option in enumerate(options)
        )  # fmt: skip


def attached(folder, tokenizer, rows=ROWS, **settings):
    observer = Choices(probe=Items(rows), **settings)
    observer.attach(Run(folder, tokenizer))
    return observer


def scores(table):
    return select(table, quantity="log_probability")["value"].to_numpy()


@torch.no_grad()
def by_hand(model, tokenizer, prefix, option, scoring, before=()):
    """Of the pieces whose last character is in the option."""
    encoding = tokenizer(prefix + option, return_offsets_mapping=True)
    ids = [*before, *encoding["input_ids"]]
    total = 0.0
    for i, (_, end) in enumerate(encoding["offset_mapping"], len(before)):
        if end <= len(prefix) or i + (scoring == "masked") == 0:
            continue
        given = torch.tensor([ids])
        if scoring != "causal":
            given[0, i] = tokenizer.mask_token_id
        logits = model(input_ids=given).logits[0, i if scoring == "masked" else i - 1]
        total += float(logits.log_softmax(-1)[ids[i]])
    return total


@pytest.mark.parametrize(
    ("name", "scoring"),
    [("gpt2", "causal"), ("llama", "causal"), ("lstm", "causal"), ("bert", "masked"), ("roberta", "mntp")],
)
def test_scores_are_those_of_one_option_at_a_time(tmp_path, name, scoring):
    tokenizer = pieces(template=None if scoring == "causal" else "[CLS] $A [SEP]")
    model = made({**CAUSAL, **MASKED, "lstm": lstm}[name], tokenizer)
    observer = attached(tmp_path, tokenizer, scoring="mntp" if scoring == "mntp" else None)
    table = assert_leaves_alone(observer, model.train())
    assert observer.settings["scoring"] == scoring
    exact = copy.deepcopy(model).double().eval()
    before = tokenizer.convert_tokens_to_ids(["<s>"]) if scoring == "causal" else []
    expected = [
        [by_hand(exact, tokenizer, prefix, option, scoring, before) for option in options]
        for _, prefix, options, _ in ROWS
    ]
    assert np.std(np.concatenate(expected)) > 0.5
    np.testing.assert_allclose(scores(table), np.concatenate(expected), atol=1e-5, rtol=1e-5)
    found = table[table["item"].eq("")].set_index(["quantity", "group"])["value"]
    right = {group: [np.argmax(e) == 0 for e, row in zip(expected, ROWS, strict=True) if row[3] == group]
             for group in ("moves", "order")}  # fmt: skip
    for group, hits in right.items():
        assert found["accuracy", group] == np.mean(hits)
        ends = [found[f"accuracy_{end}", group] for end in ("low", "high")]
        assert ends == pytest.approx(share_interval(np.mean(hits), len(hits)))
    assert found["accuracy", ""] == pytest.approx(np.mean([*right["moves"], *right["order"]]))
    assert found["chance", ""] == pytest.approx((16 / 3 + 4 / 2) / 20)
    assert found["items", "moves"] == 16
    tags = scalar_tags(observer.name, table[Choices.is_scalar(table)])
    assert "choices/accuracy/moves" in tags
    assert not any(part in tag for tag in tags for part in ("low", "high", "log_probability"))


def test_only_options_are_read_under_masks(tmp_path):
    tokenizer = pieces(template="[CLS] $A [SEP]")
    observer, model = attached(tmp_path, tokenizer), made(MASKED["bert"], tokenizer)
    observer.bind(model)
    rows = set()
    for _, prefix, options, _ in ROWS:
        for option in options:
            encoding = tokenizer(prefix + option, return_offsets_mapping=True)
            ids = encoding["input_ids"]
            rows |= {
                (*ids[:i], None, *ids[i + 1 :])
                for i, (_, end) in enumerate(encoding["offset_mapping"])
                if end > len(prefix)
            }
    assert tokens_read(observer, model, model.get_input_embeddings()) == sum(map(len, rows))


def test_by_token_ties_and_the_first_ones(tmp_path):
    tokenizer, model = bigrams()
    rows = [
        ("one", "a", [" b", " b c"], "x"),  # .5, .05: by token .5, .22
        ("two", "b", [" c a", " c"], "x"),  # .1, .1: a tie; by token .32, .1
        ("three", "a", [" b", " c", " a"], "y"),  # .5, .5
    ]
    table = attached(tmp_path / "share", tokenizer, rows).observe(model, 0)
    assert scores(table)[:2] == pytest.approx(np.log([0.5, 0.05]), abs=1e-5)
    of = table.set_index(["quantity", "group"])["value"]
    assert [of["accuracy", g] for g in ("", "x", "y")] == pytest.approx([2 / 3, 0.75, 0.5])
    assert of["accuracy_by_token", "x"] == 1
    first = attached(tmp_path / "first", tokenizer, rows, ties="first").observe(model, 0)
    assert first.set_index(["quantity", "group"])["value"]["accuracy", ""] == 1
    few = attached(tmp_path / "few", tokenizer, rows, most=1).observe(model, 0)
    assert select(few, quantity="items")["value"].tolist() == [2, 1, 1]


def test_options_in_any_order_and_items_without_a_group(tmp_path):
    tokenizer, model = bigrams()
    rows = [("one", "a", [" b", " b c"], ""), ("two", "b", [" c", " a"], "y")]  # right, wrong
    mixed = Items(rows)
    mixed.choices = mixed.choices.iloc[[1, 2, 0, 3]]
    observer = Choices(probe=mixed)
    observer.attach(Run(tmp_path, tokenizer))
    found = select(observer.observe(model, 0), quantity="accuracy")
    assert found[["group", "value"]].to_numpy().tolist() == [["", 0.5], ["y", 0.0]]


def test_what_is_refused_before_the_first_observation(tmp_path):
    tokenizer, model = bigrams()
    with pytest.raises(ValueError, match=r"requires choices, got \w+ without `choices`"):
        Choices(probe=[]).attach(Run(tmp_path, tokenizer))
    observer = attached(tmp_path, tokenizer, [("one", "", ["a", "a b"], "x")], start="")
    with pytest.raises(ValueError, match=r"a token to predict, got none in x.jsonl:1: set `start`"):
        observer.bind(model)
