"""Diagnostic classifiers (probes) of many sites and tasks, trained together as one tensor program.

All probes use the same minibatches of tokens. The loss is the sum over probes, so the gradient of a probe does not
depend on others, and Adam works element by element: each probe ends as if it were trained alone. Logits of all tasks
are concatenated, (S, batch, C) with C the classes of all tasks together. Gradients are computed explicitly (softmax
minus one-hot), which avoids autograd's copies. Training does not synchronize with the device.
"""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.checked_fields import Above, From, check_fields
from lmdyn.analysis.inspection.forward import IGNORED
from lmdyn.analysis.inspection.predictions import hits
from lmdyn.analysis.statistics.hashing import splitmix64

__all__ = [
    "DescriptionLength",
    "DiagnosticClassifier",
    "ProbeResult",
    "control_labels",
    "description_length",
    "diagnostic_probe",
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
    hidden_size: Annotated[int, From(1)] | None = None
    dropout: Annotated[float, From(0, 0.99)] = 0.0
    epochs: Annotated[int, From(0)] = 10
    batch_size: Annotated[int, From(1)] = 256
    learning_rate: Annotated[float, Above(0)] = 1e-3
    standardize: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.kind == "linear" and (self.hidden_size is not None or self.dropout):
            raise ValueError(
                "a linear probe has no hidden layer: leave out hidden_size and dropout, or use kind='mlp'"
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
        num_classes: number of classes of each task.
    """

    def __init__(self, x: Tensor, num_classes: tuple[int, ...]) -> None:
        sites, width = x.shape[-2:]
        self.num_classes = num_classes
        self.weight = x.new_zeros(sites, width, sum(self.num_classes))
        self.bias = x.new_zeros(sites, 1, sum(self.num_classes))
        self.parameters = [self.weight, self.bias]

    def logits(self, x: Tensor, dropped: Tensor | None = None) -> Tensor:
        """Return the logits (S, b, C) of x (S, b, d)."""
        return torch.baddbmm(self.bias, x, self.weight)


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

    def logits(self, x: Tensor, dropped: Tensor | None = None) -> Tensor:
        """Return the logits (S, b, C) of x (S, b, d); dropped: (b, hidden_size), 0 or 1 / (1 − dropout)."""
        hidden = torch.baddbmm(self.hidden_bias, x, self.hidden_weight).relu_()
        if dropped is not None:
            hidden = hidden * dropped.repeat(1, len(self.weights))
        parts = zip(hidden.chunk(len(self.weights), -1), self.weights, strict=True)
        return torch.cat([h @ w for h, w in parts], -1).add_(self.bias)


Probes = Linear | MLP


@torch.no_grad()
def initial_probes(
    classifier: DiagnosticClassifier, x: Tensor, sites: Sequence[str], targets: Targets
) -> Probes:
    """Return untrained probes of features x (n, S, d)."""
    if classifier.kind == "linear":
        return Linear(x, targets.num_classes)
    hidden_size = max(1, x.shape[-1]) if classifier.hidden_size is None else classifier.hidden_size
    return MLP(x, targets, sites, hidden_size, classifier.seed)


@torch.enable_grad()
def train(
    classifier: DiagnosticClassifier, probes: Probes, x: Tensor, targets: Targets, rows: Tensor | None = None
) -> None:
    """Train in place on features x (n, S, d), or on some of their rows."""
    n = len(x) if rows is None else len(rows)
    order = generator(classifier.seed, "order")
    masks = generator(classifier.seed, "dropout")
    optimizer = adam(probes.parameters, classifier.learning_rate)
    columns = targets.columns
    labelled = targets.labelled.to(x.dtype)
    for _ in range(classifier.epochs):
        epoch = torch.randperm(n, generator=order).to(x.device, non_blocking=True)
        for batch in (epoch if rows is None else rows[epoch]).split(classifier.batch_size):
            inputs = x.index_select(0, batch).transpose(0, 1)
            dropped = None
            if classifier.dropout and isinstance(probes, MLP):
                size = len(batch), probes.weights[0].shape[1]
                kept = torch.rand(size, generator=masks) >= classifier.dropout
                dropped = kept.to(x.device, x.dtype, non_blocking=True).div_(1 - classifier.dropout)
            optimizer.zero_grad()
            z = probes.logits(inputs, dropped)
            z.backward(loss_gradient(z.detach(), columns[batch], labelled[batch], targets.num_classes))
            optimizer.step()


def adam(parameters: Sequence[Tensor], learning_rate: float) -> torch.optim.Adam:
    """Return an optimizer of parameters, which require gradients from now on."""
    leaves = [parameter.requires_grad_() for parameter in parameters]
    return torch.optim.Adam(leaves, lr=learning_rate, fused=leaves[0].device.type in ("cpu", "cuda"))


@torch.no_grad()
def loss_gradient(z: Tensor, columns: Tensor, labelled: Tensor, num_classes: Sequence[int]) -> Tensor:
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
    index = columns.expand(len(z), *columns.shape)  # one column for each task, so none is written twice
    return z.scatter_(2, index, z.gather(2, index) - weights)


@torch.no_grad()
def score(probes: Probes, x: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """Return tokens predicted correctly and Σ −ln p(label) in nats, each (S, T) float64 on the CPU, of x (n, S, d)."""
    correct, nll = [], []
    for task, z in enumerate(probes.logits(x.transpose(0, 1)).split(targets.num_classes, -1)):
        y = targets.labels[:, task].clamp(min=0)
        labelled = targets.labelled[:, task]
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


_CHUNK = 2048  # maximum number of tokens scored at once

_FRACTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class ProbeResult:
    """Results of probes of S sites and T tasks on held-out tokens; float64 on the CPU.

    Attributes:
        sites: names of the rows.
        tasks: names of the columns.
        accuracy: (S, T) share of labelled tokens whose most probable class is the label, in [0, 1].
        loss: (S, T) mean −ln p(label) in nats per labelled token; ln K for a uniform probe.
        majority: (T,) accuracy of the training set's most frequent class (the first of equals), in [0, 1].
        control_accuracy: (S, T) accuracy on the control task of each task; None if none was requested.
        block_hits: (B, S, T) number of tokens predicted correctly in each block of held-out tokens, control tasks
            after all tasks; None without blocks.
        block_counts: (B, T) number of labelled tokens of each block, in the same order.
    """

    sites: tuple[str, ...]
    tasks: tuple[str, ...]
    accuracy: Float[Tensor, "sites tasks"]
    loss: Float[Tensor, "sites tasks"]
    majority: Float[Tensor, "tasks"]
    control_accuracy: Float[Tensor, "sites tasks"] | None = None
    block_hits: Float[Tensor, "blocks sites _"] | None = None
    block_counts: Float[Tensor, "blocks _"] | None = None

    @property
    def selectivity(self) -> Float[Tensor, "sites tasks"]:
        """Accuracy minus control accuracy, (S, T), in [−1, 1].

        It is near 0 if a probe only memorises word types, whatever the site encodes.

        Raises:
            ValueError: if there was no control task.

        Reference: Hewitt & Liang 2019, section 2.
        """
        if self.control_accuracy is None:
            raise ValueError("selectivity requires control tasks: pass train_types and test_types")
        return self.accuracy - self.control_accuracy


def diagnostic_probe(
    train_features: Mapping[str, Float[Tensor, "n _"]],
    train_labels: Mapping[str, Int[Tensor, "n"]],
    test_features: Mapping[str, Float[Tensor, "m _"]],
    test_labels: Mapping[str, Int[Tensor, "m"]],
    num_classes: Mapping[str, int],
    *,
    train_types: Int[Tensor, "n"] | None = None,
    test_types: Int[Tensor, "m"] | None = None,
    test_blocks: Int[Tensor, "m"] | None = None,
    classifier: DiagnosticClassifier | None = None,
) -> ProbeResult:
    """Measure how well classifiers trained on frozen features predict each task from each site.

    Sites of equal width are trained as one program, on the device of their features. It requires memory for one more
    copy of the training features, and 4 numbers per parameter.

    Features are standardised by mean and standard deviation of all training tokens, labelled or not (see
    :class:`DiagnosticClassifier`). Labels of only one class are allowed: such a task is learnt to accuracy 1, which is
    also its majority baseline.

    Args:
        train_features: (n, d_site) features of each site for the same n tokens; widths may differ.
        train_labels: (n,) labels of each task in 0 … K − 1, −100 for none.
        test_features: (m, d_site) features of each site for held-out tokens.
        test_labels: (m,) labels of each task.
        num_classes: number of classes K of each task, at least 2.
        train_types: (n,) word type of each token, negative for none. If given, each task gets a control task
            (:func:`control_labels`, with the distribution of its training labels), trained in the same program; it has
            labels for the same tokens as the task.
        test_types: (m,) word types of held-out tokens, with the same ids.
        test_blocks: (m,) block of sentences of each held-out token, from 0. If given, hits are also counted by block,
            for a bootstrap over sentences.
        classifier: architecture and training of the probes; None for the defaults.

    Raises:
        ValueError: if there are no sites or tasks; if numbers of tokens differ; if features are NaN or infinite; if
            labels are out of range; if a task has no labelled tokens; if types are given for only one of the two sets.

    Reference: Hupkes et al. 2018 (diagnostic classifiers); Belinkov et al. 2017; Hewitt & Liang 2019.

    Example:
        >>> x = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
        >>> sign = (x[:, 0] > 0).long()
        >>> labels = {"sign": sign}
        >>> training = DiagnosticClassifier(epochs=30, batch_size=20)
        >>> result = diagnostic_probe({"all": x, "rest": x[:, 1:]}, labels, {"all": x, "rest": x[:, 1:]}, labels,
        ...                           {"sign": 2}, classifier=training)
        >>> bool(result.accuracy[0, 0] > 0.95), bool(result.accuracy[1, 0] < 0.7)
        (True, True)
    """
    classifier = DiagnosticClassifier() if classifier is None else classifier
    _check_features(train_features, "train_features")
    _check_features(test_features, "test_features")
    tasks = tuple(train_labels)
    train_set = _targets(train_labels, tasks, num_classes, "train_labels")
    test_set = _targets(test_labels, tasks, num_classes, "test_labels")
    if (train_types is None) != (test_types is None):
        raise ValueError("control tasks require types: pass train_types and test_types, or neither")
    if train_types is not None and test_types is not None:
        sets = ((train_set, train_types, "train_types"), (test_set, test_types, "test_types"))
        train_set, test_set = _with_control_tasks(sets, classifier.seed)

    blocks = torch.zeros(len(test_set.labels), dtype=torch.long) if test_blocks is None else test_blocks.cpu()
    of_blocks = [(blocks == i).nonzero()[:, 0] for i in range(int(blocks.max()) + 1)]
    parts = [(i, part) for i, rows in enumerate(of_blocks) for part in rows.split(_CHUNK) if len(part)]
    counts = torch.stack([test_set.rows(rows).counts for rows in of_blocks])
    shape = len(of_blocks), len(train_features), len(train_set.names)
    correct = torch.zeros(shape, dtype=torch.float64)
    nll = torch.zeros(shape, dtype=torch.float64)
    for sites in same_width(train_features):
        rows = [list(train_features).index(site) for site in sites]
        x = stacked(train_features, sites)
        transform = standardize(x) if classifier.standardize else None
        probes = initial_probes(classifier, x, sites, train_set)
        train(classifier, probes, x, train_set.to(x.device))
        del x
        targets = test_set.to(probes.bias.device)
        for block, part in parts:
            part = part.to(probes.bias.device)
            x = stacked({site: test_features[site].index_select(0, part) for site in sites}, sites)
            if transform is not None:
                transform(x)
            hits, losses = score(probes, x, targets.rows(part))
            correct[block, rows] += hits
            nll[block, rows] += losses
    hits, correct, nll = correct, correct.sum(0), nll.sum(0)
    accuracy = correct / test_set.counts
    loss = nll / test_set.counts
    count = len(tasks)
    return ProbeResult(
        tuple(train_features),
        tasks,
        accuracy[:, :count],
        loss[:, :count],
        torch.stack([_majority(train_set, test_set, task) for task in range(count)]),
        accuracy[:, count:] if train_types is not None else None,
        None if test_blocks is None else hits,
        None if test_blocks is None else counts,
    )


def control_labels(
    types: Int[Tensor, "*tokens"],
    distribution: Int[Tensor, "classes"] | Float[Tensor, "classes"],
    *,
    seed: int = 0,
) -> Int[Tensor, "*tokens"]:
    """Draw labels of a control task: one for each word type, from the distribution of a task's labels over tokens.

    The label of a type is a function of only (type, distribution, seed): the same in train and test, whatever the
    order of tokens and the other types. The id is hashed to a number u in [0, 1) (SplitMix64), to which the inverse of
    the cumulative distribution is applied.

    Args:
        types: (...) word types, such as ``input_ids``; negative for none.
        distribution: (K,) counts or shares of the classes, such as ``torch.bincount(labels[labels >= 0])``.
        seed: integer; use a different one for each task, otherwise types have related labels in the control tasks of
            all tasks.

    Returns:
        Tensor of shape (...), int64 in 0 … K − 1, −100 for a negative type; never a class of share 0.

    Raises:
        ValueError: if the distribution is empty, negative, not finite, or 0 throughout.

    Reference: Hewitt & Liang 2019, "Designing and interpreting probes with control tasks", section 2.

    Example:
        >>> control_labels(torch.tensor([7, 3, 7, -100, 3]), torch.tensor([0, 50, 50]), seed=1)
        tensor([   1,    1,    1, -100,    1])
    """
    shares = distribution.detach().cpu().double()
    fine = shares.isfinite().all() & (shares >= 0).all() & (shares.sum() > 0)
    if len(shares) == 0 or not fine:
        raise ValueError(
            f"expected finite shares of at least 0, not all 0, got {', '.join(map(str, shares.tolist())) or 'none'}"
        )
    start = (stable_hash("control", seed) + 2**63) % 2**64 - 2**63  # as a signed number
    bits = splitmix64(types.detach().cpu().long() + start)
    uniform = (bits >> 11 & (1 << 53) - 1).double() * 2.0**-53
    cumulative = shares.cumsum(0)
    labels = torch.searchsorted(cumulative / cumulative[-1], uniform, right=True)
    return torch.where(types.detach() >= 0, labels.to(types.device), IGNORED)


@dataclass(frozen=True)
class DescriptionLength:
    """Code length in bits of the labels of T tasks, given the features of S sites; float64 on the CPU.

    Attributes:
        sites: names of the rows.
        tasks: names of the columns.
        codelength: (S, T) prequential code length in bits, at least 0.
        uniform_codelength: (T,) n log₂ K in bits, with n the number of labelled tokens of the task.
        boundaries: number of tokens (labelled or not) at the end of each block.
        blocks: (B, S, T) bits of each block, in the order of ``boundaries``; their sum is ``codelength``.
    """

    sites: tuple[str, ...]
    tasks: tuple[str, ...]
    codelength: Float[Tensor, "sites tasks"]
    uniform_codelength: Float[Tensor, "tasks"]
    boundaries: tuple[int, ...]
    blocks: Float[Tensor, "blocks sites tasks"]

    @property
    def compression(self) -> Float[Tensor, "sites tasks"]:
        """Uniform code length over code length, (S, T): 1 if a probe learns nothing, below 1 if it misleads."""
        return self.uniform_codelength / self.codelength


def description_length(
    features: Mapping[str, Float[Tensor, "n _"]],
    labels: Mapping[str, Int[Tensor, "n"]],
    num_classes: Mapping[str, int],
    *,
    fractions: Sequence[float] = _FRACTIONS,
    shuffle: bool = True,
    classifier: DiagnosticClassifier | None = None,
) -> DescriptionLength:
    """Compute the prequential (online) code length of labels: L = t₁ log₂ K − Σᵢ log₂ p_θᵢ(block i + 1).

    The t₁ labels of the first block are encoded by the uniform code, those of each later block by probes θᵢ trained on
    all blocks before it. All sites and tasks are trained together, from the same initial weights for each prefix. t₁
    and n count the labelled tokens of a task; if a prefix contains none, its θ is the untrained probe, which is
    uniform.

    It is the length of an actual code for the given training: more epochs on the short prefixes can shorten it.
    Features are standardised over all n tokens: sender and receiver know them, and only labels are encoded.

    Args:
        features: (n, d_site) features of each site for the same n tokens; widths may differ.
        labels: (n,) labels of each task in 0 … K − 1, −100 for none.
        num_classes: number of classes K of each task, at least 2.
        fractions: increasing ends of the blocks as shares of the tokens, the last one 1; rounded down. Blocks that
            would be empty are merged with the next one.
        shuffle: whether to encode tokens in an order drawn from the classifier's seed. The released code of Voita &
            Titov draws an order of sentences instead (a prefix then has whole sentences): for this, permute sentences
            yourself and pass False. With False, tokens in the order of a corpus mix learning with the drift of topics.
        classifier: architecture and training of the probes; None for the defaults. Voita & Titov stop by held-out
            loss; here, the number of epochs is fixed.

    Raises:
        ValueError: as in :func:`diagnostic_probe`; also if fractions do not increase to 1.

    Reference: Voita & Titov 2020, "Information-theoretic probing with minimum description length", section 2.2.2;
    the default fractions are theirs.

    Example:
        >>> x = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
        >>> code = description_length({"h": x}, {"sign": (x[:, 0] > 0).long()}, {"sign": 2})
        >>> code.uniform_codelength, code.boundaries
        (tensor([500.], dtype=torch.float64), (1, 2, 4, 8, 16, 31, 62, 125, 250, 500))
        >>> bool(code.compression > 1)
        True
    """
    classifier = DiagnosticClassifier() if classifier is None else classifier
    _check_features(features, "features")
    targets = _targets(labels, tuple(labels), num_classes, "labels")
    n = len(targets.labels)
    ends = list(fractions)
    if not ends or ends[0] <= 0 or ends[-1] != 1 or any(a >= b for a, b in itertools.pairwise(ends)):
        raise ValueError(f"fractions must increase from above 0 to 1, got {', '.join(map(str, ends))}")
    boundaries = tuple(sorted({int(end * n + 1e-9) for end in ends} - {0}))
    order = torch.randperm(n, generator=generator(classifier.seed, "blocks")) if shuffle else torch.arange(n)

    blocks = torch.zeros(len(boundaries), len(features), len(targets.names), dtype=torch.float64)
    bits = torch.tensor(targets.num_classes, dtype=torch.float64).log2()
    blocks[0] = targets.rows(order[: boundaries[0]]).counts * bits
    for sites in same_width(features):
        rows = [list(features).index(site) for site in sites]
        x = stacked(features, sites)
        if classifier.standardize:
            standardize(x)
        local = targets.to(x.device)
        local_order = order.to(x.device)
        for i, (start, stop) in enumerate(itertools.pairwise(boundaries), start=1):
            probes = initial_probes(classifier, x, sites, targets)
            train(classifier, probes, x, local, local_order[:start])
            for chunk in local_order[start:stop].split(_CHUNK):
                blocks[i, rows] += score(probes, x.index_select(0, chunk), local.rows(chunk))[1]
    blocks[1:] /= float(np.log(2))
    return DescriptionLength(
        tuple(features), targets.names, blocks.sum(0), targets.counts * bits, boundaries, blocks
    )


def _check_features(features: Mapping[str, Tensor], name: str) -> None:
    if not features:
        raise ValueError(f"{name}: expected at least one site, got none")
    for site, x in features.items():
        if not x.isfinite().all():
            raise ValueError(f"{name}: site {site!r} has NaN or infinite features: leave out the site")


def _targets(
    labels: Mapping[str, Tensor], tasks: tuple[str, ...], num_classes: Mapping[str, int], name: str
) -> Targets:
    """Return checked labels on the CPU."""
    if not tasks:
        raise ValueError(f"{name}: expected at least one task, got none")
    columns = []
    for task in tasks:
        y = labels[task].detach().cpu().long()
        classes = num_classes[task]
        labelled = y[y != IGNORED]
        if not len(labelled) or int(labelled.min()) < 0 or int(labelled.max()) >= classes:
            raise ValueError(
                f"{name}: expected labels of task {task!r} in 0 … {classes - 1} or {IGNORED}, got "
                f"{f'{labelled.min()} to {labelled.max()}' if len(labelled) else f'only {IGNORED}'}"
            )
        columns.append(y)
    return Targets(tasks, tuple(num_classes[task] for task in tasks), torch.stack(columns, 1))


def _with_control_tasks(sets: Sequence[tuple[Targets, Tensor, str]], seed: int) -> tuple[Targets, Targets]:
    """Return train and test targets with the control task of each task after all tasks."""
    base = sets[0][0]
    names = (*base.names, *(f"control task of {task}" for task in base.names))
    extended = []
    for targets, types, name in sets:
        columns = [*targets.labels.unbind(1)]
        for number, task in enumerate(base.names):
            control = control_labels(types.cpu(), base.class_counts(number), seed=stable_hash(seed, task))
            columns.append(torch.where(columns[number] == IGNORED, IGNORED, control))
            if not (columns[-1] != IGNORED).any():
                raise ValueError(f"{name}: expected types >= 0 of labelled tokens of task {task!r}, got none")
        extended.append(Targets(names, base.num_classes * 2, torch.stack(columns, 1)))
    return extended[0], extended[1]


def _majority(train_set: Targets, test_set: Targets, task: int) -> Tensor:
    """Compute the accuracy on the test set of the training set's most frequent class."""
    most = train_set.class_counts(task).argmax()
    return (test_set.labels[:, task] == most).sum().double() / test_set.counts[task]
