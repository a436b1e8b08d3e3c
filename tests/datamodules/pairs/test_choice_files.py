"""Items of multiple choice of files: templates, groups, and errors with file and line."""

import json
import re

import pytest

from lmdyn.datamodules import ChoiceFiles

EWOK = {"Context1": "The cup is full.", "Context2": "It is empty.", "Target1": "It pours.", "Target2": "It does not.",
        "Domain": "physical"}  # fmt: skip
MOVES = {"input_prefix": "Box 0 contains", "options": [" the cup.", " nothing .", " a bed."], "numops": 2,
         "gold": 2}  # fmt: skip


def written(folder, *rows, name="regular.jsonl"):
    (folder / name).write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return folder / name


def read(path, *args, **how):
    data = ChoiceFiles(str(path), *args, **how)
    data.setup("fit")
    return data.choices


def test_templates_of_prefixes_and_options(tmp_path):
    written(tmp_path, EWOK, EWOK)
    found = read(tmp_path, [" {Target1}", " {Target2}"], "{Context1}", group="{Domain}")
    assert found["text"].tolist() == ["The cup is full. It pours.", "The cup is full. It does not."] * 2
    assert found["begin"].tolist() == [16] * 4
    assert found["right"].tolist() == [True, False] * 2
    assert found["item"].tolist() == ["physical_0"] * 2 + ["physical_1"] * 2
    assert found["option"].tolist() == [0, 1, 0, 1]
    assert found["line"].tolist() == [1, 1, 2, 2]
    swapped = read(tmp_path, [" {Target1}"] * 2, ["{Context1}", "{Context2}"])
    assert swapped["text"].tolist()[:2] == ["The cup is full. It pours.", "It is empty. It pours."]
    assert swapped["begin"].tolist()[:2] == [16, 12]
    assert set(swapped["group"]) == {"regular"}


def test_a_column_of_options_and_of_the_right_one(tmp_path):
    written(tmp_path, MOVES, {**MOVES, "options": [" a cup.", " a bed ."], "gold": 0})
    how = {"prefixes": "{input_prefix}", "group": "{file}_{numops}_ops"}
    found = read(tmp_path, "options", right="gold", **how)
    assert found["right"].tolist() == [False, False, True, True, False]
    assert found["item"].tolist() == ["regular_2_ops_0"] * 3 + ["regular_2_ops_1"] * 2
    kept = read(tmp_path, "options", right="gold", without="nothing", **how)
    assert kept["text"].tolist() == ["Box 0 contains a cup.", "Box 0 contains a bed ."]
    assert kept["item"].tolist() == ["regular_2_ops_0"] * 2


@pytest.mark.parametrize(
    ("row", "how", "says"),
    [
        (EWOK, {"options": ["{Target3}", "x"]}, "x.jsonl:1: no column 'Target3' (columns: "),
        (EWOK, {"options": "Target3"}, "x.jsonl:1: no column 'Target3' (columns: "),
        (EWOK, {"options": "Target1"}, "x.jsonl:1: expected a list in column Target1, got 'It pours.' (columns"),
        (EWOK, {"options": ["{Domain.__class__}", "x"]}, "x.jsonl:1: no column 'Domain.__class__' (columns"),
        ({**MOVES, "x": None}, {"options": "options", "prefixes": "{x}"}, "expected text or a number, got 'None'"),
        (MOVES, {"options": "options", "prefixes": ["a", "b"]}, "x.jsonl:1: 3 options, but 2 prefixes (columns"),
        (MOVES, {"options": "options", "prefixes": "{other}"}, "x.jsonl:1: no column 'other' (columns: "),
        ({**MOVES, "options": [" a"]}, {"options": "options"}, "x.jsonl:1: the options are ' a', and the right"),
        ({**MOVES, "options": [" a", " "]}, {"options": "options"}, "no empty option"),
        (MOVES, {"options": "options", "right": 3}, "and the right option has number 3 (from 0): expected"),
        (MOVES, {"options": "options", "without": "nothing"}, "found no items in"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(tmp_path, row, how, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        read(written(tmp_path, row, name="x.jsonl"), **how)


def test_one_template_is_scored_only(tmp_path):
    found = read(written(tmp_path, EWOK), ["{Target1}"], prefixes="{Context1} ")
    assert found["option"].tolist() == [0]


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        read(tmp_path / "other.jsonl", ["a", "b"])
