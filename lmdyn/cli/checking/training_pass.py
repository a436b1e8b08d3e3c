"""Cost of a training batch: memory and time, measured on some of its rows; operations, counted."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.inspection.forward import call_module, logits_of
from lmdyn.callbacks.conditions.finding import Cost
from lmdyn.callbacks.conditions.machine import busy, in_time, most_allocated
from lmdyn.callbacks.observing.probe import ProbeSet
from lmdyn.callbacks.observing.requirements import silently

__all__ = ["TrainingPass", "duration", "training_pass"]

T = TypeVar("T")

log = logging.getLogger(__name__)

ENOUGH, MOST = 1.0, 10.0
"""Rows are doubled until a pass takes at least the first (in seconds) and twice the time of one row, or the second."""

TERAFLOPS = 100.0
"""Assumed speed of an accelerator in 10¹² operations per second: a third of the peak of an A100."""


@dataclass(frozen=True)
class TrainingPass:
    """Forward and backward pass of a training batch, without the optimizer's update.

    Attributes:
        cost: bytes of memory.
        seconds: time on this machine's CPU; None if it cannot be timed.
        rows: number of rows that were timed, and of all rows.
        operations: floating-point operations of its matrix products, except in custom kernels; None if none are
            known, or if recurrent layers do most of them.
        busy: whether other processes used at least half of the processors: training alone is faster.
    """

    cost: Cost
    seconds: float | None
    rows: tuple[int, int]
    operations: int | None
    busy: bool = False


def training_pass(module: nn.Module, data: Any) -> TrainingPass | None:
    """Measure memory, time and operations of a training batch on the CPU, on its first row and on more rows.

    The loss is the module's own ``losses(batch)``, as in :class:`~lmdyn.models.MaskedLanguageModel`, otherwise one of
    the logits of all positions, as for a causal model. Parameters, gradients and random states do not change.

    Args:
        module: the model with its layers.
        data: the datamodule after setup.

    Returns:
        The pass; None if there is no batch, or if the module has its own calling convention.
    """
    gradients = [p.grad for p in module.parameters()]
    others, fast = busy(), torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)  # training never uses it
        with observing(module), torch.enable_grad(), torch.random.fork_rng(devices=[]), silently():
            batch = next(iter(ProbeSet(data.train_dataloader()).batches()))
            rows = next(len(v) for v in batch.values() if isinstance(v, Tensor))
            compute = _Pass(module, batch, rows)
            one, two = (most_allocated(partial(compute, most)) for most in (1, 2))
            timed, seconds = _known(partial(_timed, compute, rows)) or (min(2, rows), None)
            operations = _known(partial(_operations, compute, timed))
    except Exception as error:  # the user's training_step may call the module differently
        log.debug("the cost of a training batch is unknown: %s", error)
        return None
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for parameter, gradient in zip(module.parameters(), gradients, strict=True):
            parameter.grad = gradient
    own = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    memory = max(0, one - own) + (rows - 1) * max(0, two - one)
    cost = Cost(f"a training batch of {rows} rows", memory, "make the batches smaller")
    counted = None if operations is None else operations * rows // timed
    return TrainingPass(cost, seconds, (timed, rows), counted, others)


def _known(measure: Callable[[], T]) -> T | None:
    """Return the measurement, or None if it fails: memory is known without it."""
    try:
        return measure()
    except Exception as error:
        log.debug("a training batch cannot be timed or counted: %s", error)
        return None


class _Pass:
    """Forward and backward pass of the first rows, with gradients of the parameters."""

    def __init__(self, module: nn.Module, batch: Mapping[str, Any], rows: int) -> None:
        self.module, self._batch, self._rows = module, batch, rows

    def __call__(self, most: int) -> None:
        first = {
            k: v[:most] if isinstance(v, Tensor) and len(v) == self._rows else v
            for k, v in self._batch.items()
        }
        self.module.zero_grad(set_to_none=True)
        loss = self._own_loss(first)
        if loss is None:
            loss = logits_of(call_module(self.module, first)).float().log_softmax(-1).sum()
        loss.backward()

    def _own_loss(self, batch: Mapping[str, Any]) -> Tensor | None:
        """Return the module's loss; None if it has no ``losses(batch)``, or one with another meaning."""
        losses = getattr(self.module, "losses", None)
        if not callable(losses):
            return None
        try:
            return torch.stack(list(losses(batch).values())).sum()
        except Exception as error:
            log.debug("losses of %s are not losses of a batch: %s", type(self.module).__name__, error)
            return None


def _operations(compute: _Pass, rows: int) -> int | None:
    """Count operations of the matrix products of these rows, including attention: twice the multiplications."""
    if any(isinstance(m, (nn.RNNBase, nn.RNNCellBase)) for m in compute.module.modules()):
        return None
    grouped = {torch.ops.aten._grouped_mm: _of_grouped} if hasattr(torch.ops.aten, "_grouped_mm") else {}
    # kernels of the CPU's fused attention are not counted
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=grouped) as counter:
        compute(rows)
    return int(counter.get_total_flops()) or None


def _of_grouped(a: Any, b: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Count operations of products of row (or column) groups with one matrix each, as in experts, from their shapes."""
    groups = len(a) == len(b) == 3  # the same number of rows in each
    return int(2 * a[-2] * a[-1] * b[-1] * (a[0] if groups else 1))


def _timed(compute: _Pass, rows: int) -> tuple[int, float]:
    """Return the number of timed rows and the seconds of all rows, extrapolated linearly: some time is constant."""
    some, one = 1, _seconds(compute, 1)
    least = one
    while some < rows and least < MOST and (least < ENOUGH or least < 2 * one):
        some = min(rows, 2 * some)
        least = _seconds(compute, some)
    return some, least if some == rows else least + (rows - some) * max(0.0, least - one) / (some - 1)


def _seconds(compute: _Pass, rows: int) -> float:
    """Return the shorter time of two passes, as other processes may interfere; of one pass if it is long."""
    taken: list[float] = []
    while len(taken) < 2 and sum(taken) < ENOUGH:
        began = time.perf_counter()
        compute(rows)
        taken.append(time.perf_counter() - began)
    return min(taken)


def duration(batch: TrainingPass, batches: int | None, accumulated: int, *, elsewhere: bool) -> str:
    """Return the duration of a training in words: its passes, without the optimizer and observers.

    Args:
        batch: one of its batches.
        batches: batches of the whole training; None if unknown: then the time of an update is given.
        accumulated: batches per update.
        elsewhere: whether it is to run on an accelerator, which was not timed.

    Example:
        >>> batch = TrainingPass(Cost("a training batch of 8 rows", 1 << 20), 0.5, (4, 8), 3 * 10**12)
        >>> duration(batch, 7200, 1, elsewhere=False)
        'passes about 1.0 h on the CPU (at least 2.2e+16 operations; 4 of 8 rows timed)'
        >>> duration(batch, 1_440_000, 2, elsewhere=True)
        'passes at least 4.3e+18 operations on each device, 12 h at 100 teraflops'
    """
    number = accumulated if batches is None else batches
    whose = "passes of an update" if batches is None else "passes"
    made = None if batch.operations is None else number * batch.operations
    counted = "" if made is None else f"at least {made:.1e} operations"
    if made is not None and (elsewhere or batch.seconds is None):
        there = in_time(made / (TERAFLOPS * 1e12))
        return f"{whose} {counted} on each device, {there} at {TERAFLOPS:g} teraflops"
    if batch.seconds is None:
        return "hours unknown"
    timed, rows = batch.rows
    here = "on this CPU, none of the accelerator" if elsewhere else "on the CPU"
    here += " as busy as it is" if batch.busy else ""
    said = "; ".join(filter(None, [counted, f"{timed} of {rows} rows timed"]))
    return f"{whose} about {in_time(number * batch.seconds)} {here} ({said})"
