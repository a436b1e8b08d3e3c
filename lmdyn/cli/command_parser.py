"""A command from a function: its annotations and its docstring make the parser, before large packages are imported."""

import argparse
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from docstring_parser import parse

from lmdyn.cli import INSPECT_FIRST, whole_number

_TYPES: dict[Any, Callable[[str], Any]] = {int: whole_number, float: float, Path: Path, str: str}
_WORDS = ("words", "rest", "of_classes")
"""Names of parameters that receive words: all, those that the parser does not know, ``--model.ARG VALUE``."""


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one line and propose the nearest option for an unknown one."""

    def error(self, message: str) -> NoReturn:
        """Report an error and exit."""
        near = ""
        if message.startswith("unrecognized arguments: -"):
            from lmdyn.analysis.inspection.attributes import did_you_mean  # slow import

            near = did_you_mean(message.split()[2].partition("=")[0], self._option_string_actions)
        elif message.startswith("argument -"):
            option = message.split()[1].rstrip(":").partition("/")[0]
            near = f" ({self._option_string_actions[option].help})"
        self.exit(2, f"error: {message}{near}\n({self.prog} --help lists the options)\n")


def command_parser(name: str, command: Callable[..., None]) -> CommandParser:
    """Return the parser of a command.

    Parameters before the ``*`` are positional, and those after it are options: a bool is a switch, a ``Sequence`` an
    option that may be repeated, a ``tuple`` one with several values, a ``Literal`` a choice;
    integers may be written as 1e6.

    Args:
        name: name of the command.
        command: a typed function, whose docstring describes it and its arguments.

    Example:
        >>> def train(run: Path, *, steps: int = 3, only: tuple[str, ...] = (), dry: bool = False) -> None:
        ...     '''Train.'''
        >>> vars(command_parser("train", train).parse_args(["a", "--steps", "1e6", "--only", "x", "y"]))
        {'run': PosixPath('a'), 'steps': 1000000, 'only': ['x', 'y'], 'dry': False}
    """
    told = parse(inspect.getdoc(command) or "")
    about = {p.arg_name: " ".join((p.description or "").split()).replace("%", "%%") for p in told.params}
    summary = " ".join(f"{told.short_description or ''} {told.long_description or ''}".split())
    parser = CommandParser(f"lmdyn {name}", description=summary, epilog=INSPECT_FIRST, allow_abbrev=False)
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if parameter.name in _WORDS:
            continue
        kind = parameter.annotation
        required = parameter.default is parameter.empty
        if type(None) in get_args(kind):
            kind = get_args(kind)[0]
        settings: dict[str, Any] = {"help": about.get(parameter.name)}
        several = get_origin(kind) in (list, tuple, Sequence)
        if kind is bool:
            settings |= {"action": "store_true"}
        elif get_origin(kind) is Literal:
            settings |= {"choices": get_args(kind)}
        else:
            settings |= {"type": _TYPES[get_args(kind)[0] if several else kind]}
        if parameter.kind is not parameter.KEYWORD_ONLY:
            nargs = ("+" if required else "*") if several else (None if required else "?")
            parser.add_argument(parameter.name, nargs=nargs, metavar=parameter.name.upper(), **settings)
            continue
        if several:
            settings |= (
                {"action": "extend", "nargs": "+"} if get_origin(kind) is tuple else {"action": "append"}
            )
        default = list(parameter.default) if several else parameter.default
        names = dict.fromkeys([f"--{parameter.name}", f"--{parameter.name.replace('_', '-')}"])
        if required:
            settings |= {"required": True}
        parser.add_argument(*names, dest=parameter.name, default=None if required else default, **settings)
    return parser


def run_command(name: str, command: Callable[..., None], args: Sequence[str]) -> None:
    """Parse the words of a command line and call the command; without words, show its help if it requires some."""
    parser = command_parser(name, command)
    parameters = inspect.signature(command).parameters
    needs_words = "rest" in parameters or any(
        p.default is p.empty and p.kind is not p.KEYWORD_ONLY for p in parameters.values()
    )
    if not args and needs_words:
        parser.print_help()
        return
    own, given = list(args), dict[str, Any]()
    if "of_classes" in parameters:
        given["of_classes"], own = _of_classes(args)
    options, rest = parser.parse_known_args(own)
    if "rest" in parameters:
        given["rest"] = rest  # LightningCLI parses it
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if "words" in parameters:
        given["words"] = ["lmdyn", name, *args]
    given |= vars(options)
    positional = [given.pop(n) for n, p in parameters.items() if p.kind is not p.KEYWORD_ONLY]
    command(*positional, **given)


def _of_classes(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words into ``--model.ARG=VALUE`` and ``--data.ARG=VALUE``, and all others."""
    of_classes: list[str] = []
    own: list[str] = []
    words = iter(args)
    for word in words:
        if not word.startswith(("--model.", "--data.")):
            own.append(word)
            continue
        of_classes.append(word if "=" in word else f"{word}={next(words, '')}")
    return of_classes, own
