"""Clauses of the synthetic corpus: verbs with what their frames require, statements, and clauses on nouns."""

from lmdyn.datamodules.grammar.discourse import Discourse, Tense
from lmdyn.datamodules.grammar.lexicon import Lexeme
from lmdyn.datamodules.grammar.phrases import (
    LOCATIVE,
    attributive_adjectives,
    by_phrase,
    draw_adjective,
    in_year,
    noun_phrase,
    noun_token,
    prepositional_phrase,
    pronoun,
    with_article,
)
from lmdyn.datamodules.grammar.tree import Argument, Entity, Part, Phrase, Token, under

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
_LINKING = tuple(
    {"VB": base, "VBP": base, "VBZ": s, "VBD": past, "VBN": participle, "VBG": ing}
    for base, s, past, participle, ing in (
        ("seem", "seems", "seemed", "seemed", "seeming"),
        ("become", "becomes", "became", "become", "becoming"),
        ("remain", "remains", "remained", "remained", "remaining"),
    )
)
_AGENTIVE = frozenset(("clausal", "control", "ditransitive"))

# ---------------------------------------------------------------- verbs


def auxiliary(lemma: str, form: str, plural: bool) -> Token:
    """Return a form of be, have or do; ``plural`` is the number of its subject."""
    word = ("were" if plural else "was") if lemma == "be" and form == "VBD" else _AUXILIARIES[lemma][form]
    return Token(word, "AUX", form, {"VBZ": "NOW", "VBP": "NOW", "VBD": "PST"}.get(form, "NIL"))


def finite_form(tense: Tense, plural: bool) -> str:
    """Return the form of a finite verb."""
    if tense == "past":
        return "VBD"
    return "VBP" if plural else "VBZ"


def modal(d: Discourse) -> Token:
    """Return a modal verb."""
    word, semtag = d.u.among(MODALS)
    return Token(word, "AUX", "MD", semtag)


def negate(group: list[Token]) -> None:
    """Negate auxiliaries, after the first one."""
    group.insert(1, Token("not", "PART", "RB", "NOT"))


def verb_group(
    d: Discourse, plural: bool, tense: Tense, passive: bool = False, inverted: bool = False
) -> tuple[list[Token], str]:
    """Return auxiliaries and negation before a finite verb, and the resulting form of the main verb."""
    form = finite_form(tense, plural)
    u = d.u()
    perfect = 0.80 <= u < 0.89 or u > 0.98
    progressive = 0.89 <= u < 0.98 and not passive
    group: list[Token] = []
    negated = d.u() < 0.07
    if 0.68 < u < 0.80 or u > 0.98:
        group.append(modal(d))
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
        negate(group)
    return group, form


def wrap_auxiliaries(d: Discourse, group: list[Token], core: Phrase, relation: str = "aux") -> Phrase:
    """Nest the core under its auxiliaries and attach these to its head, the last one by ``relation``."""
    head, copula = core.head, relation == "cop"
    negation: list[Part] = []
    for token in reversed(group):
        role = {"RB": "ARGM-NEG", "MD": "ARGM-MOD"}.get(token.xpos)
        if role and not copula:
            d.roles.append((head, token, role))
        if token.xpos == "RB":
            negation = [under(token, head, "advmod")]
            continue
        core = Phrase("VP", [under(token, head, relation), *negation, core])
        relation, negation = "aux", []
    return core


def verb_phrase(
    d: Discourse,
    lexeme: Lexeme,
    subject: Argument,
    tense: Tense,
    passive: bool = False,
    finite: bool = True,
    inverted: bool = False,
    gap: Argument | None = None,
) -> Phrase:
    """Return the verb phrase of ``lexeme``: auxiliaries, complements by its frame, adjuncts, and their roles.

    With ``inverted`` the first auxiliary is the first part of the returned phrase's outermost VP; the caller
    moves it before the subject. ``gap`` represents an object that was moved away.
    """
    group, form = verb_group(d, subject.plural, tense, passive, inverted) if finite else ([], "VB")
    verb = Token(lexeme.forms[form], "VERB", form, "EXS" if passive else EVENT_TAGS[form])
    d = d.beside(subject)
    kind = lexeme.kind
    d.add_role(verb, subject, "ARG1" if passive or kind == "unaccusative" else "ARG0")
    parts: list[Part] = []
    u = d.u()
    if u < 0.10 and not inverted:
        parts.append(adverb(d, verb, before=True))
    parts.append(verb)
    if passive:
        if d.u() < 0.5:
            parts.append(by_phrase(d, verb))
    elif gap is not None:
        d.add_role(verb, gap, "ARG1")
    elif kind == "transitive":
        parts.append(direct_object(d, verb, lexeme, subject))
    elif kind == "ditransitive":
        parts.extend(two_objects(d, verb, lexeme))
    elif kind == "clausal":
        parts.append(complement_clause(d.below(), verb, subject))
    elif kind == "control":
        parts.append(infinitive(d.below(), verb, subject))
    elif d.depth > 0 and d.u() < 0.35:
        parts.append(adjunct(d.below(), verb, (lexeme.preposition,)))
    if kind not in ("clausal", "control"):
        u = d.u()
        if u < 0.10:
            parts.append(adverb(d, verb, before=False))
        elif d.depth > 0 and u < 0.22:
            parts.append(adjunct(d.below(), verb, (*LOCATIVE, "with", "for", "during", "after", "before")))
        elif d.depth > 0 and u < 0.25 and (tense == "past"):
            parts.append(d.dependent(in_year(d), verb, "obl", "ARGM-TMP"))
    return wrap_auxiliaries(d, group, Phrase("VP", parts, verb), "aux:pass" if passive else "aux")


def adverb(d: Discourse, verb: Token, before: bool) -> Part:
    """Return an adverb phrase with its role, attached to the verb."""
    if d.u() < 0.5:
        lexeme = d.draw.adverbs(d.u(), d.topic)
        word, semtag, label = lexeme.lemma, "IST", "ARGM-MNR"
    else:
        word, semtag, label = d.u.among(_FREE_ADVERBS[:_PREVERBAL] if before else _FREE_ADVERBS[_PREVERBAL:])
    return d.dependent(Phrase("ADVP", [Token(word, "ADV", "RB", semtag)]), verb, "advmod", label)


def adjunct(d: Discourse, verb: Token, prepositions: tuple[str, ...]) -> Part:
    """Return a prepositional phrase with its role, attached to the verb."""
    phrase, label = prepositional_phrase(d, prepositions)
    return d.dependent(phrase, verb, "obl", label)


def direct_object(d: Discourse, verb: Token, lexeme: Lexeme, subject: Argument) -> Part:
    """Return the direct object: sometimes a reflexive, otherwise a noun phrase."""
    if subject.entity is not None and d.u() < 0.04:
        phrase = pronoun(d, subject.entity, 3)
    else:
        # mild selection: a verb prefers nouns of its own topic
        topic = lexeme.topic if d.u() < 0.3 else d.topic
        phrase = noun_phrase(d, "any" if d.u() < 0.6 else "thing", 1, topic).phrase
    return d.dependent(phrase, verb, "obj", "ARG1")


def two_objects(d: Discourse, verb: Token, lexeme: Lexeme) -> list[Part]:
    """Return theme and recipient: *gave the man a book*, *gave a book to the man*."""
    if d.u() < 0.5:
        recipient = noun_phrase(d.at(0), "person", 1)
        theme = noun_phrase(d.beside(recipient), "thing", 1, lexeme.topic if d.u() < 0.3 else None)
        object_ = d.dependent(theme.phrase, verb, "obj", "ARG1")
        return [d.dependent(recipient.phrase, verb, "iobj", "ARG2"), object_]
    theme = noun_phrase(d.at(0), "thing", 1, lexeme.topic if d.u() < 0.3 else None)
    recipient = noun_phrase(d.beside(theme), "person", 1)
    return [
        d.dependent(theme.phrase, verb, "obj", "ARG1"),
        d.dependent(Phrase.after("to", recipient.phrase), verb, "obl", "ARG2"),
    ]


def complement_clause(d: Discourse, verb: Token, subject: Argument) -> Part:
    """Return a finite clause as object, with or without *that*."""
    clause = finite_clause(d, d.tense(), subject.entity)
    parts: list[Part] = [clause]
    if d.u() < 0.75:
        parts.insert(0, Token("that", "SCONJ", "IN", "SUB", clause.head, "mark"))
    return d.dependent(Phrase("SBAR", parts), verb, "ccomp", "ARG1")


def infinitive(d: Discourse, verb: Token, subject: Argument) -> Part:
    """Return a to-infinitive whose understood subject is the subject of ``verb``."""
    lexeme = d.verb("simple" if d.depth < 1 or d.u() < 0.9 else "any")
    vp = verb_phrase(d, lexeme, subject, "present", finite=False)
    to = Token("to", "PART", "TO", "NIL", vp.head, "mark")
    return d.dependent(Phrase("S", [Phrase("VP", [to, vp])]), verb, "xcomp", "ARG1")


# ---------------------------------------------------------------- clauses


def relative_clause(d: Discourse, modified: Argument, person: bool) -> Phrase:
    """Return a relative clause (SBAR) on a noun phrase (a person or not): on subject, object, or within a PP."""
    antecedent = modified.phrase
    plural = modified.plural
    entity = modified.entity
    u = d.u()
    tense = d.tense()
    if u < 0.55:  # subject relative
        marked = d.u() < (0.75 if person else 0.4)
        wh = wh_phrase(("who" if person else "which") if marked else "that", "REL")
        verb = d.verb("transitive" if d.u() < 0.6 else "simple")
        subject = Argument(wh, plural, entity, ((antecedent, ""), (wh, "R-")))
        passive = verb.kind == "transitive" and (not person or d.u() < 0.15) and d.u() < 0.5
        vp = verb_phrase(d, verb, subject, tense, passive)
        under(wh, vp.head, "nsubj:pass" if passive else "nsubj")
        return Phrase("SBAR", [wh, Phrase("S", [vp])])
    marked_word = "whom" if person else "which"
    if u < 0.92:  # object relative
        u = d.u()
        subject = noun_phrase(d, "person")
        wh = wh_phrase(marked_word if u < 0.3 else "that", "REL")
        silent = u > 0.75
        spans = ((antecedent, ""),) if silent else ((antecedent, ""), (wh, "R-"))
        gap = Argument(wh, plural, entity, spans)
        vp = verb_phrase(d, d.verb("transitive"), subject, tense, gap=gap)
        clause = join_subject(subject.phrase, vp)
        return Phrase("SBAR", [clause] if silent else [under(wh, vp.head, "obj"), clause])
    # a relative pronoun inside a prepositional phrase
    wh = wh_phrase(marked_word, "REL")
    word = "with" if person else d.u.among(LOCATIVE)
    wh = Phrase("WHPP", [Token(word, "ADP", "IN", "REL", wh.head, "case"), wh])
    subject = noun_phrase(d, "person")
    vp = verb_phrase(d.at(0), d.verb("simple"), subject, tense)
    label = "ARGM-COM" if person else "ARGM-LOC"
    d.roles += [(vp.head, antecedent, label), (vp.head, wh, "R-" + label)]
    return Phrase("SBAR", [under(wh, vp.head, "obl"), join_subject(subject.phrase, vp)])


def wh_phrase(word: str, semtag: str) -> Phrase:
    """Return a wh-word and its phrase."""
    if word in ("where", "when", "why"):
        return Phrase("WHADVP", [Token(word, "ADV", "WRB", semtag)])
    return Phrase("WHNP", [Token(word, "PRON", "WDT" if word in ("that", "which") else "WP", semtag)])


def finite_clause(d: Discourse, tense: Tense, again: Entity | None = None, inverted: bool = False) -> Phrase:
    """Return a finite clause (S, or SQ with ``inverted``), without full stop.

    Args:
        d: the document so far; entities that are banned here can be named by a pronoun as subject.
        tense: tense of the finite verb, unless a modal replaces it.
        again: the subject of the clause above, a likely subject of this one, as a pronoun.
        inverted: whether to use the word order of a polar question.
    """
    u = d.u()
    if u < 0.80:
        return verbal_clause(d, tense, again, inverted)
    if u < 0.83 and not inverted:
        return existential_clause(d, tense)
    if u < 0.88 and not inverted:
        return linking_clause(d, tense, again)
    return copular_clause(d, tense, again, inverted)


def subject_phrase(d: Discourse, kind: str, again: Entity | None) -> Argument:
    """Return a subject noun phrase; the pronoun for ``again`` if it is unambiguous and fits."""
    if (
        again is not None
        and (kind == "any" or again.kind == kind)
        and d.salient.get(again.pronoun) is again
        and d.u() < 0.45
    ):
        return Argument(pronoun(d, again, 0), again.plural, again)
    return noun_phrase(d, kind)


def join_subject(subject: Phrase, vp: Phrase, relation: str = "nsubj", inverted: bool = False) -> Phrase:
    """Join subject and verb phrase; if inverted, the first auxiliary goes before the subject."""
    under(subject, vp.head, relation)
    if inverted:
        first, *rest = vp.parts
        # the rest of the outer VP: a negation and the inner VP (or the predicate after a copula)
        return Phrase("SQ", [first, subject, *rest], vp.head)
    return Phrase("S", [subject, vp])


def verbal_clause(d: Discourse, tense: Tense, again: Entity | None, inverted: bool) -> Phrase:
    """Return a clause of a full verb; its frame decides what its subject may be."""
    u = d.u
    lexeme = d.verb("any" if d.depth > 0 else "simple")
    passive = lexeme.kind == "transitive" and u() < 0.16
    if lexeme.kind in _AGENTIVE:
        kind = "person"
    elif passive or lexeme.kind == "unaccusative":
        kind = "any"
    else:
        kind = "person" if u() < 0.7 else "any"
    subject = subject_phrase(d, kind, again)
    vp = verb_phrase(d, lexeme, subject, tense, passive, inverted=inverted)
    if d.depth > 0 and not passive and not inverted and u() < 0.08:
        other = d.verb("simple")
        if other is not lexeme:
            second = verb_phrase(d.at(0), other, subject, tense)
            vp = Phrase.coordinated("VP", vp, second, u() < 0.12)
    return join_subject(subject.phrase, vp, "nsubj:pass" if passive else "nsubj", inverted)


def copular_clause(d: Discourse, tense: Tense, again: Entity | None, inverted: bool) -> Phrase:
    """Return a copular clause: *The dog is happy*, *is a friend*, *is in the garden*."""
    subject = subject_phrase(d, "any", again)
    d = d.beside(subject)
    u = d.u()
    predicate: Phrase
    if u < 0.62 or (subject.plural and u < 0.8):
        predicate = adjective_phrase(d)
    elif u < 0.8:
        kind = "person" if subject.phrase.head.semtag in ("PER", "ROL") else "thing"
        noun = noun_token(d.draw.nouns[kind](d.u(), d.topic), False)
        described = [*attributive_adjectives(d, noun), noun]
        article = with_article(Token("a", "DET", "DT", "DIS", noun, "det"), described[0])
        predicate = Phrase("NP", [article, *described])
    else:
        predicate, _ = prepositional_phrase(d.below(), LOCATIVE)
    form = finite_form(tense, subject.plural)
    group = [auxiliary("be", form, subject.plural)]
    u = d.u()
    if u < 0.10:
        group = [modal(d), auxiliary("be", "VB", subject.plural)]
    elif u < 0.16:
        group = [auxiliary("have", form, subject.plural), auxiliary("be", "VBN", subject.plural)]
    if d.u() < 0.08:
        negate(group)
    return join_subject(subject.phrase, wrap_auxiliaries(d, group, predicate, "cop"), inverted=inverted)


def linking_clause(d: Discourse, tense: Tense, again: Entity | None) -> Phrase:
    """Return a clause of *seem*, *become* or *remain* and an adjective."""
    subject = subject_phrase(d, "any", again)
    group, form = verb_group(d, subject.plural, tense)
    verb = Token(d.u.among(_LINKING)[form], "VERB", form, EVENT_TAGS[form])
    predicate = adjective_phrase(d)
    d.add_role(verb, subject, "ARG1")
    core = Phrase("VP", [verb, d.dependent(predicate, verb, "xcomp", "ARG2")], verb)
    return join_subject(subject.phrase, wrap_auxiliaries(d, group, core))


def existential_clause(d: Discourse, tense: Tense) -> Phrase:
    """Return an existential clause, *There is a dog in the garden*, whose verb agrees with the noun after it."""
    pivot = noun_phrase(d, indefinite=True)
    form = finite_form(tense, pivot.plural)
    verb = auxiliary("be", form, pivot.plural)
    verb.upos, verb.semtag = "VERB", EVENT_TAGS[form]
    parts: list[Part] = [verb, d.dependent(pivot.phrase, verb, "nsubj", "ARG1")]
    if d.u() < 0.5:
        parts.append(adjunct(d.at(0, pivot), verb, LOCATIVE))
    subject = Phrase("NP", [Token("there", "PRON", "EX", "NIL")])
    return join_subject(subject, Phrase("VP", parts, verb), "expl")


def adjective_phrase(d: Discourse) -> Phrase:
    """Return a predicative adjective with degree, comparison or coordination."""
    adjective = draw_adjective(d)
    u = d.u()
    if u < 0.55:
        return Phrase("ADJP", [adjective])
    if u < 0.80:
        word = "very" if u < 0.66 else "too" if u < 0.73 else "so"
        return Phrase("ADJP", [Token(word, "ADV", "RB", "INT", adjective, "advmod"), adjective])
    if u < 0.90:
        more = Token("more", "ADV", "RBR", "MOR", adjective, "advmod")
        standard = Phrase.after("than", noun_phrase(d.at(0), case=1).phrase)
        return Phrase("ADJP", [more, adjective, under(standard, adjective, "obl")], adjective)
    second = draw_adjective(d)
    if second.word == adjective.word:
        return Phrase("ADJP", [adjective])
    return Phrase.coordinated("ADJP", adjective, second, u >= 0.97)
