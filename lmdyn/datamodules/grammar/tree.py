"""Trees of the synthetic corpus: words and phrases with their heads, and what they refer to."""

from dataclasses import dataclass, field

from lmdyn.datamodules.grammar.lexicon import Lexeme


@dataclass(eq=False, slots=True)
class Token:
    """A word with its labels before it is placed in a sentence; attachment sets ``governor`` and ``relation``."""

    word: str
    upos: str
    xpos: str
    semtag: str
    governor: "Token | None" = None
    relation: str = "root"
    start: int = -1
    end: int = -1

    @property
    def head(self) -> "Token":
        """The token, which heads itself."""
        return self


class Phrase:
    """A constituent: a label, its parts in order, and the token that heads it: by default, that of the last part."""

    __slots__ = ("end", "head", "label", "parts", "start")

    def __init__(self, label: str, parts: "list[Part]", head: Token | None = None) -> None:
        self.label = label
        self.parts = parts
        self.head: Token = head or parts[-1].head
        self.start = self.end = -1

    @classmethod
    def after(cls, preposition: str, phrase: "Phrase") -> "Phrase":
        """Return a phrase (PP) of a preposition, or *than*, and a noun phrase."""
        return cls("PP", [Token(preposition, "ADP", "IN", "REL", phrase.head, "case"), phrase])

    @classmethod
    def coordinated(cls, label: str, first: "Part", second: "Part", disjunction: bool) -> "Phrase":
        """Return a phrase of two conjuncts, joined by *or* or *and*."""
        word, semtag = ("or", "DIS") if disjunction else ("and", "AND")
        joined = Token(word, "CCONJ", "CC", semtag, second.head, "cc")
        return cls(label, [first, joined, under(second, first.head, "conj")], first.head)


Part = Token | Phrase


def under(part: Part, head: Token, relation: str) -> Part:
    """Make the part a dependent of ``head``."""
    part.head.governor = head
    part.head.relation = relation
    return part


@dataclass(eq=False, slots=True)
class Entity:
    """A discourse referent. ``pronoun`` is he, she, it or they; ``members`` are the parts of a coordinated group.

    ``named`` are the entities that a mention of it names: itself and its members.
    """

    id: int
    lexeme: Lexeme | None
    plural: bool
    members: tuple[int, ...] = ()
    kind: str = field(init=False)
    pronoun: str = field(init=False)
    named: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.named = frozenset((self.id, *self.members))
        self.kind = self.lexeme.kind if self.lexeme else "person"
        self.pronoun = "they" if self.plural or self.lexeme is None else self.lexeme.gender


@dataclass(eq=False, slots=True)
class Argument:
    """Properties of an argument that its predicate needs: number, referent, and the phrases that carry its role.

    ``spans`` pairs each phrase with a prefix of its role label: an argument represented by a relative pronoun has
    the antecedent (``""``) and the pronoun (``R-``). ``named`` are the entities that its co-arguments cannot name.
    """

    phrase: Phrase
    plural: bool
    entity: Entity | None
    spans: tuple[tuple[Phrase, str], ...] = ()
    named: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.spans = self.spans or ((self.phrase, ""),)
        if self.entity is not None:
            self.named |= self.entity.named
