"""Cloze questions: what is masked, what is left out, and what the files may not hold."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertTokenizerFast, PreTrainedTokenizerFast

from lmdyn.datamodules.facts.facts import Cloze, FactCorpus, FactSource, GrammarFacts, TrexFacts
from lmdyn.datamodules.grammar.grammar import GrammarCorpus
from tests.helpers.foreign_tokenizers import byte_level

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "the capital of is france paris berlin germ ##any bon ##n . in [ a".split()  # noqa: SIM905
FACTS = {
    "P36": [("France", "Paris"), ("Germany", "Berlin"), ("Germany", "Bonn"), ("the Germany", "Nowhere")],
    "P17": [("Paris", "France"), ("Berlin", "Germany")],
}
LAMA = [
    {"relation": "P36", "template": "The capital of [X] is [Y] .", "type": "1-1"},
    {"relation": "P17", "template": "in [Y] is [X] .", "type": "N-M"},
    {"relation": "P1", "template": "[X] is [Y] .", "type": "N-1"},
]


@pytest.fixture
def tokenizer(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIALS, *WORDS]))
    return BertTokenizerFast(vocab=str(path))


@pytest.fixture
def folder(tmp_path):
    """LAMA's layout."""
    root = tmp_path / "trex"
    (root / "trex_lms_vocab").mkdir(parents=True)
    for relation, facts in FACTS.items():
        lines = [
            json.dumps({"sub_label": s, "obj_label": o, "uuid": str(i)}) for i, (s, o) in enumerate(facts)
        ]
        (root / "trex_lms_vocab" / f"{relation}.jsonl").write_text("\n".join(lines) + "\n")
    (root / "LAMA_relations.jsonl").write_text("\n".join(map(json.dumps, LAMA)) + "\n")
    (root / "common_vocab_cased.txt").write_text("Paris\nFrance\nGermany\nof\nsomewhere\n")
    return root


class Given(FactSource):
    """Facts and candidates as they are given."""

    def __init__(self, facts, candidates):
        self.given, self.among = facts, candidates

    def facts(self):
        return iter(self.given)

    def relation_kinds(self):
        return {fact.relation: "1-1" for fact in self.given}

    def candidates(self):
        return self.among


def corpus_of(source, tokenizer, **settings):
    corpus = FactCorpus(source, **settings)
    corpus.tokenizer = tokenizer
    corpus.setup("fit")
    return corpus


def test_questions(folder, tokenizer, caplog):
    loader = corpus_of(TrexFacts(str(folder), ["P36", "P17"]), tokenizer).val_dataloader()
    (batch,) = loader
    found = {}
    for i in range(len(batch["fact"])):
        pieces = tokenizer.convert_ids_to_tokens(batch["input_ids"][i][batch["attention_mask"][i] == 1])
        masked = batch["labels"][i] != -100
        assert (batch["input_ids"][i][masked] == tokenizer.mask_token_id).all()
        fact = int(batch["fact"][i])
        found[loader.queries[fact]] = (
            " ".join(pieces), tokenizer.convert_ids_to_tokens(batch["labels"][i][masked]),
            loader.label_names["relation"][int(batch["relation"][i])], loader.label_names["fact"][fact],
        )  # fmt: skip
    assert found == {
        "The capital of France is [MASK] .": (
            "[CLS] the capital of france is [MASK] . [SEP]", ["paris"], "P36", "France → Paris"
        ),
        "The capital of Germany is [MASK] .": (
            "[CLS] the capital of germ ##any is [MASK] . [SEP]", ["berlin"], "P36", "Germany → Berlin"
        ),
        "Paris is located in [MASK] .": (
            "[CLS] paris is [UNK] in [MASK] . [SEP]", ["france"], "P17", "Paris → France"
        ),
    }  # fmt: skip
    # Bonn and Germany are two pieces, Nowhere is unknown
    assert "lmdyn leaves out 3 of 6 facts" in caplog.text
    assert "P36 2 of 4, P17 1 of 2" in caplog.text
    assert "1 of 3 facts have an object that is not among the candidates" in caplog.text  # Berlin
    assert tokenizer.convert_ids_to_tokens(loader.candidates) == ["of", "france", "paris"]
    assert loader.candidates == sorted(loader.candidates)
    assert loader.relation_kinds == {"P36": "1-1", "P17": "N-1"}
    assert loader.templates["P36"] == "The capital of [X] is [Y] ."


def test_templates_of_lama(folder, tokenizer):
    loader = corpus_of(TrexFacts(str(folder), ["P17"], templates="lama"), tokenizer).test_dataloader()
    (batch,) = loader
    assert tokenizer.decode(batch["input_ids"][0]) == "[CLS] in [MASK] is paris. [SEP]"
    assert loader.relation_kinds == {"P17": "N-M"}


@pytest.mark.parametrize("layout", ["file", "folder"])
def test_paraphrases(folder, tokenizer, layout):
    """A file of relations and templates, or ParaRel's folder of patterns."""
    patterns = ["Of [X] the capital is [Y].", "The capital of [X] is [Y].", "[Y] is of [X]"]
    if layout == "file":
        path = folder / "more.jsonl"
        lines = [{"relation": "P36", "template": pattern} for pattern in patterns]
    else:
        (folder / "pararel").mkdir()
        path = folder / "pararel" / "P36.jsonl"
        lines = [{"pattern": pattern, "lemma": "x"} for pattern in patterns]
    path.write_text("\n".join(map(json.dumps, lines)))
    given = str(path if layout == "file" else path.parent)
    loader = corpus_of(TrexFacts(str(folder), ["P36", "P17"], paraphrases=given), tokenizer).loader()
    assert loader.wordings["P36"] == [
        "The capital of [X] is [Y] .", "Of [X] the capital is [Y] .", "[Y] is of [X]"
    ]  # fmt: skip
    assert loader.wordings["P17"] == [loader.templates["P17"]]
    found = [(loader.queries[int(e["fact"])], int(e["wording"])) for e in loader.examples]
    assert found[:3] == [
        ("The capital of France is [MASK] .", 0), ("Of France the capital is [MASK] .", 1), ("[MASK] is of France", 2)
    ]  # fmt: skip
    assert loader.label_names["fact"][:3] == ["France → Paris", "France → Paris (2)", "France → Paris (3)"]
    with pytest.raises(ValueError, match="has no paraphrase of"):
        corpus_of(TrexFacts(str(folder), ["P17"], paraphrases=given), tokenizer)


def test_both_statements_of_the_grammar():
    data = GrammarCorpus(2000, 100, 100, n_facts=6, n_names=20)
    data.prepare_data()
    one, both = (list(GrammarFacts(data, t).facts()) for t in (0, "both"))
    assert [f.template for f in both[::2]] == [f.template for f in one]
    assert len({f.template for f in both}) == 2 * len({f.template for f in one})


def test_lowercase(folder):
    words = [*SPECIALS, "the", "capital", "of", "is", "france", "paris", "Paris", "."]
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", mask_token="[MASK]")

    def asked(lowercase):
        loader = corpus_of(TrexFacts(str(folder), ["P36"]), tokenizer, lowercase=lowercase).loader()
        return [[words[i] for i in e["input_ids"]] + [words[max(e["labels"])]] for e in loader.examples]

    # without [CLS] and [SEP], which this tokenizer lacks
    assert asked(True) == [["the", "capital", "of", "france", "is", "[MASK]", ".", "paris"]]
    assert asked(False) == [["[UNK]", "capital", "of", "[UNK]", "is", "[MASK]", ".", "Paris"]]


def test_unigram_pieces():
    """Pieces as ALBERT's: a word's begins with ▁."""
    pieces = [("<pad>", 0.0), ("<unk>", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("[MASK]", 0.0)]
    pieces += [(p, -1.0) for p in ("▁the", "▁capital", "▁of", "▁is", "▁france", "▁paris", "▁", ".", "s")]
    backend = Tokenizer(models.Unigram(pieces, unk_id=1))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]"
    )

    one = Given(
        [Cloze("P36", "France", "Paris", "The capital of [X] is [Y] .")], ["Paris", "France", "frances"]
    )
    start = ["[CLS]", "▁the", "▁capital", "▁of", "▁france", "▁is", "[MASK]"]
    for settings, end in (
        ({}, ["."]),  # the pieces are those of raw text: "▁." is none
        ({"punctuation": "attached"}, ["."]),
        ({"punctuation": "apart"}, ["▁", "."]),
    ):
        loader = corpus_of(one, tokenizer, **settings).loader()
        (example,) = loader.examples
        assert tokenizer.convert_ids_to_tokens(example["input_ids"].tolist()) == [*start, *end, "[SEP]"]
        assert tokenizer.convert_ids_to_tokens(example["labels"][example["labels"] >= 0].tolist()) == [
            "▁paris"
        ]
    assert tokenizer.convert_ids_to_tokens(loader.candidates) == ["▁france", "▁paris"]


@pytest.mark.parametrize("punctuation", ["attached", "apart"])
def test_pieces_of_byte_level_tokenizers_are_those_of_raw_text(punctuation):
    """RoBERTa's: the space before a word is part of its first piece."""
    texts = [
        "Paris is the capital of France.",
        "the capital of France is Paris .",
        "Berlin of Germany . Bonn",
    ]
    special = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
    tokenizer = byte_level(texts, 400, **{f"{name}_token": token for name, token in special.items()})
    ends = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.backend_tokenizer.post_processor = ends

    facts = [
        Cloze("P36", "France", "Paris", "the capital of [X] is [Y] ."),
        Cloze("P17", "Paris", "France", "[Y] is of [X] ."),
    ]
    some = Given(facts, ["Paris", "France", "Berlin", "Parisberlin"])
    loader = corpus_of(some, tokenizer, punctuation=punctuation).loader()
    stop = "." if punctuation == "attached" else " ."
    first, *others = loader.examples
    raw = tokenizer(f"the capital of France is Paris{stop}")["input_ids"]
    of_object = tokenizer.convert_tokens_to_ids("ĠParis")
    assert first["labels"].max() == of_object
    assert np.where(first["labels"] >= 0, first["labels"], first["input_ids"]).tolist() == raw
    assert first["input_ids"].tolist() == [tokenizer.mask_token_id if i == of_object else i for i in raw]
    assert tokenizer.convert_ids_to_tokens(sorted(loader.candidates)) == [
        piece for piece in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        if piece in ("ĠParis", "ĠFrance", "ĠBerlin")
    ]  # fmt: skip
    for example in others:  # the first of a text, where it is one piece
        assert tokenizer.convert_ids_to_tokens(int(example["labels"].max())) == "France"


@pytest.mark.slow
def test_grammar_facts_are_worded_as_in_the_text():
    data = GrammarCorpus(40_000, 100, 100, n_facts=12, n_names=40)
    data.prepare_data()
    stated = {f: set() for s in (0, 1) for f in (fact.id for fact in data.grammar.facts)}
    for document in data.documents("train"):
        for sentence in document:
            for fact in sentence.facts or ():
                stated[fact].add(" ".join(sentence.words))
    seen = 0
    for template in (0, 1):
        for fact in GrammarFacts(data, template).facts():
            words, at = fact.words()
            assert words[at] == fact.object
            texts = stated[f"{fact.relation}:{fact.subject}"]
            seen += " ".join(words) in texts
    assert seen > 20
    tokenizer = data.tokenizer
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    loader = corpus_of(GrammarFacts(data), tokenizer).loader()
    assert set(loader.relation_kinds.values()) == {"N-1"}
    objects = {int(max(e["labels"])) for e in loader.examples}
    assert objects <= set(loader.candidates)


def test_a_malformed_line(folder, tokenizer):
    with (folder / "trex_lms_vocab" / "P36.jsonl").open("a") as file:
        file.write('{"sub_label": " ", "obj_label": "x"}\n')
    with pytest.raises(ValueError, match=r"P36.jsonl:5: subject and object must be words"):
        corpus_of(TrexFacts(str(folder), ["P36"]), tokenizer)


def test_a_tokenizer_without_mask(folder):
    backend = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    with pytest.raises(ValueError, match="expected a tokenizer with a mask_token"):
        corpus_of(TrexFacts(str(folder), ["P36"]), PreTrainedTokenizerFast(tokenizer_object=backend))


@pytest.mark.realdata
def test_trex(monkeypatch):
    if "LMDYN_DATA" not in os.environ:
        pytest.skip("LMDYN_DATA is not set")
    vocabulary = Path(os.environ["LMDYN_DATA"]) / "vocab" / "bert-base-uncased-vocab.txt"
    tokenizer = BertTokenizerFast(vocab=str(vocabulary))
    loader = corpus_of(TrexFacts(), tokenizer).loader()
    assert len(loader.examples) == 18_368  # 18,382 lines, 14 of them twice; every object is one piece
    assert len(loader.relation_kinds) == 25
    batch = next(iter(loader))
    assert ((batch["labels"] >= 0).sum(1) == 1).all()
    assert torch.equal(batch["input_ids"] == tokenizer.mask_token_id, batch["labels"] >= 0)
