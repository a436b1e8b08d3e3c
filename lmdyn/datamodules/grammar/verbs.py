"""Verb phrases of the synthetic corpus: agreement, auxiliaries, and complements by the frame of a verb."""

from abc import abstractmethod
from typing import Literal

from lmdyn.datamodules.grammar.lexicon import Lexeme
from lmdyn.datamodules.grammar.phrases import LOCATIVE, NounPhrases
from lmdyn.datamodules.grammar.tree import Argument, Entity, Part, Phrase, Token, under

__all__ = ["EVENT_TAGS", "MODALS", "Tense", "VerbPhrases"]

Tense = Literal["past", "present"]

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
_PREVERBAL = 4  # of the free adverbs, the first four stand before the verb


class VerbPhrases(NounPhrases):
    """Verb phrases by the frame of their verb: auxiliaries, complements, adjuncts, and their roles."""

    @abstractmethod
    def clause(
        self,
        tense: Tense,
        depth: int,
        banned: frozenset[int] = frozenset(),
        again: Entity | None = None,
        inverted: bool = False,
    ) -> Phrase:
        """A finite clause (S, or SQ with ``inverted``), no full stop."""

    def tense(self) -> Tense:
        """The tense of the next clause; documents differ in how often it is the past."""
        return "past" if self.u() < self.past else "present"

    def auxiliary(self, lemma: str, form: str, plural: bool) -> Token:
        """A form of be, have or do; ``plural`` is the number of its subject."""
        word = ("were" if plural else "was") if lemma == "be" and form == "VBD" else _AUXILIARIES[lemma][form]
        return Token(word, "AUX", form, {"VBZ": "NOW", "VBP": "NOW", "VBD": "PST"}.get(form, "NIL"))

    def verb_group(
        self, plural: bool, tense: Tense, passive: bool, finite: bool, inverted: bool
    ) -> tuple[list[Token], str]:
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
        group: list[Token] = []
        negated = self.u() < 0.07
        if modal:
            word, semtag = self.u.among(MODALS)
            group.append(Token(word, "AUX", "MD", semtag))
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
            group.insert(1, Token("not", "PART", "RB", "NOT"))
        return group, form

    def wrap(self, group: list[Token], core: Phrase, copula: bool, passive: bool = False) -> Phrase:
        """Nests the core under its auxiliaries and attaches these to its head."""
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
                    self.roles.append((head, token, "ARGM-NEG"))
                continue
            if i == last and (copula or passive):
                under(token, head, "cop" if copula else "aux:pass")
            else:
                under(token, head, "aux")
            if token.xpos == "MD" and not copula:
                self.roles.append((head, token, "ARGM-MOD"))
            phrase = Phrase("VP", [token, phrase] if pending is None else [token, pending, phrase], head)
            pending = None
        return phrase

    def vp(
        self,
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
        """The verb phrase of ``lexeme``: auxiliaries, complements by its frame, adjuncts, and their roles.

        With ``inverted`` the first auxiliary is the first part of the returned phrase's outermost VP; the caller
        moves it before the subject. ``gap`` stands for an object that was moved away.
        """
        group, form = self.verb_group(subject.plural, tense, passive, finite, inverted)
        semtag = "EXS" if passive else EVENT_TAGS[form]
        verb = Token(lexeme.forms[form], "VERB", form, semtag)
        banned = banned | subject.named
        kind = lexeme.kind
        self.role(verb, subject, "ARG1" if passive or kind == "unaccusative" else "ARG0")
        parts: list[Part] = []
        u = self.u()
        if u < 0.10 and not inverted:
            negated = any(token.word == "not" for token in group)
            parts.append(self.adverb(verb, before=True, negated=negated))
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
                prepositions = (*LOCATIVE, "with", "for", "during", "after", "before")
                parts.append(self.adjunct(verb, prepositions, depth - 1, banned))
            elif depth > 0 and u < 0.25 and (tense == "past"):
                phrase = self.year()
                self.roles.append((verb, phrase, "ARGM-TMP"))
                parts.append(under(phrase, verb, "obl"))
        return self.wrap(group, Phrase("VP", parts, verb), copula=False, passive=passive)

    def adverb(self, verb: Token, before: bool, negated: bool = False) -> Part:
        """An adverb phrase with its role, attached to the verb."""
        if self.u() < 0.5:
            lexeme = self.draw.adverbs(self.u(), self.topic)
            word, semtag, label = lexeme.lemma, "IST", "ARGM-MNR"
        else:
            word, semtag, label = self.u.among(
                _FREE_ADVERBS[:_PREVERBAL] if before else _FREE_ADVERBS[_PREVERBAL:]
            )
        token = Token(word, "ADV", "RB", semtag)
        phrase = Phrase("ADVP", [token], token)
        self.roles.append((verb, phrase, label))
        return under(phrase, verb, "advmod")

    def adjunct(self, verb: Token, prepositions: tuple[str, ...], depth: int, banned: frozenset[int]) -> Part:
        """A prepositional phrase with its role, attached to the verb."""
        phrase, label = self.pp(prepositions, depth, banned)
        self.roles.append((verb, phrase, label))
        return under(phrase, verb, "obl")

    def object(
        self, verb: Token, lexeme: Lexeme, subject: Argument, depth: int, banned: frozenset[int]
    ) -> Part:
        """The direct object: a reflexive now and then, else a noun phrase."""
        referent = subject.entity
        if referent is not None and self.u() < 0.04:
            phrase = self.pronoun(referent, 3)
        else:
            # mild selection: a verb likes the nouns of its own topic
            topic = lexeme.topic if self.u() < 0.3 else self.topic
            phrase = self.np("any" if self.u() < 0.6 else "thing", 1, depth, banned, topic).phrase
        self.roles.append((verb, phrase, "ARG1"))
        return under(phrase, verb, "obj")

    def two_objects(self, verb: Token, lexeme: Lexeme, depth: int, banned: frozenset[int]) -> list[Part]:
        """Theme and recipient: *gave the man a book*, *gave a book to the man*."""
        if self.u() < 0.5:
            recipient = self.np("person", 1, 0, banned)
            banned = banned | recipient.named
            theme = self.np("thing", 1, depth, banned, lexeme.topic if self.u() < 0.3 else None)
            self.role(verb, theme, "ARG1")
            self.role(verb, recipient, "ARG2")
            return [under(recipient.phrase, verb, "iobj"), under(theme.phrase, verb, "obj")]
        theme = self.np("thing", 1, 0, banned, lexeme.topic if self.u() < 0.3 else None)
        banned = banned | theme.named
        recipient = self.np("person", 1, depth, banned)
        to = under(Token("to", "ADP", "IN", "REL"), recipient.phrase.head, "case")
        phrase = Phrase("PP", [to, recipient.phrase], recipient.phrase.head)
        self.role(verb, theme, "ARG1")
        self.roles.append((verb, phrase, "ARG2"))
        return [under(theme.phrase, verb, "obj"), under(phrase, verb, "obl")]

    def by_phrase(self, verb: Token, depth: int, banned: frozenset[int]) -> Part:
        """The agent of a passive verb."""
        agent = self.np("person", 1, depth, banned)
        by = under(Token("by", "ADP", "IN", "REL"), agent.phrase.head, "case")
        phrase = Phrase("PP", [by, agent.phrase], agent.phrase.head)
        self.roles.append((verb, phrase, "ARG0"))
        return under(phrase, verb, "obl:agent")

    def complement_clause(self, verb: Token, subject: Argument, depth: int, banned: frozenset[int]) -> Part:
        """A finite clause as object, with or without *that*."""
        clause = self.clause(self.tense(), depth, banned, again=subject.entity)
        parts: list[Part] = [clause]
        if self.u() < 0.75:
            parts.insert(0, under(Token("that", "SCONJ", "IN", "SUB"), clause.head, "mark"))
        phrase = Phrase("SBAR", parts, clause.head)
        self.roles.append((verb, phrase, "ARG1"))
        return under(phrase, verb, "ccomp")

    def infinitive(self, verb: Token, subject: Argument, depth: int, banned: frozenset[int]) -> Part:
        """A to-infinitive whose understood subject is the subject of ``verb``."""
        frame = "simple" if depth < 1 or self.u() < 0.9 else "any"
        vp = self.vp(
            self.draw.verbs[frame](self.u(), self.topic),
            subject,
            "present",
            max(depth, 0),
            banned,
            finite=False,
        )
        to = under(Token("to", "PART", "TO", "NIL"), vp.head, "mark")
        phrase = Phrase("S", [Phrase("VP", [to, vp], vp.head)], vp.head)
        self.roles.append((verb, phrase, "ARG1"))
        return under(phrase, verb, "xcomp")
