"""What a training batch takes: memory and time, measured on some of its rows; operations, counted."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lmdyn.analysis.inspection.activations import observing
from lmdyn.analysis.inspection.forward import call_module
from lmdyn.callbacks.conditions.finding import Cost
from lmdyn.callbacks.conditions.machine import busy, in_time, most_allocated
from lmdyn.callbacks.observing.probe import ProbeSet
from lmdyn.callbacks.observing.requirements import silently

__all__ = ["TrainingPass", "duration", "training_pass"]

log = logging.getLogger(__name__)

SECONDS = 1.0
"""For so long rows of a batch are timed, the first apart."""

TERAFLOPS = 100.0
"""At which speed an accelerator is reckoned with, in 10¹² operations a second: a third of what an A100 does at most."""


@dataclass(frozen=True)
class TrainingPass:
    """Forward and backward pass of a training batch, without the optimizer's update.

    Attributes:
        cost: bytes of memory.
        seconds: on this machine's CPU.
        rows: how many of its rows were timed, and how many it has.
        operations: floating-point operations of its matrix products; None where some are not counted: those of
            recurrent layers.
        busy: whether other processes used half of the processors or more: training alone is faster.
    """

    cost: Cost
    seconds: float
    rows: tuple[int, int]
    operations: int | None
    busy: bool = False


def training_pass(module: nn.Module, data: Any) -> TrainingPass | None:
    """Memory, time and operations of a training batch, on the CPU: of its first row and of more of them.

    The loss is the module's own, ``losses(batch)``, as :class:`~lmdyn.models.MaskedLanguageModel` has it, else one of
    the logits of all positions, as a causal model is trained. Parameters, gradients, random numbers stay as they are.

    Args:
        module: with its layers.
        data: the datamodule, set up.

    Returns:
        None where there is no batch, or the module is called in a way of its own.
    """
    gradients = [p.grad for p in module.parameters()]
    try:
        with observing(module), torch.enable_grad(), torch.random.fork_rng(devices=[]), silently():
            batch = next(iter(ProbeSet(data.train_dataloader()).batches()))
            rows = next(len(v) for v in batch.values() if isinstance(v, Tensor))
            compute, others = _Pass(module, batch, rows), busy()
            one, two = (most_allocated(partial(compute, most)) for most in (1, 2))
            operations = _operations(compute, rows)
            timed, seconds = _timed(compute, rows)
    except Exception as error:  # of the user's module, which its own training_step may call otherwise
        log.debug("what a training batch takes is not known: %s", error)
        return None
    finally:
        for parameter, gradient in zip(module.parameters(), gradients, strict=True):
            parameter.grad = gradient
    own = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    memory = max(0, one - own) + (rows - 1) * max(0, two - one)
    cost = Cost(f"a training batch of {rows} rows", memory, "make the batches smaller")
    return TrainingPass(cost, seconds, (timed, rows), operations, others)


class _Pass:
    """Forward and backward of the first rows, with the parameters' gradients."""

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
            loss = call_module(self.module, first).logits.float().log_softmax(-1).sum()
        loss.backward()

    def _own_loss(self, batch: Mapping[str, Any]) -> Tensor | None:
        """None where the module has no ``losses(batch)``, or one that means something else."""
        losses = getattr(self.module, "losses", None)
        if not callable(losses):
            return None
        try:
            return torch.stack(list(losses(batch).values())).sum()
        except Exception as error:
            log.debug("losses of %s are no losses of a batch: %s", type(self.module).__name__, error)
            return None


def _operations(compute: _Pass, rows: int) -> int | None:
    """Of matrix products, attention's among them; twice the multiplications."""
    if any(isinstance(m, (nn.RNNBase, nn.RNNCellBase)) for m in compute.module.modules()):
        return None
    try:  # kernels of the CPU's own attention are not counted
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            compute(1)
    except Exception as error:  # of what cannot be counted, memory and time are known all the same
        log.debug("the operations of a training batch are not known: %s", error)
        return None
    return rows * int(counter.get_total_flops())


def _timed(compute: _Pass, rows: int) -> tuple[int, float]:
    """Rows that were timed, and seconds of all: the shortest of what there is time for, since others may be at work."""
    one = min(_seconds(compute, 1) for _ in range(2))
    some = min(rows, max(2, int(SECONDS / one)))
    least = _seconds(compute, some)
    repeats = min(5, int(SECONDS / least))
    return some, min([least, *(_seconds(compute, some) for _ in range(repeats))]) * rows / some


def _seconds(compute: _Pass, rows: int) -> float:
    began = time.perf_counter()
    compute(rows)
    return time.perf_counter() - began


def duration(batch: TrainingPass, updates: int | None, accumulated: int, *, elsewhere: bool) -> str:
    """How long a training takes, in words: its passes, without the optimizer and without observers.

    Args:
        batch: one of its batches.
        updates: of the whole training; None where that is not known: an update's time is told.
        accumulated: batches of an update.
        elsewhere: whether it is to run on an accelerator, which was not timed.

    Example:
        >>> batch = TrainingPass(Cost("a training batch of 8 rows", 1 << 20), 0.5, (4, 8), 3 * 10**12)
        >>> duration(batch, 7200, 1, elsewhere=False)
        'passes about 1.0 h on the CPU (2.2e+16 operations; 4 of 8 rows timed)'
        >>> duration(batch, 720_000, 2, elsewhere=True)
        'passes 4.3e+18 operations on each device, 12 h at 100 teraflops'
    """
    number = accumulated * (1 if updates is None else updates)
    whose = " an update" if updates is None else ""
    made = None if batch.operations is None else number * batch.operations
    if elsewhere and made is not None:
        there = in_time(made / (TERAFLOPS * 1e12))
        return f"passes{whose} {made:.1e} operations on each device, {there} at {TERAFLOPS:g} teraflops"
    timed, rows = batch.rows
    counted = "" if made is None else f"{made:.1e} operations; "
    here = "on this CPU, none of the accelerator" if elsewhere else "on the CPU"
    here += " as busy as it is" if batch.busy else ""
    return f"passes{whose} about {in_time(number * batch.seconds)} {here} ({counted}{timed} of {rows} rows timed)"
