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
    """Sentences of any annotated corpus with the spans that edge probes classify; one sentence is one example.

    A batch of B sentences of at most T positions holds, besides what
    :class:`~lmdyn.datamodules.corpora.examples.ExampleLoader` adds,

    ================== ========= ====================================================================
    ``input_ids``      (B, T)    the tokenizer's [CLS], the pieces of the words, its [SEP]; a tokenizer without
                                 these tokens (a word-level one) adds none
    ``labels``         (B, T)    the same ids, -100 at special tokens and padding
    ``words``          (B, T)    index of the piece's word in its sentence, -100 at special tokens and padding
    ``<layer>``        (B, T)    label of the piece's word, -100 where there is none
    ``spans_<task>``   (B, S, 5) first span's start and end, second span's start and end, label
    ================== ========= ====================================================================

    Spans are ranges of positions in ``input_ids`` with exclusive ends; a task of one span has -100 for the second,
    and rows of padding are -100 throughout. Labels index into :attr:`label_names`. The tasks:

    - ``pos``: each word and its tag, of the layer ``pos_layer``;
    - ``constituents``: each phrase and its label, also where several phrases cover the same words;
    - ``roles``: the predicate (first span), an argument, and the argument's role;
    - ``coreference``: two mentions of one sentence, the one that starts earlier first, and ``1`` where they mean the
      same entity, else ``0``. All pairs of a sentence are taken, as Tenney et al. 2019 do, up to ``max_pairs``.

    All splits are read and encoded in ``setup``, into memory: the names of labels are shared by all splits. Of
    ``corpus`` the documents are used, not its encoded text; corpora of equal content, settings and tokenizer share
    their encoding as long as one of them is there. The tokenizer is the one assigned to the attribute ``tokenizer``
    (an observer hands over the run's), or the one named, or that of ``corpus``, as its own settings make it.

    Never silent: sentences of more than ``max_pieces`` pieces are left out, so are spans of words for which the
    tokenizer has no piece, and pairs beyond ``max_pairs`` (drawn by a fixed seed); :attr:`skipped` counts them, and a
    warning says it.

    Args:
        corpus: where the sentences come from.
        tasks: some of ``pos``, ``constituents``, ``roles``, ``coreference``; None for all that each split has; empty
            for none, where only tokens are looked at.
        layers: layers with one label a word (``upos``, ``xpos``, ``semtag``, …); None for all that each split has.
        pos_layer: layer of the task ``pos``; None for ``xpos``, or ``upos`` where the corpus has no ``xpos``.
        tokenizer: folder or hub name, or path of a ``tokenizer.json``.
        batch_tokens: positions of a batch, padding included.
        max_pieces: longest sentence, without special tokens.
        max_pairs: of coreference, in one sentence.

    Raises:
        ValueError: an unknown task or layer, sizes below 1; in ``setup``, a task or layer that a split lacks, with
            what it has, or a split without sentences.

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
            RuntimeError: read before ``setup``.
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
        """Read and encode all splits, unless it is done; ``stage`` plays no part."""
        if self._encoded is not None:
            return
        if self._tokenizer is None:
            if self._tokenizer_name is not None:
                self._tokenizer = load_tokenizer(self._tokenizer_name)
            else:  # which vocabulary, and from what text, is the corpus's to say
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
        """Names of the labels of each layer and of each task: those of train, sorted, then new ones of the others."""
        return self._ready().names

    @property
    def skipped(self) -> dict[str, dict[str, int]]:
        """What was left out of each split, and how often labels occur that the first split lacks."""
        return {split: dict(counts) for split, counts in self._ready().counts.items()}

    def loader(self, split: str) -> ExampleLoader:
        """The sentences of a split.

        Raises:
            RuntimeError: before ``setup``.
            ValueError: a split that the corpus lacks.
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
        """The sentences of the test split."""
        return self.loader("test")


def _check_known(what: str, asked: Iterable[str] | None, known: Sequence[str]) -> None:
    if asked is None:
        return
    unknown = [name for name in asked if name not in known]
    if unknown or len(set(asked)) != len(list(asked)):
        raise ValueError(f"expected each {what} once, of {list(known)}: got {list(asked)}")
