"""Minimal pairs of the synthetic corpus: a sentence, and the same with one rule broken, or for control none."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from lmdyn.datamodules.files.checks import at_least
from lmdyn.datamodules.files.made_at_setup import TableData
from lmdyn.datamodules.grammar.grammar import GrammarCorpus
from lmdyn.datamodules.grammar.grammar_tasks import PLURAL, RULES, corruptions, subjects_of

_FIELDS = {**dict.fromkeys(RULES, "order"), "control": "control"} | dict.fromkeys(
    ("verb_agreement", "determiner_agreement", "anaphor_agreement"), "agreement"
)
_OTHER_NUMBER = {**dict.fromkeys(("himself", "herself", "itself"), "themselves"), "themselves": "itself"}


class GrammarPairs(TableData):
    """Minimal pairs of a grammar's sentences: the ``probe`` of the observer ``MinimalPairs``, without a download.

    The right sentences are from the corpus's test documents. The paradigms of the wrong ones:

    - ``verb_agreement``: a verb has the number that its subject does not have; ``attractors`` is how many nouns of
      this number stand between the two;
    - ``determiner_agreement``: *this* or *that* stands before a plural noun, or *these* or *those* before a singular
      one;
    - ``anaphor_agreement``: *themselves* refers to a singular subject, or *itself* to a plural one;
    - ``word_order``: an article stands after its noun;
    - ``finite_verb``: the only finite verb is missing;
    - ``control``: another name of a person. The language does not say which sentence is right: this is drawn.

    Args:
        corpus: corpus with the grammar and the documents.
        n_pairs: number of pairs of each paradigm, fewer if the documents have fewer.
        seed: seed of the changes.

    Attributes:
        pairs: after ``setup``, a row for each pair, with the columns of :class:`~lmdyn.datamodules.PairFiles`.

    Raises:
        ValueError: for ``n_pairs`` below 1; in ``setup``, if the documents have no such sentence.

    Example:
        >>> data = GrammarPairs(GrammarCorpus(n_test_tokens=5000), n_pairs=10)
        >>> data.setup("fit")
        >>> int(data.pairs["paradigm"].value_counts().max())
        10
    """

    def __init__(self, corpus: GrammarCorpus, n_pairs: int = 500, seed: int = 0) -> None:
        super().__init__()
        at_least(1, n_pairs=n_pairs)
        corpus.grammar.require_english("GrammarPairs")
        self.corpus, self.n_pairs, self.seed = corpus, n_pairs, seed

    def make(self) -> pd.DataFrame:
        """Make the pairs."""
        found = pd.DataFrame(self._changed(), columns=["good", "bad", "paradigm", "attractors", "line"])
        if found.empty:
            raise ValueError("no test document has a sentence for a pair: raise n_test_tokens of the corpus")
        found["pair"] = found.groupby("paradigm").cumcount().astype(str)
        kept = found[found["pair"].astype(int) < self.n_pairs].reset_index(drop=True)
        return kept.assign(field=kept["paradigm"].map(_FIELDS), term="", file="test documents")

    pairs = TableData.ready

    def _changed(self) -> Iterator[tuple[Any, ...]]:
        """Yield the pairs of all sentences, each sentence once."""
        random = np.random.default_rng(self.seed)
        grammar = self.corpus.grammar
        people = [lexeme.lemma for lexeme in grammar.lexemes["PROPN"] if lexeme.kind == "person"]
        sentences = (s for document in self.corpus.documents("test") for s in document)
        for line, s in enumerate({s.words: s for s in sentences}.values()):
            broken = corruptions(s, grammar, random)
            for i in (i for i, word in enumerate(s.words) if word in _OTHER_NUMBER):
                broken["anaphor_agreement"] = (*s.words[:i], _OTHER_NUMBER[s.words[i]], *s.words[i + 1 :])
            pairs = [(s.words, bad, rule) for rule, bad in broken.items()]
            for i in islice((i for i, word in enumerate(s.words) if word in people), 1):
                other = people[(people.index(s.words[i]) + random.integers(1, len(people))) % len(people)]
                both = [s.words, (*s.words[:i], other, *s.words[i + 1 :])]
                right = int(random.integers(2))
                pairs.append((both[right], both[1 - right], "control"))
            for good, bad, paradigm in pairs:
                attractors = _attractors(s, bad) if paradigm == "verb_agreement" else ""
                yield " ".join(good), " ".join(bad), paradigm, attractors, line


def _attractors(s: Any, changed: tuple[str, ...]) -> str:
    """Return the number of nouns between a verb and its subject that have the number of the changed verb."""
    verb = next(i for i, (a, b) in enumerate(zip(s.words, changed, strict=True)) if a != b)
    subject = subjects_of(s, verb)[0]
    plural = s.xpos[verb] == "VBP"
    between = s.xpos[min(subject, verb) + 1 : max(subject, verb)]
    return str(sum(PLURAL.get(tag or "", plural) != plural for tag in between))
