"""The verdicts of a study's claims on a set of runs, computed only from what their observers wrote."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any, cast

from lmdyn.claims.claim import Claim, Study
from lmdyn.claims.numbers import Estimate, Number
from lmdyn.claims.registration import enough, inspected_words, registered
from lmdyn.claims.rows import Rows, Source, parts_of
from lmdyn.claims.summary import (
    ENOUGH,
    FEWEST,
    SMALLER,
    PartJudgement,
    Summary,
    Verdict,
    judge_part,
    summarize,
)
from lmdyn.runs.observed_run import (
    NotMeasured,
    ObservedRun,
    OtherCondition,
    SeedPair,
    by_seed,
    differences,
    independent_seeds,
)

__all__ = ["ClaimJudgement", "StudyJudgement", "judge"]


@dataclass(frozen=True)
class ClaimJudgement:
    """The result of a claim on a set of runs.

    Attributes:
        claim: the claim.
        verdict: for these runs, ``holds``, ``smaller than required`` (with the claimed sign), ``fails``, ``not within N
            tokens`` (of the claim, which the runs do not reach), ``undecided``, ``void`` or ``not measured``.
        after_holm: the verdict after Holm's correction over all tested claims of the study.
        parts: each part over seeds; empty if nothing was measured.
        floor: the floor over the same seeds; None if it is not measured, or is not a number.
        p: two-sided p of the direction of the verdict; None if nothing was tested.
        p_holm: p after the correction; of a number smaller than required, the larger of its two.
        p_sign: two-sided p of the sign of a number that is smaller than required.
        reasons: sentences that say why it is void, not measured or undecided, and what is missing.
        exploratory: reasons why it does not count as stated before; empty if it does.
        seeds: the seeds by which it was judged.
        runs: names of the runs that were read.
        own_texts: whether each seed has a generated text of its own, so that the spread over seeds includes texts.
        rules_1: verdict, and verdict after Holm's correction, by the first version of the rules, which knows neither
            "smaller than required" nor "not within N tokens".
    """

    claim: Claim
    verdict: Verdict
    after_holm: Verdict
    parts: tuple[PartJudgement, ...] = ()
    floor: Summary | None = None
    p: float | None = None
    p_holm: float | None = None
    reasons: tuple[str, ...] = ()
    exploratory: tuple[str, ...] = ()
    seeds: tuple[SeedPair, ...] = ()
    runs: tuple[str, ...] = ()
    own_texts: bool = False
    p_sign: float | None = None
    rules_1: tuple[Verdict, Verdict] | None = None

    @property
    def of_this_text(self) -> bool:
        """Whether the verdict is for this text only: some part has no known error over texts."""
        return not self.own_texts and any(part.of_this_text for part in self.parts)

    @property
    def floor_too(self) -> bool:
        """Whether the claim holds, and so does its floor: it lies in the region, if all parts have the same."""
        if self.verdict != "holds" or self.floor is None or len({part.region for part in self.parts}) > 1:
            return False
        # the same in all seeds, such as that of a text: a number, no estimate
        same = self.floor.range[0] == self.floor.range[1]
        low, high = self.floor.range if same or self.floor.interval is None else self.floor.interval
        region = self.parts[0].region
        return region.low <= low and high <= region.high


@dataclass(frozen=True)
class StudyJudgement:
    """The claims of a study, judged together.

    Attributes:
        study: the study.
        rows: one for each claim, in the study's order.
        confidence: confidence of the intervals.
    """

    study: Study
    rows: tuple[ClaimJudgement, ...]
    confidence: float

    def __iter__(self) -> Iterator[ClaimJudgement]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> ClaimJudgement:
        """Return the judgement of the claim with this name."""
        return next(row for row in self.rows if row.claim.name == name)


def judge(study: Study, runs: Sequence[ObservedRun], confidence: float = 0.95) -> StudyJudgement:
    """Judge each claim of a study on runs.

    Estimates are computed for each seed (from the runs that share it). Seeds that share a number with another one are
    left out, except for the variance components. If a part's interval over seeds and texts lies in its region the part
    holds; if it is disjoint from the region it fails (:func:`~lmdyn.claims.summary.judge_part`). With ``all``, each
    part must hold at its own level, and one of k fails the claim at a k-th of the level; with ``any`` it is vice versa.

    Args:
        study: the study.
        runs: runs of all its seeds and conditions, in any order.
        confidence: confidence of the intervals.

    Raises:
        ValueError: if runs have different conditions where one is expected, or a source is ambiguous.
    """
    groups = by_seed(runs)
    found = [_judge_claim(study, claim, groups, confidence) for claim in study.claims]
    return StudyJudgement(study, tuple(_after_holm(found, confidence)), confidence)


def _after_holm(rows: Sequence[ClaimJudgement], confidence: float) -> Iterator[ClaimJudgement]:
    """Yield judgements with Holm's correction; the family is all tested claims, not a selection after the fact."""
    from lmdyn.analysis.statistics.multiplicity import holm

    first = iter(holm([row.p for row in rows if row.p is not None]))
    tested = [
        [
            p
            for p in (row.p, row.p_sign)
            if p is not None and row.verdict not in ("not within N tokens", "void")
        ]
        for row in rows
    ]
    adjusted = iter(holm([p for ps in tested for p in ps]))
    for row, ps in zip(rows, tested, strict=True):
        found = [next(adjusted) for _ in ps]
        kept = [p <= 1 - confidence for p in found]
        after = row.verdict
        if row.verdict in ("holds", SMALLER, "fails") and not all(kept):
            after = "fails" if kept[0] else "undecided"
        before = row.verdict if row.rules_1 is None else row.rules_1[0]
        lost = row.p is not None and next(first) > 1 - confidence and before in ("holds", "fails")
        yield replace(
            row,
            p_holm=max(found, default=None),
            after_holm=after,
            rules_1=(before, "undecided" if lost else before),
        )


def _judge_claim(
    study: Study, claim: Claim, groups: Mapping[SeedPair, Sequence[ObservedRun]], confidence: float
) -> ClaimJudgement:
    numbers = [part.number for part in claim.parts]
    conditions = [condition.number for condition in claim.void_unless]
    sources = [source for number in (*numbers, *conditions) for source in parts_of(number)]
    estimates, missing = _estimates([*numbers, *conditions], groups)
    used = _used(sources, {seed: groups[seed] for seed in estimates}, claim)
    # a longer run that was inspected does not make the new ones unfinished, if these are enough
    new = {seed: groups[seed] for seed, runs in used.items() if not inspected_words(study, claim, runs)}
    unfinished = _unfinished(sources, new)
    if not enough([seed for seed in new if seed not in unfinished]):
        unfinished = _unfinished(sources, {seed: groups[seed] for seed in estimates})
    missing |= unfinished
    stated = registered(study, claim, {seed: runs for seed, runs in used.items() if seed not in unfinished})
    if set(stated.seeds) != set(estimates):  # numbers of several seeds together use only those that count
        estimates, more = _estimates([*numbers, *conditions], {seed: groups[seed] for seed in stated.seeds})
        missing |= more
    lacking = _missing(missing, study, claim, some=bool(estimates)) if missing or not estimates else []
    if not estimates:
        return ClaimJudgement(claim, "not measured", "not measured", reasons=tuple(lacking))
    lacking = [*stated.left_out, *lacking]
    seeds = tuple(independent_seeds(estimates))
    judged = {s: used[s] for s in seeds}
    about: dict[str, Any] = {
        "seeds": seeds,
        "runs": tuple(dict.fromkeys(run.name for s in seeds for run in judged[s])),
        "exploratory": stated.exploratory,
    }
    if void := list(_void(claim, {s: estimates[s] for s in seeds})):
        return ClaimJudgement(claim, "void", "void", reasons=(*void, *lacking), **about)
    names, same = _own_texts({s: judged[s][0] for s in seeds if judged[s]})
    of_one_text = [estimates[s] for s in same]
    if own := bool(names):  # errors over texts would count them twice
        seeds = tuple(s for s in seeds if s not in same[1:])
        estimates = {s: [replace(e, error=None) for e in estimates[s]] for s in seeds}
    try:
        parts = _parts(claim, estimates, confidence)
    except ValueError as error:  # a value outside the range of its scale
        raise ValueError(f"claim {claim.name!r}: {error}") from error
    if same:
        parts = tuple(part.beside([e[i].value for e in of_one_text]) for i, part in enumerate(parts))
    verdict, p, p_sign = _combined(claim, parts)
    if own and len(seeds) < ENOUGH:
        verdict, p, p_sign = "undecided", None, None
        lacking = [f"{len(seeds)} texts, each with a seed of its own: a verdict requires {ENOUGH}", *lacking]
    before: Verdict = "fails" if verdict == SMALLER else verdict
    undecided = list(_undecided(parts)) if verdict == "undecided" else []
    if claim.within is not None and verdict != "holds" and len(seeds) >= (ENOUGH if own else FEWEST):
        seen = _tokens(sources, {s: judged[s] for s in seeds})
        if seen < claim.within:
            verdict, p_sign = "not within N tokens", None
            trained = f"trained on {seen:,} tokens" if seen else "the number of training tokens is unknown"
            lacking = [f"{trained}; the claim is about {claim.within:,.0f} tokens", *lacking]
    if unlearned := list(_not_learned(claim, {s: groups[s] for s in seeds})):
        verdict, p_sign, lacking = "void", None, [*unlearned, *lacking]
    floor, unknown = _floor(claim, {s: groups[s] for s in estimates}, confidence)
    forced = [f"the direction has another explanation: {claim.forced}"] if claim.forced else []
    why = [*forced, *undecided, *unknown, *lacking]
    return ClaimJudgement(
        claim, verdict, verdict, parts, floor, p, None, tuple(why), **about,
        own_texts=own, p_sign=p_sign, rules_1=(before, before),
    )  # fmt: skip


def _estimates(
    numbers: Sequence[Number], groups: Mapping[SeedPair, Sequence[ObservedRun]]
) -> tuple[dict[SeedPair, list[Estimate]], dict[SeedPair, NotMeasured]]:
    """Return all numbers of the seeds that have all of them, and what the other seeds lack.

    A number of several seeds together uses only seeds that have all numbers: it is computed again if some lack one.
    """
    missing: dict[SeedPair, NotMeasured] = {}
    every = list(groups)
    while True:
        found: dict[SeedPair, list[Estimate]] = {seed: [] for seed in groups}
        for number in numbers:
            for seed, one in number.of_seeds({s: groups[s] for s in found}).items():
                if isinstance(one, NotMeasured):
                    missing[seed] = one
                    del found[seed]
                else:
                    found[seed].append(one)
        if len(found) in (0, len(groups)):
            return found, {seed: missing[seed] for seed in every if seed in missing}
        groups = {seed: groups[seed] for seed in found}


def _unfinished(
    sources: Sequence[Source], groups: Mapping[SeedPair, Sequence[ObservedRun]]
) -> dict[SeedPair, NotMeasured]:
    """Return seeds whose observations end before nine tenths of the longest: their last ones are not comparable."""
    found: dict[SeedPair, NotMeasured] = {}
    for source in (s for s in sources if isinstance(s, Rows)):
        ends: dict[SeedPair, int] = {}
        for seed, runs in groups.items():
            try:
                run, folder = source.locate(runs)
            except NotMeasured:
                continue
            steps = run.read(folder, quantities=[source.quantity])["step"]
            if len(steps):
                ends[seed] = int(steps.max())
        for seed, end in ends.items():
            if end < 0.9 * max(ends.values()):
                found[seed] = NotMeasured(
                    f"observed until step {end}, other seeds until {max(ends.values())}: the run is not finished"
                )
    return found


def _tokens(sources: Sequence[Source], groups: Mapping[SeedPair, Sequence[ObservedRun]]) -> int:
    """Return how many tokens the longest run had trained on at the last observation; 0 if that is unknown."""
    found = [0]
    for source in (s for s in sources if isinstance(s, Rows)):
        for runs in groups.values():
            try:
                run, folder = source.locate(runs)
            except NotMeasured:
                continue
            found += run.read(folder, quantities=[source.quantity])["tokens"].dropna().astype(int).tolist()
    return max(found)


def _missing(missing: Mapping[SeedPair, NotMeasured], study: Study, claim: Claim, *, some: bool) -> list[str]:
    """Return what is missing, each once, and the command that would measure it; ``some``: other seeds have all."""
    by_message: dict[str, tuple[str, list[str]]] = {}
    for seed, error in missing.items():
        of_others = isinstance(error, OtherCondition)
        message = "observed in other conditions only" if some and of_others else str(error)
        # the same but for the runs' names; of other conditions, those that exist are listed for the first seed only
        alike = re.sub(rf"_{seed.init}(_{seed.order})?\b", "", message)
        alike = message.partition("; observers of the runs: ")[0] if of_others else alike
        by_message.setdefault(alike, (message, []))[1].append(str(seed))
    told = [f"seed {', '.join(seeds)}: {message}" for message, seeds in by_message.values()]
    if len(told) > 3:
        told = [*told[:3], f"… and {len(told) - 3} more"]
    observers = ", ".join(sorted({name.partition("/")[0] for name in claim.reads()}))
    command = claim.measured_by or study.measured_by or f"lmdyn analyze RUN --config FILE, with {observers}"
    return [*(told or ["the command got no runs"]), f"measured by: {command}"]


def _used(
    sources: Sequence[Source], groups: Mapping[SeedPair, Sequence[ObservedRun]], claim: Claim
) -> dict[SeedPair, list[ObservedRun]]:
    """Return the runs that were read for each seed; those with the same source must have one condition."""
    used: dict[SeedPair, dict[int, ObservedRun]] = {seed: {} for seed in groups}
    for source in sources:
        places = []
        for seed, runs in groups.items():
            try:
                places.append((seed, *source.locate(runs)))
            except NotMeasured:  # a user's number may not need it
                continue
        for seed, run, _ in places:
            used[seed][id(run)] = run
        its = {seed: run for seed, run, _ in places}
        own, _ = _own_texts(its)
        differ = [each for each in differences(list(its.values())) if each.partition(":")[0] not in own]
        observed = [(run, folder) for _, run, folder in places if folder != "test"]
        differ += _different_settings(observed, own_texts=bool(own))
        if differ:
            raise ValueError(
                f"claim {claim.name!r}: runs of several conditions have {', '.join(source.names())}: "
                f"{'; '.join(differ)}. Give the runs of one condition at a time"
            )
    return {seed: list(runs.values()) for seed, runs in used.items()}


def _own_texts(runs: Mapping[SeedPair, ObservedRun]) -> tuple[set[str], tuple[SeedPair, ...]]:
    """Return the names of seeds of generated texts, a random factor if each run has a text of its own; else none.

    Of enough texts, one may have several runs, for the variance over seeds: these are returned too, of which the first
    is judged.
    """
    values: dict[str, set[Any]] = {}
    for run in runs.values():
        for name in run.condition:
            if name.endswith(("grammar_seed", "language_seed")):
                values.setdefault(name, set()).add(run.condition[name])
    varying = [name for name, of in values.items() if len(of) > 1]
    by_text: dict[tuple[Any, ...], list[SeedPair]] = {}
    for seed, run in runs.items():
        text = tuple(run.condition.get(name) for name in varying)
        by_text.setdefault(text, []).append(seed)
    several = [of for of in by_text.values() if len(of) > 1]
    if len(several) > 1 or len(by_text) < (ENOUGH if several else 2):
        return set(), ()
    return set(varying), tuple(chain(*several))


def _different_settings(places: Sequence[tuple[ObservedRun, str]], *, own_texts: bool) -> list[str]:
    """Return settings of an observer that differ between seeds; only plain ones, since references depend on seeds.

    If each run has a text of its own, the hashes of texts differ.
    """
    found: dict[str, dict[str, str]] = {}
    for run, folder in places:
        for key, value in run.settings(folder).items():
            text = isinstance(value, str) and "/" not in value
            plain = text or value is None or isinstance(value, (int, float))
            if own_texts and text and re.fullmatch("[0-9a-f]{32}", value):
                continue
            if plain and key not in ("probe_set", "train_set", "seed"):
                found.setdefault(key, {}).setdefault(repr(value), f"{folder} of {run.name}")
    return [
        f"{key}: " + ", ".join(f"{value} in {where}" for value, where in values.items())
        for key, values in found.items()
        if len(values) > 1
    ]


def _void(claim: Claim, estimates: Mapping[SeedPair, Sequence[Estimate]]) -> Iterator[str]:
    for seed, found in estimates.items():
        values = found[: len(claim.parts)]
        if any(math.isnan(e.value) for e in values):
            yield f"seed {seed}: a part has no value (NaN)"
        elif any(math.isinf(e.value) for e in values):
            yield f"seed {seed}: a part is infinite"
        for condition, estimate in zip(claim.void_unless, found[len(claim.parts) :], strict=True):
            if estimate.value not in condition.region:  # NaN is in no region
                yield f"seed {seed}: required: {condition.says}; {estimate.value:.4g} is not {condition.region}"


def _not_learned(claim: Claim, groups: Mapping[SeedPair, Sequence[ObservedRun]]) -> Iterator[str]:
    for condition, (seed, runs) in product(claim.learned, groups.items()):
        try:
            value = condition.number.of(runs).value
        except NotMeasured as error:
            yield f"seed {seed}: it is not known whether the model learned ({condition.says}): {error}"
        else:
            if value not in condition.region:
                yield f"seed {seed}: required: {condition.says}; {value:.4g} is not {condition.region}"


def _parts(
    claim: Claim, estimates: Mapping[SeedPair, Sequence[Estimate]], confidence: float
) -> tuple[PartJudgement, ...]:
    from lmdyn.analysis.statistics.multiplicity import simultaneous_confidence

    strict = simultaneous_confidence(confidence, len(claim.parts))
    every = claim.combine == "all"
    return tuple(
        judge_part(
            part,
            {seed: found[i] for seed, found in estimates.items() if math.isfinite(found[i].value)},
            holds_confidence=confidence if every else strict,
            fails_confidence=strict if every else confidence,
            shown_confidence=confidence if every else strict,
        )
        for i, part in enumerate(claim.parts)
    )


def _combined(claim: Claim, parts: Sequence[PartJudgement]) -> tuple[Verdict, float | None, float | None]:
    """Return the verdict of the parts together, the two-sided p of its direction, and that of its sign if smaller.

    If all parts must hold, the claim is smaller than required if each part holds or is smaller.
    """
    all_of_them = claim.combine == "all"
    verdicts = {part.verdict for part in parts}
    if verdicts == {"holds"} or ("holds" in verdicts and not all_of_them):
        verdict: Verdict = "holds"
    elif all_of_them and verdicts <= {"holds", SMALLER}:
        verdict = SMALLER
    elif verdicts <= {"fails", SMALLER} or (verdicts & {"fails", SMALLER} and all_of_them):
        verdict = "fails"
    else:
        verdict = "undecided"
    holds, fails = [p.p_holds for p in parts], [p.p_fails for p in parts]
    each, one = (holds, fails) if all_of_them else (fails, holds)
    if None in (*each, *one):
        return verdict, None, None
    p = min(1.0, 2 * min(max(cast(list[float], each)), len(parts) * min(cast(list[float], one))))
    signs = [part.p_holds if part.verdict == "holds" else part.p_sign for part in parts]
    return verdict, p, min(1.0, 2 * max(cast(list[float], signs))) if verdict == SMALLER else None


def _floor(
    claim: Claim, groups: Mapping[SeedPair, Sequence[ObservedRun]], confidence: float
) -> tuple[Summary | None, list[str]]:
    if isinstance(claim.floor, str):
        return None, []
    found, missing = _estimates([claim.floor], groups)
    values = {seed: e[0] for seed, e in found.items() if math.isfinite(e[0].value)}
    lacking = list(dict.fromkeys(missing.values()))[:1]
    told = [f"the floor is not measured: {lacking[0]}"] if lacking else []
    scale, between = claim.parts[0].mean_scale, claim.floor.between()
    return (summarize(values, scale, confidence, between) if values else None), told


def _undecided(parts: Sequence[PartJudgement]) -> Iterator[str]:
    """Yield sentences that say why a claim is undecided."""
    n = parts[0].n
    if n < FEWEST:
        yield f"{n} seed{'s' * (n > 1)}: a verdict requires {FEWEST} or more"
        return
    for part in (p for p in parts if p.verdict == "undecided" and p.interval is not None):
        label = f"{part.label}: " if part.label else ""
        low, high = cast(tuple[float, float], part.interval)
        region = part.region
        if part.censored and any(map(math.isinf, part.range)) and n < 7:
            yield f"{label}not reached, or at once, in some of {n} seeds: 7 or more decide"
        elif math.isinf(low) and math.isinf(high):
            yield f"{label}the same in all of {n} seeds: 6 or more decide, by the sign test"
        elif (region.low <= low and high <= region.high) or high < region.low or low > region.high:
            side = "in" if low in region else "outside of"
            how = "each seed's own interval" if n < ENOUGH else "what holds for several parts together"
            yield f"{label}the interval is {side} {region}, but not {how}"
        else:
            precise = "" if part.precision is None else f": {part.precision}"
            yield f"{label}the interval {low:.4g} … {high:.4g} is partly in {region}{precise}"
