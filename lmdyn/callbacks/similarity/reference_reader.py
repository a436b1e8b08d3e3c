"""A reference that reads the probe set along with the observed module."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.activations import capture, resolve_sites
from lmdyn.analysis.inspection.forward import Forward
from lmdyn.callbacks.observing.probe import ObservedBatch, Reader

__all__ = ["ReferenceReader", "placed_like"]


def placed_like(reference: nn.Module, own: nn.Module) -> nn.Module:
    """Move the reference to the model's device, and convert it to float64 if the model is in float64."""
    parameter = next(own.parameters(), None)
    if parameter is None:
        return reference
    return reference.to(parameter.device, torch.float64 if parameter.dtype == torch.float64 else None)


class ReferenceReader:
    """A reference that reads the probe set along with the observed module.

    Args:
        name: its name in rows.
        module: the reference's module; None for the observed module itself, which does not run again.
        sites: display name to module path, in the reference.
        attention_sites: the same for attention modules.
        forward: see :class:`Reference`.

    Raises:
        ValueError: if a path is not a module.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module | None,
        sites: Mapping[str, str],
        attention_sites: Mapping[str, str],
        forward: Forward | None = None,
    ) -> None:
        self.name = name
        self.sites = sites
        self.attention_sites = attention_sites
        self._module = module
        if module is not None:
            resolve_sites(module, {**sites, **attention_sites})
            self._read = Reader(module, forward)

    @property
    def itself(self) -> bool:
        """Whether the reference is the observed module."""
        return self._module is None

    def read(self, seen: ObservedBatch) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Return the activations and attention weights of the reference for the same batch.

        Raises:
            ValueError: if the batch has tokens that the reference does not know.
        """
        if self._module is None:
            return seen.activations, seen.attentions
        with capture(self._module, self.sites, attention_sites=self.attention_sites) as captured:
            try:
                self._read(seen.batch)
            except IndexError as error:
                raise ValueError(
                    f"reference {self.name!r} does not know all tokens of the probe set ({error}): use one trained "
                    "with this run's tokenizer"
                ) from error
            return captured.activations, captured.attentions
