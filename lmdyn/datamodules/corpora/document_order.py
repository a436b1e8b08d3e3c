"""The order of the training text: its documents, permuted once by a seed."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdyn.datamodules.corpora.encoding import EncodedSplit, build_folder, layer_dtype
from lmdyn.datamodules.corpora.tokenization import digest

__all__ = ["ReorderedSplit", "reordered"]

_SOURCE = "train"


class ReorderedSplit(EncodedSplit):
    """An encoded training text whose documents are in another order; labels move with their tokens.

    This also holds for shuffled labels: each token keeps the label that it has in the text's own order, so that two
    orders differ in nothing else.
    """

    def shuffled(self, layer: str, seed: int) -> np.memmap[Any, Any]:
        """Return the shuffled labels of the text's own order, in this order; see :meth:`EncodedSplit.shuffled`."""
        source = EncodedSplit(self.folder.parent / _SOURCE)

        def write(path: Path) -> None:
            _copy(source.shuffled(layer, seed), _pieces(source, self.order), path)

        return self.written_once(f"shuffled_{layer}-{seed}", layer_dtype(layer), write)

    @property
    def order(self) -> npt.NDArray[np.int64]:
        """Index of the document, in the text's own order, at each place, (num_documents,)."""
        return _permutation(self.num_documents, self.meta["order_seed"])


def reordered(source: EncodedSplit, order_seed: int) -> ReorderedSplit:
    """Return a split with its documents permuted by a seed, stored next to the split's own folder; written once.

    The permutation depends only on the seed and the number of documents. Memory holds one number for each document and
    sentence, not the text.

    Args:
        source: the training split in the text's own order.
        order_seed: seed of the permutation.

    Raises:
        ValueError: if the text has only one document, and thus no other order.
    """
    if source.num_documents < 2:
        raise ValueError(
            f"order_seed {order_seed} permutes the documents of the training text, but it has {source.num_documents}: "
            "omit order_seed, or use a text that is divided into documents"
        )

    def build(folder: Path) -> None:
        order = _permutation(source.num_documents, order_seed)
        pieces = _pieces(source, order)
        _copy(source.tokens, pieces, folder / "tokens.bin")
        _copy(source.word_start, pieces, folder / "word_start.bin")
        for layer in source.names:
            _copy(source.layer(layer), pieces, folder / f"layer_{layer}.bin")
        sentences = _ranges(source.document_starts, source.num_sentences, order)  # of each document
        tokens = np.diff(np.append(source.sentence_starts, source.num_tokens))  # of each sentence
        counts = {
            "document_starts": np.array([end - start for start, end in sentences]),
            "sentence_starts": np.concatenate([tokens[start:end] for start, end in sentences]),
        }
        for name, lengths in counts.items():
            (folder / f"{name}.bin").write_bytes((np.cumsum(lengths) - lengths).astype(np.int64).data)
        layers: dict[str, list[str]] = {"tokens": [], **{layer: [layer] for layer in source.names}}
        hashes = {name: digest([source.fingerprint(of), order_seed]) for name, of in layers.items()}
        meta = source.meta | {"hashes": hashes, "order_seed": order_seed}
        (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")

    return ReorderedSplit(build_folder(source.folder.parent / f"{_SOURCE}_order-{order_seed}", build))


def _permutation(documents: int, order_seed: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(order_seed).permutation(documents)


def _ranges(starts: npt.NDArray[np.int64], total: int, order: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return where each document begins and ends in the text's own order, in the new order."""
    there = list(pairwise([*starts.tolist(), total]))
    return [there[document] for document in order]


def _pieces(source: EncodedSplit, order: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the range of tokens of each document, in the new order."""
    first_sentences = np.append(source.sentence_starts, source.num_tokens)[source.document_starts]
    return _ranges(first_sentences, source.num_tokens, order)


def _copy(array: npt.NDArray[Any], pieces: Sequence[tuple[int, int]], path: Path) -> None:
    with path.open("wb") as file:
        for start, end in pieces:
            file.write(np.ascontiguousarray(array[start:end]).data)
