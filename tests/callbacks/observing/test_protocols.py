"""Contracts with data: the table against lmdyn's own classes, and the check against classes that break them."""

import inspect
import re

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import lmdyn.datamodules as datamodules
from lmdyn.analysis.inspection.attributes import has_attribute, read_attribute
from lmdyn.callbacks import LearningCurves, Run
from lmdyn.callbacks.observing.protocols import (
    CONTRACTS,
    AnnotatedText,
    HasFacts,
    HasTokenizer,
    HasTrainingPart,
    Limitable,
    RuleInstances,
    Shardable,
    UnmetNeedsError,
    members,
    offers,
    require,
)
from lmdyn.datamodules import (
    ChoiceFiles,
    ConllCorpus,
    ConlluCorpus,
    FactCorpus,
    GlueTasks,
    GrammarCorpus,
    GrammarFacts,
    GrammarPairs,
    GrammarTasks,
    PairFiles,
    PretrainingCorpus,
    ReadingFiles,
    RepeatsCorpus,
    ScaffoldCorpus,
    SemtagCorpus,
    SpanCorpus,
    StreamedText,
    TextCorpus,
)

SIZES = {"n_train_tokens": 8000, "n_validation_tokens": 400, "n_test_tokens": 400}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    data = GrammarCorpus(
        **SIZES, vocabulary="wordpiece", vocab_size=1500, cache_dir=str(tmp_path_factory.mktemp("cache"))
    )
    data.prepare_data()
    data.setup()
    return data


@pytest.fixture(scope="module")
def data(corpus):
    """An instance of every datamodule that lmdyn exports."""
    every = {
        ChoiceFiles: lambda: ChoiceFiles("x", ["a", "b"]),
        ConllCorpus: lambda: ConllCorpus(train="x"),
        ConlluCorpus: lambda: ConlluCorpus(train="x"),
        FactCorpus: lambda: FactCorpus(GrammarFacts(GrammarCorpus(**SIZES))),
        GlueTasks: lambda: GlueTasks(["RTE"], folder="x"),
        GrammarCorpus: lambda: corpus,
        GrammarPairs: lambda: GrammarPairs(GrammarCorpus(**SIZES)),
        GrammarTasks: lambda: GrammarTasks(GrammarCorpus(**SIZES)),
        PairFiles: lambda: PairFiles("x"),
        ReadingFiles: lambda: ReadingFiles("x"),
        PretrainingCorpus: lambda: PretrainingCorpus(corpus, sequence_length=32, batch_size=2),
        RepeatsCorpus: lambda: RepeatsCorpus(n_train_tokens=1000),
        ScaffoldCorpus: lambda: ScaffoldCorpus(n_train_tokens=1000, n_rules=20, n_outside=2, n_phrases=10),
        SemtagCorpus: lambda: SemtagCorpus(train="x"),
        SpanCorpus: lambda: SpanCorpus(corpus),
        TextCorpus: lambda: TextCorpus(train="x"),
    }
    exported = {
        cls
        for cls in vars(datamodules).values()
        if inspect.isclass(cls) and issubclass(cls, L.LightningDataModule) and not inspect.isabstract(cls)
    }
    assert set(every) == exported
    return {cls.__name__: make() for cls, make in every.items()}


@pytest.fixture(scope="module")
def loaders(data, tmp_path_factory):
    """A loader of every class that lmdyn's datamodules serve, and FactCorpus's with its attributes."""
    pretraining, spans, facts = data["PretrainingCorpus"], data["SpanCorpus"], data["FactCorpus"]
    spans.setup()
    facts.tokenizer = data["GrammarCorpus"].tokenizer
    facts.setup()
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("the cat sat\n" * 100, encoding="utf-8")
    stream = StreamedText([{"path": "text", "data_files": {"train": str(text)}}], epoch_batches=5)
    streamed = PretrainingCorpus(data["GrammarCorpus"], stream, sequence_length=32, batch_size=2)
    found = [d.val_dataloader() for d in (data["GrammarCorpus"], pretraining, spans)]
    found.append(streamed.train_dataloader())
    return {type(loader).__name__: loader for loader in found} | {"FactCorpus": facts.val_dataloader()}


@pytest.mark.parametrize("protocol", CONTRACTS, ids=lambda p: p.__name__)
def test_the_table_says_who_offers_what(protocol, data, loaders):
    contract = CONTRACTS[protocol]
    there = data if contract.of == "datamodule" else loaders
    offering = {name for name, given in there.items() if offers(given, protocol)}
    if contract.of == "loader" and protocol is not HasFacts:
        offering.discard("FactCorpus")  # its loader is an ExampleLoader
    assert offering == set(contract.offered_by)


def test_a_message_says_what_is_missing_who_has_it_and_how_to_add_it():
    class Mine(L.LightningDataModule):
        tokenizer = None

    with pytest.raises(UnmetNeedsError) as raised:
        require([AnnotatedText, HasFacts], "interdependence", datamodule=Mine())
    (found,) = raised.value.unmet
    assert re.match(
        r"requires sentences .*, got Mine without `documents`: .*ConlluCorpus.*AnnotatedText", found
    )
    assert str(raised.value) == f"interdependence {found}"
    with pytest.raises(UnmetNeedsError, match="questions about facts, got Mine without"):  # of a loader
        require([HasFacts], "world_knowledge", datamodule=Mine(), loader=[])
    require([AnnotatedText, HasFacts], "interdependence", datamodule=GrammarCorpus(**SIZES))


def test_attaching_checks_what_an_observer_needs(tmp_path):
    class Mine(LearningCurves):
        needs = (RuleInstances, Shardable)

    class Late(L.LightningDataModule):
        """Has what is needed when it is set up."""

        def __init__(self, *names):
            super().__init__()
            self.names = names

        def setup(self, stage):
            for name in self.names:
                setattr(self, name, None)

        def val_dataloader(self):
            return [loader]

    class Loader(list):
        def shard(self, rank, world_size):
            return self

    loader = [{"labels": torch.zeros(1, 2, dtype=torch.int64)}]
    with pytest.raises(UnmetNeedsError) as raised:
        Mine(probe=Late("length"), layers=[], bands=[]).attach(Run(tmp_path))
    of_data, of_loader = raised.value.unmet
    assert "without `familiar`, `n_rules`, `examples`, `content_key`: " in of_data
    assert "without `shard`: " in of_loader
    loader = Loader(loader)
    Mine(probe=Late(*members(RuleInstances)), layers=[], bands=[]).attach(Run(tmp_path))


def test_hooks_that_are_not_overridden_are_no_parts():
    class OnlyValidation(L.LightningDataModule):
        def val_dataloader(self):
            return []

    assert not offers(OnlyValidation(), HasTrainingPart)
    with pytest.raises(ValueError, match=r"training part, got OnlyValidation without `train_dataloader`"):
        require([HasTrainingPart], "probe", datamodule=OnlyValidation())
    with pytest.raises(ValueError, match="pass as `probe` a datamodule with"):
        require([HasTrainingPart], "probe", datamodule=DataLoader([1, 2]))


def test_a_bug_in_a_property_of_a_module_is_not_hidden():
    class Module(nn.Module):
        @property
        def tokenizer(self):
            return self.typo

    module = Module()
    with pytest.raises(AttributeError, match="'tokenizer'"):  # the control: it names the wrong attribute
        _ = module.tokenizer
    assert has_attribute(module, "tokenizer")
    assert offers(module, HasTokenizer)  # properties are not evaluated
    with pytest.raises(AttributeError, match="'typo'"):
        read_attribute(module, "tokenizer")
    module.child = nn.Linear(1, 1)
    assert read_attribute(module, "child") is module.child
    assert read_attribute(module, "other") is None


def test_a_wrapper_that_delegates_offers_what_it_wraps():
    class Wrapper:
        def __init__(self, loader):
            self.loader = loader

        def __getattr__(self, name):
            return getattr(self.loader, name)

    class Sharded(list):
        def shard(self, rank, world_size):
            return self[rank::world_size]

    wrapped = Wrapper(Sharded([{"labels": torch.zeros(1, 2)}] * 3))
    assert offers(wrapped, Shardable)
    assert not offers(wrapped, Limitable)
    assert len(wrapped.shard(0, 2)) == 2
