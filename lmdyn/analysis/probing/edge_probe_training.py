"""Training of edge probes of S sites at once: the program of ``lmdyn.analysis.edge_probes``.

Parameters of all sites are stacked, with the sites first; Adam works element by element, so each site is trained as if
it were alone. A site that stops early leaves the program.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from lmdyn.analysis.probing.edge_probe_f1 import f1_counts, micro_f1, one_hot
from lmdyn.analysis.probing.probe_training import Linear, Targets, generator, loss_gradient

__all__ = ["EdgeClassifier", "Fitted", "Spans", "fit"]

Kind = Literal["linear", "tenney"]
Loss = Literal["softmax", "sigmoid"]

_CHUNK = 4096  # maximum number of spans scored at once


@dataclass(frozen=True)
class EdgeClassifier:
    """Architecture and training of an edge probe.

    ``linear`` is the probe of Chiang, Huang & Lee 2020: a linear classifier of the mean of a span's pieces, or of the
    concatenated means of two spans for tasks with two. Its weights start at 0. ``tenney`` is that of Tenney et al.
    2018: each span has a projection to ``hidden_size`` and is pooled by a softmax over its pieces, whose scores are
    linear in the projected pieces; a hidden layer of ``hidden_size`` with tanh and layer normalisation follows. Its
    weights start uniform in ±1/√(inputs), from a separate generator for each probe.

    A minibatch of Adam (β = 0.9, 0.999, ε = 1e-8, no weight decay) holds ``batch_size`` spans, in an order drawn for
    each epoch from only the seed and the task. Micro-F1 on the development spans is computed every ``evaluate_every``
    updates and at the last one; the best weights are kept (the first of equals), and a site stops after ``patience``
    evaluations without improvement. The global random state is neither used nor changed.

    Tenney et al. train with batches of 32, learning rate 1e-4, evaluations every 1000 updates and patience 20, and
    halve the learning rate after 5 evaluations without improvement, which is not implemented here.

    Attributes:
        kind: ``linear`` or ``tenney``.
        loss: ``softmax`` (cross entropy; the answer is the label with the highest logit) or ``sigmoid`` (binary cross
            entropy of each label; the answers are all labels with a logit above 0). None uses ``softmax`` for linear
            and ``sigmoid`` for tenney. Tasks with several labels per span always use ``sigmoid``.
        learning_rate: learning rate of Adam.
        batch_size: number of spans in a minibatch.
        max_updates: maximum number of updates.
        evaluate_every: number of updates between evaluations.
        patience: number of evaluations without improvement after which a site stops.
        hidden_size: hidden size of ``tenney``.
        dropout: dropout rate of the hidden layer of ``tenney`` during training, in [0, 1); one mask for all sites.
        standardize: whether to scale each dimension of a site to mean 0 and standard deviation 1 over the training
            pieces.
        seed: seed of the order and the weights.

    Raises:
        ValueError: if the kind or the loss is unknown, if a number is out of range, or for ``dropout`` of a linear
            probe.

    Example:
        >>> EdgeClassifier().kind, EdgeClassifier(kind="tenney", learning_rate=1e-4, batch_size=32).answers
        ('linear', 'sigmoid')
    """

    kind: Kind = "linear"
    loss: Loss | None = None
    learning_rate: float = 1e-3
    batch_size: int = 256
    max_updates: int = 10_000
    evaluate_every: int = 200
    patience: int = 5
    hidden_size: int = 256
    dropout: float = 0.0
    standardize: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {get_args(Kind)}, got {self.kind!r}")
        if self.loss is not None and self.loss not in get_args(Loss):
            raise ValueError(f"loss must be one of {get_args(Loss)} or null, got {self.loss!r}")
        for name in ("batch_size", "max_updates", "evaluate_every", "patience", "hidden_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.learning_rate <= 0 or not 0 <= self.dropout < 1:
            raise ValueError(
                f"expected learning_rate above 0 and dropout in [0, 1), got {self.learning_rate} and {self.dropout}"
            )
        if self.kind == "linear" and self.dropout:
            raise ValueError(
                "a linear probe has no hidden layer for dropout: leave out dropout, or use kind='tenney'"
            )

    @property
    def answers(self) -> Loss:
        """Loss of tasks with one label per span."""
        return self.loss or ("softmax" if self.kind == "linear" else "sigmoid")


@dataclass(frozen=True)
class Spans:
    """Labelled spans of a task, in one part of the data.

    Attributes:
        features: features of spans, (m, S, d): the means of m spans for linear probes, otherwise m pieces.
        index: (N, k) the row of the m for each of the k spans (linear), or (N, k, 2) their ranges of pieces.
        labels: (N,) label of each span, or (N, C) bool for several labels.
    """

    features: Tensor
    index: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def means(self, rows: Tensor, sites: Tensor) -> Tensor:
        """Return the concatenated means of the spans of some rows, for some sites, (S', b, k d)."""
        parts = [self._of(self.features.index_select(0, i), sites) for i in self.index[rows].unbind(1)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def pieces(self, rows: Tensor, sites: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the pieces (S', m, d) of each of the k spans of some rows, and the row (m,) of each piece."""
        for start, end in (r.unbind(1) for r in self.index[rows].unbind(1)):
            piece, row = ranges(start, end)
            yield self._of(self.features.index_select(0, piece), sites), row

    def _of(self, x: Tensor, sites: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        return x if len(sites) == len(x) else x.index_select(0, sites)


def ranges(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Return all integers of n ranges one after the other, and the range of each."""
    length = end - start
    row = torch.arange(len(length), device=length.device).repeat_interleave(length)
    first = length.cumsum(0) - length
    return torch.arange(len(row), device=length.device) - first[row] + start[row], row


@dataclass(frozen=True)
class Fitted:
    """S trained probes of a task.

    Attributes:
        f1: (S,) test micro-F1.
        validation_f1: (S,) the best development micro-F1.
        updates: (S,) number of updates at which it was reached.
        parameters: the weights at this update, sites first.
    """

    f1: Tensor
    validation_f1: Tensor
    updates: Tensor
    parameters: list[Tensor]


def fit(
    classifier: EdgeClassifier,
    train: Spans,
    validation: Spans,
    test: Spans,
    num_classes: int,
    *,
    sites: Sequence[str],
    task: str,
) -> Fitted:
    """Train probes of all sites for one task, and test them."""
    loss = classifier.answers if train.labels.ndim == 1 else "sigmoid"
    model: _Model
    if classifier.kind == "linear":
        model = _Linear(train, num_classes, loss)
    else:
        model = _Tenney(classifier, train, num_classes, loss, sites, task)
    device = train.features.device
    order = generator(classifier.seed, "order", task)
    best = [p.detach().clone() for p in model.parameters]
    best_f1, best_update = (
        torch.full((len(sites),), -1.0, dtype=torch.float64),
        torch.zeros(len(sites)).long(),
    )
    stale = torch.zeros(len(sites)).long()
    active = torch.arange(len(sites))
    optimizer = torch.optim.Adam(
        model.parameters, lr=classifier.learning_rate, fused=device.type in ("cpu", "cuda")
    )
    rows: list[Tensor] = []
    for update in range(1, classifier.max_updates + 1):
        if not rows:
            epoch = torch.randperm(len(train), generator=order).to(device, non_blocking=True)
            rows = list(reversed(epoch.split(classifier.batch_size)))
        model.gradients(train, rows.pop(), active.to(device))
        optimizer.step()
        if update % classifier.evaluate_every and update < classifier.max_updates:
            continue
        f1 = _score(model, validation, active.to(device), loss)
        better = f1 > best_f1[active]
        for row in better.nonzero()[:, 0].tolist():
            site = int(active[row])
            best_f1[site], best_update[site] = f1[row], update
            for kept, parameter in zip(best, model.parameters, strict=True):
                kept[site] = parameter.detach()[row]
        stale[active] = torch.where(better, 0, stale[active] + 1)
        goes_on = stale[active] < classifier.patience
        if not bool(goes_on.any()):
            break
        if not bool(goes_on.all()):
            active = active[goes_on]
            _keep(model, optimizer, goes_on.nonzero()[:, 0].to(device))
    model.parameters = best
    f1 = _score(model, test, torch.arange(len(sites), device=device), loss)
    failed = best_f1 < 0  # was not finite at any evaluation: the weights are the initial ones
    f1[failed] = best_f1[failed] = torch.nan
    return Fitted(f1, best_f1, best_update, best)


def _keep(model: "_Model", optimizer: torch.optim.Optimizer, rows: Tensor) -> None:
    """Continue with some of the sites: their weights, and Adam's moments."""
    kept = []
    for parameter in model.parameters:
        new = parameter.detach()[rows].clone().requires_grad_(parameter.requires_grad)
        state = optimizer.state.pop(parameter)
        optimizer.state[new] = {
            name: value[rows] if value.shape == parameter.shape else value for name, value in state.items()
        }
        kept.append(new)
    model.parameters = kept
    optimizer.param_groups[0]["params"] = kept


@torch.no_grad()
def _score(model: "_Model", spans: Spans, sites: Tensor, loss: Loss) -> Tensor:
    """Compute micro-F1, (S',) float64 on the CPU."""
    hits = torch.zeros(len(sites), dtype=torch.float64, device=spans.index.device)
    answers, gold = hits.long(), 0
    for rows in torch.arange(len(spans), device=spans.index.device).split(_CHUNK):
        z, y = model.logits(spans, rows, sites), spans.labels[rows]
        right, answered, there = f1_counts(z, y, multi_label=loss != "softmax")
        hits += right
        answers += answered
        gold += there
    return micro_f1(hits, answers - hits, gold - hits)


# ------------------------------------------------------------------------------------------ the probes


class _Model(Protocol):
    parameters: list[Tensor]

    def logits(self, spans: Spans, rows: Tensor, sites: Tensor) -> Tensor:
        """Return the logits (S', b, C) of some rows, for the sites of the parameters."""

    def gradients(self, spans: Spans, rows: Tensor, sites: Tensor) -> None:
        """Set the gradients of the parameters."""


class _Linear:
    """Linear classifier z = x W + b of the means."""

    def __init__(self, spans: Spans, num_classes: int, loss: Loss) -> None:
        self._loss = loss
        width = spans.index.shape[1] * spans.features.shape[2]
        sizes = spans.features.new_empty(0, spans.features.shape[1], width)
        self._probe = Linear(sizes, Targets(("",), (num_classes,), spans.labels))

    @property
    def parameters(self) -> list[Tensor]:
        return self._probe.parameters

    @parameters.setter
    def parameters(self, parameters: list[Tensor]) -> None:
        self._probe.weight, self._probe.bias = parameters
        self._probe.parameters = parameters

    def logits(self, spans: Spans, rows: Tensor, sites: Tensor) -> Tensor:
        return self._probe.logits(spans.means(rows, sites))

    @torch.no_grad()
    def gradients(self, spans: Spans, rows: Tensor, sites: Tensor) -> None:
        x, y = spans.means(rows, sites), spans.labels[rows]
        z = self._probe.logits(x)
        if self._loss == "softmax":
            loss_gradient(z, y[:, None], z.new_ones(len(y), 1), self._probe.num_classes)
        else:
            z.sigmoid_().sub_(one_hot(y, z.shape[-1])).div_(z[0].numel())
        self._probe.backward(x, z)


class _Tenney:
    """Projection and attention pooling of each span, then a hidden layer."""

    def __init__(
        self,
        classifier: EdgeClassifier,
        spans: Spans,
        num_classes: int,
        loss: Loss,
        sites: Sequence[str],
        task: str,
    ) -> None:
        self._loss, self._dropout = loss, classifier.dropout
        self._masks = generator(classifier.seed, "dropout", task)
        width, k, size = spans.features.shape[2], spans.index.shape[1], classifier.hidden_size
        # (inputs, outputs) of each linear map: k projections and scores of pieces, hidden layer, labels
        maps = [*[(width, size), (size, 1)] * k, (k * size, size), (size, num_classes)]
        drawn: list[list[Tensor]] = []
        for site in sites:
            of_site = generator(classifier.seed, site, task)
            drawn.append(
                [
                    (2 * torch.rand(inputs + 1, outputs, generator=of_site) - 1) / inputs**0.5
                    for inputs, outputs in maps
                ]
            )
        scale = [
            torch.ones(len(sites), 1, size),
            torch.zeros(len(sites), 1, size),
        ]  # parameters of the layer normalisation
        like = spans.features
        self.parameters = [
            p.to(like.device, like.dtype).requires_grad_()
            for p in (*(torch.stack(of) for of in zip(*drawn, strict=True)), *scale)
        ]

    def logits(self, spans: Spans, rows: Tensor, sites: Tensor, dropped: Tensor | None = None) -> Tensor:
        *maps, scale, shift = self.parameters
        pooled = []
        for k, (pieces, row) in enumerate(spans.pieces(rows, sites)):
            projected = _affine(pieces, maps[2 * k])
            score = _affine(projected, maps[2 * k + 1])
            pooled.append(_attend(projected, score, row, len(rows)))
        hidden = _affine(torch.cat(pooled, -1), maps[-2]).tanh()
        hidden = F.layer_norm(hidden, hidden.shape[-1:]) * scale + shift
        return _affine(hidden if dropped is None else hidden * dropped, maps[-1])

    def gradients(self, spans: Spans, rows: Tensor, sites: Tensor) -> None:
        dropped = None
        if self._dropout:
            kept = (
                torch.rand(len(rows), self.parameters[-1].shape[-1], generator=self._masks) >= self._dropout
            )
            dropped = kept.to(rows.device, self.parameters[0].dtype) / (1 - self._dropout)
        with torch.enable_grad():
            z, y = self.logits(spans, rows, sites, dropped), spans.labels[rows]
            if self._loss == "softmax":
                loss = F.cross_entropy(z.flatten(0, 1), y.repeat(len(z)), reduction="sum") / len(y)
            else:
                gold = one_hot(y, z.shape[-1]).to(z.dtype).expand_as(z)
                loss = F.binary_cross_entropy_with_logits(z, gold, reduction="sum") / z[0].numel()
            gradients = torch.autograd.grad(loss, self.parameters)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient


def _affine(x: Tensor, weights: Tensor) -> Tensor:
    """Multiply (S, m, d) by weights (S, d + 1, e), whose last row is the bias."""
    return torch.baddbmm(weights[:, -1:], x, weights[:, :-1])


def _attend(values: Tensor, scores: Tensor, row: Tensor, n: int) -> Tensor:
    """Return means of values (S, m, e) in each row, weighted by the softmax of scores (S, m, 1), as (S, n, e)."""
    index = row[None, :, None].expand_as(scores)
    sites = scores.shape[0]
    highest = scores.new_full((sites, n, 1), -torch.inf).scatter_reduce(1, index, scores.detach(), "amax")
    weights = (scores - highest.gather(1, index)).exp()
    total = weights.new_zeros(sites, n, 1).index_add(1, row, weights)
    return values.new_zeros(sites, n, values.shape[-1]).index_add(1, row, weights * values) / total
