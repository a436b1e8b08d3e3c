"""Surprisal of words over training: mean over their contexts, word by word."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import torch
from torch import Tensor, nn

from lmdyn.analysis.inspection.batches import labels_of, text_of, tokens_of
from lmdyn.analysis.inspection.forward import Batch
from lmdyn.analysis.inspection.transformer import is_encoder_decoder
from lmdyn.analysis.statistics.grouped import GroupedMeans
from lmdyn.analysis.words.words_in_pieces import (
    CUT_OFF,
    NO_TEXT,
    FoundWords,
    PieceTable,
    find_words,
    spell,
    word_log_probability,
)
from lmdyn.callbacks.observing.checked_fields import From
from lmdyn.callbacks.observing.findings import Foreseen, expected
from lmdyn.callbacks.observing.probe import ObservedBatch
from lmdyn.callbacks.observing.run import report
from lmdyn.callbacks.observing.streaming_observer import StreamingObserver
from lmdyn.callbacks.observing.sums import Row, Sums
from lmdyn.callbacks.observing.token_groups import FrequencySource
from lmdyn.runs.schema import Quantity
from lmdyn.runs.store import UNDECIDED

__all__ = ["Surprisals"]

_SOME = 5  # of words, in a message
_count = partial(Quantity, unit="count", low=0.0)


class Surprisals(StreamingObserver):
    """Surprisal of each of some words, −log₂ p(word | context): its mean over contexts, in bits.

    A word begins where the tokenizer has white space before a piece, and ends before the next piece that does not
    continue it; what pieces do is measured (:class:`~lmdyn.analysis.words.words_in_pieces.PieceTable`). Punctuation,
    special and unknown tokens are no words. A word is left out where its beginning or its end is not in its row of the
    probe set, and without white space before it, except after a special token or a line break.

    A causal model gives a word the sum over its pieces. That the word ends is said by the next piece, whose white space
    therefore counts for this word, and not for the next (Pimentel & Meister 2024; Oh & Schuler 2024). ``boundary:
    after`` leaves it with the next one, as most code does. Where each token is a word, both are the same.

    A masked model reads the masks of its data: a word counts where all its pieces are replaced by the mask, which are
    then predicted independently of each other; ``boundary`` has no effect. Pieces to predict that stay visible, or
    are replaced by others, do not count.

    The words are those of a list, or the most frequent ones of the probe set; with enough contexts. Of more contexts
    than ``most_contexts``, those with the lowest hash of place and text of the row are used: any number of ranks and
    any batch size chooses the same ones. The last of them counts as often as its row is repeated.

    ``unigram`` is what a model of frequencies gives: by training counts where each token is a word, else by the words
    of the probe set. Ages of acquisition, and regressions on them, are computed from the rows of words by
    :func:`~lmdyn.analysis.word_acquisition` and :func:`~lmdyn.analysis.acquisition_regression`.

    Args:
        words: words as they are written, or a file with one a line; None for the most frequent ones.
        most_words: number of words without a list.
        least_contexts: contexts that a word must have.
        least_context_tokens: tokens that must precede it in its row.
        most_contexts: contexts that are used.
        boundary: whether the probability that a word ends belongs to the word ``before`` the end, or ``after`` it.
        frequency: count words in the training data (``train``, where each token is a word) or in the probe set
            (``probe``); by default in the training data if this is possible.

    Logged tags: see :attr:`~lmdyn.callbacks.Observer.recorded`.

    Raises:
        ValueError: for a run without tokenizer, or one whose pieces do not show where words begin; an encoder-decoder;
            a list without words, or without one that has enough contexts.

    Reference: contexts: Chang & Bergen 2022, section 4.
    """

    words: str | Path | Sequence[str] | None = None
    most_words: Annotated[int, From(1)] = 1000
    least_contexts: Annotated[int, From(1)] = 8
    least_context_tokens: Annotated[int, From(0)] = 8
    most_contexts: Annotated[int, From(1)] = 512
    boundary: Literal["before", "after"] = "before"
    frequency: FrequencySource | None = None

    uses_labels = True
    columns = {"word": ""}
    figure_rows = pc.field("word") == ""
    recorded = (
        Quantity(
            "surprisal",
            "Mean surprisal of a word over contexts; without a word, the mean over all words.",
            "bits",
            low=0.0,
            better="lower",
            panel="surprisal",
            floor="unigram",
            headline=True,
            where=(("word", ("",)),),
        ),
        Quantity(
            "unigram",
            "Surprisal of a word by frequency alone; without a word, the mean over all words.",
            "bits",
            low=0.0,
        ),
        _count("contexts", "Number of contexts of a word; without a word, the sum over all words."),
        _count("words", "Number of words that have enough contexts."),
    )

    def prepare(self) -> None:
        """Read the list, and what the pieces of the tokenizer do."""
        tokenizer = self.run.required_tokenizer(self.name)
        self.listed = self._read_list()
        self.found("frequency", lambda: UNDECIDED)
        self.table = PieceTable.of(tokenizer)
        self.chosen: list[str] | None = None

    def _read_list(self) -> list[str] | None:
        given = self.words
        if isinstance(given, str | Path):
            if not Path(given).is_file():
                raise ValueError(
                    f"{self.name}: `words` is {str(given)!r}: expected a file that exists, or a list of words"
                )
            given = [line.strip() for line in Path(given).read_text(encoding="utf-8-sig").splitlines()]
            self._found["words"] = given = [word for word in given if word]
        if given is not None and not given:
            raise ValueError(f"{self.name}: `words` is empty: name words, or remove `words`")
        return None if given is None else list(dict.fromkeys(given))

    def check_module(self, module: nn.Module) -> None:
        """Choose words and contexts: of the whole probe set, on each rank."""
        super().check_module(module)
        if is_encoder_decoder(module):
            raise ValueError(
                f"{self.name}: expected a causal or masked model, got an encoder-decoder: use LearningCurves"
            )
        if self.chosen is None:
            self.shifted = self._next_token()
            self._choose()

    def _next_token(self) -> bool:
        """Return whether labels are the next tokens of the text, as those of causal models."""
        for batch in self.probe_set.batches():
            ids, labels = text_of(batch), labels_of(batch)
            if (labels[:, :-1] >= 0).any():
                return bool(((labels == ids.roll(-1, 1)) | (labels < 0))[:, :-1].all())
        return True

    def _choose(self) -> None:
        tables: list[pd.DataFrame] = []
        spelled: dict[int, str] = {}
        for batch in self.probe_set.batches():
            text, found, usable = self._words(batch)
            codes = found.code.tolist()
            for code, row, begin, end in zip(codes, found.row, found.begin, found.end, strict=True):
                if code not in spelled:
                    spelled[code] = spell(self.run.tokenizer, text[row, begin:end].tolist())
            of_batch = {"code": codes, "context": found.context.tolist(), "usable": usable.tolist()}
            tables.append(pd.DataFrame({**of_batch, "piece": text[found.row, found.begin].tolist()}))
        places = pd.concat(tables)
        places["word"] = places["code"].map(spelled)
        places = places[~places["word"].str.contains(r"\s")]
        self.bits = self._unigram(places)
        places = places[places["usable"]]
        counts = places["word"].value_counts()
        enough = counts[counts >= self.least_contexts]
        if self.listed is None:
            order = sorted(enough.index, key=lambda word: (-enough[word], word))
            self.chosen = order[: self.most_words]
        else:
            self.chosen = [word for word in self.listed if word in enough.index]
        places = places[places["word"].isin(self.chosen)].sort_values("context")
        last = places.groupby("word")["context"].apply(lambda of: of.iloc[: self.most_contexts].iloc[-1])
        number = {word: i for i, word in enumerate(self.chosen)}
        codes = sorted(places["code"].unique())
        self._codes = torch.tensor(codes, dtype=torch.int64)
        self._numbers = torch.tensor([number[spelled[code]] for code in codes], dtype=torch.int64)
        self._last = torch.tensor([last[word] for word in self.chosen], dtype=torch.int64)
        begin = int(self.table.begins.sum())
        inside = int(self.table.continues.sum())
        pieces = f"{begin} of {len(self.table.begins)} tokens begin a word, {inside} tokens continue a word"
        report(self.name, f"{len(self.chosen)} words; {pieces}")

    def _unigram(self, places: pd.DataFrame) -> "pd.Series[float]":
        """Return −log₂ of the share of each word."""
        possible = self.table.whole_words and self.run.token_counts is not None
        source = self.found("frequency", lambda: "train" if possible else "probe")
        if source == "train" and not self.table.whole_words:
            raise ValueError(
                f"{self.name}: `frequency: train` requires a tokenizer of whole words, but this tokenizer splits "
                "words into pieces: set `frequency: probe`"
            )
        if source == "probe":
            return -places["word"].value_counts(normalize=True).map(math.log2)
        counts = self.token_counts["count"].to_numpy(dtype=np.float64)
        size = min(len(counts), len(self.table.begins))
        total = counts[:size][self.table.begins[:size].numpy()].sum()
        pieces = places.drop_duplicates("word").set_index("word")["piece"].astype(int)
        shares = pieces.map(lambda piece: float(counts[piece] / total))
        return -shares[shares > 0].map(math.log2)

    def _words(self, batch: Batch) -> tuple[Tensor, FoundWords, Tensor]:
        """Return the text of a batch, its words, and which of them are predicted and have enough context."""
        ids, labels = text_of(batch).cpu(), labels_of(batch).cpu()
        there = tokens_of(batch).cpu()
        if self.shifted:
            last = labels[:, -1]
            after = torch.where(there[:, -1] & (last < 0), CUT_OFF, last.clamp(min=NO_TEXT))
            text = torch.cat([torch.where(there, ids, NO_TEXT), after[:, None]], dim=1)
            asked = torch.cat([torch.zeros_like(there[:, :1]), labels >= 0], dim=1)
        else:
            text = torch.where(labels >= 0, labels, torch.where(there, ids, NO_TEXT))
            hidden = ids == self.run.tokenizer.mask_token_id
            asked = (labels >= 0) & (hidden | ~hidden.any())
        found = find_words(text, self.table)
        sums = torch.cat([torch.zeros_like(asked[:, :1], dtype=torch.int64), asked.cumsum(1)], dim=1)
        whole = sums[found.row, found.end] - sums[found.row, found.begin] == found.end - found.begin
        return text, found, whole & (found.before >= self.least_context_tokens)

    def foresee(self, module: nn.Module) -> Iterable[Foreseen]:
        """Report words that cannot be measured."""
        assert self.chosen is not None
        listed = self.listed or ()
        rare = [word for word in listed if word not in self.chosen]
        if rare or not self.chosen:
            some = ", ".join(rare[:_SOME]) + ", …" * (len(rare) > _SOME)
            yield expected(
                f"words with {self.least_contexts} contexts of {self.least_context_tokens} tokens in the probe set",
                f"{len(rare)} of {len(listed)} words without rows ({some})" if self.chosen else "none",
                "observe more text, lower `least_contexts` or `least_context_tokens`, or choose other words",
                stops=not self.chosen,
            )

    def sums(self) -> Mapping[str, Callable[[], Any]]:
        """Return means by word."""
        return {"words": partial(GroupedMeans, len(self.chosen or ()), skip_nan=False)}

    def update(self, seen: ObservedBatch, sums: Sums) -> None:
        """Add the words of a batch that are chosen, in their chosen contexts."""
        _, found, usable = self._words(seen.batch)
        place = torch.searchsorted(self._codes, found.code).clamp(max=len(self._codes) - 1)
        word = self._numbers[place]
        found = found.at(usable & (self._codes[place] == found.code) & (found.context <= self._last[word]))
        word = self._numbers[torch.searchsorted(self._codes, found.code)]
        first = int(self.shifted)
        pieces = torch.nn.functional.pad(-seen.losses.cpu(), (first, 0))
        moved = self.shifted and self.boundary == "before"
        log_p = word_log_probability(found, pieces, seen.logits, self.table, first=first, ends=moved)
        sums["words"].update(word, {"surprisal": -log_p / math.log(2)})

    def rows(self, sums: Sums) -> Iterator[Row | pd.DataFrame]:
        """Yield means of words, and over them."""
        assert self.chosen is not None
        means = sums["words"]
        surprisal, contexts = means.mean("surprisal").numpy(), means.count("surprisal").numpy()
        seen = contexts > 0  # all, unless only a part of the probe set was read
        table = pd.DataFrame({"word": self.chosen, "surprisal": surprisal, "contexts": contexts})[seen]
        table["unigram"] = table["word"].map(self.bits)
        yield (
            {},
            {
                "surprisal": table["surprisal"].mean(skipna=False),
                "unigram": table["unigram"].mean(),
                "contexts": contexts.sum(),
                "words": len(table),
            },
        )
        long = table.melt("word", var_name="quantity")
        yield long[long["quantity"].ne("unigram") | long["value"].notna()]

    @staticmethod
    def is_scalar(observations: pd.DataFrame) -> "pd.Series[bool]":
        """Return all rows except those of words."""
        return observations["word"].eq("")

    @staticmethod
    def record_rows(observations: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows for a record of a run: all except the numbers of contexts of words."""
        return observations[observations["quantity"].ne("contexts") | Surprisals.is_scalar(observations)]
