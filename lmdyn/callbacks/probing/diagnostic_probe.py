"""Diagnostic classifiers on frozen representations, by step: the method with which SVCCA is compared."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.probing.probes import (
    DiagnosticClassifier,
    ProbeResult,
    description_length,
    diagnostic_probe,
)
from lmdyn.analysis.statistics.bootstrap import basic_interval, draw_blocks
from lmdyn.analysis.statistics.distributed import gather, rank_and_world_size
from lmdyn.callbacks.conditions.amounts import count_labels, count_tokens, site_widths
from lmdyn.callbacks.conditions.finding import Cost, Foreseen, expected
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import ObservedBatch, ProbeSet, Watch, probe_pass, token_vectors
from lmdyn.callbacks.observing.protocols import HasTrainingPart
from lmdyn.callbacks.observing.schema import Quantity
from lmdyn.callbacks.observing.streaming_observer import LSTM_SITES, given_sites
from lmdyn.callbacks.observing.token_groups import SentenceBlocks, bootstrap_settings, enough_blocks
from lmdyn.callbacks.probing.diagnostic_probe_figures import probe_figures

__all__ = ["DiagnosticProbe"]

log = logging.getLogger(__name__)

Target = Literal["current", "next"]
_TASK = ("<site>/<task>/<target>",)


def _with_ends(name: str, meaning: str, low: float) -> tuple[Quantity, ...]:
    """Return a share of test labels and the ends 2θ − q of its basic bootstrap interval, for a range from ``low``."""
    least, most = 2 * low - 1, 2 - low
    return (
        Quantity(name, f"{meaning}.", "share", low=low, high=1.0, tags=_TASK),
        Quantity(
            f"{name}_low", f"Lower end of the bootstrap interval of {name}.", "share", least, most, tags=_TASK
        ),
        Quantity(
            f"{name}_high",
            f"Upper end of the bootstrap interval of {name}.",
            "share",
            least,
            most,
            tags=_TASK,
        ),
    )


class DiagnosticProbe(Observer):
    """Accuracy and selectivity of classifiers that predict labels from a frozen model's activations.

    For each site and task a classifier is trained on the ``train`` split of the probe data and tested on ``split``; all
    of them in one tensor program, from one pass of the model over each split. ``current`` is the label of the word just
    read, ``next`` that of the following word. The control task assigns a random label to each word type that is read;
    selectivity is accuracy minus control accuracy. ``information`` is the entropy of the test labels minus the loss, a
    lower bound on the mutual information of label and site; it is below 0 for a probe that is worse than the labels'
    frequencies, as one of few tokens is. The classifiers have their own seed, so that every step trains from
    the same start.

    If the activations of a site are NaN or infinite at a step, its values are NaN, with a warning.

    Args:
        tasks: gold layers to predict, such as ``upos``, ``xpos``, ``semtag``, ``topic``; all probe data must have
            them. Tasks of different corpora require an observer each.
        targets: ``current``, ``next``, or both.
        sites: module path by display name; a pattern of paths (``"*.layers.*"``); or ``auto`` for found sites.
            By default those of ``LSTMLanguageModel``, and found ones in other modules.
        classifier: kind (``linear``; ``mlp``, the ReLU-plus-softmax one of the publication) and training.
        train_tokens: approximate number of training tokens.
        control: whether to train also on the control tasks.
        description_length: whether to compute also the prequential code length of the training labels.
        bootstrap: number of resamplings of test sentences (in at most 64 blocks) for basic bootstrap intervals of
            accuracy and selectivity; 0 for none. The classifiers are those of the whole training split.
        confidence: confidence level of the intervals.
        shuffled: whether to train also on shuffled training labels, for the floor of ``information``.
        **kwargs: see :class:`~lmdyn.callbacks.Observer`.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for a task that the data lacks, or data without a training split.

    Reference: Belinkov et al. 2017; Hewitt & Liang 2019 (control tasks); Voita & Titov 2020 (description length);
        Saphra & Lopez 2019, figures 6 and 7; information: Saphra 2021, section 3.1.2; Pimentel et al. 2020.
    """

    uses_labels = False

    recorded = (
        *_with_ends("accuracy", "Test labels that are predicted first", low=0.0),
        Quantity("control_accuracy", "Accuracy on the control task.", "share", low=0.0, high=1.0, tags=_TASK),
        *_with_ends("selectivity", "Accuracy minus control accuracy", low=-1.0),
        Quantity("probe_loss", "Mean loss on the test labels.", "nats", low=0.0, tags=_TASK),
        Quantity(
            "majority", "Accuracy of the training data's most frequent label.", "share", low=0.0, high=1.0,
            tags=("<task>/<target>",),
        ),
        Quantity("codelength", "Prequential code length of the training labels.", "bits/label", low=0.0, tags=_TASK),
        Quantity(
            "information", "Entropy of the test labels minus the loss: a lower bound on the information about them.",
            "nats", tags=_TASK,
        ),
        Quantity(
            "information_shuffled", "The same with shuffled training labels.", "nats", tags=_TASK
        ),
        Quantity("compression", "Uniform code length over codelength, 1 if nothing is learned.", low=0.0, tags=_TASK),
    )  # fmt: skip

    legacy_settings: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {**Observer.legacy_settings, "shuffled": False}
    )
    needs = (HasTrainingPart,)
    in_step = True
    sharded = True

    def __init__(
        self,
        *,
        tasks: Sequence[str] = ("upos",),
        targets: Sequence[Target] = ("current", "next"),
        sites: Mapping[str, str] | str | None = None,
        classifier: DiagnosticClassifier = DiagnosticClassifier(),  # noqa: B008 (frozen)
        train_tokens: int = 20_000,
        control: bool = True,
        description_length: bool = False,
        bootstrap: int = 0,
        confidence: float = 0.95,
        shuffled: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        unknown = [t for t in targets if t not in ("current", "next")]
        if unknown or not targets or not tasks:
            raise ValueError(
                f"expected tasks and targets among current and next, got tasks {list(tasks)}, targets {list(targets)}"
            )
        self.sites = given_sites(sites, LSTM_SITES)
        self.tasks = tuple(tasks)
        self.targets = tuple(targets)
        self.classifier = classifier
        self.train_tokens = train_tokens
        self.control = control
        self.description_length = description_length
        self.bootstrap, self.confidence = bootstrap_settings(bootstrap, confidence)
        self.shuffled = shuffled
        self._train_set: ProbeSet | None = None

    def prepare(self) -> None:
        """Determine the training split, and the tasks in both splits."""
        self._train_set = self.part("train", self.train_tokens)
        for part, name in ((self._train_set, "train"), (self.probe_set, self.split)):
            missing = [task for task in self.tasks if task not in part.label_names]
            if missing:
                raise ValueError(
                    f"{self.name}: the {name} split has no layers {missing}, it has {sorted(part.label_names)}: choose "
                    "`tasks` among these (a custom loader names its labels by an attribute `label_names`, layer "
                    "to list of names)"
                )

    def check_module(self, module: nn.Module) -> None:
        """Find the sites; raise an error for paths that are not modules."""
        self.sites = self.choose_sites(module, LSTM_SITES)

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report missing tokens, tasks of fewer than two labels, labels only in the test split, and memory."""
        assert self._train_set is not None
        tokens = count_tokens(self._train_set, self.train_tokens)
        if tokens < self.train_tokens:
            yield expected(
                f"{self.train_tokens:,} tokens to train on",
                f"{tokens:,} in the train split",
                "lower `train_tokens`, or use more text",
                stops=False,
            )
        keys = [t if target == "current" else f"target_{t}" for t in self.tasks for target in self.targets]
        train, test = (count_labels(part, keys) for part in (self._train_set, self.probe_set))
        for key in keys:
            learnt = int((train[key] > 0).sum())
            if learnt < 2 or not int(test[key].sum()):
                where, got = ("train", f"{learnt}") if learnt < 2 else (self.split, "none")
                yield expected(
                    f"two labels of {key!r} or more in the train split, and labels in the {self.split} split",
                    f"{got} in the {where} split",
                    "choose other `tasks`, or use text with such labels",
                )
                continue
            known = torch.nn.functional.pad(train[key], (0, max(0, len(test[key]) - len(train[key]))))
            lost = int(test[key][known[: len(test[key])] == 0].sum())
            if 10 * lost > int(test[key].sum()):
                yield expected(
                    f"labels of {key!r} that classifiers can learn",
                    f"{lost:,} of {int(test[key].sum()):,} test tokens with labels that the train split lacks",
                    "raise `train_tokens`",
                    stops=False,
                )
        widths = site_widths(module, self.probe_set, self.sites, self.forward)
        size = sum(widths.values())
        held = tokens + count_tokens(self.probe_set)
        yield Cost(
            f"features of {held:,} tokens, {size:,} numbers each, twice during concatenation",
            2 * 4 * held * size,
            "lower `train_tokens` or `max_tokens`, or observe fewer `sites`",
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments, and the content of both splits."""
        train = self._train_set.fingerprint if self._train_set is not None else None
        return {**super().settings, "train_set": train}

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Make two passes, then train all classifiers at once."""
        assert self._train_set is not None
        train, test = (self._features(module, part) for part in (self._train_set, self.probe_set))
        finite = [
            s
            for s, x in train.activations.items()
            if bool(x.isfinite().all() & test.activations[s].isfinite().all())
        ]
        if broken := [s for s in train.activations if s not in finite]:
            log.warning("%s at step %d: activations of %s are not finite: no value", self.name, step, broken)
        try:
            rows = _rows(self, step, train, test, finite)
        except ValueError as error:
            raise ValueError(f"{self.name} at step {step}: {error}") from error
        rows += [
            (quantity, site, task, target, float("nan"))
            for site in broken
            for quantity in (
                "accuracy",
                "probe_loss",
                "information",
                *(["information_shuffled"] if self.shuffled else []),
            )
            for task in self.tasks
            for target in self.targets
        ]
        columns = ["quantity", "site", "task", "target", "value"]
        return pd.DataFrame(rows, columns=columns).astype({"value": "float64"})

    def _features(self, module: nn.Module, part: ProbeSet) -> "_Features":
        features = _Features(self)
        probe_pass(module, part, [Watch(features, self.sites)], forward=self.forward)
        features.reduce()
        return features

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw accuracy and selectivity over steps, the plane of information, and compression if it is recorded."""
        return probe_figures(observations, settings["targets"])


class _Features:
    """Activations and labels of all tokens of a split, in the order of the text."""

    def __init__(self, observer: DiagnosticProbe) -> None:
        self._observer = observer
        self._parts: list[dict[str, Tensor]] = []
        self._blocks = SentenceBlocks(observer.run.tokenizer, observer.classifier.seed)
        self.activations: dict[str, Tensor] = {}
        self.labels: dict[str, Tensor] = {}
        self.types = self.blocks = torch.zeros(0, dtype=torch.int64)

    def update(self, seen: ObservedBatch) -> None:
        if self._observer.control and "input_ids" not in seen.batch:
            raise ValueError(
                f"{self._observer.name}: control tasks, which assign a label to each word type, require batches with "
                f"`input_ids`, got {sorted(seen.batch)}: set `control: false`"
            )
        mask = seen.tokens
        time = torch.arange(mask.shape[1], device=mask.device)
        part = {
            "order": ((seen.rows[:, None] << 24) + seen.start[:, None] + time)[mask],
            "blocks": self._blocks.of(seen)[mask],
            "types": seen.batch.get("input_ids", torch.full(mask.shape, -1, device=mask.device))[mask],
        }
        for name, activation in seen.activations.items():
            part[f"x {name}"] = token_vectors(name, activation, mask)[mask].float()
        for task in self._observer.tasks:
            for target in self._observer.targets:
                key = task if target == "current" else f"target_{task}"
                if key not in seen.batch:
                    raise ValueError(f"expected {key!r} in the probe set's batches, got {sorted(seen.batch)}")
                part[f"y {task} {target}"] = seen.batch[key][mask]
        self._parts.append(part)

    def reduce(self) -> None:
        """Gather the data of all ranks on every rank, in one order for any number of ranks."""
        device = self._parts[0]["order"].device if self._parts else torch.device("cpu")
        parts = self._parts
        if rank_and_world_size()[1] > 1:
            mine = [{k: v.cpu() for k, v in part.items()} for part in self._parts]
            parts = [part for rank in gather(mine) for part in rank]
        self._parts = []
        if not parts:
            raise ValueError(f"{self._observer.name}: a split of the probe data is empty")
        whole = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        order = whole.pop("order").argsort()
        whole = {key: tensor[order].to(device) for key, tensor in whole.items()}
        self.types, self.blocks = whole.pop("types"), whole.pop("blocks")
        self.activations = {k[2:]: v for k, v in whole.items() if k[0] == "x"}
        self.labels = {k[2:]: v for k, v in whole.items() if k[0] == "y"}


def _rows(
    observer: DiagnosticProbe, step: int, train: _Features, test: _Features, sites: Sequence[str]
) -> list[tuple[str, str, str, str, float]]:
    if not sites:
        return []
    names = observer.probe_set.label_names
    classes = {task: max(2, len(names[task.split(" ")[0]])) for task in train.labels}
    features = {site: train.activations[site] for site in sites}
    result = diagnostic_probe(
        features,
        train.labels,
        {site: test.activations[site] for site in sites},
        test.labels,
        classes,
        train_types=train.types if observer.control else None,
        test_types=test.types if observer.control else None,
        test_blocks=test.blocks if observer.bootstrap else None,
        classifier=observer.classifier,
    )
    entropy = torch.stack([_entropy(test.labels[task]) for task in result.tasks])
    values = {"accuracy": result.accuracy, "probe_loss": result.loss, "information": entropy - result.loss}
    if observer.shuffled:
        shuffled = {
            task: _shuffled(labels, observer.classifier.seed) for task, labels in train.labels.items()
        }
        tested = {site: test.activations[site] for site in sites}
        floor = diagnostic_probe(
            features, shuffled, tested, test.labels, classes, classifier=observer.classifier
        )
        values |= {"information_shuffled": entropy - floor.loss}
    if result.control_accuracy is not None:
        values |= {"control_accuracy": result.control_accuracy, "selectivity": result.selectivity}
    if result.block_hits is not None and result.block_counts is not None:
        values |= _intervals(observer, step, result, result.block_hits, result.block_counts)
    if observer.description_length:
        code = description_length(features, train.labels, classes, classifier=observer.classifier)
        labelled = torch.tensor([float((train.labels[task] >= 0).sum()) for task in code.tasks])
        values |= {"codelength": code.codelength / labelled, "compression": code.compression}
    rows = []
    for j, name in enumerate(result.tasks):
        task, target = name.split(" ")
        rows.append(("majority", "", task, target, float(result.majority[j])))
        for quantity, value in values.items():
            rows += [
                (quantity, site, task, target, float(value[i, j])) for i, site in enumerate(result.sites)
            ]
    return rows


def _entropy(labels: Tensor) -> Tensor:
    """Return the entropy of labels, nats, float64; unlabelled tokens are left out."""
    counts = labels[labels >= 0].bincount().double().cpu()
    entropy: Tensor = torch.special.entr(counts / counts.sum()).sum()
    return entropy


def _shuffled(labels: Tensor, seed: int) -> Tensor:
    """Return labels in a random order among the labelled tokens."""
    at = (labels >= 0).nonzero()[:, 0]
    order = torch.randperm(len(at), generator=torch.Generator().manual_seed(seed)).to(at.device)
    return labels.index_put((at,), labels[at[order]])


def _intervals(
    observer: DiagnosticProbe, step: int, result: ProbeResult, hits: Tensor, counts: Tensor
) -> dict[str, Tensor]:
    """Return interval ends of accuracy, and of selectivity if there are control tasks, each (sites, tasks)."""
    there = counts.sum(1) > 0
    if not enough_blocks(int(there.sum()), observer.name, step):
        return {}
    draws = draw_blocks(int(there.sum()), observer.bootstrap, observer.classifier.seed)
    weights = torch.from_numpy(draws).double()
    accuracy = torch.einsum("rb,bst->rst", weights, hits[there]) / (weights @ counts[there])[:, None]
    number = len(result.tasks)
    samples = {"accuracy": (result.accuracy, accuracy[..., :number])}
    if result.control_accuracy is not None:
        samples["selectivity"] = (result.selectivity, accuracy[..., :number] - accuracy[..., number:])
    ends: dict[str, Tensor] = {}
    for quantity, (value, resampled) in samples.items():
        low, high = basic_interval(value.numpy(), resampled.numpy(), observer.confidence)
        ends |= {f"{quantity}_low": torch.from_numpy(low), f"{quantity}_high": torch.from_numpy(high)}
    return ends
