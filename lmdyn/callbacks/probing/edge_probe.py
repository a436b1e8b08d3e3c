"""Edge probing by step: words, phrases, roles and coreference, predicted from the layers of a frozen model."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import capture, resolve_sites
from lmdyn.analysis.inspection.forward import call_module, device_of
from lmdyn.analysis.inspection.transformer import encoder_of, layer_sites
from lmdyn.analysis.probing.edge_probe_training import EdgeClassifier
from lmdyn.analysis.probing.edge_probes import EdgeData, edge_probes
from lmdyn.analysis.statistics.distributed import gather, rank_and_world_size
from lmdyn.callbacks.conditions.amounts import site_widths
from lmdyn.callbacks.conditions.finding import Cost, Foreseen, expected
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import ProbeSet, to_device, token_vectors
from lmdyn.callbacks.observing.protocols import HasTestPart, HasTrainingPart, HasValidationPart
from lmdyn.callbacks.observing.schema import Quantity
from lmdyn.callbacks.observing.streaming_observer import given_sites
from lmdyn.callbacks.probing.edge_probe_figures import language_model_figure, layer_figure, task_figure

__all__ = ["EdgeProbe"]

log = logging.getLogger(__name__)

_PARTS = ("train", "validation", "test")
_SPANS = "spans_"


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
    (:class:`~lmdyn.analysis.probing.edge_probe_training.EdgeClassifier`).

    Args:
        tasks: tasks, such as ``pos``, ``constituents``, ``roles``, ``coreference``; null for all that the data has.
        sites: module path by display name, a pattern of paths, or ``auto``; null for all layers of the model of
            transformers in the module, or the blocks that are found.
        classifier: kind (``linear``; ``tenney``, with projection, attention pooling and a hidden layer) and training.
        train_tokens: approximate number of pieces in the training sentences; null for all.
        validation_tokens: approximate number of pieces in the sentences for stopping; null for all.
        test_tokens: approximate number of pieces in the test sentences; null for all.
        memory_gb: memory limit for features, which are held twice during concatenation. If those of all sites exceed
            it, the text is read again for each group of sites that fits, at least one site at a time: sites are
            independent of each other, so the numbers do not change. None for one pass.
        **kwargs: see :class:`~lmdyn.callbacks.Observer`.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for data without one of the splits, without a task, or a split without a span of a task.

    Reference: Tenney et al. 2018; Chiang, Huang & Lee 2020, section 4 and figures 2b, 3, 10 and 11.
    """

    uses_labels = False

    recorded = (
        Quantity("f1", "Micro-F1 on the test split.", low=0.0, high=1.0, tags=("<site>/<task>",)),
        Quantity(
            "validation_f1", "Highest micro-F1 on the development split, of the same weights.", low=0.0, high=1.0,
            tags=("<site>/<task>",),
        ),
        Quantity(
            "majority", "Micro-F1 of always predicting the most frequent training label.", low=0.0, high=1.0,
            tags=("<task>",),
        ),
    )  # fmt: skip

    needs = (HasTrainingPart, HasValidationPart, HasTestPart)

    not_settings = Observer.not_settings | {"memory_gb"}

    def __init__(
        self,
        *,
        tasks: Sequence[str] | None = None,
        sites: Mapping[str, str] | str | None = None,
        classifier: EdgeClassifier = EdgeClassifier(),  # noqa: B008 (frozen)
        train_tokens: int | None = 50_000,
        validation_tokens: int | None = 20_000,
        test_tokens: int | None = 20_000,
        memory_gb: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(split="test", max_tokens=test_tokens, **kwargs)
        if memory_gb is not None and memory_gb <= 0:
            raise ValueError(f"memory_gb is {memory_gb}: expected a number above 0, or null for no limit")
        self.memory_gb = memory_gb
        if tasks is not None and not tasks:
            raise ValueError("expected tasks, or null for all that the data has, got none")
        self.sites = given_sites(sites, {})
        self.classifier = classifier
        self.limits = {"train": train_tokens, "validation": validation_tokens, "test": test_tokens}
        self.tasks: tuple[str, ...] = tuple(tasks or ())
        self._all_tasks = tasks is None
        self._parts: dict[str, ProbeSet] = {}
        self._counted: int | None = None

    def prepare(self) -> None:
        """Determine the splits, and the tasks in all of them."""
        self._parts = {split: self.part(split, self.limits[split]) for split in ("train", "validation")}
        self._parts["test"] = self.probe_set
        self._counted = None
        there = {split: _tasks_of(part) for split, part in self._parts.items()}
        if self._all_tasks:
            self.tasks = tuple(t for t in there["train"] if all(t in tasks for tasks in there.values()))
        for split, tasks in there.items():
            missing = [task for task in self.tasks if task not in tasks]
            if missing or not self.tasks:
                raise ValueError(
                    f"{self.name}: the {split} split has no tasks {missing}, it has {tasks}: choose `tasks` among "
                    "these, or pass a SpanCorpus as `probe` (a custom loader has `spans_<task>` in its batches, and "
                    "an attribute `label_names`, task to list of names)"
                )

    def check_module(self, module: nn.Module) -> None:
        """Find the sites; raise an error for paths that are not modules."""
        default: dict[str, str] | None = None
        if self.hparams["sites"] is None:
            with suppress(ValueError):  # otherwise they are found
                default = layer_sites(module)
        self.sites = self.choose_sites(module, default, kinds=("block",))

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report splits without spans of a task, or with one label only; features of all splits."""
        for split, part in self._parts.items():
            labels: dict[str, Counter[int]] = {task: Counter() for task in self.tasks}
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
        groups, widths = self._at_once(module)
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
        if self._counted is None:
            self._counted = sum(
                int((batch["labels"] >= 0).sum()) for part in self._parts.values() for batch in part.batches()
            )
        return self._counted

    def _at_once(self, module: nn.Module) -> tuple[list[list[str]], dict[str, int]]:
        """Return groups of sites whose features fit into ``memory_gb`` together, and the width of each site."""
        read = module if self.forward is not None else _without_heads(module, self.sites)
        widths = site_widths(module, self.probe_set, self.sites, self.forward, read=read)
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

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments, and the content of all splits."""
        parts = {split: part.fingerprint for split, part in self._parts.items()}
        return {**super().settings, "parts": {split: parts.get(split) for split in _PARTS}}

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Make a pass over each split, then train all classifiers at once; in groups of sites with ``memory_gb``."""
        scores: dict[tuple[str, str, str], float] = {}
        groups, widths = self._at_once(module)
        for names in groups:
            data = {split: self._features(module, self._parts[split], names) for split in _PARTS}
            finite = [
                name
                for name in names
                if all(bool(x.activations[name].isfinite().all()) for x in data.values())
            ]
            if finite:
                scores |= self._scores(data, finite, step)
        trained = [name for name in widths if any(name == site for _, site, _ in scores)]
        broken = [name for name in widths if name not in trained]
        if broken and rank_and_world_size()[0] == 0:
            log.warning("%s at step %d: activations of %s are not finite: no value", self.name, step, broken)
        rows: list[tuple[str, str, str, float]] = []
        for task in self.tasks if trained else ():
            rows.append(("majority", "", task, scores["majority", "", task]))
            for quantity in ("f1", "validation_f1"):
                rows += [(quantity, name, task, scores[quantity, name, task]) for name in trained]
        rows += [
            (quantity, name, task, float("nan"))
            for task in self.tasks
            for quantity in ("f1", "validation_f1")
            for name in broken
        ]
        table = pd.DataFrame(rows, columns=["quantity", "site", "task", "value"])
        return table.astype({"value": "float64"})

    def _scores(
        self, data: Mapping[str, EdgeData], names: Sequence[str], step: int
    ) -> dict[tuple[str, str, str], float]:
        """Return the scores of classifiers of some sites by quantity, site and task."""
        train, validation, test = (
            EdgeData({name: data[s].activations[name] for name in names}, data[s].spans, data[s].labels)
            for s in _PARTS
        )
        labels = self.probe_set.label_names
        classes = {task: max(2, len(labels[task])) for task in self.tasks}
        try:
            result = edge_probes(train, validation, test, classes, classifier=self.classifier)
        except ValueError as error:
            raise ValueError(f"{self.name} at step {step}: {error}") from error
        found = {}
        for j, task in enumerate(result.tasks):
            found["majority", "", task] = float(result.majority[j])
            for quantity, values in (("f1", result.f1), ("validation_f1", result.validation_f1)):
                found |= {(quantity, name, task): float(values[i, j]) for i, name in enumerate(result.sites)}
        return found

    def _features(self, module: nn.Module, part: ProbeSet, names: Sequence[str] | None = None) -> EdgeData:
        """Return activations of all pieces of words of a split at some sites, and the spans, ordered by example."""
        sites = self.sites
        device = device_of(module)
        read = module if self.forward is not None else _without_heads(module, sites)
        collected: list[dict[str, Tensor]] = []
        with capture(module, sites) as seen, torch.no_grad():
            for batch in part.batches(*rank_and_world_size()):
                batch = to_device(batch, device)
                seen.clear()
                call_module(read, batch, forward=self.forward)
                there = seen.activations
                collected.append(self._collect(batch, {name: there[name] for name in names or there}))
        if rank_and_world_size()[1] > 1:
            mine = [{k: v.cpu() for k, v in found.items()} for found in collected]
            collected = [found for rank in gather(mine) for found in rank]
        return _in_order(collected, self.tasks, device)

    def _collect(self, batch: Mapping[str, Tensor], activations: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the data of one batch: pieces of words, and spans as indices into those of their example."""
        needed = ["example", "labels", *(f"{_SPANS}{task}" for task in self.tasks)]
        if missing := [key for key in needed if key not in batch]:
            raise ValueError(
                f"{self.name}: expected {missing} in the probe set's batches, got {sorted(batch)}"
            )
        pieces, number = batch["labels"] >= 0, batch["example"]
        before = F.pad(
            pieces.long().cumsum(1), (1, 0)
        )  # number of pieces of words before each position, and at the end
        time = torch.arange(pieces.shape[1], device=pieces.device)
        found = {"order": ((number[:, None] << 24) + time)[pieces]}
        for site, activation in activations.items():
            found[f"x {site}"] = token_vectors(site, activation, pieces)[pieces].float()
        for task in self.tasks:
            spans = batch[f"{_SPANS}{task}"]
            row, at = (spans[..., 4] >= 0).nonzero().unbind(1)
            edges, label = spans[row, at, :4], spans[row, at, 4]
            counted = torch.where(edges >= 0, before[row[:, None], edges.clamp(min=0)], edges)
            order = (number[row] << 24) + at
            found[f"y {task}"] = torch.cat([order[:, None], counted, label[:, None]], 1)
        return found

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw F1 by task at two thirds of the depth and on average, and by layer for each task, over steps."""
        rows = observations[observations["quantity"].eq("f1") & observations["value"].notna()]
        if rows.empty:
            return {}
        return {"tasks": task_figure(observations), "layers": layer_figure(observations)}

    @staticmethod
    def figures_beside(observations: pd.DataFrame, others: Mapping[str, pd.DataFrame]) -> dict[str, Figure]:
        """Draw loss and accuracy of the language model next to F1 by task (figure 2), if LearningCurves observed it."""
        curves = others.get("LearningCurves")
        if curves is None or not observations["quantity"].eq("f1").any():
            return {}
        whole = curves[curves["by"].eq("")]
        return {"beside_learning_curves": language_model_figure(observations, whole)}


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


def _in_order(
    collected: Sequence[Mapping[str, Tensor]], tasks: Sequence[str], device: torch.device
) -> EdgeData:
    """Concatenate the data of batches and ranks, in one order for any number of ranks."""
    if not collected:
        raise ValueError("a split of the probe data is empty")
    whole = {key: torch.cat([found[key].to(device) for found in collected]) for key in collected[0]}
    order, rank = whole.pop("order").sort()
    of_piece = order >> 24
    spans, labels = {}, {}
    for task in tasks:
        rows = whole.pop(f"y {task}")
        rows = rows[rows[:, 0].argsort()]
        start = torch.searchsorted(of_piece, rows[:, 0] >> 24)[:, None]  # the first piece of the example
        edges = rows[:, 1:5]
        spans[task] = torch.where(edges >= 0, edges + start, edges)
        labels[task] = rows[:, 5]
    return EdgeData({key[2:]: x[rank] for key, x in whole.items()}, spans, labels)
