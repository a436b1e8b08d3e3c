"""Yaml that is damaged, ambiguous or endless is refused with file and line; all else is what PyYAML reads."""

from pathlib import Path

import pytest
import yaml

from lmdyn.runs.yaml_files import read_yaml

EACH = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 10)}]" for i in range(9)]
BOMB = "\n".join(EACH)
CONFIGS = sorted((Path(__file__).parents[2] / "configs").rglob("*.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r":1: the file is empty"),
        ("a: 1\nb:\n  c: 2\n  d: 3\n  c: 4\n", r":5: .*the key 'c' occurs twice"),
        ('a: 1\n"a": 2\n', r":2: .*the key 'a' occurs twice"),
        ("a: [1\nb: 2\n", r":2: .*while parsing a flow sequence"),
        ("a: 1\nb: c: d\n", r":2: .*mapping values are not allowed"),
        ("a: 1\nb: \x00\n", r":2: .*the character '\\x00' is not allowed"),
        ("a: 1\nb: !!python/object:os.system {}\n", r":2: .*could not determine a constructor"),
        ("a: 1\nb: 0x_\n", r":2: .*'0x_' is not a valid int"),
        ("a: 1\nb: *c\n", r":2: .*found undefined alias"),
        ("a:\n  b: &x {c: *x}\n", r":2: .*the alias \*x contains itself"),
        (BOMB, r":[67]: .*with aliases expanded, there are more than 1000000 values"),
        ("[" * 5000, r":1: .*nested too deeply"),
        ("a: 1\n? [b]\n: 2\n", r":2: .*unhashable key"),
        ("a: 1\n\ufeffb: 2\n", r":2: .*a byte order mark within the file"),
    ],
)
def test_refused(tmp_path, text, message):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"x\.yaml{message}") as found:
        read_yaml(path)
    assert type(found.value) is ValueError
    assert "\n" not in str(found.value)


def test_not_utf8(tmp_path):
    (tmp_path / "x.yaml").write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ValueError, match=r"x\.yaml:2: .*not UTF-8"):
        read_yaml(tmp_path / "x.yaml")


def test_shipped_files_are_read_as_by_pyyaml():
    assert len(CONFIGS) > 100
    for path in CONFIGS:
        assert read_yaml(path) == yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)


def test_what_is_unusual_but_clear(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("# nothing\n")
    assert read_yaml(path) is None
    path.write_bytes(
        b"\xef\xbb\xbfa: &x {b: 1, c: 2}\r\nd: {<<: *x, b: 3}\r\ne: [*x, *x]\r\nf: 2020-99-99\r\n1: one\r\n'1': two\r\n"
    )
    x = {"b": 1, "c": 2}
    read = {"a": x, "d": {"b": 3, "c": 2}, "e": [x, x], "f": "2020-99-99", 1: "one", "1": "two"}
    assert read_yaml(path) == read
