"""Labelled spans of sentences, for edge probing: words, constituents, semantic roles and coreference."""

from collections.abc import Iterable, Sequence
from typing import Literal
from weakref import WeakValueDictionary

from transformers import PreTrainedTokenizerFast

from lmdyn.datamodules.corpora.corpus import Corpus
from lmdyn.datamodules.corpora.examples import ExampleLoader
from lmdyn.datamodules.corpora.sentence import TOKEN_LAYERS
from lmdyn.datamodules.corpora.tokenization import digest, load_tokenizer, tokenizer_digest
from lmdyn.datamodules.loading.split_loaders import SplitLoaders
from lmdyn.datamodules.spans.span_encoding import POS_LAYERS, SPAN_TASKS, Asked, EncodedSpans

__all__ = ["SPAN_TASKS", "SpanCorpus"]

_CACHE: WeakValueDictionary[str, EncodedSpans] = WeakValueDictionary()


class SpanCorpus(SplitLoaders):
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
        _check_known("task", tasks, SPAN_TASKS)
        _check_known("layer", layers, TOKEN_LAYERS)
        _check_known("pos_layer", None if pos_layer is None else [pos_layer], POS_LAYERS)
        for name, value in (("max_pieces", max_pieces), ("max_pairs", max_pairs)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
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
        self._tokenizer: PreTrainedTokenizerFast | None = None
        self._encoded: EncodedSpans | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of the corpus."""
        return self.corpus.splits

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer; assign another one before ``setup`` to encode with it.

        Raises:
            RuntimeError: if read before ``setup``.
        """
        if self._tokenizer is None:
            raise RuntimeError("the span corpus has no tokenizer yet: call setup() first")
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: PreTrainedTokenizerFast) -> None:
        if self._tokenizer is not None and tokenizer_digest(self._tokenizer) != tokenizer_digest(tokenizer):
            self._encoded = None
        self._tokenizer = tokenizer

    def setup(self, stage: str | None = None) -> None:
        """Read and encode all splits, once; ``stage`` has no effect."""
        if self._encoded is not None:
            return
        if self._tokenizer is None:
            if self._tokenizer_name is not None:
                self._tokenizer = load_tokenizer(self._tokenizer_name)
            else:  # the corpus defines the vocabulary and its text
                self.corpus.prepare_data()
                self._tokenizer = self.corpus.tokenizer
        corpus = self.corpus
        key = digest(
            [
                type(corpus).__qualname__, list(corpus.splits), corpus.content_key(),
                tokenizer_digest(self._tokenizer), repr(self._asked),
            ]
        )  # fmt: skip
        self._encoded = _CACHE.get(key)
        if self._encoded is None:
            self._encoded = EncodedSpans(corpus, self._tokenizer, self._asked)
            _CACHE[key] = self._encoded

    def _ready(self) -> "EncodedSpans":
        if self._encoded is None:
            raise RuntimeError("the span corpus is not set up: call setup() first")
        return self._encoded

    @property
    def label_names(self) -> dict[str, list[str]]:
        """Names of the labels of each layer and task: those of train, sorted, then additional ones of other splits."""
        return self._ready().names

    @property
    def skipped(self) -> dict[str, dict[str, int]]:
        """Counts of what was left out of each split, and of labels that the first split lacks."""
        return {split: dict(counts) for split, counts in self._ready().counts.items()}

    def loader(self, split: str) -> ExampleLoader:
        """Return the loader of a split's sentences.

        Raises:
            RuntimeError: if called before ``setup``.
            ValueError: if the corpus lacks the split.
        """
        encoded = self._ready()
        if split not in encoded.splits:
            raise ValueError(f"the corpus has no split {split!r}: it has {list(self.splits)}")
        pad_id = self.tokenizer.pad_token_id
        return ExampleLoader(
            encoded.splits[split],
            batch_tokens=self.batch_tokens,
            pad_id=0 if pad_id is None else int(pad_id),
            label_names=encoded.names,
        )

    def predict_dataloader(self) -> ExampleLoader:
        """Return the loader of the test split's sentences."""
        return self.loader("test")


def _check_known(what: str, asked: Iterable[str] | None, known: Sequence[str]) -> None:
    if asked is None:
        return
    unknown = [name for name in asked if name not in known]
    if unknown or len(set(asked)) != len(list(asked)):
        raise ValueError(f"expected each {what} once, of {list(known)}: got {list(asked)}")
