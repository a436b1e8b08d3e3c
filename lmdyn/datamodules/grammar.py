"""A synthetic corpus with complete gold annotation: the model organism of lmdyn.

A seeded grammar writes English-like documents. Closed-class words are real, open-class words are pseudo-words
drawn from Zipfian distributions that depend on the document's topic. Each sentence is composed bottom up as one
tree whose nodes know their words, label and head, so that all annotation layers are views of the same tree.

Words and facts are in ``grammar_lexicon``, trees in ``grammar_tree``, noun phrases and reference in
``grammar_phrases``, verb phrases and clauses in ``grammar_clauses``; whole sentences and documents are here.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lmdyn.datamodules.corpus import SPLITS, Corpus
from lmdyn.datamodules.grammar_clauses import EVENT_TAGS, Clauses, Tense
from lmdyn.datamodules.grammar_lexicon import (
    CLOSED_CLASS,
    Fact,
    Lexeme,
    Sampler,
    Samplers,
    Uniforms,
    build_facts,
    build_lexemes,
)
from lmdyn.datamodules.grammar_phrases import PRONOUNS
from lmdyn.datamodules.grammar_tree import Argument, Entity, Part, Phrase, Token, linearize, under
from lmdyn.datamodules.sentence import Document, Sentence

__all__ = ["VERSION", "Fact", "Grammar", "GrammarCorpus", "Lexeme"]

VERSION = 1
"""Raised whenever the same settings give other documents: part of every cache key."""

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


class _Writer(Clauses):
    """Writes one document, sentence by sentence."""

    def statement(self) -> Phrase:
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
        if label and head.upos == "VERB":
            self.roles.append((head, phrase, label))

    def fronted(self, phrase: Phrase, relation: str, label: str, main: Phrase) -> Phrase:
        self.adverbial_role(main.head, phrase, label)
        comma = under(Token(",", "PUNCT", ",", "NIL"), phrase.head, "punct")
        main.parts[:0] = [under(phrase, main.head, relation), comma]
        return main

    def adverbial_clause(self, again: Entity | None, tense: Tense) -> tuple[Phrase, str]:
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
        first = self.clause(tense, 1)
        second = self.clause(tense, 1)
        word, semtag = self.u.among((("and", "COO"), ("and", "COO"), ("but", "BUT"), ("or", "DIS")))
        comma = under(Token(",", "PUNCT", ",", "NIL"), second.head, "punct")
        conjunction = under(Token(word, "CCONJ", "CC", semtag), second.head, "cc")
        return Phrase("S", [first, comma, conjunction, under(second, first.head, "conj")], first.head)

    def question(self) -> Phrase:
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


class Grammar:
    """A seeded generative grammar of English-like documents with gold annotation.

    The same arguments give the same lexicon, facts and documents, on every machine. A document is a pure function
    of the grammar, its split and its index: any document can be made without the ones before it, and splits draw
    from disjoint random streams. Frequencies follow Zipf's law; half of the open-class words of a document come
    from its topic with the default ``topic_boost``.

    What a sentence carries: all layers of :class:`Sentence`. Dependencies follow Universal Dependencies 2 and are
    projective; constituents follow the Penn Treebank without empty categories; roles follow PropBank, relative
    pronouns as ``R-``; coreference chains include singletons; semantic tags follow Bjerva et al. 2016 (``semtag``)
    with their coarse classes (``semtag_coarse``).

    Args:
        seed: of the lexicon, the facts and every document.
        n_topics: number of topics; each document has one.
        n_nouns: noun lexemes (two word types each).
        n_verbs: verb lexemes (four word types each).
        n_adjectives: adjective lexemes.
        n_adverbs: manner adverbs, made from the most frequent adjectives with -ly.
        n_names: proper names of people, cities, countries and organizations.
        n_facts: facts in the knowledge base.
        zipf_exponent: s in the weight (rank + 3.7)^-s of a word within its class.
        topic_boost: how many times more weight a word has in its home topic.
        ambiguous_fraction: fraction of the nouns that share their forms with a verb.
        fact_rate: probability that a sentence states a fact.

    Attributes:
        lexicon: lexemes of each open-class word type (several where the type is ambiguous).
        lexemes: lexemes of each part of speech, most frequent first.
        facts: the knowledge base.
        number_pairs: (singular, plural) of each noun.
        vocabulary: every word type that can occur, sorted.
        topics: names of the topics.

    Raises:
        ValueError: a size, rate or seed out of range, or more facts than the names allow.

    Example:
        >>> grammar = Grammar(seed=0)
        >>> document = grammar.document("train", 0)
        >>> document == grammar.document("train", 0)
        True
        >>> sentence = document.sentences[0]
        >>> sentence.heads.count(-1)
        1
    """

    def __init__(
        self,
        seed: int = 0,
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
    ) -> None:
        for name, value, minimum in (
            ("seed", seed, 0),
            ("n_topics", n_topics, 1),
            ("n_nouns", n_nouns, 10),
            ("n_verbs", n_verbs, 10),
            ("n_adjectives", n_adjectives, 3),
            ("n_adverbs", n_adverbs, 1),
            ("n_names", n_names, 10),
            ("n_facts", n_facts, 0),
        ):
            if value < minimum:
                raise ValueError(f"expected {name} >= {minimum}, got {value}: raise it")
        if n_adverbs > n_adjectives:
            raise ValueError(
                f"expected n_adverbs <= n_adjectives, got {n_adverbs} > {n_adjectives}: "
                "adverbs are made from adjectives, raise n_adjectives"
            )
        for name, rate in (("ambiguous_fraction", ambiguous_fraction), ("fact_rate", fact_rate)):
            if not 0 <= rate <= 0.5:
                raise ValueError(f"expected {name} in [0, 0.5], got {rate}: choose one within")
        if zipf_exponent <= 0 or topic_boost < 1:
            raise ValueError(
                f"expected zipf_exponent > 0 and topic_boost >= 1, got {zipf_exponent} and {topic_boost}: "
                "1 and 20 are the defaults"
            )
        if n_facts == 0 and fact_rate > 0:
            raise ValueError(
                f"expected fact_rate 0 without facts, got {fact_rate}: set it to 0 or raise n_facts"
            )
        self.seed = seed
        self._settings: dict[str, int | float] = {
            "version": VERSION,
            "seed": seed,
            "n_topics": n_topics,
            "n_nouns": n_nouns,
            "n_verbs": n_verbs,
            "n_adjectives": n_adjectives,
            "n_adverbs": n_adverbs,
            "n_names": n_names,
            "n_facts": n_facts,
            "zipf_exponent": zipf_exponent,
            "topic_boost": topic_boost,
            "ambiguous_fraction": ambiguous_fraction,
            "fact_rate": fact_rate,
        }
        sizes = {"NOUN": n_nouns, "VERB": n_verbs, "ADJ": n_adjectives, "ADV": n_adverbs, "PROPN": n_names}
        rng = np.random.default_rng(np.random.SeedSequence([seed, 0]))
        lexemes = build_lexemes(rng, n_topics, sizes, ambiguous_fraction)
        types: dict[str, list[Lexeme]] = {}
        for lexeme in itertools.chain.from_iterable(lexemes.values()):
            for form in dict.fromkeys(lexeme.forms.values()):
                types.setdefault(form, []).append(lexeme)
        self.topics: tuple[str, ...] = tuple(f"topic{i:02d}" for i in range(n_topics))
        self.lexemes: Mapping[str, tuple[Lexeme, ...]] = {k: tuple(v) for k, v in lexemes.items()}
        self.lexicon: Mapping[str, tuple[Lexeme, ...]] = {k: tuple(v) for k, v in types.items()}
        self.facts: tuple[Fact, ...] = build_facts(rng, lexemes["PROPN"], n_facts)
        self.number_pairs: tuple[tuple[str, str], ...] = tuple(
            (noun.forms["NN"], noun.forms["NNS"]) for noun in lexemes["NOUN"]
        )
        self.vocabulary: tuple[str, ...] = tuple(sorted(CLOSED_CLASS | types.keys()))

        def sampler(upos: str, *kinds: str) -> Sampler[Lexeme]:
            items = [x for x in lexemes[upos] if not kinds or x.kind in kinds]
            return Sampler(items, [x.topic for x in items], n_topics, zipf_exponent, topic_boost)

        nouns = {kind: sampler("NOUN", kind) for kind in ("person", "thing", "place", "event")}
        fact_topics = [fact.topic for fact in self.facts]
        self._samplers = Samplers(
            topics=self.topics,
            nouns={**nouns, "any": sampler("NOUN", "person", "thing", "place")},
            names={
                "person": sampler("PROPN", "person"),
                "place": sampler("PROPN", "city", "country"),
                "any": sampler("PROPN"),
            },
            verbs={
                "any": sampler("VERB"),
                "simple": sampler("VERB", "transitive", "intransitive", "unaccusative", "ditransitive"),
                "transitive": sampler("VERB", "transitive"),
            },
            adjectives=sampler("ADJ"),
            adverbs=sampler("ADV"),
            facts=Sampler(self.facts, fact_topics, n_topics, zipf_exponent, topic_boost),
            fact_rate=fact_rate,
            names_by_lemma={name.lemma: name for name in lexemes["PROPN"]},
        )

    def settings(self) -> dict[str, int | float]:
        """The arguments and :data:`VERSION`: equal settings give equal documents, so this is a cache key.

        Example:
            >>> Grammar(seed=3).settings()["seed"]
            3
        """
        return dict(self._settings)

    def document(self, split: str, index: int) -> Document:
        """Document ``index`` of a split.

        Args:
            split: ``train``, ``validation`` or ``test``.
            index: any number from 0.

        Returns:
            5 to 14 sentences, about 120 words, on one topic.

        Raises:
            ValueError: an unknown split or a negative index.

        Example:
            >>> Grammar().document("test", 7).name
            'test-7'
        """
        if split not in SPLITS:
            raise ValueError(f"expected a split of {', '.join(SPLITS)}, got {split!r}: choose one of these")
        if index < 0:
            raise ValueError(f"expected a document index >= 0, got {index}: count documents from 0")
        seeds = np.random.SeedSequence([self.seed, 1 + SPLITS.index(split), index])
        writer = _Writer(self._samplers, Uniforms(np.random.default_rng(seeds)))
        n_sentences = 5 + int(writer.u() * 10)
        return Document(f"{split}-{index}", tuple([writer.sentence() for _ in range(n_sentences)]))

    def documents(self, split: str, n_tokens: int) -> Iterator[Document]:
        """Documents of a split in order, until they hold at least ``n_tokens`` words together.

        Raises:
            ValueError: an unknown split or a negative number of words (when the first document is asked for).

        Example:
            >>> sum(len(s.words) for d in Grammar().documents("train", 1000) for s in d) >= 1000
            True
        """
        if n_tokens < 0:
            raise ValueError(f"expected n_tokens >= 0, got {n_tokens}: ask for a number of words")
        if split not in SPLITS:
            raise ValueError(f"expected a split of {', '.join(SPLITS)}, got {split!r}: choose one of these")
        made = 0
        for index in itertools.count():
            if made >= n_tokens:
                return
            document = self.document(split, index)
            made += sum(len(sentence.words) for sentence in document.sentences)
            yield document


class GrammarCorpus(Corpus):
    """The embedded corpus: documents of a :class:`Grammar`, made on the spot, so that studies run anywhere.

    Splits share lexicon, topics and facts, and no document. With the default sizes the first start takes seconds.

    Args:
        n_train_tokens: words of the training split, full stops included, rounded up to whole documents.
        n_validation_tokens: the same for validation.
        n_test_tokens: the same for test.
        grammar_seed: seed of the lexicon, the facts and the documents.
        n_topics: see :class:`Grammar`, as for all that follow up to ``fact_rate``.
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
        tokenizer: see :class:`~lmdyn.datamodules.corpus.Corpus`, as for all that follow.
        min_count: least count of a word in the vocabulary.
        eos: append the end-of-sentence token to each sentence.
        layers: layers to serve; None is all.
        batch_size: rows of a batch.
        sequence_length: predictions in a row.
        cache_dir: folder of the encoded text.
        seed: of the permutation of shuffled layers; the text depends on ``grammar_seed`` only.

    Raises:
        ValueError: a number of words below 1, or sizes that :class:`Grammar` refuses.

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
        tokenizer: str | None = None,
        min_count: int = 1,
        eos: bool = True,
        layers: list[str] | None = None,
        batch_size: int = 40,
        sequence_length: int = 35,
        cache_dir: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            tokenizer=tokenizer,
            min_count=min_count,
            eos=eos,
            layers=layers,
            batch_size=batch_size,
            sequence_length=sequence_length,
            cache_dir=cache_dir,
            seed=seed,
        )
        self.n_tokens = {"train": n_train_tokens, "validation": n_validation_tokens, "test": n_test_tokens}
        for split, n in self.n_tokens.items():
            if n < 1:
                raise ValueError(f"expected n_{split}_tokens >= 1, got {n}: ask for a number of words")
        self.grammar = Grammar(
            seed=grammar_seed,
            n_topics=n_topics,
            n_nouns=n_nouns,
            n_verbs=n_verbs,
            n_adjectives=n_adjectives,
            n_adverbs=n_adverbs,
            n_names=n_names,
            n_facts=n_facts,
            zipf_exponent=zipf_exponent,
            topic_boost=topic_boost,
            ambiguous_fraction=ambiguous_fraction,
            fact_rate=fact_rate,
        )

    def documents(self, split: str) -> Iterator[Document]:
        """Documents of a split, made as they are asked for."""
        if split not in SPLITS:
            raise ValueError(f"expected a split of {', '.join(SPLITS)}, got {split!r}: choose one of these")
        return self.grammar.documents(split, self.n_tokens[split])

    def content_key(self) -> dict[str, Any]:
        """Settings of the grammar, its version, and the sizes of the splits."""
        return {**self.grammar.settings(), "n_tokens": self.n_tokens}
