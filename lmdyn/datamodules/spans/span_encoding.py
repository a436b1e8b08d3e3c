"""From annotated sentences to labelled spans of pieces, as served by a ``SpanCorpus``."""

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerFast

from lmdyn.datamodules.corpora.corpus import Corpus
from lmdyn.datamodules.corpora.encoding import IGNORED, merge_label_names
from lmdyn.datamodules.corpora.examples import Example, ExampleSequence
from lmdyn.datamodules.corpora.sentence import TOKEN_LAYERS, Sentence
from lmdyn.datamodules.corpora.tokenization import WordEncoder

__all__ = ["POS_LAYERS", "SPAN_TASKS", "Asked", "EncodedSpans"]

logger = logging.getLogger(__name__)

Array = npt.NDArray[np.int64]

SPAN_TASKS = ("pos", "constituents", "roles", "coreference")
"""Tasks of edge probing that a :class:`~lmdyn.datamodules.SpanCorpus` serves."""

_LAYER_OF = {"constituents": "constituents", "roles": "roles", "coreference": "mentions"}
POS_LAYERS = ("xpos", "upos")
"""Layers that can be the tags of the task ``pos``."""

_SENTENCES_PER_CHUNK = 2048


@dataclass(frozen=True)
class Asked:
    """The settings of a corpus: see :class:`~lmdyn.datamodules.SpanCorpus`."""

    tasks: tuple[str, ...] | None
    layers: tuple[str, ...] | None
    pos_layer: str | None
    max_pieces: int
    max_pairs: int


class _Examples(ExampleSequence):
    """Examples as slices of flat arrays: by token, and by span."""

    def __init__(
        self, tokens: Mapping[str, Array], lengths: Array, spans: Mapping[str, tuple[Array, Array]]
    ) -> None:
        self._tokens = tokens
        self._starts = np.append(0, np.cumsum(lengths))
        self._spans = {
            task: (rows, np.searchsorted(sentence, np.arange(len(lengths) + 1)))
            for task, (rows, sentence) in spans.items()
        }

    def __len__(self) -> int:
        return len(self._starts) - 1

    def at(self, index: int) -> Example:
        """Return example ``index``."""
        start, end = self._starts[index], self._starts[index + 1]
        example = {name: values[start:end] for name, values in self._tokens.items()}
        for task, (rows, starts) in self._spans.items():
            example[f"spans_{task}"] = rows[starts[index] : starts[index + 1]]
        return example


class EncodedSpans:
    """All splits of a corpus, encoded with one tokenizer."""

    def __init__(self, corpus: Corpus, tokenizer: PreTrainedTokenizerFast, asked: Asked) -> None:
        encoders = {split: _Encoder(tokenizer, asked) for split in corpus.splits}
        for split, encoder in encoders.items():
            sentences = itertools.chain.from_iterable(corpus.documents(split))
            while chunk := list(itertools.islice(sentences, _SENTENCES_PER_CHUNK)):
                encoder.add(chunk)
            if not encoder.lengths:
                raise ValueError(
                    f"split {split!r} of the corpus has no sentence of at most {asked.max_pieces} pieces: raise "
                    "max_pieces, or look at its files"
                )
        layers, tasks, pos_layer = _choose({split: e.present for split, e in encoders.items()}, asked)
        sources = {**{layer: layer for layer in layers}, **{task: task for task in tasks}}
        if "pos" in tasks:
            sources["pos"] = pos_layer
        found = [
            {key: list(e.index.get(source, {})) for key, source in sources.items()} for e in encoders.values()
        ]
        self.names = merge_label_names(found)
        self.counts: dict[str, Counter[str]] = {}
        self.splits: dict[str, _Examples] = {}
        for split, encoder in encoders.items():
            self.splits[split] = encoder.examples(layers, tasks, pos_layer, self.names)
            self.counts[split] = encoder.skipped
            for key in tasks:
                new = encoder.unseen(key, sources[key], set(found[0][key]))
                if new:
                    encoder.skipped[f"{key} with a label unseen in {next(iter(encoders))}"] = new
            if encoder.skipped:
                logger.warning(
                    "%s, %s: %s",
                    type(corpus).__name__,
                    split,
                    "; ".join(f"{n} {what}" for what, n in encoder.skipped.items()),
                )


def _choose(present: Mapping[str, set[str]], asked: Asked) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Return the layers and tasks to serve, and the layer of the task ``pos``."""
    everywhere = set.intersection(*present.values())
    pos_layer = asked.pos_layer or next((layer for layer in POS_LAYERS if layer in everywhere), "xpos")
    tasks = {split: _tasks_of(layers, asked.pos_layer) for split, layers in present.items()}
    for what, names, present_in in (
        (
            "layer",
            asked.layers,
            {s: [x for x in TOKEN_LAYERS if x in layers] for s, layers in present.items()},
        ),
        ("task", asked.tasks, tasks),
    ):
        for split, exist in present_in.items():
            missing = [name for name in names or () if name not in exist]
            if missing:
                raise ValueError(
                    f"split {split!r} of the corpus has no {what} {missing}: it has {exist}, choose among these"
                )
    chosen = asked.tasks
    if chosen is None:
        chosen = tuple(t for t in SPAN_TASKS if all(t in there for there in tasks.values()))
    if not chosen and asked.tasks is None:
        raise ValueError(f"the corpus has no annotation of spans in all splits: it has {tasks}")
    layers = asked.layers
    if layers is None:
        layers = tuple(layer for layer in TOKEN_LAYERS if layer in everywhere)
    if "pos" in chosen and pos_layer not in everywhere:  # each split has one of the two, but not the same one
        raise ValueError("the splits have different tags: expected xpos, or upos, in all of them")
    return layers, chosen, pos_layer


def _tasks_of(layers: set[str], pos_layer: str | None) -> list[str]:
    pos = pos_layer in layers if pos_layer else any(layer in layers for layer in POS_LAYERS)
    return [t for t in SPAN_TASKS if (pos if t == "pos" else _LAYER_OF[t] in layers)]


class _Encoder:
    """Encodes the sentences of one split, chunk by chunk."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, asked: Asked) -> None:
        self._encoder = WordEncoder(tokenizer)
        cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
        self._left = [] if cls is None else [int(cls)]
        self._right = [] if sep is None else [int(sep)]
        self._asked = asked
        self._layers = tuple(TOKEN_LAYERS if asked.layers is None else asked.layers)
        if asked.tasks is None or "pos" in asked.tasks:
            pos_layers = POS_LAYERS if asked.pos_layer is None else (asked.pos_layer,)
            self._layers = tuple(dict.fromkeys((*self._layers, *pos_layers)))
        self._tasks = [t for t in SPAN_TASKS if t != "pos" and (asked.tasks is None or t in asked.tasks)]
        self.present: set[str] = set()
        self.index: dict[str, dict[str, int]] = {}
        self.skipped: Counter[str] = Counter()
        self.lengths: list[Array] = []  # number of positions of each sentence
        self._pieces: list[tuple[Array, Array]] = []  # position and id of each piece
        self._word_of_piece: list[
            tuple[Array, Array]
        ] = []  # its word's index in the split and in its sentence
        self._words: list[tuple[Array, Array]] = []  # sentence of each word, and start and end of its pieces
        self._word_labels: dict[str, list[Array]] = {layer: [] for layer in self._layers}
        self._spans: dict[str, list[tuple[Array, Array]]] = {task: [] for task in self._tasks}
        self._seen = [0, 0, 0]  # sentences, words, positions
        self._random = np.random.default_rng(0)  # for pairs beyond max_pairs

    def add(self, sentences: list[Sentence]) -> None:
        """Encode sentences."""
        for s in sentences:
            self.present.update(s.layers)
        encodings = self._encoder.encode([s.words for s in sentences])
        fits = [0 < len(e.ids) <= self._asked.max_pieces for e in encodings]
        if not all(fits):
            long = sum(len(e.ids) > self._asked.max_pieces for e in encodings)
            self._skip(f"sentences of more than {self._asked.max_pieces} pieces left out", long)
            self._skip("sentences without any piece left out", fits.count(False) - long)
            sentences = list(itertools.compress(sentences, fits))
            encodings = list(itertools.compress(encodings, fits))
            if not sentences:
                return
        pieces = np.array([len(e.ids) for e in encodings])
        words = np.array([len(s.words) for s in sentences])
        ids = np.fromiter(itertools.chain.from_iterable(e.ids for e in encodings), np.int64, pieces.sum())
        word = np.fromiter(itertools.chain.from_iterable(e.word_ids for e in encodings), np.int64, len(ids))
        sentence = np.repeat(np.arange(len(sentences)), pieces)
        first_word = np.cumsum(words) - words
        first_piece = np.cumsum(pieces) - pieces
        number = word + first_word[sentence]
        left, special = len(self._left), len(self._left) + len(self._right)
        position = np.arange(len(ids)) + sentence * special + left
        self.lengths.append(pieces + special)
        self._pieces.append((position + self._seen[2], ids))
        self._word_of_piece.append((number + self._seen[1], word))
        # before[w]: number of pieces of the chunk's words before w; one more entry for the end
        before = np.append(0, np.cumsum(np.bincount(number, minlength=words.sum())))
        of_word = np.repeat(np.arange(len(sentences)), words)
        ranges = np.stack([before[:-1], before[1:]], 1) - first_piece[of_word, None] + left
        self._skip("words without any piece", int((ranges[:, 0] == ranges[:, 1]).sum()))
        self._words.append((of_word + self._seen[0], ranges))
        for layer in self._layers:
            names = itertools.chain.from_iterable(
                getattr(s, layer) or (None,) * len(s.words) for s in sentences
            )
            index = self.index.setdefault(layer, {})
            labels = [IGNORED if n is None else index.setdefault(n, len(index)) for n in names]
            self._word_labels[layer].append(np.array(labels, np.int64))
        for task in self._tasks:
            rows = np.array(list(self._rows(task, sentences)), np.int64).reshape(-1, 6)
            of = rows[:, 0]
            one = rows[:, 3] < 0  # a task without a second span
            rows[one, 3:5] = rows[one, 1:3]
            spans = before[rows[:, 1:5] + first_word[of, None]] - first_piece[of, None] + left
            there = (spans[:, 0] < spans[:, 1]) & (spans[:, 2] < spans[:, 3])
            self._skip(f"{task} of words without any piece left out", int((~there).sum()))
            spans[one, 2:] = IGNORED
            self._spans[task].append((np.column_stack([spans, rows[:, 5]])[there], of[there] + self._seen[0]))
        self._seen = [
            a + int(b)
            for a, b in zip(self._seen, (len(words), words.sum(), self.lengths[-1].sum()), strict=True)
        ]

    def _skip(self, what: str, number: int) -> None:
        if number:
            self.skipped[what] += number

    def _rows(self, task: str, sentences: list[Sentence]) -> Iterable[tuple[int, int, int, int, int, int]]:
        """Yield (sentence, start1, end1, start2, end2, label) in words; -1 if there is no second span."""
        index = self.index.setdefault(task, {})
        for i, s in enumerate(sentences):
            if task == "constituents":
                for c in s.constituents or ():
                    yield i, c.start, c.end, -1, -1, index.setdefault(c.label, len(index))
            elif task == "roles":
                for r in s.roles or ():
                    label = index.setdefault(r.label, len(index))
                    yield i, r.predicate, r.predicate + 1, r.start, r.end, label
            else:
                mentions = sorted(s.mentions or (), key=lambda m: (m.start, m.end))
                pairs = list(itertools.combinations(mentions, 2))
                if len(pairs) > self._asked.max_pairs:
                    self._skip(
                        f"pairs of mentions beyond {self._asked.max_pairs} in a sentence left out",
                        len(pairs) - self._asked.max_pairs,
                    )
                    drawn = self._random.permutation(len(pairs))[: self._asked.max_pairs]
                    pairs = [pairs[k] for k in sorted(drawn)]
                for a, b in pairs:
                    label = index.setdefault(str(int(a.entity == b.entity)), len(index))
                    yield i, a.start, a.end, b.start, b.end, label

    def unseen(self, key: str, source: str, known: set[str]) -> int:
        """Count spans of a task with a label that is not among the known ones."""
        new = [i for name, i in self.index.get(source, {}).items() if name not in known]
        parts = self._word_labels[source] if key == "pos" else [rows[:, 4] for rows, _ in self._spans[key]]
        return int(sum(np.isin(labels, new).sum() for labels in parts)) if new else 0

    def examples(
        self, layers: Sequence[str], tasks: Sequence[str], pos_layer: str, names: Mapping[str, list[str]]
    ) -> _Examples:
        """Return all added sentences, with labels as indices into ``names``."""
        position, ids = (np.concatenate(parts) for parts in zip(*self._pieces, strict=True))
        number, word = (np.concatenate(parts) for parts in zip(*self._word_of_piece, strict=True))
        sentence, ranges = (np.concatenate(parts) for parts in zip(*self._words, strict=True))
        lengths = np.concatenate(self.lengths)
        starts = np.cumsum(lengths) - lengths

        def spread(values: Array) -> Array:
            tokens = np.full(int(lengths.sum()), IGNORED, np.int64)
            tokens[position] = values
            return tokens

        labels = {
            layer: _relabelled(np.concatenate(parts), self.index[layer], names.get(layer))
            for layer, parts in self._word_labels.items()
            if layer in layers
        }
        tokens = {"input_ids": spread(ids), "labels": spread(ids), "words": spread(word)}
        for left, token in enumerate(self._left):
            tokens["input_ids"][starts + left] = token
        for right, token in enumerate(self._right):
            tokens["input_ids"][starts + lengths - len(self._right) + right] = token
        tokens |= {layer: spread(labels[layer][number]) for layer in layers}
        spans = {}
        for task in tasks:
            if task == "pos":
                tags = _relabelled(
                    np.concatenate(self._word_labels[pos_layer]), self.index[pos_layer], names["pos"]
                )
                there = (ranges[:, 0] < ranges[:, 1]) & (tags >= 0)
                none = np.full((int(there.sum()), 2), IGNORED)
                spans[task] = (np.column_stack([ranges[there], none, tags[there]]), sentence[there])
            else:
                rows, of = (np.concatenate(parts) for parts in zip(*self._spans[task], strict=True))
                rows[:, 4] = _relabelled(rows[:, 4], self.index[task], names[task])
                spans[task] = (rows, of)
        return _Examples(tokens, lengths, spans)


def _relabelled(labels: Array, index: Mapping[str, int], names: Sequence[str] | None) -> Array:
    new = {name: i for i, name in enumerate(names or ())}
    table = np.array([*(new[name] for name in index), IGNORED], np.int64)
    return table[np.where(labels == IGNORED, len(index), labels)]
