"""Random words in which a sequence occurs a second time, at a random distance: only induction predicts them."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lmdyn.datamodules.corpora.corpus import SPLITS
from lmdyn.datamodules.corpora.sentence import Document, Sentence
from lmdyn.datamodules.corpora.tokenization import Ids
from lmdyn.datamodules.files.checks import at_least
from lmdyn.datamodules.synthetic.random_words import RandomWords, word_names


class RepeatsCorpus(RandomWords):
    """Documents x r y r z of uniformly random words, in which r occurs twice; lengths of x, r and y are random.

    Nothing predicts a word but its earlier occurrence in the document: a model that attends to the word after the last
    occurrence of the current one (induction) predicts the second r, all but its first word. As the distance of the two
    is random, attention to a fixed distance predicts little.

    All documents have the same length, and no end-of-sentence token is written unless ``eos`` is set: if
    ``sequence_length`` is this length, and the number of training documents a multiple of ``batch_size``, each row of
    a batch is one document (the last one lacks its last word, which has no next). The same is true of the other splits,
    each by its own number of documents: otherwise rows begin amid documents.

    Args:
        length: words of a document.
        shortest: minimum number of words of r.
        longest: maximum number of words of r, at most half of a document.
        n_types: number of word types.
        n_train_tokens: words of the training split, rounded up to whole documents.
        n_validation_tokens: words of the validation split.
        n_test_tokens: words of the test split.
        language_seed: seed of the text.
        eos: whether to write the end-of-sentence token after each document.
        **kwargs: see :class:`~lmdyn.datamodules.Corpus`.

    Attributes:
        vocabulary: all words.

    Raises:
        ValueError: if a size is below 1, or r does not fit into a document twice.

    Reference: the rows on which Olsson et al. 2022 define induction heads, here as a text to learn from.

    Example:
        >>> corpus = RepeatsCorpus(length=10, shortest=3, longest=3, n_train_tokens=100)
        >>> document = next(corpus.documents("train"))
        >>> words = list(document.sentences[0].words)
        >>> len(words), any(words[i : i + 3] == words[j : j + 3] for i in range(8) for j in range(i + 3, 8))
        (10, True)
    """

    language = ("length", "shortest", "longest", "n_tokens", "language_seed")

    def __init__(
        self,
        length: int = 64,
        shortest: int = 8,
        longest: int = 24,
        *,
        n_types: int = 64,
        n_train_tokens: int = 1_000_000,
        n_validation_tokens: int = 20_000,
        n_test_tokens: int = 20_000,
        language_seed: int = 0,
        eos: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(eos=eos, **kwargs)
        self.n_tokens = self.by_split(n_train_tokens, n_validation_tokens, n_test_tokens)
        at_least(1, n_types=n_types)
        at_least(0, language_seed=language_seed)
        if not 1 <= shortest <= longest <= length // 2:
            raise ValueError(
                f"shortest is {shortest}, longest {longest} and length {length}: expected 1 <= shortest <= longest "
                "<= length / 2, since the span occurs twice in a document"
            )
        self.length = length
        self.shortest = shortest
        self.longest = longest
        self.language_seed = language_seed
        self.vocabulary = word_names(n_types)

    def text(self, split: str) -> Ids:
        """Return (documents, length) the words of a split as indices into ``vocabulary``."""
        random = np.random.default_rng(np.random.SeedSequence([self.language_seed, SPLITS.index(split)]))
        n = -(-self.n_tokens[split] // self.length)
        words = random.integers(len(self.vocabulary), size=(n, self.length))
        lengths = random.integers(self.shortest, self.longest + 1, size=(n, 1))
        room = self.length - 2 * lengths  # words of x, y and z
        first, second = np.sort((random.random((2, n, 1)) * (room + 1)).astype(np.int64), axis=0)
        second += lengths
        place = np.arange(self.length)
        repeated = (place >= second) & (place < second + lengths)
        return np.take_along_axis(words, np.where(repeated, place - (second - first), place), axis=1)

    def documents(self, split: str) -> Iterator[Document]:
        """Yield the documents of a split, of one sentence each."""
        self.require_split(split)
        names = np.array(self.vocabulary, dtype=object)
        for i, row in enumerate(self.text(split)):
            yield Document(f"{split}-{i}", (Sentence(tuple(names[row])),))
