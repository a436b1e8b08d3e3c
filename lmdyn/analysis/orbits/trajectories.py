"""Trajectories of a map x ↦ f(x): recorded observables, numerical precision, powers of the map."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from operator import attrgetter
from typing import Any, ParamSpec, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = [
    "Map",
    "Trajectory",
    "check_precision",
    "check_steps",
    "exact_products",
    "finite_rows",
    "iterate",
    "of_states",
    "part_of",
    "per_row",
    "power_at",
    "repeat",
    "state_norm",
]

P = ParamSpec("P")
R = TypeVar("R")
Map = Callable[[Tensor], Tensor]
"""x ↦ f(x), of (batch, *state) to the same shape and dtype, with independent rows."""

_GRAPHS = 4  # for the most recent shapes
_REDUCED = ("tf32", "bf16")
# the settings of torch 2.9 and later that kernels use, with defaults of their backends resolved
_PRODUCTS = (
    "backends.mkldnn.matmul",
    "backends.mkldnn.conv",
    "backends.mkldnn.rnn",
    "backends.cuda.matmul",
    "backends.cudnn.conv",
    "backends.cudnn.rnn",
)


def check_precision(x: Tensor) -> None:
    """Raise an error for iteration in less than float32: dynamics amplify rounding.

    Args:
        x: (batch, *state) state, whose dtype is checked.

    Raises:
        ValueError: if the state has no batch, has no numbers, or is neither float32 nor float64.

    Example:
        >>> check_precision(torch.zeros(1, 2, dtype=torch.bfloat16))
        Traceback (most recent call last):
        ValueError: expected a state in float32 or float64, got torch.bfloat16: convert state and map
    """
    if x.ndim < 2:
        raise ValueError(
            f"states must be (batch, *state), got shape {tuple(x.shape)}: pass (batch, 1) for a map of one number"
        )
    if 0 in x.shape[1:]:
        raise ValueError(f"expected states of at least one number, got shape {tuple(x.shape)}")
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"expected a state in float32 or float64, got {x.dtype}: convert state and map")


@contextmanager
def exact_products() -> Iterator[None]:
    """Set full float32 products on every backend (oneDNN, cuBLAS, cuDNN) and no autocast; restore the settings after.

    Example:
        >>> torch.set_float32_matmul_precision("medium")
        >>> with exact_products():
        ...     torch.get_float32_matmul_precision()
        'highest'
        >>> torch.get_float32_matmul_precision()
        'medium'
        >>> torch.set_float32_matmul_precision("highest")
    """
    accelerator = torch.accelerator.current_accelerator()
    before = {setting: setting.fp32_precision for setting in _settings()}
    with ExitStack() as stack:
        stack.callback(_restore, before)
        for device in {"cpu"} | ({accelerator.type} if accelerator else set()):
            stack.enter_context(torch.autocast(device, enabled=False))
        # torch raises an error if an old setting that contradicts the new ones is read, as cudnn.flags() does: both
        # are kept consistent, cuDNN's from the old side and the products' from the new one. What is left unchanged
        # (suppress) was contradictory before, and the new settings decide.
        with suppress(RuntimeError):
            if torch.backends.cudnn.allow_tf32:
                stack.callback(setattr, torch.backends.cudnn, "allow_tf32", True)
                torch.backends.cudnn.allow_tf32 = False
        for setting in before:
            if setting.fp32_precision in _REDUCED:
                setting.fp32_precision = "ieee"
        with suppress(RuntimeError):
            if (old := torch.get_float32_matmul_precision()) != "highest":
                stack.callback(torch.set_float32_matmul_precision, old)
                torch.set_float32_matmul_precision("highest")
        yield


def of_states(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of states ``x`` check their precision, and run with exact products and without gradients.

    Example:
        >>> of_states(lambda f, x: f(x))(torch.tanh, torch.zeros(1, 2))
        tensor([[0., 0.]])
    """
    signature = inspect.signature(function)

    @wraps(function)
    def exact(*args: P.args, **kwargs: P.kwargs) -> R:
        check_precision(signature.bind(*args, **kwargs).arguments["x"])
        with exact_products(), torch.no_grad():
            return function(*args, **kwargs)

    return exact


@dataclass(frozen=True)
class Trajectory:
    """Recorded observables of a trajectory.

    Attributes:
        observables: (steps + 1, batch, ...) values of each observable at t = 0, 1, … steps.
        final: (batch, *state) state after all steps.
        diverged: (batch,) first t at which the state is not finite; −1 for none.
    """

    observables: dict[str, Tensor]
    final: Float[Tensor, "batch *state"]
    diverged: Int[Tensor, "batch"]


@of_states
def iterate(
    f: Map | Sequence[Map],
    x: Float[Tensor, "batch *state"],
    steps: int,
    observables: Mapping[str, Callable[[Tensor], Tensor]],
) -> Trajectory:
    """Iterate x ↦ f(x) and record observables of the state, not the states.

    Memory is that of the observables and of a few states, whatever the number of steps. Rows that diverge continue as
    NaN or infinity, without an exception, and are reported in the result.

    Args:
        f: map of (batch, *state) to the same shape; or a sequence of maps for models whose layers differ (time is
            depth): ``f[t]`` maps from t to t + 1.
        x: (batch, *state) state at t = 0, float32 or float64.
        steps: number of applications of the map, at least 0.
        observables: functions of the state by name, (batch, *state) to (batch, ...).

    Raises:
        ValueError: if the precision is below float32 (see :func:`check_precision`), if there are more steps than maps
            in a sequence, or if a map changes shape or dtype.

    Example:
        >>> iterate(lambda x: x / 2, torch.ones(1, 3), 2, {"sum": lambda x: x.sum(1)}).observables["sum"]
        tensor([[3.0000], [1.5000], [0.7500]])
    """
    check_steps(f, steps)
    kept: dict[str, Tensor] = {}
    diverged = x.new_full((len(x),), -1, dtype=torch.int64)
    advance = power_at(f, 1)
    for t in range(steps + 1):
        if t:
            x = advance(x, t - 1)
        for name, observable in observables.items():
            value = observable(x)
            if name not in kept:
                kept[name] = value.new_empty(steps + 1, *value.shape)
            kept[name][t] = value
        finite = finite_rows(x)
        diverged = torch.where(finite | (diverged >= 0), diverged, t)
    return Trajectory(kept, x, diverged)


def repeat(f: Map, n: int) -> Map:
    """Return the n-th power of a map, x ↦ f(f(… f(x))), without gradients.

    On CUDA, the n applications are captured as one CUDA graph for each shape and dtype of the input at its first call,
    and replayed: launching small kernels would otherwise take longer than running them. The map must therefore not
    synchronize with the device, and the graph reads the weights from their memory at capture: create a new power after
    a module was moved or its parameters were replaced. On other devices, it is a plain loop.

    Args:
        f: map of (batch, *state) to the same shape.
        n: number of applications, at least 1.

    Raises:
        ValueError: if n < 1; when called, if the map changes shape or dtype.

    Example:
        >>> repeat(lambda x: 2 * x, 10)(torch.ones(1, 1))
        tensor([[1024.]])
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    graphs: dict[Any, Map] = {}
    same = [f] * n

    def power(x: Tensor) -> Tensor:
        if not x.is_cuda or torch.cuda.is_current_stream_capturing():
            # the map may write into its argument, or reuse its result
            return _applied(same, x.clone()).clone()
        key = (x.shape, x.dtype, x.device)
        if key not in graphs:
            while len(graphs) >= _GRAPHS:  # each holds its own memory
                del graphs[next(iter(graphs))]
            graphs[key] = _captured(same, x)
        return graphs[key](x)

    return power


def power_at(f: Map | Sequence[Map], n: int) -> Callable[[Tensor, int], Tensor]:
    """Return the n steps from time t on, as a function of the state and t, for a map or a sequence of maps.

    Example:
        >>> layers = [lambda x: x + 1, lambda x: 2 * x, lambda x: -x]
        >>> power_at(layers, 2)(torch.ones(1, 1), 1)
        tensor([[-2.]])
    """
    if not isinstance(f, Sequence):
        power = repeat(f, n)
        return lambda x, t: power(x)
    maps = f
    return lambda x, t: _applied(maps[t : t + n], x)


@torch.no_grad()
def _applied(maps: Sequence[Map], x: Tensor) -> Tensor:
    for f in maps:
        y = f(x)
        if y.shape != x.shape or y.dtype != x.dtype:
            raise ValueError(
                f"the map takes {tuple(x.shape)} {x.dtype}, but returns {tuple(y.shape)} {y.dtype}: expected equal "
                "shapes and types"
            )
        x = y
    return x


def part_of(f: Map, rows: Tensor | slice) -> Map:
    """Return the map of some of the rows that a map belongs to; a map that belongs to none is returned unchanged.

    A map belongs to rows if each row has data in addition to its state, such as a text that is injected at each step
    (:class:`~lmdyn.analysis.EncoderMap`); it then has a method ``part``.

    Args:
        f: a map.
        rows: their numbers or a mask, among the rows that it belongs to.

    Example:
        >>> part_of(torch.tanh, torch.tensor([1])) is torch.tanh
        True
    """
    part: Callable[[Tensor | slice], Map] | None = getattr(f, "part", None)
    return f if part is None else part(rows)


def check_steps(f: Map | Sequence[Map], steps: int) -> None:
    """Raise an error for a negative number of steps, and for more steps than a sequence of maps has.

    Raises:
        ValueError: in these cases.

    Example:
        >>> check_steps([torch.tanh], 2)
        Traceback (most recent call last):
        ValueError: steps is 2, but the sequence has 1 maps, one for each step: use at most 1 steps
    """
    if steps < 0:
        raise ValueError(f"steps must be at least 0, got {steps}")
    if isinstance(f, Sequence) and steps > len(f):
        raise ValueError(
            f"steps is {steps}, but the sequence has {len(f)} maps, one for each step: use at most {len(f)} steps"
        )


def finite_rows(x: Tensor) -> Tensor:
    """Return whether each row's state is finite, (batch,)."""
    return x.flatten(1).isfinite().all(1)


def per_row(values: Tensor, x: Tensor) -> Tensor:
    """Reshape (batch,) to (batch, 1, …), to broadcast with (batch, *state).

    Example:
        >>> per_row(torch.ones(2), torch.zeros(2, 3, 4)).shape
        torch.Size([2, 1, 1])
    """
    return values.reshape(-1, *[1] * (x.ndim - 1))


def state_norm(x: Float[Tensor, "batch *state"]) -> Float[Tensor, "batch"]:
    """Compute the Euclidean norm of each row over all dimensions of its state jointly, summed in float64.

    Example:
        >>> state_norm(torch.ones(2, 2, 8))
        tensor([4., 4.], dtype=torch.float64)
    """
    x = x if x.is_floating_point() else x.double()
    rows = x.flatten(1) if x.ndim > 1 else x[:, None]
    norm: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norm


def _captured(maps: Sequence[Map], x: Tensor) -> Map:
    """Return the power as a CUDA graph for inputs like x."""
    with torch.cuda.device(x.device), torch.no_grad():
        static = x.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # libraries allocate workspaces at first, which a capture forbids
                maps[0](static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = _applied(maps, static)

    def replay(x: Tensor) -> Tensor:
        with torch.cuda.device(x.device), torch.no_grad():
            static.copy_(x)
            graph.replay()
        return out.clone()  # the next replay overwrites it

    return replay


def _settings() -> list[Any]:
    """Return the objects of torch with an ``fp32_precision``; there are none before torch 2.9."""
    found = [attrgetter(name)(torch) for name in _PRODUCTS if hasattr(torch.backends, "fp32_precision")]
    return [setting for setting in found if hasattr(setting, "fp32_precision")]


def _restore(settings: Mapping[Any, str]) -> None:
    """Restore settings that differ (equal ones may be inherited, and stay so)."""
    for setting, precision in settings.items():
        if setting.fp32_precision != precision:
            setting.fp32_precision = precision
