"""An output layer for each tower of a frozen model: what a tower can predict by itself."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lmdyn.analysis.inspection.forward import IGNORED
from lmdyn.analysis.inspection.linear_cross_entropy import (
    linear_cross_entropy,
    probability_sums,
    target_log_probabilities,
)
from lmdyn.analysis.probing.warmup_decay import warmup_decay_factor
from lmdyn.analysis.statistics.distributed import all_reduce_sum
from lmdyn.analysis.statistics.precision import at_least_float32

__all__ = ["Encoded", "HeadTraining", "TowerHead", "train_heads", "train_tower_heads"]

B = TypeVar("B")
H = TypeVar("H", bound=nn.Module)


class Encoded(NamedTuple):
    """What a frozen model made of some positions.

    Attributes:
        encodings: tower to (n, d) encodings.
        labels: (n,) the token to be predicted; −100 for none, as of padding.
    """

    encodings: Mapping[str, Float[Tensor, "n d"]]
    labels: Int[Tensor, "n"]


@dataclass(frozen=True)
class HeadTraining:
    """How the heads of towers are trained.

    Adam with decoupled weight decay of the weight matrices on the mean −ln p of the labelled positions of each batch;
    the learning rate rises linearly over the first tenth of the updates and falls linearly to 0 with the last.

    Attributes:
        updates: batches to train on; those of the text come again where they are fewer.
        learning_rate: highest rate.
        betas: of Adam.
        weight_decay: of matrices.
        init_range: deviation of the first weights, normal; biases are 0. Every head starts from the same weights.
        seed: of the first weights.

    Raises:
        ValueError: numbers out of range.

    Reference: He & Toyoizumi 2022, sections 3.2 and 4.3, for the optimizer.

    Example:
        >>> HeadTraining(updates=300).learning_rate
        0.001
    """

    updates: int = 1000
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    init_range: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        if self.updates < 1 or self.learning_rate <= 0 or self.weight_decay < 0 or self.init_range <= 0:
            raise ValueError(
                "updates are at least 1, weight_decay at least 0, learning_rate and init_range above 0: got "
                f"{self.updates}, {self.weight_decay}, {self.learning_rate}, {self.init_range}"
            )

    def rate(self, update: int) -> float:
        """The learning rate of an update, counted from 0.

        Example:
            >>> [round(HeadTraining(updates=20, learning_rate=1.0).rate(u), 3) for u in (0, 1, 2, 11, 19)]
            [0.5, 1.0, 0.944, 0.444, 0.0]
        """
        warmup = max(1, self.updates // 10)
        return self.learning_rate * warmup_decay_factor((update + 1) / self.updates, warmup / self.updates)


class TowerHead(nn.Module):
    """A dense layer d → d, GELU, layer norm, and a projection onto the vocabulary of its own, with a bias.

    Args:
        size: d.
        vocab_size: number of token types.
        init_range: deviation of the weights.
        seed: of the weights; the global random state is neither used nor changed.

    Reference: He & Toyoizumi 2022, equation 2 and figure 2. Equation 2 has the word vectors in the place of the
        projection, and no other layer; there a tower's encoding would have to be as wide as both.

    Example:
        >>> head = TowerHead(4, vocab_size=9, init_range=0.02, seed=0)
        >>> head.target_log_probabilities(torch.zeros(2, 4), torch.tensor([3, -100])).shape
        torch.Size([2])
    """

    def __init__(self, size: int, vocab_size: int, init_range: float, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).normal_(std=init_range, generator=generator))

        self.dense_weight = normal(size, size)
        self.dense_bias = nn.Parameter(torch.zeros(size))
        self.norm = nn.LayerNorm(size)
        self.weight = normal(vocab_size, size)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, encodings: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """What is projected onto the vocabulary."""
        dense = nn.functional.linear(
            encodings.to(at_least_float32(encodings)), self.dense_weight, self.dense_bias
        )
        return cast(Tensor, self.norm(nn.functional.gelu(dense)))

    def loss(self, encodings: Float[Tensor, "n d"], labels: Int[Tensor, "n"]) -> Float[Tensor, ""]:
        """Sum of −ln p over the labelled positions, in nats."""
        return linear_cross_entropy(self(encodings), self.weight, self.bias, labels)

    @torch.no_grad()
    def target_log_probabilities(
        self, encodings: Float[Tensor, "n d"], labels: Int[Tensor, "n"]
    ) -> Float[Tensor, "n"]:
        """The logarithm of each label's probability, 0 where there is none."""
        return target_log_probabilities(self(encodings), self.weight, self.bias, labels)

    @torch.no_grad()
    def probability_sums(
        self, encodings: Float[Tensor, "n d"], labels: Int[Tensor, "n"]
    ) -> Float[Tensor, "vocab"]:
        """Sum of the probabilities of every token type over the labelled positions, float64."""
        return probability_sums(self(encodings), self.weight, self.bias, labels != IGNORED)


def train_tower_heads(
    batches: Iterable[Encoded], vocab_size: int, how: HeadTraining
) -> tuple[dict[str, TowerHead], Float[Tensor, "towers"]]:
    """Train a head for each tower, from the same batches at once.

    All heads start from the same weights and see the same batches in the same order, so that what they differ in is
    the towers': identical towers get identical heads, and exchanging two towers exchanges their heads. With several
    ranks each brings its share of every batch; gradients are summed, so that the heads are those of one rank.

    Args:
        batches: what the frozen model made of them, each with the same towers and at least ``how.updates`` of them;
            more are not asked for. Detached.
        vocab_size: number of token types.
        how: see :class:`HeadTraining`.

    Returns:
        The heads, by tower, in eval mode and without gradients; and (towers,) float64 mean −ln p over the last tenth
        of the updates, in nats, in the order of the towers.

    Raises:
        ValueError: fewer batches than updates.

    Example:
        >>> x = torch.eye(3).repeat(5, 1)
        >>> batch = Encoded({"tower1": x, "tower2": 0 * x}, torch.arange(3).repeat(5))
        >>> heads, losses = train_tower_heads([batch] * 200, 3, HeadTraining(updates=200, learning_rate=0.02))
        >>> [round(float(loss), 1) for loss in losses]  # the second tower tells nothing: ln 3
        [0.0, 1.1]
    """

    def start(batch: Encoded) -> dict[str, TowerHead]:
        device = batch.labels.device
        return {
            name: TowerHead(x.shape[1], vocab_size, how.init_range, how.seed).to(device, at_least_float32(x))
            for name, x in batch.encodings.items()
        }

    def loss(head: TowerHead, name: str, batch: Encoded) -> Tensor:
        return head.loss(batch.encodings[name], batch.labels)

    return train_heads(batches, start, loss, lambda batch: batch.labels, how)


def train_heads(
    batches: Iterable[B],
    start: Callable[[B], Mapping[str, H]],
    loss: Callable[[H, str, B], Float[Tensor, ""]],
    labels: Callable[[B], Int[Tensor, "n"]],
    how: HeadTraining,
) -> tuple[dict[str, H], Float[Tensor, "heads"]]:
    """Train some output layers that do not depend on each other, from the same batches at once.

    Args:
        batches: at least ``how.updates`` of them; more are not asked for.
        start: makes the heads, by name, given the first batch.
        loss: a head's sum of −ln p over the labelled positions of a batch, in nats.
        labels: (n,) of a batch; −100 for none.
        how: see :class:`HeadTraining`.

    Returns:
        The heads, in eval mode and without gradients; and (heads,) float64 mean −ln p over the last tenth of the
        updates.

    Raises:
        ValueError: fewer batches than updates.

    Example:
        >>> how = HeadTraining(updates=200, learning_rate=0.05)
        >>> y = torch.tensor([1, 1, 1, 0])
        >>> heads, losses = train_heads(
        ...     [y] * 200, lambda y: {"bias": nn.ParameterList([torch.zeros(2)])},
        ...     lambda head, name, y: -head[0].log_softmax(0)[y].sum(), lambda y: y, how)
        >>> round(float(losses[0]), 2)  # the entropy of a quarter
        0.56
    """
    heads: dict[str, H] = {}
    optimizer: torch.optim.Optimizer | None = None
    last: list[Tensor] = []
    update = 0
    source = iter(batches)
    with torch.enable_grad():
        while update < how.updates:
            batch = next(source, None)
            if batch is None:
                raise ValueError(f"expected {how.updates} batches to train on, got {update}")
            if optimizer is None:
                heads = dict(start(batch))
                optimizer = _optimizer(heads, how)
            optimizer.zero_grad(set_to_none=True)
            # a batch may have no labels at all: its gradient is 0
            count = all_reduce_sum((labels(batch) != IGNORED).sum()).clamp(min=1)
            losses = []
            for name, head in heads.items():  # one at a time: what one keeps for its gradient is freed
                one = loss(head, name, batch)
                (one / count).backward(inputs=list(head.parameters()))
                losses.append(one.detach().double())
            for group in optimizer.param_groups:
                group["lr"] = how.rate(update)
                for parameter in group["params"]:
                    parameter.grad = all_reduce_sum(parameter.grad)
            optimizer.step()
            last.append(all_reduce_sum(torch.stack(losses)) / count)
            last = last[-max(1, how.updates // 10) :]
            update += 1
    for head in heads.values():
        head.eval().requires_grad_(False)
        for parameter in head.parameters():
            parameter.grad = None
    return heads, torch.stack(last).mean(0).cpu()


def _optimizer(heads: Mapping[str, nn.Module], how: HeadTraining) -> torch.optim.Optimizer:
    parameters = [p for head in heads.values() for p in head.parameters()]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": how.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=how.learning_rate, betas=how.betas, fused=parameters[0].device.type in ("cpu", "cuda")
    )
