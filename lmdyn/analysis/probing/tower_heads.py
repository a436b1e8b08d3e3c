"""An output layer for each tower of a frozen model: what a tower can predict by itself."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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

__all__ = ["CHECK_EVERY", "Encoded", "HeadTraining", "TowerHead", "train_heads", "train_tower_heads"]

CHECK_EVERY = 100
"""Updates between two looks at the held-out text, of heads that are trained until they stop improving."""

_IMPROVES = 1e-3  # nats

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

    With ``patience`` heads are trained until they stop improving: the rate rises over the first 100 updates and stays;
    every 100 updates the loss on held-out batches of the training text is looked at, and the rate of a head that is not
    better by 0.001 nats than ever before is halved. The training ends where each head's rate was halved ``patience``
    times, or after ``updates``; each head is then what it was where its held-out loss was lowest.

    Attributes:
        updates: batches to train on; those of the text come again where they are fewer. With ``patience`` at most.
        learning_rate: highest rate.
        betas: of Adam.
        weight_decay: of matrices.
        init_range: deviation of the first weights, normal; biases are 0. Every head starts from the same weights.
        seed: of the first weights.
        patience: how often the rate is halved, from 1; None for a training of ``updates``.

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
    patience: int | None = None

    def __post_init__(self) -> None:
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience is a number from 1, or null, got {self.patience}")
        if self.updates < 1 or self.learning_rate <= 0 or self.weight_decay < 0 or self.init_range <= 0:
            raise ValueError(
                "updates are at least 1, weight_decay at least 0, learning_rate and init_range above 0: got "
                f"{self.updates}, {self.weight_decay}, {self.learning_rate}, {self.init_range}"
            )

    def rate(self, update: int) -> float:
        """The learning rate of an update, counted from 0; with ``patience`` before it is halved.

        Example:
            >>> [round(HeadTraining(updates=20, learning_rate=1.0).rate(u), 3) for u in (0, 1, 2, 11, 19)]
            [0.5, 1.0, 0.944, 0.444, 0.0]
        """
        if self.patience is not None:
            return self.learning_rate * min(1.0, (update + 1) / CHECK_EVERY)
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
    batches: Iterable[Encoded],
    vocab_size: int,
    how: HeadTraining,
    held_out: Callable[[], Iterable[Encoded]] | None = None,
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
        held_out: batches of text that is not trained on, anew at each call; for ``how.patience``.

    Returns:
        The heads, by tower, in eval mode and without gradients; and (towers,) float64 mean −ln p over the last tenth
        of the updates, in nats, in the order of the towers.

    Raises:
        ValueError: fewer batches than updates; ``patience`` without held-out batches.

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

    return train_heads(batches, start, loss, lambda batch: batch.labels, how, held_out)


def train_heads(
    batches: Iterable[B],
    start: Callable[[B], Mapping[str, H]],
    loss: Callable[[H, str, B], Float[Tensor, ""]],
    labels: Callable[[B], Int[Tensor, "n"]],
    how: HeadTraining,
    held_out: Callable[[], Iterable[B]] | None = None,
) -> tuple[dict[str, H], Float[Tensor, "heads"]]:
    """Train some output layers that do not depend on each other, from the same batches at once.

    Args:
        batches: at least ``how.updates`` of them; more are not asked for.
        start: makes the heads, by name, given the first batch.
        loss: a head's sum of −ln p over the labelled positions of a batch, in nats.
        labels: (n,) of a batch; −100 for none.
        how: see :class:`HeadTraining`.
        held_out: batches that are not trained on, anew at each call; for ``how.patience``.

    Returns:
        The heads, in eval mode and without gradients; and (heads,) float64 mean −ln p over the last tenth of the
        updates (with ``patience`` over the last 100).

    Raises:
        ValueError: fewer batches than updates; ``patience`` without held-out batches.

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
    window = max(1, how.updates // 10) if how.patience is None else CHECK_EVERY
    course = _Course(how.patience)
    update = 0
    source = iter(batches)
    if how.patience is not None and held_out is None:
        raise ValueError(
            "patience needs text that is held out, and this training has none: give patience: null"
        )
    with torch.enable_grad():
        while update < how.updates and not course.ended:
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
                group["lr"] = how.rate(update) * course.factor(group["head"])
                for parameter in group["params"]:
                    parameter.grad = all_reduce_sum(parameter.grad)
            optimizer.step()
            last.append(all_reduce_sum(torch.stack(losses)) / count)
            last = last[-window:]
            update += 1
            if held_out is not None and how.patience is not None and update % CHECK_EVERY == 0:
                course.look(heads, _held_out_losses(heads, held_out(), loss, labels))
    course.restore(heads)
    for head in heads.values():
        head.eval().requires_grad_(False)
        for parameter in head.parameters():
            parameter.grad = None
    return heads, torch.stack(last).mean(0).cpu()


class _Course:
    """Held-out losses of heads over a training, and what they say of the rates."""

    def __init__(self, patience: int | None) -> None:
        self._patience = patience
        self._best: dict[str, float] = {}
        self._weights: dict[str, dict[str, Tensor]] = {}
        self._halved: dict[str, int] = {}

    @property
    def ended(self) -> bool:
        """Whether each head's rate was halved as often as it may."""
        return bool(self._halved) and min(self._halved.values()) >= (self._patience or 0)

    def factor(self, name: str) -> float:
        return 0.5 ** self._halved.get(name, 0)

    def look(self, heads: Mapping[str, nn.Module], losses: Sequence[float]) -> None:
        for (name, head), value in zip(heads.items(), losses, strict=True):
            best = self._best.get(name, math.inf)
            self._halved[name] = self._halved.get(name, 0) + int(not value < best - _IMPROVES)
            if value < best:
                self._best[name] = value
                self._weights[name] = {k: v.detach().clone() for k, v in head.state_dict().items()}

    def restore(self, heads: Mapping[str, nn.Module]) -> None:
        """The weights of the lowest held-out loss."""
        for name, weights in self._weights.items():
            heads[name].load_state_dict(weights)


@torch.no_grad()
def _held_out_losses(
    heads: Mapping[str, H],
    batches: Iterable[B],
    loss: Callable[[H, str, B], Tensor],
    labels: Callable[[B], Tensor],
) -> list[float]:
    """Mean −ln p of each head over all ranks' batches, in nats; NaN where they have no labels."""
    sums: Tensor | None = None
    for batch in batches:
        there = (labels(batch) != IGNORED).sum().double()
        one = torch.stack([*(loss(head, name, batch).double() for name, head in heads.items()), there])
        sums = one if sums is None else sums + one
    if sums is None:
        return [math.nan] * len(heads)
    sums = all_reduce_sum(sums)
    return [float(v) for v in sums[:-1] / sums[-1]]


def _optimizer(heads: Mapping[str, nn.Module], how: HeadTraining) -> torch.optim.Optimizer:
    groups = [
        {
            "params": [p for p in head.parameters() if (p.ndim > 1) == decays],
            "head": name,
            "weight_decay": decay,
        }
        for name, head in heads.items()
        for decays, decay in ((True, how.weight_decay), (False, 0.0))
    ]
    device = next(p for head in heads.values() for p in head.parameters()).device.type
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=how.learning_rate, betas=how.betas, fused=device in ("cpu", "cuda"))
