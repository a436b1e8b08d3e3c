"""Data sets of Hugging Face's ``datasets``: opened and read, with errors that name them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["load_dataset", "read_rows"]


def load_dataset(arguments: Mapping[str, Any], remedy: str) -> Any:
    """What ``datasets.load_dataset`` gives.

    Args:
        arguments: of that function.
        remedy: what to do where it fails, for the message.

    Raises:
        ValueError: it cannot be opened, with the library's own reasons.
    """
    import datasets

    try:
        return datasets.load_dataset(**arguments)
    except Exception as error:  # the errors of hub, Arrow and file system have no common base
        raise ValueError(
            f"dataset {dict(arguments)} cannot be opened ({_reasons(error)}): {remedy}"
        ) from error


def read_rows(rows: Iterable[Any], arguments: Mapping[str, Any]) -> Iterator[Any]:
    """The rows of a data set, or of a part of it, one after the other.

    Raises:
        ValueError: one cannot be read.
    """
    left = iter(rows)
    while True:
        try:
            row = next(left)
        except StopIteration:
            return
        except Exception as error:  # as above
            raise ValueError(
                f"dataset {dict(arguments)} cannot be read ({_reasons(error)}): its files are damaged: fetch or write "
                "them anew"
            ) from error
        yield row


def _reasons(error: BaseException) -> str:
    """An error and those that it was raised from, in a line: the first often says only that there is one."""
    said: list[str] = []
    found: BaseException | None = error
    while found is not None:
        said.append(f"{type(found).__name__}: {' '.join(str(found).split())[:300]}")
        found = found.__cause__
    return "; ".join(dict.fromkeys(said))
