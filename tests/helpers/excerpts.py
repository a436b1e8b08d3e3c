"""A small LMDYN_DATA in the layouts of the whole one, OntoNotes beside it, and a stand-in of spaCy."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from shutil import copy

_MARKS = ((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."), (" ,", ","), (" .", "."), (" <unk>", " Smith"))
_SPLITS = {"train": 240, "dev": 60, "test": 60}


def plain_documents(wikitext: Path) -> list[str]:
    """Raw text: WikiText's articles, with the marks of its tokenization taken out."""
    text = wikitext.read_text(encoding="utf-8")
    for mark, plain in _MARKS:
        text = text.replace(mark, plain)
    return [f"{part.strip()}\n" for part in text.split("\n = ") if len(part) > 200]


def excerpt_data(data: Path, folder: Path) -> Path:
    """The beginnings of what lies in ``LMDYN_DATA``, and ``conll-2012``: OntoNotes' tree of folders.

    Args:
        data: the whole.
        folder: a new one.
    """
    for split, sentences in _SPLITS.items():
        for name in (f"ud_ewt/en_ewt-ud-{split}.conllu", f"semtags_pmb_en/{split}.conll"):
            blocks = _blocks(data / name)
            _write(folder / name, "\n".join(islice(blocks, sentences)))
        part = {"dev": "development"}.get(split, split)
        annotations = folder / "conll-2012" / part / "data" / "english" / "annotations" / "wb" / "ewt" / "00"
        for i, text in enumerate(_ontonotes(data / "ewt_propbank" / f"en_ewt-{split}.gold_conll", sentences)):
            _write(annotations / f"ewt_{i:04d}.v4_gold_conll", text)
    for split in ("train", "valid", "test"):
        whole = data / "wikitext-2" / ("test.txt" if split == "train" else "valid.txt")
        articles = _articles(whole)
        first, number = (0, 12) if split == "train" else (12 if split == "test" else 0, 6)
        _write(folder / "wikitext-2" / f"{split}.txt", "".join(articles[first : first + number]))
    for path in (data / "trex" / "trex_lms_vocab").glob("*.jsonl"):
        with path.open(encoding="utf-8") as lines:
            _write(folder / "trex" / "trex_lms_vocab" / path.name, "".join(islice(lines, 8)))
    for name in ("LAMA_relations.jsonl", "common_vocab_cased.txt"):
        _write(folder / "trex" / name, (data / "trex" / name).read_text(encoding="utf-8"))
    return folder


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _blocks(path: Path) -> Iterable[str]:
    """Sentences of a file with an empty line after each."""
    return (f"{block}\n" for block in path.read_text(encoding="utf-8").split("\n\n") if block.strip())


def _articles(path: Path) -> list[str]:
    """Articles of WikiText, the empty lines about the titles with them."""
    found: list[list[str]] = [[]]
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        words = line.split()
        if len(words) > 2 and words[0] == words[-1] == "=" and words[1] != "=":
            found.append([" \n"])
        found[-1].append(line)
    return ["".join(lines) for lines in found[1:]]


def _ontonotes(path: Path, sentences: int) -> Iterable[str]:
    """Documents of PropBank's EWT as OntoNotes has them; names that come again in a document are an entity.

    White space between columns: document, part, word number, word, tag, parse, lemma, frameset, sense, speaker, named
    entity, predicates, coreference.
    """
    documents: dict[str, list[list[list[str]]]] = defaultdict(list)
    for block in islice(_blocks(path), sentences):
        rows = [line.split("\t") for line in block.splitlines() if line.strip()]
        documents[rows[0][0]].append(rows)
    for k, blocks in enumerate(documents.values()):
        names: dict[str, int] = {}
        name = f"wb/ewt/00/ewt_{k:04d}"
        lines = [f"#begin document ({name}); part 000"]
        for rows in blocks:
            for row in rows:
                word, tag, parse, lemma, frame = (row[i].replace(" ", "_") for i in (3, 4, 5, 6, 7))
                entity = f"({names.setdefault(word, len(names))})" if tag in ("NNP", "PRP") else "-"
                number = frame.rpartition(".")[2] if frame != "-" else "-"
                fixed = [name, "0", row[2], word, tag, parse, lemma, number, "-", "-", "*"]
                lines.append("   ".join([*fixed, *row[8:], entity]))
            lines.append("")
        yield "\n".join([*lines, "#end document", ""])


def stand_in_spacy(folder: Path, treebank: Path) -> Path:
    """A package ``spacy`` with one pipeline, en_core_web_sm, that gives each word its most frequent tags.

    Args:
        folder: where to, for ``PYTHONPATH``.
        treebank: a CoNLL-U file.
    """
    counts: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for line in treebank.read_text(encoding="utf-8").splitlines():
        columns = line.split("\t")
        if len(columns) == 10 and columns[0].isdigit():
            counts[columns[1].lower()][columns[3], columns[4]] += 1
    _write(
        folder / "spacy" / "tags.json",
        json.dumps({w: tags.most_common(1)[0][0] for w, tags in counts.items()}),
    )
    copy(Path(__file__).with_name("spacy_stand_in.py"), folder / "spacy" / "__init__.py")
    _write(folder / "spacy" / "tokens.py", "from spacy import Doc\n")
    return folder
