"""Groups of tokens whose mean vectors ``Trajectory`` keeps: chosen words, values of layers, and words in classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from lmdyn.analysis.inspection.batches import text_of
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.run import announce
from lmdyn.callbacks.observing.token_groups import special_tokens

__all__ = ["WORD", "ChosenGroups", "Grouping", "Tree", "choose_groups"]

WORD = "word"
"""Name of the grouping by word."""

_MOST_NAMES = 8  # groups that are left out and named in a message


@dataclass(frozen=True)
class Grouping:
    """Disjoint groups of tokens.

    Attributes:
        by: ``word`` or a layer.
        names: of the groups.
        counts: number of tokens of each.
        parents: most frequent value of the first layer in each, for words; empty if there is none.
        first: number of its first group among all.
        group_of: (values,) number of the group of each token id or label, -1 for those left out.
    """

    by: str
    names: tuple[str, ...]
    counts: tuple[int, ...]
    parents: tuple[str, ...]
    first: int
    group_of: Int[Tensor, "values"]

    @property
    def numbers(self) -> range:
        """Numbers of its groups."""
        return range(self.first, self.first + len(self.names))


@dataclass(frozen=True)
class Tree:
    """Groups of a grouping within the values of the first layer, each with enough tokens.

    Attributes:
        by: grouping of the fine level.
        parents: (k,) label of the coarse level of each group.
        first: number of its first group among all.
        group_of: (labels, values) number of the group of each label and value; -1 for those left out.
    """

    by: str
    parents: Int[Tensor, "k"]
    first: int
    group_of: Int[Tensor, "labels values"]

    @property
    def numbers(self) -> range:
        """Numbers of its groups."""
        return range(self.first, self.first + len(self.parents))


@dataclass(frozen=True)
class ChosenGroups:
    """All groups of an observation.

    Attributes:
        groupings: those whose mean vectors are kept.
        trees: those of two levels, of which only variances are.
        coarse: layer of the trees' coarse level; empty if there is none.
        special: (vocabulary,) whether a token id is that of a special token.
    """

    groupings: tuple[Grouping, ...]
    trees: tuple[Tree, ...]
    coarse: str
    special: Tensor

    @property
    def number(self) -> int:
        """Number of all groups."""
        return self.kept + sum(len(tree.parents) for tree in self.trees)

    @property
    def kept(self) -> int:
        """Number of groups whose mean vectors are kept."""
        return sum(len(g.names) for g in self.groupings)

    def of(self, batch: Mapping[str, Any], tokens: Tensor) -> Int[Tensor, "batch time columns"]:
        """Return the groups of each token, a column for each grouping and tree, -1 for none.

        Args:
            batch: a batch of the probe set.
            tokens: (batch, time) mask of tokens.
        """
        ids = text_of(batch)
        there = tokens & ~self.special.to(ids.device)[ids.clamp(0, len(self.special) - 1)] & (ids >= 0)
        values = {g.by: _values(batch, g.by) for g in self.groupings}
        columns = [_looked_up(g.group_of, (values[g.by],), there) for g in self.groupings]
        if self.coarse:
            label = _values(batch, self.coarse)
            columns += [_looked_up(t.group_of, (label, values[t.by]), there) for t in self.trees]
        return torch.stack(columns, -1)


def _looked_up(table: Tensor, values: Sequence[Tensor], there: Tensor) -> Tensor:
    inside = there
    for value, size in zip(values, table.shape, strict=True):
        inside = inside & (value >= 0) & (value < size)
    return torch.where(inside, table.to(there.device)[tuple(v.where(inside, 0) for v in values)], -1)


def _values(batch: Mapping[str, Any], by: str) -> Tensor:
    values = text_of(batch) if by == WORD else batch.get(by)
    if not isinstance(values, Tensor):
        raise ValueError(f"expected batches with the layer {by!r}, got {sorted(batch)}")
    return values


def choose_groups(
    observer: Observer, words: int | Sequence[str], layers: Sequence[str], min_count: int
) -> ChosenGroups:
    """Count the tokens of the probe set, and choose groups with enough tokens; those left out are announced.

    Args:
        observer: attached observer.
        words: number of the most frequent words, or the words.
        layers: layers of the probe set; the first is the coarse level of the trees.
        min_count: least number of tokens of a group.

    Raises:
        ValueError: for words that are not in the vocabulary or in the text too seldom, and if no grouping has two
            groups.
    """
    counted, special = _counted(observer, bool(words), layers)
    coarse = layers[0] if layers else ""
    labels = observer.probe_set.label_names
    first, groupings, trees = 0, [], []
    for by, counts in counted.items():  # (coarse labels and a last row for none, values)
        total = counts.sum(0)
        if by == WORD:
            names = _names(observer, len(total))
            values = _words(observer, words, names, total, min_count)
        else:
            names = list(labels[by])
            values = _frequent(observer, by, names, total, min_count)
        if len(values) < 2:
            announce(
                observer.name,
                f"{len(values)} groups by {by} have at least {min_count} tokens, two are required: they are left out",
            )
            continue
        chosen = torch.tensor(values)
        parents: tuple[str, ...] = ()
        if by == WORD and coarse:
            most = counts[:-1, chosen].argmax(0).tolist()
            parents = tuple(labels[coarse][label] for label in most)
        group_of = torch.full((len(total),), -1)
        group_of[chosen] = first + torch.arange(len(values))
        sizes = tuple(int(total[v]) for v in values)
        groupings.append(Grouping(by, tuple(names[v] for v in values), sizes, parents, first, group_of))
        first += len(values)
    for grouping in groupings:
        if coarse and grouping.by != coarse:
            counts = torch.where(grouping.group_of >= 0, counted[grouping.by][:-1], 0)
            label, value = (counts >= min_count).nonzero(as_tuple=True)
            if len(label.unique()) < 2:
                continue
            cells = torch.full(counts.shape, -1)
            cells[label, value] = first + torch.arange(len(label))
            trees.append(Tree(grouping.by, label, first, cells))
            first += len(label)
    if not groupings:
        raise ValueError(
            f"{observer.name}: no grouping has two groups of at least {min_count} tokens: observe more text, lower "
            "`min_count`, or choose `words` or `layers`"
        )
    return ChosenGroups(tuple(groupings), tuple(trees), coarse, special)


def _counted(
    observer: Observer, words: bool, layers: Sequence[str]
) -> tuple[dict[str, Int[Tensor, "labels values"]], Tensor]:
    """Count tokens by grouping: by label of the first layer (a last row for none) and value. Also special tokens."""
    names = observer.probe_set.label_names
    vocabulary = 1 if observer.run.tokenizer is None else len(observer.run.tokenizer)
    for batch in observer.probe_set.batches():
        vocabulary = max(vocabulary, _ids(batch))
    special = special_tokens(observer, vocabulary)
    coarse = layers[0] if layers else ""
    rows = (len(names[coarse]) if coarse else 0) + 1
    sizes = {**({WORD: vocabulary} if words else {}), **{layer: len(names[layer]) for layer in layers}}
    counts = {by: torch.zeros(rows * size, dtype=torch.int64) for by, size in sizes.items()}
    for batch in observer.probe_set.batches():
        ids = text_of(batch)
        mask = batch.get("attention_mask")
        there = (ids >= 0) & ~special[ids.clamp(min=0)]
        if mask is not None:
            there = there & mask.bool()
        label = _values(batch, coarse) if coarse else ids.new_full(ids.shape, -1)
        label = torch.where(label >= 0, label, rows - 1)
        for by, size in sizes.items():
            value = _values(batch, by)
            inside = there & (value >= 0)
            counts[by] += torch.bincount(
                (label.long() * size + value.long())[inside].flatten().cpu(), minlength=rows * size
            )
    return {by: count.reshape(rows, -1) for by, count in counts.items()}, special


def _ids(batch: Mapping[str, Any]) -> int:
    ids = text_of(batch)
    return int(ids.max()) + 1 if ids.numel() else 1


def _names(observer: Observer, size: int) -> list[str]:
    run = observer.run
    if run.tokenizer is not None:
        found = run.tokenizer.convert_ids_to_tokens(list(range(min(size, len(run.tokenizer)))))
    elif run.token_counts is not None:
        found = [str(token) for token in run.token_counts["token"]]
    else:
        found = []
    return [*map(str, found), *map(str, range(len(found), size))][:size]


def _words(
    observer: Observer, words: int | Sequence[str], names: Sequence[str], total: Tensor, min_count: int
) -> list[int]:
    if isinstance(words, int):
        order = torch.argsort(total, descending=True, stable=True)[:words]
        return [int(i) for i in order if total[i] >= min_count]
    number = {name: i for i, name in enumerate(names)}
    if missing := [word for word in words if word not in number]:
        raise ValueError(
            f"{observer.name}: {missing} are not tokens of the vocabulary, such as {list(names[:10])}: choose others "
            "by `words`"
        )
    seldom = {word: int(total[number[word]]) for word in words if total[number[word]] < min_count}
    if seldom:
        raise ValueError(
            f"{observer.name}: expected words with at least {min_count} tokens, got {seldom}: choose others by "
            "`words`, lower `min_count`, or observe more text"
        )
    return [number[word] for word in words]


def _frequent(
    observer: Observer, layer: str, names: Sequence[str], total: Tensor, min_count: int
) -> list[int]:
    seldom = [name for name, n in zip(names, total.tolist(), strict=True) if n < min_count]
    if seldom:
        more = f" and {len(seldom) - _MOST_NAMES} more" if len(seldom) > _MOST_NAMES else ""
        announce(
            observer.name,
            f"groups by {layer} with fewer than {min_count} tokens are left out: "
            f"{', '.join(seldom[:_MOST_NAMES])}{more}",
        )
    return [i for i, n in enumerate(total.tolist()) if n >= min_count]
