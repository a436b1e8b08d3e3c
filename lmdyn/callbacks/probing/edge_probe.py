"""Edge probing by step: words, phrases, roles and coreference, predicted from the layers of a frozen model."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Annotated, Literal

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import capture, resolve_sites
from lmdyn.analysis.inspection.batches import labels_of
from lmdyn.analysis.inspection.forward import call_module, device_of
from lmdyn.analysis.inspection.transformer import encoder_of, layer_sites
from lmdyn.analysis.probing.edge_probes import EdgeClassifier, EdgeData, edge_probes
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.callbacks.observing.amounts import site_widths
from lmdyn.callbacks.observing.checked_fields import Above, From
from lmdyn.callbacks.observing.findings import Cost, Foreseen, expected
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import ProbeSet, to_device, token_vectors
from lmdyn.callbacks.observing.protocols import HasTestPart, HasTrainingPart, HasValidationPart
from lmdyn.callbacks.observing.streaming_observer import Sites
from lmdyn.callbacks.observing.sums import Row, gather_rows, tabulate
from lmdyn.runs.schema import Quantity

__all__ = ["EdgeProbe"]

_SPANS = "spans_"


_f1 = partial(Quantity, low=0.0, high=1.0, tags=("<site>/<task>",))


class EdgeProbe(Observer):
    """Test micro-F1 of classifiers that label spans from a frozen model's activations, for each layer and task.

    Classifiers are trained on the ``train`` split of the probe data, stopped on its ``validation`` split and tested on
    its ``test`` split. One pass of the frozen model over each split serves all layers and tasks, whose classifiers are
    then trained together. They have their own seed, so that every step trains from the same start, in the same
    order of examples, for any number of ranks.

    The probe data is a datamodule whose batches contain independent sentences with ``spans_<task>``, such as
    ``SpanCorpus``. Tasks of several corpora require an observer for each, with its own ``name``. If sites are
    null or within the one model of transformers that the module contains, that model runs without its heads;
    otherwise the module is called.

    If the activations of a site are NaN or infinite at a step, its values are NaN, with a warning.

    Defaults of the classifier differ from those of the released code of Tenney et al. (Adam at 1e-3 and batches of 256
    on standardised activations, instead of 1e-4 and 32 on the original activations), as does the amount of text:
    numbers are comparable between observations, and with printed ones if both have the same settings
    (:class:`~lmdyn.analysis.probing.edge_probes.EdgeClassifier`).

    Args:
        tasks: tasks, such as ``pos``, ``constituents``, ``roles``, ``coreference``; null for all that the data has.
        sites: module path by display name, a pattern of paths, or ``auto``; null for all layers of the model of
            transformers in the module, or the blocks that are found.
        classifier: training of the linear classifiers.
        train_tokens: approximate number of pieces in the training sentences; null for all.
        validation_tokens: approximate number of pieces in the sentences for stopping; null for all.
        test_tokens: approximate number of pieces in the test sentences; null for all.
        memory_gb: memory limit for features, which are held twice during concatenation. If those of all sites exceed
            it, the text is read again for each group of sites that fits, at least one site at a time: sites are
            independent of each other, so the numbers do not change. None for one pass.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for data without one of the splits, without a task, or a split without a span of a task.

    Reference: Tenney et al. 2018; Chiang, Huang & Lee 2020, section 4 and figures 2b, 3, 10 and 11.
    """

    tasks: Sequence[str] | None = None
    sites: Sites = None
    classifier: EdgeClassifier = EdgeClassifier()
    train_tokens: Annotated[int, From(1)] | None = 50_000
    validation_tokens: Annotated[int, From(1)] | None = 20_000
    test_tokens: Annotated[int, From(1)] | None = 20_000
    memory_gb: Annotated[float, Above(0)] | None = None
    split: Literal["train", "validation", "test"] = field(default="test", init=False)
    max_tokens: int | None = field(default=None, init=False)

    uses_labels = False
    needs = (HasTrainingPart, HasValidationPart, HasTestPart)
    not_settings = Observer.not_settings | {"memory_gb"}
    recorded = (
        _f1("f1", "Micro-F1 on the test split.", panel="layers", short="test micro-F1", floor="majority"),
        _f1(
            "validation_f1", "Micro-F1 of the same probes on the validation split, which early stopping uses."
        ),
        _f1("majority", "Micro-F1 of always predicting the most frequent training label.", tags=("<task>",)),
    )

    def __post_init__(self) -> None:
        self.max_tokens = self.test_tokens
        super().__post_init__()

    def prepare(self) -> None:
        """Determine the splits, and the tasks in all of them."""
        self._parts: dict[str, ProbeSet] = {
            "train": self.part("train", self.train_tokens),
            "validation": self.part("validation", self.validation_tokens),
            "test": self.probe_set,
        }
        self._found["parts"] = {split: part.fingerprint for split, part in self._parts.items()}
        there = {split: _tasks_of(part) for split, part in self._parts.items()}
        in_all = (t for t in there["train"] if all(t in tasks for tasks in there.values()))
        self.chosen: tuple[str, ...] = tuple(in_all if self.tasks is None else self.tasks)
        for split, tasks in there.items():
            missing = [task for task in self.chosen if task not in tasks]
            if missing or not self.chosen:
                raise ValueError(
                    f"{self.name}: the {split} split has no tasks {', '.join(missing) or 'that all splits have'} "
                    f"(tasks: {', '.join(tasks) or 'none'}). Choose `tasks` among the split's tasks, or pass a "
                    "SpanCorpus as `probe`. A custom loader needs `spans_<task>` in batches, and `label_names` by task"
                )

    def check_module(self, module: nn.Module) -> None:
        """Find the sites; raise an error for paths that are not modules."""
        self.choose_sites(module, layer_sites, kinds=("block",))

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report splits without spans of a task, or with one label only; features of all splits."""
        for split, part in self._parts.items():
            labels: dict[str, Counter[int]] = {task: Counter() for task in self.chosen}
            for batch in part.batches():
                for task, found in labels.items():
                    if (spans := batch.get(f"{_SPANS}{task}")) is not None:
                        found.update(spans[..., 4][spans[..., 4] >= 0].tolist())
            for task, found in labels.items():
                least = 2 if split == "train" else 1
                if len(found) < least:
                    yield expected(
                        f"spans of {task!r} of {least} labels or more in the {split} split",
                        f"{found.total()} spans of {len(found)} labels",
                        f"raise `{split}_tokens`, use more text, or choose other `tasks`",
                    )
        groups, widths = self._grouped = self._at_once(module)
        size = max(sum(widths[name] for name in names) for names in groups)
        passes = f", in {len(groups)} passes over the text" if len(groups) > 1 else ""
        pieces = self._pieces()
        yield Cost(
            f"features of {pieces:,} pieces of words, {size:,} numbers each, twice during concatenation{passes}",
            2 * 4 * pieces * size,
            "lower `memory_gb`, `train_tokens`, `validation_tokens` or `test_tokens`, or observe fewer `sites`",
        )

    def _pieces(self) -> int:
        """Return the number of pieces of words in all splits."""
        batches = itertools.chain.from_iterable(part.batches() for part in self._parts.values())
        return sum(int((labels_of(batch) >= 0).sum()) for batch in batches)

    def _at_once(self, module: nn.Module) -> tuple[list[list[str]], dict[str, int]]:
        """Return groups of sites whose features fit into ``memory_gb`` together, and the width of each site."""
        read = module if self.forward is not None else _without_heads(module, self.paths())
        widths = site_widths(module, self.probe_set, self.paths(), self.forward, read=read)
        if self.memory_gb is None:
            return [list(widths)], widths
        room = self.memory_gb * 1e9 / (2 * 4 * max(1, self._pieces()))
        groups: list[list[str]] = []
        for name, width in widths.items():
            if groups and sum(widths[other] for other in groups[-1]) + width <= room:
                groups[-1].append(name)
            else:
                groups.append([name])
        return groups, widths

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Make a pass over each split, then train all classifiers at once; in groups of sites with ``memory_gb``."""
        return tabulate(self._rows(module), {"task": ""}, self.name, step)

    def _rows(self, module: nn.Module) -> Iterator[Row]:
        """Yield the scores of all sites; NaN for those whose activations are not finite."""
        labels = self.probe_set.label_names
        classes = {task: max(2, len(labels[task])) for task in self.chosen}
        groups, widths = self._grouped
        scores: dict[str, dict[str, Tensor]] = {"f1": {}, "validation_f1": {}}
        majority: list[float] = []
        for names in groups:
            data = [self._features(module, part, names) for part in self._parts.values()]
            finite = [n for n in names if all(d.activations[n].isfinite().all() for d in data)]
            if finite:
                train, validation, test = (
                    replace(d, activations={n: d.activations[n] for n in finite}) for d in data
                )
                result = edge_probes(train, validation, test, classes, classifier=self.classifier)
                majority = result.majority.tolist()
                for quantity, values in scores.items():
                    values |= dict(zip(result.sites, getattr(result, quantity), strict=True))
        for j, task in enumerate(self.chosen):
            if majority:
                yield {"task": task}, {"majority": majority[j]}
            for quantity, values in scores.items():
                for site in widths:
                    score = float(values[site][j]) if site in values else math.nan
                    yield {"site": site, "task": task}, {quantity: score}

    def _features(self, module: nn.Module, part: ProbeSet, names: Sequence[str]) -> EdgeData:
        """Return activations of all pieces of words of a split at some sites, and the spans, ordered by example."""
        device = device_of(module)
        read = module if self.forward is not None else _without_heads(module, self.paths())
        collected: list[dict[str, Tensor]] = []
        with capture(module, self.paths()) as seen, torch.no_grad():
            for batch in part.batches(*rank_and_world_size()):
                batch = to_device(batch, device)
                seen.clear()
                call_module(read, batch, forward=self.forward)
                collected.append(self._collect(batch, {name: seen.activations[name] for name in names}))
        whole = gather_rows(collected, device)
        if not whole:
            raise ValueError(f"{self.name}: the train, validation or test split is empty: use other data")
        order, rank = whole.pop("order").sort()  # one order for any number of ranks
        of_piece = order >> 24
        spans, labels = {}, {}
        for task in self.chosen:
            rows = whole.pop(f"y {task}")
            rows = rows[rows[:, 0].argsort()]
            start = torch.searchsorted(of_piece, rows[:, 0] >> 24)[:, None]  # the first piece of the example
            edges = rows[:, 1:5]
            spans[task] = torch.where(edges >= 0, edges + start, edges)
            labels[task] = rows[:, 5]
        return EdgeData({key[2:]: x[rank] for key, x in whole.items()}, spans, labels)

    def _collect(self, batch: Mapping[str, Tensor], activations: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the data of one batch: pieces of words, and spans as indices into those of their example."""
        needed = ["example", "labels", *(f"{_SPANS}{task}" for task in self.chosen)]
        if missing := [key for key in needed if key not in batch]:
            raise ValueError(f"{self.name}: expected {', '.join(missing)} in batches, got {', '.join(batch)}")
        pieces, number = batch["labels"] >= 0, batch["example"]
        # number of pieces of words before each position, and at the end
        before = F.pad(pieces.long().cumsum(1), (1, 0))
        time = torch.arange(pieces.shape[1], device=pieces.device)
        found = {"order": ((number[:, None] << 24) + time)[pieces]}
        for site, activation in activations.items():
            found[f"x {site}"] = token_vectors(site, activation, pieces)[pieces].float()
        for task in self.chosen:
            spans = batch[f"{_SPANS}{task}"]
            row, at = (spans[..., 4] >= 0).nonzero().unbind(1)
            edges, label = spans[row, at, :4], spans[row, at, 4]
            counted = torch.where(edges >= 0, before[row[:, None], edges.clamp(min=0)], edges)
            order = (number[row] << 24) + at
            found[f"y {task}"] = torch.cat([order[:, None], counted, label[:, None]], 1)
        return found


def _tasks_of(part: ProbeSet) -> list[str]:
    """Return the tasks whose spans are in the batches, and whose labels have names."""
    batch = next(iter(part.batches()), {})
    found = [key.removeprefix(_SPANS) for key in batch if key.startswith(_SPANS)]
    return [task for task in found if task in part.label_names]


def _without_heads(module: nn.Module, sites: Mapping[str, str]) -> nn.Module:
    """Return the model of transformers with all sites, to avoid a projection to the vocabulary; else the module."""
    try:
        encoder = encoder_of(module)
    except ValueError:
        return module
    inside = {id(m) for m in encoder.modules()}
    found = resolve_sites(module, sites)
    return encoder if all(id(m) in inside for m in found.values()) else module
