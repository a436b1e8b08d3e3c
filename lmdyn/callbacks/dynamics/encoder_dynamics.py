"""An encoder as a dynamical system: synchronization, Lyapunov exponents, dimension and transient chaos."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.dynamics.synchronization import THRESHOLD
from lmdyn.analysis.dynamics.trajectories import exact_products
from lmdyn.analysis.inspection.forward import IGNORED, device_of
from lmdyn.analysis.inspection.transformer import encoder_of
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.callbacks.dynamics.encoder_dynamics_figures import dynamics_figures
from lmdyn.callbacks.dynamics.encoder_dynamics_tables import dynamics_tables
from lmdyn.callbacks.dynamics.encoder_runs import EncoderRuns, Row
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import to_device

__all__ = ["EncoderDynamics"]

log = logging.getLogger(__name__)

Precision = Literal["float32", "float64"]

_COLUMNS = ("length", "term", "width", "kind", "t", "sentence", "token", "key", "component")
_SCALARS = (
    "synchronization_offset", "synchronized_share", "deviation_floor", "mean_exponent", "chaotic_share",
    "censored_share", "transient_length", "sign_change_length", "sign_change_chaotic_share", "switched_share",
    "attractor_share", "attractors", "largest_attractor_share", "transverse_exponent", "full_map_exponent",
    "reduced_map_exponent", "peak_effective_dimension",
)  # fmt: skip


class EncoderDynamics(Observer):
    """The encoder's layer iterated beyond its depth, x ↦ f(x), from the sentences of the probe set.

    A sentence is a row of the probe set, of ``length`` positions: the first ones and the last (the separator) of a
    longer row. Of a masked language model's data, masked tokens are put back. The state is all token vectors after the
    projection to the hidden size, special tokens included, without attention mask and dropout.

    Short term: D(t), from which the synchronization offset, for sentences of several ``lengths``; local Lyapunov
    exponents; the effective dimension of the sentences' states. Long term: local exponents, the length of the chaotic
    transient, and what the trajectories end on. Once a sentence's tokens have synchronized, the map of one token is
    iterated instead (:func:`~lmdyn.analysis.long_run`); for ``check`` sentences the full map is iterated as
    well, and the transverse exponent tells whether synchronization is stable. Trajectories that came back to a state
    for the second time are not followed further; in the mean over sentences they go on with the mean λ of their last
    20 windows, and synchronized sentences with D = 0.

    Where the layers differ (BERT, GPT), time is depth, and there is no long term: D, exponents (τ = 1) and effective
    dimension over the layers.

    It runs in full float32 products, or float64, whatever the training's precision. If equal tokens part to more than
    the threshold, by rounding or since synchronization is unstable, there are no offsets, the full map is iterated all
    along, and a warning says which of the two it is. In chaotic
    trajectories rounding grows like any perturbation: another number of ranks, or another processor, gives the same
    statistics, not the same numbers.

    Args:
        length: tokens of a sentence.
        lengths: numbers of tokens for which the synchronization offset is measured, besides.
        sentences: number of sentences; the probe set's first ones.
        short_steps: horizon t of the short term.
        short_tau: steps of a window, a divisor of ``short_steps``.
        short_sentences: of the short term; None: all.
        dimension_times: t at which the effective dimension is measured; None: every 25 steps.
        long_steps: horizon of the long term; 0 leaves it out.
        long_tau: steps of a window, a divisor of ``long_steps``.
        long_sentences: of the long term; None: all.
        epsilon: norm of the perturbation over the joint state.
        threshold: D below which tokens are synchronized.
        check: sentences that are also followed on the full map, for ``check_steps``.
        check_steps: a multiple of ``long_tau``.
        examples: sentences whose exponents are recorded one by one, the first one's trajectory too.
        max_period: longest period of an attractor that is looked for.
        tolerance: distance, relative to the state's norm, at which states count as the same.
        resolution: |λ| that is not told from 0 when trajectories at the horizon are named.
        reduced: go over to the map of one token.
        dtype: ``float32`` or ``float64``.
        batch_size: sentences that the full map is applied to at once.
        seed: of the perturbations.
        **kwargs: see :class:`~lmdyn.callbacks.Observer`.

    Logged tags:
        ``encoder_dynamics/synchronization_offset/length=<n>``: mean t at which the tokens of a sentence synchronized.
        ``encoder_dynamics/synchronized_share/length=<n>``: share of sentences that did within ``short_steps``.
        ``encoder_dynamics/deviation_floor``: D that rounding keeps up among equal tokens.
        ``encoder_dynamics/mean_exponent``: mean λ of the long term over the windows of chaotic transients, in sentences
            that have one, nats a step.
        ``encoder_dynamics/chaotic_share``: share of sentences with a chaotic transient.
        ``encoder_dynamics/censored_share``: share whose transient was not over at the horizon.
        ``encoder_dynamics/transient_length/width=<windows>``: mean steps until the running mean of λ over so many
            windows stays at or below 0, or the state recurs; the horizon where it was not over.
        ``encoder_dynamics/sign_change_length``: mean steps until the likeliest change of λ's sign; see the rule
            ``sign_change`` of :func:`~lmdyn.analysis.transient_length`, also for what biases the other.
        ``encoder_dynamics/sign_change_chaotic_share``: share of sentences with a transient by this rule.
        ``encoder_dynamics/switched_share``: share of sentences that went over to the map of one token.
        ``encoder_dynamics/attractor_share/<kind>``: share of sentences by what they end on, ``fixed point``,
            ``periodic``, ``quasi-periodic``, ``chaotic`` (at the horizon), ``converging`` or ``undetermined``.
        ``encoder_dynamics/attractors``: number of different fixed points and periodic orbits.
        ``encoder_dynamics/largest_attractor_share``: share of all sentences that end on the most frequent one.
        ``encoder_dynamics/transverse_exponent``: mean growth of differences between tokens along synchronized
            trajectories, nats a step; below 0 they stay synchronized.
        ``encoder_dynamics/full_map_exponent``: mean λ of the ``check`` sentences on the full map, once synchronized.
        ``encoder_dynamics/reduced_map_exponent``: the same windows of the same sentences on the map of one token.
        ``encoder_dynamics/peak_effective_dimension``: highest effective dimension over t.

    Raises:
        ValueError: numbers out of range, windows that do not divide their horizon; when attached or observing, a probe
            set with fewer or shorter rows than sentences are asked for.

    Reference: Inoue et al. 2022, section II, figures 2, 4 and A1.

    Example:
        >>> EncoderDynamics(sentences=100, long_steps=20_000).long_tau
        50
    """

    several_runs = True

    def __init__(
        self,
        *,
        length: int = 32,
        lengths: Sequence[int] = (8, 16, 64),
        sentences: int = 1000,
        short_steps: int = 500,
        short_tau: int = 10,
        short_sentences: int | None = None,
        dimension_times: Sequence[int] | None = None,
        long_steps: int = 100_000,
        long_tau: int = 50,
        long_sentences: int | None = None,
        epsilon: float = 1.0,
        threshold: float = THRESHOLD,
        check: int = 2,
        check_steps: int = 1000,
        examples: int = 5,
        max_period: int = 256,
        tolerance: float = 1e-5,
        resolution: float = 1e-3,
        reduced: bool = True,
        dtype: Precision = "float32",
        batch_size: int = 16,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if dtype not in get_args(Precision):
            raise ValueError(f"dtype is one of {list(get_args(Precision))}, got {dtype!r}")
        counts = {
            "length": length - 1, "sentences": sentences - 1, "batch_size": batch_size, "max_period": max_period,
            "short_sentences": sentences if short_sentences is None else short_sentences - 1,
            "long_sentences": sentences if long_sentences is None else long_sentences,
        }  # fmt: skip
        low = [name for name, number in counts.items() if number < 1]
        if low or any(n < 2 for n in lengths) or min(check, examples, long_steps) < 0:
            raise ValueError(
                "expected length, lengths, sentences and short_sentences from 2, batch_size, max_period and "
                f"long_sentences from 1, check, examples and long_steps from 0: got {low or 'a number below'}"
            )
        if epsilon <= 0 or threshold <= 0 or tolerance <= 0 or resolution < 0:
            raise ValueError("epsilon, threshold and tolerance are above 0, resolution at least 0")
        for name, tau, steps in (
            ("short", short_tau, short_steps),
            ("long", long_tau, long_steps or long_tau),
            ("check", long_tau, check_steps),
        ):
            if tau < 1 or steps < tau or steps % tau:
                raise ValueError(
                    f"{name}_steps is {steps}, and a window has {tau}: expected a multiple of it, such as "
                    f"{max(1, round(steps / max(tau, 1))) * max(tau, 1)}"
                )
        times = range(0, short_steps + 1, 25) if dimension_times is None else dimension_times
        if any(t < 0 or t > short_steps for t in times) or sorted(set(times)) != list(times):
            raise ValueError(
                f"dimension_times rise from 0 to short_steps, {short_steps}, at most: got {dimension_times}"
            )
        self.length, self.lengths, self.sentences = length, tuple(sorted({*lengths, length})), sentences
        self.short_steps, self.short_tau = short_steps, short_tau
        self.short_sentences = min(sentences, short_sentences or sentences)
        self.dimension_times = tuple(times)
        self.long_steps, self.long_tau = long_steps, long_tau
        self.long_sentences = min(sentences, long_sentences or sentences)
        self.epsilon, self.threshold = epsilon, threshold
        self.check, self.check_steps, self.examples = (
            min(check, sentences),
            check_steps,
            min(examples, sentences),
        )
        self.max_period, self.tolerance, self.resolution = max_period, tolerance, resolution
        self.reduced = reduced
        self.dtype = {"float32": torch.float32, "float64": torch.float64}[dtype]
        self.batch_size, self.seed = batch_size, seed
        self._rows: dict[str, Tensor] = {}

    def prepare(self) -> None:
        """Read the sentences."""
        self._rows = self._read()

    def check_module(self, module: nn.Module) -> None:
        """Refuse a module without an encoder, or one that cannot read sentences as long as asked for."""
        most = getattr(getattr(encoder_of(module), "config", None), "max_position_embeddings", None)
        if most is not None and self.lengths[-1] > most:
            raise ValueError(
                f"{self.name}: sentences of {self.lengths[-1]} tokens are longer than the {most} positions that the "
                "model reads: leave them out of `lengths`"
            )

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Iterate the map from this rank's sentences, and bring all ranks' numbers together."""
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
        one = self._cut({name: row[:1] for name, row in rows.items()}, self.length, 0, 1)
        f = EncoderMap(module, one, dtype=self.dtype, forward=self.forward)
        rank, world_size = rank_and_world_size()
        starts = {n: f.start(self._cut(rows, n, rank, world_size)) for n in self.lengths}
        runs = EncoderRuns(self, f, starts, f.start(one))
        if not f.shared:
            return runs.over_depth()
        eager = EncoderMap(module, one, dtype=self.dtype, forward=self.forward, attention="eager")
        found = runs.example(eager) + runs.short_term()
        if not runs.resolved:
            unresolved = runs.transverse(eager)
            found.append(unresolved)
            if rank == 0:
                log.warning(
                    "%s at step %d: equal token vectors part to a deviation of %.1e, not below the threshold of %.1e: "
                    "no offsets, and the full map all along. %s",
                    self.name, step, runs.floor, self.threshold,
                    f"Synchronization is unstable in this model (transverse exponent {unresolved.value:.3f})"
                    if unresolved.value > 0
                    else "This precision does not resolve synchronization: take float64"
                    if runs.floor == runs.floor
                    else "States are not finite: the model has diverged",
                )  # fmt: skip
        found += runs.long_term(eager) if self.long_steps else []
        apart = next((row for row in found if row.quantity == "transverse_exponent"), None)
        if runs.resolved and apart is not None and apart.value > 0 and rank == 0:
            log.warning(
                "%s at step %d: synchronized tokens would part (transverse exponent %.3f), and the map of one token "
                "does not show it: observe with `reduced: false`",
                self.name, step, apart.value,
            )  # fmt: skip
        return found

    # ---------------------------------------------------------------- sentences

    def _read(self) -> dict[str, Tensor]:
        """``input_ids`` (sentences, longest), and ``token_type_ids`` where the data has them."""
        longest = self.lengths[-1]
        masked = getattr(self.probe or self.run.datamodule, "objective", None) == "masked"
        kept: dict[str, list[Tensor]] = {"input_ids": [], "token_type_ids": []}
        number, seen = 0, 0
        for batch in self.probe_set.batches():
            ids = batch["input_ids"]
            if masked:  # what stands in the text, not what the model is to fill in
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
                f"{self.name}: {self.sentences} sentences of {longest} tokens are asked for, and of {seen} rows of the "
                f"probe set {number} are as long, without padding: give a `probe` with longer rows (sequence_length), "
                "or ask for fewer sentences or lower `lengths`"
            )
        return {name: torch.cat(parts)[: self.sentences] for name, parts in kept.items() if parts}

    @staticmethod
    def _cut(rows: Mapping[str, Tensor], length: int, rank: int, world_size: int) -> dict[str, Tensor]:
        """A rank's sentences, of fewer tokens; the last one stays."""
        mine = {name: row[rank::world_size] for name, row in rows.items()}
        return {name: torch.cat([row[:, : length - 1], row[:, -1:]], 1) for name, row in mine.items()}

    # ---------------------------------------------------------------- what is shown of it

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """One number an observation, or one for each length, width or kind."""
        return observations["quantity"].isin(_SCALARS)

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Synchronization, short and long term, attractors, transient lengths; all of it over training."""
        return dynamics_figures(observations, settings)

    @staticmethod
    def tables(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
        """The numbers of each run."""
        return dynamics_tables(observations, settings)
