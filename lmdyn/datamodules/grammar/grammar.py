"""A synthetic corpus with complete gold annotation: the model organism of lmdyn.

A seeded grammar writes English-like documents. Closed-class words are real, open-class words are pseudo-words
drawn from Zipfian distributions that depend on the document's topic. Each sentence is composed bottom up as one
tree whose nodes know their words, label and head; all annotation layers are views of this tree.

Words and facts are in ``lexicon``, trees in ``tree``, mentioned entities in ``discourse``. The rules are functions of a
discourse: noun phrases in ``phrases``, verbs and clauses in ``clauses``, whole sentences in ``sentences``. The rules of
other languages are in ``languages``. This module has documents and the corpus.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np

from lmdyn.datamodules.corpora.corpus import SPLITS, Corpus
from lmdyn.datamodules.corpora.sentence import Document
from lmdyn.datamodules.files.checks import at_least
from lmdyn.datamodules.grammar.clauses import relative_clause
from lmdyn.datamodules.grammar.discourse import Discourse
from lmdyn.datamodules.grammar.languages import Language
from lmdyn.datamodules.grammar.lexicon import (
    CLOSED_CLASS,
    Fact,
    Lexeme,
    Samplers,
    Uniforms,
    build_facts,
    build_lexemes,
)
from lmdyn.datamodules.grammar.sentences import write_sentence

VERSION = 1
"""Raised whenever the same settings give different documents: part of every cache key."""


@dataclass(eq=False)
class Grammar:
    """A seeded generative grammar of English-like documents with gold annotation.

    The same arguments give the same lexicon, facts and documents on every machine. A document is a pure function
    of the grammar, its split and its index: any document can be made without the preceding ones, and splits draw
    from disjoint random streams. Frequencies follow Zipf's law; with the default ``topic_boost``, half of the
    open-class words of a document come from its topic.

    Sentences have all layers of :class:`Sentence`. Dependencies follow Universal Dependencies 2 and are
    projective; constituents follow the Penn Treebank without empty categories; roles follow PropBank, with relative
    pronouns as ``R-``; coreference chains include singletons; semantic tags follow Bjerva et al. 2016 (``semtag``)
    with their coarse classes (``semtag_coarse``).

    Args:
        seed: seed of the lexicon, the facts and every document.
        n_topics: number of topics; each document has one.
        n_nouns: noun lexemes (two word types each).
        n_verbs: verb lexemes (four word types each).
        n_adjectives: adjective lexemes.
        n_adverbs: manner adverbs, made from the most frequent adjectives with -ly.
        n_names: proper names of people, cities, countries and organizations.
        n_facts: facts in the knowledge base.
        zipf_exponent: s in the weight (rank + 3.7)^-s of a word within its class.
        topic_boost: factor on a word's weight in its home topic.
        ambiguous_fraction: fraction of the nouns that share their forms with a verb.
        fact_rate: probability that a sentence states a fact.
        language_seed: seed of the rules of order and agreement, one of 24 languages; None for those of English.

    Attributes:
        language: the rules (:class:`~lmdyn.datamodules.grammar.languages.Language`).
        lexicon: lexemes of each open-class word type (several if the type is ambiguous); none for other words.
        lexemes: lexemes of each part of speech, most frequent first.
        facts: the knowledge base.
        vocabulary: every word type that can occur, sorted.
        topics: names of the topics.

    Raises:
        ValueError: if a size, rate or seed is out of range, or the names allow fewer facts than requested.

    Example:
        >>> grammar = Grammar(seed=0)
        >>> document = grammar.document("train", 0)
        >>> document == grammar.document("train", 0)
        True
        >>> sentence = document.sentences[0]
        >>> sentence.heads.count(-1)
        1
    """

    seed: int = 0
    n_topics: int = 20
    n_nouns: int = 2400
    n_verbs: int = 900
    n_adjectives: int = 700
    n_adverbs: int = 300
    n_names: int = 600
    n_facts: int = 300
    zipf_exponent: float = 1.0
    topic_boost: float = 20.0
    ambiguous_fraction: float = 0.06
    fact_rate: float = 0.1
    language_seed: int | None = None

    def __post_init__(self) -> None:
        at_least(0, seed=self.seed, n_facts=self.n_facts, language_seed=self.language_seed or 0)
        at_least(1, n_topics=self.n_topics, n_adverbs=self.n_adverbs, topic_boost=self.topic_boost)
        at_least(3, n_adjectives=self.n_adjectives)
        at_least(10, n_nouns=self.n_nouns, n_verbs=self.n_verbs, n_names=self.n_names)
        if self.n_adverbs > self.n_adjectives:
            limit = f"n_adjectives = {self.n_adjectives}"
            raise ValueError(f"n_adverbs must be at most {limit}, got {self.n_adverbs}")
        for name in ("ambiguous_fraction", "fact_rate"):
            if not 0 <= getattr(self, name) <= 0.5:
                raise ValueError(f"{name} must be from 0 to 0.5, got {getattr(self, name)}")
        if self.zipf_exponent <= 0:
            raise ValueError(f"zipf_exponent must be above 0, got {self.zipf_exponent}: 1 is the default")
        if self.n_facts == 0 and self.fact_rate > 0:
            raise ValueError(f"fact_rate must be 0 if n_facts is 0, got {self.fact_rate}: raise n_facts")
        sizes = {"NOUN": self.n_nouns, "VERB": self.n_verbs, "ADJ": self.n_adjectives}
        sizes |= {"ADV": self.n_adverbs, "PROPN": self.n_names}
        rng = np.random.default_rng(np.random.SeedSequence([self.seed, 0]))
        lexemes = build_lexemes(rng, self.n_topics, sizes, self.ambiguous_fraction)
        types: defaultdict[str, tuple[Lexeme, ...]] = defaultdict(tuple)
        for lexeme in itertools.chain.from_iterable(lexemes.values()):
            for form in dict.fromkeys(lexeme.forms.values()):
                types[form] += (lexeme,)
        self.language = Language.drawn(self.language_seed)
        self._plurals = {verb.forms["VBZ"]: verb.forms["VBP"] for verb in lexemes["VERB"]}
        self._plurals |= {"is": "are", "has": "have", "does": "do"}
        self.topics: tuple[str, ...] = tuple(f"topic{i:02d}" for i in range(self.n_topics))
        self.lexemes: Mapping[str, Sequence[Lexeme]] = lexemes
        self.lexicon: Mapping[str, tuple[Lexeme, ...]] = types
        self.facts: tuple[Fact, ...] = build_facts(rng, lexemes["PROPN"], self.n_facts)
        self.vocabulary: tuple[str, ...] = tuple(sorted(CLOSED_CLASS | types.keys()))

        self._samplers = Samplers(
            lexemes, self.facts, self.topics, self.fact_rate, self.zipf_exponent, self.topic_boost
        )

    def settings(self) -> dict[str, int | float]:
        """Return :data:`VERSION` and the arguments that are not None: a cache key, since they determine the documents.

        Example:
            >>> Grammar(seed=3).settings()["seed"]
            3
        """
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"version": VERSION, **{name: value for name, value in given.items() if value is not None}}

    def require_english(self, whose: str) -> None:
        """Raise an error for the rules of another language.

        Raises:
            ValueError: names whose rules are those of English.
        """
        if self.language != Language():
            raise ValueError(
                f"{whose} requires English, got language_seed {self.language_seed}: omit language_seed"
            )

    def document(self, split: str, index: int) -> Document:
        """Document ``index`` of a split.

        Args:
            split: ``train``, ``validation`` or ``test``.
            index: any number from 0.

        Returns:
            A document of 5 to 14 sentences, about 120 words, on one topic.

        Raises:
            ValueError: if the split is unknown or the index negative, by numpy.

        Example:
            >>> Grammar().document("test", 7).name
            'test-7'
        """
        seeds = np.random.SeedSequence([self.seed, 1 + SPLITS.index(split), index])
        discourse = Discourse(self._samplers, Uniforms(np.random.default_rng(seeds)), relative_clause)
        n_sentences = 5 + int(discourse.u() * 10)
        reorder = partial(self.language.apply, plurals=self._plurals)
        written = tuple([write_sentence(discourse, reorder) for _ in range(n_sentences)])
        return Document(f"{split}-{index}", written)

    def documents(self, split: str, n_tokens: int) -> Iterator[Document]:
        """Yield documents of a split in order, until they contain at least ``n_tokens`` words in total.

        Raises:
            ValueError: if the split is unknown (raised with the first document).

        Example:
            >>> sum(len(s.words) for d in Grammar().documents("train", 1000) for s in d) >= 1000
            True
        """
        index = made = 0
        while made < n_tokens:
            document = self.document(split, index)
            index = index + 1
            made = made + sum(len(sentence.words) for sentence in document)
            yield document


class GrammarCorpus(Corpus):
    """The embedded corpus: documents of a :class:`Grammar`, generated when needed, so that studies run anywhere.

    Splits share lexicon, topics and facts, but no documents. With the default sizes, the first start takes seconds.

    Args:
        n_train_tokens: words of the training split, including full stops, rounded up to whole documents.
        n_validation_tokens: the same for validation.
        n_test_tokens: the same for test.
        grammar_seed: seed of the lexicon, the facts and the documents, which do not depend on ``seed``.
        n_topics: see :class:`Grammar`, as for all that follow up to ``language_seed``.
        n_nouns: noun lexemes.
        n_verbs: verb lexemes.
        n_adjectives: adjective lexemes.
        n_adverbs: manner adverbs.
        n_names: proper names.
        n_facts: facts in the knowledge base.
        zipf_exponent: exponent of the word frequencies.
        topic_boost: weight of a word in its home topic.
        ambiguous_fraction: fraction of the nouns that share their forms with a verb.
        fact_rate: probability that a sentence states a fact.
        language_seed: seed of the rules of order and agreement. Give an observer's own ``probe`` the same seed: lmdyn
            cannot tell another language, which has the same words.
        **kwargs: see :class:`~lmdyn.datamodules.Corpus`.

    Raises:
        ValueError: if a number of words is below 1, or :class:`Grammar` refuses the sizes.

    Example:
        >>> corpus = GrammarCorpus(n_train_tokens=10_000, grammar_seed=1)
        >>> next(corpus.documents("validation")).name
        'validation-0'
    """

    def __init__(
        self,
        n_train_tokens: int = 500_000,
        n_validation_tokens: int = 50_000,
        n_test_tokens: int = 50_000,
        *,
        grammar_seed: int = 0,
        n_topics: int = 20,
        n_nouns: int = 2400,
        n_verbs: int = 900,
        n_adjectives: int = 700,
        n_adverbs: int = 300,
        n_names: int = 600,
        n_facts: int = 300,
        zipf_exponent: float = 1.0,
        topic_boost: float = 20.0,
        ambiguous_fraction: float = 0.06,
        fact_rate: float = 0.1,
        language_seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        given = locals()
        super().__init__(**kwargs)
        self.n_tokens = self.by_split(n_train_tokens, n_validation_tokens, n_test_tokens)
        self.grammar = Grammar(grammar_seed, **{f.name: given[f.name] for f in fields(Grammar)[1:]})

    def documents(self, split: str) -> Iterator[Document]:
        """Yield the documents of a split, generated one at a time."""
        self.require_split(split)
        return self.grammar.documents(split, self.n_tokens[split])

    def content_key(self) -> dict[str, Any]:
        """Return the settings of the grammar, its version, and the sizes of the splits."""
        return {**self.grammar.settings(), "n_tokens": self.n_tokens}
