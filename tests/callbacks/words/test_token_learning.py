"""TokenLearning against a loop over single words, and on models whose answers are known."""

import logging
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from lmdyn.analysis.words.word_masks import number_words
from lmdyn.callbacks import Run
from lmdyn.callbacks.words.token_learning import POS_GROUPS, VERB_FORMS, TokenLearning
from lmdyn.datamodules.corpora.examples import ExampleLoader
from tests.helpers.refusals import assert_refused

WORDS = {  # pieces, xpos, upos
    "the": ("DT", "DET"), "a": ("DT", "DET"), "and": ("CC", "CCONJ"), "of": ("IN", "ADP"), "red": ("JJ", "ADJ"),
    "soon": ("RB", "ADV"), "cat": ("NN", "NOUN"), "cat ##s": ("NNS", "NOUN"), "rome": ("NNP", "PROPN"),
    "walk": ("VBP", "VERB"), "to ##walk": ("VB", "VERB"), "walk ##ed": ("VBD", "VERB"),
    "walk ##ing ##s": ("VBG", "VERB"), "gone": ("VBN", "VERB"), "walk ##s": ("VBZ", "VERB"), "!": (None, None),
}  # fmt: skip
PIECES = sorted({p for word in WORDS for p in word.split()})
VOCABULARY = {p: i for i, p in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES])}
XPOS, UPOS = (sorted({tags[i] for tags in WORDS.values() if tags[i]}) for i in (0, 1))
SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def tokenizer(**changes):
    backend = Tokenizer(models.WordPiece(VOCABULARY, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {f"{role}_token": token for role, token in SPECIAL.items()} | changes
    return PreTrainedTokenizerFast(tokenizer_object=backend, **{k: v for k, v in special.items() if v})


def example(words):
    rows = [(VOCABULARY[piece], i, *WORDS[word]) for i, word in enumerate(words) for piece in word.split()]
    ids = np.array([VOCABULARY["[CLS]"], *(r[0] for r in rows), VOCABULARY["[SEP]"]])

    def column(values):
        return np.array([-100, *values, -100])

    found = {"input_ids": ids, "labels": column([r[0] for r in rows]), "words": column([r[1] for r in rows])}
    found["xpos"] = column([XPOS.index(r[2]) if r[2] else -100 for r in rows])
    return {**found, "upos": column([UPOS.index(r[3]) if r[3] else -100 for r in rows])}


def sentences(n=30, seed=0):
    g = np.random.default_rng(seed)
    shares = 1 / np.arange(2, len(WORDS) + 2)
    shares /= shares.sum()
    return [list(g.choice(list(WORDS), g.integers(1, 8), p=shares)) for _ in range(n)]


def loader(texts=None, **settings):
    settings = {"batch_tokens": 60, "label_names": {"xpos": XPOS, "upos": UPOS}, **settings}
    return ExampleLoader([example(words) for words in texts or sentences()], **settings)


class Model(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        config = BertConfig(
            vocab_size=len(VOCABULARY), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=32, initializer_range=0.2,
        )  # fmt: skip
        self.bert = BertForMaskedLM(config)
        self.calls = []

    def forward(self, input_ids, attention_mask=None, predict=None):
        self.calls.append(input_ids.shape)
        hidden = self.bert.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        return SimpleNamespace(logits=self.bert.cls(hidden if predict is None else hidden[predict]))


class Copies(nn.Module):
    """Answers what it reads, and ``guess`` where that is the mask."""

    def __init__(self, guess="[UNK]"):
        super().__init__()
        self.guess = VOCABULARY[guess]
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, input_ids):
        ids = input_ids.masked_fill(input_ids == VOCABULARY["[MASK]"], self.guess)
        return SimpleNamespace(logits=self.scale * nn.functional.one_hot(ids, len(VOCABULARY)).float())


def attach(folder, probe=None, run_tokenizer=None, **settings):
    observer = TokenLearning(**{"frequency": "probe", "bands": [(1, 2), (3, 5)], **settings})
    observer.probe = loader() if probe is None else probe
    observer.attach(Run(folder, tokenizer=tokenizer() if run_tokenizer is None else run_tokenizer))
    return observer


def values(table, quantity, by=""):
    rows = table[table["quantity"].eq(quantity) & table["by"].eq(by)]
    return dict(zip(rows["group"], rows["value"], strict=True))


def naive(module, texts):
    """(word, reconstructed, predicted) of each word, a sentence and a mask at a time, full logits."""
    found = []
    for text in texts:
        row = example(text)
        ids, words = torch.from_numpy(row["input_ids"])[None], row["words"]
        with torch.no_grad():
            seen = module(ids).logits.argmax(-1)
            for i, word in enumerate(text):
                at = torch.from_numpy(words == i)
                masked = ids.clone()
                masked[0, at] = VOCABULARY["[MASK]"]
                predicted = module(masked).logits.argmax(-1)
                found.append((word, *(bool((a[0, at] == ids[0, at]).all()) for a in (seen, predicted))))
    return pd.DataFrame(found, columns=["word", "reconstruction", "prediction"])


def groups_of(word, ranks):
    """The groups of a word, once more."""
    xpos, upos = WORDS[word]
    groups = {"": "", "upos": upos, "verb_form": xpos if xpos in VERB_FORMS else None}
    groups["pos"] = next((name for name, tags in POS_GROUPS.items() if xpos in tags), None)
    rank = ranks.get(word)  # of single pieces
    groups["rank"] = None if rank is None or rank > 5 else "1-2" if rank <= 2 else "3-5"
    return groups


def token_ranks(texts):
    pieces = [p for words in texts for w in words for p in w.split()]
    counts = pd.Series(pieces).value_counts()
    order = sorted(counts.index, key=lambda p: (-counts[p], VOCABULARY[p]))
    return {piece: i for i, piece in enumerate(order, start=1)}


@pytest.fixture(scope="module")
def trained():
    """A model that knows some words, and not all: by chance it would know too few."""
    module = Model().eval()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(0)
    for _ in range(7):
        for batch in loader(batch_tokens=400):
            ids, labels = batch["input_ids"], batch["labels"]
            masked = (torch.rand(ids.shape, generator=g) < 0.3) & (labels >= 0)
            logits = module(ids.masked_fill(masked, VOCABULARY["[MASK]"]), batch["attention_mask"]).logits
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return module


@pytest.mark.parametrize("batch_tokens", [1, 50, None])
def test_values_are_those_of_one_word_at_a_time(tmp_path, trained, batch_tokens):
    module, texts = trained, sentences()
    groupings = ["pos", "upos", "verb_form", "rank"]
    table = attach(tmp_path, by=groupings, batch_tokens=batch_tokens).observe(module, 5)
    words, ranks = naive(module, texts), token_ranks(texts)
    assert 0.1 < words["prediction"].mean() < words["reconstruction"].mean() < 1
    for by in ("", "pos", "upos", "verb_form", "rank"):
        group = words["word"].map(lambda w, by=by: groups_of(w, ranks)[by])
        for quantity, count in (("reconstruction", "words"), ("prediction", "masked_words")):
            right = words.groupby(group)[quantity]
            assert values(table, quantity, by) == right.mean().to_dict()
            assert values(table, count, by) == right.count().to_dict()
    assert set(values(table, "prediction", "verb_form")) == set(VERB_FORMS)
    assert set(values(table, "prediction", "pos")) == set(POS_GROUPS)


def test_a_model_that_copies_reconstructs_all_and_predicts_what_it_guesses(tmp_path):
    texts = sentences()
    table = attach(tmp_path).observe(Copies("the"), 0)
    assert values(table, "reconstruction") == {"": 1.0}
    the = sum(w == "the" for words in texts for w in words) / sum(map(len, texts))
    assert values(table, "prediction")[""] == pytest.approx(the)
    # the other half of the determiners is "a"; all pieces are masked, and "walk" alone does not make "walk ##s"
    assert 0 < values(table, "prediction", "pos")["determiner"] < 1
    assert values(attach(tmp_path).observe(Copies("walk"), 0), "prediction", "verb_form")["VBZ"] == 0
    assert values(attach(tmp_path).observe(Copies("walk"), 0), "prediction", "verb_form")["VBP"] == 1
    # in no group of the publication's verbs
    assert values(attach(tmp_path).observe(Copies("walk"), 0), "prediction", "pos")["verb"] == 0


def test_one_quantity_alone(tmp_path):
    table = attach(tmp_path, quantities=["reconstruction"]).observe(Copies(), 0)
    assert set(table["quantity"]) == {"reconstruction", "words"}
    scalars = table[TokenLearning.is_scalar(table)]
    assert set(scalars["quantity"]) == {"reconstruction"}


# ------------------------------------------------------------------------------------------ sample and ranks


def sampled(observer, world_size):
    """(example, word) of the masked words of all ranks."""
    found = []
    for rank in range(world_size):
        for number, batch in enumerate(observer.probe_set.batches(rank, world_size)):
            words = number_words(batch["words"])
            kept = observer._hashes(batch, words, number, rank, world_size) <= observer._highest_hash
            rows = batch["example"][words.row[kept]].tolist()
            found += zip(rows, words.word[kept].tolist(), strict=True)
    return found


def test_a_sample_of_words_is_the_same_for_any_number_of_ranks(tmp_path):
    observer = attach(tmp_path, max_words=40)
    one, three = (sampled(observer, n) for n in (1, 3))
    assert len(one) == 40 == len(set(one))
    assert sorted(one) == sorted(three)
    other = attach(tmp_path, max_words=40, seed=1, name="other")
    assert set(sampled(other, 1)) != set(one)
    every = attach(tmp_path, max_words=10_000, name="every").observe(Copies("the"), 0)
    assert values(every, "masked_words")[""] == sum(map(len, sentences()))  # more than there are
    table = observer.observe(Copies("the"), 0)
    assert values(table, "masked_words")[""] == 40
    assert values(table, "words")[""] == sum(map(len, sentences()))
    texts = sentences()
    the = np.mean([texts[i][w] == "the" for i, w in one])
    assert values(table, "prediction")[""] == pytest.approx(the)


# ------------------------------------------------------------------------------------------ groups


def test_without_treebank_tags_universal_ones_are_taken(tmp_path):
    table = attach(tmp_path, loader(label_names={"upos": UPOS}), bands=[]).observe(Copies("the"), 0)
    assert set(table["by"]) == {"", "upos"}
    assert set(attach(tmp_path, loader(label_names={}), by=[]).observe(Copies(), 0)["by"]) == {""}


def test_frequencies_of_the_training_data(tmp_path):
    counts = pd.DataFrame({"token": list(VOCABULARY), "count": 0})
    counts.loc[[VOCABULARY[p] for p in ("red", "walk")], "count"] = [9, 5]
    observer = TokenLearning(bands=[(1, 1), (2, 2), (3, 9)])
    observer.probe = loader()
    observer.attach(Run(tmp_path, tokenizer=tokenizer(), token_counts=counts))
    table = observer.observe(Copies("red"), 0)
    assert values(table, "prediction", "rank") == {"1-1": 1.0, "2-2": 0.0}  # what does not occur has no rank
    n = sum(w == "walk" for words in sentences() for w in words)
    assert values(table, "words", "rank")["2-2"] == n  # and not "walk ##s", which has two pieces


# ------------------------------------------------------------------------------------------ errors


def test_what_is_refused(tmp_path):
    assert_refused(
        TokenLearning,
        ({"quantities": []}, "quantities is empty"),
        ({"bands": [(5, 9), (9, 12)]}, "bands are 5-9, 9-12: expected increasing ranks"),
        ({"bands": [(0, 9)]}, "from 1"),
        ({"by": ["rank"], "bands": []}, "bands is empty"),
    )
    assert_refused(
        lambda **settings: attach(tmp_path, **settings),
        ({"run_tokenizer": tokenizer(mask_token=None)}, "requires a masked language model and a tokenizer"),
        ({"probe": loader(label_names={"xpos": ["N", "V"] * 7})}, "Penn Treebank"),
        ({"probe": loader(label_names={"upos": UPOS}), "by": ["verb_form"]}, r"require layers xpos"),
        ({"probe": loader(label_names={})}, "groupings upos require layers upos"),
        ({"frequency": "train"}, "requires training frequencies"),
    )


@pytest.mark.parametrize("max_words", [None, 40])
def test_words_with_the_unknown_token_are_left_out(tmp_path, caplog, max_words):
    """Their numbers are those of the set without them; a model that answers the unknown token has nothing right."""
    texts = sentences()
    whole = attach(tmp_path / "whole", max_words=max_words, by=["pos"])
    examples = [example(words) for words in texts]
    gone = set()
    for n, text in enumerate(texts):
        for i, word in enumerate(text):
            if word in ("cat", "walk ##ed"):  # of the second its last piece alone
                gone.add((n, i))
                examples[n]["input_ids"][np.flatnonzero(examples[n]["words"] == i)[-1]] = VOCABULARY["[UNK]"]
    probe = ExampleLoader(examples, batch_tokens=60, label_names={"xpos": XPOS, "upos": UPOS})
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        observer = attach(tmp_path, probe, max_words=max_words, by=["pos"])
        table = observer.observe(Copies("[UNK]"), 0)
    n_words = sum(map(len, texts))
    assert caplog.text.count(f"words that contain the unknown token '[UNK]' ({len(gone)} of {n_words})") == 1
    assert values(table, "words")[""] == n_words - len(gone)
    assert values(table, "reconstruction")[""] == 1
    assert values(table, "prediction")[""] == 0
    if max_words is None:
        assert values(table, "masked_words")[""] == n_words - len(gone)
    else:
        assert sampled(observer, 1) == sampled(whole, 1)  # the draw is the same
        assert values(table, "masked_words")[""] == len(set(sampled(whole, 1)) - gone) < max_words
