"""Counts of all n-grams of a text up to an order, as a tree in memory-mapped files."""

import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike, NDArray

__all__ = ["NgramCounts", "NgramLevel"]

Ints = NDArray[np.integer[Any]]

_BETWEEN = -1
"""Token between texts: no n-gram contains it."""
_SORTED = 1 << 22
"""Positions that are sorted at once, about 50 bytes each."""
_FIELDS = {
    "words": np.int32,
    "counts": np.int32,
    "suffixes": np.int32,
    "preceding": np.int32,
    "starts": np.int64,
}
_CONTENT = "counts.json"


@dataclass(frozen=True)
class NgramLevel:
    """The n-grams of one order, sorted: those that differ in the last word only are together, in the order of the word.

    Attributes:
        words: (n-grams,) last word of each.
        counts: (n-grams,) occurrences.
        suffixes: (n-grams,) number of the (n − 1)-gram without its first word.
        preceding: (n-grams,) number of different words before it; empty for the highest order.
        starts: (contexts + 1,) number of the first n-gram that begins with each (n − 1)-gram.
    """

    words: Ints
    counts: Ints
    suffixes: Ints
    preceding: Ints
    starts: Ints

    def find(self, contexts: ArrayLike, words: ArrayLike) -> Ints:
        """Return the numbers of n-grams, −1 for those that do not occur.

        Args:
            contexts: (n,) numbers of their first n − 1 words as an (n − 1)-gram, −1 if that does not occur.
            words: (n,) their last words.
        """
        before = np.asarray(contexts, np.int64)
        word = np.asarray(words)
        known = before >= 0
        context = np.where(known, before, 0)
        low = self.starts[context]
        end = np.where(known, self.starts[context + 1], low)
        high = end
        while (open_ := low < high).any():
            middle = (low + high) // 2
            found = self.words[np.where(open_, middle, 0)]
            low = np.where(open_ & (found < word), middle + 1, low)
            high = np.where(open_ & (found >= word), middle, high)
        there = low < end
        there &= self.words[np.where(there, low, 0)] == word
        return np.where(there, low, -1)


@dataclass(frozen=True)
class NgramCounts:
    """Counts of the n-grams of a text.

    Attributes:
        levels: those of each order, from 1.
        vocab_size: number of token ids.

    Reference: Heafield 2011, "KenLM: faster and smaller language model queries" (trees of n-grams).

    Example:
        >>> counts = NgramCounts.of([[0, 1, 0, 1, 2]], vocab_size=3, order=2)
        >>> counts.levels[1].counts.tolist()  # 0 1, 1 0, 1 2
        [2, 1, 1]
        >>> counts.ending([0, 1, 0, 2]).tolist()  # the words, and the bigrams that end there
        [[0, 1, 0, 2], [-1, 0, 1, -1]]
    """

    levels: tuple[NgramLevel, ...]
    vocab_size: int

    @property
    def order(self) -> int:
        """The highest order."""
        return len(self.levels)

    @classmethod
    def of(
        cls, texts: Iterable[ArrayLike], vocab_size: int, order: int = 5, folder: str | Path | None = None
    ) -> "NgramCounts":
        """Count the n-grams within texts.

        Args:
            texts: token ids of each text; no n-gram continues in the next one.
            vocab_size: number of token ids.
            order: highest order, at least 1.
            folder: existing folder for the files, which are memory-mapped; None for arrays in memory.

        Raises:
            ValueError: for texts without a token or with ids that are not in the vocabulary.
        """
        if folder is None:
            with tempfile.TemporaryDirectory() as temporary:
                return cls.of(texts, vocab_size, order, temporary)._in_memory()
        place = Path(folder)
        tokens = _written(texts, vocab_size, place / "text")
        nodes, counts = _count_words(place, tokens, vocab_size)
        for n in range(2, order + 1):
            nodes, counts = _count(place, n, tokens, nodes, counts, vocab_size)
        (place / f"{order}_preceding").touch()
        (place / "text").unlink()
        (place / _CONTENT).write_text(json.dumps({"order": order, "vocab_size": vocab_size}))
        return cls.read(place)

    @classmethod
    def read(cls, folder: str | Path) -> "NgramCounts":
        """Map the files of a folder.

        Raises:
            FileNotFoundError: if it has no counts.
        """
        place = Path(folder)
        content = json.loads((place / _CONTENT).read_text())
        levels = (
            NgramLevel(*(_mapped(place / f"{n}_{name}", dtype) for name, dtype in _FIELDS.items()))
            for n in range(1, content["order"] + 1)
        )
        return cls(tuple(levels), content["vocab_size"])

    def _in_memory(self) -> "NgramCounts":
        levels = (NgramLevel(*map(np.array, vars(level).values())) for level in self.levels)
        return NgramCounts(tuple(levels), self.vocab_size)

    def ending(self, text: ArrayLike) -> Ints:
        """Return the number of the n-gram of each order that ends at each position of a text: (order, time).

        It is −1 for n-grams that do not occur, and where fewer than n words are there.
        """
        ids = np.asarray(text, np.int64)
        found = np.full((self.order, len(ids)), -1)
        nodes: Ints = np.zeros(len(ids), np.int64)  # of the n-gram that begins at each position
        for n, level in enumerate(self.levels[: len(ids)]):
            nodes = level.find(nodes[: len(ids) - n], ids[n:])
            found[n, n:] = nodes
        return found


def _mapped(path: Path, dtype: DTypeLike, size: int | None = None) -> NDArray[Any]:
    """Map a file, or a new one of a size."""
    if size == 0:
        path.touch()
    if size == 0 or (size is None and not path.stat().st_size):  # an empty file cannot be mapped
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, "r" if size is None else "w+", shape=size)


def _written(texts: Iterable[ArrayLike], vocab_size: int, path: Path) -> Ints:
    """Write the texts into one file, with a token between them that no n-gram contains."""
    with path.open("wb") as file:
        for text in texts:
            ids = np.asarray(text)
            if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
                raise ValueError(
                    f"expected token ids from 0 to {vocab_size - 1}, got {ids.min()} to {ids.max()}"
                )
            file.write(np.append(ids, _BETWEEN).astype(np.int32).tobytes())
    tokens = _mapped(path, np.int32)
    if not (tokens != _BETWEEN).any():
        raise ValueError("expected texts with at least one token, got none")
    return tokens


def _count_words(place: Path, tokens: Ints, vocab_size: int) -> tuple[Ints, Ints]:
    """Write the words, and return the number of the one at each position, −1 between texts, and their occurrences."""
    counts = np.zeros(vocab_size + 1, np.int64)
    for part in np.split(tokens, range(_SORTED, len(tokens), _SORTED)):
        counts += np.bincount(part + 1, minlength=vocab_size + 1)
    counts = counts[1:]
    words = np.flatnonzero(counts)
    occurrences = counts[words]
    _write(
        place,
        1,
        words=words,
        counts=occurrences,
        suffixes=np.zeros_like(words),
        starts=[0, len(words)],
    )
    numbers = np.full(vocab_size + 1, -1, np.int32)
    numbers[words] = np.arange(len(words))
    return numbers[tokens], occurrences  # the last number is that of the token between texts, −1


def _count(
    place: Path,
    n: int,
    tokens: Ints,
    nodes: Ints,
    counts: Ints,
    vocab_size: int,
) -> tuple[Ints, Ints]:
    """Write the n-grams, and return the number of the one that begins at each position, −1 for none, and their counts.

    Args:
        place: folder.
        n: the order, from 2.
        tokens: (positions,) the texts.
        nodes: (positions,) number of the (n − 1)-gram that begins at each position, −1 for none.
        counts: occurrences of the (n − 1)-grams.
        vocab_size: number of token ids.
    """
    longer = np.full(len(tokens), -1, np.int32)
    _write(place, n, starts=[0])
    done = 0
    for first, last in _portions(counts):
        begins = nodes[: len(nodes) - n + 1]
        at = np.flatnonzero((begins >= first) & (begins < last))
        ends = tokens[at + n - 1]
        at, ends = at[ends != _BETWEEN], ends[ends != _BETWEEN]
        # the key and the place of each in one number: sorting numbers is several times faster than their order
        bits = len(at).bit_length()
        assert ((last - first) * vocab_size).bit_length() + bits < 64
        keys = (begins[at].astype(np.int64) - first) * vocab_size + ends
        keys = np.sort(keys << bits | np.arange(len(at)))
        order = keys & (1 << bits) - 1
        keys >>= bits
        new = np.diff(keys, prepend=-1) > 0
        longer[at[order]] = np.cumsum(new) - 1 + done
        occurrences = np.diff(np.append(np.flatnonzero(new), len(keys)))
        keys = keys[new]
        _write(place, n, words=keys % vocab_size, counts=occurrences)
        sizes = np.bincount(keys // vocab_size, minlength=last - first)
        _write(place, n, starts=done + sizes.cumsum())
        done += len(keys)
    suffixes = _mapped(place / f"{n}_suffixes", np.int32, done)
    preceding = np.zeros(len(counts), np.int32)
    for begin in range(0, len(longer), _SORTED):
        part = longer[begin : begin + _SORTED]
        there = np.flatnonzero(part >= 0)
        suffixes[part[there]] = nodes[there + begin + 1]
    one = torch.ones((), dtype=torch.int32)
    for part in torch.from_numpy(suffixes).split(_SORTED):
        torch.from_numpy(preceding).index_add_(0, part, one.expand(len(part)))
    _write(place, n - 1, preceding=preceding)
    return longer, _mapped(place / f"{n}_counts", np.int32)


def _portions(counts: Ints) -> Iterator[tuple[int, int]]:
    """Divide contexts so that the text has few positions of each portion."""
    first = 0
    while first < len(counts):
        ends = np.cumsum(counts[first : first + _SORTED], dtype=np.int64)
        last = first + max(1, int(ends.searchsorted(_SORTED, side="right")))
        yield first, last
        first = last


def _write(place: Path, n: int, **fields: ArrayLike) -> None:
    """Append to the files of an order."""
    for name, values in fields.items():
        with (place / f"{n}_{name}").open("ab") as file:
            file.write(np.asarray(values, _FIELDS[name]).tobytes())
