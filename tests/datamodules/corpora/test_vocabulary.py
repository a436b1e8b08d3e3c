"""Vocabularies are a function of counts and size, and those that the definitions and the libraries give."""

import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from lmdyn.datamodules.corpora.vocabulary import train_unigram, train_wordpieces
from lmdyn.datamodules.grammar.grammar import Grammar

TRAIN = """
import random, sys
from lmdyn.datamodules.corpora.tokenization import subword_tokenizer, word_tokenizer

draw = random.Random(0)
words = ["".join(draw.choice("abcdefgéß") for _ in range(draw.randint(1, 9))) for _ in range(2000)]
counts = {word: words.count(word) for word in set(words)}  # in the order of the process's hashes
word_tokenizer(counts).save_pretrained(folder + "/word")
for kind in ("unigram", "wordpiece"):
    subword_tokenizer(kind, counts, 500).save_pretrained(folder + "/" + kind)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folders of vocabularies, trained in this process and in a fresh one with other settings."""
    here, fresh = (tmp_path_factory.mktemp("trained") for _ in range(2))
    exec(TRAIN, {"folder": str(here)})
    settings = {"RAYON_NUM_THREADS": "3", "TOKENIZERS_PARALLELISM": "true", "PYTHONHASHSEED": "2"}
    command = [sys.executable, "-c", f"folder = {str(fresh)!r}\n{TRAIN}"]
    subprocess.run(command, check=True, env={**os.environ, **settings}, timeout=300)
    return here, fresh


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["word", "unigram", "wordpiece"])
def test_another_process_gives_equal_files(trained, kind):
    """The text has many ties: most pieces are as frequent as others."""
    here, fresh = ({p.name: p.read_bytes() for p in (folder / kind).iterdir()} for folder in trained)
    assert here == fresh
    assert "tokenizer.json" in here


# ---------------------------------------------------------------- WordPiece


def naive_wordpieces(counts, size):
    """All pairs counted anew for each merge."""
    words = {word: [word[0], *("##" + c for c in word[1:])] for word in counts}
    pieces = sorted({c for word in counts for c in word})
    pieces += sorted({piece for word in words.values() for piece in word[1:]})
    while len(pieces) < size:
        pairs = Counter()
        for word, parts in words.items():
            for pair in pairwise(parts):
                pairs[pair] += counts[word]
        if not pairs:
            break
        a, b = min(pairs, key=lambda pair: (-pairs[pair], *map(pieces.index, pair)))
        for parts in words.values():
            for i in range(len(parts) - 1):
                if parts[i : i + 2] == [a, b]:
                    parts[i : i + 2] = [a + b[2:]]
        if a + b[2:] not in pieces:
            pieces.append(a + b[2:])
    return pieces


@pytest.mark.parametrize("seed", range(6))
def test_wordpieces_are_those_of_the_algorithm(seed):
    random = np.random.default_rng(seed)
    words = ["".join(random.choice(list("abc"), random.integers(1, 8))) for _ in range(60)]
    counts = Counter(words)
    for size in (7, 30, 1000):
        assert train_wordpieces(counts, size) == naive_wordpieces(counts, size)
    assert train_wordpieces({}, 5) == []
    assert train_wordpieces({"aaaa": 2, "aa": 1}, 16) == ["a", "##a", "##aa", "aaa", "aaaa", "aa"]


# ---------------------------------------------------------------- unigram


@pytest.mark.parametrize("size", [150, 900])
def test_unigram_pieces_write_a_text_as_short_as_those_of_tokenizers(size):
    counts = Counter(w for d in Grammar().documents("train", 8_000) for s in d for w in s.words)
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.UnigramTrainer(
        vocab_size=size + 1, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator((" ".join([word] * count) for word, count in counts.items()), trainer)
    trained = train_unigram(counts, size)
    own = Tokenizer(models.Unigram([("<unk>", 0.0), *trained], unk_id=0))
    assert len(trained) == size

    def length(tokenizer):
        return sum(count * len(tokenizer.encode(word).tokens) for word, count in counts.items())

    assert length(own) <= 1.02 * length(backend)


@pytest.mark.parametrize("train", [train_unigram, train_wordpieces])
def test_letters_that_mean_something_to_a_trainer(train):
    """SentencePiece drops words with U+2585, and stumbles over tabs and NUL."""
    words = {"x▅y": 9, "a\tb": 3, "n\0l": 2, "▁▁a": 1, "\U000f0001": 1, "\x1f<unk>": 1}
    pieces = {piece[0] if isinstance(piece, tuple) else piece for piece in train(words, 100)}
    assert set("".join(words)) <= pieces
