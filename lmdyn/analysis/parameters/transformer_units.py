"""Exchangeable units of a transformer: residual stream, hidden units and attention heads, by what feeds what."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

import scipy
import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import first_tensor, paths_of
from lmdyn.analysis.parameters.exchangeable_units import UnitAxis, UnitGroup
from lmdyn.analysis.parameters.head_matrices import HeadLayout, find_heads
from lmdyn.analysis.parameters.linear_weight import is_linear
from lmdyn.analysis.parameters.loss_gradient import requiring_grad

__all__ = ["transformer_units"]

_Key = tuple[int, int]
"""Identity of a parameter and the number of its axis."""


def transformer_units(module: nn.Module, run: Callable[[], Tensor]) -> tuple[UnitGroup, ...]:
    """Return the exchangeable units of a transformer, as they follow from a forward pass.

    Attention modules are those of :func:`~lmdyn.analysis.find_heads`; their units are heads, or groups of heads that
    share keys and values. All other units are dimensions of vectors: two axes of parameters have the same units if the
    output of one layer reaches the input of the other, in the graph of gradients, only by operations that treat all
    dimensions alike (sums, products, activations, norms, choices of tokens). Units whose values are logits, or that no
    layer reads, are not exchangeable.

    Args:
        module: the module, in eval mode.
        run: a forward pass that returns the logits; it is called once, with gradients.

    Returns:
        The groups in the order of the parameters. Groups of one unit are left out.

    Raises:
        ValueError: for attention modules whose projections are not known. Whether permutations leave the output
            unchanged, :func:`~lmdyn.analysis.exchange_error` tells.
    """
    modules = paths_of(module)
    heads = find_heads(module)
    for path, why in heads.left_out.items():
        raise ValueError(f"lmdyn does not know the heads of {path!r}: {why}")
    linear = {path: m for path, m in modules.items() if is_linear(m)}
    for path, m in linear.items():
        if getattr(m, "base_layer", None) is not None:
            raise ValueError(f"{path!r} has an adapter with unknown units: merge the adapter into its layer")
    flow = _Flow(module)
    attention = [_Attention(layout, modules, flow) for layout in heads.layouts.values()]
    inside = {id(m) for layout in attention for m in layout.inside}
    with (
        requiring_grad(module.parameters()),
        torch.inference_mode(False),
        torch.enable_grad(),
        ExitStack() as stack,
    ):
        for layout in attention:
            layout.watch(stack)
        for m in linear.values():
            if id(m) not in inside:
                flow.watch_input(m, stack)
                flow.watch_output(m, m, stack)
        fixed = flow.sources(run())
    groups = [group for layout in attention for group in layout.groups()]
    groups += flow.groups(fixed, [key for layout in attention for key in layout.inputs])
    order = {name: number for number, name in enumerate(flow.names.values())}
    groups.sort(key=lambda group: (order[group.axes[0].parameter], group.name))
    seen = Counter(group.name for group in groups)
    return tuple(
        group if seen[group.name] == 1 else replace(group, name=f"{group.name} ({number})")
        for number, group in enumerate(groups, 1)
    )


def _axes(layer: nn.Module) -> tuple[int, int]:
    """Return the numbers of the axes (out, in) of the weight of a linear layer."""
    return (1, 0) if type(layer).__name__ == "Conv1D" else (0, 1)


class _Flow:
    """Axes of parameters in sets of equal units, found as layers run."""

    def __init__(self, module: nn.Module) -> None:
        self.names = {id(p): name for name, p in module.named_parameters()}  # the first name of a tied one
        self.known: Any = scipy.cluster.hierarchy.DisjointSet()
        self._parameters = {id(p): p for p in module.parameters()}
        self._outputs: dict[Any, _Key | str] = {}  # by node of the graph; a text for what must not be read on
        self._readers: set[_Key] = set()
        self._divided: set[_Key] = set()

    def key(self, parameter: Tensor, axis: int) -> _Key:
        if id(parameter) not in self.names:
            raise ValueError("a layer's weight depends on other parameters: remove the reparametrization")
        key = (id(parameter), axis)
        self.known.add(key)
        return key

    def _length(self, key: _Key) -> int:
        return self._parameters[key[0]].shape[key[1]]

    def watch_input(self, layer: nn.Module, stack: ExitStack) -> _Key:
        """Follow the units that a linear layer reads; return the axis of these in its weight."""
        key = self.key(cast(Tensor, layer.weight), _axes(layer)[1])

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.read(cast(Tensor, first_tensor((*args, *kwargs.values()))), key)

        stack.callback(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
        return key

    def watch_output(self, m: nn.Module, by: nn.Module | str, stack: ExitStack) -> None:
        """Follow the output of a module: units of a linear layer, or a text for what must not be read on."""

        def after(_: nn.Module, __: Any, output: Any) -> None:
            written: _Key | str
            if isinstance(by, str):
                written = by
            else:
                written = self.key(cast(Tensor, by.weight), _axes(by)[0])
                if isinstance(bias := by.bias, Tensor):
                    self.known.merge(self.key(bias, 0), written)
            node = cast(Tensor, first_tensor(output)).grad_fn
            if node is not None:
                self._outputs[node] = written

        stack.callback(m.register_forward_hook(after).remove)

    def read(self, vectors: Tensor, reader: _Key) -> None:
        """Join the axis of a reader and all whose units it reads."""
        self._readers.add(reader)
        for key in self.sources(vectors):
            self.known.merge(key, reader)

    def sources(self, vectors: Tensor) -> list[_Key]:
        """Return the axes of parameters from which vectors come by operations that treat dimensions alike."""
        found: dict[_Key, None] = {}
        waiting = [(vectors.grad_fn, False)]
        seen = set()
        while waiting:
            node, divided = waiting.pop()
            if node is None or (node, divided) in seen:
                continue
            seen.add((node, divided))
            key = self._outputs.get(node)
            leaf: Any = getattr(node, "variable", None)
            if isinstance(key, str):
                raise ValueError(f"expected a model that uses {key} only in attention, got another use")
            if key is None and leaf is None:
                divided = _divides(node) or divided
                waiting += [(before, divided) for before, _ in node.next_functions]
            if key is None and id(leaf) in self._parameters and leaf.ndim:
                key = self.key(leaf, leaf.ndim - 1)
            if key is not None and self._length(key) > 1:
                found[key] = None
                if divided:
                    self._divided.add(key)
        return list(found)

    def groups(self, fixed: Sequence[_Key], streams: Sequence[_Key]) -> Iterator[UnitGroup]:
        """Yield the groups of units that layers read, except the fixed ones."""
        order = {identity: number for number, identity in enumerate(self.names)}
        free = {self.known[key] for key in streams} - {self.known[key] for key in fixed}
        for subset in self.known.subsets():
            if subset & {*fixed} or subset <= self._readers or not subset & self._readers:
                continue
            keys = sorted(subset, key=lambda key: (order[key[0]], key[1]))
            size = min(map(self._length, keys))
            name = f"units of {self.names[keys[0][0]].rpartition('.')[0] or self.names[keys[0][0]]}"
            if subset & free and len(free) == 1:
                name = "residual stream"
            axes = []
            for key in keys:
                blocks, rest = divmod(self._length(key), size)
                if rest or (blocks > 1 and not subset & self._divided):
                    raise ValueError(
                        f"{name}: expected {size} units in each parameter, got {self._length(key)} in "
                        f"{self.names[key[0]]!r}: lmdyn does not know the units of such a model"
                    )
                axes.append(UnitAxis(self.names[key[0]], key[1], blocks))
            if size > 1:
                yield UnitGroup(name, size, tuple(axes))


def _divides(node: Any) -> bool:
    """Return whether an operation divides the units in blocks, as gates do; others count as treating units alike."""
    name = re.sub(r"Backward\d*$", "", node.name().rpartition("::")[2])
    if name not in ("Split", "SplitWithSizes", "Glu"):
        return False
    axes = len(node._input_metadata[0].shape)
    # autograd keeps negative numbers as unsigned ones
    return bool((node._saved_dim - 2**64 * (node._saved_dim >= 2**63)) % axes == axes - 1)


class _Attention:
    """Heads of an attention module in its parameters."""

    def __init__(self, layout: HeadLayout, modules: dict[str, nn.Module], flow: _Flow) -> None:
        self._layout, self._flow = layout, flow
        self._module = modules[layout.path]
        self._output = modules[layout.output]
        self._projections = [modules[path] for path in layout.projections]
        self.inside = [*self._module.modules(), self._output]
        self.inputs: list[_Key] = []

    def watch(self, stack: ExitStack) -> None:
        """Follow what queries, keys and values read, and what the output projection writes."""
        for layer in self._projections:
            self.inputs.append(self._flow.watch_input(layer, stack))
            self._flow.watch_output(layer, f"queries, keys or values of {self._layout.path!r}", stack)
        ran = self._output
        if isinstance(self._module, nn.MultiheadAttention):
            ran = self._module
            stack.callback(ran.register_forward_pre_hook(self._before, with_kwargs=True).remove)
        self._flow.watch_output(ran, self._output, stack)

    def _before(self, m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        fused = getattr(m, "in_proj_weight", None)
        for name in ("query", "key", "value"):
            weight = getattr(m, f"{name[0]}_proj_weight") if fused is None else fused
            self.inputs.append(self._flow.key(weight, 1))
            self._flow.read(given[name], self.inputs[-1])

    def _norms(self) -> Iterator[tuple[Tensor, int]]:
        """Yield weights of norms of queries and keys with the width of a unit in them, 0 if all heads share them."""
        layout = self._layout
        own = {id(p) for layer in (*self._projections, self._output) for p in layer.parameters()}
        widths = {layout.width: 0, layout.kv_heads * layout.width: layout.width}
        widths[layout.heads * layout.width] = layout.heads // layout.kv_heads * layout.width
        if isinstance(self._module, nn.MultiheadAttention):
            return
        for p in self._module.parameters():
            # known are those with units of the stream, as the norm after ALBERT's attention
            if id(p) not in own and p.ndim == 1 and len(p) in widths and (id(p), 0) not in self._flow.known:
                yield p, widths[len(p)]

    def groups(self) -> Iterator[UnitGroup]:
        layout, names = self._layout, self._flow.names
        size, per = layout.kv_heads, layout.heads // layout.kv_heads
        if size < 2:
            return
        value_width = cast(Tensor, self._output.weight).shape[_axes(self._output)[1]] // layout.heads
        q, k, v = per * layout.width, layout.width, value_width
        found: list[tuple[Tensor, int, int, int]] = []  # parameter, axis, width, start
        if isinstance(self._module, nn.MultiheadAttention):
            separate = [getattr(self._module, f"{n}_proj_weight") for n in "qkv"]
            fused = self._module.in_proj_weight, self._module.in_proj_bias
            found += [(p, 0, k, 0) for p in separate if p is not None]
            found += [(p, 0, k, i * size * k) for p in fused if p is not None for i in range(3)]
        elif len(self._projections) == 3:
            for layer, width in zip(self._projections, (q, k, v), strict=True):
                found += [(p, axis, width, 0) for p, axis in _rows(layer)]
        else:
            parts = [(q + k + v, 0)] if layout.by_head else [(q, 0), (k, size * q), (v, size * (q + k))]
            found += [(p, axis, *part) for p, axis in _rows(self._projections[0]) for part in parts]
        found.append((cast(Tensor, self._output.weight), _axes(self._output)[1], per * value_width, 0))
        found += [(p, 0, width, 0) for p, width in self._norms() if width]
        name = f"heads of {layout.path}" if per == 1 else f"groups of heads of {layout.path}"
        yield UnitGroup(name, size, tuple(UnitAxis(names[id(p)], a, 1, w, s) for p, a, w, s in found))


def _rows(layer: nn.Module) -> Iterator[tuple[Tensor, int]]:
    """Yield the parameters of a linear layer that have its outputs, with the number of the axis."""
    yield cast(Tensor, layer.weight), _axes(layer)[0]
    if isinstance(bias := layer.bias, Tensor):
        yield bias, 0
