"""Observation of a module without side effects: activations, gradients and attention at named sites."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import Module

from lmdyn.analysis.checked_fields import type_words
from lmdyn.analysis.inspection.attention_weights import readable_attention, watch_attention
from lmdyn.analysis.inspection.attributes import did_you_mean, nearest_first

__all__ = ["Capture", "capture", "observing", "resolve_sites"]


@contextmanager
def observing(module: Module) -> Iterator[None]:
    """Make operations in this context invisible to the training of ``module``.

    Inside, every submodule is in eval mode, compiled modules run eagerly (hooks never run on compiled ones), autocast
    is off, and gradients can be computed (also within ``inference_mode``). On exit, also after an error, the random
    states of Python, NumPy and every device, each submodule's own mode, its buffers and the cuDNN flags are restored.
    ``.grad`` fields are not changed if gradients are computed by :func:`torch.autograd.grad`.

    Args:
        module: the module to observe.

    Example:
        >>> layer = nn.Dropout(0.5)
        >>> with observing(layer):
        ...     layer(torch.ones(3))
        tensor([1., 1., 1.])
        >>> layer.training
        True
    """
    modes = {m: m.training for m in module.modules()}
    buffers = [
        (m, n, b, b.detach().clone(), _writes(b))
        for m in modes
        for n, b in m._buffers.items()
        if b is not None
    ]
    rescaled = {m: cast(Any, m).layers_are_rescaled for m in modes if hasattr(m, "layers_are_rescaled")}

    cuda = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=cuda))
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002 (the state to protect)
        if torch.backends.mps.is_available():
            stack.callback(torch.mps.set_rng_state, torch.mps.get_rng_state())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        if cuda:
            stack.enter_context(torch.autocast("cuda", enabled=False))
            # a cuDNN RNN has no backward pass in eval mode
            if any(isinstance(m, nn.RNNBase) for m in modes):
                stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        if any(getattr(m, "_compiled_call_impl", None) or hasattr(m, "_orig_mod") for m in modes):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            for m in modes:
                m.training = False
            yield
        finally:
            # of modules that change them in eval mode: the same tensors with their previous values
            with torch.no_grad():
                for m, name, buffer, value, writes in buffers:
                    m._buffers[name] = buffer
                    if _writes(buffer) != writes:
                        buffer.copy_(value)
            # for RWKV, which scales its weights in place in its first eval pass
            for m, scaled in rescaled.items():
                if cast(Any, m).layers_are_rescaled != scaled:
                    m.training = not scaled
                    cast(Any, m)._rescale_layers()
            for m, mode in modes.items():
                m.training = mode


def _writes(value: Any) -> int:
    """Return how often a tensor, or those in a tuple, were written to; inference mode does not count."""
    if isinstance(value, tuple):
        return sum(map(_writes, value))
    return 0 if not isinstance(value, Tensor) or value.is_inference() else value._version


def resolve_sites(module: Module, sites: Mapping[str, str]) -> dict[str, Module]:
    """Find the modules of named sites.

    Args:
        module: the model.
        sites: display name to module path, as in ``{"h1": "lstm.layers.0"}``.

    Returns:
        Modules by display name.

    Raises:
        ValueError: if a path is not a module; the message lists existing paths, the nearest ones if there are many.

    Example:
        >>> resolve_sites(nn.Sequential(nn.Linear(2, 3)), {"out": "0"})
        {'out': Linear(in_features=2, out_features=3, bias=True)}
    """
    modules = paths_of(module)
    found = {}
    for name, path in sites.items():
        if "@" in name or "/" in name:
            raise ValueError(
                f"site name {name!r} contains '@' or '/', which lmdyn reserves: choose another name"
            )
        plain = plain_path(path)
        if plain not in modules:
            paths = [p for p in modules if p]
            raise ValueError(
                f"site {name!r}: {type(module).__name__} has no module {path!r}{did_you_mean(plain, paths) or ';'} the "
                f"modules are: {nearest_first(plain, paths)}"
            )
        found[name] = modules[plain]
    return found


_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def plain_path(path: str) -> str:
    """Return a module path without the parts that ``torch.compile``, FSDP and checkpointing insert.

    Example:
        >>> plain_path("_orig_mod.layers.0._orig_mod.mlp")
        'layers.0.mlp'
    """
    return ".".join(segment for segment in path.split(".") if segment not in _WRAPPERS)


def paths_of(module: Module) -> dict[str, Module]:
    """Return all modules by :func:`plain_path`; for a wrapped module, the inner one.

    Example:
        >>> list(paths_of(nn.Sequential(nn.Linear(2, 2), nn.Tanh())))
        ['', '0', '1']
    """
    return {plain_path(path): m for path, m in module.named_modules()}


class Capture:
    """Records of :func:`capture` in the forward passes since the last :meth:`clear`.

    The activation of a site is its module's output (the first tensor of a tuple or ``ModelOutput``). A module
    that runs n > 1 times in one forward pass gives the sites ``name@0 … name@n-1``.
    """

    def __init__(self, sites: Iterable[str], attention_sites: Iterable[str]) -> None:
        # each with its number of writes at its capture; writes to views and detached tensors also count
        self._outputs: dict[str, list[tuple[Any, int]]] = {name: [] for name in sites}
        self._attentions: dict[str, list[tuple[Any, int]]] = {name: [] for name in attention_sites}

    def clear(self) -> None:
        """Delete the records; call it before each forward pass."""
        for seen in (*self._outputs.values(), *self._attentions.values()):
            seen.clear()

    @property
    def overwritten(self) -> list[str]:
        """Return the sites whose output was overwritten in place after its capture."""
        return _overwritten(self._outputs)

    @property
    def activations(self) -> dict[str, Tensor]:
        """Return the detached activation of each site, in the order of the sites, usually (batch, time, hidden).

        Raises:
            RuntimeError: if the module of a site did not run, or if its output was overwritten in place afterwards.
        """
        return {name: tensor.detach() for name, tensor in _by_run(self._outputs).items()}

    @property
    def attentions(self) -> dict[str, Any]:
        """Return the detached weights of each attention site, (batch, heads, query, key), or what was read of them.

        Raises:
            RuntimeError: if the module of an attention site did not run, or if its weights were overwritten in place.
        """
        return _by_run(self._attentions)

    def gradients(self, loss: Tensor) -> dict[str, Tensor]:
        """Compute the gradient of ``loss`` with respect to each site's activation, in the activation's shape.

        A site on which the loss does not depend has gradient 0. No ``.grad`` is changed.

        Args:
            loss: a scalar; the *summed* token loss, so that the gradients do not depend on batch size.

        Raises:
            RuntimeError: if the module of a site did not run, or if its output was overwritten in place afterwards.
        """
        outputs = _by_run(self._outputs)
        grads = torch.autograd.grad(loss, list(outputs.values()), allow_unused=True)
        return {
            name: torch.zeros_like(out) if g is None else g
            for (name, out), g in zip(outputs.items(), grads, strict=True)
        }


_IN_PLACE_REMEDY = (
    "use `x = x + y` for `x += y` and inplace=False for inplace=True, or name the module around the operation"
)


def _overwritten(seen: Mapping[str, list[tuple[Any, int]]]) -> list[str]:
    return [name for name, runs in seen.items() if any(_writes(tensor) != n for tensor, n in runs)]


def _by_run(seen: Mapping[str, list[tuple[Any, int]]]) -> dict[str, Any]:
    silent = [name for name, runs in seen.items() if not runs]
    if silent:
        raise RuntimeError(
            f"the forward pass did not run some sites ({', '.join(silent)}): name modules that the forward pass calls"
        )
    if overwritten := _overwritten(seen):
        raise RuntimeError(
            f"a later in-place operation overwrites the outputs of some sites ({', '.join(overwritten)}), so lmdyn "
            f"cannot capture activations and gradients there: {_IN_PLACE_REMEDY}"
        )
    return {
        (name if len(runs) == 1 else f"{name}@{i}"): tensor
        for name, runs in seen.items()
        for i, (tensor, _) in enumerate(runs)
    }


@contextmanager
def capture(
    module: Module,
    sites: Mapping[str, str],
    *,
    attention_sites: Mapping[str, str] | None = None,
    gradients: bool = False,
    read: Callable[[str, Tensor], Any] | None = None,
) -> Iterator[Capture]:
    """Capture activations at ``sites`` during the forward passes in this context.

    Hooks are removed and all tensors are released when the context closes, also after an error. Where a model calls
    ``scaled_dot_product_attention``, attention weights are computed from the arguments of the call, which changes
    nothing else; else the attention module returns them. Models of transformers with another fused attention are
    switched to ``eager`` (``switches_attention``).

    Args:
        module: the model.
        sites: module path by display name.
        attention_sites: path of an attention module by display name, whose weights are captured.
        gradients: whether to keep the graph for :meth:`Capture.gradients`; frozen parameters are supported, because
            the captured tensors themselves then require grad.
        read: what to keep of the weights of an attention site, called with its name and its weights when its module
            has run; None keeps the weights, of all sites at the same time.

    Yields:
        The :class:`Capture`.

    Raises:
        ValueError: if a path is not a module; the message lists existing paths.
        RuntimeError: if the output of a site contains no tensor, if an attention site returns no weights, or for an
            in-place operation on the output of a site.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        >>> with capture(model, {"h": "0"}, gradients=True) as seen:
        ...     loss = model(torch.ones(1, 3, 2)).sum()
        ...     shape = seen.activations["h"].shape
        ...     same = torch.allclose(seen.gradients(loss)["h"], 1 - seen.activations["h"].tanh() ** 2)
        >>> tuple(shape), same
        ((1, 3, 2), True)
    """
    attention_sites = attention_sites or {}
    modules = resolve_sites(module, sites)
    attention_modules = resolve_sites(module, attention_sites)
    seen = Capture(sites, attention_sites)

    def watch(name: str) -> Any:
        def hook(_: Module, __: Any, output: Any) -> None:
            tensor = first_tensor(output)
            if tensor is None:
                raise RuntimeError(
                    f"site {name!r} returns no tensor, but {type_words(type(output).__name__)}: name another module"
                )
            if gradients and not tensor.requires_grad and tensor.is_floating_point():
                tensor.requires_grad_(True)  # if all parameters below are frozen, the graph begins here
            kept = tensor if gradients else tensor.detach()
            seen._outputs[name].append((kept, _writes(kept)))

        return hook

    def see_attention(m: Module, _: Any, weights: Tensor | None, within: list[Tensor]) -> None:
        # of a fused call, or the output of a dropout applied to the weights (DeBERTa)
        if weights is None and within and all(w is within[-1] or torch.equal(w, within[-1]) for w in within):
            weights = within[-1]
        for name in (name for name, site in attention_modules.items() if site is m):
            if weights is None:
                raise RuntimeError(
                    f"attention site {name!r} returns no (batch, heads, query, key) weights with rows that add up to "
                    "1: name an attention module of a model with eager attention, or the dropout that the weights pass "
                    "through"
                )
            weights = weights.detach()
            with torch.autocast(weights.device.type, enabled=False):  # that of the model's own forward
                kept = weights if read is None else read(name, weights)
            seen._attentions[name].append((kept, _writes(kept)))

    with ExitStack() as stack:
        if attention_modules:
            stack.enter_context(readable_attention(module))
            parts = [part for m in attention_modules.values() for part in m.modules()]
            leaves = [m for m in parts if next(m.children(), None) is None]
            stack.enter_context(watch_attention([*attention_modules.values(), *leaves], see_attention))
        for name, m in modules.items():
            stack.callback(m.register_forward_hook(watch(name)).remove)
        stack.callback(seen.clear)
        try:
            yield seen
        except RuntimeError as error:
            # with frozen parameters, the graph begins at a leaf, which autograd protects
            if gradients and "leaf Variable that requires grad" in str(error):
                raise RuntimeError(
                    f"an in-place operation follows one of the sites {', '.join(sites)}, and all parameters before "
                    f"that site are frozen: {_IN_PLACE_REMEDY}"
                ) from error
            raise


def first_tensor(output: Any) -> Tensor | None:
    """Return the first tensor in a module's output: of a tuple, a mapping or a ``ModelOutput``, nested or not.

    Example:
        >>> first_tensor((None, {"h": torch.ones(2)}))
        tensor([1., 1.])
    """
    if isinstance(output, Mapping):
        output = tuple(output.values())
    if isinstance(output, (tuple, list)):
        return next((t for t in map(first_tensor, output) if t is not None), None)
    return output if isinstance(output, Tensor) else None
