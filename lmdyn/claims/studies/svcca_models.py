"""Numbers of the SVCCA study, and its claims about language models: figures 3 to 7."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lmdyn.claims.claim import Above, Claim, Condition, Part, Within
from lmdyn.claims.numbers import At, Change, Difference, Estimate, Largest, Mean, Number, Rows, Smallest
from lmdyn.claims.rows import Source
from lmdyn.claims.runs import NotMeasured, ObservedRun

__all__ = [
    "FIRST",
    "GRID",
    "HOW_MUCH",
    "MATTERS",
    "MEASURES",
    "MODELS",
    "RECURRENT",
    "RUN",
    "TASKS",
    "TERMS",
    "TaggerTest",
    "in_domain",
    "lead",
    "learned",
    "to_tagger",
]

MATTERS = 0.02
"""The smallest difference in similarity that matters."""
OVER_TIME = 0.05
LEARNED = 0.05
FIRST = 0.1  # fraction of training: after the first epoch of ten
GRID = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)

MEASURES = {
    "cca": "CCA",
    "svcca": "SVCCA",
    "svcca_30": "SVCCA-30",
    "pwcca": "PWCCA",
    "linear_cka": "linear CKA",
}
TERMS = (
    ("CCA", "mean of all canonical correlations, as the publication's public script computes it"),
    (
        "SVCCA",
        "mean over the directions that hold 99 % of variance, as its text says: their number grows over training",
    ),
    ("SVCCA-30", "mean over thirty directions of each side, for all models and steps"),
    ("PWCCA", "projection-weighted CCA, which the publication names and does not report"),
    (
        "topic by SGD at 20",
        "the published optimizer; by Adam at 0.003: from the same data, in as many updates",
    ),
    (
        "from two corpora",
        "UPOS and PTB tags of different texts, as published; else of one text, or both of the other",
    ),
)
RECURRENT = ("h1", "h2")
_SEMANTIC = ("semtag", "semtag_coarse")
RUN = "snakemake --profile configs/saphra2019_svcca/organism (or, of a run with taggers: lmdyn analyze RUN --config …)"
HOW_MUCH = "0.02, a tenth of the distances between the tasks in figures 8 and 9"
HOW_MUCH_OVER_TIME = "0.05, a tenth of the way to the publication's upper bound, 0.64"
TASKS = {
    "upos": "probes_text",
    "xpos": "probes_pos",
    "semtag_coarse": "probes_sem",
    "semtag": "probes_sem",
}
"""Labels of the taggers but topic, and the observer of their diagnostic classifiers."""


@dataclass(frozen=True)
class TaggerTest(Number, Source):
    """A metric of ``lmdyn test`` for the tagger with a name, regardless of the seed at the end of its folder's name.

    Attributes:
        tagger: ``<labels>_<target>``, such as ``upos_next``, ``shuffled_upos_next``.
        metric: ``accuracy``, or ``majority``: the accuracy of the most frequent label of the test text.
    """

    tagger: str
    metric: str

    def names(self) -> tuple[str, ...]:
        """Return ``test/<metric>``."""
        return (f"test/test_{self.metric}",)

    def locate(self, runs: Sequence[ObservedRun]) -> tuple[ObservedRun, str]:
        """Return the tagger's run.

        Raises:
            NotMeasured: if there is none, or it was not tested.
            ValueError: if there are several.
        """
        found = [run for run in runs if re.fullmatch(rf"{re.escape(self.tagger)}(_\d+)*", run.name)]
        if len(found) > 1:
            raise ValueError(
                f"several taggers {self.tagger!r} of one seed: {', '.join(r.name for r in found)}"
            )
        if not found or f"test_{self.metric}" not in found[0].tested:
            told = (
                f"{found[0].name} has no test_{self.metric}"
                if found
                else f"there is no tagger {self.tagger!r}"
            )
            raise NotMeasured(f"{told} in a test.json: `lmdyn test` writes it, and the runs must be given")
        return found[0], "test"

    def of(self, runs: Sequence[ObservedRun]) -> Estimate:
        """Return the metric; its error over texts is unknown."""
        return Estimate(float(self.locate(runs)[0].tested[f"test_{self.metric}"]))


def similarity(measure: str, name: str, site: str, reference: str, reference_site: str | None = None) -> Rows:
    """Return the similarity minus its bias, with its error."""
    where = (("reference", reference), ("reference_site", site if reference_site is None else reference_site))
    return Rows("Similarity", f"{measure}_corrected", site, where, name=name, error=f"{measure}_error", df=9)


def to_tagger(measure: str, tagger: str, site: str, target: str = "next") -> Rows:
    """Return the similarity of a site with that of the same name in a tagger; h2 with its only layer."""
    return similarity(
        measure, f"taggers_{target}", site, tagger, "embedding" if site == "embedding" else "h1"
    )


def in_domain(measure: str, tagger: str, site: str, target: str) -> Rows:
    """Return the same similarity on the taggers' own test text."""
    their = "embedding" if site == "embedding" else "h1"
    return similarity(
        measure, f"in_domain_{'sem' if tagger.endswith(_SEMANTIC) else 'pos'}_{target}", site, tagger, their
    )


def learned(tagger: str) -> Condition:
    """Return the condition that the tagger is above chance, judged by its test accuracy."""
    above = Difference(TaggerTest(tagger, "accuracy"), TaggerTest(tagger, "majority"))
    return Condition(
        f"the tagger {tagger} beats the most frequent label of its test text by {LEARNED}",
        above,
        Above(LEARNED),
    )


def lead(a: Number, b: Number) -> Difference:
    """Return how far the first number is above the second, for the runs of one seed."""
    return Difference(a, b)


# ------------------------------------------------------------------------------------------ figures 3 to 5


def converges(measure: str) -> Claim:
    steps = (0.2, 0.4, 0.6, 0.8)
    own = {
        site: [At(similarity(measure, "own_end", site, "own_final"), f) for f in steps] for site in RECURRENT
    }
    gap = Mean(tuple(lead(two, one) for one, two in zip(own["h1"], own["h2"], strict=True)))
    return Claim(
        f"h1_converges_after_h2_{measure}",
        "h1 converges to its own end slightly after h2",
        "section 4, figure 3",
        (Part(gap, Above(0.01), "h2 − h1, mean over four points of training"),),
        matters="0.01: the publication says slightly; over training a twentieth of the distance from the end",
        floor=lead(
            At(similarity(measure, "own_end", "h2", "untrained_own_final")),
            At(similarity(measure, "own_end", "h1", "untrained_own_final")),
        ),
        question="Does the lower layer converge after the upper one?",
        variant=MEASURES[measure],
        measured_by=RUN,
    )


def seeds_rise(measure: str) -> Claim:
    sites = ("embedding", *RECURRENT)
    return Claim(
        f"other_seed_rises_{measure}",
        "Similarity to the end of a model of another initialisation increases over training",
        "section 4, figure 4",
        tuple(
            Part(Change(similarity(measure, "other_seed", site, "partner"), FIRST), Above(OVER_TIME), site)
            for site in sites
        ),
        matters=HOW_MUCH_OVER_TIME,
        floor=Mean(
            tuple(
                Change(similarity(measure, "other_seed", site, "untrained_partner"), FIRST) for site in sites
            )
        ),
        question="Does similarity to another seed rise over training?",
        variant=MEASURES[measure],
        measured_by=RUN,
    )


def seeds_bound(measure: str) -> Claim:
    highest = Largest(
        tuple(
            At(similarity(measure, "other_seed", site, "partner"), f)
            for site in ("embedding", *RECURRENT)
            for f in GRID
        )
    )
    return Claim(
        f"other_seed_maximum_{measure}",
        "… to a maximum near 0.64",
        "section 4, figure 4",
        (Part(highest, Within(0.54, 0.74), "highest of all sites and times"),),
        matters="0.1: a number of one run of another corpus and size, read off a figure",
        floor=Largest(
            tuple(At(similarity(measure, "other_seed", s, "untrained_partner")) for s in RECURRENT)
        ),
        question="Is the similarity of two seeds at most 0.64?",
        variant=MEASURES[measure],
        measured_by=RUN,
    )


def empirical_bound(measure: str) -> Claim:
    parts = []
    for site in ("embedding", *RECURRENT):
        taggers = [At(to_tagger(measure, t, site)) for t in ("upos", "xpos", "semtag_coarse", "semtag")]
        two = At(similarity(measure, "other_seed", site, "partner"))
        parts.append(
            Part(lead(two, Largest(tuple(taggers))), Above(0.0), f"{site}: other seed − nearest tagger")
        )
    return Claim(
        f"other_seed_above_taggers_{measure}",
        "No tagger is more similar to the language model than a language model of another seed",
        "section 4",
        tuple(parts),
        matters="0: an upper bound is one or is none",
        floor="0: a tagger as near as another seed",
        void_unless=(learned("upos_next"),),
        question="Is another seed an upper bound of similarity to taggers?",
        variant=MEASURES[measure],
        measured_by=RUN,
    )


PAIRS = (("embedding", "h1"), ("h1", "h2"), ("embedding", "h2"))


def between(measure: str, one: str, two: str) -> Rows:
    return similarity(measure, "layers", one, "itself", two)


def layer_claims(measure: str) -> tuple[Claim, ...]:
    near = [At(between(measure, one, two)) for one, two in PAIRS[:2]]
    far = between(measure, *PAIRS[2])
    variant = MEASURES[measure]
    untrained = lead(Smallest(tuple(At(n.rows, 0) for n in near)), At(far, 0))
    closer = Claim(
        f"closer_layers_{measure}",
        "Closer layers are more similar than distant ones",
        "section 4, figure 5",
        (
            Part(
                lead(Smallest(tuple(near)), At(far)),
                Above(MATTERS),
                "least of neighbours − embedding with h2",
            ),
        ),
        matters=HOW_MUCH,
        floor=untrained,
        question="Are closer layers more similar?",
        variant=variant,
        measured_by=RUN,
    )
    rises = Claim(
        f"layers_rise_{measure}",
        "The similarity of layers increases over training",
        "section 4, figure 5",
        tuple(
            Part(Change(between(measure, a, b), FIRST), Above(OVER_TIME), f"{a} with {b}") for a, b in PAIRS
        ),
        matters=HOW_MUCH_OVER_TIME,
        floor="0: the beginning of the same curve",
        question="Does the similarity of layers rise over training?",
        variant=variant,
        measured_by=RUN,
    )
    parts = []
    for a, b in PAIRS:
        same = Smallest(tuple(At(similarity(measure, "other_seed", site, "partner")) for site in (a, b)))
        parts.append(Part(lead(same, At(between(measure, a, b))), Above(MATTERS), f"{a} with {b}"))
    lower = Claim(
        f"layers_below_other_seed_{measure}",
        "Two layers of one model are less similar than the same layer in two models",
        "section 4, figure 5",
        tuple(parts),
        matters=HOW_MUCH,
        floor="0: as similar as the same layer of another seed",
        question="Are two layers of one model less similar than one layer of two seeds?",
        variant=variant,
        measured_by=RUN,
    )
    return closer, rises, lower


# ------------------------------------------------------------------------------------------ figures 6 and 7


PROBED = {
    "accuracy": (("accuracy_low", "accuracy_high"), 0.05, "accuracy"),
    "selectivity": (("selectivity_low", "selectivity_high"), 0.05, "accuracy less that of a control task"),
}


def probes_stable(quantity: str, target: str) -> Claim:
    error, band, variant = PROBED[quantity]
    parts = []
    for task, name in TASKS.items():
        for site in RECURRENT:
            where = (("task", task), ("target", target))
            rows = Rows("DiagnosticProbe", quantity, site, where, name=name, error=error)
            parts.append(Part(Change(rows, FIRST), Within(-band, band), f"{task} at {site}"))
    figure, word = ("7", "the next word") if target == "next" else ("6", "the word read")
    codes = [
        Rows("DiagnosticProbe", "compression", "h1", (("task", task), ("target", target)), name=name)
        for task, name in TASKS.items()
    ]
    return Claim(
        f"probes_stable_{quantity}_{target}",
        f"Diagnostic classifiers of {word} are stable over training",
        f"section 4, figure {figure}",
        tuple(parts),
        matters="0.05: half of a tenth, on figures whose axes span the unit interval",
        floor="0: no change",
        void_unless=(
            Condition(
                "some labels are read at all: their code is at most 0.95 of the uniform one",
                Largest(tuple(At(c) for c in codes)),
                Above(1.05),
            ),
        ),
        question="Are diagnostic classifiers stable over training?",
        variant=f"{variant}, {word}",
        measured_by=RUN,
    )


def code_shrinks(target: str) -> Claim:
    word = "the next word" if target == "next" else "the word read"
    parts = []
    for site in RECURRENT:
        rows = Rows(
            "DiagnosticProbe", "codelength", site, (("task", "upos"), ("target", target)), name="probes_text"
        )
        parts.append(Part(Change(rows, FIRST), Within(-0.1, 0.1), f"bits a label, upos at {site}"))
    return Claim(
        f"probes_stable_codelength_{target}",
        f"… of {word} by their description length",
        "section 4, figures 6 and 7",
        tuple(parts),
        matters="0.1 bits a label, of about four of a uniform code",
        floor="0: no change",
        question="Are diagnostic classifiers stable over training?",
        variant=f"description length, {word}",
        measured_by=RUN,
    )


def representation_moves(measure: str) -> Claim:
    return Claim(
        f"own_end_moves_{measure}",
        "… while representations change substantially",
        "section 4, figures 3, 6 and 7",
        tuple(
            Part(Change(similarity(measure, "own_end", site, "own_final"), FIRST, 0.8), Above(0.1), site)
            for site in RECURRENT
        ),
        matters="0.1: twice what is stable for a classifier; until 0.8 of training, since the end is 1 by construction",
        floor=Mean(
            tuple(
                Change(similarity(measure, "own_end", s, "untrained_own_final"), FIRST, 0.8)
                for s in RECURRENT
            )
        ),
        question="Does the representation move where classifiers do not?",
        variant=MEASURES[measure],
        measured_by=RUN,
    )


MODELS = (
    *map(converges, MEASURES),
    *map(seeds_rise, MEASURES),
    *map(seeds_bound, MEASURES),
    *map(empirical_bound, MEASURES),
    *(claim for measure in MEASURES for claim in layer_claims(measure)),
    *(probes_stable(quantity, target) for quantity in PROBED for target in ("current", "next")),
    *map(code_shrinks, ("current", "next")),
    *map(representation_moves, MEASURES),
)
