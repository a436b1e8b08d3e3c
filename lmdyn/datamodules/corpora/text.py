"""Plain text for language modelling: files or Hugging Face datasets of tokenised words."""

import hashlib
import heapq
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, islice
from typing import Any, ClassVar, Literal

import numpy as np

from lmdyn.datamodules.corpora.corpus import SPLITS, Corpus
from lmdyn.datamodules.corpora.sentence import Document, Sentence
from lmdyn.datamodules.corpora.tagging import Tagger
from lmdyn.datamodules.files.data_sets import load_dataset, read_rows
from lmdyn.datamodules.files.text_files import expand_paths, file_digest, read_lines

__all__ = ["TextCorpus", "cut_sentences", "split_sentences"]

_ENDS = frozenset(".!?")
_CLOSING = frozenset((")", "]", "}", "''", "'", "”", "’", "»", "-rrb-", "-rsb-", "-rcb-"))
_DOCUMENTS_PER_CHUNK = 64

Words = list[str]
Article = tuple[str, str | None, list[Words]]
"""Name, topic and sentences of a document."""


def split_sentences(words: Iterable[str]) -> list[Words]:
    """Split a tokenised paragraph into sentences.

    A sentence ends at a token ``.``, ``!`` or ``?``. Further such tokens and closing quotes and brackets that
    follow belong to it; ``"`` closes if an odd number of them precedes it in the paragraph.

    Example:
        >>> [" ".join(s) for s in split_sentences('He said : " Go ! " She went . " Why'.split())]
        ['He said : " Go ! "', 'She went .', '" Why']
    """
    sentences: list[Words] = []
    ended = quoted = False
    for word in words:
        if not (ended and (word in _ENDS or word in _CLOSING or (word == '"' and quoted))):
            if ended or not sentences:
                sentences.append([])
            ended = word in _ENDS
        sentences[-1].append(word)
        quoted ^= word == '"'
    return sentences


def cut_sentences(sentences: Iterable[Words], shares: Sequence[float]) -> list[list[Words]]:
    """Cut a text in order into parts with given shares of its words.

    Sentences are not cut: each belongs to the part that contains its midpoint, so that no part is favoured. A part
    may be empty.

    Args:
        sentences: the words of each sentence.
        shares: share of the words in each part, with the sum 1.

    Returns:
        The sentences of each part; concatenated, they are the text.

    Example:
        >>> cut_sentences([["a", "b"], ["c"], ["d"], ["e", "f", "g", "h"]], (0.5, 0.0, 0.5))
        [[['a', 'b'], ['c'], ['d']], [], [['e', 'f', 'g', 'h']]]
    """
    sentences = list(sentences)
    total = sum(map(len, sentences))
    # rounded, so that 0.7 + 0.1 equals the float 0.8 and a midpoint at the bound is not before it
    bounds = [round(bound, 12) for bound in accumulate(shares)][:-1]
    parts: list[list[Words]] = [[] for _ in shares]
    before = 0
    for words in sentences:
        parts[bisect_right(bounds, (before + len(words) / 2) / total)].append(words)
        before += len(words)
    return parts


def _is_title(words: Words) -> bool:
    """Return whether the line is ``= Title =``, in contrast to ``= = Section = =``."""
    return len(words) > 2 and words[0] == words[-1] == "=" and words[1] != "=" and words[-2] != "="


def _is_section(words: Words) -> bool:
    return len(words) > 4 and words[:2] == words[-2:] == ["=", "="]


def _check_only_train(given: Iterable[str]) -> None:
    if list(given) != ["train"]:
        raise ValueError(
            "cut_articles takes validation and test from train: give only train (for a dataset, with data_files), or "
            f"omit cut_articles; got {list(given)}"
        )


class TextCorpus(Corpus):
    """Tokenised plain text, one paragraph per line, prepared as in the study of LSTM learning dynamics.

    The words of a line are separated by white space. The preparation, in this order: lowercase; drop headings;
    split paragraphs into sentences (:func:`split_sentences`); drop each sentence with a type that occurs fewer than
    ``min_count`` times in the training split; count again, and map types that are still rarer than ``min_count`` to
    ``<unk>`` (the vocabulary does this). In all splits, sentences are dropped by the counts of the training split. With
    ``min_count`` 1 no type is rare and nothing is dropped. WikiText-2 with ``min_count: 5`` has 1.34 M tokens of 15.8
    thousand types after this preparation.

    The result can be restricted to a part of the same corpus: ``longest_articles`` keeps some documents of each split,
    and ``cut_articles`` makes the three splits from each document of the training file, so that all have the same
    topics. Rare sentences are still those of the whole training file; a vocabulary is that of the training split, thus
    of its parts of the documents.

    Layouts:

    - ``wikitext``: a line ``= Title =`` between two empty lines (or at the file's start) begins an article, a
      document with the title as its name and as the ``topic`` of its sentences (a repeated title in a split is
      numbered, ``Title (2)``; WikiText-2 has several ``<unk>``). Text before the first title is a document
      without topic. ``= = Section = =`` lines are headings.
    - ``paragraphs``: each line is a document.

    Args:
        train: path of the training file, or a list of paths; ``$VAR`` and ``~`` are expanded.
        validation: the same for validation.
        test: the same for test.
        dataset: instead of files, arguments of ``datasets.load_dataset`` (``path``, ``name``, ``data_files``, ...);
            its splits "train", "validation" and "test" are used.
        text_column: the column of the dataset with the text.
        layout: ``wikitext`` or ``paragraphs``.
        lowercase: whether to lowercase all words.
        headings: whether to keep titles and section headings, each as a sentence.
        split_sentences: whether to split lines into sentences; otherwise each line is one.
        drop_rare_sentences: whether to drop sentences with a type rarer than ``min_count`` in the training split.
        shuffle_sentences: whether to serve the training split's sentences in one random order, held in memory and drawn
            with ``seed``. Intended for labels of whole documents: a stream that stays in one article for hundreds of
            batches teaches which article it is in, not how to recognise it. Topics are then also numbered in this
            order.
        longest_articles: number of documents of each split to keep, those with the most words after the
            preparation (the earlier of equally long ones), in the order of the text; None keeps all.
        cut_articles: shares of the words of each document of ``train``, the only file given, that go in order into
            the training, validation and test split, such as ``[0.7, 0.1, 0.2]`` (:func:`cut_sentences`). A split
            with share 0 is left out, and a short document may lack a part. Topics are numbered in the order of the
            training split: if its share is above one half, no document lacks this part, and the index of a
            topic is that of its document.
        tagger: adds silver layers to the sentences.
        **kwargs: see :class:`~lmdyn.datamodules.Corpus`.

    Raises:
        FileNotFoundError: in ``prepare_data``, if a file does not exist.
        ValueError: if neither files nor a dataset, or both, are given; if shares are negative or do not have the sum
            1; if articles are to be cut but another split than ``train`` is given; in ``prepare_data``, if text is not
            UTF-8, a column is unknown, a split is empty, or rare types cannot be counted for lack of a training split.

    Example:
        >>> corpus = TextCorpus(train="$LMDYN_DATA/wikitext-2/train.txt", min_count=5, batch_size=40)
        >>> corpus.splits
        ('train',)
        >>> TextCorpus("$LMDYN_DATA/wikitext-2/train.txt", longest_articles=100, cut_articles=(0.7, 0.1, 0.2)).splits
        ('train', 'validation', 'test')
    """

    _unsaved: ClassVar[tuple[str, ...]] = ("tagger",)

    def __init__(
        self,
        train: str | list[str] | None = None,
        validation: str | list[str] | None = None,
        test: str | list[str] | None = None,
        *,
        dataset: dict[str, Any] | None = None,
        text_column: str = "text",
        layout: Literal["wikitext", "paragraphs"] = "wikitext",
        lowercase: bool = True,
        headings: bool = False,
        split_sentences: bool = True,
        drop_rare_sentences: bool = True,
        shuffle_sentences: bool = False,
        longest_articles: int | None = None,
        cut_articles: tuple[float, float, float] | None = None,
        tagger: Tagger | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if layout not in ("wikitext", "paragraphs"):
            raise ValueError(f"layout must be 'wikitext' or 'paragraphs', got {layout!r}")
        self.paths = {s: p for s, p in zip(SPLITS, (train, validation, test), strict=True) if p}
        if bool(self.paths) == (dataset is not None):
            raise ValueError("give either files (train, validation, test) or a dataset")
        if dataset is not None and ("split" in dataset or dataset.get("streaming")):
            raise ValueError(
                "dataset takes neither split nor streaming: its splits are train, validation and test"
            )
        if longest_articles is not None and longest_articles < 1:
            raise ValueError(
                f"longest_articles must be at least 1, got {longest_articles}: omit it to keep all articles"
            )
        if cut_articles is not None:
            if len(cut_articles) != 3 or not (min(cut_articles) >= 0 and math.isclose(sum(cut_articles), 1)):
                raise ValueError(
                    "cut_articles must be the shares of training, validation and test, non-negative and with the sum "
                    f"1, such as [0.7, 0.1, 0.2], got {list(cut_articles)}"
                )
            if dataset is None:
                _check_only_train(self.paths)
        self.shuffle_sentences = shuffle_sentences
        self.longest_articles = longest_articles
        self.cut_articles = cut_articles
        self._longest: dict[str, frozenset[int]] = {}
        self.dataset = dataset
        self.text_column = text_column
        self.layout = layout
        self.lowercase = lowercase
        self.headings = headings
        self.split_sentences = split_sentences
        self.drop_rare_sentences = drop_rare_sentences
        self.tagger = tagger

    @cached_property
    def splits(self) -> tuple[str, ...]:  # type: ignore[override]
        """The splits for which files are given, that the dataset has, or into which articles are cut."""
        if self.cut_articles is None:
            return self._given
        _check_only_train(self._given)
        return tuple(split for split, share in zip(SPLITS, self.cut_articles, strict=True) if share)

    @cached_property
    def _given(self) -> tuple[str, ...]:
        """The splits of the source: without ``cut_articles``, those of the corpus."""
        return tuple(s for s in SPLITS if s in (self._table if self.dataset is not None else self.paths))

    @cached_property
    def _table(self) -> Any:
        """The Hugging Face dataset: memory-mapped arrow tables by split."""
        assert self.dataset is not None
        table = load_dataset(
            self.dataset,
            "give the path of local files (path: text, parquet or json, with data_files), or a hub name that can be "
            "reached",
        )
        if not set(SPLITS) & set(table):
            raise ValueError(
                f"dataset {self.dataset} has splits {list(table)}: expected at least one of {list(SPLITS)}"
            )
        for split in set(SPLITS) & set(table):
            if self.text_column not in table[split].column_names:
                raise ValueError(
                    f"split {split!r} of dataset {self.dataset} has no column {self.text_column!r}: set text_column to "
                    f"one of {table[split].column_names}"
                )
            kind = getattr(table[split].features[self.text_column], "dtype", "a list")
            if kind not in ("string", "large_string", "string_view", "null"):
                raise ValueError(
                    f"split {split!r} of dataset {self.dataset}: column {self.text_column!r} has {kind}, expected "
                    f"text: set text_column to one of {table[split].column_names}"
                )
        return table

    def _rows(self, split: str) -> Iterator[str]:
        assert self.dataset is not None
        batches = self._table[split].select_columns([self.text_column]).iter(batch_size=1000)
        for batch in read_rows(batches, self.dataset):
            yield from (row or "" for row in batch[self.text_column])

    def _sources(self, split: str) -> Iterator[tuple[str, Iterator[str]]]:
        """Yield a name and the lines of each source of a split."""
        if self.dataset is not None:
            yield split, (line for row in self._rows(split) for line in row.rstrip("\n").split("\n"))
        else:
            for path in expand_paths(self.paths[split]):
                yield path.stem, (line for _, line in read_lines(path))

    def _articles(self, split: str) -> Iterator[Article]:
        """Yield name, topic and sentences of each document, before rare sentences are dropped."""
        seen: Counter[str] = Counter()
        for name, lines in self._sources(split):
            if self.layout == "paragraphs":
                for number, line in enumerate(lines, start=1):
                    if words := self._words(line):
                        yield f"{name}-{number}", None, self._sentences(words)
            else:
                for title, topic, sentences in self._wikitext(name, lines):
                    seen[title] += 1
                    again = f" ({seen[title]})" if seen[title] > 1 else ""
                    yield title + again, topic and topic + again, sentences

    def _words(self, line: str) -> Words:
        return (line.lower() if self.lowercase else line).split()

    def _sentences(self, words: Words) -> list[Words]:
        return split_sentences(words) if self.split_sentences else [words]

    def _wikitext(self, name: str, lines: Iterator[str]) -> Iterator[Article]:
        topic: str | None = None
        sentences: list[Words] = []
        before, line = "", next(lines, None)
        while line is not None:
            after = next(lines, None)
            words = self._words(line)
            title = _is_title(words) and not before.strip() and not (after or "").strip()
            if title:
                if sentences:
                    yield name, topic, sentences
                name = topic = " ".join(line.split()[1:-1])
                sentences = []
            if title or _is_section(words):
                if self.headings:
                    sentences.append(words)
            elif words:
                sentences.extend(self._sentences(words))
            before, line = line, after
        if sentences:
            yield name, topic, sentences

    @cached_property
    def _frequent(self) -> frozenset[str] | None:
        """Types that are not rare in the training split; None if rarity has no effect."""
        if not self.drop_rare_sentences or self.min_count == 1:
            return None
        if "train" not in self._given:
            raise ValueError(
                "drop_rare_sentences counts types in the training split, but there is none: give train, or set "
                "drop_rare_sentences: false"
            )
        counts: Counter[str] = Counter()
        for _, _, sentences in self._articles("train"):
            for words in sentences:
                counts.update(words)
        return frozenset(word for word, n in counts.items() if n >= self.min_count)

    def _kept(self, split: str) -> Iterator[Article]:
        """Yield documents without their rare sentences, except documents that lose all sentences."""
        frequent = self._frequent
        for name, topic, sentences in self._articles(split):
            kept = (
                sentences
                if frequent is None
                else [words for words in sentences if frequent.issuperset(words)]
            )
            if kept:
                yield name, topic, kept

    def _selected(self, split: str) -> Iterator[Article]:
        """Yield the longest of the kept documents, in the order of the text."""
        if self.longest_articles is None:
            yield from self._kept(split)
            return
        if split not in self._longest:  # a separate pass, so that memory never holds the text
            lengths = ((sum(map(len, s)), -i) for i, (_, _, s) in enumerate(self._kept(split)))
            self._longest[split] = frozenset(-i for _, i in heapq.nlargest(self.longest_articles, lengths))
        for index, article in enumerate(self._kept(split)):
            if index in self._longest[split]:
                yield article

    def _prepared(self, split: str) -> Iterator[Article]:
        """Yield the documents of a split of the corpus."""
        if split not in self.splits:
            raise ValueError(f"the corpus has no split {split!r}: it has {list(self.splits)}")
        if self.cut_articles is None:
            yield from self._selected(split)
            return
        for name, topic, sentences in self._selected("train"):
            if part := cut_sentences(sentences, self.cut_articles)[SPLITS.index(split)]:
                yield name, topic, part

    def word_counts(self) -> Counter[str]:
        """Count the occurrences of each word in the training split."""
        counts: Counter[str] = Counter()
        for _, _, sentences in self._prepared("train"):
            for words in sentences:
                counts.update(words)
        return counts

    def documents(self, split: str) -> Iterator[Document]:
        """Stream the documents of a split, prepared and tagged."""
        if split == "train" and self.shuffle_sentences:
            yield from self._mixed(split)
        else:
            yield from self._tagged(split)

    def _mixed(self, split: str) -> Iterator[Document]:
        """Yield sentences in random order, each as a document."""
        sentences = [(document.name, s) for document in self._tagged(split) for s in document]
        for i in np.random.default_rng(self.seed).permutation(len(sentences)):
            name, sentence = sentences[i]
            yield Document(name, (sentence,))

    def _tagged(self, split: str) -> Iterator[Document]:
        articles = self._prepared(split)
        while chunk := list(islice(articles, _DOCUMENTS_PER_CHUNK)):
            tags: Iterator[dict[str, Any]] | None = None
            if self.tagger is not None:
                tags = iter(
                    self.tagger.tag([tuple(words) for _, _, sentences in chunk for words in sentences])
                )
            for name, topic, sentences in chunk:
                yield Document(
                    name,
                    tuple(Sentence(tuple(w), topic=topic, **(next(tags) if tags else {})) for w in sentences),
                )

    def content_key(self) -> dict[str, Any]:
        """Return hashes of the text, and the settings of the preparation."""
        text = {}
        for split in self._given:
            if self.dataset is None:
                text[split] = [file_digest(path) for path in expand_paths(self.paths[split])]
            else:
                hasher = hashlib.blake2b(digest_size=16)
                for row in self._rows(split):
                    hasher.update(row.encode() + b"\0")
                text[split] = [hasher.hexdigest()]
        key: dict[str, Any] = {
            "text": text,
            "layout": self.layout,
            "lowercase": self.lowercase,
            "headings": self.headings,
            "split_sentences": self.split_sentences,
            "drop_rare_below": self.min_count if self.drop_rare_sentences else 1,
            "tagger": None if self.tagger is None else self.tagger.key(),
        }
        # only if they are set: text encoded before these settings existed keeps its key
        if self.shuffle_sentences:
            key["sentences_shuffled_by"] = self.seed
        if self.longest_articles is not None:
            key["longest_articles"] = self.longest_articles
        if self.cut_articles is not None:
            key["cut_articles"] = list(self.cut_articles)
        return key
