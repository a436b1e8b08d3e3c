"""An encoder as a dynamical system: synchronization, Lyapunov exponents, dimension and transient chaos."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from types import MappingProxyType
from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.inspection.forward import IGNORED, device_of
from lmdyn.analysis.inspection.transformer import check_positions
from lmdyn.analysis.orbits.trajectories import exact_products
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.callbacks.conditions.finding import Cost, Foreseen
from lmdyn.callbacks.dynamics.dynamics_settings import (
    NOT_GIVEN,
    DynamicsNumerics,
    LongTerm,
    ShortTerm,
    flat_settings,
    with_flat,
)
from lmdyn.callbacks.dynamics.encoder_dynamics_figures import dynamics_figures
from lmdyn.callbacks.dynamics.encoder_dynamics_quantities import ENCODER_DYNAMICS
from lmdyn.callbacks.dynamics.encoder_dynamics_tables import dynamics_tables
from lmdyn.callbacks.dynamics.encoder_rows import Row
from lmdyn.callbacks.dynamics.encoder_runs import EncoderRuns
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import to_device
from lmdyn.callbacks.observing.protocols import objective_of
from lmdyn.callbacks.observing.run import announce

__all__ = ["EncoderDynamics"]

log = logging.getLogger(__name__)

_LONG = 600  # seconds

_COLUMNS = ("length", "term", "width", "kind", "t", "sentence", "token", "key", "component")
_SCALARS = (
    "synchronization_offset", "synchronized_share", "deviation_floor", "mean_exponent", "chaotic_share",
    "censored_share", "transient_length", "sign_change_length", "sign_change_chaotic_share", "switched_share",
    "attractor_share", "attractors", "largest_attractor_share", "transverse_exponent", "full_map_exponent",
    "reduced_map_exponent", "peak_effective_dimension", "orbit_share", "orbit_lyapunov_exponent",
    "full_lyapunov_exponent", "transient_share", "undetermined_transient_share", "ended_share",
    "restricted_mean_length", "restricted_offset",
)  # fmt: skip


_CURVES = (
    "effective_dimension",
    "share_of_ceiling",
    "local_exponent",
    "deviation",
    "survival",
    "chaotic_lyapunov_exponent",
)
_LENGTH, _LENGTHS, _SENTENCES = 32, (8, 16, 64), 1000
"""Default, as far as the data allows."""


def _unpadded(batch: Mapping[str, Any]) -> Tensor:
    """Return the lengths of the rows of a batch without padding."""
    ids = batch["input_ids"]
    mask = batch.get("attention_mask", torch.ones_like(ids)).bool()
    lengths: Tensor = mask.sum(1)[mask.all(1)]
    return lengths


class EncoderDynamics(Observer):
    """The encoder's layer iterated beyond its depth, x ↦ f(x), from the sentences of the probe set.

    A sentence is a row of the probe set, of ``length`` positions: the first ones and the last (the separator) of a
    longer row. In a masked language model's data, masked tokens are restored. The state consists of all token vectors
    after the projection to the hidden size, including special tokens, without attention mask and dropout.

    Short term: D(t) and from it the synchronization offset, for sentences of several ``lengths``; local Lyapunov
    exponents; the effective dimension of the sentences' states. Long term: local exponents, the length of the chaotic
    transient, and the attractors of the trajectories. Once a sentence's tokens have synchronized, the map of one token
    is iterated instead (:func:`~lmdyn.analysis.long_run`); for ``check`` sentences the full map is also iterated, and
    the transverse exponent shows whether synchronization is stable. Trajectories that returned to a state a second time
    are not followed further; in the mean over sentences they continue with the mean λ of their last 20 windows, and
    synchronized sentences with D = 0.

    The kind of a trajectory is determined by evidence for each kind, for which it is followed beyond the horizon;
    otherwise it is undetermined. As an independent check only, ``sentence_zero_one`` is K of the 0–1 test of the first
    component of trajectories that were followed to the end, against T (:func:`~lmdyn.analysis.zero_one_test`, at the
    first lag whose autocorrelation is below 1/e): it does not determine the kind. With ``follow: 0`` in ``long_term``
    trajectories are classified as in version 0.1, as ``attractor_share``: any λ within ``resolution`` then counts as
    quasi-periodic.

    If the layers differ (BERT, GPT), time is depth, and there is no long term: D, exponents (τ = 1) and effective
    dimension over the layers; ``stretching`` (the factor by which layer t lengthens a perturbation, its geometric mean
    over sentences) and ``depth_exponent`` (at t, the mean of its logarithm over the first t layers: an exponent of
    finite time, which has no limit).

    For looped models the core is iterated; if it reads the text itself, each sentence has its own map. If
    attention is causal, positions are added at each step or the text is injected, there is no map of one token
    (:func:`~lmdyn.analysis.synchronized_map`): the full map is iterated throughout, and a message states the reason.

    It uses full float32 products, or float64, independent of the training's precision. If equal tokens diverge beyond
    the threshold, by rounding or because synchronization is unstable, there are no offsets, the full map is iterated
    throughout, and a warning states which of the two applies. In chaotic
    trajectories rounding grows like any perturbation: another number of ranks, or another processor, gives the same
    statistics, but different numbers.

    Args:
        length: tokens per sentence; by default 32, or as many as the probe set's rows have.
        lengths: further numbers of tokens for the synchronization offset; by default those of 8, 16
            and 64 that its rows have.
        sentences: number of sentences, the first ones of the probe set; by default 1,000, or all if there are fewer.
        examples: number of sentences whose exponents are recorded individually, and, for the first one, its trajectory.
        short_term: horizon, windows and number of sentences of the short term.
        long_term: those of the long term, the check on the full map, and the definition of attractors.
        numerics: perturbation, threshold, precision.
        sites: module path by display name of the layers of a looped model's core; None to find them, see
            :class:`~lmdyn.analysis.EncoderMap`.
        **kwargs: see :class:`~lmdyn.callbacks.Observer`; and, as in version 0.1, each of the settings above by its name
            in the observations' files (``short_steps``, ``long_tau``, ``dtype``, …).

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Shares and means are over sentences, λ is in nats per step. ``sign_change_…`` are by the rule ``sign_change`` of
    :func:`~lmdyn.analysis.transient_length`, which also describes the bias of the other rule; kinds of orbits by
    :func:`~lmdyn.analysis.orbit_kind` (``orbit_lyapunov_exponent`` of closed orbits is over whole periods); whether a
    transient is undetermined (λ·steps ≥ 10 before the arrival with an interval of λ that reaches its resolution) and
    ``restricted_mean_length`` by :func:`~lmdyn.analysis.survival`. If none of the ``check`` sentences has
    synchronized within ``check_steps``, ``transverse_exponent`` is along sentences whose tokens are set equal. Earlier
    files contain ``orbit_exponent``, which is wrong for closed orbits.

    Raises:
        ValueError: for numbers out of range, or windows that do not divide their horizon; when attached or observing,
            for a probe set with too few or too short rows.

    Reference: Inoue et al. 2022, section II, figures 2, 4 and A1.

    Example:
        >>> from lmdyn.callbacks import LongTerm
        >>> EncoderDynamics(sentences=100, long_term=LongTerm(steps=20_000)).long_term.tau
        50
        >>> EncoderDynamics(sentences=100, long_steps=20_000).long_term.steps  # the form of version 0.1
        20000
    """

    uses_labels = False

    recorded = ENCODER_DYNAMICS
    several_runs = True
    legacy_settings: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            "follow": 0,
            "deviation": "printed",
            "dimension_sentences": None,
            "sites": None,
            "transverse_skip": 0,
        }
    )

    def __init__(
        self,
        *,
        length: int | None = None,
        lengths: Sequence[int] | None = None,
        sentences: int | None = None,
        examples: int = 5,
        short_term: ShortTerm = ShortTerm(),  # noqa: B008 (frozen)
        long_term: LongTerm = LongTerm(),  # noqa: B008 (frozen)
        numerics: DynamicsNumerics = DynamicsNumerics(),  # noqa: B008 (frozen)
        sites: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        # jsonargparse determines the further arguments from these lines
        short_term = with_flat(
            short_term, steps=kwargs.pop("short_steps", NOT_GIVEN), tau=kwargs.pop("short_tau", NOT_GIVEN),
            sentences=kwargs.pop("short_sentences", NOT_GIVEN),
            dimension_times=kwargs.pop("dimension_times", NOT_GIVEN),
            dimension_sentences=kwargs.pop("dimension_sentences", NOT_GIVEN),
        )  # fmt: skip
        long_term = with_flat(
            long_term, steps=kwargs.pop("long_steps", NOT_GIVEN), tau=kwargs.pop("long_tau", NOT_GIVEN),
            sentences=kwargs.pop("long_sentences", NOT_GIVEN), check=kwargs.pop("check", NOT_GIVEN),
            check_steps=kwargs.pop("check_steps", NOT_GIVEN), max_period=kwargs.pop("max_period", NOT_GIVEN),
            tolerance=kwargs.pop("tolerance", NOT_GIVEN), resolution=kwargs.pop("resolution", NOT_GIVEN),
            follow=kwargs.pop("follow", NOT_GIVEN),
        )  # fmt: skip
        numerics = with_flat(
            numerics, epsilon=kwargs.pop("epsilon", NOT_GIVEN), threshold=kwargs.pop("threshold", NOT_GIVEN),
            reduced=kwargs.pop("reduced", NOT_GIVEN), dtype=kwargs.pop("dtype", NOT_GIVEN),
            batch_size=kwargs.pop("batch_size", NOT_GIVEN), seed=kwargs.pop("seed", NOT_GIVEN),
            deviation=kwargs.pop("deviation", NOT_GIVEN),
        )  # fmt: skip
        super().__init__(**kwargs)
        given = [n for n in (length, sentences, *(lengths or ())) if n is not None]
        if min(given, default=2) < 2 or examples < 0:
            raise ValueError(
                f"expected length, lengths and sentences from 2 and examples from 0, got {length}, "
                f"{list(lengths or ())}, {sentences} and {examples}"
            )
        self.length, self.sentences = length or _LENGTH, sentences or _SENTENCES
        self.lengths = tuple(sorted({*(_LENGTHS if lengths is None else lengths), self.length}))
        self.examples, self.core = examples, None if sites is None else dict(sites)
        self.short_term, self.long_term, self.numerics = short_term, long_term, numerics
        self._rows: dict[str, Tensor] = {}

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments, grouped ones by their names in observations' files, and the content of the probe set."""
        groups = {"short_term", "long_term", "numerics"}
        return {
            **{name: value for name, value in super().settings.items() if name not in groups},
            "sites": self.core,  # None if they are found: the same in each model of a kind
            **flat_settings("short_", self.short_term),
            **flat_settings("long_", self.long_term),
            "transverse_skip": self.long_term.skipped,
            **flat_settings("", self.numerics),
        }

    def prepare(self) -> None:
        """Read the sentences, in the requested number and lengths, or as far as the data allows."""
        rows = [int(n) for batch in self.probe_set.batches() for n in _unpadded(batch)]
        longest = max(rows, default=0)
        self.length = self.found("length", lambda: min(_LENGTH, longest))
        lengths = self.found("lengths", lambda: [n for n in _LENGTHS if n <= longest])
        self.lengths = tuple(sorted({*lengths, self.length}))
        there = sum(n >= self.lengths[-1] for n in rows)
        self.sentences = self.found("sentences", lambda: max(2, min(_SENTENCES, there)))
        left_out = sorted({*_LENGTHS} - {*self.lengths}) if self.hparams["lengths"] is None else []
        if left_out or (self.hparams["sentences"] is None and self.sentences < _SENTENCES):
            announce(
                self.name,
                f"{self.sentences} sentences of up to {self.lengths[-1]} tokens, of {len(rows)} rows without padding"
                + (f"; lengths {left_out} are left out" if left_out else ""),
            )
        self._rows = self._read()

    def check_module(self, module: nn.Module) -> None:
        """Raise an error for a module that is no map of token vectors, or cannot read sentences of these lengths."""
        check_positions(module, self.lengths[-1], "sentences", "remove longer ones from `lengths`", self.name)
        if self._rows:  # otherwise the data raised an error
            self._map_of(module, to_device(self._first(self._rows), device_of(module)))

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report the memory of the states of all sentences, for each length."""
        one = to_device(self._first(self._rows), device_of(module))
        width = self._map_of(module, one).start(one).shape[2]
        states = self.sentences * (sum(self.lengths) + self.length) * width
        lengths = " + ".join(map(str, self.lengths))
        yield Cost(
            f"states of {self.sentences:,} sentences of {lengths} tokens, {width} numbers each",
            2 * states * torch.finfo(self.numerics.torch_dtype).bits // 8,
            "lower `sentences`, or remove large `lengths`",
        )

    def _first(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the first sentence."""
        return self._cut({name: row[:1] for name, row in rows.items()}, self.length, 0, 1)

    def _map_of(self, module: nn.Module, one: Mapping[str, Tensor]) -> EncoderMap:
        try:
            return EncoderMap(
                module, one, dtype=self.numerics.torch_dtype, forward=self.forward, sites=self.core
            )
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Iterate the map from this rank's sentences, and gather all ranks' numbers."""
        device = device_of(module)
        rows = to_device(self._rows, device)
        with exact_products():
            found = self._runs(module, rows, step)
        table = pd.DataFrame([row._asdict() for row in found], columns=list(Row._fields))
        table.insert(1, "site", "")
        whole = [c for c in _COLUMNS if c not in ("term", "kind")]
        types: dict[str, Any] = {
            **dict.fromkeys(whole, "Int64"),
            "term": object,
            "kind": object,
            "value": "float64",
        }
        return table[["quantity", "site", *_COLUMNS, "value"]].astype(types)

    def _runs(self, module: nn.Module, rows: Mapping[str, Tensor], step: int) -> list[Row]:
        one = self._first(rows)
        f = self._map_of(module, one)
        rank, world_size = rank_and_world_size()
        texts = {n: self._cut(rows, n, rank, world_size) for n in self.lengths}
        runs = EncoderRuns(
            f, texts, self._cut(rows, self.length, 0, 1),
            length=self.length, sentences=self.sentences, examples=self.examples, short_term=self.short_term,
            long_term=self.long_term, numerics=self.numerics,
        )  # fmt: skip
        if not f.shared:
            return runs.over_depth()
        eager = EncoderMap(
            module,
            one,
            dtype=self.numerics.torch_dtype,
            forward=self.forward,
            attention="eager",
            sites=self.core,
        ).of(one)
        if runs.unreduced:
            announce(self.name, f"the full map is iterated throughout: {runs.unreduced}")
        found = runs.example(eager)
        began = perf_counter()
        found += runs.short_term()
        self._say_cost(runs, perf_counter() - began, rank)
        if not runs.resolved and not runs.unreduced:
            unresolved = runs.transverse(eager)
            found.append(unresolved)
            found += runs.never_together() if unresolved.value > 0 else []
            if rank == 0:
                log.warning(
                    "%s at step %d: equal token vectors diverge to a deviation of %.1e, not below the threshold of "
                    "%.1e: no offsets, and the full map throughout. %s",
                    self.name, step, runs.floor, self.numerics.threshold,
                    f"Synchronization is unstable in this model (transverse exponent {unresolved.value:.3f})"
                    if unresolved.value > 0
                    else "This precision does not resolve synchronization: use float64"
                    if runs.floor == runs.floor
                    else "States are not finite: the model has diverged",
                )  # fmt: skip
        found += runs.long_term(eager) if self.long_term.steps else []
        apart = next((row for row in found if row.quantity == "transverse_exponent"), None)
        if runs.resolved and apart is not None and apart.value > 0 and rank == 0:
            log.warning(
                "%s at step %d: synchronized tokens would diverge (transverse exponent %.3f), which the map of one "
                "token does not show: observe with `reduced: false`",
                self.name, step, apart.value,
            )  # fmt: skip
        return found

    def _say_cost(self, runs: EncoderRuns, seconds: float, rank: int) -> None:
        """Warn about a long duration of the long term, estimated by the short one, without a map of one token."""
        if runs.reduced is not None or not self.long_term.steps or rank != 0:
            return
        times = self.long_term.steps / self.short_term.steps
        most = seconds * times * runs.long_sentences / runs.short_sentences
        if most > _LONG:
            log.warning(
                "%s: %s steps of %d sentences on the full map may take %.1f hours for this observation, and orbits "
                "of unknown kind up to %d times that; lower `long_term: {steps: …, sentences: …}`",
                self.name, f"{self.long_term.steps:,}", runs.long_sentences, most / 3600, max(1, self.long_term.follow),
            )  # fmt: skip

    # ---------------------------------------------------------------- sentences

    def _read(self) -> dict[str, Tensor]:
        """Return ``input_ids`` (sentences, longest), and ``token_type_ids`` if the data has them."""
        longest = self.lengths[-1]
        masked = objective_of(self.data) == "masked"
        kept: dict[str, list[Tensor]] = {"input_ids": [], "token_type_ids": []}
        number, seen = 0, 0
        for batch in self.probe_set.batches():
            ids = batch["input_ids"]
            if masked:  # the original tokens, not the masked ones
                ids = torch.where(batch["labels"] != IGNORED, batch["labels"], ids)
            mask = batch.get("attention_mask", torch.ones_like(ids)).bool()
            seen += len(ids)
            full = mask.all(1) & torch.tensor(ids.shape[1] >= longest)
            for name in kept:
                if name in batch or name == "input_ids":
                    values = ids if name == "input_ids" else batch[name]
                    kept[name].append(torch.cat([values[full, : longest - 1], values[full, -1:]], 1))
            number += int(full.sum())
            if number >= self.sentences:
                break
        if number < self.sentences:
            raise ValueError(
                f"{self.name}: expected {self.sentences} sentences of {longest} tokens, got {number} of this length "
                f"without padding among {seen} rows of the probe set: pass a `probe` with longer rows "
                "(sequence_length), or lower `sentences` or `lengths`"
            )
        return {name: torch.cat(parts)[: self.sentences] for name, parts in kept.items() if parts}

    @staticmethod
    def _cut(rows: Mapping[str, Tensor], length: int, rank: int, world_size: int) -> dict[str, Tensor]:
        """Return a rank's sentences with fewer tokens; the last one is kept."""
        mine = {name: row[rank::world_size] for name, row in rows.items()}
        return {name: torch.cat([row[:, : length - 1], row[:, -1:]], 1) for name, row in mine.items()}

    # ---------------------------------------------------------------- output

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return the rows of one number per observation, or one per length, width or kind."""
        return observations["quantity"].isin(_SCALARS)

    @staticmethod
    def record_rows(observations: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows for a record of a run: its scalars, curves over t of all sentences, and the orbit of each."""
        curves = observations["quantity"].isin(_CURVES) & ~observations["term"].eq("long").fillna(False)
        orbits = observations["quantity"].str.match("sentence_(orbit|zero_one)")
        return observations[EncoderDynamics.is_scalar(observations) | curves | orbits]

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw synchronization, short and long term, attractors, transient lengths; all of it over training."""
        return dynamics_figures(observations, settings)

    @staticmethod
    def tables(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
        """Return the numbers of each run."""
        return dynamics_tables(observations, settings)
