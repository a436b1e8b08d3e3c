"""Tasks for fine-tuning: their content, their encoding as examples, and the datamodule that serves them."""

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
from transformers import PreTrainedTokenizerFast

from lmdyn.datamodules.corpora.examples import Example, ExampleLoader
from lmdyn.datamodules.corpora.tokenization import Array, EncodedAtSetup, Ids, digest, plain_backend
from lmdyn.datamodules.files.checks import at_least

logger = logging.getLogger(__name__)

Kind = Literal["classification", "regression", "span"]

# ---------------------------------------------------------------------------------------------- as text


@dataclass(frozen=True, slots=True)
class TextExample:
    """One or two sentences with a label: an index into the task's label names, or a number."""

    first: str
    second: str | None
    label: float


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a text, with its answers and the characters at which they start; none if it has no answer."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class RawTask:
    """A task as text; see :class:`Task`."""

    name: str
    kind: Kind
    train: Sequence[TextExample] | Sequence[Question]
    evaluation: Mapping[str, Sequence[TextExample] | Sequence[Question]]
    label_names: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------- as numbers


@dataclass(eq=False)
class TaskExamples(Sequence[Example]):
    """Encoded examples, slices of flat arrays.

    Each has ``input_ids`` and ``token_type_ids`` of one axis, time, and scalars: ``label``; or, for a span task,
    ``start`` and ``end`` (first and last position of the answer, both 0 if it has none), ``question`` (its
    number), and ``offsets`` (time, 2), the characters of the context at each position, -1 outside of it.

    Args:
        tokens: flat arrays by name, one entry per position.
        lengths: number of positions of each example.
        scalars: arrays by name, one entry per example.
        contexts: for a span task, the context of each question.
        answers: for a span task, the texts of the answers to each question, empty if it has none.
    """

    tokens: dict[str, Array]
    lengths: Ids
    scalars: Mapping[str, Array]
    contexts: tuple[str, ...] = ()
    answers: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        self._ends = np.cumsum(self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Any) -> Any:
        here = slice(self._ends[index] - self.lengths[index], self._ends[index])
        return {
            **{name: values[here].astype(np.int64) for name, values in self.tokens.items()},
            **{name: np.asarray(values[index]) for name, values in self.scalars.items()},
        }

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the whole content."""
        h = hashlib.blake2b(digest([self.contexts, self.answers]).encode(), digest_size=16)
        for name, values in sorted({**self.tokens, **self.scalars, "lengths": self.lengths}.items()):
            h.update(name.encode() + np.ascontiguousarray(values).tobytes())
        return h.hexdigest()


@dataclass(frozen=True)
class Task:
    """An encoded task for fine-tuning, with what an observer must know about it.

    Attributes:
        name: ``CoLA``, ``MNLI``, …
        kind: ``classification``, ``regression``, or ``span`` (where in a text the answer is).
        train: training examples.
        evaluation: evaluation examples, by the name of the set; if there is only one, its name is ``""``.
        label_names: for a classification, the name of each label; if there are two, the second is the positive one.
        pad_id: token id on padding.
    """

    name: str
    kind: Kind
    train: TaskExamples
    evaluation: Mapping[str, TaskExamples]
    label_names: tuple[str, ...] = ()
    pad_id: int = 0

    @property
    def num_labels(self) -> int:
        """Number of outputs of a classifier: labels; 1 for a regression; 2 for a span, its start and its end."""
        return {"classification": len(self.label_names), "regression": 1, "span": 2}[self.kind]

    @cached_property
    def fingerprint(self) -> str:
        """Hash of its definition and of all its examples."""
        sets = {name: examples.fingerprint for name, examples in self.evaluation.items()}
        return digest([self.name, self.kind, self.label_names, self.train.fingerprint, sets])


class PairEncoder:
    """Encodes one or two sentences with the tokenizer's own template: [CLS] first [SEP] second [SEP].

    In a span task, windows of a long context overlap by 128 positions, and a question is cut to 64, or a quarter of
    ``max_length`` if that is less.

    Args:
        tokenizer: a tokenizer with [CLS] and [SEP] that adds them to texts.
        max_length: maximum positions of an example; the longer of two sentences is cut first.

    Raises:
        ValueError: if the tokenizer lacks these tokens, or does not add them to a text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, max_length: int) -> None:
        self._backend = plain_backend(tokenizer)
        self.max_length = max_length
        self._stride, self._max_question = min(128, max_length // 4), min(64, max_length // 4)
        probe = self._backend.encode("a", "a").ids
        cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
        if cls is None or sep is None or probe[0] != cls or probe.count(sep) < 2:
            raise ValueError(
                "fine-tuning requires pairs encoded as [CLS] first [SEP] second [SEP]. Expected a tokenizer that adds "
                "cls_token and sep_token, such as `vocabulary: unigram` or `wordpiece` trains; got a tokenizer with "
                f"{', '.join(sorted(tokenizer.special_tokens_map)) or 'none'}"
            )

    def texts(self, examples: Sequence[TextExample]) -> tuple[TaskExamples, int]:
        """Return encoded examples, and how many of them were cut."""
        self._backend.enable_truncation(self.max_length, strategy="longest_first")
        inputs = [e.first if e.second is None else (e.first, e.second) for e in examples]
        encodings = self._backend.encode_batch(inputs)
        cut = sum(bool(e.overflowing) for e in encodings)
        labels = np.array([e.label for e in examples], dtype=np.float64)
        return _flat(encodings, {"label": labels}), cut

    def questions(self, questions: Sequence[Question]) -> tuple[TaskExamples, int]:
        """Return each question with each window of its context, and how many contexts were cut into windows."""
        self._backend.no_truncation()
        asked = []
        alone = self._backend.encode_batch([q.question for q in questions], add_special_tokens=False)
        for q, e in zip(questions, alone, strict=True):
            long = len(e.ids) > self._max_question
            asked.append(q.question[: e.offsets[self._max_question - 1][1]] if long else q.question)
        self._backend.enable_truncation(self.max_length, stride=self._stride, strategy="only_second")
        found = self._backend.encode_batch([(a, q.context) for a, q in zip(asked, questions, strict=True)])
        windows = [e for first in found for e in (first, *first.overflowing)]
        number = np.repeat(np.arange(len(found)), [1 + len(first.overflowing) for first in found])
        offsets = []
        for e in windows:
            inside = np.array(e.sequence_ids, dtype=object) == 1
            offsets.append(np.where(inside[:, None], np.array(e.offsets), -1))
        ends = [_answer_positions(questions[i], of) for i, of in zip(number.tolist(), offsets, strict=True)]
        start, end = np.array(ends, dtype=np.int64).T
        encoded = _flat(
            windows,
            {"question": number, "start": start, "end": end},
            contexts=tuple(q.context for q in questions),
            answers=tuple(tuple(text for text, _ in q.answers) for q in questions),
        )
        encoded.tokens["offsets"] = np.concatenate(offsets).astype(np.int32)
        return encoded, sum(bool(e.overflowing) for e in found)


def _flat(
    encodings: Sequence[Any],
    scalars: Mapping[str, Array],
    **of_questions: Any,
) -> TaskExamples:
    lengths = np.array([len(e.ids) for e in encodings], dtype=np.int64)

    def flat(values: Iterable[Sequence[int]], dtype: Any) -> Array:
        return np.fromiter((x for row in values for x in row), dtype, int(lengths.sum()))

    ids = flat((e.ids for e in encodings), np.int32)
    types = flat((e.type_ids for e in encodings), np.int8)
    return TaskExamples({"input_ids": ids, "token_type_ids": types}, lengths, scalars, **of_questions)


def _answer_positions(question: Question, offsets: Array) -> tuple[int, int]:
    """Return first and last position of the first answer; (0, 0) if it has none, or is not fully in this window."""
    if not question.answers:
        return 0, 0
    text, start = question.answers[0]
    inside = (offsets[:, 1] > start) & (offsets[:, 0] < start + len(text)) & (offsets[:, 0] >= 0)
    if not inside.any():
        return 0, 0
    first = int(inside.argmax())
    last = int(len(inside) - 1 - inside[::-1].argmax())
    if offsets[first, 0] > start or offsets[last, 1] < start + len(text):  # an end is in another window
        return 0, 0
    return first, last


# ------------------------------------------------------------------------------------------- datamodule


class TaskData(EncodedAtSetup[dict[str, Task]], ABC):
    """Tasks for fine-tuning, read by a subclass and encoded here; the ``probe`` of the observer ``Downstream``.

    :attr:`tasks` contains the tasks. The loader of the validation set serves the ``input_ids`` of all evaluation
    examples, with ``task``, for observers of text; its fingerprint covers the tasks.

    Args:
        max_sequence_length: maximum positions of an example; longer ones are cut, and a warning counts them.
        train_limit: number of training examples of each task, drawn with a fixed seed; None for all.
        evaluation_limit: number of evaluation examples of each set, drawn with a fixed seed; None for all.
        tokenizer: folder or hub name; an observer assigns the run's own.
        batch_tokens: positions per batch of the loader, including padding.

    Raises:
        ValueError: if a limit is below 1.
    """

    splits = ("validation",)

    def __init__(
        self,
        *,
        max_sequence_length: int = 512,
        train_limit: int | None = None,
        evaluation_limit: int | None = None,
        tokenizer: str | None = None,
        batch_tokens: int = 4096,
    ) -> None:
        super().__init__()
        at_least(8, max_sequence_length=max_sequence_length)
        at_least(1, train_limit=train_limit, evaluation_limit=evaluation_limit)
        self.max_sequence_length = max_sequence_length
        self.train_limit = train_limit
        self.evaluation_limit = evaluation_limit
        self.batch_tokens = batch_tokens
        self._tokenizer_name = tokenizer

    @abstractmethod
    def read(self) -> Iterable[RawTask]:
        """Return the tasks as text, without limits."""

    @property
    def tasks(self) -> Mapping[str, Task]:
        """The encoded tasks, by name.

        Raises:
            RuntimeError: if read before ``setup``.
        """
        return self.ready

    def make(self) -> dict[str, Task]:
        """Return the encoded tasks, by name."""
        encoder = PairEncoder(self.tokenizer, self.max_sequence_length)
        return {raw.name: self._task(raw, encoder) for raw in self.read()}

    def _task(self, raw: RawTask, encoder: PairEncoder) -> Task:
        encode: Any = encoder.questions if raw.kind == "span" else encoder.texts
        what = "read in several windows" if raw.kind == "span" else f"cut to {encoder.max_length} positions"

        def encoded(name: str, rows: Sequence[Any], limit: int | None) -> TaskExamples:
            if not rows:
                raise ValueError(f"{raw.name} has no examples in the set {name!r}: check the data")
            if limit is not None and len(rows) > limit:
                kept = np.sort(np.random.default_rng(0).permutation(len(rows))[:limit])
                rows = [rows[i] for i in kept]
            examples, cut = encode(rows)
            if cut:
                logger.warning("%s, %s: %d of %d examples are %s", raw.name, name, cut, len(rows), what)
            return cast(TaskExamples, examples)

        train = encoded("train", raw.train, self.train_limit)
        sets = {
            key: encoded(f"evaluation {key}".strip(), rows, self.evaluation_limit)
            for key, rows in raw.evaluation.items()
        }
        return Task(raw.name, raw.kind, train, sets, raw.label_names, self.pad_id)

    def val_dataloader(self) -> ExampleLoader:
        """Return the evaluation examples: ``input_ids``, and ``task``, an index into ``label_names["task"]``."""
        names = list(self.tasks)
        examples: list[Example] = [
            {"input_ids": e["input_ids"], "task": np.asarray(number)}
            for number, task in enumerate(self.tasks.values())
            for some in task.evaluation.values()
            for e in some
        ]
        return ExampleLoader(
            examples, batch_tokens=self.batch_tokens, pad_id=self.pad_id, label_names={"task": names}
        )
