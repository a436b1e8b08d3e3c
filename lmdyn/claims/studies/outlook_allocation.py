"""Claims of the outlook on who pays for the loss (section 6.1.1), by straight lines between checkpoints and by updates.

Loss change allocation of the organism is that of straight lines between checkpoints, ten a decade (``chord``): all
that a folder of checkpoints gives. The profile ``paths`` follows each update of further seeds (``path``), and measures
the lines beside it: which of the answers are due to the lines? Claims on paths were stated before any run of that
profile but a pilot with seed 1, which had been followed for 158 updates; ``benchmarks/loss_change.py`` had shown before
that signs of cells agree in about nine of ten up to 20 updates, in a smaller LSTM.
"""

import math
from functools import partial

from lmdyn.claims.claim import Above, Below, Claim, Condition, Part, Within, claim
from lmdyn.claims.curve_numbers import Cumulated, Ratio
from lmdyn.claims.learning_numbers import Agreement, HalfWay, Kind
from lmdyn.claims.numbers import At, Change, Difference, Mean, Number
from lmdyn.claims.rows import Pairs, Rows

__all__ = ["ALLOCATION", "LAYERS", "LEARNED", "RUN"]

OPEN_CLASSES = ("ADJ", "ADV", "INTJ", "NOUN", "PROPN", "VERB")
CLOSED_CLASSES = ("ADP", "AUX", "CCONJ", "DET", "PART", "PRON", "SCONJ")
"""As in ``lmdyn.analysis.words.concentration``, which imports torch."""

FASTER = round(math.log10(1 / 1.1), 4)
TOGETHER, SHARE, NINE = 0.25, 0.05, 0.9
RUN = "snakemake --profile configs/saphra2021_outlook/organism"
PATHS = "snakemake --profile configs/saphra2021_outlook/paths"
HOW_FAST = "10 % of the updates: less is within the spacing of observations"
# fmt: off

LSTM: Pairs = (("model", "LSTMLanguageModel"),)
LOSS = Rows("LearningCurves", "loss", where=(("by", ""), ("group", "")), run=LSTM)
LEARNED = Condition("the loss has fallen by 2 nats", Change(LOSS, 0, "last"), Below(-2.0))
trained = partial(claim, void_unless=(LEARNED,))
along_updates = partial(trained, measured_by=PATHS)
LAYERS = {"h1": "first LSTM layer", "h2": "last LSTM layer", "logits": "output layer"}


def paid(site: str, groups: tuple[str, ...] = (), way: Pairs = ()) -> Cumulated:
    """Return what a layer has contributed to the change of the loss since the start; ``""`` is the sum over layers."""
    by = ("by", "upos") if groups else ("by", "")
    return Cumulated("LossChangeAllocation", "allocation", site, (by, ("parameter", "")), settings=way, groups=groups)


def half_paid(site: str, groups: tuple[str, ...] = ()) -> Number:
    """Return when a layer has permanently paid half of what it pays in the end: log10 of the updates."""
    return HalfWay(paid(site, groups))


def share_paid(site: str, groups: tuple[str, ...] = (), way: Pairs = ()) -> Number:
    """Return the share of a layer in the fall of the loss, on some classes of words or on all."""
    where = (("by", ""), ("parameter", ""))
    fall = Cumulated("LossChangeAllocation", "loss_change", "", where, settings=way)
    return Ratio(At(paid(site, groups, way)), At(paid("", groups, way) if groups else fall))


def embedding_first(layer: str) -> Claim:
    """Return the claim that compares the embedding with another layer."""
    return trained(f"embedding_first_{layer}", "The embedding pays for the fall of the loss before other layers do",
        "sections 6.1.1 and 3.3: lower layers converge first", Difference(half_paid("embedding"), half_paid(layer)),
        Below(FASTER), f"log10 of updates until half of its share is paid, embedding − {LAYERS[layer]}",
        matters=HOW_FAST, floor="0: all layers at once", question="Does the embedding pay first?",
        variant=f"against the {LAYERS[layer]}")


def closed_and_open(layer: str, more: bool) -> Claim:
    """Return the claim on a layer's share in the fall of the loss on closed-class and on open-class words."""
    name = "embedding" if layer == "embedding" else LAYERS[layer]
    part = Difference(share_paid(layer, CLOSED_CLASSES), share_paid(layer, OPEN_CLASSES))
    return trained(f"closed_{layer}",
        f"The {name} pays {'more' if more else 'less'} for closed-class than for open-class words", "section 6.1.1",
        part, Above(SHARE) if more else Below(-SHARE), "share of the fall, closed − open classes",
        matters="0.05 of the fall of the loss", floor="0: the same layers pay for both",
        question="Do the losses of closed classes fall by other layers than those of open classes?", variant=name)


HALF_HELP = Mean(tuple(At(Rows("LossChangeAllocation", "helping_share", where=(("parameter", ""),)), step)
                       for step in (10, 20, 50, 100)))
BY_LINES = (
    *(embedding_first(layer) for layer in LAYERS),
    closed_and_open("logits", more=True),
    closed_and_open("h2", more=False),
    closed_and_open("h1", more=True),
    closed_and_open("embedding", more=False),
    trained("half_help", "Only a little over half of the parameters help", "section 6.1.1; Lan et al. 2019",
        HALF_HELP, Within(0.5, 0.6), "share of the entries that move and help, mean over four intervals",
        matters="0.1 of the entries", floor="0.5: entries that help or hurt by chance",
        question="How many parameters help?", variant="intervals of up to 21 updates, the first 100"),
    Claim("layers_together", "Layers move in synchrony: the halves of all shares are paid at the same time",
        "section 6.1.1; Lan et al. 2019",
        tuple(Part(Difference(half_paid("h1"), half_paid(other)), Within(-TOGETHER, TOGETHER),
                   f"log10 of updates until half is paid, first LSTM layer − {LAYERS[other]}")
              for other in ("h2", "logits")),
        matters="a quarter of a decade: ten observations a decade bound each time by a tenth",
        floor="none: it is a claim of no difference", void_unless=(LEARNED,),
        question="Do layers pay at the same time?"),
)

# ------------------------------------------------------------------------------------------ along the updates

PATH: Pairs = (("allocation", "path"),)
CHORD: Pairs = (("allocation", "chord"),)
OF_LENGTH = "Over how many updates does a straight line tell who pays as the updates do?"
AS_OBSERVED = "At ten checkpoints a decade, do straight lines tell who pays as the updates do?"
IN_THE_END = "Do layers pay the same over all of training, along lines and along the updates?"


def closed_along_path(layer: str, more: bool) -> Claim:
    """Return the claim of :func:`closed_and_open` by the updates themselves."""
    name = "embedding" if layer == "embedding" else LAYERS[layer]
    part = Difference(share_paid(layer, CLOSED_CLASSES, PATH), share_paid(layer, OPEN_CLASSES, PATH))
    return along_updates(f"closed_{layer}_along_path",
        f"By the updates themselves, the {name} pays {'more' if more else 'less'} for closed-class than for open-class "
        "words", "section 6.1.1", part, Above(SHARE) if more else Below(-SHARE),
        "share of the fall, closed − open classes", matters="0.05 of the fall of the loss",
        floor="0: the same layers pay for both",
        question="Along the updates, do the losses of closed classes fall by other layers than those of open classes?",
        variant=name)


def helping(steps: tuple[int, ...]) -> Number:
    """Return the share of the entries that help at single updates, mean over the intervals that end at these steps."""
    rows = Rows("LossChangeAllocation", "helping_share", where=(("parameter", ""),), settings=PATH)
    return Mean(tuple(At(rows, step) for step in steps))


def half_help_at_updates(when: str, label: str, steps: tuple[int, ...]) -> Claim:
    """Return the claim on single updates, which is that of Lan et al. 2019."""
    return along_updates(f"half_help_at_updates_{when}",
        "At a single update, only a little over half of the parameters help", "section 6.1.1; Lan et al. 2019",
        helping(steps), Within(0.5, 0.6), "share of the entries that move and help, mean over updates",
        matters="0.1 of the entries", floor="0.5: entries that help or hurt by chance",
        question="How many parameters help at a single update?", variant=label)


COLUMN = {"cells": "group", "matrices": "parameter"}
WHERE: dict[str, Pairs] = {"cells": (("by", "upos"), ("parameter", "")), "matrices": (("by", ""),)}


def agreement(kind: Kind, of: str, steps: tuple[int, ...]) -> Number:
    """Return how far path and straight line agree, mean over the intervals that end at these steps."""
    path, chord = (Rows("LossChangeAllocation", "allocation", where=WHERE[of], settings=way) for way in (PATH, CHORD))
    return Mean(tuple(Agreement(path, chord, step, kind, COLUMN[of]) for step in steps))


def as_the_path(name: str, label: str, steps: tuple[int, ...], question: str) -> tuple[Claim, ...]:
    """Return the claims that a line over some updates gives the signs and ranks of the updates themselves."""
    return tuple(
        Claim(f"{of}_as_path_{name}", "A straight line tells who helps, who hurts, and who more, as the updates do",
            "section 6.1.1, equations 6.1 to 6.3",
            (Part(agreement("signs", of, steps), Above(NINE), "share with equal signs"),
             Part(agreement("ranks", of, steps), Above(NINE), "rank correlation")),
            matters="one in ten; a rank correlation of 0.9", floor=agreement("signs_by_chance", of, steps),
            void_unless=(LEARNED,), question=question, variant=f"{what}, {label}", measured_by=PATHS)
        for of, what in (("cells", "layers × parts of speech"), ("matrices", "matrices"))
    )


ALONG_PATH = (
    half_help_at_updates("early", "of the first 100, mean of four intervals", (10, 20, 50, 100)),
    half_help_at_updates("late", "from 741 on, mean of four intervals", (744, 768, 864, 1248)),
    closed_along_path("logits", more=True),
    closed_along_path("h2", more=False),
    closed_along_path("h1", more=True),
    closed_along_path("embedding", more=False),
    *as_the_path("of_4", "4 updates (741 to 744)", (744,), OF_LENGTH),
    *as_the_path("of_16", "16 updates (753 to 768)", (768,), OF_LENGTH),
    *as_the_path("of_64", "64 updates (801 to 864)", (864,), OF_LENGTH),
    *as_the_path("of_256", "256 updates (993 to 1,248)", (1248,), OF_LENGTH),
    *as_the_path("early", "4 to 21 updates, up to 100", (20, 25, 32, 40, 50, 63, 79, 100), AS_OBSERVED),
    *as_the_path("middle", "26 to 130 updates, up to 631", (126, 158, 200, 251, 316, 398, 501, 631), AS_OBSERVED),
    Claim("shares_as_path", "In the end, layers have paid the same shares along straight lines and along the updates",
        "section 6.1.1, equations 6.1 to 6.3",
        tuple(Part(Difference(share_paid(layer, way=CHORD), share_paid(layer, way=PATH)), Within(-SHARE, SHARE),
                   f"share of the fall, lines − updates, {name}")
              for layer, name in {"embedding": "embedding", **LAYERS}.items()),
        matters="0.05 of the fall of the loss", floor="none: it is a claim of no difference", void_unless=(LEARNED,),
        question=IN_THE_END, measured_by=PATHS),
)

ALLOCATION = (*BY_LINES, *ALONG_PATH)
