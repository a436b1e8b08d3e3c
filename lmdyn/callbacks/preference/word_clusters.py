"""Clusters of words in a model's static embeddings during training."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import pyarrow.compute as pc
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor, nn

from lmdyn.analysis.preference.independent_components import Nonlinearity, UnusableEmbeddingsError, Whiten
from lmdyn.analysis.preference.word_clusters import (
    ClusteredWords,
    Clustering,
    Method,
    cluster_name,
    word_clusters,
)
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.callbacks.conditions.finding import Cost, Foreseen
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.reading import choose_sites
from lmdyn.callbacks.observing.reference import has_module
from lmdyn.callbacks.observing.run import announce
from lmdyn.callbacks.observing.schema import Quantity
from lmdyn.callbacks.observing.token_groups import (
    FrequencySource,
    frequency_ranks,
    special_tokens,
    token_frequencies,
)
from lmdyn.callbacks.preference.word_clusters_figures import (
    cluster_figures,
    cluster_preferences,
    cluster_table,
)

__all__ = ["WordClusters"]

log = logging.getLogger(__name__)

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
        method: ``amari``, or ``fastica`` (scikit-learn's).
        whiten: ``divide``, or ``multiply`` as printed.
        nonlinearity: ``bounded`` or ``halved``, for Amari's rule.
        learning_rate: learning rate of Amari's rule; 0.1 gives the same result as the published 0.01, in a tenth of the
            time.
        max_iterations: maximum number of iterations; if it is too small, ``converged`` is 0, with a warning.
        threshold: minimum value of the members of a cluster, in standard deviations of the component.
        matrix_words: number of words in the rows ``component_value``, for the figure of the matrix; 0 for none.
        frequency: ``train`` (counts in the training data) or ``probe`` (targets in the probe set); by default
            the first if it is known.
        seed: seed of FastICA's initial state.
        **kwargs: see :class:`~lmdyn.callbacks.Observer`.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for an unknown ``method``, ``whiten`` or ``nonlinearity``, FastICA without ``divide``, numbers out
            of range, or no more ``words`` than ``components``; when attached, if too few words occur in the text, and
            for a module whose ``embedding`` is not an embedding, or narrower than the number of components.

    Reference: He & Toyoizumi 2022, section 5.3, figures 5 to 7 and table 3.

    Example:
        >>> WordClusters(components=64, learning_rate=0.1).clustering.threshold
        2.5
    """

    uses_labels = False

    recorded = (
        Quantity("within_one", "Values within one standard deviation.", "share", low=0.0, high=1.0),
        Quantity("mean_clusters", "Mean number of clusters per word.", "count", low=0.0),
        Quantity(
            "share_of_words", "Words that belong to 0, 1, …, 6 or 7+ clusters.", "share", low=0.0, high=1.0,
            tags=("clusters/<number>",),
        ),
        Quantity("converged", "1, or 0 if there were too few iterations.", low=0.0, high=1.0),
        Quantity("iterations", "Iterations of Amari's rule or FastICA.", "count", low=0.0),
        Quantity("membership", "Value of a word in one of its clusters.", tags=()),
        Quantity("component_value", "Value of a word in a component.", tags=()),
        Quantity("count", "Occurrences of a word in the text of the frequencies.", "count", low=1.0, tags=()),
    )  # fmt: skip

    several_runs = True

    def __init__(
        self,
        *,
        embedding: str | None = None,
        words: int = 5000,
        components: int | None = None,
        method: Method = "amari",
        whiten: Whiten = "divide",
        nonlinearity: Nonlinearity = "bounded",
        learning_rate: float = 0.01,
        max_iterations: int = 20_000,
        threshold: float = 2.5,
        matrix_words: int = 500,
        frequency: FrequencySource | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.clustering = Clustering(
            components=_COMPONENTS if components is None else components,
            method=method,
            whiten=whiten,
            nonlinearity=nonlinearity,
            learning_rate=learning_rate,
            max_iterations=max_iterations,
            threshold=threshold,
            seed=seed,
        )
        for name, number, least in (
            ("words", words, (1 if components is None else components) + 1),
            ("matrix_words", matrix_words, 0),
        ):
            if number < least:
                raise ValueError(f"{name} is {number}: expected a number from {least}")
        self.embedding = embedding or "embedding"
        self.words = words
        self.matrix_words = matrix_words
        self.frequency = frequency
        self._ids = torch.empty(0, dtype=torch.int64)
        self._counts = self._ids
        self._tokens: list[str] = []
        self._size = 0

    # ---------------------------------------------------------------- before training

    def prepare(self) -> None:
        """Find the most frequent words."""
        counts = token_frequencies(self, self.frequency)
        self._size = len(counts)
        ranks = frequency_ranks(counts, special_tokens(self, len(counts)))
        found = ((ranks > 0) & (ranks <= self.words) & (counts > 0)).nonzero()[:, 0]
        self._ids = found[ranks[found].argsort()]
        self._counts = counts[self._ids]
        self._tokens = self._names(self._ids.tolist())
        components = 1 if self.hparams["components"] is None else self.clustering.components
        if len(self._ids) <= components:
            raise ValueError(
                f"{self.name}: {len(self._ids)} words occur, too few for {components} components: set "
                f"fewer `components`, at most {max(0, len(self._ids) - 1)}"
            )
        if len(self._ids) < self.words and rank_and_world_size()[0] == 0:
            log.info(
                "%s: %d words occur, fewer than `words`, which is %d", self.name, len(self._ids), self.words
            )

    def _names(self, ids: list[int]) -> list[str]:
        if self.run.tokenizer is not None:
            return [str(token) for token in self.run.tokenizer.convert_ids_to_tokens(ids)]
        if self.run.token_counts is not None:
            return [str(token) for token in self.run.token_counts["token"].iloc[ids]]
        return [str(i) for i in ids]

    def check_module(self, module: nn.Module) -> None:
        """Raise an error unless the path is an embedding of the vocabulary and at least as wide as the components."""
        self._find_embedding(module)
        width = self._weight(module).shape[1]
        if self.hparams["components"] is None:
            most = min(_COMPONENTS, width, len(self._ids) - 1)
            if most < _COMPONENTS:
                announce(
                    self.name, f"{most} components: there are {len(self._ids)} words, {width} numbers each"
                )
            self.clustering = replace(self.clustering, components=most)
            self._found["components"] = most
        components = self.clustering.components
        if width < components:
            raise ValueError(
                f"{self.name}: {self.embedding!r} has width {width}, got {components} components: lower `components`"
            )

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report the memory of embeddings and components of the words."""
        words, width, components = len(self._ids), self._weight(module).shape[1], self.clustering.components
        yield Cost(
            f"embeddings of {words:,} words, {width} numbers each, and their {components} components, in float64",
            8 * words * (2 * width + 4 * components),
            "lower `words` or `components`",
        )

    def _find_embedding(self, module: nn.Module) -> None:
        """Return the given path, ``embedding`` if the module has it, or the token embedding that is found."""
        if self.hparams["embedding"] is None and "embedding" not in self._found:
            found = self.embedding
            if not has_module(module, found):
                sites = choose_sites(
                    "auto", None, module, lambda: self.probe_set, self.forward,
                    whose=self.name, kinds=("embedding",),
                )  # fmt: skip
                found = next(iter(sites.values()))
            self.embedding = self._found["embedding"] = found

    def _weight(self, module: nn.Module) -> Float[Tensor, "vocabulary d"]:
        found = dict(module.named_modules()).get(self.embedding)
        weight = getattr(found, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim == 2 and len(weight) >= self._size:
            return weight.detach()
        there = [
            name
            for name, m in module.named_modules()
            if isinstance(w := getattr(m, "weight", None), Tensor) and w.ndim == 2 and len(w) == self._size
        ]
        got = (
            "no such module"
            if found is None
            else f"{type(found).__name__} with a weight of shape {tuple(weight.shape)}"
            if isinstance(weight, Tensor)
            else f"{type(found).__name__} without a weight"
        )
        raise ValueError(
            f"{self.name}: expected a module with a row for each of {self._size} token ids at {self.embedding!r}, got "
            f"{got}: set `embedding` to one of {there}"
        )

    # ---------------------------------------------------------------- observing

    def measure(self, module: nn.Module, step: int) -> pd.DataFrame:
        """Cluster the words by their embeddings; every rank does the same."""
        self.check_module(module)
        # during training, only the newest matrix is drawn: reading all of them would take long
        self.figure_rows = ~pc.field("quantity").isin(_BY_WORD) | (pc.field("step") == step)
        weight = self._weight(module)
        try:
            clusters = word_clusters(weight[self._ids.to(weight.device)], self.clustering)
        except UnusableEmbeddingsError as error:
            self._warn("%s: no clusters at step %d: %s", self.name, step, error)
            return self._table(None)
        if not clusters.converged:
            self._warn(
                "%s: not converged at step %d after %d iterations (residual %.3g): raise `max_iterations`, or "
                "use another learning rate",
                self.name, step, clusters.iterations, clusters.residual,
            )  # fmt: skip
        return self._table(clusters)

    @staticmethod
    def _warn(message: str, *arguments: Any) -> None:
        if rank_and_world_size()[0] == 0:
            log.warning(message, *arguments)

    def _table(self, clusters: ClusteredWords | None) -> pd.DataFrame:
        nan = float("nan")
        shares = clusters.shares(_MOST).tolist() if clusters else [nan] * (_MOST + 1)
        names = [*map(str, range(_MOST)), f"{_MOST}+"]
        scalars = [
            ("within_one", "", "", clusters.within_one if clusters else nan),
            ("mean_clusters", "", "", clusters.mean_clusters if clusters else nan),
            *(("share_of_words", "clusters", *pair) for pair in zip(names, shares, strict=True)),
            ("converged", "", "", float(clusters.converged) if clusters else 0.0),
            ("iterations", "", "", float(clusters.iterations) if clusters else nan),
        ]
        parts = [pd.DataFrame(scalars, columns=["quantity", "by", "group", "value"]).assign(token="")]
        if clusters is not None:
            tokens = pd.Series(self._tokens, dtype=object)
            clusters_named = pd.Series([cluster_name(c) for c in range(clusters.number)], dtype=object)
            parts.append(
                pd.DataFrame(
                    {
                        "quantity": "membership",
                        "by": "cluster",
                        "group": clusters_named.iloc[clusters.cluster.numpy()].to_numpy(),
                        "token": tokens.iloc[clusters.word.numpy()].to_numpy(),
                        "value": clusters.value.numpy(),
                    }
                )
            )
            matrix = clusters.values[: self.matrix_words]
            n, k = matrix.shape
            parts.append(
                pd.DataFrame(
                    {
                        "quantity": "component_value",
                        "by": "component",
                        "group": [str(c) for c in range(k) for _ in range(n)],
                        "token": self._tokens[:n] * k,
                        "value": matrix.T.flatten().numpy(),
                    }
                )
            )
            count = {"quantity": "count", "by": "token", "group": "", "token": self._tokens}
            parts.append(pd.DataFrame(count | {"value": self._counts.numpy()}))
        table = pd.concat([part.astype({"value": "float64"}) for part in parts], ignore_index=True)
        return table.assign(site="")[["quantity", "site", "by", "group", "token", "value"]]

    # ---------------------------------------------------------------- output

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return all rows except those of single words."""
        return ~observations["quantity"].isin(_BY_WORD)

    @staticmethod
    def record_rows(observations: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows for a record of a run: its scalars, and the words of each cluster at the last step.

        The value of a membership is reduced to its sign, which is also part of the cluster's name.
        """
        members = observations["quantity"].eq("membership")
        last = observations["step"].eq(observations["step"].max())
        kept = observations[WordClusters.is_scalar(observations) | (members & last)].copy()
        of_words = kept["quantity"].eq("membership")
        kept.loc[of_words, "value"] = kept.loc[of_words, "value"].transform("sign")
        return kept

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw figures 5 to 7 of the publication at the last step, curves over training, and several runs."""
        return cluster_figures(observations)

    @staticmethod
    def tables(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
        """Return the largest clusters with their typical words."""
        return cluster_table(observations)

    @staticmethod
    def tables_beside(
        observations: pd.DataFrame, others: Mapping[str, pd.DataFrame]
    ) -> dict[str, pd.DataFrame]:
        """Return table 3 of the publication: mean preference per cluster, if ``TowerPreference`` observed the runs."""
        if "TowerPreference" not in others:
            return {}
        return cluster_preferences(observations, others["TowerPreference"])
