"""Verb phrases and clauses of the synthetic corpus: agreement, auxiliaries, frames, embedding."""

from typing import Literal

from lmdyn.datamodules.grammar_lexicon import Lexeme
from lmdyn.datamodules.grammar_phrases import LOCATIVE, NounPhrases
from lmdyn.datamodules.grammar_tree import Argument, Entity, Part, Phrase, Token, under

__all__ = ["EVENT_TAGS", "Clauses", "Tense"]

Tense = Literal["past", "present"]

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
_AGENTIVE = frozenset(("clausal", "control", "ditransitive"))


class Clauses(NounPhrases):
    """Verb phrases by the frame of their verb, and the clauses around them, relative clauses too."""

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
            word, semtag = self.u.among(_MODALS)
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

    def relative_clause(
        self,
        antecedent: Phrase,
        lexeme: Lexeme,
        plural: bool,
        entity: Entity | None,
        depth: int,
        banned: frozenset[int],
    ) -> Phrase:
        """A relative clause (SBAR) on the antecedent: of subject, object, or inside of a PP."""
        u = self.u()
        person = lexeme.kind == "person"
        tense = self.tense()
        if u < 0.55:  # subject relative
            word, xpos = ("who", "WP") if person and self.u() < 0.75 else ("that", "WDT")
            if not person and self.u() < 0.4:
                word = "which"
            wh = self.wh(word, xpos, "REL")
            frame = "transitive" if self.u() < 0.6 else "simple"
            verb = self.draw.verbs[frame](self.u(), self.topic)
            subject = Argument(wh, plural, entity, ((antecedent, ""), (wh, "R-")))
            passive = verb.kind == "transitive" and (not person or self.u() < 0.15) and self.u() < 0.5
            vp = self.vp(verb, subject, tense, depth, banned, passive=passive)
            under(wh, vp.head, "nsubj:pass" if passive else "nsubj")
            return Phrase("SBAR", [wh, Phrase("S", [vp], vp.head)], vp.head)
        if u < 0.92:  # object relative
            u = self.u()
            word, xpos = ("whom", "WP") if person and u < 0.3 else ("that", "WDT")
            if not person and u < 0.3:
                word = "which"
            silent = u > 0.75
            subject = self.np("person", 0, depth, banned)
            verb = self.draw.verbs["transitive"](self.u(), self.topic)
            wh = self.wh(word, xpos, "REL")
            spans = ((antecedent, ""),) if silent else ((antecedent, ""), (wh, "R-"))
            vp = self.vp(verb, subject, tense, depth, banned, gap=Argument(wh, plural, entity, spans))
            s = Phrase("S", [under(subject.phrase, vp.head, "nsubj"), vp], vp.head)
            return Phrase("SBAR", [s] if silent else [under(wh, vp.head, "obj"), s], vp.head)
        # a relative pronoun inside of a prepositional phrase
        word, xpos = ("whom", "WP") if person else ("which", "WDT")
        wh = self.wh(word, xpos, "REL")
        preposition = Token("with" if person else self.u.among(LOCATIVE), "ADP", "IN", "REL")
        wh = Phrase("WHPP", [under(preposition, wh.head, "case"), wh], wh.head)
        subject = self.np("person", 0, depth, banned)
        verb = self.draw.verbs["simple"](self.u(), self.topic)
        vp = self.vp(verb, subject, tense, 0, banned)
        label = "ARGM-COM" if person else "ARGM-LOC"
        self.roles += [(vp.head, antecedent, label), (vp.head, wh, "R-" + label)]
        s = Phrase("S", [under(subject.phrase, vp.head, "nsubj"), vp], vp.head)
        return Phrase("SBAR", [under(wh, vp.head, "obl"), s], vp.head)

    def participle_clause(self, antecedent: Phrase, depth: int, banned: frozenset[int]) -> Phrase:
        """A reduced passive relative clause: *the dog seen by him*."""
        lexeme = self.draw.verbs["transitive"](self.u(), self.topic)
        verb = Token(lexeme.forms["VBN"], "VERB", "VBN", "EXS")
        self.roles.append((verb, antecedent, "ARG1"))
        return Phrase("VP", [verb, self.by_phrase(verb, depth, banned)], verb)

    def wh(self, word: str, xpos: str, semtag: str) -> Phrase:
        """A wh-word and its phrase."""
        token = Token(word, "ADV" if xpos == "WRB" else "PRON", xpos, semtag)
        return Phrase("WHADVP" if xpos == "WRB" else "WHNP", [token], token)

    def clause(
        self,
        tense: Tense,
        depth: int,
        banned: frozenset[int] = frozenset(),
        again: Entity | None = None,
        inverted: bool = False,
    ) -> Phrase:
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

    def subject(self, kind: str, depth: int, banned: frozenset[int], again: Entity | None) -> Argument:
        """A subject noun phrase; the pronoun for ``again`` where that is clear and fits."""
        if (
            again is not None
            and (kind == "any" or again.kind == kind)
            and self.salient.get(again.pronoun) is again
            and self.u() < 0.45
        ):
            return Argument(self.pronoun(again, 0), again.plural, again)
        return self.np(kind, 0, depth, banned)

    def finish(
        self, subject: Argument, relation: str, vp: Phrase, inverted: bool, extra: Phrase | None = None
    ) -> Phrase:
        """Joins subject and verb phrase; inverted, the first auxiliary goes before the subject."""
        under(subject.phrase, vp.head, relation)
        if inverted:
            first, *rest = vp.parts
            # what is left of the outer VP: a negation and the inner VP (or the predicate after a copula)
            return Phrase("SQ", [first, subject.phrase, *rest], vp.head)
        parts: list[Part] = [subject.phrase, vp]
        if extra is not None:
            parts.append(extra)
        return Phrase("S", parts, vp.head)

    def verbal_clause(
        self, tense: Tense, depth: int, banned: frozenset[int], again: Entity | None, inverted: bool
    ) -> Phrase:
        """A clause of a full verb; its frame decides what its subject may be."""
        u = self.u
        lexeme = self.draw.verbs["any" if depth > 0 else "simple"](u(), self.topic)
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
            other = self.draw.verbs["simple"](u(), self.topic)
            if other is not lexeme:
                second = self.vp(other, subject, tense, 0, banned)
                word, semtag = ("or", "DIS") if u() < 0.12 else ("and", "AND")
                conjunction = under(Token(word, "CCONJ", "CC", semtag), second.head, "cc")
                vp = Phrase("VP", [vp, conjunction, under(second, vp.head, "conj")], vp.head)
        return self.finish(subject, "nsubj:pass" if passive else "nsubj", vp, inverted)

    def copular_clause(
        self, tense: Tense, depth: int, banned: frozenset[int], again: Entity | None, inverted: bool
    ) -> Phrase:
        """*The dog is happy*, *is a friend*, *is in the garden*."""
        subject = self.subject("any", depth, banned, again)
        banned = banned | subject.named
        u = self.u()
        predicate: Phrase
        if u < 0.62 or (subject.plural and u < 0.8):
            predicate = self.adjective_phrase(banned)
        elif u < 0.8:
            lexeme = self.draw.nouns["person" if subject.phrase.head.semtag in ("PER", "ROL") else "thing"](
                self.u(), self.topic
            )
            noun = self.noun(lexeme, False)
            adjectives = self.adjectives(noun)
            following: Part = adjectives[0] if adjectives else noun
            while isinstance(following, Phrase):
                following = following.parts[0]
            article = Token("an" if following.word[0] in "aeiou" else "a", "DET", "DT", "DIS")
            predicate = Phrase("NP", [under(article, noun, "det"), *adjectives, noun], noun)
        else:
            predicate, _ = self.pp(LOCATIVE, max(depth - 1, 0), banned)
        form = "VBD" if tense == "past" else "VBP" if subject.plural else "VBZ"
        group = [self.auxiliary("be", form, subject.plural)]
        u = self.u()
        if u < 0.10:
            word, semtag = self.u.among(_MODALS)
            group = [Token(word, "AUX", "MD", semtag), self.auxiliary("be", "VB", subject.plural)]
        elif u < 0.16:
            group = [
                self.auxiliary("have", form, subject.plural),
                self.auxiliary("be", "VBN", subject.plural),
            ]
        if self.u() < 0.08:
            group.insert(1, Token("not", "PART", "RB", "NOT"))
        vp = self.wrap(group, predicate, copula=True)
        return self.finish(subject, "nsubj", vp, inverted)

    def linking_clause(
        self, tense: Tense, depth: int, banned: frozenset[int], again: Entity | None
    ) -> Phrase:
        """A clause of *seem*, *become* or *remain* and an adjective."""
        subject = self.subject("any", depth, banned, again)
        group, form = self.verb_group(subject.plural, tense, passive=False, finite=True, inverted=False)
        verb = Token(self.u.among(_LINKING)[form], "VERB", form, EVENT_TAGS[form])
        predicate = self.adjective_phrase(banned)
        self.role(verb, subject, "ARG1")
        self.roles.append((verb, predicate, "ARG2"))
        core = Phrase("VP", [verb, under(predicate, verb, "xcomp")], verb)
        return self.finish(subject, "nsubj", self.wrap(group, core, copula=False), inverted=False)

    def existential(self, tense: Tense, depth: int, banned: frozenset[int]) -> Phrase:
        """*There is a dog in the garden*: the verb agrees with what follows it."""
        pivot = self.np("any", 0, depth, banned, indefinite=True)
        form = "VBD" if tense == "past" else "VBP" if pivot.plural else "VBZ"
        verb = self.auxiliary("be", form, pivot.plural)
        verb.upos, verb.semtag = "VERB", EVENT_TAGS[form]
        parts: list[Part] = [verb, under(pivot.phrase, verb, "nsubj")]
        self.role(verb, pivot, "ARG1")
        if self.u() < 0.5:
            parts.append(self.adjunct(verb, LOCATIVE, 0, banned | pivot.named))
        there = Token("there", "PRON", "EX", "NIL")
        subject = under(Phrase("NP", [there], there), verb, "expl")
        return Phrase("S", [subject, Phrase("VP", parts, verb)], verb)

    def adjective_phrase(self, banned: frozenset[int]) -> Phrase:
        """A predicative adjective with degree, comparison or coordination."""
        adjective = self.adjective()
        u = self.u()
        if u < 0.55:
            return Phrase("ADJP", [adjective], adjective)
        if u < 0.80:
            word = "very" if u < 0.66 else "too" if u < 0.73 else "so"
            degree = under(Token(word, "ADV", "RB", "INT"), adjective, "advmod")
            return Phrase("ADJP", [degree, adjective], adjective)
        if u < 0.90:
            more = under(Token("more", "ADV", "RBR", "MOR"), adjective, "advmod")
            standard = self.np("any", 1, 0, banned)
            than = under(Token("than", "ADP", "IN", "REL"), standard.phrase.head, "case")
            phrase = Phrase("PP", [than, standard.phrase], standard.phrase.head)
            return Phrase("ADJP", [more, adjective, under(phrase, adjective, "obl")], adjective)
        second = self.adjective()
        if second.word == adjective.word:
            return Phrase("ADJP", [adjective], adjective)
        word, semtag = ("and", "AND") if u < 0.97 else ("or", "DIS")
        conjunction = under(Token(word, "CCONJ", "CC", semtag), second, "cc")
        return Phrase("ADJP", [adjective, conjunction, under(second, adjective, "conj")], adjective)
