"""Claims on forks about the effect of learning rate reductions on the rising curves of the sparsity study.

The publication's runs reduce their learning rate repeatedly, so that its figures cannot distinguish training from
reductions. Here runs of several seeds continue from one checkpoint with the same data, random states and optimizer
state, at the current rate and at a quarter of it; neither is reduced further. Numbers are paired by
seed. The floor is a third fork, whose rate is a thousandth lower: the effect of any change, since two trainings
diverge for any reason. (Without a change, a fork equals the run bit by bit.) Claims and floor were stated before any
fork was trained. A fork is identified in its condition: ``forked.run``, ``forked.step``, ``forked.rate``.
"""

from lmdyn.claims.claim import Above, Below, Claim, Condition, Part
from lmdyn.claims.forks import ForkEffect, RateAtFork, SinceFork, at_rate
from lmdyn.claims.numbers import At, Difference, Layer, Number, Rows
from lmdyn.claims.studies.sparsity_numbers import (
    CONCENTRATED,
    ENTROPY,
    FIRST,
    HOW_CONCENTRATED,
    HOW_SLIGHT,
    LAST,
    LEARNED,
    LEVEL,
    LOSS,
    SAMPLES,
    SLIGHT,
    chi,
    rho,
    suffix,
    words,
)

__all__ = ["OF_FORKS", "OF_THE_FIRST_REDUCTION", "REDUCTION"]

QUARTER, KEPT, NUDGED = 0.25, 1.0, 0.999
RATE = Rows("LearningCurves", "learning_rate", where=(("by", ""), ("group", "")))
REDUCTION = "Does the first reduction of the learning rate begin an upward trend in ρ→?"
FORKS = (
    "snakemake --profile configs/saphra2019_sparsity/forks_organism (or, of a run of yours: lmdyn fork RUN --epoch E, "
    "once at its learning rate and once at a quarter of it, and lmdyn analyze of both)"
)
SITES: dict[str, str | Layer] = {"embedding": "embedding", "first layer": FIRST, "last layer": LAST}
# fmt: off


def effect(rows: Rows, rate: float = QUARTER, *, log: bool = False) -> Number:
    """Return the effect of another rate, compared with the unchanged rate."""
    return ForkEffect(at_rate(rows, rate), at_rate(rows, KEPT), log=log)


def enough(sample: str, role: str, least: int) -> tuple[Condition, ...]:
    """Return the conditions of the other claims, for the fork with the unchanged rate."""
    loss, entropy = (At(at_rate(rows, KEPT)) for rows in (LOSS, ENTROPY))
    learned = Condition(LEARNED.says, Difference(loss, entropy), Below(-0.1))
    return (learned, words(sample, role, least, rate=KEPT))


FIRST_TIME = Condition(
    "the rate was not reduced before the fork", RateAtFork(at_rate(RATE, KEPT)), Above(0.999)
)
HOW = "quartered against kept, from one checkpoint"
CHI, FREQUENT = chi("1000+"), enough("1000+", "target", 10)
RISES = "Does χ of frequent words rise because the learning rate is reduced?"
INCREASES = "Does ρ← of the last layer's gradient rise because the learning rate is reduced?"
SHOWN = "The curve rises in a run whose learning rate is reduced again and again"


def target_claims(sample: str, variant: str) -> tuple[Claim, ...]:
    """Return the claims on ρ← of the last layer's gradient, for one sample of words."""
    end, gradient = suffix(sample), rho("gradient", LAST, "target", sample, error=False)
    conditions = enough(sample, "target", 100)
    return (
        Claim(
            f"fork_target_gradient_reduced{end}", f"{SHOWN}: a reduction itself raises it", "section 3, figure 3a",
            (Part(effect(gradient), Above(SLIGHT), "ρ← of the last layer's gradient, quartered − kept"),),
            matters=HOW_SLIGHT, floor=effect(gradient, NUDGED), void_unless=conditions,
            question=INCREASES, variant=f"{HOW}; {variant}", measured_by=FORKS,
        ),
        Claim(
            f"fork_target_gradient_kept{end}", f"{SHOWN}: it rises without one too", "section 3, figure 3a",
            (Part(SinceFork(at_rate(gradient, KEPT)), Above(SLIGHT), "change of ρ← since the fork, rate kept"),),
            matters=HOW_SLIGHT, floor=LEVEL, void_unless=conditions,
            question=INCREASES, variant=f"at the rate kept; {variant}", measured_by=FORKS,
        ),
    )


def input_claim(sample: str, variant: str) -> Claim:
    """Return the claim on ρ→ of activations, for one sample of words."""
    each = {name: rho("activation", site, "input", sample, error=False) for name, site in SITES.items()}
    return Claim(
        f"fork_input_first_reduction{suffix(sample)}",
        "The first time that the optimizer rescales the step size begins an upward trend in ρ→: it is its cause",
        "section 3, figure 3b",
        tuple(Part(effect(rows), Above(SLIGHT), f"ρ→, {name}, quartered − kept") for name, rows in each.items()),
        matters=HOW_SLIGHT, floor=effect(each["embedding"], NUDGED),
        void_unless=(*enough(sample, "input", 100), FIRST_TIME),
        question=REDUCTION, variant=f"{HOW}; {variant}", measured_by=FORKS,
    )


OF_THE_FIRST_REDUCTION = tuple(input_claim(sample, variant) for sample, variant in SAMPLES.items())
OF_FORKS = (
    Claim(
        "fork_chi_reduced", f"{SHOWN}: a reduction itself raises it", "section 3, figure 2",
        (Part(effect(CHI, log=True), Above(CONCENTRATED), "ln of χ, quartered / kept"),),
        matters=HOW_CONCENTRATED, floor=effect(CHI, NUDGED, log=True), void_unless=FREQUENT,
        question=RISES, variant=HOW, measured_by=FORKS,
    ),
    Claim(
        "fork_chi_kept", f"{SHOWN}: it rises without one too", "section 3, figure 2",
        (Part(SinceFork(at_rate(CHI, KEPT), log=True), Above(CONCENTRATED), "ln of χ, end / fork, rate kept"),),
        matters=HOW_CONCENTRATED, floor=LEVEL, void_unless=FREQUENT,
        question=RISES, variant="at the rate kept, since the fork", measured_by=FORKS,
    ),
    *(claim for sample, variant in SAMPLES.items() for claim in target_claims(sample, variant)),
)
