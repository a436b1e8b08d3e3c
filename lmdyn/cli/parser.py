"""The parser of the command line: a later list of callbacks replaces the earlier one, and mistakes are short."""

import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ActionConfigFile  # type: ignore[attr-defined] # its star import
from lightning.pytorch.cli import LightningArgumentParser

from lmdyn.analysis.inspection.forward import dotted

__all__ = ["ConfigFile", "Parser", "essence"]


class ConfigFile(ActionConfigFile):
    """``--config``: a list of callbacks in a later file replaces that of an earlier one; ``callbacks+`` appends."""

    @staticmethod
    def apply_config(parser: Any, cfg: Any, dest: str, value: str) -> None:
        """Lay a file over what was parsed so far."""
        # jsonargparse would merge items at the same place of both lists, where they are of one class
        if cfg.get("trainer.callbacks") and _has_callbacks(value):
            cfg["trainer.callbacks"] = None
        ActionConfigFile.apply_config(parser, cfg, dest, value)


def _has_callbacks(path: str) -> bool:
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return False  # the parser will say what is wrong
    trainer = content.get("trainer") if isinstance(content, dict) else None
    return isinstance(trainer, dict) and "callbacks" in trainer


class Parser(LightningArgumentParser):
    """LightningCLI's parser, whose errors are one line; ``LMDYN_TRACEBACK=1`` shows all that jsonargparse says."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong and exit."""
        if not self.exit_on_error or os.environ.get("LMDYN_TRACEBACK"):
            super().error(message, ex)
        sys.stderr.write(f"error: {essence(message)}\n(LMDYN_TRACEBACK=1 shows more, --help what there is)\n")
        self.exit(2)


_NOISE = re.compile(
    r"Does not validate against any of the Union subtypes|Subtypes: .*|Errors:|Expected a <class 'NoneType'>.*"
    r"|Given value.*|Subclass types expect one of:|a class path \(str\)|a dict .*|Not a valid subclass of \w+"
)


def essence(message: str) -> str:
    """An error of jsonargparse in one line, without what it tried in vain; of an unknown class, what there is.

    Example:
        >>> essence("Parser key n:" + chr(10) + "  Errors:" + chr(10) + "    - Not a number")
        'Parser key n: Not a number'
    """
    kept: list[str] = []
    base = ""
    for line in (line.strip().removeprefix("- ") for line in message.splitlines()):
        if line.startswith("Subtypes: "):
            base = line
        unknown = re.fullmatch(r"Expected a dot import path string: (.*)", line)
        if unknown:
            names = ", ".join(_known_classes(base))
            kept.append(f"there is no class {unknown[1]!r}; there are: {names}; others by their dotted path")
        elif line and not _NOISE.fullmatch(line):
            kept.append(line)
    return " ".join(kept) or message


def _known_classes(subtypes: str) -> list[str]:
    """Short names of the classes that a type admits, as jsonargparse prints the type."""
    found: list[type] = []
    for path in dict.fromkeys(re.findall(r"[\w.]+\.[A-Z]\w*", subtypes)):
        base = dotted(path)
        if isinstance(base, type):
            found.append(base)
    for cls in found:  # grows while it is walked
        subclasses: list[type] = cls.__subclasses__()
        found += [c for c in subclasses if c not in found]
    return sorted({c.__name__ for c in found if not inspect.isabstract(c) and c.__name__[0] != "_"})
