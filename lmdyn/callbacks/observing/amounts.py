"""Amounts of data in a probe set, counted up to a limit, and widths of a module's sites."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import capture, observing
from lmdyn.analysis.inspection.batches import tokens_of
from lmdyn.analysis.inspection.forward import Forward, call_module, device_of
from lmdyn.callbacks.observing.probe import to_device


def count_tokens(probe: Any, enough: int | None = None) -> int:
    """Count the tokens of a probe set without padding, up to ``enough``, which is then returned.

    Example:
        >>> from lmdyn.callbacks.observing.probe import ProbeSet
        >>> count_tokens(ProbeSet([{"input_ids": torch.zeros(2, 3)}] * 4)), count_tokens(ProbeSet([]))
        (24, 0)
    """
    tokens = 0
    for batch in probe.batches():
        tokens += int(tokens_of(batch).sum())
        if enough is not None and tokens >= enough:
            return enough
    return tokens


def add_counts(counts: Tensor, ids: Tensor, size: int = 0) -> Tensor:
    """Return how often each id occurs, added to earlier counts; of at least ``size`` ids."""
    new = torch.bincount(ids, minlength=max(len(counts), size))
    return new + torch.nn.functional.pad(counts, (0, len(new) - len(counts)))


def count_labels(probe: Any, keys: Sequence[str]) -> dict[str, Tensor]:
    """Count the tokens with each label, by key; empty for keys in no batch.

    Example:
        >>> from lmdyn.callbacks.observing.probe import ProbeSet
        >>> batch = {"input_ids": torch.tensor([[4, 5, 6]]), "upos": torch.tensor([[1, -100, 1]])}
        >>> count_labels(ProbeSet([batch]), ["upos", "topic"])
        {'upos': tensor([0, 2]), 'topic': tensor([], dtype=torch.int64)}
    """
    counts = {key: torch.zeros(0, dtype=torch.int64) for key in keys}
    for batch in probe.batches():
        for key in keys:
            labels = batch.get(key)
            if isinstance(labels, Tensor):
                counts[key] = add_counts(counts[key], labels[labels >= 0].cpu())
    return counts


def site_widths(
    module: nn.Module,
    probe: Any,
    sites: Mapping[str, str],
    forward: Forward | None = None,
    *,
    read: nn.Module | None = None,
) -> dict[str, int]:
    """Return the width of each site per token, from a forward pass of the first batch; ``name@i`` for shared layers.

    Args:
        module: module with the sites.
        probe: probe set whose first batch is read.
        sites: module path by display name.
        forward: function that calls the module.
        read: the part of the module that is called, if not the whole module.

    Raises:
        ValueError: for a path that is not a module, or without a batch.
    """
    batch = next(iter(probe.batches()), None)
    if batch is None:
        raise ValueError("the probe set is empty: pass a `probe` with at least one batch")
    batch = to_device(batch, device_of(module))
    with observing(module), torch.no_grad(), capture(module, sites) as seen:
        call_module(read or module, batch, forward=forward)
        return {name: int(x.shape[2:].numel()) for name, x in seen.activations.items()}


def parameter_bytes(module: nn.Module) -> int:
    """Return the bytes of a module's parameters and buffers in memory; tied ones count once."""
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))
