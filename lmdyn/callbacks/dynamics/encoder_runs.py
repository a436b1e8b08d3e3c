"""Trajectories for ``EncoderDynamics``, the kinds of their orbits, and the rows of its records."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from lmdyn.analysis.dynamics.horizon import carried_on, ends, late_exponents
from lmdyn.analysis.dynamics.long_run import LongRun, long_run
from lmdyn.analysis.dynamics.synchronization import (
    Synchronization,
    deviation,
    deviation_floor,
    mean_token,
    synchronization_offset,
    synchronize,
)
from lmdyn.analysis.dynamics.synchronized_map import synchronized_map, transverse_exponents
from lmdyn.analysis.geometry.effective_dimension import effective_dimension
from lmdyn.analysis.inspection.attention_weights import watch_attention
from lmdyn.analysis.orbits.lyapunov import local_lyapunov_exponents, random_perturbation
from lmdyn.analysis.orbits.orbit_kind import KINDS, orbit_kind
from lmdyn.analysis.orbits.survival import survival
from lmdyn.analysis.orbits.trajectories import Map, iterate, part_of
from lmdyn.analysis.orbits.transients import transient_length
from lmdyn.analysis.orbits.zero_one_test import decorrelation_lag, zero_one_test
from lmdyn.analysis.preference.independent_components import UnusableEmbeddingsError, principal_components
from lmdyn.analysis.statistics.distributed import gather, rank_and_world_size
from lmdyn.callbacks.dynamics.dynamics_settings import DynamicsNumerics, LongTerm, ShortTerm
from lmdyn.callbacks.observing.sums import Row

__all__ = ["EncoderRuns", "zero_one_rows"]

_WIDTHS = (10, 20, 40)  # windows of the running mean that determines the end of a transient
_WIDTH = 20  # the standard
_TOKENS = 10
_ATTENTION_EVERY = 50
_PERTURBED_STEPS = 600
_COMPONENT_STEPS = 1000
_TRANSVERSE_STEPS = 200
_LEAST = 100  # values of a 0–1 test
_ORBIT = (
    "exponent",
    "error",
    "resolution",
    "steps",
    "length",
    "censored",
    "transient_undetermined",
    "chaotic_exponent",
    "line_change",
)
_PARTIAL = ("chaotic_exponent", "transverse_exponent")  # NaN if never chaotic, or if tokens differ


def _over_t(quantity: str, values: Float[Tensor, "times"], every: int = 1, **place: Any) -> Iterator[Row]:
    """Yield a row for each t whose value is a number."""
    for i, value in enumerate(values.tolist()):
        if value == value:
            yield {**place, "t": i * every}, {quantity: value}


def _by_sentence(numbers: Mapping[str, Tensor], **place: Any) -> Iterator[Row]:
    for quantity, values in numbers.items():
        for i, value in enumerate(values.tolist()):
            yield {**place, "sentence": i}, {quantity: value}


def _mean_of_all(values: Float[Tensor, "*times sentences"], diverged: Tensor) -> Tensor:
    """Return the mean over the sentences that have a value; NaN if a diverged one has none.

    Sentences that are no longer followed have no value either, and are left out.
    """
    return values.nanmean(-1).masked_fill((values.isnan() & diverged).any(-1), torch.nan)


def _gathered(mine: Tensor, axis: int = -1) -> Tensor:
    """Gather sentences of all ranks in order: rank r has the numbers r, r + world size and so on."""
    if rank_and_world_size()[1] == 1:
        return mine
    parts = gather(mine.movedim(axis, 0).cpu())
    numbers = torch.cat([torch.arange(len(part)) * len(parts) + rank for rank, part in enumerate(parts)])
    return torch.cat(parts)[numbers.argsort()].movedim(0, axis).to(mine.device)


def _everyone(mine: LongRun) -> LongRun:
    """Return the results of all ranks' sentences, on the CPU except for the last states."""
    names = ("exponents", "deviations", "switched_at", "recurred_at", "ended_at", "diverged", "observed")
    found: dict[str, Any] = {name: _gathered(getattr(mine, name)).cpu() for name in names}
    found |= {name: _gathered(getattr(mine, name), 0) for name in ("final", "final_full")}
    return replace(mine, **found)


@dataclass
class EncoderRuns:
    """All measurements of one module, from this rank's sentences; the rows are those of all ranks, on each.

    Args:
        f: the encoder's map.
        texts: batch of this rank's sentences by number of tokens.
        everyone: the batch of all ranks' sentences, of ``length`` tokens; the first one is the example.
        length: tokens per sentence, except for the synchronization offset.
        sentences: number of sentences on all ranks.
        examples: number of sentences whose exponents are recorded individually.
        short: settings of the short term.
        long: settings of the long term.
        numerics: settings of the numerics.

    Attributes:
        apart: λ⊥ along synchronized trajectories, once it has been measured.
    """

    f: EncoderMap
    texts: Mapping[int, Mapping[str, Tensor]]
    everyone: Mapping[str, Tensor]
    length: int
    sentences: int
    examples: int
    short: ShortTerm
    long: LongTerm
    numerics: DynamicsNumerics

    def __post_init__(self) -> None:
        f = self.f
        numerics = self.numerics
        sentences = self.sentences
        self.others = {n: f.start(batch) for n, batch in self.texts.items()}
        self.x = self.others.pop(self.length)
        self.maps = {n: f.of(batch) for n, batch in self.texts.items()}
        self.f, self.map_of_all = self.maps[self.length], f.of(self.everyone)
        self.first = f.start({name: t[:1] for name, t in self.everyone.items()})
        self.one = self.map_of_all.part(slice(1))
        self.short_sentences = min(sentences, self.short.sentences or sentences)
        self.dimension_sentences = min(sentences, self.short.dimension_sentences or self.short_sentences)
        self.long_sentences = min(sentences, self.long.sentences or sentences)
        rank, world_size = rank_and_world_size()
        self.numbers = range(rank, sentences, world_size)
        self.floor = math.nan
        self.reduced = None
        self.unreduced = ""
        self.apart = math.nan
        if not f.shared:
            return
        if not f.injected:  # otherwise equal tokens diverge by their texts, not by rounding
            some = slice(numerics.batch_size)
            floors = gather(float(deviation_floor(f, self.x[some], 64, numerics.deviation)))
            self.floor = float(torch.tensor(floors).max())  # NaN if any is
        if f.injected or self.floor == self.floor:
            try:
                reduced = synchronized_map(f)
            except ValueError as error:
                self.unreduced = str(error)
            else:
                self.reduced = reduced if self.resolved and numerics.reduced else None

    @property
    def resolved(self) -> bool:
        """Whether rounding stays below the threshold of synchronization."""
        return self.floor < self.numerics.threshold

    def _mine(self, sentences: int) -> int:
        """Return how many of the first sentences are this rank's."""
        return len([n for n in self.numbers if n < sentences])

    def _deviation(self, x: Tensor) -> Tensor:
        return deviation(x, self.numerics.deviation)

    def _long_run(self, x: Tensor, tau: int, steps: int, **options: Any) -> LongRun:
        of = self.numerics
        options |= {"epsilon": of.epsilon, "threshold": of.threshold, "batch_size": of.batch_size}
        options |= {"seed": of.seed, "variant": of.deviation, "tolerance": self.long.tolerance}
        rows = self.numbers[: len(x)]
        return long_run(part_of(self.f, slice(len(x))), x, tau, steps, rows=rows, **options)

    def _synchronize(self, f: Map, x: Tensor) -> Synchronization:
        of, f = self.numerics, part_of(f, slice(len(x)))
        return synchronize(f, x, self.short.steps, of.threshold, of.batch_size, of.deviation)

    # ---------------------------------------------------------------- models whose layers differ

    def over_depth(self) -> Iterator[Row]:
        """Yield deviation, exponents and effective dimension over the layers.

        ``stretching`` of layer t is the geometric mean over sentences of ‖δ_{t+1}‖/‖δ_t‖; ``depth_exponent`` at t the
        mean over sentences and over the first t layers of its logarithm, nats per layer.
        """
        maps, x, of = self.f.maps, self.x, self.numerics
        observables = {"deviation": self._deviation, "dimension": self._dimension}
        path = iterate(maps, x, len(maps), observables).observables
        found = local_lyapunov_exponents(maps, x, 1, len(maps), of.epsilon, seed=of.seed, rows=self.numbers)
        diverged = _gathered(found.diverged)
        exponents = _gathered(found.exponents)
        yield from _over_t("deviation", _mean_of_all(_gathered(path["deviation"]), diverged))
        mean = _mean_of_all(exponents, diverged)
        yield from _over_t("local_exponent", mean, term="short")
        yield from _over_t("stretching", mean.exp())
        for t in range(1, len(maps) + 1):
            yield {"t": t}, {"depth_exponent": float(_mean_of_all(exponents[:t].mean(0), diverged))}
        yield from _dimension_rows(dict(enumerate(path["dimension"].tolist())), self.sentences)

    # ---------------------------------------------------------------- short term

    def short_term(self) -> Iterator[Row]:
        """Yield D(t), λ(t), N_eff(t) for t up to ``short.steps``, and the synchronization offset."""
        short, mine = self.short, self._mine(self.short_sentences)
        run = _everyone(
            self._long_run(self.x[:mine], short.tau, short.steps, reduced=self.reduced, keep=short.steps)
        )
        d = carried_on(run.deviations, torch.zeros(len(run.diverged)), run.switched_at + 1)
        if not self.f.injected:
            yield {}, {"deviation_floor": self.floor}
        yield from _over_t("deviation", _mean_of_all(d, run.diverged))
        exponents = _mean_of_all(run.exponents, run.diverged)
        yield from _over_t("local_exponent", exponents, short.tau, term="short")
        of, together = self.dimension_sentences, -1  # unknown if it has more sentences
        if self.resolved:
            offset = synchronization_offset(d, self.floor, self.numerics.threshold)
            yield from _offset_rows(self.length, offset, run.diverged, short.steps)
            if (offset >= 0).all() and of <= self.short_sentences:
                together = int(offset.max())
            for length, x in self.others.items():
                found = self._synchronize(self.maps[length], x[:mine])
                lost = _gathered(~found.token.isfinite().all(1))
                yield from _offset_rows(length, _gathered(found.offset), lost, short.steps)
        yield from _dimension_rows(self._dimensions(self.x[: self._mine(of)], together), of)

    def _dimensions(self, x: Tensor, together: int) -> dict[int, float]:
        """Return N_eff at each requested t; from ``together`` on, all tokens are equal, and one suffices."""
        found, t = {}, 0
        for time in self.short.times:
            while t < time:
                if self.reduced is not None and x.ndim == 3 and 0 <= together <= t:
                    x = mean_token(x)
                x = self.reduced(x) if self.reduced is not None and x.ndim == 2 else self._step(x)
                t += 1
            found[time] = float(self._dimension(x))
        return found

    def _step(self, x: Tensor) -> Tensor:
        rows = torch.arange(len(x), device=x.device).split(self.numerics.batch_size)
        return torch.cat([part_of(self.f, part)(x[part]) for part in rows])

    def _dimension(self, x: Tensor) -> Tensor:
        return effective_dimension(_gathered(x.flatten(1), 0))

    # ---------------------------------------------------------------- long term

    def long_term(self, eager: EncoderMap) -> Iterator[Row]:
        """Yield λ over the long run, transients, kinds, attractors; for a sample also λ on the full map."""
        tau = self.long.tau
        x = self.x[: self._mine(self.long_sentences)]
        mine = self._long_run(x, tau, self.long.steps, reduced=self.reduced, end_recurrent=True)
        run = _everyone(mine)
        exponents, diverged = run.exponents, run.diverged
        # a trajectory that is no longer followed is extended, otherwise the mean would exclude closed ones
        followed = carried_on(exponents, late_exponents(exponents), run.ended_at // tau)

        def known(values: Tensor) -> Tensor:
            return values.double().masked_fill(diverged, torch.nan)

        yield from _over_t("local_exponent", _mean_of_all(followed, diverged), tau, term="long")
        for i in range(min(self.examples, self.long_sentences)):
            yield from _over_t("sentence_local_exponent", exponents[:, i], tau, term="long", sentence=i)
        widths = [w for w in _WIDTHS if w <= len(exponents)] or [len(exponents)]
        for width in widths:
            found = transient_length(exponents, tau, width, run.recurred_at)
            yield {"width": width}, {"transient_length": float(known(found.length).mean())}
        found = transient_length(exponents, tau, min(_WIDTH, len(exponents)), run.recurred_at)
        by_sign = transient_length(exponents, tau, widths[0], run.recurred_at, "sign_change")
        shares = {
            "chaotic_share": found.length > 0,
            "censored_share": found.censored,
            "sign_change_length": by_sign.length,
            "sign_change_chaotic_share": by_sign.length > 0,
            "switched_share": run.switched_at >= 0,
        }
        yield {}, {"mean_exponent": float(_mean_of_all(known(found.mean_exponent), diverged))}
        yield {}, {name: float(known(values).mean()) for name, values in shares.items()}
        numbers = {
            "transient_length": known(found.length),
            "censored": known(found.censored),
            "exponent": found.mean_exponent,
            "switched_at": torch.where(run.switched_at >= 0, run.switched_at.double(), torch.nan),
        }
        yield from _by_sentence({f"sentence_{name}": values for name, values in numbers.items()})
        kinds, every = self._orbits(mine, eager)
        yield from self._orbit_rows(kinds, every, diverged)
        yield from zero_one_rows(run.observed, kinds, tau)
        yield from self._attractors(run)
        if self.reduced is not None and self.long.check:
            yield from self._checked(eager)

    def _attractors(self, run: LongRun) -> Iterator[Row]:
        switched = run.switched_at >= 0
        parts: list[tuple[Map, Tensor, Tensor]] = [(self.map_of_all, run.final_full, ~switched)]
        if self.reduced is not None:
            parts.append((self.reduced, run.final, switched))
        late = late_exponents(run.exponents) <= self.long.resolution
        label = ends(parts, late, max_period=self.long.max_period, tolerance=self.long.tolerance)
        lost = _nan_if(run.diverged)  # the ends of diverged ones are unknown
        largest = float(label[label >= 0].bincount(minlength=1).max()) / len(label)
        yield {}, {"attractors": int(label.max()) + 1 + lost, "largest_attractor_share": largest + lost}

    def _orbits(self, run: LongRun, eager: EncoderMap) -> tuple[list[str], dict[str, Tensor]]:
        """Return the kind of each trajectory, the precision of λ, and the duration of its chaos."""
        long, switched = self.long, run.switched_at >= 0
        parts: list[tuple[Map, Tensor, Tensor, Tensor]] = [
            (self.f, run.final_full, run.delta_full, ~switched)
        ]
        if self.reduced is not None:
            parts.append((self.reduced, run.final, run.delta, switched))
        # a map of specific rows is applied to copies of one, not to some of several
        size = 1 if self.f.injected else self.numerics.batch_size
        names = ("kind", *_ORBIT, "transverse_exponent")
        mine = {name: torch.full((len(switched),), torch.nan, dtype=torch.float64) for name in names}
        for of, final, delta, where in parts:
            for rows in where.nonzero()[:, 0].split(size if of is self.f else max(1, len(where))):
                if not len(rows):
                    continue
                # if they are not followed further, what recurred is closed; else they are examined again
                known = run.recurred_at[rows] >= 0 if long.follow == 1 else None
                orbits = orbit_kind(
                    part_of(of, rows),
                    final[rows],
                    0,
                    tau=long.tau,
                    follow=long.follow,
                    earlier=run.exponents[:, rows],
                    perturbation=delta[rows],
                    closed=known,
                    max_period=long.max_period,
                    tolerance=long.tolerance,
                    seed=self.numerics.seed,
                    rows=[self.numbers[i] for i in rows.tolist()],
                )
                at = rows.cpu()
                mine["kind"][at] = torch.tensor([KINDS.index(k) for k in orbits.kinds], dtype=torch.float64)
                for name in _ORBIT:
                    mine[name][at] = getattr(orbits, name).double().cpu()
                if of is self.reduced:
                    mine["transverse_exponent"][at] = self._transverse(eager, orbits.final).nanmean(0).cpu()
        every = {name: _gathered(values) for name, values in mine.items()}
        return [KINDS[int(k)] for k in every.pop("kind")], every

    def _orbit_rows(self, kinds: list[str], every: Mapping[str, Tensor], diverged: Tensor) -> Iterator[Row]:
        every = {name: values.masked_fill(diverged, torch.nan) for name, values in every.items()}
        lost = _nan_if(diverged)  # added to means over all
        for kind in KINDS:
            yield {"kind": kind}, {"orbit_share": kinds.count(kind) / len(kinds) + lost}
        for i, kind in enumerate(kinds):
            values = {name: float(of[i]) for name, of in every.items()}
            kept = {n: v for n, v in values.items() if n not in _PARTIAL or v == v}
            yield {"kind": kind, "sentence": i}, {f"sentence_orbit_{n}": v for n, v in kept.items()}
        exponent = every["exponent"]
        apart = every["transverse_exponent"]
        chaotic = every["chaotic_exponent"]
        # λ of the full map: for equal tokens the larger of λ within these states and λ⊥
        full = torch.where(apart.isnan(), exponent, torch.maximum(exponent, apart))
        steps = float(self.long.steps)
        length = every["length"].where(~diverged, 0.0)
        unseen = (every["censored"] > 0) | (length > steps)
        length = length.clamp(max=steps)
        lasts = survival(length, unseen, horizon=float(length.max()))
        transient = length > 0
        numbers = {
            "orbit_lyapunov_exponent": exponent.nanmean(),
            "full_lyapunov_exponent": full.nanmean(),
            "chaotic_lyapunov_exponent": None if chaotic.isnan().all() else chaotic.nanmean(),
            "transient_share": transient.double().mean(),
            "undetermined_transient_share": every["transient_undetermined"].nanmean(),
            "ended_share": (transient & ~unseen).double().mean(),
        }
        yield {}, {name: None if v is None else float(v) + lost for name, v in numbers.items()}
        for t, value in zip(lasts.times.tolist(), lasts.survival.tolist(), strict=True):
            yield {"t": int(t)}, {"survival": value + lost}
        yield {}, {"escape_rate": lasts.escape_rate + lost}
        yield {}, {"restricted_mean_length": lasts.restricted_mean + lost}

    def _checked(self, eager: EncoderMap) -> Iterator[Row]:
        """Iterate a sample of sentences also on the full map, with differences between their tokens."""
        x = self.x[: self._mine(self.long.check)]
        tau = self.long.tau
        there, full = (
            self._long_run(x, tau, self.long.check_steps, reduced=reduced) for reduced in (self.reduced, None)
        )
        windows = torch.arange(len(there.exponents), device=x.device)[:, None]
        after = (there.switched_at >= 0) & (windows * tau >= there.switched_at)
        on_both = [_gathered(run.exponents.where(after, torch.nan)) for run in (full, there)]
        means = [float(exponents.nanmean()) for exponents in on_both]
        yield {}, {"full_map_exponent": means[0], "reduced_map_exponent": means[1]}
        # if none has synchronized by then, along equal tokens that settle by themselves
        synchronized = torch.where((there.switched_at >= 0)[:, None], there.final, torch.nan)
        yield self.transverse(eager, synchronized if on_both[1].isfinite().any() else None)

    def transverse(self, eager: EncoderMap, tokens: Float[Tensor, "some d"] | None = None) -> Row:
        """Return λ⊥ along the trajectories of equal tokens, by default from the mean tokens of some sentences."""
        if tokens is None:
            equal = mean_token(self.x[:4])[:, None].expand_as(self.x[:4])
            settled = iterate(part_of(self.f, slice(4)), equal.contiguous(), _TRANSVERSE_STEPS, {})
            tokens = mean_token(settled.final)
        self.apart = float(_gathered(self._transverse(eager, tokens)).nanmean())
        return {}, {"transverse_exponent": self.apart}

    def _transverse(
        self,
        eager: EncoderMap,
        tokens: Float[Tensor, "some d"],
    ) -> Float[Tensor, "windows some"]:
        """Return λ⊥ of each window along trajectories of equal tokens, without those in which a difference aligns."""
        tau = self.long.tau
        steps = max(tau, _TRANSVERSE_STEPS // tau * tau)
        skipped = -(-self.long.skipped // tau)
        return transverse_exponents(eager, tokens, tau, skipped * tau + steps, self.numerics.seed)[skipped:]

    # ---------------------------------------------------------------- the first sentence

    def example(self) -> Iterator[Row]:
        """Yield the first sentence's tokens, deviations and attention over t, also perturbed and as components."""
        x, steps = self.first, self.short.steps
        observables = {"first": lambda x: x[:, :_TOKENS, 0], "deviation": self._deviation}
        path = iterate(self.one, x, steps, observables).observables
        for i, values in enumerate(path["first"][:, 0].T):
            yield from _over_t("first_element", values, token=i)
        yield from _over_t("example_deviation", path["deviation"][:, 0])
        for t in range(0, steps + 1, _ATTENTION_EVERY):
            weights = _attention(self.one, x)
            if weights is None:
                break
            for (query, key), value in np.ndenumerate(weights.cpu().numpy()):
                yield {"t": t, "token": query, "key": key}, {"attention": float(value)}
            for _ in range(_ATTENTION_EVERY if t < steps else 0):
                x = self.one(x)
        if self.reduced is not None:
            yield from self._example_after(self.reduced)

    def _example_after(self, reduced: Map) -> Iterator[Row]:
        """Yield the first sentence's token after synchronization."""
        start = self._synchronize(self.one, self.first)
        if int(start.offset[0]) < 0:
            return
        token = start.token
        small = random_perturbation(token, 1e-4 * float(token.norm()), self.numerics.seed)
        observables = {
            "first": lambda x: x[:, :, 0],
            "apart": lambda x: (x[:, 1] - x[:, 0]).double().norm(dim=1),
        }
        pair = torch.stack([token, token + small], 1)
        path = iterate(lambda x: reduced(x[0])[None], pair, _PERTURBED_STEPS, observables).observables
        for i, kind in enumerate(("original", "perturbed")):
            yield from _over_t("trajectory", path["first"][:, 0, i], kind=kind)
        yield from _over_t("trajectory_difference", path["apart"][:, 0])
        states = iterate(reduced, token, _COMPONENT_STEPS, {"x": lambda x: x}).observables["x"][:, 0]
        with suppress(UnusableEmbeddingsError):  # a diverged model
            for i, along in enumerate(principal_components(states, min(3, states.shape[1]), whiten=False).T):
                yield from _over_t("principal_component", along, component=i + 1)


def _nan_if(diverged: Tensor) -> float:
    return math.nan if diverged.any() else 0.0


def zero_one_rows(observed: Tensor, kinds: Sequence[str], tau: int) -> Iterator[Row]:
    """Yield K of the 0–1 test against T, for trajectories followed to the end, at lags that decorrelate them."""
    for i, (series, kind) in enumerate(zip(observed.T, kinds, strict=True)):
        every = decorrelation_lag(series) if series.isfinite().all() else len(series)
        if len(series) < _LEAST * every:
            continue
        found = zero_one_test(series[:, None], every=every)
        for m, k in zip(found.lengths.tolist(), found.k[:, 0].tolist(), strict=True):
            if k == k:
                t = min(m * every, len(series)) * tau
                yield {"kind": kind, "sentence": i, "t": t}, {"sentence_zero_one": k}


def _attention(f: EncoderMap, x: Float[Tensor, "1 tokens d"]) -> Float[Tensor, "tokens tokens"] | None:
    """Return attention probabilities of the first layer, mean over its heads; None if there are none to read."""
    seen: list[Tensor] = []

    def see(_: object, __: object, weights: Tensor | None, within: list[Tensor]) -> None:
        seen.extend(within if weights is None else [weights])

    with watch_attention(f.layers[0].modules(), see):
        f(x)
    return seen[0][0].mean(0) if seen else None


def _offset_rows(length: int, offset: Tensor, diverged: Tensor, steps: int) -> Iterator[Row]:
    there = offset >= 0
    means = {
        "synchronization_offset": offset[there],
        "synchronized_share": there,
        "restricted_offset": torch.where(there, offset, steps),
    }
    lost = _nan_if(diverged & ~there)
    yield {"length": length}, {name: float(of.double().mean()) + lost for name, of in means.items()}
    offsets = torch.where(there, offset.double(), torch.nan)
    yield from _by_sentence({"sentence_offset": offsets}, length=length)


def _dimension_rows(dimensions: Mapping[int, float], sentences: int) -> Iterator[Row]:
    for t, value in dimensions.items():
        yield {"t": t}, {"effective_dimension": value}
    for t, value in dimensions.items():  # for n sentences it is at most n − 1
        yield {"t": t}, {"share_of_ceiling": value / (sentences - 1)}
    known = [value for value in dimensions.values() if value == value]
    yield {}, {"peak_effective_dimension": max(known, default=math.nan)}
