"""A transformer's encoder as a dynamical system: its layer as a map of the token vectors, and where sentences start."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import attention_as, observing
from lmdyn.analysis.inspection.forward import StopForward, call_module
from lmdyn.analysis.inspection.transformer import encoder_of, layer_sites

__all__ = ["EncoderMap"]


class EncoderMap:
    """The layer that an encoder applies again and again, as a map x ↦ f(x) of all token vectors.

    ``x`` is (batch, tokens, hidden). What the map computes is what the module's own layer computes: its layer norms and
    activation, without dropout, attention over all tokens. The layers are copied when the map is made, in the
    asked precision and in eval mode; the module is left as it was and may go on training. GELU's tanh approximation is
    computed by one kernel, equal to rounding.

    Which layers there are, and in which order, is learned by running the module once. Where the same layers (one, or an
    inner group of several) come again and again, as ALBERT's, the map is their single pass, and time has no end. Where
    all layers differ (BERT, GPT), there is no such map: :attr:`maps` are the layers, and time is depth.

    Args:
        module: any module that holds one of transformers' models.
        batch: an example batch; its first row is run. With a mask: the rows that the map will be applied to.
        dtype: float32 or float64.
        masked: attend only where ``attention_mask`` of the batch is 1. The map is then that of the rows of this batch,
            once or several times one after the other. The publication's has no mask.
        forward: dotted path to ``(module, batch) -> output`` for modules that are not called in Hugging Face's names.
        attention: transformers' implementation: ``sdpa``, or ``eager``, which forward-mode differentiation needs.

    Attributes:
        maps: what is applied in a pass through the model, in order: of shared layers the same map again and again.
        shared: whether they are one.
        layers: the layers of a single application, copies.
        masked: whether attention leaves padding out.

    Raises:
        ValueError: no layers found; another precision; a mask without ``attention_mask``.

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
        forward: str | None = None,
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
        self._paths = list(layer_sites(module).values())
        rows = _tensors(batch) if masked else {name: t[:1] for name, t in _tensors(batch).items()}
        calls = self._run(rows)
        if not calls:
            raise ValueError(
                f"the layers {self._paths} of {type(module).__name__} did not run: is there an encoder?"
            )
        order = [path for path, *_ in calls]
        unit = _unit(order)
        config = getattr(encoder_of(module), "config", None)
        one_of_albert = len(order) == 1 and getattr(config, "num_hidden_groups", None) == 1
        self.shared = len(order) > len(unit) or one_of_albert
        copies = _copies(module, list(dict.fromkeys(order)), dtype, attention)
        self.layers: tuple[nn.Module, ...] = tuple(copies[path] for path in unit)
        # what the model hands to each layer besides the token vectors: positions, masks
        arguments = {path: (args, kwargs) for path, _, args, kwargs in calls}
        self._n_rows = len(rows["input_ids"]) if masked and "input_ids" in rows else 0
        self._steps = [_Step(copies[path], *arguments[path], dtype, self._n_rows) for path in unit]
        self.maps: list[Callable[[Tensor], Tensor]] = (
            [self] * (len(order) // len(unit)) if self.shared else list(self._steps)
        )

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
        first = self._run(_tensors(batch), first_only=True)[0][1]
        return first.detach().to(self._dtype)

    @torch.no_grad()
    def _run(
        self, batch: Mapping[str, Tensor], *, first_only: bool = False
    ) -> list[tuple[str, Tensor, tuple[Any, ...], dict[str, Any]]]:
        """The calls of layers in a forward pass: path, token vectors, and the other arguments."""
        batch = {k: v for k, v in batch.items() if self.masked or k != "attention_mask"}
        calls: list[tuple[str, Tensor, tuple[Any, ...], dict[str, Any]]] = []
        handles = []

        def watch(path: str) -> Any:
            def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                rest = dict(kwargs)
                x = args[0] if args else rest.pop("hidden_states")
                calls.append((path, x, args[1:], rest))
                if first_only:
                    raise StopForward

            return hook

        # masks are made for one implementation or the other
        with observing(self._module), attention_as(self._module, self._attention):
            try:
                for path in self._paths:
                    layer = self._module.get_submodule(path)
                    handles.append(layer.register_forward_pre_hook(watch(path), with_kwargs=True))
                call_module(self._module, batch, forward=self._forward)
            except StopForward:
                pass
            finally:
                for handle in handles:
                    handle.remove()
        return calls


class _Step:
    """A layer with the arguments that its model hands to it."""

    def __init__(
        self,
        layer: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        dtype: torch.dtype,
        rows: int,
    ) -> None:
        self._layer, self._rows = layer, rows
        self._args = tuple(None if hasattr(a, "get_seq_length") else _cast(a, dtype) for a in args)  # caches
        self._kwargs = {name: _cast(value, dtype) for name, value in kwargs.items() if name not in _CACHES}

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
        output = self._layer(x, *args, **kwargs)
        return cast(Tensor, output if isinstance(output, Tensor) else output[0])

    def _repeat(self, value: Any, times: int) -> Any:
        if isinstance(value, Tensor) and value.ndim and len(value) == self._rows:
            return value.repeat(times, *[1] * (value.ndim - 1))
        return value


_CACHES = ("past_key_value", "past_key_values", "use_cache", "layer_past", "cache_position")


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


def _copies(module: nn.Module, paths: list[str], dtype: torch.dtype, attention: str) -> dict[str, nn.Module]:
    originals = nn.ModuleList([module.get_submodule(path) for path in paths])
    copied = copy.deepcopy(originals).to(dtype).eval().requires_grad_(False)
    for m in copied.modules():
        config = getattr(m, "config", None)
        if hasattr(config, "_attn_implementation"):
            cast(Any, config)._attn_implementation = attention
        for name, child in m.named_children():
            if type(child).__name__ in _TANH_GELUS:
                setattr(m, name, nn.GELU(approximate="tanh"))
    return dict(zip(paths, copied, strict=True))


_TANH_GELUS = ("NewGELUActivation", "GELUTanh")
