"""From words to numbers: annotated text, encoded once into memory-mapped files."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import chain, groupby, islice, pairwise, tee
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerFast

from lmdyn.datamodules.corpora.sentence import TOKEN_LAYERS, Document, Sentence
from lmdyn.datamodules.corpora.tokenization import (
    Array,
    Ids,
    WordEncoder,
    digest,
    encode_blocks,
    end_id,
    words_of,
)

logger = logging.getLogger(__name__)

IGNORED = -100
"""The label of a token without label; losses ignore it."""

BATCH_LAYERS = (*TOKEN_LAYERS, "topic")
"""Layers of :class:`~lmdyn.datamodules.Sentence` that are served token by token."""

_SENTENCES_PER_CHUNK = 2048
_CHARACTERS_PER_BLOCK = 1 << 18
_TOKENS_PER_CHUNK = 1 << 20
_DAY = 24 * 3600.0
_CHECKSUMS = "checksums.json"
_checked: set[Path] = set()  # folders whose checksums this process has verified


def build_folder(final: Path, build: Callable[[Path], None]) -> Path:
    """Let ``build`` fill a temporary folder next to ``final`` and rename it; keep ``final`` if it exists.

    Several processes may do this at once: each writes to its own folder and the first rename wins. Folders left by
    killed processes are removed when they are a day old. ``checksums.json`` in the folder has sizes and checksums of
    its files, which each process verifies once (0.3 s per gigabyte); folders of earlier versions have no checksums and
    are not verified.

    Raises:
        ValueError: if files in ``final`` have changed since they were written.
    """
    if final.exists():
        _compare(final)
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    for leftover in final.parent.glob(f".{final.name.partition('-')[0]}-*"):
        with suppress(FileNotFoundError):  # another process was first
            if leftover.stat().st_mtime < time.time() - _DAY:
                shutil.rmtree(leftover, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    try:
        build(temporary)
        files = sorted(p for p in temporary.rglob("*") if p.is_file())
        sums = {p.relative_to(temporary).as_posix(): [p.stat().st_size, _checksum(p)] for p in files}
        (temporary / _CHECKSUMS).write_text(json.dumps(sums), encoding="utf-8")
        try:
            temporary.rename(final)
        except OSError:  # another process was first
            if not final.exists():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def _compare(folder: Path) -> None:
    """Refuse a folder whose files have changed since they were built."""
    if folder in _checked or not (folder / _CHECKSUMS).exists():
        return
    try:
        sums: dict[str, tuple[int, int]] = json.loads((folder / _CHECKSUMS).read_text(encoding="utf-8"))
        for name, (size, checksum) in sums.items():
            if (folder / name).stat().st_size != size or _checksum(folder / name) != checksum:
                raise ValueError(f"{name} has changed since it was written")
    except (ValueError, OSError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder} is damaged ({error}): remove the folder to rebuild it") from error
    _checked.add(folder)


def _checksum(path: Path) -> int:
    return zlib.crc32(np.memmap(path, mode="r").data) if path.stat().st_size else 0


class _Column:
    """A flat binary file to which arrays are appended, closed with ``files``."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, files: ExitStack) -> None:
        self.dtype = np.dtype(dtype)
        self.length = 0
        self.hash = hashlib.blake2b(digest_size=16)
        self._file = files.enter_context(path.open("wb"))

    def write(self, values: npt.ArrayLike) -> None:
        array = np.ascontiguousarray(values, dtype=self.dtype)
        self._file.write(array.data)
        self.hash.update(array.data)
        self.length += array.size

    def fill(self, value: int, count: int) -> None:
        for start in range(0, count, _TOKENS_PER_CHUNK):
            self.write(np.full(min(_TOKENS_PER_CHUNK, count - start), value, self.dtype))


def layer_dtype(layer: str) -> np.dtype[Any]:
    """Return the type of a layer's label indices."""
    return np.dtype(np.int32 if layer == "topic" else np.int16)


class EncodedSplit:
    """One encoded split: memory-mapped arrays in a folder, never copied.

    Attributes:
        folder: folder of the files.
        names: labels of each layer; the arrays index into this list.
        num_tokens: length of ``tokens``.
        num_sentences: number of sentences.
        num_documents: number of documents.

    Raises:
        ValueError: if files have changed since they were written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.meta = meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            self.names: dict[str, list[str]] = meta["names"]
            self.num_tokens: int = meta["num_tokens"]
            self.num_sentences: int = meta["num_sentences"]
            self.num_documents: int = meta["num_documents"]
            self._hashes: dict[str, str] = meta["hashes"]
            size = (folder / "tokens.bin").stat().st_size
            if size != self.num_tokens * 4:
                raise ValueError(f"tokens.bin has {size} bytes, expected {self.num_tokens * 4}")
        except (ValueError, KeyError, OSError) as error:
            raise ValueError(f"{folder} is damaged ({error}): remove {folder.parent}") from error
        self.tokens = self.open("tokens", np.int32)
        """Token ids, (num_tokens,) int32, sentence after sentence."""
        self.word_start = self.open("word_start", np.bool_)
        """True at the first piece of each word, (num_tokens,) bool; False at ``<eos>``."""
        self.sentence_starts = self.open("sentence_starts", np.int64)
        """Position of each sentence's first token, (num_sentences,) int64."""
        self.document_starts = self.open("document_starts", np.int64)
        """Index of each document's first sentence, (num_documents,) int64."""

    def __reduce__(self) -> tuple[type["EncodedSplit"], tuple[Path]]:
        return type(self), (self.folder,)  # a pickled memmap would be a copy of the corpus

    def open(self, name: str, dtype: npt.DTypeLike) -> Array:
        """Map the file ``<name>.bin`` for reading."""
        path = self.folder / f"{name}.bin"
        # an empty file cannot be mapped
        return np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.zeros(0, dtype)

    def relabel(self, names: Mapping[str, list[str]]) -> None:
        """Rewrite the label indices in place to index into ``names``, which holds all labels of this split."""
        for layer, old in self.names.items():
            new = {name: i for i, name in enumerate(names[layer])}
            table = np.array([*(new[name] for name in old), IGNORED], dtype=layer_dtype(layer))
            labels = np.memmap(self.folder / f"layer_{layer}.bin", table.dtype, "r+")
            for chunk in _chunks(labels):
                chunk[:] = table[np.where(chunk == IGNORED, len(old), chunk)]
            labels.flush()
            self._hashes[layer] = digest([self._hashes[layer], old, names[layer]])
            self.names[layer] = list(names[layer])
        (self.folder / "meta.json").write_text(json.dumps(self.meta), encoding="utf-8")

    def layer(self, layer: str) -> Array:
        """Return the label of each token, (num_tokens,) int16 or int32, -100 if it has none."""
        return self.open(f"layer_{layer}", layer_dtype(layer))

    def fingerprint(self, layers: Iterable[str] = ()) -> str:
        """Return a hash of the tokens and of the labels of some layers."""
        return digest([self._hashes["tokens"], {layer: self._hashes[layer] for layer in layers}])

    def compare(self, saved: str | None) -> None:
        """Warn if a resumed run reads another text than before, or the same in another order.

        Args:
            saved: the :meth:`fingerprint` of the text read so far; None if unknown.
        """
        if saved not in (None, self.fingerprint()):
            logger.warning(
                "the run resumes with another text, or with documents in another order, and so differs from an "
                "uninterrupted run. Unless you intend the change, restore the text (the run now reads %s)",
                self.folder,
            )

    def count(self, vocab_size: int, labels: Array, rows: int) -> Ids:
        """Count the occurrences of each token under each of its labels, (rows, vocab_size)."""
        counts = np.zeros(rows * vocab_size, np.int64)
        for tokens, of in zip(_chunks(self.tokens), _chunks(labels), strict=True):
            cells = (tokens + of.astype(np.int64) * vocab_size)[of != IGNORED]
            counts += np.bincount(cells, minlength=len(counts))
        return counts.reshape(rows, vocab_size)

    def shuffled(self, layer: str, seed: int) -> Array:
        """Return the labels of ``layer`` under one seeded permutation of all labelled positions.

        The distribution of labels is kept and their relation to the tokens is lost, so that a model can only
        memorise them. The file is written on first use, next to that of the layer; memory then holds one layer.
        """
        path = self.folder / f"shuffled_{layer}-{seed}.bin"
        if not path.exists():
            unfinished = path.with_name(f".{path.name}-{os.getpid()}")
            self._shuffled(layer, seed).tofile(unfinished)
            unfinished.replace(path)
        return self.open(path.stem, layer_dtype(layer))

    def _shuffled(self, layer: str, seed: int) -> Array:
        labels = np.array(self.layer(layer))
        labelled = labels != IGNORED
        mixed = labels[labelled]
        np.random.default_rng(seed).shuffle(mixed)
        labels[labelled] = mixed
        return labels


def _chunks(array: Array) -> Iterable[Array]:
    return (array[i : i + _TOKENS_PER_CHUNK] for i in range(0, len(array), _TOKENS_PER_CHUNK))


# ------------------------------------------------------------------------------------------ encoding


class _Block(NamedTuple):
    """Some sentences of a text as it is written, and the stretch of the text that holds them."""

    sentences: list[Sentence]
    text: str
    words: list[int]
    """Where each word of the sentences ends in ``text``."""
    ends: bool
    """Whether the text ends here."""

    def pieces(self, ids: Sequence[int], starts: npt.ArrayLike) -> "_Pieces":
        """Return its pieces, from their ids and where they start."""
        return _Pieces(self.sentences, ids, words_of(starts, self.words).tolist(), self.ends)


def _blocks(sentences: Iterable[Sentence]) -> Iterator[_Block]:
    """Divide a text between sentences, before white space, which belongs to the word that follows it."""
    stream = iter(sentences)
    following = next(stream, None)
    held: list[Sentence] = []
    words: list[int] = []
    text = ""
    while following is not None:
        sentence, following = following, next(stream, None)
        held.append(sentence)
        words += [len(text) + end for _, end in sentence.word_places()]
        text += sentence.text or ""
        if following is None:
            yield _Block(held, text, words, True)
        elif len(text) >= _CHARACTERS_PER_BLOCK:
            kept = text.rstrip()
            yield _Block(held, kept, words, False)
            held, words, text = [], [], text[len(kept) :]


class _Pieces(NamedTuple):
    """The pieces of some sentences."""

    sentences: list[Sentence]
    ids: Sequence[int]
    words: Sequence[int | None]
    """(pieces,) index of each one's word within the sentences."""
    ends: bool = True
    """Whether an end token follows."""


class _Encoder:
    """Writes sentences into the files of one split, chunk by chunk."""

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerFast, eos: bool, files: ExitStack) -> None:
        self._folder, self._files = folder, files
        self._words = WordEncoder(tokenizer)
        self._eos = end_id(tokenizer) if eos else None
        self._seen = 0  # number of sentences
        self._whole: list[_Block] = []  # short texts that are not written yet
        self._characters = 0  # their length
        self._tokens = self._column("tokens", np.int32)
        self._word_start = self._column("word_start", np.bool_)
        self._sentences = self._column("sentence_starts", np.int64)
        self._documents = self._column("document_starts", np.int64)
        self._layers: dict[str, _Column] = {}
        self._index: dict[str, dict[str, int]] = {}

    def _column(self, name: str, dtype: npt.DTypeLike) -> _Column:
        return _Column(self._folder / f"{name}.bin", dtype, self._files)

    def add(self, documents: Iterable[Document]) -> None:
        """Append documents, and record where they begin."""
        texts = 0

        def text_of(document: Document) -> int | None:
            """Number the texts that are encoded as they are written; None for words."""
            nonlocal texts
            if self._words.own or any(sentence.text is None for sentence in document):
                return None
            texts += self._eos is not None and not document.continues
            return texts

        for text, group in groupby(documents, text_of):
            sentences = self._recorded(group)
            if text is not None:
                self._write_text(_blocks(sentences))
                continue
            self._write_whole()
            while chunk := list(islice(sentences, _SENTENCES_PER_CHUNK)):
                encodings = self._words.encode([s.words for s in chunk])
                self._write([_Pieces([s], e.ids, e.word_ids) for s, e in zip(chunk, encodings, strict=True)])
        self._write_whole()

    def _recorded(self, documents: Iterable[Document]) -> Iterator[Sentence]:
        """Yield the sentences of documents; texts that no end token separates are separated by line ends."""
        before = "\n"
        for document in documents:
            if not document.continues:
                self._documents.write([self._seen])
            for i, sentence in enumerate(document):
                if i == 0 and not document.continues and not before.endswith(("\n", "\r")) and sentence.text:
                    places = tuple((start + 1, end + 1) for start, end in sentence.word_places())
                    sentence = replace(sentence, text="\n" + sentence.text, places=places)
                before = sentence.text or "\n"
                self._seen += 1
                yield sentence

    def _write_text(self, blocks: Iterator[_Block]) -> None:
        """Append a text as it is written, with an end token; short ones are collected and written together."""
        block = next(blocks)
        if block.ends:
            self._whole.append(block)
            self._characters += len(block.text)
            if self._characters >= _CHARACTERS_PER_BLOCK:
                self._write_whole()
            return
        self._write_whole()
        texts, read = tee(chain([block], blocks))
        for (ids, starts), of in zip(
            encode_blocks(self._words.backend, (each.text for each in texts)), read, strict=True
        ):
            self._write([of.pieces(ids.tolist(), starts)])

    def _write_whole(self) -> None:
        texts, self._whole, self._characters = self._whole, [], 0
        encodings = self._words.backend.encode_batch([t.text for t in texts], add_special_tokens=False)
        self._write(
            [
                t.pieces(e.ids, [start for start, _ in e.offsets])
                for t, e in zip(texts, encodings, strict=True)
            ]
        )

    def _write(self, texts: Sequence[_Pieces]) -> None:
        """Append the pieces of some texts, and for each piece the labels of its word."""
        if not texts:
            return
        sentences = [s for text in texts for s in text.sentences]
        counts = np.array([len(s.words) for s in sentences])
        lasts = np.cumsum([len(text.sentences) for text in texts])  # sentences up to the end of each text
        before = np.append(0, np.cumsum(counts)[lasts - 1])[:-1]  # words before each text
        lengths = np.array([len(text.ids) for text in texts])
        ids = np.fromiter(chain.from_iterable(text.ids for text in texts), np.int64, lengths.sum())
        word = np.fromiter(chain.from_iterable(text.words for text in texts), np.int64, lengths.sum())
        word += np.repeat(before, lengths)
        sentence = np.repeat(np.arange(len(sentences)), counts)[word]
        start = np.diff(word, prepend=-1) != 0
        if self._eos is not None:
            ended = np.array([text.ends for text in texts])
            ends = np.cumsum(lengths)[ended]
            ids = np.insert(ids, ends, self._eos)
            word = np.insert(word, ends, -1)  # selects the entry without label, the last one below
            sentence = np.insert(sentence, ends, lasts[ended] - 1)
            start = np.insert(start, ends, False)
        written = self._tokens.length
        pieces = np.bincount(sentence, minlength=len(sentences))
        self._sentences.write(written + np.cumsum(pieces) - pieces)
        self._tokens.write(ids)
        self._word_start.write(start)
        for layer in BATCH_LAYERS:
            if layer not in self._layers:
                if all(getattr(s, layer) is None for s in sentences):
                    continue
                self._layers[layer] = self._column(f"layer_{layer}", layer_dtype(layer))
                self._layers[layer].fill(IGNORED, written)
            self._layers[layer].write(self._labels(layer, sentences)[sentence if layer == "topic" else word])

    def _labels(self, layer: str, sentences: list[Sentence]) -> Ids:
        """Return label indices of each word (for ``topic``, each sentence) of a chunk, and a last one for no label."""
        index = self._index.setdefault(layer, {})
        if layer == "topic":
            names = [s.topic for s in sentences]
        else:
            names = [n for s in sentences for n in getattr(s, layer) or (None,) * len(s.words)]
        labels = [IGNORED if n is None else index.setdefault(n, len(index)) for n in names]
        if len(index) > (most := np.iinfo(layer_dtype(layer)).max):
            raise ValueError(f"layer {layer!r} has more than {most} labels: use a smaller tag set")
        return np.array([*labels, IGNORED])

    def finish(self) -> None:
        if not self._seen:
            raise ValueError("no sentence is left: use a longer text, or settings that leave out less")
        meta = {
            "num_tokens": self._tokens.length,
            "num_sentences": self._seen,
            "num_documents": self._documents.length,
            "names": {layer: list(index) for layer, index in self._index.items()},
            "hashes": {
                name: c.hash.hexdigest() for name, c in {"tokens": self._tokens, **self._layers}.items()
            },
        }
        (self._folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def encode_documents(
    documents: Iterable[Document], folder: Path, tokenizer: PreTrainedTokenizerFast, eos: bool
) -> EncodedSplit:
    """Encode documents into ``folder`` one by one: memory holds some sentences, not the corpus.

    Documents whose sentences have a ``text`` are encoded as they are written, unless the tokenizer is one of lmdyn's.
    With ``eos``, each document is a text, encoded as a whole, and followed by the end token. Without it, all documents
    are one text. The word of a piece is that in which it begins, or the next word if it begins in white space.

    All other documents are encoded by sentence, as the text that the words form if single spaces join them.

    Args:
        documents: annotated text; each piece of a word gets the word's labels.
        folder: an existing empty folder.
        tokenizer: any fast tokenizer.
        eos: whether to append the tokenizer's end-of-sentence token (otherwise its ``sep_token``) to each document
            that is encoded as it is written, or to each sentence of others.

    Raises:
        ValueError: if ``eos`` is set but the tokenizer has no such token, or there is no sentence.
    """
    with ExitStack() as files:
        encoder = _Encoder(folder, tokenizer, eos, files)
        encoder.add(documents)
        encoder.finish()
    return EncodedSplit(folder)


def merge_label_names(splits: Iterable[Mapping[str, list[str]]]) -> dict[str, list[str]]:
    """Merge the names of each layer into one list: those of the first split, then additional ones of the others.

    Names are sorted within a split, but topics keep the order of their documents.

    Example:
        >>> merge_label_names([{"upos": ["NOUN", "DET"]}, {"upos": ["X", "NOUN"], "topic": ["b", "a"]}])
        {'upos': ['DET', 'NOUN', 'X'], 'topic': ['b', 'a']}
    """
    merged: dict[str, dict[str, None]] = {}
    for names in splits:
        for layer, values in names.items():
            ordered = values if layer == "topic" else sorted(values)
            merged.setdefault(layer, {}).update(dict.fromkeys(ordered))
    return {layer: list(values) for layer, values in merged.items()}


# ------------------------------------------------------------------------------------------ order

_SOURCE = "train"


class ReorderedSplit(EncodedSplit):
    """An encoded training text whose documents are in another order; labels move with their tokens.

    This also holds for shuffled labels: each token keeps the label that it has in the text's own order, so that two
    orders differ in nothing else.
    """

    @property
    def order(self) -> Ids:
        """Index of the document, in the text's own order, at each place, (num_documents,)."""
        return np.random.default_rng(self.meta["order_seed"]).permutation(self.num_documents)

    def _shuffled(self, layer: str, seed: int) -> Array:
        source = EncodedSplit(self.folder.parent / _SOURCE)
        return _moved(source.shuffled(layer, seed), _pieces(source, self.order))


def reordered(source: EncodedSplit, order_seed: int) -> ReorderedSplit:
    """Return a split with its documents permuted by a seed, stored next to the split's own folder; written once.

    The permutation depends only on the seed and the number of documents.

    Args:
        source: the training split in the text's own order.
        order_seed: seed of the permutation.

    Raises:
        ValueError: if the text has only one document, and thus no other order.
    """
    if source.num_documents < 2:
        raise ValueError(
            f"order_seed {order_seed} requires two documents or more, got {source.num_documents} in the training text: "
            "omit order_seed, or use a text that is divided into documents"
        )

    def build(folder: Path) -> None:
        order = np.random.default_rng(order_seed).permutation(source.num_documents)
        pieces = _pieces(source, order)
        sentences = _ranges(source.document_starts, source.num_sentences, order)  # of each document
        of_documents = np.array([end - start for start, end in sentences])
        of_sentences = _moved(np.diff(np.append(source.sentence_starts, source.num_tokens)), sentences)
        _moved(source.tokens, pieces).tofile(folder / "tokens.bin")
        _moved(source.word_start, pieces).tofile(folder / "word_start.bin")
        for layer in source.names:
            _moved(source.layer(layer), pieces).tofile(folder / f"layer_{layer}.bin")
        (np.cumsum(of_documents) - of_documents).tofile(folder / "document_starts.bin")
        (np.cumsum(of_sentences) - of_sentences).tofile(folder / "sentence_starts.bin")
        layers: dict[str, list[str]] = {"tokens": [], **{layer: [layer] for layer in source.names}}
        hashes = {name: digest([source.fingerprint(of), order_seed]) for name, of in layers.items()}
        meta = source.meta | {"hashes": hashes, "order_seed": order_seed}
        (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")

    return ReorderedSplit(build_folder(source.folder.parent / f"{_SOURCE}_order-{order_seed}", build))


def _ranges(starts: Ids, total: int, order: Ids) -> list[tuple[int, int]]:
    """Return where each document begins and ends in the text's own order, in the new order."""
    there = list(pairwise([*starts.tolist(), total]))
    return [there[document] for document in order]


def _pieces(source: EncodedSplit, order: Ids) -> list[tuple[int, int]]:
    """Return the range of tokens of each document, in the new order."""
    first_sentences = np.append(source.sentence_starts, source.num_tokens)[source.document_starts]
    return _ranges(first_sentences, source.num_tokens, order)


def _moved(array: Array, pieces: Sequence[tuple[int, int]]) -> Array:
    return np.concatenate([array[start:end] for start, end in pieces])
