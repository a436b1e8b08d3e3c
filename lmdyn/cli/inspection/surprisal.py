"""``lmdyn surprisal``: how surprising the words of a text are to a model, as tables."""

import json
import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from lmdyn.analysis.words.surprisal import PseudoLikelihood, surprisals, word_surprisals
from lmdyn.callbacks.observing.requirements import silently
from lmdyn.cli.inspection.subject import Subject, find_subject
from lmdyn.datamodules.corpora.tokenization import load_tokenizer, tokenizer_digest

__all__ = ["write_surprisals"]

log = logging.getLogger(__name__)


def write_surprisals(
    model: str,
    text: str,
    out: Path | None = None,
    *,
    arguments: Sequence[str] = (),
    tokenizer: str | None = None,
    device: str = "cpu",
    objective: Literal["causal", "masked"] | None = None,
    pseudo: PseudoLikelihood = "piece",
    start: str | None = None,
    context: int | None = None,
    batch_tokens: int = 1024,
    forward: str | None = None,
) -> Path:
    """Write the surprisals of a text's pieces and words: ``pieces.parquet``, ``words.parquet``, ``settings.json``.

    Each word of the text has a row, those of which the tokenizer leaves nothing too. The settings hold the objective,
    the start and the context as they were found, and the tokenizer.

    Args:
        model: run folder, checkpoint of a run, folder or hub name of transformers, yaml.
        text: file of UTF-8 text, each line a text of its own; ``-`` reads standard input.
        out: folder for the tables; None: ``<text>.surprisal`` next to where the command is run.
        arguments: ``--model.ARG VALUE …``, such as a hub model's ``--model.revision step3000``.
        tokenizer: folder, hub name or ``tokenizer.json``, where the model has none next to it.
        device: where the model is run.
        objective: see :func:`~lmdyn.analysis.surprisals`, as what follows.
        pseudo: as there.
        start: as there.
        context: as there.
        batch_tokens: as there.
        forward: as there.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: no such text or model.
        ValueError: text that is empty or not UTF-8, tables that are there already, a model without tokenizer or
            without weights, and what :func:`~lmdyn.analysis.surprisals` refuses.
    """
    out = out or Path(f"{'text' if text == '-' else Path(text).stem}.surprisal")
    if (out / "pieces.parquet").exists():
        raise ValueError(f"{out} holds surprisals already: give another --out, or remove it")
    lines = _lines(text)
    subject = find_subject(model, arguments)
    if subject.weights.startswith("untrained"):
        log.warning("%s: the weights are %s: its surprisals are those of no training", model, subject.weights)
    found = subject.tokenizer if tokenizer is None else load_tokenizer(tokenizer)
    if found is None:
        raise ValueError(f"{model} has no tokenizer next to it: give --tokenizer FOLDER")
    settings: dict[str, Any] = {
        "objective": objective, "pseudo": pseudo, "start": start, "context": context, "batch_tokens": batch_tokens,
        "forward": forward,
    }  # fmt: skip
    with silently(logging.WARNING):
        module = subject.module.to(device)
    texts, numbers = list(lines.values()), np.array(list(lines))
    pieces = surprisals(module, found, texts, **settings)
    words = word_surprisals(pieces, texts)
    for table in (pieces, words):
        table.insert(0, "line", numbers[table.pop("text")])
    out.mkdir(parents=True, exist_ok=True)
    words.to_parquet(out / "words.parquet", index=False)
    pieces.to_parquet(out / "pieces.parquet", index=False)
    about: dict[str, Any] = {
        "model": model,
        "arguments": list(arguments),
        "weights": subject.weights,
        "tokenizer": tokenizer or found.name_or_path or type(found).__name__,
        "tokenizer_digest": tokenizer_digest(found),
        "text": text,
        **settings,
        **{str(k): v for k, v in pieces.attrs.items()},  # objective, start and context as they were found
    }
    (out / "settings.json").write_text(json.dumps({**about, "lmdyn": version("lmdyn")}, indent=1) + "\n")
    _say(subject, words, pieces)
    return out


def _lines(text: str) -> dict[int, str]:
    """The lines that have a word, by their numbers from 1."""
    if text != "-" and not Path(text).is_file():
        raise FileNotFoundError(f"there is no file {text}: give one, or - and the text on standard input")
    try:
        # the terminal's encoding plays no part, and a byte order mark is none of the text
        raw = sys.stdin.buffer.read() if text == "-" else Path(text).read_bytes()
        read = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        name = "standard input" if text == "-" else text
        raise ValueError(f"{name} is not UTF-8 ({error}): convert it, iconv -f latin1 -t utf-8") from error
    # not splitlines(), which also breaks at form feeds and the like
    read = read.replace("\r\n", "\n").replace("\r", "\n")
    lines = {i: line for i, line in enumerate(read.split("\n"), 1) if line.strip()}
    if not lines:
        raise ValueError(f"{text} holds no text")
    return lines


def _say(subject: Subject, words: pd.DataFrame, pieces: pd.DataFrame) -> None:
    measured = pieces["log_probability"].dropna()
    log.info(
        "%s (%s): %d words in %d pieces; %.3f nats a piece (perplexity %.2f), %.2f bits a word",
        subject.says, subject.weights, len(words), len(pieces),
        -measured.mean(), np.exp(-measured.mean()), words["surprisal"].mean(),
    )  # fmt: skip
