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
        return cls(*every[np.random.default_rng(0).permutation(len(every))[seed % len(every)]])

    def apply(self, phrase: Phrase, plurals: Mapping[str, str]) -> None:
        """Change order and forms of the words of a tree; ``plurals`` has the plural form of each verb's singular."""
        for part in phrase.parts:
            if isinstance(part, Phrase):
                self.apply(part, plurals)
            elif not self.agreement and (part.xpos == "VBZ" or part.word == "was"):
                part.word = plurals.get(part.word, part.word.removesuffix("s"))  # become, remain, seem
                part.xpos = "VBP" if part.xpos == "VBZ" else part.xpos
        parts = phrase.parts
        on_noun = phrase.label == "NP" and len(parts) == 2 and parts[1].head.relation in ("acl", "acl:relcl")
        if (self.relatives_first and on_noun) or (self.postpositions and phrase.label in ("PP", "WHPP")):
            parts.reverse()
        elif self.clause == "SOV" and phrase.label == "VP":
            _verb_last(phrase)
        elif self.clause == "VSO" and phrase.label == "S":
            _verb_first(phrase)


def _verb_last(phrase: Phrase) -> None:
    """Put a verb after its complements and adjuncts, or an auxiliary or *to* after its verb phrase."""
    if phrase.head in phrase.parts:
        phrase.parts.remove(phrase.head)
        phrase.parts.append(phrase.head)
    elif isinstance(phrase.parts[0], Token):
        phrase.parts.reverse()


def _verb_first(clause: Phrase) -> None:
    """Put the finite verb of a clause before its subject."""
    parts = clause.parts
    for i, (subject, predicate) in enumerate(pairwise(parts)):
        is_subject = subject.head.relation.startswith(("nsubj", "expl"))
        if is_subject and isinstance(predicate, Phrase) and subject.head.governor is predicate.head:
            verb, rest = _without_verb(predicate)
            parts[i : i + 2] = [verb, subject, *rest]
            return


def _without_verb(predicate: Phrase) -> tuple[Token, list[Part]]:
    """Return the first verb or auxiliary of a verb phrase, and the parts that are left."""
    parts = predicate.parts
    for i, part in enumerate(parts):
        if isinstance(part, Token) and part.upos in ("AUX", "VERB"):
            return part, parts[:i] + parts[i + 1 :]
        if isinstance(part, Phrase) and part.label == "VP":  # the first of two
            verb, part.parts = _without_verb(part)
            predicate.parts = [p for p in parts if p is not part or part.parts]
            return verb, [predicate]
    raise AssertionError("a predicate has a verb")
