"""Predictions from the state of an encoder at any time: their quality, and that of linear readouts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lmdyn.analysis.checked_fields import Above, From, check_fields
from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.inspection.forward import check_labels
from lmdyn.analysis.inspection.predictions import hits
from lmdyn.analysis.probing.state_decoder import StateDecoder
from lmdyn.analysis.probing.task_metrics import regression_metrics
from lmdyn.analysis.statistics.distributed import all_reduce_sum, rank_and_world_size
from lmdyn.analysis.statistics.precision import at_least_float32, exact_float, scatter_matrix, unit_size

__all__ = [
    "LinearReadouts",
    "ReadoutTraining",
    "StateDecoder",
    "pooled_states",
    "prediction_scores",
    "readout_correlation",
    "states_at",
    "train_linear_readouts",
]


def states_at(
    f: EncoderMap, batch: Mapping[str, Any], times: Sequence[int]
) -> Iterator[tuple[int, Float[Tensor, "batch tokens hidden"]]]:
    """Yield the given times, each with the state of an encoder at this time.

    Args:
        f: the encoder as a map.
        batch: tensors by name, from which the initial state is computed.
        times: increasing, at least 0; for layers that differ, at most their number.

    Example:
        >>> from transformers import AlbertConfig, AlbertModel
        >>> sizes = dict(vocab_size=9, embedding_size=4, hidden_size=8, intermediate_size=8, num_attention_heads=2)
        >>> batch = {"input_ids": torch.tensor([[1, 5, 7]])}
        >>> f = EncoderMap(AlbertModel(AlbertConfig(**sizes, num_hidden_layers=3)), batch)
        >>> [(t, tuple(x.shape)) for t, x in states_at(f, batch, [0, 9])]
        [(0, (1, 3, 8)), (9, (1, 3, 8))]
    """
    x, now, f = f.start(batch), 0, f.of(batch)
    for t in times:
        with torch.no_grad():
            for i in range(now, t):
                x = f.maps[i % len(f.maps)](x)
        now = t
        yield t, x


def prediction_scores(logits: Float[Tensor, "n vocab"], labels: Int[Tensor, "n"]) -> Float[Tensor, "n 2"]:
    """Compute whether the label of each position has the highest logit, and −ln p of the label, in nats; float64.

    Both are NaN if the logits are not finite.

    Raises:
        ValueError: on the CPU, if a label is not a class.

    Example:
        >>> prediction_scores(torch.tensor([[0.0, 0.0], [5.0, 5.0 + 1e-6]]), torch.tensor([0, 1]))
        tensor([[1.0000, 0.6931],
                [1.0000, 0.6931]], dtype=torch.float64)
    """
    check_labels(labels, logits.shape[1])
    logits = logits.to(at_least_float32(logits))
    right = hits(logits, labels).double()
    log_p = logits.log_softmax(1).gather(1, labels[:, None])[:, 0].double()
    return torch.stack([right, torch.where(right.isnan(), torch.nan, -log_p)], 1)


@dataclass(frozen=True)
class ReadoutTraining:
    """Training of linear readouts: Adam at a constant rate on the mean squared error of each batch, or a closed form.

    A few hundred updates from 0 may not be enough for states that differ little between examples, such as those of
    initial networks: a low correlation may be due to the training. With ``ridge``, the readout is the exact solution.

    Attributes:
        epochs: number of passes over the examples, each in a different order.
        learning_rate: learning rate of Adam (β 0.9 and 0.999).
        batch_size: number of examples per update; the publication does not specify it.
        seed: seed of the orders. Weights and biases start from 0.
        ridge: None for Adam, as published; a number above 0 for least squares in closed form, with this multiple of
            the features' mean variance added to each variance: the other settings then have no influence.

    Raises:
        ValueError: if a number is out of range.

    Reference: Inoue et al. 2022, appendix B.

    Example:
        >>> ReadoutTraining(epochs=3).learning_rate
        0.001
    """

    epochs: Annotated[int, From(1)] = 10
    learning_rate: Annotated[float, Above(0)] = 1e-3
    batch_size: Annotated[int, From(1)] = 16
    seed: int = 0
    ridge: Annotated[float, Above(0)] | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class LinearReadouts:
    """One linear readout for each of several times.

    Attributes:
        weight: (times, d).
        bias: (times,).
    """

    weight: Float[Tensor, "times d"]
    bias: Float[Tensor, "times"]

    def __call__(self, features: Float[Tensor, "times n d"]) -> Float[Tensor, "times n"]:
        """Predict with each readout from the features of its time."""
        return torch.baddbmm(self.bias[:, None, None], features, self.weight[..., None])[..., 0]


def train_linear_readouts(
    features: Float[Tensor, "times n d"], targets: Float[Tensor, "_"], how: ReadoutTraining
) -> LinearReadouts:
    """Train a linear readout for each time at once, from the same batches in the same order.

    Each readout equals one that is trained alone: losses are added, and no parameter is shared.

    Args:
        features: features of each example at each time.
        targets: (n,) target of each example.
        how: settings, see :class:`ReadoutTraining`.

    Returns:
        The readouts, without gradients, on the features' device. The readout of a time with non-finite features is not
        finite; it has no influence on the others.

    Raises:
        ValueError: if the numbers of targets and examples differ, or if there are none.

    Example:
        >>> x = torch.linspace(-1, 1, 40)
        >>> features = torch.stack([x, 0 * x])[..., None]  # the second time has no information
        >>> how = ReadoutTraining(epochs=300, learning_rate=0.02, batch_size=40)
        >>> found = train_linear_readouts(features, 2 * x + 1, how)
        >>> found.weight.round(decimals=2).tolist(), found.bias.round(decimals=2).tolist()
        ([[2.0], [0.0]], [1.0, 1.0])
    """
    times, n, d = features.shape
    if n == 0 or len(targets) != n:
        raise ValueError(f"expected 1 or more examples and as many targets, got {n} and {len(targets)}")
    if how.ridge is not None:
        return _least_squares(features, targets, how.ridge)
    device, dtype = features.device, features.dtype
    generator = torch.Generator().manual_seed(how.seed)
    targets = targets.to(device, dtype)
    with torch.enable_grad():
        weight = torch.zeros(times, d, device=device, dtype=dtype, requires_grad=True)
        bias = torch.zeros(times, device=device, dtype=dtype, requires_grad=True)
        readouts = LinearReadouts(weight, bias)
        optimizer = torch.optim.Adam([weight, bias], lr=how.learning_rate)
        for _ in range(how.epochs):
            order = torch.randperm(n, generator=generator).to(device)
            for rows in order.split(how.batch_size):
                errors = readouts(features[:, rows]) - targets[rows]
                optimizer.zero_grad(set_to_none=True)
                errors.square().mean(1).sum().backward()
                optimizer.step()
    return LinearReadouts(weight.detach(), bias.detach())


@torch.no_grad()
def _least_squares(features: Tensor, targets: Tensor, ridge: float) -> LinearReadouts:
    """Solve in float64; if nothing varies, the prediction is the mean of the targets."""
    weights, biases = [], []
    y = exact_float(targets).to(features.device)
    for of_time in features:
        x = exact_float(of_time)
        mean = x.mean(0)
        if not x.isfinite().all():
            weights.append(torch.full_like(mean, torch.nan))
            biases.append(mean.sum())
            continue
        covariance = scatter_matrix(x - mean) / len(x)
        variance = covariance.trace() / len(mean)
        weight = torch.zeros_like(mean)
        # below it, deviations are rounding errors of the values themselves
        if float(variance) > (4 * torch.finfo(of_time.dtype).eps) ** 2 * float(mean.square().mean()):
            covariance.diagonal().add_(ridge * variance)
            right = (x - mean).T @ (y - y.mean()) / len(x)
            weight = torch.cholesky_solve(right[:, None], torch.linalg.cholesky(covariance))[:, 0]
        weights.append(weight)
        biases.append(y.mean() - mean @ weight)
    found = torch.stack(weights), torch.stack(biases)
    return LinearReadouts(*(t.to(features.device, features.dtype) for t in found))


@torch.no_grad()
def pooled_states(
    encoder: nn.Module, examples: Any, times: Sequence[int], batch_tokens: int = 16384
) -> Float[Tensor, "times n hidden"]:
    """Return pooled outputs of examples, read from the encoder's state at each time (:meth:`StateDecoder.pooled`).

    Examples of equal length are read together: there is no padding, and they do not depend on each other. With several
    ranks, each reads its share; every rank must call it and receives all.

    Args:
        encoder: a model of transformers, without a head, in eval mode.
        examples: examples with ``lengths``, each with ``input_ids`` and ``token_type_ids``; see
            ``lmdyn.datamodules.tasks.tasks.TaskExamples``.
        times: increasing, at least 0; for layers that differ, at most their number.
        batch_tokens: maximum number of positions of a batch.

    Returns:
        Tensor on the encoder's device, float32.
    """
    config = cast(Any, encoder).config
    device = next(encoder.parameters()).device
    names = ["input_ids"] + ["token_type_ids"] * (getattr(config, "type_vocab_size", 0) > 1)
    pooled = torch.zeros(len(times), len(examples), int(config.hidden_size), device=device)
    decoder, f = StateDecoder(encoder), None
    rank, world_size = rank_and_world_size()
    batches: list[Tensor] = []
    for length in np.unique(examples.lengths):
        rows = torch.from_numpy(np.flatnonzero(examples.lengths == length))
        batches += rows.split(max(1, batch_tokens // int(length)))
    for at in batches[rank::world_size]:
        read = [examples[i] for i in at.tolist()]
        batch = {name: torch.from_numpy(np.stack([e[name] for e in read])).to(device) for name in names}
        f, at = f or EncoderMap(encoder, batch), at.to(device)
        for k, (_, x) in enumerate(states_at(f, batch, times)):
            pooled[k, at] = decoder.pooled(batch, x).float()
    return all_reduce_sum(pooled)


def readout_correlation(predictions: Float[Tensor, "n"], scores: Float[Tensor, "n"]) -> float:
    """Compute Pearson's correlation of a readout's predictions with the scores.

    It is 0 if all predictions are equal up to float32 rounding (1e-5 of the largest), for example if all sentences
    have converged; NaN if a prediction or a score is not finite.

    Raises:
        ValueError: if there are no predictions, or if their number is not that of the scores.

    Example:
        >>> scores = torch.tensor([1.0, 2.0, 3.0])
        >>> round(readout_correlation(2 * scores, scores), 6), readout_correlation(torch.ones(3), scores)
        (1.0, 0.0)
    """
    if not bool(predictions.isfinite().all() & scores.isfinite().all()):
        return torch.nan
    predictions = unit_size(predictions.to(at_least_float32(predictions)))
    if len(predictions) > 1 and predictions.std() <= 1e-5 * predictions.abs().max():
        return 0.0
    return regression_metrics(predictions, scores)["pearson"]
