"""N-gram models against their published formulas, one probability at a time."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from lmdyn.analysis.words import ngram_models
from lmdyn.analysis.words.extrema import Extremum, extremum, extremum_interval, extremum_order
from lmdyn.analysis.words.ngram_counts import NgramCounts
from lmdyn.analysis.words.ngram_models import NgramModels

WORDS, ORDER = 7, 4  # the last word does not occur


class ByHand:
    """The models as printed, by dictionaries."""

    def __init__(self, texts):
        self.counts = {
            n: Counter(tuple(t[i : i + n]) for t in texts for i in range(len(t) - n + 1))
            for n in range(1, ORDER + 1)
        }
        self.lower = {}
        for n in range(1, ORDER):
            before = Counter(longer[1:] for longer in self.counts[n + 1])
            self.lower[n] = {name: before[name] or count for name, count in self.counts[n].items()}
        self.total = sum(self.counts[1].values())

    def after(self, table, n, context):
        if len(context) < n - 1:
            return {}
        context = tuple(context[len(context) - n + 1 :])
        return {name[-1]: count for name, count in table.items() if name[:-1] == context}

    def raw(self, n, context, word):
        after = self.after(self.counts[n], n, context)
        return after.get(word, 0) / sum(after.values()) if after else math.nan

    def backoff(self, n, context, word):
        if n == 1:
            return max(self.counts[1][word,], 1) / self.total
        after = self.after(self.counts[n], n, context)
        return (
            after[word] / sum(after.values()) if word in after else 0.4 * self.backoff(n - 1, context, word)
        )

    def kneser_ney(self, n, context, word, lower=False):
        if n == 0:
            return 1 / WORDS
        table = self.lower[n] if lower else self.counts[n]
        after = self.after(table, n, context)
        shorter = self.kneser_ney(n - 1, context, word, lower=True)
        if not after:
            return shorter
        n1, n2, n3, n4 = (sum(count == k for count in table.values()) for k in (1, 2, 3, 4))
        y = n1 / (n1 + 2 * n2) if n1 else 0
        d = (
            [0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
            if n1 and n2 and n3
            else [0] * 4
        )
        if not all(0 < d[k] <= k for k in (1, 2, 3)):
            d = [0, 0.5, 1, 1.5]
        count = after.get(word, 0)
        left = sum(d[min(k, 3)] for k in after.values())
        return (count - d[min(count, 3)] + left * shorter) / sum(after.values())


def drawn(random):
    text = [int(random.integers(WORDS - 1))]
    while random.random() < 0.93:
        text.append(int((text[-1] * 2 + random.choice([0, 1, 3], p=[0.7, 0.2, 0.1])) % (WORDS - 1)))
    return text


@pytest.fixture(scope="module")
def language():
    random = np.random.default_rng(1)
    texts = [drawn(random) for _ in range(60)]
    return (
        ByHand(texts),
        NgramModels(NgramCounts.of(texts, WORDS, ORDER)),
        (drawn(random) + drawn(random))[:30],
    )


@pytest.mark.parametrize("at_once", [1 << 22, 40], ids=["at once", "in parts"])
def test_scores_are_those_by_hand(language, monkeypatch, at_once):
    monkeypatch.setattr(ngram_models, "_NUMBERS", at_once)
    hand, models, text = language
    text = [*text, WORDS - 1, 2]
    targets = [*text[1:], 0]
    logits = torch.randn(len(text), WORDS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = models.scores(text, logits, targets)
    model = logits.softmax(-1).numpy()
    every = range(len(text))
    seen = [not any(math.isnan(hand.raw(n, text[: t + 1], 0)) for n in range(1, ORDER + 1)) for t in every]
    assert 0 < sum(seen) < len(text)
    for (n, smoothing), scores in found.items():
        p = np.array([[getattr(hand, smoothing)(n, text[: t + 1], w) for w in range(WORDS)] for t in every])
        q, word = model, p[every, targets]
        if smoothing == "kneser_ney":
            np.testing.assert_allclose(p.sum(1), 1, rtol=1e-12)
        elif smoothing == "backoff":
            p /= p.sum(1, keepdims=True)
        else:
            p, q, word = (
                np.where(np.array(seen)[:, None], p, np.nan) + 1e-9,
                q + 1e-9,
                np.where(seen, word, np.nan) + 1e-9,
            )
        np.testing.assert_allclose(scores.kl, (p * np.log2(p / q)).sum(1), atol=1e-12)
        np.testing.assert_allclose(scores.cross_entropy, -(p * np.log2(q)).sum(1), atol=1e-12)
        np.testing.assert_allclose(scores.log_probability, np.log2(word), atol=1e-12)


def test_log_probabilities_of_texts_are_those_by_hand(language):
    hand, models, text = language
    texts = [[*text, WORDS - 1, 2, text[0]], text[3:5], [WORDS - 1], text[7:16]]
    for order in range(1, ORDER + 1):
        for found, words in zip(models.log_probabilities(order, texts), texts, strict=True):
            expected = [hand.kneser_ney(order if t else 1, words[:t], w) for t, w in enumerate(words)]
            np.testing.assert_allclose(found, np.log2(expected), atol=1e-12)


def test_bidirectional_bigrams_are_those_by_hand(language):
    hand, models, text = language
    logits = torch.randn(
        len(text) - 2, WORDS, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    found = models.scores(text, logits, text[1:-1], at=range(len(text) - 2), following=text[2:],
                          smoothings=("bidirectional",))[2, "bidirectional"]  # fmt: skip
    q = logits.softmax(-1).numpy() + 1e-9
    for t, (before, word, after) in enumerate(zip(text, text[1:], text[2:], strict=False)):
        forward = [hand.raw(2, [before], w) for w in range(WORDS)]
        joint = np.nan_to_num([p * hand.raw(2, [w], after) for w, p in enumerate(forward)])
        p = (joint / joint.sum() if joint.sum() else np.full(WORDS, np.nan)) + 1e-9
        assert found.kl[t] == pytest.approx((p * np.log2(p / q[t])).sum(), abs=1e-12, nan_ok=True)
        assert found.log_probability[t] == pytest.approx(np.log2(p[word]), abs=1e-12, nan_ok=True)


def test_text_drawn_from_an_order_is_told_by_it():
    random = np.random.default_rng(0)
    step = random.dirichlet(np.full(12, 0.1), (12, 12))  # a language of order 3
    text = [0, 0]
    while len(text) < 20_000:
        text.append(int(random.choice(12, p=step[text[-2], text[-1]])))
    models = NgramModels(NgramCounts.of([text], 12, ORDER))
    for order in range(1, ORDER + 1):
        texts = models.draw(order, texts=20, length=60)
        even = torch.zeros(59, 12)
        told = np.array([[models.scores(one[:-1], even, one[1:])[n, "kneser_ney"].log_probability.mean()
                          for n in range(1, ORDER + 1)] for one in texts]).mean(0)  # fmt: skip
        assert told.argmax() == order - 1, (order, told)
        assert models.entropy(order, texts) == pytest.approx(-told[order - 1], rel=1e-12)


def test_refusals(language):
    _, models, text = language
    with pytest.raises(ValueError, match=r"7\), positions × counted token ids, .* got logits \(2, 8\)"):
        models.scores(text[:2], torch.zeros(2, 8), text[1:3])
    with pytest.raises(ValueError, match="up to n = 2 or more"):
        NgramModels(NgramCounts.of([text], WORDS, 1))


def test_extrema():
    assert extremum([0, 1, 2], [math.nan] * 3, "minimum") is None
    assert extremum([0, 1, 2, 3], [2.0, 3.0, 3.0, math.nan], "maximum") == Extremum(1.0, 3.0, censored=False)
    assert extremum([0, 1, 2], [3.0, 2.0, 1.0], "minimum") == Extremum(2.0, 1.0, censored=True)
    with pytest.raises(ValueError, match="increasing steps"):
        extremum([0, 0], [1.0, 2.0], "minimum")
    low, high = extremum_interval(
        [Extremum(step, 0.0, step == 100) for step in (50, 55, 60, 65, 70, 75, 80, 100)]
    )
    assert 40 < low < 80
    assert high == math.inf
    assert extremum_order([Extremum(1, 0.0, False), Extremum(5, 0.0, True)]) == "strict"
