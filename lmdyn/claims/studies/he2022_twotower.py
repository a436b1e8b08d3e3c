"""Claims of He & Toyoizumi 2022 about two towers trained together, as numbers of models and of pairs of models.

The publication has five models, one of each kind except two BERT-large, and correlates their preferences over the 5,000
most frequent types. Here there are several seeds of each kind, so that its "same configuration" can be tested on all
pairs. The primary tower is the one with the higher mean probability (equation 3). If both are nearly equal, the same
division of the vocabulary can have either sign. The claim is about r with its sign; |r|, whose sign cannot be wrong,
and r among models with a leading tower are shown with it.

Thresholds were chosen before any of these runs was made (models of seeds 1 and 2 of an earlier version had been
inspected, with one trained head each, without second heads):

- *Same configuration.* r of at least 0.72: the published value for two sizes of BERT; 0.94 for two seeds of BERT-large.
- *Two sizes.* 0.5, since 0.72 is called strong, and 0.57 for two kinds is "to some extent".
- *Any correlation.* 0.2: the smallest in table 2 is 0.26.
- *Lead.* A tower leads if its mean probability is higher by a tenth: |ln(p̄₁ / p̄₂)| of at least 0.1.
- *Sign.* Signs agree if |r| exceeds r by less than 0.05 on average.
- *Frequency.* Spearman's ρ between −0.3 and 0.3 (table 4: 0.16 to 0.22), and r beyond strata of at least 0.1.
- *Parts of speech.* 0.1 nats; a class is spread over both towers if a quarter to three quarters of it go to one.
- *Learned.* 0.1 nats: output layers of a tower are better by this than those of the untrained model.
- *Reliability.* 0.9 for heads, of which the second ones have another initialisation; 0.8 for the text.
- *Clusters.* 0.1 of shares, a quarter of a cluster in the mean; a correlation of 0.5 over clusters.
"""

from typing import Any, Literal

from lmdyn.claims.claim import (
    Above,
    Below,
    Claim,
    Condition,
    Part,
    Published,
    Study,
    Within,
    claim,
    published_correlation,
)
from lmdyn.claims.numbers import At, Difference, Number, Smallest
from lmdyn.claims.rows import OneOf, Rows
from lmdyn.claims.studies.inspected_runs import pretraining
from lmdyn.claims.tower_pairs import (
    AgreementOfClusters,
    AgreementOfPairs,
    AgreementWithLead,
    Lead,
    ShareToPrimary,
    Stratum,
)

__all__ = ["STUDY"]

SAME, SIZES, SOME = 0.72, 0.5, 0.2
LEAD, SIGN, NATS, RANK, BEYOND = 0.1, 0.05, 0.1, 0.3, 0.1
TOP = 5000
RUN = "snakemake --profile configs/he2022_twotower/organism"
# fmt: off

# sizes of BERT: of the profiles organism, wikitext2 and paper
KINDS: dict[str, tuple[tuple[tuple[str, Any], ...], str]] = {
    "gpt": ((("tower", "gpt"), ("output", "standard")), "GPT"),
    "gpt_printed": ((("tower", "gpt"), ("output", "printed")), "GPT, equation 1 as printed"),
    "elmo": ((("tower", "elmo"), ("output", "standard")), "ELMo"),
    "bert": ((("tower", "bert"), ("output", "standard"), ("hidden_size", OneOf((64, 128, 384)))), "BERT"),
    "bert_large": ((("tower", "bert"), ("output", "standard"), ("hidden_size", OneOf((96, 512)))), "larger BERT"),
}
SEVERAL = ("gpt", "gpt_printed", "elmo", "bert")
"""Kinds for which figure 4, table 3 and the correlation of seeds are tested."""

FREQUENCY: tuple[Stratum, ...] = ("frequency",)
BOTH: tuple[Stratum, ...] = ("frequency", "upos")


def rows(kind: str, quantity: str, **where: str) -> Rows:
    """Return a quantity of ``TowerPreference`` for a kind of models."""
    return Rows("TowerPreference", quantity, where=tuple(where.items()), run=KINDS[kind][0])


def words(kind: str) -> Rows:
    """Return the preference of each word."""
    return rows(kind, "preference", by="token")


def lead(kind: str) -> Lead:
    """Return the lead of one tower."""
    one, two = (rows(kind, "mean_probability", by="tower", group=tower) for tower in ("1", "2"))
    return Lead(one, two)


def learned(kind: str) -> Condition:
    """Return the condition that the towers have learned something."""
    losses = [rows(kind, "head_loss", by="tower", group=tower) for tower in ("1", "2")]
    return Condition(
        f"{KINDS[kind][1]}: each tower's own output layer is better by 0.1 nats than of the untrained model",
        Smallest(tuple(Difference(At(loss, 0), At(loss)) for loss in losses)), Above(0.1),
    )


def pairs(kind: str, of: Literal["signed", "size", "chance", "beyond"] = "signed", **more: Any) -> AgreementOfPairs:
    """Return a mean over pairs of seeds of one kind."""
    return AgreementOfPairs(words(kind), of_pair=of, **more)


# ------------------------------------------------------------------------------------------ section 5.1, table 2

SAME_QUESTION = "Do two seeds of one configuration have the same preference?"
OF_BERT_LARGE = published_correlation(0.94, TOP, "two BERT-large, one pair; table 2")


def same(kind: str) -> tuple[Claim, ...]:
    """Return the claims on two seeds of one configuration: as claimed, without the sign, and for a leading tower."""
    name, chance = KINDS[kind][1], pairs(kind, "chance", by=BOTH)
    how = "0.72: of two sizes of BERT; of two seeds of BERT-large it is 0.94, of other kinds unpublished"
    about: dict[str, Any] = {"void_unless": (learned(kind),)}
    return (
        claim(f"same_{kind}", "Preferences vary little with the seed", "section 5.1, figure 3, table 2", pairs(kind),
            Above(SAME), "r, its sign by equation 3", matters=how, floor=chance, published=OF_BERT_LARGE,
            question=SAME_QUESTION, variant=f"{name}; r", **about),
        claim(f"same_size_{kind}", "… whichever tower is called the primary one",
            "section 5.1, table 2; without equation 3", pairs(kind, "size"), Above(SAME), "|r|", matters=how,
            floor=pairs(kind, "size", step=0), question=SAME_QUESTION, variant=f"{name}; size of r", **about),
        claim(f"same_leading_{kind}", "… and so they do among models one of whose towers leads by a tenth", "ours",
            pairs(kind, lead=lead(kind), least=LEAD), Above(SAME), "r among models with a lead", matters=how,
            floor=pairs(kind, "chance", by=BOTH, lead=lead(kind), least=LEAD), question=SAME_QUESTION,
            variant=f"{name}; r of models with a lead", **about),
        claim(f"some_{kind}", "There is a stable positive correlation", "section 5.1, table 2: 0.26 to 0.94",
            pairs(kind), Above(SOME), "r, its sign by equation 3", matters="0.2: the least in table 2 is 0.26",
            floor=chance, question="Is there any stable correlation?", variant=name, **about),
        claim(f"sign_{kind}", "Equation 3 names the same tower in all seeds",
            "section 3.2, equation 3; of what follows", Difference(pairs(kind, "size"), pairs(kind)), Below(SIGN),
            "|r| − r", matters="0.05: half the least correlation that matters, of which a wrong sign takes twice",
            floor=Difference(pairs(kind, "size", step=0), pairs(kind, step=0)),
            question="Does equation 3 name the same tower?", variant=name, **about),
    )


def across(name: str, a: str, b: str, least: float, says: str, value: float, of: str, matters: str) -> Claim:
    """Return the claim on two kinds, or two sizes of one kind, of two seeds."""
    return claim(name, says, "section 5.1, table 2", AgreementOfPairs(words(a), words(b)), Above(least),
        "r, its sign by equation 3", matters=matters,
        floor=AgreementOfPairs(words(a), words(b), of_pair="chance", by=BOTH), void_unless=(learned(a), learned(b)),
        published=published_correlation(value, TOP, of), question="Do two configurations have the same preference?",
        variant=f"{KINDS[a][1]} and {KINDS[b][1]}")


SOME_MATTERS = "0.2: the least in table 2 is 0.26"
PAIRS = (
    *(claim for kind in SEVERAL for claim in same(kind)),
    across("sizes_bert", "bert", "bert_large", SIZES, "Two sizes of one kind correlate strongly", 0.72,
           "BERT-base and BERT-large", "0.5: 0.72 is called strong, 0.57 of two kinds is not"),
    across("kinds_elmo_gpt", "elmo", "gpt", SOME, "ELMo and GPT correlate", 0.91, "one pair",
           SOME_MATTERS),
    across("kinds_bert_elmo", "bert", "elmo", SOME, "BERT and ELMo correlate", 0.27,
           "BERT-base; of BERT-large 0.57, 0.61", SOME_MATTERS),
    across("kinds_bert_gpt", "bert", "gpt", SOME, "BERT and GPT correlate", 0.26,
           "BERT-base; of BERT-large 0.57, 0.63", SOME_MATTERS),
)

# ------------------------------------------------------------------------------------------ what makes seeds agree


def with_lead(kind: str, of: Literal["signed", "size"]) -> Claim:
    """Return the claim that pairs with a lead agree better."""
    what = "r" if of == "signed" else "size of r"
    return claim(f"with_lead_{of}_{kind}", "Models agree more the further their primary towers lead", "ours",
        AgreementWithLead(words(kind), lead(kind), of), Above(RANK), f"over pairs: {what}, smaller lead",
        matters="0.3: a medium correlation (Cohen 1988)", floor="0: pairs agree whatever the lead",
        void_unless=(learned(kind),), question="Do models whose towers lead further agree more?",
        variant=f"{KINDS[kind][1]}; {what}")


def form(of: Literal["signed", "size"]) -> Claim:
    """Return the claim that compares the printed form of equation 1 with layers behind the towers."""
    what = "r" if of == "signed" else "size of r"
    return claim(f"printed_agrees_{of}",
        "Models of equation 1 as printed agree more than those with layers behind the towers", "ours",
        Difference(pairs("gpt_printed", of), pairs("gpt", of)), Above(0.1), f"{what}, printed − standard",
        matters="0.1: half the least correlation in table 2", floor="0: as much as the others",
        void_unless=(learned("gpt"), learned("gpt_printed")), question="Does the form of the output decide?",
        variant=what)


def reliable(kind: str, quantity: str, least: float, what: str) -> Claim:
    """Return the claim that a preference is not noise of its measurement."""
    return claim(f"{quantity}_{kind}", f"A model's preference is no noise of {what}", "of what we compute",
        At(rows(kind, quantity)), Above(least), "correlation",
        matters=f"{least:g}: of a correlation of 0.94 between models the noise of both must leave that",
        void_unless=(learned(kind),), question="Is a preference told reliably?", variant=f"{KINDS[kind][1]}; {what}")


REASONS = (
    *(with_lead(kind, of) for kind in ("gpt", "gpt_printed") for of in ("signed", "size")),
    form("signed"), form("size"),
    *(reliable(kind, "head_reliability", 0.9, "the output layers") for kind in SEVERAL),
    *(reliable(kind, "reliability", 0.8, "the text") for kind in SEVERAL),
)

# ------------------------------------------------------------------------------------------ section 8.1, table 4


def frequency(kind: str) -> tuple[Claim, ...]:
    """Return the claims that a preference is not frequency."""
    name = KINDS[kind][1]
    published = {"gpt": 0.22, "elmo": 0.16, "bert": 0.18}.get(kind)
    about: dict[str, Any] = {"void_unless": (learned(kind),)}
    return (
        claim(f"not_frequency_{kind}", "Preference hardly correlates with the rank by frequency",
            "section 8.1, table 4", At(rows(kind, "frequency_rank_correlation")), Within(-RANK, RANK), "Spearman's ρ",
            matters="0.3: half of the next correlation in table 4",
            published=None if published is None else Published(published, says="which end is rank 1 is not said"),
            question="Is preference frequency?", variant=f"{name}; rank correlation", **about),
        *(
            claim(f"beyond_{'_'.join(by)}_{kind}",
                f"Models agree beyond what words of one {' and '.join(by)} have in common",
                "ours; of section 8.1" if by == FREQUENCY else "ours", pairs(kind, "beyond", by=by), Above(BEYOND),
                "r − r with types shuffled within strata", matters="0.1: half the least correlation in table 2",
                floor=pairs(kind, "beyond", by=by, step=0), question="Is preference frequency?",
                variant=f"{name}; beyond {' and '.join(by)}", **about)
            for by in (FREQUENCY, BOTH)
        ),
    )


# ------------------------------------------------------------------------------------------ section 5.2, figure 4

TO_PRIMARY = ("VERB", "ADP", "ADV", "AUX")


def of_tag(kind: str, tag: str, step: str | int = "last") -> At:
    """Return the mean preference of the types of a part of speech."""
    return At(rows(kind, "preference", by="upos", group=tag), step)


def parts_of_speech(kind: str) -> tuple[Claim, ...]:
    """Return the claims on which classes go to which tower."""
    name = KINDS[kind][1]
    about: dict[str, Any] = {"void_unless": (learned(kind),)}
    return (
        Claim(f"to_primary_{kind}", "The primary tower prefers verbs, adpositions, adverbs and auxiliaries",
            "section 5.2, figure 4", tuple(Part(of_tag(kind, tag), Above(NATS), tag) for tag in TO_PRIMARY),
            matters="0.1 nats: a tenth of the probability",
            floor=Smallest(tuple(of_tag(kind, t, 0) for t in TO_PRIMARY)),
            question="Which parts of speech does the primary tower prefer?", variant=name, **about),
        claim(f"to_secondary_{kind}", "The secondary tower prefers proper nouns", "section 5.2, figure 4",
            of_tag(kind, "PROPN"), Below(-NATS), "PROPN", matters="0.1 nats: a tenth of the probability",
            floor=of_tag(kind, "PROPN", 0), question="Which parts of speech does the secondary tower prefer?",
            variant=name, **about),
        claim(f"order_{kind}", "Each of these four is preferred more than proper nouns", "section 5.2, figure 4",
            Difference(Smallest(tuple(of_tag(kind, t) for t in TO_PRIMARY)), of_tag(kind, "PROPN")), Above(NATS),
            "least of four − PROPN", matters="0.1 nats: a tenth of the probability",
            floor=Difference(Smallest(tuple(of_tag(kind, t, 0) for t in TO_PRIMARY)), of_tag(kind, "PROPN", 0)),
            question="Are proper nouns below verbs, adpositions, adverbs and auxiliaries?", variant=name, **about),
        Claim(f"spread_{kind}", "Nouns and adjectives are spread over both towers", "section 5.2, figure 4",
            tuple(Part(ShareToPrimary(words(kind), tag), Within(0.25, 0.75), tag) for tag in ("NOUN", "ADJ")),
            matters="a quarter of the types", floor=ShareToPrimary(words(kind), "NOUN", 0),
            question="Are nouns and adjectives spread over both towers?", variant=name, **about),
    )


# ------------------------------------------------------------------------------------------ section 5.3


def clusters(kind: str) -> tuple[Claim, ...]:
    """Return the claims on independent components of the word vectors, and the preference of their clusters."""
    name, run = KINDS[kind][1], KINDS[kind][0]

    def of(quantity: str, **where: str) -> Number:
        return At(Rows("WordClusters", quantity, where=tuple(where.items()), run=run))

    def share(short: str, says: str, where: str, number: Number, region: Any, matters: str, value: float) -> Claim:
        return claim(f"{short}_{kind}", says, where, number, region, matters=matters,
            floor="none: of an untrained embedding ICA finds what normal numbers have", published=Published(value),
            void_unless=(learned(kind),), question=says, variant=name)

    members = Rows("WordClusters", "membership", where=(("by", "cluster"),), run=run)
    matters = "0.1 of the share; of 32 components, where the publication has 128"
    return (
        share("within_one", "Four fifths of the values after ICA are between −1 and 1", "section 5.3, figure 5",
            of("within_one"), Within(0.7, 0.9), matters, 0.8),
        share("one_cluster", "Nearly half of the words belong to one cluster", "section 5.3, figure 6",
            of("share_of_words", by="clusters", group="1"), Within(0.35, 0.55), matters, 0.45),
        share("no_cluster", "An eighth of the words belong to no cluster", "section 5.3, figure 6",
            of("share_of_words", by="clusters", group="0"), Within(0.03, 0.23), matters, 0.13),
        share("mean_clusters", "A word belongs to one and a half clusters on average", "section 5.3, figure 6",
            of("mean_clusters"), Within(1.2, 1.7), "a quarter of a cluster", 1.45),
        claim(f"cluster_order_{kind}",
            "Clusters of words that one model's primary tower prefers, another's prefers too",
            "section 5.3, table 3: of other kinds of models there", AgreementOfClusters(members, words(kind)),
            Above(0.5), "r over clusters of their mean preferences", matters="0.5: a strong correlation",
            floor="0: clusters without an order", void_unless=(learned(kind),),
            question="Do models agree in the preference of clusters?", variant=name),
    )


STUDY = Study(
    "he2022_twotower",
    "Spontaneous emerging preference in two-tower language model",
    "He & Toyoizumi 2022",
    (
        *PAIRS, *REASONS,
        *(claim for kind in SEVERAL for claim in frequency(kind)),
        *(claim for kind in SEVERAL for claim in parts_of_speech(kind)),
        *(claim for kind in SEVERAL for claim in clusters(kind)),
    ),
    measured_by=RUN,
    inspected=(1, 2),
    inspected_in=pretraining("TwoTowerLanguageModel"),
    terms=(
        ("r, |r|", "Pearson's correlation of two models' preferences over the types that both have, at most 5,000; "
         "mean over pairs of two seeds. Models are resampled and not pairs: the number of a seed is its jackknife "
         "pseudo-value, which may lie beyond 1, and whose mean is the mean over pairs"),
        ("over pairs: r, smaller lead",
         "Pearson's correlation over pairs of r and the smaller lead of both models; its mean of "
         "pseudo-values, on Fisher's z, corrects for bias and differs from the correlation over all pairs"),
        ("preference",
         "logarithm of the ratio of both towers' mean probabilities of a word, over the positions whose word it is; "
         "equation 4 as printed averages over all positions"),
        ("sign", "the primary tower is the one with the higher mean probability over the text (equation 3); the "
         "preference is above 0 where it predicts a word better"),
        ("lead", "|ln(p̄₁ / p̄₂)| of the towers' mean probabilities; a tower leads from 0.1 on"),
        ("floor of r", "r with the types of one model shuffled within strata (tenths by frequency × part of speech), "
         "the mean of all such shuffles"),
        ("GPT, equation 1 as printed", "the towers' encodings times the word vectors; else layer norm, a dense layer, "
         "GELU and layer norm stand between"),
    ),
    own=("GPT, equation 1 as printed",),
)
