"""Questions of Saphra 2021, "Training dynamics of neural language models", about attention, as numbers of a run.

Sections 4.1.1, 5.1.2 and 6.1.2 say what could be measured on a transformer, but make no claims. Tested here are the
thesis' findings on LSTMs with the quantities of these sections: the divergence of attention distributions, the Shapley
interaction of words, the entropy of attention. Thresholds were chosen before any run except those of seed 1 was made,
with the measures of the other studies if available:

- *Divergences and entropies.* A tenth (0.1 of the natural logarithm): for a divergence of 0.3 bits 0.03, for 20 words
  attended to equally about five. Between classes of words a twentieth, since they are means over many heads.
- *Correlations.* Within ±0.1 there is none: the publication of 2019 calls −0.1 "slight".
- *Interdependence.* 2 % per word of distance, as in the study of 2020.
- *Times.* 10 % of the updates (0.041 of their decimal logarithm); times are between two observations.

Divergences are Jensen–Shannon divergences of heads, in bits; heads of two models have no common order and are matched.
The first token of a row, which can only attend to itself, does not count. Errors are over texts, by blocks of
sentences.
"""

import math
from dataclasses import replace
from functools import partial

from lmdyn.claims.among_seeds import AtEqualSteps
from lmdyn.claims.claim import Above, Below, Claim, Condition, Part, Study, claim
from lmdyn.claims.learning_numbers import HalfWay
from lmdyn.claims.numbers import At, Change, Difference, Mean, Number, Tested
from lmdyn.claims.rows import Layer, Rows
from lmdyn.claims.studies.sparsity_numbers import LogRatio

__all__ = ["STUDY"]

TENTH = 0.1
TWENTIETH = 0.05
SLIGHT = 0.1
FALLS = 0.02
FASTER = round(math.log10(1 / 1.1), 4)
LEARNED_TAGS = 0.1
BLOCKS_OF_TEXT = 9.0
BLOCKS_OF_PAIRS = 31.0

FIRST, LAST = Layer("first"), Layer("last")
LAYERS = {"first": FIRST, "last": LAST}
RUN = "snakemake --profile configs/saphra2021_attention/organism"
HOW_TENTH = "a tenth: less is within what the choice of a measure of divergence does"
HOW_SLIGHT = "0.1: the authors call a correlation of −0.1 slight (Saphra & Lopez 2019, section 4)"
HOW_FAST = "10 % of the updates: less is within the spacing of observations"
# fmt: off


# ------------------------------------------------------------------------------------------ rows and conditions


def divergence(of: str, reference: str, layer: Layer) -> Rows:
    """Return the Jensen–Shannon divergence of a layer's attention from a reference's, e.g. of ``matched`` heads."""
    quantity = f"attention_{of}_jensen_shannon"
    return Rows(
        "Similarity", quantity, layer, (("reference", reference),), error=f"{quantity}_error", df=BLOCKS_OF_TEXT,
    )


def of_means(reference: str, layer: Layer) -> Rows:
    """Return the divergence of the means over heads, in nats."""
    return Rows("Similarity", "attention_jensen_shannon", layer, (("reference", reference),))


def entropy(layer: Layer, normalized: bool = True) -> Rows:
    """Return the mean entropy over tokens and heads of a layer."""
    name = f"{'normalized_' * normalized}attention_entropy"
    return Rows("Sparsity", name, layer, (("role", "input"), ("pos_class", "")))


def entropy_of(layer: Layer, sample: str) -> Rows:
    """Return the mean normalised entropy over the word types of a sample, where they are read."""
    name = "normalized_attention_entropy_types"
    return Rows("Sparsity", name, layer, (("role", "input"), ("pos_class", sample)), error=f"{name}_error")


def entropy_rho(layer: Layer, sample: str) -> Rows:
    """Return ρ→ between the normalised entropy where a word is read and its frequency."""
    name = "rho_normalized_attention_entropy"
    return Rows("Sparsity", name, layer, (("role", "input"), ("pos_class", sample)), error=f"{name}_error")


def shapley(quantity: str, error: str | tuple[str, str], df: float | None = None, **where: object) -> Rows:
    """Return Shapley interactions of words in hidden states."""
    settings = (("backend", "shapley"),)
    return Rows("Interdependence", quantity, "hidden", tuple(where.items()), settings=settings, error=error, df=df)


def di(distance: int) -> Rows:
    """Return the mean interdependence of words at a distance."""
    return shapley("di", ("di_low", "di_high"), distance=distance)


def rho(name: str, pos_class: str | None) -> Rows:
    """Return the mean over sequential distances of the correlation with syntactic distance, with its error."""
    return shapley(name, f"{name}_error", BLOCKS_OF_PAIRS, **({} if pos_class is None else {"pos_class": pos_class}))


def words(sample: str, least: int) -> Condition:
    """Return the condition that the number is based on at least ``least`` words."""
    rows = Rows("Sparsity", "words", where=(("role", "input"), ("pos_class", sample)))
    return Condition(f"at least {least} words ({sample or 'all'})", At(rows), Above(least - 0.5))


LOSS = Rows("LearningCurves", "loss", where=(("by", ""), ("group", "")))
LEARNED = Condition(
    "the loss is at least 1 nat below the entropy of the words' frequencies",
    Difference(At(LOSS), At(Rows("Sparsity", "unigram_entropy"))),
    Below(-1.0),
)
TAGGER_LEARNED = Condition(
    f"the tagger beats the most frequent tag of its test text by {LEARNED_TAGS}",
    Difference(Tested("test_accuracy"), Tested("test_majority")),
    Above(LEARNED_TAGS),
)


trained = partial(claim, void_unless=(LEARNED,))


# ------------------------------------------------------------------------------------------ section 4.1.1, divergence


def nearer(reference: str, layer: str) -> Claim:
    """Return the claim that the attention of a model approaches that of another in training."""
    whose = {"partner": "another seed's", "tagger": "a tagger's, which learns the next part of speech"}[reference]
    rows, floor = (divergence("matched", name, LAYERS[layer]) for name in (reference, f"untrained_{reference}"))
    return claim(f"nearer_{reference}_{layer}", f"A language model's attention comes nearer to {whose}",
        "section 4.1.1", LogRatio(At(rows), At(rows, 0)), Below(-TENTH), "ln of the divergence, end / untrained",
        matters=HOW_TENTH, floor=LogRatio(At(floor), At(floor, 0)),
        void_unless=(LEARNED, *([TAGGER_LEARNED] if reference == "tagger" else [])),
        question=f"Does attention come nearer to {whose.partition(',')[0]}?", variant=f"matched heads, {layer} layer")


def nearer_in_the_mean(reference: str, layer: str) -> Claim:
    """Return the same claim for means over heads, which need no matching."""
    rows, floor = (of_means(name, LAYERS[layer]) for name in (reference, f"untrained_{reference}"))
    whose = {"partner": "another seed's", "tagger": "a tagger's"}[reference]
    return claim(f"nearer_{reference}_mean_{layer}", f"A language model's attention comes nearer to {whose}",
        "section 4.1.1", LogRatio(At(rows), At(rows, 0)), Below(-TENTH), "ln of the divergence, end / untrained",
        matters=HOW_TENTH, floor=LogRatio(At(floor), At(floor, 0)),
        void_unless=(LEARNED, *([TAGGER_LEARNED] if reference == "tagger" else [])),
        question=f"Does attention come nearer to {whose}?", variant=f"means over heads, {layer} layer")


def converges(layer: str) -> Claim:
    """Return the claim that two seeds still approach each other late in training."""
    rows = divergence("matched", "partner", LAYERS[layer])
    return trained(f"still_converges_{layer}", "… and goes on doing so: from a third of training to the end",
        "section 4.1.1", LogRatio(At(rows), At(rows, 1 / 3)), Below(-TENTH),
        "ln of the divergence, end / a third of training", matters=HOW_TENTH,
        floor="0: a curve that has levelled off", question="Do two seeds go on converging?",
        variant=f"matched heads, {layer} layer")


def same_heads(layer: str) -> Claim:
    """Return the claim that heads of two seeds can be paired."""
    def match(step: str | int) -> Number:
        matched, others = (divergence(of, "partner", LAYERS[layer]) for of in ("matched", "unmatched"))
        return LogRatio(At(matched, step), At(others, step))

    return trained(f"same_heads_{layer}", "Two seeds have the same heads, in another order", "section 4.1.1",
        Difference(match("last"), match(0)), Below(-TENTH),
        "ln of the divergence, matched / other heads, end − untrained", matters=HOW_TENTH,
        floor="0: what choosing the best match gives with heads that learned nothing is subtracted",
        question="Do two seeds have the same heads?",
        variant=f"{layer} layer; the best match is the better by choice: beyond that of the untrained model")


def nearer_seed_than_tagger(layer: str) -> Claim:
    """Return the claim that compares the other language model with the tagger."""
    a, b = (divergence("matched", name, LAYERS[layer]) for name in ("partner", "tagger"))
    return claim(f"seed_nearer_than_tagger_{layer}",
        "In the end attention is nearer to another language model's than to a tagger's", "section 4.1.1",
        LogRatio(At(a), At(b)), Below(-TENTH), "ln of the divergence, partner / tagger", matters=HOW_TENTH,
        void_unless=(LEARNED, TAGGER_LEARNED), question="Is attention nearer to a language model's or to a tagger's?",
        variant=f"matched heads, {layer} layer")


def tagger_first(layer: str) -> Claim:
    """Return the claim of chapter 4 on LSTMs: part of speech is learned early."""
    a, b = (HalfWay(divergence("matched", name, LAYERS[layer])) for name in ("tagger", "partner"))
    return claim(f"tagger_first_{layer}",
        "Attention becomes like a tagger's before it becomes like another language model's",
        "chapter 4, section 4.1.1", Difference(a, b), Below(FASTER), "log10 of updates half way, tagger − partner",
        matters=HOW_FAST, floor="0: both at once", void_unless=(LEARNED, TAGGER_LEARNED),
        question="Is part of speech learned first, as attention shows it?", variant=f"matched heads, {layer} layer")


def bottom_up(name: str, first: Number, last: Number, variant: str) -> Claim:
    """Return the claim of chapter 4 on LSTMs: lower layers converge first."""
    return trained(f"lower_first_{name}", "Lower layers reach their final state earlier", "chapter 4, section 4.1.1",
        Difference(first, last), Below(FASTER), "log10 of updates half way, first − last layer", matters=HOW_FAST,
        floor="0: all layers at once", question="Do lower layers reach their final state earlier?", variant=variant)


OWN = [divergence("head", "own_final", layer) for layer in LAYERS.values()]
CKA = [Rows("Similarity", "linear_cka", layer, (("reference", "own_final"),)) for layer in LAYERS.values()]
DIVERGENCE = (
    *(nearer(reference, layer) for reference in ("partner", "tagger") for layer in LAYERS),
    *(nearer_in_the_mean(reference, layer) for reference in ("partner", "tagger") for layer in LAYERS),
    *(converges(layer) for layer in LAYERS),
    *(same_heads(layer) for layer in LAYERS),
    *(nearer_seed_than_tagger(layer) for layer in LAYERS),
    *(tagger_first(layer) for layer in LAYERS),
    bottom_up("attention", HalfWay(OWN[0], 0.0), HalfWay(OWN[1], 0.0), "attention: each head from its end"),
    bottom_up("cka", HalfWay(CKA[0], 1.0), HalfWay(CKA[1], 1.0), "representations: linear CKA with the own end"),
)


# ------------------------------------------------------------------------------------------ section 6.1.2, entropy


def sparser(layer: str, normalized: bool, since: float | int) -> Claim:
    """Return the claim on entropy over training."""
    rows = entropy(LAYERS[layer], normalized)
    late = bool(since)
    return trained("_".join(["sparser", *([] if normalized else ["nats"]), *(["late"] if late else []), layer]),
        "… and goes on doing so: from a third of training to the end" if late else
        "Attention becomes sparse across words with training: its entropy falls", "section 6.1.2",
        LogRatio(At(rows), At(rows, since)), Below(-TENTH), "ln of the mean entropy, end / before",
        matters="a tenth of the entropy: of 20 words attended to equally some five are no longer",
        floor="0: a curve that has levelled off" if late else "0: the untrained model, from which it is counted",
        question="Does attention become sparse with training?",
        variant=f"{layer} layer, mean over heads, " + ("over ln of the number of places" if normalized else "in nats")
        + (", since a third of training" if late else ""),
        forced="" if late else "the attention of an untrained model is close to uniform, whose entropy is the largest")


SAMPLES = {
    "": "all words",
    "no_top20": "without the 20 most frequent words",
    "count100": "words of at least 100 occurrences",
}
BANDS = ("100-299", "300-999")
"""Half-decades of training frequency in which there are words of both classes."""


def frequent_sparser(layer: str, sample: str) -> Claim:
    """Return the counterpart of figure 3b of 2019."""
    rows = entropy_rho(LAYERS[layer], sample)
    return claim("_".join(["frequent_sparser", layer, *([sample] if sample else [])]),
        "The more frequent the word that is read, the sparser the attention from it",
        "section 6.1.2; 2019, figure 3b", At(rows), Below(-SLIGHT), "ρ→ of the entropy", scale="fisher",
        matters=HOW_SLIGHT, void_unless=(LEARNED, words(sample, 100)),
        question="Is attention sparser from frequent words?", variant=f"{layer} layer, {SAMPLES[sample]}")


def frequent_fall_more(layer: str) -> Claim:
    """Return the claim on the change over training between bands of frequency."""
    frequent, rare = (entropy_of(LAYERS[layer], band) for band in ("1000+", "10-99"))
    change = [LogRatio(At(rows), At(rows, 0)) for rows in (frequent, rare)]
    return claim(f"frequent_fall_more_{layer}",
        "… and it becomes so with training: entropy falls more for frequent words", "section 6.1.2",
        Difference(*change), Below(-TWENTIETH), "change of ln of the entropy, 1000+ − 10 to 99",
        matters="a twentieth of the entropy", floor="0: the untrained model, from which both are counted",
        void_unless=(LEARNED, words("1000+", 10), words("10-99", 30)),
        question="Is attention sparser from frequent words?", variant=f"{layer} layer, change over training")


def function_words(layer: str) -> Claim:
    """Return the counterpart of figure 5 of 2019: classes at equal frequency."""
    def ratio(step: str | int) -> Number:
        closed, opened = ([At(entropy_of(LAYERS[layer], f"{c}_{b}"), step) for b in BANDS] for c in ("closed", "open"))
        return Mean(tuple(LogRatio(a, b) for a, b in zip(closed, opened, strict=True)))

    return claim(f"function_words_{layer}",
        "At equal frequency attention is sparser from function words than from content words",
        "section 6.1.2; 2019, figure 5", ratio("last"), Below(-TWENTIETH), "ln of the entropy, closed / open classes",
        matters="a twentieth of the entropy", floor=ratio(0),
        void_unless=(LEARNED, *(words(f"{c}_{band}", 5) for band in BANDS for c in ("closed", "open"))),
        question="Is attention sparser from function words?",
        variant=f"{layer} layer, mean over half-decades of frequency")


ENTROPY = (
    *(sparser(layer, normalized, 0) for normalized in (True, False) for layer in LAYERS),
    *(sparser(layer, True, 1 / 3) for layer in LAYERS),
    *(frequent_sparser(layer, sample) for sample in SAMPLES for layer in LAYERS),
    *(frequent_fall_more(layer) for layer in LAYERS),
    *(function_words(layer) for layer in LAYERS),
)


# ------------------------------------------------------------------------------------------ section 5.1.2, Shapley


HELD = {"syntactic": "frequency not held", "matched": "words of the same frequency, to a factor of two"}
CLASSES = {None: "all classes", "open": "open classes", "closed": "closed classes"}


def falls_in_the_tree(held: str, pos_class: str | None) -> Claim:
    """Return the counterpart of figure 4 of 2020."""
    rows = rho(f"mean_{held}_correlation", pos_class)
    return trained("_".join(["tree", held, *([pos_class] if pos_class else [])]),
        "Interdependence falls with syntactic distance at equal sequential distance", "section 5.1.2; 2020, figure 4",
        At(rows), Below(-SLIGHT), "mean ρ", scale="fisher", matters=HOW_SLIGHT,
        floor=At(rho(f"mean_shuffled_{held}_correlation", pos_class)),
        question="Does interdependence fall with syntactic distance?",
        variant=f"{CLASSES[pos_class]}, {HELD[held]}; the floor: the tree of another sentence of as many words")


TREE = rho("mean_syntactic_correlation", None)
SHAPLEY = (
    Claim("distance", "Interdependence falls with the sequential distance of two words",
        "section 5.1.2; 2020, figure 3",
        tuple(Part(LogRatio(At(di(d + 1)), At(di(d))), Below(-FALLS), f"ln of the ratio, {d + 1} / {d} words apart")
              for d in range(1, 5)), matters="2 % for each word further apart",
        floor=LogRatio(At(di(5), 0), At(di(1), 0)), void_unless=(LEARNED,),
        question="Does interdependence fall with sequential distance?", variant="1 to 5 words apart"),
    *(falls_in_the_tree(held, pos_class) for held in HELD for pos_class in CLASSES),
    trained("tree_learned", "… and it comes to do so with training", "section 5.1.2", Change(TREE, 0, "last"),
        Below(-SLIGHT), "change of the mean ρ since the untrained model", matters=HOW_SLIGHT,
        floor="0: the untrained model, from which it is counted",
        question="Does interdependence fall with syntactic distance?", variant="all classes, change over training"),
)

# ------------------------------------------------------------------------------------------ section 4.1


PREDICTS = Condition(
    "a tenth more of the words are predicted than by the untrained model",
    Change(replace(LOSS, quantity="accuracy")), Above(0.1),
)


def better_if_similar(reference: str, name: str) -> Claim:
    """Return the claim that a model which is more similar to another one is a better language model."""
    cka = Rows("Similarity", "linear_cka", LAST, (("reference", reference),))
    return claim(f"quality_{reference}", f"A model whose states are more similar {name} has a lower loss",
        "section 4.1 (asked)", AtEqualSteps(cka, LOSS), Below(-0.3), "r over seeds at equal steps, linear CKA and loss",
        matters="0.3: a medium correlation (Cohen 1988)",
        floor=AtEqualSteps(replace(cka, where=(("reference", f"untrained_{reference}"),)), LOSS),
        void_unless=(PREDICTS,), question="Does similarity tell the quality of a language model, at equal steps (4.1)?",
        variant=name)


QUALITY = (better_if_similar("tagger", "to a tagger's"), better_if_similar("partner", "to another seed's"))

STUDY = Study(
    "saphra2021_attention",
    "Training dynamics of neural language models: the outlook on attentional models",
    "Saphra 2021, sections 4.1.1, 5.1.2 and 6.1.2",
    DIVERGENCE + ENTROPY + SHAPLEY + QUALITY,
    measured_by=RUN,
    inspected_in=tuple(
        (("model", model), ("data", "GrammarCorpus")) for model in ("CausalLanguageModel", "CausalTagger")
    ),
)
