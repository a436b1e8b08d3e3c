"""Claims of Saphra & Lopez 2019, "Understanding learning dynamics of language models with SVCCA", as numbers of a run.

The publication's text says SVCCA, but its public script uses the mean of all canonical correlations. The number of
directions that contain 99 % of the variance grows over training and differs between taggers, and a mean over few
leading directions is higher than one over many. Each question is therefore tested with five measures: ``cca`` (all
directions, as in the script), ``svcca`` (99 %, as in the text), ``svcca_30`` (thirty per side: equal rank), ``pwcca``
and ``linear_cka``. Regions were chosen before any run except that of seed 1 was inspected:

- *The smallest difference in similarity that matters* is 0.02, a tenth of the distances between the tasks' curves in
  the publication's figures 8 and 9; 0.05 over training, a tenth of the distance to its upper bound, 0.64.
- *Over time* is from a tenth of training to its end. The publication's first point is after one epoch of fifty, of 227
  million tokens: earlier changes are not in its figures, and the first tenths of two runs differ.
- A tagger has learned if it exceeds the most frequent label of its test text by 0.05.

Values are corrected for bias by the jackknife over blocks of sentences, with its errors; the two ends of a
difference are on one text, and their errors are added as if they were independent.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from lmdyn.claims.claim import Above, Below, Claim, Condition, Part, Study, Within, published_share
from lmdyn.claims.numbers import At, Change, Difference, Largest, Mean, Number, Reaches, Smallest
from lmdyn.claims.rows import Rows
from lmdyn.claims.studies.inspected_runs import GRAMMAR, WIKITEXT
from lmdyn.claims.studies.svcca_numbers import TaggerTest, in_domain, learned, similarity, to_tagger

__all__ = ["STUDY"]

MATTERS, OVER_TIME = 0.02, 0.05
HOW_MUCH = "0.02, a tenth of the distances between the tasks in figures 8 and 9"
HOW_MUCH_OVER_TIME = "0.05, a tenth of the way to the publication's upper bound, 0.64"
FIRST = 0.1  # fraction of training: after the first epoch of ten
GRID = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
TEST_WORDS = 191_000
RECURRENT = ("h1", "h2")
SITES = ("embedding", *RECURRENT)
MEASURES = {
    "cca": "CCA",
    "svcca": "SVCCA",
    "svcca_30": "SVCCA-30",
    "pwcca": "PWCCA",
    "linear_cka": "linear CKA",
}
TASKS = {"upos": "probes_text", "xpos": "probes_pos", "semtag_coarse": "probes_sem", "semtag": "probes_sem"}
"""Labels of the taggers but topic, and the observer of their diagnostic classifiers."""
TOPICS = {
    "topic": "topic by SGD at 20, as published",
    "topic_adam": "topic by Adam at 0.003",
    "topic_sentences": "topic from sentences in random order",
}
# fmt: off


def mean(numbers: Iterable[Number]) -> Mean:
    """Return the mean of numbers."""
    return Mean(tuple(numbers))


# ------------------------------------------------------------------------------------------ figures 3 to 5, models

LAYERS = (("embedding", "h1"), ("h1", "h2"), ("embedding", "h2"))


def models(measure: str) -> tuple[Claim, ...]:
    """Return the claims about language models: their own end, another seed, pairs of layers."""
    claim = partial(Claim, variant=MEASURES[measure])
    own_end, other_seed = partial(similarity, measure, "own_end"), partial(similarity, measure, "other_seed")
    own = {site: [At(own_end(site, "own_final"), f) for f in GRID[1:5]] for site in RECURRENT}
    *near, far = (similarity(measure, "layers", a, "itself", b) for a, b in LAYERS)
    same = {site: At(other_seed(site, "partner")) for site in SITES}
    return (
        claim(f"h1_converges_after_h2_{measure}", "h1 converges to its own end slightly after h2",
            "section 4, figure 3",
            (Part(mean(Difference(two, one) for one, two in zip(own["h1"], own["h2"], strict=True)), Above(0.01),
                  "h2 − h1, mean over four points of training"),),
            matters="0.01: the publication says slightly; over training a twentieth of the distance from the end",
            floor=Difference(*(At(own_end(site, "untrained_own_final")) for site in ("h2", "h1"))),
            question="Does the lower layer converge after the upper one?"),
        claim(f"other_seed_rises_{measure}",
            "Similarity to the end of a model of another initialisation increases over training",
            "section 4, figure 4",
            tuple(Part(Change(other_seed(site, "partner"), FIRST), Above(OVER_TIME), site) for site in SITES),
            matters=HOW_MUCH_OVER_TIME, floor=mean(Change(other_seed(s, "untrained_partner"), FIRST) for s in SITES),
            question="Does similarity to another seed rise over training?"),
        claim(f"other_seed_maximum_{measure}", "… to a maximum near 0.64", "section 4, figure 4",
            (Part(Largest(tuple(At(other_seed(site, "partner"), f) for site in SITES for f in GRID)),
                  Within(0.54, 0.74), "highest of all sites and times"),),
            matters="0.1: a number of one run of another corpus and size, read off a figure",
            floor=Largest(tuple(At(other_seed(s, "untrained_partner")) for s in RECURRENT)),
            question="Is the similarity of two seeds at most 0.64?"),
        claim(f"other_seed_above_taggers_{measure}",
            "No tagger is more similar to the language model than a language model of another seed", "section 4",
            tuple(Part(Difference(same[site], Largest(tuple(At(to_tagger(measure, t, site)) for t in TASKS))),
                       Above(0.0), f"{site}: other seed − nearest tagger") for site in SITES),
            matters="0: an upper bound is one or is none", floor="0: a tagger as near as another seed",
            void_unless=learned("upos_next"), question="Is another seed an upper bound of similarity to taggers?"),
        claim(f"closer_layers_{measure}", "Closer layers are more similar than distant ones", "section 4, figure 5",
            (Part(Difference(Smallest(tuple(map(At, near))), At(far)), Above(MATTERS),
                  "least of neighbours − embedding with h2"),), matters=HOW_MUCH,
            floor=Difference(Smallest(tuple(At(rows, 0) for rows in near)), At(far, 0)),
            question="Are closer layers more similar?"),
        claim(f"layers_rise_{measure}", "The similarity of layers increases over training", "section 4, figure 5",
            tuple(Part(Change(rows, FIRST), Above(OVER_TIME), f"{a} with {b}")
                  for rows, (a, b) in zip((*near, far), LAYERS, strict=True)), matters=HOW_MUCH_OVER_TIME,
            floor="0: the beginning of the same curve", question="Does the similarity of layers rise over training?"),
        claim(f"layers_below_other_seed_{measure}",
            "Two layers of one model are less similar than the same layer in two models", "section 4, figure 5",
            tuple(Part(Difference(Smallest((same[a], same[b])), At(rows)), Above(MATTERS), f"{a} with {b}")
                  for rows, (a, b) in zip((*near, far), LAYERS, strict=True)), matters=HOW_MUCH,
            floor="0: as similar as the same layer of another seed",
            question="Are two layers of one model less similar than one layer of two seeds?"),
        claim(f"own_end_moves_{measure}", "… while representations change substantially",
            "section 4, figures 3, 6 and 7",
            tuple(Part(Change(own_end(site, "own_final"), FIRST, 0.8), Above(0.1), site) for site in RECURRENT),
            matters="0.1: twice what is stable for a classifier; until 0.8 of training: the end is 1 by construction",
            floor=mean(Change(own_end(site, "untrained_own_final"), FIRST, 0.8) for site in RECURRENT),
            question="Does the representation move where classifiers do not?"),
    )


# ------------------------------------------------------------------------------------------ figures 6 and 7, probes

PROBED = {"accuracy": "accuracy", "selectivity": "accuracy less that of a control task"}
WORDS = {"current": "the word read", "next": "the next word"}


def probe(quantity: str, task: str, site: str, target: str, error: tuple[str, str] | None = None) -> Rows:
    """Return a quantity of the diagnostic classifier of a task."""
    where = (("task", task), ("target", target))
    return Rows("DiagnosticProbe", quantity, site, where, name=TASKS[task], error=error)


MODEL_LEARNED = Condition(
    "the tag of the next word is read from the last layer better than from that of the untrained model, by 0.1",
    Change(probe("accuracy", "xpos", "h2", "next")), Above(0.1),
)


def stable(target: str) -> tuple[Claim, ...]:
    """Return the claims that diagnostic classifiers are stable over training."""
    claim = partial(Claim, floor="0: no change", question="Are diagnostic classifiers stable over training?")
    word, figure = WORDS[target], {"current": "6", "next": "7"}[target]
    read = Condition("some labels are read at all: their code is at most 0.95 of the uniform one",
                     Largest(tuple(At(probe("compression", task, "h1", target)) for task in TASKS)), Above(1.05))
    return (
        *(
            claim(f"probes_stable_{quantity}_{target}", f"Diagnostic classifiers of {word} are stable over training",
                f"section 4, figure {figure}",
                tuple(Part(Change(probe(quantity, task, site, target, (f"{quantity}_low", f"{quantity}_high")),
                                  FIRST), Within(-0.05, 0.05), f"{task} at {site}") for task in TASKS
                      for site in RECURRENT),
                matters="0.05: half of a tenth, on figures whose axes span the unit interval", void_unless=(read,),
                variant=f"{variant}, {word}")
            for quantity, variant in PROBED.items()
        ),
        claim(f"probes_stable_codelength_{target}", f"… of {word} by their description length",
            "section 4, figures 6 and 7",
            tuple(Part(Change(probe("codelength", "upos", site, target), FIRST), Within(-0.1, 0.1),
                       f"bits a label, upos at {site}") for site in RECURRENT),
            matters="0.1 bits a label, of about four of a uniform code", variant=f"description length, {word}"),
    )


# ------------------------------------------------------------------------------------------ figure 8, the next word


def first_above(rows: Rows) -> Number:
    """Return how far the first value is above the least of the later ones: below 0 if it is the least of all."""
    return Difference(At(rows, FIRST), Smallest(tuple(At(rows, f) for f in GRID[1:])))


def end_above(rows: Rows) -> Number:
    """Return how far the last value is above the least of the earlier ones."""
    return Difference(At(rows), Smallest(tuple(At(rows, f) for f in GRID[:-1])))


def order_of_tasks(measure: str) -> tuple[Claim, ...]:
    """Return the claims about taggers of the next word."""
    of, known = partial(to_tagger, measure), learned(*(f"{task}_next" for task in TASKS))
    claim = partial(Claim, matters=HOW_MUCH, void_unless=known, variant=MEASURES[measure])
    spread = {
        site: Difference(*(extreme(tuple(At(of(t, site)) for t in TASKS)) for extreme in (Largest, Smallest)))
        for site in ("embedding", "h1")
    }
    at_h1 = partial(claim, where="section 4.1, figure 8", question="Does similarity at h1 decline before it grows?")
    shuffled = [of(f"shuffled_{task}", "h1") for task in TASKS]
    return (
        claim(f"upos_above_semantic_{measure}",
            "On the next word, UPOS is more similar to recurrent layers than both sets of semantic tags",
            "section 4.1, figure 8",
            tuple(Part(Difference(At(of("upos", s)), At(of(tags, s))), Above(MATTERS), f"upos − {tags} at {s}")
                  for s in RECURRENT for tags in ("semtag_coarse", "semtag")),
            floor=mean(Difference(At(of("shuffled_upos", s)), At(of("shuffled_semtag_coarse", s)))
                       for s in RECURRENT), void_unless=learned("upos_next", "semtag_coarse_next", "semtag_next"),
            question="Is part of speech nearer to the language model than semantic tags?"),
        claim(f"recurrent_nears_taggers_{measure}", "Recurrent layers become more similar to those of taggers",
            "abstract; section 4.1, figure 8",
            tuple(Part(Change(of(t, s), FIRST), Above(MATTERS), f"{t} at {s}") for t in TASKS for s in RECURRENT),
            floor=mean(Change(of(f"shuffled_{t}", s), FIRST) for t in TASKS for s in RECURRENT),
            question="Do recurrent layers become more similar to taggers?"),
        claim(f"embedding_leaves_taggers_{measure}", "… and embeddings less similar",
            "abstract; section 4.1, figure 8",
            tuple(Part(Change(of(t, "embedding"), FIRST), Below(-MATTERS), t) for t in TASKS),
            floor=mean(Change(of(f"shuffled_{t}", "embedding"), FIRST) for t in TASKS),
            question="Do embeddings become less similar to those of taggers?"),
        claim(f"embeddings_alike_{measure}",
            "Embeddings of all taggers are alike: their similarities are close together", "section 4.1, figure 8",
            (Part(Difference(spread["h1"], spread["embedding"]), Above(MATTERS),
                  "range over tasks, h1 − embedding"),), floor="0: tasks lie as far apart at the embedding as at h1",
            question="Are embeddings less bound to the task?"),
        at_h1(f"h1_declines_{measure}", "At h1 similarity to all taggers declines at first",
            parts=tuple(Part(first_above(of(t, "h1")), Above(MATTERS), f"{t}: first − least of the later ones")
                        for t in TASKS), floor=mean(map(first_above, shuffled)),
            variant=f"declines; {MEASURES[measure]}"),
        at_h1(f"h1_grows_again_{measure}", "… and grows afterwards",
            parts=tuple(Part(end_above(of(t, "h1")), Above(MATTERS), f"{t}: end − least of the earlier ones")
                        for t in TASKS), floor=mean(map(end_above, shuffled)), variant=f"grows; {MEASURES[measure]}"),
    )


def topic_claims(measure: str, topic: str) -> tuple[Claim, ...]:
    """Return the claims about a tagger of topic."""
    of, known, name = partial(to_tagger, measure), learned(f"{topic}_next"), f"{topic}_{measure}"
    claim = partial(Claim, void_unless=known, variant=f"{TOPICS[topic]}; {MEASURES[measure]}")
    return (
        claim(f"least_{name}", "Topic is the task that recurrent layers are least similar to",
            "section 4.1, figure 8",
            tuple(Part(Difference(Smallest(tuple(At(of(t, s)) for t in TASKS)), At(of(topic, s))), Above(MATTERS),
                       f"next lowest − topic at {s}") for s in RECURRENT), matters=HOW_MUCH,
            floor="0: as low as another task", question="Is topic least captured?"),
        claim(f"below_floor_{name}",
            "Similarity to the topic tagger is below that to its own shuffled floor, throughout",
            "section 4.1, figure 8",
            tuple(Part(Difference(At(of(f"shuffled_{topic}", s), f), At(of(topic, s), f)), Above(MATTERS),
                       f"shuffled − topic at {s}, {f:g} of training") for s in RECURRENT for f in (0.1, 0.4, 1.0)),
            matters=HOW_MUCH, floor="0: as similar as shuffled labels",
            question="Is topic below its own shuffled floor?"),
        claim(f"rises_{name}", "… and improves over time", "section 4.1, figure 8",
            tuple(Part(Change(of(topic, s), FIRST), Above(MATTERS), s) for s in RECURRENT), matters=HOW_MUCH,
            floor=mean(Change(of(f"shuffled_{topic}", s), FIRST) for s in RECURRENT),
            question="Does similarity to topic improve over time?"),
        claim(f"later_than_upos_{name}",
            "Part of speech is learned earlier than topic: it stands earlier at 0.9 of its end",
            "abstract; section 4.1, figure 8",
            (Part(Difference(*(Reaches(of(t, "h2"), share_of_last=0.9, stays=True) for t in (topic, "upos"))),
                  Above(0.1), "log10 of updates, topic − upos at h2"),), matters="0.1: a quarter more updates",
            floor="0: at the same time", void_unless=(*known, *learned("upos_next")),
            question="Is topic learned later than part of speech?"),
    )


# ------------------------------------------------------------------------------------------ figures 9 to 11, table 2

CORPORA = {
    "": ("upos", "xpos", "UPOS and PTB from two corpora, as published"),
    "_one_text": ("upos", "xpos_same", "UPOS and PTB from one text"),
    "_other_text": ("upos_other", "xpos", "UPOS and PTB from the other text"),
}


def current_word(measure: str, suffix: str) -> tuple[Claim, ...]:
    """Return the claims that compare the word read with the next word."""
    upos, xpos, corpus = CORPORA[suffix]
    taggers = (upos, xpos, "semtag_coarse", "semtag")
    known = learned(*(f"{tagger}_{target}" for tagger in taggers for target in ("next", "current")))
    claim = partial(Claim, matters=HOW_MUCH, variant=f"{corpus}; {MEASURES[measure]}")
    read = {(t, s): At(to_tagger(measure, t, s, "current")) for t in taggers for s in RECURRENT}
    drop = {(t, s): Difference(At(to_tagger(measure, t, s)), read[t, s]) for t in taggers for s in RECURRENT}
    return (
        claim(f"ptb_highest{suffix}_{measure}", "On the word read, PTB tags are the most similar to recurrent layers",
            "section 4.2, figure 9",
            tuple(Part(Difference(read[xpos, s], Largest(tuple(read[t, s] for t in taggers if t != xpos))),
                       Above(MATTERS), f"PTB − next highest at {s}") for s in RECURRENT),
            floor="0: as high as another task", void_unless=known[1::2],
            question="Are PTB tags most similar on the word read?"),
        claim(f"upos_falls_most{suffix}_{measure}",
            "From the next word to the word read, UPOS falls, and more than the other tasks",
            "section 4.2, figures 8 and 9",
            tuple(part for s in RECURRENT for part in (
                Part(drop[upos, s], Above(MATTERS), f"fall of UPOS at {s}"),
                Part(Difference(drop[upos, s], Largest(tuple(drop[t, s] for t in taggers[1:]))), Above(MATTERS),
                     f"… beyond the largest other fall at {s}"))),
            floor="0: no task falls", void_unless=known,
            question="Does UPOS fall most from the next word to the word read?"),
    )


def on_own_text(measure: str, target: str) -> Claim:
    """Return the claim that compares the taggers' own text."""
    tasks = ("xpos", "semtag_coarse", "semtag")

    def gain(tagger: str, target: str) -> Number:
        return Difference(At(in_domain(measure, tagger, target)), At(to_tagger(measure, tagger, "h1", target)))

    return Claim(f"own_text_higher_{target}_{measure}", "On the taggers' own text similarity is higher",
        f"appendix A, figure {'10' if target == 'next' else '11'}",
        tuple(Part(gain(task, target), Above(MATTERS), f"{task} at h1") for task in tasks), matters=HOW_MUCH,
        floor=mean(gain(f"shuffled_{task}", "next") for task in tasks),
        void_unless=learned(*(f"{task}_{target}" for task in tasks)),
        question="Is similarity higher on the taggers' own text?", variant=f"{WORDS[target]}; {MEASURES[measure]}")


TABLE_2 = {
    "upos": (0.50, 0.93, 0.21),
    "xpos": (0.51, 0.95, 0.14),
    "semtag_coarse": (0.55, 0.91, 0.22),
    "semtag": (0.50, 0.88, 0.17),
    "topic": (0.36, 0.37, 0.05),
}


def tagger_claims(task: str, tagger: str) -> tuple[Claim, ...]:
    """Return the claims of table 2; taggers of topic with another optimizer or sentence order are variants."""
    following, read, shuffled = TABLE_2[task]
    claim = partial(Claim, variant=TOPICS.get(tagger, task))
    of_next, of_shuffled = TaggerTest(f"{tagger}_next", "accuracy"), TaggerTest(f"shuffled_{tagger}_next", "accuracy")
    true = claim(f"tagger_learns_{tagger}", f"A tagger learns {task} of the next word far beyond shuffled labels",
        "section 3.1, table 2",
        (Part(Difference(of_next, of_shuffled), Above(0.1), "accuracy, true − shuffled labels"),),
        matters="0.1: a third of the least gain in the table, 0.28",
        floor=Difference(TaggerTest(f"{tagger}_next", "majority"), of_shuffled),
        published=published_share(following, TEST_WORDS, f"accuracy; of shuffled labels {shuffled}"),
        question=f"Does a tagger learn {task}?")
    if tagger == "topic_sentences":
        return (true,)
    says, to = ("as easy", "as") if task == "topic" else ("far easier", "than")
    current = claim(f"tagger_current_{tagger}", f"The {task} of the word read is {says} {to} that of the next word",
        "section 3.1, table 2",
        (Part(Difference(TaggerTest(f"{tagger}_current", "accuracy"), of_next),
              Within(-0.05, 0.05) if task == "topic" else Above(0.2), "accuracy, word read − next word"),),
        matters="0.05, a fifth of 0.2, which is half of the least difference in the table",
        floor="0: the word itself tells nothing",
        published=published_share(read, TEST_WORDS, f"accuracy; of the next word {following}"),
        question=f"Is {task} of the word read {says}?")
    return true, current


STUDY = Study(
    "saphra2019_svcca",
    "Understanding learning dynamics of language models with SVCCA",
    "Saphra & Lopez 2019, NAACL; Saphra 2021, chapter 4",
    (
        *(claim for task in TABLE_2 for claim in tagger_claims(task, task)),
        *tagger_claims("topic", "topic_adam"),
        *tagger_claims("topic", "topic_sentences"),
        *(replace(claim, learned=(MODEL_LEARNED,)) for measure in MEASURES for claim in models(measure)),
        *(claim for target in WORDS for claim in stable(target)),
        *(claim for measure in MEASURES for claim in order_of_tasks(measure)),
        *(one for topic in TOPICS for measure in ("cca", "svcca", "svcca_30") for one in topic_claims(measure, topic)),
        *(claim for suffix in CORPORA for measure in MEASURES for claim in current_word(measure, suffix)),
        *(on_own_text(measure, target) for target in ("next", "current") for measure in MEASURES),
    ),
    inspected_in=(GRAMMAR, WIKITEXT),
    measured_by="snakemake --profile configs/saphra2019_svcca/organism (or, of a run with taggers: lmdyn analyze RUN)",
    terms=(
        ("CCA", "mean of all canonical correlations, as the publication's public script computes it"),
        ("SVCCA", "mean over the directions that hold 99 % of variance, as its text says: their number grows over "
         "training"),
        ("SVCCA-30", "mean over thirty directions of each side, for all models and steps"),
        ("PWCCA", "projection-weighted CCA, which the publication names and does not report"),
        ("topic by SGD at 20", "the published optimizer; by Adam at 0.003: from the same data, in as many updates"),
        ("from two corpora",
         "UPOS and PTB tags of different texts, as published; else of one text, or both of the other"),
    ),
    own=("SVCCA",),
)
