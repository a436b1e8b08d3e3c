"""Mean vectors of words and classes over training: how they differentiate, and their pictures by PCA and MDS."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Int
from matplotlib.figure import Figure
from pandas import DataFrame
from torch import Tensor, nn

from lmdyn.analysis.geometry.group_cells import GroupCells
from lmdyn.analysis.geometry.group_variance import GroupSums, GroupVectors, group_variance
from lmdyn.analysis.inspection.batches import text_of, tokens_of
from lmdyn.callbacks.geometry.trajectory_figures import pictured_rows, pictures
from lmdyn.callbacks.observing.amounts import add_counts, site_widths
from lmdyn.callbacks.observing.checked_fields import From
from lmdyn.callbacks.observing.findings import Cost, Foreseen, expected
from lmdyn.callbacks.observing.probe import ObservedBatch, token_vectors
from lmdyn.callbacks.observing.run import report
from lmdyn.callbacks.observing.streaming_observer import LSTM_SITES, Sites, StreamingObserver, Watched
from lmdyn.callbacks.observing.sums import Sums
from lmdyn.callbacks.observing.token_groups import gold_layers, token_names
from lmdyn.runs.schema import Quantity

__all__ = ["MOST_NUMBERS", "Trajectory"]

MOST_NUMBERS = 500_000
"""Most numbers of mean vectors in one observation, each a row: groups times dimensions, over sites; about 4 MB."""

_WORD = "word"  # the grouping by word
_MOST_NAMES = 8  # groups that are left out and named in a message

_AT = ("<site>/<by>",)
_share = partial(Quantity, unit="share", low=0.0, high=1.0)
_of_groups = partial(_share, tags=_AT, panel="groups")
_of_levels = partial(_share, tags=("<site>/<by>/<parent>",), panel="differentiation")
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


@dataclass(frozen=True)
class _Grouping:
    """Groups of tokens by a layer, or by word: their names, numbers of tokens, and most frequent coarse labels."""

    by: str
    names: Sequence[str]
    counts: Sequence[int]
    parents: Sequence[str]
    cells: GroupCells


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

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`. The means are stored and not logged.

    Raises:
        ValueError: for negative numbers; when attached, for a layer that the probe set lacks, words that are not in its
            text, text without two groups, and more than 500,000 numbers to keep.

    Reference: Saphra 2021, section 3.2 and figure 3.4; Saxe et al. 2019; Rogers & McClelland 2004.
    """

    sites: Sites = None
    words: Annotated[int, From(0)] | Sequence[str] = 24
    layers: Sequence[str] | None = None
    min_count: Annotated[int, From(1)] = 10

    uses_labels = False
    sharded = True
    watches = (Watched("sites", LSTM_SITES),)
    columns = {"by": "", "group": "", "parent": "", "dimension": int}
    figure_rows = staticmethod(pictured_rows)
    recorded = (
        _of_groups(
            "between_share", "Share of the tokens' variance that is between groups.", lines="site",
            short="variance between groups", floor="between_floor",
        ),
        Quantity(
            "separation", "Distance of two groups' means / distance of two tokens of a group (root mean squares).",
            low=0.0, tags=_AT, panel="groups", short="distance between over\ndistance within", floor="separation_floor",
        ),
        _of_groups(
            "planar_share", "Share of the variance of the groups' means along two principal directions.",
            short="variance of means\nin two directions",
        ),
        _of_levels(
            "coarse_share", "Share of tree_variance between the values of the first layer.", lines="site",
            short="between coarse groups", floor="coarse_floor",
        ),
        _of_levels(
            "fine_share", "Share of tree_variance between groups within a value of the first layer.",
            short="between fine groups\nof a coarse one", floor="fine_floor",
        ),
        _share("between_floor", "Expected between_share of random groups.", tags=()),
        Quantity("separation_floor", "Expected separation of random groups.", low=0.0, tags=()),
        _share("coarse_floor", "Expected coarse_share of random groups.", tags=()),
        _share("fine_floor", "Expected fine_share of random groups.", tags=()),
        Quantity("variance", "Mean squared distance of the tokens' vectors from their mean.", low=0.0, tags=()),
        Quantity("tree_variance", "Variance of the tokens that are in the tree.", low=0.0, tags=()),
        Quantity("mean", "One component of a group's mean vector.", tags=()),
        Quantity("count", "Number of tokens of a group.", "count", low=1.0, tags=()),
    )  # fmt: skip

    def prepare(self) -> None:
        """Count the tokens of the probe set, and choose groups of enough tokens; those left out are reported."""
        layers = gold_layers(self, "groups")
        if _WORD in layers:
            raise ValueError(
                f"{self.name}: an annotated layer of the probe set is called {_WORD!r}, a name that lmdyn reserves for "
                "groups by word: rename the layer in `label_names` and in the batches"
            )
        known = self.probe_set.label_names
        tokenizer = self.run.tokenizer
        self.special = torch.tensor([] if tokenizer is None else tokenizer.all_special_ids, dtype=torch.int64)
        self.coarse = layers[0] if layers else ""
        self.coarse_names = [*known.get(self.coarse, ()), ""]  # the last one is none
        sizes = {_WORD: 0 if tokenizer is None else len(tokenizer)} if self.words else {}
        sizes |= {layer: len(known[layer]) for layer in layers}
        self.groupings: list[_Grouping] = []
        self.cells = 0
        for by, counts in self._counted(sizes).items():
            names = (
                token_names(tokenizer, len(counts), self.run.token_counts) if by == _WORD else list(known[by])
            )
            values = self._values(by, names, counts.sum(1))
            if len(values) < 2:
                report(
                    self.name,
                    f"lmdyn leaves out groups by {by}: fewer than two of these groups have {self.min_count} tokens",
                )
                continue
            of_tree = by == _WORD and self.coarse
            most = counts[values, :-1].argmax(1) if of_tree else torch.full_like(values, -1)
            self.groupings.append(
                _Grouping(
                    by,
                    [names[value] for value in values.tolist()],
                    counts[values].sum(1).tolist(),
                    [self.coarse_names[label] for label in most.tolist()],
                    GroupCells.of(counts, values, self.min_count, self.cells),
                )
            )
            self.cells += len(self.groupings[-1].cells.group)
        if not self.groupings:
            raise ValueError(
                f"{self.name}: no grouping has two groups of at least {self.min_count} tokens: observe more text, "
                "lower `min_count`, or set `words` or `layers` to other groups"
            )

    def _counted(self, sizes: Mapping[str, int]) -> dict[str, Int[Tensor, "values labels"]]:
        """Count the tokens of each value and coarse label, by grouping; there may be more words than are known."""
        labels = len(self.coarse_names)
        counts = {by: torch.zeros(size * labels, dtype=torch.int64) for by, size in sizes.items()}
        for batch in self.probe_set.batches():
            for by, numbers in self._numbers(batch, counts).items():
                counts[by] = add_counts(counts[by], numbers[numbers >= 0].cpu())
        padded = (nn.functional.pad(count, (0, -len(count) % labels)) for count in counts.values())
        return {by: count.reshape(-1, labels) for by, count in zip(counts, padded, strict=True)}

    def _numbers(
        self, batch: Mapping[str, Any], groupings: Iterable[str]
    ) -> dict[str, Int[Tensor, "batch time"]]:
        """Return the number of each token's value and coarse label, by grouping; −1 for tokens of no group."""
        ids, none = text_of(batch), len(self.coarse_names) - 1
        there = tokens_of(batch) & (ids >= 0) & ~torch.isin(ids, self.special.to(ids.device))

        def of(by: str) -> Tensor:
            if not isinstance(value := ids if by == _WORD else batch.get(by), Tensor):
                raise ValueError(f"{self.name}: expected a tensor {by!r} in batches, got {', '.join(batch)}")
            return value.long()

        label = of(self.coarse) if self.coarse else ids.new_full(ids.shape, none)
        label = label.where((label >= 0) & (label < none), none)
        values = {by: of(by) for by in groupings}
        return {
            by: (value * (none + 1) + label).where(there & (value >= 0), -1) for by, value in values.items()
        }

    def _values(self, by: str, names: Sequence[str], total: Int[Tensor, "values"]) -> Int[Tensor, "groups"]:
        """Return the values that are groups: the chosen words, or those of a layer with enough tokens."""
        enough = total >= self.min_count
        if by == _WORD and not isinstance(self.words, Sequence):
            often = total.argsort(descending=True, stable=True)[: self.words]
            return often[enough[often]]
        if by == _WORD:
            assert isinstance(self.words, Sequence)
            number = {name: i for i, name in enumerate(names)}
            counts = {word: int(total[number[word]]) if word in number else 0 for word in self.words}
            if few := [f"{n} of {word!r}" for word, n in counts.items() if n < self.min_count]:
                raise ValueError(
                    f"{self.name}: expected at least {self.min_count} tokens of each of `words`, got {', '.join(few)}"
                    ". Choose other `words` of the vocabulary, lower `min_count`, or observe more text"
                )
            return torch.tensor([number[word] for word in counts])
        if few := [name for name, there in zip(names, enough.tolist(), strict=True) if not there]:
            report(
                self.name,
                f"lmdyn leaves out {len(few)} groups by {by} with fewer than {self.min_count} tokens: "
                f"{', '.join(few[:_MOST_NAMES])}",
            )
        return enough.nonzero()[:, 0]

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report more numbers than an observation may keep, and the memory of sums."""
        widths = site_widths(module, self.probe_set, self.paths("sites"), self.forward)
        dimensions = sum(widths.values())
        kept = sum(len(grouping.names) for grouping in self.groupings)
        if kept * dimensions > MOST_NUMBERS:
            yield expected(
                f"at most {MOST_NUMBERS:,} numbers to keep",
                f"{kept * dimensions:,}: {kept} groups of {dimensions:,} dimensions at {len(widths)} sites",
                f"observe fewer `sites`, or `words` and `layers` with at most {MOST_NUMBERS // dimensions} groups",
                of="observation",
            )
        yield Cost(
            f"sums of {self.cells} groups at {len(widths)} sites",
            3 * 8 * self.cells * dimensions,
            "observe fewer `sites` or `words`",
        )

    def sums(self) -> Mapping[str, Callable[[], Any]]:
        """Return sums of vectors by cell."""
        return {"cells": partial(GroupSums, self.cells)}

    def update(self, seen: ObservedBatch, sums: Sums) -> None:
        """Add the vectors of a batch to the cells of their tokens."""
        numbers = self._numbers(seen.batch, [grouping.by for grouping in self.groupings])
        cells = [grouping.cells.find(numbers[grouping.by]) for grouping in self.groupings]
        index = torch.stack(cells, -1).flatten(0, 1)
        for name, activation in self.at("sites", seen.activations).items():
            sums["cells", name].update(token_vectors(name, activation, seen.tokens).flatten(0, 1), index)

    def rows(self, sums: Sums) -> Iterator[DataFrame]:
        """Yield counts of tokens, and variances and means of groups at each site."""
        for grouping in self.groupings:
            of_tokens = {"group": grouping.names, "value": grouping.counts}
            yield DataFrame({"quantity": "count", "by": grouping.by, **of_tokens})
        for (site,), total in sums.of("cells"):
            found = total.result()
            yield self._variances(found).assign(site=site)
            for grouping in self.groupings if found.finite else ():
                yield _means(grouping, found).assign(site=site)

    def _variances(self, found: GroupVectors) -> DataFrame:
        rows: list[tuple[str, str, str, float]] = []
        for g in self.groupings:
            of_all = group_variance(g.cells.groups(found))
            rows += [(quantity, g.by, "", getattr(of_all, name)) for quantity, name in _OF_ALL.items()]
        for g in self.groupings:
            tree = None if g.by == self.coarse else g.cells.tree(found)
            if tree is not None:
                rows += [(q, g.by, self.coarse, getattr(tree, name)) for q, name in _OF_TREE.items()]
        if found.finite:
            rows = [row for row in rows if math.isfinite(row[-1])]
        return DataFrame(rows, columns=["quantity", "by", "parent", "value"])

    @staticmethod
    def record_rows(observations: DataFrame, settings: Mapping[str, Any]) -> DataFrame:
        """Return the rows for a record of a run: all except the means."""
        return observations[observations["quantity"].ne("mean")]

    @classmethod
    def figures(cls, observations: DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw variances between groups over steps, and pictures of the groups at up to 8 steps."""
        return super().figures(observations, settings) | pictures(observations)


def _means(grouping: _Grouping, found: GroupVectors) -> DataFrame:
    """Return a row for each dimension of each group's mean."""
    means = grouping.cells.groups(found).means
    n, d = means.shape
    names, parents = (np.array(v, dtype=object).repeat(d) for v in (grouping.names, grouping.parents))
    dimension = np.tile(np.arange(d), n)
    values = means.flatten().numpy()
    of_groups = {"group": names, "parent": parents, "dimension": dimension, "value": values}
    return DataFrame({"quantity": "mean", "by": grouping.by, **of_groups})
