"""Edge probing: classifiers of spans on frozen representations, for all sites and tasks from one set of features.

Parameters of all sites are stacked, with the sites first; Adam works element by element, so each site is trained as if
it were alone. A site that stops early leaves the program.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.checked_fields import Above, From, check_fields
from lmdyn.analysis.inspection.predictions import hits
from lmdyn.analysis.probing.probes import (
    Linear,
    adam,
    generator,
    loss_gradient,
    same_width,
    stacked,
    standardize,
)

__all__ = [
    "EdgeClassifier",
    "EdgeData",
    "EdgeProbeResult",
    "edge_probes",
    "f1_counts",
    "micro_f1",
    "one_hot",
    "span_means",
]

Loss = Literal["softmax", "sigmoid"]

_CHUNK = 4096  # maximum number of spans scored at once


@dataclass(frozen=True)
class EdgeClassifier:
    """Architecture and training of an edge probe.

    The probe is that of Chiang, Huang & Lee 2020: a linear classifier of the mean of a span's pieces, or of the
    concatenated means of two spans for tasks with two. Its weights start at 0.

    A minibatch of Adam (β = 0.9, 0.999, ε = 1e-8, no weight decay) holds ``batch_size`` spans, in an order drawn for
    each epoch from only the seed and the task. Micro-F1 on the development spans is computed every ``evaluate_every``
    updates and at the last one; the best weights are kept (the first of equals), and a site stops after ``patience``
    evaluations without improvement. The global random state is neither used nor changed.

    Tenney et al. 2018 pool the pieces of a span by attention and add a hidden layer, and train with batches of 32,
    learning rate 1e-4, evaluations every 1000 updates and patience 20, and halve the learning rate after 5 evaluations
    without improvement, which is not implemented here.

    Attributes:
        kind: only ``linear``.
        loss: ``softmax`` (cross entropy; the answer is the label with the highest logit) or ``sigmoid`` (binary cross
            entropy of each label; the answers are all labels with a logit above 0). None uses ``softmax``. Tasks with
            several labels per span always use ``sigmoid``.
        learning_rate: learning rate of Adam.
        batch_size: number of spans in a minibatch.
        max_updates: maximum number of updates.
        evaluate_every: number of updates between evaluations.
        patience: number of evaluations without improvement after which a site stops.
        hidden_size: without effect: a linear probe has no hidden layer.
        dropout: only 0, for the same reason.
        standardize: whether to scale each dimension of a site to mean 0 and standard deviation 1 over the training
            pieces.
        seed: seed of the order and the weights.

    Raises:
        ValueError: if the kind or the loss is unknown, or if a number is out of range.

    Example:
        >>> EdgeClassifier(learning_rate=1e-4, batch_size=32).answers
        'softmax'
    """

    kind: Literal["linear"] = "linear"
    loss: Loss | None = None
    learning_rate: Annotated[float, Above(0)] = 1e-3
    batch_size: Annotated[int, From(1)] = 256
    max_updates: Annotated[int, From(1)] = 10_000
    evaluate_every: Annotated[int, From(1)] = 200
    patience: Annotated[int, From(1)] = 5
    hidden_size: Annotated[int, From(1)] = 256
    dropout: Annotated[float, From(0, 0)] = 0.0
    standardize: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def answers(self) -> Loss:
        """Loss of tasks with one label per span."""
        return self.loss or "softmax"


@dataclass(frozen=True)
class Spans:
    """Labelled spans of a task, in one part of the data.

    Attributes:
        features: (m, S, d) means of the m different spans.
        index: (N, k) the row of the m for each of the k spans.
        labels: (N,) label of each span, or (N, C) bool for several labels.
    """

    features: Tensor
    index: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def means(self, rows: Tensor) -> Tensor:
        """Return the concatenated means of the spans of some rows, (S, b, k d)."""
        parts = [self.features.index_select(0, i).transpose(0, 1) for i in self.index[rows].unbind(1)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


@torch.enable_grad()
def fit(
    classifier: EdgeClassifier, parts: Sequence[Spans], num_classes: int, task: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Train probes of all sites for one task; return micro-F1 on the test and the development part, and updates."""
    train, validation, test = parts
    loss = classifier.answers if train.labels.ndim == 1 else "sigmoid"
    device = train.features.device
    _, number, width = train.features.shape
    sizes = train.features.new_empty(0, number, train.index.shape[1] * width)
    model = Linear(sizes, (num_classes,))
    order = generator(classifier.seed, "order", task)
    best = [p.detach().clone() for p in model.parameters]
    best_f1 = torch.full((number,), -1.0, dtype=torch.float64)
    best_update, stale = (torch.zeros(number).long() for _ in range(2))
    optimizer = adam(model.parameters, classifier.learning_rate)
    rows: list[Tensor] = []
    for update in range(1, classifier.max_updates + 1):
        if not rows:
            epoch = torch.randperm(len(train), generator=order).to(device, non_blocking=True)
            rows = list(reversed(epoch.split(classifier.batch_size)))
        optimizer.zero_grad()
        batch = rows.pop()
        z = model.logits(train.means(batch))
        z.backward(_gradient(z.detach(), train.labels[batch], loss))
        optimizer.step()
        if update % classifier.evaluate_every and update < classifier.max_updates:
            continue
        f1 = _score(model, validation, loss)
        # a site that has stopped is trained on, unread
        better = (f1 > best_f1) & (stale < classifier.patience)
        best_f1 = torch.where(better, f1, best_f1)
        best_update = torch.where(better, update, best_update)
        stale = torch.where(better, 0, stale + 1)
        for kept, parameter in zip(best, model.parameters, strict=True):
            kept[better] = parameter.detach()[better]
        if (stale >= classifier.patience).all():
            break
    model.weight, model.bias = best
    f1 = _score(model, test, loss)
    failed = best_f1 < 0  # was not finite at any evaluation: the weights are the initial ones
    f1[failed] = best_f1[failed] = torch.nan
    return f1, best_f1, best_update


def _gradient(z: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """Turn logits into the gradient of the loss with respect to them, in place."""
    if loss == "softmax":
        return loss_gradient(z, y[:, None], z.new_ones(len(y), 1), z.shape[-1:])
    return z.sigmoid_().sub_(one_hot(y, z.shape[-1])).div_(z[0].numel())


@torch.no_grad()
def _score(model: Linear, spans: Spans, loss: Loss) -> Tensor:
    """Compute micro-F1, (S,) float64 on the CPU."""
    found = spans.index.new_zeros(len(model.weight), dtype=torch.float64)
    answers, gold = found.long(), 0
    for rows in torch.arange(len(spans), device=spans.index.device).split(_CHUNK):
        z, y = model.logits(spans.means(rows)), spans.labels[rows]
        right, answered, there = f1_counts(z, y, multi_label=loss != "softmax")
        found += right
        answers += answered
        gold += there
    return micro_f1(found, answers - found, gold - found)


def f1_counts(logits: Tensor, labels: Tensor, multi_label: bool) -> tuple[Tensor, Tensor, int]:
    """Count the right answers and the answers of each of S probes, and the true labels, for some spans.

    With one label per span, the answer is the highest logit; with any number of labels, each logit above 0 is an
    answer. If the highest logit of a span is not finite, the right answers of the probe are NaN, and so is its F1.

    Args:
        logits: logits, (S, n, C).
        labels: (n,) classes, or (n, C) ones and zeros.
        multi_label: whether a span can have any number of labels.

    Returns:
        Right answers (S,) float64, answers (S,), and number of true labels.

    Example:
        >>> right, answers, gold = f1_counts(torch.tensor([[[2.0, -1.0], [3.0, 1.0]]]), torch.tensor([0, 1]), True)
        >>> right.tolist(), answers.tolist(), gold
        ([2.0], [3], 2)
    """
    if logits.shape[-1] == 0 or logits.shape[1] != len(labels):
        raise ValueError(
            f"expected logits (probes, {len(labels)} spans, classes), a span for each label, got {tuple(logits.shape)}"
        )
    answered = (logits > 0).sum((1, 2))
    if not multi_label:
        right = hits(logits, labels.expand(logits.shape[:2])).double().sum(1)
        return right, torch.full_like(answered, len(labels)), len(labels)
    gold = one_hot(labels, logits.shape[-1]).bool()
    right = torch.where(logits.amax(-1).isfinite(), ((logits > 0) & gold).sum(-1).double(), torch.nan).sum(1)
    return right, answered, int(gold.sum())


def micro_f1(tp: Tensor, fp: Tensor, fn: Tensor) -> Tensor:
    """Compute 2 TP / (2 TP + FP + FN) of summed counts, float64 on the CPU; NaN without answers and true labels."""
    tp, fp, fn = (count.cpu().double() for count in (tp, fp, fn))
    return 2 * tp / (2 * tp + fp + fn)


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Convert labels (N,) to integers 0 and 1, (N, C); labels with one column per class are unchanged."""
    return F.one_hot(labels, num_classes) if labels.ndim == 1 else labels.long()


@dataclass(frozen=True)
class EdgeData:
    """One part of the data: activations of n pieces at each site, and the spans of each task.

    Attributes:
        activations: (n, d_site) activations of each site.
        spans: for each task, the same ones in all parts, (N, 4) start and end of the first span, start and end of the
            second, in pieces, with exclusive ends. Negative numbers for the second span mean none, for all or no N.
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
        classifier: training of the probes; None for the defaults.

    Returns:
        Micro-F1 of each site and task.

    Raises:
        ValueError: if a task has no spans in a part; if spans are empty or outside the pieces; if labels are out of
            range.

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
    for name, part in parts.items():
        for task in tasks:
            n = len(part.activations[sites[0]])
            _check_spans(f"{name}, task {task!r}", part.spans[task], part.labels[task], n, num_classes[task])
    shape = len(sites), len(tasks)
    f1 = torch.zeros(shape, dtype=torch.float64)
    validation_f1 = torch.zeros(shape, dtype=torch.float64)
    updates = torch.zeros(shape, dtype=torch.long)
    for group in same_width(train.activations):
        rows = [sites.index(site) for site in group]
        pieces = [stacked(part.activations, group) for part in parts.values()]
        if classifier.standardize:
            transform = standardize(pieces[0])
            for x in pieces[1:]:
                transform(x)
        spans = [_spans(part, x) for part, x in zip(parts.values(), pieces, strict=True)]
        del pieces
        for j, task in enumerate(tasks):
            found = fit(classifier, [part[task] for part in spans], num_classes[task], task)
            f1[rows, j], validation_f1[rows, j], updates[rows, j] = found
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
    first = length.cumsum(0) - length
    rows = torch.arange(int(length.sum()), device=x.device) + (spans[:, 0] - first).repeat_interleave(length)
    x = x if x.is_floating_point() else x.float()
    flat = x.reshape(len(x), math.prod(x.shape[1:]))
    means = F.embedding_bag(rows, flat, first, mode="mean")
    return means.view(len(spans), *x.shape[1:])


def _spans(part: EdgeData, x: Tensor) -> dict[str, Spans]:
    """Return the spans of each task over pieces x (n, S, d), as means shared by all tasks."""
    edges = {}
    for task, spans in part.spans.items():
        two = bool((spans[:, 2:] >= 0).all())
        edges[task] = spans.to(x.device).view(-1, 2, 2)[:, : 2 if two else 1]
    labels = {task: y.to(x.device) for task, y in part.labels.items()}
    every = torch.cat([edge.reshape(-1, 2) for edge in edges.values()])
    key, index = (every[:, 0] * (len(x) + 1) + every[:, 1]).unique(return_inverse=True)
    different = torch.stack([key // (len(x) + 1), key % (len(x) + 1)], 1)
    with torch.no_grad():
        means = span_means(x, different)
    found = {}
    for task, edge in edges.items():
        count = edge.numel() // 2
        found[task] = Spans(means, index[:count].view(edge.shape[:2]), labels[task])
        index = index[count:]
    return found


def _majority(train: EdgeData, test: EdgeData, task: str, num_classes: int) -> Tensor:
    """Compute micro-F1 on the test part for the training part's most frequent label."""
    counts = one_hot(train.labels[task].cpu(), num_classes).sum(0)
    gold = one_hot(test.labels[task].cpu(), num_classes)
    hits = gold[:, counts.argmax()].sum()
    return micro_f1(hits, len(gold) - hits, gold.sum() - hits)


def _check_spans(where: str, spans: Tensor, labels: Tensor, n: int, classes: int) -> None:
    if len(spans) == 0:
        raise ValueError(f"{where}: there are no spans: use more tokens, or leave out the task")
    if labels.ndim == 1 and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise ValueError(
            f"{where}: labels must be in 0 … {classes - 1}, got {int(labels.min())} to {int(labels.max())}"
        )
    none = spans[:, 2] < 0
    if bool(none.any()) != bool(none.all()):
        raise ValueError(f"{where}: only some examples have a second span: split the examples into two tasks")
    edges = spans[:, :2] if none.all() else spans.reshape(-1, 2)
    start, end = edges.T
    if len(wrong := edges[~((start >= 0) & (start < end) & (end <= n))]):
        raise ValueError(f"{where}: expected spans 0 <= start < end <= {n}, got {wrong[0, 0]}, {wrong[0, 1]}")
