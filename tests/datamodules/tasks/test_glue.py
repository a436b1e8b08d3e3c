"""GLUE and SQuAD 2.0 from small files in their own layouts, and from a folder laid out as on the hub."""

import json
from pathlib import Path

import datasets
import pandas as pd
import pytest
import torch

from lmdyn.datamodules.corpora.tokenization import subword_tokenizer
from lmdyn.datamodules.tasks.glue import GLUE_LAYOUTS, SQUAD, GlueTasks, read_squad
from lmdyn.datamodules.tasks.tasks import PairEncoder, Question, TextExample

WORDS = "the cat sat on a mat and saw dogs run ' \" , . ? who it is not in house tree left".split()  # noqa: SIM905
TOKENIZER = subword_tokenizer("wordpiece", dict.fromkeys(WORDS, 20), vocab_size=120)

ROWS = {
    "CoLA": ["gj04\t1\t\tThe cat \"sat .\n", "gj04\t0\t*\tSat cat the .\n"],
    "SST-2": ["sentence\tlabel\n", "the cat is \" not \t1\n", "a tree \u2028 left\t0\n"],
    "MRPC": [
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n", "1\t7\t8\tthe cat\ta cat\r\n", "0\t7\t8\tit\tmat\r\n",
    ],
    "QQP": [
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n",
        "0\t1\t2\twho sat ?\twho is it ?\t1\n", "1\t2\t3\tbroken\n",
        "2\t1\t2\twho ran ?\twho left ?\t0\n",
    ],
    "STS-B": [
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n",
        "0\tg\tf\t2012\t1\tnone\tnone\ta cat .\tthe cat .\t5.000\n", "1\tg\tf\t2012\t1\tnone\tnone\ta\tthe mat\t1.25\n",
    ],
    "MNLI": [
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\t"
        "sentence1\tsentence2\tlabel1\tgold_label\n",
        "0\t1\t1n\tx\tp\tp\tp\tp\tthe cat sat\tit sat\tneutral\tentailment\n",
        "1\t1\t1n\tx\tp\tp\tp\tp\tthe cat sat\tit left\tneutral\tcontradiction\n",
    ],
    "QNLI": [
        "index\tquestion\tsentence\tlabel\n", "0\twho sat ?\tthe cat\tentailment\n", "1\twho ?\ta\tnot_entailment\n",
    ],
    "RTE": ["index\tsentence1\tsentence2\tlabel\n", "0\tcats\tcat\tnot_entailment\n", "1\ta cat\tit\tentailment\n"],
    "WNLI": ["index\tsentence1\tsentence2\tlabel\n", "0\tcats\tcat\t1\n", "1\ta cat\tit\t0\n"],
}  # fmt: skip

EXPECTED = {
    "CoLA": [("The cat \"sat .", None, 1), ("Sat cat the .", None, 0)],
    "SST-2": [("the cat is \" not ", None, 1), ("a tree \u2028 left", None, 0)],
    "MRPC": [("the cat", "a cat", 1), ("it", "mat", 0)],
    "QQP": [("who sat ?", "who is it ?", 1), ("who ran ?", "who left ?", 0)],
    "STS-B": [("a cat .", "the cat .", 5), ("a", "the mat", 1.25)],
    "MNLI": [("the cat sat", "it sat", 0), ("the cat sat", "it left", 2)],
    "QNLI": [("who sat ?", "the cat", 0), ("who ?", "a", 1)],
    "RTE": [("cats", "cat", 1), ("a cat", "it", 0)],
    "WNLI": [("cats", "cat", 1), ("a cat", "it", 0)],
}  # fmt: skip

CONTEXT = "the cat sat on a mat and saw dogs run . it is not in the house . " * 3
PARAGRAPH = {
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
        {"id": "c", "question": "who run ?", "answers": [{"text": "dogs", "answer_start": CONTEXT.rindex("dogs")}] * 3},
    ],
}  # fmt: skip


def write(folder: Path, task: str, rows: list[str]) -> Path:
    (folder / task).mkdir(parents=True, exist_ok=True)
    stems = ["train", *(f"dev_{name}".strip("_") for name in GLUE_LAYOUTS[task].sets)]
    for stem in stems:
        (folder / task / f"{stem}.tsv").write_text("".join(rows), encoding="utf-8", newline="")
    return folder


def write_squad(folder: Path, paragraph=PARAGRAPH) -> Path:
    (folder / SQUAD).mkdir(parents=True, exist_ok=True)
    for split in ("train", "dev"):
        file = folder / SQUAD / f"{split}-v2.0.json"
        file.write_text(json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": [paragraph]}]}))
    return folder


def ready(**kwargs) -> GlueTasks:
    data = GlueTasks(**kwargs)
    data.tokenizer = TOKENIZER
    data.setup()
    return data


def triples(examples):
    return [(e.first, e.second, e.label) for e in examples]


@pytest.mark.parametrize("task", ROWS)
def test_each_layout(tmp_path, task):
    raw = next(GlueTasks([task], folder=str(write(tmp_path, task, ROWS[task]))).read())
    assert triples(raw.train) == EXPECTED[task]
    assert list(raw.evaluation) == (["matched", "mismatched"] if task == "MNLI" else [""])
    assert all(triples(rows) == EXPECTED[task] for rows in raw.evaluation.values())
    assert raw.kind == ("regression" if task == "STS-B" else "classification")
    assert raw.label_names == GLUE_LAYOUTS[task].label_names


def test_rows_that_qqp_itself_breaks_are_counted(tmp_path, caplog):
    list(GlueTasks(["QQP"], folder=str(write(tmp_path, "QQP", ROWS["QQP"]))).read())
    assert "train.tsv: lmdyn left out 1 rows with fewer than 6 columns" in caplog.text


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        ("CoLA", [ROWS["CoLA"][0], "gj04\t1\tno\n"], r"train\.tsv:2: expected 4 tab-separated columns, got 3"),
        ("SST-2", [*ROWS["SST-2"], "\n", "the\t1\n"], r"train\.tsv:4: expected 2 tab-separated columns"),
        ("SST-2", [*ROWS["SST-2"], "a\t3\n"], r"train\.tsv:4: expected a label of 0, 1, got '3'"),
        ("SST-2", ["text\tlabel\n", "a\t1\n"], r"train\.tsv:1: expected .*, got 'text label', with sentence missing"),
        ("STS-B", [*ROWS["STS-B"][:2], "0\t0\t0\t0\t0\t0\t0\ta\tb\thigh\n"], r"tsv:3: expected a score from 0 to 5"),
        ("CoLA", [], r"train\.tsv:1: expected rows of . columns, got none"),
        ("SST-2", [], r"train\.tsv:1: expected .*got ''"),
        ("SST-2", ["sentence\tlabel\n"], r"train\.tsv:1: expected rows of . columns, got none: use the complete file"),
        ("SST-2", ["sentence\tlabel\nthe\0cat\t1\n"], r"train\.tsv:2: not text"),
    ],
)  # fmt: skip
def test_malformed_files(tmp_path, task, rows, message):
    write(tmp_path, task, rows)
    with pytest.raises(ValueError, match=message):
        ready(tasks=[task], folder=str(tmp_path))


def test_encoding_is_the_tokenizers_own():
    texts = [
        ("the cat sat on a mat", "dogs run"),
        ("it is", "not in the house and not in a tree"),
        ("who", None),
    ]
    encoded, cut = PairEncoder(TOKENIZER, 10).texts([TextExample(a, b, 1.0) for a, b in texts])
    for (a, b), example in zip(texts, encoded, strict=True):
        expected = TOKENIZER(a, b, truncation="longest_first", max_length=10, return_token_type_ids=True)
        assert example["input_ids"].tolist() == expected["input_ids"]
        assert example["token_type_ids"].tolist() == expected["token_type_ids"]
    assert cut == 2
    assert encoded.lengths.max() == 10


def test_limits_and_fingerprints(tmp_path):
    rows = [ROWS["SST-2"][0], *(f"the cat {'a ' * i}\t{i % 2}\n" for i in range(30))]
    folder = str(write(tmp_path, "SST-2", rows))
    few, again, other = (
        ready(tasks=["SST-2"], folder=folder, train_limit=n, evaluation_limit=4).tasks["SST-2"]
        for n in (10, 10, 11)
    )
    assert (len(few.train), len(few.evaluation[""]), len(other.train)) == (10, 4, 11)
    assert len({len(e["input_ids"]) for e in few.train} - set(range(5, 17))) > 0  # not the first ones
    assert few.fingerprint == again.fingerprint != other.fingerprint
    write(tmp_path, "SST-2", [rows[0], *(r[:-2] + "1\n" for r in rows[1:])])
    assert ready(tasks=["SST-2"], folder=folder).tasks["SST-2"].train.fingerprint != few.train.fingerprint


def test_the_loader_serves_what_is_evaluated_on_once(tmp_path):
    for task in ("RTE", "MNLI"):
        write(tmp_path, task, ROWS[task])
    data = ready(tasks=["RTE", "MNLI"], folder=str(tmp_path))
    loader = data.val_dataloader()
    assert loader.label_names == {"task": ["RTE", "MNLI"]}
    seen = torch.cat([b["task"] for b in loader])
    assert seen.bincount().tolist() == [2, 4]
    halves = [torch.cat([b["example"] for b in loader.shard(rank, 2)]) for rank in (0, 1)]
    assert sorted(torch.cat(halves).tolist()) == list(range(6))


# ------------------------------------------------------------------------------------------------ SQuAD


def test_squad_files(tmp_path):
    questions = read_squad(write_squad(tmp_path) / SQUAD / "dev-v2.0.json")
    assert [q.answers for q in questions] == [
        (("the cat", 0),), (), (("dogs", CONTEXT.rindex("dogs")),) * 3,
    ]  # fmt: skip
    assert questions[1].question == "who left ?"


@pytest.mark.parametrize("max_length", [24, 200])
def test_windows_hold_the_answers(max_length):
    questions = [
        Question("a", "who sat ?", CONTEXT, (("the cat", 0),)),
        Question("b", "who left ?", CONTEXT, ()),
        Question("c", "who " * 90, CONTEXT, (("house .", CONTEXT.rindex("house .")),)),
    ]
    encoder = PairEncoder(TOKENIZER, max_length)
    encoded, cut = encoder.questions(questions)
    assert cut == (3 if max_length == 24 else 0)
    found = {0: [], 1: [], 2: []}
    covered = {0: set(), 1: set(), 2: set()}
    for e in encoded:
        q = int(e["question"])
        assert len(e["input_ids"]) <= max_length
        text = e["offsets"][:, 0] >= 0
        assert (e["token_type_ids"][text] == 1).all()
        assert not text[0]
        for left, right in e["offsets"][text]:
            covered[q].update(range(left, right))
        if e["start"] > 0:
            found[q].append(CONTEXT[e["offsets"][e["start"], 0] : e["offsets"][e["end"], 1]])
        else:
            assert e["end"] == 0
    assert found[1] == []
    assert set(found[0]) == {"the cat"}
    assert set(found[2]) == {"house ."}
    letters = {i for i, c in enumerate(CONTEXT) if not c.isspace()}
    assert all(letters <= c for c in covered.values())
    assert encoded.contexts == (CONTEXT,) * 3
    assert encoded.answers == (("the cat",), (), ("house .",))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"answers": [{"text": "cat", "answer_start": 9}]}, "expected the answer 'cat' at character 9 .* got 'at '"),
        # -4 is "se . "[-4:] for Python
        ({"answers": [{"text": "e . ", "answer_start": -4}]}, "expected the answer .* at character -4"),
        ({"answers": [{"text": "cat", "answer_start": float("inf")}]}, "expected SQuAD's layout"),
        ({"answers": [{"text": "cat"}]}, "expected SQuAD's layout"),
        ({"answers": [{"text": None, "answer_start": 4}]}, "expected the answer 'None'"),
        ({"answers": {"text": "cat", "answer_start": 4}}, "expected SQuAD's layout"),
        ({"is_impossible": True}, "expected answers if is_impossible is false, and none"),
        ({"is_impossible": False, "answers": []}, "expected answers if is_impossible is false"),
        ({"question": 3}, "expected text, got question '3'"),
    ],
)  # fmt: skip
def test_a_malformed_question(tmp_path, changed, message):
    qa = {"id": "a", "question": "?", "answers": [{"text": "cat", "answer_start": 4}]}
    folder = write_squad(tmp_path, {**PARAGRAPH, "qas": [qa]})
    assert read_squad(folder / SQUAD / "train-v2.0.json")[0].answers == (("cat", 4),)  # the control
    folder = write_squad(tmp_path, {**PARAGRAPH, "qas": [{**qa, **changed}]})
    with pytest.raises(ValueError, match=rf"v2\.0\.json, row 0: .*{message}"):
        read_squad(folder / SQUAD / "train-v2.0.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"data": [\n"\xff"', r"json:2: not UTF-8"),
        (b'{"data": []}', r"json: expected questions, got none"),
        (b"[]", r"json: expected SQuAD's layout"),
        (b'{"data": [3]}', r"json.*: expected SQuAD's layout"),
    ],
)
def test_damaged_squad(tmp_path, content, message):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_squad(tmp_path / "x.json")


# -------------------------------------------------------------------------------------------------- hub


def hub_folder(folder: Path) -> Path:
    """As ``nyu-mll/glue`` is laid out: a folder of parquet files each, named as configurations in the readme."""
    configs = []
    for task, rows in {
        "SST-2": {"sentence": ["the cat", "a tree"], "label": [1, 0], "idx": [0, 1]},
        "MNLI": {"premise": ["the cat"], "hypothesis": ["it"], "label": [2], "idx": [0]},
        "STS-B": {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [5.0, 2.5], "idx": [0, 1]},
    }.items():
        name = task.lower().replace("-", "")
        splits = ["train", *(f"validation_{s}".strip("_") for s in GLUE_LAYOUTS[task].sets)]
        (folder / name).mkdir(parents=True)
        for split in splits:
            pd.DataFrame(rows).to_parquet(folder / name / f"{split}-00000-of-00001.parquet")
        files = "".join(f"  - split: {s}\n    path: {name}/{s}-*\n" for s in splits)
        configs.append(f"- config_name: {name}\n  data_files:\n{files}")
    (folder / "README.md").write_text("---\nconfigs:\n" + "".join(configs) + "---\n")
    return folder


def test_tasks_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    path = str(hub_folder(tmp_path / "glue"))
    dataset = {"path": path, "cache_dir": str(tmp_path / "cache")}
    raw = {t.name: t for t in GlueTasks(["SST-2", "MNLI", "STS-B"], dataset=dataset).read()}
    assert triples(raw["SST-2"].train) == [("the cat", None, 1), ("a tree", None, 0)]
    assert {k: triples(v) for k, v in raw["MNLI"].evaluation.items()} == {
        "matched": [("the cat", "it", 2)], "mismatched": [("the cat", "it", 2)],
    }  # fmt: skip
    assert triples(raw["STS-B"].train) == [("a", "c", 5.0), ("b", "d", 2.5)]


class Hub:
    def __init__(self, rows, splits=("train", "validation")):
        self.rows, self.splits, self.asked = rows, splits, []

    def __call__(self, **kwargs):
        self.asked.append(kwargs)
        return dict.fromkeys(self.splits, self.rows)


@pytest.mark.parametrize(
    ("hub", "message"),
    [
        (
            Hub([{"sentence": "a", "label": -1}]),
            "row 0: expected values in the columns sentence1, sentence2 and label, got values in sentence, label",
        ),
        (
            Hub([{"sentence1": "a", "sentence2": "b", "label": -1}]),
            r"row 0: expected a label of .*, got '-1'",
        ),
        (Hub([], ("test",)), r"expected a dataset with a split 'train', got test"),
    ],
)
def test_a_hub_dataset_of_another_kind(monkeypatch, hub, message):
    monkeypatch.setattr(datasets, "load_dataset", hub)
    with pytest.raises(ValueError, match=message):
        list(GlueTasks(["RTE"], dataset={"path": "somewhere"}).read())
    assert hub.asked == [{"path": "somewhere", "name": "rte"}]
    GlueTasks(["RTE", "MNLI"], dataset={"path": "somewhere"}).prepare_data()
    assert [asked["name"] for asked in hub.asked[1:]] == ["rte", "mnli"]


def test_squad_of_the_hub(monkeypatch):
    answers = {"text": ["cat"], "answer_start": [4]}
    row = {"id": "1", "title": "t", "context": "the cat", "question": "who ?", "answers": answers}
    monkeypatch.setattr(datasets, "load_dataset", Hub([row]))
    raw = next(GlueTasks([SQUAD], squad_dataset={"path": "rajpurkar/squad_v2"}).read())
    assert raw.train == [Question("1", "who ?", "the cat", (("cat", 4),))]
    assert raw.kind == "span"
