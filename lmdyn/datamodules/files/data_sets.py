"""Data sets of Hugging Face's ``datasets``: opened and read, with errors that name them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def load_dataset(arguments: Mapping[str, Any]) -> Any:
    """Return the result of ``datasets.load_dataset`` with these arguments.

    Raises:
        ValueError: if it cannot be opened; the message has the library's reasons.
    """
    import datasets

    try:
        return datasets.load_dataset(**arguments)
    except Exception as error:  # the errors of hub, Arrow and file system have no common base
        raise ValueError(
            f"{in_words(arguments)} cannot be opened ({_reasons(error)}): give the path of local files (path: text, "
            "parquet or json, with data_files), or a hub name that can be reached"
        ) from error


def read_rows(rows: Iterable[Any], arguments: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the rows of a data set, or of a part of it.

    Raises:
        ValueError: if a row cannot be read.
    """
    try:
        yield from rows
    except Exception as error:  # as above
        raise ValueError(
            f"{in_words(arguments)} cannot be read ({_reasons(error)}): download or write the files again"
        ) from error


def in_words(arguments: Mapping[str, Any]) -> str:
    """Return the arguments for a message, as in a yaml."""
    return f"dataset {dict(arguments)}".replace("'", "")


def _reasons(error: BaseException) -> str:
    """Return an error and its causes in one line: the first often only says that there is an error."""
    said: list[str] = []
    found: BaseException | None = error
    while found is not None:
        said.append(f"{type(found).__name__}: {' '.join(str(found).split())[:300]}")
        found = found.__cause__
    return "; ".join(dict.fromkeys(said))
