"""Noun phrases of the synthetic corpus: who is talked about, and by which name, pronoun or description."""

from abc import ABC, abstractmethod

from lmdyn.datamodules.grammar.lexicon import YEARS, Lexeme, Samplers, Uniforms
from lmdyn.datamodules.grammar.tree import Argument, Entity, Part, Phrase, Token, under

__all__ = ["LOCATIVE", "PRONOUNS", "NounPhrases"]

PRONOUNS = {
    # nominative, accusative, possessive, reflexive
    "he": ("he", "him", "his", "himself"),
    "she": ("she", "her", "her", "herself"),
    "it": ("it", "it", "its", "itself"),
    "they": ("they", "them", "their", "themselves"),
}
_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "twenty")
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
LOCATIVE = ("in", "in", "at", "near", "on", "behind")


class NounPhrases(ABC):
    """The discourse so far (entities, who is salient) and the noun phrases that refer to it.

    Phrases are built in the order of their words, so that a pronoun finds only what was mentioned before it.
    ``banned`` holds the identifiers of entities that cannot be named at this place: co-arguments of the same
    clause (they would need a reflexive) and the entity whose own modifier is being written.
    """

    def __init__(self, draw: Samplers, u: Uniforms) -> None:
        self.draw = draw
        self.u = u
        self.topic = int(u() * len(draw.topics))
        self.past = 0.65 if u() < 0.7 else 0.15  # probability of the past tense in this document
        self.n_entities = 0
        self.stack: list[Entity] = []  # by recency, the last is the most recent
        self.salient: dict[str, Entity] = {}  # pronoun -> the only entity it can refer to now
        self.named: dict[tuple[str, bool], Entity] = {}  # (lemma, plural) -> what "the <lemma>" refers to
        self.roles: list[tuple[Token, Part, str]] = []
        self.mentions: list[tuple[Part, Entity]] = []

    @abstractmethod
    def relative_clause(
        self,
        antecedent: Phrase,
        lexeme: Lexeme,
        plural: bool,
        entity: Entity | None,
        depth: int,
        banned: frozenset[int],
    ) -> Phrase:
        """A relative clause (SBAR) on the antecedent."""

    @abstractmethod
    def participle_clause(self, antecedent: Phrase, depth: int, banned: frozenset[int]) -> Phrase:
        """A reduced passive relative clause (VP)."""

    def touch(self, entity: Entity) -> None:
        """Makes the entity the most recent one, and what its pronoun refers to."""
        if entity in self.stack:
            self.stack.remove(entity)
        self.stack.append(entity)
        self.salient[entity.pronoun] = entity

    def introduce(self, lexeme: Lexeme | None, plural: bool = False, members: tuple[int, ...] = ()) -> Entity:
        """A new entity, mentioned now."""
        entity = Entity(self.n_entities, lexeme, plural, members)
        self.n_entities += 1
        if lexeme is not None:
            self.named[lexeme.lemma, plural] = entity
        self.touch(entity)
        return entity

    def known(self, kind: str, banned: frozenset[int]) -> Entity | None:
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

    def role(self, predicate: Token, argument: Argument | None, label: str) -> None:
        """Notes a semantic role of an argument."""
        if argument is not None:
            for phrase, prefix in argument.spans:
                self.roles.append((predicate, phrase, prefix + label))

    def pronoun(self, entity: Entity, case: int) -> Phrase:
        """Mentions the entity by pronoun; cases 0 to 3 index :data:`PRONOUNS`."""
        word = PRONOUNS[entity.pronoun][case]
        token = Token(word, "PRON", "PRP", "REF" if case == 3 else "PRO")
        self.touch(entity)
        phrase = Phrase("NP", [token], token)
        self.mentions.append((phrase, entity))
        return phrase

    def name(self, lexeme: Lexeme) -> Argument:
        """A proper name; the first mention introduces its bearer."""
        entity = self.named.get((lexeme.lemma, False))
        if entity is None:
            entity = self.introduce(lexeme)
        else:
            self.touch(entity)
        token = Token(lexeme.lemma, "PROPN", "NNP", _NAME_TAGS[lexeme.kind])
        phrase = Phrase("NP", [token], token)
        self.mentions.append((phrase, entity))
        return Argument(phrase, False, entity)

    def mention_again(self, entity: Entity, case: int) -> Argument:
        """Another mention of a known entity: pronoun, name, or definite description."""
        lexeme = entity.lexeme
        salient = self.salient[entity.pronoun] is entity
        if lexeme is None or (salient and self.u() < 0.7):
            return Argument(self.pronoun(entity, case), entity.plural, entity)
        if self.named[lexeme.lemma, entity.plural] is not entity:
            return Argument(self.pronoun(entity, case), entity.plural, entity)
        if lexeme.upos == "PROPN":
            return self.name(lexeme)
        self.touch(entity)
        noun = self.noun(lexeme, entity.plural)
        u = self.u()
        if u < 0.8:
            determiner = Token("the", "DET", "DT", "DEF")
        elif u < 0.9:
            determiner = Token("these" if entity.plural else "this", "DET", "DT", "PRX")
        else:
            determiner = Token("those" if entity.plural else "that", "DET", "DT", "DST")
        phrase = Phrase("NP", [under(determiner, noun, "det"), noun], noun)
        self.mentions.append((phrase, entity))
        return Argument(phrase, entity.plural, entity)

    def noun(self, lexeme: Lexeme, plural: bool) -> Token:
        """A common noun in its number."""
        xpos = "NNS" if plural else "NN"
        return Token(lexeme.forms[xpos], "NOUN", xpos, "ROL" if lexeme.kind == "person" else "CON")

    def adjectives(self, noun: Token) -> list[Part]:
        """None to two attributive adjectives, attached to the noun."""
        u = self.u()
        if u < 0.62:
            return []
        first = self.adjective()
        if u < 0.70:
            very = under(Token("very", "ADV", "RB", "INT"), first, "advmod")
            return [under(Phrase("ADJP", [very, first], first), noun, "amod")]
        under(first, noun, "amod")
        second = self.adjective()
        if u < 0.93 or second.word == first.word:
            return [first]
        return [first, under(second, noun, "amod")]

    def adjective(self) -> Token:
        """An adjective of the topic."""
        lexeme = self.draw.adjectives(self.u(), self.topic)
        return Token(lexeme.lemma, "ADJ", "JJ", "IST" if lexeme.kind == "intersective" else "SST")

    def np(
        self,
        kind: str = "any",
        case: int = 0,
        depth: int = 1,
        banned: frozenset[int] = frozenset(),
        topic: int | None = None,
        indefinite: bool = False,
    ) -> Argument:
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
                lexeme = self.draw.names[kind](self.u(), self.topic)
                entity = self.named.get((lexeme.lemma, False))
                if entity is None or entity.id not in banned:
                    return self.name(lexeme)
        lexeme = self.draw.nouns[kind](self.u(), self.topic if topic is None else topic)
        return self.common_noun(lexeme, depth, banned, indefinite)

    def coordination(self, kind: str, case: int, banned: frozenset[int]) -> Argument:
        """Two noun phrases joined; two people joined by *and* make a group that *they* refers to."""
        first = self.np(kind, case, 0, banned)
        second = self.np(kind, case, 0, banned | first.named)
        # "or" leaves number undecided in subjects
        disjunction = case == 1 and self.u() < 0.25
        word, semtag = ("or", "DIS") if disjunction else ("and", "AND")
        conjunction = under(Token(word, "CCONJ", "CC", semtag), second.phrase.head, "cc")
        under(second.phrase, first.phrase.head, "conj")
        phrase = Phrase("NP", [first.phrase, conjunction, second.phrase], first.phrase.head)
        named = first.named | second.named
        group = None
        both_people = all(x.entity is not None and x.entity.kind == "person" for x in (first, second))
        if both_people and not disjunction:
            group = self.introduce(None, True, tuple(sorted(named)))
            self.mentions.append((phrase, group))
        return Argument(phrase, True, group, named=named)

    def common_noun(
        self, lexeme: Lexeme, depth: int, banned: frozenset[int], indefinite: bool = False
    ) -> Argument:
        """A noun phrase around a common noun. *no* and *every* refer to nothing."""
        plural = self.u() < 0.36
        noun = self.noun(lexeme, plural)
        parts: list[Part] = []
        refers, again = True, False
        entity: Entity | None = None
        u = self.u()
        if not indefinite and u < 0.10 and (owner := self.known("any", banned)) is not None:
            parts.append(self.possessor(owner, noun))
            depth = 0  # "his dog of the man" has one owner too many
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
                parts.append(under(Token(self.u.among(_NUMBERS), "NUM", "CD", "QUC"), noun, "nummod"))
            elif semtag == "QUV":
                parts.append(under(Token(word, "ADJ", "JJ", semtag), noun, "amod"))
            elif word:
                parts.append(under(Token(word, "DET", "DT", semtag), noun, "det"))
            refers = word not in ("no", "every")
        if not again:
            parts.extend(self.adjectives(noun))
        parts.append(noun)
        first = parts[0]
        if isinstance(first, Token) and first.word == "a":
            following = parts[1]
            while isinstance(following, Phrase):
                following = following.parts[0]
            if following.word[0] in "aeiou":
                first.word = "an"
        if again:
            assert entity is not None
            self.touch(entity)
        else:
            entity = self.introduce(lexeme, plural) if refers else None
        phrase = Phrase("NP", parts, noun)
        inside = banned if entity is None else banned | {entity.id}
        if depth > 0:
            phrase = self.modifiers(phrase, lexeme, plural, entity, depth, inside)
        if entity is not None:
            self.mentions.append((phrase, entity))
        return Argument(phrase, plural, entity)

    def possessor(self, owner: Entity, noun: Token) -> Part:
        """A possessive pronoun, or a noun phrase with *'s*."""
        if self.salient[owner.pronoun] is owner and (self.u() < 0.75 or owner.lexeme is None):
            self.touch(owner)
            token = Token(PRONOUNS[owner.pronoun][2], "PRON", "PRP$", "HAS")
            self.mentions.append((token, owner))
            return under(token, noun, "nmod:poss")
        inner = self.mention_again(owner, 1)
        if inner.phrase.head.upos == "PRON":
            inner.phrase.head.word = PRONOUNS[owner.pronoun][2]
            inner.phrase.head.xpos, inner.phrase.head.semtag = "PRP$", "HAS"
            self.mentions[-1] = (inner.phrase.head, owner)
            return under(inner.phrase.head, noun, "nmod:poss")
        head = inner.phrase.head
        mark = Token("'" if head.xpos == "NNS" and head.word.endswith("s") else "'s", "PART", "POS", "REL")
        inner.phrase.parts.append(under(mark, head, "case"))
        return under(inner.phrase, noun, "nmod:poss")

    def modifiers(
        self,
        inner: Phrase,
        lexeme: Lexeme,
        plural: bool,
        entity: Entity | None,
        depth: int,
        banned: frozenset[int],
    ) -> Phrase:
        """The noun phrase within prepositional phrases and relative clauses."""
        u = self.u()
        head = inner.head
        if u < 0.20:
            phrase, _ = self.pp(("of", "of", "with", "near", "from", "in", "for"), depth - 1, banned)
            inner = Phrase("NP", [inner, under(phrase, head, "nmod")], head)
            u = self.u() * 0.5 + 0.2
        if 0.20 <= u < 0.36:
            relative = self.relative_clause(inner, lexeme, plural, entity, depth - 1, banned)
            inner = Phrase("NP", [inner, under(relative, head, "acl:relcl")], head)
        elif 0.36 <= u < 0.39:
            participle = self.participle_clause(inner, depth - 1, banned)
            inner = Phrase("NP", [inner, under(participle, head, "acl")], head)
        return inner

    def pp(self, prepositions: tuple[str, ...], depth: int, banned: frozenset[int]) -> tuple[Phrase, str]:
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
        preposition = under(Token(word, "ADP", "IN", "REL"), argument.phrase.head, "case")
        return Phrase("PP", [preposition, argument.phrase], argument.phrase.head), label

    def year(self) -> Phrase:
        """A year: *in 1987*."""
        year = Token(self.u.among(YEARS), "NUM", "CD", "YOC")
        preposition = under(Token("in", "ADP", "IN", "REL"), year, "case")
        return Phrase("PP", [preposition, Phrase("NP", [year], year)], year)
