"""Kinds of the trajectories of a long run, and duration of their chaos: rows of ``EncoderDynamics``."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lmdyn.analysis.dynamics.long_run import LongRun
from lmdyn.analysis.orbits.orbit_kind import KINDS, orbit_kind
from lmdyn.analysis.orbits.survival import survival
from lmdyn.analysis.orbits.trajectories import Map, part_of
from lmdyn.analysis.orbits.zero_one_test import decorrelation_lag, zero_one_test
from lmdyn.callbacks.dynamics.dynamics_settings import DynamicsNumerics, LongTerm
from lmdyn.callbacks.dynamics.encoder_rows import Row, gathered, gathered_rows

__all__ = ["orbit_rows"]


class _Orbit(NamedTuple):
    """Results for one sentence's orbit; see :class:`~lmdyn.analysis.OrbitKinds`."""

    kind: float
    exponent: float
    error: float
    resolution: float
    steps: float
    length: float
    censored: float
    transient_undetermined: float
    chaotic_exponent: float
    line_change: float
    transverse_exponent: float

    @property
    def full_exponent(self) -> float:
        """λ of the full map: for equal tokens the larger of λ within these states and λ⊥."""
        apart = self.transverse_exponent
        return max(self.exponent, apart) if apart == apart else self.exponent


def orbit_rows(
    f: Map,
    reduced: Map | None,
    run: LongRun,
    long: LongTerm,
    numerics: DynamicsNumerics,
    numbers: Sequence[int],
    transverse: Callable[[Tensor], Tensor],
) -> list[Row]:
    """Return the kind of each trajectory, the precision of λ, and the duration of its chaos.

    Args:
        f: the full map.
        reduced: the map of one token, for sentences whose tokens are equal.
        run: the long run.
        long: settings of the long term.
        numerics: settings of the numerics.
        numbers: numbers of the sentences in the whole set.
        transverse: function that returns λ⊥ of each (batch, d) state of equal tokens.
    """
    switched = run.switched_at >= 0
    found = torch.full((len(run.switched_at), len(_Orbit._fields)), torch.nan, dtype=torch.float64)
    parts: list[tuple[Map, Tensor, Tensor, Tensor]] = [(f, run.final_full, run.delta_full, ~switched)]
    if reduced is not None:
        parts.append((reduced, run.final, run.delta, switched))
    # a map of specific rows is applied to copies of one, not to some of several
    size = 1 if getattr(f, "injected", False) else numerics.batch_size
    some = [
        (of, final, delta, rows)
        for of, final, delta, where in parts
        for rows in where.nonzero()[:, 0].split(size if of is f else max(1, len(where)))
        if len(rows)
    ]
    for of, final, delta, rows in some:
        known = run.recurred_at[rows] >= 0 if long.follow == 1 else None  # otherwise they are examined again
        orbits = orbit_kind(
            part_of(of, rows), final[rows], 0, tau=long.tau, follow=long.follow, earlier=run.exponents[:, rows],
            perturbation=delta[rows], closed=known, max_period=long.max_period, tolerance=long.tolerance,
            seed=numerics.seed, rows=[numbers[i] for i in rows.tolist()],
        )  # fmt: skip
        kind = torch.tensor([KINDS.index(kind) for kind in orbits.kinds])
        columns = (
            kind, orbits.exponent, orbits.error, orbits.resolution, orbits.steps, orbits.length, orbits.censored,
            orbits.transient_undetermined, orbits.chaotic_exponent, orbits.line_change,
            transverse(orbits.final) if of is reduced else torch.full_like(orbits.exponent, torch.nan),
        )  # fmt: skip
        found[rows.cpu()] = torch.stack([column.double().cpu() for column in columns], 1)
    every = [_Orbit(*row) for row in gathered_rows(found).tolist()]
    kinds = [KINDS[int(orbit.kind)] for orbit in every]
    rows_ = [Row("orbit_share", kind=kind, value=kinds.count(kind) / len(kinds)) for kind in KINDS]
    for i, (kind_name, orbit) in enumerate(zip(kinds, every, strict=True)):
        names = list(orbit._fields[1:])
        for name in (
            "chaotic_exponent",
            "transverse_exponent",
        ):  # NaN if it was never chaotic, or its tokens differ
            if getattr(orbit, name) != getattr(orbit, name):
                names.remove(name)
        rows_ += [
            Row(f"sentence_orbit_{name}", kind=kind_name, sentence=i, value=getattr(orbit, name))
            for name in names
        ]
    rows_.append(Row("orbit_lyapunov_exponent", value=_mean([orbit.exponent for orbit in every])))
    rows_.append(Row("full_lyapunov_exponent", value=_mean([orbit.full_exponent for orbit in every])))
    chaotic = [orbit.chaotic_exponent for orbit in every if orbit.chaotic_exponent == orbit.chaotic_exponent]
    if chaotic:
        rows_.append(Row("chaotic_lyapunov_exponent", value=_mean(chaotic)))
    length = torch.tensor([orbit.length for orbit in every], dtype=torch.float64)
    unseen = torch.tensor([orbit.censored > 0 for orbit in every]) | (length > long.steps)
    length = length.clamp(max=float(long.steps))
    lasts = survival(length, unseen, horizon=float(length.max()))
    transient = length > 0
    rows_ += [
        Row("transient_share", value=float(transient.double().mean())),
        Row("undetermined_transient_share", value=_mean([orbit.transient_undetermined for orbit in every])),
        Row("ended_share", value=float((transient & ~unseen).double().mean())),
        *(
            Row("survival", t=int(t), value=value)
            for t, value in zip(lasts.times.tolist(), lasts.survival.tolist(), strict=True)
        ),
        Row("escape_rate", value=lasts.escape_rate),
        Row("restricted_mean_length", value=lasts.restricted_mean),
    ]
    return rows_ + _second_opinion(gathered(run.observed).cpu(), kinds, long.tau)


def _second_opinion(observed: Tensor, kinds: Sequence[str], tau: int) -> list[Row]:
    """Return K of the 0–1 test against T, for trajectories followed to the end, at lags that decorrelate them."""
    rows = []
    for i, (series, kind) in enumerate(zip(observed.T, kinds, strict=True)):
        if not bool(series.isfinite().all()):
            continue
        every = decorrelation_lag(series)
        if len(series) < _LEAST * every:
            continue
        found = zero_one_test(series[:, None], every=every)
        rows += [
            Row("sentence_zero_one", kind=kind, sentence=i, t=min(m * every, len(series)) * tau, value=k)
            for m, k in zip(found.lengths.tolist(), found.k[:, 0].tolist(), strict=True)
            if k == k
        ]
    return rows


_LEAST = 100


def _mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else float("nan")
