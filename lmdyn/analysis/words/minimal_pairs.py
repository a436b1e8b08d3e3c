"""Minimal pairs: scores of sentences, which of two is preferred, and when, how steadily and in which runs it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import scipy

if TYPE_CHECKING:
    import pandas

from lmdyn.analysis.words.extrema import course_of

__all__ = ["PairAgreement", "Ties", "flips", "onset", "pair_accuracy", "pair_agreement", "sentence_scores"]

Ties = Literal["half", "draw"]
"""What a tie counts: one half, or by chance 0 or 1, as the BabyLM protocol of 2026 draws them."""

_NULL = 999
"""Curves at chance whose largest likelihood ratios an onset is held against."""


def sentence_scores(pieces: "pandas.DataFrame", texts: Sequence[str]) -> "pandas.DataFrame":
    """Sum the log-probabilities of the pieces of each sentence.

    Without a token before the text, a causal model does not predict the first piece of a sentence: it is left out.

    Args:
        pieces: the table that :func:`surprisals` returns, or its columns ``text`` and ``log_probability``.
        texts: the sentences that were passed to it.

    Returns:
        A row for each sentence, in nats, at most 0: ``log_probability``, their sum; ``by_token``, their mean;
        ``by_character``, the sum over the number of characters without white space at the ends. NaN if one of them is,
        or if no piece is predicted.

    Reference: Salazar et al. 2020 (of masked models); means: Lau et al. 2017, "Grammaticality, acceptability, and
        probability", there MeanLP.

    Example:
        >>> import pandas as pd
        >>> pieces = pd.DataFrame({"text": [0, 0, 1], "log_probability": [-1.0, -3.0, -2.0]})
        >>> sentence_scores(pieces, ["ab c", "d"]).to_numpy().tolist()
        [[-4.0, -2.0, -1.0], [-2.0, -2.0, -2.0]]
    """
    import pandas as pd

    if pieces.attrs.get("start") == "":
        pieces = pieces[pieces.groupby("text").cumcount() > 0]
    grouped = pieces.groupby("text")["log_probability"]
    total = grouped.sum(skipna=False).reindex(range(len(texts)))
    lengths = [max(1, len(text.strip())) for text in texts]
    found = {"log_probability": total, "by_token": total / grouped.size(), "by_character": total / lengths}
    return pd.DataFrame(found).rename_axis("text")


def pair_accuracy(
    good: npt.ArrayLike, bad: npt.ArrayLike, ties: Ties = "half", seed: int = 0
) -> npt.NDArray[np.float64]:
    """Return whether the first score of each pair is higher: 1, or 0 if it is lower.

    Args:
        good: (pairs,) scores of the sentences that should be preferred.
        bad: (pairs,) scores of the others.
        ties: equal scores count ``half``, or are drawn, the same for a pair at each call.
        seed: seed of the draws.

    Returns:
        (pairs,) 0 to 1; NaN where a score is not finite.

    Raises:
        ValueError: for unequal numbers of scores.

    Reference: Warstadt et al. 2020, "BLiMP", section 4.

    Example:
        >>> pair_accuracy([-1.0, -2.0, -3.0, float("nan")], [-2.0, -2.0, -1.0, -1.0]).tolist()
        [1.0, 0.5, 0.0, nan]
    """
    one = np.asarray(good, np.float64)
    other = np.asarray(bad, np.float64)
    if one.shape != other.shape:
        raise ValueError(f"expected good and bad scores of one shape, got {one.shape} and {other.shape}")
    tie = np.random.default_rng(seed).integers(0, 2, one.shape) if ties == "draw" else 0.5
    right = np.where(one == other, tie, one > other)
    return np.where(np.isfinite(one) & np.isfinite(other), right, np.nan)


def onset(
    steps: npt.ArrayLike,
    accuracies: npt.ArrayLike,
    pairs: npt.ArrayLike,
    *,
    above: bool = False,
    level: float = 0.05,
) -> float | None:
    """Find the first step from which accuracy differs from chance, or is above it.

    The model of counts: right answers of n pairs are binomial, with probability ½ before a step and another one from it
    on; or with ``above``, any up to ½ before, and one of at least ½ from it on: models often begin with a wrong
    preference. The step of the highest likelihood is looked for again in the observations before it, as long as they
    differ from chance themselves: courses that rise in several stages begin with the first.

    A change is stated if two tests reject chance: its likelihood ratio is beyond that of curves at chance, of the same
    numbers of pairs and independent observations (by 999 drawn ones); and the mean accuracy after it differs from ½ by
    a binomial test with the pairs of one observation, because all observations have the same pairs, so that a
    preference for some of them by chance lasts. "Interval stays above chance" requires that every later observation
    rejects chance by itself, and finds late steps: twice as late with an accuracy of 0.6 and 200 pairs.

    Args:
        steps: (n,) steps, in order.
        accuracies: (n,) 0 to 1; ties may count half. Observations that are NaN are left out.
        pairs: number of pairs, of each observation or of all.
        above: whether accuracy below chance is no change.
        level: largest p-value of both tests.

    Returns:
        The step of the first observation that differs; None if none is shown.

    Raises:
        ValueError: for steps that do not increase, unequal lengths, or accuracies that are no shares.

    Reference: change point of binomial counts: Hinkley & Hinkley 1970, "Inference about the change-point in a sequence
        of binomial variables".

    Example:
        >>> onset([0, 1, 10, 100, 1000], [0.48, 0.51, 0.5, 0.61, 0.62], 200)
        100.0
        >>> onset([0, 1, 10], [0.48, 0.51, 0.5], 200) is None
        True
    """
    at, share = course_of(steps, accuracies)
    count = np.broadcast_to(np.asarray(pairs, np.float64), share.shape)
    if ((share < 0) | (share > 1)).any():
        raise ValueError(f"expected accuracies from 0 to 1, got {', '.join(map(str, share))}")
    kept = np.isfinite(share)
    at, share, count = at[kept], share[kept], np.round(count[kept])
    null = np.random.default_rng(0).binomial(count.astype(int), 0.5, (_NULL, len(at))).astype(np.float64)
    found, end = None, len(at)
    while end:
        ratios = _likelihood_ratios((share * count)[None, :end], count[:end], above)[0]
        first = int(ratios.argmax())
        drawn = _likelihood_ratios(null[:, :end], count[:end], above).max(1)
        after = slice(first, end)
        mean = float((share * count)[after].sum() / count[after].sum())
        of_one = int(np.median(count[after]))
        chance = scipy.stats.binomtest(
            round(mean * of_one), of_one, alternative="greater" if above else "two-sided"
        ).pvalue
        if (1 + (drawn >= ratios[first]).sum()) / (_NULL + 1) > level or chance > level:
            break
        found, end = float(at[first]), first
    return found


def _likelihood_ratios(
    right: npt.NDArray[np.float64], count: npt.NDArray[np.float64], above: bool
) -> npt.NDArray[np.float64]:
    """Return, for each first observation of a change (curves, n), the log ratio of its best accuracy and chance."""

    def from_each(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return values[..., ::-1].cumsum(-1)[..., ::-1]

    after = _log_ratio(from_each(right), from_each(count), 0.5 if above else 0.0, 1.0)
    # an observation before the change may have any accuracy below chance
    return after - from_each(_log_ratio(right, count, 0.0, 0.5)) if above else after


def _log_ratio(
    right: npt.NDArray[np.float64], count: npt.NDArray[np.float64], low: float, high: float
) -> npt.NDArray[np.float64]:
    """Return the log-likelihood of the best accuracy between two ends, less that of one half."""
    p = np.clip(right / count, low, high)
    xlogy = scipy.special.xlogy
    return np.asarray(xlogy(right, 2 * p) + xlogy(count - right, 2 * (1 - p)))


def flips(log_ratios: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Count how often each pair's preference changes from one observation to the next.

    Args:
        log_ratios: (observations, pairs) log-probability of the good sentence less that of the bad one, in the order
            of steps. Ties and NaN have no preference: the last one lasts.

    Returns:
        (pairs,) 0 to observations − 1.

    Example:
        >>> flips([[-1.0, 2.0], [1.0, 0.0], [-2.0, 1.0]]).tolist()
        [2, 0]
    """
    import pandas as pd

    signs = pd.DataFrame(np.sign(np.asarray(log_ratios, np.float64)))
    return signs.mask(signs == 0).ffill().diff().abs().eq(2).sum().to_numpy(dtype=np.int64)


@dataclass(frozen=True)
class PairAgreement:
    """Agreement of two runs on the same pairs.

    Attributes:
        share: share of pairs on which both prefer the same sentence, 0 to 1.
        kappa: Cohen's kappa: the share beyond that of runs of these accuracies by chance, −1 to 1; NaN if both prefer
            the good, or the bad, sentence of all pairs.
        pairs: number of pairs on which both have a preference.
    """

    share: float
    kappa: float
    pairs: int


def pair_agreement(first: npt.ArrayLike, second: npt.ArrayLike) -> PairAgreement:
    """Compare which sentences two runs prefer, such as two seeds.

    Args:
        first: (pairs,) log-ratios, or good less bad scores, of one run.
        second: (pairs,) those of another.

    Returns:
        The agreement; ties and NaN of either run are left out, and values are NaN if no pair is left.

    Raises:
        ValueError: for unequal numbers of pairs.

    Reference: Cohen 1960, "A coefficient of agreement for nominal scales"; Chang et al. 2024 (seeds).

    Example:
        >>> pair_agreement([1.0, 2.0, -1.0, -3.0], [2.0, -1.0, -1.0, -1.0])
        PairAgreement(share=0.75, kappa=0.5, pairs=4)
    """
    from sklearn.metrics import cohen_kappa_score

    one, other = (np.sign(np.asarray(ratios, np.float64)) for ratios in (first, second))
    if one.shape != other.shape:
        raise ValueError(f"expected first and second of one shape, got {one.shape} and {other.shape}")
    kept = np.isin(one, (-1, 1)) & np.isin(other, (-1, 1))
    if not kept.any():
        return PairAgreement(np.nan, np.nan, 0)
    a, b = one[kept] > 0, other[kept] > 0
    constant = (a == a[0]).all() and (b == a[0]).all()
    kappa = np.nan if constant else float(cohen_kappa_score(a, b))
    return PairAgreement(
        share=float((a == b).mean()),
        kappa=kappa,
        pairs=int(kept.sum()),
    )
