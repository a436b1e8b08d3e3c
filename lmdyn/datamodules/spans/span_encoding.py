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
from lmdyn.datamodules.corpora.examples import Example
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


class EncodedSpans:
    """All splits of a corpus, encoded with one tokenizer."""

    def __init__(self, corpus: Corpus, tokenizer: PreTrainedTokenizerFast, asked: Asked) -> None:
        encoders = {split: _Encoder(tokenizer, asked) for split in corpus.splits}
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


def _choose(present: Mapping[str, set[str]], asked: Asked) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Return the layers and tasks to serve, and the layer of the task ``pos``."""
    everywhere = set.intersection(*present.values())
    pos_layer = asked.pos_layer or next((layer for layer in POS_LAYERS if layer in everywhere), "xpos")
    tasks_of = {split: _tasks_of(layers, asked.pos_layer) for split, layers in present.items()}
    layers_of = {split: [x for x in TOKEN_LAYERS if x in layers] for split, layers in present.items()}
    layers = _asked_or_common("layer", asked.layers, layers_of)
    tasks = _asked_or_common("task", asked.tasks, tasks_of)
    if not tasks and asked.tasks is None:
        raise ValueError(f"the corpus has no annotation of spans in all splits: it has {tasks_of}")
    if "pos" in tasks and pos_layer not in everywhere:  # each split has one of the two, but not the same one
        raise ValueError("the splits have different tags: expected xpos, or upos, in all of them")
    return layers, tasks, pos_layer


def _asked_or_common(
    what: str, asked: tuple[str, ...] | None, present: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Return what is asked, which every split must have; if nothing is, what every split has."""
    for split, exist in present.items():
        if missing := [name for name in asked or () if name not in exist]:
            raise ValueError(f"split {split!r} of the corpus has no {what} {missing}: it has {exist}")
    first = next(iter(present.values()))
    common = (name for name in first if all(name in exist for exist in present.values()))
    return tuple(common) if asked is None else asked


def _tasks_of(layers: set[str], pos_layer: str | None) -> list[str]:
    pos = pos_layer in layers if pos_layer else any(layer in layers for layer in POS_LAYERS)
    return [t for t in SPAN_TASKS if (pos if t == "pos" else _LAYER_OF[t] in layers)]


class _Encoder:
    """Encodes the sentences of one split, with labels as indices into ``index`` until all splits are read."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, asked: Asked) -> None:
        self._encoder = WordEncoder(tokenizer)
        self._left, self._right = self._encoder.before, self._encoder.after
        self._asked = asked
        self._layers = tuple(TOKEN_LAYERS if asked.layers is None else asked.layers)
        if asked.tasks is None or "pos" in asked.tasks:
            pos_layers = POS_LAYERS if asked.pos_layer is None else (asked.pos_layer,)
            self._layers = tuple(dict.fromkeys((*self._layers, *pos_layers)))
        self._tasks = [t for t in SPAN_TASKS if t != "pos" and (asked.tasks is None or t in asked.tasks)]
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
