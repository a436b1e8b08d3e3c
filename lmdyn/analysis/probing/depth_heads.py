"""Predictions from the state of an encoder at some time: by the model's own decoder, and by linear readouts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.inspection.activations import resolve_sites
from lmdyn.analysis.inspection.forward import Forward, call_module
from lmdyn.analysis.inspection.predictions import logits_at
from lmdyn.analysis.inspection.transformer import layer_sites
from lmdyn.analysis.probing.task_metrics import regression_metrics
from lmdyn.analysis.probing.tower_heads import TowerHead
from lmdyn.analysis.statistics.distributed import all_reduce_sum, rank_and_world_size

__all__ = [
    "LinearReadouts",
    "ReadoutTraining",
    "StateDecoder",
    "head_sums",
    "pooled_states",
    "prediction_sums",
    "readout_correlation",
    "states_at",
    "train_linear_readouts",
]

_LOGITS = 4096  # at most so many positions are predicted at once: each has logits over the vocabulary


def states_at(
    f: EncoderMap, batch: Mapping[str, Any], times: Sequence[int]
) -> Iterator[tuple[int, Float[Tensor, "batch tokens hidden"]]]:
    """Each of some times, with the state of an encoder then.

    Args:
        f: the encoder as a map.
        batch: where it starts.
        times: rising, from 0; of layers that differ, up to their number.

    Example:
        >>> from transformers import AlbertConfig, AlbertModel
        >>> sizes = dict(vocab_size=9, embedding_size=4, hidden_size=8, intermediate_size=8, num_attention_heads=2)
        >>> batch = {"input_ids": torch.tensor([[1, 5, 7]])}
        >>> f = EncoderMap(AlbertModel(AlbertConfig(**sizes, num_hidden_layers=3)), batch)
        >>> [(t, tuple(x.shape)) for t, x in states_at(f, batch, [0, 9])]
        [(0, (1, 3, 8)), (9, (1, 3, 8))]
    """
    x, now = f.start(batch), 0
    for t in times:
        with torch.no_grad():
            for i in range(now, t):
                x = f(x) if f.shared else f.maps[i](x)
        now = t
        yield t, x


class StateDecoder:
    """All that follows the layers of a module's encoder, applied to a state of the encoder.

    The module's own forward is run, and its layers return the state instead of computing one. So whatever comes after
    them (a last norm, a pooler, the projection onto the vocabulary) is the module's, whichever way it is called.
    The module is left as it was.

    Args:
        module: any module that holds one of transformers' models.

    Raises:
        ValueError: no model of transformers, or one whose layers are not found.

    Example:
        >>> from transformers import AlbertConfig, AlbertForMaskedLM
        >>> sizes = dict(vocab_size=9, embedding_size=4, hidden_size=8, intermediate_size=8, num_attention_heads=2)
        >>> model = AlbertForMaskedLM(AlbertConfig(**sizes, num_hidden_layers=3)).eval()
        >>> batch = {"input_ids": torch.tensor([[1, 5, 7]])}
        >>> x = model.albert(**batch).last_hidden_state
        >>> logits = StateDecoder(model).logits(batch, x, torch.tensor([[False, True, True]]))
        >>> torch.allclose(logits, model(**batch).logits[0, 1:])
        True
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._layers = list(resolve_sites(module, layer_sites(module)).values())
        # of each layer, what it returns: the dtype, and how many entries if that is a tuple
        self._outputs: dict[nn.Module, tuple[torch.dtype, int | None]] = {}
        self._ran = False

    @torch.no_grad()
    def logits(
        self,
        batch: Mapping[str, Any],
        state: Float[Tensor, "batch time hidden"],
        positions: Bool[Tensor, "batch time"],
        forward: Forward | None = None,
    ) -> Float[Tensor, "n vocab"]:
        """The logits at some positions of a batch, read from ``state``.

        Args:
            batch: tensors by name, on the module's device.
            state: of this batch.
            positions: where to predict; n are true.
            forward: dotted path to ``(module, batch) -> output`` for modules that are not called in Hugging Face's
                names.

        Raises:
            ValueError: the logits are not made of the outputs of these layers, as ELECTRA's, which are its generator's.
        """
        with self._layers_return(state):
            found = logits_at(self._module, batch, positions, forward)
        if not self._ran:
            raise ValueError(
                f"the logits of {type(self._module).__name__} do not come from the layers of its encoder: expected a "
                "masked language model whose decoder reads them (of ELECTRA, that is the generator alone)"
            )
        return found

    @torch.no_grad()
    def pooled(
        self, batch: Mapping[str, Any], state: Float[Tensor, "batch time hidden"]
    ) -> Float[Tensor, "batch hidden"]:
        """The pooled output of an encoder, read from ``state``; its first position where there is no pooler.

        Args:
            batch: tensors by name, on the module's device; the module is an encoder.
            state: of this batch.
        """
        with self._layers_return(state):
            found = getattr(call_module(self._module, batch), "pooler_output", None)
        return found if isinstance(found, Tensor) else state[:, 0]

    @contextmanager
    def _layers_return(self, state: Tensor) -> Iterator[None]:
        """Within it, the layers return ``state``."""
        self._ran = False
        before = {layer: layer.__dict__.get("forward") for layer in self._layers}
        try:
            for layer in self._layers:
                layer.__dict__["forward"] = self._returning(layer, layer.forward, state)
            yield
        finally:
            for layer, forward in before.items():
                if forward is None:
                    layer.__dict__.pop("forward", None)
                else:
                    layer.__dict__["forward"] = forward

    def _returning(self, layer: nn.Module, plain: Callable[..., Any], state: Tensor) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            self._ran = True
            if layer not in self._outputs:  # once, to see what it returns
                output = plain(*args, **kwargs)
                single = isinstance(output, Tensor)
                self._outputs[layer] = (
                    (output if single else output[0]).dtype,
                    None if single else len(output),
                )
            dtype, entries = self._outputs[layer]
            output = state.to(dtype)
            return output if entries is None else (output, *[None] * (entries - 1))

        return forward


def prediction_sums(logits: Float[Tensor, "n vocab"], labels: Int[Tensor, "n"]) -> Float[Tensor, "2"]:
    """How many labels have the highest logit, and the sum of −ln p of the labels, in nats; float64.

    Where logits are not finite nothing is right; the second sum is then NaN.

    Example:
        >>> prediction_sums(torch.tensor([[0.0, 0.0], [5.0, 5.0 + 1e-6]]), torch.tensor([0, 1]))
        tensor([2.0000, 1.3863], dtype=torch.float64)
    """
    logits = logits.float() if logits.dtype != torch.float64 else logits
    finite = logits.isfinite().all(1)
    right = ((logits.argmax(1) == labels) & finite).sum().double()
    log_p = logits.log_softmax(1).gather(1, labels[:, None])[:, 0].double()
    return torch.stack([right, -torch.where(finite, log_p, torch.nan).sum()])


@torch.no_grad()
def head_sums(
    head: TowerHead, encodings: Float[Tensor, "n d"], labels: Int[Tensor, "n"]
) -> Float[Tensor, "2"]:
    """:func:`prediction_sums` of an output layer, a bounded number of positions at a time.

    Example:
        >>> head_sums(TowerHead(4, 9, 0.02, 0), torch.ones(3, 4), torch.tensor([1, 2, 3])).shape
        torch.Size([2])
    """
    total = torch.zeros(2, dtype=torch.float64, device=labels.device)
    for x, y in zip(encodings.split(_LOGITS), labels.split(_LOGITS), strict=True):
        total += prediction_sums(F.linear(head(x), head.weight, head.bias), y)
    return total


@dataclass(frozen=True)
class ReadoutTraining:
    """How linear readouts are trained: Adam at a constant rate on the mean squared error of each batch.

    Attributes:
        epochs: passes over the examples, each in another order.
        learning_rate: of Adam (β 0.9 and 0.999).
        batch_size: examples of an update; the publication does not say how many.
        seed: of the orders. Weights and biases start from 0.

    Raises:
        ValueError: numbers out of range.

    Reference: Inoue et al. 2022, appendix B.

    Example:
        >>> ReadoutTraining(epochs=3).learning_rate
        0.001
    """

    epochs: int = 10
    learning_rate: float = 1e-3
    batch_size: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or self.learning_rate <= 0:
            raise ValueError(
                "expected epochs and batch_size from 1 and learning_rate above 0, got "
                f"{self.epochs}, {self.batch_size}, {self.learning_rate}"
            )


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
        """Predictions of each readout from the features of its time."""
        return _read(features, self.weight, self.bias)


def train_linear_readouts(
    features: Float[Tensor, "times n d"], targets: Float[Tensor, "_"], how: ReadoutTraining
) -> LinearReadouts:
    """Train a linear readout of each time at once, from the same batches in the same order.

    Each readout is the one that training it alone would give: losses are added, and no parameter is shared.

    Args:
        features: of each example at each time.
        targets: (n,) of each example.
        how: see :class:`ReadoutTraining`.

    Returns:
        The readouts, without gradients, on the features' device. That of a time whose features are not finite is not
        finite; it has no influence on the others.

    Raises:
        ValueError: another number of targets than of examples, or none.

    Example:
        >>> x = torch.linspace(-1, 1, 40)
        >>> features = torch.stack([x, 0 * x])[..., None]  # the second time tells nothing
        >>> how = ReadoutTraining(epochs=300, learning_rate=0.02, batch_size=40)
        >>> found = train_linear_readouts(features, 2 * x + 1, how)
        >>> found.weight.round(decimals=2).tolist(), found.bias.round(decimals=2).tolist()
        ([[2.0], [0.0]], [1.0, 1.0])
    """
    times, n, d = features.shape
    if n == 0 or len(targets) != n:
        raise ValueError(f"expected a target for each of at least one example, got {len(targets)} for {n}")
    device, dtype = features.device, features.dtype
    generator = torch.Generator().manual_seed(how.seed)
    targets = targets.to(device, dtype)
    with torch.enable_grad():
        weight = torch.zeros(times, d, device=device, dtype=dtype, requires_grad=True)
        bias = torch.zeros(times, device=device, dtype=dtype, requires_grad=True)
        optimizer = torch.optim.Adam([weight, bias], lr=how.learning_rate)
        for _ in range(how.epochs):
            order = torch.randperm(n, generator=generator).to(device)
            for rows in order.split(how.batch_size):
                errors = _read(features[:, rows], weight, bias) - targets[rows]
                optimizer.zero_grad(set_to_none=True)
                errors.square().mean(1).sum().backward()
                optimizer.step()
    return LinearReadouts(weight.detach(), bias.detach())


def _read(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.baddbmm(bias[:, None, None], features, weight[..., None])[..., 0]


@torch.no_grad()
def pooled_states(
    encoder: nn.Module, examples: Any, times: Sequence[int], batch_tokens: int = 16384
) -> Float[Tensor, "times n hidden"]:
    """Pooled outputs of examples, read from the state of the encoder at each time (:meth:`StateDecoder.pooled`).

    Examples of one length are read together: there is no padding, and none of them depends on the others. With
    several ranks each reads its share; every rank enters and has all.

    Args:
        encoder: a model of transformers, without head, in eval mode.
        examples: with ``lengths``, each with ``input_ids`` and ``token_type_ids``; see
            ``lmdyn.datamodules.tasks.tasks.TaskExamples``.
        times: rising, from 0; of layers that differ, up to their number.
        batch_tokens: positions of a batch.

    Returns:
        On the encoder's device, float32.
    """
    config, device = cast(Any, encoder).config, next(encoder.parameters()).device
    names = ["input_ids"] + ["token_type_ids"] * (getattr(config, "type_vocab_size", 0) > 1)
    pooled = torch.zeros(len(times), len(examples), int(config.hidden_size), device=device)
    decoder, f = StateDecoder(encoder), None
    rank, world_size = rank_and_world_size()
    for rows in _of_one_length(examples.lengths, batch_tokens)[rank::world_size]:
        batch = {
            name: torch.from_numpy(np.stack([examples[i][name] for i in rows])).to(device) for name in names
        }
        at = torch.from_numpy(rows).to(device)
        f = f or EncoderMap(encoder, batch)
        for k, (_, x) in enumerate(states_at(f, batch, times)):
            pooled[k, at] = decoder.pooled(batch, x).float()
    return all_reduce_sum(pooled)


def _of_one_length(lengths: npt.NDArray[np.int64], batch_tokens: int) -> list[npt.NDArray[np.int64]]:
    """Rows in batches of examples of one length."""
    batches = []
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        size = max(1, batch_tokens // int(length))
        batches += [rows[i : i + size] for i in range(0, len(rows), size)]
    return batches


def readout_correlation(predictions: Float[Tensor, "n"], scores: Float[Tensor, "n"]) -> float:
    """Pearson's correlation of a readout's predictions with the scores.

    0 where all predictions are equal but for float32's rounding (1e-5 of the largest), as where all sentences have
    become one; NaN where one is not finite.

    Example:
        >>> scores = torch.tensor([1.0, 2.0, 3.0])
        >>> round(readout_correlation(2 * scores, scores), 6), readout_correlation(torch.ones(3), scores)
        (1.0, 0.0)
    """
    if not bool(predictions.isfinite().all()):
        return float("nan")
    if predictions.std() <= 1e-5 * predictions.abs().max():
        return 0.0
    return regression_metrics(predictions, scores)["pearson"]
