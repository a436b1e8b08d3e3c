"""Edge probing: classifiers of spans on frozen representations, for all sites and tasks from one set of features."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.probing.edge_probe_f1 import micro_f1, one_hot
from lmdyn.analysis.probing.edge_probe_training import EdgeClassifier, Spans, fit, ranges
from lmdyn.analysis.probing.probe_training import same_width, stacked, standardize

__all__ = ["EdgeClassifier", "EdgeData", "EdgeProbeResult", "edge_probes", "micro_f1", "span_means"]


@dataclass(frozen=True)
class EdgeData:
    """One part of the data: activations of n pieces at each site, and the spans of each task.

    Attributes:
        activations: (n, d_site) activations of each site.
        spans: for each task, (N, 4) start and end of the first span, start and end of the second, in pieces, with
            exclusive ends. Negative numbers for the second span mean none, for all N or for none of them.
        labels: for each task, (N,) labels, or (N, C) booleans if a span can have several labels.
    """

    activations: Mapping[str, Float[Tensor, "n _"]]
    spans: Mapping[str, Int[Tensor, "_ 4"]]
    labels: Mapping[str, Int[Tensor, "_"] | Bool[Tensor, "_ _"]]


@dataclass(frozen=True)
class EdgeProbeResult:
    """Micro-F1 of probes of S sites and T tasks, in [0, 1]; float64 on the CPU.

    Attributes:
        sites: names of the rows.
        tasks: names of the columns.
        f1: (S, T) micro-F1 on the test part.
        validation_f1: (S, T) micro-F1 on the development part, by which the weights were selected.
        updates: (S, T) number of updates at which it was reached.
        majority: (T,) micro-F1 on the test part if the answer is always the most frequent training label.
    """

    sites: tuple[str, ...]
    tasks: tuple[str, ...]
    f1: Float[Tensor, "sites tasks"]
    validation_f1: Float[Tensor, "sites tasks"]
    updates: Int[Tensor, "sites tasks"]
    majority: Float[Tensor, "tasks"]


def edge_probes(
    train: EdgeData,
    validation: EdgeData,
    test: EdgeData,
    num_classes: Mapping[str, int],
    *,
    classifier: EdgeClassifier | None = None,
) -> EdgeProbeResult:
    """Train a classifier of spans for each site and task, with early stopping, and test it.

    Sites of equal width form one tensor program for each task. Linear probes read the mean of a span's pieces, which
    is computed once for all tasks. The result of a site or task does not depend on others: training a site alone gives
    the same result.

    With one label per span and the highest logit as the answer, micro-F1 is the share of right answers. If the answers
    are all labels with a logit above 0 (``loss: sigmoid``), a probe may give none; released code that applies a
    threshold of 0.5 to raw logits differs.

    Args:
        train: training spans.
        validation: development spans, for early stopping.
        test: test spans.
        num_classes: number of classes of each task.
        classifier: architecture and training of the probes; None for the defaults.

    Returns:
        Micro-F1 of each site and task.

    Raises:
        ValueError: if there are no sites or tasks; if parts have different sites, widths or tasks; if a task has no
            spans in a part; if spans are empty or outside the pieces; if labels are out of range; if activations are
            NaN or infinite.

    Reference: Tenney et al. 2018, "What do you learn from context?", section 3; Chiang, Huang & Lee 2020, appendix D.1
        (linear, mean of the pieces).

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> def part(n):  # whether the first piece of a span of two has a positive sum
        ...     x, start = torch.randn(2 * n, 3, generator=g), 2 * torch.arange(n)
        ...     spans = torch.stack([start, start + 1, start - start - 100, start - start - 100], 1)
        ...     return EdgeData({"h": x}, {"sign": spans}, {"sign": (x[start].sum(1) > 0).long()})
        >>> training = EdgeClassifier(learning_rate=0.02, max_updates=200, evaluate_every=20)
        >>> result = edge_probes(part(500), part(100), part(200), {"sign": 2}, classifier=training)
        >>> bool(result.f1[0, 0] > 0.95), bool(result.majority[0] < 0.7)
        (True, True)
    """
    classifier = EdgeClassifier() if classifier is None else classifier
    parts = {"train": train, "validation": validation, "test": test}
    tasks, sites = tuple(train.spans), tuple(train.activations)
    _check(parts, tasks, num_classes)
    shape = len(sites), len(tasks)
    f1, validation_f1 = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    updates = torch.zeros(shape, dtype=torch.long)
    for group in same_width(train.activations):
        rows = [sites.index(site) for site in group]
        pieces = [stacked(part.activations, group) for part in parts.values()]
        if classifier.standardize:
            transform = standardize(pieces[0])
            for x in pieces[1:]:
                transform(x)
        spans = [
            _spans(part, x, classifier.kind == "linear")
            for part, x in zip(parts.values(), pieces, strict=True)
        ]
        del pieces
        for j, task in enumerate(tasks):
            of_task = [part[task] for part in spans]
            fitted = fit(
                classifier, of_task[0], of_task[1], of_task[2], num_classes[task], sites=group, task=task
            )
            f1[rows, j], validation_f1[rows, j] = fitted.f1, fitted.validation_f1
            updates[rows, j] = fitted.updates
    majority = torch.stack([_majority(train, test, task, num_classes[task]) for task in tasks])
    return EdgeProbeResult(sites, tasks, f1, validation_f1, updates, majority)


def span_means(x: Float[Tensor, "n *features"], spans: Int[Tensor, "m 2"]) -> Float[Tensor, "m *features"]:
    """Compute the mean of the rows ``start`` to ``end`` (exclusive) of x, for each of m spans; no span may be empty.

    Example:
        >>> span_means(torch.tensor([[1.0], [3.0], [8.0]]), torch.tensor([[0, 2], [2, 3]]))
        tensor([[2.],
                [8.]])
    """
    length = spans[:, 1] - spans[:, 0]
    rows, _ = ranges(spans[:, 0], spans[:, 1])
    x = x if x.is_floating_point() else x.float()
    flat = x.reshape(len(x), math.prod(x.shape[1:]))
    means = F.embedding_bag(rows, flat, length.cumsum(0) - length, mode="mean")
    return means.view(len(spans), *x.shape[1:])


def _spans(part: EdgeData, x: Tensor, linear: bool) -> dict[str, Spans]:
    """Return the spans of each task over pieces x (n, S, d): as means shared by all tasks, or as ranges of pieces."""
    edges = {}
    for task, spans in part.spans.items():
        two = bool((spans[:, 2:] >= 0).all())
        edges[task] = spans.to(x.device).view(-1, 2, 2)[:, : 2 if two else 1]
    labels = {task: y.to(x.device) for task, y in part.labels.items()}
    if not linear:
        return {task: Spans(x, edge, labels[task]) for task, edge in edges.items()}
    every = torch.cat([edge.reshape(-1, 2) for edge in edges.values()])
    key, index = (every[:, 0] * (len(x) + 1) + every[:, 1]).unique(return_inverse=True)
    different = torch.stack([key // (len(x) + 1), key % (len(x) + 1)], 1)
    with torch.no_grad():
        means = span_means(x, different)
    found = {}
    for task, edge in edges.items():
        count = edge.shape[0] * edge.shape[1]
        found[task] = Spans(means, index[:count].view(edge.shape[:2]), labels[task])
        index = index[count:]
    return found


def _majority(train: EdgeData, test: EdgeData, task: str, num_classes: int) -> Tensor:
    """Compute micro-F1 on the test part for the training part's most frequent label."""
    counts = one_hot(train.labels[task].cpu(), num_classes).sum(0)
    gold = one_hot(test.labels[task].cpu(), num_classes)
    hits = gold[:, counts.argmax()].sum()
    return micro_f1(hits, len(gold) - hits, gold.sum() - hits)


def _check(parts: Mapping[str, EdgeData], tasks: tuple[str, ...], num_classes: Mapping[str, int]) -> None:
    first = parts["train"]
    if not tasks or not first.activations:
        raise ValueError(
            f"expected at least one site and one task, got {list(first.activations)} and {list(tasks)}"
        )
    if missing := [task for task in tasks if task not in num_classes]:
        raise ValueError(f"num_classes must contain {missing}, got {dict(num_classes)}")
    widths = {site: x.shape[1] for site, x in first.activations.items()}
    for name, part in parts.items():
        if {site: x.shape[1] for site, x in part.activations.items()} != widths:
            raise ValueError(
                f"sites and widths differ: {widths} in train, "
                f"{ {site: x.shape[1] for site, x in part.activations.items()} } in {name}"
            )
        lengths = {site: len(x) for site, x in part.activations.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{name}: expected equal numbers of pieces at all sites, got {lengths}")
        for site, x in part.activations.items():
            if not bool(x.isfinite().all()):
                raise ValueError(f"{name}: NaN or infinite activations at site {site!r}")
        if set(part.spans) != set(tasks) or set(part.labels) != set(tasks):
            raise ValueError(
                f"tasks differ: {sorted(tasks)} in train, spans of {sorted(part.spans)} and labels of "
                f"{sorted(part.labels)} in {name}"
            )
        for task in tasks:
            n = next(iter(lengths.values()))
            _check_spans(f"{name}, task {task!r}", part.spans[task], part.labels[task], n, num_classes[task])
            if (part.spans[task][0, 2] < 0) != (first.spans[task][0, 2] < 0):
                raise ValueError(f"task {task!r} has one span in train and two in {name}, or vice versa")


def _check_spans(where: str, spans: Tensor, labels: Tensor, n: int, classes: int) -> None:
    if len(spans) == 0:
        raise ValueError(
            f"{where}: expected at least one span, got none: use more tokens, or leave the task out"
        )
    if len(labels) != len(spans) or (labels.ndim == 2 and labels.shape[1] != classes):
        raise ValueError(
            f"{where}: expected a label for each of {len(spans)} spans of {classes} classes, got {tuple(labels.shape)}"
        )
    if labels.ndim == 1 and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise ValueError(
            f"{where}: labels must be in 0 … {classes - 1}, got {int(labels.min())} to {int(labels.max())}"
        )
    none = spans[:, 2] < 0
    if bool(none.any()) != bool(none.all()):
        raise ValueError(f"{where}: some have a second span and others do not: split them into two tasks")
    edges = spans[:, :2] if bool(none.all()) else spans.reshape(-1, 2)
    if not bool(((edges[:, 0] >= 0) & (edges[:, 0] < edges[:, 1]) & (edges[:, 1] <= n)).all()):
        raise ValueError(f"{where}: expected non-empty spans within {n} pieces")
