"""Arguments that are refused before anything is read: class, arguments, what the message says."""

import pytest

from lmdyn import datamodules as D
from lmdyn.datamodules.facts.facts import Cloze
from lmdyn.datamodules.grammar.grammar import Grammar

GRAMMAR = D.GrammarCorpus(n_facts=6, n_names=40)
CUT = {"train": "t", "cut_articles": (0.7, 0.1, 0.2)}
SCAFFOLD = {
    "length": 3, "n_rules": 200, "n_phrases": 20, "n_outside": 30, "n_types": 1000, "n_train_tokens": 10_000,
    "n_validation_tokens": 5_000, "n_test_tokens": 500,
}  # fmt: skip
DATA = {"path": "y"}

REFUSED = [
    (D.ConlluCorpus, {}, "the corpus has no file"),
    (D.SemtagCorpus, {}, "the corpus has no file"),
    (D.LexiconTagger, {"train": "t", "min_share": 2}, "min_share must be from 0 to 1"),
    (D.TextCorpus, {}, "either files"),
    (D.TextCorpus, {"train": "t", "dataset": DATA}, "either files"),
    (D.TextCorpus, {"train": "t", "batch_size": 0}, "batch_size must be at least 1, got 0"),
    (D.TextCorpus, {"dataset": {**DATA, "split": "train"}}, "neither split nor streaming"),
    (D.TextCorpus, {**CUT, "cut_articles": (0.7, 0.1, 0.1)}, r"such as \[0\.7, 0\.1, 0\.2\], got"),
    (D.TextCorpus, {**CUT, "cut_articles": (0.7, 0.5, -0.2)}, "cut_articles must be"),
    (D.TextCorpus, {**CUT, "cut_articles": (float("nan"), 0.5, 0.5)}, "cut_articles must be"),
    (D.TextCorpus, {**CUT, "test": "t"}, "give only train"),
    (D.TextCorpus, {**CUT, "train": None, "validation": "t"}, "give only train"),
    (D.StreamedText, {"dataset": [], "epoch_batches": 1}, "empty list"),
    (D.StreamedText, {"dataset": DATA, "epoch_batches": 0}, "epoch_batches must be at least 1"),
    (D.PretrainingCorpus, {}, "set `corpus`"),
    (D.PretrainingCorpus, {"corpus": GRAMMAR, "sequence_length": 4}, "sequence_length must be at least 8"),
    (D.PretrainingCorpus, {"corpus": GRAMMAR, "short_share": 1.5}, "short_share must be from 0 to 1"),
    (D.PretrainingCorpus, {"corpus": GRAMMAR, "batch_size": 0}, "batch_size must be at least 1"),
    (D.PretrainingCorpus, {"corpus": GRAMMAR, "objective": "cloze", "pairs": "next"}, "omit `pairs`"),
    (D.PretrainingCorpus, {"corpus": GRAMMAR, "objective": "causal", "masking": D.Masking(0.2)}, "and `masking`"),
    (D.Masking, {"share": 0.0}, "expected a share above 0"),
    (D.Masking, {"mask_share": 0.9, "random_share": 0.2}, "expected a share above 0"),
    (D.Masking, {"max_ngram": 0}, "max_ngram must be at least 1"),
    (D.SpanCorpus, {"corpus": GRAMMAR, "tasks": ["parse"]}, "tasks must be some of .*, each once"),
    (D.SpanCorpus, {"corpus": GRAMMAR, "layers": ["upos", "upos"]}, "layers must be some of .*, each once"),
    (D.SpanCorpus, {"corpus": GRAMMAR, "max_pairs": 0}, "max_pairs must be at least 1"),
    (D.TrexFacts, {"relations": ["P1001"]}, r"relations must be some of .*got P1001"),
    (D.FactCorpus, {"source": D.TrexFacts(), "batch_tokens": 0}, "batch_tokens must be at least 1"),
    (Cloze, dict(zip(("relation", "subject", "object", "template"), ("P1", "a", "b", "[X] is [Y]."), strict=True)),
     r"one \[Y\] as a word"),
    (D.GlueTasks, {"tasks": ["GLUE"], "folder": "x"}, "tasks must be some of"),
    (D.StreamedText, {"dataset": [DATA, {"name": "x"}], "epoch_batches": 1}, r"`path`.*name"),
    (D.GlueTasks, {}, "expected one source of CoLA, MRPC.*, `folder` or data of the hub"),
    (D.GlueTasks, {"tasks": ["SQuAD2.0"], "dataset": DATA}, "expected one source of SQuAD2.0, `folder` or data"),
    (D.GlueTasks, {"folder": "x", "train_limit": 0}, "train_limit must be at least 1"),
    (D.GlueTasks, {"folder": "x", "max_sequence_length": 2}, "max_sequence_length must be at least 8"),
    (D.GrammarTasks, {"corpus": GRAMMAR, "tasks": ["CoLA"]}, "tasks must be some of"),
    (D.GrammarTasks, {"corpus": GRAMMAR, "n_train": 1}, "n_train must be at least 2"),
    (Grammar, {"seed": -1}, "seed must be at least 0, got -1"),
    (Grammar, {"n_nouns": -5}, "n_nouns must be at least 10, got -5"),
    (Grammar, {"n_adverbs": 800}, "n_adverbs must be at most n_adjectives"),
    (Grammar, {"fact_rate": 0.9}, "fact_rate must be from 0 to 0.5"),
    (Grammar, {"n_facts": 100_000}, "raise n_names for more facts"),
    (Grammar, {"n_facts": 0}, "fact_rate must be 0 if n_facts is 0"),
    (Grammar, {"zipf_exponent": 0.0}, "zipf_exponent must be above 0"),
    (D.GrammarCorpus, {"n_test_tokens": 0}, "n_test_tokens must be at least 1, got 0"),
    (D.RepeatsCorpus, {"longest": 33}, "shortest is 8, longest 33 and length 64: .* since the span occurs twice"),
    (D.RepeatsCorpus, {"shortest": 0}, "1 <= shortest"),
    (D.RepeatsCorpus, {"shortest": 20, "longest": 10}, "shortest <= longest"),
    (D.RepeatsCorpus, {"n_types": 0}, "n_types must be at least 1"),
    (D.ScaffoldCorpus, {**SCAFFOLD, "length": 8, "n_outside": 100}, "fill 18000 words, more than n_train_tokens"),
    (D.ScaffoldCorpus, {**SCAFFOLD, "n_rules": 3000}, "3000 instances of the rule and 600 phrases outside it"),
    (D.ScaffoldCorpus, {**SCAFFOLD, "length": 0}, "length must be at least 1"),
    (D.ScaffoldCorpus, {**SCAFFOLD, "n_test_tokens": 0}, "n_test_tokens must be at least 1"),
    (D.ScaffoldCorpus, {**SCAFFOLD, "length": 1, "n_types": 19}, "n_phrases is 20: expected at most .*, 19"),
]  # fmt: skip


@pytest.mark.parametrize(("cls", "arguments", "message"), REFUSED)
def test_what_is_refused(cls, arguments, message):
    with pytest.raises(ValueError, match=message):
        cls(**arguments)


@pytest.mark.parametrize(
    "cls",
    [
        D.TextCorpus,
        D.ConlluCorpus,
        D.GrammarCorpus,
        D.RepeatsCorpus,
        D.ScaffoldCorpus,
        D.ConllCorpus,
        D.SemtagCorpus,
    ],
)
def test_a_split_that_is_not_there(cls):
    files = {} if cls.__name__.startswith(("Gr", "Re", "Sc")) else {"train": "t"}
    with pytest.raises(ValueError, match=r"split.*'dev'"):
        next(iter(cls(**files).documents("dev")))


@pytest.mark.parametrize(
    ("data", "attribute", "message"),
    [
        (D.SpanCorpus(GRAMMAR), "train_dataloader", "not set up"),
        (D.FactCorpus(D.TrexFacts()), "setup", "no tokenizer"),
        (D.GlueTasks(["RTE"], folder="x"), "setup", "no tokenizer"),
        (D.PretrainingCorpus(stream=D.StreamedText(DATA, epoch_batches=1)), "prepare_data", "tokenizer"),
    ],
)
def test_what_comes_too_early(data, attribute, message):
    with pytest.raises((RuntimeError, ValueError), match=message):
        getattr(data, attribute)()
