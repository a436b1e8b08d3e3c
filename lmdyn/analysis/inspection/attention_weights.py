"""Attention weights where they arise: in a module's output, or in PyTorch's fused attention."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

__all__ = ["attention_as", "attention_weights", "readable_attention", "switches_attention", "watch_attention"]


@contextmanager
def watch_attention(
    modules: Iterable[Module], see: Callable[[Module, Any, Tensor | None, list[Tensor]], None]
) -> Iterator[None]:
    """Call ``see(module, output, weights, within)`` after each run of each of these modules in this context.

    ``weights`` are those in its output (:func:`attention_weights`), None if it has none. ``within`` are the weights,
    computed from the arguments, of each fused attention that was called while the module ran, and those in the outputs
    of those of these modules that ran within it.
    """
    running: list[tuple[Module, list[Tensor]]] = []
    fused = _FusedAttention(running)

    def begin(m: Module, _: Any) -> None:
        if not running:  # not around all that runs in this context: the mode slows every function of torch
            fused.__enter__()
        running.append((m, []))

    def pop() -> list[Tensor]:
        within = running.pop()[1]
        if not running:
            fused.__exit__(None, None, None)
        return within

    def end(m: Module, _: Any, output: Any) -> None:
        within, weights = pop(), attention_weights(output)
        if running:
            running[-1][1].extend(within if weights is None else [*within, weights])
        see(m, output, weights, within)

    def fail(m: Module, *_: Any) -> None:  # after `end`, or instead of it
        if running and running[-1][0] is m:  # not after an error before `begin`
            pop()

    with ExitStack() as stack:
        for m in dict.fromkeys(modules):
            stack.callback(m.register_forward_pre_hook(begin).remove)
            stack.callback(m.register_forward_hook(end).remove)
            stack.callback(m.register_forward_hook(fail, always_call=True).remove)
        try:
            yield
        finally:
            if running:  # interrupted
                fused.__exit__(None, None, None)


class _FusedAttention(TorchFunctionMode):
    """Computes the weights of each fused attention, for the innermost of the modules that are running."""

    def __init__(self, running: list[tuple[Module, list[Tensor]]]) -> None:
        super().__init__()
        self._running = running

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function."""
        kwargs = kwargs or {}
        if func in _FUSED and self._running:
            query = args[0] if args else kwargs["query"]
            if query.ndim > 2 and not query.is_nested:
                with torch.no_grad():
                    weights = _weights_of_call(func, args, kwargs)
                if weights.ndim == 4:
                    self._running[-1][1].append(weights)
        return func(*args, **kwargs)


_FUSED = {F.scaled_dot_product_attention, F.multi_head_attention_forward}


def _weights_of_call(func: Any, args: Any, kwargs: Any) -> Tensor:
    if func is F.scaled_dot_product_attention:
        return _fused_weights(*args, **kwargs)
    given = inspect.signature(func).bind(*args, **kwargs).arguments
    changed = {"need_weights": True, "average_attn_weights": False, "training": False}
    found: Tensor = func(**{**given, **changed})[1]
    return found


def _fused_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute the weights of ``scaled_dot_product_attention``, (batch, heads, query, key); 0 without a visible key.

    Scores of half precision are computed in float32, as within the fused attention.
    """
    kind = query.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        # the call casts its arguments, except float64
        cast = torch.get_autocast_dtype(kind)
        query, key = (x if x.dtype == torch.float64 else x.to(cast) for x in (query, key))
    if query.dtype in (torch.float16, torch.bfloat16):
        mask = attn_mask if attn_mask is None or attn_mask.dtype == torch.bool else attn_mask.float()
        with torch.autocast(kind, enabled=False):
            return _fused_weights(query.float(), key.float(), value, mask, 0.0, is_causal, scale, enable_gqa)
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    query = (query * (query.shape[-1] ** -0.5 if scale is None else scale)).expand(*batch, -1, -1)
    key = key.mT.expand(*batch, -1, -1)
    weights = query.new_empty(*query.shape[:-1], key.shape[-1])
    mask = query.new_zeros(()) if attn_mask is None else attn_mask
    if is_causal:
        mask = query.new_full(weights.shape[-2:], -torch.inf).triu(1)
    size = 1 if kind == "cpu" else len(query)  # scores of a sequence stay in the cache
    scores = torch.empty_like(weights[:size])
    parts = (part.split(size) for part in (query, key, mask.expand(weights.shape), weights))
    for q, k, m, found in zip(*parts, strict=True):
        torch.matmul(q, k, out=scores)
        scores = scores.masked_fill_(~m, -torch.inf) if m.dtype == torch.bool else scores.add_(m)
        torch.softmax(scores, -1, out=found)
    if attn_mask is None:  # each query sees the first key
        return weights
    seen = attn_mask if attn_mask.dtype == torch.bool else ~attn_mask.isneginf()
    return weights.masked_fill_(~seen.any(-1, keepdim=True), 0)


def attention_weights(output: Any) -> Tensor | None:
    """Return the attention weights in a module's output: its last (batch, heads, query, key) tensor, rows of sum 1.

    It may be the output itself (of a dropout applied to weights) or an item of a tuple, list or mapping. A query
    without a visible key may have weights of 0 or NaN.

    Example:
        >>> weights = torch.full((1, 2, 3, 3), 1 / 3)
        >>> attention_weights((torch.zeros(1, 3, 4), torch.zeros(1, 2, 3, 3), weights)) is weights
        True
        >>> attention_weights((torch.zeros(1, 3, 4), torch.zeros(1, 2, 3, 3))) is None  # a position bias
        True
    """
    if isinstance(output, Mapping):
        output = tuple(output.values())
    items = output if isinstance(output, (tuple, list)) else (output,)
    return next((t for t in reversed(items) if isinstance(t, Tensor) and _has_rows_of_one(t)), None)


def _has_rows_of_one(tensor: Tensor) -> bool:
    if tensor.is_nested or tensor.ndim != 4 or not tensor.is_floating_point() or tensor.numel() == 0:
        return False
    sums = tensor.detach().sum(-1, dtype=torch.float32)
    ones = (sums - 1).abs() < (1e-3 if tensor.dtype in (torch.float32, torch.float64) else 3e-2)
    ones |= sums.isnan()  # for a diverged model
    return bool((ones | (sums == 0)).all() & ones.any() & ~(tensor < 0).any())


def switches_attention(module: Module) -> bool:
    """Return whether a model of transformers has a fused attention other than PyTorch's, whose weights are not read."""
    found = {getattr(getattr(m, "config", None), "_attn_implementation", None) for m in module.modules()}
    return not found <= {None, "eager", "sdpa"}


def readable_attention(module: Module) -> AbstractContextManager[None]:
    """Switch models of transformers within ``module`` to ``eager`` in this context if :func:`switches_attention`."""
    return attention_as(module, "eager") if switches_attention(module) else nullcontext()


@contextmanager
def attention_as(module: Module, implementation: str) -> Iterator[None]:
    """Set the attention of transformers' models within ``module`` to ``eager`` or ``sdpa`` in this context."""
    configs: list[Any] = [getattr(m, "config", None) for m in module.modules()]
    before = {id(c): (c, c._attn_implementation) for c in configs if hasattr(c, "_attn_implementation")}
    try:
        for config, _ in before.values():
            config._attn_implementation = implementation
        yield
    finally:
        for config, own in before.values():
            config._attn_implementation = own
