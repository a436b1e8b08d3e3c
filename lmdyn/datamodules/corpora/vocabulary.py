"""Vocabularies of word pieces, trained on counted words: a function of the counts and the size, in any process.

The trainers of ``tokenizers`` are not: they number pieces, break ties and add floating-point numbers in the order of
a hash map, which differs in every process. These train the same models, with ties broken by spelling.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.special import digamma

__all__ = ["TRAINING_VERSION", "train_unigram", "train_wordpieces"]

TRAINING_VERSION = 2
"""Raised whenever the same counts and size give other pieces: part of every cache key. 1 was ``tokenizers``' own."""

_LONGEST = 16  # characters of a unigram piece, as in SentencePiece
_SHRINK = 0.75  # fraction of the pieces that a pruning keeps
_MOST_SEEDS = 1_000_000
_RARE = 0.5  # expected occurrences below which a piece is dropped
_UNKNOWN_PENALTY = 10.0  # nats below the rarest piece
_DIGITS = 9  # of scores and losses: numbers that differ by rounding errors tie

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


def train_wordpieces(counts: Mapping[str, int], size: int) -> list[str]:
    """Byte-pair encoding with ``##`` before what continues a word: the vocabulary of a WordPiece model.

    The most frequent pair of adjacent pieces is merged, among equals the first in alphabetical order, until there are
    ``size`` pieces or no pair is left.

    Args:
        counts: occurrences of each word.
        size: number of pieces; the letters are all kept, also where they are more.

    Returns:
        The letters in alphabetical order, the letters that continue a word, and the merged pieces in the order of
        merging.

    Reference: Sennrich et al. 2016, algorithm 1.

    Example:
        >>> train_wordpieces({"aab": 2, "ab": 1}, 6)
        ['a', 'b', '##a', '##b', '##ab', 'aab']
    """
    spellings = sorted(counts)
    weights = [counts[word] for word in spellings]
    words = [[word[0], *("##" + letter for letter in word[1:])] for word in spellings]
    pieces = dict.fromkeys(sorted(set("".join(spellings))))
    pieces.update(dict.fromkeys(sorted({piece for word in words for piece in word[1:]})))
    totals: Counter[tuple[str, str]] = Counter()
    places: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for i, word in enumerate(words):
        for pair in pairwise(word):
            totals[pair] += weights[i]
            places[pair].add(i)
    queue = [(-total, pair) for pair, total in totals.items()]
    heapify(queue)
    while queue and len(pieces) < size:
        negative, pair = heappop(queue)
        if totals[pair] != -negative:  # it has lost occurrences since (one that gains is queued again)
            if totals[pair] > 0:
                heappush(queue, (-totals[pair], pair))
            continue
        merged = pair[0] + pair[1].removeprefix("##")
        pieces[merged] = None
        gained = set()
        for i in places.pop(pair, ()):
            before, after = words[i], _merge(words[i], pair, merged)
            for old in pairwise(before):
                totals[old] -= weights[i]
            for new in pairwise(after):
                totals[new] += weights[i]
                if merged in new:
                    places[new].add(i)
                    gained.add(new)
            words[i] = after
        for new in gained:
            heappush(queue, (-totals[new], new))
    return list(pieces)


def _merge(word: list[str], pair: tuple[str, str], merged: str) -> list[str]:
    """The word with each occurrence of the pair, from the left, in one piece."""
    result = []
    i = 0
    while i < len(word):
        if word[i] == pair[0] and i + 1 < len(word) and word[i + 1] == pair[1]:
            result.append(merged)
            i += 2
        else:
            result.append(word[i])
            i += 1
    return result


def train_unigram(counts: Mapping[str, int], size: int) -> list[tuple[str, float]]:
    """Pieces of a unigram model and their log-probabilities, by expectation maximization and pruning.

    The first pieces are all letters, and all stretches of 2 to 16 letters that occur more often than any continuation
    of theirs. Two iterations of EM (digamma in place of the logarithm is a sparse prior) take turns with a pruning to
    three quarters, by the likelihood lost without a piece, until at most 1.1 × ``size`` are left. As in SentencePiece
    and ``tokenizers``, the first stretches are counted once in each distinct word.

    Args:
        counts: occurrences of each word.
        size: number of pieces at the most.

    Returns:
        (piece, natural logarithm of its probability), by falling probability, ties in alphabetical order. All letters
        are among them.

    Raises:
        ValueError: no word, or more letters than ``size``.

    Reference: Kudo 2018, section 3.2.

    Example:
        >>> words = {"low": 5, "lower": 5, "lowest": 2, "newer": 5, "newest": 3}
        >>> [piece for piece, _ in train_unigram(words, 12)][:4]
        ['r', 'newe', 'lowe', 'low']
    """
    words = sorted(counts)
    text = "".join(words)
    letters = len(set(text))
    if not 0 < letters <= size:
        raise ValueError(
            f"the text has {letters} different characters, expected 1 to {size}: raise vocab_size"
        )
    weights = np.array([counts[word] for word in words], np.float64)
    length = np.array([len(word) for word in words])
    start = np.cumsum(length) - length
    seeds = _Seeds(words, weights)
    spelling = [text[i : i + n] for i, n in zip(seeds.start, seeds.length, strict=True)]
    # the candidates are held in the order of their worth: letters first
    order = sorted(range(len(spelling)), key=lambda i: (i >= letters, -seeds.mass[i], spelling[i]))
    alive = np.array(order[:_MOST_SEEDS])
    scores = _scores(len(spelling), letters, alive, np.log(seeds.mass[alive] / seeds.mass[alive].sum()))
    wanted = size * 11 // 10
    while True:
        lattices = _Lattices(seeds.table, start, length)
        for _ in range(2):
            expected = lattices.expected(scores, weights)
            alive = alive[expected[alive] >= _RARE]
            rate = digamma(expected[alive]) - digamma(expected[alive].sum())
            scores = _scores(len(spelling), letters, alive, rate)
        if len(alive) <= wanted:
            break
        alive = _prune(seeds, lattices, scores, weights, alive)[: max(wanted, int(len(alive) * _SHRINK))]
        scores = _scores(len(spelling), letters, alive, scores[alive])
        seeds.forget(scores)
    kept = [*range(letters), *alive[alive >= letters][: size - letters]]
    lowest = scores[alive].min()  # also of a letter that is never a piece of its own
    result = [(spelling[i], round(float(max(scores[i], lowest)), _DIGITS)) for i in kept]
    return sorted(result, key=lambda piece: (-piece[1], piece[0]))


def _scores(pieces: int, letters: int, alive: _Ints, values: _Floats) -> _Floats:
    """Score of each piece: −∞ where it is gone, but letters stay, as rare as an unknown one."""
    scores = np.full(pieces, -np.inf)
    scores[:letters] = values.min() - _UNKNOWN_PENALTY
    scores[alive] = values
    return scores


class _Seeds:
    """The stretches of text that may become pieces; the first are the letters.

    Attributes:
        start: position of an occurrence of each in the joined words.
        length: number of characters.
        mass: occurrences of a letter in the text; of longer ones the occurrences in distinct words, times length.
        table: (characters of the joined words, 16): which one begins there and has 1 … 16 characters; −1 for none.
    """

    def __init__(self, words: list[str], weights: _Floats) -> None:
        window = _LONGEST + 1
        rests = [word[i : i + window] for word in words for i in range(len(word))]
        # the text from each character to the end of its word, padded with zeros, sorted: a suffix array
        suffixes = np.array(rests, dtype=f"U{window}").view(np.uint32).reshape(-1, window)
        order = np.lexsort(suffixes.T[::-1])
        differs = np.diff(suffixes[order].astype(np.int64), axis=0) != 0
        common = np.where(differs.any(1), differs.argmax(1), window)  # characters shared with the one before
        of_word = np.repeat(weights, [len(word) for word in words])[order]
        self.table = np.full((len(order), _LONGEST), -1, np.int32)
        start, mass, lengths = [], [], []
        pieces = 0
        for n in range(1, _LONGEST + 1):
            group = np.cumsum(np.concatenate(([0], common < n)))
            # longer ones end where their occurrences go on differently
            found = np.arange(group[-1] + 1) if n == 1 else np.unique(group[1:][common == n])
            number = np.full(group[-1] + 1, -1)
            number[found] = np.arange(pieces, pieces + len(found))
            self.table[order, n - 1] = number[group]
            first = np.flatnonzero(np.diff(group, prepend=-1))
            start.append(order[first[found]])
            mass.append(np.bincount(group, of_word if n == 1 else None)[found] * float(n))
            lengths.append(np.full(len(found), n))
            pieces += len(found)
        self.start, self.mass, self.length = map(np.concatenate, (start, mass, lengths))

    def forget(self, scores: _Floats) -> None:
        """Takes the pieces of score −∞ out of the table."""
        gone = np.append(np.isneginf(scores), False)  # the last is looked up by −1
        self.table[gone[self.table]] = -1


class _Lattices:
    """All segmentations of many strings at once: nodes between characters, an edge for each piece that fits.

    A string of n characters has n + 1 nodes, numbered on from those of the string before.

    Args:
        table: see :class:`_Seeds`.
        start: position of each string in the joined words.
        length: its number of characters.
        whole: whether a piece may be the whole string.
    """

    def __init__(self, table: npt.NDArray[np.int32], start: _Ints, length: _Ints, whole: bool = True) -> None:
        owner = np.repeat(np.arange(len(length)), length)
        index = np.arange(len(owner)) - (np.cumsum(length) - length)[owner]
        after = (length[owner] - index)[:, None] - np.arange(
            1, _LONGEST + 1
        )  # characters left after the piece
        fits = table[start[owner] + index]
        possible = (fits >= 0) & (after >= 0) & (whole | (after > 0) | (index > 0)[:, None])
        character, extra = np.nonzero(possible)
        self.piece = fits[possible].astype(np.int64)
        self.string = owner[character]
        self.source = character + self.string
        self.target = self.source + extra + 1
        self.ends = np.cumsum(length + 1) - 1
        self.is_start = np.zeros(self.ends[-1] + 1, bool)
        self.is_start[self.ends - length] = True
        self._forward = _levels(self.target, index[character] + extra + 1)
        self._backward = _levels(self.source, length[self.string] - index[character])

    def expected(self, scores: _Floats, weights: _Floats) -> _Floats:
        """Expected occurrences of each piece, over all segmentations of all strings, which occur ``weights`` times."""
        edge = scores[self.piece]
        forward, backward = np.zeros(len(self.is_start)), np.zeros(len(self.is_start))
        for levels, total, other in (
            (self._forward, forward, self.source),
            (self._backward, backward, self.target),
        ):
            for nodes, edges, group, first in levels:
                value = total[other[edges]] + edge[edges]
                top = np.maximum.reduceat(value, first)
                total[nodes] = top + np.log(np.add.reduceat(np.exp(value - top[group]), first))
        log_share = forward[self.source] + edge + backward[self.target] - forward[self.ends[self.string]]
        occurrences = np.exp(log_share) * weights[self.string]
        return np.bincount(self.piece, occurrences, len(scores)).astype(np.float64)

    def best(self, scores: _Floats) -> tuple[_Floats, _Ints]:
        """Score of the best segmentation of each string, and the edges of all of these."""
        edge = scores[self.piece]
        total = np.zeros(len(self.is_start))
        entered = np.zeros(len(total), np.int64)
        for nodes, edges, group, first in self._forward:
            value = np.round(total[self.source[edges]] + edge[edges], _DIGITS)
            total[nodes] = np.maximum.reduceat(value, first)
            position = np.where(value == total[nodes][group], np.arange(len(value)), len(value))
            entered[nodes] = edges[np.minimum.reduceat(position, first)]  # the first of equals: the longest
        used = []
        nodes = self.ends
        while len(nodes):
            used.append(entered[nodes])
            nodes = self.source[used[-1]]
            nodes = nodes[~self.is_start[nodes]]
        return total[self.ends], np.concatenate(used)


def _levels(node: _Ints, level: _Ints) -> list[tuple[_Ints, _Ints, _Ints, _Ints]]:
    """The edges at each node, level by level, in the order of propagation.

    Returns:
        For each level its nodes; its edges, node by node; the index of each edge's node among the nodes; that of each
        node's first edge among the edges.
    """
    order = np.lexsort((np.arange(len(node)), node, level))
    result = []
    for begin, end in pairwise(np.flatnonzero(np.diff(level[order], prepend=-1, append=-1))):
        edges = order[begin:end]
        change = np.diff(node[edges], prepend=-1) != 0
        result.append((node[edges[change]], edges, np.cumsum(change) - 1, np.flatnonzero(change)))
    return result


def _prune(seeds: _Seeds, lattices: _Lattices, scores: _Floats, weights: _Floats, alive: _Ints) -> _Ints:
    """The pieces in the order of their worth: letters, then by the loss of likelihood without the piece."""
    used = lattices.best(scores)[1]
    occurrences = np.bincount(lattices.piece[used], weights[lattices.string[used]], len(scores))
    total = occurrences.sum()
    is_letter = seeds.length[alive] == 1
    long = alive[~is_letter & (occurrences[alive] > 0)]
    # without the piece, its letters would be written as their best other segmentation
    parts = _Lattices(seeds.table, seeds.start[long], seeds.length[long], whole=False)
    edges = parts.best(scores)[1]
    string = parts.string[edges]
    own = occurrences[long]
    n_parts = np.bincount(string, minlength=len(long))
    log_parts = np.bincount(string, np.log(occurrences[parts.piece[edges]] + own[string]), len(long))
    log_parts -= n_parts * np.log(
        total + own * len(alive)
    )  # as tokenizers; SentencePiece adds own * (n_parts - 1)
    loss = np.round(own / weights.sum() * (np.log(own / total) - log_parts), _DIGITS)
    return np.concatenate((alive[is_letter], long[np.lexsort((long, -loss))]))
