"""SpanCorpus: every span points at the pieces of its words."""

import dataclasses
import os
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
import torch
from transformers import BertTokenizer

from lmdyn.datamodules import ConlluCorpus, GrammarCorpus
from lmdyn.datamodules.corpora.conll import ConllCorpus
from lmdyn.datamodules.corpora.corpus import Corpus
from lmdyn.datamodules.corpora.sentence import Constituent, Document, Mention, Role, Sentence
from lmdyn.datamodules.corpora.tokenization import word_tokenizer
from lmdyn.datamodules.spans.spans import SPAN_TASKS, SpanCorpus
from tests.datamodules.corpora.test_tokenization import SENTENCES, reading

PIECES = [f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")]
PIECES += [before + letter for before in ("", "##") for letter in "abcde"]
GONE = "\u200b"  # a word that a WordPiece tokenizer cleans away

TRAIN = Sentence(
    ("ab", "c", GONE, "ded"),
    upos=("NOUN", "VERB", "PUNCT", None),
    xpos=("NN", "VB", ":", "NNS"),
    constituents=(Constituent(0, 4, "S"), Constituent(2, 3, "X"), Constituent(2, 4, "NP")),
    roles=(Role(1, 0, 1, "ARG0"), Role(1, 2, 4, "ARG1"), Role(2, 0, 1, "ARG2")),
    mentions=(Mention(3, 4, 5), Mention(0, 1, 5), Mention(1, 2, 6)),
)
PLAIN = Sentence(("e",), upos=("X",), xpos=("UH",), constituents=(), roles=(), mentions=())
LONG = dataclasses.replace(PLAIN, words=("abcde" * 3,))


class Given(Corpus):
    """Sentences as they are given."""

    def __init__(self, **splits):
        super().__init__()
        self.given = splits
        self.splits = tuple(splits)

    def documents(self, split):
        yield Document(split, tuple(self.given[split]))

    def content_key(self):
        return {"given": repr(self.given)}


@pytest.fixture
def wordpiece(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(PIECES), encoding="utf-8")
    return BertTokenizer(vocab=str(path))


def ready(corpus, tokenizer=None, **settings):
    """Its spans, by this tokenizer or by its own over the words of the training split."""
    spans = SpanCorpus(corpus, **settings)
    if tokenizer is not None:
        spans.tokenizer = tokenizer
    spans.setup()
    return spans


def rows(batch, task, row):
    spans = batch[f"spans_{task}"][row]
    return spans[spans[:, 4] >= 0].tolist()


def test_spans_are_those_of_the_pieces(wordpiece):
    spans = ready(Given(train=[TRAIN, PLAIN]), wordpiece, max_pieces=10)
    (batch,) = spans.train_dataloader()
    short, long = 0, 1  # sorted by length
    assert batch["example"].tolist() == [1, 0]
    tokens = wordpiece.convert_ids_to_tokens(batch["input_ids"][long])
    assert tokens == ["[CLS]", "a", "##b", "c", "d", "##e", "##d", "[SEP]"]
    tokens = wordpiece.convert_ids_to_tokens(batch["input_ids"][short])
    assert tokens == ["[CLS]", "e", "[SEP]"] + ["[PAD]"] * 5
    assert batch["words"].tolist() == [
        [-100, 0, -100, -100, -100, -100, -100, -100], [-100, 0, 0, 1, 3, 3, 3, -100],
    ]  # fmt: skip
    inside = batch["words"] >= 0
    assert torch.equal(batch["labels"][inside], batch["input_ids"][inside])
    assert (batch["labels"][~inside] == -100).all()
    names = spans.label_names
    assert names["upos"] == ["NOUN", "PUNCT", "VERB", "X"]
    assert [names["upos"][i] if i >= 0 else None for i in batch["upos"][long].tolist()] == [
        None, "NOUN", "NOUN", "VERB", None, None, None, None,
    ]  # fmt: skip

    def named(task, row):
        return [(*r[:4], names[task][r[4]]) for r in rows(batch, task, row)]

    no = (-100, -100)
    assert named("pos", long) == [(1, 3, *no, "NN"), (3, 4, *no, "VB"), (4, 7, *no, "NNS")]
    assert named("constituents", long) == [(1, 7, *no, "S"), (4, 7, *no, "NP")]
    assert named("roles", long) == [(3, 4, 1, 3, "ARG0"), (3, 4, 4, 7, "ARG1")]
    assert named("coreference", long) == [(1, 3, 3, 4, "0"), (1, 3, 4, 7, "1"), (3, 4, 4, 7, "0")]
    assert named("pos", short) == [(1, 2, *no, "UH")]
    for task in ("constituents", "roles", "coreference"):
        assert (batch[f"spans_{task}"][short] == -100).all()
    lost = "words without any piece"
    left_out = {f"{of} of {lost} were left out": 1 for of in ("constituents", "roles")}
    assert spans.skipped == {"train": {lost: 1, **left_out}}
    assert batch["attention_mask"].tolist() == [[1] * 3 + [0] * 5, [1] * 8]


def test_nothing_is_silent(wordpiece, caplog):
    mentions = tuple(Mention(0, 1, i % 2) for i in range(6))
    new = dataclasses.replace(PLAIN, xpos=("NEW",), mentions=mentions)
    lost = dataclasses.replace(PLAIN, words=(GONE,))
    corpus = Given(train=[TRAIN, LONG], test=[new, lost, LONG, LONG])
    spans = ready(corpus, wordpiece, max_pieces=10, max_pairs=4)
    assert spans.skipped["test"] == {
        "sentences of more than 10 pieces were left out": 2,
        "sentences without any piece were left out": 1,
        "pairs of mentions beyond 4 in a sentence were left out": 11,
        "pos with a label unseen in train": 1,
    }
    assert "2 sentences of more than 10 pieces were left out" in caplog.text
    assert spans.label_names["pos"] == [":", "NN", "NNS", "VB", "NEW"]  # those of train first
    (batch,) = spans.test_dataloader()
    assert len(rows(batch, "coreference", 0)) == 4


@pytest.mark.parametrize("kind", ["byte-level", "split"])
def test_byte_level_pieces_are_those_of_the_text(kind):
    tokenizer = reading(kind)
    tagged = [Sentence(words, upos=tuple(words)) for words in SENTENCES]
    spans = ready(Given(train=tagged, validation=tagged), tokenizer, tasks=["pos"], pos_layer="upos")
    seen = 0
    for batch in spans.train_dataloader():
        for row, number in enumerate(batch["example"].tolist()):
            text = " ".join(SENTENCES[number])
            ids = tokenizer(text)["input_ids"]
            assert batch["input_ids"][row][: len(ids)].tolist() == ids
            found = [
                (tokenizer.decode(ids[start:end]).strip(), spans.label_names["pos"][label])
                for start, end, *_, label in rows(batch, "pos", row)
            ]
            assert found == [(word, word) for word in SENTENCES[number]]
            seen += 1
    assert seen == len(SENTENCES)


def test_every_span_of_a_grammar_is_there():
    sizes = {"n_train_tokens": 1500, "n_validation_tokens": 200, "n_test_tokens": 200}
    grammar = GrammarCorpus(**sizes)
    spans = ready(grammar, max_pairs=10_000, batch_tokens=200)
    sentences = [s for d in grammar.documents("train") for s in d]
    names, tokenizer = spans.label_names, spans.tokenizer
    seen = Counter()
    for batch in spans.train_dataloader():
        for row, number in enumerate(batch["example"].tolist()):
            seen[number] += 1
            s = sentences[number]
            ids = tokenizer([*s.words], is_split_into_words=True, add_special_tokens=False)["input_ids"]
            assert batch["input_ids"][row][: len(ids)].tolist() == ids
            for layer in ("upos", "xpos", "semtag", "deprels"):
                found = [names[layer][i] for i in batch[layer][row][: len(ids)].tolist()]
                assert tuple(found) == getattr(s, layer)
            found = {
                task: sorted((*r[:4], names[task][r[4]]) for r in rows(batch, task, row))
                for task in SPAN_TASKS
            }
            no = (-100, -100)
            assert found["pos"] == sorted((i, i + 1, *no, tag) for i, tag in enumerate(s.xpos))
            assert found["constituents"] == sorted((c.start, c.end, *no, c.label) for c in s.constituents)
            assert found["roles"] == sorted(
                (r.predicate, r.predicate + 1, r.start, r.end, r.label) for r in s.roles
            )
            pairs = combinations(sorted(s.mentions, key=lambda m: (m.start, m.end)), 2)
            assert found["coreference"] == sorted(
                (a.start, a.end, b.start, b.end, str(int(a.entity == b.entity))) for a, b in pairs
            )
    assert seen == Counter(range(len(sentences)))
    assert set(names["coreference"]) == {"0", "1"}


def test_pos_of_a_chosen_layer():
    spans = ready(Given(train=[TRAIN, PLAIN]), tasks=["pos"], pos_layer="upos")
    assert spans.label_names["pos"] == ["NOUN", "PUNCT", "VERB", "X"]
    no_xpos = [dataclasses.replace(s, xpos=None) for s in (TRAIN, PLAIN)]
    spans = ready(Given(train=no_xpos), tasks=["pos"])
    assert spans.label_names["pos"] == ["NOUN", "PUNCT", "VERB", "X"]
    (batch,) = spans.train_dataloader()
    assert len(rows(batch, "pos", 1)) == 3  # the fourth word has no tag


def test_what_a_corpus_lacks_is_named():
    bare = [dataclasses.replace(s, roles=None, upos=None) for s in (TRAIN, PLAIN)]
    spans = ready(Given(train=[TRAIN], test=bare))  # all that each split has
    assert list(spans.label_names) == ["xpos", "pos", "constituents", "coreference"]
    with pytest.raises(ValueError, match=r"tasks: split 'test' has no roles, only pos, constituents"):
        SpanCorpus(Given(train=[TRAIN], test=bare), tasks=["pos", "roles"]).setup()
    with pytest.raises(ValueError, match=r"layers: split 'test' has no upos, only xpos"):
        SpanCorpus(Given(train=[TRAIN], test=bare), layers=["upos"]).setup()
    with pytest.raises(ValueError, match="tasks: split 'train' has no pos"):
        SpanCorpus(Given(train=bare), tasks=["pos"], pos_layer="upos").setup()
    words = [Sentence(("a",))]
    with pytest.raises(ValueError, match="no span task has annotations"):
        SpanCorpus(Given(train=words)).setup()
    with pytest.raises(ValueError, match="split 'test' of the corpus has no sentence"):
        ready(Given(train=[TRAIN], test=[]), word_tokenizer({"ab": 1}))
    with pytest.raises(ValueError, match="a vocabulary requires a training split"):
        SpanCorpus(Given(test=[TRAIN])).setup()


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.skipif("LMDYN_DATA" not in os.environ, reason="LMDYN_DATA is not set")
def test_real_corpora():
    data = Path(os.environ["LMDYN_DATA"])
    tokenizer = BertTokenizer(vocab=str(data / "vocab/bert-base-uncased-vocab.txt"))
    gum = ConllCorpus(test=str(data / "gum/gum_dev.v4_gold_conll"), layout="gum")
    ewt = ConlluCorpus(test=str(data / "ud_ewt/en_ewt-ud-dev.conllu"))
    counts = {}
    for name, corpus in (("gum", gum), ("ewt", ewt)):
        batches = list(ready(corpus, tokenizer).test_dataloader())
        counts[name] = {
            t: sum(len(b[t][b[t][..., 4] >= 0]) for b in batches) for t in batches[0] if "spans" in t
        }
        assert sum(len(b["example"]) for b in batches) == sum(
            len(d.sentences) for d in corpus.documents("test")
        )
    # of 25,147 words, 52 begin within a piece of the text as it is written ("its" for "it" and "s", "cannot")
    assert counts["ewt"] == {"spans_pos": 25147 - 52}
    assert counts["gum"]["spans_pos"] == 28119
    assert counts["gum"]["spans_coreference"] == 6899


def test_no_task_serves_tokens_only():
    sizes = {"n_train_tokens": 300, "n_validation_tokens": 100, "n_test_tokens": 100}
    spans = ready(GrammarCorpus(**sizes), tasks=[], layers=["upos"])
    assert sorted(next(iter(spans.val_dataloader()))) == [
        "attention_mask", "example", "input_ids", "labels", "upos", "words",
    ]  # fmt: skip
