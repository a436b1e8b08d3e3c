"""Cloze questions about facts: one masked piece a sentence, encoded and batched."""

import logging
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

import lightning as L
import numpy as np
from tokenizers import Encoding
from transformers import PreTrainedTokenizerFast

from lmdyn.datamodules.corpora.examples import Example, ExampleLoader
from lmdyn.datamodules.corpora.tokenization import (
    Punctuation,
    WordEncoder,
    load_tokenizer,
    punctuation_of,
)
from lmdyn.datamodules.facts.fact_sources import Cloze, FactSource, GrammarFacts, TrexFacts

__all__ = ["Cloze", "FactCorpus", "FactSource", "GrammarFacts", "TrexFacts"]

logger = logging.getLogger(__name__)

_CHUNK = 1000  # facts that are encoded together
_CLOSING = (".", ",", ";", ":", "!", "?")


class FactCorpus(L.LightningDataModule):
    """Cloze questions with one masked piece, each a sentence of its own, as validation and as test set.

    A question is ``[CLS]``, the template with the subject in it and a mask in place of the object, ``[SEP]`` (as far as
    the tokenizer has these two). Words are separated by spaces, as in the training text, and have the pieces of such
    text: a byte-level tokenizer's have the space before them (``Ġ``), except the first. The object must be one piece of
    the tokenizer, found by encoding the whole sentence; facts whose object is unknown or of several pieces are left
    out, and a warning counts them by relation.

    Batches hold, besides what :class:`~lmdyn.datamodules.corpora.examples.ExampleLoader` adds:

    ============== ======= ======================================================================
    ``input_ids``  (B, T)  the question
    ``labels``     (B, T)  id of the object at the mask, -100 elsewhere
    ``relation``   (B,)    index into ``label_names["relation"]``
    ``fact``       (B,)    index into ``label_names["fact"]`` (subject → object) and ``queries``
    ``wording``    (B,)    which of its relation's wordings it is, from 0, where there are several
    ============== ======= ======================================================================

    The loader has the attributes ``queries`` (texts), ``templates`` (the first of each relation), ``wordings`` (all of
    each relation) and ``relation_kinds``, and ``candidates``, the sorted ids of the source's candidates that are one
    piece. A source that asks a fact in several wordings makes as many questions of it; those after the first bear their
    number behind their names.

    Args:
        source: where the facts come from.
        tokenizer: folder, hub name or ``tokenizer.json``; not needed where an observer hands over its run's.
        batch_tokens: positions of a batch, padding included.
        lowercase: lowercase all words, for models of lower-cased text whose tokenizer does not do it by itself.
        punctuation: ``attached`` (``is [MASK].``) or ``apart`` (``is [MASK] .``); by default what the tokenizer was
            made for (:func:`~lmdyn.datamodules.corpora.tokenization.punctuation_of`), which the log says. A model that
            was trained on the one knows little in the other.

    Raises:
        ValueError: another ``punctuation``.
        ValueError: in ``setup``: a tokenizer without mask, a malformed file, no fact left, no candidate left.
        FileNotFoundError: in ``setup``, a missing file.
        RuntimeError: neither a tokenizer given nor one assigned.

    Reference: Petroni et al. 2019; Chiang et al. 2020, section 6.
    """

    splits: tuple[str, ...] = ("validation", "test")

    def __init__(
        self,
        source: FactSource,
        tokenizer: str | None = None,
        batch_tokens: int = 4096,
        lowercase: bool = False,
        punctuation: Punctuation | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["source"], logger=False)
        if batch_tokens < 1:
            raise ValueError(f"batch_tokens must be at least 1, got {batch_tokens}")
        if punctuation not in (None, "attached", "apart"):
            raise ValueError(
                f"punctuation is {punctuation!r}: expected 'attached', 'apart' or none, to find it"
            )
        self.source = source
        self.batch_tokens = batch_tokens
        self.punctuation = punctuation
        self.lowercase = lowercase
        self._tokenizer_name = tokenizer
        self._tokenizer: PreTrainedTokenizerFast | None = None
        self._loader: ExampleLoader | None = None

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer; an observer assigns its run's before ``setup``."""
        if self._tokenizer is None:
            if self._tokenizer_name is None:
                raise RuntimeError(
                    "FactCorpus has no tokenizer: give it `tokenizer`, or assign one before setup()"
                )
            self._tokenizer = load_tokenizer(self._tokenizer_name)
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._loader = None

    def setup(self, stage: str | None = None) -> None:
        """Encode the questions; ``stage`` plays no part."""
        if self._loader is None:
            self._loader = self._build()

    def _build(self) -> ExampleLoader:
        tokenizer = self.tokenizer
        if tokenizer.mask_token_id is None:
            raise ValueError(
                "facts are asked for by a mask, and the tokenizer has none: expected a mask_token, got "
                f"{sorted(tokenizer.special_tokens_map)}; causal models cannot be asked so"
            )
        punctuation = self.punctuation
        if punctuation is None:
            punctuation = punctuation_of(tokenizer)
            logger.info(
                "full stops are %s, as the tokenizer's training text seems to have them (`punctuation`)",
                {"attached": "attached to the word before them", "apart": "words of their own"}[punctuation],
            )
        encoder = _Encoder(tokenizer, self.lowercase, punctuation)
        kinds = self.source.relation_kinds()
        relations = list(kinds)
        examples: list[Example] = []
        names: list[str] = []
        numbers: list[int] = []
        queries: list[str] = []
        wordings: dict[str, list[str]] = {}
        asked: Counter[str] = Counter()
        skipped: Counter[str] = Counter()
        facts = self.source.facts()
        while chunk := list(islice(facts, _CHUNK)):
            for fact, question in zip(chunk, encoder.questions(chunk), strict=True):
                asked[fact.relation] += 1
                known = wordings.setdefault(fact.relation, [])
                if fact.template not in known:
                    known.append(fact.template)
                if question is None:
                    skipped[fact.relation] += 1
                    continue
                question["relation"] = np.array(relations.index(fact.relation))
                question["fact"] = np.array(len(examples))
                number = known.index(fact.template)
                examples.append(question)
                numbers.append(number)
                names.append(fact.name if number == 0 else f"{fact.name} ({number + 1})")
                queries.append(fact.query)
        self._report_skipped(asked, skipped)
        if any(numbers):
            examples = [{**e, "wording": np.array(n)} for e, n in zip(examples, numbers, strict=True)]
        return ExampleLoader(
            examples,
            batch_tokens=self.batch_tokens,
            pad_id=0 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id),
            label_names={"relation": relations, "fact": names},
            attributes={
                "queries": queries,
                "templates": {relation: known[0] for relation, known in wordings.items()},
                "wordings": wordings,
                "relation_kinds": kinds,
                "candidates": self._candidates(encoder, examples),
            },
        )

    def _report_skipped(self, asked: Counter[str], skipped: Counter[str]) -> None:
        total = asked.total()
        if skipped.total() == total:
            raise ValueError(
                f"none of {total} facts can be asked: no object is exactly one known piece of the tokenizer, which has "
                f"{len(self.tokenizer)}: choose other facts, or a vocabulary that holds their objects"
            )
        if skipped:
            logger.warning(
                "left out %d of %d facts, whose object is not exactly one known piece of the tokenizer: %s",
                skipped.total(), total, ", ".join(f"{r} {n} of {asked[r]}" for r, n in skipped.items()),
            )  # fmt: skip

    def _candidates(self, encoder: "_Encoder", examples: Sequence[Example]) -> list[int]:
        words = self.source.candidates()
        pieces = encoder.single_pieces(words)
        candidates = sorted({piece for piece in pieces if piece is not None})
        if not candidates:
            raise ValueError(
                f"none of {len(words)} candidates is one known piece of the tokenizer: give another common_vocabulary"
            )
        among = set(candidates)
        outside = sum(int(example["labels"].max()) not in among for example in examples)
        logger.info(
            "%d candidates (%d of %d words are not one known piece)",
            len(candidates), pieces.count(None), len(words),
        )  # fmt: skip
        if outside:
            logger.warning(
                "the objects of %d of %d facts are not among the candidates: these facts are left out where only "
                "candidates compete",
                outside, len(examples),
            )  # fmt: skip
        return candidates

    def loader(self) -> ExampleLoader:
        """All questions.

        Raises:
            RuntimeError: before ``setup``.
        """
        if self._loader is None:
            raise RuntimeError("the facts are not set up: call setup() first")
        return self._loader

    def val_dataloader(self) -> ExampleLoader:
        """All questions."""
        return self.loader()

    def test_dataloader(self) -> ExampleLoader:
        """All questions."""
        return self.loader()


class _Encoder:
    """Words to pieces, and which piece is the object."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, lowercase: bool, punctuation: Punctuation) -> None:
        self._attached = punctuation == "attached"
        self._words = WordEncoder(tokenizer)
        self._lowercase = lowercase
        self._unk = tokenizer.unk_token_id
        self._mask = int(tokenizer.mask_token_id)
        self._start = [] if tokenizer.cls_token_id is None else [int(tokenizer.cls_token_id)]
        self._end = [] if tokenizer.sep_token_id is None else [int(tokenizer.sep_token_id)]

    def _single(self, encoding: Encoding, word: int, lengths: Sequence[int]) -> int | None:
        """The position of the only piece of the words from ``word`` on, if it is known.

        Args:
            encoding: of a sentence.
            word: the first one.
            lengths: characters of each of the words; a full stop that is attached follows them.
        """
        positions = []
        for i, (w, (start, end)) in enumerate(
            zip(encoding.word_ids, self._words.offsets(encoding), strict=True)
        ):
            if w is not None and word <= w < word + len(lengths) and start < lengths[w - word]:
                if end > lengths[w - word]:  # a piece of the object and what follows
                    return None
                positions.append(i)
        if len(positions) != 1 or encoding.ids[positions[0]] == self._unk:
            return None
        return positions[0]

    def questions(self, facts: Sequence[Cloze]) -> list[dict[str, np.ndarray[Any, Any]] | None]:
        """The arrays of each fact, None where the object is not one known piece."""
        asked = [fact.words(self._lowercase) for fact in facts]
        lengths = [
            [len(w) for w in ws[at : at + len(f.object.split())]]
            for f, (ws, at) in zip(facts, asked, strict=True)
        ]
        if self._attached:
            asked = [_attached(*sentence) for sentence in asked]
        sentences, at = zip(*asked, strict=True)
        found: list[dict[str, np.ndarray[Any, Any]] | None] = []
        for encoding, word, letters in zip(self._words.encode(sentences), at, lengths, strict=True):
            position = self._single(encoding, word, letters)
            if position is None:
                found.append(None)
                continue
            ids = np.array([*self._start, *encoding.ids, *self._end], dtype=np.int64)
            position += len(self._start)
            labels = np.full_like(ids, -100)
            labels[position], ids[position] = ids[position], self._mask
            found.append({"input_ids": ids, "labels": labels})
        return found

    def single_pieces(self, words: Sequence[str]) -> list[int | None]:
        """The piece of each word within a sentence, None where it is unknown or several pieces."""
        words = [word.lower() if self._lowercase else word for word in words]
        # after another word: byte-level tokenizers write the first of a text without a space
        encodings = self._words.encode([["a", word] for word in words])
        positions = [self._single(e, 1, [len(word)]) for e, word in zip(encodings, words, strict=True)]
        return [None if p is None else e.ids[p] for e, p in zip(encodings, positions, strict=True)]


def _attached(words: Sequence[str], at: int) -> tuple[list[str], int]:
    """Words with closing punctuation at the end of the word before it, and where word ``at`` is then.

    Example:
        >>> _attached(["Paris", ",", "of", "France", "."], 3)
        (['Paris,', 'of', 'France.'], 2)
    """
    joined: list[str] = []
    for i, word in enumerate(words):
        if i == at:
            moved = len(joined)
        if joined and i != at and word.startswith(_CLOSING):
            joined[-1] += word
        else:
            joined.append(word)
    return joined, moved
