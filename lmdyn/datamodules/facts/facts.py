"""Cloze questions about facts: one masked piece per sentence, encoded and batched."""

import logging
from collections import Counter
from collections.abc import Sequence

import numpy as np
from tokenizers import Encoding
from transformers import PreTrainedTokenizerFast

from lmdyn.datamodules.corpora.examples import Example, ExampleLoader
from lmdyn.datamodules.corpora.tokenization import (
    Array,
    EncodedAtSetup,
    Punctuation,
    WordEncoder,
    punctuation_of,
)
from lmdyn.datamodules.facts.fact_sources import Cloze, FactSource, GrammarFacts, TrexFacts
from lmdyn.datamodules.files.checks import at_least

__all__ = ["Cloze", "FactCorpus", "FactSource", "GrammarFacts", "TrexFacts"]

logger = logging.getLogger(__name__)

_CLOSING = (".", ",", ";", ":", "!", "?")


class FactCorpus(EncodedAtSetup[ExampleLoader]):
    """Cloze questions with one masked piece, each one sentence, as validation and as test set.

    A question is ``[CLS]``, the template with the subject and a mask in place of the object, ``[SEP]`` (if the
    tokenizer has these two). Words are separated by spaces, as in the training text, and have the same pieces as there:
    those of a byte-level tokenizer include the preceding space (``Ġ``), except the first. The object must be one piece
    of the tokenizer, determined by encoding the whole sentence. Facts whose object is unknown or has several pieces are
    left out, and a warning counts them by relation.

    Batches contain, in addition to what :class:`~lmdyn.datamodules.corpora.examples.ExampleLoader` adds:

    ============== ======= ======================================================================
    ``input_ids``  (B, T)  the question
    ``labels``     (B, T)  id of the object at the mask, -100 elsewhere
    ``relation``   (B,)    index into ``label_names["relation"]``
    ``fact``       (B,)    index into ``label_names["fact"]`` (subject → object) and ``queries``
    ``wording``    (B,)    index of the wording of its relation, from 0, if there are several
    ============== ======= ======================================================================

    The loader has the attributes ``queries`` (texts), ``templates`` (the first of each relation), ``wordings`` (all of
    each relation) and ``relation_kinds``, and ``candidates``, the sorted ids of the source's candidates that are one
    piece. If a source has several wordings, a fact has that many questions; the names of those after the first end in
    their number.

    Args:
        source: source of the facts.
        tokenizer: folder, hub name or ``tokenizer.json``; not required if an observer assigns its run's.
        batch_tokens: positions per batch, including padding.
        lowercase: whether to lowercase all words, for models of lower-cased text whose tokenizer does not do this.
        punctuation: ``attached`` (``is [MASK].``) or ``apart`` (``is [MASK] .``); default: what the tokenizer was
            made for (:func:`~lmdyn.datamodules.corpora.tokenization.punctuation_of`), which is logged. A model trained
            on one format performs poorly on the other.

    Raises:
        ValueError: if ``punctuation`` is another value.
        ValueError: in ``setup``, if the tokenizer has no mask, a file is malformed, or no fact or candidate is left.
        FileNotFoundError: in ``setup``, if a file is missing.
        RuntimeError: if no tokenizer is given or assigned.

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
        at_least(1, batch_tokens=batch_tokens)
        self.source = source
        self.batch_tokens = batch_tokens
        self.punctuation = punctuation
        self.lowercase = lowercase
        self._tokenizer_name = tokenizer

    def make(self) -> ExampleLoader:
        """Return the loader of all questions."""
        tokenizer = self.tokenizer
        if tokenizer.mask_token_id is None:
            raise ValueError(
                "questions about facts contain a mask: expected a tokenizer with a mask_token, got one with "
                f"{', '.join(sorted(tokenizer.special_tokens_map)) or 'no special token'}. Causal models have no mask"
            )
        punctuation = self.punctuation or punctuation_of(tokenizer)
        logger.info(
            "the full stop of a question is %s (option `punctuation`, whose default depends on the tokenizer)",
            punctuation,
        )
        encoder = _Encoder(tokenizer, self.lowercase, punctuation)
        kinds = self.source.relation_kinds()
        relations = list(kinds)
        examples: list[Example] = []
        names: list[str] = []
        queries: list[str] = []
        wordings: dict[str, list[str]] = {}
        asked: Counter[str] = Counter()
        skipped: Counter[str] = Counter()
        facts = list(self.source.facts())
        for fact, question in zip(facts, encoder.questions(facts), strict=True):
            asked[fact.relation] += 1
            known = wordings.setdefault(fact.relation, [])
            if fact.template not in known:
                known.append(fact.template)
            if question is None:
                skipped[fact.relation] += 1
                continue
            number = known.index(fact.template)
            relation = relations.index(fact.relation)
            numbers = {"relation": relation, "fact": len(examples), "wording": number}
            examples.append({**question, **{key: np.array(value) for key, value in numbers.items()}})
            names.append(fact.name if number == 0 else f"{fact.name} ({number + 1})")
            queries.append(fact.query)
        if not examples:
            raise ValueError(
                f"none of {asked.total()} facts can be asked, since no object is one piece of the tokenizer, which has "
                f"{len(tokenizer)} pieces: choose other facts, or a vocabulary that contains the objects"
            )
        if skipped:
            logger.warning(
                "lmdyn leaves out %d of %d facts, because the object is not one known piece of the tokenizer: %s",
                skipped.total(),
                asked.total(),
                ", ".join(f"{r} {n} of {asked[r]}" for r, n in skipped.items()),
            )
        if not any(e["wording"] for e in examples):
            examples = [{key: e[key] for key in e if key != "wording"} for e in examples]
        return ExampleLoader(
            examples,
            batch_tokens=self.batch_tokens,
            pad_id=self.pad_id,
            label_names={"relation": relations, "fact": names},
            attributes={
                "queries": queries,
                "templates": {relation: known[0] for relation, known in wordings.items()},
                "wordings": wordings,
                "relation_kinds": kinds,
                "candidates": self._candidates(encoder, examples),
            },
        )

    def _candidates(self, encoder: "_Encoder", examples: Sequence[Example]) -> list[int]:
        words = self.source.candidates()
        candidates = sorted({piece for piece in encoder.single_pieces(words) if piece is not None})
        if not candidates:
            raise ValueError(f"none of {len(words)} candidates is one piece of the tokenizer: use others")
        among = set(candidates)
        outside = sum(int(example["labels"].max()) not in among for example in examples)
        if outside:
            logger.warning(
                "%d of %d facts have an object that is not among the candidates: lmdyn leaves out these facts in "
                "`p_at_1_candidates` of WorldKnowledge",
                outside,
                len(examples),
            )
        return candidates

    def loader(self) -> ExampleLoader:
        """Return the loader of all questions.

        Raises:
            RuntimeError: if called before ``setup``.
        """
        return self.ready

    val_dataloader = test_dataloader = loader


class _Encoder:
    """Encodes words, and finds the piece of the object."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, lowercase: bool, punctuation: Punctuation) -> None:
        self._attached = punctuation == "attached"
        self._words = WordEncoder(tokenizer)
        self._lowercase = lowercase
        self._unk = tokenizer.unk_token_id
        self._mask = int(tokenizer.mask_token_id)

    def _single(self, encoding: Encoding, word: int, length: int) -> int | None:
        """Return the position of the only piece of a word; None if there are several or it is unknown.

        Args:
            encoding: encoding of a sentence.
            word: index of the word.
            length: number of its characters, without an attached full stop.
        """
        pieces = enumerate(zip(encoding.word_ids, self._words.offsets(encoding), strict=True))
        found = [(i, end) for i, (w, (start, end)) in pieces if w == word and start < length]
        if len(found) != 1:
            return None
        ((position, end),) = found  # which may be a piece of the object and what follows
        return None if end > length or encoding.ids[position] == self._unk else position

    def questions(self, facts: Sequence[Cloze]) -> list[dict[str, Array] | None]:
        """Return the arrays of each fact; None if the object is not one known piece."""
        asked = [fact.words(self._lowercase) for fact in facts]
        lengths = [len(words[at]) for words, at in asked]
        if self._attached:
            asked = [_attached(*sentence) for sentence in asked]
        encodings = self._words.encode([words for words, _ in asked])
        found: list[dict[str, Array] | None] = []
        for fact, encoding, (_, word), length in zip(facts, encodings, asked, lengths, strict=True):
            position = self._single(encoding, word, length)
            if position is None or len(fact.object.split()) > 1:
                found.append(None)
                continue
            ids = np.array([*self._words.before, *encoding.ids, *self._words.after], dtype=np.int64)
            position += len(self._words.before)
            labels = np.full_like(ids, -100)
            labels[position] = ids[position]
            ids[position] = self._mask
            found.append({"input_ids": ids, "labels": labels})
        return found

    def single_pieces(self, words: Sequence[str]) -> list[int | None]:
        """Return the piece of each word within a sentence; None if it is unknown or has several pieces."""
        words = [word.lower() if self._lowercase else word for word in words]
        # after another word: byte-level tokenizers encode the first word of a text without a space
        encodings = self._words.encode([["a", word] for word in words])
        positions = [self._single(e, 1, len(word)) for e, word in zip(encodings, words, strict=True)]
        return [None if p is None else e.ids[p] for e, p in zip(encodings, positions, strict=True)]


def _attached(words: Sequence[str], at: int) -> tuple[list[str], int]:
    """Attach closing punctuation to the preceding word, and return the words and the new index of word ``at``.

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
