"""Trajectories of a map x ↦ f(x): what is kept of them, how exactly they are computed, powers of the map."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = [
    "Map",
    "Trajectory",
    "check_precision",
    "check_steps",
    "exact_products",
    "iterate",
    "part_of",
    "power_at",
    "repeat",
    "state_norm",
]

Map = Callable[[Tensor], Tensor]
"""x ↦ f(x), of (batch, *state) to the same shape and dtype; rows do not see each other."""

_GRAPHS = 4  # of the shapes that were met last
_REDUCED = ("tf32", "bf16")
# the settings of torch 2.9 and later that kernels read, defaults of their backends resolved
_PRODUCTS = (
    "torch.backends.mkldnn.matmul",
    "torch.backends.mkldnn.conv",
    "torch.backends.mkldnn.rnn",
    "torch.backends.cuda.matmul",
    "torch.backends.cudnn.conv",
    "torch.backends.cudnn.rnn",
)


def check_precision(x: Tensor) -> None:
    """Refuse to iterate in less than float32: dynamics amplify what tf32 and bf16 round off.

    Float64 products are always exact. For float32 every setting of torch is looked at that leads to products,
    convolutions or recurrent steps in tf32 or bf16 on the device of ``x``, in its old form
    (``set_float32_matmul_precision``, ``allow_tf32``) and its new one (``fp32_precision``, since 2.9). Mind that torch
    computes convolutions and recurrent layers on CUDA in tf32 unless told otherwise: there, a program that sets
    nothing is refused.

    Args:
        x: (batch, *state) the state, of which dtype and device are looked at.

    Raises:
        ValueError: a state without batch, without numbers, or neither float32 nor float64; autocast, or reduced
            products.

    Example:
        >>> check_precision(torch.zeros(1, 2, dtype=torch.bfloat16))
        Traceback (most recent call last):
        ValueError: a state of dtype torch.bfloat16: dynamics run in float32 or float64, convert it (and the map)
    """
    if x.ndim < 2:
        raise ValueError(
            f"states are (batch, *state), and these have the shape {tuple(x.shape)}: starts of a map of one number are "
            "(batch, 1)"
        )
    if 0 in x.shape[1:]:
        raise ValueError(f"states without numbers, of shape {tuple(x.shape)}: expected one dimension or more")
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"a state of dtype {x.dtype}: dynamics run in float32 or float64, convert it (and the map)"
        )
    remedy = "iterate under `with lmdyn.analysis.orbits.trajectories.exact_products():`"
    if torch.is_autocast_enabled(x.device.type):
        raise ValueError(f"autocast is on for {x.device.type}: dynamics run in float32 or float64; {remedy}")
    if x.dtype == torch.float32 and (reduced := _reduced_settings(x.device)):
        raise ValueError(
            f"float32 products are in tf32 or bf16 by {', '.join(reduced)}: dynamics run in full precision; "
            f'{remedy}, or set these to "ieee" ("highest", False)'
        )


@contextmanager
def exact_products() -> Iterator[None]:
    """Full float32 products on every backend (oneDNN, cuBLAS, cuDNN) and no autocast; settings are put back after.

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
    before = {name: _fp32_precision(name) for name in _PRODUCTS}
    with ExitStack() as stack:
        stack.callback(_restore, before)
        for device in {"cpu"} | ({accelerator.type} if accelerator else set()):
            stack.enter_context(torch.autocast(device, enabled=False))
        # torch refuses to read an old setting that contradicts the new ones, as cudnn.flags() does: both are kept
        # in line, cuDNN's from the old side and the products' from the new one. What is left as it is (suppress)
        # was contradictory before, and the new settings decide.
        with suppress(RuntimeError):
            if torch.backends.cudnn.allow_tf32:
                stack.callback(setattr, torch.backends.cudnn, "allow_tf32", True)
                torch.backends.cudnn.allow_tf32 = False
        for name in _PRODUCTS:
            if _fp32_precision(name) in _REDUCED:
                _setting(name).fp32_precision = "ieee"
        with suppress(RuntimeError):
            if (old := torch.get_float32_matmul_precision()) != "highest":
                stack.callback(torch.set_float32_matmul_precision, old)
                torch.set_float32_matmul_precision("highest")
        yield


@dataclass(frozen=True)
class Trajectory:
    """What was kept of a trajectory.

    Attributes:
        observables: name to (times, batch, ...) values at ``times``.
        times: (times,) steps 0, every, 2·every, … at which the state was looked at.
        final: (batch, *state) state after all steps.
        diverged: (batch,) first of ``times`` with a value that is not finite in the state; −1 if there is none.
        dtype: precision of the state.
    """

    observables: dict[str, Tensor]
    times: Int[Tensor, "times"]
    final: Float[Tensor, "batch *state"]
    diverged: Int[Tensor, "batch"]
    dtype: torch.dtype


@torch.no_grad()
def iterate(
    f: Map | Sequence[Map],
    x: Float[Tensor, "batch *state"],
    steps: int,
    observables: Mapping[str, Callable[[Tensor], Tensor]],
    every: int = 1,
) -> Trajectory:
    """Iterate x ↦ f(x) and keep observables of the state, not the states.

    Memory is that of the observables and of a few states, whatever the number of steps. Rows that diverge go on as
    NaN or infinity, without an exception, and are named in the result.

    Args:
        f: map of (batch, *state) to the same; or a sequence of maps for models whose layers differ (time is depth):
            ``f[t]`` leads from t to t + 1.
        x: (batch, *state) state at t = 0, float32 or float64.
        steps: how often the map is applied, at least 0.
        observables: name to a function of the state, (batch, *state) to (batch, ...).
        every: the state is looked at each so many steps, t = 0 included. On CUDA these steps are one CUDA graph.

    Raises:
        ValueError: precision below float32 (see :func:`check_precision`), more steps than a sequence has maps,
            a map that changes shape or dtype, an observable that is not (batch, ...).

    Example:
        >>> halves = iterate(lambda x: x / 2, torch.ones(1, 3), 4, {"sum": lambda x: x.sum(1)}, every=2)
        >>> halves.times, halves.observables["sum"]
        (tensor([0, 2, 4]), tensor([[3.0000], [0.7500], [0.1875]]))
    """
    check_precision(x)
    if every < 1:
        raise ValueError(f"the state is looked at every 1 or more steps, got every={every}")
    check_steps(f, steps)
    times = range(0, steps + 1, every)
    kept: dict[str, Tensor] = {}
    diverged = torch.full((len(x),), -1, dtype=torch.int64, device=x.device)
    advance, dtype = power_at(f, every), x.dtype
    for i, t in enumerate(times):
        if i:
            x = advance(x, t - every)
        for name, observable in observables.items():
            value = observable(x)
            if name not in kept:
                if value.ndim == 0 or len(value) != len(x):
                    raise ValueError(
                        f"observable {name!r} gives {tuple(value.shape)} of {len(x)} rows: "
                        "expected (batch, ...), one value or more a row"
                    )
                kept[name] = value.new_empty(len(times), *value.shape)
            kept[name][i] = value
        finite = _rows(x).isfinite().all(1)
        diverged = torch.where(finite | (diverged >= 0), diverged, t)
    if rest := steps % every:
        x = power_at(f, rest)(x, steps - rest)
    return Trajectory(kept, torch.arange(0, steps + 1, every), x, diverged, dtype)


def repeat(f: Map, n: int) -> Map:
    """The n-th power of a map, x ↦ f(f(… f(x))), without gradients.

    On CUDA the n applications are captured as one CUDA graph for each shape and dtype of the input at its first
    call, and replayed: launching small kernels would otherwise take longer than running them. The map must therefore
    not wait for the device, and the graph reads the weights where they lay when it was captured: make a new power
    after a module was moved or its parameters were replaced. On other devices it is a plain loop.

    Args:
        f: map of (batch, *state) to the same.
        n: how often it is applied, at least 1.

    Raises:
        ValueError: n < 1; in a call, a map that changes shape or dtype.

    Example:
        >>> repeat(lambda x: 2 * x, 10)(torch.ones(1, 1))
        tensor([[1024.]])
    """
    if n < 1:
        raise ValueError(f"a map is applied 1 time or more, got n={n}")
    graphs: dict[tuple[torch.Size, torch.dtype, torch.device], Map] = {}

    @torch.no_grad()
    def plain(x: Tensor) -> Tensor:
        for _ in range(n):
            y = f(x)
            # no function of its own: steps of a small map take as long as a call
            if y.shape != x.shape or y.dtype != x.dtype:
                raise _other_space(y, x)
            x = y
        return x

    def power(x: Tensor) -> Tensor:
        if not x.is_cuda or torch.cuda.is_current_stream_capturing():
            return plain(x)
        key = (x.shape, x.dtype, x.device)
        if key not in graphs:
            while len(graphs) >= _GRAPHS:  # each holds memory of its own
                del graphs[next(iter(graphs))]
            graphs[key] = _captured(plain, f, x)
        return graphs[key](x)

    return power


def power_at(f: Map | Sequence[Map], n: int) -> Callable[[Tensor, int], Tensor]:
    """The n steps from time t on, as a function of the state and t: of a map, or of a sequence of maps.

    Example:
        >>> layers = [lambda x: x + 1, lambda x: 2 * x, lambda x: -x]
        >>> power_at(layers, 2)(torch.ones(1, 1), 1)
        tensor([[-2.]])
    """
    if not isinstance(f, Sequence):
        power = repeat(f, n)
        return lambda x, t: power(x)
    maps = f

    @torch.no_grad()
    def section(x: Tensor, t: int) -> Tensor:
        for layer in maps[t : t + n]:
            y = layer(x)
            if y.shape != x.shape or y.dtype != x.dtype:
                raise _other_space(y, x)
            x = y
        return x

    return section


def part_of(f: Map, rows: Tensor | slice) -> Map:
    """The map of some of the rows that a map belongs to; of one that belongs to none, the map itself.

    A map belongs to rows if each has something of its own besides its state, as a text that is injected at each step
    (:class:`~lmdyn.analysis.EncoderMap`); it then has a method ``part``.

    Args:
        f: a map.
        rows: their numbers or a mask, among those that it belongs to.

    Example:
        >>> part_of(torch.tanh, torch.tensor([1])) is torch.tanh
        True
    """
    part: Callable[[Tensor | slice], Map] | None = getattr(f, "part", None)
    return f if part is None else part(rows)


def check_steps(f: Map | Sequence[Map], steps: int) -> None:
    """Refuse a negative number of steps, and more steps than a sequence of maps has.

    Raises:
        ValueError: these.

    Example:
        >>> check_steps([torch.tanh], 2)
        Traceback (most recent call last):
        ValueError: 2 steps through a sequence of 1 maps: time is depth there, ask for at most 1 steps
    """
    if steps < 0:
        raise ValueError(f"steps must be 0 or more, got {steps}")
    if isinstance(f, Sequence) and steps > len(f):
        raise ValueError(
            f"{steps} steps through a sequence of {len(f)} maps: time is depth there, "
            f"ask for at most {len(f)} steps"
        )


def state_norm(x: Float[Tensor, "batch *state"]) -> Float[Tensor, "batch"]:
    """Euclidean norm of each row over all dimensions of its state jointly, summed in float64.

    Example:
        >>> state_norm(torch.ones(2, 2, 8))
        tensor([4., 4.], dtype=torch.float64)
    """
    x = x if x.is_floating_point() else x.double()
    rows = x if x.ndim == 2 else _rows(x)
    norm: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norm


def _rows(x: Tensor) -> Tensor:
    return x.flatten(1) if x.ndim > 1 else x[:, None]


def _other_space(y: Tensor, x: Tensor) -> ValueError:
    return ValueError(
        f"the map leads from {tuple(x.shape)} {x.dtype} to {tuple(y.shape)} {y.dtype}: "
        "a map of the state to itself is expected"
    )


def _captured(power: Map, f: Map, x: Tensor) -> Map:
    """The power as a CUDA graph of inputs like x."""
    with torch.cuda.device(x.device), torch.no_grad():
        static = x.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries allocate workspaces at first calls, which a capture forbids
            for _ in range(3):
                f(static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = power(static)

    def replay(x: Tensor) -> Tensor:
        with torch.cuda.device(x.device), torch.no_grad():
            static.copy_(x)
            graph.replay()
        return out.clone()  # the next replay overwrites it

    return replay


def _setting(name: str) -> Any:
    """The object below torch whose ``fp32_precision`` is meant; None before torch 2.9."""
    setting: Any = torch
    for part in name.split(".")[1:]:
        setting = getattr(setting, part, None)
    return setting if hasattr(setting, "fp32_precision") else None


def _fp32_precision(name: str) -> str:
    return str(getattr(_setting(name), "fp32_precision", "none"))


def _restore(precisions: dict[str, str]) -> None:
    """Put back what differs (what does not may be inherited, and stays so)."""
    for name, precision in precisions.items():
        if _fp32_precision(name) != precision:
            _setting(name).fp32_precision = precision


def _reduced_settings(device: torch.device) -> list[str]:
    """Names of the settings that lead to float32 products in tf32 or bf16 on this device."""
    cuda = device.type == "cuda"
    found = [
        f"{name}.fp32_precision"
        for name in _PRODUCTS
        if (cuda or "mkldnn" in name) and _fp32_precision(name) in _REDUCED
    ]
    # reading an old setting is an error where it contradicts the new ones, which then decide
    with suppress(RuntimeError):
        if torch.get_float32_matmul_precision() != "highest":
            found.append("torch.set_float32_matmul_precision")
    for name, backend in (("cuda.matmul", torch.backends.cuda.matmul), ("cudnn", torch.backends.cudnn)):
        with suppress(RuntimeError):
            if cuda and backend.allow_tf32:
                found.append(f"torch.backends.{name}.allow_tf32")
    return found
