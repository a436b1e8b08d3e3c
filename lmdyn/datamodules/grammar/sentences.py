"""Whole sentences of the synthetic grammar: statements, questions, facts."""

from collections.abc import Callable

from lmdyn.datamodules.corpora.semtags import SEMTAG_COARSE
from lmdyn.datamodules.corpora.sentence import Constituent, Mention, Role, Sentence
from lmdyn.datamodules.grammar.clauses import (
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
    # word, fine semantic tag, role
    ("because", "SUB", "ARGM-CAU"),
    ("while", "SUB", "ARGM-TMP"),
    ("if", "IMP", "ARGM-ADV"),
    ("when", "IMP", "ARGM-TMP"),
    ("although", "SUB", "ARGM-ADV"),
    ("before", "SUB", "ARGM-TMP"),
    ("after", "SUB", "ARGM-TMP"),
)


def statement(d: Discourse) -> Phrase:
    """Return a declarative sentence, with optional fronted or coordinated parts."""
    tense = d.tense()
    u = d.u()
    if u < 0.72:
        return finite_clause(d.at(2), tense)
    if u < 0.82:
        return clause_coordination(d, tense)
    if u < 0.88:
        adverbial, label = adverbial_clause(d, None, tense)
        return fronted(d, adverbial, "advcl", label, finite_clause(d, tense))
    if u < 0.95:
        main = finite_clause(d, tense)
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
        return fronted(d, phrase, "obl", "ARGM-TMP", finite_clause(d, "past"))
    main = finite_clause(d, tense)
    word, semtag = d.u.among((("oh", "ITJ"), ("yes", "ITJ"), ("hello", "GRE"), ("well", "HES")))
    return fronted(d, Phrase("INTJ", [Token(word, "INTJ", "UH", semtag)]), "discourse", "", main)


def adverbial_role(d: Discourse, head: Token, phrase: Phrase, label: str) -> None:
    """Record an adverbial as an argument of the verb that it modifies."""
    if label and head.upos == "VERB":
        d.roles.append((head, phrase, label))


def fronted(d: Discourse, phrase: Phrase, relation: str, label: str, main: Phrase) -> Phrase:
    """Put a phrase and a comma in front of a clause."""
    adverbial_role(d, main.head, phrase, label)
    comma = Token(",", "PUNCT", ",", "NIL", phrase.head, "punct")
    main.parts[:0] = [under(phrase, main.head, relation), comma]
    return main


def adverbial_clause(d: Discourse, again: Entity | None, tense: Tense) -> tuple[Phrase, str]:
    """Return a subordinate clause of time, cause or condition, and its role."""
    word, semtag, label = d.u.among(_SUBORDINATORS)
    clause = finite_clause(d if again is None else d.beside(again), tense, again)
    head = clause.head
    if word == "when":
        mark = under(wh_phrase(word, semtag), head, "advmod")
    else:
        mark = Token(word, "SCONJ", "IN", semtag, head, "mark")
    return Phrase("SBAR", [mark, clause]), label


def clause_coordination(d: Discourse, tense: Tense) -> Phrase:
    """Return two main clauses joined by a conjunction."""
    first = finite_clause(d, tense)
    second = finite_clause(d, tense)
    word, semtag = d.u.among((("and", "COO"), ("and", "COO"), ("but", "BUT"), ("or", "DIS")))
    comma = Token(",", "PUNCT", ",", "NIL", second.head, "punct")
    joined = Token(word, "CCONJ", "CC", semtag, second.head, "cc")
    return Phrase("S", [first, comma, joined, under(second, first.head, "conj")], first.head)


def question(d: Discourse) -> Phrase:
    """Return a question, with a question word or a fronted auxiliary."""
    u = d.u()
    tense = d.tense()
    if u < 0.45:
        return finite_clause(d, tense, inverted=True)
    if u < 0.65:  # who sees the dog ?
        wh = wh_phrase("who", "QUE")
        vp = verb_phrase(d, d.verb("simple"), Argument(wh, False, None), tense)
        under(wh, vp.head, "nsubj")
        return Phrase("SBARQ", [wh, Phrase("SQ", [vp])])
    if u < 0.85:  # what did the dog see ?
        wh = wh_phrase(d.u.among(("what", "who", "whom")), "QUE")
        subject = noun_phrase(d, "person")
        gap = Argument(wh, False, None)
        vp = verb_phrase(d.at(0), d.verb("transitive"), subject, tense, inverted=True, gap=gap)
        clause = join_subject(subject.phrase, vp, inverted=True)
        return Phrase("SBARQ", [under(wh, vp.head, "obj"), clause])
    word, label = d.u.among((("where", "ARGM-LOC"), ("when", "ARGM-TMP"), ("why", "ARGM-CAU")))
    wh = wh_phrase(word, "QUE")
    kind = verbal_clause if word == "where" else finite_clause  # not for a predicate that is itself a place
    clause = kind(d, tense, None, inverted=True)
    adverbial_role(d, clause.head, wh, label)
    return Phrase("SBARQ", [under(wh, clause.head, "advmod"), clause])


def fact_statement(d: Discourse) -> tuple[Phrase, Fact]:
    """Return a sentence that states a fact of the knowledge base and ends with the fact's object."""
    fact: Fact = d.draw.facts(d.u(), d.topic)
    names = d.draw.names_by_lemma
    subject_lexeme = names[fact.subject]
    object_lexeme = names[fact.object]
    words = d.u.among(fact.templates).split()
    if words[0] == "the":
        return identity_fact(d, words[1], subject_lexeme, object_lexeme), fact
    subject = proper_name(d, subject_lexeme)
    word, *others, preposition = words[1:-2]
    passive = word in ("is", "was")
    form = "VBN" if passive else "VBZ"
    verb = Token(others[0] if passive else word, "VERB", form, "EXS" if passive else "ENS")
    parts: list[Part] = [verb]
    if word == "has":
        assert subject.entity is not None
        owned = Token(others[1], "NOUN", "NN", "CON")
        its = Token(PRONOUNS[subject.entity.pronoun][2], "PRON", "PRP$", "HAS", owned, "nmod:poss")
        d.mentions.append((its, subject.entity))
        parts.append(d.dependent(Phrase("NP", [its, owned]), verb, "obj", "ARG1"))
    phrase = Phrase.after(preposition, proper_name(d, object_lexeme).phrase)
    label = {"from": "ARG2", "for": "ARG2", "by": "ARG0"}.get(preposition, "ARGM-LOC")
    parts.append(d.dependent(phrase, verb, "obl:agent" if preposition == "by" else "obl", label))
    d.add_role(verb, subject, "ARG1" if passive or word == "comes" else "ARG0")
    group = [auxiliary("be", "VBD" if word == "was" else "VBZ", False)] if passive else []
    vp = wrap_auxiliaries(d, group, Phrase("VP", parts, verb), "aux:pass")
    return join_subject(subject.phrase, vp, "nsubj:pass" if passive else "nsubj"), fact


def identity_fact(d: Discourse, word: str, subject: Lexeme, value: Lexeme) -> Phrase:
    """Return a statement such as *the capital of X is Y*, *the founder of X is Y*, *the home of X is Y*."""
    noun = Token(word, "NOUN", "NN", "ROL" if word == "founder" else "CON")
    inner = Phrase("NP", [Token("the", "DET", "DT", "DEF", noun, "det"), noun])
    owner = under(Phrase.after("of", proper_name(d, subject).phrase), noun, "nmod")
    predicate = proper_name(d, value).phrase
    vp = wrap_auxiliaries(d, [auxiliary("be", "VBZ", False)], predicate, "cop")
    return join_subject(Phrase("NP", [inner, owner], noun), vp)


def write_sentence(d: Discourse, reorder: Callable[[Phrase], None]) -> Sentence:
    """Return the next sentence of the document, in the order of its language."""
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
    reorder(tree)
    tree.parts.append(Token(mark, "PUNCT", ".", semtag, tree.head, "punct"))
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
