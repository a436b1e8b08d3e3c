"""A reference that reads the probe set along with the observed module."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import capture, resolve_sites
from lmdyn.analysis.inspection.forward import is_sharded
from lmdyn.callbacks.observing.module_reading import choose_sites
from lmdyn.callbacks.observing.probe import ObservedBatch, Reader
from lmdyn.callbacks.observing.reference import Itself, Reference, has_module
from lmdyn.callbacks.observing.streaming_observer import StreamingObserver

__all__ = ["ReferenceReader", "reader_of"]


@dataclass(frozen=True)
class ReferenceReader:
    """A reference that reads the probe set along with the observed module.

    Attributes:
        name: its name in rows.
        sites: display name to module path, in the reference.
        attention_sites: the same for attention modules.
        module: the reference's module; None for the observed module itself, which does not run again.
        run: function that calls the module.
    """

    name: str
    sites: Mapping[str, str]
    attention_sites: Mapping[str, str]
    module: nn.Module | None = None
    run: Reader | None = None

    @property
    def itself(self) -> bool:
        """Whether the reference is the observed module."""
        return self.module is None

    def pairs(self, own: Sequence[str], theirs: Sequence[str]) -> list[tuple[str, str]]:
        """Return the pairs of sites to compare: of the same name, else with its last; of itself all.

        Example:
            >>> ReferenceReader("tagger", {}, {}, nn.Identity()).pairs(["embedding", "h1", "h2"], ["embedding", "h1"])
            [('embedding', 'embedding'), ('h1', 'h1'), ('h2', 'h1')]
            >>> ReferenceReader("itself", {}, {}).pairs(["h1", "h2"], ["h1", "h2"])
            [('h1', 'h2')]
        """
        if self.itself:
            return list(combinations(own, 2))
        return [(site, site if site in theirs else theirs[-1]) for site in own]

    def read(self, seen: ObservedBatch) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Return the activations and attention weights of the reference for the same batch.

        Raises:
            ValueError: if the batch has tokens that the reference does not know.
        """
        if self.module is None or self.run is None:
            return seen.activations, seen.attentions
        with capture(self.module, self.sites, attention_sites=self.attention_sites) as captured:
            try:
                self.run(seen.batch)
            except IndexError as error:
                raise ValueError(
                    f"reference {self.name!r} does not know all tokens or positions of the probe set ({error}): use a "
                    "reference trained with this run's tokenizer, or shorter texts"
                ) from error
            return captured.activations, captured.attentions


def reader_of(
    observer: StreamingObserver, name: str, reference: Reference, other: nn.Module, module: nn.Module
) -> ReferenceReader:
    """Prepare a module of a reference to read the same batches as the observed one.

    Args:
        observer: observer that is bound to its module.
        name: name of the reference in rows.
        reference: the reference.
        other: its module, which is moved to the device of the observed one.
        module: the observed module.

    Raises:
        ValueError: for paths that are not modules, a reference that has none of the sites, or a copy of a module whose
            weights are sharded.
    """
    if reference.copies and is_sharded(module):
        raise ValueError(
            f"{observer.name}: reference {name!r} is a copy of the module, but lmdyn cannot copy sharded weights. "
            "Compare with a Checkpoint, or replay the observer after training"
        )
    own = observer.paths("sites")
    sites = observer.arguments["reference_sites"]
    read = {n: p for n, p in own.items() if has_module(other, p)} if sites is None else dict(sites)
    if not read and sites is None and not isinstance(observer.sites, Mapping):
        whose = f"{observer.name}: reference {name!r}"
        read = choose_sites("auto", None, other, lambda: observer.probe_set, reference.forward, whose=whose)
    if not read and own:
        raise ValueError(
            f"{observer.name}: reference {name!r} ({type(other).__name__}) has none of the sites "
            f"{', '.join(own.values())}: set `reference_sites` to modules among "
            f"{', '.join([p for p, _ in other.named_modules() if p][:50])}"
        )
    attention = {n: p for n, p in observer.paths("attention_sites").items() if has_module(other, p)}
    if isinstance(reference, Itself):
        return ReferenceReader(name, read, attention)
    resolve_sites(other, {**read, **attention})
    forward = reference.forward or (observer.forward if type(other) is type(module) else None)
    if (like := next(module.parameters(), None)) is not None:
        other = other.to(like.device, torch.float64 if like.dtype == torch.float64 else None)
    return ReferenceReader(name, read, attention, other, Reader(other, forward))
