"""From words to numbers: annotated text, encoded once into memory-mapped files."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerFast

from lmdyn.datamodules.corpora.sentence import TOKEN_LAYERS, Document, Sentence
from lmdyn.datamodules.corpora.tokenization import WordEncoder, digest, end_id

__all__ = [
    "BATCH_LAYERS",
    "IGNORED",
    "EncodedSplit",
    "build_folder",
    "encode_documents",
    "layer_dtype",
    "merge_label_names",
]

logger = logging.getLogger(__name__)

IGNORED = -100
"""The label of a token without label; losses ignore it."""

BATCH_LAYERS = (*TOKEN_LAYERS, "topic")
"""Layers of :class:`~lmdyn.datamodules.Sentence` that are served token by token."""

_SENTENCES_PER_CHUNK = 2048
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
            found = (folder / name).stat().st_size
            if found != size:
                raise ValueError(f"{name} has {found} bytes, expected {size}")
            if _checksum(folder / name) != checksum:
                raise ValueError(f"{name} has changed since it was written")
    except (ValueError, OSError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder} is damaged ({error}): remove it, and it will be rebuilt") from error
    _checked.add(folder)


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(_TOKENS_PER_CHUNK):
            value = zlib.crc32(chunk, value)
    return value


class _Column:
    """A flat binary file to which arrays are appended, closed with ``files``."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, files: ExitStack) -> None:
        self.dtype = np.dtype(dtype)
        self.length = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._file = files.enter_context(path.open("wb"))

    def write(self, values: npt.ArrayLike) -> None:
        array = np.ascontiguousarray(values, dtype=self.dtype)
        self._file.write(array.data)
        self._hash.update(array.data)
        self.length += array.size

    def fill(self, value: int, count: int) -> None:
        for start in range(0, count, _TOKENS_PER_CHUNK):
            self.write(np.full(min(_TOKENS_PER_CHUNK, count - start), value, self.dtype))

    def digest(self) -> str:
        return self._hash.hexdigest()


def layer_dtype(layer: str) -> np.dtype[Any]:
    """Return the type of a layer's label indices."""
    return np.dtype(np.int32 if layer == "topic" else np.int16)


class EncodedSplit:
    """One encoded split: memory-mapped arrays in a folder, opened on first use and never copied.

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
            meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            self.names: dict[str, list[str]] = meta["names"]
            self.num_tokens: int = meta["num_tokens"]
            self.num_sentences: int = meta["num_sentences"]
            self.num_documents: int = meta["num_documents"]
            self._hashes: dict[str, str] = meta["hashes"]
            size = (folder / "tokens.bin").stat().st_size
            if size != self.num_tokens * 4:
                raise ValueError(f"tokens.bin has {size} bytes for {self.num_tokens} tokens")
        except (ValueError, KeyError, OSError) as error:
            raise ValueError(
                f"the encoded text in {folder} is damaged ({error}): remove {folder.parent}, and it will be rebuilt"
            ) from error

    def __reduce__(self) -> tuple[type["EncodedSplit"], tuple[Path]]:
        return type(self), (self.folder,)  # a pickled memmap would be a copy of the corpus

    def open(self, name: str, dtype: npt.DTypeLike) -> np.memmap[Any, Any]:
        """Map the file ``<name>.bin`` for reading."""
        return np.memmap(self.folder / f"{name}.bin", dtype=dtype, mode="r")

    def relabel(self, names: Mapping[str, list[str]]) -> None:
        """Rewrite the label indices in place to index into ``names``, which holds all labels of this split."""
        for layer, old in self.names.items():
            new = {name: i for i, name in enumerate(names[layer])}
            if len(new) > np.iinfo(layer_dtype(layer)).max:
                raise ValueError(f"layer {layer!r} has {len(new)} different labels: is it a tag set?")
            table = np.array([*(new[name] for name in old), IGNORED], dtype=layer_dtype(layer))
            with (self.folder / f"layer_{layer}.bin").open(
                "r+b"
            ) as file:  # read instead of mapped, since mapped pages stay resident
                while len(chunk := np.fromfile(file, table.dtype, _TOKENS_PER_CHUNK)):
                    file.seek(-chunk.nbytes, os.SEEK_CUR)
                    file.write(table[np.where(chunk == IGNORED, len(old), chunk)].data)
                    file.flush()
            self._hashes[layer] = digest([self._hashes[layer], old, names[layer]])
            self.names[layer] = list(names[layer])
        path = self.folder / "meta.json"
        meta = json.loads(path.read_text(encoding="utf-8")) | {"names": self.names, "hashes": self._hashes}
        path.write_text(json.dumps(meta), encoding="utf-8")

    @cached_property
    def tokens(self) -> np.memmap[Any, Any]:
        """Token ids, (num_tokens,) int32, sentence after sentence."""
        return self.open("tokens", np.int32)

    @cached_property
    def word_start(self) -> np.memmap[Any, Any]:
        """True at the first piece of each word, (num_tokens,) bool; False at ``<eos>``."""
        return self.open("word_start", np.bool_)

    @cached_property
    def sentence_starts(self) -> np.memmap[Any, Any]:
        """Position of each sentence's first token, (num_sentences,) int64."""
        return self.open("sentence_starts", np.int64)

    @cached_property
    def document_starts(self) -> np.memmap[Any, Any]:
        """Index of each document's first sentence, (num_documents,) int64."""
        return self.open("document_starts", np.int64)

    def layer(self, layer: str) -> np.memmap[Any, Any]:
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
                "the run resumes with another text, or with documents in another order: the run is the same "
                "only if this is intended (%s)", self.folder,
            )  # fmt: skip

    def count(self, vocab_size: int, layer: str | None = None) -> npt.NDArray[np.int64]:
        """Count the occurrences of each token, (vocab_size,), or under each label of a layer, (labels, vocab_size)."""
        rows = 1 if layer is None else len(self.names[layer])
        counts = np.zeros(rows * vocab_size, np.int64)
        for i, tokens in enumerate(_chunks(self.tokens)):
            cells = tokens.astype(np.int64)
            if layer is not None:
                labels = self.layer(layer)[i * _TOKENS_PER_CHUNK :][: len(tokens)].astype(np.int64)
                cells = (cells + labels * vocab_size)[labels != IGNORED]
            counts += np.bincount(cells, minlength=len(counts))
        return counts if layer is None else counts.reshape(rows, vocab_size)

    def shuffled(self, layer: str, seed: int) -> np.memmap[Any, Any]:
        """Return the labels of ``layer`` under one seeded permutation of all labelled positions.

        The distribution of labels is kept and their relation to the tokens is lost, so that a model can only
        memorise them. The file is written on first use, next to that of the layer; memory does not grow with it.
        """
        path = self.folder / f"shuffled_{layer}-{seed}.bin"
        if not path.exists():
            labels = self.layer(layer)
            with tempfile.TemporaryDirectory(prefix=".shuffle-", dir=self.folder) as temporary:
                pool = Path(temporary) / "pool.bin"  # all labels, without gaps
                with pool.open("wb") as file:
                    for chunk in _chunks(labels):
                        file.write(np.ascontiguousarray(chunk[chunk != IGNORED]).data)
                used = 0
                if pool.stat().st_size:
                    mixed = np.memmap(pool, labels.dtype, "r+")
                    np.random.default_rng(seed).shuffle(np.asarray(mixed))
                result = Path(temporary) / path.name
                with result.open("wb") as file:
                    for chunk in _chunks(labels):
                        chunk = np.array(chunk)
                        labelled = chunk != IGNORED
                        if count := int(labelled.sum()):
                            chunk[labelled] = mixed[used : used + count]
                            used += count
                        file.write(chunk.data)
                result.replace(path)
        return self.open(path.stem, layer_dtype(layer))


def _chunks(array: npt.NDArray[Any]) -> Iterable[npt.NDArray[Any]]:
    return (array[i : i + _TOKENS_PER_CHUNK] for i in range(0, len(array), _TOKENS_PER_CHUNK))


# ------------------------------------------------------------------------------------------ encoding


class _Encoder:
    """Writes sentences into the files of one split, chunk by chunk."""

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerFast, eos: bool, files: ExitStack) -> None:
        self._folder = folder
        self._files = files
        self._words = WordEncoder(tokenizer)
        self._eos = end_id(tokenizer) if eos else None
        self._tokens = _Column(folder / "tokens.bin", np.int32, files)
        self._word_start = _Column(folder / "word_start.bin", np.bool_, files)
        self._sentences = _Column(folder / "sentence_starts.bin", np.int64, files)
        self._documents = _Column(folder / "document_starts.bin", np.int64, files)
        self._layers: dict[str, _Column] = {}
        self._index: dict[str, dict[str, int]] = {}

    def start_document(self, sentences_before: int) -> None:
        self._documents.write([sentences_before])

    def write(self, sentences: list[Sentence]) -> None:
        """Append sentences: ids, and for each piece the labels of its word."""
        encodings = self._words.encode([s.words for s in sentences])
        pieces = np.array([len(e.ids) for e in encodings])
        words = np.array([len(s.words) for s in sentences])
        ids = np.fromiter(chain.from_iterable(e.ids for e in encodings), np.int32, pieces.sum())
        word = np.fromiter(chain.from_iterable(e.word_ids for e in encodings), np.int64, pieces.sum())
        word += np.repeat(np.cumsum(words) - words, pieces)  # index within the chunk
        sentence = np.repeat(np.arange(len(sentences)), pieces)
        start = np.diff(word, prepend=-1) != 0
        if self._eos is not None:
            ends = np.cumsum(pieces)
            ids = np.insert(ids, ends, self._eos)
            word = np.insert(word, ends, -1)  # selects the entry without label, the last one below
            sentence = np.insert(sentence, ends, np.arange(len(sentences)))
            start = np.insert(start, ends, False)
            pieces = pieces + 1
        written = self._tokens.length
        self._sentences.write(written + np.cumsum(pieces) - pieces)
        self._tokens.write(ids)
        self._word_start.write(start)
        for layer in BATCH_LAYERS:
            if layer not in self._layers:
                if all(getattr(s, layer) is None for s in sentences):
                    continue
                self._layers[layer] = _Column(
                    self._folder / f"layer_{layer}.bin", layer_dtype(layer), self._files
                )
                self._layers[layer].fill(IGNORED, written)
            self._layers[layer].write(self._labels(layer, sentences)[sentence if layer == "topic" else word])

    def _labels(self, layer: str, sentences: list[Sentence]) -> npt.NDArray[np.int64]:
        """Return label indices of each word (for ``topic``, each sentence) of a chunk, and a last one for no label."""
        index = self._index.setdefault(layer, {})
        names: Iterable[str | None]
        if layer == "topic":
            names = (s.topic for s in sentences)
        else:
            names = chain.from_iterable(getattr(s, layer) or (None,) * len(s.words) for s in sentences)
        labels = [IGNORED if n is None else index.setdefault(n, len(index)) for n in names]
        if len(index) > np.iinfo(layer_dtype(layer)).max:
            raise ValueError(
                f"layer {layer!r} has more than {len(index) - 1} different labels: is it a tag set?"
            )
        return np.array([*labels, IGNORED])

    def finish(self, num_sentences: int) -> None:
        meta = {
            "num_tokens": self._tokens.length,
            "num_sentences": num_sentences,
            "num_documents": self._documents.length,
            "names": {layer: list(index) for layer, index in self._index.items()},
            "hashes": {name: c.digest() for name, c in {"tokens": self._tokens, **self._layers}.items()},
        }
        (self._folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def encode_documents(
    documents: Iterable[Document], folder: Path, tokenizer: PreTrainedTokenizerFast, eos: bool
) -> EncodedSplit:
    """Encode documents into ``folder`` one by one: memory holds one chunk of sentences, not the corpus.

    Args:
        documents: annotated text; each piece of a word gets the word's labels.
        folder: an existing empty folder.
        tokenizer: any fast tokenizer.
        eos: whether to append the tokenizer's end-of-sentence token (otherwise its ``sep_token``) to each sentence.

    Raises:
        ValueError: if ``eos`` is set but the tokenizer has no such token, or there is no sentence.
    """
    seen = 0
    with ExitStack() as files:
        encoder = _Encoder(folder, tokenizer, eos, files)
        pending: list[Sentence] = []
        for document in documents:
            encoder.start_document(seen)
            for sentence in document:
                pending.append(sentence)
                seen += 1
                if len(pending) == _SENTENCES_PER_CHUNK:
                    encoder.write(pending)
                    pending = []
        if pending:
            encoder.write(pending)
        encoder.finish(seen)
    if not seen:
        raise ValueError("it has no sentence")
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
