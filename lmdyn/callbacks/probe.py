"""The probe set of an observer, and the one pass over it that observers share."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, IterableDataset

from lmdyn.analysis.activations import capture
from lmdyn.analysis.distributed import rank_and_world_size
from lmdyn.analysis.forward import call_module, logits_of, token_losses

__all__ = ["Accumulator", "ProbeSet", "Seen", "probe_pass"]


@dataclass(frozen=True)
class Seen:
    """One batch of the probe set, as the model answered it.

    Attributes:
        batch: the batch on the model's device.
        logits: (batch, time, classes), detached.
        losses: (batch, time) token losses in nats, 0 where there is no label, detached.
        activations: site to its activation, detached.
        gradients: site to the gradient of the summed token loss with respect to its activation.
        attentions: attention site to weights (batch, heads, query, key).
    """

    batch: Mapping[str, Any]
    logits: Tensor
    losses: Tensor
    activations: Mapping[str, Tensor] = field(default_factory=dict)
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    attentions: Mapping[str, Tensor] = field(default_factory=dict)


class Accumulator(Protocol):
    """Takes the batches of a pass, keeps sums, and ends in a table."""

    def update(self, seen: Seen) -> None:
        """Take one batch."""

    def table(self) -> pd.DataFrame:
        """Reduce over ranks (every rank enters) and answer columns ``quantity``, ``site``, groups, ``value``."""


class ProbeSet:
    """Batches to look at, cut by rank so that every example is seen exactly once.

    Args:
        loader: a loader that can ``shard(rank, world_size)`` and ``limit(max_tokens)`` itself (lmdyn's streams:
            ranks take whole streams), a torch ``DataLoader`` (ranks take every n-th batch of its dataset, in
            order, whatever its sampler), or any re-iterable of batches.
        max_tokens: look at about this many tokens only: exactly for streams, by whole batches otherwise.
        identity: observers whose probe sets have equal identities share a pass; the loader's ``fingerprint``
            where it has one.

    Raises:
        ValueError: ``max_tokens`` below 1.
        TypeError: something that cannot be iterated twice.

    Example:
        >>> probe = ProbeSet([{"labels": torch.zeros(2, 3)}, {"labels": torch.ones(2, 3)}], max_tokens=6)
        >>> len(list(probe.batches()))
        1
    """

    def __init__(
        self, loader: Iterable[Any], *, max_tokens: int | None = None, identity: object = None
    ) -> None:
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(
                f"max_tokens is {max_tokens}: expected a number from 1, or null for the whole set"
            )
        if isinstance(loader, Iterator):
            raise TypeError(
                "a probe set is looked at many times: give a list or a DataLoader, not an iterator"
            )
        self.max_tokens = max_tokens
        if max_tokens is not None and hasattr(loader, "limit"):
            loader, self.max_tokens = loader.limit(max_tokens), None
        self.loader = loader
        self.label_names: dict[str, list[str]] = getattr(loader, "label_names", {})
        self.fingerprint: str | None = getattr(loader, "fingerprint", None)
        self.identity = (self.fingerprint or identity or id(loader), self.max_tokens)

    def batches(self, rank: int = 0, world_size: int = 1) -> Iterator[dict[str, Any]]:
        """The batches of one rank."""
        if hasattr(self.loader, "shard"):
            yield from self.loader.shard(rank, world_size)
            return
        tokens = 0
        for i, batch in enumerate(self._whole()):
            if not isinstance(batch, Mapping):
                raise ValueError(
                    f"expected batches that are dicts in Hugging Face's names, got {type(batch).__name__}"
                )
            if i % world_size == rank:
                yield dict(batch)
            tokens += _count_tokens(batch)
            if self.max_tokens is not None and tokens >= self.max_tokens:
                return

    def _whole(self) -> Iterable[Any]:
        if not isinstance(self.loader, DataLoader):
            return self.loader
        dataset = self.loader.dataset
        if isinstance(dataset, IterableDataset) or self.loader.batch_sampler is None:
            batch_size = self.loader.batch_size
        else:
            batch_size = getattr(self.loader.batch_sampler, "batch_size", self.loader.batch_size) or 1
        return DataLoader(dataset, batch_size=batch_size, collate_fn=self.loader.collate_fn)


def _count_tokens(batch: Mapping[str, Any]) -> int:
    tensor = batch.get("labels", batch.get("input_ids"))
    if not isinstance(tensor, Tensor):
        raise ValueError(f"a batch needs `labels` or `input_ids`, got {sorted(batch)}")
    return int((tensor != -100).sum())


def probe_pass(
    module: nn.Module,
    probe: ProbeSet,
    accumulators: Sequence[Accumulator],
    *,
    sites: Mapping[str, str] | None = None,
    attention_sites: Mapping[str, str] | None = None,
    gradients: bool = False,
    forward: str | None = None,
) -> None:
    """One pass of ``module`` over this rank's share of the probe set, every batch shown to all accumulators.

    A recurrent state that the module answers as ``.state`` is carried on where the batch says ``continues``.
    Must run inside :func:`~lmdyn.analysis.activations.observing`.

    Raises:
        ValueError: a batch without labels; a loss that is not finite where gradients are wanted.
    """
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    with capture(module, sites or {}, attention_sites=attention_sites, gradients=gradients) as seen:
        state: Any = None
        for batch in probe.batches(*rank_and_world_size()):
            batch = {
                k: v.to(device, non_blocking=True) if isinstance(v, Tensor) else v for k, v in batch.items()
            }
            if "labels" not in batch:
                raise ValueError(f"the probe set's batches have no `labels`, only {sorted(batch)}")
            seen.clear()
            with torch.set_grad_enabled(gradients):
                output = call_module(module, batch, forward=forward, state=state)
                logits = logits_of(output)
                losses = token_losses(logits.float(), batch["labels"])
            grads = seen.gradients(losses.sum()) if gradients else {}
            state = tree_map_only(Tensor, Tensor.detach, getattr(output, "state", None))
            picture = Seen(batch, logits.detach(), losses.detach(), seen.activations, grads, seen.attentions)
            with torch.no_grad():
                for accumulator in accumulators:
                    accumulator.update(picture)


def merge_sites(mappings: Iterable[Mapping[str, str]]) -> dict[str, str] | None:
    """The union of site mappings, None where a name stands for two paths."""
    merged: dict[str, str] = {}
    for name, path in itertools.chain.from_iterable(m.items() for m in mappings):
        if merged.setdefault(name, path) != path:
            return None
    return merged
