"""What languages of random words share: names of the words, their counts, checks of sizes."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from lmdyn.datamodules.corpora.corpus import Corpus

__all__ = ["RandomWords", "at_least", "word_names"]


def word_names(number: int) -> list[str]:
    """Return names of words, of equal length.

    Example:
        >>> word_names(11)[-2:]
        ['w09', 'w10']
    """
    return [f"w{i:0{len(str(number - 1))}d}" for i in range(number)]


def at_least(minimum: int, sizes: Mapping[str, int]) -> None:
    """Raise a ``ValueError`` for a size below the minimum.

    Example:
        >>> at_least(1, {"n_types": 0})
        Traceback (most recent call last):
        ValueError: expected n_types >= 1, got 0: raise it
    """
    for name, value in sizes.items():
        if value < minimum:
            raise ValueError(f"expected {name} >= {minimum}, got {value}: raise it")


class RandomWords(Corpus):
    """A corpus whose text is drawn at random from a vocabulary.

    Attributes:
        vocabulary: all words of the language.
    """

    vocabulary: list[str]

    @abstractmethod
    def text(self, split: str) -> npt.NDArray[np.int64]:
        """Return the words of a split as indices into ``vocabulary``."""

    def word_counts(self) -> Counter[str]:
        """Count each word in the training split, as at least 1: the vocabulary is that of the language."""
        counts = np.bincount(self.text("train").ravel(), minlength=len(self.vocabulary))
        return Counter(dict(zip(self.vocabulary, np.maximum(counts, 1).tolist(), strict=True)))

    @staticmethod
    def by_split(n_train: int, n_validation: int, n_test: int) -> dict[str, int]:
        """Return the number of words of each split, checked."""
        sizes = {"train": n_train, "validation": n_validation, "test": n_test}
        at_least(1, {f"n_{split}_tokens": n for split, n in sizes.items()})
        return sizes
