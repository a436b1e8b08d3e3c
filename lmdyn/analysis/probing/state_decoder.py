"""What follows the layers of an encoder, applied to any state of it: as it is, or retrained for some states."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import resolve_sites
from lmdyn.analysis.inspection.forward import IGNORED, Forward, call_module
from lmdyn.analysis.inspection.predictions import logits_at
from lmdyn.analysis.inspection.transformer import layer_sites
from lmdyn.analysis.probing.tower_heads import HeadTraining, train_heads
from lmdyn.analysis.statistics.precision import at_least_float32

__all__ = ["RetrainedDecoder", "StateDecoder", "States", "retrain_decoders"]


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
        return self._logits(batch, state, positions, forward)

    def _logits(
        self,
        batch: Mapping[str, Any],
        state: Tensor,
        positions: Tensor,
        forward: Forward | None,
        *,
        exact: bool = False,
    ) -> Tensor:
        with self._layers_return(state, exact=exact):
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
    def _layers_return(self, state: Tensor, *, exact: bool = False) -> Iterator[None]:
        """Within it, the layers return ``state``, in their own precision or, ``exact``, at least in float32."""
        self._ran = False
        before = {layer: layer.__dict__.get("forward") for layer in self._layers}
        try:
            for layer in self._layers:
                layer.__dict__["forward"] = self._returning(layer, layer.forward, state, exact)
            yield
        finally:
            for layer, forward in before.items():
                if forward is None:
                    layer.__dict__.pop("forward", None)
                else:
                    layer.__dict__["forward"] = forward

    def _returning(
        self, layer: nn.Module, plain: Callable[..., Any], state: Tensor, exact: bool
    ) -> Callable[..., Any]:
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
            output = state.to(torch.promote_types(dtype, torch.float32) if exact else dtype)
            return output if entries is None else (output, *[None] * (entries - 1))

        return forward


class States(NamedTuple):
    """A batch, with the states of an encoder at some times, and what is to be predicted from them.

    Attributes:
        batch: tensors by name, on the module's device.
        positions: (batch, time) where to predict; n are true.
        labels: (n,) the tokens there, in row-major order.
        states: name of a time to the (batch, time, hidden) state then.
    """

    batch: Mapping[str, Any]
    positions: Bool[Tensor, "batch time"]
    labels: Int[Tensor, "n"]
    states: Mapping[str, Float[Tensor, "batch time hidden"]]


class RetrainedDecoder(nn.Module):
    """A copy of a module's own decoder, to be trained on other states than those it was trained on.

    Its parameters are copies of those of the module that its logits depend on, given the state: found by
    differentiating, so that it is whatever follows the layers. Of ALBERT and BERT they are a dense layer, the layer
    norm after its activation, the output bias, and the output projection. Where that is tied to the word vectors, the
    copy is not: neither the module nor what it reads changes. In at least float32.

    Args:
        decoder: the module's own.
        example: a batch with a state, to find the parameters.
        forward: see :meth:`StateDecoder.logits`.

    Raises:
        ValueError: logits that do not depend on parameters.

    Example:
        >>> from transformers import AlbertConfig, AlbertForMaskedLM
        >>> sizes = dict(vocab_size=9, embedding_size=4, hidden_size=8, intermediate_size=8, num_attention_heads=2)
        >>> model = AlbertForMaskedLM(AlbertConfig(**sizes, num_hidden_layers=3)).eval()
        >>> at = torch.tensor([[False, True, True]])
        >>> batch, labels = {"input_ids": torch.tensor([[1, 5, 7]])}, torch.tensor([2, 3])
        >>> read = States(batch, at, labels, {"0": torch.ones(1, 3, 8)})
        >>> sorted(name for name in RetrainedDecoder(StateDecoder(model), read).names if "bias" not in name)
        ['albert.embeddings.word_embeddings.weight', 'predictions.LayerNorm.weight', 'predictions.dense.weight']
    """

    def __init__(self, decoder: StateDecoder, example: States, forward: Forward | None = None) -> None:
        super().__init__()
        self._reader = [_Reader(decoder, forward)]  # in a list: it is no part of what is trained
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
                f"nothing can be retrained: the logits of {type(decoder._module).__name__} depend on no parameter that "
                "follows its layers"
            )
        self._names = found
        self.trained = nn.ParameterList([exact[name].clone() for name in found])
        # the rest is the module's own, if it is precise enough
        self._rest = {
            name: p for name, p in exact.items() if p.dtype != own[name].dtype and name not in found
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Names in the module of what is trained."""
        return tuple(name.removeprefix("module.") for name in self._names)

    def _read(
        self, values: Mapping[str, Tensor], batch: Mapping[str, Any], state: Tensor, positions: Tensor
    ) -> Tensor:
        found = torch.func.functional_call(self._reader[0], dict(values), (batch, state, positions))
        return cast(Tensor, found)

    def forward(
        self,
        batch: Mapping[str, Any],
        state: Float[Tensor, "batch time hidden"],
        positions: Bool[Tensor, "batch time"],
    ) -> Float[Tensor, "n vocab"]:
        """The logits at some positions of a batch; see :meth:`StateDecoder.logits`."""
        trained = dict(zip(self._names, self.trained, strict=True))
        return self._read({**self._rest, **trained}, batch, state, positions)


class _Reader(nn.Module):
    """A module whose layers return a state, as a module: parameters can be exchanged for a call."""

    def __init__(self, decoder: StateDecoder, forward: Forward | None) -> None:
        super().__init__()
        self.module = decoder._module
        self._decoder, self._forward = decoder, forward

    def forward(self, batch: Mapping[str, Any], state: Tensor, positions: Tensor) -> Tensor:
        return self._decoder._logits(batch, state, positions, self._forward, exact=True)


def retrain_decoders(
    batches: Iterable[States], decoder: StateDecoder, how: HeadTraining, forward: Forward | None = None
) -> tuple[dict[str, RetrainedDecoder], Float[Tensor, "times"]]:
    """Retrain a module's decoder for each time, all of them from the same batches at once.

    Each starts as the module's own decoder, and sees the same batches in the same order. With several ranks each brings
    its share of every batch; gradients are summed, so that the decoders are those of one rank.

    Args:
        batches: each with states of the same times, at least ``how.updates`` of them; more are not asked for.
        decoder: the module's own, where all start. The module is left as it is.
        how: see :class:`HeadTraining`; ``init_range`` and ``seed`` have no influence, nothing is drawn.
        forward: see :meth:`StateDecoder.logits`.

    Returns:
        The decoders, by time, in eval mode and without gradients; and (times,) float64 mean −ln p over the last tenth
        of the updates, in nats, in the order of the times.

    Raises:
        ValueError: fewer batches than updates; see :class:`RetrainedDecoder`.

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
