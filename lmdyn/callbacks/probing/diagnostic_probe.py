"""Diagnostic classifiers on frozen representations, by step: the method with which SVCCA is compared."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Literal

import pandas as pd
import torch
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.inspection.attributes import did_you_mean
from lmdyn.analysis.inspection.forward import device_of
from lmdyn.analysis.probing.probes import (
    DiagnosticClassifier,
    ProbeResult,
    description_length,
    diagnostic_probe,
)
from lmdyn.analysis.statistics.bootstrap import basic_interval, draw_blocks
from lmdyn.callbacks.observing.amounts import count_labels, count_tokens, site_widths
from lmdyn.callbacks.observing.checked_fields import Above, From
from lmdyn.callbacks.observing.findings import Cost, Foreseen, expected
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import ObservedBatch, ProbeSet, Watch, probe_pass, token_vectors
from lmdyn.callbacks.observing.protocols import HasTrainingPart
from lmdyn.callbacks.observing.streaming_observer import LSTM_SITES, Sites
from lmdyn.callbacks.observing.sums import Row, gather_rows, tabulate
from lmdyn.callbacks.observing.token_groups import SentenceBlocks, enough_blocks
from lmdyn.runs.schema import Quantity

__all__ = ["DiagnosticProbe"]

_of_task = partial(Quantity, low=0.0, tags=("<site>/<task>/<target>",))


def _with_ends(name: str, meaning: str, low: float, floor: str = "") -> Iterator[Quantity]:
    """Yield a share of test labels and the ends 2θ − q of its basic bootstrap interval, for a range from ``low``."""
    yield _of_task(name, f"{meaning}.", "share", low=low, high=1.0, panel="accuracy", floor=floor)
    for end, which in (("low", "Lower"), ("high", "Upper")):
        of = f"{which} end of the bootstrap interval of {name}."
        yield _of_task(f"{name}_{end}", of, "share", low=2 * low - 1, high=2 - low)


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

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for a task that the data lacks, or data without a training split.

    Reference: Belinkov et al. 2017; Hewitt & Liang 2019 (control tasks); Voita & Titov 2020 (description length);
        Saphra & Lopez 2019, figures 6 and 7; information: Saphra 2021, section 3.1.2; Pimentel et al. 2020.
    """

    tasks: Sequence[str] = ("upos",)
    targets: Sequence[Literal["current", "next"]] = ("current", "next")
    sites: Sites = None
    classifier: DiagnosticClassifier = DiagnosticClassifier()
    train_tokens: Annotated[int, From(1)] = 20_000
    control: bool = True
    description_length: bool = False
    bootstrap: Annotated[int, From(0)] = 0
    confidence: Annotated[float, Above(0, 1)] = 0.95
    shuffled: bool = False

    uses_labels = False
    needs = (HasTrainingPart,)
    in_step = True
    sharded = True
    recorded = (
        *_with_ends("accuracy", "Share of correctly predicted test labels", low=0.0, floor="majority"),
        _of_task("control_accuracy", "Accuracy on random labels of word types.", "share", high=1.0),
        *_with_ends("selectivity", "Accuracy minus control accuracy", low=-1.0),
        _of_task("probe_loss", "Mean loss of the classifier on the test labels.", "nats"),
        Quantity(
            "majority",
            "Accuracy of predicting the training data's most frequent label.",
            "share",
            low=0.0,
            high=1.0,
            tags=("<task>/<target>",),
        ),
        _of_task("codelength", "Prequential code length of the training labels.", "bits/label"),
        _of_task(
            "information",
            "Entropy of the test labels minus probe_loss: a lower bound on the site's information about the labels.",
            "nats",
            low=None,
            panel="information",
            floor="information_shuffled",
        ),
        _of_task("information_shuffled", "Information after training on shuffled labels.", "nats", low=None),
        _of_task(
            "compression",
            "Length of a uniform code divided by codelength; 1 if the classifier learns nothing.",
            panel="compression",
        ),
    )

    @property
    def _keys(self) -> dict[str, str]:
        """Names of the labels in the batches, by task and target."""
        return {
            f"{t} {of}": t if of == "current" else f"target_{t}" for t in self.tasks for of in self.targets
        }

    def prepare(self) -> None:
        """Determine the training split, and the tasks in both splits."""
        self._train_set = self.part("train", self.train_tokens)
        self._found["train_set"] = self._train_set.fingerprint
        for part, name in ((self._train_set, "train"), (self.probe_set, self.split)):
            missing = [task for task in self.tasks if task not in part.label_names]
            if missing or not self._keys:
                near = did_you_mean(next(iter(missing), ""), part.label_names) or ";"
                raise ValueError(
                    f"{self.name}: the {name} split has no gold layers {', '.join(missing) or 'to predict'}{near} the "
                    f"layers are {', '.join(part.label_names) or 'none'}. Choose `tasks` among these layers and one "
                    "or both `targets`, or add `label_names` (layer to list of names) to a custom loader"
                )

    def check_module(self, module: Module) -> None:
        """Find the sites; raise an error for paths that are not modules."""
        self.choose_sites(module, LSTM_SITES)

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report missing tokens, tasks of fewer than two labels, labels only in the test split, and memory."""
        tokens = count_tokens(self._train_set, self.train_tokens)
        if tokens < self.train_tokens:
            yield expected(
                f"{self.train_tokens:,} tokens to train on",
                f"{tokens:,} in the train split",
                "lower `train_tokens`, or use more text",
                stops=False,
            )
        keys = list(self._keys.values())
        train, test = (count_labels(part, keys) for part in (self._train_set, self.probe_set))
        for key in keys:
            learnt = int((train[key] > 0).sum())
            tested = int(test[key].sum())
            if learnt < 2 or not tested:
                yield expected(
                    f"two labels of {key!r} or more in the train split, and labels in the {self.split} split",
                    f"{learnt} labels in the train split, {tested} tokens with labels in the {self.split} split",
                    "choose other `tasks`, or use text with such labels",
                )
        size = sum(site_widths(module, self.probe_set, self.paths(), self.forward).values())
        held = tokens + count_tokens(self.probe_set)
        yield Cost(
            f"features of {held:,} tokens, {size:,} numbers each, twice during concatenation",
            2 * 4 * held * size,
            "lower `train_tokens` or `max_tokens`, or observe fewer `sites`",
        )

    def measure(self, module: Module, step: int) -> pd.DataFrame:
        """Make two passes, then train all classifiers at once."""
        train, test = (self._features(module, part) for part in (self._train_set, self.probe_set))
        return tabulate(self._rows(train, test, step), {"task": "", "target": ""}, self.name, step)

    def _features(self, module: Module, part: ProbeSet) -> "_Tokens":
        blocks = SentenceBlocks(self.run.tokenizer, self.classifier.seed)
        parts: list[dict[str, Tensor]] = []
        batches = SimpleNamespace(update=lambda seen: parts.append(self._read(blocks, seen)))
        probe_pass(module, part, [Watch(batches, self.paths())], forward=self.forward)
        whole = gather_rows(parts, device_of(module))
        if not whole:
            raise ValueError(f"{self.name}: the train or {self.split} split is empty: use other data")
        order = whole.pop("order").argsort()
        whole = {key: rows[order] for key, rows in whole.items()}
        activations, labels = ({k[2:]: v for k, v in whole.items() if k[0] == kind} for kind in "xy")
        return _Tokens(activations, labels, whole["types"], whole["blocks"])

    def _read(self, blocks: SentenceBlocks, seen: ObservedBatch) -> dict[str, Tensor]:
        """Return activations, labels, types and blocks of a batch's tokens, and their order in the text."""
        keys = [*self._keys.values(), *(["input_ids"] if self.control else [])]
        if missing := [key for key in keys if key not in seen.batch]:
            raise ValueError(
                f"{self.name}: expected {', '.join(missing)} in the batches, got {', '.join(seen.batch)}. If "
                "`input_ids` are missing, set `control: false`: control tasks require `input_ids`"
            )
        mask = seen.tokens
        time = torch.arange(mask.shape[1], device=mask.device)
        types = seen.batch.get("input_ids", torch.full(mask.shape, -1, device=mask.device))
        found = {
            "order": ((seen.rows[:, None] << 24) + seen.start[:, None] + time)[mask],
            "blocks": blocks.of(seen)[mask],
            "types": types[mask],
        }
        for name, activation in seen.activations.items():
            found[f"x {name}"] = token_vectors(name, activation, mask)[mask].float()
        return found | {f"y {name}": seen.batch[key][mask] for name, key in self._keys.items()}

    def _rows(self, train: "_Tokens", test: "_Tokens", step: int) -> Iterator[Row]:
        """Yield the values of sites; NaN for those whose activations are not finite."""
        finite = [s for s, x in train.activations.items() if x.isfinite().all()]
        finite = [s for s in finite if test.activations[s].isfinite().all()]
        if finite:
            result, values = self._values(train, test, finite, step)
            for j, name in enumerate(result.tasks):
                place = dict(zip(("task", "target"), name.split(" "), strict=True))
                yield place, {"majority": float(result.majority[j])}
                for quantity, value in values.items():
                    for i, site in enumerate(result.sites):
                        yield {"site": site, **place}, {quantity: float(value[i, j])}
        broken = ["accuracy", "probe_loss", "information", *["information_shuffled"] * self.shuffled]
        for site in train.activations:
            for name in train.labels if site not in finite else ():
                task, target = name.split(" ")
                yield {"site": site, "task": task, "target": target}, dict.fromkeys(broken, math.nan)

    def _values(
        self, train: "_Tokens", test: "_Tokens", sites: Sequence[str], step: int
    ) -> tuple[ProbeResult, dict[str, Tensor]]:
        """Train all classifiers; return values by quantity, (sites, tasks)."""
        names = self.probe_set.label_names
        classes = {name: max(2, len(names[name.split(" ")[0]])) for name in train.labels}
        x, x_test = ({site: part.activations[site] for site in sites} for part in (train, test))
        result = diagnostic_probe(
            x,
            train.labels,
            x_test,
            test.labels,
            classes,
            classifier=self.classifier,
            train_types=train.types if self.control else None,
            test_types=test.types if self.control else None,
            test_blocks=test.blocks if self.bootstrap else None,
        )
        entropy = torch.stack([_entropy(test.labels[task]) for task in result.tasks])
        values = {
            "accuracy": result.accuracy,
            "probe_loss": result.loss,
            "information": entropy - result.loss,
        }
        if self.shuffled:
            labels = {task: _shuffled(y, self.classifier.seed) for task, y in train.labels.items()}
            floor = diagnostic_probe(x, labels, x_test, test.labels, classes, classifier=self.classifier)
            values["information_shuffled"] = entropy - floor.loss
        if result.control_accuracy is not None:
            values |= {"control_accuracy": result.control_accuracy, "selectivity": result.selectivity}
        values |= self._intervals(result, step)
        if self.description_length:
            code = description_length(x, train.labels, classes, classifier=self.classifier)
            labelled = torch.tensor([(train.labels[task] >= 0).sum() for task in code.tasks])
            values |= {"codelength": code.codelength / labelled, "compression": code.compression}
        return result, values

    def _intervals(self, result: ProbeResult, step: int) -> dict[str, Tensor]:
        """Return interval ends of accuracy, and of selectivity if there are control tasks, each (sites, tasks)."""
        hits, counts = result.block_hits, result.block_counts
        if hits is None or counts is None or not enough_blocks(int(counts.any(1).sum()), self.name, step):
            return {}
        there = counts.any(1)
        draws = torch.from_numpy(draw_blocks(int(there.sum()), self.bootstrap, self.classifier.seed)).double()
        accuracy = torch.einsum("rb,bst->rst", draws, hits[there]) / (draws @ counts[there])[:, None]
        number = len(result.tasks)
        samples = {"accuracy": (result.accuracy, accuracy[..., :number])}
        if result.control_accuracy is not None:
            samples["selectivity"] = (result.selectivity, accuracy[..., :number] - accuracy[..., number:])
        ends: dict[str, Tensor] = {}
        for quantity, (value, resampled) in samples.items():
            low, high = basic_interval(value.numpy(), resampled.numpy(), self.confidence)
            ends |= {f"{quantity}_low": torch.from_numpy(low), f"{quantity}_high": torch.from_numpy(high)}
        return ends


@dataclass(frozen=True)
class _Tokens:
    """All tokens of a split, in the order of the text.

    Attributes:
        activations: vectors by site.
        labels: labels by task and target.
        types: word type of each token.
        blocks: block of each token's sentence.
    """

    activations: Mapping[str, Tensor]
    labels: Mapping[str, Tensor]
    types: Tensor
    blocks: Tensor


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
