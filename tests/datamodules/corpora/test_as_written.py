"""Text for a tokenizer that lmdyn did not train: as it is written, byte for byte."""

import os
import random
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lmdyn.datamodules import ConlluCorpus, PretrainingCorpus, SpanCorpus, StreamedText, TextCorpus
from lmdyn.datamodules.corpora import encoding, tokenization
from lmdyn.datamodules.corpora.conllu import read_conllu
from lmdyn.datamodules.pretraining.stream_reader import START
from tests.helpers.foreign_tokenizers import CODE, KINDS, PROSE, trained


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False).input_ids


def corpus_of(tmp_path, tokenizer, text=None, **settings):
    """A corpus of a file with this text, byte for byte."""
    if text is not None:
        (tmp_path / "t.txt").write_bytes(text.encode())
        settings = {"train": str(tmp_path / "t.txt"), **settings}
    corpus = TextCorpus(cache_dir=str(tmp_path / "cache"), **settings)
    corpus.tokenizer = tokenizer
    corpus.prepare_data()
    return corpus


def tokens(corpus, split="train"):
    return corpus.encoded(split).tokens.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_a_file(kind, tmp_path):
    tokenizer = trained(kind)
    assert not tokenization.trained_here(tokenizer)
    texts = ["    the cat", "the  cat", "the\tcat", "return None\ndef save(x)"]
    for text in (CODE[:6000], PROSE.replace("=", "-"), *texts):
        assert tokens(corpus_of(tmp_path, tokenizer, text, eos=False)) == ids(tokenizer, text)
        end = tokenizer.sep_token_id if kind == "wordpiece" else tokenizer.eos_token_id
        assert tokens(corpus_of(tmp_path, tokenizer, text)) == [*ids(tokenizer, text), end]
        # the settings by which the guide reads text unchanged
        settings = {"layout": "paragraphs", "split_sentences": False, "lowercase": False, "min_count": 1}
        assert tokens(corpus_of(tmp_path, tokenizer, text, eos=False, **settings)) == ids(tokenizer, text)
        lines = [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]
        assert tokens(corpus_of(tmp_path, tokenizer, text, **settings)) == [
            i for line in lines for i in [*ids(tokenizer, line), end]
        ]


def test_white_space_matters_to_one_tokenizer_and_not_to_the_other(tmp_path):
    """The controls: text rebuilt from its words would be wrong for the first and right for the second."""
    rebuilt = " ".join(CODE.split())
    gpt, bert = trained("gpt-2"), trained("wordpiece")
    assert ids(gpt, rebuilt) != ids(gpt, CODE)
    assert ids(bert, rebuilt) == ids(bert, CODE) == tokens(corpus_of(tmp_path, bert, CODE, eos=False))


def test_a_text_that_begins_with_empty_lines_and_a_title(tmp_path):
    """As WikiText's files do."""
    text = " \n = A = \n \n One . \n \n = B = \n \n Two . \n"
    tokenizer = trained("gpt-2")
    assert tokens(corpus_of(tmp_path, tokenizer, text, eos=False)) == ids(tokenizer, text)
    articles = (text[: text.index(" = B")], text[text.index(" = B") :])
    expected = [i for article in articles for i in [*ids(tokenizer, article), tokenizer.eos_token_id]]
    assert tokens(corpus_of(tmp_path, tokenizer, text)) == expected


def test_who_trained_a_tokenizer():
    """One with the special tokens of lmdyn's, and of ALBERT's, is not lmdyn's for that reason alone."""
    own = tokenization.subword_tokenizer("unigram", {"the": 9, "cats": 9}, vocab_size=40)
    assert tokenization.trained_here(own)
    own.backend_tokenizer.normalizer = normalizers.Lowercase()
    assert not tokenization.trained_here(own)
    assert tokenization.trained_here(tokenization.word_tokenizer({"the": 2}))
    other = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1}, "<unk>"))
    other.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert not tokenization.trained_here(PreTrainedTokenizerFast(tokenizer_object=other, unk_token="<unk>"))


def test_articles_are_documents_and_only_they_end(tmp_path):
    tokenizer = trained("gpt-2")
    lead, article = PROSE[: PROSE.index(" = A")], PROSE[PROSE.index(" = A") :]
    corpus = corpus_of(tmp_path, tokenizer, PROSE)
    end = tokenizer.eos_token_id
    assert tokens(corpus) == [*ids(tokenizer, lead), end, *ids(tokenizer, article), end]
    assert tokens(corpus_of(tmp_path, tokenizer, PROSE, eos=False)) == ids(tokenizer, PROSE)
    encoded = corpus.encoded("train")
    assert encoded.document_starts.tolist() == [0, 1]
    starts = encoded.sentence_starts.tolist()
    assert len(starts) == encoded.num_sentences == 5  # lines
    assert starts[1] == len(ids(tokenizer, lead)) + 1
    assert [corpus.label_names["topic"][i] for i in np.unique(encoded.layer("topic")) if i >= 0] == [
        "A Title"
    ]


def test_preparation_that_is_asked_for_cuts_and_changes_case_only(tmp_path):
    tokenizer = trained("gpt-2")

    def text(**settings):
        corpus = corpus_of(tmp_path, tokenizer, PROSE, eos=False, **settings)
        return [tokenizer.decode(tokens(corpus, split)) for split in corpus.splits], corpus

    assert text()[0] == [PROSE]
    assert text(lowercase=True)[0] == [PROSE.lower()]
    whole, corpus = text(split_sentences=True)
    assert whole == [PROSE]
    encoded = corpus.encoded("train")
    bounds = [*encoded.sentence_starts, encoded.num_tokens]
    found = [tokenizer.decode(encoded.tokens[a:b].tolist()).strip() for a, b in pairwise(bounds)]
    titles = ["= A Title =", "x = 1", "= = Part = ="]
    assert found == ["The  cat\tsat .", *titles, "the  dog ?", "The cat\u00a0!"]
    assert text(headings=False)[0] == [PROSE.replace(" = A Title = \n", "").replace(" = = Part = =\n", "")]
    # each document is cut between lines: the first, of one line, is in the second part
    parts = text(cut_articles=(0.5, 0.0, 0.5))[0]
    assert parts == [
        " = A Title = \n\n  x = 1\n\n\n",
        "\n    The  cat\tsat .\r\n\r\n = = Part = =\nthe  dog ? The cat\u00a0! \n\n\n",
    ]
    for corpus in (text(shuffle_sentences=True)[1], text(longest_articles=1)[1]):
        assert "  dog" in tokenizer.decode(tokens(corpus))


def test_words_are_found_by_their_places(tmp_path):
    """Each piece has the label of the word in which it begins; white space belongs to the word after it."""

    class Case:
        def tag(self, sentences):
            return [{"upos": tuple(words)} for words in sentences]

        def key(self):
            return {"tagger": "itself"}

    for kind in KINDS:
        tokenizer = trained(kind)
        text = PROSE.replace("?", ".")  # of which each kind has pieces
        corpus = corpus_of(tmp_path, tokenizer, text, tagger=Case(), layers=["upos"])
        encoded = corpus.encoded("train")
        names = corpus.label_names["upos"]
        words, labels = [], []
        for piece, begins, label in zip(
            encoded.tokens, encoded.word_start, encoded.layer("upos"), strict=True
        ):
            if begins:
                words.append([])
                labels.append(label)
            if label != -100:
                assert label == labels[-1]
                words[-1].append(int(piece))
        assert len(words) == len(text.split())
        for pieces, label in zip(words, labels, strict=True):
            # with the white space around it
            assert names[label].lower() in tokenizer.decode(pieces).lower()


def test_a_dataset(tmp_path):
    tokenizer = trained("gpt-2")
    end = tokenizer.eos_token_id

    def of(rows, **settings):
        folder = tmp_path / f"{abs(hash(tuple(rows)))}"
        folder.mkdir(exist_ok=True)
        pd.DataFrame({"text": rows}).to_parquet(folder / "train.parquet")
        dataset = {"path": "parquet", "data_files": {"train": str(folder / "train.parquet")}}
        settings["dataset"] = {**dataset, "cache_dir": str(tmp_path / "hub")}
        return tokens(corpus_of(tmp_path, tokenizer, **settings))

    documents = ["def f(x):\n    return  x\n", "    y = 1", "", None, "z = 2\n"]
    assert of(documents) == [i for row in documents if row for i in [*ids(tokenizer, row), end]]
    assert of(documents, eos=False) == ids(tokenizer, "def f(x):\n    return  x\n    y = 1\nz = 2\n")
    # rows that are lines of WikiText
    lines = PROSE.replace("\r", "").splitlines(keepends=True)
    assert of(lines, eos=False) == ids(tokenizer, "".join(lines))
    assert of([line.strip("\n") for line in lines], eos=False) == ids(tokenizer, "".join(lines))
    assert of(lines).count(end) == 2


# ------------------------------------------------------------------------------------------ long texts


def cut_at_random(text, draw, least):
    blocks = []
    while text:
        size = draw.randrange(least, 3 * least)
        blocks.append(text[:size])
        text = text[size:]
    return blocks


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_have_the_pieces_of_the_whole(kind, monkeypatch):
    """Cut anywhere, also within words and runs of white space; with so little context that bounds are refused."""
    draw = random.Random(0)
    backend = tokenization.plain_backend(trained(kind))
    text = CODE[:12_000] + " " * 300 + "x" * 300 + "\n" * 200 + CODE[12_000:] + "日本 é" * 50
    whole = backend.encode(text, add_special_tokens=False)
    for context in (32, 256, 4096):
        monkeypatch.setattr(tokenization, "_CONTEXT", context)
        for _ in range(2):
            blocks = cut_at_random(text, draw, 2 * context)
            found = list(tokenization.encode_blocks(backend, blocks))
            assert len(found) == len(blocks)
            assert np.concatenate([piece for piece, _ in found]).tolist() == whole.ids
            before = np.cumsum([0, *map(len, blocks[:-1])])
            starts = np.concatenate([s + b for (_, s), b in zip(found, before, strict=True)])
            assert starts.tolist() == [start for start, _ in whole.offsets]


def test_a_text_that_cannot_be_divided(monkeypatch):
    """A tokenizer for which the whole text is one word: all blocks are encoded as one."""
    monkeypatch.setattr(tokenization, "_CONTEXT", 8)
    text = "abc" * 100
    unsplit = Tokenizer(models.WordLevel({text: 0, "[UNK]": 1}, "[UNK]"))
    found = list(tokenization.encode_blocks(unsplit, [text[i : i + 20] for i in range(0, 300, 20)]))
    assert [ids.tolist() for ids, _ in found] == [[0], *([[]] * 14)]


@pytest.mark.parametrize("eos", [True, False])
def test_a_document_of_several_blocks(eos, tmp_path, monkeypatch):
    """The ids of the whole, and the same words, sentences and labels as in one block."""
    from lmdyn.datamodules.corpora import text as reading

    tokenizer = trained("gpt-2")
    content = PROSE + CODE + PROSE
    one = corpus_of(tmp_path, tokenizer, content, eos=eos).encoded("train")
    monkeypatch.setattr(encoding, "_CHARACTERS_PER_BLOCK", 1000)
    monkeypatch.setattr(tokenization, "_CONTEXT", 256)
    monkeypatch.setattr(reading, "_SENTENCES_PER_PART", 7)
    corpus = TextCorpus(train=str(tmp_path / "t.txt"), eos=eos, cache_dir=str(tmp_path / "other"))
    corpus.tokenizer = tokenizer
    assert len(list(corpus.documents("train"))) > 20
    corpus.prepare_data()
    several = corpus.encoded("train")
    for name in ("tokens", "word_start", "sentence_starts", "document_starts"):
        assert getattr(several, name).tolist() == getattr(one, name).tolist(), name
    assert several.layer("topic").tolist() == one.layer("topic").tolist()


# ------------------------------------------------------------------------------------------ treebanks, rows, streams

TREEBANK = """\
# newdoc id = d
# newpar
# text = "Don't go," he said.
1\t"\t_\tPUNCT\t``\t_\t6\tpunct\t_\tSpaceAfter=No
2-3\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tDo\t_\tAUX\tVB\t_\t4\taux\t_\t_
3\tn't\t_\tPART\tRB\t_\t4\tadvmod\t_\t_
4\tgo\t_\tVERB\tVB\t_\t0\troot\t_\tSpaceAfter=No
5\t,\t_\tPUNCT\t,\t_\t4\tpunct\t_\tSpaceAfter=No
6\t"\t_\tPUNCT\t''\t_\t4\tpunct\t_\t_
7\the\t_\tPRON\tPRP\t_\t8\tnsubj\t_\t_
8\tsaid\t_\tVERB\tVBD\t_\t4\tparataxis\t_\tSpaceAfter=No
9\t.\t_\tPUNCT\t.\t_\t4\tpunct\t_\t_

# text = du  chat
1-2\tdu\t_\t_\t_\t_\t_\t_\t_\tSpacesAfter=\\s\\s
1\tde\t_\tADP\t_\t_\t3\tcase\t_\t_
2\tle\t_\tDET\t_\t_\t3\tdet\t_\t_
3\tchat\t_\tNOUN\t_\t_\t0\troot\t_\t_
3.1\tdort\t_\tVERB\t_\t_\t_\t_\t_\t_

# newpar
# text = Fin.
1\tFin\t_\tNOUN\t_\t_\t0\troot\t_\tSpaceAfter=No
2\t.\t_\tPUNCT\t_\t_\t1\tpunct\t_\t_

# newdoc id = e
# text = End
1\tEnd\t_\tNOUN\t_\t_\t0\troot\t_\t_

"""
FIRST, SECOND = '"Don\'t go," he said. du  chat\n\nFin.', "End"


@pytest.mark.parametrize("kind", ["gpt-2", "llama 2"])
def test_a_treebank_with_its_spaces(kind, tmp_path):
    """One whose words have no SpaceAfter is in test_frozen_ids.py."""
    tokenizer = trained(kind)
    (tmp_path / "t.conllu").write_text(TREEBANK, encoding="utf-8")

    def of(eos, **settings):
        corpus = ConlluCorpus(
            train=str(tmp_path / "t.conllu"), cache_dir=str(tmp_path / "cache"), eos=eos, **settings
        )
        corpus.tokenizer = tokenizer
        corpus.prepare_data()
        return corpus

    end = tokenizer.eos_token_id
    assert tokens(of(True)) == [*ids(tokenizer, FIRST), end, *ids(tokenizer, SECOND), end]
    assert tokens(of(False)) == ids(tokenizer, f"{FIRST}\n{SECOND}")
    assert tokens(of(False, lowercase=True)) == ids(tokenizer, f"{FIRST}\n{SECOND}".lower())
    corpus = of(True)
    encoded = corpus.encoded("train")
    tags = [corpus.label_names["upos"][i] for i in encoded.layer("upos")[encoded.word_start]]
    # pieces of "du" belong to "de", and "le" has none
    assert tags == "PUNCT AUX PART VERB PUNCT PUNCT PRON VERB PUNCT ADP NOUN NOUN PUNCT NOUN".split()  # noqa: SIM905
    spans = SpanCorpus(of(True), tasks=["pos"], pos_layer="upos")
    spans.tokenizer = tokenizer
    spans.setup()
    rows = [spans._made.splits["train"][i] for i in range(4)]
    texts = ['"Don\'t go," he said.', "du  chat", "Fin.", "End"]
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert [row["input_ids"].tolist() for row in rows] == [[cls, *ids(tokenizer, t), sep] for t in texts]
    assert spans.skipped["train"]["words without any piece"] == 1


@pytest.mark.realdata
def test_the_text_of_a_treebank():
    """Its comments have the text of each sentence."""
    root = os.environ.get("LMDYN_DATA")
    if root is None:
        pytest.skip("LMDYN_DATA is not set")
    folder = Path(root) / "ud_ewt"
    for path in sorted(folder.glob("*-dev.conllu")):
        comments = re.findall(r"^# text = (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        sentences = [s for document in read_conllu(path) for s in document]
        assert [s.text.strip() for s in sentences] == [comment.strip() for comment in comments]
        for s in sentences:
            assert tuple(s.text[a:b].replace(" ", "_") for a, b in s.word_places()) == s.words


@pytest.mark.parametrize("kind", ["llama 3", "wordpiece"])
def test_rows_of_a_stream(kind, tmp_path):
    tokenizer = trained(kind)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    documents = ["  def f(x):\n    return  x", "\n\tThe  cat sat. The dog !\n", "x = 1"]
    pd.DataFrame({"text": documents}).to_json(tmp_path / "s.jsonl", orient="records", lines=True)
    stream = StreamedText(
        {"path": "json", "data_files": str(tmp_path / "s.jsonl")}, epoch_batches=4, block_rows=12,
        tokenizer=str(tmp_path / "tokenizer"),
    )  # fmt: skip
    data = PretrainingCorpus(stream=stream, sequence_length=8, batch_size=4, objective="causal")
    data.prepare_data()
    loader = data.train_dataloader()
    # a block in the order of the text
    reader = loader._reader(0, START)
    block = reader._read_block()
    end = ids(tokenizer, "\n")  # none for a tokenizer to which white space does not matter
    one_pass = [i for text in documents for i in ids(tokenizer, text) + ([] if text[-1] == "\n" else end)]
    assert bool(end) == (kind != "wordpiece")
    found = block.tokens.tolist()
    assert found == (one_pass * 20)[: len(found)]
    assert len(found) >= 24
    starts = block.sentence_starts[:5].tolist()
    sentences = [tokenizer.decode(found[a:b]).strip().lower() for a, b in pairwise(starts)]
    expected = ["def f(x):", "return  x", "the  cat sat.", "the dog !"]
    if kind == "wordpiece":
        sentences, expected = ([s.replace(" ", "") for s in found] for found in (sentences, expected))
    assert sentences == expected
