"""Claims of Chiang, Huang & Lee 2020, "Pretrained language model embryology: the birth of ALBERT", as numbers of a run.

Orders of learning are rank correlations (Somers' D) with the published order, over pairs that the publication
distinguishes: it says "function words, then verb, adverb, adjective, noun, proper noun", and nothing about the order
among function words. A group is learned when its accuracy is half of its last one, by which figure 1 rescales; a
second rule uses the whole curve. The floor of a correlation is that expected from the numbers of words alone,
since the publication says that the order of verb forms is that of occurrence (appendix C.2), and that of parts of
speech roughly so (C.3). It is that of the sizes of groups; how often single words occur is no part of it.

Thresholds were derived from the publication before any of these runs; for seed 1, an earlier version with other
downstream settings had been inspected:

- *Orders.* D of 0.5: three quarters of the pairs are in the published order. Among random orders of the eight parts of
  speech (25 pairs) 7 % reach it, of function before content words (15 pairs) 13 %, of five verb forms (10 pairs)
  12 %: one run is no evidence. Seeds share their text, and thus an order due to the text instead of the model.
- *Times.* 0.1 in log10 of the updates: a quarter more. "Together": within a factor of two.
- *F1.* 0.02; 0.05 for a rise over the untrained model.
- *Accuracies.* 0.1 for words, 0.05 for facts and downstream scores, 0.02 for "no more after".

Fractions of training are those of the publication: 100 k, 150 k and 250 k of 1 M updates.
"""

from dataclasses import replace
from functools import partial
from typing import cast

from lmdyn.claims.claim import Above, Below, Claim, Condition, Part, Region, Study, Within, claim
from lmdyn.claims.learning_numbers import (
    FromPeak,
    HalfWay,
    LearnedAt,
    LostShare,
    MeanDelay,
    OrderAgreement,
    Over,
    Rule,
    SameOrder,
)
from lmdyn.claims.numbers import At, Change, Difference, Largest, Mean, Number, Smallest, Tested
from lmdyn.claims.rows import Rows
from lmdyn.claims.studies.inspected_runs import pretraining

__all__ = ["CONTENT", "FUNCTION", "STUDY", "VERB_FORMS"]

FUNCTION = ("determiner", "preposition", "conjunction")
CONTENT = ("verb", "adverb", "adjective", "noun", "proper_noun")
VERB_FORMS = ("VBZ", "VBD", "VB", "VBN", "VBG")
TASKS = ("pos", "constituents", "roles", "coreference")
LEVELS = {"reconstruction": "1a", "prediction": "1b"}

ORDERED, TIME, TOGETHER, F1, RISE = 0.5, 0.1, 0.3, 0.02, 0.05
RUN = "snakemake --profile configs/chiang2020_embryology/organism"
HOW_ORDERED = "0.5: three quarters of the pairs"
HOW_TIME = "0.1: a quarter more updates"
HOW_RISE = "0.05"
HOW_F1 = "0.02"
UPDATE = 0.15 * 512 * 512
"""Labelled tokens of an update of the publication: of 512 rows (table 2) of 512 tokens, 15 % are predicted."""
UNTRAINED = "0: the untrained model, from which it is counted"
# fmt: off


def of(family: str) -> tuple[tuple[str, str], ...]:
    """Return the settings that select the run of a family."""
    return (("family", family),)


def words(quantity: str, by: str = "", group: str | None = None, family: str = "albert") -> Rows:
    """Return a quantity of ``TokenLearning``: for all words, for all groups of a grouping, or for one group."""
    where = (*([("by", by)] if by else []), *([("group", group)] if group else []))
    return Rows("TokenLearning", quantity, where=where, run=of(family))


def learned(family: str) -> Condition:
    """Return the condition that a model predicts what it reads."""
    accuracy = Rows("LearningCurves", "accuracy", run=of(family))
    return Condition(
        "a tenth more of the masked tokens is predicted than by the untrained model", Change(accuracy, 0, "last"),
        Above(0.1),
    )


trained = partial(claim, void_unless=(learned("albert"),))


# ------------------------------------------------------------------------------------------ section 3: orders

ORDERS = {
    "function_first": ("pos", (FUNCTION, CONTENT), "Function words before content words", "Which words come first?"),
    "parts_of_speech": (
        "pos", (FUNCTION, *((group,) for group in CONTENT)),
        "Function words, then verb, adverb, adjective, noun, proper noun",
        "In which order are parts of speech learned?",
    ),
    "content_words": (
        "pos", tuple((group,) for group in CONTENT), "Verb before adverb, adjective, noun, proper noun, in this order",
        "In which order are content words learned?",
    ),
    "verb_forms": (
        "verb_form", tuple((form,) for form in VERB_FORMS), "VBZ, VBD, VB, VBN, VBG: in this order",
        "In which order are verb forms learned?",
    ),
}


BY_FREQUENCY = {"function_first": 1.0, "parts_of_speech": 0.52, "verb_forms": 0.6}
"""D of the order by the mean frequency of the words, in the organism's training text; of others it is below 0.5."""


def order(name: str, quantity: str, family: str = "albert", rule: Rule = "half") -> Claim:
    """Return the claim of one published order."""
    by, groups, says, question = ORDERS[name]
    figure = "figure 7" if by == "verb_form" else f"figure {LEVELS[quantity]}"
    figure = "figure 9, appendix C.4" if family == "bert" else figure
    variant = f"{quantity}, {family}" + (", by the whole curve" if rule == "area" else "")
    counted = "words" if quantity == "reconstruction" else "masked_words"
    frequent = "in the organism's text, the order by the words' mean frequency has D = {:.2f}"
    return claim(f"{name}_{quantity}_{family}{'' if rule == 'half' else f'_{rule}'}", says, f"section 3, {figure}",
        OrderAgreement(words(quantity, by, family=family), groups, rule), Above(ORDERED), f"Somers' D, {quantity}",
        matters=HOW_ORDERED, floor=OrderAgreement(words(counted, by, family=family), groups, "largest"),
        void_unless=(learned(family),), question=question, variant=variant,
        forced=frequent.format(BY_FREQUENCY[name]) if name in BY_FREQUENCY else "")


def delay(name: str, quantity: str) -> Claim:
    """Return the claim of one published order of few groups, by times instead of ranks."""
    of_rank = bands(quantity) if name == "bands" else order(name, quantity)
    ranks = cast(OrderAgreement, of_rank.parts[0].number)
    return replace(of_rank, name=f"{of_rank.name}_delay", matters=HOW_TIME, floor="0: no order of the groups",
        parts=(Part(MeanDelay(ranks.rows, ranks.groups), Above(TIME), "log10 of updates, later − earlier groups"),),
        variant=f"{of_rank.variant}, by mean delay")


def faster(quantity: str) -> Claim:
    """Return the claim that compares BERT with ALBERT, seed by seed."""
    groups = (*FUNCTION, *CONTENT) if quantity == "reconstruction" else FUNCTION
    return claim(f"bert_faster_{quantity}", "BERT learns faster than ALBERT", "appendix C.4, figure 9",
        Mean(tuple(Difference(LearnedAt(words(quantity, "pos", g, "bert")), LearnedAt(words(quantity, "pos", g)))
                   for g in groups)), Below(-TIME), f"log10 of updates, BERT − ALBERT, mean of {len(groups)} groups",
        matters=HOW_TIME, floor="0: at the same time", void_unless=(learned("albert"), learned("bert")),
        question="Does BERT learn faster than ALBERT?",
        variant=f"{quantity}{', function words' * (quantity == 'prediction')}")


def slower(variant: str, by: str, group: str | None) -> Claim:
    """Return the claim that prediction is later than reconstruction."""
    return trained(f"prediction_later_{group or 'all'}",
        "Predicting masked words is learned later than reconstructing words", "section 3, figure 1",
        Difference(LearnedAt(words("prediction", by, group)), LearnedAt(words("reconstruction", by, group))),
        Above(TIME), "log10 of updates, prediction − reconstruction", matters=HOW_TIME, floor="0: at the same time",
        question="Is prediction learned later than reconstruction?", variant=variant)


BANDS = ("20-39", "100-149", "400-599")


def bands(quantity: str) -> Claim:
    """Return the claim of figure 8, with the bands of a vocabulary of 3,000."""
    return trained(f"frequent_first_{quantity}", "The most frequent of three bands is learned before both others",
        "appendix C.3, figure 8", OrderAgreement(words(quantity, "rank"), ((BANDS[0],), BANDS[1:])), Above(ORDERED),
        "Somers' D, two pairs", matters=HOW_ORDERED, floor="0: a random order",
        question="Are frequent words learned first?",
        variant="mask prediction, as figure 8" if quantity == "prediction" else "reconstruction: not in figure 8")


WORDS = (
    *(order(name, quantity) for name in ORDERS for quantity in LEVELS),
    *(order(name, quantity, rule="area") for name in ("parts_of_speech", "verb_forms") for quantity in LEVELS),
    *(delay(name, quantity) for name in ("content_words", "verb_forms", "bands") for quantity in LEVELS),
    *(order(name, quantity, "bert") for name in ("function_first", "parts_of_speech") for quantity in LEVELS),
    trained("same_order", "Words are predicted in the order in which they are reconstructed", "section 3, figure 1b",
        SameOrder(words("prediction", "pos"), words("reconstruction", "pos"), (*FUNCTION, *CONTENT)), Above(ORDERED),
        "Somers' D of the orders of eight parts of speech", matters=HOW_ORDERED, floor="0: a random order",
        question="Is the order of prediction that of reconstruction?"),
    trained("prediction_harder", "Predicting masked words is harder than reconstructing words", "section 3, figure 1",
        Difference(At(words("reconstruction")), At(words("prediction"))), Above(0.1),
        "share of words, reconstruction − prediction", matters="a tenth of the words",
        question="Is prediction harder than reconstruction?"),
    slower("all words", "", None),
    slower("determiners", "pos", "determiner"),
    *(bands(quantity) for quantity in ("prediction", "reconstruction")),
    *(faster(quantity) for quantity in LEVELS),
)

# ------------------------------------------------------------------------------------------ section 4: probes

LAYER_8, ALL = "layer 8, as published", "mean over layers"


def probed(task: str, layer: int | None, family: str = "albert", quantity: str = "f1") -> Rows:
    """Return F1 of a task at a layer, counted from 1, or the mean over layers."""
    where, run = (("task", task),), of(family)
    if layer is None:
        return Over("EdgeProbe", quantity, where=where, run=run)
    site = f"layer@{layer - 1}" if family == "albert" else f"layer{layer}"
    return Rows("EdgeProbe", quantity, site, where=where, run=run)


def above_majority(task: str, layer: int | None, step: str | int = "last") -> Number:
    """Return F1 minus that of the most frequent label."""
    majority = Rows("EdgeProbe", "majority", where=(("task", task),), run=of("albert"))
    return Difference(At(probed(task, layer), step), At(majority, step))


def known(tasks: tuple[str, ...], layer: int | None) -> Condition:
    """Return the condition that probes of the tasks learn more than those of the untrained model."""
    return Condition(
        "development F1 of each task rises by 0.03 over the untrained model's",
        Smallest(tuple(Change(probed(t, layer, quantity="validation_f1"), 0, "last") for t in tasks)), Above(0.03),
    )


def rises(task: str, layer: int | None, family: str = "albert") -> Claim:
    """Return the claim of figure 2b for one task."""
    place = LAYER_8 if layer else ALL
    name = "layer8" if layer else "mean"
    return claim(f"probe_rises_{task}_{name}_{family}", f"F1 of {task} rises over pretraining",
        "section 4, figure 2b" if family == "albert" else "appendix D.4, figure 11",
        Change(probed(task, layer, family), 0, "last"), Above(RISE), f"F1 of {task}, end − untrained",
        matters=HOW_RISE, floor=UNTRAINED, question=f"Do probes of {task} rise?", variant=f"{place}, {family}")


def beyond_majority(task: str) -> Claim:
    """Return the claim that a probe exceeds the most frequent label."""
    return claim(f"probe_beyond_majority_{task}", f"F1 of {task} is above that of the most frequent label",
        "ours; of section 4, figure 2b", above_majority(task, 8), Above(RISE),
        f"F1 of {task} − most frequent label, layer 8", matters=HOW_RISE, floor=above_majority(task, 8, 0),
        question="Do probes read more than the most frequent label?", variant=task)


def together(tasks: tuple[str, ...], layer: int | None) -> Claim:
    """Return the claim about when each task is half-way."""
    half = tuple(HalfWay(probed(t, layer)) for t in tasks)
    name = f"{'layer8' if layer else 'mean'}_{len(tasks)}"
    return claim(f"probes_together_{name}", "Syntactic and semantic knowledge develop simultaneously",
        "section 4, figure 2b", Difference(Largest(half), Smallest(half)), Below(TOGETHER),
        "log10 of updates to half way, last − first task", matters="0.3: a factor of two",
        floor="0: at the same time, which is what is claimed", void_unless=(known(tasks, layer),),
        question="Do probes of all tasks rise together?",
        variant=f"{LAYER_8 if layer else ALL}; {'all four tasks' if len(tasks) == 4 else 'without coreference'}")


def early(layer: int | None) -> Claim:
    """Return the claim that nothing changes after the first tenth."""
    return Claim(f"probes_level_early_{'layer8' if layer else 'mean'}",
        "Tags and constituents gain in the first tenth of pretraining and nothing afterwards", "section 4, figure 2b",
        tuple(Part(Change(probed(t, layer), 0.1, "last"), Within(-F1, F1), f"F1 of {t}, end − a tenth of training")
              for t in ("pos", "constituents")), matters=HOW_F1, floor="0: no change is what is claimed",
        within=100_000 * UPDATE,
        void_unless=(known(("pos", "constituents"), layer),), question="Is syntax learned in the first tenth?",
        variant=LAYER_8 if layer else ALL)


def decays(layer: int | None) -> Claim:
    """Return the claim about semantic roles."""
    return claim(f"roles_decay_{'layer8' if layer else 'mean'}", "Semantic roles decay from 0.15 of pretraining on",
        "section 4, figure 2b", Change(probed("roles", layer), 0.15, "last"), Below(-0.005),
        "F1 of roles, end − 0.15 of training", matters="0.005: slightly", floor="0: no change",
        within=150_000 * UPDATE,
        void_unless=(known(("roles",), layer),), question="Do semantic roles decay?",
        variant=LAYER_8 if layer else ALL)


def deep(
    name: str, says: str, layer: int, number: Number, region: Region, label: str, floor: Number | str,
    within: float | None = None,
) -> Claim:
    """Return a claim that compares layers near the output with layer 2."""
    return claim(f"{name}_{layer}", says, "section 4, figure 3", number, region, label, matters=HOW_F1, floor=floor,
        within=within, void_unless=(known(("pos",), layer),), question="How do layers near the output learn tags?",
        variant=f"{name.replace('_', ' ')}, layer {layer} against 2")


BEST = (0.1, 0.2)
"""Window of training around the best F1 of the publication (section 4): 100 k for syntax, 150 k for roles."""

AFTER_BEST = 200_000 * UPDATE


def layers(layer: int) -> tuple[Claim, ...]:
    """Return the claims of the three sentences on figure 3."""
    far, near = probed("pos", layer), probed("pos", 2)
    return (
        deep("starts_lower", "At first, layers near the output have lower F1 than layers near the input", layer,
             Difference(At(far, 0), At(near, 0)), Below(-F1), f"F1, layer {layer} − 2, untrained", "0: as high"),
        deep("surpasses", "… then they rise, and surpass these", layer,
             Difference(At(far), At(near)), Above(F1), f"F1, layer {layer} − 2, at the end",
             Difference(At(far, 0), At(near, 0)), AFTER_BEST),
        deep("decays", "… and decay after their best", layer, FromPeak(far, *BEST), Below(-F1),
             f"F1 at layer {layer}, last tenth − second tenth of training", FromPeak(near, *BEST), AFTER_BEST),
    )


def falls(family: str, layer: int) -> Claim:
    """Return the claim of appendix D.4; the floor is a layer near the input."""
    says = "ELECTRA's layers close to the output lose F1 over pretraining"
    return Claim(f"output_falls_{family}_{layer}", says if family == "electra" else "… as BERT's do not",
        "appendix D.4, figure 11" if family == "electra" else "ours, beside appendix D.4, figure 11",
        tuple(Part(FromPeak(probed(t, layer, family), *BEST), Below(-RISE) if family == "electra" else Above(-RISE),
                   f"F1 of {t}, last tenth − second tenth, layer {layer}") for t in TASKS[:3]), matters=HOW_RISE,
        floor=FromPeak(probed("pos", 2, family), *BEST), question="Do layers close to the output fall?",
        within=AFTER_BEST,
        variant=f"{family}, layer {layer}")


def diagonal(layer: int) -> Rows:
    """Return the most diagonal head of a layer: ALBERT's heads are equal in all layers, but diagonal only in some."""
    return Over("AttentionPatterns", "diagonal", f"layer@{layer - 1}", run=of("albert"), over="head", how="max")


PROBES = (
    *(rises(task, layer) for task in TASKS for layer in (8, None)),
    *(rises(task, None, family) for family in ("bert", "electra") for task in TASKS[:3]),
    *(beyond_majority(task) for task in TASKS),
    *(together(tasks, layer) for tasks in (TASKS, TASKS[:3]) for layer in (8, None)),
    *(early(layer) for layer in (8, None)),
    *(decays(layer) for layer in (8, None)),
    *(claim for layer in (12, 8) for claim in layers(layer)),
    falls("electra", 12), falls("electra", 9), falls("bert", 12),
    Claim("diagonal_from_output", "The diagonal pattern emerges in layer 8, then 2, and last in layer 1",
        "section 4, figure 4",
        tuple(Part(Difference(LearnedAt(diagonal(later), from_first=True),
                              LearnedAt(diagonal(sooner), from_first=True)), Above(TIME),
                   f"log10 of updates to half way, layer {later} − {sooner}") for later, sooner in ((2, 8), (1, 2))),
        matters=HOW_TIME, floor="0: at the same time", void_unless=(learned("albert"),),
        question="In which layer does attention become diagonal first?"),
)

# ------------------------------------------------------------------------------------------ sections 5 and 6


def scores(quantity: str = "average", family: str = "albert", task: str | None = None) -> Rows:
    """Return a score of fine-tuned copies, with its error over development examples."""
    where = () if task is None else (("task", task),)
    return Rows("Downstream", quantity, where=where, run=of(family), error=f"{quantity}_error")


def fine_tuned(family: str, task: str | None = None) -> tuple[Claim, ...]:
    """Return the claims of figures 5 and 13."""
    quantity = "average" if task is None else "score"
    rows = scores(quantity, family, task)
    baseline = Rows("Downstream", "average_baseline" if task is None else "baseline", where=rows.where, run=rows.run)
    variant = f"{family}, {task or 'mean of tasks'}"
    name = f"{family}_{task or 'mean'}"
    figure = "section 5, figure 5" if family == "albert" else "appendix E.4, figure 13"
    return (
        claim(f"downstream_rises_{name}", "Pretraining makes downstream scores rise", figure, Change(rows, 0, "last"),
            Above(RISE), "score, end − untrained", matters=HOW_RISE, floor=Difference(At(rows, 0), At(baseline, 0)),
            question="Do downstream scores rise?", variant=variant),
        Claim(f"downstream_early_{name}",
            "… by a quarter of pretraining, and hardly afterwards (80.23 against 81.50)",
            f"{figure}; ALBERT's numbers",
            (Part(Difference(At(rows, 0.25), At(rows, 0)), Above(RISE), "score, a quarter − untrained"),
             Part(Change(rows, 0.25, "last"), Below(F1), "score, end − a quarter")),
            matters="0.05, and 0.02 for hardly", floor="0: no rise, and none afterwards: the first part asks for one",
            question="Do downstream scores rise early?", variant=variant),
    )


def facts(quantity: str, family: str) -> Rows:
    """Return a mean over relations."""
    return Rows("WorldKnowledge", quantity, run=of(family))


def knowledge(family: str) -> tuple[Claim, ...]:
    """Return the claims of figure 6."""
    p, hits = facts("p_at_1", family), facts("hit", family)
    majority = facts("majority", family)
    where = "section 6, figure 6" if family == "albert" else "ours, of another family"
    return (
        claim(f"facts_built_{family}", "World knowledge is built up during pretraining", where, Change(p, 0, "last"),
            Above(RISE), "precision at 1, end − untrained", matters=HOW_RISE, floor=UNTRAINED,
            void_unless=(learned(family),), question="Is world knowledge built up?", variant=family),
        claim(f"facts_beyond_majority_{family}", "… of facts, not of what answers a relation has", "ours",
            Difference(At(p), At(majority)), Above(F1), "precision at 1 − the relation's most frequent object",
            matters=HOW_F1, void_unless=(learned(family),),
            question="Are facts known beyond the most frequent object?", variant=family),
        claim(f"facts_lost_{family}", "Facts that were known are lost again", where, LostShare(hits), Above(0.1),
            "share of the facts ever known that is not known at the end", matters="a tenth of the facts",
            floor=LostShare(hits, at_random=True), void_unless=(learned(family),), question="Are facts lost again?",
            variant=family),
        claim(f"facts_best_before_end_{family}",
            "The fully pretrained model does not know most (published: it may not)", where, FromPeak(p, 0.3, 0.7),
            Below(-F1), "precision at 1, last tenth − 0.3 to 0.7 of training", matters=HOW_F1,
            floor="0: as many at the end as in the middle", void_unless=(learned(family),), within=1e6 * UPDATE,
            question="Does the last model know most?", variant=family),
    )


USES = (
    *fine_tuned("albert"), *fine_tuned("albert", "acceptability"), *fine_tuned("albert", "similarity"),
    *fine_tuned("bert"), *fine_tuned("electra"),
    Claim("albert_plateaus_first", "Of the three, ALBERT's downstream scores level off the earliest",
        "appendix E.4, figure 13c",
        tuple(Part(Difference(Change(scores(), 0.33, "last"), Change(scores(family=f), 0.33, "last")), Below(-F1),
                   f"gain of the mean score after a third, ALBERT − {f}") for f in ("bert", "electra")),
        matters=HOW_F1, floor="0: as late", question="Which family levels off first?"),
    *knowledge("albert"), *knowledge("bert"),
)

DISCRIMINATES = Condition(
    "the discriminator's loss is below 0.9 of that of the base rate if a tenth of the tokens are replaced, 0.293 nats",
    Tested("test_discriminator_loss", run=of("electra")), Below(0.293),
)


def of_models_that_learned(one: Claim) -> Claim:
    """Return a claim with the condition that its model learned, unless it has conditions."""
    if "electra" in one.name or one.name == "albert_plateaus_first":
        return replace(one, learned=(DISCRIMINATES,))
    family = "bert" if "_bert" in one.name else "albert"
    return one if one.void_unless else replace(one, learned=(learned(family),))


STUDY = Study(
    "chiang2020_embryology",
    "Pretrained language model embryology: the birth of ALBERT",
    "Chiang, Huang & Lee 2020, EMNLP",
    tuple(map(of_models_that_learned, WORDS + PROBES + USES)),
    measured_by=RUN,
    inspected=(1,),
    inspected_in=pretraining("MaskedLanguageModel"),
    own=("as figure 8, by mean delay", "by mean delay"),
    terms=(
        ("Somers' D",
         "rank correlation of the order in which groups are learned with the published one, of pairs that it tells "
         "apart: 1 that order, −1 the reversed one"),
        ("order agreement of words",
         "floor of an order: D of the order that the numbers of words of the groups alone would give; how often single "
         "words occur is no part of it"),
        ("by mean delay",
         "mean difference of log10(1 + step) over the pairs of the order, later minus earlier; D of ten pairs or fewer "
         "only describes"),
        ("by the whole curve", "the time of a group is the mean of its rescaled accuracy over log(1 + step), not the "
         "step of half of it"),
    ),
)
