import contextlib
import json
import re
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lmdyn.datamodules.corpora import tokenization as T
from lmdyn.datamodules.corpora.encoding import encode_documents
from lmdyn.datamodules.corpora.sentence import Document, Sentence


def test_one_id_a_word():
    counts = {"the": 5, "U.S.": 4, "'t": 4, "<unk>": 9, "x<unk>y": 3, "foo<eos>": 2, "naïve": 1, "[SEP]": 1}
    tokenizer = T.word_tokenizer(counts)
    assert tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))) == [
        *("<pad>", "<unk>", "<eos>", "the", "'t", "U.S.", "x<unk>y", "foo<eos>", "[SEP]", "naïve")
    ]
    words = [*counts, "unseen", "un<unk>seen", "a.b", "."]
    ids = tokenizer(words, is_split_into_words=True)["input_ids"]
    assert ids == [3, 5, 4, 1, 6, 7, 9, 8, 1, 1, 1, 1]
    assert tokenizer(" ".join(words))["input_ids"] == ids
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id) == (0, 1, 2)


@pytest.mark.parametrize("load", [AutoTokenizer.from_pretrained, PreTrainedTokenizerFast.from_pretrained])
def test_round_trip(tmp_path, load):
    tokenizer = T.word_tokenizer({"the": 5, "U.S.": 4, "x<unk>y": 3})
    tokenizer.save_pretrained(str(tmp_path))
    loaded = load(str(tmp_path))
    words = ["the", "U.S.", "x<unk>y", "<unk>", "z<eos>"]
    assert loaded(words, is_split_into_words=True)["input_ids"] == [3, 4, 5, 1, 1]
    assert T.tokenizer_digest(loaded) == T.tokenizer_digest(tokenizer)
    loaded(["the", "the U.S."], padding=True, truncation=True, max_length=2)
    assert T.tokenizer_digest(loaded) == T.tokenizer_digest(tokenizer)
    assert T.tokenizer_digest(T.word_tokenizer({"the": 5})) != T.tokenizer_digest(tokenizer)


def test_load_tokenizer(tmp_path):
    T.word_tokenizer({"the": 5}).save_pretrained(str(tmp_path / "saved"))
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "[SEP]": 1, "a": 2}, "[UNK]"))
    wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", sep_token="[SEP]")
    wrapped.backend_tokenizer.save(str(tmp_path / "bare.json"))
    assert T.load_tokenizer(str(tmp_path / "saved" / "tokenizer.json")).eos_token_id == 2
    bare = T.load_tokenizer(str(tmp_path / "bare.json"))
    assert (bare.sep_token, bare.unk_token, bare.eos_token) == ("[SEP]", "[UNK]", None)
    wrapped.backend_tokenizer.save(
        str(tmp_path / "saved" / "bare.json")
    )  # another file beside a saved tokenizer
    assert len(T.load_tokenizer(str(tmp_path / "saved" / "bare.json"))) == 3
    with pytest.raises(ValueError, match=r"cannot be loaded .* give a folder"):
        T.load_tokenizer(str(tmp_path / "nothing"))


# ---------------------------------------------------------------- word pieces, trained on the spot

COUNTS = dict.fromkeys(
    "the cats sat . the cat sits , Élan vital a dog U.S. sat <unk> down dogs sit".split(),  # noqa: SIM905
    20,
)


@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
def test_word_pieces_of_each_kind(kind, tmp_path):
    tokenizer = T.subword_tokenizer(kind, COUNTS, vocab_size=60)
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
    again = T.load_tokenizer(str(tmp_path))
    assert T.tokenizer_digest(again) == T.tokenizer_digest(tokenizer)
    one, two = (t(words, is_split_into_words=True)["input_ids"] for t in (again, tokenizer))
    assert one == two


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
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "byte-level")
        trainer = trainers.BpeTrainer(
            vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        )
    tokenizer.train_from_iterator(text, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("kind", ["unigram", "byte-level", "byte-level without a prefix"])
@pytest.mark.parametrize(("text", "expected"), [(RAW, "attached"), (APART, "apart")])
def test_how_full_stops_stand(kind, text, expected):
    assert T.punctuation_of(trained(kind, text)) == expected


def test_how_full_stops_stand_where_both_forms_are_in_the_vocabulary():
    def of(with_space, without):
        pieces = [("<unk>", 0.0), ("▁a", -2.0), ("▁.", with_space), (".", without)]
        tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        return T.punctuation_of(PreTrainedTokenizerFast(tokenizer_object=tokenizer))

    assert (of(-3.0, -9.0), of(-9.0, -3.0)) == ("apart", "attached")


# ---------------------------------------------------------------- words, and the text that they make up

SENTENCES = [
    ("The", "capital", "of", "Élan", "is", "n't", "12", ",", "U.S.", "."),
    ("cats",),
    ("(", "sat", ")", "日本", "'s"),
]
LLAMA = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"
"""The kind of pattern by which OLMo-2's tokenizer splits."""


def reading(kind):
    """A tokenizer of some kind that has read ``SENTENCES``."""
    text = [" ".join(words) for words in SENTENCES]
    if kind == "wordpiece":
        return T.subword_tokenizer("wordpiece", Counter(" ".join(text).split()), 200)
    if kind == "metaspace":
        return T.subword_tokenizer("unigram", Counter(" ".join(text).split()), 200)
    tokenizer = Tokenizer(models.BPE())
    if kind == "no dummy prefix":  # Gemma's
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
        alphabet = sorted(set(" ".join(text)))
    else:
        tokenizer.pre_tokenizer = {
            "byte-level": pre_tokenizers.ByteLevel(add_prefix_space=False),
            "prefix space": pre_tokenizers.ByteLevel(add_prefix_space=True),
            "split": pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(LLAMA), "isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            ),
        }[kind.removesuffix(", trimmed")]
        tokenizer.decoder = decoders.ByteLevel()
        if kind.endswith(", trimmed"):  # Pythia's
            tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=True)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(text * 5, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


SPACED = ["byte-level", "byte-level, trimmed", "split", "split, trimmed", "no dummy prefix"]


@pytest.mark.parametrize("kind", [*SPACED, "prefix space", "metaspace", "wordpiece"])
def test_encoded_words_are_the_text_that_they_make_up(kind, tmp_path):
    tokenizer = reading(kind)
    document = Document("d", tuple(Sentence(words) for words in SENTENCES))
    split = encode_documents([document], tmp_path, tokenizer, eos=False)
    bounds = [*split.sentence_starts, split.num_tokens]
    for words, start, end in zip(SENTENCES, bounds, bounds[1:], strict=False):
        ids = split.tokens[start:end].tolist()
        text = " ".join(words)
        assert ids == tokenizer(text, add_special_tokens=False)["input_ids"]
        if kind == "wordpiece":  # lower-cased, and its decoder has a space between "n" and "'t"
            assert tokenizer.decode(ids).replace(" ", "") == text.lower().replace(" ", "").replace("é", "e")
        else:
            expected = text.lower().replace("é", "e") if kind == "metaspace" else text
            assert tokenizer.decode(ids).lstrip() == expected
        begins = split.word_start[start:end]
        assert begins.sum() == len(words)
        firsts = [tokenizer.decode(ids[i]).strip().lower()[:1] for i in begins.nonzero()[0]]
        # a piece can be a part of a character, or the space alone
        assert all(a in ("", "\ufffd", b[0].lower(), "e") for a, b in zip(firsts, words, strict=True))


@pytest.mark.parametrize(
    "kind", ["prefix space", "metaspace", "wordpiece", "word", "unsplit", "no unknown", "letters"]
)
def test_other_tokenizers_encode_words_as_they_are(kind):
    letters = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "c": 2, "s": 3, "t": 4}, "[UNK]"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    bare = {
        "letters": PreTrainedTokenizerFast(tokenizer_object=letters, unk_token="[UNK]"),
        "word": T.word_tokenizer({"cats": 2, "sat": 1}),
        "unsplit": PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "cats": 2}, "[UNK]"))
        ),
        "no unknown": PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel({w: i for i, w in enumerate(chain(*SENTENCES))}))
        ),
    }
    tokenizer = bare[kind] if kind in bare else reading(kind)
    encoder = T.WordEncoder(tokenizer)
    assert not encoder.spaced
    expected = tokenizer.backend_tokenizer.encode_batch(
        [list(words) for words in SENTENCES], is_pretokenized=True, add_special_tokens=False
    )
    for mine, theirs in zip(encoder.encode(SENTENCES), expected, strict=True):
        assert (mine.ids, mine.word_ids) == (theirs.ids, theirs.word_ids)
        assert encoder.offsets(mine) == theirs.offsets


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("tokenizer_config.json", "{", "", "cannot be loaded"),
        ("tokenizer.json", '"model"', '"modal"', "cannot be loaded"),
        ("tokenizer.json", '"the": 3', '"the": 4', r"damaged: '.*' and '.*' both have the id 4"),
        ("tokenizer.json", '"<eos>": 2', '"<eow>": 2', r"damaged: '<eos>' has the ids 5 and 2"),
        ("tokenizer.json", '"<unk>": 1', '"<unk>": 9', r"damaged: '<unk>' has the ids 9 and 1"),
    ],
)
def test_damaged_folders(tmp_path, file, old, new, message):
    T.word_tokenizer({"the": 2, "cat": 1}).save_pretrained(str(tmp_path))
    T.load_tokenizer(str(tmp_path))  # the control
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as found:
        T.load_tokenizer(str(tmp_path))
    assert str(tmp_path) in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("steps", "growth"),
    [
        ([normalizers.Replace("a", "a" * 100)] * 4, "100,000,000"),
        ([normalizers.Replace(Regex("a"), "a" * 100)] * 2, "10,000"),
        ([normalizers.ByteLevel()] * 40, "1,099,511,627,776"),
        ([normalizers.Prepend("a" * 5000)], "5,000"),
        ([normalizers.Sequence([normalizers.Replace("ab", "b" * 200)] * 2)], "10,000"),
    ],
)
def test_normalizers_that_multiply_a_text(tmp_path, steps, growth):
    """Four replacements make a gigabyte of ten letters; the text is not needed to see it."""
    backend = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence(steps)
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=f"up to {growth} times longer, expected at most 1,000"):
        T.load_tokenizer(str(tmp_path / "tokenizer.json"))


def test_code_of_a_tokenizer_is_not_run(tmp_path):
    """And nobody is asked on the terminal whether to run it."""
    T.word_tokenizer({"the": 2}).save_pretrained(str(tmp_path))
    path = tmp_path / "tokenizer_config.json"
    about = {
        **json.loads(path.read_text()),
        "auto_map": {"AutoTokenizer": ["own.Own", None]},
        "tokenizer_class": "Own",
    }
    path.write_text(json.dumps(about))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with contextlib.suppress(ValueError):
        T.load_tokenizer(str(tmp_path))
    assert not (tmp_path / "ran").exists()
