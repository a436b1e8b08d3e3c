"""Plain text for language modelling: files or Hugging Face datasets of tokenised words."""

import hashlib
import heapq
import io
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np

from lmdyn.datamodules.corpora.corpus import SPLITS, Corpus
from lmdyn.datamodules.corpora.sentence import Document, Sentence
from lmdyn.datamodules.corpora.tagging import Tagger
from lmdyn.datamodules.files.checks import at_least
from lmdyn.datamodules.files.data_sets import in_words, load_dataset, read_rows
from lmdyn.datamodules.files.text_files import expand_paths, file_digest, read_lines

_ENDS = frozenset(".!?")
_CLOSING = frozenset((")", "]", "}", "''", "'", "”", "’", "»", "-rrb-", "-rsb-", "-rcb-"))
_SENTENCES_PER_PART = 1_000  # of a document that is not held in memory as a whole

Words = list[str]
W = TypeVar("W", bound=Words)


class _Stretch(list[str]):
    """Words of a stretch of text, and the stretch as it is written."""

    def __init__(self, words: Words, text: str) -> None:
        super().__init__(words)
        self.text = text


class Article(NamedTuple):
    """A document, or a part of it that ``continues`` the previous one."""

    name: str
    topic: str | None
    sentences: list[_Stretch]
    continues: bool = False


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


def cut_sentences(sentences: Iterable[W], shares: Sequence[float]) -> list[list[W]]:
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
    parts: list[list[W]] = [[] for _ in shares]
    before = 0
    for words in sentences:
        parts[bisect_right(bounds, (before + len(words) / 2) / total)].append(words)
        before += len(words)
    return parts


def _stretches(line: _Stretch) -> list[_Stretch]:
    """Split a line as :func:`split_sentences` does; white space belongs to the sentence before it."""
    parts = split_sentences(line)
    begins = [word.start() for word in re.finditer(r"\S+", line.text)] if len(parts) > 1 else []
    bounds = [0, *(begins[n] for n in accumulate(map(len, parts[:-1]))), len(line.text)]
    return [_Stretch(part, line.text[a:b]) for part, (a, b) in zip(parts, pairwise(bounds), strict=True)]


def _is_title(words: Words) -> bool:
    """Return whether the line is ``= Title =``, in contrast to ``= = Section = =``."""
    return len(words) > 2 and words[0] == words[-1] == "=" and words[1] != "=" and words[-2] != "="


def _is_section(words: Words) -> bool:
    return len(words) > 4 and words[:2] == words[-2:] == ["=", "="]


def _lines(text: str) -> Iterator[str]:
    """Return the lines of a text with their ends."""
    return iter(io.StringIO(text, newline="\n"))


def _count(articles: Iterable[Article]) -> Counter[str]:
    return Counter(word for article in articles for words in article.sentences for word in words)


def _check_only_train(given: Iterable[str]) -> None:
    if list(given) != ["train"]:
        raise ValueError(f"cut_articles cuts all splits from train: give only train, got {', '.join(given)}")


class TextCorpus(Corpus):
    """Plain text: as it is written, or prepared as in the study of LSTM learning dynamics.

    Text for a tokenizer that lmdyn did not train (``tokenizer``, or the tokenizer of an observed model) keeps its white
    space, line ends and case. A document is a file, or as ``layout`` says; its ids are those of ``tokenizer(text)``
    without special tokens, and the end token follows each document, not each sentence. Without ``eos`` all documents
    are one text, with its line ends. The settings below only take stretches of text out, change case and mark
    sentences; they never change white space. Words, as for silver tags, are found by their places in the text.

    Text for lmdyn's own vocabularies is one paragraph per line, of words that are separated by white space. The
    preparation, in this order: lowercase; drop headings; split paragraphs into sentences (:func:`split_sentences`);
    drop each sentence with a type that occurs fewer than ``min_count`` times in the training split; count again, and
    map types that are still rarer than ``min_count`` to ``<unk>`` (the vocabulary does this). In all splits, sentences
    are dropped by the counts of the training split. With ``min_count`` 1 no type is rare and nothing is dropped.
    WikiText-2 with ``min_count: 5`` has 1.34 M tokens of 15.8 thousand types after this preparation.

    The result can be restricted to a part of the same corpus: ``longest_articles`` and ``drawn_articles`` keep some
    documents of each split, and ``cut_articles`` makes the three splits from each document of the training file, so
    that all have the same topics. Rare sentences are still those of the whole training file; a vocabulary is that of
    the training split, thus of its parts of the documents.

    Layouts:

    - ``wikitext``: a line ``= Title =`` between two empty lines (or at the file's start) begins an article, a
      document with the title as its name and as the ``topic`` of its sentences (a repeated title in a split is
      numbered, ``Title (2)``; WikiText-2 has several ``<unk>``). Text before the first title is a document
      without topic, and so is a file without titles. ``= = Section = =`` lines are headings. Rows of a dataset are
      lines; if none is a title, each row of text that is read as it is written is a document.
    - ``paragraphs``: each line is a document.

    Args:
        train: path of the training file, or a list of paths; ``$VAR`` and ``~`` are expanded.
        validation: the same for validation.
        test: the same for test.
        dataset: instead of files, arguments of ``datasets.load_dataset`` (``path``, ``name``, ``data_files``, ...);
            its splits "train", "validation" and "test" are used.
        text_column: the column of the dataset with the text.
        layout: ``wikitext`` or ``paragraphs``.
        lowercase: whether to lowercase the text; None: only for lmdyn's own vocabularies.
        headings: whether to keep titles and section headings, each as a sentence; None: unless the vocabulary is one of
            lmdyn's.
        split_sentences: whether to split lines into sentences; otherwise each line is one. None: only for lmdyn's own
            vocabularies.
        drop_rare_sentences: whether to drop sentences with a type rarer than ``min_count`` in the training split.
        shuffle_sentences: whether to serve the training split's sentences in one random order, held in memory and drawn
            with ``seed``. Intended for labels of whole documents: a stream that stays in one article for hundreds of
            batches teaches which article it is in, not how to recognise it. Topics are then also numbered in this
            order.
        longest_articles: number of documents of each split to keep, those with the most words after the
            preparation (the earlier of equally long ones), in the order of the text; None keeps all.
        drawn_articles: the same number, but of documents that are drawn at random with ``seed``.
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
        lowercase: bool | None = None,
        headings: bool | None = None,
        split_sentences: bool | None = None,
        drop_rare_sentences: bool = True,
        shuffle_sentences: bool = False,
        longest_articles: int | None = None,
        drawn_articles: int | None = None,
        cut_articles: tuple[float, float, float] | None = None,
        tagger: Tagger | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        at_least(1, longest_articles=longest_articles, drawn_articles=drawn_articles)
        if longest_articles is not None and drawn_articles is not None:
            raise ValueError("expected longest_articles or drawn_articles, got both: omit one of them")
        self.paths = {s: p for s, p in zip(SPLITS, (train, validation, test), strict=True) if p}
        if bool(self.paths) == (dataset is not None):
            both = "both" if self.paths else "neither"
            raise ValueError(f"expected either files (train, validation, test) or a dataset, got {both}")
        if dataset is not None and ("split" in dataset or dataset.get("streaming")):
            raise ValueError("dataset accepts neither split nor streaming: omit them, lmdyn reads all splits")
        if cut_articles is not None:
            if not (min(cut_articles) >= 0 and math.isclose(sum(cut_articles), 1)):
                raise ValueError(
                    "cut_articles must be shares of training, validation and test with the sum 1, such as [0.7, 0.1, "
                    f"0.2], got {list(cut_articles)}"
                )
            if dataset is None:
                _check_only_train(self.paths)
        self.dataset = dataset
        self.text_column = text_column
        self.layout = layout
        self._by_line = layout == "paragraphs"
        self._lowercase = lowercase
        self._headings = headings
        self._split_sentences = split_sentences
        self.drop_rare_sentences = drop_rare_sentences
        self.shuffle_sentences = shuffle_sentences
        self.longest_articles = longest_articles
        self.cut_articles = cut_articles
        self.tagger = tagger
        self.drawn_articles = drawn_articles

    def forget(self) -> None:
        """Drop what was encoded, and counted, with another tokenizer."""
        super().forget()
        self._types: frozenset[str] | None = None
        self._titled: dict[str, bool] = {}
        self._chosen: dict[str, frozenset[int]] = {}

    @property
    def lowercase(self) -> bool:
        """Whether words are lowercased."""
        return not self._as_written if self._lowercase is None else self._lowercase

    @property
    def headings(self) -> bool:
        """Whether titles and section headings are kept."""
        return self._as_written if self._headings is None else self._headings

    @property
    def split_sentences(self) -> bool:
        """Whether lines are split into sentences."""
        return not self._as_written if self._split_sentences is None else self._split_sentences

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
        table = load_dataset(self.dataset)
        if not set(SPLITS) & set(table):
            raise ValueError(
                f"{in_words(self.dataset)} has no split {' or '.join(SPLITS)}, only {', '.join(table)}: "
                "name its files by split, `data_files: {train: FILE}`"
            )
        for split in set(SPLITS) & set(table):
            features = table[split].features
            kind = getattr(features.get(self.text_column), "dtype", "missing or a list")
            if kind not in ("string", "large_string", "string_view", "null"):
                raise ValueError(
                    f"split {split!r} of {in_words(self.dataset)}: column {self.text_column!r} is {kind}, expected "
                    f"text: set text_column to a column of text (the columns are {', '.join(features)})"
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
            if not self._as_written:
                yield split, (line for row in self._rows(split) for line in row.rstrip("\n").split("\n"))
            elif self._rows_are_lines(split):
                yield split, self._row_lines(split)
            else:
                for number, row in enumerate(self._rows(split), start=1):
                    yield f"{split}-{number}", _lines(row)
        else:
            for path in expand_paths(self.paths[split]):
                yield path.stem, (line for _, line in read_lines(path, keepends=self._as_written))

    def _rows_are_lines(self, split: str) -> bool:
        """Return whether a row of the dataset is a line of its text, as in WikiText; otherwise it is a document."""
        if not self._by_line and split not in self._titled:
            self._titled[split] = any(title for _, _, title in self._titles(self._row_lines(split)))
        return self._by_line or self._titled[split]

    def _row_lines(self, split: str) -> Iterator[str]:
        return (line for row in self._rows(split) for line in _lines(row.removesuffix("\n") + "\n"))

    def _articles(self, split: str) -> Iterator[Article]:
        """Yield the documents before rare sentences are dropped."""
        seen: Counter[str] = Counter()
        for name, lines in self._sources(split):
            for article in self._divided(name, lines):
                seen[article.name] += not article.continues
                again = f" ({seen[article.name]})" if seen[article.name] > 1 and not self._by_line else ""
                topic = article.topic and article.topic + again
                yield article._replace(name=article.name + again, topic=topic)

    def _titles(self, lines: Iterator[str]) -> Iterator[tuple[str, _Stretch, bool]]:
        """Yield each line, its words, and whether it is the title of an article."""
        before, line = "", next(lines, None)
        while line is not None:
            after = next(lines, None)
            text = line.lower() if self.lowercase else line
            words = _Stretch(text.split(), text)
            yield line, words, _is_title(words) and not before.strip() and not (after or "").strip()
            before, line = line, after

    def _divided(self, source: str, lines: Iterator[str]) -> Iterator[Article]:
        """Yield the documents of a source."""
        name = source
        topic: str | None = None
        sentences: list[_Stretch] = []
        blank, continues = "", False
        whole = (self.longest_articles, self.drawn_articles, self.cut_articles) != (None, None, None)
        if self._by_line and self._as_written and self.eos:  # end tokens replace line ends
            lines = (line.rstrip("\r\n") for line in lines)
        for number, (line, words, title) in enumerate(self._titles(lines), start=1):
            title = title and not self._by_line
            if title or (self._by_line and words):
                if sentences:
                    sentences[-1].text += blank
                    yield Article(name, topic, sentences, continues)
                    sentences, blank, continues = [], "", False
                topic = " ".join(line.split()[1:-1]) if title else None
                name = topic or f"{source}-{number}"
            if title or (_is_section(words) and not self._by_line):
                found = [words] if self.headings else []
            elif self.split_sentences and words:
                found = _stretches(words)
            else:
                found = [words] if words else []
            if not found:
                blank += "" if words or (self._by_line and self.eos) else line
                continue
            if sentences:
                sentences[-1].text += blank
            else:
                found[0].text = blank + found[0].text
            blank = ""
            if len(sentences) >= _SENTENCES_PER_PART and not whole:
                yield Article(name, topic, sentences, continues)
                sentences, continues = [], True
            sentences.extend(found)
        if sentences:
            sentences[-1].text += blank
            yield Article(name, topic, sentences, continues)

    def _frequent(self) -> frozenset[str] | None:
        """Return the types that are not rare in the training split; None if rarity has no effect."""
        if not self.drop_rare_sentences or self.min_count == 1:
            return None
        if "train" not in self._given:
            raise ValueError(
                "drop_rare_sentences counts types in the training split, which is missing: give train, or set "
                "drop_rare_sentences: false"
            )
        if self._types is None:
            counts = _count(self._articles("train"))
            self._types = frozenset(word for word, n in counts.items() if n >= self.min_count)
        return self._types

    def _kept(self, split: str) -> Iterator[Article]:
        """Yield documents without their rare sentences, except documents that lose all sentences."""
        frequent = self._frequent()
        begun = False
        for article in self._articles(split):
            begun = begun and article.continues
            kept = [words for words in article.sentences if frequent is None or frequent.issuperset(words)]
            if kept:
                yield article._replace(sentences=kept, continues=begun)
                begun = True

    def _selected(self, split: str) -> Iterator[Article]:
        """Yield the longest of the kept documents, or drawn ones, in the order of the text."""
        number = self.longest_articles or self.drawn_articles
        if number is None:
            return self._kept(split)
        if split not in self._chosen:  # a separate pass, so that memory never holds the text
            random = np.random.default_rng([self.seed, SPLITS.index(split)])
            ranks = (
                (random.random() if self.drawn_articles else sum(map(len, a.sentences)), -i)
                for i, a in enumerate(self._kept(split))
            )
            self._chosen[split] = frozenset(-i for _, i in heapq.nlargest(number, ranks))
        return (a for i, a in enumerate(self._kept(split)) if i in self._chosen[split])

    def _prepared(self, split: str) -> Iterator[Article]:
        """Yield the documents of a split of the corpus."""
        self.require_split(split)
        if self.cut_articles is None:
            yield from self._selected(split)
            return
        for article in self._selected("train"):
            if part := cut_sentences(article.sentences, self.cut_articles)[SPLITS.index(split)]:
                yield article._replace(sentences=part)

    def word_counts(self) -> Counter[str]:
        """Count the occurrences of each word in the training split."""
        return _count(self._prepared("train"))

    def documents(self, split: str) -> Iterator[Document]:
        """Stream the documents of a split, prepared and tagged."""
        if split != "train" or not self.shuffle_sentences:
            return self._tagged(split)
        sentences = [(document.name, s) for document in self._tagged(split) for s in document]
        order = np.random.default_rng(self.seed).permutation(len(sentences))
        return (Document(name, (sentence,)) for name, sentence in map(sentences.__getitem__, order))

    def _tagged(self, split: str) -> Iterator[Document]:
        for name, topic, sentences, continues in self._prepared(split):
            words = [tuple(s) for s in sentences]
            tags: list[Any] = [{}] * len(words) if self.tagger is None else self.tagger.tag(words)
            made = (
                Sentence(w, topic=topic, text=s.text if self._as_written else None, **layers)
                for w, s, layers in zip(words, sentences, tags, strict=True)
            )
            yield Document(name, tuple(made), continues)

    def _digests(self, split: str) -> list[str]:
        if self.dataset is None:
            return [file_digest(path) for path in expand_paths(self.paths[split])]
        hasher = hashlib.blake2b(digest_size=16)
        for row in self._rows(split):
            hasher.update(row.encode() + b"\0")
        return [hasher.hexdigest()]

    def content_key(self) -> dict[str, Any]:
        """Return hashes of the text, and the settings of the preparation."""
        return {
            "text": {split: self._digests(split) for split in self._given},
            "layout": self.layout,
            "lowercase": self.lowercase,
            "headings": self.headings,
            "split_sentences": self.split_sentences,
            "drop_rare_below": self.min_count if self.drop_rare_sentences else 1,
            "tagger": None if self.tagger is None else self.tagger.key(),
            "sentences_shuffled_by": self.seed if self.shuffle_sentences else None,
            "longest_articles": self.longest_articles,
            **({"drawn_articles": (self.drawn_articles, self.seed)} if self.drawn_articles else {}),
            "cut_articles": self.cut_articles,
        }
