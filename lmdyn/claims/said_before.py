"""The runs that were made after a claim was stated; it is judged on those alone if there are enough."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lmdyn.claims.claim import Claim, Study
from lmdyn.claims.runs import ObservedRun, SeedPair, independent_seeds
from lmdyn.claims.summary import FEWEST

__all__ = ["SaidBefore", "enough", "said_before", "was_seen"]


@dataclass(frozen=True)
class SaidBefore:
    """The seeds by which a claim is judged.

    Attributes:
        seeds: the seeds that count.
        exploratory: why the claim does not count as stated before them; empty if it does.
        left_out: a sentence about each seed that does not count because it was seen, if enough others were not.
    """

    seeds: tuple[SeedPair, ...]
    exploratory: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def said_before(study: Study, claim: Claim, used: Mapping[SeedPair, Sequence[ObservedRun]]) -> SaidBefore:
    """Leave out the seeds that were seen before the claim was stated, if at least three others were not.

    What led to a claim does not test it. With fewer than three new seeds no verdict is possible: then all count, and
    the claim is exploratory. It is also exploratory if a run's provenance does not show that the claim existed before
    the run in the same form; such runs are not left out, since a lost record is no reason to omit a result.

    Args:
        study: the study, with what was seen before any of its claims.
        claim: the claim, with what was seen before it was stated in this form.
        used: the runs that are read, by seed.
    """
    new = tuple(seed for seed, runs in used.items() if not was_seen(study, claim, runs))
    counts = new if enough(new) else tuple(used)
    left_out = _seen(study, claim, [run for seed, runs in used.items() if seed not in counts for run in runs])
    judged = [run for seed in independent_seeds(counts) for run in used[seed]]
    exploratory = (*_seen(study, claim, judged), *_not_registered(study, claim, judged))
    return SaidBefore(counts, exploratory, tuple(f"left out: {reason}" for reason in left_out))


def enough(seeds: Sequence[SeedPair]) -> bool:
    """Return whether these seeds suffice for a verdict."""
    return len(independent_seeds(seeds)) >= FEWEST


def was_seen(study: Study, claim: Claim, runs: Sequence[ObservedRun]) -> bool:
    """Return whether one of a seed's runs was seen before the claim was stated."""
    return bool(_seen(study, claim, runs))


def _seen(study: Study, claim: Claim, runs: Sequence[ObservedRun]) -> list[str]:
    """Return sentences about the runs that were declared to have been seen before."""
    early = {run.seeds.init for run in runs if study.was_seen(run.seeds.init, run.condition)}
    late = {run.seeds.init for run in runs if study.was_seen(run.seeds.init, run.condition, claim.seen)}
    said = []
    for seeds, what in ((early, "claims were said"), (late - early, "claim was said as it is")):
        if seeds:
            named = ", ".join("?" if s is None else str(s) for s in sorted(seeds, key=lambda s: s or 0))
            are = f"seeds {named} are those" if len(seeds) > 1 else f"seed {named} is that"
            said.append(f"{are} of runs that were seen before the {what}")
    return said


def _not_registered(study: Study, claim: Claim, runs: Sequence[ObservedRun]) -> Iterator[str]:
    distinct = list({id(run): run for run in runs}.values())
    said = [(run.name, run.registered.get(study.name, {}).get(claim.name)) for run in distinct]
    if lacking := [name for name, fingerprint in said if fingerprint is None]:
        yield f"not said before it was measured in {_some(lacking)}"
    if changed := [name for name, fingerprint in said if fingerprint not in (None, claim.fingerprint)]:
        yield f"changed since it was said in {_some(changed)}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
