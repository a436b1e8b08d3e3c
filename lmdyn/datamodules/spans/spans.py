"""Labelled spans of sentences, for edge probing: words, constituents, semantic roles and coreference."""

from collections.abc import Sequence
from typing import Literal
from weakref import WeakValueDictionary

from lmdyn.datamodules.corpora.corpus import Corpus
from lmdyn.datamodules.corpora.examples import ExampleLoader
from lmdyn.datamodules.corpora.sentence import TOKEN_LAYERS
from lmdyn.datamodules.corpora.tokenization import EncodedAtSetup, digest, tokenizer_digest
from lmdyn.datamodules.files.checks import at_least, each_once, one_of
from lmdyn.datamodules.loading.loader import SplitLoaders
from lmdyn.datamodules.spans.span_encoding import POS_LAYERS, SPAN_TASKS, Asked, EncodedSpans

__all__ = ["SPAN_TASKS", "SpanCorpus"]

_CACHE: WeakValueDictionary[str, EncodedSpans] = WeakValueDictionary()


class SpanCorpus(EncodedAtSetup[EncodedSpans], SplitLoaders):
    """Sentences of an annotated corpus with the spans that edge probes classify; one sentence is one example.

    A batch of B sentences of at most T positions contains, in addition to what
    :class:`~lmdyn.datamodules.corpora.examples.ExampleLoader` adds:

    ================== ========= ====================================================================
    ``input_ids``      (B, T)    the tokenizer's [CLS], the pieces of the words, its [SEP]; a tokenizer without
                                 these tokens (a word-level one) adds none
    ``labels``         (B, T)    the same ids, -100 at special tokens and padding
    ``words``          (B, T)    index of the piece's word in its sentence, -100 at special tokens and padding
    ``<layer>``        (B, T)    label of the piece's word, -100 if it has none
    ``spans_<task>``   (B, S, 5) first span's start and end, second span's start and end, label
    ================== ========= ====================================================================

    Spans are ranges of positions in ``input_ids`` with exclusive ends. Tasks with one span have -100 for the second
    span; padding rows are -100 throughout. Labels index into :attr:`label_names`. The tasks:

    - ``pos``: each word and its tag, of the layer ``pos_layer``;
    - ``constituents``: each phrase and its label, also if several phrases cover the same words;
    - ``roles``: the predicate (first span), an argument, and the argument's role;
    - ``coreference``: two mentions in one sentence, the earlier one first; ``1`` if they refer to the same entity,
      else ``0``. All pairs of a sentence are used, as in Tenney et al. 2019, up to ``max_pairs``.

    ``setup`` reads and encodes all splits into memory: the names of labels are shared by all splits. Only the documents
    of ``corpus`` are used, not its encoded text. Corpora with equal content, settings and tokenizer share their
    encoding while one of them exists. The tokenizer is the one assigned to the attribute ``tokenizer`` (an observer
    assigns the run's), otherwise the one named, otherwise that of ``corpus``, as its settings define it.

    Sentences of more than ``max_pieces`` pieces are left out, as are spans of words for which the tokenizer has no
    piece, and pairs beyond ``max_pairs`` (drawn with a fixed seed); :attr:`skipped` counts them, and a warning reports
    them.

    Args:
        corpus: source of the sentences.
        tasks: some of ``pos``, ``constituents``, ``roles``, ``coreference``; None for all that each split has; empty
            for none, if only tokens are observed.
        layers: layers with one label per word (``upos``, ``xpos``, ``semtag``, …); None for all that each split has.
        pos_layer: layer of the task ``pos``; None for ``xpos``, or ``upos`` if the corpus has no ``xpos``.
        tokenizer: folder or hub name, or path of a ``tokenizer.json``.
        batch_tokens: positions per batch, including padding.
        max_pieces: maximum length of a sentence, without special tokens.
        max_pairs: maximum number of coreference pairs per sentence.

    Raises:
        ValueError: if a task or layer is unknown, or sizes are below 1; in ``setup``, if a split lacks a task or layer
            (the message lists those it has), or has no sentences.

    Reference: Tenney et al. 2018, "What do you learn from context?", section 3; Tenney et al. 2019; Chiang, Huang &
    Lee 2020, appendix D.

    Example:
        >>> from lmdyn.datamodules.grammar.grammar import GrammarCorpus
        >>> grammar = GrammarCorpus(n_train_tokens=300, n_validation_tokens=100, n_test_tokens=100)
        >>> spans = SpanCorpus(grammar, tasks=["pos", "roles"], layers=["upos"])
        >>> spans.setup()
        >>> batch = next(iter(spans.val_dataloader()))
        >>> sorted(batch)
        ['attention_mask', 'example', 'input_ids', 'labels', 'spans_pos', 'spans_roles', 'upos', 'words']
        >>> predicate, _, start, end, role = batch["spans_roles"][-1, 0].tolist()
        >>> spans.label_names["roles"][role]
        'ARG0'
    """

    def __init__(
        self,
        corpus: Corpus,
        tasks: Sequence[str] | None = None,
        layers: Sequence[str] | None = None,
        *,
        pos_layer: Literal["xpos", "upos"] | None = None,
        tokenizer: str | None = None,
        batch_tokens: int = 4096,
        max_pieces: int = 510,
        max_pairs: int = 200,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(logger=False, ignore=["corpus"])
        each_once(SPAN_TASKS, tasks=tasks)
        each_once(TOKEN_LAYERS, layers=layers)
        one_of((None, *POS_LAYERS), pos_layer=pos_layer)
        at_least(1, max_pieces=max_pieces, max_pairs=max_pairs)
        self.corpus = corpus
        self.batch_tokens = batch_tokens
        self._asked = Asked(
            None if tasks is None else tuple(tasks),
            None if layers is None else tuple(layers),
            pos_layer,
            max_pieces,
            max_pairs,
        )
        self._tokenizer_name = tokenizer

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of the corpus."""
        return self.corpus.splits

    def encode(self) -> EncodedSpans:
        """Return all splits of the corpus, encoded."""
        corpus = self.corpus
        if not self.has_tokenizer:
            corpus.prepare_data()  # the corpus defines the vocabulary and its text
            self._tokenizer = corpus.tokenizer
        key = digest(
            [
                type(corpus).__qualname__,
                list(corpus.splits),
                corpus.content_key(),
                tokenizer_digest(self.tokenizer),
                repr(self._asked),
            ]
        )
        encoded = _CACHE.get(key) or EncodedSpans(corpus, self.tokenizer, self._asked)
        _CACHE[key] = encoded
        return encoded

    @property
    def label_names(self) -> dict[str, list[str]]:
        """Names of the labels of each layer and task: those of train, sorted, then additional ones of other splits."""
        return self.ready.names

    @property
    def skipped(self) -> dict[str, dict[str, int]]:
        """Counts of what was left out of each split, and of labels that the first split lacks."""
        return {split: dict(counts) for split, counts in self.ready.counts.items()}

    def loader(self, split: str) -> ExampleLoader:
        """Return the loader of a split's sentences.

        Raises:
            RuntimeError: if called before ``setup``.
            ValueError: if the corpus lacks the split.
        """
        encoded = self.ready
        one_of(self.splits, split=split)
        return ExampleLoader(
            encoded.splits[split],
            batch_tokens=self.batch_tokens,
            pad_id=self.pad_id,
            label_names=encoded.names,
        )
