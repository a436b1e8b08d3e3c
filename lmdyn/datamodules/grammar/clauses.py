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
        parts.append(complement_clause(d, verb, subject, depth - 1, banned))
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
            parts.append(d.dependent(in_year(d), verb, "obl", "ARGM-TMP"))
    return wrap_auxiliaries(d, group, Phrase("VP", parts, verb), copula=False, passive=passive)


def adverb(d: Discourse, verb: Token, before: bool) -> Part:
    """Return an adverb phrase with its role, attached to the verb."""
    if d.u() < 0.5:
        lexeme = d.draw.adverbs(d.u(), d.topic)
        word, semtag, label = lexeme.lemma, "IST", "ARGM-MNR"
    else:
        word, semtag, label = d.u.among(_FREE_ADVERBS[:_PREVERBAL] if before else _FREE_ADVERBS[_PREVERBAL:])
    token = Token(word, "ADV", "RB", semtag)
    return d.dependent(Phrase.of("ADVP", token), verb, "advmod", label)


def adjunct(
    d: Discourse, verb: Token, prepositions: tuple[str, ...], depth: int, banned: frozenset[int]
) -> Part:
    """Return a prepositional phrase with its role, attached to the verb."""
    phrase, label = prepositional_phrase(d, prepositions, depth, banned)
    return d.dependent(phrase, verb, "obl", label)


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
    return d.dependent(phrase, verb, "obj", "ARG1")


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
    d.add_role(verb, theme, "ARG1")
    to = d.dependent(Phrase.after("to", recipient.phrase), verb, "obl", "ARG2")
    return [under(theme.phrase, verb, "obj"), to]


def complement_clause(
    d: Discourse, verb: Token, subject: Argument, depth: int, banned: frozenset[int]
) -> Part:
    """Return a finite clause as object, with or without *that*."""
    clause = finite_clause(d, d.tense(), depth, banned, subject.entity)
    parts: list[Part] = [clause]
    if d.u() < 0.75:
        parts.insert(0, under(Token("that", "SCONJ", "IN", "SUB"), clause.head, "mark"))
    phrase = Phrase("SBAR", parts, clause.head)
    return d.dependent(phrase, verb, "ccomp", "ARG1")


def infinitive(d: Discourse, verb: Token, subject: Argument, depth: int, banned: frozenset[int]) -> Part:
    """Return a to-infinitive whose understood subject is the subject of ``verb``."""
    frame = "simple" if depth < 1 or d.u() < 0.9 else "any"
    lexeme = d.draw.verbs[frame](d.u(), d.topic)
    vp = verb_phrase(d, lexeme, subject, "present", max(depth, 0), banned, finite=False)
    to = under(Token("to", "PART", "TO", "NIL"), vp.head, "mark")
    phrase = Phrase("S", [Phrase("VP", [to, vp], vp.head)], vp.head)
    return d.dependent(phrase, verb, "xcomp", "ARG1")


# ---------------------------------------------------------------- clauses


def relative_clause(
    d: Discourse, modified: Argument, person: bool, depth: int, banned: frozenset[int]
) -> Phrase:
    """Return a relative clause (SBAR) on a noun phrase (a person or not): on subject, object, or within a PP."""
    antecedent, plural, entity = modified.phrase, modified.plural, modified.entity
    u = d.u()
    tense = d.tense()
    if u < 0.55:  # subject relative
        word, xpos = ("who", "WP") if person and d.u() < 0.75 else ("that", "WDT")
        if not person and d.u() < 0.4:
            word = "which"
        wh = wh_phrase(word, xpos, "REL")
        frame = "transitive" if d.u() < 0.6 else "simple"
        verb = d.draw.verbs[frame](d.u(), d.topic)
        subject = Argument(wh, plural, entity, ((antecedent, ""), (wh, "R-")))
        passive = verb.kind == "transitive" and (not person or d.u() < 0.15) and d.u() < 0.5
        vp = verb_phrase(d, verb, subject, tense, depth, banned, passive=passive)
        under(wh, vp.head, "nsubj:pass" if passive else "nsubj")
        return Phrase("SBAR", [wh, Phrase("S", [vp], vp.head)], vp.head)
    if u < 0.92:  # object relative
        u = d.u()
        word, xpos = ("whom", "WP") if person and u < 0.3 else ("that", "WDT")
        if not person and u < 0.3:
            word = "which"
        silent = u > 0.75
        subject = noun_phrase(d, "person", 0, depth, banned)
        verb = d.draw.verbs["transitive"](d.u(), d.topic)
        wh = wh_phrase(word, xpos, "REL")
        spans = ((antecedent, ""),) if silent else ((antecedent, ""), (wh, "R-"))
        vp = verb_phrase(d, verb, subject, tense, depth, banned, gap=Argument(wh, plural, entity, spans))
        s = Phrase("S", [under(subject.phrase, vp.head, "nsubj"), vp], vp.head)
        return Phrase("SBAR", [s] if silent else [under(wh, vp.head, "obj"), s], vp.head)
    # a relative pronoun inside a prepositional phrase
    word, xpos = ("whom", "WP") if person else ("which", "WDT")
    wh = wh_phrase(word, xpos, "REL")
    preposition = Token("with" if person else d.u.among(LOCATIVE), "ADP", "IN", "REL")
    wh = Phrase("WHPP", [under(preposition, wh.head, "case"), wh], wh.head)
    subject = noun_phrase(d, "person", 0, depth, banned)
    verb = d.draw.verbs["simple"](d.u(), d.topic)
    vp = verb_phrase(d, verb, subject, tense, 0, banned)
    label = "ARGM-COM" if person else "ARGM-LOC"
    d.roles += [(vp.head, antecedent, label), (vp.head, wh, "R-" + label)]
    s = Phrase("S", [under(subject.phrase, vp.head, "nsubj"), vp], vp.head)
    return Phrase("SBAR", [under(wh, vp.head, "obl"), s], vp.head)


def wh_phrase(word: str, xpos: str, semtag: str) -> Phrase:
    """Return a wh-word and its phrase."""
    token = Token(word, "ADV" if xpos == "WRB" else "PRON", xpos, semtag)
    return Phrase.of("WHADVP" if xpos == "WRB" else "WHNP", token)


def finite_clause(
    d: Discourse,
    tense: Tense,
    depth: int,
    banned: frozenset[int] = frozenset(),
    again: Entity | None = None,
    inverted: bool = False,
) -> Phrase:
    """Return a finite clause (S, or SQ with ``inverted``), without full stop.

    Args:
        d: the document so far.
        tense: tense of the finite verb, unless a modal replaces it.
        depth: levels of embedding and modification still allowed.
        banned: entities that only a pronoun subject could name here.
        again: the subject of the clause above, a likely subject of this one, as a pronoun.
        inverted: whether to use the word order of a polar question.
    """
    u = d.u()
    if u < 0.80:
        return verbal_clause(d, tense, depth, banned, again, inverted)
    if u < 0.83 and not inverted:
        return existential_clause(d, tense, depth, banned)
    if u < 0.88 and not inverted:
        return linking_clause(d, tense, depth, banned, again)
    return copular_clause(d, tense, depth, banned, again, inverted)


def subject_phrase(
    d: Discourse, kind: str, depth: int, banned: frozenset[int], again: Entity | None
) -> Argument:
    """Return a subject noun phrase; the pronoun for ``again`` if it is unambiguous and fits."""
    if (
        again is not None
        and (kind == "any" or again.kind == kind)
        and d.salient.get(again.pronoun) is again
        and d.u() < 0.45
    ):
        return Argument(pronoun(d, again, 0), again.plural, again)
    return noun_phrase(d, kind, 0, depth, banned)


def join_subject(subject: Argument, relation: str, vp: Phrase, inverted: bool) -> Phrase:
    """Join subject and verb phrase; if inverted, the first auxiliary goes before the subject."""
    under(subject.phrase, vp.head, relation)
    if inverted:
        first, *rest = vp.parts
        # the rest of the outer VP: a negation and the inner VP (or the predicate after a copula)
        return Phrase("SQ", [first, subject.phrase, *rest], vp.head)
    return Phrase("S", [subject.phrase, vp], vp.head)


def verbal_clause(
    d: Discourse, tense: Tense, depth: int, banned: frozenset[int], again: Entity | None, inverted: bool
) -> Phrase:
    """Return a clause of a full verb; its frame decides what its subject may be."""
    u = d.u
    lexeme = d.draw.verbs["any" if depth > 0 else "simple"](u(), d.topic)
    passive = lexeme.kind == "transitive" and u() < 0.16
    if lexeme.kind in _AGENTIVE:
        kind = "person"
    elif passive or lexeme.kind == "unaccusative":
        kind = "any"
    else:
        kind = "person" if u() < 0.7 else "any"
    subject = subject_phrase(d, kind, depth, banned, again)
    vp = verb_phrase(d, lexeme, subject, tense, depth, banned, passive=passive, inverted=inverted)
    if depth > 0 and not passive and not inverted and u() < 0.08:
        other = d.draw.verbs["simple"](u(), d.topic)
        if other is not lexeme:
            second = verb_phrase(d, other, subject, tense, 0, banned)
            vp = Phrase.coordinated("VP", vp, second, u() < 0.12)
    return join_subject(subject, "nsubj:pass" if passive else "nsubj", vp, inverted)


def copular_clause(
    d: Discourse, tense: Tense, depth: int, banned: frozenset[int], again: Entity | None, inverted: bool
) -> Phrase:
    """Return a copular clause: *The dog is happy*, *is a friend*, *is in the garden*."""
    subject = subject_phrase(d, "any", depth, banned, again)
    banned = banned | subject.named
    u = d.u()
    predicate: Phrase
    if u < 0.62 or (subject.plural and u < 0.8):
        predicate = adjective_phrase(d, banned)
    elif u < 0.8:
        kind = "person" if subject.phrase.head.semtag in ("PER", "ROL") else "thing"
        noun = noun_token(d.draw.nouns[kind](d.u(), d.topic), False)
        described = [*attributive_adjectives(d, noun), noun]
        article = with_article(Token("a", "DET", "DT", "DIS"), described[0])
        predicate = Phrase("NP", [under(article, noun, "det"), *described], noun)
    else:
        predicate, _ = prepositional_phrase(d, LOCATIVE, max(depth - 1, 0), banned)
    form = "VBD" if tense == "past" else "VBP" if subject.plural else "VBZ"
    group = [auxiliary("be", form, subject.plural)]
    u = d.u()
    if u < 0.10:
        word, semtag = d.u.among(MODALS)
        group = [Token(word, "AUX", "MD", semtag), auxiliary("be", "VB", subject.plural)]
    elif u < 0.16:
        group = [auxiliary("have", form, subject.plural), auxiliary("be", "VBN", subject.plural)]
    if d.u() < 0.08:
        group.insert(1, Token("not", "PART", "RB", "NOT"))
    vp = wrap_auxiliaries(d, group, predicate, copula=True)
    return join_subject(subject, "nsubj", vp, inverted)


def linking_clause(
    d: Discourse, tense: Tense, depth: int, banned: frozenset[int], again: Entity | None
) -> Phrase:
    """Return a clause of *seem*, *become* or *remain* and an adjective."""
    subject = subject_phrase(d, "any", depth, banned, again)
    group, form = verb_group(d, subject.plural, tense, passive=False, finite=True, inverted=False)
    verb = Token(d.u.among(_LINKING)[form], "VERB", form, EVENT_TAGS[form])
    predicate = adjective_phrase(d, banned)
    d.add_role(verb, subject, "ARG1")
    core = Phrase("VP", [verb, d.dependent(predicate, verb, "xcomp", "ARG2")], verb)
    return join_subject(subject, "nsubj", wrap_auxiliaries(d, group, core, copula=False), inverted=False)


def existential_clause(d: Discourse, tense: Tense, depth: int, banned: frozenset[int]) -> Phrase:
    """Return an existential clause, *There is a dog in the garden*, whose verb agrees with the noun after it."""
    pivot = noun_phrase(d, "any", 0, depth, banned, indefinite=True)
    form = "VBD" if tense == "past" else "VBP" if pivot.plural else "VBZ"
    verb = auxiliary("be", form, pivot.plural)
    verb.upos, verb.semtag = "VERB", EVENT_TAGS[form]
    parts: list[Part] = [verb, under(pivot.phrase, verb, "nsubj")]
    d.add_role(verb, pivot, "ARG1")
    if d.u() < 0.5:
        parts.append(adjunct(d, verb, LOCATIVE, 0, banned | pivot.named))
    there = Token("there", "PRON", "EX", "NIL")
    subject = under(Phrase.of("NP", there), verb, "expl")
    return Phrase("S", [subject, Phrase("VP", parts, verb)], verb)


def adjective_phrase(d: Discourse, banned: frozenset[int]) -> Phrase:
    """Return a predicative adjective with degree, comparison or coordination."""
    adjective = draw_adjective(d)
    u = d.u()
    if u < 0.55:
        return Phrase.of("ADJP", adjective)
    if u < 0.80:
        word = "very" if u < 0.66 else "too" if u < 0.73 else "so"
        degree = under(Token(word, "ADV", "RB", "INT"), adjective, "advmod")
        return Phrase("ADJP", [degree, adjective], adjective)
    if u < 0.90:
        more = under(Token("more", "ADV", "RBR", "MOR"), adjective, "advmod")
        standard = noun_phrase(d, "any", 1, 0, banned)
        phrase = Phrase.after("than", standard.phrase)
        return Phrase("ADJP", [more, adjective, under(phrase, adjective, "obl")], adjective)
    second = draw_adjective(d)
    if second.word == adjective.word:
        return Phrase.of("ADJP", adjective)
    return Phrase.coordinated("ADJP", adjective, second, u >= 0.97)
