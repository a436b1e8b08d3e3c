"""How much a probe set holds, counted no further than is asked for, and how wide a module's sites are."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import capture, observing
from lmdyn.analysis.inspection.forward import Forward, call_module, device_of

__all__ = ["Batched", "count_labels", "count_tokens", "count_types", "parameter_bytes", "site_widths"]


class Batched(Protocol):
    """A probe set, as it is known here."""

    loader: Any

    def batches(self, rank: int = 0, world_size: int = 1) -> Iterator[dict[str, Any]]:
        """Its batches."""


def _mask(batch: Mapping[str, Any]) -> Tensor:
    """Which positions of a batch hold a token."""
    mask = batch.get("attention_mask")
    if isinstance(mask, Tensor):
        return mask.bool()
    ids = batch.get("input_ids", batch.get("labels"))
    return torch.ones_like(ids, dtype=torch.bool) if isinstance(ids, Tensor) else torch.zeros(0).bool()


def count_tokens(probe: Batched, enough: int | None = None) -> int:
    """Tokens of a probe set, padding apart; no further than ``enough``, which is then the answer.

    Example:
        >>> from lmdyn.callbacks.observing.probe import ProbeSet
        >>> count_tokens(ProbeSet([{"input_ids": torch.zeros(2, 3)}] * 4)), count_tokens(ProbeSet([]))
        (24, 0)
    """
    tokens = 0
    for batch in probe.batches():
        tokens += int(_mask(batch).sum())
        if enough is not None and tokens >= enough:
            return enough
    return tokens


def count_types(probe: Batched, key: str, enough: int, least: int = 1, leave_out: Sequence[int] = ()) -> int:
    """Different token ids that occur at least ``least`` times under a key, no further than ``enough``."""
    counts = torch.zeros(0, dtype=torch.int64)
    found = 0
    for batch in probe.batches():
        ids = batch.get(key)
        if not isinstance(ids, Tensor):
            return 0
        held = ids[ids >= 0].flatten().cpu()
        if not held.numel():
            continue
        size = max(len(counts), int(held.max()) + 1)
        counts = torch.cat([counts, counts.new_zeros(size - len(counts))]) + torch.bincount(
            held, minlength=size
        )
        out = [i for i in leave_out if i < size]
        found = int((counts >= least).sum()) - int((counts[out] >= least).sum())
        if found >= enough:
            return enough
    return found


def count_labels(probe: Batched, keys: Sequence[str], most: int | None = None) -> dict[str, Tensor]:
    """Tokens with each label, by key, of the first ``most`` tokens; what no batch has is empty.

    Example:
        >>> from lmdyn.callbacks.observing.probe import ProbeSet
        >>> batch = {"input_ids": torch.tensor([[4, 5, 6]]), "upos": torch.tensor([[1, -100, 1]])}
        >>> count_labels(ProbeSet([batch]), ["upos", "topic"])
        {'upos': tensor([0, 2]), 'topic': tensor([], dtype=torch.int64)}
    """
    counts = {key: torch.zeros(0, dtype=torch.int64) for key in keys}
    tokens = 0
    for batch in probe.batches():
        for key in keys:
            labels = batch.get(key)
            if isinstance(labels, Tensor) and bool((labels >= 0).any()):
                new = torch.bincount(labels[labels >= 0].flatten().cpu())
                size = max(len(new), len(counts[key]))
                parts = [torch.nn.functional.pad(c, (0, size - len(c))) for c in (counts[key], new)]
                counts[key] = parts[0] + parts[1]
        tokens += int(_mask(batch).sum())
        if most is not None and tokens >= most:
            break
    return counts


_WIDTHS: "WeakKeyDictionary[nn.Module, dict[Hashable, tuple[Any, dict[str, int]]]]" = WeakKeyDictionary()
"""Of each module, with the loader whose first batch was read."""


def site_widths(
    module: nn.Module,
    probe: Batched,
    sites: Mapping[str, str],
    forward: Forward | None = None,
    *,
    read: nn.Module | None = None,
) -> dict[str, int]:
    """Numbers that each site answers for a token, from a forward pass of the first batch; ``name@i`` of shared layers.

    Args:
        module: has the sites.
        probe: whose first batch is read.
        sites: display name to module path.
        forward: how the module is called.
        read: the part of the module that is called, where not all of it has to be.

    Raises:
        ValueError: a path that names no module; no batch.
    """
    known = _WIDTHS.setdefault(module, {})
    key = (id(probe.loader), tuple(sites.items()), forward)
    if key not in known:
        batch = next(iter(probe.batches()), None)
        if batch is None:
            raise ValueError("the probe set is empty: there is nothing to observe in it")
        device = device_of(module)
        batch = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.items()}
        with observing(module), torch.no_grad(), capture(module, sites) as seen:
            call_module(read or module, batch, forward=forward)
            widths = {name: int(x.shape[2:].numel()) for name, x in seen.activations.items()}
        known[key] = probe.loader, widths  # the loader is kept: its id is then no other's
    return known[key][1]


def parameter_bytes(module: nn.Module) -> int:
    """Bytes of a module's parameters and buffers, as they are held; tied ones count once."""
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))
