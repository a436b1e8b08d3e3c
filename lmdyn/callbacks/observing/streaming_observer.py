"""Observers that require one pass over their probe set, shared by observers of equal probe sets."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pandas as pd
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.inspection.activations import resolve_sites
from lmdyn.analysis.inspection.attention_weights import switches_attention
from lmdyn.analysis.inspection.forward import Batch
from lmdyn.analysis.inspection.sites import Kind
from lmdyn.analysis.statistics.distributed import gather
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import Accumulator, ObservedBatch, Watch, probe_pass
from lmdyn.callbacks.observing.sums import Row, Sums, tabulate

LSTM_SITES: Mapping[str, str] = MappingProxyType(
    {"embedding": "embedding", "h1": "lstm.layers.0", "h2": "lstm.layers.1"}
)
"""Default sites of observers: the paths of the two-layer LSTM of Saphra & Lopez 2019."""


@dataclass(frozen=True)
class Watched:
    """Places in a model that an observer reads, by the name of the argument that chooses them.

    Attributes:
        argument: name of the argument.
        default: sites if the argument is None, for modules that have all of them; other modules' sites are found.
        kinds: kinds of sites if they are found.
        attention: whether they are attention modules, whose weights are read.
    """

    argument: str = "sites"
    default: Mapping[str, str] | None = None
    kinds: tuple[Kind, ...] = ("embedding", "block", "norm")
    attention: bool = False


Sites = Mapping[str, str] | str | None
"""An argument that chooses sites: paths by display name, a pattern of paths, ``auto``, or None for a default."""


class StreamingObserver(Observer, ABC):
    """An observer that requires only one pass over its probe set, which it shares with similar observers.

    Observers of the same data that are due at the same step share one forward (and backward) pass, also if some of
    them read only its beginning (``max_tokens``). A subclass declares the sites that it :attr:`watches`, its
    :meth:`sums`, how a batch adds to them (:meth:`update`), and the :meth:`rows` that follow from them. Or it
    implements :meth:`accumulator`, and has the sites in attributes ``sites`` and ``attention_sites``.
    """

    watches: ClassVar[tuple[Watched, ...]] = ()
    """Arguments that choose sites."""

    columns: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Group columns of its table, each with its value in rows without it; ``int`` for numbers, missing there."""

    if TYPE_CHECKING:  # class attributes, or arguments
        gradients: bool = False
        sites: Any = None
        attention_sites: Any = None
    else:
        gradients = False
        sites = MappingProxyType({})
        attention_sites = MappingProxyType({})
    """Whether it reads :attr:`ObservedBatch.gradients`; which modules."""

    in_step = True
    _switches_attention = False

    def sums(self) -> Mapping[str, Callable[[], Any]]:
        """Return functions that make empty sums, by the name of their kind: see :class:`Sums`."""
        raise NotImplementedError

    def read_weights(self, batch: Batch, path: str, weights: Tensor) -> Any:
        """Return what is kept of an attention module's weights when it has run: all of them by default.

        The result is in ``seen.attentions`` in :meth:`update`. A smaller one frees the weights before the next layer.
        """
        return weights

    def update(self, seen: ObservedBatch, sums: Sums) -> None:
        """Add a batch to the sums; ``seen`` has the sites that the observer watches, see :meth:`at`."""
        raise NotImplementedError

    def rows(self, sums: Sums) -> Iterable[Row | pd.DataFrame]:
        """Yield values of quantities at places, from the sums over all ranks: NaN if not finite, None if undefined."""
        raise NotImplementedError

    @abstractmethod
    def accumulator(self, module: Module, step: int) -> Accumulator:
        """Return a new accumulator for one observation; it is made of :meth:`sums` where :meth:`rows` are declared."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "rows" in vars(cls):  # needs no accumulator of its own
            cls.accumulator = lambda self, module, step: _PassSums(self, step)  # type: ignore[method-assign]

    def at(self, argument: str, captured: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the captured tensors of a watched argument; ``name@i`` is the i-th run of a module."""
        names = self.paths(argument)
        return {name: tensor for name, tensor in captured.items() if name.split("@")[0] in names}

    def measure(self, module: Module, step: int) -> pd.DataFrame:
        """Make a pass for this observer alone."""
        return self.measure_together([self], module, step)[0]

    @property
    def pass_key(self) -> Hashable:
        """The data of the probe set, how the module is called, and whether its attention is switched."""
        return self.probe_set.source, self.forward, self._switches_attention

    @staticmethod
    def measure_together(
        observers: Sequence["StreamingObserver"], module: Module, step: int
    ) -> list[pd.DataFrame]:
        """Make one pass for all observers, over the longest of their probe sets."""
        watches = [o.watch(module, step) for o in observers]
        longest = max((o.probe_set for o in observers), key=lambda probe: probe.max_tokens or math.inf)
        probe_pass(module, longest, watches, forward=observers[0].forward)
        return [cast(Accumulator, watch.consumer).table() for watch in watches]

    def watch(self, module: Module, step: int) -> Watch:
        """Return what the observer receives of a pass, with a new accumulator."""
        sites, attention = self._all_paths()
        most = self.probe_set.max_tokens
        accumulator = self.accumulator(module, step)
        return Watch(accumulator, sites, attention, self.gradients, most, self.read_weights)

    def _all_paths(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        if not self.watches:
            return self.sites, self.attention_sites
        found: dict[bool, dict[str, str]] = {False: {}, True: {}}
        for watched in self.watches:
            found[watched.attention] |= self.paths(watched.argument)
        return found[False], found[True]

    def check_module(self, module: Module) -> None:
        """Find the sites; raise an error for paths that are not modules, or equal names of different sites."""
        for watched in self.watches:
            self.find_sites(module, watched)
        names = [name for w in self.watches if not w.attention for name in self.paths(w.argument)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"{self.name}: several sites have the name {' or '.join(twice)}: give each site its own name"
            )
        sites, attention = self._all_paths()
        resolve_sites(module, {**sites, **attention})
        self._switches_attention = bool(attention) and switches_attention(module)

    def find_sites(self, module: Module, watched: Watched) -> None:
        """Determine the paths of a watched argument; a subclass may find others."""
        self.choose_sites(
            module,
            watched.default,
            argument=watched.argument,
            kinds=watched.kinds,
            attention=watched.attention,
        )


class _PassSums:
    """Accumulator of an observer that declares its sums."""

    def __init__(self, observer: StreamingObserver, step: int) -> None:
        self._observer, self._step = observer, step
        self._sums = Sums(observer.sums(), step)
        self._batches = 0

    def update(self, seen: ObservedBatch) -> None:
        self._batches += 1
        self._observer.update(seen, self._sums)

    def table(self) -> pd.DataFrame:
        observer = self._observer
        self._sums.reduce()
        if not any(gather(self._batches)):  # such as an iterator that was read before
            raise ValueError(f"{observer.name}: the probe set is empty: use other data")
        return tabulate(observer.rows(self._sums), observer.columns, observer.name, self._step)
