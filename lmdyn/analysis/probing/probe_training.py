"""Training of diagnostic classifiers of S sites and T tasks at once: the program of ``probes``.

Logits of all tasks are concatenated, (S, batch, C) with C the classes of all tasks together. Gradients are computed
explicitly (softmax minus one-hot), which avoids autograd's copies. Training does not synchronize with the device.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from lmdyn.analysis.inspection.predictions import hits

__all__ = [
    "DiagnosticClassifier",
    "Targets",
    "generator",
    "initial_probes",
    "loss_gradient",
    "same_width",
    "score",
    "stable_hash",
    "stacked",
    "standardize",
    "train",
]

Kind = Literal["linear", "mlp"]


@dataclass(frozen=True)
class DiagnosticClassifier:
    """Architecture and training of a probe: softmax regression, or one hidden layer of ReLU units.

    Weights and biases of the softmax layer start at 0, so the untrained probe is uniform, and a linear probe depends
    on the seed only through the order of tokens. Those of the hidden layer start uniform in ±1/√d (the default of
    torch for ``nn.Linear``), from a separate generator for each probe, seeded by (seed, site, task).

    Adam (β = 0.9, 0.999, ε = 1e-8, no weight decay) minimises the mean −ln p(label) of the labelled tokens of a
    minibatch. In a minibatch without labels for a task, the gradient is 0, and Adam's moments are updated. The order
    of tokens is drawn for each epoch from the seed alone. The global random state is neither used nor changed.

    Attributes:
        kind: ``linear`` or ``mlp``. The latter is the classifier of Belinkov et al. 2017: one hidden layer with
            dropout and ReLU, as wide as the representation, and a softmax. Their released code (nmt-repr-analysis)
            also starts the softmax layer at random, applies dropout before the ReLU (which is equivalent), uses
            minibatches of sentences, and stops if the held-out loss has not improved for some epochs; here,
            minibatches consist of tokens and the number of epochs is fixed.
        hidden_size: number of units of the hidden layer of an ``mlp``; None for the width of the representation.
        dropout: dropout rate of hidden units during training, in [0, 1). The mask of a minibatch is the same for all
            probes.
        epochs: number of passes over the training tokens; 0 leaves the probe uniform. An update changes a weight by at
            most about the learning rate: probes of few tokens or few dimensions require more updates than the defaults
            give.
        batch_size: number of tokens in a minibatch, labelled or not.
        learning_rate: learning rate of Adam.
        standardize: whether to scale each dimension of a site to mean 0 and standard deviation 1 over the training
            tokens (all of them, labelled or not); a dimension that is constant is only centred. This makes sites of
            different scales comparable at one learning rate. The released code named above does not do this.
        seed: seed of all of the above.

    Raises:
        ValueError: if the kind is unknown, if a number is out of range, or for ``hidden_size`` or ``dropout`` of a
            linear probe.

    Example:
        >>> DiagnosticClassifier(kind="mlp", hidden_size=64).epochs
        10
    """

    kind: Kind = "linear"
    hidden_size: int | None = None
    dropout: float = 0.0
    epochs: int = 10
    batch_size: int = 256
    learning_rate: float = 1e-3
    standardize: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {get_args(Kind)}, got {self.kind!r}")
        if self.kind == "linear" and (self.hidden_size is not None or self.dropout):
            raise ValueError(
                "a linear probe has no hidden layer: leave out hidden_size and dropout, or use kind='mlp'"
            )
        if self.hidden_size is not None and self.hidden_size < 1:
            raise ValueError(f"hidden_size must be at least 1, got {self.hidden_size}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if self.epochs < 0 or self.batch_size < 1 or self.learning_rate <= 0:
            raise ValueError(
                "expected epochs of at least 0, batch_size of at least 1 and learning_rate above 0, "
                f"got {self.epochs}, {self.batch_size} and {self.learning_rate}"
            )


@dataclass(frozen=True)
class Targets:
    """Labels of T tasks for n tokens.

    Attributes:
        names: names of the tasks.
        num_classes: number of classes of each task.
        labels: (n, T) int64, −100 for none.
    """

    names: tuple[str, ...]
    num_classes: tuple[int, ...]
    labels: Tensor

    @cached_property
    def labelled(self) -> Tensor:
        """Whether each token has a label, (n, T)."""
        return self.labels >= 0

    @cached_property
    def columns(self) -> Tensor:
        """Column of each label among the classes of all tasks, (n, T); any column of the task for none."""
        sizes = torch.tensor(self.num_classes)
        first = (sizes.cumsum(0) - sizes).to(self.labels.device, non_blocking=True)
        return self.labels.clamp(min=0) + first

    @property
    def counts(self) -> Tensor:
        """Number of labelled tokens, (T,) float64 on the CPU."""
        return self.labelled.sum(0).cpu().double()

    def class_counts(self, task: int) -> Tensor:
        """Return the number of tokens of each class of a task, (K,)."""
        y = self.labels[:, task]
        return torch.bincount(y[y >= 0], minlength=self.num_classes[task])

    def rows(self, rows: Tensor | slice) -> "Targets":
        """Return the targets of some tokens."""
        return replace(self, labels=self.labels[rows])

    def to(self, device: torch.device) -> "Targets":
        """Return the targets on a device."""
        return replace(self, labels=self.labels.to(device))


class Linear:
    """Softmax regressions, (S, d, C): z = x W + b.

    Args:
        x: (…, S, d) features, from which sizes, type and device are taken.
        targets: targets, from which the number of classes is taken.
    """

    def __init__(self, x: Tensor, targets: Targets) -> None:
        sites, width = x.shape[-2:]
        self.num_classes = targets.num_classes
        self.weight = x.new_zeros(sites, width, sum(self.num_classes))
        self.bias = x.new_zeros(sites, 1, sum(self.num_classes))
        self.parameters = [self.weight, self.bias]

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.bias.device

    def logits(self, x: Tensor, dropped: Tensor | None = None) -> Tensor:
        """Return the logits (S, b, C) of x (S, b, d)."""
        return torch.baddbmm(self.bias, x, self.weight)

    def backward(self, x: Tensor, g: Tensor) -> None:
        """Compute the gradients of the parameters, from that of the logits of the last call."""
        self.weight.grad = x.transpose(1, 2) @ g
        self.bias.grad = g.sum(1, keepdim=True)


class MLP:
    """Classifiers with one hidden layer each: h = relu(x U + a), and z = h W + b for each task.

    Args:
        x: (…, S, d) features, from which sizes, type and device are taken.
        targets: targets, from which names and numbers of classes are taken.
        sites: names of the sites, which seed the weights.
        hidden_size: number of hidden units of one probe.
        seed: seed of the weights.
    """

    def __init__(
        self, x: Tensor, targets: Targets, sites: Sequence[str], hidden_size: int, seed: int
    ) -> None:
        width, tasks = x.shape[-1], targets.names
        self.num_classes = targets.num_classes
        self.hidden_weight = x.new_empty(len(sites), width, len(tasks) * hidden_size)
        self.hidden_bias = x.new_empty(len(sites), 1, len(tasks) * hidden_size)
        for s, site in enumerate(sites):
            for t, task in enumerate(tasks):
                units = slice(t * hidden_size, (t + 1) * hidden_size)
                drawn = torch.rand(
                    width + 1, hidden_size, generator=generator(seed, site, task), dtype=x.dtype
                )
                drawn = (2 * drawn - 1) / max(1, width) ** 0.5
                self.hidden_weight[s, :, units] = drawn[:-1].to(x.device)
                self.hidden_bias[s, :, units] = drawn[-1].to(x.device)
        self.weights = [x.new_zeros(len(sites), hidden_size, classes) for classes in self.num_classes]
        self.bias = x.new_zeros(len(sites), 1, sum(self.num_classes))
        self.parameters = [self.hidden_weight, self.hidden_bias, *self.weights, self.bias]

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.bias.device

    def logits(self, x: Tensor, dropped: Tensor | None = None) -> Tensor:
        """Return the logits (S, b, C) of x (S, b, d); dropped: (b, hidden_size), 0 or 1 / (1 − dropout)."""
        hidden = torch.baddbmm(self.hidden_bias, x, self.hidden_weight).relu_()
        self._dropped = None if dropped is None else dropped.repeat(1, len(self.weights))
        if self._dropped is not None:
            hidden *= self._dropped
        self._hidden = hidden.chunk(len(self.weights), -1)
        outputs = [h @ w for h, w in zip(self._hidden, self.weights, strict=True)]
        return torch.cat(outputs, -1).add_(self.bias)

    def backward(self, x: Tensor, g: Tensor) -> None:
        """Compute the gradients of the parameters, from that of the logits of the last call."""
        back = []
        for h, w, part in zip(self._hidden, self.weights, g.split(self.num_classes, -1), strict=True):
            w.grad = h.transpose(1, 2) @ part
            back.append((part @ w.transpose(1, 2)).mul_(h > 0))
        self.bias.grad = g.sum(1, keepdim=True)
        inner = torch.cat(back, -1)
        if self._dropped is not None:
            inner *= self._dropped
        self.hidden_weight.grad = x.transpose(1, 2) @ inner
        self.hidden_bias.grad = inner.sum(1, keepdim=True)


Probes = Linear | MLP


@torch.no_grad()
def initial_probes(
    classifier: DiagnosticClassifier, x: Tensor, sites: Sequence[str], targets: Targets
) -> Probes:
    """Return untrained probes of features x (n, S, d)."""
    if classifier.kind == "linear":
        return Linear(x, targets)
    hidden_size = max(1, x.shape[-1]) if classifier.hidden_size is None else classifier.hidden_size
    return MLP(x, targets, sites, hidden_size, classifier.seed)


@torch.no_grad()
def train(
    classifier: DiagnosticClassifier, probes: Probes, x: Tensor, targets: Targets, rows: Tensor | None = None
) -> None:
    """Train in place on features x (n, S, d), or on some of their rows."""
    n = len(x) if rows is None else len(rows)
    order, masks = generator(classifier.seed, "order"), generator(classifier.seed, "dropout")
    optimizer = torch.optim.Adam(
        probes.parameters, lr=classifier.learning_rate, fused=x.device.type in ("cpu", "cuda")
    )
    columns, labelled = targets.columns, targets.labelled.to(x.dtype)
    for _ in range(classifier.epochs):
        epoch = torch.randperm(n, generator=order).to(x.device, non_blocking=True)
        for batch in (epoch if rows is None else rows[epoch]).split(classifier.batch_size):
            inputs = x.index_select(0, batch).transpose(0, 1)
            dropped = None
            if classifier.dropout and isinstance(probes, MLP):
                size = len(batch), probes.weights[0].shape[1]
                kept = torch.rand(size, generator=masks) >= classifier.dropout
                dropped = kept.to(x.device, x.dtype, non_blocking=True).div_(1 - classifier.dropout)
            z = probes.logits(inputs, dropped)
            loss_gradient(z, columns[batch], labelled[batch], targets.num_classes)
            probes.backward(inputs, z)
            optimizer.step()
    for parameter in probes.parameters:
        parameter.grad = None


def loss_gradient(z: Tensor, columns: Tensor, labelled: Tensor, num_classes: Sequence[int]) -> None:
    """Turn logits into the gradient of the loss with respect to them, in place: (softmax − one-hot) / count.

    The loss is Σ over probes of the mean −ln p(label) over the labelled tokens; 0 without labelled tokens.

    Args:
        z: (S, b, C) logits.
        columns: (b, T) column of each label.
        labelled: (b, T) 1 for labelled tokens, 0 for others.
        num_classes: number of classes of each task.
    """
    weights = labelled / labelled.sum(0).clamp(min=1)
    for part, weight in zip(z.split(list(num_classes), -1), weights.unbind(1), strict=True):
        part.copy_(part.softmax(-1).mul_(weight[:, None]))
    index = columns.expand(z.shape[0], *columns.shape)  # one column for each task, so none is written twice
    z.scatter_(2, index, z.gather(2, index) - weights)


@torch.no_grad()
def score(probes: Probes, x: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """Return tokens predicted correctly and Σ −ln p(label) in nats, each (S, T) float64 on the CPU, of x (n, S, d)."""
    correct, nll = [], []
    for task, z in enumerate(probes.logits(x.transpose(0, 1)).split(targets.num_classes, -1)):
        y, labelled = targets.labels[:, task].clamp(min=0), targets.labelled[:, task]
        correct.append(torch.where(labelled, hits(z, y.expand(z.shape[:2])), 0).sum(1))
        log_p = z.log_softmax(-1).gather(-1, y.expand(len(z), -1)[..., None])[..., 0]
        nll.append(torch.where(labelled, -log_p, 0).sum(1))
    return torch.stack(correct, 1).cpu().double(), torch.stack(nll, 1).cpu().double()


@torch.no_grad()
def standardize(x: Tensor) -> Callable[[Tensor], None]:
    """Scale x (n, S, d) to mean 0 and standard deviation 1 over n, in place; constant dimensions are only centred.

    Returns:
        Function that applies the same map to other features (…, S, d), in place.
    """
    first = x[0].clone()
    x.sub_(first)  # exactly 0 if constant, and no precision is lost for a large mean
    mean = x.mean(0)
    std = torch.linalg.vector_norm(x.sub_(mean), dim=0) / len(x) ** 0.5
    std = torch.where(std > 0, std, 1)
    x.div_(std)

    def apply(values: Tensor) -> None:
        values.sub_(first).sub_(mean).div_(std)

    return apply


def same_width(features: Mapping[str, Tensor]) -> list[tuple[str, ...]]:
    """Group sites that can be trained as one program."""
    groups: dict[object, list[str]] = {}
    for site, x in features.items():
        groups.setdefault((x.shape[1], x.dtype, x.device), []).append(site)
    return [tuple(sites) for sites in groups.values()]


def stacked(features: Mapping[str, Tensor], sites: Sequence[str]) -> Tensor:
    """Stack sites as (n, S, d) in float32 or float64: tokens first, so that each token is contiguous in memory."""
    x = torch.stack([features[site].detach() for site in sites], 1)
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def stable_hash(*parts: object) -> int:
    """Return a 64-bit hash of the parts that is equal in every process."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little")


def generator(*parts: object) -> torch.Generator:
    """Return a generator on the CPU, seeded by the parts."""
    return torch.Generator().manual_seed(stable_hash(*parts) >> 1)
