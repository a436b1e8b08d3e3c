"""What languages of random words share: names of the words, their counts, checks of sizes."""

from abc import abstractmethod
from collections import Counter
from typing import Any

import numpy as np

from lmdyn.datamodules.corpora.corpus import Corpus
from lmdyn.datamodules.corpora.tokenization import Ids

_VERSION = 1  # raised whenever the same settings give different text


def word_names(number: int) -> list[str]:
    """Return names of words, of equal length.

    Example:
        >>> word_names(11)[-2:]
        ['w09', 'w10']
    """
    return [f"w{i:0{len(str(number - 1))}d}" for i in range(number)]


class RandomWords(Corpus):
    """A corpus whose text is drawn at random from a vocabulary.

    Attributes:
        vocabulary: all words of the language.
    """

    vocabulary: list[str]

    @abstractmethod
    def text(self, split: str) -> Ids:
        """Return the words of a split as indices into ``vocabulary``."""

    language: tuple[str, ...]
    """Names of the settings that determine the text."""

    def content_key(self) -> dict[str, Any]:
        """Return the settings of the language, and its version."""
        settings = {name: getattr(self, name) for name in self.language}
        return {"version": _VERSION, "types": self.vocabulary, **settings}

    def word_counts(self) -> Counter[str]:
        """Count each word in the training split, as at least 1: the vocabulary is that of the language."""
        counts = np.bincount(self.text("train").ravel(), minlength=len(self.vocabulary))
        return Counter(dict(zip(self.vocabulary, np.maximum(counts, 1).tolist(), strict=True)))
