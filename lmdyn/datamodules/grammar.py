"""A synthetic corpus with complete gold annotation: the model organism of lmdyn.

A seeded grammar writes English-like documents. Closed-class words are real, open-class words are pseudo-words
drawn from Zipfian distributions that depend on the document's topic. Each sentence is composed bottom up as one
tree whose nodes know their words, label and head, so that all annotation layers are views of the same tree.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np

from lmdyn.datamodules.grammar_lexicon import (
    CLOSED_CLASS,
    SEMTAG_COARSE,
    YEARS,
    Fact,
    Lexeme,
    Sampler,
    Uniforms,
    build_facts,
    build_lexemes,
)
from lmdyn.datamodules.sentence import Constituent, Document, Mention, Role, Sentence

__all__ = ["SPLITS", "VERSION", "Fact", "Grammar", "Lexeme"]

VERSION = 1
"""Raised whenever the same settings give other documents: part of every cache key."""

SPLITS = ("train", "validation", "test")

Tense = Literal["past", "present"]


class _Token:
    """A word on its way into a sentence, with its labels; ``governor`` and ``relation`` come with attachment."""

    __slots__ = ("end", "governor", "relation", "semtag", "start", "upos", "word", "xpos")

    def __init__(self, word: str, upos: str, xpos: str, semtag: str) -> None:
        self.word = word
        self.upos = upos
        self.xpos = xpos
        self.semtag = semtag
        self.governor: _Token | None = None
        self.relation = "root"
        self.start = self.end = -1


class _Phrase:
    """A constituent: a label, its parts in order, and the token that heads it."""

    __slots__ = ("end", "head", "label", "parts", "start")

    def __init__(self, label: str, parts: "list[_Token | _Phrase]", head: _Token) -> None:
        self.label = label
        self.parts = parts
        self.head = head
        self.start = self.end = -1


_Part = _Token | _Phrase


def _under(part: _Part, head: _Token, relation: str) -> _Part:
    """Makes the part a dependent of ``head``."""
    token = part if isinstance(part, _Token) else part.head
    token.governor = head
    token.relation = relation
    return part


class _Entity:
    """A discourse referent. ``pronoun`` is he, she, it or they; ``members`` the parts of a coordinated group."""

    __slots__ = ("id", "kind", "lexeme", "members", "plural", "pronoun")

    def __init__(self, id: int, lexeme: Lexeme | None, plural: bool, members: tuple[int, ...] = ()) -> None:
        self.id = id
        self.lexeme = lexeme
        self.plural = plural
        self.members = members
        self.kind = lexeme.kind if lexeme else "person"
        self.pronoun = "they" if plural or lexeme is None else lexeme.gender


class _Argument:
    """What a predicate needs to know of its argument: number, referent, and the phrases that carry its role.

    ``spans`` pairs each phrase with a prefix of its role label: an argument that a relative pronoun stands for is
    the antecedent (``""``) and the pronoun (``R-``).
    """

    __slots__ = ("entity", "phrase", "plural", "spans")

    def __init__(
        self,
        phrase: _Phrase,
        plural: bool,
        entity: _Entity | None,
        spans: tuple[tuple[_Phrase, str], ...] | None = None,
    ) -> None:
        self.phrase = phrase
        self.plural = plural
        self.entity = entity
        self.spans = spans or ((phrase, ""),)


_PRONOUNS = {
    # nominative, accusative, possessive, reflexive
    "he": ("he", "him", "his", "himself"),
    "she": ("she", "her", "her", "herself"),
    "it": ("it", "it", "its", "itself"),
    "they": ("they", "them", "their", "themselves"),
}
_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "twenty")
_MODALS = (
    *(("will", "FUT"), ("will", "FUT"), ("can", "POS"), ("could", "POS"), ("may", "POS")),
    *(("would", "POS"), ("must", "NEC"), ("should", "NEC")),
)
_AUXILIARIES = {
    "be": {"VBZ": "is", "VBP": "are", "VB": "be", "VBN": "been", "VBG": "being"},
    "have": {"VBZ": "has", "VBP": "have", "VBD": "had", "VB": "have"},
    "do": {"VBZ": "does", "VBP": "do", "VBD": "did"},
}
_LINKING = tuple(
    {"VB": base, "VBP": base, "VBZ": s, "VBD": past, "VBN": participle, "VBG": ing}
    for base, s, past, participle, ing in (
        ("seem", "seems", "seemed", "seemed", "seeming"),
        ("become", "becomes", "became", "become", "becoming"),
        ("remain", "remains", "remained", "remained", "remaining"),
    )
)
_EVENT_TAGS = {"VBZ": "ENS", "VBP": "ENS", "VBD": "EPS", "VB": "EXS", "VBG": "EXG", "VBN": "EXT"}
_NAME_TAGS = {"person": "PER", "city": "GPE", "country": "GPE", "org": "ORG"}
_SINGULAR_DETERMINERS = (
    (0.42, "a", "DIS"),
    (0.74, "the", "DEF"),
    (0.80, "this", "PRX"),
    (0.86, "that", "DST"),
    (0.91, "every", "AND"),
    (0.96, "another", "ALT"),
    (1.00, "no", "NOT"),
)
_PLURAL_DETERMINERS = (
    (0.34, "the", "DEF"),
    (0.56, "", ""),
    (0.66, "some", "DIS"),
    (0.72, "these", "PRX"),
    (0.78, "those", "DST"),
    (0.82, "all", "AND"),
    (0.85, "many", "QUV"),
    (0.87, "few", "QUV"),
    (0.90, "several", "QUV"),
    (1.00, "#", "QUC"),
)
_ANAPHORIC = frozenset(("the", "this", "that", "these", "those"))
_LOCATIVE = ("in", "in", "at", "near", "on", "behind")
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
_FREE_ADVERBS = (
    ("often", "IST", "ARGM-TMP"),
    ("always", "AND", "ARGM-TMP"),
    ("never", "NOT", "ARGM-NEG"),
    ("again", "ALT", "ARGM-TMP"),
    ("here", "DXP", "ARGM-LOC"),
    ("there", "DXP", "ARGM-LOC"),
    ("now", "DXT", "ARGM-TMP"),
    ("today", "DXT", "ARGM-TMP"),
    ("soon", "DXT", "ARGM-TMP"),
    ("yesterday", "DXT", "ARGM-TMP"),
)
_PREVERBAL = 3  # of the free adverbs, the first three stand before the verb
_AGENTIVE = frozenset(("clausal", "control", "ditransitive"))


class _Writer:
    """Writes one document: the discourse so far (entities, who is salient) and the rules of the grammar.

    Phrases are built in the order of their words, so that a pronoun finds only what was mentioned before it.
    ``banned`` holds the identifiers of entities that cannot be named at this place: co-arguments of the same clause
    (they would need a reflexive) and the entity whose own modifier is being written.
    """

    def __init__(self, grammar: "Grammar", u: Uniforms) -> None:
        self.g = grammar
        self.u = u
        self.topic = int(u() * grammar.n_topics)
        self.past = 0.65 if u() < 0.7 else 0.15
        self.n_entities = 0
        self.stack: list[_Entity] = []  # by recency, the last is the most recent
        self.salient: dict[str, _Entity] = {}  # pronoun -> the only entity it can refer to now
        self.named: dict[tuple[str, bool], _Entity] = {}  # (lemma, plural) -> what "the <lemma>" refers to
        self.roles: list[tuple[_Token, _Part, str]] = []
        self.mentions: list[tuple[_Part, _Entity]] = []

    # ---- discourse

    def touch(self, entity: _Entity) -> None:
        if entity in self.stack:
            self.stack.remove(entity)
        self.stack.append(entity)
        self.salient[entity.pronoun] = entity

    def introduce(
        self, lexeme: Lexeme | None, plural: bool = False, members: tuple[int, ...] = ()
    ) -> _Entity:
        entity = _Entity(self.n_entities, lexeme, plural, members)
        self.n_entities += 1
        if lexeme is not None:
            self.named[lexeme.lemma, plural] = entity
        self.touch(entity)
        return entity

    def known(self, kind: str, banned: frozenset[int]) -> _Entity | None:
        """A recent entity of this kind that a pronoun, name or definite phrase can pick out."""
        for entity in self.stack[:-6:-1]:
            if (kind == "person" and entity.kind != "person") or (kind == "place" and entity.kind != "place"):
                continue
            if entity.id in banned or not banned.isdisjoint(entity.members):
                continue
            lexeme = entity.lexeme
            if self.salient[entity.pronoun] is not entity and (
                lexeme is None or self.named[lexeme.lemma, entity.plural] is not entity
            ):
                continue
            if self.u() < 0.6:
                return entity
        return None

    def role(self, predicate: _Token, argument: _Argument | None, label: str) -> None:
        if argument is not None:
            for phrase, prefix in argument.spans:
                self.roles.append((predicate, phrase, prefix + label))

    # ---- noun phrases

    def pronoun(self, entity: _Entity, case: int) -> _Phrase:
        word = _PRONOUNS[entity.pronoun][case]
        token = _Token(word, "PRON", "PRP", "REF" if case == 3 else "PRO")
        self.touch(entity)
        phrase = _Phrase("NP", [token], token)
        self.mentions.append((phrase, entity))
        return phrase

    def name(self, lexeme: Lexeme) -> _Argument:
        entity = self.named.get((lexeme.lemma, False))
        if entity is None:
            entity = self.introduce(lexeme)
        else:
            self.touch(entity)
        token = _Token(lexeme.lemma, "PROPN", "NNP", _NAME_TAGS[lexeme.kind])
        phrase = _Phrase("NP", [token], token)
        self.mentions.append((phrase, entity))
        return _Argument(phrase, False, entity)

    def mention_again(self, entity: _Entity, case: int) -> _Argument:
        lexeme = entity.lexeme
        salient = self.salient[entity.pronoun] is entity
        if lexeme is None or (salient and self.u() < 0.7):
            return _Argument(self.pronoun(entity, case), entity.plural, entity)
        if self.named[lexeme.lemma, entity.plural] is not entity:
            return _Argument(self.pronoun(entity, case), entity.plural, entity)
        if lexeme.upos == "PROPN":
            return self.name(lexeme)
        self.touch(entity)
        noun = self.noun(lexeme, entity.plural)
        u = self.u()
        if u < 0.8:
            determiner = _Token("the", "DET", "DT", "DEF")
        elif u < 0.9:
            determiner = _Token("these" if entity.plural else "this", "DET", "DT", "PRX")
        else:
            determiner = _Token("those" if entity.plural else "that", "DET", "DT", "DST")
        phrase = _Phrase("NP", [_under(determiner, noun, "det"), noun], noun)
        self.mentions.append((phrase, entity))
        return _Argument(phrase, entity.plural, entity)

    def noun(self, lexeme: Lexeme, plural: bool) -> _Token:
        xpos = "NNS" if plural else "NN"
        return _Token(lexeme.forms[xpos], "NOUN", xpos, "ROL" if lexeme.kind == "person" else "CON")

    def adjectives(self, noun: _Token) -> list[_Part]:
        u = self.u()
        if u < 0.62:
            return []
        first = self.adjective()
        if u < 0.70:
            very = _under(_Token("very", "ADV", "RB", "INT"), first, "advmod")
            return [_under(_Phrase("ADJP", [very, first], first), noun, "amod")]
        _under(first, noun, "amod")
        if u < 0.93:
            return [first]
        return [first, _under(self.adjective(), noun, "amod")]

    def adjective(self) -> _Token:
        lexeme = self.g._adjectives(self.u(), self.topic)
        return _Token(lexeme.lemma, "ADJ", "JJ", "IST" if lexeme.kind == "intersective" else "SST")

    def np(
        self,
        kind: str = "any",
        case: int = 0,
        depth: int = 1,
        banned: frozenset[int] = frozenset(),
        topic: int | None = None,
        indefinite: bool = False,
    ) -> _Argument:
        """A noun phrase.

        Args:
            kind: ``person``, ``thing``, ``place``, ``event`` or ``any``.
            case: 0 nominative, 1 accusative: the form of pronouns.
            depth: how many more levels of modifiers are allowed.
            banned: entities that cannot be meant here.
            topic: where its noun comes from; the document's by default.
            indefinite: new entities only, as after *there is*.
        """
        u = self.u()
        if not indefinite:
            if u < 0.45 and kind in ("any", "person", "place"):
                entity = self.known(kind, banned)
                if entity is not None:
                    return self.mention_again(entity, case)
            elif u < 0.52 and depth > 0 and kind in ("any", "person"):
                return self.coordination(kind, case, banned)
            if kind in ("any", "person", "place") and self.u() < 0.24:
                lexeme = self.g._names[kind](self.u(), self.topic)
                entity = self.named.get((lexeme.lemma, False))
                if entity is None or entity.id not in banned:
                    return self.name(lexeme)
        lexeme = self.g._nouns[kind](self.u(), self.topic if topic is None else topic)
        return self.common_noun(lexeme, depth, banned, indefinite)

    def coordination(self, kind: str, case: int, banned: frozenset[int]) -> _Argument:
        first = self.np(kind, case, 0, banned)
        taken = banned | {first.entity.id, *first.entity.members} if first.entity else banned
        second = self.np(kind, case, 0, taken)
        # "or" leaves number undecided in subjects
        disjunction = case == 1 and self.u() < 0.25
        word, semtag = ("or", "DIS") if disjunction else ("and", "AND")
        conjunction = _under(_Token(word, "CCONJ", "CC", semtag), second.phrase.head, "cc")
        _under(second.phrase, first.phrase.head, "conj")
        phrase = _Phrase("NP", [first.phrase, conjunction, second.phrase], first.phrase.head)
        if disjunction or first.entity is None or second.entity is None:
            return _Argument(phrase, True, None)
        members = (first.entity.id, second.entity.id, *first.entity.members, *second.entity.members)
        if first.entity.kind == second.entity.kind == "person":
            entity = self.introduce(None, True, members)
            self.mentions.append((phrase, entity))
            return _Argument(phrase, True, entity)
        return _Argument(phrase, True, None)

    def common_noun(
        self, lexeme: Lexeme, depth: int, banned: frozenset[int], indefinite: bool = False
    ) -> _Argument:
        plural = self.u() < 0.36
        noun = self.noun(lexeme, plural)
        parts: list[_Part] = []
        refers, again = True, False
        entity: _Entity | None = None
        u = self.u()
        if not indefinite and u < 0.10 and (owner := self.known("any", banned)) is not None:
            parts.append(self.possessor(owner, noun))
        else:
            table = _PLURAL_DETERMINERS if plural else _SINGULAR_DETERMINERS
            u = self.u()
            word, semtag = next((w, s) for limit, w, s in table if u <= limit)
            entity = self.named.get((lexeme.lemma, plural))
            if word in _ANAPHORIC:
                if indefinite or (entity is not None and entity.id in banned):
                    word, semtag = ("some", "DIS") if plural else ("another", "ALT")
                else:
                    again = entity is not None
            if word == "#":
                parts.append(_under(_Token(self.u.among(_NUMBERS), "NUM", "CD", "QUC"), noun, "nummod"))
            elif semtag == "QUV":
                parts.append(_under(_Token(word, "ADJ", "JJ", semtag), noun, "amod"))
            elif word:
                parts.append(_under(_Token(word, "DET", "DT", semtag), noun, "det"))
            refers = word not in ("no", "every")
        if not again:
            parts.extend(self.adjectives(noun))
        parts.append(noun)
        first = parts[0]
        if isinstance(first, _Token) and first.word == "a":
            following = parts[1]
            while isinstance(following, _Phrase):
                following = following.parts[0]
            if following.word[0] in "aeiou":
                first.word = "an"
        if again:
            assert entity is not None
            self.touch(entity)
        else:
            entity = self.introduce(lexeme, plural) if refers else None
        phrase = _Phrase("NP", parts, noun)
        inside = banned if entity is None else banned | {entity.id}
        if depth > 0:
            phrase = self.modifiers(phrase, lexeme, plural, entity, depth, inside)
        if entity is not None:
            self.mentions.append((phrase, entity))
        return _Argument(phrase, plural, entity)

    def possessor(self, owner: _Entity, noun: _Token) -> _Part:
        if self.salient[owner.pronoun] is owner and (self.u() < 0.75 or owner.lexeme is None):
            self.touch(owner)
            token = _Token(_PRONOUNS[owner.pronoun][2], "PRON", "PRP$", "HAS")
            self.mentions.append((token, owner))
            return _under(token, noun, "nmod:poss")
        inner = self.mention_again(owner, 1)
        if inner.phrase.head.upos == "PRON":
            inner.phrase.head.word = _PRONOUNS[owner.pronoun][2]
            inner.phrase.head.xpos, inner.phrase.head.semtag = "PRP$", "HAS"
            self.mentions[-1] = (inner.phrase.head, owner)
            return _under(inner.phrase.head, noun, "nmod:poss")
        head = inner.phrase.head
        mark = _Token("'" if head.xpos == "NNS" and head.word.endswith("s") else "'s", "PART", "POS", "REL")
        inner.phrase.parts.append(_under(mark, head, "case"))
        return _under(inner.phrase, noun, "nmod:poss")

    def modifiers(
        self,
        inner: _Phrase,
        lexeme: Lexeme,
        plural: bool,
        entity: _Entity | None,
        depth: int,
        banned: frozenset[int],
    ) -> _Phrase:
        u = self.u()
        head = inner.head
        if u < 0.20:
            phrase, _ = self.pp(("of", "of", "with", "near", "from", "in", "for"), depth - 1, banned)
            inner = _Phrase("NP", [inner, _under(phrase, head, "nmod")], head)
            u = self.u() * 0.5 + 0.2
        if 0.20 <= u < 0.36:
            relative = self.relative_clause(inner, lexeme, plural, entity, depth - 1, banned)
            inner = _Phrase("NP", [inner, _under(relative, head, "acl:relcl")], head)
        elif 0.36 <= u < 0.39:
            participle = self.participle_clause(inner, depth - 1, banned)
            inner = _Phrase("NP", [inner, _under(participle, head, "acl")], head)
        return inner

    def participle_clause(self, antecedent: _Phrase, depth: int, banned: frozenset[int]) -> _Phrase:
        lexeme = self.g._verbs["transitive"](self.u(), self.topic)
        verb = _Token(lexeme.forms["VBN"], "VERB", "VBN", "EXS")
        self.roles.append((verb, antecedent, "ARG1"))
        return _Phrase("VP", [verb, self.by_phrase(verb, depth, banned)], verb)

    def by_phrase(self, verb: _Token, depth: int, banned: frozenset[int]) -> _Part:
        agent = self.np("person", 1, depth, banned)
        by = _under(_Token("by", "ADP", "IN", "REL"), agent.phrase.head, "case")
        phrase = _Phrase("PP", [by, agent.phrase], agent.phrase.head)
        self.roles.append((verb, phrase, "ARG0"))
        return _under(phrase, verb, "obl:agent")

    def relative_clause(
        self,
        antecedent: _Phrase,
        lexeme: Lexeme,
        plural: bool,
        entity: _Entity | None,
        depth: int,
        banned: frozenset[int],
    ) -> _Phrase:
        u = self.u()
        person = lexeme.kind == "person"
        tense = self.tense()
        if u < 0.55:  # subject relative
            word, xpos = ("who", "WP") if person and self.u() < 0.75 else ("that", "WDT")
            if not person and self.u() < 0.4:
                word = "which"
            wh = self.wh(word, xpos, "REL")
            frame = "transitive" if self.u() < 0.6 else "simple"
            verb = self.g._verbs[frame](self.u(), self.topic)
            subject = _Argument(wh, plural, entity, ((antecedent, ""), (wh, "R-")))
            passive = verb.kind == "transitive" and (not person or self.u() < 0.15) and self.u() < 0.5
            vp = self.vp(verb, subject, tense, depth, banned, passive=passive)
            _under(wh, vp.head, "nsubj:pass" if passive else "nsubj")
            return _Phrase("SBAR", [wh, _Phrase("S", [vp], vp.head)], vp.head)
        if u < 0.92:  # object relative
            u = self.u()
            word, xpos = ("whom", "WP") if person and u < 0.3 else ("that", "WDT")
            if not person and u < 0.3:
                word = "which"
            silent = u > 0.75
            subject = self.np("person", 0, depth, banned)
            verb = self.g._verbs["transitive"](self.u(), self.topic)
            wh = self.wh(word, xpos, "REL")
            spans = ((antecedent, ""),) if silent else ((antecedent, ""), (wh, "R-"))
            vp = self.vp(verb, subject, tense, depth, banned, gap=_Argument(wh, plural, entity, spans))
            s = _Phrase("S", [_under(subject.phrase, vp.head, "nsubj"), vp], vp.head)
            return _Phrase("SBAR", [s] if silent else [_under(wh, vp.head, "obj"), s], vp.head)
        # a relative pronoun inside of a prepositional phrase
        word, xpos = ("whom", "WP") if person else ("which", "WDT")
        wh = self.wh(word, xpos, "REL")
        preposition = _Token("with" if person else self.u.among(_LOCATIVE), "ADP", "IN", "REL")
        wh = _Phrase("WHPP", [_under(preposition, wh.head, "case"), wh], wh.head)
        subject = self.np("person", 0, depth, banned)
        verb = self.g._verbs["simple"](self.u(), self.topic)
        vp = self.vp(verb, subject, tense, 0, banned)
        label = "ARGM-COM" if person else "ARGM-LOC"
        self.roles += [(vp.head, antecedent, label), (vp.head, wh, "R-" + label)]
        s = _Phrase("S", [_under(subject.phrase, vp.head, "nsubj"), vp], vp.head)
        return _Phrase("SBAR", [_under(wh, vp.head, "obl"), s], vp.head)

    def wh(self, word: str, xpos: str, semtag: str) -> _Phrase:
        token = _Token(word, "ADV" if xpos == "WRB" else "PRON", xpos, semtag)
        return _Phrase("WHADVP" if xpos == "WRB" else "WHNP", [token], token)

    def pp(self, prepositions: tuple[str, ...], depth: int, banned: frozenset[int]) -> tuple[_Phrase, str]:
        """A prepositional phrase and the role it has as an adjunct of a verb."""
        word = self.u.among(prepositions)
        if word in ("during", "after", "before"):
            kind, label = "event", "ARGM-TMP"
        elif word in ("in", "at", "near", "on", "behind"):
            kind, label = ("place" if self.u() < 0.7 else "thing"), "ARGM-LOC"
        elif word in ("into", "from"):
            kind, label = "place", "ARGM-DIR"
        elif word == "with":
            kind, label = ("person" if self.u() < 0.6 else "thing"), "ARGM-COM"
        else:
            kind, label = "any", "ARGM-PRP" if word == "for" else "ARGM-ADV"
        argument = self.np(kind, 1, depth, banned)
        preposition = _under(_Token(word, "ADP", "IN", "REL"), argument.phrase.head, "case")
        return _Phrase("PP", [preposition, argument.phrase], argument.phrase.head), label

    def year(self) -> _Phrase:
        year = _Token(self.u.among(YEARS), "NUM", "CD", "YOC")
        preposition = _under(_Token("in", "ADP", "IN", "REL"), year, "case")
        return _Phrase("PP", [preposition, _Phrase("NP", [year], year)], year)

    # ---- verb phrases

    def tense(self) -> Tense:
        return "past" if self.u() < self.past else "present"

    def auxiliary(self, lemma: str, form: str, plural: bool) -> _Token:
        word = ("were" if plural else "was") if lemma == "be" and form == "VBD" else _AUXILIARIES[lemma][form]
        return _Token(word, "AUX", form, {"VBZ": "NOW", "VBP": "NOW", "VBD": "PST"}.get(form, "NIL"))

    def verb_group(
        self, plural: bool, tense: Tense, passive: bool, finite: bool, inverted: bool
    ) -> tuple[list[_Token], str]:
        """Auxiliaries and negation before a main verb, and the form that the main verb takes after them."""
        form = "VBD" if tense == "past" else "VBP" if plural else "VBZ"
        if not finite:
            return ([self.auxiliary("be", "VB", plural)], "VBN") if passive else ([], "VB")
        modal = perfect = progressive = False
        u = self.u()
        if u > 0.68:
            modal = u < 0.80 or u > 0.98
            perfect = 0.80 <= u < 0.89 or u > 0.98
            progressive = 0.89 <= u < 0.98 and not passive
        group: list[_Token] = []
        negated = self.u() < 0.07
        if modal:
            word, semtag = self.u.among(_MODALS)
            group.append(_Token(word, "AUX", "MD", semtag))
            form = "VB"
        elif (negated or inverted) and not (perfect or progressive or passive):
            group.append(self.auxiliary("do", form, plural))
            form = "VB"
        if perfect:
            group.append(self.auxiliary("have", form, plural))
            form = "VBN"
        if progressive or passive:
            group.append(self.auxiliary("be", form, plural))
            form = "VBG" if progressive else "VBN"
        if negated:
            group.insert(1, _Token("not", "PART", "RB", "NOT"))
        return group, form

    def wrap(self, group: list[_Token], core: _Phrase, copula: bool, passive: bool = False) -> _Phrase:
        """Nests the core under its auxiliaries and attaches these to its head."""
        head = core.head
        last = len(group) - 1 - (group[-1].word == "not") if group else 0
        phrase = core
        pending: _Token | None = None
        for i in range(len(group) - 1, -1, -1):
            token = group[i]
            if token.word == "not":
                pending = token
                _under(token, head, "advmod")
                if not copula:
                    self.roles.append((head, token, "ARGM-NEG"))
                continue
            if i == last and (copula or passive):
                _under(token, head, "cop" if copula else "aux:pass")
            else:
                _under(token, head, "aux")
            if token.xpos == "MD" and not copula:
                self.roles.append((head, token, "ARGM-MOD"))
            phrase = _Phrase("VP", [token, phrase] if pending is None else [token, pending, phrase], head)
            pending = None
        return phrase

    def vp(
        self,
        lexeme: Lexeme,
        subject: _Argument,
        tense: Tense,
        depth: int,
        banned: frozenset[int],
        passive: bool = False,
        finite: bool = True,
        inverted: bool = False,
        gap: _Argument | None = None,
    ) -> _Phrase:
        """The verb phrase of ``lexeme``: auxiliaries, complements by its frame, adjuncts, and their roles.

        With ``inverted`` the first auxiliary is the first part of the returned phrase's outermost VP; the caller
        moves it before the subject. ``gap`` stands for an object that was moved away.
        """
        group, form = self.verb_group(subject.plural, tense, passive, finite, inverted)
        semtag = "EXS" if passive else _EVENT_TAGS[form]
        verb = _Token(lexeme.forms[form], "VERB", form, semtag)
        if subject.entity is not None:
            banned = banned | {subject.entity.id, *subject.entity.members}
        kind = lexeme.kind
        self.role(verb, subject, "ARG1" if passive or kind == "unaccusative" else "ARG0")
        parts: list[_Part] = []
        u = self.u()
        if u < 0.10 and not inverted:
            parts.append(self.adverb(verb, before=True))
        parts.append(verb)
        if passive:
            if self.u() < 0.5:
                parts.append(self.by_phrase(verb, depth, banned))
        elif gap is not None:
            self.role(verb, gap, "ARG1")
        elif kind == "transitive":
            parts.append(self.object(verb, lexeme, subject, depth, banned))
        elif kind == "ditransitive":
            parts.extend(self.two_objects(verb, lexeme, depth, banned))
        elif kind == "clausal":
            clause = self.complement_clause(verb, subject, depth - 1, banned)
            parts.append(clause)
        elif kind == "control":
            parts.append(self.infinitive(verb, subject, depth - 1, banned))
        elif depth > 0 and self.u() < 0.35:
            parts.append(self.adjunct(verb, (lexeme.preposition,), depth - 1, banned))
        if kind not in ("clausal", "control"):
            u = self.u()
            if u < 0.10:
                parts.append(self.adverb(verb, before=False))
            elif depth > 0 and u < 0.22:
                prepositions = (*_LOCATIVE, "with", "for", "during", "after", "before")
                parts.append(self.adjunct(verb, prepositions, depth - 1, banned))
            elif depth > 0 and u < 0.25 and (tense == "past"):
                phrase = self.year()
                self.roles.append((verb, phrase, "ARGM-TMP"))
                parts.append(_under(phrase, verb, "obl"))
        return self.wrap(group, _Phrase("VP", parts, verb), copula=False, passive=passive)

    def adverb(self, verb: _Token, before: bool) -> _Part:
        if self.u() < 0.5:
            lexeme = self.g._adverbs(self.u(), self.topic)
            word, semtag, label = lexeme.lemma, "IST", "ARGM-MNR"
        else:
            word, semtag, label = self.u.among(
                _FREE_ADVERBS[:_PREVERBAL] if before else _FREE_ADVERBS[_PREVERBAL:]
            )
        token = _Token(word, "ADV", "RB", semtag)
        phrase = _Phrase("ADVP", [token], token)
        self.roles.append((verb, phrase, label))
        return _under(phrase, verb, "advmod")

    def adjunct(
        self, verb: _Token, prepositions: tuple[str, ...], depth: int, banned: frozenset[int]
    ) -> _Part:
        phrase, label = self.pp(prepositions, depth, banned)
        self.roles.append((verb, phrase, label))
        return _under(phrase, verb, "obl")

    def object(
        self, verb: _Token, lexeme: Lexeme, subject: _Argument, depth: int, banned: frozenset[int]
    ) -> _Part:
        referent = subject.entity
        if referent is not None and referent.kind == "person" and self.u() < 0.04:
            phrase = self.pronoun(referent, 3)
        else:
            # mild selection: a verb likes the nouns of its own topic
            topic = lexeme.topic if self.u() < 0.3 else self.topic
            phrase = self.np("any" if self.u() < 0.6 else "thing", 1, depth, banned, topic).phrase
        self.roles.append((verb, phrase, "ARG1"))
        return _under(phrase, verb, "obj")

    def two_objects(self, verb: _Token, lexeme: Lexeme, depth: int, banned: frozenset[int]) -> list[_Part]:
        if self.u() < 0.5:
            recipient = self.np("person", 1, 0, banned)
            if recipient.entity is not None:
                banned = banned | {recipient.entity.id, *recipient.entity.members}
            theme = self.np("thing", 1, depth, banned, lexeme.topic if self.u() < 0.3 else None)
            self.role(verb, theme, "ARG1")
            self.role(verb, recipient, "ARG2")
            return [_under(recipient.phrase, verb, "iobj"), _under(theme.phrase, verb, "obj")]
        theme = self.np("thing", 1, 0, banned, lexeme.topic if self.u() < 0.3 else None)
        if theme.entity is not None:
            banned = banned | {theme.entity.id}
        recipient = self.np("person", 1, depth, banned)
        to = _under(_Token("to", "ADP", "IN", "REL"), recipient.phrase.head, "case")
        phrase = _Phrase("PP", [to, recipient.phrase], recipient.phrase.head)
        self.role(verb, theme, "ARG1")
        self.roles.append((verb, phrase, "ARG2"))
        return [_under(theme.phrase, verb, "obj"), _under(phrase, verb, "obl")]

    def complement_clause(
        self, verb: _Token, subject: _Argument, depth: int, banned: frozenset[int]
    ) -> _Part:
        clause = self.clause(self.tense(), depth, banned, again=subject.entity)
        parts: list[_Part] = [clause]
        if self.u() < 0.75:
            parts.insert(0, _under(_Token("that", "SCONJ", "IN", "SUB"), clause.head, "mark"))
        phrase = _Phrase("SBAR", parts, clause.head)
        self.roles.append((verb, phrase, "ARG1"))
        return _under(phrase, verb, "ccomp")

    def infinitive(self, verb: _Token, subject: _Argument, depth: int, banned: frozenset[int]) -> _Part:
        frame = "simple" if depth < 1 or self.u() < 0.9 else "any"
        vp = self.vp(
            self.g._verbs[frame](self.u(), self.topic),
            subject,
            "present",
            max(depth, 0),
            banned,
            finite=False,
        )
        to = _under(_Token("to", "PART", "TO", "NIL"), vp.head, "mark")
        phrase = _Phrase("S", [_Phrase("VP", [to, vp], vp.head)], vp.head)
        self.roles.append((verb, phrase, "ARG1"))
        return _under(phrase, verb, "xcomp")

    # ---- clauses

    def clause(
        self,
        tense: Tense,
        depth: int,
        banned: frozenset[int] = frozenset(),
        again: _Entity | None = None,
        inverted: bool = False,
    ) -> _Phrase:
        """A finite clause (S, or SQ with ``inverted``), no full stop.

        Args:
            tense: of the finite verb, unless a modal takes its place.
            depth: levels of embedding and modification still allowed.
            banned: entities that only a pronoun subject could name here.
            again: the subject of the clause above: a likely subject of this one, as a pronoun.
            inverted: a polar question's order.
        """
        u = self.u()
        if u < 0.80:
            return self.verbal_clause(tense, depth, banned, again, inverted)
        if u < 0.83 and not inverted:
            return self.existential(tense, depth, banned)
        if u < 0.88 and not inverted:
            return self.linking_clause(tense, depth, banned, again)
        return self.copular_clause(tense, depth, banned, again, inverted)

    def subject(self, kind: str, depth: int, banned: frozenset[int], again: _Entity | None) -> _Argument:
        if (
            again is not None
            and (kind == "any" or again.kind == kind)
            and self.salient.get(again.pronoun) is again
            and self.u() < 0.45
        ):
            return _Argument(self.pronoun(again, 0), again.plural, again)
        return self.np(kind, 0, depth, banned)

    def finish(
        self, subject: _Argument, relation: str, vp: _Phrase, inverted: bool, extra: _Phrase | None = None
    ) -> _Phrase:
        _under(subject.phrase, vp.head, relation)
        if inverted:
            first, *rest = vp.parts
            # what is left of the outer VP: a negation and the inner VP (or the predicate after a copula)
            return _Phrase("SQ", [first, subject.phrase, *rest], vp.head)
        parts: list[_Part] = [subject.phrase, vp]
        if extra is not None:
            parts.append(extra)
        return _Phrase("S", parts, vp.head)

    def verbal_clause(
        self, tense: Tense, depth: int, banned: frozenset[int], again: _Entity | None, inverted: bool
    ) -> _Phrase:
        u = self.u
        lexeme = self.g._verbs["any" if depth > 0 else "simple"](u(), self.topic)
        passive = lexeme.kind == "transitive" and u() < 0.16
        if lexeme.kind in _AGENTIVE:
            kind = "person"
        elif passive or lexeme.kind == "unaccusative":
            kind = "any"
        else:
            kind = "person" if u() < 0.7 else "any"
        subject = self.subject(kind, depth, banned, again)
        vp = self.vp(lexeme, subject, tense, depth, banned, passive=passive, inverted=inverted)
        if depth > 0 and not passive and not inverted and u() < 0.08:
            second = self.vp(self.g._verbs["simple"](u(), self.topic), subject, tense, 0, banned)
            word, semtag = ("or", "DIS") if u() < 0.12 else ("and", "AND")
            conjunction = _under(_Token(word, "CCONJ", "CC", semtag), second.head, "cc")
            vp = _Phrase("VP", [vp, conjunction, _under(second, vp.head, "conj")], vp.head)
        return self.finish(subject, "nsubj:pass" if passive else "nsubj", vp, inverted)

    def copular_clause(
        self, tense: Tense, depth: int, banned: frozenset[int], again: _Entity | None, inverted: bool
    ) -> _Phrase:
        subject = self.subject("any", depth, banned, again)
        if subject.entity is not None:
            banned = banned | {subject.entity.id, *subject.entity.members}
        u = self.u()
        predicate: _Phrase
        if u < 0.62 or (subject.plural and u < 0.8):
            predicate = self.adjective_phrase(banned)
        elif u < 0.8:
            lexeme = self.g._nouns["person" if subject.phrase.head.semtag in ("PER", "ROL") else "thing"](
                self.u(), self.topic
            )
            noun = self.noun(lexeme, False)
            adjectives = self.adjectives(noun)
            following: _Part = adjectives[0] if adjectives else noun
            while isinstance(following, _Phrase):
                following = following.parts[0]
            article = _Token("an" if following.word[0] in "aeiou" else "a", "DET", "DT", "DIS")
            predicate = _Phrase("NP", [_under(article, noun, "det"), *adjectives, noun], noun)
        else:
            predicate, _ = self.pp(_LOCATIVE, max(depth - 1, 0), banned)
        form = "VBD" if tense == "past" else "VBP" if subject.plural else "VBZ"
        group = [self.auxiliary("be", form, subject.plural)]
        u = self.u()
        if u < 0.10:
            word, semtag = self.u.among(_MODALS)
            group = [_Token(word, "AUX", "MD", semtag), self.auxiliary("be", "VB", subject.plural)]
        elif u < 0.16:
            group = [
                self.auxiliary("have", form, subject.plural),
                self.auxiliary("be", "VBN", subject.plural),
            ]
        if self.u() < 0.08:
            group.insert(1, _Token("not", "PART", "RB", "NOT"))
        vp = self.wrap(group, predicate, copula=True)
        return self.finish(subject, "nsubj", vp, inverted)

    def linking_clause(
        self, tense: Tense, depth: int, banned: frozenset[int], again: _Entity | None
    ) -> _Phrase:
        subject = self.subject("any", depth, banned, again)
        group, form = self.verb_group(subject.plural, tense, passive=False, finite=True, inverted=False)
        verb = _Token(self.u.among(_LINKING)[form], "VERB", form, _EVENT_TAGS[form])
        predicate = self.adjective_phrase(banned)
        self.role(verb, subject, "ARG1")
        self.roles.append((verb, predicate, "ARG2"))
        core = _Phrase("VP", [verb, _under(predicate, verb, "xcomp")], verb)
        return self.finish(subject, "nsubj", self.wrap(group, core, copula=False), inverted=False)

    def existential(self, tense: Tense, depth: int, banned: frozenset[int]) -> _Phrase:
        pivot = self.np("any", 0, depth, banned, indefinite=True)
        form = "VBD" if tense == "past" else "VBP" if pivot.plural else "VBZ"
        verb = self.auxiliary("be", form, pivot.plural)
        verb.upos, verb.semtag = "VERB", _EVENT_TAGS[form]
        parts: list[_Part] = [verb, _under(pivot.phrase, verb, "nsubj")]
        self.role(verb, pivot, "ARG1")
        if self.u() < 0.5:
            inside = banned | {pivot.entity.id} if pivot.entity is not None else banned
            parts.append(self.adjunct(verb, _LOCATIVE, 0, inside))
        there = _Token("there", "PRON", "EX", "NIL")
        subject = _under(_Phrase("NP", [there], there), verb, "expl")
        return _Phrase("S", [subject, _Phrase("VP", parts, verb)], verb)

    def adjective_phrase(self, banned: frozenset[int]) -> _Phrase:
        adjective = self.adjective()
        u = self.u()
        if u < 0.55:
            return _Phrase("ADJP", [adjective], adjective)
        if u < 0.80:
            word = "very" if u < 0.66 else "too" if u < 0.73 else "so"
            degree = _under(_Token(word, "ADV", "RB", "INT"), adjective, "advmod")
            return _Phrase("ADJP", [degree, adjective], adjective)
        if u < 0.90:
            more = _under(_Token("more", "ADV", "RBR", "MOR"), adjective, "advmod")
            standard = self.np("any", 1, 0, banned)
            than = _under(_Token("than", "ADP", "IN", "REL"), standard.phrase.head, "case")
            phrase = _Phrase("PP", [than, standard.phrase], standard.phrase.head)
            return _Phrase("ADJP", [more, adjective, _under(phrase, adjective, "obl")], adjective)
        second = self.adjective()
        word, semtag = ("and", "AND") if u < 0.97 else ("or", "DIS")
        conjunction = _under(_Token(word, "CCONJ", "CC", semtag), second, "cc")
        return _Phrase("ADJP", [adjective, conjunction, _under(second, adjective, "conj")], adjective)

    # ---- sentences

    def statement(self) -> _Phrase:
        tense = self.tense()
        u = self.u()
        if u < 0.72:
            return self.clause(tense, 2)
        if u < 0.82:
            return self.clause_coordination(tense)
        if u < 0.88:
            adverbial, label = self.adverbial_clause(None)
            main = self.clause(tense, 1)
            return self.fronted(adverbial, "advcl", label, main)
        if u < 0.95:
            main = self.clause(tense, 1)
            nominal = main.parts[0]
            again = next((e for p, e in reversed(self.mentions) if p is nominal), None)
            adverbial, label = self.adverbial_clause(again)
            self.adverbial_role(main.head, adverbial, label)
            main.parts.append(_under(adverbial, main.head, "advcl"))
            return main
        if u < 0.98:
            phrase = self.year()
            return self.fronted(phrase, "obl", "ARGM-TMP", self.clause("past", 1))
        main = self.clause(tense, 1)
        word, semtag = self.u.among((("oh", "ITJ"), ("yes", "ITJ"), ("hello", "GRE"), ("well", "HES")))
        token = _Token(word, "INTJ", "UH", semtag)
        return self.fronted(_Phrase("INTJ", [token], token), "discourse", "", main)

    def adverbial_role(self, head: _Token, phrase: _Phrase, label: str) -> None:
        if label and head.upos == "VERB":
            self.roles.append((head, phrase, label))

    def fronted(self, phrase: _Phrase, relation: str, label: str, main: _Phrase) -> _Phrase:
        self.adverbial_role(main.head, phrase, label)
        comma = _under(_Token(",", "PUNCT", ",", "NIL"), phrase.head, "punct")
        main.parts[:0] = [_under(phrase, main.head, relation), comma]
        return main

    def adverbial_clause(self, again: _Entity | None) -> tuple[_Phrase, str]:
        word, xpos, upos, semtag, label = self.u.among(_SUBORDINATORS)
        banned = frozenset() if again is None else frozenset((again.id, *again.members))
        clause = self.clause(self.tense(), 1, banned, again)
        relation = "advmod" if upos == "ADV" else "mark"
        mark: _Part = _Token(word, upos, xpos, semtag)
        if upos == "ADV":
            assert isinstance(mark, _Token)
            mark = _Phrase("WHADVP", [mark], mark)
        return _Phrase("SBAR", [_under(mark, clause.head, relation), clause], clause.head), label

    def clause_coordination(self, tense: Tense) -> _Phrase:
        first = self.clause(tense, 1)
        second = self.clause(tense, 1)
        word, semtag = self.u.among((("and", "COO"), ("and", "COO"), ("but", "BUT"), ("or", "DIS")))
        comma = _under(_Token(",", "PUNCT", ",", "NIL"), second.head, "punct")
        conjunction = _under(_Token(word, "CCONJ", "CC", semtag), second.head, "cc")
        return _Phrase("S", [first, comma, conjunction, _under(second, first.head, "conj")], first.head)

    def question(self) -> _Phrase:
        u = self.u()
        tense = self.tense()
        if u < 0.45:
            return self.clause(tense, 1, inverted=True)
        if u < 0.65:  # who sees the dog ?
            wh = self.wh("who", "WP", "QUE")
            vp = self.vp(
                self.g._verbs["simple"](self.u(), self.topic),
                _Argument(wh, False, None),
                tense,
                1,
                frozenset(),
            )
            _under(wh, vp.head, "nsubj")
            return _Phrase("SBARQ", [wh, _Phrase("SQ", [vp], vp.head)], vp.head)
        if u < 0.85:  # what did the dog see ?
            wh = self.wh(self.u.among(("what", "who", "whom")), "WP", "QUE")
            subject = self.np("person", 0, 1)
            gap = _Argument(wh, False, None)
            verb = self.g._verbs["transitive"](self.u(), self.topic)
            vp = self.vp(verb, subject, tense, 0, frozenset(), inverted=True, gap=gap)
            clause = self.finish(subject, "nsubj", vp, inverted=True)
            return _Phrase("SBARQ", [_under(wh, vp.head, "obj"), clause], vp.head)
        word, label = self.u.among((("where", "ARGM-LOC"), ("when", "ARGM-TMP"), ("why", "ARGM-CAU")))
        wh = self.wh(word, "WRB", "QUE")
        clause = self.clause(tense, 1, inverted=True)
        self.adverbial_role(clause.head, wh, label)
        return _Phrase("SBARQ", [_under(wh, clause.head, "advmod"), clause], clause.head)

    def fact(self) -> tuple[_Phrase, Fact]:
        fact: Fact = self.g._fact_sampler(self.u(), self.topic)
        relation = fact.relation
        template = int(self.u() * len(fact.templates))
        subject_lexeme, object_lexeme = (
            self.g._names_by_lemma[fact.subject],
            self.g._names_by_lemma[fact.object],
        )
        if (template == 1 and relation in ("founded_by", "lives_in")) or (
            template == 0 and relation == "capital_of"
        ):
            return self.identity_fact(relation, subject_lexeme, object_lexeme), fact
        subject = self.name(subject_lexeme)
        copula_or_verb, xpos, relation_word, preposition = {
            "capital_of": ("has", "VBZ", "capital", "in"),
            "born_in": ("was", "VBD", "born", "in") if template == 0 else ("comes", "VBZ", "", "from"),
            "works_for": ("works", "VBZ", "", "for") if template == 0 else ("is", "VBZ", "employed", "by"),
            "based_in": ("is", "VBZ", "based", "in") if template == 0 else ("has", "VBZ", "office", "in"),
            "founded_by": ("was", "VBD", "founded", "by"),
            "lives_in": ("lives", "VBZ", "", "in"),
        }[relation]
        owned: _Token | None = None
        if copula_or_verb in ("is", "was"):
            verb = _Token(relation_word, "VERB", "VBN", "EXS")
        else:
            verb = _Token(copula_or_verb, "VERB", xpos, _EVENT_TAGS[xpos])
        parts: list[_Part] = [verb]
        passive = verb.xpos == "VBN"
        if verb.word == "has":
            assert subject.entity is not None
            owned = _Token(relation_word, "NOUN", "NN", "CON")
            its = _Token(_PRONOUNS[subject.entity.pronoun][2], "PRON", "PRP$", "HAS")
            self.mentions.append((its, subject.entity))
            phrase = _Phrase("NP", [_under(its, owned, "nmod:poss"), owned], owned)
            self.roles.append((verb, phrase, "ARG1"))
            parts.append(_under(phrase, verb, "obj"))
        value = self.name(object_lexeme)
        case = _under(_Token(preposition, "ADP", "IN", "REL"), value.phrase.head, "case")
        phrase = _Phrase("PP", [case, value.phrase], value.phrase.head)
        agent = preposition == "by"
        parts.append(_under(phrase, verb, "obl:agent" if agent else "obl"))
        label = {"from": "ARG2", "for": "ARG2", "by": "ARG0"}.get(preposition, "ARGM-LOC")
        self.roles.append((verb, phrase, label))
        self.role(verb, subject, "ARG1" if passive or verb.word == "comes" else "ARG0")
        group = [self.auxiliary("be", xpos, False)] if passive else []
        vp = self.wrap(group, _Phrase("VP", parts, verb), copula=False, passive=passive)
        return self.finish(subject, "nsubj:pass" if passive else "nsubj", vp, inverted=False), fact

    def identity_fact(self, relation: str, subject: Lexeme, value: Lexeme) -> _Phrase:
        """The capital of X is Y; the founder of X is Y; the home of X is Y."""
        word, semtag = {"capital_of": ("capital", "CON"), "founded_by": ("founder", "ROL")}.get(
            relation, ("home", "CON")
        )
        noun = _Token(word, "NOUN", "NN", semtag)
        inner = _Phrase("NP", [_under(_Token("the", "DET", "DT", "DEF"), noun, "det"), noun], noun)
        owner = self.name(subject)
        of = _under(_Token("of", "ADP", "IN", "REL"), owner.phrase.head, "case")
        pp = _under(_Phrase("PP", [of, owner.phrase], owner.phrase.head), noun, "nmod")
        described = _Argument(_Phrase("NP", [inner, pp], noun), False, None)
        predicate = self.name(value).phrase
        vp = self.wrap([self.auxiliary("be", "VBZ", False)], predicate, copula=True)
        return self.finish(described, "nsubj", vp, inverted=False)

    def sentence(self) -> Sentence:
        """The next sentence of the document."""
        self.roles, self.mentions = [], []
        facts: tuple[str, ...] = ()
        u = self.u()
        mark, semtag = ".", "NIL"
        if u < self.g.fact_rate:
            tree, fact = self.fact()
            facts = (fact.id,)
        elif u < self.g.fact_rate + 0.06:
            tree = self.question()
            mark, semtag = "?", "QUE"
        else:
            tree = self.statement()
        tree.parts.append(_under(_Token(mark, "PUNCT", ".", semtag), tree.head, "punct"))
        return self.linearize(tree, facts)

    def linearize(self, tree: _Phrase, facts: tuple[str, ...]) -> Sentence:
        tokens: list[_Token] = []
        phrases: list[_Phrase] = []
        _number(tree, tokens, phrases)
        return Sentence(
            words=tuple([t.word for t in tokens]),
            upos=tuple([t.upos for t in tokens]),
            xpos=tuple([t.xpos for t in tokens]),
            semtag=tuple([t.semtag for t in tokens]),
            semtag_coarse=tuple([SEMTAG_COARSE[t.semtag] for t in tokens]),
            heads=tuple([-1 if t.governor is None else t.governor.start for t in tokens]),
            deprels=tuple([t.relation for t in tokens]),
            constituents=tuple([Constituent(p.start, p.end, p.label) for p in phrases]),
            roles=tuple([Role(v.start, p.start, p.end, label) for v, p, label in self.roles]),
            mentions=tuple(sorted([Mention(p.start, p.end, e.id) for p, e in self.mentions], key=_position)),
            topic=self.g.topics[self.topic],
            facts=facts,
        )


def _position(mention: Mention) -> tuple[int, int]:
    return mention.start, -mention.end


def _number(phrase: _Phrase, tokens: list[_Token], phrases: list[_Phrase]) -> None:
    """Gives tokens and phrases their positions, in one walk from left to right."""
    phrases.append(phrase)
    phrase.start = len(tokens)
    for part in phrase.parts:
        if isinstance(part, _Token):
            part.start = len(tokens)
            tokens.append(part)
            part.end = len(tokens)
        else:
            _number(part, tokens, phrases)
    phrase.end = len(tokens)


class Grammar:
    """A seeded generative grammar of English-like documents with gold annotation.

    The same arguments give the same lexicon, facts and documents, on every machine. A document is a pure function
    of the grammar, its split and its index: any document can be made without the ones before it, and splits draw
    from disjoint random streams. Frequencies follow Zipf's law; half of the open-class words of a document come
    from its topic with the default ``topic_boost``.

    What a sentence carries: all layers of :class:`Sentence`. Dependencies follow Universal Dependencies 2 and are
    projective; constituents follow the Penn Treebank without empty categories; roles follow PropBank, relative
    pronouns as ``R-``; coreference chains include singletons; semantic tags follow Bjerva et al. 2016 (``semtag``)
    with their coarse classes (``semtag_coarse``).

    Args:
        seed: of the lexicon, the facts and every document.
        n_topics: number of topics; each document has one.
        n_nouns: noun lexemes (two word types each).
        n_verbs: verb lexemes (four word types each).
        n_adjectives: adjective lexemes.
        n_adverbs: manner adverbs, made from the most frequent adjectives with -ly.
        n_names: proper names of people, cities, countries and organizations.
        n_facts: facts in the knowledge base.
        zipf_exponent: s in the weight (rank + 3.7)^-s of a word within its class.
        topic_boost: how many times more weight a word has in its home topic.
        ambiguous_fraction: fraction of the nouns that share their forms with a verb.
        fact_rate: probability that a sentence states a fact.

    Attributes:
        lexicon: lexemes of each open-class word type (several where the type is ambiguous).
        lexemes: lexemes of each part of speech, most frequent first.
        facts: the knowledge base.
        number_pairs: (singular, plural) of each noun.
        vocabulary: every word type that can occur, sorted.
        topics: names of the topics.

    Raises:
        ValueError: a size, rate or seed out of range, or more facts than the names allow.

    Example:
        >>> grammar = Grammar(seed=0)
        >>> document = grammar.document("train", 0)
        >>> document == grammar.document("train", 0)
        True
        >>> sentence = document.sentences[0]
        >>> sentence.heads.count(-1)
        1
    """

    def __init__(
        self,
        seed: int = 0,
        n_topics: int = 20,
        n_nouns: int = 2400,
        n_verbs: int = 900,
        n_adjectives: int = 700,
        n_adverbs: int = 300,
        n_names: int = 600,
        n_facts: int = 300,
        zipf_exponent: float = 1.0,
        topic_boost: float = 20.0,
        ambiguous_fraction: float = 0.06,
        fact_rate: float = 0.1,
    ) -> None:
        for name, value, minimum in (
            ("seed", seed, 0),
            ("n_topics", n_topics, 1),
            ("n_nouns", n_nouns, 10),
            ("n_verbs", n_verbs, 10),
            ("n_adjectives", n_adjectives, 3),
            ("n_adverbs", n_adverbs, 1),
            ("n_names", n_names, 10),
            ("n_facts", n_facts, 0),
        ):
            if value < minimum:
                raise ValueError(f"expected {name} >= {minimum}, got {value}: raise it")
        if n_adverbs > n_adjectives:
            raise ValueError(
                f"expected n_adverbs <= n_adjectives, got {n_adverbs} > {n_adjectives}: "
                "adverbs are made from adjectives, raise n_adjectives"
            )
        for name, rate in (("ambiguous_fraction", ambiguous_fraction), ("fact_rate", fact_rate)):
            if not 0 <= rate <= 0.5:
                raise ValueError(f"expected {name} in [0, 0.5], got {rate}: choose one within")
        if zipf_exponent <= 0 or topic_boost < 1:
            raise ValueError(
                f"expected zipf_exponent > 0 and topic_boost >= 1, got {zipf_exponent} and {topic_boost}: "
                "1 and 20 are the defaults"
            )
        if n_facts == 0 and fact_rate > 0:
            raise ValueError(
                f"expected fact_rate 0 without facts, got {fact_rate}: set it to 0 or raise n_facts"
            )
        self.seed = seed
        self.n_topics = n_topics
        self.fact_rate = fact_rate
        self._settings: dict[str, int | float] = {
            "version": VERSION,
            "seed": seed,
            "n_topics": n_topics,
            "n_nouns": n_nouns,
            "n_verbs": n_verbs,
            "n_adjectives": n_adjectives,
            "n_adverbs": n_adverbs,
            "n_names": n_names,
            "n_facts": n_facts,
            "zipf_exponent": zipf_exponent,
            "topic_boost": topic_boost,
            "ambiguous_fraction": ambiguous_fraction,
            "fact_rate": fact_rate,
        }
        sizes = {"NOUN": n_nouns, "VERB": n_verbs, "ADJ": n_adjectives, "ADV": n_adverbs, "PROPN": n_names}
        rng = np.random.default_rng(np.random.SeedSequence([seed, 0]))
        lexemes = build_lexemes(rng, n_topics, sizes, ambiguous_fraction)
        types: dict[str, list[Lexeme]] = {}
        for lexeme in itertools.chain.from_iterable(lexemes.values()):
            for form in dict.fromkeys(lexeme.forms.values()):
                types.setdefault(form, []).append(lexeme)
        self.topics: tuple[str, ...] = tuple(f"topic{i:02d}" for i in range(n_topics))
        self.lexemes: Mapping[str, tuple[Lexeme, ...]] = {k: tuple(v) for k, v in lexemes.items()}
        self.lexicon: Mapping[str, tuple[Lexeme, ...]] = {k: tuple(v) for k, v in types.items()}
        self.facts: tuple[Fact, ...] = build_facts(rng, lexemes["PROPN"], n_facts)
        self.number_pairs: tuple[tuple[str, str], ...] = tuple(
            (noun.forms["NN"], noun.forms["NNS"]) for noun in lexemes["NOUN"]
        )
        self.vocabulary: tuple[str, ...] = tuple(sorted(CLOSED_CLASS | types.keys()))

        def sampler(upos: str, *kinds: str) -> Sampler[Lexeme]:
            items = [x for x in lexemes[upos] if not kinds or x.kind in kinds]
            return Sampler(items, [x.topic for x in items], n_topics, zipf_exponent, topic_boost)

        self._nouns = {kind: sampler("NOUN", kind) for kind in ("person", "thing", "place", "event")}
        self._nouns["any"] = sampler("NOUN", "person", "thing", "place")
        self._names = {
            "person": sampler("PROPN", "person"),
            "place": sampler("PROPN", "city", "country"),
            "any": sampler("PROPN"),
        }
        self._verbs = {
            "any": sampler("VERB"),
            "simple": sampler("VERB", "transitive", "intransitive", "unaccusative", "ditransitive"),
            "transitive": sampler("VERB", "transitive"),
        }
        self._adjectives = sampler("ADJ")
        self._adverbs = sampler("ADV")
        self._names_by_lemma = {name.lemma: name for name in lexemes["PROPN"]}
        fact_topics = [fact.topic for fact in self.facts]
        self._fact_sampler = Sampler(self.facts, fact_topics, n_topics, zipf_exponent, topic_boost)

    def settings(self) -> dict[str, int | float]:
        """The arguments and :data:`VERSION`: equal settings give equal documents, so this is a cache key.

        Example:
            >>> Grammar(seed=3).settings()["seed"]
            3
        """
        return dict(self._settings)

    def document(self, split: str, index: int) -> Document:
        """Document ``index`` of a split.

        Args:
            split: ``train``, ``validation`` or ``test``.
            index: any number from 0.

        Returns:
            5 to 14 sentences, about 120 words, on one topic.

        Raises:
            ValueError: an unknown split or a negative index.

        Example:
            >>> Grammar().document("test", 7).name
            'test-7'
        """
        if split not in SPLITS:
            raise ValueError(f"expected a split of {', '.join(SPLITS)}, got {split!r}: choose one of these")
        if index < 0:
            raise ValueError(f"expected a document index >= 0, got {index}: count documents from 0")
        seeds = np.random.SeedSequence([self.seed, 1 + SPLITS.index(split), index])
        writer = _Writer(self, Uniforms(np.random.default_rng(seeds)))
        n_sentences = 5 + int(writer.u() * 10)
        return Document(f"{split}-{index}", tuple([writer.sentence() for _ in range(n_sentences)]))

    def documents(self, split: str, n_tokens: int) -> Iterator[Document]:
        """Documents of a split in order, until they hold at least ``n_tokens`` words together.

        Raises:
            ValueError: an unknown split or a negative number of words (when the first document is asked for).

        Example:
            >>> sum(len(s.words) for d in Grammar().documents("train", 1000) for s in d) >= 1000
            True
        """
        if n_tokens < 0:
            raise ValueError(f"expected n_tokens >= 0, got {n_tokens}: ask for a number of words")
        if split not in SPLITS:
            raise ValueError(f"expected a split of {', '.join(SPLITS)}, got {split!r}: choose one of these")
        made = 0
        for index in itertools.count():
            if made >= n_tokens:
                return
            document = self.document(split, index)
            made += sum(len(sentence.words) for sentence in document.sentences)
            yield document
