"""Trees of the synthetic corpus: words and phrases with heads, and their conversion to a Sentence."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lmdyn.datamodules.corpora.semtags import SEMTAG_COARSE
from lmdyn.datamodules.corpora.sentence import Constituent, Mention, Role, Sentence
from lmdyn.datamodules.grammar.lexicon import Lexeme

__all__ = ["Argument", "Entity", "Part", "Phrase", "Token", "linearize", "under"]


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

    @classmethod
    def conjunction(cls, word: str, semtag: str, second: "Token") -> "Token":
        """Return a conjunction, a dependent of the head of the second conjunct."""
        return cls(word, "CCONJ", "CC", semtag, second, "cc")


@dataclass(eq=False, slots=True)
class Phrase:
    """A constituent: a label, its parts in order, and the token that heads it."""

    label: str
    parts: "list[Token | Phrase]"
    head: Token
    start: int = -1
    end: int = -1

    @classmethod
    def of(cls, label: str, token: Token) -> "Phrase":
        """Return a phrase of one word."""
        return cls(label, [token], token)

    @classmethod
    def after(cls, preposition: str, phrase: "Phrase") -> "Phrase":
        """Return a phrase (PP) of a preposition, or *than*, and a noun phrase."""
        word = Token(preposition, "ADP", "IN", "REL")
        return cls("PP", [under(word, phrase.head, "case"), phrase], phrase.head)


Part = Token | Phrase


def under(part: Part, head: Token, relation: str) -> Part:
    """Make the part a dependent of ``head``."""
    token = part if isinstance(part, Token) else part.head
    token.governor = head
    token.relation = relation
    return part


@dataclass(eq=False, slots=True)
class Entity:
    """A discourse referent. ``pronoun`` is he, she, it or they; ``members`` are the parts of a coordinated group."""

    id: int
    lexeme: Lexeme | None
    plural: bool
    members: tuple[int, ...] = ()
    kind: str = field(init=False)
    pronoun: str = field(init=False)

    def __post_init__(self) -> None:
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
            self.named = self.named.union((self.entity.id,), self.entity.members)


Roles = Sequence[tuple[Token, Part, str]]
"""Predicates, their arguments, and the labels of these."""

Mentions = Sequence[tuple[Part, Entity]]


def linearize(tree: Phrase, roles: Roles, mentions: Mentions, topic: str, facts: tuple[str, ...]) -> Sentence:
    """Return the sentence of a tree; all layers are read from the tree."""
    tokens: list[Token] = []
    phrases: list[Phrase] = []
    _number(tree, tokens, phrases)
    words, upos, xpos, semtag = zip(*[(t.word, t.upos, t.xpos, t.semtag) for t in tokens], strict=True)
    return Sentence(
        words=words,
        upos=upos,
        xpos=xpos,
        semtag=semtag,
        semtag_coarse=tuple([SEMTAG_COARSE[t.semtag] for t in tokens]),
        heads=tuple([-1 if t.governor is None else t.governor.start for t in tokens]),
        deprels=tuple([t.relation for t in tokens]),
        constituents=tuple([Constituent(p.start, p.end, p.label) for p in phrases]),
        roles=tuple([Role(v.start, p.start, p.end, label) for v, p, label in roles]),
        mentions=tuple(
            sorted([Mention(p.start, p.end, e.id) for p, e in mentions], key=lambda m: (m.start, -m.end))
        ),
        topic=topic,
        facts=facts,
    )


def _number(phrase: Phrase, tokens: list[Token], phrases: list[Phrase]) -> None:
    """Assign positions to tokens and phrases, in one traversal from left to right."""
    phrases.append(phrase)
    phrase.start = len(tokens)
    for part in phrase.parts:
        if isinstance(part, Token):
            part.start = len(tokens)
            tokens.append(part)
            part.end = len(tokens)
        else:
            _number(part, tokens, phrases)
    phrase.end = len(tokens)
