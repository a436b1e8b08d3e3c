"""Claims about acquisition: n-grams in the order of their length, frequent words first, agreement where it is taught.

Chang & Bergen 2022 train an LSTM, a bidirectional LSTM, GPT-2 and BERT on 5.1 billion tokens of English. Michaelov
et al. 2025 correlate 81 models with n-grams. Tested here are an LSTM, GPT-2 and BERT of less than two million
parameters on the synthetic grammar, with a language for each seed: only the directions of the publications' claims can
be expected.

Thresholds were chosen before any of these runs was observed; 60 updates of seed 1 had been inspected.

- *Steps.* 0.1 of log10, a factor of 1.26: the distance of neighbouring observations is 0.117 and more.
- *Ages.* 0.05 of log10 a bit: a word of half the frequency is learned 12 % later.
- *Accuracies.* 0.1.
"""

from functools import partial

from lmdyn.claims.claim import Above, Below, Claim, Condition, Study, Within, claim
from lmdyn.claims.numbers import At, Change, Difference, Smallest
from lmdyn.claims.rows import Pairs, Rows
from lmdyn.claims.studies.acquisition_numbers import ExtremumAt, FrequencySlope

__all__ = ["STUDY"]

STEPS, AGES, ACCURACY, TYPES = 0.1, 0.05, 0.1, 3000
CB = "Chang & Bergen 2022, "
MICHAELOV = "Michaelov et al. 2025: "
FALLEN = 2000 * 2_097_152
"""Tokens of the 2,000 updates of Pythia after which the fit to n-grams has fallen in Michaelov et al. 2025."""
NO_DIFFERENCE = "0: both at one step, as for a model that learns all orders at once"
MODELS: dict[str, Pairs] = {
    "gpt2": (("model", "CausalLanguageModel"),),
    "lstm": (("model", "LSTMLanguageModel"),),
    "bert": (("model", "MaskedLanguageModel"),),
}
# fmt: off


def ngrams(quantity: str, smoothing: str, order: int, run: Pairs) -> Rows:
    """Return a quantity of ``NgramDivergence`` of an order."""
    return Rows("NgramDivergence", quantity, where=(("smoothing", smoothing), ("order", order)), run=run)


def accuracy(paradigm: str, run: Pairs) -> Rows:
    """Return the accuracy for the minimal pairs of a paradigm."""
    return Rows("MinimalPairs", "accuracy", where=(("by", "paradigm"), ("group", paradigm)), run=run)


def of_model(name: str, run: Pairs) -> tuple[Claim, ...]:
    """Return the claims about a model."""
    loss = Rows("LearningCurves", "loss", run=run)
    learned = Condition(
        "a tenth more of the words is predicted than by the untrained model",
        Change(Rows("LearningCurves", "accuracy", run=run), 0, "last"), Above(0.1),
    )
    of = partial(claim, void_unless=(learned,))
    peaks = [ExtremumAt(ngrams("pearson", "backoff", order, run), "maximum") for order in (1, 2, 3)]
    unigram = ExtremumAt(ngrams("kl", "raw", 1, run))
    bigram = ExtremumAt(ngrams("kl", "bidirectional" if name == "bert" else "raw", 2, run))
    fit = ngrams("pearson", "backoff", 1, run)
    order = "Do models pass through n-grams in order?"
    pairs = tuple(
        of(f"{paradigm}_{name}", f"The model prefers the right sentence: {paradigm.replace('_', ' ')}", "ours",
            At(accuracy(paradigm, run)), Above(0.5 + ACCURACY), "accuracy", matters="a tenth of the pairs",
            floor=At(accuracy(paradigm, run), 0), question="Is agreement learned?",
            variant=f"{name}, {paradigm.partition('_')[0]}")
        for paradigm in ("verb_agreement", "determiner_agreement", "anaphor_agreement"))
    return (
        of(f"unigram_first_{name}", "The model is nearest to unigrams before it is nearest to bigrams",
            CB + "section 3.2: LSTM 2,500 and 12,000 steps, GPT-2 900 and 2,500, BERT 1,500 and 7,500 (bidirectional)",
            Difference(bigram, unigram), Above(STEPS), "log10 steps, bigram − unigram minimum",
            matters="a factor of 1.26", floor=NO_DIFFERENCE, question=order, variant=f"{name}, divergence"),
        of(f"bigram_before_loss_{name}", "… and nearest to bigrams before its loss is lowest", CB + "section 3.2",
            Difference(ExtremumAt(loss), bigram), Above(STEPS), "log10 steps, loss − bigram minimum",
            matters="a factor of 1.26", floor=NO_DIFFERENCE, question=order, variant=f"{name}, loss"),
        of(f"peaks_in_order_{name}", "Correlations with 1-, 2- and 3-grams peak in this order, or at one step",
            MICHAELOV + "all of 81 runs", Smallest((Difference(peaks[1], peaks[0]), Difference(peaks[2], peaks[1]))),
            Above(-STEPS / 2), "least difference of log10 steps", matters="half the distance of observations",
            floor="none: runs whose peaks are at one step hold too, as published", question=order, within=FALLEN,
            variant=f"{name}, correlation"),
        of(f"unigram_fit_falls_{name}", "The fit to unigrams rises and falls again", MICHAELOV + "fit to n-grams",
            Change(fit, 100, "last"), Below(-ACCURACY), "change of the correlation from update 100 to the end",
            matters="0.1 of a correlation", floor="0: no change", within=FALLEN,
            question="Does the fit to n-grams fall again?", variant=name),
        of(f"frequent_words_first_{name}", "Frequent words are learned first", CB + "section 5: in all four models",
            FrequencySlope(Rows("Surprisals", "surprisal", where=(("word", ""),), run=run), TYPES), Above(AGES),
            "log10 updates a bit", matters="12 % later at half the frequency",
            floor="0: ages that do not depend on frequency", question="Does frequency drive ages?", variant=name),
        *pairs,
        of(f"control_{name}", "The model does not prefer a name that the language does not prefer", "ours",
            At(accuracy("control", run)), Within(0.5 - ACCURACY / 2, 0.5 + ACCURACY / 2), "accuracy",
            matters="one pair in twenty", floor="0.5: what the pairs are drawn for",
            question="Is the control at chance?", variant=name),
    )


STUDY = Study(
    "changbergen2022_acquisition",
    "Acquisition: n-grams, words and agreement",
    "Chang & Bergen 2022, Michaelov, Levy & Bergen 2025, in small; and ours",
    sum((of_model(name, run) for name, run in MODELS.items()), ()),
    measured_by="snakemake --profile configs/changbergen2022_acquisition/organism",
    inspected=(1,),
    inspected_in=tuple(MODELS.values()),
    terms=(
        ("minimum", "the first observation with the least Kullback-Leibler divergence from an n-gram model"),
        ("age", "where a word's surprisal is half-way from a random guess to its minimum (Chang & Bergen 2022)"),
    ),
)
