"""Calls of any language model on a batch, and the token loss of its output."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import update_wrapper
from importlib import import_module
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast
from weakref import WeakSet

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.checked_fields import type_words

__all__ = [
    "IGNORED",
    "Batch",
    "Forward",
    "Renamed",
    "StopForward",
    "call_module",
    "called_module",
    "check_labels",
    "device_of",
    "dotted",
    "limit_imports",
    "logits_of",
    "stand_in",
    "token_losses",
    "uncompiled",
]

Batch = Mapping[str, Any]  # tensors, in the names of Hugging Face

Forward = str | Callable[[Module, Batch], Any]
"""How a module is called: a function ``(module, batch) -> output``, or the dotted path to one."""

IGNORED = -100
"""Label of a token without a label, as in all libraries of Hugging Face."""


class StopForward(Exception):  # noqa: N818 (not an error)
    """Ends a forward pass early: a hook raises it once it has recorded what it observes."""


def stand_in(stack: ExitStack, m: Module, forward: Callable[..., Any]) -> None:
    """Set the forward of a module until the stack ends."""
    own = {name: m.__dict__[name] for name in ("forward",) if name in m.__dict__}
    stack.callback(m.__dict__.update, own)
    stack.callback(m.__dict__.pop, "forward")
    m.__dict__["forward"] = update_wrapper(forward, m.forward)


_importable: frozenset[str] | None = None
"""Paths that :func:`dotted` may import; None: all. Of the process, and not of a thread: several threads observe."""


def dotted(path: str) -> Callable[..., Any]:
    """Return the object at a dotted path such as ``"my_package.my_module.function"``.

    Raises:
        ValueError: if nothing can be imported from this path, or if :func:`limit_imports` excludes it.

    Example:
        >>> dotted("math.sqrt")(4.0)
        2.0
    """
    if _importable is not None and path not in _importable:
        raise ValueError(
            f"lmdyn does not import {path!r} for an untrusted run. If you trust the path, add the path to a "
            "configuration of your own, and pass --config FILE"
        )
    module, _, name = path.rpartition(".")
    try:
        return cast(Callable[..., Any], getattr(import_module(module), name))
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"lmdyn cannot import {path!r} ({error}): expected 'package.module.name'") from error


def limit_imports(paths: frozenset[str] | None) -> frozenset[str] | None:
    """Let :func:`dotted` import only these paths from now on, or, if None, all; return the former limit.

    Example:
        >>> former = limit_imports(frozenset({"math.sqrt"}))
        >>> dotted("os.system")
        Traceback (most recent call last):
        ...
        ValueError: lmdyn does not import 'os.system' for an untrusted run. If you trust the path, add the path to ...
        >>> _ = limit_imports(former)
    """
    global _importable
    former, _importable = _importable, paths
    return former


def uncompiled(module: Module) -> Module:
    """Return the module that ``torch.compile`` wraps, or the module itself."""
    while isinstance(inner := getattr(module, "_orig_mod", None), Module):
        module = inner
    return module


def device_of(module: Module) -> torch.device:
    """Return the device of the module's first parameter; the CPU if it has none.

    Example:
        >>> device_of(torch.nn.Linear(2, 2))
        device(type='cpu')
    """
    return next((p.device for p in module.parameters()), torch.device("cpu"))


def is_sharded(module: Module) -> bool:
    """Return whether ranks hold parts of the weights (``fully_shard``, FSDP): forward passes are then collectives.

    Example:
        >>> is_sharded(torch.nn.Linear(2, 2))
        False
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel  # the import takes a second
    from torch.distributed.tensor import DTensor

    # weights of an FSDPModule are whole, and no DTensor, from its forward to its backward pass
    return any(isinstance(p, DTensor) for p in module.parameters()) or any(
        isinstance(m, (FSDPModule, FullyShardedDataParallel)) for m in module.modules()
    )


def is_tensor_parallel(module: Module) -> bool:
    """Return whether ranks hold parts of a layer and read the same batch, unlike parts of ``fully_shard``.

    Example:
        >>> is_tensor_parallel(torch.nn.Linear(2, 2))
        False
    """
    if not is_sharded(module):
        return False
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    alone = not any(isinstance(m, FSDPModule) for m in module.modules())
    parts = [p.placements for p in module.parameters() if isinstance(p, DTensor)]
    return any(alone or sum(not where.is_replicate() for where in placements) > 1 for placements in parts)


def call_module(
    module: Module,
    batch: Batch,
    *,
    forward: Forward | None = None,
    state: Any = None,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Call ``module`` with the entries of ``batch`` that its forward names.

    A forward that does not name ``input_ids`` gets them as its first argument; one with ``**kwargs`` gets the
    arguments that the module within it names. For a LightningModule without a forward, the only module with parameters
    within it is called. An encoder-decoder of transformers gets the ``decoder_input_ids`` that it creates from
    ``labels`` itself.

    ``labels`` are not passed, because observers compute losses from logits, with two exceptions: if forward requires
    them, or if it returns only the logits of the last position without labels (nanoGPT). A label of -100 is then 0.

    Args:
        module: the module.
        batch: tensors by name, with the names of Hugging Face (``input_ids`` …).
        forward: dotted path to ``(module, batch) -> output``, or this function, for modules that are called
            differently.
        state: recurrent state that a previous call returned as ``.state``; it is passed to a forward that names both
            ``state`` and ``continues``, which starts the rows that do not continue from zero.
        names: the module's name of an entry of the batch, by its name in ``batch``.

    Returns:
        The output of the module; logits (batch · time, classes) are reshaped to (batch, time, classes).

    Raises:
        ValueError: if forward requires an argument that is not in the batch; the message lists the existing ones.

    Example:
        >>> class Model(Module):
        ...     def forward(self, tokens):
        ...         return tokens + 1
        >>> call_module(Model(), {"input_ids": torch.tensor([1]), "upos": torch.tensor([7])})
        tensor([2])
    """
    if forward is not None:
        call = dotted(forward) if isinstance(forward, str) else forward
        return call(module, batch)
    called = called_module(module)
    args, kwargs, label_name = _arguments(called, batch, state, names)
    if label_name is not None and "labels" in batch and type(called) in _ANSWERS_LAST:
        kwargs[label_name] = _labels_to_pass(batch)
        label_name = None
    output = called(*args, **kwargs)
    ids = batch.get("input_ids")
    if not isinstance(ids, Tensor) or ids.ndim != 2 or "predict" in kwargs:
        return output
    if label_name is not None and "labels" in batch and ids.shape[1] > 1 and _of_last(output, len(ids)):
        kwargs[label_name] = _labels_to_pass(batch)
        whole = called(*args, **kwargs)
        if not _of_last(whole, len(ids)):
            _ANSWERS_LAST.add(type(called))
            output = whole
    return _unflattened(output, *ids.shape)


@dataclass(frozen=True)
class Renamed:
    """Calls a module that uses other names for the entries of a batch.

    Attributes:
        names: pairs of a name in lmdyn and the module's name.
    """

    names: tuple[tuple[str, str], ...]

    def __call__(self, module: Module, batch: Batch) -> Any:
        """Return the module's output; see :func:`call_module`."""
        return call_module(module, batch, names=dict(self.names))


_LABELS = ("labels", "targets", "target", "y", "label")
"""Names of the labels in forwards."""

_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "decoder_input_ids", "decoder_attention_mask")
"""Entry that is passed to a forward without known names."""

_ANSWERS_LAST: WeakSet[type[Module]] = WeakSet()
"""Classes that return only the last position's logits if they get no labels, as observed."""


def called_module(module: Module) -> Module:
    """Return the module to call: itself, or the only one with parameters in a LightningModule without a forward.

    Raises:
        ValueError: if there is no forward, and several modules could be called.

    Example:
        >>> called_module(torch.nn.Linear(2, 2))
        Linear(in_features=2, out_features=2, bias=True)
    """
    own = type(module).forward
    if own is not Module.forward and not own.__module__.startswith(("lightning.", "pytorch_lightning.")):
        return module
    within = {name: m for name, m in module.named_children() if next(m.parameters(), None) is not None}
    if len(within) != 1:
        raise ValueError(
            f"{type(module).__name__} has no `forward`: expected one submodule with parameters, got "
            f"{', '.join(within) or 'none'}. Define `forward(self, input_ids)` that returns logits, or pass `forward:` "
            "to the observer, a function (module, batch) -> output"
        )
    return called_module(next(iter(within.values())))


def _arguments(
    module: Module, batch: Batch, state: Any, names: Mapping[str, str]
) -> tuple[list[Any], dict[str, Any], str | None]:
    """Return positional and keyword arguments, and the name of the optional argument for labels."""
    parameters = inspect.signature(uncompiled(module).forward).parameters
    called = {names.get(key, key): key for key in batch}  # name in the module to key here
    named = {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    labels_as = (names.get("labels", "labels"), *_LABELS)
    label_name = next((n for n in labels_as if n in named), None)
    if list(named) == ["batch"]:
        return [{names.get(key, key): value for key, value in batch.items()}], {}, None
    kwargs = {n: batch[called[n]] for n in named if n in called and n != label_name}
    first = next(iter(named), None)
    given = [called.get(n) for n in kwargs]
    positional: list[Any] = []
    if "input_ids" in batch and "input_ids" not in given:
        if first is not None:
            if first not in kwargs and first not in (label_name, "inputs_embeds"):
                kwargs[first] = batch["input_ids"]
        elif any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            within = [m for m in module.children() if next(m.parameters(), None) is not None]
            if len(within) == 1 and not names:  # it passes its arguments on
                return _arguments(within[0], batch, state, names)
            kwargs = {names.get(key, key): batch[key] for key in batch if key in _INPUTS or key in names}
        elif parameters:  # *args
            positional = [batch["input_ids"]]
    if "decoder_input_ids" in named and "decoder_input_ids" not in kwargs and "labels" in batch:
        kwargs |= decoder_ids(module, batch["labels"])
    if "use_cache" in named:  # a cache would not be read, and would be written in place, without a gradient
        kwargs.setdefault("use_cache", False)
    if state is not None and "state" in named and "continues" in kwargs:
        kwargs["state"] = state
    if label_name is not None and named[label_name].default is inspect.Parameter.empty and "labels" in batch:
        kwargs[label_name] = batch["labels"] if label_name == "labels" else _labels_to_pass(batch)
    missing = [n for n, p in named.items() if p.default is p.empty and n not in kwargs]
    if missing:
        raise ValueError(
            f"{type(module).__name__}.forward requires {', '.join(missing)}, but the batch has "
            f"{', '.join(sorted(batch))}: rename the batch's keys in the collator, or pass `forward:` to the observer, "
            "a function (module, batch) -> output or a function's dotted path"
        )
    return positional, kwargs, None if label_name in kwargs else label_name


def decoder_ids(module: Module, labels: Tensor) -> dict[str, Tensor]:
    """Return the ``decoder_input_ids`` that transformers' encoder-decoders create; empty for other modules."""
    make = "prepare_decoder_input_ids_from_labels"
    maker = next((m for m in module.modules() if hasattr(m, make)), None)
    return {} if maker is None else {"decoder_input_ids": getattr(maker, make)(labels)}


def _labels_to_pass(batch: Batch) -> Tensor:
    """Return labels for a forward that computes a loss, which is not used."""
    return cast(Tensor, batch["labels"]).clamp(min=0)


def _of_last(output: Any, rows: int) -> bool:
    """Return whether logits are those of the last position only."""
    try:
        shape = logits_of(output).shape
    except ValueError:
        return False
    return shape[:2] == (rows, 1) if len(shape) == 3 else len(shape) == 2 and shape[0] == rows


def _unflattened(output: Any, rows: int, time: int) -> Any:
    """Reshape logits (batch · time, classes) to (batch, time, classes), in a tuple those that match the batch."""
    try:
        logits = logits_of(output)
    except ValueError:  # a recurrent state may also have three axes
        parts = output if isinstance(output, (tuple, list)) else ()
        found = [t for t in parts if isinstance(t, Tensor) and t.ndim == 3 and t.shape[:2] == (rows, time)]
        return SimpleNamespace(logits=found[0]) if len(found) == 1 else output
    if logits.ndim != 2 or len(logits) != rows * time or logits.shape == (rows, time):
        return output
    return SimpleNamespace(logits=logits.view(rows, time, -1), state=getattr(output, "state", None))


def logits_of(output: Any) -> Tensor:
    """Return the logits of a module's output.

    These are ``.logits`` or ``.prediction_logits`` of an object or a dict, the output if it is a tensor, or, in a
    tuple, a list or a dict with other names, the only tensor with three axes; the loss may be before or after it.

    Returns:
        Logits (batch, time, classes), or in the shape of the module.

    Raises:
        ValueError: if none of these exists, or if several are possible.

    Example:
        >>> logits_of((torch.tensor(0.7), torch.zeros(1, 2, 3))).shape
        torch.Size([1, 2, 3])
    """
    for name in ("logits", "prediction_logits"):
        logits = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(logits, Tensor):
            return logits
    if isinstance(output, Tensor):
        return output
    parts = dict(enumerate(output)) if isinstance(output, (tuple, list)) else output
    parts = parts if isinstance(parts, Mapping) else {}
    tensors = {k: t for k, t in parts.items() if isinstance(t, Tensor) and t.is_floating_point()}
    # ModelOutputs are also dicts, and hidden states are not logits
    for axes in (3, 2):
        found = [t for k, t in tensors.items() if t.ndim == axes and k not in _NO_LOGITS]
        if len(found) == 1:
            return found[0]
        if found:
            break
    seen = ", ".join(f"{k}: {tuple(t.shape)}" for k, t in tensors.items())
    raise ValueError(
        f"expected an output with `.logits` (batch, time, classes), got {type_words(type(output).__name__)} of tensors "
        f"{seen or '(none)'}: pass `forward:` to the observer, a function (module, batch) -> logits"
    )


_NO_LOGITS = ("last_hidden_state", "pooler_output", "loss", "hidden_states", "encoder_last_hidden_state")


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise an error for labels that are not classes, on the CPU only: elsewhere, the check would synchronize.

    Raises:
        ValueError: if a label is not below the number of classes.

    Example:
        >>> check_labels(torch.tensor([3, -100]), 4)
    """
    if labels.device.type == "cpu" and labels.numel() and int(labels.max()) >= classes:
        raise ValueError(
            f"expected labels below {classes}, got {int(labels.max())}: use the model's tokenizer for the data"
        )


def token_losses(
    logits: Float[Tensor, "batch time classes"], labels: Int[Tensor, "_ _"]
) -> Float[Tensor, "batch time"]:
    """Compute the cross entropy of each token in nats; 0 if the label is -100.

    Raises:
        ValueError: if logits and labels disagree in batch or time, or if logits are not floating-point; on the CPU,
            also if a label is not a class.

    Example:
        >>> token_losses(torch.zeros(1, 2, 4), torch.tensor([[3, -100]]))
        tensor([[1.3863, 0.0000]])
    """
    if logits.ndim != 3 or logits.shape[:2] != labels.shape:
        raise ValueError(
            f"logits are {tuple(logits.shape)}, labels {tuple(labels.shape)}: expected (batch, time, classes) and "
            "(batch, time), with the prediction `logits[b, t]` for `labels[b, t]`"
        )
    if not logits.is_floating_point():
        raise ValueError(f"expected floating-point logits, got {logits.dtype}")
    check_labels(labels, logits.shape[-1])
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.view(labels.shape)
