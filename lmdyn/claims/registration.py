"""The runs that were made after a claim was stated; it is judged on those alone if there are enough."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lmdyn.claims.claim import Claim, Study
from lmdyn.claims.summary import FEWEST
from lmdyn.runs.observed_run import ObservedRun, SeedPair, independent_seeds

__all__ = ["Registered", "enough", "inspected_words", "registered"]


@dataclass(frozen=True)
class Registered:
    """The seeds by which a claim is judged.

    Attributes:
        seeds: the seeds that count.
        exploratory: why the claim does not count as stated before them; empty if it does.
        left_out: a sentence about the seeds that do not count because they were inspected, if enough others were not.
    """

    seeds: tuple[SeedPair, ...]
    exploratory: tuple[str, ...]
    left_out: tuple[str, ...]


def registered(study: Study, claim: Claim, used: Mapping[SeedPair, Sequence[ObservedRun]]) -> Registered:
    """Leave out the seeds that were inspected before the claim was stated, if at least three others were not.

    Args:
        study: the study, with what was inspected before any of its claims.
        claim: the claim, with what was inspected before it was stated in this form.
        used: runs that were read for each seed.
    """
    new = tuple(seed for seed, runs in used.items() if not inspected_words(study, claim, runs))
    counts = new if enough(new) else tuple(used)
    others = [run for seed, runs in used.items() if seed not in counts for run in runs]
    judged = [run for seed in independent_seeds(counts) for run in used[seed]]
    exploratory = (*inspected_words(study, claim, judged), *_not_registered(study, claim, judged))
    return Registered(
        counts, exploratory, tuple(f"left out: {why}" for why in inspected_words(study, claim, others))
    )


def enough(seeds: Sequence[SeedPair]) -> bool:
    """Return whether these seeds suffice for a verdict."""
    return len(independent_seeds(seeds)) >= FEWEST


def inspected_words(study: Study, claim: Claim, runs: Sequence[ObservedRun]) -> list[str]:
    """Return sentences about the runs that were declared to have been inspected before; empty if there are none."""
    early = {run.seeds.init for run in runs if study.was_inspected(run.seeds.init, run.condition)}
    late = {
        run.seeds.init for run in runs if study.was_inspected(run.seeds.init, run.condition, claim.inspected)
    }
    said = []
    for seeds, what in ((early, "claims were stated"), (late - early, "claim was stated in this form")):
        if seeds:
            named = ", ".join("?" if s is None else str(s) for s in sorted(seeds, key=lambda s: s or 0))
            of = f"seeds {named}" if len(seeds) > 1 else f"seed {named}"
            said.append(f"runs of {of} were inspected before the {what}")
    return said


def _not_registered(study: Study, claim: Claim, runs: Sequence[ObservedRun]) -> Iterator[str]:
    known = {run.name: run.registered.get(study.name, {}).get(claim.name) for run in runs}
    never = [name for name, found in known.items() if found is None]
    changed = [name for name, found in known.items() if found not in (None, claim.fingerprint)]
    for said, names in (("not registered before the runs", never), ("changed after registration", changed)):
        if names:
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            yield f"{said}: {', '.join(names[:4])}{more}"
