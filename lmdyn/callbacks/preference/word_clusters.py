"""Clusters of words in a model's static embeddings during training."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

import pyarrow.compute as pc
from jaxtyping import Float
from matplotlib.figure import Figure
from pandas import DataFrame
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.preference.clustering import (
    ClusteredWords,
    Clustering,
    cluster_name,
    word_clusters,
)
from lmdyn.analysis.preference.independent_components import Nonlinearity, UnusableEmbeddingsError
from lmdyn.callbacks.observing.checked_fields import Above, From
from lmdyn.callbacks.observing.findings import Cost, Foreseen
from lmdyn.callbacks.observing.module_reading import choose_sites
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.reference import has_module
from lmdyn.callbacks.observing.run import report, warn
from lmdyn.callbacks.observing.sums import Row, tabulate
from lmdyn.callbacks.observing.token_groups import FrequencySource, ranked_tokens, token_names
from lmdyn.callbacks.preference.word_clusters_figures import (
    cluster_figures,
    cluster_table,
)
from lmdyn.runs.schema import Quantity

__all__ = ["WordClusters"]

_COLUMNS = {"by": "", "group": "", "token": ""}
_BY_WORD = ["membership", "component_value", "count"]
_MOST = 7  # clusters of a word: the distribution ends with the group "7+"
_COMPONENTS = 128  # by default, if width and number of words are sufficient


class WordClusters(Observer):
    """Independent components of the static embeddings of frequent words, and their clusters of words.

    The embeddings of the most frequent types of the training data, without special tokens and types that do not occur,
    are analysed by :func:`lmdyn.analysis.word_clusters`. No text is read: the probe set, which every
    observer has, is used only if ``frequency`` is ``probe``. Each observation is independent, so the
    numbers of clusters of different steps are unrelated.

    In addition to the scalars, the records contain rows ``membership``: the value of each ``token`` in each of its
    clusters (``group``: the component, from 0, and its direction, such as 7+); ``component_value``: the values of the
    most frequent words in each component (``group``); and ``count``, the number of occurrences of each word. Embeddings
    that are not finite or too flat for so many components, and a diverging rule, give NaN for scalars and no such rows,
    with a warning.

    Args:
        embedding: path of the embedding: a module with a ``weight`` that has a row for each token id.
        words: number of the most frequent types to use.
        components: number of principal, then independent components; at most the width of the embedding. By default
            128, or as many as width and words allow.
        method: only ``amari``, Amari's rule.
        whiten: only ``divide``; see :func:`~lmdyn.analysis.principal_components` for the printed form.
        nonlinearity: ``bounded`` or ``halved``.
        learning_rate: learning rate of Amari's rule; 0.1 gives the same result as the published 0.01, in a tenth of the
            time.
        max_iterations: maximum number of iterations; if it is too small, ``converged`` is 0, with a warning.
        threshold: minimum value of the members of a cluster, in standard deviations of the component.
        matrix_words: number of words in the rows ``component_value``, for the figure of the matrix; 0 for none.
        frequency: ``train`` (counts in the training data) or ``probe`` (targets in the probe set); by default
            the first if it is known.
        seed: without effect: Amari's rule starts from the identity.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for an unknown ``method``, ``whiten`` or ``nonlinearity``, numbers out of range, or no more
            ``words`` than ``components``; when attached, if too few words occur in the text, and for a module whose
            ``embedding`` is not an embedding, or narrower than the number of components.

    Reference: He & Toyoizumi 2022, section 5.3, figures 5 and 6, table 3.

    Example:
        >>> WordClusters(components=64, learning_rate=0.1).clustering.threshold
        2.5
    """

    embedding: str | None = None
    words: Annotated[int, From(2)] = 5000
    components: Annotated[int, From(1)] | None = None
    method: Literal["amari"] = "amari"
    whiten: Literal["divide"] = "divide"
    nonlinearity: Nonlinearity = "bounded"
    learning_rate: Annotated[float, Above(0)] = 0.01
    max_iterations: Annotated[int, From(1)] = 20_000
    threshold: Annotated[float, Above(0)] = 2.5
    matrix_words: Annotated[int, From(0)] = 500
    frequency: FrequencySource | None = None
    seed: int = 0

    uses_labels = False
    several_runs = True
    # for loggers: reading all matrices would take long
    figure_rows = staticmethod(
        lambda steps: ~pc.field("quantity").isin(_BY_WORD) | (pc.field("step") == steps[-1])
    )
    recorded = (
        Quantity(
            "within_one",
            "Share of component values between −1 and 1 standard deviation.",
            "share",
            low=0.0,
            high=1.0,
            panel="over_training",
            short="values within ±1\nstandard deviation",
        ),
        Quantity(
            "mean_clusters",
            "Mean number of clusters per word.",
            "count",
            low=0.0,
            panel="over_training",
            short="clusters that a word\nbelongs to, mean",
        ),
        Quantity(
            "share_of_words",
            "Share of words that belong to the given number of clusters (0, 1, …, 6 or 7+).",
            "share",
            low=0.0,
            high=1.0,
            tags=("clusters/<number>",),
        ),
        Quantity("converged", "1 if the components converged, else 0.", low=0.0, high=1.0),
        Quantity("iterations", "Number of iterations of Amari's rule.", "count", low=0.0),
        Quantity("membership", "Component value of a word in a cluster to which the word belongs.", tags=()),
        Quantity("component_value", "Value of a word in an independent component.", tags=()),
        Quantity("count", "Count of a word in the text named by `frequency`.", "count", low=1.0, tags=()),
    )

    @property
    def clustering(self) -> Clustering:
        """Settings of the clustering, with as many components as the module that was met allows."""
        names = "nonlinearity", "learning_rate", "max_iterations", "threshold"
        components = self._found.get("components", self.components or _COMPONENTS)
        return Clustering(components=components, **{name: getattr(self, name) for name in names})

    def prepare(self) -> None:
        """Find the most frequent words."""
        counts, ranks = ranked_tokens(self, self.frequency)
        self._size = len(counts)
        found = ((ranks > 0) & (ranks <= self.words)).nonzero()[:, 0]
        self._ids = found[ranks[found].argsort()]
        self._counts = counts[self._ids].tolist()
        names = token_names(self.run.tokenizer, self._size, self.run.token_counts)
        self._tokens = [names[i] for i in self._ids.tolist()]
        if len(self._ids) <= (components := self.components or 1):
            raise ValueError(
                f"{self.name}: expected more words than components ({components}), got {len(self._ids)}: lower "
                "`components`, raise `words`, or use more text"
            )

    def check_module(self, module: Module) -> None:
        """Raise an error unless the path is an embedding of the vocabulary and at least as wide as the components."""
        path = self.found("embedding", lambda: self._find_embedding(module))
        width, words = self._weight(module).shape[1], len(self._ids)
        most = min(_COMPONENTS, width, words - 1)
        components = self.found("components", lambda: most)
        if self.components is None and most < _COMPONENTS:
            report(self.name, f"lmdyn finds {most} components, given {words} words of {width} dimensions")
        if width < components:
            raise ValueError(
                f"{self.name}: components is {components}: expected at most {width}, the width of {path!r}"
            )

    def _find_embedding(self, module: Module) -> str:
        """Return ``embedding`` if the module has it, or the token embedding that is found."""
        if has_module(module, "embedding"):
            return "embedding"
        sites = choose_sites(
            "auto", None, module, lambda: self.probe_set, self.forward, whose=self.name, kinds=("embedding",)
        )
        return next(iter(sites.values()))

    def _weight(self, module: Module) -> Float[Tensor, "vocabulary d"]:
        path = str(self._found.get("embedding", self.embedding))
        weights = {name: getattr(m, "weight", None) for name, m in module.named_modules()}
        matrices = {name: w for name, w in weights.items() if isinstance(w, Tensor) and w.ndim == 2}
        if path in matrices and len(matrices[path]) >= self._size:
            return matrices[path].detach()
        there = [name for name, w in matrices.items() if len(w) == self._size]
        weight = weights.get(path)
        got = f"shape {tuple(weight.shape)}" if isinstance(weight, Tensor) else "no weight"
        raise ValueError(
            f"{self.name}: expected a weight with a row for each of {self._size} token ids in {path!r}, got {got}: set "
            f"`embedding` to the path of a module with such a weight ({', '.join(there) or 'the model has none'})"
        )

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report the memory of embeddings and components of the words."""
        words = len(self._ids)
        width = self._weight(module).shape[1]
        components = self.clustering.components
        yield Cost(
            f"embeddings of {words:,} words, {width} numbers each, and their {components} components, in float64",
            8 * words * (2 * width + 4 * components),
            "lower `words` or `components`",
        )

    def measure(self, module: Module, step: int) -> DataFrame:
        """Cluster the words by their embeddings; every rank does the same."""
        weight = self._weight(module)
        try:
            clusters = word_clusters(weight[self._ids.to(weight.device)], self.clustering)
        except UnusableEmbeddingsError as error:
            return tabulate(_scalars(None), _COLUMNS, self.name, step, why=str(error))
        if not clusters.converged:
            warn(
                self.name,
                f"the components did not converge at step {step} in {clusters.iterations} iterations (residual "
                f"{clusters.residual:.3g}): raise `max_iterations`, or change `learning_rate`",
            )
        rows: list[Row | DataFrame] = [*_scalars(clusters), *self._rows_by_word(clusters)]
        return tabulate(rows, _COLUMNS, self.name, step)

    def _rows_by_word(self, clusters: ClusteredWords) -> Iterator[DataFrame]:
        """Yield each word's values in its clusters, the matrix of the most frequent words, and their counts."""
        names = [cluster_name(c) for c in clusters.cluster.tolist()]
        tokens = [self._tokens[word] for word in clusters.word.tolist()]
        members = DataFrame({"group": names, "token": tokens, "value": clusters.value.numpy()})
        yield members.assign(quantity="membership", by="cluster")
        matrix = clusters.values[: self.matrix_words].T
        k, n = matrix.shape
        groups = [str(c) for c in range(k) for _ in range(n)]
        cells = {"group": groups, "token": self._tokens[:n] * k, "value": matrix.flatten().numpy()}
        yield DataFrame(cells).assign(quantity="component_value", by="component")
        counts = DataFrame({"token": self._tokens, "value": self._counts})
        yield counts.assign(quantity="count", by="token")

    @staticmethod
    def record_rows(observations: DataFrame, settings: Mapping[str, Any]) -> DataFrame:
        """Return the rows for a record of a run: its scalars, and the words of each cluster at the last step.

        The value of a membership is reduced to its sign, which is also part of the cluster's name.
        """
        members = observations["quantity"].eq("membership")
        last = observations["step"].eq(observations["step"].max())
        kept = observations[WordClusters.is_scalar(observations) | (members & last)].copy()
        of_words = kept["quantity"].eq("membership")
        kept.loc[of_words, "value"] = kept.loc[of_words, "value"].transform("sign")
        return kept

    @classmethod
    def figures(cls, observations: DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw figures 5 and 6 of the publication at the last step, and curves over training; also of several runs."""
        return cluster_figures(observations) | super().figures(observations, settings)

    @staticmethod
    def tables(observations: DataFrame, settings: Mapping[str, Any]) -> dict[str, DataFrame]:
        """Return the largest clusters with their typical words."""
        return cluster_table(observations)


def _scalars(clusters: ClusteredWords | None) -> Iterator[Row]:
    """Yield the numbers of all words together; NaN without clusters."""
    nan, names = math.nan, [*map(str, range(_MOST)), f"{_MOST}+"]
    within_one, mean = (clusters.within_one, clusters.mean_clusters) if clusters else (nan, nan)
    yield {}, {"within_one": within_one, "mean_clusters": mean}
    shares = clusters.shares(_MOST).tolist() if clusters else [nan] * len(names)
    for name, share in zip(names, shares, strict=True):
        yield {"by": "clusters", "group": name}, {"share_of_words": share}
    converged, iterations = (clusters.converged, clusters.iterations) if clusters else (False, nan)
    yield {}, {"converged": float(converged), "iterations": iterations}
