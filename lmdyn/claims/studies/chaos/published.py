"""The claims of Inoue et al. 2022 about ALBERT-large as published: one network and initial ones of its size.

The profile ``paper`` measures them; it was never run here. For one pre-trained network, a number has no interval over
networks, and a verdict requires three seeds: comparisons with initial networks are paired by seed, and
remain undecided until other pre-trained networks of this size exist. Thresholds were chosen as in the other
files of this study, before any such run.
"""

from typing import Any

from lmdyn.claims.claim import Above, Below, Claim, Part, Within
from lmdyn.claims.numbers import At, Difference, Number
from lmdyn.claims.rows import Rows
from lmdyn.claims.studies.chaos.training import (
    ACCURACY,
    HOW_LONGER,
    LONGER,
    SENTENCE,
    SHARE,
    SMALL,
    below_ceiling,
)
from lmdyn.claims.studies.sparsity_numbers import LogRatio

__all__ = ["PRETRAINED"]

DEPTH = 24
RUN = "snakemake --profile configs/inoue2022_chaos/paper"
PUBLISHED = (("pretrained", "albert/albert-large-v2"),)
INITIAL = (("hidden_size", 1024), ("initialization", "truncated_normal"), ("initializer_range", 0.02))
CEILING = "share_of_ceiling"
BESIDE = "0: an initial network of the same size"
# fmt: off


def at(quantity: str, run: Any = PUBLISHED, name: str = "encoder_dynamics", **where: Any) -> At:
    """Return a quantity of the dynamics of the published network, or of an initial one."""
    return At(Rows("EncoderDynamics", quantity, where=tuple(where.items()), name=name, run=run), 0)


def readout(quantity: str, how: str, t: int, run: Any = PUBLISHED) -> At:
    """Return a readout from the state at a time: masked tokens where the mask is shown, or similarity."""
    where = (("how", how), ("t", t), *([("where", "mask")] if quantity == "accuracy" else []))
    return At(Rows("DepthPerformance", quantity, where=where, run=run), 0)


def written(quantity: str, run: Any = PUBLISHED) -> At:
    """Return a quantity of the window with the best handwriting."""
    return At(Rows("Handwriting", quantity, run=run), 0)


def beside(number: Any, *args: Any, **where: Any) -> Difference:
    """Return the published network's number minus the initial one's."""
    return Difference(number(*args, **where), number(*args, run=INITIAL, **where))


def ratio_beside(number: Any, *args: Any, **where: Any) -> LogRatio:
    """Return the logarithm of their ratio."""
    return LogRatio(number(*args, **where), number(*args, run=INITIAL, **where))


def claim(name: str, says: str, where: str, variant: str, *parts: Part, matters: str, floor: str, **more: Any) -> Claim:
    """Return a claim that the profile ``paper`` measures."""
    return Claim(f"pretrained_{name}", says, where, parts, matters=matters, floor=floor, variant=variant,
        question="Is the published ALBERT-large (v2) as printed?", measured_by=RUN, **more)


def sentences(quantity: str, says: str, **where: Any) -> Part:
    """Return the part that a share of sentences is at least 0.99."""
    return Part(at(quantity, **where), Above(0.99), says)


AS_LONG = (
    claim("synchronizes", "All token vectors synchronize, in all observed cases", "section II", "synchronization",
        sentences("synchronized_share", "share of sentences within 500 steps", length=32), matters=SENTENCE,
        floor="none: that maps contract is asked"),
    claim("chaotic_exponent", "Mean λ of chaotic trajectories is 9.54e-2, to a factor of two", "section II",
        "λ of chaos", Part(at("chaotic_lyapunov_exponent"), Within(4.77e-2, 0.191), "mean λ"),
        matters="a factor of two", floor="none: λ of what is not chaotic is left out by choice"),
    claim("transient", "All sentences have a chaotic transient", "section II", "chaos",
        sentences("transient_share", "share of sentences with one"), matters=SENTENCE,
        floor="none: initial networks stand beside"),
    claim("ends", "… which was seen to end", "section II", "end of chaos",
        sentences("ended_share", "share of sentences whose chaos ended"), matters=SENTENCE,
        floor="0: chaotic to the horizon"),
    claim("attractor", "All end on the same periodic attractor", "section II", "attractor",
        sentences("largest_attractor_share", "share of sentences on the most frequent one"), matters=SENTENCE,
        floor="none: one attractor is what is asked"),
    claim("longer_transient", "Chaotic transients are longer than those of initial networks",
        "section II.B, figure 4D", "length of chaos",
        Part(beside(at, "restricted_mean_length"), Above(1e5), "restricted mean length, published − initial, steps"),
        matters="a tenth of the horizon of 10⁶ steps", floor=BESIDE),
)

TRANSIENTS = (
    claim("offset", "The synchronization offset is longer, whatever the number of tokens", "section II.A, figure 2B",
        "offset, 8 to 64 tokens",
        *(Part(ratio_beside(at, "restricted_offset", length=n), Above(LONGER),
               f"ln of the offset, published / initial, {n} tokens") for n in (8, 16, 32, 64)), matters=HOW_LONGER,
        floor=BESIDE),
    claim("locally_unstable", "λ(t) is a small positive number below t = 100", "section II.A, figure 2C", "λ(t)",
        *(Part(at("local_exponent", term="short", t=t), Within(0.0, 0.0954), f"λ of the window at t = {t}")
          for t in (20, 50, 90)), matters="the sign; small: below the 9.54e-2 of the long term",
        floor="none: initial networks stand beside"),
    *(
        claim(f"dimension_t{t}", "The effective dimension is higher than that of initial networks",
            "section II.A, figure 2C", f"N_eff, t = {t}",
            Part(ratio_beside(at, "effective_dimension", t=t), Above(LONGER), "ln of N_eff, published / initial"),
            matters=HOW_LONGER, floor=BESIDE, void_unless=(below_ceiling(t, at(CEILING, t=t)),))
        for t in (25, 100, 500)
    ),
    claim("dimension_falls", "It falls sharply from t = 50 to t = 150", "section II.A, figure 2C", "N_eff over t",
        Part(LogRatio(at("effective_dimension", t=150), at("effective_dimension", t=50)), Below(-LONGER),
             "ln of N_eff, t = 150 / t = 50"), matters=HOW_LONGER, floor="0: no change",
        void_unless=(below_ceiling(50, at(CEILING, t=50)),)),
    claim("stsb_chaotic", "Sentences of STS-B are more chaotic at first", "appendix D, figure A1", "λ(t), STS-B",
        *(Part(Difference(at("local_exponent", name="encoder_dynamics_stsb", term="short", t=t),
                          at("local_exponent", term="short", t=t)), Above(SMALL),
               f"λ of the window at t = {t}, STS-B − Wikipedia") for t in (20, 50, 90)), matters="1e-3 nats a step",
        floor="0: sentences of Wikipedia"),
    claim("stsb_dimension", "… and have a lower effective dimension", "appendix D, figure A1", "N_eff, STS-B",
        Part(LogRatio(at("effective_dimension", name="encoder_dynamics_stsb", t=25), at("effective_dimension", t=25)),
             Below(-LONGER), "ln of N_eff at t = 25, STS-B / Wikipedia"), matters=HOW_LONGER,
        floor="0: sentences of Wikipedia, twice as many of them",
        void_unless=(below_ceiling(25, at(CEILING, t=25)),
                     below_ceiling(25, at(CEILING, name="encoder_dynamics_stsb", t=25), " (STS-B)"))),
)


def elsewhere(number: Number, t: int) -> Part:
    """Return the part on a readout away from the model's depth."""
    return Part(number, Within(-ACCURACY, ACCURACY), f"t = {t} − t = {DEPTH}")


USES = (
    claim("accuracy", "Masked tokens are told better than from initial networks", "section II.A, figure 3A",
        "masked tokens, t = 24",
        *(Part(beside(readout, "accuracy", how, DEPTH), Above(ACCURACY),
               f"accuracy, {how} decoder, published − initial") for how in ("fixed", "retrained")), matters="0.05",
        floor=BESIDE),
    claim("broad_range", "… over a broad range of t around the depth", "section II.A, figure 3A",
        "masked tokens, the fixed decoder, a third around the depth",
        *(elsewhere(Difference(readout("accuracy", "fixed", t), readout("accuracy", "fixed", DEPTH)), t)
          for t in (16, 32)), matters="0.05", floor="0: no difference is what is claimed"),
    claim("similarity", "Similarity of sentences is told better than from initial networks",
        "section II.A, figure 3B", "STS-B, encoder as it is",
        *(Part(beside(readout, "pearson", "frozen", t), Above(SHARE),
               f"Pearson's correlation, published − initial, t = {t}") for t in (8, 16, 24, 48)), matters="0.1",
        floor=BESIDE),
    claim("similarity_falls", "… and worse at larger t", "section II.A, figure 3B", "STS-B, later",
        Part(Difference(readout("pearson", "frozen", 96), readout("pearson", "frozen", DEPTH)), Below(0.0),
             "t = 96 − t = 24"), matters="the sign", floor="0: no difference"),
    claim("plateau", "Fine-tuned, the score does not depend on the depth below t = 60", "section II.A, figure 3B",
        "STS-B, fine-tuned",
        *(elsewhere(Difference(readout("pearson", "fine_tuned", t), readout("pearson", "fine_tuned", DEPTH)), t)
          for t in (8, 16, 32, 48)), matters="0.05", floor="0: no difference is what is claimed"),
    claim("writes_better", "A readout writes better than from initial networks", "ours, of figure 3C", "letters",
        Part(ratio_beside(written, "best_nmse"), Below(-0.05), "ln of the least NMSE, published / initial"),
        matters="5 % of the error", floor=BESIDE),
    claim("writes_late", "… best from t₀ = 7 over 28 steps, to a factor of 1.5", "section II.A, figure 3C",
        "window of the letters", Part(written("best_start"), Within(4.67, 10.5), "t₀ of the best window"),
        Part(written("best_length"), Within(18.7, 42.0), "its ΔT"), matters=HOW_LONGER,
        floor="none: the printed window is what is asked"),
)

PRETRAINED = AS_LONG + TRANSIENTS + USES
