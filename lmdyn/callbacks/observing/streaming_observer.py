"""Observers that require one pass over their probe set, shared by observers of equal probe sets."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, cast

import pandas as pd
from torch import nn

from lmdyn.analysis.inspection.activations import resolve_sites
from lmdyn.analysis.inspection.sites import Kind
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import Accumulator, Watch, probe_pass
from lmdyn.callbacks.observing.reading import SiteChoice

__all__ = ["LSTM_SITES", "StreamingObserver", "given_sites"]

LSTM_SITES: Mapping[str, str] = MappingProxyType(
    {"embedding": "embedding", "h1": "lstm.layers.0", "h2": "lstm.layers.1"}
)
"""Default sites of observers: the paths of the two-layer LSTM of Saphra & Lopez 2019."""


def given_sites(choice: SiteChoice, default: Mapping[str, str]) -> dict[str, str]:
    """Return the sites of an observer that has not met its module."""
    if isinstance(choice, str):
        return {}
    if choice is not None and not (
        isinstance(choice, Mapping) and all(isinstance(p, str) and n for n, p in choice.items())
    ):
        raise TypeError(
            f"sites are {choice!r}: expected a mapping of names to module paths, {{name: path}}, a pattern of paths, "
            "or 'auto'"
        )
    return dict(default if choice is None else choice)


class StreamingObserver(Observer, ABC):
    """An observer that requires only one pass over its probe set, which it shares with similar observers.

    Observers with the same probe set that are due at the same step share one forward (and backward) pass. The
    ``sites`` and ``attention_sites`` map display names to module paths; ``gradients`` says whether
    :attr:`ObservedBatch.gradients` are read.
    """

    sites: Mapping[str, str] = {}
    attention_sites: Mapping[str, str] = {}
    gradients: bool = False
    in_step = True

    default_sites: ClassVar[Mapping[str, str] | None] = None
    """Default of the argument ``sites`` for modules that have all these paths; other modules' sites are found."""

    site_kinds: ClassVar[tuple[Kind, ...]] = ("embedding", "block", "norm")
    """Kinds of sites to observe if sites are found."""

    @abstractmethod
    def accumulator(self, module: nn.Module, step: int) -> Accumulator:
        """Return a new accumulator for one observation of ``module`` at ``step``."""

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Make a pass for this observer alone."""
        return self.measure_together([self], module, step)[0]

    @property
    def pass_key(self) -> Hashable:
        """The probe set, and how the module is called."""
        return self.probe_set.identity, self.forward

    @staticmethod
    def measure_together(
        observers: Sequence["StreamingObserver"], module: nn.Module, step: int
    ) -> list[pd.DataFrame]:
        """Make one pass for all observers."""
        watches = [
            Watch(o.accumulator(module, step), o.sites, o.attention_sites, o.gradients) for o in observers
        ]
        probe_pass(module, observers[0].probe_set, watches, forward=observers[0].forward)
        return [cast(Accumulator, watch.consumer).table() for watch in watches]

    def check_module(self, module: nn.Module) -> None:
        """Find the sites; raise an error for paths that are not modules."""
        if self.default_sites is not None:
            self.sites = self.choose_sites(module, self.default_sites, kinds=self.site_kinds)
            if "attention_sites" in self.hparams:
                self.attention_sites = self.choose_sites(module, {}, attention=True)
        resolve_sites(module, {**self.sites, **self.attention_sites})
