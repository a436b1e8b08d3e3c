"""Claims of Inoue et al. 2022, "Transient chaos in BERT", about initial networks and training, as numbers of a run.

The claims use three kinds of runs: initial networks of ALBERT-large's size (``networks``), many networks with few
sentences each; small models that are trained (``organism``); and the published weights (``paper``), never run here. A
sentence is not an independent unit, as sentences of one network behave similarly: estimates are means over the
sentences of a network, intervals are over networks.

Thresholds were chosen before any of these runs was made. Five networks of seeds 1 to 5 and one organism had been
inspected with an earlier version, which took every small λ for quasi-periodic:

- *λ.* 1e-3 nats per step: the resolution of 10,000 steps, max(ln T / T, block standard error).
- *Shares of sentences.* 0.1.
- *Times.* A factor of 1.5.
- *Accuracies.* 0.05.

λ of the first networks, of seeds 11 to 30, was initially measured incorrectly, and the numbers of the claims about it
were changed after they had been inspected (their regions were not): these claims are tested on other seeds (``FIRST``).

Networks whose weights are drawn in another way have the same seeds, and the same weights except for those beyond two
deviations: differences are paired.
"""

from typing import Literal

from lmdyn.claims.claim import Above, Below, Claim, Published, Study, Within, claim
from lmdyn.claims.numbers import At, Difference
from lmdyn.claims.rows import Rows
from lmdyn.claims.studies.chaos.published import PRETRAINED
from lmdyn.claims.studies.chaos.training import HOW_SHARE, HOW_SMALL, SENTENCE, SHARE, SMALL, TRAINING
from lmdyn.claims.studies.inspected_runs import pretraining
from lmdyn.claims.studies.sparsity_numbers import LogRatio

__all__ = ["STUDY"]

RUN = "LMDYN_DATA=… snakemake --profile configs/inoue2022_chaos/networks"
# fmt: off

NETWORKS = {
    "truncated": ("truncated_normal", 0.02, "drawn again beyond two deviations (as released)"),
    "clipped": ("clipped_normal", 0.02, "clipped at two deviations (the other reading of the print)"),
    "normal": ("normal", 0.02, "normal"),
    "normal_088": ("normal", 0.0176, "normal at 0.88 of the deviation (that of weights drawn again)"),
    "normal_096": ("normal", 0.0192, "normal at 0.96 of the deviation (that of clipped weights)"),
}
MOST = ("truncated", "clipped")
FIRST = tuple(range(11, 31))


def rows(quantity: str, network: str = "truncated", **where: object) -> Rows:
    """Return a quantity of initial networks whose weights are drawn in one of the ways."""
    how, deviation, _ = NETWORKS[network]
    run = (("hidden_size", 1024), ("initialization", how), ("initializer_range", deviation))
    return Rows("EncoderDynamics", quantity, where=tuple(where.items()), run=run)


def at(quantity: str, network: str = "truncated", **where: object) -> At:
    """Return its value before any update."""
    return At(rows(quantity, network, **where), 0)


# ------------------------------------------------------------------------------------------ section II.A


def synchronizes(network: str) -> tuple[Claim, ...]:
    """Return the claims that all token vectors become equal, and stay so."""
    how = NETWORKS[network][2]
    return (
        claim(f"synchronizes_{network}", "All token vectors synchronize, in all observed cases", "section II.A",
            at("synchronized_share", network, length=32), Above(0.99), "share of sentences within 300 steps",
            matters=SENTENCE, floor="none: that maps contract is what is asked",
            question="Do token vectors synchronize?", variant=how),
        claim(f"stays_synchronized_{network}", "… and synchronization is stable", "section II.A (not measured there)",
            at("transverse_exponent", network), Below(-0.01), "λ⊥, nats a step", matters="1 % a step",
            floor="0: tokens that keep their distance", question="Do token vectors synchronize?",
            variant=f"λ⊥; {how}"),
    )


SHORT = (
    *(claim for network in (*MOST, "normal") for claim in synchronizes(network)),
    claim("offset_length", "The offset hardly depends on the number of tokens (of initial networks)", "figure 2B",
        LogRatio(at("restricted_offset", length=32), at("restricted_offset", length=8)), Within(-SHARE, SHARE),
        "ln of the offset, 32 / 8 tokens", matters="a tenth of the offset",
        floor="0: no dependence is what is claimed", question="Does the offset depend on the number of tokens?"),
    claim("full_map", "The map of one token has the exponents of the full map once tokens are one",
        "section II.A, of what we compute", Difference(at("full_map_exponent"), at("reduced_map_exponent")),
        Within(-SMALL, SMALL), "λ of the full map − λ of one token, same sentence and steps", matters=HOW_SMALL,
        floor="0: the same map", question="Is the map of one token the full map?"),
)

# ------------------------------------------------------------------------------------------ section II.B


def exponent(network: str) -> Claim:
    """Return the claim that λ of initial networks is close to 0."""
    return claim(f"exponent_{network}",
        "λ, whatever the kind of the orbit, is within a fifth of the pre-trained network's of 0",
        "ours, after section II.B, where 6.41e-3 and 9.54e-2 are means over chaotic trajectories only",
        at("orbit_lyapunov_exponent", network), Within(-0.019, 0.019), "mean λ over sentences, whatever their kind",
        matters="a fifth of 9.54e-2", floor="0: an orbit that is not chaotic",
        question="Is λ of initial networks close to 0?", variant=NETWORKS[network][2], inspected=FIRST)


def chaotic_exponent(network: str, *, scale: Literal["log", "plain"]) -> Claim:
    """Return the claim on the printed number."""
    name, mean = {"log": ("exponent", "geometric"), "plain": ("average", "arithmetic")}[scale]
    return claim(f"chaotic_{name}_{network}", "Mean λ of chaotic trajectories is 6.41e-3, to a factor of two",
        "section II.B", at("chaotic_lyapunov_exponent", network), Within(3.2e-3, 12.8e-3),
        "mean λ while chaotic, of networks with a chaotic sentence", scale=scale, matters="a factor of two",
        floor="none: λ of what is not chaotic is left out by choice",
        question="Is λ of chaotic trajectories as printed?",
        variant=f"{NETWORKS[network][2]}; {mean} mean over networks", inspected=FIRST)


def without(network: str, *, running: bool) -> Claim:
    """Return the claim on the printed share, by our rule or by one that is closer to a visual judgement."""
    rule = "running mean of λ over 20 windows above 0" if running else "λ above its resolution and λT ≥ 10"
    return claim(f"without_transient_{'by_mean_' if running else ''}{network}",
        "38.5 % of sentences have no chaotic transient, to a tenth", "section II.B, which states no rule",
        at("chaotic_share" if running else "transient_share", network), Within(0.515, 0.715),
        "share of sentences with one", matters=HOW_SHARE,
        floor="none: by a running mean, noise about 0 counts as chaos" if running
        else "none: if networks are of one kind as a whole, 38.5 % are two of five or nearly so",
        published=Published(0.615, 0.15, 0.95,
                            "if networks are of one kind as a whole, which is not printed: 3 of 5"),
        question="How many sentences have a chaotic transient?", variant=f"{NETWORKS[network][2]}; {rule}",
        inspected=FIRST if running else ())


def transient(network: str) -> Claim:
    """Return the claim on transient chaos in networks that have learned nothing."""
    return claim(f"transient_chaos_{network}", "Chaos that ends, within 10,000 steps, is seen in initial networks",
        "section II.B: ALBERT intrinsically shows transient chaos", at("ended_share", network), Above(0.05),
        "share of sentences whose chaos was seen to end", matters="one sentence in twenty",
        floor="0: regular from the start, or chaotic to the horizon",
        question="Is chaos transient in initial networks?", variant=NETWORKS[network][2])


def scale(name: str, says: str, a: str, b: str, region: Above | Below | Within, matters: str) -> Claim:
    """Return the claim on the effect of another weight distribution on λ, paired by network."""
    return claim(f"scale_{name}", says, "section II of what they draw; ours",
        Difference(at("orbit_lyapunov_exponent", a), at("orbit_lyapunov_exponent", b)), region,
        f"λ, {a} − {b}, paired", matters=matters, floor="0: the same weights",
        question="Does the scale of the weights decide about chaos?", variant=f"{a} against {b}", inspected=FIRST)


def undetermined(network: str) -> Claim:
    """Return the claim on the share that the method leaves undecided."""
    return claim(f"undetermined_{network}", "The kind of the orbit is told for all but a tenth of the sentences",
        "section II.B, of what we compute", at("orbit_share", network, kind="undetermined"), Below(SHARE),
        "share of undetermined orbits", matters=HOW_SHARE, floor="none", question="Are kinds told?",
        variant=NETWORKS[network][2])


LONG = (
    *(exponent(network) for network in NETWORKS),
    *(chaotic_exponent(network, scale="log") for network in NETWORKS),
    *(chaotic_exponent(network, scale="plain") for network in MOST),
    *(without(network, running=False) for network in NETWORKS),
    *(without(network, running=True) for network in MOST),
    *(transient(network) for network in (*MOST, "normal")),
    scale("cut", "Weights that are not cut make λ larger", "normal", "truncated", Above(SMALL), HOW_SMALL),
    scale("clip", "Clipping instead of drawing again makes λ larger", "clipped", "truncated", Above(SMALL), HOW_SMALL),
    scale("deviation", "λ is larger at 0.02 than at 0.88 of it", "normal", "normal_088", Above(SMALL), HOW_SMALL),
    scale("shape_088", "At the same deviation the cut makes no difference", "normal_088", "truncated",
          Within(-SMALL, SMALL), HOW_SMALL),
    scale("shape_096", "At the same deviation clipping makes no difference", "normal_096", "clipped",
          Within(-SMALL, SMALL), HOW_SMALL),
    *(undetermined(network) for network in NETWORKS),
)

STUDY = Study(
    "inoue2022_chaos",
    "Transient chaos in BERT",
    "Inoue, Ohara, Kuniyoshi & Nakajima 2022",
    SHORT + LONG + PRETRAINED + TRAINING,
    measured_by=RUN,
    inspected=(1, 2, 3, 4, 5),
    inspected_in=((("model.config.hidden_size", 1024),), *pretraining("MaskedLanguageModel", hidden_size=128)),
    terms=(
        ("chaotic, torus, cycle, fixed point, undetermined",
         "kinds of orbits, each by evidence of its own; else undetermined (`lmdyn.analysis.orbit_kind`)"),
        ("transient", "the part of a trajectory whose λ is that of chaos, before it arrives on a regular orbit"),
        ("λ⊥", "growth of differences between tokens beside a trajectory of equal ones; below 0 they stay together"),
    ),
)
