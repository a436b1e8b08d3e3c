"""Groups of tokens: by frequency, with ranks and special tokens; by sentence, in blocks for bootstrap intervals."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from pandas import DataFrame
from torch import Tensor

from lmdyn.analysis.inspection.attributes import did_you_mean
from lmdyn.analysis.inspection.batches import targets_of, text_of
from lmdyn.analysis.statistics.hashing import splitmix64
from lmdyn.analysis.words.frequency_cells import BLOCKS, LEAST_BLOCKS, frequency_ranks
from lmdyn.callbacks.observing.amounts import add_counts
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import ObservedBatch
from lmdyn.callbacks.observing.run import report, warn

__all__ = [
    "BLOCKS",
    "LEAST_BLOCKS",
    "FrequencySource",
    "SentenceBlocks",
    "band_names",
    "check_bands",
    "check_counts",
    "enough_blocks",
    "frequency_bands",
    "frequency_ranks",
    "gold_layers",
    "ranked_tokens",
    "sentence_numbers",
    "special_tokens",
    "token_frequencies",
    "token_hash",
    "token_names",
]

FrequencySource = Literal["train", "probe"]


def _known_source(observer: Observer) -> FrequencySource:
    if observer.run.token_counts is not None:
        return "train"
    report(observer.name, "training counts of tokens are unknown: lmdyn counts tokens in the probe set")
    return "probe"


def token_frequencies(observer: Observer, source: FrequencySource | None) -> Int[Tensor, "vocabulary"]:
    """Return the occurrences of each token id in the training data, or as targets in the observer's probe set.

    Without a ``source``, training counts are used if they exist; the choice is a setting of the observations.

    Raises:
        ValueError: without training counts, or for counts with missing ids.
    """
    if source is None:
        source = observer.found("frequency", lambda: _known_source(observer))
    tokenizer = observer.run.tokenizer
    if source == "train":
        counts = torch.from_numpy(observer.token_counts["count"].to_numpy(dtype="int64").copy())
        ids = (_ids_of(batch) for batch in observer.probe_set.batches())
        check_counts(observer, max(ids, default=0) if tokenizer is None else len(tokenizer))
        return counts
    counts = torch.zeros(1 if tokenizer is None else len(tokenizer), dtype=torch.int64)
    for batch in observer.probe_set.batches():
        targets = targets_of(batch)
        if targets.is_floating_point():
            raise ValueError(f"{observer.name}: expected integer token ids in batches, got {targets.dtype}")
        # tokens that are read but never predicted have the count 0
        counts = add_counts(counts, targets[targets >= 0].cpu(), _ids_of(batch))
    return counts


def check_counts(observer: Observer, size: int) -> None:
    """Raise an error for training counts of fewer than ``size`` token ids.

    Raises:
        ValueError: without training counts, or for counts with missing ids.
    """
    rows = len(observer.token_counts)
    if rows < size:
        raise ValueError(
            f"{observer.name}: `token_counts` has {rows} rows for {size} token ids: add one row per id, with 0 for "
            "absent tokens, or set `frequency: probe` (in Sparsity, also `pos_classes: false`)"
        )


def _ids_of(batch: Mapping[str, Any]) -> int:
    """Return one more than the highest token id of a batch."""
    tensors = [batch[key] for key in ("input_ids", "labels") if isinstance(batch.get(key), Tensor)]
    return max((int(t.max()) + 1 for t in tensors if t.numel()), default=0)


def special_tokens(observer: Observer, size: int) -> Bool[Tensor, "vocabulary"]:
    """Return which token ids are special tokens: padding, unknown, end of sentence."""
    special = torch.zeros(size, dtype=torch.bool)
    if observer.run.tokenizer is not None:
        special[[i for i in observer.run.tokenizer.all_special_ids if i < size]] = True
    return special


def ranked_tokens(
    observer: Observer, source: FrequencySource | None
) -> tuple[Int[Tensor, "vocabulary"], Int[Tensor, "vocabulary"]]:
    """Return occurrences and frequency rank of each token id, by :func:`token_frequencies`; 0 for no rank.

    Special tokens, and those that do not occur, have no rank.
    """
    counts = token_frequencies(observer, source)
    ranks = frequency_ranks(counts, special_tokens(observer, len(counts)))
    return counts, ranks.where(counts > 0, 0)


def token_names(tokenizer: Any, size: int, counts: DataFrame | None = None) -> list[str]:
    """Return the text of each token id, by the training counts without a tokenizer; the number of an unknown id."""
    ids = list(range(size))
    names = [None] * size if tokenizer is None else tokenizer.convert_ids_to_tokens(ids)
    if tokenizer is None and counts is not None:
        names[: len(counts)] = counts["token"][:size]
    return [str(i) if name is None else str(name) for i, name in zip(ids, names, strict=True)]


def frequency_bands(
    observer: Observer, starts: Sequence[int], source: FrequencySource | None
) -> tuple[list[str], Int[Tensor, "vocabulary"]]:
    """Return the names of frequency bands, and the band of each token id, -1 for special tokens.

    Args:
        observer: attached observer.
        starts: first frequency ranks of the bands after the first, increasing.
        source: see :func:`token_frequencies`.
    """
    counts = token_frequencies(observer, source)
    ranks = frequency_ranks(counts, special_tokens(observer, len(counts)))
    band = torch.bucketize(ranks, torch.tensor(starts), right=True)
    return band_names(starts), torch.where(ranks == 0, -1, band)


def band_names(starts: Sequence[int]) -> list[str]:
    """Return the names of frequency bands by the first ranks of those after the first.

    Example:
        >>> band_names([10, 100])
        ['1-9', '10-99', '100+']
    """
    firsts = (1, *starts)
    return [f"{a}-{b - 1}" for a, b in pairwise(firsts)] + [f"{firsts[-1]}+"]


def check_bands(starts: Sequence[int]) -> None:
    """Raise a ValueError for first ranks of frequency bands that do not increase from above 1."""
    if any(a >= b for a, b in pairwise((1, *starts))):
        raise ValueError(f"bands are {str(starts)[1:-1]}: expected increasing frequency ranks above 1")


def gold_layers(observer: Observer, what: str) -> tuple[str, ...]:
    """Return the argument ``layers`` of an observer, by default Universal POS if its probe set has it.

    Args:
        observer: attached observer with the argument.
        what: what is left out otherwise, for the message.

    Raises:
        ValueError: for a layer that the probe set lacks.
    """
    known = observer.probe_set.label_names

    def default() -> list[str]:
        if "upos" in known:
            return ["upos"]
        report(observer.name, f"the probe set has no layer 'upos': lmdyn leaves out {what} by part of speech")
        return []

    layers = tuple(observer.found("layers", default))
    if missing := [layer for layer in layers if layer not in known]:
        near = did_you_mean(missing[0], known) or ";"
        raise ValueError(
            f"{observer.name}: the probe set has no gold layers {', '.join(missing)}{near} the layers are "
            f"{', '.join(known) or 'none'}: set `layers` to some of these layers, or add a `tagger` to the datamodule"
        )
    return layers


class SentenceBlocks:
    """Block of each token's sentence: a hash of the sentence's position, equal for any number of ranks.

    Sentences end at the tokenizer's end-of-sentence (or separator) token; without one, a row is one sentence.

    Args:
        tokenizer: the run's tokenizer, or None.
        seed: seed of the blocks.
    """

    def __init__(self, tokenizer: Any, seed: int) -> None:
        ends = (getattr(tokenizer, name, None) for name in ("eos_token_id", "sep_token_id"))
        self._ends = sorted({end for end in ends if end is not None})
        self._seed = seed
        self._sentence: Tensor | None = None

    def reduce(self) -> None:
        """Do nothing: there is no sum; part of the interface of :class:`Sums`."""

    def of(self, seen: ObservedBatch) -> Int[Tensor, "batch time"]:
        """Return the block of each token of the next batch of a pass, from 0 to 63."""
        numbers, self._sentence = sentence_numbers(seen, self._ends, self._sentence)
        return token_hash(seen, self._seed, numbers) % BLOCKS


def enough_blocks(blocks: int, name: str, step: int) -> bool:
    """Return whether there are enough blocks to resample, at least 5; if not, log a warning."""
    if blocks < LEAST_BLOCKS:
        warn(
            name,
            f"no confidence intervals at step {step}: expected at least {LEAST_BLOCKS} blocks of sentences, got "
            f"{blocks}: observe more text, or text with the tokenizer's end-of-sentence token after each sentence",
        )
    return blocks >= LEAST_BLOCKS


def sentence_numbers(
    seen: ObservedBatch, ends: Sequence[int], before: Int[Tensor, "batch"] | None
) -> tuple[Int[Tensor, "batch time"], Int[Tensor, "batch"]]:
    """Return the number of each token's sentence within its stream; one sentence per row if no tokens end sentences.

    Args:
        seen: a batch.
        ends: ids of the tokens that end a sentence (inclusive).
        before: numbers of the last sentences in the rows of the previous batch; None at the start.

    Returns:
        The numbers, and those for the next batch.
    """
    ids = text_of(seen.batch)
    ending = torch.isin(ids, torch.tensor(list(ends), dtype=ids.dtype, device=ids.device)).long()
    numbers = ending.cumsum(1) - ending
    if before is not None and len(before) == len(numbers):
        numbers = numbers + torch.where(seen.start > 0, before, 0)[:, None]
    return numbers, numbers[:, -1] + ending[:, -1]


def token_hash(
    seen: ObservedBatch, seed: int, positions: Int[Tensor, "batch time"] | None = None
) -> Int[Tensor, "batch time"]:
    """Return a pseudo-random number from 0 to 2⁶³ − 1 for each position of each row, for any number of ranks the same.

    Args:
        seen: a batch.
        seed: seed of the numbers.
        positions: numbers within each row's stream; the positions of the tokens by default.
    """
    if positions is None:
        time = torch.arange(text_of(seen.batch).shape[1], device=seen.start.device)
        positions = seen.start[:, None] + time
    z = (seen.rows[:, None] << 24) + positions + seed * -0x61C8864680B583EB % 2**63
    return splitmix64(z) & (2**63 - 1)
