"""N-gram models of a text, and how far a language model is from each of them at the positions of another text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from lmdyn.analysis.statistics.precision import at_least_float32
from lmdyn.analysis.words.ngram_counts import Ints, NgramCounts, NgramLevel

__all__ = ["NgramModels", "NgramScores", "Smoothing"]

Smoothing = Literal["raw", "backoff", "kneser_ney", "bidirectional"]
"""How the counts of n-grams become probabilities."""

Floats = NDArray[np.floating[Any]]

_EPSILON = 1e-9
"""Added to raw probabilities, and to those of the model they are compared with."""
_BACKOFF = 0.4
_NUMBERS = 1 << 22
"""Probabilities that are compared at once."""
_FALLBACK = np.array([0.0, 0.5, 1.0, 1.5])


@dataclass(frozen=True)
class NgramScores:
    """A language model beside an n-gram model, at each position; NaN where the n-gram model is not defined.

    Attributes:
        kl: D(n-gram ‖ model) in bits.
        cross_entropy: of the model with respect to the n-gram model, in bits.
        log_probability: of the word that follows, by the n-gram model, to base 2.
    """

    kl: Floats
    cross_entropy: Floats
    log_probability: Floats


@dataclass(frozen=True)
class _Children:
    """The words after the contexts of some positions, one after another."""

    rows: Ints  # position
    nodes: Ints  # number of the n-gram
    firsts: Ints  # (positions + 1,) index of the first one of each position

    def sums(self, values: ArrayLike) -> Floats:
        """Return the sum of values by position."""
        begins = self.firsts[:-1]
        weights = np.append(np.asarray(values, np.float64), 0.0)  # so that the last one may have none
        totals = np.add.reduceat(weights, begins)
        return np.where(np.diff(self.firsts) > 0, totals, 0.0)


class NgramModels:
    """The n-gram models of all orders of a text.

    ``raw``: relative frequencies after the last n − 1 words, plus 1e-9, as published; only where the contexts of all
    orders occur: after others its divergence from any model would be about 0. ``backoff``: stupid backoff, the relative
    frequency of an n-gram that occurs, else 0.4 times the score of the shorter one, and 1/N for a word that does not
    occur in a text of N; divergences are those of the normalized scores. ``kneser_ney``: interpolated modified
    Kneser-Ney smoothing; where counts of counts give no discounts, these are 0.5, 1 and 1.5. N-grams that occur only at
    the beginning of a text, which no word precedes, keep their counts. ``bidirectional``: the bigram model
    P(w) ∝ P(w | previous) · P(next | w) by relative frequencies, plus 1e-9; only where it is not 0 for all words.

    Args:
        counts: counts of the n-grams.

    Reference: Chang & Bergen 2022, section 3.2 (raw, bidirectional); Brants et al. 2007, equation 5 (backoff); Chen &
        Goodman 1999, equations 13 to 17 (Kneser-Ney).

    Example:
        >>> models = NgramModels(NgramCounts.of([[0, 1, 0, 1, 0, 0]], vocab_size=2, order=2))
        >>> logits = torch.tensor([[1.0, 2.0], [2.0, 0.0]]).log()  # after 0, and after 1
        >>> scores = models.scores([0, 1], logits, targets=[1, 0])
        >>> abs(scores[2, "raw"].kl).round(6).tolist()  # P(1 | 0) = 2/3
        [0.0, 0.0]
    """

    def __init__(self, counts: NgramCounts) -> None:
        if counts.order < 2:
            raise ValueError("expected counts of n-grams up to n = 2 or more, got counts up to n = 1")
        self.counts = counts
        self.order = counts.order
        words = counts.levels[0]
        self._occurrences = np.zeros(counts.vocab_size)
        self._occurrences[words.words] = words.counts
        self._discounts = [_discounts(level.counts) for level in counts.levels]
        self._lower_discounts = [_discounts(_adjusted(level)) for level in counts.levels[:-1]]

    # Words without a context ----------------------------------------------------------------------------------

    @cached_property
    def _kneser_ney_words(self) -> Floats:
        return self._smoothed_words(self._occurrences, self._discounts[0])

    @cached_property
    def _lower_words(self) -> Floats:
        """Kneser-Ney's lowest order, by the number of words that precede each word."""
        level = self.counts.levels[0]
        preceding = np.zeros(self.counts.vocab_size)
        preceding[level.words] = _adjusted(level)
        return self._smoothed_words(preceding, self._lower_discounts[0])

    def _smoothed_words(self, counts: Floats, discounts: Floats) -> Floats:
        less = discounts[np.minimum(counts, 3).astype(int)]
        even = less.sum() / self.counts.vocab_size
        return np.asarray((counts - less + even) / counts.sum())

    @cached_property
    def _numbers(self) -> Ints:
        """The number of each word in the first order."""
        return np.cumsum(self._occurrences > 0) - 1

    @cached_property
    def _bigram_totals(self) -> Floats:
        """How often a word follows each one."""
        level = self.counts.levels[1]
        ends = np.cumsum(level.counts, dtype=np.float64)
        return np.diff(np.append(0, ends)[level.starts])

    # Words after contexts -------------------------------------------------------------------------------------

    def scores(
        self,
        text: Int[Tensor, "time"] | ArrayLike,
        logits: Float[Tensor, "positions vocab"],
        targets: ArrayLike,
        *,
        at: ArrayLike | None = None,
        following: ArrayLike | None = None,
        smoothings: tuple[Smoothing, ...] = ("raw", "backoff", "kneser_ney"),
    ) -> dict[tuple[int, Smoothing], NgramScores]:
        """Compare a model's predictions with those of each order.

        Args:
            text: (time,) token ids.
            logits: (positions, vocabulary) the model's prediction after each position.
            targets: (positions,) the words that follow.
            at: (positions,) indices of the last word of each context; all of the text by default.
            following: (positions,) the words after the targets, for ``bidirectional``; −1 for none.
            smoothings: those wanted.

        Returns:
            For each order and smoothing (``bidirectional``: order 2) the scores, (positions,).

        Raises:
            ValueError: for predictions of another number of token ids than was counted, or of positions.
        """
        ending = self.counts.ending(text)
        ending = ending if at is None else ending[:, np.asarray(at)]
        words = np.asarray(targets, np.int64)
        size = self.counts.vocab_size
        if logits.shape != (len(words), size) or ending.shape[1] != len(words):
            raise ValueError(
                f"expected logits ({ending.shape[1]}, {size}), positions × counted token ids, and one target per "
                f"position, got logits {tuple(logits.shape)} and {len(words)} targets"
            )
        after = None if following is None else np.asarray(following, np.int64)
        found: dict[tuple[int, Smoothing], list[NgramScores]] = {}
        step = max(1, _NUMBERS // size)
        for first in range(0, len(words), step):
            part = slice(first, first + step)
            log_q = logits[part].to(at_least_float32(logits)).log_softmax(-1)
            compared = _Comparison(self, ending[:, part], words[part], log_q)
            for key, one in compared.scores(None if after is None else after[part], smoothings):
                found.setdefault(key, []).append(one)
        return {
            key: NgramScores(*map(np.concatenate, zip(*(vars(part).values() for part in parts), strict=True)))
            for key, parts in found.items()
        }

    def draw(self, order: int, texts: int, length: int, seed: int = 0) -> Ints:
        """Draw texts from the Kneser-Ney model of an order: (texts, length) token ids."""
        random = np.random.default_rng(seed)
        drawn = np.zeros((texts, length), np.int64)
        for text in drawn:
            for t in range(length):
                before = text[max(0, t - order + 1) : t]
                text[t] = self._drawn_word(order, before, random)
        return drawn

    def _drawn_word(self, order: int, before: Ints, random: np.random.Generator) -> int:
        """Draw a word from the counts of the highest order, with their probability in it, else from the next lower."""
        contexts = self.counts.ending(before)[:, -1:]
        for n in range(min(order, len(before) + 1), 1, -1):
            level = self.counts.levels[n - 1]
            nodes = _children(level.starts, contexts[n - 2]).nodes
            if not len(nodes):
                continue
            counts, less = self._discounted(n, nodes, lower=n < order)
            ends = (counts - less).cumsum()
            chosen = random.random() * counts.sum()
            if chosen < ends[-1]:
                return int(level.words[nodes[ends.searchsorted(chosen, side="right")]])
        words = self._kneser_ney_words if order == 1 else self._lower_words
        ends = words.cumsum()
        chosen = random.random() * ends[-1]
        return int(ends.searchsorted(chosen, side="right"))

    def log_probabilities(self, order: int, texts: Sequence[ArrayLike]) -> list[Floats]:
        """Return the log-probability to base 2 of each word of texts by Kneser-Ney, the first by its frequency.

        Args:
            order: up to the order of the counts.
            texts: token ids, (time,) each.
        """
        ids = [np.asarray(text, np.int64) for text in texts]
        joined = np.concatenate([np.append(text, -1) for text in ids])
        ending = self.counts.ending(joined)
        at = np.flatnonzero(joined >= 0)
        words = joined[at]
        alone = (joined[at - 1] < 0) | (order == 1)
        p = np.where(alone, self._kneser_ney_words[words], self._lower_words[words])
        for n in range(2, order + 1):
            p = self._after(n, ending[n - 2, at - 1], ending[n - 1, at], p, lower=n < order)
        return np.split(np.log2(p), np.cumsum([len(text) for text in ids])[:-1])

    def _after(self, n: int, contexts: Ints, nodes: Ints, p: Floats, lower: bool) -> Floats:
        """Interpolate the n-grams ``nodes`` that follow contexts with the probabilities ``p`` of the order before."""
        unique, inverse = np.unique(contexts, return_inverse=True)
        starts = self.counts.levels[n - 1].starts
        children = _children(starts, unique)
        share, weight = self._interpolation(n, children, lower)
        p = p * weight[inverse]
        there = nodes >= 0
        within = nodes[there] - starts[contexts[there]]
        p[there] += share[children.firsts[inverse[there]] + within]
        return p

    def _interpolation(self, n: int, children: _Children, lower: bool) -> tuple[Floats, Floats]:
        """Return the discounted share of each n-gram, and the weight of the order before, of each context."""
        counts, less = self._discounted(n, children.nodes, lower)
        totals = children.sums(counts)
        left = children.sums(less) / np.maximum(totals, 1)
        return (counts - less) / totals[children.rows], np.where(totals > 0, left, 1.0)

    def entropy(self, order: int, texts: ArrayLike) -> float:
        """Return the mean surprisal in bits of the words after the first of texts (texts, time), by Kneser-Ney."""
        found = self.log_probabilities(order, list(np.asarray(texts)))
        return -float(np.mean([text[1:] for text in found]))

    def _discounted(self, n: int, nodes: Ints, lower: bool) -> tuple[Floats, Floats]:
        """Return counts of n-grams, or of different words before them for lower orders, and their discounts."""
        level = self.counts.levels[n - 1]
        counts = (_adjusted(level, nodes) if lower else level.counts[nodes]).astype(np.float64)
        discounts = (self._lower_discounts if lower else self._discounts)[n - 1]
        return counts, discounts[np.minimum(counts, 3).astype(int)]


def _plogp(p: ArrayLike) -> Floats:
    """Return p ln p; 0 at 0."""
    shares = np.asarray(p, np.float64)
    return np.asarray(shares * np.log(np.maximum(shares, np.finfo(np.float64).tiny)))


def _taken(values: NDArray[Any], at: Ints) -> Floats:
    """Return values at indices, 0 at −1."""
    found = np.zeros(len(at))
    there = at >= 0
    found[there] = values[at[there]]
    return found


def _adjusted(level: NgramLevel, nodes: Ints | slice = slice(None)) -> NDArray[Any]:
    preceding = level.preceding[nodes]
    return np.where(preceding > 0, preceding, level.counts[nodes])


def _discounts(counts: ArrayLike) -> Floats:
    """Return the discounts of counts of 0, 1, 2, and 3 or more."""
    sizes = np.bincount(np.minimum(counts, 5), minlength=6)
    ones, twos, threes, fours = sizes[1:5].tolist()
    if not (ones and twos and threes):
        return _FALLBACK
    share = ones / (ones + 2 * twos)
    ratios = twos / ones, threes / twos, fours / threes
    found = np.array([0.0, *(k - (k + 1) * share * ratio for k, ratio in enumerate(ratios, 1))])
    return found if (found[1:] > 0).all() else _FALLBACK


class _Comparison:
    """A model's predictions at some positions beside those of n-gram models.

    Smoothed models differ from their lowest order only at words that follow the last word somewhere (``after``): sums
    over the vocabulary are those of the lowest order, times its weight, but for these words.
    """

    def __init__(self, models: NgramModels, ending: Ints, targets: Ints, log_q: Tensor) -> None:
        self.models = models
        self.ending = ending
        self.targets = targets
        self.log_q = log_q
        self.levels = models.counts.levels
        self.rows = np.arange(len(targets))
        bigrams = self.levels[1]
        self.after = self.children(2)
        self.words = bigrams.words[self.after.nodes].astype(np.int64)
        index = torch.from_numpy(self.after.rows), torch.from_numpy(self.words)
        self.log_q_after: Floats = log_q[index].cpu().double().numpy()
        found = bigrams.find(ending[0], targets)
        self.target_after = self._place(found, self.rows)

    @staticmethod
    def dense(log_q: Tensor, weights: Floats) -> Floats:
        """Return weighted sums over the vocabulary, (positions,)."""
        sums = log_q @ torch.from_numpy(weights).to(log_q)
        return np.asarray(sums.cpu().double().numpy())

    def children(self, n: int) -> _Children:
        """Return the n-grams that begin with the last n − 1 words of each position."""
        return _children(self.levels[n - 1].starts, self.ending[n - 2])

    def _place(self, bigrams: Ints, rows: Ints) -> Ints:
        """Return the places of bigrams among the words after their positions, −1 for those that do not occur."""
        contexts = np.maximum(self.ending[0][rows], 0)
        within = bigrams - self.levels[1].starts[contexts]
        return np.where(bigrams < 0, -1, self.after.firsts[rows] + within)

    def places(self, n: int, children: _Children) -> Ints:
        """Return the places of n-grams' last words among the words after each position."""
        bigrams: NDArray[Any] = children.nodes
        for level in self.levels[n - 1 : 1 : -1]:
            bigrams = level.suffixes[bigrams]
        return self._place(bigrams, children.rows)

    def scores(
        self, following: Ints | None, smoothings: tuple[Smoothing, ...]
    ) -> Iterator[tuple[tuple[int, Smoothing], NgramScores]]:
        """Yield the scores of each order and smoothing."""
        for smoothing in smoothings:
            if smoothing != "bidirectional":
                for n, one in enumerate(getattr(self, smoothing)(), 1):
                    yield (n, smoothing), one
            elif following is not None:
                yield (2, smoothing), self.bidirectional(following)

    # Relative frequencies -------------------------------------------------------------------------------------

    @cached_property
    def _log_more(self) -> Tensor:
        """The logarithms of the model's probabilities plus 1e-9, (positions, vocabulary)."""
        return self.log_q.exp().add_(_EPSILON).log_()

    @cached_property
    def _rest_more(self) -> Floats:
        """Their sum, times 1e-9."""
        return self.dense(self._log_more, np.full(self.log_q.shape[1], _EPSILON))

    def raw(self) -> Iterator[NgramScores]:
        """Yield the scores of relative frequencies, of each order."""
        levels = [(n, self.children(n)) for n in range(2, self.models.order + 1)]
        seen = np.all([np.diff(children.firsts) > 0 for _, children in levels], 0)
        p = self.models._occurrences / self.models._occurrences.sum() + _EPSILON
        entropy = -_plogp(p).sum()
        cross = -self.dense(self._log_more, p)
        yield _scores(entropy, cross, np.log(p[self.targets]), seen)
        for n, children in levels:
            level = self.levels[n - 1]
            counts = level.counts[children.nodes]
            totals = np.maximum(children.sums(counts), 1)
            target = level.find(self.ending[n - 2], self.targets)
            share = _taken(level.counts, target) / totals
            p = counts / totals[children.rows]
            words = level.words[children.nodes].astype(np.int64)
            entropy, cross = self._of_shares(children, words, p)
            yield _scores(entropy, cross, np.log(share + _EPSILON), seen)

    def _of_shares(self, children: _Children, words: Ints, p: Floats) -> tuple[Floats, Floats]:
        """Return entropy and cross-entropy of the probabilities of some words, plus 1e-9 for all."""
        others = self.models.counts.vocab_size - np.diff(children.firsts)
        entropy = children.sums(_plogp(p + _EPSILON)) + others * _plogp(_EPSILON)
        index = torch.from_numpy(children.rows), torch.from_numpy(words)
        cross = children.sums(p * self._log_more[index].cpu().numpy())
        return -entropy, -(cross + self._rest_more)

    def bidirectional(self, following: Ints) -> NgramScores:
        """Return the scores of P(w | previous) · P(next | w), normalized."""
        level, after = self.levels[1], self.after
        contexts = self.models._numbers[self.words]
        pairs = level.find(contexts, following[after.rows])
        joint = _taken(level.counts, pairs) * level.counts[after.nodes]
        joint /= np.maximum(self.models._bigram_totals[contexts], 1)
        totals = after.sums(joint)
        p = joint / np.where(totals > 0, totals, 1)[after.rows]
        share = _taken(p, self.target_after)
        entropy, cross = self._of_shares(after, self.words, p)
        return _scores(entropy, cross, np.log(share + _EPSILON), totals > 0)

    # Smoothed models ------------------------------------------------------------------------------------------

    def backoff(self) -> Iterator[NgramScores]:
        """Yield the scores of stupid backoff, of each order."""
        base = np.maximum(self.models._occurrences, 1) / self.models._occurrences.sum()
        smoothed = _Smoothed.of(self, base)
        yield smoothed.scores()
        for n in range(2, self.models.order + 1):
            children = self.children(n)
            counts = self.levels[n - 1].counts[children.nodes]
            totals = children.sums(counts)
            p = _BACKOFF * smoothed.after
            p[self.places(n, children)] = counts / totals[children.rows]
            smoothed = replace(smoothed, after=p, weight=_BACKOFF * smoothed.weight)
            yield smoothed.scores()

    def kneser_ney(self) -> Iterator[NgramScores]:
        """Yield the scores of modified Kneser-Ney smoothing, of each order."""
        yield _Smoothed.of(self, self.models._kneser_ney_words).scores()
        lower = _Smoothed.of(self, self.models._lower_words)
        for n in range(2, self.models.order + 1):
            children = self.children(n)
            places = self.places(n, children)
            yield self._interpolated(lower, n, children, places, lower=False).scores()
            if n < self.models.order:
                lower = self._interpolated(lower, n, children, places, lower=True)

    def _interpolated(
        self, of: "_Smoothed", n: int, children: _Children, places: Ints, lower: bool
    ) -> "_Smoothed":
        share, weight = self.models._interpolation(n, children, lower)
        p = of.after * weight[self.after.rows]
        p[places] += share
        return replace(of, after=p, weight=of.weight * weight)


def _children(starts: Ints, contexts: Ints) -> _Children:
    """Return the n-grams that begin with each context; none for −1."""
    known = contexts >= 0
    context = np.where(known, contexts, 0)
    begins = starts[context]
    sizes = np.where(known, starts[context + 1] - begins, 0)
    firsts = np.concatenate([[0], sizes.cumsum()])
    rows = np.repeat(np.arange(len(contexts)), sizes)
    within = np.arange(firsts[-1]) - firsts[rows]
    return _Children(rows, begins[rows] + within, firsts)


@dataclass(frozen=True)
class _Smoothed:
    """A smoothed model at the positions of a comparison; its scores need not sum to 1."""

    at: _Comparison
    base: Floats  # (vocabulary,) of the lowest order
    base_cross: Floats  # (positions,) sum of `base` times the model's log-probabilities
    weight: Floats  # (positions,) of the lowest order
    after: Floats  # of each word that follows the last one somewhere

    @classmethod
    def of(cls, at: _Comparison, base: Floats) -> "_Smoothed":
        """Return the model without a context."""
        cross = at.dense(at.log_q, base)
        weight = np.ones(len(at.rows))
        return cls(at, base, cross, weight, base[at.words])

    def scores(self) -> NgramScores:
        """Compare it with the language model."""
        at = self.at
        base = self.base
        weight = self.weight
        p = self.after
        of_base = base[at.words]
        rest = base.sum() - at.after.sums(of_base)  # of words that nowhere follow the last one
        total = at.after.sums(p) + weight * rest
        entropy = -at.after.sums(_plogp(p))
        elsewhere = _plogp(base).sum() - at.after.sums(_plogp(of_base))
        entropy -= weight * elsewhere + _plogp(weight) * rest
        cross = at.after.sums(p * at.log_q_after)
        cross += weight * (self.base_cross - at.after.sums(of_base * at.log_q_after))
        target = np.where(
            at.target_after < 0,
            weight * base[at.targets],
            _taken(p, at.target_after),
        )
        normalized = np.log(total) + entropy / total
        return _scores(normalized, -cross / total, np.log(target))


def _scores(
    entropy: Floats | float, cross_entropy: Floats, log_probability: Floats, seen: ArrayLike = True
) -> NgramScores:
    """Convert to bits; NaN where not seen."""
    bits = (
        np.where(seen, x / np.log(2), np.nan)
        for x in (cross_entropy - entropy, cross_entropy, log_probability)
    )
    return NgramScores(*bits)
