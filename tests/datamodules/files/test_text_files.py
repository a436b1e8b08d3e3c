"""Lines and json of damaged or unusual files: read as they are, or refused with file and line."""

import pytest

from lmdyn.datamodules.files.text_files import expand_paths, read_json, read_json_lines, read_lines

TEXT = "one\n\n two \x85 \u2028 x\n\nlast"


def test_lines(tmp_path, monkeypatch):
    path = tmp_path / "t.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\xc2\x85x\n\nend")
    assert list(read_lines(path)) == [(1, "one"), (2, "two\x85x"), (3, ""), (4, "end")]
    path.write_bytes(b"one\ntw\xff\n")
    with pytest.raises(ValueError, match=r"t\.txt:2: not UTF-8 .* iconv"):
        list(read_lines(path))
    monkeypatch.setenv("SOME_DATA", str(tmp_path))
    assert expand_paths("$SOME_DATA/t.txt") == [path]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand_paths(["~/t.txt"]) == [path]
    with pytest.raises(FileNotFoundError, match="set the environment variable"):
        expand_paths("$NO_SUCH_VARIABLE/t.txt")
    with pytest.raises(FileNotFoundError, match="give the path of a file"):
        expand_paths(str(tmp_path))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", ["", "\n", "\r\n", "\r"])
def test_ends_of_lines(tmp_path, end, last):
    """CR ends a line where no line feed does, but perhaps the last."""
    path = tmp_path / "t.txt"
    path.write_bytes((TEXT.replace("\n", end) + last).encode())
    assert list(read_lines(path)) == list(enumerate(TEXT.split("\n"), start=1))


def test_a_carriage_return_among_line_feeds_is_white_space(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes(b"a\rb\nc\n")
    assert list(read_lines(path)) == [(1, "a\rb"), (2, "c")]


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"a\nb\0\n", 2), ("ab".encode("utf-16-le"), 1), (b"a\n" + bytes(512), 2)],
    ids=["NUL", "UTF-16", "a block that was never written"],
)
def test_no_text(tmp_path, content, line):
    path = tmp_path / "t.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"t\.txt:{line}: not text \(a NUL character\).*iconv -f UTF-16"):
        list(read_lines(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a":\n [1,\n}', r"x\.json:3: expected JSON \(error at column 1: Expecting value\)"),
        ("", r"x\.json:1: expected JSON"),
        ("[" * 100_000, r"x\.json:1: .* recursion"),
        ("9" * 5000, r"x\.json:1: .*digits"),
    ],
)
def test_no_json(tmp_path, text, message):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as found:
        read_json(path)
    assert type(found.value) is ValueError


def test_json_lines(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": "1"}\n\n{"a": "2", "b": 3}\n')
    assert list(read_json_lines(path, ["a"])) == [(1, {"a": "1"}), (3, {"a": "2", "b": 3})]
    with pytest.raises(ValueError, match=r"x\.jsonl:1: expected an object with b as text, got '{"):
        list(read_json_lines(path, ["b"]))
