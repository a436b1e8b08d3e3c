"""Downstream tasks of the synthetic corpus: which sentences are acceptable, and how similar two sentences are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmdyn.datamodules.corpora.sentence import Sentence
from lmdyn.datamodules.grammar.grammar import Grammar, GrammarCorpus
from lmdyn.datamodules.grammar.lexicon import Lexeme
from lmdyn.datamodules.tasks.tasks import RawTask, TaskData, TextExample

__all__ = ["GRAMMAR_TASKS", "RULES", "GrammarTasks", "Judged", "Rated", "corruptions", "judged", "rated"]

GRAMMAR_TASKS = ("acceptability", "similarity")

RULES = ("verb_agreement", "determiner_agreement", "word_order", "finite_verb")
"""Rules of the grammar that :func:`corruptions` break."""

_AUXILIARIES = {"is": "are", "has": "have", "does": "do"}
_VERB_NUMBER = {**_AUXILIARIES, **{plural: singular for singular, plural in _AUXILIARIES.items()}}
# no new "that": it also opens clauses
_DETERMINERS = {"this": "these", "that": "those", "these": "this", "those": "this"}
_PRONOUNS = {"he": False, "she": False, "it": False, "they": True}
_FINITE = ("VBZ", "VBP", "VBD", "MD")
_CLOSED_FINITE = frozenset(f"{verb}{ending}" for verb in ("seem", "remain") for ending in ("", "s", "ed")) | {
    "become", "becomes", "became", "works", "comes", "lives",
}  # fmt: skip
_VOWELS = "aeiou"


class GrammarTasks(TaskData):
    """Two tasks over sentences of a :class:`~lmdyn.datamodules.grammar.grammar.Grammar`, with known truth.

    ``acceptability``, as CoLA: whether a sentence is the grammar's, or was changed so that it breaks one of four rules
    by as little as possible; see :func:`corruptions`. Half are acceptable. Only sentences in which some rule can be
    broken are taken, in one version each.

    ``similarity``, as STS-B: two sentences of one structure, of which the second has other words in k of the n places
    of content words; the score is 5 · (1 − k / n), 5 for equal sentences. See :func:`rated`.

    Training examples come from the corpus's training documents, those evaluated on from its validation documents; no
    sentence is in both.

    Args:
        corpus: whose grammar, and documents, they are.
        tasks: some of ``acceptability`` and ``similarity``.
        n_train: training examples of each task.
        n_evaluation: examples to evaluate on.
        seed: of what is changed.
        **kwargs: see :class:`~lmdyn.datamodules.tasks.tasks.TaskData`.

    Raises:
        ValueError: an unknown task, sizes below 2; in ``setup``, a corpus with too few sentences.

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
        if not tasks or len(set(tasks)) < len(tasks) or set(tasks) - set(GRAMMAR_TASKS):
            raise ValueError(f"expected different tasks of {list(GRAMMAR_TASKS)}, got {list(tasks)}")
        if min(n_train, n_evaluation) < 2:
            raise ValueError(f"expected n_train and n_evaluation from 2, got {n_train}, {n_evaluation}")
        self.corpus = corpus
        self.names = tuple(tasks)
        self.sizes = {"train": n_train, "validation": n_evaluation}
        self.seed = seed

    def read(self) -> Iterator[RawTask]:
        """The tasks as text."""
        for name in self.names:
            seen: set[tuple[str, ...]] = set()
            train, evaluation = (self._examples(name, split, seen) for split in ("train", "validation"))
            if name == "acceptability":
                names = ("unacceptable", "acceptable")
                yield RawTask(name, "classification", train, {"": evaluation}, names)
            else:
                yield RawTask(name, "regression", train, {"": evaluation})

    def _examples(self, name: str, split: str, seen: set[tuple[str, ...]]) -> list[TextExample]:
        sentences = (s for document in self.corpus.documents(split) for s in document)
        fresh = (s for s in sentences if s.words not in seen and not seen.add(s.words))  # type: ignore[func-returns-value]
        n, grammar = self.sizes[split], self.corpus.grammar
        seed = [self.seed, GRAMMAR_TASKS.index(name), int(split == "validation")]
        random = np.random.default_rng(seed)
        found: list[TextExample]
        if name == "acceptability":
            found = [
                TextExample(" ".join(j.words), None, float(j.acceptable))
                for j in judged(fresh, grammar, n, random)
            ]
        else:
            found = [
                TextExample(" ".join(r.first), " ".join(r.second), r.score)
                for r in rated(fresh, grammar, n, random)
            ]
        if len(found) < n:
            raise ValueError(
                f"{name}: the {split} documents have different sentences for {len(found)} examples, expected {n}: "
                f"raise n_{split}_tokens of the corpus, or ask for fewer"
            )
        return found


# ------------------------------------------------------------------------------------------- acceptability


@dataclass(frozen=True, slots=True)
class Judged:
    """A sentence, whether it is acceptable, and the rule that it breaks, "" where it is."""

    words: tuple[str, ...]
    acceptable: bool
    rule: str


def judged(
    sentences: Iterator[Sentence], grammar: Grammar, n: int, random: np.random.Generator
) -> Iterator[Judged]:
    """Sentences to judge, half of them (n // 2) acceptable, in random order.

    Args:
        sentences: of the grammar, each once.
        grammar: the grammar.
        n: how many.
        random: decides which stay as they are, and which of the possible rules is broken.
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
        yield Judged(sentence.words, True, "") if keep else Judged(broken[rule], False, rule)


def corruptions(
    sentence: Sentence, grammar: Grammar, random: np.random.Generator
) -> dict[str, tuple[str, ...]]:
    """The sentence with one rule broken, by the name of the rule; rules that it gives no occasion for are left out.

    - ``verb_agreement``: a verb in the present takes the other number than its subject has. Only verbs whose subject
      says its number by itself: a noun, a name, a pronoun, a coordination.
    - ``determiner_agreement``: *this* or *that* becomes *these* or *those* before a noun in the singular, *these* or
      *those* becomes *this* before one in the plural.
    - ``word_order``: *the, a* or *an* stands after its noun, of a phrase that ends with this noun.
    - ``finite_verb``: the only finite verb is left out.

    Words that could be read as another part of speech are left alone, so that what is broken cannot be repaired by
    another reading.

    Args:
        sentence: of the grammar.
        grammar: whose words they are.
        random: which of several places is changed.

    Raises:
        ValueError: a sentence without the layers ``upos``, ``xpos``, ``heads`` and ``deprels``.
    """
    if None in (sentence.upos, sentence.xpos, sentence.heads, sentence.deprels):
        raise ValueError(
            f"expected a sentence with upos, xpos, heads and deprels, got the layers {sentence.layers}"
        )
    places = {
        "verb_agreement": _verb_agreement(sentence, grammar),
        "determiner_agreement": _determiner_agreement(sentence, grammar),
        "word_order": _word_order(sentence, grammar),
        "finite_verb": _finite_verb(sentence, grammar),
    }
    return {rule: some[random.integers(len(some))] for rule, some in places.items() if some}


def _replaced(words: Sequence[str], i: int, *new: str, length: int = 1) -> tuple[str, ...]:
    return (*words[:i], *new, *words[i + length :])


def _verb_agreement(s: Sentence, grammar: Grammar) -> list[tuple[str, ...]]:
    assert s.xpos is not None
    assert s.upos is not None
    found = []
    for i, (word, tag) in enumerate(zip(s.words, s.xpos, strict=True)):
        plural = _subject_is_plural(s, i)
        if tag not in ("VBZ", "VBP") or plural is None or plural != (tag == "VBP"):
            continue
        other = _VERB_NUMBER.get(word)
        lexemes = grammar.lexicon.get(word, ())
        if other is None and len(lexemes) == 1 and lexemes[0].upos == "VERB":
            other = lexemes[0].forms["VBZ" if plural else "VBP"]
            if len(grammar.lexicon[other]) > 1:
                continue
        if other is not None and other != word:
            found.append(_replaced(s.words, i, other))
    return found


def _subject_is_plural(s: Sentence, i: int) -> bool | None:
    """Of a finite verb or auxiliary; None where its subject does not say so by itself."""
    assert s.upos is not None
    assert s.xpos is not None
    assert s.heads is not None
    assert s.deprels is not None
    head = s.heads[i] if s.upos[i] == "AUX" else i
    subjects = [j for j, h in enumerate(s.heads) if h == head and (s.deprels[j] or "").startswith("nsubj")]
    if len(subjects) != 1:
        return None
    subject = subjects[0]
    if any(h == subject and d == "conj" for h, d in zip(s.heads, s.deprels, strict=True)):
        return None if {"or", "every", "no"} & set(s.words) else True  # of which English may make a singular
    if s.xpos[subject] == "PRP":
        return _PRONOUNS.get(s.words[subject])
    return {"NN": False, "NNP": False, "NNS": True}.get(s.xpos[subject] or "")


def _determiner_agreement(s: Sentence, grammar: Grammar) -> list[tuple[str, ...]]:
    assert s.xpos is not None
    assert s.heads is not None
    found = []
    for i, (word, tag, head) in enumerate(zip(s.words, s.xpos, s.heads, strict=True)):
        if word not in _DETERMINERS or tag != "DT" or s.xpos[head] not in ("NN", "NNS"):
            continue
        alone = all(lexeme.upos == "NOUN" for lexeme in grammar.lexicon.get(s.words[head], ()))
        before = grammar.lexicon.get(s.words[i - 1], ()) if i else ()
        # "gave these men": "gave this" may go on with another object
        if alone and not any(lexeme.kind == "ditransitive" for lexeme in before):
            found.append(_replaced(s.words, i, _DETERMINERS[word]))
    return found


def _word_order(s: Sentence, grammar: Grammar) -> list[tuple[str, ...]]:
    assert s.upos is not None
    assert s.heads is not None
    found = []
    for i in range(len(s.words) - 2):
        next_word = s.words[i + 2]
        if (
            s.words[i] in ("the", "a", "an")
            and s.heads[i] == i + 1
            and s.upos[i + 1] == "NOUN"
            # "gave the men books", "gave men the books": nothing may follow that the determiner can go with
            and s.upos[i + 2] in ("VERB", "AUX", "ADP", "PUNCT", "SCONJ", "CCONJ")
            and all(lexeme.upos == "VERB" for lexeme in grammar.lexicon.get(next_word, ()))
        ):
            found.append(_replaced(s.words, i, s.words[i + 1], s.words[i], length=2))
    return found


def _finite_verb(s: Sentence, grammar: Grammar) -> list[tuple[str, ...]]:
    assert s.xpos is not None
    finite = [i for i, tag in enumerate(s.xpos) if tag in _FINITE]
    if len(finite) != 1:
        return []
    rest = _replaced(s.words, finite[0])
    for word in rest:  # a participle may look like a past tense, a noun like a verb
        forms = {f for lexeme in grammar.lexicon.get(word, ()) for f, w in lexeme.forms.items() if w == word}
        if word in _CLOSED_FINITE or forms & set(_FINITE):
            return []
    return [rest]


# ---------------------------------------------------------------------------------------------- similarity


@dataclass(frozen=True, slots=True)
class Rated:
    """Two sentences and their similarity from 0 to 5: 5 times the share of content words that they share in place."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    score: float


def rated(
    sentences: Iterator[Sentence], grammar: Grammar, n: int, random: np.random.Generator
) -> Iterator[Rated]:
    """Pairs of sentences: the second is the first with other words in k of its n ≥ 2 content words' places.

    Content words are the nouns, verbs, adjectives, adverbs and names of the grammar's lexicon. k is drawn from 0 … n,
    each as likely, then the places. What is put there is another lexeme of the same part of speech, kind (of a verb:
    frame; of a noun or name: what it can be), gender and form, none of this sentence's, drawn by frequency: the second
    sentence is as grammatical as the first, and the score is by construction 5 · (1 − k / n).

    Args:
        sentences: of the grammar, each once.
        grammar: the grammar.
        n: how many pairs.
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
            yield Rated(sentence.words, tuple(words), 5 * (1 - k / len(places)))


def _content_places(s: Sentence, grammar: Grammar) -> list[tuple[int, Lexeme, str]]:
    if s.upos is None or s.xpos is None:
        raise ValueError(f"expected a sentence with upos and xpos, got the layers {s.layers}")
    places = []
    for i, (word, upos, form) in enumerate(zip(s.words, s.upos, s.xpos, strict=True)):
        of = [x for x in grammar.lexicon.get(word, ()) if x.upos == upos and x.forms.get(form or "") == word]
        if len(of) == 1 and form is not None:
            places.append((i, of[0], form))
    return places


def _other(
    lexeme: Lexeme, form: str, grammar: Grammar, used: set[str], *, vowel: bool, random: np.random.Generator
) -> Lexeme | None:
    """Another lexeme that fits in its place, None where there is none; ``vowel`` keeps *a* and *an* right."""
    candidates = [
        x
        for x in grammar.lexemes[lexeme.upos]
        if x.kind == lexeme.kind
        and x.gender == lexeme.gender
        and x.lemma not in used
        and form in x.forms
        and (x.forms[form][0] in _VOWELS) == vowel
    ]
    if not candidates:
        return None
    weights = np.array([1 / (x.rank + 3.7) for x in candidates])  # as frequent words are in the corpus
    return candidates[random.choice(len(candidates), p=weights / weights.sum())]
