"""The part of a model after the layers of an encoder, applied to any state of it: unchanged, or retrained."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import resolve_sites
from lmdyn.analysis.inspection.forward import IGNORED, Batch, Forward, call_module, stand_in
from lmdyn.analysis.inspection.predictions import logits_at
from lmdyn.analysis.inspection.transformer import layer_sites
from lmdyn.analysis.probing.tower_heads import HeadTraining, train_heads
from lmdyn.analysis.statistics.precision import at_least_float32

__all__ = ["RetrainedDecoder", "StateDecoder", "States", "retrain_decoders"]


class StateDecoder:
    """The part of a model after the layers of its encoder, applied to a state of the encoder.

    The module's own forward is run, and its layers return the state instead of computing one. The modules after the
    layers (a last norm, a pooler, the projection to the vocabulary) are therefore the module's own, however they are
    called. The module is not changed.

    Args:
        module: any module that contains a model of transformers.

    Raises:
        ValueError: if there is no model of transformers, or if its layers are not found.

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
        # for each layer, its output: the dtype, and the number of entries if it is a tuple
        self._outputs: dict[nn.Module, tuple[torch.dtype, int | None]] = {}
        self._ran = False

    def logits(
        self,
        batch: Batch,
        state: Float[Tensor, "batch time hidden"],
        positions: Bool[Tensor, "batch time"],
        forward: Forward | None = None,
        *,
        exact: bool = False,
    ) -> Float[Tensor, "n vocab"]:
        """Compute the logits at some positions of a batch, from ``state``.

        Args:
            batch: tensors by name, on the module's device.
            state: state of this batch.
            positions: whether to predict at each position; n are True.
            forward: dotted path to ``(module, batch) -> output`` for modules whose forward does not take Hugging
                Face's arguments.
            exact: whether the layers return the state in at least float32, for training; without it, the logits have
                no gradient.

        Raises:
            ValueError: if the logits are not computed from the outputs of these layers, as in ELECTRA, whose logits
                are its generator's.
        """
        with (
            torch.set_grad_enabled(exact and torch.is_grad_enabled()),
            self._layers_return(state, exact=exact),
        ):
            found = logits_at(self._module, batch, positions, forward)
        if not self._ran:
            raise ValueError(
                f"the logits of {type(self._module).__name__} do not depend on the encoder's layers: expected a masked "
                "language model with a decoder that reads the layers (for ELECTRA, only the generator)"
            )
        return found

    @torch.no_grad()
    def pooled(
        self, batch: Batch, state: Float[Tensor, "batch time hidden"]
    ) -> Float[Tensor, "batch hidden"]:
        """Compute the pooled output of an encoder, from ``state``; its first position if there is no pooler.

        Args:
            batch: tensors by name, on the module's device; the module is an encoder.
            state: state of this batch.
        """
        with self._layers_return(state):
            found = getattr(call_module(self._module, batch), "pooler_output", None)
        return found if isinstance(found, Tensor) else state[:, 0]

    @contextmanager
    def _layers_return(self, state: Tensor, *, exact: bool = False) -> Iterator[None]:
        """Make the layers return ``state`` in this context, in their precision or, if ``exact``, at least float32."""
        self._ran = False
        with ExitStack() as stack:
            for layer in self._layers:
                stand_in(stack, layer, self._returning(layer, layer.forward, state, exact))
            yield

    def _returning(
        self, layer: nn.Module, plain: Callable[..., Any], state: Tensor, exact: bool
    ) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            self._ran = True
            if layer not in self._outputs:  # once, to find the type of its output
                output = plain(*args, **kwargs)
                single = isinstance(output, Tensor)
                dtype = (output if single else output[0]).dtype
                self._outputs[layer] = dtype, None if single else len(output)
            dtype, entries = self._outputs[layer]
            output = state.to(torch.promote_types(dtype, torch.float32) if exact else dtype)
            return output if entries is None else (output, *[None] * (entries - 1))

        return forward


class States(NamedTuple):
    """A batch, with the states of an encoder at some times, and the labels to predict from them.

    Attributes:
        batch: tensors by name, on the module's device.
        positions: (batch, time) whether to predict at each position; n are True.
        labels: (n,) tokens at these positions, in row-major order.
        states: (batch, time, hidden) state for each name of a time.
    """

    batch: Batch
    positions: Bool[Tensor, "batch time"]
    labels: Int[Tensor, "n"]
    states: Mapping[str, Float[Tensor, "batch time hidden"]]


class RetrainedDecoder(nn.Module):
    """A copy of a module's own decoder, to be trained on states other than those it was trained on.

    Its parameters are copies of the module's parameters on which the logits depend, given the state. They are found by
    differentiation, whatever follows the layers. For ALBERT and BERT, they are a dense layer, the layer norm after its
    activation, the output bias, and the output projection. If the projection is tied to the word vectors, the copy is
    not: neither the module nor its input changes. They are in at least float32.

    Args:
        decoder: the module's own decoder.
        example: a batch with a state, to find the parameters.
        forward: see :meth:`StateDecoder.logits`.

    Raises:
        ValueError: if the logits do not depend on parameters.

    Example:
        >>> from transformers import AlbertConfig, AlbertForMaskedLM
        >>> sizes = dict(vocab_size=9, embedding_size=4, hidden_size=8, intermediate_size=8, num_attention_heads=2)
        >>> model = AlbertForMaskedLM(AlbertConfig(**sizes, num_hidden_layers=3)).eval()
        >>> at = torch.tensor([[False, True, True]])
        >>> batch, labels = {"input_ids": torch.tensor([[1, 5, 7]])}, torch.tensor([2, 3])
        >>> read = States(batch, at, labels, {"0": torch.ones(1, 3, 8)})
        >>> sorted(tuple(p.shape) for p in RetrainedDecoder(StateDecoder(model), read).trained)
        [(4,), (4,), (4,), (4, 8), (9,), (9, 4)]
    """

    def __init__(self, decoder: StateDecoder, example: States, forward: Forward | None = None) -> None:
        super().__init__()
        self._reader = [_Reader(decoder, forward)]  # in a list, so that its parameters are not registered
        state = next(iter(example.states.values()))
        own = {name: p.detach() for name, p in self._reader[0].named_parameters()}
        exact = {name: p.to(at_least_float32(p)) for name, p in own.items()}
        leaves = {name: p.detach().requires_grad_() for name, p in exact.items() if p.is_floating_point()}
        with torch.enable_grad():
            logits = self._read({**exact, **leaves}, example.batch, state, example.positions)
        found = []
        if logits.requires_grad:
            grads = torch.autograd.grad(logits.sum(), list(leaves.values()), allow_unused=True)
            found = [name for name, grad in zip(leaves, grads, strict=True) if grad is not None]
        if not found:
            raise ValueError(
                f"lmdyn found no parameter to retrain: the logits of {type(decoder._module).__name__} depend on no "
                "parameter after the layers. Use a model with a decoder that has parameters"
            )
        self._names = found
        self.trained = nn.ParameterList([exact[name].clone() for name in found])
        # other parameters are the module's own, if they are precise enough
        self._rest = {
            name: p for name, p in exact.items() if p.dtype != own[name].dtype and name not in found
        }

    def _read(self, values: Mapping[str, Tensor], batch: Batch, state: Tensor, positions: Tensor) -> Tensor:
        found = torch.func.functional_call(self._reader[0], dict(values), (batch, state, positions))
        return cast(Tensor, found)

    def forward(
        self,
        batch: Batch,
        state: Float[Tensor, "batch time hidden"],
        positions: Bool[Tensor, "batch time"],
    ) -> Float[Tensor, "n vocab"]:
        """Compute the logits at some positions of a batch; see :meth:`StateDecoder.logits`."""
        trained = dict(zip(self._names, self.trained, strict=True))
        return self._read({**self._rest, **trained}, batch, state, positions)


class _Reader(nn.Module):
    """A module whose layers return a state, as a module, so that parameters can be replaced for a call."""

    def __init__(self, decoder: StateDecoder, forward: Forward | None) -> None:
        super().__init__()
        self.module = decoder._module
        self._decoder, self._forward = decoder, forward

    def forward(self, batch: Batch, state: Tensor, positions: Tensor) -> Tensor:
        return self._decoder.logits(batch, state, positions, self._forward, exact=True)


def retrain_decoders(
    batches: Iterable[States], decoder: StateDecoder, how: HeadTraining, forward: Forward | None = None
) -> tuple[dict[str, RetrainedDecoder], Float[Tensor, "times"]]:
    """Retrain a module's decoder for each time, all of them from the same batches at once.

    Each starts as the module's own decoder, and uses the same batches in the same order. With several ranks, each
    contributes its share of every batch; gradients are summed, so the decoders are those of one rank.

    Args:
        batches: at least ``how.updates`` batches, each with states of the same times; no more are consumed.
        decoder: the module's own decoder, from which all start. The module is not changed.
        how: see :class:`HeadTraining`; ``init_range`` and ``seed`` have no influence, because nothing is drawn.
        forward: see :meth:`StateDecoder.logits`.

    Returns:
        The decoders by time, in eval mode and without gradients; and the mean −ln p over the last tenth of the
        updates, in nats, (times,) float64 in the order of the times.

    Raises:
        ValueError: if there are fewer batches than updates; as in :class:`RetrainedDecoder`.

    Reference: Inoue et al. 2022, section II.A and figure 3A.

    Example:
        >>> from transformers import AlbertConfig, AlbertForMaskedLM
        >>> sizes = dict(vocab_size=9, embedding_size=4, hidden_size=8, intermediate_size=8, num_attention_heads=2)
        >>> model = AlbertForMaskedLM(AlbertConfig(**sizes, num_hidden_layers=3)).eval()
        >>> at = torch.tensor([[False, True, True]])
        >>> batch, labels = {"input_ids": torch.tensor([[1, 5, 7]])}, torch.tensor([2, 2])
        >>> read = States(batch, at, labels, {"0": torch.ones(1, 3, 8)})
        >>> how = HeadTraining(updates=100, learning_rate=0.02)
        >>> heads, losses = retrain_decoders([read] * 100, StateDecoder(model), how)
        >>> bool(losses[0] < 0.5)
        True
    """

    def start(read: States) -> dict[str, RetrainedDecoder]:
        return {t: RetrainedDecoder(decoder, read, forward) for t in read.states}

    def loss(head: RetrainedDecoder, t: str, read: States) -> Tensor:
        logits = head(read.batch, read.states[t], read.positions)
        return F.cross_entropy(logits, read.labels, ignore_index=IGNORED, reduction="sum")

    return train_heads(batches, start, loss, lambda read: read.labels, how)
