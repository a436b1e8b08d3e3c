"""Training of edge probes of S sites at once: the program behind ``lmdyn.analysis.edge_probes``.

Parameters of all sites lie side by side, with the sites first; Adam works on single entries, so that each site is
trained as if it were alone. A site that stops early leaves the program.
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

_CHUNK = 4096  # spans scored at once


@dataclass(frozen=True)
class EdgeClassifier:
    """Kind and training of an edge probe.

    ``linear`` is the probe of Chiang, Huang & Lee 2020: a linear classifier of the mean of a span's pieces, of two
    spans' means side by side where a task has two. Its weights start at 0. ``tenney`` is that of Tenney et al. 2018:
    for each span a projection to ``hidden_size`` and a softmax over its pieces, whose scores are linear in the
    projected pieces, pools them; a hidden layer of ``hidden_size`` with tanh and layer normalisation follows. Its
    weights start uniform in ±1/√(inputs), from a generator of each probe's own.

    A minibatch of Adam (β = 0.9, 0.999, ε = 1e-8, no weight decay) holds ``batch_size`` spans, in an order drawn anew
    each epoch from the seed and the task alone. Every ``evaluate_every`` updates, and at the last one, micro-F1 on the
    development spans is taken; the weights with the best are kept (the first of equals), and a site stops after
    ``patience`` evaluations without a better one. The global random state is neither used nor changed.

    Tenney et al. train with batches of 32, learning rate 1e-4, evaluations every 1000 updates and patience 20, and
    halve the learning rate after 5 evaluations without improvement, which is not done here.

    Attributes:
        kind: ``linear`` or ``tenney``.
        loss: ``softmax`` (cross entropy; the answer is the label with the highest logit) or ``sigmoid`` (binary cross
            entropy of each label; the answer is all labels with a logit above 0); None for ``softmax`` where kind is
            linear, ``sigmoid`` where it is tenney. Tasks with several labels a span always take ``sigmoid``.
        learning_rate: of Adam.
        batch_size: spans of a minibatch.
        max_updates: end of training at the latest.
        evaluate_every: updates between evaluations.
        patience: evaluations without improvement after which a site stops.
        hidden_size: of ``tenney``.
        dropout: of the hidden layer of ``tenney`` while training, in [0, 1); one mask for all sites.
        standardize: bring each dimension of a site to mean 0 and standard deviation 1 over the training pieces.
        seed: of the order and the weights.

    Raises:
        ValueError: an unknown kind or loss; numbers out of range; ``dropout`` of a linear probe.

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
            raise ValueError(f"kind is one of {get_args(Kind)}: got {self.kind!r}")
        if self.loss is not None and self.loss not in get_args(Loss):
            raise ValueError(f"loss is one of {get_args(Loss)} or null: got {self.loss!r}")
        for name in ("batch_size", "max_updates", "evaluate_every", "patience", "hidden_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1: got {getattr(self, name)}")
        if self.learning_rate <= 0 or not 0 <= self.dropout < 1:
            raise ValueError(
                f"learning_rate is above 0, dropout in [0, 1): got {self.learning_rate}, {self.dropout}"
            )
        if self.kind == "linear" and self.dropout:
            raise ValueError(
                "a linear probe has no hidden layer to drop from: leave dropout, or say kind='tenney'"
            )

    @property
    def answers(self) -> Loss:
        """The loss of tasks with one label a span."""
        return self.loss or ("softmax" if self.kind == "linear" else "sigmoid")


@dataclass(frozen=True)
class Spans:
    """The labelled spans of a task, in one part of the data.

    Attributes:
        features: what spans consist of, (m, S, d): the means of m spans for linear probes, else m pieces.
        index: (N, k) which of the m rows each of the k spans is (linear), or (N, k, 2) their ranges of pieces.
        labels: (N,) label of each, or (N, C) bool where there are several.
    """

    features: Tensor
    index: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def means(self, rows: Tensor, sites: Tensor) -> Tensor:
        """(S', b, k d) means of some rows' spans side by side, of some sites."""
        parts = [self._of(self.features.index_select(0, i), sites) for i in self.index[rows].unbind(1)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def pieces(self, rows: Tensor, sites: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Pieces (S', m, d) of each of the k spans of some rows, and the row (m,) of each."""
        for start, end in (r.unbind(1) for r in self.index[rows].unbind(1)):
            piece, row = ranges(start, end)
            yield self._of(self.features.index_select(0, piece), sites), row

    def _of(self, x: Tensor, sites: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        return x if len(sites) == len(x) else x.index_select(0, sites)


def ranges(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """All whole numbers of n ranges one after the other, and the number of the range that each is from."""
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
        updates: (S,) updates after which it was reached.
        parameters: the weights then, sites first.
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
    """Train probes of all sites of one task, and test them."""
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
    return Fitted(f1, best_f1, best_update, best)


def _keep(model: "_Model", optimizer: torch.optim.Optimizer, rows: Tensor) -> None:
    """Go on with some of the sites: their weights, and Adam's moments."""
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
    """(S',) micro-F1, float64 on the CPU."""
    hits = torch.zeros(len(sites), dtype=torch.long, device=spans.index.device)
    answers, gold = hits.clone(), 0
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
        """(S', b, C) of some rows and the sites that the parameters are of."""

    def gradients(self, spans: Spans, rows: Tensor, sites: Tensor) -> None:
        """Set the gradients of the parameters."""


class _Linear:
    """z = x W + b of the means."""

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
        ]  # of the layer normalisation
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
    """(S, m, d) by weights (S, d + 1, e), whose last row is the bias."""
    return torch.baddbmm(weights[:, -1:], x, weights[:, :-1])


def _attend(values: Tensor, scores: Tensor, row: Tensor, n: int) -> Tensor:
    """(S, n, e) means of values (S, m, e) of each row, weighted by the softmax of scores (S, m, 1) within it."""
    index = row[None, :, None].expand_as(scores)
    sites = scores.shape[0]
    highest = scores.new_full((sites, n, 1), -torch.inf).scatter_reduce(1, index, scores.detach(), "amax")
    weights = (scores - highest.gather(1, index)).exp()
    total = weights.new_zeros(sites, n, 1).index_add(1, row, weights)
    return values.new_zeros(sites, n, values.shape[-1]).index_add(1, row, weights * values) / total
