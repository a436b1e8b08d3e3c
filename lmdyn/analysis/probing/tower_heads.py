"""An output layer for each tower of a frozen model, to measure what a tower can predict alone."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lmdyn.analysis.checked_fields import Above, From, check_fields
from lmdyn.analysis.inspection.forward import IGNORED
from lmdyn.analysis.inspection.linear_cross_entropy import (
    linear_cross_entropy,
    target_log_probabilities,
)
from lmdyn.analysis.probing.warmup_decay import warmup_decay_factor
from lmdyn.analysis.statistics.distributed import all_reduce_sum
from lmdyn.analysis.statistics.precision import at_least_float32

__all__ = ["CHECK_EVERY", "Encoded", "HeadTraining", "TowerHead", "train_heads", "train_tower_heads"]

CHECK_EVERY = 100
"""Updates between two evaluations on the held-out text, for heads that are trained until they stop improving."""

_IMPROVES = 1e-3  # nats

B = TypeVar("B")
H = TypeVar("H", bound=nn.Module)


class Encoded(NamedTuple):
    """Encodings of some positions by a frozen model.

    Attributes:
        encodings: (n, d) encodings of each tower.
        labels: (n,) token to predict; −100 for none, such as padding.
    """

    encodings: Mapping[str, Float[Tensor, "n d"]]
    labels: Int[Tensor, "n"]


@dataclass(frozen=True)
class HeadTraining:
    """Training of the heads of towers.

    The optimizer is Adam with decoupled weight decay of the weight matrices, on the mean −ln p of the labelled
    positions of each batch; the learning rate rises linearly over the first tenth of the updates and falls linearly to
    0 at the last.

    With ``patience``, heads are trained until they stop improving: the rate rises over the first 100 updates and then
    stays constant. Every 100 updates, the loss on held-out batches of the training text is computed, and the rate of a
    head whose lowest loss has not improved by 0.001 nats is halved. The training ends when the rate of each head has
    been halved ``patience`` times, or after ``updates``; each head then gets the weights of its lowest held-out loss.

    Attributes:
        updates: number of batches to train on; the batches of the text are repeated if there are fewer. With
            ``patience``, this is the maximum.
        learning_rate: highest learning rate.
        betas: betas of Adam.
        weight_decay: weight decay of matrices.
        init_range: standard deviation of the initial weights, normal; biases are 0. Every head starts from the same
            weights.
        seed: seed of the initial weights.
        patience: number of times that the rate is halved, at least 1; None for a training of ``updates``.

    Raises:
        ValueError: if a number is out of range.

    Reference: He & Toyoizumi 2022, sections 3.2 and 4.3, for the optimizer.

    Example:
        >>> HeadTraining(updates=300).learning_rate
        0.001
    """

    updates: Annotated[int, From(1)] = 1000
    learning_rate: Annotated[float, Above(0)] = 1e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: Annotated[float, From(0)] = 0.01
    init_range: Annotated[float, Above(0)] = 0.02
    seed: int = 0
    patience: Annotated[int, From(1)] | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def rate(self, update: int) -> float:
        """Return the learning rate of an update, counted from 0; with ``patience``, the rate before it is halved.

        Example:
            >>> [round(HeadTraining(updates=20, learning_rate=1.0).rate(u), 3) for u in (0, 1, 2, 11, 19)]
            [0.5, 1.0, 0.944, 0.444, 0.0]
        """
        if self.patience is not None:
            return self.learning_rate * min(1.0, (update + 1) / CHECK_EVERY)
        warmup = max(1, self.updates // 10)
        return self.learning_rate * warmup_decay_factor((update + 1) / self.updates, warmup / self.updates)


class TowerHead(nn.Module):
    """A dense layer d → d, GELU, layer norm, and a separate projection to the vocabulary with a bias.

    Args:
        size: number of dimensions d of an encoding.
        vocab_size: number of token types.
        init_range: standard deviation of the initial weights.
        seed: seed of the weights; the global random state is neither used nor changed.

    Reference: He & Toyoizumi 2022, equation 2 and figure 2. Equation 2 has the word vectors instead of the projection,
        and no other layer; a tower's encoding would then have to be as wide as both towers.

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
        """Compute the input of the projection to the vocabulary."""
        dense = nn.functional.linear(
            encodings.to(at_least_float32(encodings)), self.dense_weight, self.dense_bias
        )
        return cast(Tensor, self.norm(nn.functional.gelu(dense)))

    def loss(self, encodings: Float[Tensor, "n d"], labels: Int[Tensor, "n"]) -> Float[Tensor, ""]:
        """Compute the sum of −ln p over the labelled positions, in nats."""
        return linear_cross_entropy(self(encodings), self.weight, self.bias, labels)

    @torch.no_grad()
    def target_log_probabilities(
        self, encodings: Float[Tensor, "n d"], labels: Int[Tensor, "n"]
    ) -> Float[Tensor, "n"]:
        """Compute the log-probability of each label, 0 for none."""
        return target_log_probabilities(self(encodings), self.weight, self.bias, labels)


def train_tower_heads(
    batches: Iterable[Encoded],
    vocab_size: int,
    how: HeadTraining,
    held_out: Callable[[], Iterable[Encoded]] | None = None,
) -> tuple[dict[str, TowerHead], Float[Tensor, "towers"]]:
    """Train a head for each tower, from the same batches at once.

    All heads start from the same weights and use the same batches in the same order, so their differences are those of
    the towers: identical towers get identical heads, and exchanging two towers exchanges their heads. With several
    ranks, each contributes its share of every batch; gradients are summed, so the heads are those of one rank.

    Args:
        batches: at least ``how.updates`` detached batches of the frozen model, each with the same towers; no more are
            consumed.
        vocab_size: number of token types.
        how: see :class:`HeadTraining`.
        held_out: function that returns an iterator of batches of text that is not trained on; for ``how.patience``.

    Returns:
        The heads by tower, in eval mode and without gradients; and the mean −ln p over the last tenth of the updates,
        in nats, (towers,) float64 in the order of the towers.

    Raises:
        ValueError: if there are fewer batches than updates, or for ``patience`` without held-out batches.

    Example:
        >>> x = torch.eye(3).repeat(5, 1)
        >>> batch = Encoded({"tower1": x, "tower2": 0 * x}, torch.arange(3).repeat(5))
        >>> heads, losses = train_tower_heads([batch] * 200, 3, HeadTraining(updates=200, learning_rate=0.02))
        >>> [round(float(loss), 1) for loss in losses]  # the second tower has no information: ln 3
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
    """Train independent output layers from the same batches at once.

    Args:
        batches: at least ``how.updates`` batches; no more are consumed.
        start: creates the heads, by name, given the first batch.
        loss: returns a head's sum of −ln p over the labelled positions of a batch, in nats.
        labels: returns the labels (n,) of a batch; −100 for none.
        how: see :class:`HeadTraining`.
        held_out: function that returns an iterator of batches that are not trained on; for ``how.patience``.

    Returns:
        The heads, in eval mode and without gradients; and the mean −ln p over the last tenth of the updates (with
        ``patience`` over the last 100), (heads,) float64.

    Raises:
        ValueError: if there are fewer batches than updates, or for ``patience`` without held-out batches.

    Example:
        >>> how = HeadTraining(updates=200, learning_rate=0.05)
        >>> y = torch.tensor([1, 1, 1, 0])
        >>> heads, losses = train_heads(
        ...     [y] * 200, lambda y: {"bias": nn.ParameterList([torch.zeros(2)])},
        ...     lambda head, name, y: -head[0].log_softmax(0)[y].sum(), lambda y: y, how)
        >>> round(float(losses[0]), 2)  # the entropy of a share of a quarter
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
            "`patience` requires held-out text, but this training has no held-out text: set `patience: null`"
        )
    with torch.enable_grad():
        while update < how.updates and not course.ended:
            batch = next(source, None)
            if batch is None:
                raise ValueError(f"expected {how.updates} batches to train on, got {update}: lower `updates`")
            if optimizer is None:
                heads = dict(start(batch))
                optimizer = _optimizer(heads, how)
            optimizer.zero_grad(set_to_none=True)
            # a batch may have no labels: its gradient is 0
            count = all_reduce_sum((labels(batch) != IGNORED).sum()).clamp(min=1)
            losses = []
            for name, head in heads.items():  # one at a time, so that memory of each one's gradient is freed
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
    """Held-out losses of heads during a training, and the factors of their rates."""

    def __init__(self, patience: int | None) -> None:
        self._patience = patience
        self._best: dict[str, tuple[float, dict[str, Tensor]]] = {}
        self._halved: dict[str, int] = {}

    @property
    def ended(self) -> bool:
        """Whether each head's rate was halved ``patience`` times."""
        return bool(self._halved) and min(self._halved.values()) >= (self._patience or 0)

    def factor(self, name: str) -> float:
        return 0.5 ** self._halved.get(name, 0)

    def look(self, heads: Mapping[str, nn.Module], losses: Sequence[float]) -> None:
        for (name, head), value in zip(heads.items(), losses, strict=True):
            best, _ = self._best.get(name, (math.inf, {}))
            self._halved[name] = self._halved.get(name, 0) + int(not value < best - _IMPROVES)
            if value < best:
                self._best[name] = value, {k: v.detach().clone() for k, v in head.state_dict().items()}

    def restore(self, heads: Mapping[str, nn.Module]) -> None:
        """Restore the weights of the lowest held-out loss."""
        for name, (_, weights) in self._best.items():
            heads[name].load_state_dict(weights)


@torch.no_grad()
def _held_out_losses(
    heads: Mapping[str, H],
    batches: Iterable[B],
    loss: Callable[[H, str, B], Tensor],
    labels: Callable[[B], Tensor],
) -> list[float]:
    """Compute the mean −ln p of each head over all ranks' batches, in nats; NaN if they have no labels."""
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
