"""Whole sentences of the synthetic grammar: statements, questions, facts."""

from lmdyn.datamodules.corpora.sentence import Sentence
from lmdyn.datamodules.grammar.clauses import Clauses
from lmdyn.datamodules.grammar.lexicon import (
    Fact,
    Lexeme,
)
from lmdyn.datamodules.grammar.phrases import PRONOUNS
from lmdyn.datamodules.grammar.tree import Argument, Entity, Part, Phrase, Token, linearize, under
from lmdyn.datamodules.grammar.verbs import EVENT_TAGS, Tense

__all__ = ["SentenceWriter"]

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


class SentenceWriter(Clauses):
    """Writes one document, sentence by sentence."""

    def statement(self) -> Phrase:
        """A declarative sentence, with what may be put in front of it or coordinated with it."""
        tense = self.tense()
        u = self.u()
        if u < 0.72:
            return self.clause(tense, 2)
        if u < 0.82:
            return self.clause_coordination(tense)
        if u < 0.88:
            adverbial, label = self.adverbial_clause(None, tense)
            main = self.clause(tense, 1)
            return self.fronted(adverbial, "advcl", label, main)
        if u < 0.95:
            main = self.clause(tense, 1)
            nominal = main.parts[0]
            again = next((e for p, e in reversed(self.mentions) if p is nominal), None)
            adverbial, label = self.adverbial_clause(again, tense)
            self.adverbial_role(main.head, adverbial, label)
            last = main.parts[-1]
            assert isinstance(last, Phrase)
            coordinated = isinstance(last.parts[0], Phrase) and last.parts[0].label == "VP"
            (main if coordinated else last).parts.append(under(adverbial, main.head, "advcl"))
            return main
        if u < 0.98:
            phrase = self.year()
            return self.fronted(phrase, "obl", "ARGM-TMP", self.clause("past", 1))
        main = self.clause(tense, 1)
        word, semtag = self.u.among((("oh", "ITJ"), ("yes", "ITJ"), ("hello", "GRE"), ("well", "HES")))
        token = Token(word, "INTJ", "UH", semtag)
        return self.fronted(Phrase("INTJ", [token], token), "discourse", "", main)

    def adverbial_role(self, head: Token, phrase: Phrase, label: str) -> None:
        """Record an adverbial as an argument of the verb that it modifies."""
        if label and head.upos == "VERB":
            self.roles.append((head, phrase, label))

    def fronted(self, phrase: Phrase, relation: str, label: str, main: Phrase) -> Phrase:
        """Put a phrase and a comma in front of a clause."""
        self.adverbial_role(main.head, phrase, label)
        comma = under(Token(",", "PUNCT", ",", "NIL"), phrase.head, "punct")
        main.parts[:0] = [under(phrase, main.head, relation), comma]
        return main

    def adverbial_clause(self, again: Entity | None, tense: Tense) -> tuple[Phrase, str]:
        """A subordinate clause of time, cause or condition, and its role."""
        word, xpos, upos, semtag, label = self.u.among(_SUBORDINATORS)
        banned = frozenset() if again is None else frozenset((again.id, *again.members))
        clause = self.clause(tense, 1, banned, again)
        relation = "advmod" if upos == "ADV" else "mark"
        mark: Part = Token(word, upos, xpos, semtag)
        if upos == "ADV":
            assert isinstance(mark, Token)
            mark = Phrase("WHADVP", [mark], mark)
        return Phrase("SBAR", [under(mark, clause.head, relation), clause], clause.head), label

    def clause_coordination(self, tense: Tense) -> Phrase:
        """Two main clauses joined by a conjunction."""
        first = self.clause(tense, 1)
        second = self.clause(tense, 1)
        word, semtag = self.u.among((("and", "COO"), ("and", "COO"), ("but", "BUT"), ("or", "DIS")))
        comma = under(Token(",", "PUNCT", ",", "NIL"), second.head, "punct")
        conjunction = under(Token(word, "CCONJ", "CC", semtag), second.head, "cc")
        return Phrase("S", [first, comma, conjunction, under(second, first.head, "conj")], first.head)

    def question(self) -> Phrase:
        """A question, with a question word or a fronted auxiliary."""
        u = self.u()
        tense = self.tense()
        if u < 0.45:
            return self.clause(tense, 1, inverted=True)
        if u < 0.65:  # who sees the dog ?
            wh = self.wh("who", "WP", "QUE")
            vp = self.vp(
                self.draw.verbs["simple"](self.u(), self.topic),
                Argument(wh, False, None),
                tense,
                1,
                frozenset(),
            )
            under(wh, vp.head, "nsubj")
            return Phrase("SBARQ", [wh, Phrase("SQ", [vp], vp.head)], vp.head)
        if u < 0.85:  # what did the dog see ?
            wh = self.wh(self.u.among(("what", "who", "whom")), "WP", "QUE")
            subject = self.np("person", 0, 1)
            gap = Argument(wh, False, None)
            verb = self.draw.verbs["transitive"](self.u(), self.topic)
            vp = self.vp(verb, subject, tense, 0, frozenset(), inverted=True, gap=gap)
            clause = self.finish(subject, "nsubj", vp, inverted=True)
            return Phrase("SBARQ", [under(wh, vp.head, "obj"), clause], vp.head)
        word, label = self.u.among((("where", "ARGM-LOC"), ("when", "ARGM-TMP"), ("why", "ARGM-CAU")))
        wh = self.wh(word, "WRB", "QUE")
        if word == "where":  # not of a predicate that is a place itself
            clause = self.verbal_clause(tense, 1, frozenset(), None, inverted=True)
        else:
            clause = self.clause(tense, 1, inverted=True)
        self.adverbial_role(clause.head, wh, label)
        return Phrase("SBARQ", [under(wh, clause.head, "advmod"), clause], clause.head)

    def fact(self) -> tuple[Phrase, Fact]:
        """A sentence that states a fact of the knowledge base, which ends with the fact's object."""
        fact: Fact = self.draw.facts(self.u(), self.topic)
        relation = fact.relation
        template = int(self.u() * len(fact.templates))
        subject_lexeme, object_lexeme = (
            self.draw.names_by_lemma[fact.subject],
            self.draw.names_by_lemma[fact.object],
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
            self.mentions.append((its, subject.entity))
            phrase = Phrase("NP", [under(its, owned, "nmod:poss"), owned], owned)
            self.roles.append((verb, phrase, "ARG1"))
            parts.append(under(phrase, verb, "obj"))
        value = self.name(object_lexeme)
        case = under(Token(preposition, "ADP", "IN", "REL"), value.phrase.head, "case")
        phrase = Phrase("PP", [case, value.phrase], value.phrase.head)
        agent = preposition == "by"
        parts.append(under(phrase, verb, "obl:agent" if agent else "obl"))
        label = {"from": "ARG2", "for": "ARG2", "by": "ARG0"}.get(preposition, "ARGM-LOC")
        self.roles.append((verb, phrase, label))
        self.role(verb, subject, "ARG1" if passive or verb.word == "comes" else "ARG0")
        group = [self.auxiliary("be", xpos, False)] if passive else []
        vp = self.wrap(group, Phrase("VP", parts, verb), copula=False, passive=passive)
        return self.finish(subject, "nsubj:pass" if passive else "nsubj", vp, inverted=False), fact

    def identity_fact(self, relation: str, subject: Lexeme, value: Lexeme) -> Phrase:
        """The capital of X is Y; the founder of X is Y; the home of X is Y."""
        word, semtag = {"capital_of": ("capital", "CON"), "founded_by": ("founder", "ROL")}.get(
            relation, ("home", "CON")
        )
        noun = Token(word, "NOUN", "NN", semtag)
        inner = Phrase("NP", [under(Token("the", "DET", "DT", "DEF"), noun, "det"), noun], noun)
        owner = self.name(subject)
        of = under(Token("of", "ADP", "IN", "REL"), owner.phrase.head, "case")
        pp = under(Phrase("PP", [of, owner.phrase], owner.phrase.head), noun, "nmod")
        described = Argument(Phrase("NP", [inner, pp], noun), False, None)
        predicate = self.name(value).phrase
        vp = self.wrap([self.auxiliary("be", "VBZ", False)], predicate, copula=True)
        return self.finish(described, "nsubj", vp, inverted=False)

    def sentence(self) -> Sentence:
        """The next sentence of the document."""
        self.roles, self.mentions = [], []
        facts: tuple[str, ...] = ()
        u = self.u()
        mark, semtag = ".", "NIL"
        if u < self.draw.fact_rate:
            tree, fact = self.fact()
            facts = (fact.id,)
        elif u < self.draw.fact_rate + 0.06:
            tree = self.question()
            mark, semtag = "?", "QUE"
        else:
            tree = self.statement()
        tree.parts.append(under(Token(mark, "PUNCT", ".", semtag), tree.head, "punct"))
        return linearize(tree, self.roles, self.mentions, self.draw.topics[self.topic], facts)
