import random
import re
from collections import Counter
from pathlib import Path

import pytest

from lmdyn.datamodules import Tagger, TextCorpus
from lmdyn.datamodules.corpora.text import cut_sentences, split_sentences

WIKI = """\
 = First Title =\x20

 The cat ( a <unk> one ) sleeps . The cat , said " He , sleeps . " The Dog ?
 = 3 + 4 =
 and so on

 = = Section = =\x20

 The dog sleeps ! The rare zebra sleeps .
 = Not a title =

 The cat sleeps .

 = Second Title =\x20

 The dog sleeps . The cat sleeps .
"""


def write(tmp_path: Path, text: str, name: str) -> str:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def prepared(tmp_path: Path, **settings) -> TextCorpus:
    corpus = TextCorpus(**{"cache_dir": str(tmp_path / "cache"), "batch_size": 1, **settings})
    corpus.setup()
    return corpus


def sentences(corpus, split="train"):
    return [" ".join(s.words) for d in corpus.documents(split) for s in d]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b . c d", ["a b .", "c d"]),
        ("a ? ! b . . .", ["a ? !", "b . . ."]),
        ('" a . b . " c', ['" a .', 'b . "', "c"]),
        ('a . " b . "', ["a .", '" b . "']),
        ("( a . ) b ( c", ["( a . )", "b ( c"]),
        ("a . ] ) ” '' b", ["a . ] ) ” ''", "b"]),
        (". a", [".", "a"]),
        ("U.S. is no end", ["U.S. is no end"]),
        ("", []),
    ],
)
def test_split_sentences(text, expected):
    assert [" ".join(s) for s in split_sentences(text.split())] == expected


def test_wikitext_articles(tmp_path):
    corpus = TextCorpus(train=write(tmp_path, WIKI, "w.txt"))
    documents = list(corpus.documents("train"))
    assert [d.name for d in documents] == ["First Title", "Second Title"]
    assert [{s.topic for s in d} for d in documents] == [{"First Title"}, {"Second Title"}]
    assert sentences(corpus) == [
        "the cat ( a <unk> one ) sleeps .",
        'the cat , said " he , sleeps . "',
        "the dog ?",
        "= 3 + 4 =",
        "and so on",
        "the dog sleeps !",
        "the rare zebra sleeps .",
        "= not a title =",
        *("the cat sleeps .", "the dog sleeps .", "the cat sleeps ."),
    ]
    kept = TextCorpus(
        train=write(tmp_path, WIKI, "w.txt"), headings=True, lowercase=False, split_sentences=False
    )
    assert sentences(kept)[:2] == ["= First Title =", WIKI.splitlines()[2].strip()]
    assert "= = Section = =" in sentences(kept)


def naive_preparation(train, others, min_count):
    """Second implementation, for text of plain words and full stops, one paragraph a line."""

    def split(text):
        return [s.split() for s in re.findall(r"[^.\n]+(?:\.|(?=\n)|$)", text.lower()) if s.strip()]

    counts = {}
    for sentence in split(train):
        for word in sentence:
            counts[word] = counts.get(word, 0) + 1
    kept = [
        [s for s in split(text) if all(counts.get(w, 0) >= min_count for w in s)] for text in (train, *others)
    ]
    recount = Counter(w for s in kept[0] for w in s)
    return [
        [[w if recount[w] >= min_count else "<unk>" for w in s] + ["<eos>"] for s in sents] for sents in kept
    ]


@pytest.mark.parametrize("min_count", [2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_a_naive_preparation(tmp_path, min_count, seed):
    draw = random.Random(seed)
    words = [f"W{i}" for i in range(30)]
    weights = [1 / (i + 1) for i in range(30)]

    def text(paragraphs):
        lines = []
        for _ in range(paragraphs):
            parts = [
                draw.choices(words, weights, k=draw.randrange(1, 5)) for _ in range(draw.randrange(1, 4))
            ]
            lines.append(" . ".join(" ".join(p) for p in parts) + draw.choice([" .", ""]))
        return "\n".join(lines) + "\n"

    train, validation = text(25), text(15)
    files = [write(tmp_path, content, f"{i}.txt") for i, content in enumerate((train, validation))]
    corpus = prepared(tmp_path, train=files[0], validation=files[1], layout="paragraphs", min_count=min_count)
    for split, expected in zip(
        ("train", "validation"), naive_preparation(train, [validation], min_count), strict=True
    ):
        tokens = corpus.tokenizer.convert_ids_to_tokens(corpus.encoded(split).tokens.tolist())
        assert tokens == [w for s in expected for w in s]


def test_rare_sentences(tmp_path):
    path = write(tmp_path, WIKI, "w.txt")
    everything = sentences(TextCorpus(train=path))
    assert sentences(TextCorpus(train=path, min_count=3, drop_rare_sentences=False)) == everything
    kept = sentences(TextCorpus(train=path, min_count=3))
    assert kept == ["the cat sleeps .", "the dog sleeps .", "the cat sleeps ."]
    only = TextCorpus(validation=path, min_count=3)
    with pytest.raises(ValueError, match="which is missing: give train, or set drop_rare_sentences: false"):
        list(only.documents("validation"))


# ------------------------------------------------------------------------------------------ selection and cut


def wikitext(*articles: tuple[str, str]) -> str:
    return "".join(f"\n = {title} = \n\n {text}\n" for title, text in articles)


@pytest.mark.parametrize(
    ("lengths", "shares", "expected"),
    [
        ([1] * 10, (0.7, 0.1, 0.2), [7, 1, 2]),  # 0.7 + 0.1 is a little less than 0.8 in floats
        ([2] * 5, (0.5, 0.1, 0.4), [2, 1, 2]),  # a midpoint at a bound lies behind it
        ([10], (0.7, 0.1, 0.2), [1, 0, 0]),
        ([10], (0.2, 0.1, 0.7), [0, 0, 1]),
        ([6, 4], (0.7, 0.1, 0.2), [1, 0, 1]),
        ([7, 1, 2], (0.7, 0.1, 0.2), [1, 1, 1]),
        ([1, 1, 1, 1], (0.5, 0.0, 0.5), [2, 0, 2]),
        ([1, 1], (1.0, 0.0, 0.0), [2, 0, 0]),
        ([1, 1, 1], (1 / 3, 1 / 3, 1 / 3), [1, 1, 1]),
        ([], (0.7, 0.1, 0.2), [0, 0, 0]),
    ],
)
def test_cut_sentences(lengths, shares, expected):
    sentences = [[f"w{i}"] * n for i, n in enumerate(lengths)]
    parts = cut_sentences(sentences, shares)
    assert [len(part) for part in parts] == expected
    assert [s for part in parts for s in part] == sentences


def test_longest_articles(tmp_path):
    text = wikitext(("A", "a b ."), ("B", "a b c . a ."), ("C", "a ."), ("D", "a b c d e ."), ("E", "b b ."))
    path = write(tmp_path, text, "w.txt")
    other = write(tmp_path, wikitext(("X", "a ."), ("Y", "a b .")), "v.txt")
    everything = sentences(TextCorpus(train=path))

    def names(n, split="train", **settings):
        corpus = TextCorpus(train=path, validation=other, longest_articles=n, **settings)
        return [d.name for d in corpus.documents(split)]

    # six words each: B and D; three: A and E, of which A comes first; two: C
    assert [names(n) for n in (1, 2, 3, 4)] == [["B"], ["B", "D"], ["A", "B", "D"], ["A", "B", "D", "E"]]
    assert names(5) == names(99) == ["A", "B", "C", "D", "E"]
    assert sentences(TextCorpus(train=path, longest_articles=99)) == everything
    assert names(1, "validation") == ["Y"]
    # the length is that after the preparation: c, d and e are rare, and what holds them is dropped
    assert names(2, min_count=3) == ["A", "E"]
    corpus = prepared(tmp_path, train=path, longest_articles=2, validation=other)
    assert corpus.label_names["topic"] == ["B", "D", "X", "Y"]
    assert corpus.word_counts() == {"a": 3, "b": 2, "c": 2, "d": 1, "e": 1, ".": 3}


def test_drawn_articles(tmp_path):
    path = write(tmp_path, wikitext(*((f"T{i}", f"a w{i} .") for i in range(40))), "w.txt")
    whole, *drawn = (
        sentences(TextCorpus(train=path, drawn_articles=n, seed=s))
        for n, s in ((99, 0), (9, 0), (9, 0), (9, 1))
    )
    assert whole == sentences(TextCorpus(train=path))
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(part) == 9 and part == [s for s in whole if s in part] for part in drawn)
    with pytest.raises(ValueError, match="got both"):
        TextCorpus(train=path, drawn_articles=1, longest_articles=1)


def random_articles(draw, n):
    words = [f"w{i}" for i in range(12)]
    weights = [1 / (i + 1) for i in range(12)]

    def article():
        return "\n ".join(
            " . ".join(" ".join(draw.choices(words, weights, k=draw.randrange(1, 9))) for _ in range(4))
            + " ."
            for _ in range(draw.randrange(1, 9))
        )

    return [(f"T{i}", article()) for i in range(n)]


@pytest.mark.parametrize("min_count", [1, 4])
@pytest.mark.parametrize("longest", [None, 4])
def test_parts_of_an_article_are_the_article(tmp_path, min_count, longest):
    path = write(tmp_path, wikitext(*random_articles(random.Random(0), 7)), "w.txt")
    whole = {d.name: d.sentences for d in TextCorpus(train=path, min_count=min_count).documents("train")}
    corpus = prepared(
        tmp_path, train=path, min_count=min_count, longest_articles=longest, cut_articles=(0.7, 0.1, 0.2)
    )
    assert corpus.splits == ("train", "validation", "test")
    parts = {split: {d.name: d.sentences for d in corpus.documents(split)} for split in corpus.splits}
    names = list(parts["train"])
    assert len(names) == (longest or 7)
    assert names == [name for name in whole if name in names]  # the order of the text
    for split, share in zip(corpus.splits, (0.7, 0.1, 0.2), strict=True):
        assert list(parts[split]) == [name for name in names if name in parts[split]]
        for name in names:
            n, total = (sum(len(s.words) for s in t) for t in (parts[split].get(name, ()), whole[name]))
            longest_sentence = max(len(s.words) for s in whole[name])
            assert abs(n - share * total) <= longest_sentence  # half a sentence at each of two bounds
    for name in names:
        joined = [s for split in corpus.splits for s in parts[split].get(name, ())]
        assert joined == list(whole[name])
    # topics are article indices, one list for all splits, and the vocabulary is that of the training part
    assert corpus.label_names["topic"] == names
    assert all(corpus.encoded(split).names["topic"] == names for split in corpus.splits)
    test = corpus.encoded("test")
    assert list(dict.fromkeys(test.layer("topic").tolist())) == [*(names.index(n) for n in parts["test"])]
    counts = Counter(w for t in parts["train"].values() for s in t for w in s.words)
    assert corpus.word_counts() == counts
    assert {w for w in corpus.tokenizer.get_vocab() if w not in ("<unk>", "<eos>", "<pad>")} == {
        w for w, n in counts.items() if n >= min_count
    }


class Loud(Tagger):
    """Tags by length; counts its calls."""

    def tag(self, sentences):
        return [{"upos": tuple("LONG" if len(w) > 3 else None for w in words)} for words in sentences]

    def key(self):
        return {"tagger": "loud"}


def test_silver_layers(tmp_path):
    path = write(tmp_path, WIKI, "w.txt")
    corpus = prepared(tmp_path, train=path, tagger=Loud(), layers=["upos"])
    assert corpus.label_names == {"upos": ["LONG"], "topic": ["First Title", "Second Title"]}
    train = corpus.encoded("train")
    for token, label in zip(
        corpus.tokenizer.convert_ids_to_tokens(train.tokens.tolist()), train.layer("upos"), strict=True
    ):
        assert label == (0 if len(token) > 3 and token != "<eos>" else -100)
    assert train.folder != prepared(tmp_path, train=path).encoded("train").folder
    assert "tagger" not in corpus.hparams


def test_shuffled_sentences_are_the_same_ones_with_their_topics(tmp_path):
    path = tmp_path / "train.txt"
    articles = "".join(
        f"\n = T{i} = \n\n" + " ".join(f"a{i} b{j} ." for j in range(9)) + "\n" for i in range(4)
    )
    path.write_text(articles)
    plain, mixed, again, other = (
        [
            (s.topic, s.words)
            for d in TextCorpus(str(path), shuffle_sentences=shuffle, seed=seed).documents("train")
            for s in d
        ]
        for shuffle, seed in ((False, 0), (True, 0), (True, 0), (True, 1))
    )
    assert mixed == again
    assert mixed != plain
    assert mixed != other
    assert sorted(mixed) == sorted(plain)
    keys = [
        TextCorpus(str(path), shuffle_sentences=x, seed=y).content_key()
        for x, y in ((False, 0), (True, 0), (True, 1))
    ]
    assert keys[0] != keys[1] != keys[2]
