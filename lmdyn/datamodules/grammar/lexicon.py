"""Words and facts of the synthetic corpus: pronounceable pseudo-words, their inflections, a knowledge base."""

import itertools
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

Item = TypeVar("Item")

YEARS = tuple(str(year) for year in range(1900, 2021))

CLOSED_CLASS: frozenset[str] = frozenset(
    """
    ' . , ? 's a an the this that these those every some no all another many few several
    he she it they him her them his its their himself herself itself themselves who whom which what
    and but or of in on at near behind with for about from to into by during after before than
    is are was were be been has have had do does did will can could may must should would not
    that because while if when although where why there here now today yesterday soon
    very too so more often always never again only oh yes well hello
    two three four five six seven eight nine ten twelve twenty
    seem seems seemed seeming become becomes became becoming remain remains remained remaining
    capital born comes works employed based office founded founder lives home
    """.split()  # noqa: SIM905
) | frozenset(YEARS)
"""Every real word that the grammar uses: function words, numbers, and the few content words of facts."""


class Uniforms:
    """Uniform draws from [0, 1), made in blocks because scalar calls of a numpy Generator are too slow.

    Example:
        >>> 0.0 <= Uniforms(np.random.default_rng(0))() < 1.0
        True
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._buffer: list[float] = []

    def __call__(self) -> float:
        """Return the next draw."""
        if not self._buffer:
            self._buffer = self._rng.random(2048).tolist()
        return self._buffer.pop()

    def among(self, items: Sequence[Item]) -> Item:
        """Return one of the items, drawn uniformly."""
        return items[int(self() * len(items))]


@dataclass(frozen=True, slots=True)
class Lexeme:
    """An open-class word with its inflected forms.

    Attributes:
        lemma: the base form (singular, infinitive, positive).
        upos: ``NOUN``, ``VERB``, ``ADJ``, ``ADV`` or ``PROPN``.
        forms: surface word of each PTB tag that the lexeme has, e.g. ``{"NN": "lamp", "NNS": "lamps"}``.
        kind: how the grammar can use it. Nouns: ``person thing place event``; names: ``person city country
            org``; verbs, the frame: ``intransitive unaccusative transitive ditransitive clausal control``;
            adjectives: ``intersective subsective``; adverbs: ``manner``.
        topic: index of the home topic, in which the word is more frequent.
        rank: frequency rank in its part of speech, from 0.
        gender: ``he``, ``she`` or ``it``, the singular pronoun of nouns and names; "" for other words.
        preposition: the preferred preposition of a verb; "" for other words.
    """

    lemma: str
    upos: str
    forms: Mapping[str, str]
    kind: str
    topic: int
    rank: int
    gender: str = ""
    preposition: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact of the knowledge base: ``subject`` and ``relation`` determine ``object``.

    Attributes:
        id: ``relation:subject``, the identifier in :attr:`Sentence.facts`.
        relation: a key of :data:`RELATIONS`.
        subject: a name.
        object: a name; in every statement the last word before the full stop.
        topic: index of the home topic of its subject.

    Example:
        >>> Fact("born_in:anna", "born_in", "anna", "mortby", 0).templates
        ('{subject} was born in {object} .', '{subject} comes from {object} .')
    """

    id: str
    relation: str
    subject: str
    object: str
    topic: int

    @property
    def templates(self) -> tuple[str, ...]:
        """The sentences that state this relation, with the places ``{subject}`` and ``{object}``."""
        return RELATIONS[self.relation][2]


RELATIONS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "capital_of": (
        "country", "city", ("the capital of {subject} is {object} .", "{subject} has its capital in {object} ."),
    ),
    "born_in": ("person", "city", ("{subject} was born in {object} .", "{subject} comes from {object} .")),
    "works_for": ("person", "org", ("{subject} works for {object} .", "{subject} is employed by {object} .")),
    "based_in": ("org", "city", ("{subject} is based in {object} .", "{subject} has its office in {object} .")),
    "founded_by": ("org", "person", ("{subject} was founded by {object} .", "the founder of {subject} is {object} .")),
    "lives_in": ("person", "country", ("{subject} lives in {object} .", "the home of {subject} is {object} .")),
}  # fmt: skip
"""For each relation: kind of its subject, kind of its object, and its statements."""


T = TypeVar("T", Lexeme, Fact)


class Sampler(Generic[T]):
    """Draws lexemes of one class, or facts: Zipf-Mandelbrot weights, with a boost for words of the topic.

    A word of rank r in its class has the weight (r + 3.7)^-exponent, times ``boost`` in its home topic.
    """

    def __init__(self, items: Sequence[T], n_topics: int, exponent: float, boost: float) -> None:
        self._items: Sequence[T] = items
        home = np.array([item.topic for item in items], np.int64)
        weights = (np.arange(len(self._items)) + 3.7) ** -exponent
        self._cumulative: list[list[float]] = []
        for topic in range(n_topics):
            cumulative = np.cumsum(np.where(home == topic, boost, 1.0) * weights)
            self._cumulative.append((cumulative[:-1] / cumulative[-1:]).tolist())

    def __call__(self, uniform: float, topic: int) -> T:
        """Return the item at quantile ``uniform`` of the distribution of ``topic``."""
        return self._items[bisect_right(self._cumulative[topic], uniform)]


class Samplers:
    """The random sources of a document: a sampler for each class of words, the facts, and their rates."""

    def __init__(
        self,
        lexemes: Mapping[str, Sequence[Lexeme]],
        facts: Sequence[Fact],
        topics: tuple[str, ...],
        fact_rate: float,
        exponent: float,
        boost: float,
    ) -> None:
        def sampler(upos: str, *kinds: str) -> Sampler[Lexeme]:
            items = [x for x in lexemes[upos] if not kinds or x.kind in kinds]
            return Sampler(items, len(topics), exponent, boost)

        self.topics, self.fact_rate = topics, fact_rate
        self.nouns = {kind: sampler("NOUN", kind) for kind in ("person", "thing", "place", "event")}
        self.nouns["any"] = sampler("NOUN", "person", "thing", "place")
        self.names = {"person": sampler("PROPN", "person"), "place": sampler("PROPN", "city", "country")}
        self.names["any"] = sampler("PROPN")
        self.verbs = {"any": sampler("VERB"), "transitive": sampler("VERB", "transitive")}
        self.verbs["simple"] = sampler("VERB", "transitive", "intransitive", "unaccusative", "ditransitive")
        self.adjectives, self.adverbs = sampler("ADJ"), sampler("ADV")
        self.facts = Sampler(facts, len(topics), exponent, boost)
        self.names_by_lemma = {name.lemma: name for name in lexemes["PROPN"]}


_ONSETS = (
    "b br bl c cl cr d dr f fl fr g gl gr h j k l m n p pl pr qu r s sl sp st str t tr th sh ch v w".split()  # noqa: SIM905
)
_NUCLEI = "a a e e i i o o u ai ea ee oa ou".split()  # noqa: SIM905
_MIDDLE = ["", "", "", "", "l", "n", "r", "m", "s"]
_CODAS = "b ck d ft g l ld lm lt m mp n nd nk nt p r rd rk rm rn rt s sh sk st t th x".split()  # noqa: SIM905
_SUFFIXES: dict[str, tuple[str, ...]] = {
    "NOUN.person": ("er", "or", "ist", "ian", "eer"),
    "NOUN.thing": ("ment", "tion", "ture", "et", "ock", "age"),
    "NOUN.place": ("yard", "field", "ery", "ium", "hall"),
    "NOUN.event": ("ing", "ance", "fest", "al"),
    "VERB": ("ate", "ize", "ify", "le", "en", "ish"),
    "ADJ": ("ous", "al", "ive", "y", "ful", "ic", "ant", "able"),
    "PROPN.he": ("o", "us", "an", "ard", "win"),
    "PROPN.she": ("a", "ia", "elle", "ina", "eth"),
    "PROPN.city": ("ton", "burg", "ville", "ford", "by"),
    "PROPN.country": ("land", "onia", "istan", "mark"),
    "PROPN.org": ("corp", "tech", "co", "soft", "ex"),
}
_VOWELS = "aeiou"
_CONSONANTS = "bcdfghjklmnpqrstvwxyz"
_UNWANTED = re.compile("fuk|fuc|shit|cunt|nig|fag|dick|slut|tit|rape|cum|coc")


def _stem(u: Uniforms, syllables: int) -> str:
    parts = [u.among(_ONSETS) + u.among(_NUCLEI) + u.among(_MIDDLE) for _ in range(syllables - 1)]
    stem = "".join(parts) + u.among(_ONSETS) + u.among(_NUCLEI) + u.among(_CODAS)
    # some words begin with a vowel and take "an"
    return stem.lstrip(_CONSONANTS) if u() < 0.12 else stem


def _is_short(word: str) -> bool:
    """Return whether the final consonant doubles before -ed and -ing: one syllable, one vowel, one consonant."""
    return (
        len(word) > 2
        and sum(c in _VOWELS for c in word.replace("qu", "k")) == 1
        and word[-2] in _VOWELS
        and word[-1] not in _VOWELS + "wxyh"
    )


def _with_s(word: str) -> str:
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in _VOWELS:
        return word[:-1] + "ies"
    return word + "s"


def _with_ed(word: str) -> str:
    if word.endswith("e"):
        return word + "d"
    if word.endswith("y") and word[-2] not in _VOWELS:
        return word[:-1] + "ied"
    return word + (word[-1] if _is_short(word) else "") + "ed"


def _with_ing(word: str) -> str:
    if word.endswith("e") and not word.endswith("ee"):
        return word[:-1] + "ing"
    return word + (word[-1] if _is_short(word) else "") + "ing"


def _with_ly(word: str) -> str:
    if word.endswith("y"):
        return word[:-1] + "ily"
    if word.endswith("le"):
        return word[:-1] + "y"
    return word + ("ally" if word.endswith("ic") else "ly")


def _inflect(lemma: str, upos: str) -> dict[str, str]:
    if upos == "NOUN":
        return {"NN": lemma, "NNS": _with_s(lemma)}
    if upos == "VERB":
        past, ing = _with_ed(lemma), _with_ing(lemma)
        return {"VB": lemma, "VBP": lemma, "VBZ": _with_s(lemma), "VBD": past, "VBN": past, "VBG": ing}
    return {{"ADJ": "JJ", "ADV": "RB", "PROPN": "NNP"}[upos]: lemma}


_KINDS: dict[str, tuple[str, ...]] = {
    # assigned in blocks of ranks, so that each kind has frequent and rare members in these proportions
    "NOUN": ("person", "thing", "thing", "person", "place", "thing", "event", "thing", "person", "thing"),
    "VERB": (
        "transitive", "intransitive", "transitive", "clausal", "transitive",
        "unaccusative", "transitive", "ditransitive", "control", "transitive",
    ),
    "ADJ": ("intersective", "intersective", "subsective"),
    "PROPN": ("person", "city", "person", "org", "person", "city", "country", "person", "org", "person"),
}  # fmt: skip
_VERB_PREPOSITIONS = ("in", "with", "near", "at", "on", "behind", "for", "about", "from", "into")


class _Builder:
    def __init__(self, rng: np.random.Generator, n_topics: int) -> None:
        self.u = Uniforms(rng)
        self.rng = rng
        self.n_topics = n_topics
        self.taken: set[str] = set(CLOSED_CLASS)

    def topics(self, n: int) -> list[int]:
        """Return home topics, each once in every block of ``n_topics`` ranks, in random order."""
        blocks = [self.rng.permutation(self.n_topics) for _ in range(-(-n // self.n_topics))]
        return [int(t) for t in np.concatenate(blocks)[:n]] if n else []

    def fresh(self, upos: str, group: str, rank: int) -> tuple[str, dict[str, str]]:
        """Return a word and its forms, none of which is a form of another word; frequent words are short."""
        suffixes = _SUFFIXES.get(f"{upos}.{group}") or _SUFFIXES.get(upos)
        for attempt in itertools.count():
            suffixed = upos == "PROPN" or (rank >= 20 and self.u() < 0.5)
            syllables = (1 if rank < 60 or (suffixed and suffixes) else 2) + attempt // 20
            lemma = _stem(self.u, syllables)
            if suffixes and suffixed:
                lemma += self.u.among(suffixes)
            forms = _inflect(lemma, upos)
            needed = set(forms.values()) | ({_with_ly(lemma)} if upos == "ADJ" else set())
            if not needed & self.taken and not _UNWANTED.search(lemma):
                self.taken |= needed
                return lemma, forms
        raise AssertionError("unreachable")

    def open_class(self, upos: str, n: int) -> list[Lexeme]:
        lexemes = []
        deal: list[str] = []
        for rank, topic in enumerate(self.topics(n)):
            if not deal:
                deal = [_KINDS[upos][i] for i in self.rng.permutation(len(_KINDS[upos]))]
            kind = deal.pop()
            gender = ""
            if upos in ("NOUN", "PROPN"):
                gender = ("he" if self.u() < 0.5 else "she") if kind == "person" else "it"
            group = gender if upos == "PROPN" and kind == "person" else kind
            lemma, forms = self.fresh(upos, group, rank)
            preposition = self.u.among(_VERB_PREPOSITIONS) if upos == "VERB" else ""
            lexemes.append(Lexeme(lemma, upos, forms, kind, topic, rank, gender, preposition))
        return lexemes


def build_lexemes(
    rng: np.random.Generator, n_topics: int, sizes: Mapping[str, int], ambiguous: float
) -> dict[str, list[Lexeme]]:
    """Make the open-class words.

    Args:
        rng: generator of the letters.
        n_topics: number of home topics, which are assigned evenly over the frequency ranks.
        sizes: number of lexemes of ``NOUN``, ``VERB``, ``ADJ``, ``ADV`` (at most as many as ``ADJ``: adverbs are
            adjectives with -ly) and ``PROPN``.
        ambiguous: fraction of the nouns that share both forms with a verb (*the reports*, *she reports*).

    Returns:
        The lexemes of each part of speech, the most frequent first.
    """
    builder = _Builder(rng, n_topics)
    lexemes = {upos: builder.open_class(upos, sizes[upos]) for upos in ("VERB", "NOUN", "ADJ", "PROPN")}
    lexemes["ADV"] = [
        Lexeme(_with_ly(a.lemma), "ADV", {"RB": _with_ly(a.lemma)}, "manner", a.topic, rank)
        for rank, a in enumerate(lexemes["ADJ"][: sizes["ADV"]])
    ]
    nouns, verbs = lexemes["NOUN"], lexemes["VERB"]
    n_shared = min(round(ambiguous * len(nouns)), len(verbs))
    # spread over the ranks; only things become ambiguous, people keep their agent suffixes
    verb_ranks = np.linspace(0, len(verbs) - 1, n_shared).astype(int)
    things = [noun.rank for noun in nouns if noun.kind == "thing"]
    for verb_rank, slot in zip(
        verb_ranks, np.linspace(0, len(things) - 1, n_shared).astype(int), strict=True
    ):
        old, verb = nouns[things[slot]], verbs[verb_rank]
        forms = {"NN": verb.forms["VB"], "NNS": verb.forms["VBZ"]}
        nouns[old.rank] = Lexeme(verb.lemma, "NOUN", forms, "thing", old.topic, old.rank, "it")
    return lexemes


def build_facts(rng: np.random.Generator, names: Sequence[Lexeme], n_facts: int) -> tuple[Fact, ...]:
    """Draw facts about the names: a subject has one object per relation, and frequent names come first.

    Raises:
        ValueError: if the names allow fewer than ``n_facts`` facts.
    """
    u = Uniforms(rng)
    by_kind: dict[str, list[Lexeme]] = {}
    for name in names:
        by_kind.setdefault(name.kind, []).append(name)
    facts: list[Fact] = []
    queues = {r: iter(by_kind.get(subject, [])) for r, (subject, _, _) in RELATIONS.items()}
    while len(facts) < n_facts and queues:
        for relation in list(queues):
            subject = next(queues[relation], None)
            objects = by_kind.get(RELATIONS[relation][1], [])
            if subject is None or not objects:
                del queues[relation]
                continue
            # squaring favours frequent names; an object may serve several facts
            chosen = objects[int(u() ** 2 * len(objects))]
            facts.append(
                Fact(f"{relation}:{subject.lemma}", relation, subject.lemma, chosen.lemma, subject.topic)
            )
    if len(facts) < n_facts:
        raise ValueError(f"n_facts is {n_facts}, expected at most {len(facts)}: raise n_names for more facts")
    return tuple(facts[:n_facts])
