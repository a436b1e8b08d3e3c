"""An encoder as a dynamical system: synchronization, Lyapunov exponents, dimension and transient chaos."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Annotated, Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.inspection.forward import IGNORED, device_of
from lmdyn.analysis.inspection.transformer import check_positions
from lmdyn.analysis.orbits.trajectories import exact_products
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.callbacks.dynamics.dynamics_settings import (
    DynamicsNumerics,
    FromTwo,
    LongTerm,
    ShortTerm,
    flat_settings,
)
from lmdyn.callbacks.dynamics.encoder_dynamics_figures import dynamics_figures
from lmdyn.callbacks.dynamics.encoder_runs import EncoderRuns
from lmdyn.callbacks.dynamics.quantities import rate, share, steps
from lmdyn.callbacks.observing.checked_fields import From
from lmdyn.callbacks.observing.findings import Cost, Foreseen
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.panels import standard_figures
from lmdyn.callbacks.observing.probe import to_device
from lmdyn.callbacks.observing.protocols import objective_of
from lmdyn.callbacks.observing.run import report, warn
from lmdyn.callbacks.observing.sums import Row, tabulate
from lmdyn.runs.schema import Quantity

__all__ = ["EncoderDynamics"]

_LONG = 600  # seconds

_COLUMNS = {
    "length": int,
    "term": None,
    "width": int,
    "kind": None,
    "t": int,
    "sentence": int,
    "token": int,
    "key": int,
    "component": int,
}
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


_BY_LENGTH = ("length=<n>",)
_LOGGED = (
    steps(
        "synchronization_offset",
        "Mean t at which the tokens of a sentence synchronize.",
        tags=_BY_LENGTH,
        panel="offsets",
        lines="length",
    ),
    share("synchronized_share", "Share of sentences that synchronize in the short term.", tags=_BY_LENGTH),
    steps(
        "restricted_offset",
        "Mean offset over all sentences; a sentence that does not synchronize counts with the horizon.",
        tags=_BY_LENGTH,
    ),
    Quantity("deviation_floor", "Deviation D that rounding causes between equal tokens.", low=0.0),
    rate("mean_exponent", "Mean λ of the windows of chaotic transients, for sentences that have one."),
    share("chaotic_share", "Share of sentences with a chaotic transient, by running means of λ."),
    share("censored_share", "Share of sentences with a transient that had not ended at the horizon."),
    steps(
        "transient_length",
        "Mean number of steps until the running mean of λ stays at or below 0, or the state recurs.",
        tags=("width=<windows>",),
    ),
    steps("sign_change_length", "Mean number of steps until the most likely change of λ's sign."),
    share("sign_change_chaotic_share", "Share of sentences with a chaotic transient, by λ's change of sign."),
    share("switched_share", "Share of sentences iterated with the map of one token."),
    share(
        "orbit_share",
        "Share of sentences with an orbit of the kind that the tag names.",
        tags=("<kind>",),
        panel="orbit_kinds",
        lines="kind",
    ),
    rate(
        "orbit_lyapunov_exponent",
        "Mean over sentences of λ on the part of the trajectory that determines the orbit's kind; for "
        "synchronized sentences, λ of the map of one token.",
        panel="over_training",
    ),
    rate("full_lyapunov_exponent", "Mean λ of the full map; if tokens are equal, the larger of λ and λ⊥."),
    share("transient_share", "Share of sentences with initial or lasting chaos.", panel="over_training"),
    share("undetermined_transient_share", "Share of sentences with an undetermined chaotic transient."),
    share("ended_share", "Share of sentences with chaos that ended within the horizon."),
    steps(
        "restricted_mean_length",
        "Mean length of the chaotic transient up to the horizon, 0 if there is none.",
        panel="over_training",
    ),
    Quantity("attractors", "Number of different fixed points and periodic orbits.", "count", low=0.0),
    share("largest_attractor_share", "Share of sentences that end on the most frequent attractor."),
    rate(
        "transverse_exponent",
        "Mean growth of differences between tokens along synchronized trajectories; below 0, "
        "the tokens stay synchronized.",
        panel="over_training",
    ),
    rate("full_map_exponent", "Mean λ of some synchronized sentences on the full map."),
    rate("reduced_map_exponent", "Mean λ on the map of one token, over the windows of full_map_exponent."),
    Quantity(
        "peak_effective_dimension",
        "Highest effective dimension of the sentences' states at any t.",
        low=1.0,
        panel="over_training",
    ),
)
# the publication's figures of curves: 2C, 2A, 4A and 4B
_SHORT: dict[str, Any] = {"panel": "short_term", "over": "t"}
_LONG_TERM: dict[str, Any] = {"panel": "long_term", "over": "t"}
_OF_SHORT, _OF_LONG = ((("term", (term,)),) for term in ("short", "long"))
_stored = partial(Quantity, tags=())
_rate = partial(rate, tags=())
_steps = partial(steps, tags=())
_unit = partial(_stored, low=0.0, high=1.0)
_together = partial(_stored, panel="synchronization", over="t")
_perturbed = partial(_stored, panel="perturbation", over="t")
_STORED = (
    _rate(
        "local_exponent",
        "Mean over sentences of λ in the window at t, in the short or long term.",
        **_SHORT,
        where=_OF_SHORT,
    ),
    _stored("deviation", "Mean deviation D(t) over sentences.", low=0.0, **_SHORT),
    _stored("effective_dimension", "Participation ratio of the sentences' states at t.", low=1.0, **_SHORT),
    share("share_of_ceiling", "Effective dimension divided by the number of sentences minus one.", tags=()),
    share(
        "survival", "Share of sentences with a transient longer than t.", tags=(), panel="survival", over="t"
    ),
    _stored("escape_rate", "Number of ended transients per step of all transients.", "1/step", low=0.0),
    _rate("chaotic_lyapunov_exponent", "Mean over sentences of λ in the chaotic part of the trajectory."),
    _stored("stretching", "Factor by which layer t lengthens a perturbation.", low=0.0),
    _rate("depth_exponent", "Mean logarithm of the stretching of the first t layers.", **_SHORT),
    _together("first_element", "First component of each token of the first sentence at t.", lines="token"),
    _together("example_deviation", "Deviation D(t) of the first sentence.", low=0.0),
    _unit("attention", "Attention weights of the first sentence at t, mean over heads."),
    _perturbed(
        "trajectory",
        "First component of the first sentence's token after synchronization, with and without a perturbation.",
        lines="kind",
    ),
    _perturbed("trajectory_difference", "Distance between the perturbed and unperturbed states.", low=0.0),
    _stored("principal_component", "Coordinate of the first sentence's synchronized token on a component."),
    _steps("sentence_offset", "t at which a sentence's tokens synchronize."),
    _rate("sentence_local_exponent", "λ of a sentence in the window at t.", **_LONG_TERM, lines="sentence"),
    _steps("sentence_transient_length", "Length of a sentence's transient by running means of λ."),
    _unit("sentence_censored", "1 if the transient had not ended at the horizon, else 0."),
    _rate("sentence_exponent", "Mean λ of a sentence's transient."),
    _steps("sentence_switched_at", "t from which a sentence is iterated with the map of one token."),
    _rate("sentence_orbit_exponent", "λ of the part of a trajectory that determines the orbit's kind."),
    _rate("sentence_orbit_error", "Standard error of sentence_orbit_exponent, over windows.", low=0.0),
    _rate("sentence_orbit_resolution", "|λ| below which λ is not distinguished from 0.", low=0.0),
    _steps("sentence_orbit_steps", "Number of steps for which a trajectory was followed."),
    _steps("sentence_orbit_length", "Length of the chaotic transient of a trajectory, by the kind of orbit."),
    _unit("sentence_orbit_censored", "1 if the end of the transient was not observed, else 0."),
    _unit("sentence_orbit_transient_undetermined", "1 if the chaotic transient is undetermined, else 0."),
    _rate("sentence_orbit_chaotic_exponent", "Mean λ of a trajectory in its chaotic part."),
    _stored("sentence_orbit_line_change", "Change of the power spectrum between both halves.", low=0.0),
    _rate("sentence_orbit_transverse_exponent", "λ⊥ along the orbit of a sentence whose tokens are equal."),
    _stored(
        "sentence_zero_one",
        "K of the 0–1 test for chaos, on the first T steps of a trajectory.",
        low=-1.0,
        high=1.0,
        panel="zero_one",
        over="t",
        lines="sentence",
    ),
)


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
    first lag whose autocorrelation is below 1/e): it does not determine the kind.

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

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Shares and means are over sentences, λ is in nats per step. ``sign_change_…`` are by the rule ``sign_change`` of
    :func:`~lmdyn.analysis.transient_length`, which also describes the bias of the other rule; kinds of orbits by
    :func:`~lmdyn.analysis.orbit_kind` (``orbit_lyapunov_exponent`` of closed orbits is over whole periods); whether a
    transient is undetermined (λ·steps ≥ 10 before the arrival with an interval of λ that reaches its resolution) and
    ``restricted_mean_length`` by :func:`~lmdyn.analysis.survival`. If none of the ``check`` sentences has
    synchronized within ``check_steps``, ``transverse_exponent`` is along sentences whose tokens are set equal.

    Raises:
        ValueError: for numbers out of range, or windows that do not divide their horizon; when attached or observing,
            for a probe set with too few or too short rows.

    Reference: Inoue et al. 2022, section II, figures 2, 4 and A1.

    Example:
        >>> from lmdyn.callbacks import LongTerm
        >>> EncoderDynamics(sentences=100, long_term=LongTerm(steps=20_000)).long_term.tau
        50
    """

    length: FromTwo | None = None
    lengths: Sequence[FromTwo] | None = None
    sentences: FromTwo | None = None
    examples: Annotated[int, From(0)] = 5
    short_term: ShortTerm = ShortTerm()
    long_term: LongTerm = LongTerm()
    numerics: DynamicsNumerics = DynamicsNumerics()
    sites: Mapping[str, str] | None = None

    uses_labels = False
    several_runs = True
    recorded = (*_LOGGED, *_STORED)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._length, self._lengths, self._number = _LENGTH, (_LENGTH,), _SENTENCES  # until the data is read
        self._rows: dict[str, Tensor] = {}

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments, grouped ones by their names in observations' files, and the content of the probe set."""
        groups = {"short_term", "long_term", "numerics"}
        return {
            **{name: value for name, value in super().settings.items() if name not in groups},
            "sites": self.sites,  # None if they are found: the same in each model of a kind
            **flat_settings("short_", self.short_term),
            **flat_settings("long_", self.long_term),
            "transverse_skip": self.long_term.skipped,
            **flat_settings("", self.numerics),
        }

    # ---------------------------------------------------------------- sentences

    def prepare(self) -> None:
        """Read the sentences, in the requested number and lengths, or as far as the data allows."""
        texts = [*self._unpadded()]
        rows = [len(row) for text in texts for row in text["input_ids"]]
        longest = max(rows, default=0)
        self._length = self.found("length", lambda: min(_LENGTH, longest))
        lengths = self.found("lengths", lambda: [n for n in _LENGTHS if n <= longest])
        self._lengths = tuple(sorted({*lengths, self._length}))
        longest = self._lengths[-1]
        there = sum(n >= longest for n in rows)
        self._number = self.found("sentences", lambda: max(2, min(_SENTENCES, there)))
        left_out = sorted({*_LENGTHS} - {*self._lengths}) if self.lengths is None else []
        if left_out or (self.sentences is None and self._number < _SENTENCES):
            report(
                self.name,
                f"{self._number} sentences of up to {longest} tokens, drawn from {len(rows)} rows without padding"
                + (f"; lengths {left_out} are left out" if left_out else ""),
            )
        if there < self._number:
            raise ValueError(
                f"{self.name}: expected {self._number} sentences of {longest} tokens, got {there} of this length "
                f"among {len(rows)} rows without padding of the probe set: pass a `probe` with longer rows "
                "(sequence_length), or lower `sentences` or `lengths`"
            )
        cut = [self._cut(text, longest) for text in texts if text["input_ids"].shape[1] >= longest]
        self._rows = {name: torch.cat([text[name] for text in cut])[: self._number] for name in cut[0]}

    def _unpadded(self) -> Iterator[dict[str, Tensor]]:
        """Yield the rows without padding of each batch: ``input_ids``, and ``token_type_ids`` if there are some."""
        for batch in self.probe_set.batches():
            ids = batch["input_ids"]
            full = batch.get("attention_mask", torch.ones_like(ids)).bool().all(1)
            if objective_of(self.data) == "masked":  # the original tokens, not the masked ones
                ids = torch.where(batch["labels"] != IGNORED, batch["labels"], ids)
            types = {name: batch[name][full] for name in ("token_type_ids",) if name in batch}
            yield {"input_ids": ids[full], **types}

    @staticmethod
    def _cut(rows: Mapping[str, Tensor], length: int) -> dict[str, Tensor]:
        """Return sentences with fewer tokens; the last one is kept."""
        return {name: torch.cat([row[:, : length - 1], row[:, -1:]], 1) for name, row in rows.items()}

    def _first(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the first sentence."""
        return self._cut({name: row[:1] for name, row in rows.items()}, self._length)

    # ---------------------------------------------------------------- the module

    def check_module(self, module: Module) -> None:
        """Raise an error for a module that is no map of token vectors, or cannot read sentences of these lengths."""
        check_positions(
            module,
            self._lengths[-1],
            "sentences",
            "remove longer lengths from `lengths`",
            self.name,
        )
        if self._rows:  # otherwise the data raised an error
            self._map_of(module, to_device(self._first(self._rows), device_of(module)))

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report the memory of the states of all sentences, for each length."""
        one = to_device(self._first(self._rows), device_of(module))
        width = self._map_of(module, one).start(one).shape[2]
        states = self._number * (sum(self._lengths) + self._length) * width
        lengths = " + ".join(map(str, self._lengths))
        yield Cost(
            f"states of {self._number:,} sentences of {lengths} tokens, {width} numbers each",
            2 * states * torch.finfo(self.numerics.torch_dtype).bits // 8,
            "lower `sentences`, or remove large `lengths`",
        )

    def _map_of(self, module: Module, one: Mapping[str, Tensor], attention: str = "sdpa") -> EncoderMap:
        dtype = self.numerics.torch_dtype
        return EncoderMap(
            module,
            one,
            dtype=dtype,
            forward=self.forward,
            attention=attention,
            sites=self.sites,
        )

    # ---------------------------------------------------------------- an observation

    def measure(self, module: Module, step: int) -> pd.DataFrame:
        """Iterate the map from this rank's sentences, and gather all ranks' numbers."""
        rows = to_device(self._rows, device_of(module))
        with exact_products():
            found = list(self._measured(module, rows, step))
        return tabulate(found, _COLUMNS, self.name, step, why="")  # NaN: sentences without a transient

    def _measured(self, module: Module, rows: Mapping[str, Tensor], step: int) -> Iterator[Row]:
        one = self._first(rows)
        f = self._map_of(module, one)
        rank, world_size = rank_and_world_size()
        mine = {name: row[rank::world_size] for name, row in rows.items()}
        texts = {n: self._cut(mine, n) for n in self._lengths}
        runs = EncoderRuns(
            f,
            texts,
            self._cut(rows, self._length),
            self._length,
            self._number,
            self.examples,
            self.short_term,
            self.long_term,
            self.numerics,
        )
        if not f.shared:
            yield from runs.over_depth()
            return
        eager = self._map_of(module, one, "eager").of(one)
        if runs.unreduced:
            report(self.name, f"lmdyn iterates the full map at all steps: {runs.unreduced}")
        yield from runs.example()
        began = perf_counter()
        yield from runs.short_term()
        steps = self.long_term.steps if runs.reduced is None else 0
        shares = steps / self.short_term.steps * runs.long_sentences / runs.short_sentences
        if (most := (perf_counter() - began) * shares) > _LONG:
            warn(
                self.name,
                f"this observation may take {most / 3600:.1f} hours for {steps:,} steps of {runs.long_sentences} "
                f"sentences with all tokens. Orbits of unknown kind take up to {self.long_term.follow} times as many "
                "steps. Lower `long_term: {steps: …, sentences: …}`",
            )
        unresolved = not runs.resolved and not runs.unreduced
        if unresolved:
            yield runs.transverse(eager)
            # no offsets up to the horizon if synchronization is unstable
            for n in (runs.length, *runs.others) if runs.apart > 0 else ():
                yield {"length": n}, {"restricted_offset": float(self.short_term.steps)}
            warn(
                self.name,
                f"at step {step}: equal token vectors diverge to a deviation of {runs.floor:.1e}, above the threshold "
                f"{self.numerics.threshold:.1e}. lmdyn records no synchronization offsets and iterates all tokens. "
                + _why_unresolved(runs),
            )
        if self.long_term.steps:
            yield from runs.long_term(eager)
        if not unresolved and runs.apart > 0:
            warn(
                self.name,
                f"at step {step}: synchronized tokens would diverge (transverse exponent {runs.apart:.3f}). The map of "
                "one token does not show this divergence: set `reduced: false`",
            )

    # ---------------------------------------------------------------- output

    @staticmethod
    def record_rows(observations: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows for a record of a run: its scalars, curves over t of all sentences, and the orbit of each."""
        curves = observations["quantity"].isin(_CURVES) & ~observations["term"].eq("long").fillna(False)
        orbits = observations["quantity"].str.match("sentence_(orbit|zero_one)")
        return observations[EncoderDynamics.is_scalar(observations) | curves | orbits]

    @classmethod
    def figures(cls, observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw synchronization, short and long term, attractors, transient lengths; numbers over training."""
        long = (replace(q, **_LONG_TERM, where=_OF_LONG) for q in _STORED if q.name == "local_exponent")
        several = [*long, *(q for q in _STORED if q.panel == "long_term")]
        figures = super().figures(observations, settings) | standard_figures(observations, several)
        return figures | dynamics_figures(observations, int(settings.get("long_tau", 50)))


def _why_unresolved(runs: EncoderRuns) -> str:
    if runs.apart > 0:
        return f"Synchronization is unstable in this model (transverse exponent {runs.apart:.3f})"
    if runs.floor == runs.floor:
        return "This precision does not resolve synchronization: use float64"
    return "States are not finite: the model has diverged"
