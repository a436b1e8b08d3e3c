"""Reading yaml, with errors that name file and line."""

from pathlib import Path
from typing import Any, ClassVar

import yaml

_MERGE = "tag:yaml.org,2002:merge"
_MOST = 1_000_000  # values, with aliases expanded


def read_yaml(path: Path) -> Any:
    """Return the content of a yaml file: plain values, dates as text; None if it has only comments.

    Raises:
        FileNotFoundError: if it does not exist.
        ValueError: if it is not UTF-8 or not yaml, is nested too deeply or empty, has a key twice in a mapping (PyYAML
            would use the last one), or an alias that contains itself or expands to too many values; the message has
            file and line.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: check the path")
    if not path.is_file():
        raise ValueError(f"{path} is not a file: expected a yaml file with settings")
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: cannot be read as yaml: not UTF-8 ({error.reason})") from error
    if not text.strip():
        raise ValueError(f"{path}:1: the file is empty, expected settings as yaml")
    if (mark := text.find("\ufeff")) >= 0:  # PyYAML's parsers handle it differently
        line = text.count("\n", 0, mark) + 1
        raise ValueError(f"{path}:{line}: cannot be read as yaml: a byte order mark within the file")
    try:
        return _Loader(text).get_single_data()
    except yaml.reader.ReaderError as error:
        line = len(text[: error.position].splitlines()) or 1
        raise ValueError(
            f"{path}:{line}: cannot be read as yaml: the character {chr(error.character)!r} is not allowed"
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        where = "" if mark is None else f":{mark.line + 1}"
        raise ValueError(f"{path}{where}: cannot be read as yaml: {' '.join(said.split())}") from error
    except RecursionError as error:
        raise ValueError(f"{path}:1: cannot be read as yaml: nested too deeply") from error


class _Loader(yaml.SafeLoader):
    """A loader of plain values, each key once; a date is text, as in LightningCLI."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        node = super().compose_node(parent, index)
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._sizes:
                raise _Marked(f"the alias *{event.anchor} contains itself", event.start_mark)
            return node
        inner = [] if isinstance(node, yaml.ScalarNode) else node.value
        parts = (part for item in inner for part in (item if isinstance(item, tuple) else (item,)))
        self._sizes[id(node)] = size = 1 + sum(self._sizes[id(part)] for part in parts)
        if size > _MOST:
            raise _Marked(f"with aliases expanded, there are more than {_MOST} values", event.start_mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if (key.tag, key.value) in seen:
                    raise _Marked(f"the key {key.value[:100]!r} occurs twice: remove one", key.start_mark)
                seen.add((key.tag, key.value))
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError) as error:  # raised for a number such as 0x_
            raise _Marked(
                f"{str(node.value)[:100]!r} is not a valid {node.tag.rpartition(':')[2]}", node.start_mark
            ) from error


class _Marked(yaml.MarkedYAMLError):
    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(problem=problem, problem_mark=mark)
