"""Our claims about models that iterate a core, stated before training: depth, convergence and kinds of orbits.

No publication has the dynamics of a looped model over its training. Geiping et al. 2025 show, for one trained model of
3.5 billion parameters, that its loss falls with depth and levels off, and that states converge in most contexts, but
reach orbits or drift slowly in others. Tested here is a looped Llama of 2.4 million parameters whose depth is
drawn at each update (6 on average), on the synthetic grammar.

Thresholds were chosen before any of these runs was observed; 400 updates of one (seed 1) had been inspected.

- *Losses.* 0.02 nats: two per cent of the perplexity.
- *Depths.* Half an iteration.
- *Shares.* 0.1.
- *λ.* 0.01 nats per step.
"""

import math
from functools import partial

from lmdyn.claims.claim import Above, Below, Condition, Study, Within, claim
from lmdyn.claims.numbers import At, Change, Difference
from lmdyn.claims.rows import Rows
from lmdyn.claims.studies.sparsity_numbers import LogRatio

__all__ = ["STUDY"]

DEPTH, BEYOND = 6, 24
NATS, STEPS, SHARE, SMALL = 0.02, 0.5, 0.1, 0.01
RUN = "snakemake --profile configs/geiping2025_loops/organism"
LOOPED = (("hidden_size", 192),)
UNTRAINED = "0: the untrained model, from which it is counted"
# fmt: off


def by_depth(quantity: str, t: int | None = None, **where: object) -> Rows:
    """Return a quantity of ``LoopConvergence`` at a depth."""
    place = (*where.items(), *([] if t is None else [("t", t)]))
    return Rows("LoopConvergence", quantity, where=place, run=LOOPED)


def orbits(quantity: str, **where: object) -> Rows:
    """Return a quantity of the orbits of the core."""
    return Rows("EncoderDynamics", quantity, where=tuple(where.items()), run=LOOPED)


LEARNED = Condition(
    "a tenth more of the words is predicted at the depth of training than by the untrained model",
    Change(by_depth("accuracy", DEPTH), 0, "last"), Above(0.1),
)
trained = partial(claim, void_unless=(LEARNED,))

DEEPER = (
    trained("deeper_is_better", "The loss falls with depth", "Geiping et al. 2025, section 5, of their model",
        Difference(At(by_depth("cross_entropy", DEPTH)), At(by_depth("cross_entropy", 1))), Below(-NATS),
        "cross-entropy, 6 iterations − 1, nats", matters="0.02 nats", question="What is depth good for?"),
    trained("beyond_training", "… and stays where it is at four times the depth of training",
        "Geiping et al. 2025, section 5, of their model",
        Difference(At(by_depth("cross_entropy", BEYOND)), At(by_depth("cross_entropy", DEPTH))), Within(-NATS, NATS),
        "cross-entropy, 24 iterations − 6, nats", matters="0.02 nats", floor="0: no difference is what is claimed",
        question="What is depth good for?", variant="beyond training"),
    trained("state_converges", "The state's change falls to a tenth from the first iteration to the 24th",
        "Geiping et al. 2025, section 6, of their model",
        LogRatio(At(by_depth("residual", BEYOND)), At(by_depth("residual", 1))), Below(-round(math.log(10), 4)),
        "ln of the relative change, t = 24 / t = 1", matters="a factor of ten", question="Do states converge?"),
    trained("settles_earlier", "Predictions settle at a smaller depth as training goes on", "ours",
        Difference(At(by_depth("settling_depth", rule="argmax")), At(by_depth("settling_depth", rule="argmax"), 100)),
        Below(-STEPS), "mean depth from which the most probable word stays, end − after 100 updates",
        matters="half an iteration", floor="0: no change", question="When do predictions settle?"),
    trained("settles_within", "Predictions settle within the depth of training", "ours",
        At(by_depth("settled_share", DEPTH, rule="argmax")), Above(0.9), "share settled after 6 iterations",
        matters="a tenth of the predictions", question="When do predictions settle?", variant="at the end"),
)

ORBITS = (
    claim("fixed_points_untrained", "Untrained, the core contracts: every text has a fixed point", "ours",
        At(orbits("orbit_share", kind="fixed point"), 0), Above(0.99), "share of texts",
        matters="one text in a hundred", floor="none: it is the untrained model",
        question="What kind of orbits are there?", variant="untrained"),
    trained("fixed_points", "Trained, too, orbits end on fixed points",
        "Geiping et al. 2025, section 6: most contexts do", At(orbits("orbit_share", kind="fixed point")), Above(0.9),
        "share of texts", matters="a tenth of the texts", question="What kind of orbits are there?",
        variant="at the end"),
    trained("chaos", "Training makes the core chaotic for some texts", "ours, against the line above",
        Change(orbits("orbit_share", kind="chaotic"), 0, "last"), Above(SHARE), "change of the share of texts",
        matters="a tenth of the texts", floor=UNTRAINED, question="What kind of orbits are there?", variant="chaotic"),
    trained("nearer_to_instability", "Training raises λ: states forget where they began more slowly", "ours",
        Change(orbits("orbit_lyapunov_exponent"), 0, "last"), Above(SMALL),
        "change of the mean λ over texts, nats a step", matters="1 % a step", floor=UNTRAINED,
        question="Does training raise λ of the core?", inspected=(2, 3, 4, 5, 6)),
)

STUDY = Study(
    "geiping2025_loops",
    "Recurrent depth: models that iterate a core",
    "Geiping, McLeish, Jain, Kirchenbauer, Singh, Bartoldson, Kailkhura, Bhatele & Goldstein 2025, in small; and ours",
    DEEPER + ORBITS,
    measured_by=RUN,
    inspected=(1,),
    inspected_in=((("model", "LoopedLanguageModel"), ("data", "GrammarCorpus")),),
    terms=(
        ("fixed point, chaotic",
         "kinds of orbits, each by evidence of its own; else undetermined (`lmdyn.analysis.orbit_kind`)"),
        ("λ", "mean growth of a small difference of the core's state, a step; below 0 it forgets its initial state"),
    ),
)
