import re
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lmdyn.datamodules.corpora.tokenization import (
    load_tokenizer,
    punctuation_of,
    subword_tokenizer,
    tokenizer_digest,
    word_tokenizer,
)


def test_one_id_a_word():
    counts = {"the": 5, "U.S.": 4, "'t": 4, "<unk>": 9, "x<unk>y": 3, "foo<eos>": 2, "naïve": 1, "[SEP]": 1}
    tokenizer = word_tokenizer(counts)
    assert tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))) == [
        *("<pad>", "<unk>", "<eos>", "the", "'t", "U.S.", "x<unk>y", "foo<eos>", "[SEP]", "naïve")
    ]
    words = [*counts, "unseen", "un<unk>seen", "a.b", "."]
    ids = tokenizer(words, is_split_into_words=True)["input_ids"]
    assert ids == [3, 5, 4, 1, 6, 7, 9, 8, 1, 1, 1, 1]
    assert tokenizer(" ".join(words))["input_ids"] == ids
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id) == (0, 1, 2)


def test_min_count_and_order():
    tokenizer = word_tokenizer({"b": 2, "a": 2, "c": 3, "d": 1}, min_count=2)
    assert tokenizer.convert_ids_to_tokens([3, 4, 5]) == ["c", "a", "b"]
    assert len(tokenizer) == 6


@pytest.mark.parametrize("load", [AutoTokenizer.from_pretrained, PreTrainedTokenizerFast.from_pretrained])
def test_round_trip(tmp_path, load):
    tokenizer = word_tokenizer({"the": 5, "U.S.": 4, "x<unk>y": 3})
    tokenizer.save_pretrained(str(tmp_path))
    loaded = load(str(tmp_path))
    words = ["the", "U.S.", "x<unk>y", "<unk>", "z<eos>"]
    assert loaded(words, is_split_into_words=True)["input_ids"] == [3, 4, 5, 1, 1]
    assert tokenizer_digest(loaded) == tokenizer_digest(tokenizer)
    loaded(["the", "the U.S."], padding=True, truncation=True, max_length=2)
    assert tokenizer_digest(loaded) == tokenizer_digest(tokenizer)
    assert tokenizer_digest(word_tokenizer({"the": 5})) != tokenizer_digest(tokenizer)


def test_load_tokenizer(tmp_path):
    word_tokenizer({"the": 5}).save_pretrained(str(tmp_path / "saved"))
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "[SEP]": 1, "a": 2}, "[UNK]"))
    wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", sep_token="[SEP]")
    wrapped.backend_tokenizer.save(str(tmp_path / "bare.json"))
    assert load_tokenizer(str(tmp_path / "saved" / "tokenizer.json")).eos_token_id == 2
    bare = load_tokenizer(str(tmp_path / "bare.json"))
    assert (bare.sep_token, bare.unk_token, bare.eos_token) == ("[SEP]", "[UNK]", None)
    with pytest.raises(ValueError, match=r"cannot be loaded .* give a folder"):
        load_tokenizer(str(tmp_path / "nothing"))


# ---------------------------------------------------------------- word pieces, trained on the spot

COUNTS = dict.fromkeys(
    "the cats sat . the cat sits , Élan vital a dog U.S. sat <unk> down dogs sit".split(),  # noqa: SIM905
    20,
)


@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
def test_word_pieces_of_each_kind(kind, tmp_path):
    tokenizer = subword_tokenizer(kind, COUNTS, vocab_size=60)
    assert tokenizer.convert_tokens_to_ids(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]) == [0, 1, 2, 3, 4]
    assert len(tokenizer) <= 60
    words = ["The", "cats", "<unk>", "elan", "zzz", "."]
    encoded = tokenizer(words, is_split_into_words=True, add_special_tokens=False)
    ids, of = encoded["input_ids"], encoded.word_ids()
    assert sorted(set(of)) == list(range(6))  # each word has pieces of its own
    assert [i for i, w in zip(ids, of, strict=True) if w == 2] == [1]
    assert tokenizer.tokenize("élan") == tokenizer.tokenize("Elan")
    assert 1 in [i for i, w in zip(ids, of, strict=True) if w == 4]  # unknown letters
    pair = tokenizer("the cat", "a dog")
    assert pair["input_ids"][0] == 2
    assert pair["input_ids"].count(3) == 2
    assert set(pair["token_type_ids"]) == {0, 1}
    tokenizer.save_pretrained(str(tmp_path))
    again = load_tokenizer(str(tmp_path))
    assert tokenizer_digest(again) == tokenizer_digest(tokenizer)
    assert (
        again(words, is_split_into_words=True)["input_ids"]
        == tokenizer(words, is_split_into_words=True)["input_ids"]
    )


def test_other_kinds_of_pieces_are_refused():
    with pytest.raises(ValueError, match="kind is one of"):
        subword_tokenizer("bpe", COUNTS)


# ---------------------------------------------------------------- how the training text has its full stops


RAW = (Path(__file__).parents[3] / "LICENSE").read_text().split("\n\n")  # some English
APART = [re.sub(r"([.,;:])", r" \1", paragraph) for paragraph in RAW]


def trained(kind, text):
    """A tokenizer as its library makes it of a text."""
    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=300, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        trainer = trainers.BpeTrainer(
            vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        )
    tokenizer.train_from_iterator(text, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("kind", ["unigram", "byte-level"])
@pytest.mark.parametrize(("text", "expected"), [(RAW, "attached"), (APART, "apart")])
def test_how_full_stops_stand(kind, text, expected):
    assert punctuation_of(trained(kind, text)) == expected


def test_how_full_stops_stand_where_both_forms_are_in_the_vocabulary():
    def of(with_space, without):
        pieces = [("<unk>", 0.0), ("▁a", -2.0), ("▁.", with_space), (".", without)]
        tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        return punctuation_of(PreTrainedTokenizerFast(tokenizer_object=tokenizer))

    assert (of(-3.0, -9.0), of(-9.0, -3.0)) == ("apart", "attached")


def test_how_full_stops_stand_of_own_tokenizers():
    counts = Counter(" ".join(APART).split())
    assert punctuation_of(word_tokenizer(counts)) == "apart"
    assert punctuation_of(subword_tokenizer("unigram", counts, 300)) == "apart"
    assert punctuation_of(subword_tokenizer("wordpiece", counts, 300)) == "attached"  # the same pieces
