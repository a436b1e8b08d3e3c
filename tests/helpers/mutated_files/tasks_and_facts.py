"""Tasks and facts: GLUE, SQuAD, T-REx."""

import dataclasses
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lmdyn.datamodules.facts.fact_sources import TrexFacts
from lmdyn.datamodules.tasks.glue import GLUE_LAYOUTS, GlueTasks
from lmdyn.datamodules.tasks.squad import read_squad
from tests.helpers.mutants import BYTES, CELLS, JSON, KEEPING, TEXT, Reader, naive_lines

__all__ = ["READERS"]

COLA = 'gj04\t1\t\tThe cat "sat .\ngj04\t0\t*\tSat cat the .\ngj04\t1\t\tÉlan vital\n'
STSB = """\
index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore
0\tg\tf\t2012\t1\tnone\tnone\ta cat .\tthe cat .\t5.000
1\tg\tf\t2012\t1\tnone\tnone\ta\tthe "mat\t1.25
2\tg\tf\t2012\t1\tnone\tnone\té\tthe mat\t0
"""
QQP = """\
id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate
0\t1\t2\twho sat ?\twho is it ?\t1
1\t2\t3\tbroken
2\t1\t2\twho ran ?\twho left ?\t0
"""
RTE = """\
index\tsentence1\tsentence2\tlabel
0\tcats\tcat\tnot_entailment
1\ta cat\tit\tentailment
2\ta\tb\tentailment
"""


def read_glue(task: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> list[Any]:
        (raw,) = GlueTasks([task], folder=str(folder)).read()
        return [(e.first, e.second, e.label) for e in raw.train]

    return read


def naive_glue(task: str) -> Callable[[bytes], Any]:
    layout = GLUE_LAYOUTS[task]

    def read(content: bytes) -> list[Any]:
        rows = [line.split("\t") for line in naive_lines(content)]
        wanted = [*layout.columns, layout.label]
        if layout.n_columns is None:
            header = rows.pop(0)
            assert all(header.count(name) == 1 for name in wanted)
            at, width = [header.index(name) for name in wanted], len(header)
        else:
            at, width = wanted, layout.n_columns
        if rows and not "".join(rows[-1]).strip():
            rows.pop()
        rows = [row for row in rows if len(row) >= width or not layout.skip_short]
        found = []
        for row in rows:
            assert len(row) == width
            *texts, label = (row[c] for c in at)
            number = float(layout.label_names.index(label) if layout.label_names else label)
            assert layout.label_names or (0 <= number <= 5 and "_" not in label)
            found.append((texts[0], texts[1] if len(texts) > 1 else None, number))
        assert found
        return found

    return read


CONTEXT = "the cat sat on a mat and saw dogs run . É it is not in the house . "
SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "cats",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "id": "a", "question": "who sat ?", "is_impossible": False,
                            "answers": [{"text": "the cat", "answer_start": 0}],
                        },
                        {
                            "id": "b", "question": "who left ?", "is_impossible": True, "answers": [],
                            "plausible_answers": [{"text": "dogs", "answer_start": 29}],
                        },
                    ],
                },
                {
                    "context": "dogs run",
                    "qas": [
                        {
                            "id": "c", "question": "who run ?",
                            "answers": [{"text": "dogs", "answer_start": 0}, {"text": "run", "answer_start": 5}],
                        },
                    ],
                },
            ],
        }
    ],
}  # fmt: skip


def read_questions(folder: Path) -> list[Any]:
    return [(q.id, q.question, q.context, list(q.answers)) for q in read_squad(folder / "x.json")]


def table(task: str) -> bytes:
    """A split as on the hub, where labels are numbers and answers lists of their parts."""
    answers = [{"text": ["the cat"], "answer_start": [0]}, {"text": [], "answer_start": []}]
    rows = {
        "RTE": {
            "sentence1": ["cats", "a cat", "É"],
            "sentence2": ["cat", "it", "b"],
            "label": [1, 0, 0],
            "idx": [0, 1, 2],
        },
        "SQuAD2.0": {
            "id": ["a", "b"],
            "question": ["who ?", "É ?"],
            "context": ["the cat sat"] * 2,
            "answers": answers,
        },
    }[task]
    buffer = io.BytesIO()
    pq.write_table(pa.table(rows), buffer)
    return buffer.getvalue()


def read_table(task: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> list[Any]:
        files = {split: str(folder / f"{split}.parquet") for split in ("train", "validation")}
        dataset = {"path": "parquet", "data_files": files, "cache_dir": str(folder / "cache")}
        (raw,) = GlueTasks([task], dataset=dataset, squad_dataset=dataset).read()
        return [dataclasses.astuple(example) for example in raw.train]

    return read


def naive_table(content: bytes) -> list[Any]:
    found: list[Any] = []
    for row in pq.read_table(io.BytesIO(content)).to_pylist():
        if "label" in row:
            assert row["label"] in (0, 1)
            found.append((_text(row["sentence1"]), _text(row["sentence2"]), row["label"]))
            continue
        answers = list(zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True))
        assert all(start >= 0 and text and row["context"][start:].startswith(text) for text, start in answers)
        found.append((_text(row["id"]), _text(row["question"]), _text(row["context"]), tuple(answers)))
    assert found
    return found


def strict_json(text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs)
        return dict(pairs)

    value = json.loads(text, object_pairs_hook=once)
    json.dumps(value, ensure_ascii=False).encode()  # no half of a surrogate pair
    return value


def _text(value: Any) -> str:
    assert isinstance(value, str)
    return value


def naive_squad(content: bytes) -> list[Any]:
    text = content.decode("utf-8-sig")
    assert "\0" not in text
    found = []
    for article in strict_json(text)["data"]:
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                impossible = qa.get("is_impossible", False)
                assert isinstance(impossible, bool)
                given = qa.get("answers", []) if impossible else qa["answers"]
                answers = [(_text(a["text"]), int(a["answer_start"])) for a in given]
                assert all(
                    a["answer_start"] in (int(a["answer_start"]), str(a["answer_start"])) for a in given
                )
                assert not any(isinstance(a["answer_start"], bool) for a in given)
                for answer, start in answers:
                    assert start >= 0
                    assert answer
                    assert paragraph["context"][start:].startswith(answer)
                assert bool(answers) != impossible if "is_impossible" in qa else True
                assert type(qa["id"]) in (str, int)
                found.append((str(qa["id"]), _text(qa["question"]), _text(paragraph["context"]), answers))
    assert found
    return found


SAID = [("France", "Paris"), ("Italy", "Rome"), ("Île", "Port Louis"), ("France", "Paris")]
TREX = "".join(
    json.dumps({"uuid": str(i), "obj_label": o, "sub_label": s, "predicate_id": "P36"}, ensure_ascii=False)
    + "\n"
    for i, (s, o) in enumerate(SAID)
)
LAMA = (
    '{"relation": "P36", "template": "The capital of [X] is [Y] .", "label": "capital", "type": "1-1"}\n'
    '{"relation": "P19", "template": "[X] was born in [Y] .", "label": "place of birth", "type": "N-1"}\n'
)
PARAREL = (
    '{"pattern": "[X]\'s capital is [Y].", "lemma": "be"}\n'
    '{"pattern": "[Y] is the capital of [X].", "lemma": "be"}\n'
)


def read_trex(folder: Path, **settings: Any) -> list[Any]:
    facts = TrexFacts(str(folder), ["P36"], **settings)
    return [
        [(f.relation, f.subject, f.object, f.template) for f in facts.facts()],
        facts.relation_kinds(),
        facts.candidates(),
    ]


def _objects(content: bytes, *keys: str) -> list[Any]:
    entries = [strict_json(line) for line in naive_lines(content) if line.strip()]
    return [[_text(entry[key]) for key in keys] for entry in entries]


def naive_trex(content: bytes) -> list[Any]:
    found = list(dict.fromkeys(map(tuple, _objects(content, "sub_label", "obj_label"))))
    assert found
    assert all(part.split() for pair in found for part in pair)
    return [
        [("P36", *pair, "The capital of [X] is [Y] .") for pair in found],
        {"P36": "1-1"},
        ["Paris", "Rome"],
    ]


def naive_lama(content: bytes) -> list[Any]:
    entries = _objects(content, "relation", "template", "type")
    assert len({relation for relation, _, _ in entries}) == len(set(map(tuple, entries)))
    template, kind = next((template, kind) for relation, template, kind in entries if relation == "P36")
    assert kind in ("1-1", "N-1", "N-M")
    assert template.count("[X]") == template.split().count("[Y]") == 1
    return [
        [("P36", s, o, template) for s, o in (("France", "Paris"), ("Italy", "Rome"))],
        {"P36": kind},
        ["Paris"],
    ]


def naive_pararel(content: bytes) -> list[Any]:
    patterns = [pattern for (pattern,) in _objects(content, "pattern")]
    spaced = [
        " ".join(re.sub(r"([.!?])$", r" \1", p.replace("[Y]", " [Y] ").strip()).split()) for p in patterns
    ]
    assert spaced
    wordings = list(dict.fromkeys(["The capital of [X] is [Y] .", *spaced]))
    assert all(w.count("[X]") == 1 and w.split().count("[Y]") == 1 for w in wordings)
    return [[("P36", "France", "Paris", w) for w in wordings], {"P36": "1-1"}, ["Paris"]]


def naive_vocabulary(content: bytes) -> list[Any]:
    words = [line.strip() for line in naive_lines(content) if line.strip()]
    assert words
    return [[("P36", "France", "Paris", "The capital of [X] is [Y] .")], {"P36": "1-1"}, words]


GLUE = {"CoLA": COLA, "STS-B": STSB, "QQP": QQP, "RTE": RTE}
ONE, TWO = (b"".join(line + b"\n" for line in TREX.encode().split(b"\n")[:n]) for n in (1, 2))
FACTS, VOCABULARY = "trex_lms_vocab/P36.jsonl", "common_vocab_cased.txt"

READERS = {
    **{
        f"GLUE, {task}": Reader(
            f"{task}/train.tsv", text.encode(), read_glue(task), naive_glue(task), CELLS, keeping=KEEPING,
            others={f"{task}/dev.tsv": text.encode()},
        )
        for task, text in GLUE.items()
    },
    "SQuAD": Reader(
        "x.json", json.dumps(SQUAD, indent=1, ensure_ascii=False).encode(), read_questions, naive_squad, JSON,
        r"{file}(:\d+: |: data[^:]*: |: expected (SQuAD's layout|questions))", KEEPING,
    ),
    **{
        f"parquet, {task}": Reader(
            "train.parquet", table(task), read_table(task), naive_table, BYTES, f"(train.parquet|{task}, train, row)",
            others={"validation.parquet": table(task)},
        )
        for task in ("RTE", "SQuAD2.0")
    },
    "T-REx": Reader(
        FACTS, TREX.encode(), read_trex, naive_trex, JSON, keeping=KEEPING,
        others={"LAMA_relations.jsonl": LAMA.encode(), VOCABULARY: b"Paris\nRome\n"},
    ),
    "jsonl, relations": Reader(
        "LAMA_relations.jsonl", LAMA.encode(), lambda folder: read_trex(folder, templates="lama"), naive_lama, JSON,
        r"{file}(:\d+: |: relations are)", KEEPING, {FACTS: TWO, VOCABULARY: b"Paris\n"},
    ),
    "jsonl, paraphrases": Reader(
        "paraphrases/P36.jsonl", PARAREL.encode(),
        lambda folder: read_trex(folder, paraphrases=str(folder / "paraphrases")), naive_pararel, JSON,
        r"({file}:\d+: |paraphrases has no paraphrase)", KEEPING, {FACTS: ONE, VOCABULARY: b"Paris\n"},
    ),
    "vocabulary": Reader(
        VOCABULARY, "Paris\nRome\nÉvry\n".encode(), read_trex, naive_vocabulary, TEXT, keeping=KEEPING,
        others={FACTS: ONE},
    ),
}  # fmt: skip
