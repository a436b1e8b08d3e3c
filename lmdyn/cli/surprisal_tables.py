"""``lmdyn surprisal``: tables of the surprisal of each word of a text."""

import json
import logging
import sys
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lmdyn.analysis.words.surprisal import surprisals, word_surprisals
from lmdyn.callbacks.observing.requirements import silently
from lmdyn.cli.inspecting.inspected_model import Subject, find_subject
from lmdyn.datamodules.corpora.tokenization import load_tokenizer, tokenizer_digest
from lmdyn.runs.atomic_files import write_file

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
    **settings: Any,
) -> Path:
    """Write the surprisals of a text's pieces and words: ``pieces.parquet``, ``words.parquet``, ``settings.json``.

    Each word of the text has a row, including words for which the tokenizer returns no pieces. The settings contain
    objective, start and context as determined from the model, and the tokenizer.

    Args:
        model: run folder, checkpoint of a run, folder or hub name of transformers, or yaml.
        text: UTF-8 file with one text per line; ``-`` reads standard input.
        out: folder for the tables; None: ``<text>.surprisal`` in the current directory.
        arguments: ``--model.ARG VALUE …``, such as ``--model.revision step3000`` for a hub model.
        tokenizer: folder, hub name or ``tokenizer.json``, if the model has no tokenizer next to it.
        device: device on which the model is run.
        **settings: see :func:`~lmdyn.analysis.surprisals`.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: if text or model does not exist.
        ValueError: if the text is empty or not UTF-8, tables exist already, the model has no tokenizer or no weights,
            or :func:`~lmdyn.analysis.surprisals` refuses the input.
    """
    out = out or Path(f"{'text' if text == '-' else Path(text).stem}.surprisal")
    if (out / "pieces.parquet").exists():
        raise ValueError(f"{out} already contains surprisals: give another --out, or remove it")
    lines = _lines(text)
    subject = find_subject(model, arguments)
    if subject.weights.startswith("untrained"):
        log.warning("%s: the weights are %s: surprisals of an untrained model", model, subject.weights)
    found = subject.tokenizer if tokenizer is None else load_tokenizer(tokenizer)
    if found is None:
        raise ValueError(f"{model} has no tokenizer next to it: give --tokenizer FOLDER")
    with silently(logging.WARNING):
        module = subject.module.to(device)
    texts, numbers = list(lines.values()), np.array(list(lines))
    pieces = surprisals(module, found, texts, **settings)
    words = word_surprisals(pieces, texts)
    for table in (pieces, words):
        table.insert(0, "line", numbers[table.pop("text")])
    for name, table in (("words", words), ("pieces", pieces)):
        write_file(out / f"{name}.parquet", partial(table.to_parquet, index=False))
    about: dict[str, Any] = {
        "model": model,
        "arguments": list(arguments),
        "weights": subject.weights,
        "tokenizer": tokenizer or found.name_or_path or type(found).__name__,
        "tokenizer_digest": tokenizer_digest(found),
        "text": text,
        **settings,
        **dict[Any, Any](pieces.attrs),  # objective, start and context as determined from the model
    }
    told = json.dumps({**about, "lmdyn": version("lmdyn")}, indent=1) + "\n"
    write_file(out / "settings.json", lambda unfinished: unfinished.write_text(told, encoding="utf-8"))
    _say(subject, words, pieces)
    return out


def _lines(text: str) -> dict[int, str]:
    """Return the lines that contain a word, by their numbers from 1."""
    if text != "-" and not Path(text).is_file():
        raise FileNotFoundError(f"file {text} does not exist: give a file, or - to read standard input")
    try:
        # independent of the terminal's encoding; a byte order mark is not part of the text
        raw = sys.stdin.buffer.read() if text == "-" else Path(text).read_bytes()
        read = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        name = "standard input" if text == "-" else text
        why = f"{name} is not UTF-8 ({error}): convert it, e.g. iconv -f latin1 -t utf-8"
        raise ValueError(why) from error
    # not splitlines(), which also breaks at form feeds and the like
    read = read.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in read:
        raise ValueError(
            f"{text} contains NUL characters: it is damaged, or UTF-16: iconv -f UTF-16 -t UTF-8"
        )
    lines = {i: line for i, line in enumerate(read.split("\n"), 1) if line.strip()}
    if not lines:
        raise ValueError(f"{text} contains no text")
    return lines


def _say(subject: Subject, words: pd.DataFrame, pieces: pd.DataFrame) -> None:
    n_words, words = len(words), words[words["pieces"] > 0]
    asked = pieces
    if pieces.attrs["start"] == "":  # the first piece of a line follows nothing and has no number
        asked, words = pieces[pieces["piece_index"] > 0], words[words["word_index"] > 0]
    mean, bits = -asked["log_probability"].mean(skipna=False), words["surprisal"].mean(skipna=False)
    said = (
        f"{n_words} words in {len(pieces)} pieces; {mean:.3f} nats per piece (perplexity {np.exp(mean):.2f})"
    )
    log.info("%s (%s): %s, %.2f bits per word", subject.says, subject.weights, said, bits)
