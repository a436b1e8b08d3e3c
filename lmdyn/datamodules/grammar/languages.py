"""Languages of the synthetic corpus: other rules of order and agreement for the sentences of the grammar."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Literal, Self

import numpy as np

from lmdyn.datamodules.grammar.tree import Part, Phrase, Token


@dataclass(frozen=True)
class Language:
    """Rules that turn a tree of the English-like grammar into a sentence of another language, word by word.

    A rule reorders the parts of a phrase, so that dependencies stay as they are, and projective. The constituents stay
    too, except for the verb phrase that a VSO clause divides. Question words and the auxiliary of a question are first
    in all languages.

    Attributes:
        clause: order of subject, verb and object. In ``SOV``, a verb follows all of its phrase, and its auxiliaries
            follow it, the finite one last; in ``VSO``, the finite verb or auxiliary precedes the subject.
        postpositions: whether adpositions follow their noun phrase.
        relatives_first: whether clauses on a noun precede it and its determiner.
        agreement: whether finite verbs agree with their subject; else they have the form of the plural.

    Example:
        >>> sorted({Language.drawn(seed).clause for seed in range(24)})
        ['SOV', 'SVO', 'VSO']
    """

    clause: Literal["SVO", "SOV", "VSO"] = "SVO"
    postpositions: bool = False
    relatives_first: bool = False
    agreement: bool = True

    @classmethod
    def drawn(cls, seed: int | None) -> Self:
        """Return one of all 24 languages; 24 seeds in a row give each of them. None gives the rules of English."""
        if seed is None:
            return cls()
        every = list(product(("SVO", "SOV", "VSO"), (False, True), (False, True), (True, False)))
        order = np.random.default_rng(0).permutation(len(every))
        return cls(*every[order[seed % len(every)]])

    def apply(self, phrase: Phrase, plurals: Mapping[str, str]) -> None:
        """Change order and forms of the words of a tree; ``plurals`` has the plural form of each verb's singular."""
        for part in phrase.parts:
            if isinstance(part, Phrase):
                self.apply(part, plurals)
            elif not self.agreement:
                _as_plural(part, plurals)
        if phrase.label == "NP" and _ends_in_clause(phrase):
            if self.relatives_first:
                phrase.parts.reverse()
        elif phrase.label in ("PP", "WHPP"):
            if self.postpositions:
                phrase.parts.reverse()
        elif self.clause == "SOV" and phrase.label == "VP":
            _verb_last(phrase)
        elif self.clause == "VSO" and phrase.label == "S":
            _verb_first(phrase)


def _as_plural(word: Token, plurals: Mapping[str, str]) -> None:
    """Give a verb in the singular the form of the plural."""
    if word.xpos == "VBZ":
        word.xpos = "VBP"
        stem = word.word.removesuffix("s")  # of become, remain, seem
        word.word = plurals.get(word.word, stem)
    elif word.word == "was":
        word.word = "were"


def _ends_in_clause(phrase: Phrase) -> bool:
    """Return whether a noun phrase is another one and a clause on it."""
    return len(phrase.parts) == 2 and phrase.parts[1].head.relation in ("acl", "acl:relcl")


def _verb_last(phrase: Phrase) -> None:
    """Put a verb after its complements and adjuncts, or an auxiliary or *to* after its verb phrase."""
    if phrase.head in phrase.parts:
        phrase.parts.remove(phrase.head)
        phrase.parts.append(phrase.head)
    elif isinstance(phrase.parts[0], Token):
        phrase.parts.reverse()


def _verb_first(clause: Phrase) -> None:
    """Put the finite verb of a clause before its subject."""
    for i, (subject, predicate) in enumerate(pairwise(clause.parts)):
        if not isinstance(predicate, Phrase):
            continue
        noun, verb = subject.head, predicate.head
        if noun.governor is verb and noun.relation.startswith(("nsubj", "expl")):
            first, rest = _without_verb(predicate)
            clause.parts[i : i + 2] = [first, subject, *rest]
            return


def _without_verb(predicate: Phrase) -> tuple[Token, list[Part]]:
    """Return the first verb or auxiliary of a verb phrase, and the parts that are left."""
    parts = predicate.parts
    for i, part in enumerate(parts):
        if isinstance(part, Token):
            if part.upos in ("AUX", "VERB"):
                return part, parts[:i] + parts[i + 1 :]
        elif part.label == "VP":  # the first of two
            verb, part.parts = _without_verb(part)
            if not part.parts:
                parts.remove(part)
            return verb, [predicate]
    raise AssertionError("a predicate has a verb")
