"""Arguments that are refused before anything is read: class, arguments, what the message says."""

import pytest

from lmdyn.datamodules import (
    ConllCorpus,
    ConlluCorpus,
    FactCorpus,
    GlueTasks,
    GrammarCorpus,
    GrammarTasks,
    LexiconTagger,
    Masking,
    PretrainingCorpus,
    RepeatsCorpus,
    ScaffoldCorpus,
    SemtagCorpus,
    SpanCorpus,
    StreamedText,
    TextCorpus,
    TrexFacts,
)
from lmdyn.datamodules.facts.facts import Cloze
from lmdyn.datamodules.grammar.grammar import Grammar

GRAMMAR = GrammarCorpus(n_facts=6, n_names=40)
CUT = {"train": "t", "cut_articles": (0.7, 0.1, 0.2)}
SCAFFOLD = {
    "length": 3, "n_rules": 200, "n_phrases": 20, "n_outside": 30, "n_types": 1000, "n_train_tokens": 10_000,
    "n_validation_tokens": 5_000, "n_test_tokens": 500,
}  # fmt: skip
DATA = {"path": "y"}

REFUSED = [
    (ConlluCorpus, {}, "no file was given"),
    (SemtagCorpus, {}, "no file was given"),
    (LexiconTagger, {"train": "t", "min_share": 2}, "min_share must be from 0 to 1"),
    (TextCorpus, {}, "either files"),
    (TextCorpus, {"train": "t", "dataset": DATA}, "either files"),
    (TextCorpus, {"train": "t", "batch_size": 0}, "batch_size must be at least 1, got 0"),
    (TextCorpus, {"train": "t", "order_seed": -1}, "order_seed must be at least 0, got -1"),
    (TextCorpus, {"train": "t", "longest_articles": 0}, "longest_articles must be at least 1, got 0"),
    (TextCorpus, {"dataset": {**DATA, "split": "train"}}, "neither split nor streaming"),
    (TextCorpus, {**CUT, "cut_articles": (0.7, 0.1, 0.1)}, r"such as \[0\.7, 0\.1, 0\.2\], got"),
    (TextCorpus, {**CUT, "cut_articles": (0.7, 0.5, -0.2)}, "cut_articles must be"),
    (TextCorpus, {**CUT, "cut_articles": (float("nan"), 0.5, 0.5)}, "cut_articles must be"),
    (TextCorpus, {**CUT, "test": "t"}, "give only train"),
    (TextCorpus, {**CUT, "train": None, "validation": "t"}, "give only train"),
    (StreamedText, {"dataset": [], "epoch_batches": 1}, "empty list"),
    (StreamedText, {"dataset": DATA, "epoch_batches": 0}, "epoch_batches must be at least 1"),
    (StreamedText, {"dataset": [DATA, {"name": "x"}], "epoch_batches": 1}, r"`path`.*\['name'\]"),
    (PretrainingCorpus, {}, "give a corpus"),
    (PretrainingCorpus, {"corpus": GRAMMAR, "sequence_length": 4}, "sequence_length must be at least 8"),
    (PretrainingCorpus, {"corpus": GRAMMAR, "short_share": 1.5}, "short_share must be from 0 to 1"),
    (PretrainingCorpus, {"corpus": GRAMMAR, "batch_size": 0}, "batch_size must be at least 1"),
    (PretrainingCorpus, {"corpus": GRAMMAR, "num_workers": -1}, "num_workers must be at least 0"),
    (PretrainingCorpus, {"corpus": GRAMMAR, "objective": "cloze", "pairs": "next"}, "omit pairs"),
    (PretrainingCorpus, {"corpus": GRAMMAR, "objective": "causal", "masking": Masking(0.2)}, "omit pairs and masking"),
    (Masking, {"share": 0.0}, "expected share"),
    (Masking, {"mask_share": 0.9, "random_share": 0.2}, "expected share"),
    (Masking, {"max_ngram": 0}, "max_ngram must be at least 1"),
    (SpanCorpus, {"corpus": GRAMMAR, "tasks": ["parse"]}, "tasks must be some of .*, each once"),
    (SpanCorpus, {"corpus": GRAMMAR, "layers": ["upos", "upos"]}, "layers must be some of .*, each once"),
    (SpanCorpus, {"corpus": GRAMMAR, "max_pairs": 0}, "max_pairs must be at least 1"),
    (TrexFacts, {"relations": ["P1001"]}, r"relations must be some of .*\['P1001'\]"),
    (FactCorpus, {"source": TrexFacts(), "batch_tokens": 0}, "batch_tokens must be at least 1"),
    (Cloze, dict(zip(("relation", "subject", "object", "template"), ("P1", "a", "b", "[X] is [Y]."), strict=True)),
     r"one \[Y\] between spaces"),
    (GlueTasks, {"tasks": ["GLUE"], "folder": "x"}, "tasks must be some of"),
    (GlueTasks, {}, "either a folder in GLUE's layout, or a dataset"),
    (GlueTasks, {"tasks": ["SQuAD2.0"], "dataset": DATA}, "give `dataset` for GLUE's tasks"),
    (GlueTasks, {"folder": "x", "train_limit": 0}, "train_limit must be at least 1"),
    (GlueTasks, {"folder": "x", "max_sequence_length": 2}, "max_sequence_length must be at least 8"),
    (GrammarTasks, {"corpus": GRAMMAR, "tasks": ["CoLA"]}, "tasks must be some of"),
    (GrammarTasks, {"corpus": GRAMMAR, "n_train": 1}, "n_train must be at least 2"),
    (Grammar, {"seed": -1}, "seed must be at least 0, got -1"),
    (Grammar, {"n_nouns": -5}, "n_nouns must be at least 10, got -5"),
    (Grammar, {"n_topics": 0}, "n_topics must be at least 1"),
    (Grammar, {"n_adverbs": 800}, "n_adverbs must be at most n_adjectives"),
    (Grammar, {"fact_rate": 0.9}, "fact_rate must be from 0 to 0.5"),
    (Grammar, {"n_facts": 100_000}, "lower n_facts"),
    (Grammar, {"n_facts": 0}, "fact_rate must be 0 without facts"),
    (Grammar, {"zipf_exponent": 0.0}, "zipf_exponent must be above 0"),
    (GrammarCorpus, {"n_test_tokens": 0}, "n_test_tokens must be at least 1, got 0"),
    (RepeatsCorpus, {"longest": 33}, "fits in twice, got 8, 33 and 64"),
    (RepeatsCorpus, {"shortest": 0}, "1 <= shortest"),
    (RepeatsCorpus, {"shortest": 20, "longest": 10}, "shortest <= longest"),
    (RepeatsCorpus, {"n_types": 0}, "n_types must be at least 1"),
    (RepeatsCorpus, {"language_seed": -1}, "language_seed must be at least 0"),
    (ScaffoldCorpus, {**SCAFFOLD, "length": 8, "n_outside": 100}, "fill 18000 words, more than n_train_tokens = 10000"),
    (ScaffoldCorpus, {**SCAFFOLD, "n_rules": 3000}, "3000 rules and 600 phrases of 3 words"),
    (ScaffoldCorpus, {**SCAFFOLD, "length": 0}, "length must be at least 1"),
    (ScaffoldCorpus, {**SCAFFOLD, "n_outside": -1}, "n_outside must be at least 0"),
    (ScaffoldCorpus, {**SCAFFOLD, "language_seed": -1}, "language_seed must be at least 0"),
    (ScaffoldCorpus, {**SCAFFOLD, "n_test_tokens": 0}, "n_test_tokens must be at least 1"),
    (ScaffoldCorpus, {**SCAFFOLD, "length": 1, "n_types": 19}, "19 types do not allow 20 phrases of 1 words"),
]  # fmt: skip


@pytest.mark.parametrize(("cls", "arguments", "message"), REFUSED)
def test_what_is_refused(cls, arguments, message):
    with pytest.raises(ValueError, match=message):
        cls(**arguments)


@pytest.mark.parametrize(
    "cls", [TextCorpus, ConlluCorpus, GrammarCorpus, RepeatsCorpus, ScaffoldCorpus, ConllCorpus, SemtagCorpus]
)
def test_a_split_that_is_not_there(cls):
    files = {} if cls.__name__.startswith(("Gr", "Re", "Sc")) else {"train": "t"}
    with pytest.raises(ValueError, match=r"split.*'dev'"):
        next(iter(cls(**files).documents("dev")))


@pytest.mark.parametrize(
    ("data", "attribute", "message"),
    [
        (FactCorpus(TrexFacts()), "val_dataloader", "not set up"),
        (SpanCorpus(GRAMMAR), "train_dataloader", "not set up"),
        (GlueTasks(["RTE"], folder="x"), "val_dataloader", "not set up"),
        (FactCorpus(TrexFacts()), "setup", "no tokenizer"),
        (GlueTasks(["RTE"], folder="x"), "setup", "no tokenizer"),
        (PretrainingCorpus(stream=StreamedText(DATA, epoch_batches=1)), "prepare_data", "tokenizer"),
    ],
)
def test_what_comes_too_early(data, attribute, message):
    with pytest.raises((RuntimeError, ValueError), match=message):
        getattr(data, attribute)()
