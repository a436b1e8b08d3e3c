"""SQuAD 2.0: questions on texts, some without an answer."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lmdyn.datamodules.files.text_files import read_json, shown
from lmdyn.datamodules.tasks.tasks import Question

__all__ = ["questions_of_rows", "read_squad"]


def read_squad(path: str | Path) -> list[Question]:
    """Read the questions of a file in SQuAD's own layout, version 1.1 or 2.0.

    ``data`` is a list of articles, whose ``paragraphs`` have a ``context`` and ``qas``, each with ``id``, ``question``,
    ``answers`` (``text``, ``answer_start``) and, from 2.0 on, ``is_impossible``.

    Args:
        path: path of the JSON file.

    Raises:
        FileNotFoundError: if it does not exist.
        ValueError: if it is not JSON or has another layout (the message has the place), or if an answer is not at its
            stated position.

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
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist: SQuAD 2.0 is train-v2.0.json and dev-v2.0.json, from "
            "https://rajpurkar.github.io/SQuAD-explorer/"
        )
    found = []
    for article, at_article in _objects(read_json(path), "data", f"{path}: "):
        for paragraph, at_paragraph in _objects(article, "paragraphs", f"{at_article}."):
            for qa, where in _objects(paragraph, "qas", f"{at_paragraph}."):
                context = paragraph.get("context")
                found.append(_question(qa.get("id"), qa.get("question"), context, _answers(qa, where), where))
    if not found:
        raise ValueError(f"{path}: expected questions, got none")
    return found


def _objects(holder: Any, key: str, where: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the objects in a list of an object, each with its place."""
    if not isinstance(holder, dict) or not isinstance(holder.get(key), list):
        raise ValueError(
            f"{where.rstrip('.: ')}: expected SQuAD's layout, an object with a list {key!r}, got "
            f"{shown(str(holder))}"
        )
    for i, item in enumerate(holder[key]):
        if not isinstance(item, dict):
            raise ValueError(f"{where}{key}[{i}]: expected an object, got {shown(str(item))}")
        yield item, f"{where}{key}[{i}]"


def _answers(qa: dict[str, Any], where: str) -> list[tuple[Any, Any]]:
    """Return texts and positions of a question's answers; an impossible question must have none."""
    impossible = qa.get("is_impossible", False)
    if not isinstance(impossible, bool):
        raise ValueError(f"{where}: expected is_impossible to be true or false, got {shown(str(impossible))}")
    if impossible and "answers" not in qa:
        return []
    # the plausible answers of impossible questions have another key
    answers = [
        (answer.get("text"), answer.get("answer_start")) for answer, _ in _objects(qa, "answers", f"{where}.")
    ]
    if "is_impossible" in qa and impossible == bool(answers):
        raise ValueError(
            f"{where}: is_impossible is {str(impossible).lower()}, with {len(answers)} answers: correct one of them"
        )
    return answers


def questions_of_rows(rows: Iterable[Mapping[str, Any]], name: str) -> list[Question]:
    """Return questions from a hub dataset's rows: ``id``, ``question``, ``context``, ``answers`` with two lists.

    Args:
        rows: the rows.
        name: name of the dataset, for messages.

    Raises:
        ValueError: if an answer is not at its stated position.

    Example:
        >>> row = {"id": "1", "question": "who ?", "context": "a", "answers": {"text": [], "answer_start": []}}
        >>> questions_of_rows([row], "squad_v2")[0].answers
        ()
    """
    found = []
    for i, row in enumerate(rows):
        where, answers = f"{name}, row {i}", row.get("answers")
        texts, starts = (
            (answers.get(part) for part in ("text", "answer_start"))
            if isinstance(answers, dict)
            else (None, None)
        )
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise ValueError(
                f"{where}: expected answers with equal numbers of text and answer_start, got {shown(str(answers))}"
            )
        pairs = list(zip(texts, starts, strict=True))
        found.append(_question(row.get("id"), row.get("question"), row.get("context"), pairs, where))
    return found


def _question(name: Any, question: Any, context: Any, answers: list[tuple[Any, Any]], where: str) -> Question:
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise ValueError(f"{where}: expected an id, got {shown(str(name))}")
    if not isinstance(question, str) or not isinstance(context, str):
        raise ValueError(
            f"{where}: expected question and context as text, got {shown(str((question, context)))}"
        )
    return Question(
        str(name), question, context, tuple(_answer(*answer, context, where) for answer in answers)
    )


def _answer(text: Any, start: Any, context: str, where: str) -> tuple[str, int]:
    if not isinstance(text, str) or not text:
        raise ValueError(f"{where}: expected the text of an answer, got {shown(str(text))}")
    try:
        place = -1 if isinstance(start, bool) else int(start)
    except (TypeError, ValueError, OverflowError):
        place = -1
    if place < 0 or (isinstance(start, float) and place != start):
        raise ValueError(
            f"{where}: expected answer_start, a character of the context from 0 on, got {shown(str(start))}"
        )
    if not context.startswith(text, place):
        raise ValueError(
            f"{where}: expected the answer {shown(text)} at character {place} of its context, got "
            f"{shown(context[place : place + len(text)])}"
        )
    return text, place
