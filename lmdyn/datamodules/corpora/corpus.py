"""The base class of all text sources: from documents to a tokenizer, a cache of encoded text, and loaders."""

import logging
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerFast

from lmdyn.datamodules.corpora.bptt import SHUFFLED, StreamLoader
from lmdyn.datamodules.corpora.encoding import (
    EncodedSplit,
    build_folder,
    encode_documents,
    merge_label_names,
    reordered,
)
from lmdyn.datamodules.corpora.sentence import Document
from lmdyn.datamodules.corpora.tokenization import (
    Array,
    TokenizerUser,
    digest,
    load_tokenizer,
    subword_tokenizer,
    tokenizer_digest,
    trained_here,
    word_tokenizer,
)
from lmdyn.datamodules.corpora.vocabulary import TRAINING_VERSION
from lmdyn.datamodules.files.checks import at_least
from lmdyn.datamodules.files.text_files import expand_paths, file_digest
from lmdyn.datamodules.loading.loader import SplitLoaders

logger = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")
Vocabulary = Literal["word", "unigram", "wordpiece"]
_FORMAT = 1  # version of the cache; raise it when the files change


class Corpus(TokenizerUser, SplitLoaders, ABC):
    """Text that is read once, encoded into memory-mapped files, and served as contiguous streams.

    A subclass defines :meth:`documents` and :meth:`content_key`, and names its splits in :attr:`splits`; this class
    does the rest. The cache is a folder named by a hash of content, settings and tokenizer: a second start opens it
    and reads no text. Memory does not grow with the corpus.

    The tokenizer is the one named by ``tokenizer``, or the one assigned to the attribute ``tokenizer`` before
    ``prepare_data`` (an observer assigns the run's tokenizer to its probe corpus), or a vocabulary of the training
    split, of words or word pieces. Only the last requires a training split.

    Text reaches a tokenizer that lmdyn did not train as it is written, with all white space and line ends: a document,
    or without ``eos`` the whole split, has the ids of ``tokenizer(text, add_special_tokens=False)``. lmdyn's own
    vocabularies read words, and so do all tokenizers where the source has only words, as most treebanks.

    Batches contain the labels of the layers as indices into ``label_names``. These lists are shared by all splits:
    the training split's labels, sorted, then additional labels of the other splits. Topics are listed in the order of
    their documents, so that a training topic is the index of its document if titles are unique; validation and
    test articles have other titles, which follow.

    Args:
        tokenizer: folder or hub name (``AutoTokenizer.from_pretrained``) or path of a ``tokenizer.json``; None
            builds a vocabulary from the training split.
        vocabulary: kind of this vocabulary: ``word``, one id per word, or word pieces, ``unigram`` (as in ALBERT) or
            ``wordpiece`` (as in BERT).
        vocab_size: number of word pieces.
        min_count: minimum number of occurrences in the training split of words in a word-level vocabulary.
        eos: whether to append the end-of-sentence token: to each document of text that is encoded as it is written,
            otherwise to each sentence.
        layers: gold layers to serve in batches; None for all layers of the corpus. ``shuffled_<layer>`` serves the
            labels of a layer under one permutation, as a control that can only be memorised.
        batch_size: rows per batch, for each process in training.
        sequence_length: predictions in each row of a batch.
        cache_dir: folder of the encoded text; default: ``$LMDYN_CACHE`` or ``~/.cache/lmdyn``.
        seed: seed of the permutation of shuffled layers.
        order_seed: seed of one permutation of the documents of the training text (for a corpus without documents, such
            as a treebank, of its sentences); None for the published order. Vocabulary, labels and the other splits do
            not change, and :meth:`documents` streams the text in its own order.

    Raises:
        ValueError: in ``prepare_data`` or ``setup``, with file, line and remedy: if settings are invalid, text cannot
            be read, a split is empty, or a layer is unknown.
        FileNotFoundError: if a file is missing.
    """

    objective: ClassVar[str] = "causal"
    """What its own batches predict: the next token."""

    splits: tuple[str, ...] = SPLITS
    """The existing splits, of "train", "validation" and "test"."""

    _unsaved: ClassVar[tuple[str, ...]] = ()
    """Names of arguments that are not plain values and are excluded from the hyperparameters."""

    _orders_itself: ClassVar[bool] = False
    """Whether ``documents("train")`` already has the order of ``order_seed``."""

    def __init__(
        self,
        *,
        tokenizer: str | None = None,
        vocabulary: Vocabulary = "word",
        vocab_size: int = 30_000,
        min_count: int = 1,
        eos: bool = True,
        layers: list[str] | None = None,
        batch_size: int = 40,
        sequence_length: int = 35,
        cache_dir: str | None = None,
        seed: int = 0,
        order_seed: int | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(logger=False, ignore=list(self._unsaved))
        at_least(1, min_count=min_count, batch_size=batch_size, sequence_length=sequence_length)
        at_least(0, order_seed=order_seed)
        # in evaluation, a rank may have no stream
        self.allow_zero_length_dataloader_with_multiple_devices = True
        self._vocabulary: Vocabulary = vocabulary
        self._vocab_size = vocab_size
        self.min_count = min_count
        self.eos = eos
        self.layers = layers
        self.batch_size = batch_size
        self.sequence_length = sequence_length
        self.seed = seed
        self.order_seed = order_seed
        self.cache_dir = Path(cache_dir or os.environ.get("LMDYN_CACHE") or "~/.cache/lmdyn").expanduser()
        self._tokenizer_name = tokenizer
        self.forget()

    # ---------------------------------------------------------------- what a subclass gives

    @abstractmethod
    def documents(self, split: str) -> Iterator[Document]:
        """Stream the documents of a split (of "train", "validation" and "test")."""

    @abstractmethod
    def content_key(self) -> dict[str, Any]:
        """Return plain values that determine :meth:`documents`; with the encoding settings they key the cache."""

    def word_counts(self) -> Counter[str]:
        """Count the occurrences of each word in the training split."""
        return Counter(word for document in self.documents("train") for s in document for word in s.words)

    @staticmethod
    def by_split(n_train: int, n_validation: int, n_test: int) -> dict[str, int]:
        """Return the number of words of each split, checked."""
        sizes = {"train": n_train, "validation": n_validation, "test": n_test}
        at_least(1, **{f"n_{split}_tokens": n for split, n in sizes.items()})
        return sizes

    # ---------------------------------------------------------------- tokenizer and cache

    def forget(self) -> None:
        """Drop what was encoded with another tokenizer."""
        self._written: bool | None = None
        self._encoded: dict[str, EncodedSplit] = {}
        self._token_counts: pd.DataFrame | None = None

    def prepare_data(self) -> None:
        """Encode the text into the cache, once."""
        if self._encoded:
            return
        identity = {
            "format": _FORMAT,
            "class": type(self).__qualname__,
            "splits": list(self.splits),
            "content": self.content_key(),
        }
        if not self.has_tokenizer:
            self._tokenizer = self._own_tokenizer(identity)
        order = self.order_seed if "train" in self.splits else None
        of_text = order if self._orders_itself else None
        key = digest([identity, of_text, tokenizer_digest(self.tokenizer), self.eos, self._as_written])
        folder = build_folder(self.cache_dir / f"text-{key}", self._encode)
        encoded = {split: EncodedSplit(folder / split) for split in self.splits}
        if order is not None and not self._orders_itself:
            encoded["train"] = reordered(encoded["train"], order)
        for split, data in encoded.items():
            for layer in self._served(split, data):  # unknown layers fail here, and permutations are written
                if layer.startswith(SHUFFLED):
                    data.shuffled(layer.removeprefix(SHUFFLED), self.seed)
        self._encoded = encoded

    def setup(self, stage: str | None = None) -> None:
        """Open the cache; ``stage`` has no effect."""
        self.prepare_data()

    @property
    def _as_written(self) -> bool:
        """Whether text reaches the tokenizer as it is written: unless lmdyn trained it."""
        if not self.has_tokenizer:  # a vocabulary of the training split
            return False
        if self._written is None:
            self._written = not trained_here(self.tokenizer)
        return self._written

    def _own_tokenizer(self, identity: dict[str, Any]) -> PreTrainedTokenizerFast:
        if "train" not in self.splits:
            raise ValueError("a vocabulary requires a training split: give train, or a tokenizer")

        def build(folder: Path) -> None:
            counts = self.word_counts()
            if self._vocabulary == "word":
                word_tokenizer(counts, self.min_count).save_pretrained(str(folder))
            else:
                subword_tokenizer(self._vocabulary, counts, self._vocab_size).save_pretrained(str(folder))

        settings = [identity, self._vocabulary, self.min_count, self._vocab_size, TRAINING_VERSION]
        folder = build_folder(self.cache_dir / f"vocabulary-{digest(settings)}", build)
        return load_tokenizer(str(folder))

    def _encode(self, folder: Path) -> None:
        encoded = []
        for split in self.splits:
            (folder / split).mkdir()
            try:
                data = encode_documents(self.documents(split), folder / split, self.tokenizer, self.eos)
            except ValueError as error:
                raise ValueError(f"split {split!r} of the corpus: {error}") from error
            logger.info("lmdyn encoded %s: %d tokens in %s", split, data.num_tokens, folder)
            encoded.append(data)
        names = merge_label_names(data.names for data in encoded)
        for data in encoded:
            data.relabel(names)

    # ---------------------------------------------------------------- what others read

    def require_split(self, split: str) -> None:
        """Raise a ``ValueError`` for a split that the corpus lacks."""
        if split not in self.splits:
            remedy = f"for a corpus of files, give `--data.{split} FILE`"
            raise ValueError(f"the corpus has no split {split!r}, only {', '.join(self.splits)}; {remedy}")

    def encoded(self, split: str) -> EncodedSplit:
        """Return the memory-mapped tokens and labels of a split.

        Raises:
            RuntimeError: if called before ``setup``.
            ValueError: if the corpus lacks the split.
        """
        if not self._encoded:
            raise RuntimeError("the corpus is not set up: call prepare_data() and setup() first")
        self.require_split(split)
        return self._encoded[split]

    @property
    def label_names(self) -> dict[str, list[str]]:
        """Labels of each layer of the corpus, and of the served shuffled layers."""
        names: dict[str, list[str]] = {}
        for split in self.splits:
            names |= self.encoded(split).names
        return {**names, **{layer: names[layer.removeprefix(SHUFFLED)] for layer in self.layers or ()}}

    @property
    def token_counts(self) -> pd.DataFrame:
        """Count the occurrences of each token in the training split.

        Returns:
            A table with one row for each token id 0 ... V-1 and the columns ``token``, ``count`` and, if there
            are tags, one for each ``upos`` tag with the occurrences under this tag.

        Raises:
            ValueError: if the corpus has no training split.
        """
        if self._token_counts is None:
            train = self.encoded("train")
            size = len(self.tokenizer)
            columns: dict[str, Any] = {
                "token": self.tokenizer.convert_ids_to_tokens(list(range(size))),
                "count": train.count(size, train.word_start, 2).sum(0),
            }
            if "upos" in train.names:
                tags = train.names["upos"]
                columns.update(zip(tags, train.count(size, train.layer("upos"), len(tags)), strict=True))
            self._token_counts = pd.DataFrame(columns, index=pd.RangeIndex(size, name="id"))
        return self._token_counts

    @property
    def word_starts(self) -> Array:
        """Share of each token's occurrences in the training split that begin a word, (V,) float64; 0 without any."""
        train = self.encoded("train")
        others, starts = train.count(len(self.tokenizer), train.word_start, 2)
        shares: Array = starts / np.maximum(others + starts, 1)
        return shares

    # ---------------------------------------------------------------- loaders

    def _served(self, split: str, data: EncodedSplit) -> tuple[str, ...]:
        for layer in self.layers or ():
            if layer.removeprefix(SHUFFLED) not in data.names:
                raise ValueError(
                    f"`layers` names {layer!r}, which split {split!r} lacks: name only layers of the split "
                    f"({', '.join(data.names) or 'none'}), or {SHUFFLED}<layer> of one of these layers"
                )
        return tuple(data.names if self.layers is None else self.layers)

    def loader(self, split: str) -> StreamLoader:
        """Return the streams of a split: ``batch_size`` rows per process in training, otherwise for all processes.

        Raises:
            RuntimeError: if called before ``setup``.
            ValueError: if the corpus lacks the split.
        """
        rank, world_size = self._place
        data = self.encoded(split)
        loader = StreamLoader(
            data,
            self.batch_size * (world_size if split == "train" else 1),
            self.sequence_length,
            layers=self._served(split, data),
            pad_id=self.pad_id,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
        )
        return self._for_training(loader) if split == "train" else loader


class FileCorpus(Corpus):
    """A corpus whose splits are annotated files of one format: a subclass only defines :meth:`read`.

    Args:
        train: path of the training file, or a list of paths; ``$VAR`` and ``~`` are expanded.
        validation: the same for validation.
        test: the same for test.
        lowercase: whether to lowercase the words.
        **kwargs: see :class:`~lmdyn.datamodules.Corpus`.

    Raises:
        FileNotFoundError: in ``prepare_data``, if a file does not exist.
        ValueError: if no path is given; in ``prepare_data``, if a line is malformed, a split is empty, or a layer is
            unknown.
    """

    files_of_a_folder: ClassVar[str | None] = None
    """Pattern of a folder's files; with it, a path may be a folder or a pattern."""

    def __init__(
        self,
        train: str | list[str] | None = None,
        validation: str | list[str] | None = None,
        test: str | list[str] | None = None,
        *,
        lowercase: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.lowercase = lowercase
        self.paths = {s: p for s, p in zip(SPLITS, (train, validation, test), strict=True) if p}
        self.splits = tuple(self.paths)
        if not self.splits:
            raise ValueError("the corpus has no file: give train, validation or test")

    @abstractmethod
    def read(self, path: Path) -> Iterator[Document]:
        """Stream the documents of a file."""

    def files(self, split: str) -> list[Path]:
        """Return the files of a split."""
        self.require_split(split)
        return expand_paths(self.paths[split], self.files_of_a_folder)

    def documents(self, split: str) -> Iterator[Document]:
        """Stream the documents of a split."""
        # lmdyn's own vocabularies read words, so that the text would be another one
        words = not self._as_written and self._tokenizer is not None
        for path in self.files(split):
            for document in self.read(path):
                yield document.as_words() if words else document

    def content_key(self) -> dict[str, Any]:
        """Return hashes of the files, and the settings of the reader."""
        files = {split: [file_digest(path) for path in self.files(split)] for split in self.splits}
        return {"files": files, "lowercase": self.lowercase}
