"""Text larger than memory or disk: Hugging Face datasets, read as they come."""

from typing import Any

from lmdyn.datamodules.files.data_sets import load_dataset

__all__ = ["StreamedText"]


class StreamedText:
    """Names a dataset to stream, or several to mix: Wikipedia, OpenWebText, books, files of any size.

    Several datasets take turns: the next document is of the dataset that has given the least text so far in this pass
    (in characters; at first, of the first one). Documents of one length so alternate, and where the documents of one
    dataset are books and those of another sentences, each still gives as much as the other, in passages as long as a
    document of the other. Nothing is drawn, and a pass reads each document of each dataset once: a dataset that has
    ended leaves the rest of the pass to the others.

    Args:
        dataset: arguments of ``datasets.load_dataset``: ``path``, ``name``, ``data_files``, …; it is streamed. A list
            of such for several datasets.
        split: of every dataset that does not name its own ``split`` among these arguments.
        text_column: the column that holds a document's text, in every dataset.
        tokenizer: folder or hub name; None takes that of the corpus next to the stream.
        epoch_batches: batches of an epoch, for each rank: a stream has no length of its own. When the text ends, it
            begins again, in rows of another order, with other masks.
        block_rows: rows that are gathered and put in random order at a time.
        readers: among how many readers the documents are dealt out. Each gives rows of its own documents, and as many
            processes can read at once as there are readers. None: as many as the run begins with ranks × workers, which
            it keeps where it goes on, on others. A number makes the order of rows the same, with whatever ranks and
            workers a run begins: give one that ranks × workers divides, wherever the run will go on.

    Raises:
        ValueError: sizes below 1, no dataset, one without a ``path``; with the first batch, a dataset that cannot be
            opened; with the batch that meets it, one that cannot be read, or has no text.

    Example:
        >>> wikipedia = {"path": "wikimedia/wikipedia", "name": "20231101.en"}
        >>> StreamedText(wikipedia, epoch_batches=1000).datasets
        [{'path': 'wikimedia/wikipedia', 'name': '20231101.en'}]
        >>> books = {"path": "text", "data_files": "books/*.txt", "sample_by": "document"}
        >>> len(StreamedText([wikipedia, books], epoch_batches=1000).datasets)
        2
    """

    def __init__(
        self,
        dataset: dict[str, Any] | list[dict[str, Any]],
        *,
        epoch_batches: int,
        split: str = "train",
        text_column: str = "text",
        tokenizer: str | None = None,
        block_rows: int = 2048,
        readers: int | None = None,
    ) -> None:
        if epoch_batches < 1 or block_rows < 1 or (readers is not None and readers < 1):
            raise ValueError(
                f"epoch_batches, block_rows and readers are at least 1, got {epoch_batches}, {block_rows}, {readers}"
            )
        self.datasets = [dict(one) for one in (dataset if isinstance(dataset, list) else [dataset])]
        if not self.datasets:
            raise ValueError("dataset is an empty list, expected at least one dataset to stream")
        for one in self.datasets:
            if "path" not in one:
                raise ValueError(f"dataset needs a `path`, as datasets.load_dataset does, got {sorted(one)}")
        self.split = split
        self.text_column = text_column
        self.tokenizer = tokenizer
        self.epoch_batches = epoch_batches
        self.block_rows = block_rows
        self.readers = readers

    def required_tokenizer(self) -> str:
        """The tokenizer's name.

        Raises:
            ValueError: none was given.
        """
        if self.tokenizer is None:
            raise ValueError(
                "a stream without a corpus next to it needs a `tokenizer`: a folder or a hub name"
            )
        return self.tokenizer

    def open(self) -> list[Any]:
        """The streaming datasets.

        Raises:
            ValueError: one cannot be opened, or lacks the column.
        """
        return [self._open(dataset) for dataset in self.datasets]

    def _open(self, dataset: dict[str, Any]) -> Any:
        stream = load_dataset(
            {"split": self.split, **dataset, "streaming": True},
            "give the path of local files (path: text, parquet or json, with data_files), or a hub name that can be "
            "reached",
        )
        columns = stream.column_names
        if columns is not None and self.text_column not in columns:
            raise ValueError(
                f"dataset {dataset} has no column {self.text_column!r}: set text_column to one of {columns}"
            )
        return stream
