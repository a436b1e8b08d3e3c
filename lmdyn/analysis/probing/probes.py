"""Diagnostic classifiers (probes) of many sites and tasks, trained together as one tensor program.

All probes use the same minibatches of tokens. The loss is the sum over probes, so the gradient of a probe does not
depend on others, and Adam works element by element: each probe ends as if it were trained alone.
The training itself is in :mod:`lmdyn.analysis.probing.probe_training`.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.inspection.forward import IGNORED
from lmdyn.analysis.probing.probe_training import (
    DiagnosticClassifier,
    Targets,
    generator,
    initial_probes,
    same_width,
    score,
    stable_hash,
    stacked,
    standardize,
    train,
)
from lmdyn.analysis.statistics.hashing import splitmix64

__all__ = [
    "DescriptionLength",
    "DiagnosticClassifier",
    "ProbeResult",
    "control_labels",
    "description_length",
    "diagnostic_probe",
]

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
    train_labels: Mapping[str, Int[Tensor, "_"]],
    test_features: Mapping[str, Float[Tensor, "m _"]],
    test_labels: Mapping[str, Int[Tensor, "_"]],
    num_classes: Mapping[str, int],
    *,
    train_types: Int[Tensor, "_"] | None = None,
    test_types: Int[Tensor, "_"] | None = None,
    test_blocks: Int[Tensor, "_"] | None = None,
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
        ValueError: if there are no sites or tasks; if names, numbers of tokens or widths differ; if features are NaN
            or infinite; if labels are out of range; if a task has no labelled tokens; if types are given for only one
            of the two sets.

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
    n, m = _check_features(train_features, "train"), _check_features(test_features, "test")
    widths = [{site: x.shape[1] for site, x in f.items()} for f in (train_features, test_features)]
    if widths[0] != widths[1]:
        raise ValueError(f"sites and widths differ: {widths[0]} in train, {widths[1]} in test")
    if set(train_labels) != set(test_labels):
        raise ValueError(f"tasks differ: {sorted(train_labels)} in train, {sorted(test_labels)} in test")
    tasks = tuple(train_labels)
    train_set = _targets(train_labels, tasks, num_classes, n, "train")
    test_set = _targets(test_labels, tasks, num_classes, m, "test")
    if (train_types is None) != (test_types is None):
        raise ValueError("control tasks require the types of train and test, got only one of them")
    if train_types is not None and test_types is not None:
        sets = ((train_set, train_types, n, "train"), (test_set, test_types, m, "test"))
        train_set, test_set = _with_control_tasks(sets, classifier.seed)

    blocks = torch.zeros(m, dtype=torch.long) if test_blocks is None else test_blocks.cpu()
    if blocks.shape != (m,) or (m and int(blocks.min()) < 0):
        raise ValueError(
            f"test_blocks must be (tokens,) numbers from 0 for {m} tokens, got {tuple(blocks.shape)}"
        )
    number = int(blocks.max()) + 1
    order = blocks.argsort(stable=True)
    parts = [
        (i, rows) for i in range(number) for rows in order[blocks[order] == i].split(_CHUNK) if len(rows)
    ]
    counts = torch.stack([test_set.rows(order[blocks[order] == i]).counts for i in range(number)])
    shape = number, len(train_features), len(train_set.names)
    correct, nll = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    for sites in same_width(train_features):
        rows = [list(train_features).index(site) for site in sites]
        x = stacked(train_features, sites)
        transform = standardize(x) if classifier.standardize else None
        probes = initial_probes(classifier, x, sites, train_set)
        train(classifier, probes, x, train_set.to(x.device))
        del x
        targets = test_set.to(probes.device)
        for block, part in parts:
            part = part.to(probes.device)
            x = stacked({site: test_features[site].index_select(0, part) for site in sites}, sites)
            if transform is not None:
                transform(x)
            hits, losses = score(probes, x, targets.rows(part))
            correct[block, rows] += hits
            nll[block, rows] += losses
    hits, correct, nll = correct, correct.sum(0), nll.sum(0)
    accuracy, loss, count = correct / test_set.counts, nll / test_set.counts, len(tasks)
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
    if len(shares) == 0 or not bool(shares.isfinite().all() & (shares >= 0).all() & (shares.sum() > 0)):
        raise ValueError(
            f"distribution must have shares of at least 0, not all 0, got {distribution.tolist()}"
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
    labels: Mapping[str, Int[Tensor, "_"]],
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
    n = _check_features(features, "features")
    targets = _targets(labels, tuple(labels), num_classes, n, "labels")
    ends = list(fractions)
    if not ends or ends[0] <= 0 or ends[-1] != 1 or any(a >= b for a, b in itertools.pairwise(ends)):
        raise ValueError(f"fractions must increase from above 0 to 1, got {ends}")
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
        local, local_order = targets.to(x.device), order.to(x.device)
        for i, (start, stop) in enumerate(itertools.pairwise(boundaries), start=1):
            probes = initial_probes(classifier, x, sites, targets)
            train(classifier, probes, x, local, local_order[:start])
            for chunk in local_order[start:stop].split(_CHUNK):
                blocks[i, rows] += score(probes, x.index_select(0, chunk), local.rows(chunk))[1]
    blocks[1:] /= float(np.log(2))
    return DescriptionLength(
        tuple(features), targets.names, blocks.sum(0), targets.counts * bits, boundaries, blocks
    )


def _check_features(features: Mapping[str, Tensor], name: str) -> int:
    """Return the number of tokens, which must be equal for all sites."""
    if not features:
        raise ValueError(f"{name}: expected at least one site, got none")
    lengths = {site: len(x) for site, x in features.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{name}: expected equal numbers of tokens at all sites, got {lengths}")
    for site, x in features.items():
        if not bool(x.detach().isfinite().all()):
            raise ValueError(f"{name}: NaN or infinite features at site {site!r}")
    return next(iter(lengths.values()))


def _targets(
    labels: Mapping[str, Tensor], tasks: tuple[str, ...], num_classes: Mapping[str, int], n: int, name: str
) -> Targets:
    """Return checked labels on the CPU."""
    if not tasks:
        raise ValueError(f"{name}: expected at least one task, got none")
    missing = [task for task in tasks if task not in num_classes]
    if missing:
        raise ValueError(f"num_classes must contain {missing}, got {dict(num_classes)}")
    columns = []
    for task in tasks:
        y, classes = labels[task].detach().cpu().long(), num_classes[task]
        if y.shape != (n,):
            raise ValueError(
                f"{name}: expected labels of shape ({n},) for task {task!r}, got {tuple(y.shape)}"
            )
        if classes < 2:
            raise ValueError(f"task {task!r} must have at least 2 classes, got {classes}")
        labelled = y[y != IGNORED]
        if len(labelled) == 0:
            raise ValueError(f"{name}: task {task!r} has no labelled token")
        if int(labelled.min()) < 0 or int(labelled.max()) >= classes:
            raise ValueError(
                f"{name}: labels of task {task!r} must be in 0 … {classes - 1} or {IGNORED}, "
                f"got {int(labelled.min())} to {int(labelled.max())}"
            )
        columns.append(y)
    return Targets(tasks, tuple(num_classes[task] for task in tasks), torch.stack(columns, 1))


def _with_control_tasks(
    sets: Sequence[tuple[Targets, Tensor, int, str]], seed: int
) -> tuple[Targets, Targets]:
    """Return train and test targets with the control task of each task after all tasks."""
    base = sets[0][0]
    distributions = [base.class_counts(task) for task in range(len(base.names))]
    extended = []
    for targets, types, n, name in sets:
        if types.shape != (n,):
            raise ValueError(f"{name}: expected types of shape ({n},), got {tuple(types.shape)}")
        columns = []
        for column, (task, distribution) in enumerate(zip(base.names, distributions, strict=True)):
            control = control_labels(types.cpu().long(), distribution, seed=stable_hash(seed, task))
            columns.append(torch.where(targets.labels[:, column] == IGNORED, IGNORED, control))
            if not bool((columns[-1] != IGNORED).any()):
                raise ValueError(f"{name}: no labelled token of task {task!r} has a type")
        extended.append(
            Targets(
                (*base.names, *(f"control task of {task}" for task in base.names)),
                base.num_classes * 2,
                torch.cat([targets.labels, torch.stack(columns, 1)], 1),
            )
        )
    return extended[0], extended[1]


def _majority(train_set: Targets, test_set: Targets, task: int) -> Tensor:
    """Compute the accuracy on the test set of the training set's most frequent class."""
    most = train_set.class_counts(task).argmax()
    return (test_set.labels[:, task] == most).sum().double() / test_set.counts[task]
