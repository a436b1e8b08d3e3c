"""Verb phrases of the synthetic corpus: agreement, auxiliaries, and complements by the frame of a verb."""

from lmdyn.datamodules.grammar.discourse import Discourse, Tense
from lmdyn.datamodules.grammar.lexicon import Lexeme
from lmdyn.datamodules.grammar.phrases import (
    LOCATIVE,
    by_phrase,
    in_year,
    noun_phrase,
    prepositional_phrase,
    pronoun,
)
from lmdyn.datamodules.grammar.tree import Argument, Part, Phrase, Token, under

__all__ = ["EVENT_TAGS", "MODALS", "adjunct", "auxiliary", "verb_group", "verb_phrase", "wrap_auxiliaries"]

MODALS = (
    *(("will", "FUT"), ("will", "FUT"), ("can", "POS"), ("could", "POS"), ("may", "POS")),
    *(("would", "POS"), ("must", "NEC"), ("should", "NEC")),
)
_AUXILIARIES = {
    "be": {"VBZ": "is", "VBP": "are", "VB": "be", "VBN": "been", "VBG": "being"},
    "have": {"VBZ": "has", "VBP": "have", "VBD": "had", "VB": "have"},
    "do": {"VBZ": "does", "VBP": "do", "VBD": "did"},
}
EVENT_TAGS = {"VBZ": "ENS", "VBP": "ENS", "VBD": "EPS", "VB": "EXS", "VBG": "EXG", "VBN": "EXT"}
_FREE_ADVERBS = (
    ("never", "NOT", "ARGM-NEG"),
    ("often", "IST", "ARGM-TMP"),
    ("always", "AND", "ARGM-TMP"),
    ("only", "XCL", "ARGM-ADV"),
    ("again", "ALT", "ARGM-TMP"),
    ("here", "DXP", "ARGM-LOC"),
    ("there", "DXP", "ARGM-LOC"),
    ("now", "DXT", "ARGM-TMP"),
    ("today", "DXT", "ARGM-TMP"),
    ("soon", "DXT", "ARGM-TMP"),
    ("yesterday", "DXT", "ARGM-TMP"),
)
_PREVERBAL = 4  # the first four of the free adverbs stand before the verb


def auxiliary(lemma: str, form: str, plural: bool) -> Token:
    """Return a form of be, have or do; ``plural`` is the number of its subject."""
    word = ("were" if plural else "was") if lemma == "be" and form == "VBD" else _AUXILIARIES[lemma][form]
    return Token(word, "AUX", form, {"VBZ": "NOW", "VBP": "NOW", "VBD": "PST"}.get(form, "NIL"))


def verb_group(
    d: Discourse, plural: bool, tense: Tense, passive: bool, finite: bool, inverted: bool
) -> tuple[list[Token], str]:
    """Return auxiliaries and negation before a main verb, and the resulting form of the main verb."""
    form = "VBD" if tense == "past" else "VBP" if plural else "VBZ"
    if not finite:
        return ([auxiliary("be", "VB", plural)], "VBN") if passive else ([], "VB")
    modal = perfect = progressive = False
    u = d.u()
    if u > 0.68:
        modal = u < 0.80 or u > 0.98
        perfect = 0.80 <= u < 0.89 or u > 0.98
        progressive = 0.89 <= u < 0.98 and not passive
    group: list[Token] = []
    negated = d.u() < 0.07
    if modal:
        word, semtag = d.u.among(MODALS)
        group.append(Token(word, "AUX", "MD", semtag))
        form = "VB"
    elif (negated or inverted) and not (perfect or progressive or passive):
        group.append(auxiliary("do", form, plural))
        form = "VB"
    if perfect:
        group.append(auxiliary("have", form, plural))
        form = "VBN"
    if progressive or passive:
        group.append(auxiliary("be", form, plural))
        form = "VBG" if progressive else "VBN"
    if negated:
        group.insert(1, Token("not", "PART", "RB", "NOT"))
    return group, form


def wrap_auxiliaries(
    d: Discourse, group: list[Token], core: Phrase, copula: bool, passive: bool = False
) -> Phrase:
    """Nest the core under its auxiliaries and attach these to its head."""
    head = core.head
    last = len(group) - 1 - (group[-1].word == "not") if group else 0
    phrase = core
    pending: Token | None = None
    for i in range(len(group) - 1, -1, -1):
        token = group[i]
        if token.word == "not":
            pending = token
            under(token, head, "advmod")
            if not copula:
                d.roles.append((head, token, "ARGM-NEG"))
            continue
        if i == last and (copula or passive):
            under(token, head, "cop" if copula else "aux:pass")
        else:
            under(token, head, "aux")
        if token.xpos == "MD" and not copula:
            d.roles.append((head, token, "ARGM-MOD"))
        phrase = Phrase("VP", [token, phrase] if pending is None else [token, pending, phrase], head)
        pending = None
    return phrase


def verb_phrase(
    d: Discourse,
    lexeme: Lexeme,
    subject: Argument,
    tense: Tense,
    depth: int,
    banned: frozenset[int],
    passive: bool = False,
    finite: bool = True,
    inverted: bool = False,
    gap: Argument | None = None,
) -> Phrase:
    """Return the verb phrase of ``lexeme``: auxiliaries, complements by its frame, adjuncts, and their roles.

    With ``inverted`` the first auxiliary is the first part of the returned phrase's outermost VP; the caller
    moves it before the subject. ``gap`` represents an object that was moved away.
    """
    group, form = verb_group(d, subject.plural, tense, passive, finite, inverted)
    semtag = "EXS" if passive else EVENT_TAGS[form]
    verb = Token(lexeme.forms[form], "VERB", form, semtag)
    banned = banned | subject.named
    kind = lexeme.kind
    d.add_role(verb, subject, "ARG1" if passive or kind == "unaccusative" else "ARG0")
    parts: list[Part] = []
    u = d.u()
    if u < 0.10 and not inverted:
        parts.append(adverb(d, verb, before=True))
    parts.append(verb)
    if passive:
        if d.u() < 0.5:
            parts.append(by_phrase(d, verb, depth, banned))
    elif gap is not None:
        d.add_role(verb, gap, "ARG1")
    elif kind == "transitive":
        parts.append(direct_object(d, verb, lexeme, subject, depth, banned))
    elif kind == "ditransitive":
        parts.extend(two_objects(d, verb, lexeme, depth, banned))
    elif kind == "clausal":
        clause = complement_clause(d, verb, subject, depth - 1, banned)
        parts.append(clause)
    elif kind == "control":
        parts.append(infinitive(d, verb, subject, depth - 1, banned))
    elif depth > 0 and d.u() < 0.35:
        parts.append(adjunct(d, verb, (lexeme.preposition,), depth - 1, banned))
    if kind not in ("clausal", "control"):
        u = d.u()
        if u < 0.10:
            parts.append(adverb(d, verb, before=False))
        elif depth > 0 and u < 0.22:
            prepositions = (*LOCATIVE, "with", "for", "during", "after", "before")
            parts.append(adjunct(d, verb, prepositions, depth - 1, banned))
        elif depth > 0 and u < 0.25 and (tense == "past"):
            phrase = in_year(d)
            d.roles.append((verb, phrase, "ARGM-TMP"))
            parts.append(under(phrase, verb, "obl"))
    return wrap_auxiliaries(d, group, Phrase("VP", parts, verb), copula=False, passive=passive)


def adverb(d: Discourse, verb: Token, before: bool) -> Part:
    """Return an adverb phrase with its role, attached to the verb."""
    if d.u() < 0.5:
        lexeme = d.draw.adverbs(d.u(), d.topic)
        word, semtag, label = lexeme.lemma, "IST", "ARGM-MNR"
    else:
        word, semtag, label = d.u.among(_FREE_ADVERBS[:_PREVERBAL] if before else _FREE_ADVERBS[_PREVERBAL:])
    token = Token(word, "ADV", "RB", semtag)
    phrase = Phrase.of("ADVP", token)
    d.roles.append((verb, phrase, label))
    return under(phrase, verb, "advmod")


def adjunct(
    d: Discourse, verb: Token, prepositions: tuple[str, ...], depth: int, banned: frozenset[int]
) -> Part:
    """Return a prepositional phrase with its role, attached to the verb."""
    phrase, label = prepositional_phrase(d, prepositions, depth, banned)
    d.roles.append((verb, phrase, label))
    return under(phrase, verb, "obl")


def direct_object(
    d: Discourse, verb: Token, lexeme: Lexeme, subject: Argument, depth: int, banned: frozenset[int]
) -> Part:
    """Return the direct object: sometimes a reflexive, otherwise a noun phrase."""
    referent = subject.entity
    if referent is not None and d.u() < 0.04:
        phrase = pronoun(d, referent, 3)
    else:
        # mild selection: a verb prefers nouns of its own topic
        topic = lexeme.topic if d.u() < 0.3 else d.topic
        phrase = noun_phrase(d, "any" if d.u() < 0.6 else "thing", 1, depth, banned, topic).phrase
    d.roles.append((verb, phrase, "ARG1"))
    return under(phrase, verb, "obj")


def two_objects(d: Discourse, verb: Token, lexeme: Lexeme, depth: int, banned: frozenset[int]) -> list[Part]:
    """Return theme and recipient: *gave the man a book*, *gave a book to the man*."""
    if d.u() < 0.5:
        recipient = noun_phrase(d, "person", 1, 0, banned)
        banned = banned | recipient.named
        theme = noun_phrase(d, "thing", 1, depth, banned, lexeme.topic if d.u() < 0.3 else None)
        d.add_role(verb, theme, "ARG1")
        d.add_role(verb, recipient, "ARG2")
        return [under(recipient.phrase, verb, "iobj"), under(theme.phrase, verb, "obj")]
    theme = noun_phrase(d, "thing", 1, 0, banned, lexeme.topic if d.u() < 0.3 else None)
    banned = banned | theme.named
    recipient = noun_phrase(d, "person", 1, depth, banned)
    phrase = Phrase.after("to", recipient.phrase)
    d.add_role(verb, theme, "ARG1")
    d.roles.append((verb, phrase, "ARG2"))
    return [under(theme.phrase, verb, "obj"), under(phrase, verb, "obl")]


def complement_clause(
    d: Discourse, verb: Token, subject: Argument, depth: int, banned: frozenset[int]
) -> Part:
    """Return a finite clause as object, with or without *that*."""
    clause = d.clauses.finite(d, d.tense(), depth, banned, subject.entity)
    parts: list[Part] = [clause]
    if d.u() < 0.75:
        parts.insert(0, under(Token("that", "SCONJ", "IN", "SUB"), clause.head, "mark"))
    phrase = Phrase("SBAR", parts, clause.head)
    d.roles.append((verb, phrase, "ARG1"))
    return under(phrase, verb, "ccomp")


def infinitive(d: Discourse, verb: Token, subject: Argument, depth: int, banned: frozenset[int]) -> Part:
    """Return a to-infinitive whose understood subject is the subject of ``verb``."""
    frame = "simple" if depth < 1 or d.u() < 0.9 else "any"
    lexeme = d.draw.verbs[frame](d.u(), d.topic)
    vp = verb_phrase(d, lexeme, subject, "present", max(depth, 0), banned, finite=False)
    to = under(Token("to", "PART", "TO", "NIL"), vp.head, "mark")
    phrase = Phrase("S", [Phrase("VP", [to, vp], vp.head)], vp.head)
    d.roles.append((verb, phrase, "ARG1"))
    return under(phrase, verb, "xcomp")
