"""Trees of the synthetic corpus: words and phrases with heads, and their conversion to a Sentence."""

from lmdyn.datamodules.corpora.semtags import SEMTAG_COARSE
from lmdyn.datamodules.corpora.sentence import Constituent, Mention, Role, Sentence
from lmdyn.datamodules.grammar.lexicon import Lexeme

__all__ = ["Argument", "Entity", "Part", "Phrase", "Token", "linearize", "under"]


class Token:
    """A word with its labels before it is placed in a sentence; attachment sets ``governor`` and ``relation``."""

    __slots__ = ("end", "governor", "relation", "semtag", "start", "upos", "word", "xpos")

    def __init__(self, word: str, upos: str, xpos: str, semtag: str) -> None:
        self.word = word
        self.upos = upos
        self.xpos = xpos
        self.semtag = semtag
        self.governor: Token | None = None
        self.relation = "root"
        self.start = self.end = -1


class Phrase:
    """A constituent: a label, its parts in order, and the token that heads it."""

    __slots__ = ("end", "head", "label", "parts", "start")

    def __init__(self, label: str, parts: "list[Token | Phrase]", head: Token) -> None:
        self.label = label
        self.parts = parts
        self.head = head
        self.start = self.end = -1


Part = Token | Phrase


def under(part: Part, head: Token, relation: str) -> Part:
    """Make the part a dependent of ``head``."""
    token = part if isinstance(part, Token) else part.head
    token.governor = head
    token.relation = relation
    return part


class Entity:
    """A discourse referent. ``pronoun`` is he, she, it or they; ``members`` are the parts of a coordinated group."""

    __slots__ = ("id", "kind", "lexeme", "members", "plural", "pronoun")

    def __init__(self, id: int, lexeme: Lexeme | None, plural: bool, members: tuple[int, ...] = ()) -> None:
        self.id = id
        self.lexeme = lexeme
        self.plural = plural
        self.members = members
        self.kind = lexeme.kind if lexeme else "person"
        self.pronoun = "they" if plural or lexeme is None else lexeme.gender


class Argument:
    """Properties of an argument that its predicate needs: number, referent, and the phrases that carry its role.

    ``spans`` pairs each phrase with a prefix of its role label: an argument represented by a relative pronoun has
    the antecedent (``""``) and the pronoun (``R-``). ``named`` are the entities that its co-arguments cannot name.
    """

    __slots__ = ("entity", "named", "phrase", "plural", "spans")

    def __init__(
        self,
        phrase: Phrase,
        plural: bool,
        entity: Entity | None,
        spans: tuple[tuple[Phrase, str], ...] | None = None,
        named: frozenset[int] = frozenset(),
    ) -> None:
        self.phrase = phrase
        self.plural = plural
        self.entity = entity
        self.spans = spans or ((phrase, ""),)
        self.named = named if entity is None else named.union((entity.id,), entity.members)


def linearize(
    tree: Phrase,
    roles: list[tuple[Token, Part, str]],
    mentions: list[tuple[Part, Entity]],
    topic: str,
    facts: tuple[str, ...],
) -> Sentence:
    """Return the sentence of a tree; all layers are read from the tree."""
    tokens: list[Token] = []
    phrases: list[Phrase] = []
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
        roles=tuple([Role(v.start, p.start, p.end, label) for v, p, label in roles]),
        mentions=tuple(sorted([Mention(p.start, p.end, e.id) for p, e in mentions], key=_position)),
        topic=topic,
        facts=facts,
    )


def _position(mention: Mention) -> tuple[int, int]:
    return mention.start, -mention.end


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
