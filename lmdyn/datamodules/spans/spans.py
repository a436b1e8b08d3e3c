"""Labelled spans of sentences, for edge probing: words, constituents, semantic roles and coreference."""

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from lmdyn.datamodules.corpora.corpus import Corpus
from lmdyn.datamodules.corpora.encoding import IGNORED, merge_label_names
from lmdyn.datamodules.corpora.examples import Example, ExampleLoader
from lmdyn.datamodules.corpora.sentence import TOKEN_LAYERS, Sentence
from lmdyn.datamodules.corpora.tokenization import EncodedAtSetup, WordEncoder, digest, tokenizer_digest
from lmdyn.datamodules.files.checks import at_least, each_once, one_of
from lmdyn.datamodules.loading.loader import SplitLoaders

__all__ = ["SPAN_TASKS", "SpanCorpus"]

logger = logging.getLogger(__name__)

Array = npt.NDArray[np.int64]

SPAN_TASKS = ("pos", "constituents", "roles", "coreference")
"""Tasks of edge probing that a :class:`~lmdyn.datamodules.SpanCorpus` serves."""

_LAYER_OF = {"constituents": "constituents", "roles": "roles", "coreference": "mentions"}
POS_LAYERS = ("xpos", "upos")
"""Layers that can be the tags of the task ``pos``."""

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
        one_of((None, *POS_LAYERS), pos_layer=pos_layer)
        at_least(1, max_pieces=max_pieces, max_pairs=max_pairs)
        self.corpus = corpus
        self.batch_tokens = batch_tokens
        self.span_tasks, self.layers, self.pos_layer = tasks, layers, pos_layer
        self.max_pieces, self.max_pairs = max_pieces, max_pairs
        self._tokenizer_name = tokenizer

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of the corpus."""
        return self.corpus.splits

    def encode(self) -> "EncodedSpans":
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


class EncodedSpans:
    """All splits of a corpus, encoded with one tokenizer."""

    def __init__(self, asked: SpanCorpus) -> None:
        corpus = asked.corpus
        encoders = {split: _Encoder(asked) for split in corpus.splits}
        for split, encoder in encoders.items():
            sentences = itertools.chain.from_iterable(corpus.documents(split))
            while chunk := list(itertools.islice(sentences, _SENTENCES_PER_CHUNK)):
                encoder.add(chunk)
            if not encoder.examples:
                raise ValueError(
                    f"split {split!r} of the corpus has no sentence of at most {asked.max_pieces} pieces: raise "
                    "max_pieces, or look at its files"
                )
        layers, tasks, pos_layer = _choose({split: e.present for split, e in encoders.items()}, asked)
        sources = {name: pos_layer if name == "pos" else name for name in (*layers, *tasks)}
        found = [{key: list(e.index[source]) for key, source in sources.items()} for e in encoders.values()]
        self.names = merge_label_names(found)
        self.counts: dict[str, Counter[str]] = {}
        self.splits: dict[str, list[Example]] = {}
        for split, encoder in encoders.items():
            self.splits[split], unseen = encoder.finish(sources, tasks, self.names, found[0])
            self.counts[split] = encoder.skipped
            for key, number in unseen.items():
                encoder.skipped[f"{key} with a label unseen in {next(iter(encoders))}"] = number
            if encoder.skipped:
                said = "; ".join(f"{n} {what}" for what, n in encoder.skipped.items())
                logger.warning("%s, %s: %s", type(corpus).__name__, split, said)


def _choose(
    present: Mapping[str, set[str]], asked: SpanCorpus
) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Return the layers and tasks to serve, and the layer of the task ``pos``."""
    everywhere = set.intersection(*present.values())
    pos_layer: str = asked.pos_layer or next((layer for layer in POS_LAYERS if layer in everywhere), "xpos")
    tasks_of = {split: _tasks_of(layers, asked.pos_layer) for split, layers in present.items()}
    layers_of = {split: [x for x in TOKEN_LAYERS if x in layers] for split, layers in present.items()}
    layers = _asked_or_common("layer", asked.layers, layers_of)
    tasks = _asked_or_common("task", asked.span_tasks, tasks_of)
    if not tasks and asked.span_tasks is None:
        raise ValueError(f"the corpus has no annotation of spans in all splits: it has {tasks_of}")
    if "pos" in tasks and pos_layer not in everywhere:  # each split has one of the two, but not the same one
        raise ValueError("the splits have different tags: expected xpos, or upos, in all of them")
    return layers, tasks, pos_layer


def _asked_or_common(
    what: str, asked: Sequence[str] | None, present: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Return what is asked, which every split must have; if nothing is, what every split has."""
    for split, exist in present.items():
        if missing := [name for name in asked or () if name not in exist]:
            raise ValueError(f"split {split!r} of the corpus has no {what} {missing}: it has {exist}")
    first = next(iter(present.values()))
    common = (name for name in first if all(name in exist for exist in present.values()))
    return tuple(common if asked is None else asked)


def _tasks_of(layers: set[str], pos_layer: str | None) -> list[str]:
    pos = pos_layer in layers if pos_layer else any(layer in layers for layer in POS_LAYERS)
    return [t for t in SPAN_TASKS if (pos if t == "pos" else _LAYER_OF[t] in layers)]


class _Encoder:
    """Encodes the sentences of one split, with labels as indices into ``index`` until all splits are read."""

    def __init__(self, asked: SpanCorpus) -> None:
        self._encoder = WordEncoder(asked.tokenizer)
        self._left, self._right = self._encoder.before, self._encoder.after
        self._asked = asked
        self._layers = tuple(TOKEN_LAYERS if asked.layers is None else asked.layers)
        if asked.span_tasks is None or "pos" in asked.span_tasks:
            pos_layers = POS_LAYERS if asked.pos_layer is None else (asked.pos_layer,)
            self._layers = tuple(dict.fromkeys((*self._layers, *pos_layers)))
        self._tasks = [
            t for t in SPAN_TASKS if t != "pos" and (asked.span_tasks is None or t in asked.span_tasks)
        ]
        self.present: set[str] = set()
        self.index: dict[str, dict[str, int]] = {name: {} for name in (*TOKEN_LAYERS, *SPAN_TASKS)}
        self.skipped: Counter[str] = Counter()
        self.examples: list[dict[str, Array]] = []
        self._random = np.random.default_rng(0)  # for pairs beyond max_pairs

    def add(self, sentences: list[Sentence]) -> None:
        """Encode sentences."""
        most = self._asked.max_pieces
        for sentence, (ids, words) in zip(sentences, self._encoder.pieces(sentences), strict=True):
            self.present.update(sentence.layers)
            if len(ids) > most:
                self.skipped[f"sentences of more than {most} pieces left out"] += 1
            elif not ids:
                self.skipped["sentences without any piece left out"] += 1
            else:
                self.examples.append(self._example(sentence, ids, np.array(words, np.int64)))

    def _example(self, sentence: Sentence, ids: list[int], words: Array) -> dict[str, Array]:
        left, none = len(self._left), np.full(len(self._right), IGNORED)

        def spread(values: npt.ArrayLike) -> Array:
            return np.concatenate([np.full(left, IGNORED), np.asarray(values, np.int64), none])

        example = {"input_ids": np.array([*self._left, *ids, *self._right], np.int64)}
        example |= {"labels": spread(ids), "words": spread(words)}
        bounds = (
            np.searchsorted(words, np.arange(len(sentence.words) + 1)) + left
        )  # of the pieces of each word
        if empty := int((bounds[:-1] == bounds[1:]).sum()):
            self.skipped["words without any piece"] += empty
        for layer in self._layers:
            tags = getattr(sentence, layer) or (None,) * len(sentence.words)
            labels = np.array([IGNORED if t is None else self._label(layer, t) for t in tags])
            example[layer] = spread(labels[words])
            if layer in POS_LAYERS:
                spans = np.column_stack([bounds[:-1], bounds[1:], np.full((len(tags), 2), IGNORED), labels])
                example[f"{layer} spans"] = spans[(bounds[:-1] < bounds[1:]) & (labels >= 0)]
        for task in self._tasks:
            rows = np.array(list(self._rows(task, sentence)), np.int64).reshape(-1, 5)
            one = rows[:, 2] < 0  # a task without a second span
            rows[one, 2:4] = rows[one, :2]
            rows[:, :4] = bounds[rows[:, :4]]
            there = (rows[:, 0] < rows[:, 1]) & (rows[:, 2] < rows[:, 3])
            rows[one, 2:4] = IGNORED
            if not there.all():
                self.skipped[f"{task} of words without any piece left out"] += int((~there).sum())
            example[f"{task} spans"] = rows[there]
        return example

    def _label(self, source: str, name: str) -> int:
        index = self.index[source]
        return index.setdefault(name, len(index))

    def _rows(self, task: str, s: Sentence) -> Iterable[tuple[int, int, int, int, int]]:
        """Yield (start1, end1, start2, end2, label) in words; -1 if there is no second span."""
        if task == "constituents":
            for c in s.constituents or ():
                yield c.start, c.end, -1, -1, self._label(task, c.label)
        elif task == "roles":
            for r in s.roles or ():
                yield r.predicate, r.predicate + 1, r.start, r.end, self._label(task, r.label)
        else:
            mentions = sorted(s.mentions or (), key=lambda m: (m.start, m.end))
            pairs, most = list(itertools.combinations(mentions, 2)), self._asked.max_pairs
            if len(pairs) > most:
                what = f"pairs of mentions beyond {most} in a sentence left out"
                self.skipped[what] += len(pairs) - most
                pairs = [pairs[k] for k in sorted(self._random.permutation(len(pairs))[:most])]
            for a, b in pairs:
                yield a.start, a.end, b.start, b.end, self._label(task, str(int(a.entity == b.entity)))

    def finish(
        self,
        sources: Mapping[str, str],
        tasks: Sequence[str],
        names: Mapping[str, list[str]],
        known: Mapping[str, list[str]],
    ) -> tuple[list[Example], Counter[str]]:
        """Return the examples with labels as indices into ``names``, and the spans of each task with an unknown one."""
        finished: list[Example] = []
        unseen: Counter[str] = Counter()
        tables = {key: _table(self.index[source], names[key]) for key, source in sources.items()}
        new = {task: [i for i, name in enumerate(names[task]) if name not in known[task]] for task in tasks}
        for given in self.examples:
            example = {name: given[name] for name in ("input_ids", "labels", "words")}
            for key, table in tables.items():
                if key not in tasks:
                    example[key] = table[given[key]]
                    continue
                spans = given[f"{sources[key]} spans"].copy()
                spans[:, 4] = table[spans[:, 4]]
                example[f"spans_{key}"] = spans
                if number := int(np.isin(spans[:, 4], new[key]).sum()):
                    unseen[key] += number
            finished.append(example)
        return finished, unseen


def _table(index: Mapping[str, int], names: Sequence[str]) -> Array:
    """Return the place in ``names`` of each label of an index, in a table that maps -100 to itself."""
    new = {name: i for i, name in enumerate(names)}
    table = np.full(len(index) - IGNORED, IGNORED)
    table[: len(index)] = [new[name] for name in index]
    return table
