"""Whole sentences of the synthetic grammar: statements, questions, facts."""

from lmdyn.datamodules.corpora.semtags import SEMTAG_COARSE
from lmdyn.datamodules.corpora.sentence import Constituent, Mention, Role, Sentence
from lmdyn.datamodules.grammar.clauses import (
    EVENT_TAGS,
    auxiliary,
    finite_clause,
    join_subject,
    verb_phrase,
    verbal_clause,
    wh_phrase,
    wrap_auxiliaries,
)
from lmdyn.datamodules.grammar.discourse import Discourse, Tense
from lmdyn.datamodules.grammar.lexicon import Fact, Lexeme
from lmdyn.datamodules.grammar.phrases import PRONOUNS, in_year, noun_phrase, proper_name
from lmdyn.datamodules.grammar.tree import Argument, Entity, Part, Phrase, Token, under

_SUBORDINATORS = (
    # word, xpos, upos, fine semantic tag, role
    ("because", "IN", "SCONJ", "SUB", "ARGM-CAU"),
    ("while", "IN", "SCONJ", "SUB", "ARGM-TMP"),
    ("if", "IN", "SCONJ", "IMP", "ARGM-ADV"),
    ("when", "WRB", "ADV", "IMP", "ARGM-TMP"),
    ("although", "IN", "SCONJ", "SUB", "ARGM-ADV"),
    ("before", "IN", "SCONJ", "SUB", "ARGM-TMP"),
    ("after", "IN", "SCONJ", "SUB", "ARGM-TMP"),
)


_STATEMENTS: dict[str, tuple[tuple[str, str, str, str] | None, ...]] = {
    # verb, its tag, a participle or noun, and the preposition of each statement; None: the ... of X is Y
    "capital_of": (None, ("has", "VBZ", "capital", "in")),
    "born_in": (("was", "VBD", "born", "in"), ("comes", "VBZ", "", "from")),
    "works_for": (("works", "VBZ", "", "for"), ("is", "VBZ", "employed", "by")),
    "based_in": (("is", "VBZ", "based", "in"), ("has", "VBZ", "office", "in")),
    "founded_by": (("was", "VBD", "founded", "by"), None),
    "lives_in": (("lives", "VBZ", "", "in"), None),
}


def statement(d: Discourse) -> Phrase:
    """Return a declarative sentence, with optional fronted or coordinated parts."""
    tense = d.tense()
    u = d.u()
    if u < 0.72:
        return finite_clause(d, tense, 2)
    if u < 0.82:
        return clause_coordination(d, tense)
    if u < 0.88:
        adverbial, label = adverbial_clause(d, None, tense)
        main = finite_clause(d, tense, 1)
        return fronted(d, adverbial, "advcl", label, main)
    if u < 0.95:
        main = finite_clause(d, tense, 1)
        nominal = main.parts[0]
        again = next((e for p, e in reversed(d.mentions) if p is nominal), None)
        adverbial, label = adverbial_clause(d, again, tense)
        adverbial_role(d, main.head, adverbial, label)
        last = main.parts[-1]
        assert isinstance(last, Phrase)
        coordinated = isinstance(last.parts[0], Phrase) and last.parts[0].label == "VP"
        (main if coordinated else last).parts.append(under(adverbial, main.head, "advcl"))
        return main
    if u < 0.98:
        phrase = in_year(d)
        return fronted(d, phrase, "obl", "ARGM-TMP", finite_clause(d, "past", 1))
    main = finite_clause(d, tense, 1)
    word, semtag = d.u.among((("oh", "ITJ"), ("yes", "ITJ"), ("hello", "GRE"), ("well", "HES")))
    token = Token(word, "INTJ", "UH", semtag)
    return fronted(d, Phrase.of("INTJ", token), "discourse", "", main)


def adverbial_role(d: Discourse, head: Token, phrase: Phrase, label: str) -> None:
    """Record an adverbial as an argument of the verb that it modifies."""
    if label and head.upos == "VERB":
        d.roles.append((head, phrase, label))


def fronted(d: Discourse, phrase: Phrase, relation: str, label: str, main: Phrase) -> Phrase:
    """Put a phrase and a comma in front of a clause."""
    adverbial_role(d, main.head, phrase, label)
    comma = under(Token(",", "PUNCT", ",", "NIL"), phrase.head, "punct")
    main.parts[:0] = [under(phrase, main.head, relation), comma]
    return main


def adverbial_clause(d: Discourse, again: Entity | None, tense: Tense) -> tuple[Phrase, str]:
    """Return a subordinate clause of time, cause or condition, and its role."""
    word, xpos, upos, semtag, label = d.u.among(_SUBORDINATORS)
    banned = frozenset() if again is None else frozenset((again.id, *again.members))
    clause = finite_clause(d, tense, 1, banned, again)
    relation = "advmod" if upos == "ADV" else "mark"
    token = Token(word, upos, xpos, semtag)
    mark: Part = Phrase.of("WHADVP", token) if upos == "ADV" else token
    return Phrase("SBAR", [under(mark, clause.head, relation), clause], clause.head), label


def clause_coordination(d: Discourse, tense: Tense) -> Phrase:
    """Return two main clauses joined by a conjunction."""
    first = finite_clause(d, tense, 1)
    second = finite_clause(d, tense, 1)
    word, semtag = d.u.among((("and", "COO"), ("and", "COO"), ("but", "BUT"), ("or", "DIS")))
    comma = under(Token(",", "PUNCT", ",", "NIL"), second.head, "punct")
    joined = Token.conjunction(word, semtag, second.head)
    return Phrase("S", [first, comma, joined, under(second, first.head, "conj")], first.head)


def question(d: Discourse) -> Phrase:
    """Return a question, with a question word or a fronted auxiliary."""
    u = d.u()
    tense = d.tense()
    if u < 0.45:
        return finite_clause(d, tense, 1, inverted=True)
    if u < 0.65:  # who sees the dog ?
        wh = wh_phrase("who", "WP", "QUE")
        lexeme = d.draw.verbs["simple"](d.u(), d.topic)
        vp = verb_phrase(d, lexeme, Argument(wh, False, None), tense, 1, frozenset())
        under(wh, vp.head, "nsubj")
        return Phrase("SBARQ", [wh, Phrase("SQ", [vp], vp.head)], vp.head)
    if u < 0.85:  # what did the dog see ?
        wh = wh_phrase(d.u.among(("what", "who", "whom")), "WP", "QUE")
        subject = noun_phrase(d, "person", 0, 1)
        gap = Argument(wh, False, None)
        verb = d.draw.verbs["transitive"](d.u(), d.topic)
        vp = verb_phrase(d, verb, subject, tense, 0, frozenset(), inverted=True, gap=gap)
        clause = join_subject(subject, "nsubj", vp, inverted=True)
        return Phrase("SBARQ", [under(wh, vp.head, "obj"), clause], vp.head)
    word, label = d.u.among((("where", "ARGM-LOC"), ("when", "ARGM-TMP"), ("why", "ARGM-CAU")))
    wh = wh_phrase(word, "WRB", "QUE")
    if word == "where":  # not for a predicate that is itself a place
        clause = verbal_clause(d, tense, 1, frozenset(), None, inverted=True)
    else:
        clause = finite_clause(d, tense, 1, inverted=True)
    adverbial_role(d, clause.head, wh, label)
    return Phrase("SBARQ", [under(wh, clause.head, "advmod"), clause], clause.head)


def fact_statement(d: Discourse) -> tuple[Phrase, Fact]:
    """Return a sentence that states a fact of the knowledge base and ends with the fact's object."""
    fact: Fact = d.draw.facts(d.u(), d.topic)
    relation = fact.relation
    template = int(d.u() * len(fact.templates))
    names = d.draw.names_by_lemma
    subject_lexeme, object_lexeme = names[fact.subject], names[fact.object]
    stated = _STATEMENTS[relation][template]
    if stated is None:
        return identity_fact(d, relation, subject_lexeme, object_lexeme), fact
    subject = proper_name(d, subject_lexeme)
    copula_or_verb, xpos, relation_word, preposition = stated
    owned: Token | None = None
    if copula_or_verb in ("is", "was"):
        verb = Token(relation_word, "VERB", "VBN", "EXS")
    else:
        verb = Token(copula_or_verb, "VERB", xpos, EVENT_TAGS[xpos])
    parts: list[Part] = [verb]
    passive = verb.xpos == "VBN"
    if verb.word == "has":
        assert subject.entity is not None
        owned = Token(relation_word, "NOUN", "NN", "CON")
        its = Token(PRONOUNS[subject.entity.pronoun][2], "PRON", "PRP$", "HAS")
        d.mentions.append((its, subject.entity))
        phrase = Phrase("NP", [under(its, owned, "nmod:poss"), owned], owned)
        parts.append(d.dependent(phrase, verb, "obj", "ARG1"))
    value = proper_name(d, object_lexeme)
    phrase = Phrase.after(preposition, value.phrase)
    label = {"from": "ARG2", "for": "ARG2", "by": "ARG0"}.get(preposition, "ARGM-LOC")
    parts.append(d.dependent(phrase, verb, "obl:agent" if preposition == "by" else "obl", label))
    d.add_role(verb, subject, "ARG1" if passive or verb.word == "comes" else "ARG0")
    group = [auxiliary("be", xpos, False)] if passive else []
    vp = wrap_auxiliaries(d, group, Phrase("VP", parts, verb), copula=False, passive=passive)
    return join_subject(subject, "nsubj:pass" if passive else "nsubj", vp, inverted=False), fact


def identity_fact(d: Discourse, relation: str, subject: Lexeme, value: Lexeme) -> Phrase:
    """Return a statement such as *the capital of X is Y*, *the founder of X is Y*, *the home of X is Y*."""
    word, semtag = {"capital_of": ("capital", "CON"), "founded_by": ("founder", "ROL")}.get(
        relation, ("home", "CON")
    )
    noun = Token(word, "NOUN", "NN", semtag)
    inner = Phrase("NP", [under(Token("the", "DET", "DT", "DEF"), noun, "det"), noun], noun)
    owner = proper_name(d, subject)
    pp = under(Phrase.after("of", owner.phrase), noun, "nmod")
    described = Argument(Phrase("NP", [inner, pp], noun), False, None)
    predicate = proper_name(d, value).phrase
    vp = wrap_auxiliaries(d, [auxiliary("be", "VBZ", False)], predicate, copula=True)
    return join_subject(described, "nsubj", vp, inverted=False)


def write_sentence(d: Discourse) -> Sentence:
    """Return the next sentence of the document."""
    d.roles, d.mentions = [], []
    facts: tuple[str, ...] = ()
    u = d.u()
    mark, semtag = ".", "NIL"
    if u < d.draw.fact_rate:
        tree, fact = fact_statement(d)
        facts = (fact.id,)
    elif u < d.draw.fact_rate + 0.06:
        tree = question(d)
        mark, semtag = "?", "QUE"
    else:
        tree = statement(d)
    tree.parts.append(under(Token(mark, "PUNCT", ".", semtag), tree.head, "punct"))
    return _linearized(tree, d, facts)


def _linearized(tree: Phrase, d: Discourse, facts: tuple[str, ...]) -> Sentence:
    """Return the sentence of a tree; all layers are read from the tree."""
    tokens: list[Token] = []
    phrases: list[Phrase] = []
    _number(tree, tokens, phrases)
    words, upos, xpos, semtag = zip(*[(t.word, t.upos, t.xpos, t.semtag) for t in tokens], strict=True)
    return Sentence(
        words=words,
        upos=upos,
        xpos=xpos,
        semtag=semtag,
        semtag_coarse=tuple([SEMTAG_COARSE[t.semtag] for t in tokens]),
        heads=tuple([-1 if t.governor is None else t.governor.start for t in tokens]),
        deprels=tuple([t.relation for t in tokens]),
        constituents=tuple([Constituent(p.start, p.end, p.label) for p in phrases]),
        roles=tuple([Role(v.start, p.start, p.end, label) for v, p, label in d.roles]),
        mentions=tuple(
            sorted([Mention(p.start, p.end, e.id) for p, e in d.mentions], key=lambda m: (m.start, -m.end))
        ),
        topic=d.draw.topics[d.topic],
        facts=facts,
    )


def _number(phrase: Phrase, tokens: list[Token], phrases: list[Phrase]) -> None:
    """Assign positions to tokens and phrases, in one traversal from left to right."""
    phrases.append(phrase)
    phrase.start = len(tokens)
    for part in phrase.parts:
        if isinstance(part, Token):
            part.start = len(tokens)
            tokens.append(part)
            part.end = len(tokens)
        else:
            _number(part, tokens, phrases)
    phrase.end = len(tokens)
