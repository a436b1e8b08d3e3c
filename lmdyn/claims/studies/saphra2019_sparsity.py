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

The effect of a reduction of the learning rate is measured by forks: runs that continue from one checkpoint with
different rates (``lmdyn/claims/studies/forks/sparsity.py``).
"""

from itertools import pairwise

from lmdyn.claims.claim import Above, Below, Claim, Condition, Part, Study, Within, published_correlation
from lmdyn.claims.numbers import At, Change, Difference, Layer, Mean, Number, Rows
from lmdyn.claims.studies.forks.sparsity import OF_FORKS, OF_THE_FIRST_REDUCTION, REDUCTION
from lmdyn.claims.studies.seen import GRAMMAR, WIKITEXT
from lmdyn.claims.studies.sparsity_numbers import (
    CONCENTRATED,
    ENTROPY,
    FIRST,
    HOW_CONCENTRATED,
    HOW_MUCH_STRONGER,
    HOW_SLIGHT,
    HOW_STRONG,
    LAST,
    LEARNED,
    LEVEL,
    SAMPLES,
    SLIGHT,
    STRONG,
    LogRatio,
    OtherSites,
    SinceReduction,
    Tokens,
    chi,
    rho,
    suffix,
    words,
)

__all__ = ["STUDY"]

PUBLISHED_TOKENS = 227e6
PUBLISHED_WORDS = 19500


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
    return Claim(
        f"chi_{name}", says, "section 3, figure 2", (Part(number, Above(CONCENTRATED), label),),
        matters=HOW_CONCENTRATED, floor=floor, void_unless=FREQUENT,
        question="Does the gradient at the last hidden layer become more concentrated with training?",
        variant=variant, measured_by=RUN,
    )


def over_frequency(name: str, says: str, bands: tuple[str, ...], variant: str) -> Claim:
    """Return the claim that compares χ in each band of frequency with the band below."""
    pairs = list(pairwise(bands))
    return Claim(
        f"chi_{name}", says, "section 3, figure 2",
        tuple(Part(LogRatio(At(chi(a)), At(chi(b))), Above(CONCENTRATED), f"ln of χ, {a} / {b}") for a, b in pairs),
        matters=HOW_CONCENTRATED, floor=LogRatio(At(chi(bands[0]), 0), At(chi(bands[-1]), 0)),
        void_unless=(*FREQUENT, *(words(band, "target", 30) for band in bands[1:])),
        question="Is the gradient the more concentrated the more frequent the target word is?",
        variant=variant, measured_by=RUN,
    )


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
        Claim(
            f"target_gradient_strong{end}",
            "The gradient at the last hidden layer is the more concentrated the more frequent the target: strongly so",
            "section 3, figure 3a",
            (Part(At(gradient), Above(STRONG), "ρ← of the last layer's gradient", "fisher"),),
            matters=HOW_STRONG, floor=At(gradient, 0), void_unless=enough,
            question="How strong is ρ← of the last layer's gradient?", variant=variant, measured_by=RUN,
        ),
        Claim(
            f"target_gradient_only{end}",
            "… and only there: no other site's gradient or activation goes so with the target's frequency",
            "section 3, figure 3a",
            (Part(Difference(At(gradient), OtherSites(gradient, ("rho_activation",))), Above(STRONG - SLIGHT),
                  "ρ← of the last layer's gradient − largest |ρ←| elsewhere"),),
            matters=HOW_MUCH_STRONGER, floor=Difference(At(gradient, 0), At(activation, 0)), void_unless=enough,
            question="Is the correlation particular to the last layer's gradient?", variant=variant, measured_by=RUN,
        ),
        Claim(
            f"target_gradient_increasing{end}", "… and it keeps increasing: from a third of training to the end",
            "section 3, figure 3a",
            (Part(Change(same_words, 1 / 3, "last"), Above(SLIGHT), "change of ρ← since a third of training"),),
            matters=HOW_SLIGHT, floor=LEVEL, void_unless=enough,
            question="Does ρ← of the last layer's gradient keep increasing?",
            variant=f"{variant}; in the run's own time", measured_by=RUN,
        ),
        Claim(
            f"target_activation_uncorrelated{end}",
            "Activation sparsity at the last hidden layer is not correlated with the target's frequency",
            "section 3, figure 3a",
            (Part(At(activation), Within(-SLIGHT, SLIGHT), "ρ← of the last layer's activation", "fisher"),),
            matters=HOW_SLIGHT, floor=At(activation, 0), void_unless=enough,
            question=either, variant=f"section 3: no; {variant}", measured_by=RUN,
        ),
        Claim(
            f"target_activation_dispersed{end}",
            "Frequent target words are associated with dispersed activations (against figure 3a: not correlated)",
            "abstract", (Part(At(activation), Below(-SLIGHT), "ρ← of the last layer's activation", "fisher"),),
            matters=HOW_SLIGHT, floor=At(activation, 0), void_unless=enough,
            question=either, variant=f"abstract: yes; {variant}", measured_by=RUN,
        ),
    )


# ------------------------------------------------------------------------------------------ figures 4 and 5: classes


def class_claims(sample: str, variant: str) -> tuple[Claim, ...]:
    """Return the claims of figure 4 for one pair of samples of both classes."""
    names = [f"{name}{suffix(sample)}" for name in ("closed", "open")]
    closed, opened = (rho("gradient", LAST, "target", name, error=False) for name in names)
    each = [rho("gradient", LAST, "target", name) for name in names]
    enough = (LEARNED, *(words(name, "target", 30) for name in names))
    return (
        Claim(
            f"closed_stabilise_open_rise{suffix(sample)}",
            "ρ← of closed classes soon stabilises while that of open classes keeps rising", "section 3, figure 4",
            (Part(Change(closed, 0.25, "last"), Within(-SLIGHT, SLIGHT), "change of ρ←, closed classes"),
             Part(Change(opened, 0.25, "last"), Above(SLIGHT), "change of ρ←, open classes")),
            matters=HOW_SLIGHT, floor=LEVEL, void_unless=enough,
            question="Do closed classes stabilise, and open classes go on rising?",
            variant=f"{variant}; since a quarter of training, in the run's own time", measured_by=RUN,
        ),
        Claim(
            f"closed_first{suffix(sample)}",
            "Early on, frequent words of closed classes are the more concentrated ones: ρ← above that of open classes",
            "section 3, figure 4",
            (Part(Difference(At(each[0], 0.1), At(each[1], 0.1)), Above(SLIGHT), "ρ←, closed − open classes"),),
            matters=HOW_SLIGHT, floor=Difference(At(each[0], 0), At(each[1], 0)), void_unless=(*enough, AS_LONG),
            question="Are closed classes the first to be concentrated?",
            variant=f"{variant}; at a tenth of training: the publication's epoch 5 of 50", measured_by=RUN,
        ),
    )


def at_equal_frequency(name: str, samples: tuple[str, ...], variant: str, least: int) -> Claim:
    """Return the claim on closed and open classes: mean ln of the ratio of χ in samples of equal frequency."""
    def ratio(step: int | str) -> Number:
        return Mean(tuple(LogRatio(At(chi(f"closed_{s}"), step), At(chi(f"open_{s}"), step)) for s in samples))

    return Claim(
        f"function_words_{name}",
        "Gradients of function words are more concentrated than those of content words, at equal frequency",
        "abstract, figure 5", (Part(ratio("last"), Above(CONCENTRATED), "ln of χ, closed / open classes"),),
        matters=HOW_CONCENTRATED, floor=ratio(0),
        void_unless=(LEARNED, *(words(f"{c}_{s}", "target", least) for s in samples for c in ("closed", "open"))),
        question="Are gradients of function words more concentrated at equal frequency?",
        variant=variant, measured_by=RUN,
    )


# ------------------------------------------------------------------------------------------ figure 3b: inputs


def surpasses(name: str, sample: str, variant: str, *conditions: Condition) -> Claim:
    """Return the claim that compares the embedding with the first hidden layer."""
    first, embedding = (rho("activation", site, "input", sample) for site in (FIRST, "embedding"))
    return Claim(
        f"input_embedding_surpasses{name}", "… and the embedding surpasses it in the end", "section 3, figure 3b",
        (Part(Difference(At(embedding), At(first)), Above(SLIGHT), "ρ→ of the embedding − of the first layer"),),
        matters=HOW_SLIGHT, floor=Difference(At(embedding, 0), At(first, 0)),
        void_unless=(LEARNED, words(sample, "input", 100), *conditions),
        question="Does the embedding surpass the first hidden layer?", variant=variant, measured_by=RUN,
    )


def input_claims(sample: str, variant: str) -> tuple[Claim, ...]:
    """Return the claims of figure 3b for one sample of words."""
    end, enough = suffix(sample), (LEARNED, words(sample, "input", 100))
    first, gradient = rho("activation", FIRST, "input", sample), rho("gradient", LAST, "input", sample)
    return (
        Claim(
            f"input_first_layer{end}",
            "Frequent input words are associated with concentrated activations, at the first hidden layer",
            "abstract, section 3, figure 3b",
            (Part(At(first), Above(SLIGHT), "ρ→ of the first layer's activation", "fisher"),),
            matters=HOW_SLIGHT, floor=At(first, 0), void_unless=enough,
            question="Are frequent input words concentrated at the first hidden layer?",
            variant=variant, measured_by=RUN,
        ),
        surpasses(end, sample, f"{variant}; at the end of these runs"),
        Claim(
            f"input_gradients_uncorrelated{end}",
            "Gradient sparsity is not correlated with the frequency of the input word, at any site",
            "section 3, figure 3b",
            (Part(OtherSites(gradient, but=False), Below(SLIGHT), "largest |ρ→| of gradients"),),
            matters=HOW_SLIGHT, floor=OtherSites(gradient, but=False, step="first"), void_unless=enough,
            question="Is any gradient's sparsity correlated with input frequency?",
            variant=variant, measured_by=RUN,
        ),
    )


SITES: dict[str, str | Layer] = {"embedding": "embedding", "first layer": FIRST, "last layer": LAST}
FIRST_REDUCTION = Claim(
    "input_first_reduction", "The first time that the optimizer rescales the step size begins an upward trend in ρ→",
    "section 3, figure 3b",
    tuple(Part(SinceReduction(rho("activation", site, "input", error=False)), Above(SLIGHT), f"change of ρ→, {name}")
          for name, site in SITES.items()),
    matters=HOW_SLIGHT, floor="0: nothing changes; what happens without a reduction is measured by `lmdyn fork`",
    void_unless=(LEARNED, words("", "input", 100)),
    question=REDUCTION,
    variant="all words; a change, which the reduction need not have caused",
    measured_by="snakemake --profile configs/saphra2019_sparsity/wikitext2, or a fork with a lower rate",
)


# ------------------------------------------------------------------------------------------ section 4, and attention

L1, TOP = rho("l1_gradient", LAST, "target"), rho("gradient", LAST, "target")
LOGITS = rho("gradient", "logits", "target")
ATTENDED = Rows("Sparsity", "attention_entropy", LAST, (("role", "input"), ("pos_class", "")))
SECTION_4 = (
    Claim(
        "l1_at_most_slightly_anticorrelated",
        "The gradient's ‖·‖₁ at the last hidden layer is at most slightly anti-correlated with the target's frequency",
        "section 4", (Part(At(L1), Above(-SLIGHT), "ρ← of ‖gradient‖₁", "fisher"),),
        matters=HOW_SLIGHT, floor=At(L1, 0), void_unless=(LEARNED, words("", "target", 100)),
        published=published_correlation(-SLIGHT, PUBLISHED_WORDS, "a lower bound, of 19.5 thousand words (section 4)"),
        question="Are gradients of frequent words small?", variant="all words", measured_by=RUN,
    ),
    Claim(
        "softmax_gradient_lacks_it",
        "The gradient at the logits lacks the strong correlation that the one at the last hidden layer has",
        "section 4",
        (Part(Difference(At(TOP), At(LOGITS)), Above(STRONG - SLIGHT), "ρ← of the gradient, last layer − logits"),),
        matters=HOW_MUCH_STRONGER, floor=Difference(At(TOP, 0), At(LOGITS, 0)),
        void_unless=(LEARNED, words("", "target", 100)),
        question="Is the sparsity of the gradient that of the logits?", variant="all words", measured_by=RUN,
    ),
)
ATTENTION = Claim(
    "attention_becomes_sparse",
    "Attention is sparse across words by nature: its entropy falls with training (proposed, not measured, there)",
    "Saphra 2021, section 6.1.2",
    (Part(LogRatio(At(ATTENDED), At(ATTENDED, 0)), Below(-0.1), "ln of the mean entropy, end / untrained"),),
    matters="a tenth of the nats: of 20 words attended to equally, 15 are left",
    floor="0: the untrained model is what it is compared with", void_unless=(LEARNED,),
    question="Does attention become sparse?", variant="the last attention site, mean over heads",
    measured_by="Sparsity with `attention_sites: auto` on a model with attention: an LSTM has none",
)

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
    seen_in=(GRAMMAR, WIKITEXT),
)
