"""Trajectories for ``EncoderDynamics``, and the rows of its records."""

from collections.abc import Mapping
from contextlib import suppress

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
    synchronization_offset,
    synchronize,
)
from lmdyn.analysis.dynamics.synchronized_map import synchronized_map, transverse_exponents
from lmdyn.analysis.geometry.effective_dimension import effective_dimension
from lmdyn.analysis.orbits.lyapunov import local_lyapunov_exponents, random_perturbation
from lmdyn.analysis.orbits.trajectories import Map, iterate, part_of
from lmdyn.analysis.orbits.transients import transient_length
from lmdyn.analysis.preference.independent_components import UnusableEmbeddingsError, principal_components
from lmdyn.analysis.statistics.distributed import gather, rank_and_world_size
from lmdyn.callbacks.dynamics.dynamics_settings import DynamicsNumerics, LongTerm, ShortTerm
from lmdyn.callbacks.dynamics.encoder_orbits import orbit_rows
from lmdyn.callbacks.dynamics.encoder_rows import Row, gathered, gathered_rows, over_t

__all__ = ["EncoderRuns"]

WIDTHS = (10, 20, 40)
"""Windows of the running mean that determines the end of a transient; the middle one is the standard."""

_TOKENS, _ATTENTION_EVERY, _PERTURBED_STEPS, _COMPONENT_STEPS, _TRANSVERSE_STEPS = 10, 50, 600, 1000, 200


class EncoderRuns:
    """All measurements of one module, from this rank's sentences; the rows are those of all ranks, on each.

    Args:
        f: the encoder's map.
        texts: batch of this rank's sentences by number of tokens.
        everyone: the batch of all ranks' sentences, of ``length`` tokens; the first one is the example.
        length: tokens per sentence, except for the synchronization offset.
        sentences: number of sentences on all ranks.
        examples: number of sentences whose exponents are recorded individually.
        short_term: settings of the short term.
        long_term: settings of the long term.
        numerics: settings of the numerics.
    """

    def __init__(
        self,
        f: EncoderMap,
        texts: Mapping[int, Mapping[str, Tensor]],
        everyone: Mapping[str, Tensor],
        *,
        length: int,
        sentences: int,
        examples: int,
        short_term: ShortTerm,
        long_term: LongTerm,
        numerics: DynamicsNumerics,
    ) -> None:
        starts = {n: f.start(batch) for n, batch in texts.items()}
        self.maps = {n: f.of(batch) for n, batch in texts.items()}
        self.f, self.everyone = self.maps[length], f.of(everyone)
        self.first, self.one = (
            f.start({name: t[:1] for name, t in everyone.items()}),
            self.everyone.part(slice(1)),
        )
        self.length, self.sentences, self.examples = length, sentences, examples
        self.short, self.long, self.numerics = short_term, long_term, numerics
        self.x = starts[length]
        self.others = {n: x for n, x in starts.items() if n != length}
        self.short_sentences = min(sentences, short_term.sentences or sentences)
        self.dimension_sentences = min(sentences, short_term.dimension_sentences or self.short_sentences)
        self.long_sentences = min(sentences, long_term.sentences or sentences)
        rank, world_size = rank_and_world_size()
        self.numbers = range(rank, sentences, world_size)
        self.floor, self.reduced, self.unreduced = float("nan"), None, ""
        if f.shared:
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

    # ---------------------------------------------------------------- models whose layers differ

    def over_depth(self) -> list[Row]:
        """Return deviation, exponents and effective dimension over the layers."""
        maps, x = self.f.maps, self.x
        path = iterate(maps, x, len(maps), {"deviation": self._deviation})
        found = local_lyapunov_exponents(
            maps, x, 1, len(maps), self.numerics.epsilon, seed=self.numerics.seed, rows=self.numbers
        )
        rows = over_t("deviation", gathered(path.observables["deviation"]).nanmean(1))
        rows += over_t("local_exponent", gathered(found.exponents).nanmean(1), term="short")
        rows += _depth_rows(gathered(found.exponents))
        dimensions = [self._dimension(x)]
        for f in maps:
            x = f(x)
            dimensions.append(self._dimension(x))
        return rows + _dimension_rows(dict(enumerate(dimensions)), self.sentences)

    # ---------------------------------------------------------------- short term

    def short_term(self) -> list[Row]:
        """Return D(t), λ(t), N_eff(t) for t up to ``short_steps``, and the synchronization offset."""
        short = self.short
        mine = self._mine(self.short_sentences)
        run = self._long_run(self.x[:mine], short.tau, short.steps, keep=short.steps)
        d = gathered(carried_on(run.deviations, torch.zeros(mine), run.switched_at + 1))
        rows = [] if self.f.injected else [Row("deviation_floor", value=self.floor)]
        rows += over_t("deviation", d.nanmean(1))
        rows += over_t("local_exponent", gathered(run.exponents).nanmean(1), every=short.tau, term="short")
        together = -1
        if self.resolved:
            offset = synchronization_offset(d, self.floor, self.numerics.threshold)
            rows += _offset_rows(self.length, offset, short.steps)
            together = int(offset.max()) if bool((offset >= 0).all()) else -1
            for length, x in self.others.items():
                offset = gathered(self._synchronize(self.maps[length], x[:mine]).offset)
                rows += _offset_rows(length, offset, short.steps)
        of = self.dimension_sentences
        together = together if of <= self.short_sentences else -1  # unknown for the other sentences
        return rows + _dimension_rows(self._dimensions(self.x[: self._mine(of)], together), of)

    def never_together(self) -> list[Row]:
        """Return the offsets if synchronization is unstable: there are none up to the horizon."""
        steps = float(self.short.steps)
        return [Row("restricted_offset", length=n, value=steps) for n in (self.length, *self.others)]

    def _dimensions(self, x: Tensor, together: int) -> dict[int, float]:
        """Return N_eff at each requested t; from ``together`` on, all tokens are equal, and one suffices."""
        found, t = {}, 0
        for time in self.short.times:
            while t < time:
                if self.reduced is not None and x.ndim == 3 and 0 <= together <= t:
                    x = x.double().mean(1).to(x.dtype)
                x = self.reduced(x) if self.reduced is not None and x.ndim == 2 else self._step(x)
                t += 1
            found[time] = self._dimension(x)
        return found

    def _deviation(self, x: Tensor) -> Tensor:
        return deviation(x, self.numerics.deviation)

    def _step(self, x: Tensor) -> Tensor:
        rows = torch.arange(len(x), device=x.device).split(self.numerics.batch_size)
        return torch.cat([part_of(self.f, part)(x[part]) for part in rows])

    def _dimension(self, x: Tensor) -> float:
        return float(effective_dimension(gathered_rows(x.flatten(1))))

    # ---------------------------------------------------------------- long term

    def long_term(self, eager: EncoderMap) -> list[Row]:
        """Return λ over the long run, transients, attractors; for a sample also λ on the full map."""
        tau = self.long.tau
        run = self._long_run(
            self.x[: self._mine(self.long_sentences)], tau, self.long.steps, end_recurrent=True
        )
        exponents = gathered(run.exponents).cpu()
        recurred_at = gathered(run.recurred_at).cpu()
        # a trajectory that is no longer followed is extended, otherwise the mean would exclude closed ones
        followed = carried_on(exponents, late_exponents(exponents), gathered(run.ended_at).cpu() // tau)
        rows = over_t("local_exponent", followed.nanmean(1), every=tau, term="long")
        for i in range(min(self.examples, self.long_sentences)):
            rows += over_t("sentence_local_exponent", exponents[:, i], every=tau, term="long", sentence=i)
        widths = [w for w in WIDTHS if w <= len(exponents)] or [len(exponents)]
        for width in widths:
            ends = transient_length(exponents, tau, width, recurred_at)
            rows.append(Row("transient_length", width=width, value=float(ends.length.double().mean())))
        ends = transient_length(exponents, tau, min(20, len(exponents)), recurred_at)
        by_sign = transient_length(exponents, tau, widths[0], recurred_at, "sign_change")
        chaotic = ends.length > 0
        switched_at = gathered(run.switched_at).cpu()
        rows += [
            Row("mean_exponent", value=float(ends.mean_exponent[chaotic].nanmean())),
            Row("chaotic_share", value=float(chaotic.double().mean())),
            Row("censored_share", value=float(ends.censored.double().mean())),
            Row("sign_change_length", value=float(by_sign.length.double().mean())),
            Row("sign_change_chaotic_share", value=float((by_sign.length > 0).double().mean())),
            Row("switched_share", value=float((switched_at >= 0).double().mean())),
        ]
        for quantity, values in (
            ("sentence_transient_length", ends.length),
            ("sentence_censored", ends.censored),
            ("sentence_exponent", ends.mean_exponent),
            ("sentence_switched_at", torch.where(switched_at >= 0, switched_at.double(), torch.nan)),
        ):
            rows += [Row(quantity, sentence=i, value=float(v)) for i, v in enumerate(values)]
        if self.long.follow:
            rows += orbit_rows(
                self.f, self.reduced, run, self.long, self.numerics, self.numbers,
                lambda tokens: self._transverse(eager, tokens).nanmean(0),
            )  # fmt: skip
        rows += self._attractors(run, exponents, recurred_at >= 0)
        return rows + (self._checked(eager) if self.reduced is not None else [])

    def _attractors(self, run: LongRun, exponents: Tensor, recurred: Tensor) -> list[Row]:
        switched = gathered(run.switched_at).cpu() >= 0
        parts: list[tuple[Map, Tensor, Tensor]] = [(self.everyone, gathered_rows(run.final_full), ~switched)]
        if self.reduced is not None:
            parts.append((self.reduced, gathered_rows(run.final), switched))
        found = ends(
            exponents,
            parts,
            recurred,
            max_period=self.long.max_period,
            tolerance=self.long.tolerance,
            resolution=self.long.resolution,
        )
        # kinds by the rule before 0.3 if requested; otherwise those of `_orbits`
        kinds = [] if self.long.follow else sorted(set(found.kinds))
        return [
            *(Row("attractor_share", kind=kind, value=found.share(kind)) for kind in kinds),
            Row("attractors", value=found.attractors),
            Row("largest_attractor_share", value=found.largest_share),
        ]

    def _checked(self, eager: EncoderMap) -> list[Row]:
        """Iterate a sample of sentences also on the full map, with differences between their tokens."""
        if not self.long.check:
            return []
        x, tau = self.x[: self._mine(self.long.check)], self.long.tau
        there = self._long_run(x, tau, self.long.check_steps)
        full = long_run(
            self.f, x, tau, self.long.check_steps, epsilon=self.numerics.epsilon,
            batch_size=self.numerics.batch_size, seed=self.numerics.seed, rows=self.numbers[: len(x)],
        )  # fmt: skip
        windows = torch.arange(len(there.exponents), device=x.device)[:, None]
        after = (there.switched_at >= 0) & (windows * tau >= there.switched_at)
        on_both = [gathered(run.exponents.where(after, torch.nan)) for run in (full, there)]
        synchronized = torch.where((there.switched_at >= 0)[:, None], there.final, torch.nan)
        return [
            Row("full_map_exponent", value=float(on_both[0].nanmean())),
            Row("reduced_map_exponent", value=float(on_both[1].nanmean())),
            # if none has synchronized by then, along equal tokens that settle by themselves
            self.transverse(eager, synchronized if bool(on_both[1].isfinite().any()) else None),
        ]

    def transverse(self, eager: EncoderMap, tokens: Float[Tensor, "some d"] | None = None) -> Row:
        """Return λ⊥ along the trajectories of equal tokens, by default from the mean tokens of some sentences."""
        if tokens is None:
            settled = iterate(part_of(self.f, slice(4)), _equal(self.x[:4]), _TRANSVERSE_STEPS, {})
            tokens = settled.final.double().mean(1).to(settled.dtype)
        found = self._transverse(eager, tokens)
        return Row("transverse_exponent", value=float(gathered(found).nanmean()))

    def _transverse(
        self, eager: EncoderMap, tokens: Float[Tensor, "some d"]
    ) -> Float[Tensor, "windows some"]:
        """Return λ⊥ of each window along trajectories of equal tokens, without those in which a difference aligns."""
        tau = self.long.tau
        steps, skipped = max(tau, _TRANSVERSE_STEPS // tau * tau), -(-self.long.skipped // tau)
        return transverse_exponents(eager, tokens, tau, skipped * tau + steps, self.numerics.seed)[skipped:]

    def _long_run(
        self, x: Tensor, tau: int, steps: int, *, keep: int = 0, end_recurrent: bool = False
    ) -> LongRun:
        of = self.numerics
        return long_run(
            part_of(self.f, slice(len(x))), x, tau, steps, reduced=self.reduced, epsilon=of.epsilon,
            threshold=of.threshold, keep=keep, end_recurrent=end_recurrent, tolerance=self.long.tolerance,
            batch_size=of.batch_size, seed=of.seed, rows=self.numbers[: len(x)], variant=of.deviation,
        )  # fmt: skip

    def _synchronize(self, f: Map, x: Tensor) -> Synchronization:
        of = self.numerics
        mine = part_of(f, slice(len(x)))
        return synchronize(mine, x, self.short.steps, of.threshold, of.batch_size, of.deviation)

    def _mine(self, sentences: int) -> int:
        """Return how many of the first sentences are this rank's."""
        return len([n for n in self.numbers if n < sentences])

    # ---------------------------------------------------------------- the first sentence

    def example(self, eager: EncoderMap) -> list[Row]:
        """Return the first sentence's tokens, deviations and attention over t, also perturbed and as components."""
        x, steps = self.first, self.short.steps
        path = iterate(
            self.one, x, steps, {"first": lambda x: x[:, :_TOKENS, 0], "deviation": self._deviation}
        )
        rows = [
            row
            for token in range(min(_TOKENS, x.shape[1]))
            for row in over_t("first_element", path.observables["first"][:, 0, token], token=token)
        ]
        rows += over_t("example_deviation", path.observables["deviation"][:, 0])
        for t in range(0, steps + 1, _ATTENTION_EVERY):
            weights = _attention(eager, x)
            if weights is None:
                break
            rows += [
                Row("attention", t=t, token=q, key=k, value=value)
                for q, row in enumerate(weights.tolist())
                for k, value in enumerate(row)
            ]
            for _ in range(_ATTENTION_EVERY if t < steps else 0):
                x = self.one(x)
        return rows + (self._example_after(self.reduced) if self.reduced is not None else [])

    def _example_after(self, reduced: Map) -> list[Row]:
        """Return the first sentence's token after synchronization."""
        start = self._synchronize(self.one, self.first)
        if int(start.offset[0]) < 0:
            return []
        token = start.token
        small = random_perturbation(token, 1e-4 * float(token.norm()), self.numerics.seed)
        pair = torch.stack([token, token + small], 1)
        path = iterate(
            lambda x: reduced(x[0])[None],
            pair,
            _PERTURBED_STEPS,
            {"first": lambda x: x[:, :, 0], "apart": lambda x: (x[:, 1] - x[:, 0]).double().norm(dim=1)},
        ).observables
        rows = over_t("trajectory", path["first"][:, 0, 0], kind="original")
        rows += over_t("trajectory", path["first"][:, 0, 1], kind="perturbed")
        rows += over_t("trajectory_difference", path["apart"][:, 0])
        states = iterate(reduced, token, _COMPONENT_STEPS, {"x": lambda x: x}).observables["x"][:, 0]
        with suppress(UnusableEmbeddingsError):  # a diverged model
            for i, along in enumerate(principal_components(states, min(3, states.shape[1]), whiten=None).T):
                rows += over_t("principal_component", along, component=i + 1)
        return rows


def _equal(x: Float[Tensor, "batch tokens d"]) -> Float[Tensor, "batch tokens d"]:
    """Set all tokens to their mean."""
    return x.double().mean(1, keepdim=True).to(x.dtype).expand_as(x).contiguous()


def _attention(eager: EncoderMap, x: Float[Tensor, "1 tokens d"]) -> Float[Tensor, "tokens tokens"] | None:
    """Return attention probabilities of the first layer, mean over its heads; None if it does not return them."""
    seen: list[Tensor] = []

    def hook(_: object, __: object, output: object) -> None:
        if isinstance(output, tuple):
            seen.extend(t for t in output if isinstance(t, Tensor) and t.ndim == 4)

    handles = [m.register_forward_hook(hook) for m in eager.layers[0].modules()]
    try:
        eager(x)
    finally:
        for handle in handles:
            handle.remove()
    return seen[0][0].mean(0) if seen else None


def _depth_rows(exponents: Float[Tensor, "layers batch"]) -> list[Row]:
    """Return the stretching of a perturbation by each layer, and the finite-time exponent up to each depth.

    ``stretching`` of layer t: the geometric mean over sentences of ‖δ_{t+1}‖/‖δ_t‖; ``depth_exponent`` at t: the mean
    over sentences and over the first t layers of its logarithm, nats per layer.
    """
    depths = torch.arange(1, len(exponents) + 1, device=exponents.device)
    rows = over_t("stretching", exponents.nanmean(1).exp())
    cumulative = (exponents.cumsum(0) / depths[:, None]).nanmean(1)
    return rows + [
        Row("depth_exponent", t=t, value=value)
        for t, value in zip(depths.tolist(), cumulative.tolist(), strict=True)
    ]


def _offset_rows(length: int, offset: Tensor, steps: int) -> list[Row]:
    there = offset >= 0
    rows = [
        Row("synchronization_offset", length=length, value=float(offset[there].double().mean())),
        Row("synchronized_share", length=length, value=float(there.double().mean())),
        Row(
            "restricted_offset", length=length, value=float(torch.where(there, offset, steps).double().mean())
        ),
    ]
    return rows + [
        Row("sentence_offset", length=length, sentence=i, value=float(v) if v >= 0 else float("nan"))
        for i, v in enumerate(offset.tolist())
    ]


def _dimension_rows(dimensions: Mapping[int, float], sentences: int) -> list[Row]:
    rows = [Row("effective_dimension", t=t, value=value) for t, value in dimensions.items()]
    # for n sentences it is at most n − 1: a value near that reflects the number of sentences
    rows += [Row("share_of_ceiling", t=t, value=value / (sentences - 1)) for t, value in dimensions.items()]
    known = [value for value in dimensions.values() if value == value]
    return [*rows, Row("peak_effective_dimension", value=max(known, default=float("nan")))]
