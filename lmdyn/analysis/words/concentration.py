"""Sparsity of representations and its relation to word frequency (Saphra & Lopez 2019).

"Sparsity emerges naturally in neural language models", ICML workshop on Identifying and Understanding Deep
Learning Phenomena; chapter 6 of Saphra 2021.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmdyn.analysis.statistics.correlation import pearson
from lmdyn.analysis.statistics.jackknife import jackknife
from lmdyn.analysis.statistics.precision import at_least_float32

__all__ = [
    "CLOSED_CLASSES",
    "OPEN_CLASSES",
    "attention_entropy",
    "concentration",
    "concentration_and_norm",
    "expected_concentration",
    "frequency_correlation",
    "frequency_correlation_error",
    "mean_entropies",
    "normalized_attention_entropy",
    "sample_correlations",
    "unigram_entropy",
    "without_structure",
    "word_tags",
]

_Numbers = npt.NDArray[np.float64]

OPEN_CLASSES = ("ADJ", "ADV", "INTJ", "NOUN", "PROPN", "VERB")
"""Universal POS tags of open classes (footnote 1 of the publication)."""
CLOSED_CLASSES = ("ADP", "AUX", "CCONJ", "DET", "PART", "PRON", "SCONJ")
"""Universal POS tags of closed classes (footnote 2 of the publication)."""

_CHUNK = 1 << 18  # numbers of a chunk, which fit into the cache of a CPU core


def concentration(v: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    """Compute the taxicab-Euclidean concentration ‖v‖₂ / ‖v‖₁ of each vector.

    It is 1 for a one-hot vector and 1/√d for a uniform one, and invariant to scale and sign. It is NaN if v = 0, if v
    contains NaN or infinite values, and if the sum ‖v‖₁ overflows.

    Args:
        v: (..., d) vectors.

    Returns:
        Tensor of shape (...) in [1/√d, 1]; float32 for half precision.

    Reference: Saphra & Lopez 2019, section 2; Repetti et al. 2015.

    Example:
        >>> concentration(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
        tensor([1.0000, 0.7071])
    """
    return concentration_and_norm(v)[0]


def concentration_and_norm(
    v: Float[Tensor, "*batch d"],
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Compute concentration χ(v) and ‖v‖₁ of each vector at the cost of one.

    On CPU, it processes a chunk of rows at a time, which stays in the cache: nothing of the size of ``v`` is written,
    and the logits of a language model (1400 x 15,800) take half the time of the plain expression.

    Args:
        v: (..., d) vectors.

    Returns:
        χ in [1/√d, 1], NaN if ‖v‖₁ is 0 or not finite, and ‖v‖₁, each of shape (...); float32 for half precision.

    Example:
        >>> concentration_and_norm(torch.tensor([[1.0, 0.0], [1.0, -1.0]]))
        (tensor([1.0000, 0.7071]), tensor([1., 2.]))
    """
    rows = v.reshape(math.prod(v.shape[:-1]), v.shape[-1])
    chunk = max(1, _CHUNK // max(1, v.shape[-1])) if v.device.type == "cpu" else max(1, len(rows))
    dtype = at_least_float32(v)
    chi, norm = (rows.new_empty(len(rows), dtype=dtype) for _ in range(2))
    for part, part_chi, part_norm in zip(rows.split(chunk), chi.split(chunk), norm.split(chunk), strict=True):
        part = part.to(dtype)
        torch.sum(part.abs(), -1, out=part_norm)  # pairwise sums; vector_norm(…, 1) adds one by one
        # divided by ‖v‖₁ first: the squares of gradients of 1e-25 would underflow in float32
        torch.linalg.vector_norm(part / part_norm[:, None], dim=-1, out=part_chi)
    chi.masked_fill_(norm.isinf(), torch.nan)  # numbers divided by an infinite sum are 0
    return chi.view(v.shape[:-1]), norm.view(v.shape[:-1])


def expected_concentration(d: int, distribution: str) -> float:
    """Compute the mean concentration of vectors of d independent numbers, the χ of a vector without structure.

    The leading term is 2/√(3d) for numbers that are uniform about 0 and √(π/2d) for Gaussian ones, multiplied by the
    next term of the expansion in 1/d, 1 − 1/60d and 1 + (π/2 − 7/4)/d: within 0.1 % for d of at least 10. A gradient
    from one row of a uniformly initialised matrix has the first value; a gradient that is the sum of many
    contributions tends to the second.

    Args:
        d: number of units of the vector.
        distribution: distribution of each number, ``uniform`` or ``gaussian``; its scale does not matter.

    Raises:
        ValueError: if d is below 1, or if the distribution is unknown.

    Reference: the delta method on ‖v‖₂/‖v‖₁ = d^(−1/2) √m₂ / m₁, with m₁ and m₂ the means of |v| and v².

    Example:
        >>> [round(expected_concentration(200, kind), 4) for kind in ("uniform", "gaussian")]
        [0.0816, 0.0885]
    """
    if d < 1 or distribution not in ("uniform", "gaussian"):
        raise ValueError(f"expected d >= 1 and 'uniform' or 'gaussian', got d = {d} and {distribution!r}")
    if d == 1:
        return 1.0
    if distribution == "uniform":
        return 2 / math.sqrt(3 * d) * (1 - 1 / (60 * d))
    return math.sqrt(math.pi / (2 * d)) * (1 + (math.pi / 2 - 7 / 4) / d)


def attention_entropy(weights: Float[Tensor, "*batch key"]) -> Float[Tensor, "*batch"]:
    """Compute the Shannon entropy −Σ p ln p of attention distributions in nats.

    It is 0 for attention to one word and ln n for uniform attention over n words: the counterpart of concentration for
    attention (Saphra 2021, section 6.1.2).

    Args:
        weights: (..., key) distributions: not negative, with a sum of 1 over each row. The sum is not checked, because
            this would synchronise the device at each call: logits or truncated rows return a number without a
            meaning. NaN gives NaN; a negative or infinite weight gives −∞.

    Example:
        >>> attention_entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
        tensor([0.0000, 0.6931])
    """
    entropy: Tensor = torch.special.entr(weights.to(at_least_float32(weights))).sum(-1)
    return entropy


def normalized_attention_entropy(
    weights: Float[Tensor, "*batch heads query key"],
) -> Float[Tensor, "*batch heads query"]:
    """Compute the entropy of attention over the logarithm of the number of places, from 0 (one place) to 1 (uniform).

    It is comparable between positions: the first positions of a causal model can attend to one or two places, the last
    to many. A place of a query is a key on which some head puts weight.

    Args:
        weights: (..., heads, query, key) distributions, 0 where the model masks.

    Returns:
        Tensor in [0, 1]; NaN for a query with one place, whose entropy is 0 by construction.

    Reference: Saphra 2021, section 6.1.2; normalised as in Pielou 1966.

    Example:
        >>> normalized_attention_entropy(torch.tensor([[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.25, 0.25]]]))
        tensor([[   nan, 1.0000, 0.9464]])
    """
    places = (weights != 0).any(-3, keepdim=True).sum(-1)
    entropy = attention_entropy(weights)
    return torch.where(places > 1, entropy / places.clamp(min=2).to(entropy.dtype).log(), torch.nan)


def frequency_correlation(means: Float[Tensor, "types"], frequency: Float[Tensor, "types"]) -> float:
    """Compute the Pearson correlation over word types of a per-word mean with word frequency, ρ of the publication.

    With means over the positions at which a word is the *target*, this is ρ←; with means over the positions at which
    it is the *input*, it is ρ→ (section 3).

    Args:
        means: (types,) per-word means; NaN leaves a word out.
        frequency: (types,) how often each word occurs; counts or shares give the same ρ.

    Returns:
        Number in [−1, 1]; NaN for fewer than 3 words, or if either side is constant.

    Example:
        >>> means, counts = torch.tensor([1.0, 2.0, torch.nan, 3.0]), torch.tensor([2.0, 4.0, 9.0, 6.0])
        >>> round(frequency_correlation(means, counts), 6)
        1.0
    """
    return pearson(*_of_words(means, frequency))


def _of_words(means: Tensor, frequency: Tensor) -> tuple[_Numbers, _Numbers]:
    kept = ~means.isnan()
    return means[kept].double().cpu().numpy(), frequency[kept].double().cpu().numpy()


def frequency_correlation_error(means: Float[Tensor, "types"], frequency: Float[Tensor, "types"]) -> float:
    """Compute the standard error over word types of :func:`frequency_correlation`, by the delete-one jackknife.

    It requires no seed and no resampling. On average it is too large rather than too small (Efron & Stein 1981), also
    if a few words of a heavy-tailed frequency determine ρ; a linear approximation then gives half of it. The closed
    form for Gaussian pairs is (1 − ρ²)/√n.

    Args:
        means: (types,) per-word means; NaN leaves a word out.
        frequency: (types,) how often each word occurs.

    Returns:
        Standard error; NaN if ρ is NaN, or becomes NaN without one of the words.

    Example:
        >>> means, counts = torch.tensor([1.0, 2.0, 4.0, 3.0]), torch.tensor([2.0, 4.0, 6.0, 9.0])
        >>> round(frequency_correlation_error(means, counts), 3)
        0.413
    """
    x, y = _of_words(means, frequency)
    return _jackknife_error(pearson(x, y), x, y)


@np.errstate(invalid="ignore", over="ignore")
def _jackknife_error(rho: float, x: _Numbers, y: _Numbers) -> float:
    n = len(x)
    if math.isnan(rho) or n < 4:
        return math.nan
    x, y = x - x.mean(), y - y.mean()
    # factor of a word's share of the sums of squares about the mean, its effect on the mean included
    share = n / (n - 1)
    xx, yy = x @ x, y @ y
    variances = xx - share * x**2, yy - share * y**2
    constant = (variances[0] <= 1e-12 * xx) | (variances[1] <= 1e-12 * yy)
    norms = np.sqrt(np.where(constant, np.nan, variances[0] * variances[1]))
    left_out = np.clip((x @ y - share * x * y) / norms, -1, 1)
    return float(jackknife(rho, left_out).error)


def mean_entropies(weights: Float[Tensor, "batch heads time _"]) -> dict[str, Float[Tensor, "batch time"]]:
    """Return both entropies of attention, means over heads; infinite if they are not finite.

    NaN is left to ``normalized_attention_entropy`` of one position, which is undefined.
    """
    found = {
        "attention_entropy": attention_entropy(weights).mean(1),
        "normalized_attention_entropy": normalized_attention_entropy(weights).mean(1),
    }
    lost = ~found["attention_entropy"].isfinite()
    return {name: entropy.masked_fill(lost, torch.inf) for name, entropy in found.items()}


def sample_correlations(
    means: Float[Tensor, "types"],
    samples: Mapping[str, Bool[Tensor, "types"]],
    counts: Int[Tensor, "types"],
) -> Iterator[tuple[str, str, float | str]]:
    """Yield ``""``, the name of each sample of words and ρ within it; ``"_error"``, the name and the error of ρ.

    ρ is NaN if a mean of a word is infinite, and "" if it is undefined: for too few words, or for equal counts.

    A sample by frequency (:func:`~lmdyn.analysis.words.frequency_cells.frequency_samples`) of fewer than three words is
    left out.

    Args:
        means: (types,) per-word means; NaN leaves a word out.
        samples: words of each sample by name.
        counts: (types,) occurrences of each word.
    """
    frequency = counts.double()
    for name, sample in samples.items():
        of_sample = torch.where(sample, means, torch.nan)
        if of_sample.isinf().any():
            yield "", name, math.nan
        elif not name.endswith(("no_top20", "count100")) or int((~of_sample.isnan()).sum()) >= 3:
            x, y = _of_words(of_sample, frequency)
            rho = pearson(x, y)
            yield "", name, "" if math.isnan(rho) else rho
            if not math.isnan(error := _jackknife_error(rho, x, y)):
                yield "_error", name, error


def unigram_entropy(counts: Int[Tensor, "types"]) -> float:
    """Compute the entropy in nats of the words' frequencies: the loss of a model that knows only these.

    Args:
        counts: (types,) count of each word, at least 0.

    Returns:
        Number from 0 to ln(types); NaN if no word was counted.

    Raises:
        ValueError: if a count is negative.

    Example:
        >>> round(unigram_entropy(torch.tensor([3, 3, 0])), 4)
        0.6931
    """
    total = int(counts.sum())
    if (counts < 0).any():
        raise ValueError(f"expected counts of at least 0, got {int(counts.min())}")
    return float(torch.special.entr(counts.double() / total).sum()) if total else math.nan


def word_tags(
    tag_counts: Int[Tensor, "types tags"], counts: Int[Tensor, "types"], *, min_count: int = 100
) -> Int[Tensor, "types"]:
    """Return the tag with which each word type is associated, -1 for none.

    A word is associated with a tag only if the majority of its occurrences, and at least ``min_count`` of them, have
    this tag (section 3, "The role of part of speech").

    Args:
        tag_counts: (types, tags) occurrences of each word under each tag; with 0 tags, no word has one.
        counts: (types,) occurrences of each word, tagged or not.
        min_count: minimum number of occurrences under the tag; 100 as published.

    Example:
        >>> word_tags(torch.tensor([[120, 10], [60, 70], [99, 0]]), torch.tensor([130, 150, 99]))
        tensor([ 0, -1, -1])
    """
    if tag_counts.shape[1] == 0:
        return torch.full(tag_counts.shape[:1], -1, device=tag_counts.device)
    top, tag = tag_counts.max(dim=1)
    return torch.where((2 * top > counts) & (top >= min_count), tag, -1)


def without_structure(
    widths: Mapping[str, int], counts: Int[Tensor, "types"]
) -> list[tuple[str, str, float]]:
    """Return quantity, site and value of χ of vectors at each site, by its width, and of the loss of frequencies."""
    rows = [("unigram_entropy", "", unigram_entropy(counts))]
    for site, width in widths.items():
        rows += [(f"chi_{k}", site, expected_concentration(width, k)) for k in ("uniform", "gaussian")]
    return rows
