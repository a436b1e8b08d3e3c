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
        activations: site to (n, d_site).
        spans: task to (N, 4) start and end of the first span, start and end of the second, in pieces, ends exclusive;
            a second span of negative numbers is none, for all N or for none of them.
        labels: task to (N,) label of each, or to (N, C) booleans where a span can have several labels.
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
        f1: (S, T) on the test part.
        validation_f1: (S, T) on the development part, by which the weights were chosen.
        updates: (S, T) updates after which it was reached.
        majority: (T,) micro-F1 on the test part of answering the most frequent training label each time.
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

    Sites of one width are one tensor program for each task. Linear probes read the mean of a span's pieces, which is
    computed once for all tasks. The number of a site or task depends on no other: training a site alone gives the same.

    With one label a span and the highest logit as the answer, micro-F1 is the share of right answers. Where the answer
    is all labels with a logit above 0 (``loss: sigmoid``), a probe may give none; released code that thresholds raw
    logits at 0.5 differs.

    Args:
        train: spans to train on.
        validation: development spans, for early stopping.
        test: spans to test on.
        num_classes: of each task.
        classifier: kind and training of the probes; None for the defaults.

    Returns:
        Micro-F1 of each site and task.

    Raises:
        ValueError: no sites or tasks, parts of different sites, widths or tasks, a part of a task without spans, spans
            that are empty or lie outside of the pieces, labels out of range, NaN or infinite activations.

    Reference: Tenney et al. 2018, "What do you learn from context?", section 3; Chiang, Huang & Lee 2020, appendix D.1
        (linear, mean of the pieces).

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> def part(n):  # does the first piece of a span of two have a positive sum?
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
    """Mean of the rows ``start`` to ``end`` (exclusive) of x, for each of m spans; no span may be empty.

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
    """The spans of each task over pieces x (n, S, d): by means that all tasks share, or as ranges of the pieces."""
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
    """Micro-F1 on the test part of the training part's most frequent label."""
    counts = one_hot(train.labels[task].cpu(), num_classes).sum(0)
    gold = one_hot(test.labels[task].cpu(), num_classes)
    hits = gold[:, counts.argmax()].sum()
    return micro_f1(hits, len(gold) - hits, gold.sum() - hits)


def _check(parts: Mapping[str, EdgeData], tasks: tuple[str, ...], num_classes: Mapping[str, int]) -> None:
    first = parts["train"]
    if not tasks or not first.activations:
        raise ValueError(f"expected sites and tasks, got {list(first.activations)} and {list(tasks)}")
    if missing := [task for task in tasks if task not in num_classes]:
        raise ValueError(f"num_classes lacks {missing}: got {dict(num_classes)}")
    widths = {site: x.shape[1] for site, x in first.activations.items()}
    for name, part in parts.items():
        if {site: x.shape[1] for site, x in part.activations.items()} != widths:
            raise ValueError(
                f"sites and widths differ: {widths} in train, "
                f"{ {site: x.shape[1] for site, x in part.activations.items()} } in {name}"
            )
        lengths = {site: len(x) for site, x in part.activations.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{name}: sites with different numbers of pieces: {lengths}")
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
                raise ValueError(
                    f"task {task!r} has one span in train and two in {name}, or the other way round"
                )


def _check_spans(where: str, spans: Tensor, labels: Tensor, n: int, classes: int) -> None:
    if len(spans) == 0:
        raise ValueError(f"{where}: there is no span: give more tokens, or leave the task out")
    if len(labels) != len(spans) or (labels.ndim == 2 and labels.shape[1] != classes):
        raise ValueError(
            f"{where}: labels {tuple(labels.shape)} for {len(spans)} spans and {classes} classes"
        )
    if labels.ndim == 1 and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise ValueError(
            f"{where}: labels are in 0 … {classes - 1}, got {int(labels.min())} to {int(labels.max())}"
        )
    none = spans[:, 2] < 0
    if bool(none.any()) != bool(none.all()):
        raise ValueError(f"{where}: some have a second span and some have not: make two tasks of them")
    edges = spans[:, :2] if bool(none.all()) else spans.reshape(-1, 2)
    if not bool(((edges[:, 0] >= 0) & (edges[:, 0] < edges[:, 1]) & (edges[:, 1] <= n)).all()):
        raise ValueError(f"{where}: spans that are empty or lie outside of {n} pieces")
