"""Claims of Saphra & Lopez 2020, "LSTMs compose—and learn—bottom-up", as numbers of a run.

DI(A, B) = ‖h_{A∪B} − (h_A + h_B)‖ / ‖h_{A∪B}‖. The publication shows curves without numbers. The thresholds of all
claims were chosen before any run except those of seed 1 was inspected:

- *Correlations.* Within ±0.1 there is none: their publication of 2019 calls −0.1 "slight". ρ is Spearman's, within a
  sequential distance, the mean over the distances of 1 to 8 words.
- *DI and probabilities.* 0.05 of DI and 0.1 of a probability; a rule is learned if ω has a probability of 0.5.
- *Times.* 10 % of the updates (0.041 of their decimal logarithm); times are between two observations.
- *Gradients.* 10 % of their norm (0.105 of its logarithm).

Errors are over sentences (ρ: 32 blocks; DI: clusters) and over scaffolds. If two numbers of one text are subtracted,
their errors are added as if they were independent, which is conservative.

Figure 4 is tested in all its variants: what is relevant (the rule of the decomposition), the tree, words
that the model does not know, and how word frequency is controlled. Figure 12 has both readings of error and state.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product

from lmdyn.claims.claim import Above, Below, Claim, Condition, Part, Study, Within, claim
from lmdyn.claims.numbers import At, Change, Difference, Mean, Number, Reaches, untrained
from lmdyn.claims.rows import Pairs, Rows
from lmdyn.claims.studies import inspected_runs
from lmdyn.claims.studies.di_numbers import LogRatioOfMeans, WhenReached
from lmdyn.claims.studies.sparsity_numbers import LogRatio

__all__ = ["STUDY"]

SLIGHT, FALLS, MORE_DI, MORE_LIKELY, LEARNED, BLOCKS = 0.1, 0.02, 0.05, 0.1, 0.5, 31.0
FASTER, SMALLER = round(math.log10(1 / 1.1), 4), round(math.log(0.9), 4)
RULES = {"published": "printed rule", "released": "released rule", "generalized": "generalized rule"}
TOLD = RULES | {"shapley": "Shapley"}
OBSERVE = (
    "lmdyn analyze RUN --config configs/saphra2020_di/organism/observers.yaml (of English text: …/english/…), and for "
    "Shapley interactions with Interdependence {backend: shapley, controls: true, max_distance: 8}"
)
HOW_SLIGHT = "0.1: the authors call a correlation of −0.1 slight (Saphra & Lopez 2019, section 4)"
HOW_FAST = "10 % of the updates: less is within the spacing of observations"
HOW_SMALL = "10 % of the norm"
HOW_MUCH_DI = "0.05 of DI: a twentieth of the norm of the joint contribution"
HOW_LIKELY = "0.1 of a probability"
# fmt: off


# ------------------------------------------------------------------------------------------ sections 2 and 3, English


def pairs(
    quantity: str, rule: str, error: str | tuple[str, str] | None = None, df: float | None = None, **where: object
) -> Rows:
    """Return rows of pairs of words by a rule of the decomposition, or by Shapley interactions, in hidden states."""
    settings: Pairs = (("backend", "decomposition"), ("variant", rule))
    if rule == "shapley":
        settings = (("backend", "shapley"),)
    return Rows("Interdependence", quantity, "hidden", tuple(where.items()), settings=settings, error=error, df=df)


def di(rule: str, distance: int) -> Rows:
    """Return the mean DI of words at a distance."""
    return pairs("di", rule, ("di_low", "di_high"), distance=distance)


def rho(quantity: str, rule: str, **where: object) -> Rows:
    """Return a correlation with its error over 32 blocks of sentences."""
    return pairs(quantity, rule, f"{quantity}_error", BLOCKS, **where)


LOSS = Rows("LearningCurves", "loss", where=(("by", ""), ("group", "")))
MODEL_LEARNED = Condition("the loss has fallen by at least 2 nats since step 0", Change(LOSS), Below(-2.0))
english = partial(Claim, matters=HOW_SLIGHT, void_unless=(MODEL_LEARNED,), measured_by=OBSERVE)


def falls_with_distance(rule: str) -> Claim:
    """Return the claim of figure 3."""
    return english(f"distance_{rule}", "DI falls with the sequential distance of two words", "section 3.1, figure 3",
        tuple(Part(LogRatio(At(di(rule, d + 1)), At(di(rule, d))), Below(-FALLS),
                   f"ln of DI, {d + 1} / {d} words apart")
              for d in range(1, 8)), matters="2 % of DI for each word further apart",
        floor=LogRatio(At(di(rule, 8), 0), At(di(rule, 1), 0)),
        question="Does DI fall with sequential distance (figure 3)?", variant=TOLD[rule])


def falls_in_the_tree(rule: str, tree: str, known: bool, held: str) -> Claim:
    """Return the claim of figure 4: both classes must show it."""
    mean = f"mean_{'known_' if known else ''}"
    of, floor = ({kind: At(rho(f"{mean}{what}{held}_correlation", rule, pos_class=kind)) for kind in ("open", "closed")}
                 for what in ("off_by_one_" if tree else "", "shuffled_"))
    return english("_".join(["tree", rule, *(["off_by_one"] if tree else []), *(["known"] if known else []), held]),
        "DI falls with syntactic distance, whatever the sequential distance and the class of words",
        "section 3.1, figure 4",
        tuple(Part(one, Below(-SLIGHT), f"mean ρ, {kind} classes", "fisher") for kind, one in of.items()),
        floor=Mean(tuple(floor.values())), question="Does DI fall with syntactic distance (figure 4)?",
        variant="; ".join([TOLD[rule], "the tree off by one" if tree else "the tree",
                           "known words" if known else "all words", HELD[held]]))


def unrelated_to_frequency(rule: str) -> Claim:
    """Return the claim of section 3.1: no clear correlation with raw word frequency."""
    name = "mean_frequency_correlation"
    return english(f"frequency_{rule}", "DI has no clear correlation with the frequency of words", "section 3.1",
        tuple(Part(At(rho(name, rule, word=word)), Within(-SLIGHT, SLIGHT), f"mean ρ, {told} word", "fisher")
              for word, told in (("left", "the earlier"), ("right", "the later"))),
        floor=At(rho(name, rule, word="right"), 0), question="Is DI unrelated to word frequency (section 3.1)?",
        variant=RULES[rule])


def clearer_further_apart(rule: str) -> Claim:
    """Return the claim of section 3.1: the pattern of figure 4 is clearer at larger distances."""
    gain = {kind: Difference(*(At(rho("syntactic_correlation", rule, distance=d, pos_class=kind)) for d in (8, 1)))
            for kind in ("open", "closed")}
    return english(f"tree_further_apart_{rule}",
        "The fall with syntactic distance is clearer as words are further apart", "section 3.1, figure 4",
        tuple(Part(one, Below(-SLIGHT), f"ρ at 8 words less ρ at 1, {kind} classes") for kind, one in gain.items()),
        floor=Mean(tuple(map(untrained, gain.values()))),
        question="Is the pattern of figure 4 clearer as words are further apart?", variant=RULES[rule])


HELD = {"syntactic": "frequency free", "partial": "frequency held", "matched": "frequency matched"}
TERMS = (
    ("printed rule", "contextual decomposition as the publication prints it"),
    ("released rule", "as the released code has it: without the bias product of the last word in focus"),
    ("generalized rule", "Jumelet et al. 2019: with products of a relevant and an irrelevant part"),
    ("Shapley", "Shapley interactions of two words, of any model (thesis, section 5.1.2)"),
    ("the tree off by one", "a control: heads counted from 1 read as positions from 0, as a released helper does"),
    ("known words", "pairs of which the model knows both words; else all words, unknown ones among them"),
    ("frequency held", "the partial correlation, given the ranks of both words' frequencies"),
    ("frequency matched", "the correlation among pairs of words of the same frequency, to a factor of two"),
)
ENGLISH = (
    *(falls_with_distance(rule) for rule in TOLD),
    *(falls_in_the_tree(rule, "", known, held) for rule, known, held in product(RULES, (False, True), HELD)),
    *(falls_in_the_tree(rule, "off_by_one", known, "syntactic") for rule, known in product(RULES, (False, True))),
    *(falls_in_the_tree("shapley", "", False, held) for held in HELD),
    *(clearer_further_apart(rule) for rule in RULES),
    *(unrelated_to_frequency(rule) for rule in RULES),
)


# ------------------------------------------------------------------------------------------ section 4, scaffolds


def rule_rows(
    quantity: str, scaffold: str, k: int, dropout: float, domain: str = "in", focus: str | None = None, n: int = 1000,
    rule: str = "published",
) -> Rows:
    """Return rows of the rule α … ω across a scaffold, with their error over scaffolds."""
    run = (("scaffold", scaffold), ("length", k), ("rules", n), ("dropout", dropout))
    where = () if focus is None else (("focus", focus),)
    return Rows(
        "ScaffoldRule", quantity, domain, where, settings=(("variant", rule),), run=run, error=f"{quantity}_error",
    )


def of_both(k: int, dropout: float) -> tuple[Condition, ...]:
    """Return the condition that both settings have learned the rule across the scaffolds of their training."""
    return tuple(
        Condition(
            f"ω is the most probable word in half of the {scaffold} scaffolds",
            At(rule_rows("accuracy", scaffold, k, dropout)), Above(LEARNED),
        )
        for scaffold in ("familiar", "unfamiliar")
    )


def between(a: Rows, b: Rows, level: float) -> Number:
    """Return log10 of the updates that a needs to reach a level, minus that of b."""
    return Difference(Reaches(a, level), Reaches(b, level))


def told(k: int, dropout: float, more: str = "") -> str:
    """Return the variant of a claim: length, dropout and more."""
    return f"k = {k}, dropout {dropout:g}{more}"


def suffix(k: int, dropout: float) -> str:
    """Return the suffix of claims' names."""
    return f"k{k}" + (f"_dropout{dropout:g}" if dropout else "")


BY = "snakemake --profile configs/saphra2020_di/scaffold, or …/scaffold_small"
NOT_FASTER = "none: an untrained model does not reach the level, and two models of one setting differ by 0 on average"


def faster_in_domain(k: int, dropout: float) -> Claim:
    """Return the claim of figure 7a."""
    a, b = (rule_rows("probability", s, k, dropout, focus="") for s in ("familiar", "unfamiliar"))
    return claim(f"in_domain_faster_{suffix(k, dropout)}",
        "In domain the rule is learned faster across familiar scaffolds", "section 4.3, figure 7a",
        between(a, b, LEARNED), Below(FASTER), "log10 of updates to 0.5, familiar − unfamiliar", matters=HOW_FAST,
        floor=NOT_FASTER, question="Is the rule learned faster across familiar scaffolds, in domain (7a)?",
        variant=told(k, dropout))


def fails_out_of_domain(k: int, dropout: float) -> Claim:
    """Return the claim of figure 7b."""
    a, b = (rule_rows("probability", s, k, dropout, "out", "") for s in ("familiar", "unfamiliar"))
    return Claim(f"out_of_domain_{suffix(k, dropout)}",
        "A model of familiar scaffolds does not apply the rule across random ones, one of unfamiliar scaffolds does",
        "section 4.3, figure 7b",
        (Part(At(a), Below(LEARNED), "probability of ω, familiar", "logit"),
         Part(At(b), Above(LEARNED), "probability of ω, unfamiliar", "logit")),
        matters="0.5: the rule is applied in half of the cases", floor=At(a, 0), void_unless=of_both(k, dropout),
        question="Does the rule fail out of domain with familiar scaffolds (7b)?", variant=told(k, dropout))


def open_symbol_earlier(k: int, dropout: float, level: float) -> Claim:
    """Return the claim of figure 8."""
    a, b = (rule_rows("probability", s, k, dropout, "out", "open") for s in ("familiar", "unfamiliar"))
    return claim(f"open_symbol_earlier_{level:g}_{suffix(k, dropout)}",
        "With α alone in focus the rule is acquired earlier by models of familiar scaffolds, out of domain",
        "section 4.3.1, figure 8", between(a, b, level), Below(FASTER),
        f"log10 of updates to {level:g}, familiar − unfamiliar", matters=HOW_FAST, floor=NOT_FASTER,
        question="Is α ↦ ω acquired earlier with familiar scaffolds, out of domain (8)?",
        variant=told(k, dropout, f", a probability of {level:g} from α alone"))


def rises_through_scaffold(k: int, dropout: float, when: str) -> Claim:
    """Return the claim of figure 9."""
    rise = {s: rule_rows("rise", s, k, dropout) for s in ("familiar", "unfamiliar")}
    numbers: dict[str, Number] = {
        s: At(rows) if when == "end" else WhenReached(rows, rule_rows("accuracy", s, k, dropout), LEARNED)
        for s, rows in rise.items()
    }
    return Claim(f"rises_{when}_{suffix(k, dropout)}",
        "As more of a familiar scaffold comes into focus with α the probability of ω rises; of an unfamiliar one not",
        "section 4.3.1, figure 9",
        (Part(numbers["familiar"], Above(MORE_LIKELY), "probability, all in focus − α alone, familiar"),
         Part(numbers["unfamiliar"], Below(MORE_LIKELY), "the same, unfamiliar")), matters=HOW_LIKELY,
        floor=At(rise["familiar"], 0), void_unless=of_both(k, dropout) if when == "end" else (),
        question="Does the probability of ω rise through a familiar scaffold (9)?",
        variant=told(k, dropout, ", at the end" if when == "end" else ", when half of the instances are predicted"))


def more_interdependent(k: int, dropout: float, rule: str = "published") -> Claim:
    """Return the claim of figure 10."""
    a, b = (rule_rows("di", s, k, dropout, rule=rule) for s in ("familiar", "unfamiliar"))
    return Claim("_".join(["interdependence", *([] if rule == "published" else [rule]), suffix(k, dropout)]),
        "DI of α and the scaffold is higher with familiar scaffolds", "section 4.3.1, figure 10",
        (Part(Difference(At(a, 0.5), At(b, 0.5)), Above(MORE_DI), "DI half way, familiar − unfamiliar"),
         Part(Difference(At(a), At(b)), Above(MORE_DI), "DI at the end, familiar − unfamiliar")), matters=HOW_MUCH_DI,
        floor=Difference(At(a, 0), At(b, 0)), void_unless=of_both(k, dropout),
        question="Is DI of α and the scaffold higher with familiar scaffolds (10)?",
        variant=told(k, dropout, f", {RULES[rule]}"))


def interdependence_rises(k: int, dropout: float) -> Claim:
    """Return the claim of figure 10 that interdependence increases throughout training."""
    a = rule_rows("di", "familiar", k, dropout)
    return Claim(f"interdependence_rises_{suffix(k, dropout)}", "… and it increases throughout training",
        "section 4.3.1, figure 10",
        (Part(Difference(At(a, 0.5), At(a, 0)), Above(MORE_DI), "DI half way through training − untrained"),
         Part(Difference(At(a), At(a, 0.5)), Above(MORE_DI), "DI at the end − half way")), matters=HOW_MUCH_DI,
        floor="0: the untrained model, from which it is counted", void_unless=of_both(k, dropout),
        question="Does DI of α and a familiar scaffold rise throughout training (10)?", variant=told(k, dropout))


def longer_is_slower(scaffold: str, short: int, long: int, dropout: float) -> Claim:
    """Return the claim of figures 7 and 11, at equal numbers of occurrences."""
    a, b = (rule_rows("probability", scaffold, k, dropout, focus="open") for k in (short, long))
    return claim(f"longer_slower_{scaffold}_{suffix(long, dropout)}",
        "A rule across a longer scaffold is learned later", "appendix B, figures 8 and 11", between(a, b, LEARNED),
        Below(FASTER), f"log10 of updates to 0.5 from α, k = {short} − k = {long}", matters=HOW_FAST,
        floor=NOT_FASTER, question="Does a rule across a longer scaffold need more (11)?",
        variant=f"updates, {scaffold}, k = {short} and {long}, dropout {dropout:g}")


def longer_needs_more(n: int, long: int, dropout: float) -> Claim:
    """Return the claim of figure 11, at the end of training, at fewer occurrences."""
    a, b = (rule_rows("probability", "unfamiliar", k, dropout, focus="open", n=n) for k in (2, long))
    return claim(f"longer_rarer_n{n}_{suffix(long, dropout)}",
        "At few occurrences a rule is learned across a short scaffold and not across a long one",
        "appendix B, figure 11", Difference(At(a), At(b)), Above(MORE_LIKELY),
        f"probability of ω from α, k = 2 − k = {long}", matters=HOW_LIKELY,
        question="Does a rule across a longer scaffold need more (11)?",
        variant=f"occurrences, n = {n}, k = 2 and {long}, dropout {dropout:g}")


def scaffold_alone(scaffold: str, k: int, dropout: float) -> Claim:
    """Return the claim of figure 11 on predictions from the scaffold alone."""
    rows = rule_rows("probability", scaffold, k, dropout, focus="scaffold")
    return claim(f"scaffold_alone_{scaffold}_{suffix(k, dropout)}", "The scaffold alone hardly predicts ω",
        "appendix B, figure 11", At(rows), Below(MORE_LIKELY), "probability of ω from the scaffold", scale="logit",
        matters=HOW_LIKELY, void_unless=of_both(k, dropout),
        question="Does the scaffold alone predict next to nothing (11)?", variant=f"{scaffold}, {told(k, dropout)}")


STATES = {
    "gradient": "of the hidden state, the cell state held",
    "cell_gradient": "of the cell state, with which the hidden state changes",
}
ERRORS = {"close": "the error of ω alone", "all": "the error of all words after α"}


def smaller_gradient(k: int, dropout: float, state: str, error: str, until: float) -> Claim:
    """Return the claim of figure 12; the publication does not say which error and which state."""
    a, b = (rule_rows(f"{state}_inside", s, k, dropout, focus=error) for s in ("familiar", "unfamiliar"))
    early = until < 1
    return claim("_".join([state, error, *(["early"] if early else []), suffix(k, dropout)]),
        "Gradients inside familiar scaffolds are smaller", "appendix C, figure 12", LogRatioOfMeans(a, b, until),
        Below(SMALLER), "ln of the mean norm inside, familiar / unfamiliar", matters=HOW_SMALL,
        floor=LogRatio(At(a, 0), At(b, 0)), question="Are gradients inside familiar scaffolds smaller (12)?",
        variant=told(k, dropout, f", {STATES[state]}, {ERRORS[error]}, mean over {'a tenth of ' * early}training"))


SIZES = ((2, 0.0), (4, 0.0), (6, 0.0), (8, 0.0), (2, 0.2), (4, 0.2), (6, 0.2))
"""k and dropout: 8 words at the published size only, dropout in small only."""

SCAFFOLDS = (
    *(faster_in_domain(*size) for size in SIZES),
    *(fails_out_of_domain(*size) for size in SIZES),
    *(open_symbol_earlier(*size, level) for size, level in product(SIZES, (0.05, LEARNED))),
    *(rises_through_scaffold(*size, when) for size, when in product(SIZES, ("learned", "end"))),
    *(more_interdependent(*size) for size in SIZES),
    *(more_interdependent(k, 0.0, rule) for k, rule in product((2, 4, 6, 8), ("released", "generalized"))),
    *(interdependence_rises(*size) for size in SIZES),
    *(longer_is_slower(s, 2, k, 0.0) for s, k in product(("familiar", "unfamiliar"), (6, 8))),
    *(longer_needs_more(n, k, dropout) for n, k, dropout in product((300, 600), (4, 6), (0.0, 0.2))),
    *(scaffold_alone(s, *size) for s, size in product(("familiar", "unfamiliar"), SIZES[:4])),
    *(smaller_gradient(k, 0.0, s, error, 1.0) for k, s, error in product((2, 4, 6, 8), STATES, ERRORS)),
    *(smaller_gradient(k, 0.0, s, error, 0.1) for k, s, error in product((6, 8), STATES, ERRORS)),
)

# ------------------------------------------------------------------------------------------ causal scaffolds (5.1)

FIRST_USE = 3428
"""Update from which the rule is used in the profile `causal`: 0.6 of 2,000,000 words, in batches of 10 × 35."""
KNOWN = 0.05
KIND = {"familiar": "phrases", "scrambled": "words of the phrases, in any order", "unfamiliar": "other phrases"}


def of_arm(quantity: str, scaffold: str, half: int, domain: str = "in", focus: str = "") -> Rows:
    """Return rows of one arm: which phrases occurred before the first use, and across which half the rule is used."""
    rows = rule_rows(quantity, scaffold, 4, 0.0, domain, focus, n=8000)
    return replace(rows, run=(*rows.run, ("data.half", half)))


def in_arm(number: Callable[[Rows], Number], quantity: str, scaffold: str, **where: str) -> Number:
    """Return the mean of a number over both halves, so that it does not depend on which phrases a half has."""
    return Mean(tuple(number(of_arm(quantity, scaffold, half, **where)) for half in (0, 1)))


def learned_at(rows: Rows) -> Number:
    """Return log10 of the updates from the first use of the rule until ω has a probability of 0.5."""
    return Reaches(rows, LEARNED, since=FIRST_USE)


def before_use(rows: Rows) -> Number:
    """Return the value at the last observation before the first use."""
    return At(rows, 3420)


KNOWS = Condition(
    "before the first use the model predicts the words of familiar phrases better than those of the others, by 0.05",
    Difference(*(in_arm(before_use, "probability_inside", s) for s in ("familiar", "unfamiliar"))), Above(KNOWN),
)
CAUSAL_LEARNED = tuple(
    Condition(f"ω is the most probable word in half of the {s} scaffolds, at the end",
              in_arm(At, "accuracy", s), Above(LEARNED))
    for s in ("familiar", "unfamiliar")
)
causal = partial(Claim, where="section 5.1 (asked)", measured_by="snakemake --profile configs/saphra2020_di/causal",
                 void_unless=(KNOWS, *CAUSAL_LEARNED))


def causes(against: str, domain: str, focus: str, says: str, name: str) -> Claim:
    """Return the claim that phrases learned before the first use make the rule faster to learn than another past."""
    a, b = (in_arm(learned_at, "probability", s, domain=domain, focus=focus) for s in ("familiar", against))
    halves = tuple(
        Mean(tuple(learned_at(of_arm("probability", s, half, domain, focus)) for s in ("familiar", against)))
        for half in (0, 1)
    )
    return causal(f"causal_{name}", says,
        parts=(Part(Difference(a, b), Below(FASTER), f"log10 of updates to 0.5, familiar − {against}"),),
        matters=HOW_FAST, floor=Difference(*halves),
        question="Does a scaffold that was learned before cause the rule to be learned faster (5.1)?",
        variant=f"{name.replace('_', ' ')}, against {KIND[against]}")


def causal_direction(half: int) -> Claim:
    """Return the claim for forks of the model that learned one half: the rule across it, and across the other."""
    a, b = (learned_at(of_arm("probability", s, h)) for s, h in (("familiar", half), ("unfamiliar", 1 - half)))
    return causal(f"causal_forks_{half}", "Two forks of one model: the rule is learned faster across what it knows",
        parts=(Part(Difference(a, b), Below(FASTER), f"log10 of updates to 0.5, half {half} − half {1 - half}"),),
        matters=HOW_FAST, floor=NOT_FASTER,
        question="Does a scaffold that was learned before cause the rule to be learned faster (5.1)?",
        variant=f"forks of the model that learned half {half}")


def causes_interdependence() -> Claim:
    """Return the claim of figure 10 under intervention."""
    a, b = (in_arm(At, "di", s) for s in ("familiar", "unfamiliar"))
    first = (in_arm(before_use, "di", s) for s in ("familiar", "unfamiliar"))
    return causal("causal_interdependence", "A scaffold that was learned before causes a higher DI of α and scaffold",
        parts=(Part(Difference(a, b), Above(MORE_DI), "DI at the end, familiar − unfamiliar"),), matters=HOW_MUCH_DI,
        floor=Difference(*first), question="Does a scaffold that was learned before cause a higher DI (5.1, 10)?",
        variant="at the end")


def causes_confinement() -> Claim:
    """Return the claim of figure 7b under intervention."""
    a, b = (in_arm(At, "probability", s, domain="out") for s in ("familiar", "unfamiliar"))
    return causal("causal_confinement",
        "Where scaffolds were learned before, the rule is applied less across random ones than where they were not",
        parts=(Part(Difference(a, b), Below(-MORE_LIKELY), "probability of ω out of domain, familiar − unfamiliar"),),
        matters=HOW_LIKELY, floor="0: no model gives ω a probability before it has seen it",
        question="Does a scaffold that was learned before confine the rule to it (5.1, 7b)?", variant="at the end")


CAUSAL = (
    causes("unfamiliar", "in", "", "A scaffold that was learned before causes faster learning of a rule", "in_domain"),
    causes("unfamiliar", "out", "open", "… and of α ↦ ω alone, across random scaffolds", "open_symbol"),
    causes("scrambled", "in", "", "… by the order of its words, not by how frequent they are", "order_of_words"),
    causal_direction(0),
    causal_direction(1),
    causes_interdependence(),
    causes_confinement(),
)

STUDY = Study(
    "saphra2020_di",
    "LSTMs compose—and learn—bottom-up",
    "Saphra & Lopez 2020; Saphra 2021, chapter 5",
    ENGLISH + SCAFFOLDS + CAUSAL,
    measured_by=BY,
    inspected_in=(inspected_runs.GRAMMAR, inspected_runs.WIKITEXT, inspected_runs.SCAFFOLDS),
    terms=TERMS,
    own=("k = 8, dropout 0", "occurrences, n = 300"),
)
