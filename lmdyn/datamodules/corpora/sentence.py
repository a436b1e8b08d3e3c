"""The one type of annotated text: every gold corpus is read into documents of :class:`Sentence`."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

__all__ = ["TOKEN_LAYERS", "Constituent", "Document", "Mention", "Role", "Sentence"]

TOKEN_LAYERS = ("upos", "xpos", "semtag", "semtag_coarse", "deprels")
"""Layers with one label for each word."""


@dataclass(frozen=True, slots=True)
class Constituent:
    """A phrase: words ``start`` to ``end`` (exclusive) with a label such as ``NP``."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Role:
    """A semantic role: the argument span of the predicate at word ``predicate``, PropBank labels (``ARG0``)."""

    predicate: int
    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Mention:
    """A span that refers to entity ``entity`` (unique within its document): coreference chains share it."""

    start: int
    end: int
    entity: int


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words with annotation layers; a layer that the corpus lacks is None.

    Token layers (``upos``, ``xpos``, ``semtag``, ``semtag_coarse``, ``deprels``) have one label per word;
    ``heads`` has the index of each word's head, -1 for the root; ``constituents``, ``roles`` and ``mentions`` have
    spans of words; ``topic`` is one label for the sentence; ``facts`` has the identifiers of the facts it states.

    Raises:
        ValueError: if the sentence or a word is empty, a word has white space, a layer has another length, or a head
            or span is outside the sentence.

    Example:
        >>> Sentence(words=("the", "cat", "sleeps"), upos=("DET", "NOUN", "VERB"), heads=(1, 2, -1)).upos
        ('DET', 'NOUN', 'VERB')
    """

    words: tuple[str, ...]
    upos: tuple[str | None, ...] | None = None
    xpos: tuple[str | None, ...] | None = None
    semtag: tuple[str | None, ...] | None = None
    semtag_coarse: tuple[str | None, ...] | None = None
    heads: tuple[int, ...] | None = None
    deprels: tuple[str | None, ...] | None = None
    constituents: tuple[Constituent, ...] | None = None
    roles: tuple[Role, ...] | None = None
    mentions: tuple[Mention, ...] | None = None
    topic: str | None = None
    facts: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        n = len(self.words)
        if n == 0:
            raise ValueError("a sentence must have at least one word, got none")
        for i, word in enumerate(self.words):
            if not word or any(c.isspace() for c in word):
                raise ValueError(
                    f"word {i} is {word!r}: words must not be empty or contain white space (join with '_')"
                )
        for name in (*TOKEN_LAYERS, "heads"):
            layer = getattr(self, name)
            if layer is not None and len(layer) != n:
                raise ValueError(f"layer {name!r} has {len(layer)} entries, expected {n}, one per word")
        if self.heads is not None and any(not -1 <= h < n for h in self.heads):
            raise ValueError(f"heads {self.heads} point outside a sentence of {n} words (-1 is the root)")
        spans: tuple[Constituent | Role | Mention, ...] = (
            *(self.constituents or ()),
            *(self.roles or ()),
            *(self.mentions or ()),
        )
        for span in spans:
            if not 0 <= span.start < span.end <= n:
                raise ValueError(f"{span} lies outside a sentence of {n} words")

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that this sentence has."""
        return tuple(f.name for f in fields(self) if f.name != "words" and getattr(self, f.name) is not None)


@dataclass(frozen=True, slots=True)
class Document:
    """Sentences that belong together, in order, with a name (an article's title, or a document id of a file)."""

    name: str
    sentences: tuple[Sentence, ...]

    def __iter__(self) -> Iterator[Sentence]:
        return iter(self.sentences)
