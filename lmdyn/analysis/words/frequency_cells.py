"""Samples of words by frequency, and means over the word types of each with errors over text."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from pandas import DataFrame
from torch import Tensor

from lmdyn.analysis.statistics.grouped import GroupedMeans
from lmdyn.analysis.words.concentration import CLOSED_CLASSES, OPEN_CLASSES, word_tags
from lmdyn.analysis.words.frequency_matching import match_frequency

__all__ = ["BLOCKS", "FrequencyCells", "class_samples", "frequency_ranks", "frequency_samples", "word_rows"]

BLOCKS = 64
"""Blocks of sentences, over which numbers have errors."""

LEAST_BLOCKS = 5
"""Blocks with data, from which on there are errors."""

_TOP = 20
_LEAST = 100
_EDGES = (10, 30, 100, 300, 1000, 3000)
_BANDS = {"0-9": (0,), "10-99": (1, 2), "100-999": (3, 4), "1000+": (5, 6)}
"""Bands of training frequency, and the half-decades of each."""
_HALVES = {f"{a}-{b - 1}": i for i, (a, b) in enumerate(pairwise(_EDGES), 1)} | {
    f"{_EDGES[-1]}+": len(_EDGES)
}


def frequency_ranks(
    counts: Int[Tensor, "vocabulary"], special: Bool[Tensor, "vocabulary"]
) -> Int[Tensor, "vocabulary"]:
    """Return the frequency rank of each token id, 1 for the most frequent; 0 for special tokens. Ties by id.

    Example:
        >>> frequency_ranks(torch.tensor([9, 5, 7]), torch.tensor([True, False, False]))
        tensor([0, 2, 1])
    """
    order = torch.argsort(torch.where(special, -1, counts), descending=True, stable=True)
    ranks = torch.empty_like(counts)
    ranks[order] = torch.arange(1, len(counts) + 1)
    return torch.where(special, 0, ranks)


def frequency_samples(
    counts: Int[Tensor, "vocabulary"], classes: Mapping[str, Bool[Tensor, "vocabulary"]]
) -> dict[str, Bool[Tensor, "vocabulary"]]:
    """Return samples that show the effect of a few words, or of rare ones, on a correlation with frequency.

    Args:
        counts: (vocabulary,) occurrences of each word.
        classes: samples by name: ``""`` for all words, ``open`` and ``closed``.

    Returns:
        ``no_top20``: without the 20 most frequent of all words (ties by id); ``count100``: words of at least 100
        occurrences, as in the publication's vocabulary; ``count100_no_top20``: both; ``open_no_top20`` and
        ``closed_no_top20``.

    Example:
        >>> words = torch.ones(30, dtype=torch.bool)
        >>> samples = frequency_samples(torch.arange(80, 110), {"": words})
        >>> {name: int(sample.sum()) for name, sample in samples.items()}
        {'no_top20': 10, 'count100': 10, 'count100_no_top20': 0}
    """
    words = classes[""]
    ranks = frequency_ranks(counts, ~words)
    rest = ranks > _TOP
    samples = {"no_top20": rest, "count100": words & (counts >= _LEAST)}
    samples["count100_no_top20"] = samples["count100"] & rest
    for name in ("open", "closed"):
        if name in classes:
            samples[f"{name}_no_top20"] = classes[name] & rest
    return samples


def class_samples(
    table: DataFrame,
    special: Bool[Tensor, "vocabulary"],
    *,
    min_count: int = 100,
    matched_size: int | None = 120,
    tolerance: float = 0.05,
) -> tuple[list[str], dict[str, Bool[Tensor, "vocabulary"]]]:
    """Return the Universal POS tag of each word type, empty for none, and samples of open and closed classes.

    Args:
        table: a row for each token id: its ``count``, and its occurrences under each tag in columns ``NOUN`` …
        special: (vocabulary,) which ids are no words; rows beyond them do not occur.
        min_count: see :func:`~lmdyn.analysis.words.concentration.word_tags`.
        matched_size: words in each of the samples ``open_matched`` and ``closed_matched``; None for none.
        tolerance: see :func:`~lmdyn.analysis.words.frequency_matching.match_frequency`.

    Raises:
        ValueError: without tags; if there are no samples of this size with similar average frequencies.

    Example:
        >>> table = DataFrame({"count": [9, 7, 4], "NOUN": [9, 0, 3], "DET": [0, 7, 0]})
        >>> special = torch.zeros(3, dtype=torch.bool)
        >>> names, samples = class_samples(table, special, min_count=3, matched_size=1, tolerance=0.3)
        >>> names, samples["open"].tolist()
        (['NOUN', 'DET', 'NOUN'], [True, False, True])
        >>> samples["open_matched"].tolist(), samples["closed_matched"].tolist()
        ([True, False, False], [False, True, False])
    """
    tags = [tag for tag in (*OPEN_CLASSES, *CLOSED_CLASSES) if tag in table]
    if not tags:
        raise ValueError(
            "the training data has no parts of speech: add a layer `upos` to the datamodule (gold, or by a `tagger`)"
        )
    columns = table.iloc[: len(special)][["count", *tags]]
    count, *of_tags = torch.from_numpy(columns.to_numpy(dtype="int64").T.copy())
    tag = word_tags(torch.stack(of_tags, 1), count, min_count=min_count).where(~special, -1)
    is_open = torch.tensor([name in OPEN_CLASSES for name in tags])[tag]
    upos = [tags[i] if i >= 0 else "" for i in tag.tolist()]
    samples = {"open": (tag >= 0) & is_open, "closed": (tag >= 0) & ~is_open}
    if matched_size is not None:
        try:
            ids = [words.nonzero()[:, 0] for words in samples.values()]
            matched = match_frequency(count[ids[0]], count[ids[1]], size=matched_size, tolerance=tolerance)
        except ValueError as error:
            raise ValueError(
                f"matched_size: {error}; set `matched_size: null` to omit matched samples"
            ) from None
        for name, words, index in zip(("open", "closed"), ids, (matched.first, matched.second), strict=True):
            samples[f"{name}_matched"] = torch.zeros_like(special).index_fill(0, words[index], True)
    return upos, samples


def word_rows(
    parts: Sequence[tuple[tuple[str, str, str], Int[Tensor, "_"], Float[Tensor, "_"]]],
    words: Sequence[str],
    upos: Sequence[str],
    samples: Mapping[str, Bool[Tensor, "vocabulary"]],
) -> DataFrame:
    """Return a row for each word of each part, with its class if it has one.

    Args:
        parts: quantity, site and role; ids of words; their values, of which infinite ones become NaN.
        words: text of each word.
        upos: Universal POS of each word, empty for none.
        samples: samples by name, of which ``open`` and ``closed`` are classes.
    """
    classes = pd.Series("", index=range(len(words)))
    for name in ("open", "closed"):
        if name in samples:
            classes[samples[name].numpy()] = name
    places, ids, values = zip(*parts, strict=True)
    labels = DataFrame(places, columns=["quantity", "site", "role"])
    # taken from columns of text: creating these from lists of strings takes most of an observation
    labels = labels.loc[labels.index.repeat([*map(len, ids)])].reset_index(drop=True)
    texts = DataFrame({"pos_class": classes, "word": words, "upos": upos}).take(torch.cat(ids).numpy())
    value = torch.cat(values)
    value = value.where(value.isfinite(), torch.nan)
    return pd.concat([labels, texts.reset_index(drop=True)], axis=1).assign(value=value.numpy())


class FrequencyCells:
    """Means over word types, in bands of frequency and in classes, from one pass over tokens, with errors over text.

    A token has the weight 1 / frequency of its word: the weighted mean over the tokens of a band is the mean over its
    word types with equal, known weights. The error is that of a ratio over blocks of sentences,
    √(Σ_b (Σ_{i∈b} w_i (x_i − x̄))² · B / (B − 1)) / Σ w (Liang & Zeger 1986), for another text and the same words.

    Args:
        counts: (vocabulary,) occurrences of each word; a word without occurrences counts as one with a single one.
        samples: words by the name of their sample: ``""`` for all, and, if available, ``open`` and ``closed``
            classes, which do not overlap, and ``open_matched`` and ``closed_matched`` within them.
    """

    def __init__(
        self, counts: Int[Tensor, "vocabulary"], samples: Mapping[str, Bool[Tensor, "vocabulary"]]
    ) -> None:
        self._weight = 1 / counts.clamp(min=1).double()
        half = torch.bucketize(counts, torch.tensor(_EDGES), right=True)
        members = {band: samples[""] & torch.isin(half, torch.tensor(part)) for band, part in _BANDS.items()}
        for name in ("open", "closed"):
            if name in samples:
                members |= {f"{name}_{band}": samples[name] & (half == i) for band, i in _HALVES.items()}
            if f"{name}_matched" in samples:
                members[f"{name}_matched"] = samples[f"{name}_matched"]
        # a cell for each set of samples that some word is in
        cells, cell = torch.stack([*members.values()]).unique(dim=1, return_inverse=True)
        self._unions = {name: row.nonzero()[:, 0] for name, row in zip(members, cells, strict=True)}
        self._cells = cells.shape[1]
        self._cell = torch.where(samples[""], cell, -1)
        self._sums = {role: GroupedMeans(BLOCKS * self._cells) for role in ("target", "input")}

    def update(
        self,
        role: str,
        words: Int[Tensor, "n"],
        blocks: Int[Tensor, "n"],
        values: Mapping[str, Float[Tensor, "n"]],
    ) -> None:
        """Add tokens: the word of each (negative for none), its block of sentences and its values.

        A value of NaN is left out; an infinite one makes the means that include it NaN.
        """
        kind = torch.float32 if words.device.type == "mps" else torch.float64  # which mps does not have
        self._cell, self._weight = self._cell.to(words.device), self._weight.to(words.device, kind)
        known = words.clamp(min=0)
        cell = torch.where(words >= 0, self._cell[known], -1)
        groups = torch.where(cell >= 0, blocks * self._cells + cell, -1)
        weight = self._weight[known]
        for name, value in values.items():
            weighed = torch.where(value.isnan(), torch.nan, weight)
            self._sums[role].update(groups, {name: value * weighed, _weight_of(name): weighed})

    def reduce(self) -> None:
        """Add the sums of all ranks."""
        for sums in self._sums.values():
            sums.reduce()

    def blocks(self) -> int | None:
        """Return the number of blocks of sentences with data; None without values."""
        weights = (sums.sum(_weight_of(key)) for sums in self._sums.values() for key in sums.names[::2])
        return next((int((weight.view(BLOCKS, -1).sum(1) > 0).sum()) for weight in weights), None)

    def table(self) -> DataFrame:
        """Return rows of the means, ``<quantity>_types``, and of their errors, ``<quantity>_types_error``.

        Values added under ``<quantity>/<site>`` belong to this quantity and site. Without five blocks of sentences
        there are no errors; a mean from one block has none.
        """
        rows: list[tuple[str, str, str, str, float]] = []
        enough = (self.blocks() or 0) >= LEAST_BLOCKS
        for role, sums in self._sums.items():
            for key in sums.names[::2]:
                quantity, site = key.split("/")
                total, weight = (sums.sum(part).view(BLOCKS, -1) for part in (key, _weight_of(key)))
                for sample, cells in self._unions.items():
                    mean, error = _ratio(total[:, cells].sum(1), weight[:, cells].sum(1))
                    if not math.isnan(mean):
                        known = mean if math.isfinite(mean) else math.nan
                        rows.append((f"{quantity}_types", site, role, sample, known))
                        if enough and not math.isnan(error):
                            rows.append((f"{quantity}_types_error", site, role, sample, error))
        return DataFrame(rows, columns=["quantity", "site", "role", "pos_class", "value"])

    def words(self, role: str, seen: Bool[Tensor, "vocabulary"]) -> DataFrame:
        """Return rows ``words``: the number of word types in each band, among those seen in a role."""
        cell = self._cell.cpu()[seen]
        number = torch.bincount(cell[cell >= 0], minlength=self._cells)
        rows = [
            ("words", "", role, sample, float(number[cells].sum()))
            for sample, cells in self._unions.items()
            if not sample.endswith("_matched")  # those are counted with ρ
        ]
        table = DataFrame(rows, columns=["quantity", "site", "role", "pos_class", "value"])
        return table[table["value"] > 0]


def _weight_of(key: str) -> str:
    return f"{key} weight"


def _ratio(totals: Float[Tensor, "blocks"], weights: Float[Tensor, "blocks"]) -> tuple[float, float]:
    """Return Σ totals / Σ weights and its error over the blocks with weights; NaN if none, no error if one."""
    weight, blocks = float(weights.sum()), int((weights > 0).sum())
    if blocks == 0:
        return math.nan, math.nan
    mean = float(totals.sum()) / weight
    if blocks == 1:
        return mean, math.nan
    residuals = totals - mean * weights
    return mean, math.sqrt(float(residuals @ residuals) * blocks / (blocks - 1)) / weight
