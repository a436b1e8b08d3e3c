"""Clauses of the synthetic corpus: statements around verbs and predicates, and clauses on nouns."""

from lmdyn.datamodules.grammar.lexicon import Lexeme
from lmdyn.datamodules.grammar.phrases import LOCATIVE
from lmdyn.datamodules.grammar.tree import Argument, Entity, Part, Phrase, Token, under
from lmdyn.datamodules.grammar.verbs import EVENT_TAGS, MODALS, Tense, VerbPhrases

__all__ = ["Clauses"]

_LINKING = tuple(
    {"VB": base, "VBP": base, "VBZ": s, "VBD": past, "VBN": participle, "VBG": ing}
    for base, s, past, participle, ing in (
        ("seem", "seems", "seemed", "seemed", "seeming"),
        ("become", "becomes", "became", "become", "becoming"),
        ("remain", "remains", "remained", "remained", "remaining"),
    )
)
_AGENTIVE = frozenset(("clausal", "control", "ditransitive"))


class Clauses(VerbPhrases):
    """Clauses: full verbs, copulas, *there is*; relative and participle clauses on a noun."""

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
            word, semtag = self.u.among(MODALS)
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
