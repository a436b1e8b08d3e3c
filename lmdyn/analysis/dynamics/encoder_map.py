"""A transformer's encoder as a dynamical system: its layer as a map of the token vectors, and where sentences start."""

import copy
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import (
    attention_as,
    first_tensor,
    observing,
    paths_of,
    resolve_sites,
)
from lmdyn.analysis.inspection.blocks import static_blocks
from lmdyn.analysis.inspection.forward import Forward, StopForward, call_module
from lmdyn.analysis.inspection.sites import find_sites
from lmdyn.analysis.inspection.transformer import encoder_of, layer_sites

__all__ = ["EncoderMap"]


class EncoderMap:
    """The layer that an encoder applies again and again, as a map x ↦ f(x) of all token vectors.

    ``x`` is (batch, tokens, hidden). What the map computes is what the module's own layer computes: its layer norms and
    activation, without dropout, attention over all tokens. The layers are copied when the map is made, in the
    asked precision and in eval mode; the module is left as it was and may go on training. GELU's tanh approximation is
    computed by one kernel, equal to rounding.

    The layers are those of ``layer_sites``, else the blocks that ``find_sites`` finds; of an encoder-decoder, the
    encoder's. In which order they come is learned by running the module once, and it is checked that each is handed
    what the one before it answered, and that its copy answers the same. Where the same layers (one, or an
    inner group of several) come again and again, as ALBERT's, the map is their single pass, and time has no end. Where
    all layers differ (BERT, GPT), there is no such map: :attr:`maps` are the layers, and time is depth.

    Args:
        module: one of transformers' models, or a module around it; or a model of your own, whose blocks are called as
            ``block(x, ...)`` with token vectors x.
        batch: an example batch; its first row is run. With a mask: the rows that the map will be applied to.
        dtype: float32 or float64.
        masked: attend only where ``attention_mask`` of the batch is 1. The map is then that of the rows of this batch,
            once or several times one after the other. The publication's has no mask.
        forward: see ``call_module``, for modules that are not called in Hugging Face's names.
        attention: transformers' implementation: ``sdpa``, or ``eager``, which forward-mode differentiation needs.

    Attributes:
        maps: what is applied in a pass through the model, in order: of shared layers the same map again and again.
        shared: whether they are one.
        layers: the layers of a single application, copies.
        masked: whether attention leaves padding out.

    Raises:
        ValueError: no layers found, or recurrent ones; layers that are no map of the token vectors, as the model
            changes these between two layers, or as the width differs; another precision; a mask without
            ``attention_mask``.

    Reference: Inoue et al. 2022, equations 1 to 4.

    Example:
        >>> from transformers import AlbertConfig, AlbertModel
        >>> sizes = dict(vocab_size=9, embedding_size=4, hidden_size=8, intermediate_size=8, num_attention_heads=2)
        >>> model = AlbertModel(AlbertConfig(**sizes, num_hidden_layers=3)).eval()
        >>> batch = {"input_ids": torch.tensor([[1, 5, 7]])}
        >>> f = EncoderMap(model, batch, dtype=torch.float64)
        >>> x = f.start(batch)
        >>> for _ in range(3):
        ...     x = f(x)
        >>> f.shared, len(f.maps), torch.allclose(x.float(), model(**batch).last_hidden_state, atol=1e-5)
        (True, 3, True)
    """

    def __init__(
        self,
        module: nn.Module,
        batch: Mapping[str, Any],
        *,
        dtype: torch.dtype = torch.float32,
        masked: bool = False,
        forward: Forward | None = None,
        attention: str = "sdpa",
    ) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"dtype is {dtype}: dynamics need float32 or float64, less precision is synchronized at once"
            )
        if masked and "attention_mask" not in batch:
            raise ValueError(
                f"a mask is asked for, and the batch has no attention_mask, only {sorted(batch)}"
            )
        self._module, self._forward, self._dtype = module, forward, dtype
        self.masked, self._attention = masked, attention
        configs = [getattr(m, "config", None) for m in module.modules()]
        if forward is None and any(getattr(config, "is_encoder_decoder", False) for config in configs):
            self._module = module = encoder_of(module)
        rows = _tensors(batch) if masked else {name: t[:1] for name, t in _tensors(batch).items()}
        self._layers = self._found_layers(rows)
        try:
            calls = self._run(rows)
        except ValueError:
            if attention == "eager":
                raise
            self._attention = attention = (
                "eager"  # of a model that has no other (Gemma 2); else the error is raised again
            )
            calls = self._run(rows)
        if not calls:
            raise ValueError(
                f"the layers {list(self._layers)} of {type(module).__name__} did not run: is there an encoder?"
            )
        _check_chain(calls, type(module).__name__)
        order = [call.path for call in calls]
        unit = _unit(order)
        one_of_albert = len(order) == 1 and _groups_of_albert(module) == 1
        self.shared = len(order) > len(unit) or one_of_albert
        copies = _copies(self._layers, list(dict.fromkeys(order)), dtype, attention)
        self.layers: tuple[nn.Module, ...] = tuple(copies[path] for path in unit)
        # what the model hands to each layer besides the token vectors: positions, masks
        arguments = {call.path: call for call in calls}
        self._n_rows = len(rows["input_ids"]) if masked and "input_ids" in rows else 0
        self._steps = [_Step(copies[path], arguments[path], dtype, self._n_rows) for path in unit]
        for step, path in zip(self._steps, unit, strict=True):
            step.check(arguments[path], type(module).__name__)
        self.maps: list[Callable[[Tensor], Tensor]] = (
            [self] * (len(order) // len(unit)) if self.shared else list(self._steps)
        )

    def _found_layers(self, rows: Mapping[str, Any]) -> dict[str, nn.Module]:
        try:
            sites = layer_sites(self._module)
        except ValueError:
            recurrent = {p: m for p, m in paths_of(self._module).items() if isinstance(m, nn.RNNBase)}
            if recurrent or "input_ids" not in rows or not static_blocks(self._module):
                _refuse_recurrent(recurrent, self._module)
                raise
            found = find_sites(self._module, rows, self._forward)  # of several lists, those that run
            sites = {name: path for name, path in found.sites.items() if found.kinds[name] == "block"}
            if not sites:
                raise
        layers = {path: resolve_sites(self._module, {"layer": path})["layer"] for path in sites.values()}
        _refuse_recurrent(layers, self._module)
        return layers

    def __call__(self, x: Float[Tensor, "batch tokens hidden"]) -> Float[Tensor, "batch tokens hidden"]:
        """The token vectors one step later.

        Raises:
            ValueError: the layers differ.
        """
        if not self.shared:
            raise ValueError(
                f"the {len(self.maps)} layers of {type(self._module).__name__} differ: time is depth, and there is no "
                "one map to iterate; take `maps`, a sequence, with at most so many steps"
            )
        for step in self._steps:
            x = step(x)
        return x

    def start(self, batch: Mapping[str, Any]) -> Float[Tensor, "batch tokens hidden"]:
        """Where sentences start: the input of the first layer, after embedding and projection to the hidden size.

        Args:
            batch: ``input_ids`` (batch, tokens), and what else the module's forward names; an ``attention_mask``
                has no influence here.
        """
        first = self._run(_tensors(batch), first_only=True)[0].x
        return first.detach().to(self._dtype)

    def _run(self, batch: Mapping[str, Tensor], *, first_only: bool = False) -> list["_Call"]:
        """The calls of layers in a forward pass."""
        batch = {k: v for k, v in batch.items() if self.masked or k != "attention_mask"}
        calls: list[_Call] = []
        handles = []

        def before(path: str) -> Any:
            def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                calls.append(_Call(path, args, kwargs))
                if first_only:
                    raise StopForward

            return hook

        def after(_: nn.Module, __: Any, output: Any) -> None:
            calls[-1].answer = first_tensor(output)

        # masks are made for one implementation or the other
        with observing(self._module), torch.no_grad(), attention_as(self._module, self._attention):
            try:
                for path, layer in self._layers.items():
                    handles.append(layer.register_forward_pre_hook(before(path), with_kwargs=True))
                    handles.append(layer.register_forward_hook(after))
                call_module(self._module, batch, forward=self._forward)
            except StopForward:
                pass
            finally:
                for handle in handles:
                    handle.remove()
        return calls


def _refuse_recurrent(layers: Mapping[str, nn.Module], module: nn.Module) -> None:
    recurrent = [path for path, layer in layers.items() if isinstance(layer, nn.RNNBase)]
    if recurrent:
        raise ValueError(
            f"{', '.join(recurrent)} of {type(module).__name__}: recurrent layers, whose state runs over the tokens; "
            "expected the blocks of a transformer or of a state-space model"
        )


class _Call:
    """A call of a layer: the token vectors it was given, and by which name; its other arguments; what it answered."""

    def __init__(self, path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.path, self.kwargs = path, dict(kwargs)
        self.name: str | None = None
        if args and _is_vectors(args[0]):
            self.x: Tensor = args[0]
            self.args = args[1:]
        else:
            names = [name for name, value in kwargs.items() if _is_vectors(value)]
            if args or not names:
                raise ValueError(
                    f"layer {path!r} is called with {[type(a).__name__ for a in args]} and {sorted(kwargs)}: expected "
                    "token vectors (batch, tokens, hidden) as its first argument"
                )
            self.name = "hidden_states" if "hidden_states" in names else names[0]
            self.x, self.args = self.kwargs.pop(self.name), ()
        self.answer: Tensor | None = None


def _is_vectors(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point()


def _check_chain(calls: list[_Call], model: str) -> None:
    """Each layer must be handed what the one before it answered, in the same width."""
    for call in calls:
        if call.answer is None or call.answer.shape != call.x.shape:
            raise ValueError(
                f"layer {call.path!r} of {model} takes {tuple(call.x.shape)} and answers "
                f"{None if call.answer is None else tuple(call.answer.shape)}: expected the same shape, "
                "a map of token vectors"
            )
    for first, second in pairwise(calls):
        if first.answer is not second.x and not torch.equal(
            torch.nan_to_num(cast(Tensor, first.answer)), torch.nan_to_num(second.x)
        ):
            raise ValueError(
                f"{model} changes the token vectors between {first.path!r} and {second.path!r}: its layers alone are "
                "not what it computes, and there is no map to iterate"
            )


def _groups_of_albert(module: nn.Module) -> Any:
    try:
        return getattr(getattr(encoder_of(module), "config", None), "num_hidden_groups", None)
    except ValueError:  # none of transformers' models
        return None


class _Step:
    """A layer with the arguments that its model hands to it."""

    def __init__(self, layer: nn.Module, call: _Call, dtype: torch.dtype, rows: int) -> None:
        self._layer, self._rows, self._name = layer, rows, call.name
        self._args = tuple(None if _is_cache(a) else _cast(a, dtype) for a in call.args)
        self._kwargs = {
            name: _cast(value, dtype)
            for name, value in call.kwargs.items()
            if name not in _CACHES and not _is_cache(value)
        }

    def __call__(self, x: Float[Tensor, "batch tokens hidden"]) -> Float[Tensor, "batch tokens hidden"]:
        if len(x) == 0:  # of a process that has none
            return x
        args, kwargs = self._args, self._kwargs
        if self._rows and len(x) != self._rows:
            if len(x) % self._rows:
                raise ValueError(f"the map has masks of {self._rows} rows, and is applied to {len(x)}")
            times = len(x) // self._rows
            args = tuple(self._repeat(a, times) for a in args)
            kwargs = {name: self._repeat(value, times) for name, value in kwargs.items()}
        output = (
            self._layer(x, *args, **kwargs)
            if self._name is None
            else self._layer(**{self._name: x}, **kwargs)
        )
        return cast(Tensor, output if isinstance(output, Tensor) else output[0])

    def _repeat(self, value: Any, times: int) -> Any:
        if isinstance(value, Tensor) and value.ndim and len(value) == self._rows:
            return value.repeat(times, *[1] * (value.ndim - 1))
        return value

    @torch.no_grad()
    def check(self, call: _Call, model: str) -> None:
        """Refuse a layer whose copy does not answer what the layer did in the model: it reads more than is known."""
        twice = torch.cat([call.x, call.x]).to(next(self._layer.parameters()).dtype)
        try:
            found = self(twice).double()
        except Exception as error:
            raise ValueError(
                f"layer {call.path!r} of {model} cannot be called alone, or for another number of rows than in the "
                f"model ({type(error).__name__}: {error}): it is no map of token vectors"
            ) from error
        expected = torch.cat([cast(Tensor, call.answer)] * 2).double()
        finite = expected.isfinite() & found.isfinite()
        apart = float((found - expected)[finite].abs().amax()) if bool(finite.any()) else 0.0
        if apart > _SAME * float(expected[finite].abs().amax() if bool(finite.any()) else 1.0):
            raise ValueError(
                f"layer {call.path!r} of {model}, called alone, answers something else than in the model (apart by "
                f"{apart:.1e}): it depends on more than its arguments, and is no map of token vectors"
            )


_SAME = 0.05
"""Relative to the largest entry: the model may have computed in bfloat16, its copy does in float32."""

_CACHES = (
    "past_key_value", "past_key_values", "use_cache", "layer_past", "cache_position", "cache_params", "cache", "state",
)  # fmt: skip


def _is_cache(value: Any) -> bool:
    return hasattr(value, "get_seq_length") or type(value).__name__.endswith("Cache")


def _tensors(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in batch.items() if isinstance(value, Tensor)}


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.detach().to(dtype)
    if isinstance(value, tuple):
        return tuple(_cast(v, dtype) for v in value)
    return value


def _unit(order: list[str]) -> list[str]:
    """The shortest beginning of which the whole is a repetition.

    Example:
        >>> _unit(["a", "b", "a", "b"]), _unit(["a", "a", "b", "b"])
        (['a', 'b'], ['a', 'a', 'b', 'b'])
    """
    for length in range(1, len(order)):
        if len(order) % length == 0 and order == order[:length] * (len(order) // length):
            return order[:length]
    return order


def _copies(
    layers: Mapping[str, nn.Module], paths: list[str], dtype: torch.dtype, attention: str
) -> dict[str, nn.Module]:
    originals = nn.ModuleList([layers[path] for path in paths])
    try:
        copied = copy.deepcopy(originals).to(dtype).eval().requires_grad_(False)
    except RuntimeError as error:  # a tensor with a graph, kept from a forward pass
        raise ValueError(
            f"the layers {paths} cannot be copied, so there is no map of them: {error}"
        ) from error
    for m in copied.modules():
        config = getattr(m, "config", None)
        if hasattr(config, "_attn_implementation"):
            cast(Any, config)._attn_implementation = attention
        if getattr(config, "_experts_implementation", None) is not None:
            cast(Any, config)._experts_implementation = "eager"  # the grouped product takes no float64
        for name, child in m.named_children():
            if type(child).__name__ in _TANH_GELUS:
                setattr(m, name, nn.GELU(approximate="tanh"))
    return dict(zip(paths, copied, strict=True))


_TANH_GELUS = ("NewGELUActivation", "GELUTanh")
