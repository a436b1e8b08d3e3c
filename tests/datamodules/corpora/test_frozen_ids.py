"""Ids that published studies rest on: those of lmdyn's own vocabularies, and of corpora that are given as words."""

import json

import numpy as np
import pandas as pd
import pytest

from lmdyn.datamodules import ConlluCorpus, GrammarCorpus, PretrainingCorpus, StreamedText, TextCorpus
from lmdyn.datamodules.corpora.tokenization import digest
from tests.helpers.foreign_tokenizers import byte_level

TEXT = (
    "lead  text .\r\n\r\n = A Title = \r\n\r\n"
    "    The\tcat (  a <unk> one )  sat .  The dog ? \r\n\r\n\r\n = = Part = = \r\n"
    "  and  so on\u00a0. Élan U.S. sat \r\n\r\n = B Title = \r\n\r\nThe cat sat . The dog sat ."
)
WORDS = """\
# newdoc id = d
1\tThe\t_\tDET\tDT\t_\t2\tdet\t_\t_
2\tcat\t_\tNOUN\tNN\t_\t3\tnsubj\t_\t_
3\tsat\t_\tVERB\tVBD\t_\t0\troot\t_\t_

1\tGo\t_\tVERB\tVB\t_\t0\troot\t_\t_
2\t!\t_\tPUNCT\t.\t_\t1\tpunct\t_\t_

"""


RECORDED = {
    "word, wikitext, True": "62842346b704", "word, paragraphs, True": "6ddf6922924f",
    "wordpiece, wikitext, True": "069b6275d4e6", "wordpiece, paragraphs, True": "42eadbf451b4",
    "unigram, wikitext, True": "7e17ce1fe77b", "unigram, paragraphs, True": "3472623c2031",
    "word, wikitext, False": "12c4b745d28b", "word, paragraphs, False": "bfdd84229fab",
    "wordpiece, wikitext, False": "167147b55867", "wordpiece, paragraphs, False": "376f6ce57fab",
    "unigram, wikitext, False": "587a08f29279", "unigram, paragraphs, False": "c1003dcaf6f4",
    "word, 0": ["1a722dca76d0"], "word, 1": ["0dd6793865cb", "0dd6793865cb"], "word, 2": ["00928c9e179a"],
    "wordpiece, 0": ["e6f7ff49cbc8"], "wordpiece, 1": ["488a57de18a8", "948f94353bd2"],
    "wordpiece, 2": ["0373647161a1"],
    "dataset": "62842346b704", "stream": "49dd4a724eb0",
    "ConlluCorpus, True": "53737200a5af", "GrammarCorpus, True": "7b1c4383ed5e",
    "ConlluCorpus, False": "ae8b903aa83c", "GrammarCorpus, False": "7710d8f699dc",
}  # fmt: skip
"""Digests of what version 0.1 encoded."""


def arrays(split):
    """All that is encoded of a split, as a short digest."""
    found = {
        name: np.asarray(getattr(split, name)).tolist()
        for name in ("tokens", "word_start", "sentence_starts", "document_starts")
    }
    return digest([found, {layer: split.layer(layer).tolist() for layer in split.names}])[:12]


@pytest.mark.parametrize("layout", ["wikitext", "paragraphs"])
@pytest.mark.parametrize("vocabulary", ["word", "wordpiece", "unigram"])
@pytest.mark.parametrize("eos", [True, False])
def test_own_vocabularies(vocabulary, layout, eos, tmp_path):
    (tmp_path / "t.txt").write_bytes(TEXT.encode())
    corpus = TextCorpus(
        train=str(tmp_path / "t.txt"), vocabulary=vocabulary, vocab_size=45, layout=layout, eos=eos,
        cache_dir=str(tmp_path / "cache"), min_count=1,
    )  # fmt: skip
    corpus.prepare_data()
    assert arrays(corpus.encoded("train")) == RECORDED[f"{vocabulary}, {layout}, {eos}"]
    # a probe corpus that is handed the run's tokenizer, also when this was saved and loaded
    corpus.tokenizer.save_pretrained(str(tmp_path / "saved"))
    again = TextCorpus(
        validation=str(tmp_path / "t.txt"), tokenizer=str(tmp_path / "saved"), layout=layout, eos=eos,
        cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    again.prepare_data()
    assert arrays(again.encoded("validation")) == arrays(corpus.encoded("train"))


@pytest.mark.parametrize("vocabulary", ["word", "wordpiece"])
def test_other_preparation(vocabulary, tmp_path):
    (tmp_path / "t.txt").write_bytes(TEXT.encode())
    for number, settings in enumerate([
        {"lowercase": False, "headings": True, "split_sentences": False},
        {"cut_articles": (0.5, 0.5, 0.0), "min_count": 2},
        {"shuffle_sentences": True, "longest_articles": 2},
    ]):  # fmt: skip
        corpus = TextCorpus(
            train=str(tmp_path / "t.txt"), vocabulary=vocabulary, vocab_size=60, **settings,
            cache_dir=str(tmp_path / "cache"),
        )  # fmt: skip
        corpus.prepare_data()
        assert [arrays(corpus.encoded(split)) for split in corpus.splits] == RECORDED[
            f"{vocabulary}, {number}"
        ]


def test_a_dataset(tmp_path):
    pd.DataFrame({"text": TEXT.replace("\r", "").split("\n")}).to_parquet(tmp_path / "train.parquet")
    dataset = {"path": "parquet", "data_files": {"train": str(tmp_path / "train.parquet")}}
    corpus = TextCorpus(
        dataset={**dataset, "cache_dir": str(tmp_path / "hub")}, cache_dir=str(tmp_path / "cache")
    )
    corpus.prepare_data()
    assert arrays(corpus.encoded("train")) == RECORDED["dataset"]


@pytest.mark.parametrize("eos", [True, False])
def test_words_for_a_tokenizer_of_strangers(eos, tmp_path):
    (tmp_path / "t.conllu").write_text(WORDS, encoding="utf-8")
    treebank = ConlluCorpus(train=str(tmp_path / "t.conllu"), eos=eos, cache_dir=str(tmp_path / "cache"))
    grammar = GrammarCorpus(300, 50, 50, eos=eos, cache_dir=str(tmp_path / "cache"))
    texts = ["the cat sat on the mat\n    and the dog sat"]
    for corpus in (treebank, grammar):
        corpus.tokenizer = byte_level(texts, eos_token="<|endoftext|>")  # as strangers bring one
        corpus.prepare_data()
        assert arrays(corpus.encoded("train")) == RECORDED[f"{type(corpus).__name__}, {eos}"]


def test_a_stream(tmp_path):
    (tmp_path / "t.txt").write_text(TEXT.replace("\r", ""), encoding="utf-8")
    settings = {"vocabulary": "wordpiece", "vocab_size": 60, "cache_dir": str(tmp_path / "cache")}
    corpus = TextCorpus(train=str(tmp_path / "t.txt"), **settings)
    (tmp_path / "s.jsonl").write_text(json.dumps({"text": f"  {TEXT}\n"}) + "\n")
    stream = StreamedText(
        {"path": "json", "data_files": str(tmp_path / "s.jsonl")}, epoch_batches=2, block_rows=4
    )
    data = PretrainingCorpus(corpus, stream, sequence_length=12, batch_size=4, objective="causal")
    data.prepare_data()
    ids = [batch["input_ids"].tolist() for batch in data.train_dataloader()]
    assert digest(ids)[:12] == RECORDED["stream"]
