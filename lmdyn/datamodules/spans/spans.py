"""Labelled spans of sentences, for edge probing: words, constituents, semantic roles and coreference."""

import itertools
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from lmdyn.datamodules.corpora.corpus import Corpus
from lmdyn.datamodules.corpora.encoding import IGNORED, merge_label_names
from lmdyn.datamodules.corpora.examples import Example, ExampleLoader
from lmdyn.datamodules.corpora.sentence import TOKEN_LAYERS, Sentence
from lmdyn.datamodules.corpora.tokenization import EncodedAtSetup, Ids, WordEncoder, digest, tokenizer_digest
from lmdyn.datamodules.files.checks import at_least, each_once
from lmdyn.datamodules.loading.loader import SplitLoaders

logger = logging.getLogger(__name__)

Span = tuple[int, int, int, int, str | None]
"""Start and end of both spans in words, -1 if there is no second one, and the label."""

SPAN_TASKS = ("pos", "constituents", "roles", "coreference")
"""Tasks of edge probing that a :class:`~lmdyn.datamodules.SpanCorpus` serves."""

_LAYER_OF = {"constituents": "constituents", "roles": "roles", "coreference": "mentions"}

_SENTENCES_PER_CHUNK = 2048


_CACHE: WeakValueDictionary[str, "EncodedSpans"] = WeakValueDictionary()


class SpanCorpus(EncodedAtSetup["EncodedSpans"], SplitLoaders):
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
        at_least(1, max_pieces=max_pieces, max_pairs=max_pairs)
        self.corpus = corpus
        self.batch_tokens = batch_tokens
        self.span_tasks = tasks
        self.layers = layers
        self.pos_layer = pos_layer
        self.max_pieces, self.max_pairs = max_pieces, max_pairs
        self._tokenizer_name = tokenizer

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of the corpus."""
        return self.corpus.splits

    def make(self) -> "EncodedSpans":
        """Return all splits of the corpus, encoded."""
        corpus = self.corpus
        if not self.has_tokenizer:
            corpus.prepare_data()  # the corpus defines the vocabulary and its text
            self._tokenizer = corpus.tokenizer
        of_corpus = [type(corpus).__qualname__, list(corpus.splits), corpus.content_key()]
        asked = [self.span_tasks, self.layers, self.pos_layer, self.max_pieces, self.max_pairs]
        key = digest([*of_corpus, tokenizer_digest(self.tokenizer), *asked])
        encoded = _CACHE.get(key) or EncodedSpans(self)
        _CACHE[key] = encoded
        return encoded

    @property
    def label_names(self) -> dict[str, list[str]]:
        """Names of the labels of each layer and task: those of train, sorted, then additional ones of other splits."""
        return self.ready.names

    @property
    def skipped(self) -> dict[str, dict[str, int]]:
        """Counts of what was left out of each split, and of labels that the first split lacks."""
        return self.ready.counts

    def loader(self, split: str) -> ExampleLoader:
        """Return the loader of a split's sentences.

        Raises:
            RuntimeError: if called before ``setup``.
            ValueError: if the corpus lacks the split.
        """
        encoded = self.ready
        self.corpus.require_split(split)
        return ExampleLoader(
            encoded.splits[split],
            batch_tokens=self.batch_tokens,
            pad_id=self.pad_id,
            label_names=encoded.names,
        )


class EncodedSpans:
    """All splits of a corpus, encoded with one tokenizer."""

    def __init__(self, asked: SpanCorpus) -> None:
        read = {split: _Split(asked, split) for split in asked.corpus.splits}
        present = {name: split.present for name, split in read.items()}
        common = set.intersection(*present.values())
        of_pos = "upos" if "upos" in common and "xpos" not in common else "xpos"
        layer_of = {"pos": asked.pos_layer or of_pos, **_LAYER_OF}
        tasks_of = {
            split: {t for t, layer in layer_of.items() if layer in has} for split, has in present.items()
        }
        layers = _served("layers", TOKEN_LAYERS, asked.layers, present)
        tasks = _served("tasks", SPAN_TASKS, asked.span_tasks, tasks_of)
        if not tasks and asked.span_tasks is None:
            raise ValueError("no span task has annotations in all splits: set `tasks: []` for no task")
        sources = {name: layer_of["pos"] if name == "pos" else name for name in (*layers, *tasks)}
        found = [{key: split.labels(of) for key, of in sources.items()} for split in read.values()]
        self.names = merge_label_names(found)
        self.counts: dict[str, dict[str, int]] = {}
        self.splits: dict[str, list[Example]] = {}
        index: dict[str, dict[str | None, int]] = {
            key: {None: IGNORED, **{name: i for i, name in enumerate(names)}}
            for key, names in self.names.items()
        }
        for name, split in read.items():
            self.splits[name] = [
                {
                    **split.text(sentence),
                    **{key: split.layer(sentence, key, index[key]) for key in layers},
                    **{f"spans_{key}": split.spans(sentence, key, sources[key], index[key]) for key in tasks},
                }
                for sentence in split.sentences
            ]
            for task in tasks:
                known = len(found[0][task])  # labels of the first split come first
                split.skipped[f"{task} with a label unseen in {next(iter(read))}"] += sum(
                    int((e[f"spans_{task}"][:, 4] >= known).sum()) for e in self.splits[name]
                )
            self.counts[name] = counts = dict(+split.skipped)
            if counts:
                said = "; ".join(f"{n} {what}" for what, n in counts.items())
                logger.warning("%s, %s: %s", type(asked.corpus).__name__, name, said)


def _served(
    what: str, known: Sequence[str], asked: Sequence[str] | None, present: Mapping[str, set[str]]
) -> Sequence[str]:
    """Return what is asked, which every split must have; if nothing is, what every split has."""
    for split, has in present.items():
        if missing := [name for name in asked or () if name not in has]:
            there = ", ".join(name for name in known if name in has) or "words"
            raise ValueError(f"{what}: split {split!r} has no {', '.join(missing)}, only {there}")
    return [x for x in known if all(x in has for has in present.values())] if asked is None else asked


class _Pieces(NamedTuple):
    """A sentence in pieces, with its labels by name."""

    ids: list[int]
    words: Ids
    """Word of each piece."""
    bounds: Ids
    """Position of the first piece of each word, with special tokens, and the end of the last."""
    spans: dict[str, list[Span]]
    """Of each task; those of a layer are its words."""


class _Split:
    """The sentences of one split.

    Attributes:
        present: layers that some sentence has.
        skipped: counts of what was left out.
        sentences: the encoded sentences.
    """

    def __init__(self, asked: SpanCorpus, split: str) -> None:
        encoder = WordEncoder(asked.tokenizer)
        self._before, self._after = encoder.before, encoder.after
        self._random = np.random.default_rng(0)  # for pairs beyond max_pairs
        self.present: set[str] = set()
        self.skipped: Counter[str] = Counter()
        self.sentences: list[_Pieces] = []
        stream = itertools.chain.from_iterable(asked.corpus.documents(split))
        while chunk := list(itertools.islice(stream, _SENTENCES_PER_CHUNK)):
            for sentence, (ids, words) in zip(chunk, encoder.pieces(chunk), strict=True):
                self.present.update(sentence.layers)
                if len(ids) > asked.max_pieces:
                    self.skipped[f"sentences of more than {asked.max_pieces} pieces were left out"] += 1
                elif not ids:
                    self.skipped["sentences without any piece were left out"] += 1
                else:
                    self._add(asked, sentence, ids, np.array(words, np.int64))
        if not self.sentences:
            raise ValueError(
                f"split {split!r} of the corpus has no sentence of at most {asked.max_pieces} pieces: raise "
                "max_pieces, or check the files"
            )

    def _add(self, asked: SpanCorpus, s: Sentence, ids: list[int], words: Ids) -> None:
        bounds = np.searchsorted(words, np.arange(len(s.words) + 1)) + len(self._before)
        self.skipped["words without any piece"] += int((bounds[:-1] == bounds[1:]).sum())
        wanted = asked.span_tasks is None or "coreference" in asked.span_tasks
        mentions = sorted((s.mentions if wanted else ()) or (), key=lambda m: (m.start, m.end))
        pairs = list(itertools.combinations(mentions, 2))
        if (beyond := len(pairs) - asked.max_pairs) > 0:
            self.skipped[f"pairs of mentions beyond {asked.max_pairs} in a sentence were left out"] += beyond
            drawn = sorted(self._random.permutation(len(pairs))[: asked.max_pairs])
            pairs = [pairs[k] for k in drawn]
        spans: dict[str, list[Span]] = {
            "constituents": [(c.start, c.end, -1, -1, c.label) for c in s.constituents or ()],
            "roles": [(r.predicate, r.predicate + 1, r.start, r.end, r.label) for r in s.roles or ()],
            "coreference": [
                (a.start, a.end, b.start, b.end, str(int(a.entity == b.entity))) for a, b in pairs
            ],
        }
        for layer in TOKEN_LAYERS:
            tags = getattr(s, layer) or (None,) * len(s.words)
            spans[layer] = [(i, i + 1, -1, -1, tag) for i, tag in enumerate(tags)]
        self.sentences.append(_Pieces(ids, words, bounds, spans))

    def labels(self, source: str) -> list[str]:
        """Return the labels of a layer or task, sorted."""
        return sorted({label for s in self.sentences for *_, label in s.spans[source] if label is not None})

    def _with_special(self, values: npt.ArrayLike) -> Ids:
        return np.pad(values, (len(self._before), len(self._after)), constant_values=IGNORED)

    def text(self, s: _Pieces) -> dict[str, Ids]:
        """Return ids, labels and words of a sentence."""
        ids = np.array([*self._before, *s.ids, *self._after], np.int64)
        return {"input_ids": ids, "labels": self._with_special(s.ids), "words": self._with_special(s.words)}

    def layer(self, s: _Pieces, layer: str, index: Mapping[str | None, int]) -> Ids:
        """Return the label of each position."""
        return self._with_special(np.array([index[tag] for *_, tag in s.spans[layer]])[s.words])

    def spans(self, s: _Pieces, task: str, source: str, index: Mapping[str | None, int]) -> Ids:
        """Return the spans of a task in positions, with their labels; those without any piece are left out."""
        given = [(*span, index[label]) for *span, label in s.spans[source] if label is not None]
        rows = np.array(given, np.int64).reshape(-1, 5)
        rows[:, :4] = s.bounds[rows[:, :4]]
        there = rows[:, 0] < rows[:, 1]
        if task in ("roles", "coreference"):
            there &= rows[:, 2] < rows[:, 3]
        else:  # no second span
            rows[:, 2:4] = IGNORED
        if task != "pos":
            self.skipped[f"{task} of words without any piece were left out"] += int((~there).sum())
        return rows[there]
