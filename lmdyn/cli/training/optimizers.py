"""Changing optimizer settings in the state that a checkpoint restores, which would otherwise override them."""

from collections.abc import Mapping
from typing import Any

import lightning as L
import torch
from lightning.pytorch.core.optimizer import _configure_optimizers  # no public function reads all its forms
from torch.optim import Optimizer

from lmdyn.callbacks.observing.requirements import silently


def change_optimizers(
    checkpoint: dict[str, Any], there: L.LightningModule, here: L.LightningModule
) -> list[str]:
    """Change optimizers and schedules of a checkpoint from one configuration to another, in place.

    A current learning rate is multiplied by the ratio of the configured ones, since annealing and schedules may have
    changed it; other settings of a parameter group (momentum, weight decay, …) take their new values. Accumulated state
    of the optimizer (momenta, second moments) does not change.

    Args:
        checkpoint: a full checkpoint.
        there: the module as it was configured.
        here: the module as it is configured now.

    Returns:
        A line for each change.

    Raises:
        ValueError: if optimizers or schedules differ from those whose states the checkpoint contains.
    """
    before = optimizers_and_schedulers(there)
    after = optimizers_and_schedulers(here)
    kinds, wanted = ([type(x).__name__ for part in parts for x in part] for parts in (before, after))
    if kinds != wanted:
        raise ValueError(
            f"the checkpoint contains the state of {', '.join(kinds) or 'no optimizer'}, but the fork would have "
            f"{', '.join(wanted) or 'no optimizer'}: keep the classes of optimizers and schedules, change only settings"
        )
    lines: list[str] = []
    for old, new, state in zip(before[0], after[0], checkpoint["optimizer_states"], strict=True):
        sizes = [[len(g["params"]) for g in groups] for groups in (old.param_groups, state["param_groups"])]
        if sizes[0] != [len(g["params"]) for g in new.param_groups] or sizes[0] != sizes[1]:
            why = "since the checkpoint restores their states: keep the groups of the forked run"
            raise ValueError(f"the parameter groups of the optimizer cannot change in a fork, {why}")
        groups = zip(old.param_groups, new.param_groups, state["param_groups"], strict=True)
        lines += [line for i, three in enumerate(groups) for line in _change_group(i, *three)]
    for old, new, state in zip(before[1], after[1], checkpoint["lr_schedulers"], strict=True):
        first, now = old.state_dict(), new.state_dict()
        for key in now.keys() & first.keys() & state.keys():
            if key == "_last_lr":
                ratios = [_ratio(a, b) for a, b in zip(first[key], now[key], strict=True)]
                state[key] = [rate * ratio for rate, ratio in zip(state[key], ratios, strict=True)]
            elif first[key] != now[key]:
                lines.append(f"{type(new).__name__} {key}: {first[key]} -> {now[key]}")
                state[key] = now[key]
    return lines


def _change_group(
    number: int, old: Mapping[str, Any], new: Mapping[str, Any], state: dict[str, Any]
) -> list[str]:
    lines = []
    for key in (k for k in new if k not in ("params", "lr") and k in state and old.get(k) != new[k]):
        lines.append(f"group {number}: {key} {state[key]} -> {new[key]}")
        state[key] = new[key]
    # a scheduler has already changed ``lr`` itself, e.g. to 0 in a warmup
    key = "initial_lr" if "initial_lr" in old and "initial_lr" in new else "lr"
    was = float(state["lr"])
    first = float(old[key])
    now = float(new[key])
    if first != now:
        state["lr"] = was * _ratio(first, now)
        lines.append(f"group {number}: learning rate {was:g} -> {state['lr']:g}")
    return lines


def _ratio(old: float, new: float) -> float:
    if old == 0 and new != 0:
        remedy = "keep 0, or fork a run that begins with a positive learning rate"
        raise ValueError(f"a run that begins with learning rate 0 cannot change it to {new:g}: {remedy}")
    return 1.0 if old == new else new / old


def optimizers_and_schedulers(module: L.LightningModule) -> tuple[list[Optimizer], list[Any]]:
    """Return those of a module's ``configure_optimizers``, in any form that Lightning accepts."""
    made: Any = module.configure_optimizers()
    optimizers, schedulers, _ = _configure_optimizers(made) if made is not None else ([], [], None)
    return optimizers, [s["scheduler"] if isinstance(s, Mapping) else s for s in schedulers]


def configured_optimizers(module: Any) -> list[Optimizer] | None:
    """Return the module's optimizers; None if it has none, or needs a running trainer to configure them."""
    try:
        with silently(), torch.random.fork_rng(devices=[]):
            return optimizers_and_schedulers(module)[0] or None
    except Exception:
        return None
