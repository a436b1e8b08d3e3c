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

from lmdyn.claims.claim import Above, Below, Claim, Part, Study, Within, published_share
from lmdyn.claims.numbers import At, Change, Largest, Mean, Number, Reaches, Smallest
from lmdyn.claims.studies.seen import GRAMMAR, WIKITEXT
from lmdyn.claims.studies.svcca_models import (
    FIRST,
    GRID,
    HOW_MUCH,
    MATTERS,
    MEASURES,
    MODELS,
    RECURRENT,
    RUN,
    TASKS,
    TERMS,
    TaggerTest,
    in_domain,
    lead,
    learned,
    to_tagger,
)

__all__ = ["STUDY"]

TEST_WORDS = 191_000
TOPICS = {
    "topic": "topic by SGD at 20, as published",
    "topic_adam": "topic by Adam at 0.003",
    "topic_sentences": "topic from sentences in random order",
}


def order_of_tasks(measure: str) -> tuple[Claim, ...]:
    variant = MEASURES[measure]
    above = Claim(
        f"upos_above_semantic_{measure}",
        "On the next word, UPOS is more similar to recurrent layers than both sets of semantic tags",
        "section 4.1, figure 8",
        tuple(
            Part(
                lead(At(to_tagger(measure, "upos", site)), At(to_tagger(measure, tags, site))),
                Above(MATTERS),
                f"upos − {tags} at {site}",
            )
            for site in RECURRENT
            for tags in ("semtag_coarse", "semtag")
        ),
        matters=HOW_MUCH,
        floor=Mean(
            tuple(
                lead(
                    At(to_tagger(measure, "shuffled_upos", s)),
                    At(to_tagger(measure, "shuffled_semtag_coarse", s)),
                )
                for s in RECURRENT
            )
        ),
        void_unless=tuple(learned(f"{t}_next") for t in ("upos", "semtag_coarse", "semtag")),
        question="Is part of speech nearer to the language model than semantic tags?",
        variant=variant,
        measured_by=RUN,
    )
    nearer = Claim(
        f"recurrent_nears_taggers_{measure}",
        "Recurrent layers become more similar to those of taggers",
        "abstract; section 4.1, figure 8",
        tuple(
            Part(Change(to_tagger(measure, task, site), FIRST), Above(MATTERS), f"{task} at {site}")
            for task in TASKS
            for site in RECURRENT
        ),
        matters=HOW_MUCH,
        floor=Mean(
            tuple(Change(to_tagger(measure, f"shuffled_{t}", s), FIRST) for t in TASKS for s in RECURRENT)
        ),
        void_unless=tuple(learned(f"{t}_next") for t in TASKS),
        question="Do recurrent layers become more similar to taggers?",
        variant=variant,
        measured_by=RUN,
    )
    apart = Claim(
        f"embedding_leaves_taggers_{measure}",
        "… and embeddings less similar",
        "abstract; section 4.1, figure 8",
        tuple(
            Part(Change(to_tagger(measure, task, "embedding"), FIRST), Below(-MATTERS), task)
            for task in TASKS
        ),
        matters=HOW_MUCH,
        floor=Mean(tuple(Change(to_tagger(measure, f"shuffled_{t}", "embedding"), FIRST) for t in TASKS)),
        void_unless=tuple(learned(f"{t}_next") for t in TASKS),
        question="Do embeddings become less similar to those of taggers?",
        variant=variant,
        measured_by=RUN,
    )
    ends = {s: [At(to_tagger(measure, t, s)) for t in TASKS] for s in ("embedding", "h1")}
    spread = {s: lead(Largest(tuple(v)), Smallest(tuple(v))) for s, v in ends.items()}
    close = Claim(
        f"embeddings_alike_{measure}",
        "Embeddings of all taggers are alike: their similarities are close together",
        "section 4.1, figure 8",
        (Part(lead(spread["h1"], spread["embedding"]), Above(MATTERS), "range over tasks, h1 − embedding"),),
        matters=HOW_MUCH,
        floor="0: tasks lie as far apart at the embedding as at h1",
        void_unless=tuple(learned(f"{t}_next") for t in TASKS),
        question="Are embeddings less bound to the task?",
        variant=variant,
        measured_by=RUN,
    )
    falls, grows = [], []
    for task in TASKS:
        rows = to_tagger(measure, task, "h1")
        least = Smallest(tuple(At(rows, f) for f in GRID))
        falls.append(Part(lead(At(rows, FIRST), least), Above(MATTERS), f"{task}: first − least"))
        grows.append(Part(lead(At(rows), least), Above(MATTERS), f"{task}: end − least"))
    floors = [to_tagger(measure, f"shuffled_{task}", "h1") for task in TASKS]
    declines = Claim(
        f"h1_declines_{measure}",
        "At h1 similarity to all taggers declines at first",
        "section 4.1, figure 8",
        tuple(falls),
        matters=HOW_MUCH,
        floor=Mean(tuple(lead(At(r, FIRST), Smallest(tuple(At(r, f) for f in GRID))) for r in floors)),
        void_unless=tuple(learned(f"{t}_next") for t in TASKS),
        question="Does similarity at h1 decline before it grows?",
        variant=f"declines; {variant}",
        measured_by=RUN,
    )
    regrows = Claim(
        f"h1_grows_again_{measure}",
        "… and grows afterwards",
        "section 4.1, figure 8",
        tuple(grows),
        matters=HOW_MUCH,
        floor=Mean(tuple(lead(At(r), Smallest(tuple(At(r, f) for f in GRID))) for r in floors)),
        void_unless=tuple(learned(f"{t}_next") for t in TASKS),
        question="Does similarity at h1 decline before it grows?",
        variant=f"grows; {variant}",
        measured_by=RUN,
    )
    return above, nearer, apart, close, declines, regrows


def topic_claims(measure: str, topic: str) -> tuple[Claim, ...]:
    variant = f"{TOPICS[topic]}; {MEASURES[measure]}"
    known = (learned(f"{topic}_next"),)
    name = f"{topic}_{measure}"
    least = Claim(
        f"least_{name}",
        "Topic is the task that recurrent layers are least similar to",
        "section 4.1, figure 8",
        tuple(
            Part(
                lead(
                    Smallest(tuple(At(to_tagger(measure, t, s)) for t in TASKS)),
                    At(to_tagger(measure, topic, s)),
                ),
                Above(MATTERS),
                f"next lowest − topic at {s}",
            )
            for s in RECURRENT
        ),
        matters=HOW_MUCH,
        floor="0: as low as another task",
        void_unless=known,
        question="Is topic least captured?",
        variant=variant,
        measured_by=RUN,
    )
    below = Claim(
        f"below_floor_{name}",
        "Similarity to the topic tagger is below that to its own shuffled floor, throughout",
        "section 4.1, figure 8",
        tuple(
            Part(
                lead(At(to_tagger(measure, f"shuffled_{topic}", s), f), At(to_tagger(measure, topic, s), f)),
                Above(MATTERS),
                f"shuffled − topic at {s}, {f:g} of training",
            )
            for s in RECURRENT
            for f in (0.1, 0.4, 1.0)
        ),
        matters=HOW_MUCH,
        floor="0: as similar as shuffled labels",
        void_unless=known,
        question="Is topic below its own shuffled floor?",
        variant=variant,
        measured_by=RUN,
    )
    rises = Claim(
        f"rises_{name}",
        "… and improves over time",
        "section 4.1, figure 8",
        tuple(Part(Change(to_tagger(measure, topic, s), FIRST), Above(MATTERS), s) for s in RECURRENT),
        matters=HOW_MUCH,
        floor=Mean(tuple(Change(to_tagger(measure, f"shuffled_{topic}", s), FIRST) for s in RECURRENT)),
        void_unless=known,
        question="Does similarity to topic improve over time?",
        variant=variant,
        measured_by=RUN,
    )
    later = Claim(
        f"later_than_upos_{name}",
        "Part of speech is learned earlier than topic: it stands earlier at 0.9 of its end",
        "abstract; section 4.1, figure 8",
        (
            Part(
                lead(
                    Reaches(to_tagger(measure, topic, "h2"), share_of_last=0.9, stays=True),
                    Reaches(to_tagger(measure, "upos", "h2"), share_of_last=0.9, stays=True),
                ),
                Above(0.1),
                "log10 of updates, topic − upos at h2",
            ),
        ),
        matters="0.1: a quarter more updates",
        floor="0: at the same time",
        void_unless=(*known, learned("upos_next")),
        question="Is topic learned later than part of speech?",
        variant=variant,
        measured_by=RUN,
    )
    return least, below, rises, later


# ------------------------------------------------------------------------------------------ figures 9 to 11, table 2


CORPORA = {
    "": ("upos", "xpos", "UPOS and PTB from two corpora, as published"),
    "_one_text": ("upos", "xpos_same", "UPOS and PTB from one text"),
    "_other_text": ("upos_other", "xpos", "UPOS and PTB from the other text"),
}


def current_word(measure: str, suffix: str) -> tuple[Claim, ...]:
    upos, xpos, corpus = CORPORA[suffix]
    variant = f"{corpus}; {MEASURES[measure]}"
    taggers = (upos, xpos, "semtag_coarse", "semtag")
    known = tuple(learned(f"{t}_{target}") for t in taggers for target in ("next", "current"))

    def drop(task: str, site: str) -> Number:
        return lead(At(to_tagger(measure, task, site)), At(to_tagger(measure, task, site, "current")))

    highest = Claim(
        f"ptb_highest{suffix}_{measure}",
        "On the word read, PTB tags are the most similar to recurrent layers",
        "section 4.2, figure 9",
        tuple(
            Part(
                lead(
                    At(to_tagger(measure, xpos, s, "current")),
                    Largest(tuple(At(to_tagger(measure, t, s, "current")) for t in taggers if t != xpos)),
                ),
                Above(MATTERS),
                f"PTB − next highest at {s}",
            )
            for s in RECURRENT
        ),
        matters=HOW_MUCH,
        floor="0: as high as another task",
        void_unless=known[1::2],
        question="Are PTB tags most similar on the word read?",
        variant=variant,
        measured_by=RUN,
    )
    falls = Claim(
        f"upos_falls_most{suffix}_{measure}",
        "From the next word to the word read, UPOS falls, and more than the other tasks",
        "section 4.2, figures 8 and 9",
        tuple(
            part
            for s in RECURRENT
            for part in (
                Part(drop(upos, s), Above(MATTERS), f"fall of UPOS at {s}"),
                Part(
                    lead(drop(upos, s), Largest(tuple(drop(t, s) for t in taggers[1:]))),
                    Above(MATTERS),
                    f"… beyond the largest other fall at {s}",
                ),
            )
        ),
        matters=HOW_MUCH,
        floor="0: no task falls",
        void_unless=known,
        question="Does UPOS fall most from the next word to the word read?",
        variant=variant,
        measured_by=RUN,
    )
    return highest, falls


def on_own_text(measure: str, target: str) -> Claim:
    tasks = ("xpos", "semtag_coarse", "semtag")
    gain = {
        t: lead(At(in_domain(measure, t, "h1", target)), At(to_tagger(measure, t, "h1", target)))
        for t in tasks
    }
    floor = Mean(
        tuple(
            lead(
                At(in_domain(measure, f"shuffled_{t}", "h1", "next")),
                At(to_tagger(measure, f"shuffled_{t}", "h1")),
            )
            for t in tasks
        )
    )
    figure = "10" if target == "next" else "11"
    return Claim(
        f"own_text_higher_{target}_{measure}",
        "On the taggers' own text similarity is higher",
        f"appendix A, figure {figure}",
        tuple(Part(number, Above(MATTERS), f"{task} at h1") for task, number in gain.items()),
        matters=HOW_MUCH,
        floor=floor,
        void_unless=tuple(learned(f"{t}_{target}") for t in tasks),
        question="Is similarity higher on the taggers' own text?",
        variant=f"{'the next word' if target == 'next' else 'the word read'}; {MEASURES[measure]}",
        measured_by=RUN,
    )


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
    variant = TOPICS.get(tagger, task)
    gain = lead(TaggerTest(f"{tagger}_next", "accuracy"), TaggerTest(f"shuffled_{tagger}_next", "accuracy"))
    true = Claim(
        f"tagger_learns_{tagger}",
        f"A tagger learns {task} of the next word far beyond shuffled labels",
        "section 3.1, table 2",
        (Part(gain, Above(0.1), "accuracy, true − shuffled labels"),),
        matters="0.1: a third of the least gain in the table, 0.28",
        floor=lead(
            TaggerTest(f"{tagger}_next", "majority"), TaggerTest(f"shuffled_{tagger}_next", "accuracy")
        ),
        published=published_share(following, TEST_WORDS, f"accuracy; of shuffled labels {shuffled}"),
        question=f"Does a tagger learn {task}?",
        variant=variant,
        measured_by=RUN,
    )
    if tagger == "topic_sentences":
        return (true,)
    easier = lead(TaggerTest(f"{tagger}_current", "accuracy"), TaggerTest(f"{tagger}_next", "accuracy"))
    region = Within(-0.05, 0.05) if task == "topic" else Above(0.2)
    says, to = ("as easy", "as") if task == "topic" else ("far easier", "than")
    current = Claim(
        f"tagger_current_{tagger}",
        f"The {task} of the word read is {says} {to} that of the next word",
        "section 3.1, table 2",
        (Part(easier, region, "accuracy, word read − next word"),),
        matters="0.05, a fifth of 0.2, which is half of the least difference in the table",
        floor="0: the word itself tells nothing",
        published=published_share(read, TEST_WORDS, f"accuracy; of the next word {following}"),
        question=f"Is {task} of the word read {says}?",
        variant=variant,
        measured_by=RUN,
    )
    return true, current


STUDY = Study(
    "saphra2019_svcca",
    "Understanding learning dynamics of language models with SVCCA",
    "Saphra & Lopez 2019, NAACL; Saphra 2021, chapter 4",
    (
        *(claim for task in TABLE_2 for claim in tagger_claims(task, task)),
        *tagger_claims("topic", "topic_adam"),
        *tagger_claims("topic", "topic_sentences"),
        *MODELS,
        *(claim for measure in MEASURES for claim in order_of_tasks(measure)),
        *(
            c
            for topic in TOPICS
            for measure in ("cca", "svcca", "svcca_30")
            for c in topic_claims(measure, topic)
        ),
        *(claim for suffix in CORPORA for measure in MEASURES for claim in current_word(measure, suffix)),
        *(on_own_text(measure, target) for target in ("next", "current") for measure in MEASURES),
    ),
    seen_in=(GRAMMAR, WIKITEXT),
    terms=TERMS,
)
