"""Downstream tasks of the synthetic corpus: acceptability of sentences, and similarity of two sentences."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lmdyn.datamodules.corpora.sentence import Sentence
from lmdyn.datamodules.files.checks import at_least, each_once
from lmdyn.datamodules.grammar.grammar import Grammar, GrammarCorpus
from lmdyn.datamodules.grammar.lexicon import Lexeme
from lmdyn.datamodules.tasks.tasks import RawTask, TaskData, TextExample

GRAMMAR_TASKS = ("acceptability", "similarity")

RULES = ("verb_agreement", "determiner_agreement", "word_order", "finite_verb")
"""Rules of the grammar that :func:`corruptions` break."""

_AUXILIARIES = {"is": "are", "has": "have", "does": "do"}
_VERB_NUMBER = {**_AUXILIARIES, **{plural: singular for singular, plural in _AUXILIARIES.items()}}
# no new "that": it also opens clauses
_DETERMINERS = {"this": "these", "that": "those", "these": "this", "those": "this"}
_PRONOUNS = {"he": False, "she": False, "it": False, "they": True}
PLURAL = {"NN": False, "NNP": False, "NNS": True}
_FINITE = ("VBZ", "VBP", "VBD", "MD")
_CLOSED_FINITE = frozenset(f"{verb}{ending}" for verb in ("seem", "remain") for ending in ("", "s", "ed")) | {
    "become", "becomes", "became", "works", "comes", "lives",
}  # fmt: skip
_VOWELS = "aeiou"


class GrammarTasks(TaskData):
    """Two tasks on sentences of a :class:`~lmdyn.datamodules.grammar.grammar.Grammar`, with known ground truth.

    ``acceptability``, as CoLA: whether a sentence is from the grammar, or was minimally changed so that it breaks one
    of four rules; see :func:`corruptions`. Half of the sentences are acceptable. Only sentences in which a rule can be
    broken are used, in one version each.

    ``similarity``, as STS-B: two sentences of the same structure, the second with other words in k of the n places of
    content words; the score is 5 · (1 − k / n), 5 for equal sentences. See :func:`rated`.

    Training examples come from the corpus's training documents, evaluation examples from its validation documents; no
    sentence is in both.

    Args:
        corpus: corpus with the grammar and the documents.
        tasks: some of ``acceptability`` and ``similarity``.
        n_train: training examples of each task.
        n_evaluation: evaluation examples of each task.
        seed: seed of the changes.
        **kwargs: see :class:`~lmdyn.datamodules.tasks.tasks.TaskData`.

    Raises:
        ValueError: if a task is unknown, or a size is below 2; in ``setup``, if the corpus has too few sentences.

    Example:
        >>> corpus = GrammarCorpus(n_train_tokens=2000, n_validation_tokens=1000)
        >>> tasks = GrammarTasks(corpus, n_train=20, n_evaluation=10)
        >>> [len(task.train) for task in tasks.read()]
        [20, 20]
    """

    def __init__(
        self,
        corpus: GrammarCorpus,
        tasks: Sequence[str] = GRAMMAR_TASKS,
        *,
        n_train: int = 2000,
        n_evaluation: int = 500,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        each_once(GRAMMAR_TASKS, 1, tasks=tasks)
        at_least(2, n_train=n_train, n_evaluation=n_evaluation)
        corpus.grammar.require_english("GrammarTasks")
        self.corpus = corpus
        self.names = tuple(tasks)
        self.sizes = {"train": n_train, "validation": n_evaluation}
        self.seed = seed

    def read(self) -> Iterator[RawTask]:
        """Yield the tasks as text."""
        for name in self.names:
            seen: set[tuple[str, ...]] = set()
            train, evaluation = (self._examples(name, split, seen) for split in ("train", "validation"))
            labels = ("unacceptable", "acceptable") if name == "acceptability" else ()
            yield RawTask(name, "classification" if labels else "regression", train, {"": evaluation}, labels)

    def _examples(self, name: str, split: str, seen: set[tuple[str, ...]]) -> list[TextExample]:
        sentences = (s for document in self.corpus.documents(split) for s in document)
        fresh = (s for s in sentences if s.words not in seen and not seen.add(s.words))  # type: ignore[func-returns-value]
        n, grammar = self.sizes[split], self.corpus.grammar
        seed = [self.seed, GRAMMAR_TASKS.index(name), int(split == "validation")]
        given = (fresh, grammar, n, np.random.default_rng(seed))
        found = list((judged if name == "acceptability" else rated)(*given))
        if len(found) < n:
            raise ValueError(
                f"{name}: expected {n} examples of distinct sentences, got {len(found)} from the {split} documents: "
                f"raise n_{split}_tokens of the corpus, or lower n_{'train' if split == 'train' else 'evaluation'}"
            )
        return found


# ------------------------------------------------------------------------------------------- acceptability


def judged(
    sentences: Iterator[Sentence], grammar: Grammar, n: int, random: np.random.Generator
) -> Iterator[TextExample]:
    """Yield sentences to judge, half of them (n // 2) acceptable (label 1), in random order.

    Args:
        sentences: distinct sentences of the grammar.
        grammar: the grammar.
        n: number of sentences.
        random: determines which sentences are unchanged, and which applicable rule is broken.
    """
    acceptable = random.permutation(np.arange(n) < n // 2)
    for sentence in sentences:
        if not len(acceptable):
            return
        broken = corruptions(sentence, grammar, random)
        if not broken:
            continue
        keep, acceptable = bool(acceptable[0]), acceptable[1:]
        rule = list(broken)[random.integers(len(broken))]
        yield TextExample(" ".join(sentence.words if keep else broken[rule]), None, float(keep))


def corruptions(
    sentence: Sentence, grammar: Grammar, random: np.random.Generator
) -> dict[str, tuple[str, ...]]:
    """Return the sentence with one rule broken, by the rule's name, for each rule that applies to it.

    - ``verb_agreement``: a verb in the present takes the number that its subject does not have. Only verbs whose
      subject shows its number: a noun, a name, a pronoun, a coordination.
    - ``determiner_agreement``: *this* or *that* becomes *these* or *those* before a singular noun, *these* or
      *those* becomes *this* before a plural one.
    - ``word_order``: *the, a* or *an* stands after its noun, in a phrase that ends with this noun.
    - ``finite_verb``: the only finite verb is left out.

    Words that could be read as another part of speech are not changed, so that another reading cannot make the
    sentence acceptable.

    Args:
        sentence: a sentence of the grammar.
        grammar: the grammar.
        random: determines which of several places is changed.
    """
    breaks = (_verb_agreement, _determiner_agreement, _word_order, _finite_verb)
    places = {rule: broken(sentence, grammar) for rule, broken in zip(RULES, breaks, strict=True)}
    return {rule: some[random.integers(len(some))] for rule, some in places.items() if some}


def _replaced(words: Sequence[str], i: int, *new: str, length: int = 1) -> tuple[str, ...]:
    return (*words[:i], *new, *words[i + length :])


def _verb_agreement(s: Any, grammar: Grammar) -> list[tuple[str, ...]]:
    found = []
    for i, (word, tag) in enumerate(zip(s.words, s.xpos, strict=True)):
        plural = _subject_is_plural(s, i)
        if tag not in ("VBZ", "VBP") or plural is None or plural != (tag == "VBP"):
            continue
        other = _VERB_NUMBER.get(word)
        lexemes = grammar.lexicon[word]
        if other is None and len(lexemes) == 1 and lexemes[0].upos == "VERB":
            other = lexemes[0].forms["VBZ" if plural else "VBP"]
            if len(grammar.lexicon[other]) > 1:
                continue
        if other is not None and other != word:
            found.append(_replaced(s.words, i, other))
    return found


def subjects_of(s: Any, verb: int) -> list[int]:
    """Return the subjects of a finite verb or auxiliary."""
    head = s.heads[verb] if s.upos[verb] == "AUX" else verb
    return [j for j, h in enumerate(s.heads) if h == head and (s.deprels[j] or "").startswith("nsubj")]


def _subject_is_plural(s: Any, i: int) -> bool | None:
    """Return whether the subject of a finite verb or auxiliary is plural; None if the subject does not show it."""
    subjects = subjects_of(s, i)
    if len(subjects) != 1:
        return None
    subject = subjects[0]
    if any(h == subject and d == "conj" for h, d in zip(s.heads, s.deprels, strict=True)):
        return None if {"or", "every", "no"} & set(s.words) else True  # which can be singular in English
    if s.xpos[subject] == "PRP":
        return _PRONOUNS.get(s.words[subject])
    return PLURAL.get(s.xpos[subject] or "")


def _determiner_agreement(s: Any, grammar: Grammar) -> list[tuple[str, ...]]:
    found = []
    for i, (word, tag, head) in enumerate(zip(s.words, s.xpos, s.heads, strict=True)):
        if word not in _DETERMINERS or tag != "DT" or s.xpos[head] not in ("NN", "NNS"):
            continue
        alone = all(lexeme.upos == "NOUN" for lexeme in grammar.lexicon[s.words[head]])
        before = grammar.lexicon[s.words[i - 1]] if i else ()
        # "gave these men": "gave this" may continue with another object
        if alone and not any(lexeme.kind == "ditransitive" for lexeme in before):
            found.append(_replaced(s.words, i, _DETERMINERS[word]))
    return found


def _word_order(s: Any, grammar: Grammar) -> list[tuple[str, ...]]:
    found = []
    for i in range(len(s.words) - 2):
        next_word = s.words[i + 2]
        if (
            s.words[i] in ("the", "a", "an")
            and s.heads[i] == i + 1
            and s.upos[i + 1] == "NOUN"
            # "gave the men books", "gave men the books": no noun may follow to which the determiner could belong
            and s.upos[i + 2] in ("VERB", "AUX", "ADP", "PUNCT", "SCONJ", "CCONJ")
            and all(lexeme.upos == "VERB" for lexeme in grammar.lexicon[next_word])
        ):
            found.append(_replaced(s.words, i, s.words[i + 1], s.words[i], length=2))
    return found


def _finite_verb(s: Any, grammar: Grammar) -> list[tuple[str, ...]]:
    finite = [i for i, tag in enumerate(s.xpos) if tag in _FINITE]
    if len(finite) != 1:
        return []
    rest = _replaced(s.words, finite[0])
    for word in rest:  # a participle may look like a past tense, a noun like a verb
        forms = {f for lexeme in grammar.lexicon[word] for f, w in lexeme.forms.items() if w == word}
        if word in _CLOSED_FINITE or forms & set(_FINITE):
            return []
    return [rest]


# ---------------------------------------------------------------------------------------------- similarity


def rated(
    sentences: Iterator[Sentence], grammar: Grammar, n: int, random: np.random.Generator
) -> Iterator[TextExample]:
    """Return pairs of sentences: the second is the first with other words in k of its n ≥ 2 content-word places.

    Content words are the nouns, verbs, adjectives, adverbs and names of the grammar's lexicon. k is uniform on 0 … n,
    then the places are drawn. The replacement is another lexeme of the same part of speech, kind (for a verb: frame;
    for a noun or name: semantic class), gender and form, not in this sentence, drawn by frequency: the second sentence
    is as grammatical as the first, and the score is 5 · (1 − k / n) by construction.

    Args:
        sentences: distinct sentences of the grammar.
        grammar: the grammar.
        n: number of pairs.
        random: draws k, places and words.
    """
    made = 0
    for sentence in sentences:
        if made == n:
            return
        places = _content_places(sentence, grammar)
        if len(places) < 2:
            continue
        k = int(random.integers(len(places) + 1))
        words = list(sentence.words)
        used = {lexeme.lemma for _, lexeme, _ in places}
        for j in random.permutation(len(places))[:k]:
            i, lexeme, form = places[j]
            other = _other(lexeme, form, grammar, used, vowel=words[i][0] in _VOWELS, random=random)
            if other is None:
                break
            used.add(other.lemma)
            words[i] = other.forms[form]
        else:
            made += 1
            yield TextExample(" ".join(sentence.words), " ".join(words), 5 * (1 - k / len(places)))


def _content_places(s: Any, grammar: Grammar) -> list[tuple[int, Lexeme, str]]:
    places = []
    for i, (word, upos, form) in enumerate(zip(s.words, s.upos, s.xpos, strict=True)):
        of = [x for x in grammar.lexicon[word] if x.upos == upos and x.forms.get(form) == word]
        if len(of) == 1:
            places.append((i, of[0], form))
    return places


def _other(
    lexeme: Lexeme, form: str, grammar: Grammar, used: set[str], *, vowel: bool, random: np.random.Generator
) -> Lexeme | None:
    """Return another lexeme that fits in its place, or None; ``vowel`` keeps *a* and *an* correct."""
    alike = [x for x in grammar.lexemes[lexeme.upos] if (x.kind, x.gender) == (lexeme.kind, lexeme.gender)]
    unused = [x for x in alike if x.lemma not in used and form in x.forms]
    candidates = [x for x in unused if (x.forms[form][0] in _VOWELS) == vowel]
    if not candidates:
        return None
    weights = np.array([1 / (x.rank + 3.7) for x in candidates])  # as in the corpus
    return candidates[random.choice(len(candidates), p=weights / weights.sum())]
