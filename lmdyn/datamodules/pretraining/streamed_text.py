"""Text larger than memory or disk: Hugging Face datasets, read as streams."""

from typing import Any

from lmdyn.datamodules.files.checks import at_least
from lmdyn.datamodules.files.data_sets import load_dataset


class StreamedText:
    """One or several datasets to stream: Wikipedia, OpenWebText, books, files of any size.

    Several datasets are mixed by turns: the next document comes from the dataset that has given the least text so far
    in this pass (in characters; initially, from the first). Documents of equal length thus alternate. If the documents
    of one dataset are books and those of another are sentences, both still give equal amounts of text, in passages as
    long as the longer documents. Nothing is random, and a pass reads each document of each dataset once: after a
    dataset ends, the others fill the rest of the pass.

    A tokenizer that lmdyn did not train reads each document as it is written, as a whole; rows have no end tokens, so a
    line end separates documents. lmdyn's own vocabularies read it sentence by sentence, without white space.

    Args:
        dataset: arguments of ``datasets.load_dataset``: ``path``, ``name``, ``data_files``, …; it is streamed. Several
            datasets are a list of these.
        split: split of every dataset whose arguments have no ``split``.
        text_column: column with a document's text, in every dataset.
        tokenizer: folder or hub name; None uses that of the corpus given with the stream.
        epoch_batches: batches per epoch, for each rank, since a stream has no length. When the text ends, it restarts,
            with the rows in another order and other masks.
        block_rows: number of rows that are collected and shuffled together.
        readers: number of readers among which the documents are divided. Each makes rows of its own documents, and at
            most this many processes can read at once. None: ranks × workers at the start of a run, which it keeps when
            it resumes on others. A fixed number makes the order of rows independent of ranks and workers: choose a
            multiple of ranks × workers for all machines on which the run will continue.

    Raises:
        ValueError: if sizes are below 1, no dataset is given, or one has no ``path``; with the first batch, if a
            dataset cannot be opened, or lacks the column; with a later batch, if it cannot be read or has no text.

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
        at_least(1, epoch_batches=epoch_batches, block_rows=block_rows, readers=readers)
        self.datasets = [dict(one) for one in (dataset if isinstance(dataset, list) else [dataset])]
        if not self.datasets:
            raise ValueError("dataset is an empty list, expected at least one dataset to stream")
        for one in self.datasets:
            if "path" not in one:
                raise ValueError(f"dataset requires a `path`, got {', '.join(sorted(one)) or 'no entries'}")
        self.split = split
        self.text_column = text_column
        self.tokenizer = tokenizer
        self.epoch_batches = epoch_batches
        self.block_rows = block_rows
        self.readers = readers

    def open(self) -> list[Any]:
        """Open the streaming datasets.

        Raises:
            ValueError: if one cannot be opened.
        """
        return [load_dataset({"split": self.split, **one, "streaming": True}) for one in self.datasets]
