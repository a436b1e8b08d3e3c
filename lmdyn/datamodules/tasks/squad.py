"""SQuAD 2.0: questions on texts, some without an answer."""

from collections.abc import Iterable, Mapping
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
    where = ""
    try:
        for i, article in enumerate(read_json(path)["data"]):
            for j, paragraph in enumerate(article["paragraphs"]):
                for k, qa in enumerate(paragraph["qas"]):
                    where = f": data[{i}].paragraphs[{j}].qas[{k}]"
                    impossible = qa.get("is_impossible", False)
                    # the plausible answers of impossible questions have another key
                    answers = [
                        (a["text"], a["answer_start"])
                        for a in (qa.get("answers", []) if impossible else qa["answers"])
                    ]
                    if "is_impossible" in qa and impossible == bool(answers):
                        raise ValueError(f"is_impossible is {impossible}, with {len(answers)} answers")
                    found.append(_question(qa["id"], qa["question"], paragraph["context"], answers))
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path}{where}: expected SQuAD's layout, got {error!r}") from error
    except ValueError as error:
        raise ValueError(f"{path}{where}: {error}" if where else str(error)) from error
    if not found:
        raise ValueError(f"{path}: expected questions, got none")
    return found


def questions_of_rows(rows: Iterable[Mapping[str, Any]], name: str) -> list[Question]:
    """Return questions from a hub dataset's rows: ``id``, ``question``, ``context``, ``answers`` with two lists.

    Args:
        rows: the rows.
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
            answers = list(zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True))
            found.append(_question(row["id"], row["question"], row["context"], answers))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{name}, row {i}: expected SQuAD's columns, got {error!r}") from error
    return found


def _question(name: Any, question: Any, context: Any, answers: list[tuple[Any, Any]]) -> Question:
    if not isinstance(question, str) or not isinstance(context, str):
        raise ValueError(f"expected question and context as text, got {shown(str((question, context)))}")
    found = tuple((text, int(start)) for text, start in answers)
    for text, start in found:
        if not text or start < 0 or not context.startswith(text, start):
            raise ValueError(
                f"expected the answer {shown(str(text))} at character {start} of its context, got "
                f"{shown(context[max(start, 0) :][: len(str(text))])}"
            )
    return Question(str(name), question, context, found)
