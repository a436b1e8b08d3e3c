"""The commands of a chain of runs, as Snakemake plans them, and their checks in this order."""

import contextlib
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmdyn.callbacks.conditions.finding import expected
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.reference import Checkpoint
from lmdyn.cli.checking.built import Built, prepared_tokenizer
from lmdyn.cli.checking.check import Line, check_replay, check_training, tell

__all__ = ["Command", "check_chain", "commands_of", "planned_commands"]

_SEEDS = (
    "--seed_everything",
    "--data_seed",
    "--trainer.logger.init_args.version",
    "--data.init_args.order_seed",
    "--data.init_args.seed",
)


@dataclass(frozen=True)
class Command:
    """One command of lmdyn in a chain.

    Attributes:
        name: ``fit``, ``analyze``, ``prepare``, …
        words: what follows it.
    """

    name: str
    words: tuple[str, ...]

    def option(self, name: str) -> str | None:
        """The value of an option; None without it."""
        for word, following in zip(self.words, (*self.words[1:], ""), strict=True):
            if word == name:
                return following
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        return None

    def without(self, *names: str) -> tuple[str, ...]:
        """Its words without some options and their values."""
        kept: list[str] = []
        words = iter(self.words)
        for word in words:
            if word in names:
                next(words, None)
            elif not word.startswith(tuple(f"{name}=" for name in names)):
                kept.append(word)
        return tuple(kept)


def commands_of(plan: str) -> list[Command]:
    """The commands of lmdyn in shell text, in its order.

    Example:
        >>> commands_of('( python -m lmdyn.cli fit --config a.yaml $last && lmdyn test --config a.yaml ) > log 2>&1')
        [Command(name='fit', words=('--config', 'a.yaml')), Command(name='test', words=('--config', 'a.yaml'))]
    """
    found = []
    for match in re.finditer(r"(?:-m lmdyn\.cli|(?<![\w./-])lmdyn) ([a-z]+)(?=\s|$)", plan):
        rest = plan[match.end() :].replace("\\\n", " ").partition("\n")[0]
        lexer = shlex.shlex(rest, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        with contextlib.suppress(ValueError):  # an open quote of the text around
            for word in lexer:
                if set(word) <= set("();<>|&"):
                    break
                words.append(word)
        found.append(Command(match[1], tuple(w for w in words if "$" not in w)))
    return found


def planned_commands(snakefile: str | None, profile: str | None) -> list[Command]:
    """What Snakemake would run, all of it, from the first rule to the last.

    Raises:
        ValueError: no Snakemake here, or a chain that it cannot plan.
    """
    if importlib.util.find_spec("snakemake") is None:
        raise ValueError(
            "--snakefile and --profile need Snakemake, which is not installed: pip install 'lmdyn[workflows]'"
        )
    given = ["--profile", profile] if profile is not None else ["--cores", "1"]
    given += ["--snakefile", snakefile] if snakefile is not None else []
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *given, "--dry-run", "--printshellcmds", "--forceall", "--nolock"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise ValueError(f"Snakemake cannot plan {profile or snakefile}: {said[-400:]}")
    return commands_of(f"{done.stdout}\n{done.stderr}")


@dataclass
class _Chain:
    """What earlier commands of a chain will have made.

    Attributes:
        tokenizers: by folder.
        runs: what was built of each run, and with which words, by folder.
        observed: folders of runs that were analyzed.
        failed: names of runs that cannot be trained.
        checked: kinds of commands that were checked, by what tells them apart, with the folder of the first.
    """

    tokenizers: dict[str, Any] = field(default_factory=dict)
    runs: dict[str, tuple[Built, tuple[str, ...]]] = field(default_factory=dict)
    observed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    checked: dict[tuple[Any, ...], str] = field(default_factory=dict)


def check_chain(snakefile: str | None, profile: str | None, *, as_json: bool = False) -> bool:
    """Check all commands of a chain, with what later ones need from earlier ones; tell the lines.

    Returns:
        Whether there is no error.

    Raises:
        ValueError: no Snakemake here, or a chain that it cannot plan.
    """
    chain = _Chain()
    planned = planned_commands(snakefile, profile)
    return tell((line for command in planned for line in _check(command, chain)), as_json=as_json)


def _check(command: Command, chain: _Chain) -> Iterator[Line]:
    if command.name == "prepare":
        yield from _prepare(command, chain)
    elif command.name == "fit":
        yield from _fit(command, chain)
    elif command.name == "analyze":
        yield from _analyze(command, chain)
    elif command.name in ("report", "records", "claims"):
        yield from _runs_are_there(command, chain)


def _prepare(command: Command, chain: _Chain) -> Iterator[Line]:
    folder = command.option("--tokenizer")
    if folder is None:
        return
    whose = f"prepare {folder}"
    try:
        chain.tokenizers[_key(folder)] = made = prepared_tokenizer(command.without("--tokenizer"))
    except Exception as error:
        yield Line("error", whose, " ".join(str(error).split()))
        return
    yield Line("ok", whose, f"{len(made):,} tokens")


def _fit(command: Command, chain: _Chain) -> Iterator[Line]:
    words = command.without("--ckpt_path")
    alike = ("fit", *Command("fit", words).without(*_SEEDS))
    name = command.option("--trainer.logger.init_args.version") or "the run"
    whose = f"fit {name}"
    if alike in chain.checked:
        first = chain.checked[alike]
        if first not in chain.runs:
            chain.failed.add(name)
            yield Line("error", whose, f"as {Path(first).name}, but for seeds")
            return
        built, _ = chain.runs[first]
        chain.runs[_key(Path(first).with_name(name))] = built, words
        yield Line("ok", whose, f"as {Path(first).name}, but for seeds")
        return
    lines, made = check_training(words, whose, chain.tokenizers)
    yield from lines
    if made is None:
        chain.failed.add(name)
        chain.checked[alike] = name
        return
    folder = _key(made.folder)
    chain.runs[folder] = made, words
    chain.checked[alike] = folder


def _analyze(command: Command, chain: _Chain) -> Iterator[Line]:
    if not command.words:
        return
    folder = command.words[0]
    whose = f"analyze {folder}"
    overlays = [v for w, v in zip(command.words, (*command.words[1:], ""), strict=True) if w == "--config"]
    chain.observed.add(_key(folder))
    if _key(folder) not in chain.runs:
        if not (Path(folder) / "config.yaml").is_file():
            yield _missing(whose, folder, chain)
        return
    built, words = chain.runs[_key(folder)]
    scheduled = "--scheduled" in command.words
    alike = ("analyze", id(built), tuple(overlays), scheduled)
    if alike in chain.checked:
        yield Line("ok", whose, f"as {chain.checked[alike]}, but for seeds")
        return
    chain.checked[alike] = folder
    yield from check_replay(
        built,
        words,
        overlays,
        whose,
        scheduled=scheduled,
        ready=lambda o: _with_runs_to_come(o, built, chain),
    )


def _runs_are_there(command: Command, chain: _Chain) -> Iterator[Line]:
    """Runs that a later command reads: of the chain, or on the disk."""
    for word in command.words[1:] if command.name == "claims" else command.words:
        if word.startswith("-"):
            break
        there = _key(word) in chain.runs or Path(word).exists()
        if not there and "/" in word:
            yield _missing(f"{command.name} {word}", word, chain)


def _missing(whose: str, path: str, chain: _Chain, what: str = "a run") -> Line:
    if Path(path).name in chain.failed:
        return Line("not checked", whose, f"{path} cannot be trained")
    finding = expected(
        what, f"no {path}, and no earlier command of the chain makes it", "name another", of="run"
    )
    return Line("error", whose, str(finding))


def _key(path: Any) -> str:
    return str(Path(path).absolute())


# What later commands need from earlier ones ------------------------------------------------------------------


def _with_runs_to_come(observer: Observer, own: Built, chain: _Chain) -> list[Line]:
    """Give references to runs of the chain the models that these will train; name those that nothing makes."""
    lines: list[Line] = []
    references: Mapping[str, Any] = getattr(observer, "references", None) or {}
    for name, reference in list(references.items()):
        if isinstance(reference, str):  # the observations of another run
            if _key(reference) in chain.runs and not (Path(reference) / "observations").is_dir():
                references.pop(name)  # type: ignore[attr-defined] # a dict of the observer's own
                if _key(reference) not in chain.observed:
                    whose = f"{observer.name}: reference {name}"
                    lines.append(_missing(whose, reference, chain, "observations of a run"))
            continue
        if not isinstance(reference, Checkpoint):
            continue
        made = next((chain.runs[k] for k in (_key(reference.path),) if k in chain.runs), None)
        if made is None:
            continue
        other = made[0]
        ours, theirs = own.tokenizer, other.tokenizer
        if ours is not None and theirs is not None and ours.get_vocab() != theirs.get_vocab():
            finding = expected(
                f"the tokenizer of this run ({len(ours)} tokens) in {reference.path}",
                f"another ({len(theirs)} tokens)",
                "models are compared token by token: give both one, `data.init_args.tokenizer`",
            )
            lines.append(Line("error", f"{observer.name}: reference {name}", str(finding)))
        reference.foresee(Path(reference.path) / "checkpoints" / "to_come.ckpt", other.module)
    return lines
