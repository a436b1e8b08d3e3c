"""Order in which a masked language model learns words: reconstruction of visible words, prediction of masked ones."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import Module

from lmdyn.analysis.inspection.batches import rows_at
from lmdyn.analysis.inspection.forward import device_of
from lmdyn.analysis.inspection.predictions import hits, logits_at
from lmdyn.analysis.statistics.distributed import rank_and_world_size
from lmdyn.analysis.statistics.grouped import GroupedMeans
from lmdyn.analysis.words.word_masks import BatchWords, masked_copies, number_words, word_hash, words_right
from lmdyn.callbacks.observing.checked_fields import From
from lmdyn.callbacks.observing.findings import Foreseen, expected
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.probe import to_device
from lmdyn.callbacks.observing.run import warn
from lmdyn.callbacks.observing.sums import Row, tabulate
from lmdyn.callbacks.observing.token_groups import FrequencySource, ranked_tokens
from lmdyn.callbacks.words.token_learning_figures import rescaled_figures
from lmdyn.runs.schema import Quantity

__all__ = ["POS_GROUPS", "VERB_FORMS", "TokenLearning"]

POS_GROUPS: Mapping[str, tuple[str, ...]] = {
    "conjunction": ("CC",),
    "determiner": ("DT",),
    "preposition": ("IN",),
    "adjective": ("JJ", "JJR", "JJS"),
    "adverb": ("RB", "RBR", "RBS"),
    "verb": ("VB", "VBD", "VBG", "VBN", "VBZ"),
    "noun": ("NN", "NNS"),
    "proper_noun": ("NNP", "NNPS"),
}
"""Groups of Chiang, Huang & Lee 2020, table 3, by Penn Treebank tag. Its 21,405 verbs are the sum of table 4, which
has no VBP."""

VERB_FORMS = ("VB", "VBD", "VBG", "VBN", "VBZ", "VBP")
"""The forms of their table 4, and VBP, which it does not contain."""

_QUANTITIES: tuple[Literal["reconstruction", "prediction"], ...] = ("reconstruction", "prediction")
_GROUPINGS = {
    "pos": "xpos",
    "upos": "upos",
    "verb_form": "xpos",
    "rank": None,
}  # and the layer that each requires
# positions per batch of masked copies: on CPU as many as fit its caches, elsewhere as many as use it fully
_BATCH_TOKENS = {"cpu": 1024, "other": 32768}
_LOGITS = 4096  # maximum number of positions predicted at once: each has logits over the vocabulary


_of_groups = partial(Quantity, tags=("", "<by>/<group>"), panel="accuracy", lines="group")
_share = partial(_of_groups, unit="share", low=0.0, high=1.0, better="higher")


class TokenLearning(Observer):
    """How well a masked language model reconstructs words and predicts masked ones, by part of speech and frequency.

    - ``reconstruction``: the model reads the unchanged sentence, and predicts each word at its own position.
    - ``prediction``: it reads a copy of the sentence in which all pieces of one word are masked, and predicts this
      word; one copy per word, many copies per batch, and logits at the masked pieces only.

    A word is correct if the highest logits over the whole vocabulary are correct for all its pieces. The accuracy of
    groups with a word whose logits are not finite is NaN, with a warning. Accuracy is the share of correct words, from
    0 to 1. Figures show accuracy, and accuracy relative to that of the last observation, as in the publication, with
    the step at which half of it is reached (:func:`~lmdyn.analysis.words.learning_order.learning_order`). To observe
    both at different steps, attach two observers with two names.

    Words with a piece that is the tokenizer's unknown token are left out of both (a warning reports their number): it
    is unknown whether a model that predicts this token has the correct word.

    Groupings (column ``by``), in which a word is in at most one group (column ``group``):

    - ``pos``: conjunction, determiner, preposition, adjective, adverb, verb, noun, proper noun by the Penn Treebank tag
      ``xpos`` (:data:`POS_GROUPS`);
    - ``upos``: Universal POS;
    - ``verb_form``: VB, VBD, VBG, VBN, VBZ as in table 4, and VBP;
    - ``rank``: frequency bands. Ranks are those of *tokens* ("the top 50 to top 99 occurring tokens"), 1 for the most
      frequent; a word of one piece is in the band of its rank. Special tokens and tokens that never occur have no rank.

    The probe must provide sentences with ``words``, the word to which each token belongs, as a
    :class:`~lmdyn.datamodules.SpanCorpus` does. Further rows, not logged: ``words`` and ``masked_words``, the number
    of words in each group that were reconstructed and predicted.

    Args:
        quantities: ``reconstruction``, ``prediction`` or both.
        by: groupings; by default ``pos`` and ``verb_form``, or ``upos`` if the probe set has no ``xpos``, and
            ``rank`` unless ``bands`` is empty. Overall accuracy is always included.
        bands: first and last rank of each band, increasing.
        frequency: count tokens in the training data (``train``) or targets in the probe set (``probe``); by default
            in the training data if its counts are known.
        max_words: maximum number of masked words, drawn by ``seed``; None masks each. Reconstruction uses all. Words
            with the unknown token take part in the draw, and are then left out.
        seed: seed of the draw.
        batch_tokens: positions in a batch of masked copies, by default 1,024 on CPU and 32,768 elsewhere; it does not
            affect the numbers.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for unknown quantities or groupings, or bands that do not increase; when attached, for a tokenizer
            without mask token, a probe set without ``words`` or the layer of a grouping, or without training counts.

    Reference: Chiang, Huang & Lee 2020, section 3 and appendix C.

    Example:
        >>> observer = TokenLearning(quantities=["prediction"], bands=[(1, 9), (10, 99)], frequency="probe")
        >>> observer.band_names
        ['1-9', '10-99']
    """

    quantities: Sequence[Literal["reconstruction", "prediction"]] = _QUANTITIES
    by: Sequence[Literal["pos", "upos", "verb_form", "rank"]] | None = None
    bands: Sequence[tuple[Annotated[int, From(1)], int]] = ((50, 99), (300, 349), (1550, 1599))
    frequency: FrequencySource | None = None
    max_words: Annotated[int, From(1)] | None = None
    seed: int = 0
    batch_tokens: Annotated[int, From(1)] | None = None

    uses_labels = False  # it masks words itself
    reads = "masked"
    not_settings = Observer.not_settings | {"batch_tokens"}
    recorded = (
        _share("reconstruction", "Share of visible words that the model reconstructs, of all or in a group."),
        _share("prediction", "Share of masked words that the model predicts, among all words or in a group."),
        Quantity("words", "Number of words to reconstruct.", "count", low=1.0, tags=()),
        Quantity("masked_words", "Number of words that were masked.", "count", low=1.0, tags=()),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.quantities:
            raise ValueError(f"quantities is empty: expected some of {', '.join(_QUANTITIES)}")
        if any(a > b for a, b in self.bands) or any(a[1] >= b[0] for a, b in pairwise(self.bands)):
            raise ValueError(f"bands are {', '.join(self.band_names)}: expected increasing ranks, no overlap")
        if "rank" in (self.by or ()) and not self.bands:
            raise ValueError("by has 'rank' and bands is empty: set `bands`, or remove 'rank'")

    @property
    def band_names(self) -> list[str]:
        """Names of the frequency bands."""
        return [f"{first}-{last}" for first, last in self.bands]

    # ---------------------------------------------------------------- before training

    def prepare(self) -> None:
        """Check tokenizer and batches, determine the group of each tag and token, draw the words to mask."""
        tokenizer = self.run.tokenizer
        if tokenizer is None or tokenizer.mask_token_id is None:
            raise ValueError(
                f"{self.name} requires a masked language model and a tokenizer with a mask token, got "
                f"{'no tokenizer' if tokenizer is None else 'a tokenizer without this token'}. Observe a causal model "
                "with LearningCurves, or give the datamodule, module or lmdyn.watch a `tokenizer` with a mask_token"
            )
        batch = next(iter(self.probe_set.batches()), None)
        if batch is None or not {"input_ids", "words"} <= batch.keys():
            raise ValueError(
                f"{self.name}: expected batches with `input_ids` and `words` (the word of each token), got "
                f"{', '.join(sorted(batch or ())) or 'none'}: pass a `probe` with these entries, such as a SpanCorpus"
            )
        self._groupings: dict[str, _Grouping] = {
            by: self._grouping(by) for by in self._chosen_groupings(batch)
        }
        self._highest_hash: int | None = None
        hashes, unknown, total = [], 0, 0
        for number, batch in enumerate(self.probe_set.batches()):
            words = number_words(batch["words"])
            unknown += int((~self._known(batch, words)).sum())
            total += len(words)
            if self.max_words is not None:
                hashes.append(self._hashes(batch, words, number))
        if self.max_words is not None and total > self.max_words:
            self._highest_hash = int(torch.cat(hashes).kthvalue(self.max_words).values)
        if unknown:
            warn(
                self.name,
                f"lmdyn leaves out words that contain the unknown token {tokenizer.unk_token!r} ({unknown} of {total})",
            )

    def _known(self, batch: Mapping[str, Any], words: BatchWords) -> Bool[Tensor, "words"]:
        """Return which words have no piece that is the unknown token."""
        known = torch.ones(len(words), dtype=torch.bool, device=words.row.device)
        unk_id = self.run.tokenizer.unk_token_id
        if unk_id is not None:
            known[words.number[(batch["input_ids"] == unk_id) & (words.number >= 0)]] = False
        return known

    def _chosen_groupings(self, batch: Mapping[str, Any]) -> Sequence[str]:
        layers = [name for name in ("xpos", "upos") if name in self.probe_set.label_names and name in batch]
        of_tags = ("pos", "verb_form") if "xpos" in layers else ("upos",)
        by = self.by if self.by is not None else (*of_tags, *(("rank",) if self.bands else ()))
        if missing := sorted({_GROUPINGS[b] or "" for b in by} - {"", *layers}):
            raise ValueError(
                f"{self.name}: the groupings {', '.join(b for b in by if _GROUPINGS[b] in missing)} require layers "
                f"{', '.join(missing)} in batches and `label_names`, got {', '.join(layers) or 'none'}: set `by` to "
                "other groupings, such as ['rank'] or []"
            )
        return by

    def _grouping(self, by: str) -> "_Grouping":
        layer = _GROUPINGS[by]
        if layer is None:
            _, ranks = ranked_tokens(self, self.frequency)
            of_token = torch.full_like(ranks, -1)
            for i, (first, last) in enumerate(self.bands):
                of_token[(ranks >= first) & (ranks <= last)] = i
            return _Grouping(self.band_names, None, of_token)
        labels = self.probe_set.label_names[layer]
        if by == "upos":
            return _Grouping(list(labels), layer, torch.arange(len(labels)))
        groups = POS_GROUPS if by == "pos" else {form: (form,) for form in VERB_FORMS}
        of_tag = {tag: i for i, tags in enumerate(groups.values()) for tag in tags}
        if not any(tag in of_tag for tag in labels):
            raise ValueError(
                f"{self.name}: grouping {by!r} expects Penn Treebank tags in the layer 'xpos', got "
                f"{', '.join(labels[:10])}…: set `by` to other groupings, such as ['upos']"
            )
        return _Grouping(list(groups), layer, torch.tensor([of_tag.get(tag, -1) for tag in labels]))

    def _hashes(
        self, batch: Mapping[str, Any], words: BatchWords, number: int, rank: int = 0, world_size: int = 1
    ) -> Int[Tensor, "words"]:
        """Return a number for each word, the same for any number of ranks."""
        examples = batch.get("example")
        if examples is None:
            size = len(batch["words"])
            examples = self.probe_set.rows(number, size, rank, world_size, streams=False)
        return word_hash(examples.to(words.row.device)[words.row], words.word, self.seed)

    # ---------------------------------------------------------------- an observation

    def foresee(self, module: Module) -> Iterable[Foreseen]:
        """Report text without a word that the tokenizer knows, and groups without words, such as bands of ranks."""
        held: dict[str, set[int]] = {by: set() for by in self._groupings}
        known = 0
        for batch in self.probe_set.batches():
            words = number_words(batch["words"])
            is_known = self._known(batch, words)
            known += int(is_known.sum())
            for by, grouping in self._groupings.items():
                held[by] |= set(grouping.of(batch, words)[is_known].tolist())
        if not known:
            yield expected("words that the tokenizer knows", "none", "use the tokenizer of this model's text")
        for by, grouping in self._groupings.items():
            empty = [name for i, name in enumerate(grouping.names) if i not in held[by]]
            if known and empty and (by == "rank" or len(empty) == len(grouping.names)):
                yield expected(
                    f"words of the groups {', '.join(empty)} of {by!r} in the probe set",
                    f"none among {known:,} words",
                    "set other `bands`" if by == "rank" else "set `by` to other groupings",
                    stops=False,
                )

    @torch.no_grad()
    def measure(self, module: Module, step: int) -> pd.DataFrame:
        """Make one pass over the sentences, and one over their masked copies."""
        device = device_of(module)
        rank, world_size = rank_and_world_size()
        names = {"": [""], **{by: grouping.names for by, grouping in self._groupings.items()}}
        means = {by: GroupedMeans(len(groups), skip_nan=False) for by, groups in names.items()}
        for number, batch in enumerate(self.probe_set.batches(rank, world_size)):
            batch = to_device(batch, device)
            words = number_words(batch["words"])
            groups = {by: grouping.of(batch, words) for by, grouping in self._groupings.items()}
            groups[""] = torch.zeros_like(words.row)
            known = self._known(batch, words)
            groups = {by: group.where(known, -1) for by, group in groups.items()}  # -1: in no group
            if "reconstruction" in self.quantities:
                right = self._reconstruct(module, batch, words)
                for by, sums in means.items():
                    sums.update(groups[by], {"reconstruction": right})
            if "prediction" in self.quantities:
                chosen = known
                if self._highest_hash is not None:
                    hashes = self._hashes(batch, words, number, rank, world_size)
                    chosen = known & (hashes <= self._highest_hash)
                right = self._predict(module, batch, words, chosen.nonzero()[:, 0])
                for by, sums in means.items():
                    sums.update(groups[by][chosen], {"prediction": right})
        return tabulate(_rows(means, names), {"by": "", "group": ""}, self.name, step)

    def _batch_tokens(self, device: torch.device) -> int:
        return self.batch_tokens or _BATCH_TOKENS.get(device.type, _BATCH_TOKENS["other"])

    def _reconstruct(
        self, module: Module, batch: dict[str, Any], words: BatchWords
    ) -> Float[Tensor, "words"]:
        """Return 1 for each word that is reconstructed, 0 for others, NaN if its logits are not finite."""
        size, length = batch["input_ids"].shape
        right = []
        for rows in torch.arange(size).split(
            max(1, min(self._batch_tokens(words.row.device), _LOGITS) // length)
        ):
            part = rows_at(batch, rows)
            positions = part["words"] >= 0
            logits = logits_at(module, part, positions, self.forward)
            right.append(hits(logits, part["input_ids"][positions]))
        return _whole_words(torch.cat(right), words.number[words.number >= 0], len(words))

    def _predict(
        self, module: Module, batch: dict[str, Any], words: BatchWords, chosen: Int[Tensor, "chosen"]
    ) -> Float[Tensor, "chosen"]:
        """Return 1 for each chosen word that is predicted, 0 for others, NaN if its logits are not finite."""
        found = torch.zeros(len(words), device=chosen.device)
        batch_tokens = self._batch_tokens(chosen.device)
        mask_id = int(self.run.tokenizer.mask_token_id)
        for copies in masked_copies(
            batch, words, chosen, mask_id, batch_tokens=batch_tokens, max_words=_LOGITS // 4
        ):
            right = hits(logits_at(module, copies.batch, copies.masked, self.forward), copies.targets)
            found[copies.words] = _whole_words(right, copies.word_of_target, len(copies.words))
        return found[chosen]

    # ---------------------------------------------------------------- output

    @classmethod
    def figures(cls, observations: pd.DataFrame, settings: Mapping[str, Any]) -> dict[str, Figure]:
        """Draw accuracy over steps, and relative to that of the last observation, as published."""
        return super().figures(observations, settings) | rescaled_figures(observations)


class _Grouping:
    """The group of each word: by the label of a layer, or by the token if there is no layer."""

    def __init__(self, names: list[str], layer: str | None, table: Int[Tensor, "labels"]) -> None:
        self.names = names
        self.layer = layer
        self._table = torch.cat([table, table.new_full((1,), -1)])  # the last entry: no label

    def of(self, batch: Mapping[str, Any], words: BatchWords) -> Int[Tensor, "words"]:
        """Return the group of each word, -1 if it has none."""
        self._table = self._table.to(words.row.device)
        first = batch[self.layer or "input_ids"][words.row, words.first]
        if self.layer is None:
            first = torch.where(words.pieces == 1, first, -1)
        return self._table[torch.where(first < 0, len(self._table) - 1, first)]


def _whole_words(
    right: Float[Tensor, "pieces"], word_of_piece: Int[Tensor, "pieces"], n_words: int
) -> Float[Tensor, "words"]:
    """Return 1 for words of which all pieces are right, 0 for others, NaN if a piece is NaN."""
    known = words_right(~right.isnan(), word_of_piece, n_words)
    return torch.where(known, words_right(right > 0, word_of_piece, n_words).float(), torch.nan)


def _rows(means: Mapping[str, GroupedMeans], names: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    for by, sums in means.items():
        sums.reduce()
        for quantity, counted in zip(_QUANTITIES, ("words", "masked_words"), strict=True):
            if quantity in sums.names:
                mean = sums.mean(quantity)
                count = sums.count(quantity)
                for i in (count > 0).nonzero()[:, 0].tolist():
                    yield (
                        {"by": by, "group": names[by][i]},
                        {quantity: float(mean[i]), counted: float(count[i])},
                    )
