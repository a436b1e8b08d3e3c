"""SQuAD 2.0: questions on texts, some without an answer."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lmdyn.datamodules.tasks.tasks import Question

__all__ = ["questions_of_rows", "read_squad"]


def read_squad(path: str | Path) -> list[Question]:
    """Questions of a file in SQuAD's own layout, version 1.1 or 2.0.

    ``data`` lists articles, whose ``paragraphs`` have a ``context`` and ``qas``, each with ``id``, ``question``,
    ``answers`` (``text``, ``answer_start``) and, from 2.0 on, ``is_impossible``.

    Args:
        path: of the json file.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: no json, or another layout, with the place; an answer that is not where it is said to be.

    Reference: Rajpurkar, Jia & Liang 2018; https://rajpurkar.github.io/SQuAD-explorer/.

    Example:
        >>> import tempfile
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
            f"{path} is not there: SQuAD 2.0 is train-v2.0.json and dev-v2.0.json, from "
            "https://rajpurkar.github.io/SQuAD-explorer/"
        )
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: expected json, got {error.msg}") from error
    found = []
    where = "data"
    try:
        for a, article in enumerate(whole["data"]):
            for p, paragraph in enumerate(article["paragraphs"]):
                for q, qa in enumerate(paragraph["qas"]):
                    where = f"data[{a}].paragraphs[{p}].qas[{q}]"
                    # impossible questions list plausible answers under another name, and empty ones here
                    answers = [] if qa.get("is_impossible", False) else qa["answers"]
                    texts = [(str(x["text"]), int(x["answer_start"])) for x in answers]
                    found.append(
                        _question(qa["id"], qa["question"], paragraph["context"], texts, f"{path}: {where}")
                    )
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: expected SQuAD's layout, got something else at or after {where} ({type(error).__name__}: {error})"
        ) from error
    return found


def questions_of_rows(rows: Iterable[Mapping[str, Any]], name: str) -> list[Question]:
    """Questions of a hub dataset's rows: ``id``, ``question``, ``context``, ``answers`` with lists of both parts.

    Args:
        rows: the rows.
        name: of the dataset, for messages.

    Raises:
        ValueError: an answer that is not where it is said to be.

    Example:
        >>> row = {"id": "1", "question": "who ?", "context": "a", "answers": {"text": [], "answer_start": []}}
        >>> questions_of_rows([row], "squad_v2")[0].answers
        ()
    """
    return [
        _question(
            row["id"],
            row["question"],
            row["context"],
            list(zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)),
            f"{name}, row {i}",
        )
        for i, row in enumerate(rows)
    ]


def _question(name: Any, question: Any, context: Any, answers: list[tuple[str, int]], where: str) -> Question:
    for text, start in answers:
        if context[start : start + len(text)] != text:
            raise ValueError(
                f"{where}: expected the answer {text!r} at character {start} of its context, got "
                f"{context[start : start + len(text)]!r}"
            )
    return Question(str(name), str(question), str(context), tuple(answers))
