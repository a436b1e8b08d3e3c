"""Claims on instability to the order of the data: forks of one network, by the update at which they part.

Frankle et al. 2020 train two copies of a network from its state after k updates, with different orders of the data, and
find a barrier between their ends for a small k and none for a larger one. Here one of the two is the run itself, and
the other its fork with another order of the data. Stated before any fork was trained, then of the barrier, which is 0
for all lines without one; the rise inside the line is judged since, which tells these apart.
"""

from functools import partial

from lmdyn.claims.claim import Above, Below, Claim, Condition, Part
from lmdyn.claims.claim import claim as one_claim
from lmdyn.claims.curve_numbers import RiseOverChord
from lmdyn.claims.numbers import At, Difference, Number
from lmdyn.claims.rows import Rows

__all__ = ["OF_FORKS"]

EARLY, LATE = 10, 600
FORKS = "snakemake --profile configs/saphra2021_outlook/forks_organism"
RISE = "rise over the chord, nats"
QUESTION = "From which update on do networks with different data stay connected by a line?"
# fmt: off
claim = partial(one_claim, question=QUESTION, measured_by=FORKS)


def rise(fork: int) -> Rows:
    """Return the rise on the line between the run and its fork, which parted after ``fork`` updates."""
    return RiseOverChord(
        "Landscape", "line_loss", where=(("reference", "run"), ("units", "own")), run=(("forked.step", fork),),
        error=("rise_low", "rise_high"),
    )


def end(fork: int) -> Number:
    """Return the rise at the end."""
    return At(rise(fork))


def learned(fork: int) -> Condition:
    """Return the condition that the fork has learned something."""
    rows = Rows("LearningCurves", "loss", where=(("by", ""), ("group", "")), run=(("forked.step", fork),))
    return Condition("the fork's loss is below 5.5 nats", At(rows), Below(5.5))


OF_FORKS = (
    claim("fork_early", f"Networks that part after {EARLY} updates end with a barrier between them",
        "sections 3.3.1 and 7.2.1; Frankle et al. 2020", end(EARLY), Above(0.1), RISE, matters="0.1 nats",
        floor=end(LATE), void_unless=(learned(EARLY),), variant=f"after {EARLY} updates"),
    claim("fork_late", f"… and those that part after {LATE} updates without one",
        "sections 3.3.1 and 7.2.1; Frankle et al. 2020", end(LATE), Below(0.02), RISE, matters="0.02 nats",
        floor=end(EARLY), void_unless=(learned(LATE),), variant=f"after {LATE} updates"),
    Claim("fork_earlier_higher", "… so that the barrier is the higher, the earlier they part",
        "sections 3.3.1 and 7.2.1; Frankle et al. 2020",
        tuple(Part(Difference(end(a), end(b)), Above(0.02), f"{RISE}, parted after {a} − after {b} updates")
              for a, b in ((10, 50), (50, 200), (200, 600))), matters="0.02 nats",
        floor="0: the time at which they part changes nothing", void_unless=(learned(EARLY),), question=QUESTION,
        variant="in order", measured_by=FORKS),
)
