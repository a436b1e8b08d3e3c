"""GLUE and SQuAD 2.0 for fine-tuning, from their own files or from the hub."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmdyn.datamodules.files.checks import each_once
from lmdyn.datamodules.files.data_sets import load_dataset, read_rows
from lmdyn.datamodules.files.text_files import read_json, read_lines, shown
from lmdyn.datamodules.tasks.tasks import Question, RawTask, TaskData, TextExample

logger = logging.getLogger(__name__)

SQUAD = "SQuAD2.0"
"""Name of the one task that is not part of GLUE."""


@dataclass(frozen=True)
class GlueLayout:
    """Location of a GLUE task's texts and labels.

    Attributes:
        label_names: labels in the order of their numbers on the hub; empty for a regression.
        columns: column of the first sentence and, if there is one, of the second: names, or numbers from 0 if the file
            has no header.
        label: column of the label.
        hub_columns: columns of the sentences on the hub, if they have other names there; that of the label is
            ``label``.
        sets: names of the evaluation sets.
        n_columns: number of columns of a file without header.
        skip_short: whether rows with too few columns are counted and left out, instead of refused.
    """

    label_names: tuple[str, ...]
    columns: tuple[str, ...]
    label: str
    hub_columns: tuple[str, ...] = ()
    sets: tuple[str, ...] = ("",)
    n_columns: int = 0
    skip_short: bool = False


_PAIR = ("sentence1", "sentence2")
_QUESTIONS = ("question1", "question2")
_ANSWER = ("question", "sentence")
_NLI = ("entailment", "not_entailment")
_MNLI = ("entailment", "neutral", "contradiction")

GLUE_LAYOUTS: Mapping[str, GlueLayout] = {
    "CoLA": GlueLayout(("0", "1"), ("3",), "1", ("sentence",), n_columns=4),
    "SST-2": GlueLayout(("0", "1"), ("sentence",), "label"),
    "MRPC": GlueLayout(("0", "1"), ("#1 String", "#2 String"), "Quality", _PAIR),
    # in the published file, questions with line breaks split rows in two
    "QQP": GlueLayout(("0", "1"), _QUESTIONS, "is_duplicate", skip_short=True),
    "STS-B": GlueLayout((), _PAIR, "score"),
    "MNLI": GlueLayout(_MNLI, _PAIR, "gold_label", ("premise", "hypothesis"), ("matched", "mismatched")),
    "QNLI": GlueLayout(_NLI, _ANSWER, "label"),
    "RTE": GlueLayout(_NLI, _PAIR, "label"),
    "WNLI": GlueLayout(("0", "1"), _PAIR, "label"),
}
"""The tasks of GLUE, in its own tsv files (quoting off) and on the hub."""


class GlueTasks(TaskData):
    """Tasks of GLUE, and SQuAD 2.0, from a folder in GLUE's own layout or from the hub.

    A folder contains ``<task>/train.tsv`` and ``<task>/dev.tsv`` (MNLI: ``dev_matched.tsv``, ``dev_mismatched.tsv``),
    and ``SQuAD2.0/train-v2.0.json`` and ``SQuAD2.0/dev-v2.0.json``. The evaluation sets are the development sets: the
    labels of GLUE's test sets are not public.

    Args:
        tasks: names of GLUE tasks, or ``SQuAD2.0``.
        folder: folder of the files; environment variables are expanded.
        dataset: instead of a folder, arguments of ``datasets.load_dataset``, such as ``{"path": "nyu-mll/glue"}``; each
            task sets the configuration's ``name``.
        squad_dataset: the same for SQuAD 2.0.
        **kwargs: see :class:`~lmdyn.datamodules.tasks.tasks.TaskData`.

    Raises:
        ValueError: if a task is unknown, or both or neither of ``folder`` and ``dataset`` are given; in ``setup``, if a
            row is malformed (with file and line), or a dataset cannot be opened.
        FileNotFoundError: in ``setup``, if a file is missing.

    Reference: Wang et al. 2018; Rajpurkar, Jia & Liang 2018; Chiang, Huang & Lee 2020, appendix E.

    Example:
        >>> tasks = GlueTasks(["CoLA", "RTE"], folder="$LMDYN_DATA/glue", train_limit=1000)
        >>> tasks.names
        ('CoLA', 'RTE')
    """

    def __init__(
        self,
        tasks: Sequence[str] = ("CoLA", "MRPC", "RTE", "SST-2", "STS-B"),
        folder: str | None = None,
        dataset: dict[str, Any] | None = None,
        squad_dataset: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        each_once((*GLUE_LAYOUTS, SQUAD), 1, tasks=tasks)
        given = {t: (folder, squad_dataset if t == SQUAD else dataset) for t in tasks}
        if wrong := [t for t, sources in given.items() if sources.count(None) != 1]:
            raise ValueError(
                f"expected one source of {', '.join(wrong)}, `folder` or data of the hub: set either `folder`, or "
                "`dataset` for GLUE's tasks (path: nyu-mll/glue) and `squad_dataset` for SQuAD2.0 (path: "
                "rajpurkar/squad_v2)"
            )
        self.names = tuple(tasks)
        self.folder = folder
        self.dataset = dataset
        self.squad_dataset = squad_dataset

    def prepare_data(self) -> None:
        """Download what comes from the hub into its cache, on one process."""
        for name in self.names:
            if name == SQUAD and self.squad_dataset is not None:
                load_dataset(self.squad_dataset)
            elif name != SQUAD and self.dataset is not None:
                load_dataset(self._config(name))

    def _config(self, name: str) -> dict[str, Any]:
        return {"name": name.lower().replace("-", ""), **(self.dataset or {})}

    def read(self) -> Iterator[RawTask]:
        """Yield the tasks as text."""
        return (self._read_squad() if name == SQUAD else self._read_glue(name) for name in self.names)

    def _read_glue(self, name: str) -> RawTask:
        layout = GLUE_LAYOUTS[name]
        kind: Any = "classification" if layout.label_names else "regression"
        wanted = {"train": ("train", "train")}
        wanted |= {s: (f"dev_{s}".strip("_"), f"validation_{s}".strip("_")) for s in layout.sets}
        if self.dataset is None:
            sets = {key: _read_tsv(self._file(f"{name}/{of}.tsv"), layout) for key, (of, _) in wanted.items()}
        else:
            config, sets = self._config(name), {}
            splits = load_dataset(config)
            for key, (_, split) in wanted.items():
                rows = read_rows(_split(splits, split, name), config)
                sets[key] = _hub_examples(rows, layout, f"{name}, {split}")
        return RawTask(name, kind, sets.pop("train"), sets, layout.label_names)

    def _read_squad(self) -> RawTask:
        if (hub := self.squad_dataset) is None:
            train, dev = (read_squad(self._file(f"{SQUAD}/{s}-v2.0.json")) for s in ("train", "dev"))
        else:
            splits = load_dataset(hub)
            train, dev = (
                questions_of_rows(read_rows(_split(splits, s, SQUAD), hub), f"{SQUAD}, {s}")
                for s in ("train", "validation")
            )
        return RawTask(SQUAD, "span", train, {"": dev})

    def _file(self, name: str) -> Path:
        path = Path(os.path.expandvars(self.folder or "")).expanduser() / name
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} does not exist: expected the files in their own layout, <folder>/<task>/train.tsv and dev.tsv "
                "(MNLI: dev_matched.tsv and dev_mismatched.tsv; SQuAD2.0: train-v2.0.json and dev-v2.0.json). Check "
                "`folder`, or set `dataset` or `squad_dataset` (of the hub) instead"
            )
        return path


def _read_tsv(path: Path, layout: GlueLayout) -> list[TextExample]:
    # no csv module: quotes are ordinary characters, and a form feed or U+2028 within a text does not end a line
    lines = list(read_lines(path))
    if lines and not lines[-1][1].strip():
        lines.pop()
    header = [str(number) for number in range(layout.n_columns)]
    header = header or (lines.pop(0)[1].split("\t") if lines else [])
    required = [*layout.columns, layout.label]
    if wrong := [c for c in required if header.count(c) != 1]:
        got = f"got {shown(' '.join(header), 300)}, with {', '.join(wrong)} missing or repeated"
        raise ValueError(f"{path}:1: expected each of the columns {', '.join(required)} once, {got}")
    columns = [header.index(c) for c in required]
    n_columns = len(header)
    examples, short = [], 0
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) != n_columns:
            if layout.skip_short and len(fields) < n_columns:
                short += 1
                continue
            raise ValueError(
                f"{path}:{number}: expected {n_columns} tab-separated columns, got {len(fields)}"
            )
        *texts, label = (fields[c] for c in columns)
        examples.append(_example(texts, label, layout, f"{path}:{number}"))
    if not examples:
        raise ValueError(f"{path}:1: expected rows of {n_columns} columns, got none: use the complete file")
    if short:
        logger.warning("%s: lmdyn left out %d rows with fewer than %d columns", path, short, n_columns)
    return examples


def _example(texts: Sequence[Any], label: Any, layout: GlueLayout, where: str) -> TextExample:
    """Return an example; the label is a name, its number, or a score, as text or as a number."""
    names, number = list(layout.label_names), label
    if names and isinstance(label, str):
        number = names.index(label) if label in names else -1
    try:
        number = float(number)
    except (TypeError, ValueError):
        number = -1
    if not (number in range(len(names)) if names else 0 <= number <= 5):
        expected = f"a label of {', '.join(names)}" if names else "a score from 0 to 5"
        raise ValueError(f"{where}: expected {expected}, got {shown(str(label))}")
    if not all(isinstance(text, str) for text in texts):
        wrong = f"{next(text for text in texts if not isinstance(text, str))}"
        raise ValueError(f"{where}: expected text, got {shown(wrong)}")
    return TextExample(texts[0], texts[1] if len(texts) > 1 else None, number)


def _hub_examples(rows: Iterable[Mapping[str, Any]], layout: GlueLayout, where: str) -> list[TextExample]:
    examples, columns = [], layout.hub_columns or layout.columns
    for i, row in enumerate(rows):
        *texts, label = found = [row.get(c) for c in (*columns, "label")]
        if None in found:
            raise ValueError(
                f"{where}, row {i}: expected values in the columns {', '.join(columns)} and label, got "
                f"values in {', '.join(name for name, value in row.items() if value is not None) or 'none'}"
            )
        examples.append(_example(texts, label, layout, f"{where}, row {i}"))
    return examples


def _split(splits: Any, split: str, name: str) -> Any:
    if split not in splits:
        raise ValueError(f"{name}: expected a dataset with a split {split!r}, got {', '.join(splits)}")
    return splits[split]


# ---------------------------------------------------------------- SQuAD


def read_squad(path: Path) -> list[Question]:
    """Read the questions of a file in SQuAD's own layout, version 1.1 or 2.0.

    ``data`` is a list of articles, whose ``paragraphs`` have a ``context`` and ``qas``, each with ``id``, ``question``,
    ``answers`` (``text``, ``answer_start``) and, from 2.0 on, ``is_impossible``.

    Args:
        path: path of the JSON file.

    Raises:
        FileNotFoundError: if it does not exist.
        ValueError: if it is not JSON or has another layout, or if an answer is not at its stated position; the message
            has the number of the question, from 0.

    Reference: Rajpurkar, Jia & Liang 2018; https://rajpurkar.github.io/SQuAD-explorer/.

    Example:
        >>> import json, tempfile
        >>> qa = {"id": "1", "question": "who sat ?", "answers": [{"text": "the cat", "answer_start": 0}]}
        >>> file = Path(tempfile.mkdtemp()) / "dev-v2.0.json"
        >>> paragraph = {"context": "the cat sat", "qas": [qa]}
        >>> _ = file.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
        >>> read_squad(file)[0].answers
        (('the cat', 0),)
    """
    whole = read_json(path)
    try:
        paragraphs = [paragraph for article in whole["data"] for paragraph in article["paragraphs"]]
        rows = [{**qa, "context": p["context"]} for p in paragraphs for qa in p["qas"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: expected SQuAD's layout ({type(error).__name__}: {error})") from error
    if not rows:
        raise ValueError(f"{path}: expected questions, got none")
    return questions_of_rows(rows, str(path))


def questions_of_rows(rows: Iterable[Mapping[str, Any]], name: str) -> list[Question]:
    """Return questions from rows: ``id``, ``question``, ``context``, ``answers``, and perhaps ``is_impossible``.

    Args:
        rows: the rows; ``answers`` is a list as in SQuAD's files, or has two lists as on the hub.
        name: name of the dataset, for messages.

    Raises:
        ValueError: if a row has another layout, or an answer is not at its stated position.

    Example:
        >>> row = {"id": "1", "question": "who ?", "context": "a", "answers": {"text": [], "answer_start": []}}
        >>> questions_of_rows([row], "squad_v2")[0].answers
        ()
    """
    found = []
    for i, row in enumerate(rows):
        try:
            # the plausible answers of impossible questions have another key
            given = row.get("answers", []) if row.get("is_impossible") else row["answers"]
            if isinstance(given, list):
                answers = [(answer["text"], answer["answer_start"]) for answer in given]
            else:
                answers = list(zip(given["text"], given["answer_start"], strict=True))
            if row.get("is_impossible", not answers) == bool(answers):
                raise ValueError("expected answers if is_impossible is false, and none if true")
            found.append(_question(row["id"], row["question"], row["context"], answers))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            said = f"{type(error).__name__}: {error}"
            raise ValueError(f"{name}, row {i}: expected SQuAD's layout ({said})") from error
    return found


def _question(name: Any, question: Any, context: Any, answers: list[tuple[Any, Any]]) -> Question:
    if not isinstance(question, str) or not isinstance(context, str):
        raise ValueError(f"expected text, got question {shown(str(question))}, context {shown(str(context))}")
    found = tuple((text, int(start)) for text, start in answers)
    for text, start in found:
        if not text or start < 0 or not context.startswith(text, start):
            raise ValueError(
                f"expected the answer {shown(str(text))} at character {start} of the context, got "
                f"{shown(context[max(start, 0) :][: len(str(text))])}"
            )
    return Question(str(name), question, context, found)
