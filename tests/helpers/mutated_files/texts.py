"""Plain text, data sets of parquet and jsonl, and yaml."""

import io
import json
import math
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from lmdyn.claims.yaml_files import read_yaml
from lmdyn.datamodules import StreamedText, TextCorpus
from lmdyn.datamodules.pretraining.stream_reader import START, documents_of
from tests.helpers.mutants import BYTES, JSON, KEEPING, TEXT, Reader, naive_lines

__all__ = ["READERS"]

WIKITEXT = "".join(
    f" {line} \n" if line else " \n"
    for line in (
        "",
        "= Robert <unk> =",
        "",
        "Robert <unk> is an English film , television and theatre actor . He had a guest role .",
        'In 2006 , <unk> starred in the play " Citizenship " .',
        "",
        "= = Career = =",
        "",
        "He appeared on a 2006 episode .",
        "",
        "= Du Fu =",
        "",
        "Du Fu ( 712 – 770 ) was a poet .",
    )
)
"""Each line begins and ends with a space, as in the published files."""


def read_text(layout: Any) -> Callable[[Path], Any]:
    def read(folder: Path) -> list[Any]:
        corpus = TextCorpus(
            str(folder / "x.txt"), layout=layout, lowercase=False, headings=True, split_sentences=False
        )
        return [(document.name, s.topic, s.words) for document in corpus.documents("train") for s in document]

    return read


def naive_wikitext(content: bytes) -> list[Any]:
    lines = ["", *naive_lines(content), ""]
    found: list[Any] = []
    name, topic, seen = "x", None, []
    for before, line, after in zip(lines, lines[1:], lines[2:], strict=False):
        words = line.split()
        marked = len(words) > 2 and words[0] == words[-1] == "=" and "=" not in (words[1], words[-2])
        if marked and not before.strip() and not after.strip():
            title = " ".join(words[1:-1])
            seen.append(title)
            again = f" ({seen.count(title)})" if seen.count(title) > 1 else ""
            name = topic = title + again
        if words:
            found.append((name, topic, tuple(words)))
    return found


def naive_paragraphs(content: bytes) -> list[Any]:
    lines = enumerate(naive_lines(content), start=1)
    return [(f"x-{number}", None, tuple(line.split())) for number, line in lines if line.split()]


ROWS = ["The cat sat .", "", "A dog ran .\nIt left .", "Élan vital .", "= x =", None]


def parquet() -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": ROWS, "id": list(range(len(ROWS)))}), buffer)
    return buffer.getvalue()


JSONL = "".join(json.dumps({"text": row, "id": i}, ensure_ascii=False) + "\n" for i, row in enumerate(ROWS))


def read_dataset(kind: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> list[Any]:
        (file,) = folder.glob("x.*")
        dataset = {"path": kind, "data_files": {"train": str(file)}, "cache_dir": str(folder / "cache")}
        corpus = TextCorpus(dataset=dataset, layout="paragraphs", lowercase=False, split_sentences=False)
        return [list(s.words) for document in corpus.documents("train") for s in document]

    return read


def read_stream(kind: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> list[Any]:
        (file,) = folder.glob("x.*")
        text = StreamedText({"path": kind, "data_files": {"train": str(file)}}, epoch_batches=1)
        endless = documents_of(text, 0, 1, START)
        once = takewhile(lambda document: document[1]["pass"] == 0, endless)
        return [row for row, _ in once if row]

    return read


def rows_of_parquet(content: bytes) -> list[Any]:
    values = pq.read_table(io.BytesIO(content)).column("text").to_pylist()
    assert all(value is None or isinstance(value, str) for value in values)
    return values


def rows_of_jsonl(content: bytes) -> list[Any]:
    text = content.decode("utf-8-sig")
    decoder, values = json.JSONDecoder(parse_int=len), []
    while text := text.lstrip(" \t\r\n"):
        entry, end = decoder.raw_decode(text)
        value = entry.get("text")
        # JSON has no infinity, and `datasets` takes one for nothing
        values.append(None if isinstance(value, float) and not math.isfinite(value) else value)
        text = text[end:]
    assert all(value is None or isinstance(value, str) for value in values)
    return values


def as_words(rows: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    return lambda content: [
        line.split() for row in rows(content) for line in (row or "").split("\n") if line.split()
    ]


def as_texts(rows: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(content: bytes) -> Any:
        found = [row.strip() for row in rows(content) if row and row.strip()]
        assert found
        return found

    return read


YAML = """\
# a run
seed_everything: 1
model:
  class_path: lmdyn.models.LSTMLanguageModel
  init_args: &sizes
    hidden_size: 8
    num_layers: 2
    optimizer: {class_path: torch.optim.SGD, init_args: {lr: 20.0}}
data:
  class_path: GrammarCorpus
  init_args:
    layers: [upos, semtag]
    name: "a \\"b\\" é"
    text: |
      one
      two
trainer:
  max_steps: 10
  callbacks:
    - class_path: Sparsity
      init_args: {<<: *sizes, when: {every: 5}}
"""


class _LibYaml(yaml.CSafeLoader):
    """Shares no parser with PyYAML's own."""


_LibYaml.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if "timestamp" not in tag]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def naive_yaml(content: bytes) -> Any:
    assert content.decode("utf-8-sig").strip()

    assert "\ufeff" not in content.decode("utf-8-sig")

    def once(node: yaml.Node) -> None:  # does not end where an alias is within what it stands for
        if isinstance(node, yaml.MappingNode):
            keys = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            assert len(set(keys)) == len(keys)
        for inner in node.value if not isinstance(node, yaml.ScalarNode) else ():
            for part in inner if isinstance(inner, tuple) else (inner,):
                once(part)

    node = yaml.compose(content, Loader=_LibYaml)
    if node is not None:
        once(node)
    return repr(yaml.load(content, Loader=_LibYaml))  # safe


READERS = {
    "plain text, WikiText": Reader(
        "x.txt", WIKITEXT.encode(), read_text("wikitext"), naive_wikitext, TEXT, keeping=KEEPING
    ),
    "plain text, paragraphs": Reader(
        "x.txt", WIKITEXT.encode(), read_text("paragraphs"), naive_paragraphs, TEXT, keeping=KEEPING
    ),
    "jsonl, data set": Reader(
        "x.jsonl", JSONL.encode(), read_dataset("json"), as_words(rows_of_jsonl), JSON, "{file}"
    ),
    "jsonl, stream": Reader(
        "x.jsonl", JSONL.encode(), read_stream("json"), as_texts(rows_of_jsonl), JSON, "{file}"
    ),
    "parquet, data set": Reader(
        "x.parquet", parquet(), read_dataset("parquet"), as_words(rows_of_parquet), BYTES, "{file}"
    ),
    "parquet, stream": Reader(
        "x.parquet", parquet(), read_stream("parquet"), as_texts(rows_of_parquet), BYTES, "{file}"
    ),
    "yaml": Reader(
        "x.yaml",
        YAML.encode(),
        lambda folder: repr(read_yaml(folder / "x.yaml")),
        naive_yaml,
        TEXT,
        keeping=KEEPING,
    ),
}
