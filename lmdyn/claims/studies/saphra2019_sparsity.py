"""Claims of Saphra & Lopez 2019, "Sparsity emerges naturally in neural language models", as numbers of a run.

χ(v) = ‖v‖₂/‖v‖₁; ρ← (ρ→) is Pearson's correlation over word types between the mean χ where a word is the target (the
input) and its frequency in training. The publication's h2 is the last hidden layer of a model, its h1 the first. Two
measures define the thresholds of all claims; they were chosen before any run except that of seed 1 was inspected:

- *Correlations.* The publication calls −0.1 "slight" (section 4): within ±0.1 there is no correlation, and a change by
  less than 0.1 is none. "Strong" is at least 0.3, which Cohen (1988) calls medium.
- *Concentrations.* 1/χ² is the number of equal units that would have this χ. Vectors without any structure differ by
  8 % in χ, uniform (0.0816 with 200 units) from Gaussian ones (0.0885): a quarter of that, 2 % (4 % of the units), is
  the smallest difference that matters. On a logarithmic scale this does not depend on the number of units.

Errors of ρ are over word types, errors of χ over blocks of sentences. For a change of ρ over training, on the same
words, the error over words is unknown (adding those of both ends would be far too conservative): such a verdict is for
these words.

The publication's runs reduce their learning rate repeatedly, so that its figures cannot distinguish training from
reductions. Here runs of several seeds continue from one checkpoint with the same data, random states and optimizer
state, at the current rate and at a quarter of it; neither is reduced further. Numbers are paired by
seed. The floor is a third fork, whose rate is a thousandth lower: the effect of any change, since two trainings
diverge for any reason. (Without a change, a fork equals the run bit by bit.) Claims and floor were stated before any
fork was trained. A fork is identified in its condition: ``forked.run``, ``forked.step``, ``forked.rate``.
"""

from functools import partial
from itertools import pairwise

from lmdyn.claims.claim import (
    Above,
    Below,
    Claim,
    Condition,
    Part,
    Study,
    Within,
    claim,
    published_correlation,
)
from lmdyn.claims.forks import ForkEffect, RateAtFork, SinceFork, at_rate
from lmdyn.claims.numbers import At, Change, Difference, Mean, Number
from lmdyn.claims.rows import Layer, Rows
from lmdyn.claims.studies.inspected_runs import GRAMMAR, WIKITEXT
from lmdyn.claims.studies.sparsity_numbers import LogRatio, OtherSites, SinceReduction, Tokens

__all__ = ["STUDY"]

PUBLISHED_TOKENS = 227e6
PUBLISHED_WORDS = 19500


# ------------------------------------------------------------------------------------------ rows and conditions

SLIGHT, STRONG, CONCENTRATED = 0.1, 0.3, 0.02
FIRST, LAST = Layer("first"), Layer("last")


def rho(what: str, site: str | Layer, role: str, sample: str = "", *, error: bool = True) -> Rows:
    """Return ρ of an ``activation``, a ``gradient`` or an ``l1_gradient``."""
    of = (("role", role), ("pos_class", sample))
    return Rows("Sparsity", f"rho_{what}", site, of, error=f"rho_{what}_error" if error else None)


def chi(sample: str) -> Rows:
    """Return the mean χ of the gradient at the last hidden layer over the types of a sample as targets."""
    of = (("role", "target"), ("pos_class", sample))
    return Rows("Sparsity", "chi_gradient_types", LAST, of, error="chi_gradient_types_error")


def words(sample: str, role: str, least: int, *, rate: float | None = None) -> Condition:
    """Return the condition that the number is based on at least ``least`` words; for the fork with a rate, if given."""
    rows = Rows("Sparsity", "words", where=(("role", role), ("pos_class", sample)))
    rows = rows if rate is None else at_rate(rows, rate)
    return Condition(f"at least {least} words ({sample or 'all'}, {role})", At(rows), Above(least - 0.5))


def suffix(sample: str) -> str:
    """Return the suffix of the name of a claim, or of a sample of a class."""
    return f"_{sample}" if sample else ""


ENTROPY = Rows("Sparsity", "unigram_entropy")
LOSS = Rows("LearningCurves", "loss", where=(("by", ""), ("group", "")))
LEARNED = Condition(
    "the loss is at least 0.1 nats below the entropy of the words' frequencies",
    Difference(At(LOSS), At(ENTROPY)),
    Below(-0.1),
)
SAMPLES = {
    "": "all words",
    "no_top20": "without the 20 most frequent words",
    "count100": "words of at least 100 occurrences, as published",
}
HOW_SLIGHT = "0.1: the publication calls a correlation of −0.1 slight (section 4)"
HOW_STRONG = "0.3 is what Cohen (1988) calls medium: less is not strong; 0.1 is slight (section 4)"
HOW_MUCH_STRONGER = "0.2, between strong (0.3) and slight (0.1)"
HOW_CONCENTRATED = (
    "2 % of χ: a quarter of the way from uniform to Gaussian vectors, neither of which has any structure; 4 % of the "
    "number of equal units that would have this χ"
)
LEVEL = "0: a curve that has levelled off; the rise from the untrained model is not what is meant"

GAUSSIAN, UNIFORM = (Rows("Sparsity", f"chi_{kind}", LAST) for kind in ("gaussian", "uniform"))
AS_LONG = Condition(
    "the model has seen the 227 million tokens before which the publication's figures show nothing",
    Tokens(ENTROPY),
    Above(PUBLISHED_TOKENS),
)
FREQUENT = (LEARNED, words("1000+", "target", 10))
"""Figure 2 shows words with more than 100,000 occurrences among 227 million tokens: some thousand in 1 or 2 million."""

RUN = "python -m lmdyn.cli analyze RUN --config configs/saphra2019_sparsity/organism/observers.yaml"
# fmt: off


# ------------------------------------------------------------------------------------------ figure 2


def over_time(name: str, says: str, number: Number, floor: Number | str, label: str, variant: str) -> Claim:
    """Return the claim on χ over training, for words with at least 1000 occurrences."""
    return claim(f"chi_{name}", says, "section 3, figure 2", number, Above(CONCENTRATED), label,
        matters=HOW_CONCENTRATED, floor=floor, void_unless=FREQUENT,
        question="Does the gradient at the last hidden layer become more concentrated with training?",
        variant=variant)


def over_frequency(name: str, says: str, bands: tuple[str, ...], variant: str) -> Claim:
    """Return the claim that compares χ in each band of frequency with the band below."""
    pairs = list(pairwise(bands))
    return Claim(f"chi_{name}", says, "section 3, figure 2",
        tuple(Part(LogRatio(At(chi(a)), At(chi(b))), Above(CONCENTRATED), f"ln of χ, {a} / {b}") for a, b in pairs),
        matters=HOW_CONCENTRATED, floor=LogRatio(At(chi(bands[0]), 0), At(chi(bands[-1]), 0)),
        void_unless=(*FREQUENT, *(words(band, "target", 30) for band in bands[1:])),
        question="Is the gradient the more concentrated the more frequent the target word is?", variant=variant)


FIGURE_2 = (
    over_time(
        "rises_from_untrained", "Gradients of frequent words become more concentrated: than in the untrained model",
        LogRatio(At(chi("1000+")), At(chi("1000+"), 0)), LogRatio(At(GAUSSIAN), At(UNIFORM), exact=True),
        "ln of χ, end / untrained", "since the untrained model; its floor is the way from uniform to Gaussian vectors",
    ),
    over_time(
        "beyond_gaussian", "… than Gaussian vectors of as many units",
        LogRatio(At(chi("1000+")), At(GAUSSIAN), exact=True), LogRatio(At(chi("1000+"), 0), At(GAUSSIAN), exact=True),
        "ln of χ, end / Gaussian", "beyond what vectors without structure have",
    ),
    over_time(
        "keeps_rising", "… and go on doing so: from a third of training to the end",
        LogRatio(At(chi("1000+")), At(chi("1000+"), 1 / 3)), LEVEL,
        "ln of χ, end / a third of training", "since a third of training, in the run's own time",
    ),
    over_frequency(
        "rises_with_frequency", "Gradient sparsity increases with the frequency of the target word",
        ("1000+", "100-999", "10-99"), "each decade of training frequency above the one below",
    ),
    over_frequency(
        "of_the_most_frequent", "… at least among frequent words, which the figure shows",
        ("1000+", "100-999"), "words of at least 1000 occurrences against 100 to 999",
    ),
)


# ------------------------------------------------------------------------------------------ figure 3a: targets


def target_claims(sample: str, variant: str) -> tuple[Claim, ...]:
    """Return the claims of figure 3a for one sample of words."""
    end, enough = suffix(sample), (LEARNED, words(sample, "target", 100))
    gradient, activation = (rho(what, LAST, "target", sample) for what in ("gradient", "activation"))
    same_words = rho("gradient", LAST, "target", sample, error=False)
    either = "Do frequent targets have more dispersed activations?"
    return (
        claim(f"target_gradient_strong{end}",
            "The gradient at the last hidden layer is the more concentrated the more frequent the target: strongly so",
            "section 3, figure 3a", At(gradient), Above(STRONG), "ρ← of the last layer's gradient", scale="fisher",
            matters=HOW_STRONG, void_unless=enough, question="How strong is ρ← of the last layer's gradient?",
            variant=variant),
        claim(f"target_gradient_only{end}",
            "… and only there: no other site's gradient or activation goes so with the target's frequency",
            "section 3, figure 3a", Difference(At(gradient), OtherSites(gradient, ("rho_activation",))),
            Above(STRONG - SLIGHT), "ρ← of the last layer's gradient − largest |ρ←| elsewhere",
            matters=HOW_MUCH_STRONGER, floor=Difference(At(gradient, 0), At(activation, 0)), void_unless=enough,
            question="Is the correlation particular to the last layer's gradient?", variant=variant),
        claim(f"target_gradient_increasing{end}", "… and it keeps increasing: from a third of training to the end",
            "section 3, figure 3a", Change(same_words, 1 / 3, "last"), Above(SLIGHT),
            "change of ρ← since a third of training", matters=HOW_SLIGHT, floor=LEVEL, void_unless=enough,
            question="Does ρ← of the last layer's gradient keep increasing?",
            variant=f"{variant}; in the run's own time"),
        claim(f"target_activation_uncorrelated{end}",
            "Activation sparsity at the last hidden layer is not correlated with the target's frequency",
            "section 3, figure 3a", At(activation), Within(-SLIGHT, SLIGHT), "ρ← of the last layer's activation",
            scale="fisher", matters=HOW_SLIGHT, void_unless=enough, question=either,
            variant=f"section 3: no; {variant}"),
        claim(f"target_activation_dispersed{end}",
            "Frequent target words are associated with dispersed activations (against figure 3a: not correlated)",
            "abstract", At(activation), Below(-SLIGHT), "ρ← of the last layer's activation", scale="fisher",
            matters=HOW_SLIGHT, void_unless=enough, question=either, variant=f"abstract: yes; {variant}"),
    )


# ------------------------------------------------------------------------------------------ figures 4 and 5: classes


def class_claims(sample: str, variant: str) -> tuple[Claim, ...]:
    """Return the claims of figure 4 for one pair of samples of both classes."""
    names = [f"{name}{suffix(sample)}" for name in ("closed", "open")]
    closed, opened = (rho("gradient", LAST, "target", name, error=False) for name in names)
    each = [rho("gradient", LAST, "target", name) for name in names]
    enough = (LEARNED, *(words(name, "target", 30) for name in names))
    return (
        Claim(f"closed_stabilise_open_rise{suffix(sample)}",
            "ρ← of closed classes soon stabilises while that of open classes keeps rising", "section 3, figure 4",
            (Part(Change(closed, 0.25, "last"), Within(-SLIGHT, SLIGHT), "change of ρ←, closed classes"),
             Part(Change(opened, 0.25, "last"), Above(SLIGHT), "change of ρ←, open classes")), matters=HOW_SLIGHT,
            floor=LEVEL, void_unless=enough, question="Do closed classes stabilise, and open classes go on rising?",
            variant=f"{variant}; since a quarter of training, in the run's own time"),
        claim(f"closed_first{suffix(sample)}",
            "Early on, frequent words of closed classes are the more concentrated ones: ρ← above that of open classes",
            "section 3, figure 4", Difference(At(each[0], 0.1), At(each[1], 0.1)), Above(SLIGHT),
            "ρ←, closed − open classes", matters=HOW_SLIGHT, floor=Difference(At(each[0], 0), At(each[1], 0)),
            void_unless=(*enough, AS_LONG), question="Are closed classes the first to be concentrated?",
            variant=f"{variant}; at a tenth of training: the publication's epoch 5 of 50"),
    )


def at_equal_frequency(name: str, samples: tuple[str, ...], variant: str, least: int) -> Claim:
    """Return the claim on closed and open classes: mean ln of the ratio of χ in samples of equal frequency."""
    def ratio(step: int | str) -> Number:
        return Mean(tuple(LogRatio(At(chi(f"closed_{s}"), step), At(chi(f"open_{s}"), step)) for s in samples))

    return claim(f"function_words_{name}",
        "Gradients of function words are more concentrated than those of content words, at equal frequency",
        "abstract, figure 5", ratio("last"), Above(CONCENTRATED), "ln of χ, closed / open classes",
        matters=HOW_CONCENTRATED, floor=ratio(0),
        void_unless=(LEARNED, *(words(f"{c}_{s}", "target", least) for s in samples for c in ("closed", "open"))),
        question="Are gradients of function words more concentrated at equal frequency?", variant=variant)


# ------------------------------------------------------------------------------------------ figure 3b: inputs


def surpasses(name: str, sample: str, variant: str, *conditions: Condition) -> Claim:
    """Return the claim that compares the embedding with the first hidden layer."""
    first, embedding = (rho("activation", site, "input", sample) for site in (FIRST, "embedding"))
    return claim(f"input_embedding_surpasses{name}", "… and the embedding surpasses it in the end",
        "section 3, figure 3b", Difference(At(embedding), At(first)), Above(SLIGHT),
        "ρ→ of the embedding − of the first layer", matters=HOW_SLIGHT,
        void_unless=(LEARNED, words(sample, "input", 100), *conditions),
        question="Does the embedding surpass the first hidden layer?", variant=variant)


def input_claims(sample: str, variant: str) -> tuple[Claim, ...]:
    """Return the claims of figure 3b for one sample of words."""
    end, enough = suffix(sample), (LEARNED, words(sample, "input", 100))
    first, gradient = rho("activation", FIRST, "input", sample), rho("gradient", LAST, "input", sample)
    return (
        claim(f"input_first_layer{end}",
            "Frequent input words are associated with concentrated activations, at the first hidden layer",
            "abstract, section 3, figure 3b", At(first), Above(SLIGHT), "ρ→ of the first layer's activation",
            scale="fisher", matters=HOW_SLIGHT, void_unless=enough,
            question="Are frequent input words concentrated at the first hidden layer?", variant=variant),
        surpasses(end, sample, f"{variant}; at the end of these runs"),
        claim(f"input_gradients_uncorrelated{end}",
            "Gradient sparsity is not correlated with the frequency of the input word, at any site",
            "section 3, figure 3b", OtherSites(gradient, but=False), Below(SLIGHT), "largest |ρ→| of gradients",
            matters=HOW_SLIGHT, floor=OtherSites(gradient, but=False, step="first"), void_unless=enough,
            question="Is any gradient's sparsity correlated with input frequency?", variant=variant),
    )


REDUCTION = "Does the first reduction of the learning rate begin an upward trend in ρ→?"
SITES: dict[str, str | Layer] = {"embedding": "embedding", "first layer": FIRST, "last layer": LAST}
FIRST_REDUCTION = Claim("input_first_reduction",
    "The first time that the optimizer rescales the step size begins an upward trend in ρ→", "section 3, figure 3b",
    tuple(Part(SinceReduction(rho("activation", site, "input", error=False)), Above(SLIGHT), f"change of ρ→, {name}")
          for name, site in SITES.items()), matters=HOW_SLIGHT,
    floor="0: nothing changes; what happens without a reduction is measured by `lmdyn fork`",
    void_unless=(LEARNED, words("", "input", 100)), question=REDUCTION,
    variant="all words; a change, which the reduction need not have caused",
    measured_by="snakemake --profile configs/saphra2019_sparsity/wikitext2, or a fork with a lower rate")


# ------------------------------------------------------------------------------------------ forks

QUARTER, KEPT, NUDGED = 0.25, 1.0, 0.999
RATE = Rows("LearningCurves", "learning_rate", where=(("by", ""), ("group", "")))
FORKS = (
    "snakemake --profile configs/saphra2019_sparsity/forks_organism (or, of a run of yours: lmdyn fork RUN --epoch E, "
    "once at its learning rate and once at a quarter of it, and lmdyn analyze of both)"
)
forked = partial(claim, measured_by=FORKS)


def effect(rows: Rows, rate: float = QUARTER, *, log: bool = False) -> Number:
    """Return the effect of another rate, compared with the unchanged rate."""
    return ForkEffect(at_rate(rows, rate), at_rate(rows, KEPT), log=log)


def forked_enough(sample: str, role: str, least: int) -> tuple[Condition, ...]:
    """Return the conditions of the other claims, for the fork with the unchanged rate."""
    loss, entropy = (At(at_rate(rows, KEPT)) for rows in (LOSS, ENTROPY))
    learned = Condition(LEARNED.says, Difference(loss, entropy), Below(-0.1))
    return (learned, words(sample, role, least, rate=KEPT))


FIRST_TIME = Condition(
    "the rate was not reduced before the fork", RateAtFork(at_rate(RATE, KEPT)), Above(0.999)
)
HOW = "quartered against kept, from one checkpoint"
CHI, ENOUGH_FREQUENT = chi("1000+"), forked_enough("1000+", "target", 10)
RISES = "Does χ of frequent words rise because the learning rate is reduced?"
INCREASES = "Does ρ← of the last layer's gradient rise because the learning rate is reduced?"
SHOWN = "The curve rises in a run whose learning rate is reduced again and again"


def forked_target_claims(sample: str, variant: str) -> tuple[Claim, ...]:
    """Return the claims on ρ← of the last layer's gradient, for one sample of words."""
    end, gradient = suffix(sample), rho("gradient", LAST, "target", sample, error=False)
    conditions = forked_enough(sample, "target", 100)
    return (
        forked(f"fork_target_gradient_reduced{end}", f"{SHOWN}: a reduction itself raises it", "section 3, figure 3a",
            effect(gradient), Above(SLIGHT), "ρ← of the last layer's gradient, quartered − kept", matters=HOW_SLIGHT,
            floor=effect(gradient, NUDGED), void_unless=conditions, question=INCREASES, variant=f"{HOW}; {variant}"),
        forked(f"fork_target_gradient_kept{end}", f"{SHOWN}: it rises without one too", "section 3, figure 3a",
            SinceFork(at_rate(gradient, KEPT)), Above(SLIGHT), "change of ρ← since the fork, rate kept",
            matters=HOW_SLIGHT, floor=LEVEL, void_unless=conditions, question=INCREASES,
            variant=f"at the rate kept; {variant}"),
    )


def forked_input_claim(sample: str, variant: str) -> Claim:
    """Return the claim on ρ→ of activations, for one sample of words."""
    each = {name: rho("activation", site, "input", sample, error=False) for name, site in SITES.items()}
    return Claim(f"fork_input_first_reduction{suffix(sample)}",
        "The first time that the optimizer rescales the step size begins an upward trend in ρ→: it is its cause",
        "section 3, figure 3b",
        tuple(Part(effect(rows), Above(SLIGHT), f"ρ→, {name}, quartered − kept") for name, rows in each.items()),
        matters=HOW_SLIGHT, floor=effect(each["embedding"], NUDGED),
        void_unless=(*forked_enough(sample, "input", 100), FIRST_TIME), question=REDUCTION, variant=f"{HOW}; {variant}",
        measured_by=FORKS)


OF_THE_FIRST_REDUCTION = tuple(forked_input_claim(sample, variant) for sample, variant in SAMPLES.items())
OF_FORKS = (
    forked("fork_chi_reduced", f"{SHOWN}: a reduction itself raises it", "section 3, figure 2", effect(CHI, log=True),
        Above(CONCENTRATED), "ln of χ, quartered / kept", matters=HOW_CONCENTRATED,
        floor=effect(CHI, NUDGED, log=True), void_unless=ENOUGH_FREQUENT, question=RISES, variant=HOW),
    forked("fork_chi_kept", f"{SHOWN}: it rises without one too", "section 3, figure 2",
        SinceFork(at_rate(CHI, KEPT), log=True), Above(CONCENTRATED), "ln of χ, end / fork, rate kept",
        matters=HOW_CONCENTRATED, floor=LEVEL, void_unless=ENOUGH_FREQUENT, question=RISES,
        variant="at the rate kept, since the fork"),
    *(claim for sample, variant in SAMPLES.items() for claim in forked_target_claims(sample, variant)),
)


# ------------------------------------------------------------------------------------------ section 4, and attention

L1, TOP = rho("l1_gradient", LAST, "target"), rho("gradient", LAST, "target")
LOGITS = rho("gradient", "logits", "target")
ATTENDED = Rows("Sparsity", "attention_entropy", LAST, (("role", "input"), ("pos_class", "")))
SECTION_4 = (
    claim("l1_at_most_slightly_anticorrelated",
        "The gradient's ‖·‖₁ at the last hidden layer is at most slightly anti-correlated with the target's frequency",
        "section 4", At(L1), Above(-SLIGHT), "ρ← of ‖gradient‖₁", scale="fisher", matters=HOW_SLIGHT,
        void_unless=(LEARNED, words("", "target", 100)),
        published=published_correlation(-SLIGHT, PUBLISHED_WORDS,
                                        "a lower bound, of 19.5 thousand words (section 4)"),
        question="Are gradients of frequent words small?", variant="all words"),
    claim("softmax_gradient_lacks_it",
        "The gradient at the logits lacks the strong correlation that the one at the last hidden layer has",
        "section 4", Difference(At(TOP), At(LOGITS)), Above(STRONG - SLIGHT),
        "ρ← of the gradient, last layer − logits", matters=HOW_MUCH_STRONGER,
        void_unless=(LEARNED, words("", "target", 100)),
        question="Is the sparsity of the gradient that of the logits?", variant="all words"),
)
ATTENTION = claim("attention_becomes_sparse",
    "Attention is sparse across words by nature: its entropy falls with training (proposed, not measured, there)",
    "Saphra 2021, section 6.1.2", LogRatio(At(ATTENDED), At(ATTENDED, 0)), Below(-0.1),
    "ln of the mean entropy, end / untrained",
    matters="a tenth of the nats: of 20 words attended to equally, 15 are left",
    floor="0: the untrained model is what it is compared with", void_unless=(LEARNED,),
    question="Does attention become sparse?", variant="the last attention site, mean over heads",
    measured_by="Sparsity with `attention_sites: auto` on a model with attention: an LSTM has none")

STUDY = Study(
    "saphra2019_sparsity",
    "Sparsity emerges naturally in neural language models",
    "Saphra & Lopez 2019, ICML workshop Identifying and Understanding Deep Learning Phenomena; Saphra 2021, chapter 6",
    (
        *FIGURE_2,
        *(claim for sample, variant in SAMPLES.items() for claim in target_claims(sample, variant)),
        *class_claims("", "all words of a class"),
        *class_claims("no_top20", "without the 20 most frequent words"),
        *class_claims("matched", "samples of equal average frequency, as published"),
        at_equal_frequency("in_bands", ("300-999", "1000-2999"), "mean over half-decades of frequency", 5),
        at_equal_frequency("matched", ("matched",), "samples of equal average frequency, as published", 30),
        *(claim for sample, variant in SAMPLES.items() for claim in input_claims(sample, variant)),
        surpasses("_late", "", "all words; only of runs as long as the publication's first point", AS_LONG),
        FIRST_REDUCTION,
        *OF_THE_FIRST_REDUCTION,
        *OF_FORKS,
        *SECTION_4,
        ATTENTION,
    ),
    measured_by=RUN,
    inspected_in=(GRAMMAR, WIKITEXT),
    own=("as published",),
)
