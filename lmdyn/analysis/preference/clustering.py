"""Clusters of words from their static embeddings: principal, then independent components, then a threshold.

He & Toyoizumi 2022, "Spontaneous emerging preference in two-tower language model", section 5.3.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmdyn.analysis.checked_fields import Above, From, check_fields
from lmdyn.analysis.preference.independent_components import (
    TOLERANCE,
    IndependentComponents,
    Nonlinearity,
    amari_ica,
    principal_components,
)

__all__ = [
    "ClusteredWords",
    "Clustering",
    "Membership",
    "cluster_means",
    "cluster_name",
    "typical_words",
    "word_clusters",
]


@dataclass(frozen=True)
class Membership:
    """Assignment of words to clusters.

    A cluster is one direction of one component: cluster 2c is the positive direction of component c, cluster 2c + 1
    the negative one. A word may belong to several clusters.

    Attributes:
        words: number n of words, whether members of clusters or not.
        number: number of clusters, some of which may be empty.
        word: (m,) for each pair of a word and a cluster that it belongs to, the word, from 0 to n − 1.
        cluster: (m,) for each pair, the cluster, from 0 to ``number`` − 1.
        value: (m,) for each pair, the value of the word in this component, with the sign of the direction.

    Example:
        >>> pairs = {"word": torch.tensor([0, 1, 1]), "cluster": torch.tensor([0, 0, 3])}
        >>> found = Membership(words=4, number=4, value=torch.tensor([2.6, 4.0, -3.0]), **pairs)
        >>> found.sizes, found.clusters_per_word
        (tensor([2, 0, 0, 1]), tensor([1, 2, 0, 0]))
        >>> found.mean_clusters, found.shares(most=1)
        (0.75, tensor([0.5000, 0.5000], dtype=torch.float64))
    """

    words: int
    number: int
    word: Int[Tensor, "m"]
    cluster: Int[Tensor, "m"]
    value: Float[Tensor, "m"]

    @property
    def component(self) -> Int[Tensor, "m"]:
        """Component of each pair, (m,)."""
        return self.cluster // 2

    @property
    def sign(self) -> Int[Tensor, "m"]:
        """Direction of each pair, 1 or −1, (m,)."""
        return 1 - 2 * (self.cluster % 2)

    @property
    def sizes(self) -> Int[Tensor, "clusters"]:
        """Number of members of each cluster, (number,)."""
        return torch.bincount(self.cluster, minlength=self.number)

    @property
    def clusters_per_word(self) -> Int[Tensor, "n"]:
        """Number of clusters of each word, (n,)."""
        return torch.bincount(self.word, minlength=self.words)

    @property
    def mean_clusters(self) -> float:
        """Mean number of clusters of a word; 1.45 in the publication."""
        return float(self.clusters_per_word.double().mean())

    def shares(self, most: int) -> Float[Tensor, "shares"]:
        """Return the shares of words in 0, 1, …, ``most`` or more clusters; published: 0.13 in none, 0.45 in one."""
        counts = torch.bincount(self.clusters_per_word.clamp(max=most), minlength=most + 1)
        return counts.double() / self.words


@dataclass(frozen=True)
class ClusteredWords(Membership):
    """Words by independent components, and their clusters.

    The words of a cluster have a value above the threshold, or below its negative.

    Attributes:
        values: (n, k) float32 Y, each component scaled to unit variance.
        threshold: threshold of membership, in standard deviations.
        within_one: share of ``values`` from −1 to 1. For a Gaussian variable it is 0.68, for a Laplace variable 0.76;
            in the publication it is around 0.80.
        iterations: see :class:`~lmdyn.analysis.preference.independent_components.IndependentComponents`.
        converged: see there.
        residual: see there.
        words, number, word, cluster, value: see :class:`Membership`; pairs are ordered by cluster, then word, and
            ``value`` is float32.
    """

    values: Float[Tensor, "n k"]
    threshold: float
    within_one: float
    iterations: int
    converged: bool
    residual: float


@dataclass(frozen=True)
class Clustering:
    """Settings of the clustering: static embeddings, principal components, independent components, a threshold.

    Attributes:
        components: number k of components; 128 in the publication.
        nonlinearity: nonlinearity of Amari's rule.
        learning_rate: learning rate of Amari's rule.
        max_iterations: maximum number of iterations.
        tolerance: tolerance of Amari's rule.
        threshold: members of a cluster have larger values, in standard deviations of the component.

    Raises:
        ValueError: if a choice is unknown, or if a number is out of range.

    Reference: He & Toyoizumi 2022, section 5.3.

    Example:
        >>> Clustering(components=64, learning_rate=0.1).threshold
        2.5
    """

    components: Annotated[int, From(1)] = 128
    nonlinearity: Nonlinearity = "bounded"
    learning_rate: Annotated[float, Above(0)] = 0.01
    max_iterations: Annotated[int, From(1)] = 20_000
    tolerance: Annotated[float, Above(0)] = TOLERANCE
    threshold: Annotated[float, Above(0)] = 2.5

    def __post_init__(self) -> None:
        check_fields(self)


def word_clusters(embeddings: Float[Tensor, "n d"], clustering: Clustering = Clustering()) -> ClusteredWords:
    """Cluster words by their static embeddings: principal components, independent components, a threshold.

    Args:
        embeddings: (n, d) static embeddings, such as those of the 5,000 most frequent words. Sort the rows by
            frequency if :func:`typical_words` is used to find frequent words.
        clustering: settings of the clustering.

    Returns:
        The clusters, on the CPU.

    Raises:
        ValueError: if there are more components than the width of the embeddings, or no fewer than words.
        UnusableEmbeddingsError: if the embeddings are not finite, if they vary in fewer directions than components, or
            if the rule diverges.

    Reference: He & Toyoizumi 2022, section 5.3, equations 5 to 7.

    Example:
        >>> embeddings = torch.randn(200, 8, generator=torch.Generator().manual_seed(0)) ** 3
        >>> clusters = word_clusters(embeddings, Clustering(components=4, learning_rate=0.1))
        >>> clusters.values.shape, clusters.number, int(clusters.sizes.sum()) == len(clusters.word)
        (torch.Size([200, 4]), 8, True)
    """
    how = clustering
    p = principal_components(embeddings, how.components)
    found = amari_ica(p, how.learning_rate, how.max_iterations, how.tolerance, how.nonlinearity)
    y = found.sources
    return _clustered((y / y.std(0, correction=0)).float().cpu(), how.threshold, found)


def _clustered(
    values: Float[Tensor, "n k"], threshold: float, found: IndependentComponents
) -> ClusteredWords:
    """Return all pairs of a word and a cluster that it belongs to."""
    # by component, then direction (the positive one first), then word
    by_cluster = torch.stack([values > threshold, values < -threshold], -1).permute(1, 2, 0)
    component, negative, word = by_cluster.nonzero().unbind(1)
    return ClusteredWords(
        words=len(values),
        number=2 * values.shape[1],
        word=word,
        cluster=2 * component + negative,
        value=values[word, component],
        values=values,
        threshold=threshold,
        within_one=float((values.abs() <= 1).double().mean()),
        iterations=found.iterations,
        converged=found.converged,
        residual=found.residual,
    )


def cluster_name(cluster: int) -> str:
    """Return the name of a cluster: its component, from 0, and its direction.

    Example:
        >>> cluster_name(14), cluster_name(15)
        ('7+', '7-')
    """
    return f"{cluster // 2}{'-' if cluster % 2 else '+'}"


def typical_words(
    clusters: Membership, cluster: int, count: int = 5, by: Literal["value", "frequency"] = "value"
) -> Int[Tensor, "words"]:
    """Return the most typical members of a cluster: those of the largest absolute values, or the first ones.

    The first ones are the most frequent ones if the words are sorted by frequency.

    Table 3 of the publication names "5 typical words" of each cluster and does not say how they were chosen; most of
    them are frequent.

    Args:
        clusters: result of :func:`word_clusters`, or a new :class:`Membership`.
        cluster: from 0 to ``clusters.number`` − 1.
        count: number of words; fewer if the cluster is smaller.
        by: ``value`` or ``frequency``.

    Example:
        >>> embeddings = torch.randn(200, 8, generator=torch.Generator().manual_seed(0)) ** 3
        >>> clusters = word_clusters(embeddings, Clustering(components=4, learning_rate=0.1))
        >>> words = typical_words(clusters, 0, count=2)
        >>> bool(clusters.values[words[0], 0] >= clusters.values[words[1], 0] > 2.5)
        True
    """
    members = clusters.cluster == cluster
    words, order = clusters.word[members].sort()
    if by == "value":
        words = words[clusters.value[members][order].abs().argsort(descending=True, stable=True)]
    return words[:count]


def cluster_means(
    clusters: Membership, preference: Float[Tensor, "n"]
) -> tuple[Float[Tensor, "clusters"], Int[Tensor, "clusters"]]:
    """Compute the mean preference (or any other number) of the members of each cluster: table 3 of the publication.

    Args:
        clusters: result of :func:`word_clusters`.
        preference: (n,) a number for each word; NaN leaves a word out.

    Returns:
        Means, (number,) float64, NaN for clusters without such members; and the number of members in each mean,
        (number,).

    Raises:
        ValueError: if the length is not the number of words.

    Example:
        >>> embeddings = torch.randn(200, 8, generator=torch.Generator().manual_seed(0)) ** 3
        >>> clusters = word_clusters(embeddings, Clustering(components=4, learning_rate=0.1))
        >>> means, members = cluster_means(clusters, torch.ones(200))
        >>> means[members > 0].unique(), torch.equal(members, clusters.sizes)
        (tensor([1.], dtype=torch.float64), True)
    """
    if len(preference) != clusters.words:
        raise ValueError(f"expected a preference for each of {clusters.words} words, got {len(preference)}")
    of_member = preference.double().cpu()[clusters.word]
    there = ~of_member.isnan()
    cluster = clusters.cluster[there]
    members = torch.bincount(cluster, minlength=clusters.number)
    sums = torch.bincount(cluster, weights=of_member[there], minlength=clusters.number)
    return sums / members, members
