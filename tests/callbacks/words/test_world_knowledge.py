"""WorldKnowledge against one question at a time."""

from collections import Counter
from dataclasses import replace

import lightning as L
import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AlbertConfig, AlbertForMaskedLM

from lmdyn.callbacks import Run
from lmdyn.callbacks.observing.loggers import scalar_tags
from lmdyn.callbacks.words.world_knowledge import WorldKnowledge
from lmdyn.datamodules.corpora.tokenization import word_tokenizer
from lmdyn.datamodules.facts.facts import Cloze, FactCorpus, FactSource

PLACES = [f"place{i}" for i in range(12)]
THINGS = [f"thing{i}" for i in range(9)]
TEMPLATES = {"in": "[X] is in [Y] .", "by": "[Y] made the new [X] here .", "twin": "[X] , [Y]"}
KINDS = {"in": "N-1", "by": "N-1", "twin": "1-1"}


class Facts(FactSource):
    """Facts of three relations; 'thing' objects are no candidates."""

    def facts(self):
        for i, thing in enumerate(THINGS):
            yield Cloze("in", f"the $A$ {thing}" if i % 2 else thing, PLACES[i % 5], TEMPLATES["in"])
            yield Cloze("by", thing, (PLACES if i % 3 else THINGS)[-i - 1], TEMPLATES["by"])
        for a, b in zip(PLACES[:4], PLACES[4:8], strict=True):
            yield Cloze("twin", a, b, TEMPLATES["twin"])

    def relation_kinds(self):
        return KINDS

    def candidates(self):
        return PLACES


def tokenizer():
    words = [*PLACES, *THINGS, "is", "in", "made", "the", "new", "here", ".", ",", "$A$"]
    made = word_tokenizer(dict.fromkeys(words, 1))
    made.add_special_tokens({"mask_token": "[MASK]", "cls_token": "[CLS]", "sep_token": "[SEP]"})
    return made


class Model(L.LightningModule):
    """Answers every position, or only those asked for."""

    def __init__(self, size):
        super().__init__()
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        self.lm = AlbertForMaskedLM(AlbertConfig(vocab_size=size, embedding_size=8, **sizes))
        for p in self.lm.parameters():
            torch.nn.init.normal_(p, std=0.7)

    def forward(self, input_ids, attention_mask=None):
        return self.lm(input_ids=input_ids, attention_mask=attention_mask)


class Sparing(Model):
    def forward(self, input_ids, attention_mask=None, predict=None):
        hidden = self.lm.albert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        self.projected = int(predict.sum())
        return self.lm.predictions(hidden[predict])


def attach(folder, **settings):
    observer = WorldKnowledge(**{"probe": FactCorpus(Facts(), batch_tokens=40), **settings})
    observer.attach(Run(folder, tokenizer=tokenizer()))
    return observer


@pytest.fixture
def observer(tmp_path):
    return attach(tmp_path)


@torch.no_grad()
def one_at_a_time(model, loader, vocabulary):
    """Hits and predictions of each fact, by relation."""
    model.eval()
    found = []
    for example in loader.examples:
        ids = torch.tensor(example["input_ids"])[None]
        at = int((example["labels"] >= 0).nonzero()[0][0])
        answer = int(example["labels"][at])
        logits = model.lm(input_ids=ids).logits[0, at]
        best = max(loader.candidates, key=lambda i: float(logits[i]))
        relation = loader.label_names["relation"][int(example["relation"])]
        prediction = vocabulary.convert_ids_to_tokens(int(logits.argmax()))
        asked = answer in loader.candidates
        found.append((relation, loader.label_names["fact"][int(example["fact"])], prediction,
                      int(logits.argmax()) == answer, best == answer if asked else None))  # fmt: skip
    return pd.DataFrame(found, columns=["relation", "fact", "prediction", "hit", "candidate_hit"])


@pytest.mark.parametrize("kind", [Model, Sparing])
def test_values_are_those_of_one_question_at_a_time(observer, kind):
    model = kind(len(tokenizer()))
    with torch.no_grad():  # something is known: answers get a head start
        model.lm.predictions.bias[tokenizer().vocab["place2"]] += 4
    table = observer.observe(model, 7)
    expected = one_at_a_time(model, observer.probe_set.loader, tokenizer())
    assert 0 < expected["hit"].sum() < len(expected)

    rows = table[table["quantity"].eq("hit")].reset_index(drop=True)
    for column in ("relation", "fact", "prediction"):
        assert rows[column].tolist() == expected[column].tolist()
    assert rows["value"].tolist() == expected["hit"].astype(float).tolist()

    tags = scalar_tags(observer.name, table[WorldKnowledge.is_scalar(table)])
    for quantity, column in (("p_at_1", "hit"), ("p_at_1_candidates", "candidate_hit")):
        asked = expected.dropna(subset=column)
        mean = {r: float(np.mean(group[column].astype(float))) for r, group in asked.groupby("relation")}
        for relation, value in mean.items():
            assert tags[f"world_knowledge/{quantity}/{relation}"] == pytest.approx(value)
        assert tags[f"world_knowledge/{quantity}"] == pytest.approx(np.mean(list(mean.values())))
        assert tags[f"world_knowledge/{quantity}/1-1"] == pytest.approx(mean["twin"])
        assert tags[f"world_knowledge/{quantity}/N-1"] == pytest.approx((mean["in"] + mean["by"]) / 2)
    assert tags["world_knowledge/facts"] == 22
    assert [tags[f"world_knowledge/facts/{r}"] for r in KINDS] == [9, 9, 4]
    assert tags["world_knowledge/known"] == expected["hit"].sum()


def test_what_the_most_frequent_object_scores(observer):
    observations = observer.observe(Model(len(tokenizer())), 0)
    loader = observer.probe_set.loader
    objects = {}
    for example in loader.examples:
        relation = loader.label_names["relation"][int(example["relation"])]
        objects.setdefault(relation, []).append(int(example["labels"].max()))
    shares = {r: Counter(found).most_common(1)[0][1] / len(found) for r, found in objects.items()}
    rows = observations[observations["quantity"] == "majority"].set_index("relation")["value"]
    assert {r: rows[r] for r in shares} == pytest.approx(shares)
    overall = observations[(observations["quantity"] == "majority") & (observations["relation"] == "")]
    assert overall.set_index("kind")["value"][""] == pytest.approx(np.mean(list(shares.values())))


def test_wordings_are_told_as_a_spread(tmp_path):
    class Reworded(Facts):
        def facts(self):
            for fact in super().facts():
                yield fact
                if fact.relation == "in":
                    yield replace(fact, template="in the [Y] is [X]")

    observer = WorldKnowledge(probe=FactCorpus(Reworded()))
    observer.attach(Run(tmp_path, tokenizer()))
    table = observer.observe(Model(len(tokenizer())), 0)
    names = observer.probe_set.label_names
    wording = {names["fact"][int(e["fact"])]: int(e["wording"]) for e in observer.probe_set.loader.examples}
    hits = table[(table["quantity"] == "hit") & (table["relation"] == "in")]
    means = hits.groupby(hits["fact"].map(wording))["value"].mean()
    assert len(means) == 2
    value = table.set_index(["quantity", "relation", "kind"])["value"]
    assert value["p_at_1_lowest", "in", ""] == pytest.approx(means.min())
    assert value["p_at_1_highest", "in", ""] == pytest.approx(means.max())
    assert value["p_at_1", "in", ""] == pytest.approx(means.mean())
    for relation in ("by", "twin"):  # in one wording
        assert value["p_at_1_lowest", relation, ""] == value["p_at_1", relation, ""]
    ends = [value["p_at_1_lowest", r, ""] for r in KINDS]
    assert value["p_at_1_lowest", "", ""] == pytest.approx(np.mean(ends))


def test_objects_that_are_no_candidates(observer):
    """Three objects of 'by' are things: left out where places compete, so that all of the six others may be known."""

    class Oracle(Model):
        def forward(self, input_ids, attention_mask=None, labels=None, *, example):
            answers = torch.tensor([max(e["labels"]) for e in observer.probe_set.loader.examples])
            logits = torch.nn.functional.one_hot(answers[example], self.lm.config.vocab_size).float()
            return logits[:, None].expand(-1, input_ids.shape[1], -1)

    table = observer.observe(Oracle(len(tokenizer())), 0)
    tags = scalar_tags("", table[WorldKnowledge.is_scalar(table)])
    assert all(v == 1 for tag, v in tags.items() if "p_at_1" in tag)
    assert tags["/known"] == 22


def test_the_table_has_the_facts_whose_answers_turn():
    hits = [("a", "x", 0), ("a", "x", 1), ("b", "x", 1), ("b", "x", 1), ("c", "y", 1), ("c", "y", 0)]
    rows = [(i % 2 * 5, "hit", relation, fact, f"p{i}", hit) for i, (fact, relation, hit) in enumerate(hits)]
    columns = ["step", "quantity", "relation", "fact", "prediction", "value"]
    table = WorldKnowledge.tables(pd.DataFrame(rows, columns=columns), {})["examples"]
    assert table.to_numpy().tolist() == [["x", "a", "p0", "p1"], ["y", "c", "p4", "p5"]]
    assert list(table) == ["relation", "fact", "0", "5"]
    assert not WorldKnowledge.tables(pd.DataFrame(rows[2:4], columns=columns), {})
