"""Interfaces of data for observers: one ``Protocol`` per contract, its providers, its consumers, and the check.

Callbacks never import datamodules: they access data only by these protocols, so that a user's own loaders and
datamodules work as well as lmdyn's. Each protocol is decorated by its :class:`Contract`, which names the classes of
lmdyn that offer it (a test compares them with :mod:`lmdyn.datamodules`).

An observer declares its requirements as ``needs = (AnnotatedText,)``; attaching checks them. :func:`offers` checks
optional ones. Neither evaluates anything: attributes are looked up on the class, so no property is read too early.
"""

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeGuard, TypeVar

import lightning as L
import pandas as pd
from lightning.pytorch.utilities.model_helpers import is_overridden

from lmdyn.analysis.inspection.attributes import has_attribute

__all__ = [
    "CONTRACTS",
    "PARTS",
    "AnnotatedText",
    "Contract",
    "FineTuningTasks",
    "HasChoices",
    "HasFacts",
    "HasFingerprint",
    "HasLabelConvention",
    "HasLabelNames",
    "HasObjective",
    "HasPairs",
    "HasReadingTimes",
    "HasSplits",
    "HasTestPart",
    "HasTokenCounts",
    "HasTokenizer",
    "HasTrainingPart",
    "HasValidationPart",
    "Limitable",
    "Rebatchable",
    "Recuttable",
    "Resumable",
    "RuleInstances",
    "Sentence",
    "Shardable",
    "UnmetNeedsError",
    "members",
    "objective_of",
    "offers",
    "require",
]


P = TypeVar("P")

Batches = Iterable[dict[str, Any]]
"""A loader of batches, that is, dicts with the names of Hugging Face; it can be iterated over repeatedly."""

Side = Literal["datamodule", "loader"]

CONTRACTS: "dict[type, Contract]" = {}  # every protocol of this file with its contract


@dataclass(frozen=True)
class Contract:
    """Providers of a protocol; decorates the protocol.

    Attributes:
        of: whether datamodules or their loaders offer it.
        what: description in words, for messages.
        offered_by: names of the classes of lmdyn that offer it.
    """

    of: Side
    what: str
    offered_by: tuple[str, ...]

    def __call__(self, protocol: type[P]) -> type[P]:
        """Register the protocol."""
        CONTRACTS[protocol] = self
        return protocol


_LOADERS = ("ExampleLoader", "RowLoader", "StreamLoader")
_NAMED = (*_LOADERS, "StreamLoaderOfRows")
_KINDS = ("Conll", "Conllu", "Grammar", "Repeats", "Scaffold", "Semtag", "Text")
_TASKS = ("GlueTasks", "GrammarTasks")
_CORPORA = tuple(f"{kind}Corpus" for kind in _KINDS)
_TRAINING = (*_CORPORA, "PretrainingCorpus", "SpanCorpus")
_ALL = (*_TRAINING, "FactCorpus", *_TASKS)


@Contract("loader", "batches that shard themselves", _LOADERS)
class Shardable(Protocol):
    """Ranks take rows of each batch. With other loaders, ranks take every n-th batch.

    Used by ProbeSet, TrainingPart.
    """

    def shard(self, rank: int, world_size: int) -> Batches:
        """Return the rows ``rank, rank + world_size, …`` of each batch of the whole set."""


@Contract("loader", "batches that limit themselves", _LOADERS)
class Limitable(Protocol):
    """``max_tokens`` is then exact, or a fair sample. With other loaders, the first batches are used.

    Used by ProbeSet, for max_tokens.
    """

    def limit(self, max_tokens: int) -> Batches:
        """Return about ``max_tokens`` tokens of the set."""


@Contract("loader", "a hash of its content", _LOADERS)
class HasFingerprint(Protocol):
    """Observations of different content are not mixed in one folder, and observers of equal content share a pass.

    Used by ProbeSet, settings of observations.
    """

    @property
    def fingerprint(self) -> str | None:
        """Hash of the content of all ranks together; None if there is none."""


@Contract("loader", "the names of its labels", _NAMED)
class HasLabelNames(Protocol):
    """Names of the label indices in batches. Without it there are no layers to group or probe by.

    Used by observers that group or probe by layers of labels.
    """

    @property
    def label_names(self) -> Mapping[str, Sequence[str]]:
        """Names of the labels of each layer or task, in the order of the indices."""


@Contract("loader", "what its labels belong to", _NAMED)
class HasLabelConvention(Protocol):
    """``aligned``: labels belong to the logits at the same position; ``next``: at the previous one (Hugging Face's).

    Used by Observer: `labels: auto`.
    """

    label_convention: Literal["aligned", "next"]


@Contract("loader", "batches of another size", ("RowLoader",))
class Rebatchable(Protocol):
    """Output layers are then trained on batches of the observer's size; otherwise on the loader's own.

    Used by TrainingPart, for batch_rows.
    """

    def with_batch_size(self, rows: int) -> Batches:
        """Return the same rows in batches of another size, over all ranks together."""


@Contract("loader", "the cut of a hash", ("RowLoader", "StreamLoader"))
class Recuttable(Protocol):
    """A run continued with another ``batch_size`` is then observed in its original batches.

    Used by Observer, where a run goes on.
    """

    def recut(self, fingerprints: Collection[str]) -> Batches | None:
        """Return the same data in the batches that have one of these fingerprints; None if there are none."""


@Contract("loader", "a position to resume from", ("RowLoader", "StreamLoader", "StreamLoaderOfRows"))
class Resumable(Protocol):
    """A training loader from which a run resumes exactly.

    Used by Lightning, for resuming; TrainingPart, which opens a loader again that continues at its position.
    """

    def state_dict(self) -> Mapping[str, Any]:
        """Return the position: the number of returned batches, including the current one."""

    def load_state_dict(self, state: Any) -> None:
        """Continue from this position in the next iteration."""


# the loader of FactCorpus, an ExampleLoader, has these attributes
@Contract("loader", "questions about facts", ("FactCorpus",))
class HasFacts(Protocol):
    """Cloze questions with one mask; batches have ``relation`` and ``fact``, indices into ``label_names``.

    Required by WorldKnowledge.
    """

    @property
    def examples(self) -> Sequence[Mapping[str, Any]]:
        """Questions, each with ``input_ids``, ``labels``, ``relation`` and ``fact``."""

    @property
    def templates(self) -> Mapping[str, str]:
        """Template of each relation."""

    @property
    def relation_kinds(self) -> Mapping[str, str]:
        """Kind of each relation, such as N-1."""

    @property
    def candidates(self) -> Sequence[int]:
        """Token ids of candidate answers."""


@Contract("datamodule", "a training part", _TRAINING)
class HasTrainingPart(Protocol):
    """A LightningDataModule (or LightningModule) that overrides the hook. A loader is one split, whichever it is.

    Required by DiagnosticProbe, EdgeProbe, NgramDivergence.
    """

    def train_dataloader(self) -> Any:
        """Return the loader of the training split."""


@Contract("datamodule", "a validation part", _ALL)
class HasValidationPart(Protocol):
    """A LightningDataModule (or LightningModule) that overrides the hook.

    Required by EdgeProbe.
    """

    def val_dataloader(self) -> Any:
        """Return the loader of the validation split."""


@Contract("datamodule", "a test part", (*_TRAINING, "FactCorpus"))
class HasTestPart(Protocol):
    """A LightningDataModule (or LightningModule) that overrides the hook.

    Required by EdgeProbe.
    """

    def test_dataloader(self) -> Any:
        """Return the loader of the test split."""


@Contract("datamodule", "a list of its splits", _ALL)
class HasSplits(Protocol):
    """Splits with data: lmdyn's classes have all hooks, but not always files for each of them.

    Used by observers, for messages before data is read.
    """

    @property
    def splits(self) -> Sequence[str]:
        """Some of ``train``, ``validation`` and ``test``."""


@Contract("datamodule", "a tokenizer", _ALL)
class HasTokenizer(Protocol):
    """The run's tokenizer; it can be assigned to a probe before ``prepare_data()`` and ``setup()``.

    Used by RunState, which saves the run's; open_data, which assigns the run's to a probe before prepare_data().
    """

    @property
    def tokenizer(self) -> Any:
        """A ``PreTrainedTokenizerFast`` of transformers; None if there is none."""

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None: ...


@Contract("datamodule", "training counts of its tokens", (*_CORPORA, "PretrainingCorpus"))
class HasTokenCounts(Protocol):
    """Frequency of each token in the training data.

    Used by RunState, which saves them; Sparsity, LearningCurves and all that `frequency: train` counts for.
    """

    @property
    def token_counts(self) -> pd.DataFrame | None:
        """A row per token id: ``token``, ``count`` and, for each Universal POS tag, the occurrences with this tag."""


@Contract("datamodule", "what its labels mean", (*_CORPORA, "PretrainingCorpus"))
class HasObjective(Protocol):
    """Relation of the labels to the inputs; the loader's ``label_convention`` is their alignment with the logits.

    Used by DepthPerformance, EncoderDynamics, TowerPreference: whether labels are masked tokens.
    """

    @property
    def objective(self) -> str:
        """``causal``, ``masked`` or ``cloze``."""


def objective_of(data: object) -> str | None:
    """Return the objective that the data declares; None if it declares none."""
    return data.objective if offers(data, HasObjective) else None


class Sentence(Protocol):
    """A sentence of an annotated corpus, such as ``lmdyn.datamodules.Sentence``. Absent layers are None.

    A sentence may have its ``text`` as it is written, and then ``word_places()``: start and end of each word in it.
    """

    words: tuple[str, ...]
    heads: tuple[int, ...] | None
    upos: tuple[str | None, ...] | None


@Contract("datamodule", "sentences with their annotation", _CORPORA)
class AnnotatedText(HasTokenizer, Protocol):
    """The text of the batches, by sentence.

    Required by Interdependence.
    """

    def documents(self, split: str) -> Iterator[Iterable[Sentence]]:
        """Return the documents of a split."""


@Contract("datamodule", "instances of a rule", ("ScaffoldCorpus",))
class RuleInstances(Protocol):
    """A language with a rule over a distance.

    Required by ScaffoldRule.
    """

    familiar: bool
    length: int
    n_rules: int

    def examples(self, domain: Literal["in", "out"], n: int, context: int) -> Any:
        """Return token ids (n, context + length + 2) of instances that are not in the text."""

    def content_key(self) -> Mapping[str, Any]:
        """Return plain values that identify the language."""


@Contract("datamodule", "tasks to fine-tune on", _TASKS)
class FineTuningTasks(Protocol):
    """Encoded tasks: each has ``name``, ``kind``, ``train``, ``evaluation``, ``label_names``, ``fingerprint``.

    Required by Downstream, Handwriting. Used by DepthPerformance, as its `tasks`.
    """

    @property
    def tasks(self) -> Mapping[str, Any]:
        """Tasks by name; see ``lmdyn.datamodules.tasks.tasks.Task``."""


@Contract("datamodule", "minimal pairs", ("GrammarPairs", "PairFiles"))
class HasPairs(Protocol):
    """Pairs of sentences, of which a model should prefer the first.

    Required by MinimalPairs.
    """

    @property
    def pairs(self) -> pd.DataFrame:
        """A row for each pair: ``good``, ``bad``, ``paradigm``, ``field``, ``term``, ``attractors``, ``pair``; text.

        ``file`` and ``line`` are where errors say the pair is.
        """


@Contract("datamodule", "choices", ("ChoiceFiles",))
class HasChoices(Protocol):
    """Options of multiple-choice items, of which one is right.

    Required by Choices.
    """

    @property
    def choices(self) -> pd.DataFrame:
        """A row for each option: ``item``, ``option``, ``text``, ``begin``, ``right``, ``group``.

        ``file`` and ``line`` are where errors say the item is.
        """


@Contract("datamodule", "reading times", ("ReadingFiles",))
class HasReadingTimes(Protocol):
    """Times in which people read the words of texts.

    Required by Reading.
    """

    @property
    def reading_times(self) -> pd.DataFrame:
        """A row for each observed word: ``text``, ``index``, ``word``, ``item``, ``subject``, predictors, times.

        ``file`` and ``line`` are where errors say the word is.
        """

    @property
    def times(self) -> Sequence[str]:
        """Names of the columns of times."""


PARTS: Mapping[str, type[Any]] = {
    "train": HasTrainingPart,
    "validation": HasValidationPart,
    "test": HasTestPart,
}
"""Protocol of each split."""


# ---------------------------------------------------------------- checks


def members(protocol: type) -> tuple[str, ...]:
    """Return the names of the members of a protocol.

    Example:
        >>> members(RuleInstances)
        ('familiar', 'length', 'n_rules', 'examples', 'content_key')
    """
    names: dict[str, None] = {}
    for cls in reversed(protocol.__mro__):
        if getattr(cls, "_is_protocol", False) and cls is not Protocol:
            names |= dict.fromkeys(inspect.get_annotations(cls))
            names |= dict.fromkeys(n for n in vars(cls) if not n.startswith("_"))
    return tuple(names)


def offers(data: object, protocol: type[P]) -> TypeGuard[P]:
    """Return whether data has all members of a protocol; nothing is evaluated.

    Example:
        >>> offers([{"labels": None}], Shardable)
        False
    """
    return not _missing(data, protocol)


def _missing(data: object, protocol: type) -> tuple[str, ...]:
    return tuple(name for name in members(protocol) if not _has(data, name))


def _has(data: object, name: str) -> bool:
    if isinstance(data, L.LightningDataModule | L.LightningModule) and name.endswith("_dataloader"):
        return is_overridden(name, data)  # the base classes have the hooks, and raise in them
    return has_attribute(data, name)


class UnmetNeedsError(ValueError):
    """Data lacks members that an observer requires.

    Attributes:
        unmet: a text for each protocol: what is required, what is missing, and the remedy.
    """

    def __init__(self, whose: str, unmet: Sequence[str]) -> None:
        super().__init__("; ".join(f"{whose} {text}" for text in unmet))
        self.unmet = tuple(unmet)


def require(needs: Iterable[type], whose: str, *, datamodule: object = None, loader: object = None) -> None:
    """Raise an error for data that does not meet requirements.

    Args:
        needs: protocols of this file.
        whose: observer that requires them, for messages.
        datamodule: the data; None skips the contracts of datamodules.
        loader: the loader of the observed split; None skips the contracts of loaders.

    Raises:
        UnmetNeedsError: with the missing members, the classes of lmdyn that have them, and the protocol.
    """
    given = {"datamodule": datamodule, "loader": loader}
    owner = type(loader if datamodule is None else datamodule).__name__  # a user knows no class of loaders
    unmet = []
    for protocol in needs:
        contract = CONTRACTS[protocol]
        data = given[contract.of]
        if data is not None and (missing := _missing(data, protocol)):
            lacks = ", ".join(f"`{name}`" for name in missing)
            unmet.append(
                f"requires {contract.what}, got {owner} without {lacks}: pass as `probe` a datamodule with this "
                f"({', '.join(contract.offered_by)}), or add it to your own {contract.of}, as the protocol "
                f"{protocol.__module__}.{protocol.__name__} says"
            )
    if unmet:
        raise UnmetNeedsError(whose, unmet)
