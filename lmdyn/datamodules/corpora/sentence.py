"""The one type of annotated text: every gold corpus is read into documents of :class:`Sentence`."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any

TOKEN_LAYERS = ("upos", "xpos", "semtag", "semtag_coarse", "deprels")
"""Layers with one label for each word."""


MISSING = ("-", "_", "")
"""Spellings of a missing value in columns of all CoNLL formats, except that of the word."""


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

    ``text`` is the sentence as it is written, with the white space around it, so that the sentences of a document
    joined are its text; ``places`` are start and end of each word in it. Without ``places``, the words are those that
    white space separates. Both are None for text that is given as words only.

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
    text: str | None = None
    places: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        n = len(self.words)
        if n == 0:
            raise ValueError("a sentence must have at least one word, got none")
        for i, word in enumerate(self.words):
            if not word or any(c.isspace() for c in word):
                raise ValueError(f"word {i} is {word!r}: expected characters without white space (use '_')")
        for name in (*TOKEN_LAYERS, "heads"):
            layer = getattr(self, name)
            if layer is not None and len(layer) != n:
                raise ValueError(f"layer {name!r} has {len(layer)} entries, expected {n}, one per word")
        if self.places is not None and (self.text is None or len(self.places) != n):
            raise ValueError(f"expected `text` and {n} `places`, got {self.text!r} and {len(self.places)}")
        if strange := [h for h in self.heads or () if not -1 <= h < n]:
            raise ValueError(f"head {strange[0]}: expected a word's index, 0 to {n - 1}, or -1 for the root")
        spans: list[Any] = [*(self.constituents or ()), *(self.roles or ()), *(self.mentions or ())]
        for span in spans:
            if not 0 <= span.start < span.end <= n:
                kind = type(span).__name__.lower()
                raise ValueError(
                    f"a {kind} has start {span.start} and end {span.end} in a sentence of {n} words: expected "
                    f"0 <= start < end <= {n}, where end is the index of the word after the {kind}"
                )

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that this sentence has."""
        written = ("words", "text", "places")
        return tuple(
            f.name for f in fields(self) if f.name not in written and getattr(self, f.name) is not None
        )

    def word_places(self) -> tuple[tuple[int, int], ...]:
        """Return start and end of each word in ``text``.

        Raises:
            ValueError: if there is no text, or it has other words.
        """
        if self.places is not None:
            return self.places
        places = tuple(word.span() for word in re.finditer(r"\S+", self.text or ""))
        if len(places) != len(self.words):
            raise ValueError(f"`text` is {self.text!r}: expected {len(self.words)} words, or `places`")
        return places


@dataclass(frozen=True, slots=True)
class Document:
    """Sentences that belong together, in order, with a name (an article's title, or a document id of a file).

    A long document may come in several parts; ``continues`` is set for all except the first.
    """

    name: str
    sentences: tuple[Sentence, ...]
    continues: bool = False

    def __iter__(self) -> Iterator[Sentence]:
        return iter(self.sentences)

    def as_words(self) -> "Document":
        """Return the document without the text of its sentences."""
        if all(s.text is None for s in self):
            return self
        return replace(self, sentences=tuple(replace(s, text=None, places=None) for s in self))


def grouped(sentences: Iterable[tuple[int, str, Sentence]]) -> Iterator[Document]:
    """Yield the documents of sentences that come with the number and the name of their document."""
    for (_, name), group in groupby(sentences, lambda found: found[:2]):
        yield Document(name, tuple(sentence for _, _, sentence in group))
