"""Questions of the outlook of Saphra 2021, "Training dynamics of neural language models", as numbers of a run.

The thesis says what it would measure next (sections 3.1 to 3.3, 6.1.1, 7.2), and makes few claims about it. Tested
here are those of the works that it cites, and those of later works on ranks and on induction heads, on two organisms:
an LSTM on the synthetic grammar, and transformers of two layers and of one on random words among which sequences
repeat. All claims and thresholds were stated before any run except those of seed 1 was made; by this seed, the layers
that pay more for closed classes and the update by which classes are apart (100) were chosen.

- *Times.* 10 % of the updates (0.041 of their decimal logarithm); a quarter of a decade for "at the same time", since
  ten observations a decade bound each time by a tenth. Times are between two observations.
- *Shares.* 0.05 of the change of the loss.
- *Ranks.* A tenth (0.1 of the natural logarithm).
- *Losses and barriers.* 0.02 nats: two per cent of the perplexity; 0.1 nats for gains and
  barriers.
- *Attention.* 0.1 of the weight; 0.3 for a head that does little else.

Who pays for the loss is in ``outlook_allocation.py``: by straight lines between checkpoints, and by the updates.
"""

import math
from functools import partial

from lmdyn.claims.claim import Above, Below, Claim, Condition, Part, Study, Within, claim
from lmdyn.claims.curve_numbers import LargestRise, RiseAlongLine, RiseOverChord
from lmdyn.claims.learning_numbers import FromPeak, HalfWay, Over, WindowMean
from lmdyn.claims.numbers import At, Change, Difference, Number
from lmdyn.claims.rows import Layer, Pairs, Rows
from lmdyn.claims.studies.outlook_allocation import ALLOCATION, LAYERS, LEARNED, RUN
from lmdyn.claims.studies.outlook_forks import OF_FORKS
from lmdyn.claims.studies.sparsity_numbers import LogRatio

__all__ = ["STUDY"]

TOGETHER = 0.25
SHARE, TENTH, NATS, GAIN, WEIGHT = 0.05, 0.1, 0.02, 0.1, 0.1
HOW_TENTH = "a tenth of the rank"
MIDDLE = (0.3, 0.7)
"""Window of training from which a phase of compression would lead down."""
LEVEL = "0: a curve that does not change"
# fmt: off


# ------------------------------------------------------------------------------------------ rows and conditions


def geometry(quantity: str, site: str) -> Rows:
    """Return a quantity of the activations at all tokens."""
    return Rows("Geometry", quantity, site, (("over", "all"),))


def information(target: str, site: str, name: str = "information") -> Rows:
    """Return the information of a site about the part of speech of the current or the next word."""
    return Rows("DiagnosticProbe", name, site, (("task", "upos"), ("target", target)))


def barrier(units: str) -> Rows:
    """Return the barrier to the partner, with its interval over text."""
    where = (("reference", "partner"), ("units", units))
    return Rows("Landscape", "barrier", where=where, error=("barrier_low", "barrier_high"))


def rise(units: str = "own") -> Rows:
    """Return the rise of the loss on the line to the partner: the barrier, and below 0 where there is none."""
    where = (("reference", "partner"), ("units", units))
    return RiseOverChord("Landscape", "line_loss", where=where, error=("rise_low", "rise_high"))


TWO: Pairs = (("num_hidden_layers", 2),)
ONE: Pairs = (("num_hidden_layers", 1),)


def induction(quantity: str, layers: Pairs, **where: object) -> Rows:
    """Return a quantity of the transformer of two layers, or of one."""
    return Rows("Induction", quantity, where=tuple(where.items()), run=layers)


def best_head(quantity: str, layers: Pairs) -> Rows:
    """Return the largest score among the heads of the last layer, in which induction heads can form."""
    return Over("Induction", quantity, Layer("last"), run=layers, over="head", how="max")


trained = partial(claim, void_unless=(LEARNED,))


# ------------------------------------------------------------------------------------------ ranks of activations


def course(site: str, quantity: str) -> tuple[Claim, ...]:
    """Return the claims that the rank falls, rises and falls."""
    name = {"h1": "first LSTM layer", "h2": "last LSTM layer"}[site]
    measure = {"rankme": "RankMe", "rankme_covariance": "centred covariance"}[quantity]
    rows = geometry(quantity, site)
    pieces = (
        ("collapse", "First the rank of the activations collapses", "ln of the rank, before its rise",
         LargestRise(rows, "before")),
        ("expansion", "… then it expands", "ln of the rank, largest rise", LargestRise(rows, "rise")),
        ("compression", "… and at last it is compressed", "ln of the rank, last tenth / 0.3 to 0.7 of training",
         LogRatio(WindowMean(rows, 0.9, 1.0), WindowMean(rows, *MIDDLE))),
    )
    return tuple(
        trained(f"{quantity}_{called}_{site}", says, "section 3.1; Li et al. 2025, of Transformers", number,
            Above(TENTH) if called == "expansion" else Below(-TENTH), label, matters=HOW_TENTH, floor=LEVEL,
            question="Is the course of the effective rank collapse, expansion, compression?",
            variant=f"{called}; {name}, {measure}")
        for called, says, label, number in pieces
    )


RANKS = (*course("h1", "rankme"), *course("h2", "rankme"), *course("h2", "rankme_covariance"))


# ------------------------------------------------------------------------------------------ section 3.2, a tree


def coarse_over_fine(site: str, step: str | int) -> Number:
    """Return ln of the variance between parts of speech over that between words of one part of speech."""
    where = (("by", "word"), ("parent", "upos"))
    coarse, fine = (Rows("Trajectory", f"{level}_share", site, where) for level in ("coarse", "fine"))
    return LogRatio(At(coarse, step), At(fine, step))


def coarse_first(site: str) -> Claim:
    """Return the claim that parts of speech move apart before the words within them."""
    early = Difference(coarse_over_fine(site, 100), coarse_over_fine(site, 0))
    late = Difference(coarse_over_fine(site, "last"), coarse_over_fine(site, 100))
    return Claim(f"coarse_first_{site}",
        "Coarse distinctions are learned before fine ones: classes of words, then words",
        "section 3.2, figure 3.4; Saxe et al. 2019",
        (Part(early, Above(TENTH), "ln of the variance, classes / words in them, after 100 updates − untrained"),
         Part(late, Below(-TENTH), "…, end − after 100 updates")), matters="a tenth of the ratio",
        floor="0: both grow at the same rate", void_unless=(LEARNED,),
        question="Are coarse distinctions learned before fine ones?",
        variant=f"{LAYERS[site]}, 40 most frequent words by part of speech")


TREE = tuple(coarse_first(site) for site in ("h1", "h2"))


# ------------------------------------------------------------------------------------------ section 3.1.2, information


def compression(site: str, target: str) -> Claim:
    """Return the claim that a site loses information late in training."""
    of = {"current": "current", "next": "next"}[target]
    return trained(f"compression_{target}_{site}",
        f"Late in training, a layer loses information about the {of} word's class",
        "section 3.1.2; Shwartz-Ziv & Tishby 2017", FromPeak(information(target, site), *MIDDLE), Below(-SHARE),
        "information, last tenth − 0.3 to 0.7 of training, nats", matters="0.05 nats",
        floor=FromPeak(information(target, site, "information_shuffled"), *MIDDLE),
        question="Is there a phase of compression?", variant=f"{LAYERS[site]}, {of} word")


INFORMATION = tuple(compression(site, target) for target in ("current", "next") for site in ("h1", "h2"))


# ------------------------------------------------------------------------------------------ sections 3.3.1, 7.2.1

SEEDS = "Are networks of two seeds connected by a line?"
LINES = (
    trained("straight_from_start", "The loss falls along the line from the initial network to the trained one",
        "section 3.3.1; Goodfellow, Vinyals & Saxe 2015",
        RiseAlongLine(Rows("Landscape", "line_loss", where=(("reference", "initial"), ("units", "own")))),
        Below(NATS), "largest rise along the line, nats", matters="0.02 nats", floor="0: it falls all the way",
        question="Does the loss fall along the line from the initial to the trained network?"),
    trained("seeds_apart", "Two networks trained from different initial weights are separated by a barrier",
        "section 7.2.1; Frankle et al. 2020", At(rise()), Above(GAIN), "rise over the chord, nats",
        matters="0.1 nats", floor="0: no barrier", question=SEEDS, variant="units as they are"),
    trained("matching_removes", "… which vanishes after matching of their units", "Entezari et al. 2022",
        At(rise("matched")), Below(NATS), "rise over the chord, nats", matters="0.02 nats", floor=At(rise()),
        question=SEEDS, variant="units matched"),
    trained("matching_lowers", "… or is at least lower", "Ainsworth, Hayase & Srinivasa 2023",
        LogRatio(At(barrier("matched")), At(barrier("own"))), Below(-TENTH),
        "ln of the barrier, units matched / as they are", matters="a tenth of the barrier",
        floor="0: matching changes nothing", question=SEEDS, variant="units matched, against as they are"),
)


# ------------------------------------------------------------------------------------------ section 3.1, curvature


def curvature(quantity: str, **where: object) -> Rows:
    """Return a quantity of the Hessian."""
    return Rows("Curvature", quantity, where=tuple(where.items()))


CURVATURE = (
    trained("sharper", "The largest eigenvalue of the Hessian rises in training", "section 3.1; Cohen et al. 2021",
        LogRatio(At(curvature("eigenvalue", index=1)), At(curvature("eigenvalue", index=1), 100)), Above(math.log(2)),
        "ln of the eigenvalue, end / after 100 updates", matters="a factor of two", floor=LEVEL,
        question="Does the loss become sharper?"),
)


# ------------------------------------------------------------------------------------------ induction heads

CONTEXT = "Does induction come with a drop of late loss?"
PREFIX = best_head("prefix_matching", TWO)
TRAINED = Condition(
    "the loss of the model with two layers has fallen by 0.2 nats",
    Change(Rows("LearningCurves", "loss", where=(("by", ""), ("group", "")), run=TWO), 0, "last"), Below(-0.2),
)
LATE = {layers: induction("late_minus_early", layers, data="", ablated="") for layers in (TWO, ONE)}
induced = partial(claim, void_unless=(TRAINED,))


def rises(layers: Pairs, ablated: str) -> Number:
    """Return the rise of the late loss if a head is ablated; of random ones, the mean over draws."""
    if ablated == "best":
        return At(induction("late_loss_rise", layers, ablated="best"))
    return At(Over("Induction", "late_loss_rise", where=(("ablated", "random"),), run=layers, over="draw", how="mean"))


INDUCTION = (
    induced("induction_forms", "With two layers, an induction head forms", "Olsson et al. 2022, argument 1",
        At(PREFIX), Above(0.3), "prefix matching of the best head of the last layer", matters="0.3 of the weight",
        question="Do induction heads form?", variant="two layers"),
    induced("no_induction_in_one", "… and with one layer, none does", "Olsson et al. 2022, argument 1",
        At(best_head("prefix_matching", ONE)), Below(WEIGHT), "prefix matching of the best head",
        matters="0.1 of the weight", question="Do induction heads form?", variant="one layer"),
    induced("late_loss_drops", "The loss late in the context drops below that early in it, more than with one layer",
        "Olsson et al. 2022, argument 1", Difference(At(LATE[TWO]), At(LATE[ONE])), Below(-GAIN),
        "late − early loss, two layers − one, nats", matters="0.1 nats", question=CONTEXT,
        variant="at the end, against one layer"),
    induced("at_the_same_time", "… and does so when the head forms", "Olsson et al. 2022, argument 1",
        Difference(HalfWay(LATE[TWO]), HalfWay(PREFIX)), Within(-TOGETHER, TOGETHER),
        "log10 of updates half way, late − early loss − prefix matching",
        matters="a quarter of a decade: ten observations a decade bound each time by a tenth",
        floor=Difference(HalfWay(LATE[ONE]), HalfWay(PREFIX)), question=CONTEXT, variant="at the same time"),
    induced("ablation_costs_late_loss", "Without this head, the late loss rises more than without another one",
        "Olsson et al. 2022, argument 3", Difference(rises(TWO, "best"), rises(TWO, "random")), Above(GAIN),
        "rise of the late loss, best head − random heads, nats", matters="0.1 nats",
        floor=Difference(rises(ONE, "best"), rises(ONE, "random")), question=CONTEXT, variant="ablated"),
)

STUDY = Study(
    "saphra2021_outlook",
    "The outlook: who pays for the loss, ranks, lines, information, induction",
    "Saphra 2021, PhD thesis, University of Edinburgh; chapters 3, 6 and 7, and works cited with each claim",
    ALLOCATION + RANKS + TREE + INFORMATION + LINES + CURVATURE + INDUCTION + OF_FORKS,
    measured_by=RUN,
    inspected=(1,),
    terms=(
        ("share of a layer", "its loss change allocation, summed over the straight lines between checkpoints"),
        ("barrier", "highest rise of the loss along a line between two networks, above the line between its ends"),
        ("rise over the chord", "the barrier without the ends of the line: below 0 if the loss is lower there"),
        ("RankMe", "exponential of the entropy of the normalised singular values of all activations of a layer"),
        ("late − early loss", "loss after nine tenths of a row of text less that after 5 % to 15 % of it"),
    ),
)
