import importlib.util

import pytest

from lmdyn.datamodules import LexiconTagger, SpacyTagger

ROWS = [("The", "DET", "DT"), ("run", "VERB", "VB"), ("Run", "NOUN", "NN"), ("run", "NOUN", "NN")]
ROWS += [("tie", "B", "_"), ("tie", "A", "_"), ("none", "_", "UH")]


@pytest.fixture
def treebank(tmp_path):
    path = tmp_path / "train.conllu"
    path.write_text(
        "".join(f"1\t{form}\t_\t{upos}\t{xpos}\t_\t0\troot\t_\t_\n\n" for form, upos, xpos in ROWS),
        encoding="utf-8",
    )
    return str(path)


def test_lexicon(treebank):
    tagger = LexiconTagger(treebank)
    assert tagger.tag([("the", "RUN", "tie"), ("none", "zebra")]) == [
        {"upos": ("DET", "NOUN", "A"), "xpos": ("DT", "NN", None)},
        {"upos": (None, None), "xpos": ("UH", None)},
    ]
    assert tagger.tag([]) == []


def test_lexicon_settings(treebank, tmp_path):
    cased = LexiconTagger(treebank, lowercase=False)
    assert cased.tag([("the", "The", "Run", "run")])[0]["upos"] == (None, "DET", "NOUN", "NOUN")
    sure = LexiconTagger(treebank, min_share=0.7)
    assert sure.tag([("the", "run", "tie")])[0]["upos"] == ("DET", None, None)
    assert LexiconTagger(treebank, min_share=0.5).tag([("run", "tie")])[0]["upos"] == ("NOUN", "A")
    keys = [cased.key(), sure.key(), LexiconTagger(treebank).key()]
    assert all(keys.count(key) == 1 for key in keys)
    (tmp_path / "copy.conllu").write_bytes((tmp_path / "train.conllu").read_bytes())
    assert LexiconTagger(str(tmp_path / "copy.conllu")).key() == LexiconTagger(treebank).key()
    with pytest.raises(FileNotFoundError):
        LexiconTagger("nowhere.conllu").tag([("a",)])


@pytest.mark.skipif(importlib.util.find_spec("spacy") is None, reason="spaCy is not installed")
def test_spacy(tmp_path):
    import spacy

    with pytest.raises(ImportError, match="python -m spacy download no_such_model"):
        SpacyTagger("no_such_model").tag([("a",)])
    pipeline = spacy.blank("en")
    ruler = pipeline.add_pipe("attribute_ruler")
    ruler.add([[{"LOWER": "cat"}]], {"POS": "NOUN", "TAG": "NN"})
    pipeline.to_disk(tmp_path / "model")
    tagger = SpacyTagger(str(tmp_path / "model"))
    assert tagger.tag([("the", "Cat"), ("cat's", "cat")]) == [
        {"upos": (None, "NOUN"), "xpos": (None, "NN")},
        {"upos": (None, "NOUN"), "xpos": (None, "NN")},
    ]
