"""The parser of the command line: a later list of callbacks replaces an earlier one, and errors are short."""

import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin

import yaml
from jsonargparse import (  # type: ignore[attr-defined] # jsonargparse exports it by a star import
    ActionConfigFile,
    _typehints,
)
from jsonargparse._parameter_resolvers import get_signature_parameters
from lightning.pytorch.cli import LightningArgumentParser

from lmdyn.analysis.checked_fields import type_words
from lmdyn.analysis.inspection.attributes import did_you_mean, nearest
from lmdyn.analysis.inspection.forward import dotted
from lmdyn.cli import whole_number
from lmdyn.cli.parsing.errors import of_users_code
from lmdyn.runs.yaml_files import read_yaml

_reading: ContextVar[str] = ContextVar("reading", default="")
"""The file that a parser currently reads."""


class ConfigFile(ActionConfigFile):
    """``--config``: a list of callbacks in a later file replaces that of an earlier one; ``callbacks+`` appends.

    Errors in a file are reported with its name: invalid yaml, a duplicate key, an invalid value of an option.
    """

    @staticmethod
    def apply_config(parser: Any, cfg: Any, dest: str, value: str) -> None:
        """Apply a file on top of the settings that were parsed before."""
        content = _content(value)
        # jsonargparse would merge items of the two lists that have the same position and class
        trainer = content.get("trainer") if isinstance(content, dict) else None
        if cfg.get("trainer.callbacks") and isinstance(trainer, dict) and "callbacks" in trainer:
            cfg["trainer.callbacks"] = None
        token = _reading.set(value if _is_file(value) else "")
        try:
            ActionConfigFile.apply_config(parser, cfg, dest, value)
        finally:
            _reading.reset(token)


def _is_file(path: str) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 # Path raises for a text that is too long for a name


def _content(text: str) -> Any:
    """Return the content of a file, or of a text as yaml; if it is neither, jsonargparse reports that."""
    if not _is_file(text):
        with suppress(yaml.YAMLError):
            return yaml.safe_load(text)
        return None
    content = read_yaml(Path(text))
    if not isinstance(content, dict) or not content:
        held = "no setting" if not content else "a list" if isinstance(content, list) else f"{content!r:.100}"
        raise ValueError(f"{text}: expected a mapping of settings, such as `seed_everything: 1`, got {held}")
    return content


class Parser(LightningArgumentParser):
    """LightningCLI's parser with errors of one line; ``LMDYN_TRACEBACK=1`` shows jsonargparse's full message.

    Attributes:
        raised: errors of constructors, the latest last. If an option accepts several types, jsonargparse keeps only the
            error of the first type that it tried, e.g. that of a list if a single callback was given.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # otherwise a prefix of an option's name would be accepted
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        self.raised: list[Exception] = []

    def add_instantiator(self, instantiator: Callable[..., Any], class_type: type, **about: Any) -> None:
        """Register the function that constructs objects of a class, and record the errors that it raises."""
        super().add_instantiator(_Noting(instantiator, self.raised), class_type, **about)

    def dump(self, *args: Any, **kwargs: Any) -> str:
        """Dump a configuration without validating again what was parsed."""
        return str(super().dump(*args, **{**kwargs, "skip_validation": True}))

    def _check_value_key(self, action: Any, value: Any, key: str, *args: Any, **kwargs: Any) -> Any:
        """Check a value; jsonargparse accepts anything for settings that it groups, such as ``schedule: 5``."""
        group = getattr(action, "basetype", None)
        if is_dataclass(group) and isinstance(value, (int, float, list)):
            names = ", ".join(f"{field.name}: …" for field in fields(group))
            raise TypeError(f"expected `{key}: {{{names}}}` or some of these settings, got {value!r}")
        return super()._check_value_key(action, value, key, *args, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Report an error and exit; reraise an error of a user's code, of which jsonargparse keeps only the message."""
        if not self.exit_on_error or os.environ.get("LMDYN_TRACEBACK"):
            super().error(message, ex)
        if ex is not None and (own := of_users_code(ex)) is not None:
            raise own from own.__cause__
        said = essence(message, _options(self))
        if _reading.get():
            said = f"{_reading.get()}: {said}"
        sys.stderr.write(f"error: {said}\n(LMDYN_TRACEBACK=1 shows more, --help lists the options)\n")
        self.exit(2)


class _Noting:
    """An instantiator that records the errors of what it constructs.

    It can be pickled, since ``ddp_spawn`` pickles the parser. Like a function, it is not copied with a module that
    keeps it, in an optimizer's arguments.
    """

    def __init__(self, instantiator: Callable[..., Any], raised: list[Exception]) -> None:
        self.__wrapped__ = instantiator  # for its signature
        self._raised = raised

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.__wrapped__(*args, **kwargs)
        except Exception as error:
            self._raised.append(error)
            raise

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Noting":
        return self


_adapt = _typehints.adapt_typehints
_also_fits: ContextVar[bool] = ContextVar("also_fits", default=False)
"""Whether the type that is tried is one of several of which another accepts a number with a point, or text."""


def _with_whole_numbers(value: Any, typehint: Any, *args: Any, **kwargs: Any) -> Any:
    """Adapt a value to a type; 1e6 and 12.0 are integers where nothing else than an integer is accepted."""
    if typehint is int and isinstance(value, (float, str)) and not _also_fits.get():
        with suppress(ValueError, OverflowError):
            value = whole_number(str(value))
    union = get_origin(typehint) in (Union, UnionType)
    token = _also_fits.set(union and bool({float, str} & set(get_args(typehint))))
    try:
        return _adapt(value, typehint, *args, **kwargs)
    finally:
        _also_fits.reset(token)


_typehints.adapt_typehints = _with_whole_numbers  # type: ignore[assignment] # int takes no deserializer


def _options(parser: Any) -> list[str]:
    """Return the options of a parser and of its subcommands, such as ``trainer.max_steps``."""
    subcommands = [p for a in parser._actions if isinstance(a.choices, dict) for p in a.choices.values()]
    parsers = [parser, *(p for p in subcommands if hasattr(p, "_option_string_actions"))]
    return [name.removeprefix("--") for p in parsers for name in p._option_string_actions if name[:2] == "--"]


_NOISE = re.compile(
    r"Does not validate against any of the Union subtypes|Subtypes: .*|Errors:|Expected a <class 'NoneType'>.*"
    r"|Given value.*|Subclass types expect one of:|a class path \(str\)|a dict .*|Not a valid subclass of \w+"
    r"|Expected a path but [\w.]+(?<!yaml)(?<!yml)(?<!json) either not accessible or invalid"
)

_CLASSES = {
    "model": "lightning.LightningModule",
    "data": "lightning.LightningDataModule",
    "trainer.callbacks": "lightning.Callback",
    "trainer.logger": "lightning.pytorch.loggers.Logger",
}
"""Base classes of the options for which jsonargparse's message does not name them."""


_OF_MODEL = ("optimizer", "lr_scheduler")
"""Options of LightningCLI's own configuration of optimizers; here, they are arguments of the model."""


def essence(message: str, options: Sequence[str] = ()) -> str:
    """Reduce an error of jsonargparse to one line, and propose the nearest name for an unknown one.

    Args:
        message: jsonargparse's message, of several lines.
        options: the options of the command, such as ``trainer.max_steps``.

    Example:
        >>> essence("Parser key n:" + chr(10) + "  Errors:" + chr(10) + "    - Not a number")
        'n: Not a number'
        >>> essence("unrecognized arguments: --trainer.max_step=3", ["trainer.max_steps"])
        "unrecognized arguments: --trainer.max_step=3, did you mean '--trainer.max_steps'?"
    """
    kept: list[str] = []
    base = cls = ""
    no_class = False
    refused: set[str] = set()
    for line in (line.strip().removeprefix("- ") for line in message.splitlines()):
        if line.startswith("Subtypes: "):
            base = line
        if found := re.match(r"Problem with given class_path '([\w.]+)'", line):
            cls = found[1]
        unknown = re.fullmatch(r"(?:--([\w.]+)\.help: )?Expected a dot import path string: (.*)", line)
        if unknown:
            names = _known_classes(_CLASSES.get(unknown[1], base))
            no_class = True
            kept.append(
                f"unknown class {unknown[2]!r}{did_you_mean(unknown[2], names) or ';'} known classes: "
                f"{', '.join(names)}; name other classes by their dotted path"
            )
        elif option := re.fullmatch(
            r"(.*?(?:Group '(\w+)' .*)?[Oo]ption '([\w.+-]+)')( is not accepted)?", line
        ):
            if option[3] in refused:  # for a list, jsonargparse also tries its items
                if kept and kept[-1].startswith("Problem with given class_path"):
                    kept.pop()
                continue
            refused.add(option[3])
            arguments = _arguments(cls) if cls else {}
            known = [*arguments, "class_path", "init_args", "dict_kwargs"] if cls else options
            if group := arguments.get(option[2]):
                kinds = (kind for kind in (group, *get_args(group)) if is_dataclass(kind))
                known = [field.name for kind in kinds for field in fields(kind)]
            kept.append(f"{line}{_group_of(option[3], cls) or _nearest_option(option[3], known)}")
        elif line.startswith("unrecognized arguments: "):
            typed = line.split()[2].lstrip("-").partition("=")[0]
            kept.append(f"{line}{_nearest_option(typed, options, '--')}")
        elif absent := re.search(r"module '([\w.]+)' has no attribute '(\w+)'$", line):
            there = [n for n in vars(sys.modules.get(absent[1], object)) if n[0] != "_"]
            kept.append(line + did_you_mean(absent[2], there))
        elif line.startswith("the following arguments are required: "):
            kept.append(line.replace("fit.", "") + _NO_MODEL * bool(re.search(r"\bmodel\b", line)))
        elif line and not _NOISE.fullmatch(line):
            kept.append(line)
    if no_class:  # the option's other types are irrelevant; for a list, jsonargparse also tries its items
        kept = [line for line in dict.fromkeys(kept) if not line.startswith("Expected a <class ")]
    expected = lambda found: f"expected {type_words(found[1].rpartition('.')[2])}"  # noqa: E731
    said = re.sub(r"Expected an? <(?:class|enum) '([\w.]+)'>", expected, " ".join(kept) or message)
    for was, now in _PLAINER.items():
        said = re.sub(was, now, said)
    given = re.search(r"^[- ]*Given value: (.{1,80})$", message, flags=re.MULTILINE)
    return f"{said}, got {given[1]}" if given and re.search(r" expected [\w ',]+$", said) else said


_NO_MODEL = (
    ": give --config FILE, a yaml with `model:`, or --model CLASS. For a yaml of only observers and data, run "
    "`lmdyn analyze MODEL --config FILE --out DIR`"
)

_PLAINER = {
    r"Expected a typing\.Literal\[(.*?)\]": r"expected \1",
    r"(?<=\w|') [Ee]xpected (?=true|text|null|a |'|collections)": " or ",
    r"collections\.abc\.\w+\[.*\]$": "a list",
    r"'\w+' object has no attribute 'keys'": "expected a mapping",
    r"Group '(\w+)' does not accept option ('[\w.]+')": r"\1: option \2 is not accepted",
    r"\.? Got value: ": ", got ",
    r'Parser key "?([\w.+-]+)"?: ': r"\1: ",
    r"Problem with given class_path '(?:[\w.]+\.)?(\w+)': ": r"\1: ",
}
"""Words of jsonargparse, and those that replace them."""


def _nearest_option(typed: str, options: Sequence[str], prefix: str = "") -> str:
    """Return the part of a message that proposes an option, matched by its whole name or by its first component."""
    head, dot, rest = typed.partition(".")
    if head in _OF_MODEL and "model" in options:
        return f": optimizers are arguments of the model, use {prefix}model.{typed}"
    heads = dict.fromkeys(name.partition(".")[0] for name in options)
    if dot and not any("." in near for near in nearest(typed, options)):
        options = [f"{near}.{rest}" for near in nearest(head, heads) if near != head]
    return did_you_mean(typed, options, prefix)


def _group_of(typed: str, class_path: str) -> str:
    """Return the part of a message that names the group of settings into which an argument of version 0.1 went."""
    try:
        parameters = inspect.signature(dotted(class_path)).parameters.values()
    except (ValueError, TypeError):
        return ""
    for group in (p for p in parameters if is_dataclass(p.default)):
        for name in (typed, typed.removeprefix(f"{group.name.partition('_')[0]}_")):
            if name in {field.name for field in fields(group.default)}:
                return f": the option is now `{group.name}: {{{name}: …}}`"
    return ""


def _arguments(class_path: str) -> dict[str, Any]:
    """Return the types of the arguments of a class (also of those that it passes to its bases) or function."""
    try:
        maker = dotted(class_path)
        found = get_signature_parameters(maker, "__init__" if isinstance(maker, type) else None)
    except ValueError:
        return {}
    return {argument.name: argument.annotation for argument in found}


def _known_classes(subtypes: str) -> list[str]:
    """Return the short names of the classes that a type accepts, given the type as jsonargparse prints it."""
    found: list[type] = []
    for path in dict.fromkeys(re.findall(r"[\w.]+\.[A-Z]\w*", subtypes)):
        module, _, name = path.rpartition(".")
        base = getattr(sys.modules.get(module), name, None)  # imported, as the type of an option
        if isinstance(base, type) and base.__module__ not in ("collections.abc", "typing"):
            found.append(base)
    for cls in found:  # found grows during the loop
        subclasses: list[type] = cls.__subclasses__()
        found += [c for c in subclasses if c not in found]
    return sorted({c.__name__ for c in found if not inspect.isabstract(c) and c.__name__[0] != "_"})
