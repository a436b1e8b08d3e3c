"""Mean vectors of words and classes over training: how they differentiate, and their pictures by PCA and MDS."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from torch import nn

from lmdyn.analysis.geometry.group_variance import GroupSums, GroupVectors, group_variance, nested_variance
from lmdyn.analysis.statistics.distributed import rank_and_world_size, union_over_ranks
from lmdyn.callbacks.conditions.amounts import site_widths
from lmdyn.callbacks.conditions.finding import Cost, Foreseen, expected
from lmdyn.callbacks.geometry.trajectory_figures import pictured_rows, trajectory_figures
from lmdyn.callbacks.geometry.trajectory_groups import WORD, ChosenGroups, choose_groups
from lmdyn.callbacks.observing.probe import ObservedBatch, token_vectors
from lmdyn.callbacks.observing.schema import Quantity
from lmdyn.callbacks.observing.streaming_observer import LSTM_SITES, StreamingObserver, given_sites
from lmdyn.callbacks.observing.token_groups import gold_layers

__all__ = ["MOST_NUMBERS", "Trajectory"]

log = logging.getLogger(__name__)

MOST_NUMBERS = 500_000
"""Most numbers of mean vectors in one observation, each a row: groups times dimensions, over sites; about 4 MB."""

_AT = ("<site>/<by>",)
_OF_LEVELS = ("<site>/<by>/<parent>",)
_OF_ALL = {
    "between_share": "between",
    "separation": "separation",
    "planar_share": "planar",
    "between_floor": "between_floor",
    "separation_floor": "separation_floor",
    "variance": "variance",
}
_OF_TREE = {
    "coarse_share": "coarse",
    "fine_share": "fine",
    "coarse_floor": "coarse_floor",
    "fine_floor": "fine_floor",
    "tree_variance": "variance",
}


class Trajectory(StreamingObserver):
    """Mean vectors of chosen words and of classes of tokens over training: variance between groups, PCA and MDS.

    At each site, the vectors of the tokens of a group (``by = word``: a word; ``by = upos``: a part of speech, ...) are
    averaged, in one pass over the text, with float64 sums. The means are kept, so that the figures draw them at up to 8
    steps: by PCA in axes common to all of these steps, and by metric multidimensional scaling of cosine distances, each
    picture aligned to the next one. Special tokens, masked ones among them, and padding are in no group.

    The first layer is the coarse level of trees, whose fine level are the words, or the values of another layer, within
    each of its values: the shares of the variance between coarse groups and between fine groups of one coarse group
    show which distinctions appear first. Floors are expected values for groups drawn at random.

    A number that is not defined has no row. If activations are NaN or infinite, the scalars of the site are NaN, with a
    warning, and it has no means.

    Args:
        sites: module path by display name; a pattern of paths (``"*.layers.*"``); or ``auto`` for found sites.
            By default those of ``LSTMLanguageModel``, and found ones in other modules.
        words: the words, or the number of the most frequent ones of the probe set; 0 or [] for none. Words are tokens
            of the vocabulary.
        layers: annotated layers of the probe set whose values are groups; by default ``upos`` if available.
        min_count: least number of tokens of a group; groups with fewer are left out, and named.
        **kwargs: see :class:`~lmdyn.callbacks.Observer`.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`. The means are stored and not logged.

    Raises:
        ValueError: for negative numbers; when attached, for a layer that the probe set lacks, words that are not in its
            text, text without two groups, and more than 500,000 numbers to keep.

    Reference: Saphra 2021, section 3.2 and figure 3.4; Saxe et al. 2019; Rogers & McClelland 2004.
    """

    uses_labels = False
    sharded = True
    default_sites = LSTM_SITES
    figure_rows = staticmethod(pictured_rows)

    recorded = (
        Quantity(
            "between_share", "Share of the variance of tokens' vectors between groups.", "share", low=0.0, high=1.0,
            tags=_AT,
        ),
        Quantity(
            "separation", "Distance of two groups' means over that of two tokens of one group (root mean squares).",
            low=0.0, tags=_AT,
        ),
        Quantity(
            "planar_share", "Share of the variance of the groups' means in two principal directions.", "share",
            low=0.0, high=1.0, tags=_AT,
        ),
        Quantity(
            "coarse_share", "Share of the variance between values of the first layer, of the tokens of a tree.",
            "share", low=0.0, high=1.0, tags=_OF_LEVELS,
        ),
        Quantity(
            "fine_share", "Share of the variance between groups within one value of the first layer.", "share",
            low=0.0, high=1.0, tags=_OF_LEVELS,
        ),
        Quantity("between_floor", "between_share of random groups.", "share", low=0.0, high=1.0, tags=()),
        Quantity("separation_floor", "separation of random groups.", low=0.0, tags=()),
        Quantity("coarse_floor", "coarse_share of random groups.", "share", low=0.0, high=1.0, tags=()),
        Quantity("fine_floor", "fine_share of groups at random within a value.", "share", low=0.0, high=1.0, tags=()),
        Quantity("variance", "Mean squared distance of the tokens' vectors to their mean.", low=0.0, tags=()),
        Quantity("tree_variance", "The same of the tokens of a tree.", low=0.0, tags=()),
        Quantity("mean", "A dimension of the mean vector of a group.", tags=()),
        Quantity("count", "Number of tokens of a group.", "count", low=1.0, tags=()),
    )  # fmt: skip

    def __init__(
        self,
        *,
        sites: Mapping[str, str] | str | None = None,
        words: int | Sequence[str] = 24,
        layers: Sequence[str] | None = None,
        min_count: int = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(words, int) and words < 0:
            raise ValueError(f"words is {words}: expected a number from 0, or a list of words")
        if not isinstance(words, int) and (isinstance(words, str) or len(set(words)) != len(list(words))):
            raise ValueError(f"words is {words!r}: expected a list of different words, or a number")
        if min_count < 1:
            raise ValueError(f"min_count is {min_count}: expected a number from 1")
        self.sites = given_sites(sites, LSTM_SITES)
        self.words = words if isinstance(words, int) else tuple(words)
        self.layers = tuple(layers or ())
        self.min_count = min_count
        self.groups: ChosenGroups | None = None

    def prepare(self) -> None:
        """Choose the groups."""
        self.layers = gold_layers(self, "groups")
        if WORD in self.layers:
            raise ValueError(
                f"{self.name}: expected layers with other names than {WORD!r}, that of groups by word"
            )
        self.groups = choose_groups(self, self.words, self.layers, self.min_count)

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report more numbers than an observation may keep, and the memory of sums."""
        assert self.groups is not None
        widths = site_widths(module, self.probe_set, self.sites, self.forward)
        numbers = self.groups.kept * sum(widths.values())
        if numbers > MOST_NUMBERS:
            groups = MOST_NUMBERS // max(1, sum(widths.values()))
            yield expected(
                f"at most {MOST_NUMBERS:,} numbers to keep",
                f"{numbers:,}: {self.groups.kept} groups of {sum(widths.values()):,} dimensions at {len(widths)} sites",
                f"observe fewer `sites`, or at most {groups} groups by `words` and `layers`",
                of="observation",
            )
        yield Cost(
            f"sums of {self.groups.number} groups at {len(widths)} sites",
            3 * 8 * self.groups.number * sum(widths.values()),
            "observe fewer `sites` or `words`",
        )

    def accumulator(self, module: nn.Module, step: int) -> "_Sums":
        """Return an accumulator of the sums of each group at each site."""
        return _Sums(self, step)

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return the rows of declared tags, which single groups do not have, and of the learning rate."""
        stored = [quantity.name for quantity in Trajectory.recorded if not quantity.tags]
        return ~observations["quantity"].isin(stored)

    @staticmethod
    def record_rows(observations: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows for a record of a run: all except the means."""
        return observations[observations["quantity"].ne("mean")]

    @staticmethod
    def figures(observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw variances between groups over steps, and pictures of the groups at up to 8 steps."""
        return trajectory_figures(observations, list(settings["sites"] or []))


class _Sums:
    """Sums of the vectors of each group at each site."""

    def __init__(self, observer: Trajectory, step: int) -> None:
        assert observer.groups is not None
        self._observer, self._step, self._groups = observer, step, observer.groups
        self._sums: dict[str, GroupSums] = {}

    def update(self, seen: ObservedBatch) -> None:
        index = self._groups.of(seen.batch, seen.tokens).flatten(0, 1)
        for name, activation in seen.activations.items():
            if name.split("@")[0] in self._observer.sites:  # other observers of the pass may use others
                x = token_vectors(name, activation, seen.tokens).flatten(0, 1)
                self._sums.setdefault(name, GroupSums(self._groups.number)).update(x, index)

    def table(self) -> pd.DataFrame:
        parts = [
            pd.DataFrame({"quantity": "count", "site": "", "by": g.by, "group": g.names, "value": g.counts})
            for g in self._groups.groupings
        ]
        broken = []
        for site in union_over_ranks(self._sums):
            sums = self._sums.setdefault(site, GroupSums(self._groups.number))
            sums.reduce()
            found = sums.result()
            if not found.finite:
                broken.append(site)
            parts.append(self._scalars(site, found))
            if found.finite:
                parts += self._means(site, found)
        if broken and rank_and_world_size()[0] == 0:
            log.warning(
                "%s: activations are not finite at step %d in %s: the model has diverged",
                self._observer.name, self._step, broken,
            )  # fmt: skip
        table = pd.concat([part.astype({"value": "float64"}) for part in parts], ignore_index=True)
        columns = ["quantity", "site", "by", "group", "parent", "dimension", "value"]
        table = table.reindex(columns=columns).fillna({"group": "", "parent": ""})
        return table.astype({"dimension": "Int64"})

    def _scalars(self, site: str, found: GroupVectors) -> pd.DataFrame:
        rows = []
        for grouping in self._groups.groupings:
            of_all = group_variance(found.of(grouping.numbers))
            rows += [(q, grouping.by, "", getattr(of_all, name)) for q, name in _OF_ALL.items()]
        for tree in self._groups.trees:
            of_tree = nested_variance(found.of(tree.numbers), tree.parents)
            rows += [
                (q, tree.by, self._groups.coarse, getattr(of_tree, name)) for q, name in _OF_TREE.items()
            ]
        if found.finite:
            rows = [row for row in rows if math.isfinite(row[-1])]
        return pd.DataFrame(rows, columns=["quantity", "by", "parent", "value"]).assign(site=site)

    def _means(self, site: str, found: GroupVectors) -> list[pd.DataFrame]:
        parts = []
        for grouping in self._groups.groupings:
            means = found.of(grouping.numbers).means
            n, d = means.shape
            names = {"group": grouping.names, "parent": grouping.parents or [""] * n}
            parts.append(
                pd.DataFrame(
                    {name: np.repeat(np.array(values, dtype=object), d) for name, values in names.items()}
                )
                .assign(quantity="mean", site=site, by=grouping.by, value=means.flatten().numpy())
                .assign(dimension=np.tile(np.arange(d), n))
            )
        return parts
