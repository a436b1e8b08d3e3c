"""The commands of a chain of runs, as Snakemake plans them, and their checks in this order."""

import contextlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from lmdyn.callbacks.conditions.finding import Finding, expected
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.reference import Checkpoint
from lmdyn.callbacks.training.checkpoint import ScheduledCheckpoint
from lmdyn.cli.checking.built import Built, build_observers, prepared_tokenizer
from lmdyn.cli.checking.check import Line, Verdict, check_replay, check_training, failed, tell
from lmdyn.cli.checking.preflight import due

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
    """A command of lmdyn in a chain.

    Attributes:
        name: ``fit``, ``analyze``, ``prepare``, …
        words: its arguments.
        environment: variables that are set before it.
    """

    name: str
    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()

    def option(self, name: str) -> str | None:
        """Return the value of an option; None without it."""
        for word, following in zip(self.words, (*self.words[1:], ""), strict=True):
            if word == name:
                return following
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        return None

    def without(self, *names: str) -> tuple[str, ...]:
        """Return its words without some options and their values."""
        kept: list[str] = []
        words = iter(self.words)
        for word in words:
            if word in names:
                next(words, None)
            elif not word.startswith(tuple(f"{name}=" for name in names)):
                kept.append(word)
        return tuple(kept)


def commands_of(plan: str) -> list[Command]:
    """Return the commands of lmdyn and of Snakemake in shell text, in order.

    Example:
        >>> found = commands_of('( python -m lmdyn.cli fit --config a.yaml $last && lmdyn test --config a.yaml ) > log')
        >>> [(command.name, command.words) for command in found]
        [('fit', ('--config', 'a.yaml')), ('test', ('--config', 'a.yaml'))]
    """
    found = []
    variables = r"((?:[A-Za-z_]\w*=[^\s$]*[ \t]+)*)(?:\S*python[\w.]* -m lmdyn\.cli\.studies\.cards \d+ )?"
    program = r"(?:\S*python[\w.]* -m lmdyn\.cli |(?<![\w./-])lmdyn |\S*python[\w.]* -m (?=snakemake ))"
    for match in re.finditer(variables + program + r"([a-z]+)(?=\s|$)", plan):
        rest = plan[match.end() :].replace("\\\n", " ").partition("\n")[0]
        lexer = shlex.shlex(rest, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        with contextlib.suppress(ValueError):  # an unbalanced quote in the surrounding text
            for word in lexer:
                if set(word) <= set("();<>|&"):
                    break
                words.append(word)
        set_before = tuple((n, v) for n, _, v in (word.partition("=") for word in shlex.split(match[1])))
        found.append(Command(match[2], tuple(w for w in words if "$" not in w), set_before))
    return found


def planned_commands(
    snakefile: str | None, profile: str | None, targets: Sequence[str] = ()
) -> list[Command]:
    """Return all commands that Snakemake would run, first rule to last; a chain within it is expanded too.

    Args:
        snakefile: a file of rules.
        profile: folder of a profile.
        targets: rules or files; default: the first rule.

    Raises:
        ValueError: if Snakemake is not installed, or cannot plan the chain.
    """
    if importlib.util.find_spec("snakemake") is None:
        raise ValueError(
            "--snakefile and --profile require Snakemake, which is not installed: pip install 'lmdyn[workflow]'"
        )
    given = ["--profile", profile] if profile is not None else ["--cores", "1"]
    given += ["--snakefile", snakefile] if snakefile is not None else []
    given += ["--dry-run", "--printshellcmds", "--forceall", "--nolock"]
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *targets, *given],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise ValueError(f"Snakemake cannot plan {profile or snakefile}: {said[-400:]}")
    commands: list[Command] = []
    for command in commands_of(f"{done.stdout}\n{done.stderr}"):
        if command.name == "snakemake":
            within, inner = command.option("--profile"), command.option("--snakefile")
            commands += planned_commands(
                inner, within, command.without("--profile", "--snakefile", "--cores")
            )
        else:
            commands.append(command)
    return commands


@dataclass
class _Chain:
    """Outputs of the earlier commands of a chain.

    Attributes:
        tokenizers: tokenizers by folder.
        runs: by folder, what was built of each run, and its arguments.
        observed: folders of runs that were analyzed.
        failed: by name, the verdict of runs that were not built: ``error`` or ``not checked``.
        checked: distinct trainings that were checked, each with the folder of the first one.
        observed_first: distinct replays that were checked, each with the variables of the first one.
    """

    tokenizers: dict[str, Any] = field(default_factory=dict)
    runs: dict[str, tuple[Built, tuple[str, ...]]] = field(default_factory=dict)
    observed: set[str] = field(default_factory=set)
    failed: dict[str, Verdict] = field(default_factory=dict)
    checked: dict[tuple[Any, ...], str] = field(default_factory=dict)
    observed_first: dict[tuple[Any, ...], tuple[str, Any]] = field(default_factory=dict)


def check_chain(snakefile: str | None, profile: str | None, *, as_json: bool = False) -> bool:
    """Check all commands of a chain, including what later ones need from earlier ones, and write the lines.

    Returns:
        Whether there is no error.

    Raises:
        ValueError: if Snakemake is not installed, or cannot plan the chain.
    """
    chain = _Chain()
    planned = planned_commands(snakefile, profile)
    return tell((line for command in planned for line in _check(command, chain)), as_json=as_json)


def _check(command: Command, chain: _Chain) -> list[Line]:
    checks = {"prepare": _prepare, "fit": _fit, "fork": _fork, "analyze": _analyze}
    checks |= dict.fromkeys(("report", "records", "claims"), _runs_are_there)
    if command.name not in checks:
        return []
    before = dict(os.environ)
    os.environ.update(command.environment)
    try:
        return list(checks[command.name](command, chain))
    finally:
        os.environ.clear()
        os.environ.update(before)


def _prepare(command: Command, chain: _Chain) -> Iterator[Line]:
    folder = command.option("--tokenizer")
    if folder is None:
        return
    whose = f"prepare {folder}"
    try:
        chain.tokenizers[_key(folder)] = made = prepared_tokenizer(command.without("--tokenizer"))
    except Exception as error:
        chain.tokenizers[_key(folder)] = None
        yield failed(whose, error)
        return
    yield Line("ok", whose, f"{len(made):,} tokens")


def _fit(command: Command, chain: _Chain) -> Iterator[Line]:
    words = command.without("--ckpt_path")
    name = command.option("--trainer.logger.init_args.version") or "the run"
    alike = ("fit", *Command("fit", words).without(*_SEEDS))
    yield from _trained(words, f"fit {name}", None, alike, chain)


def _trained(
    words: tuple[str, ...], whose: str, out: str | None, alike: tuple[Any, ...], chain: _Chain
) -> Iterator[Line]:
    """Check a training unless an equal one was checked; ``out`` is its folder if the configuration names none."""
    name = (
        Path(out).name
        if out is not None
        else Command("fit", words).option("--trainer.logger.init_args.version")
    )
    if alike in chain.checked:
        first = chain.checked[alike]
        if first not in chain.runs:
            verdict = chain.failed.setdefault(str(name), chain.failed[first])
            yield Line(verdict, whose, f"as {Path(first).name}, except seeds")
            return
        built, _ = chain.runs[first]
        folder = _key(out) if out is not None else _key(Path(first).with_name(str(name)))
        chain.runs[folder] = built, words
        yield Line("ok", whose, f"as {Path(first).name}, except seeds")
        return
    lines, made = check_training(words, whose, chain.tokenizers)
    yield from lines
    if made is None:
        chain.failed[str(name)] = "error" if any(line.verdict == "error" for line in lines) else "not checked"
        chain.checked[alike] = str(name)
        return
    folder = _key(out if out is not None else made.folder)
    chain.runs[folder] = made, words
    chain.checked[alike] = folder


def _fork(command: Command, chain: _Chain) -> Iterator[Line]:
    """Check the run that is forked, its full checkpoint, and the fork as it would be trained."""
    if not command.words:
        return
    run, out = command.words[0], command.option("--out")
    if out is None:
        yield Line("not checked", f"fork {run}", "the folder of the fork is unknown: give --out")
        return
    whose = f"fork {out}"
    if _key(run) not in chain.runs:
        if not (Path(run) / "config.yaml").is_file():
            chain.failed[Path(out).name] = chain.failed.get(Path(run).name, "error")
            yield _missing(whose, run, chain)
        return
    origin, words = chain.runs[_key(run)]
    first = command.words.index("--set") + 1 if "--set" in command.words else len(command.words)
    changes = takewhile(lambda word: not word.startswith("-"), command.words[first:])
    alike = ("fork", id(origin), *command.without("--out", *_SEEDS)[1:])
    yield from _trained((*words, *(f"--{change}" for change in changes)), whose, out, alike, chain)
    of_epoch, step, epoch = origin.plan.of_epoch, command.option("--step"), command.option("--epoch")
    if step is not None or (epoch is not None and of_epoch is not None):
        at = int(step) if step is not None else int(epoch or 0) * int(of_epoch or 0)
        forked = chain.runs.get(_key(out))
        for finding in _unforkable(origin, forked[0] if forked is not None else None, at, run):
            yield Line("error", whose, str(finding))


def _unforkable(origin: Built, forked: Built | None, at: int, run: str) -> Iterator[Finding]:
    """Yield findings if the run will not keep the checkpoint to be forked, or nothing is left to train."""
    plan = origin.plan
    if forked is not None and forked.plan.updates is not None and forked.plan.updates <= at:
        yield expected(
            f"a training of more than {at:,} updates",
            f"{forked.plan.updates:,}",
            "raise trainer.max_epochs or trainer.max_steps with --set",
            of="run",
        )
    if plan.updates is None:
        return
    kept: set[int] = set()
    for saver in origin.callbacks:
        if isinstance(saver, ScheduledCheckpoint) and not saver.weights_only:
            steps = due(saver.schedule, plan)
            kept |= set(steps if saver.keep is None else steps[-saver.keep :])
    if at not in kept:
        yield expected(
            f"a full checkpoint of step {at} in {run}",
            f"checkpoints of steps {', '.join(map(str, sorted(kept)[-8:]))}"
            if kept
            else "a run that keeps none",
            "add this step to its ScheduledCheckpoint of `weights_only: false`, with a larger `keep`",
            of="run",
        )


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
    if alike in chain.observed_first:
        first, environment = chain.observed_first[alike]
        lines = (
            [] if command.environment == environment else _references_are_there(words, overlays, whose, chain)
        )
        yield from lines or [Line("ok", whose, f"as {first}, except seeds")]
        return
    chain.observed_first[alike] = folder, command.environment
    yield from check_replay(
        built,
        words,
        overlays,
        whose,
        scheduled=scheduled,
        ready=lambda o: _with_runs_to_come(o, built, chain),
    )


def _references_are_there(
    words: Sequence[str], overlays: Sequence[str], whose: str, chain: _Chain
) -> list[Line]:
    """Yield lines about missing runs that observers compare with, if all else was checked with another seed."""
    callbacks = build_observers([*words, *(f"--config={path}" for path in overlays)])
    observers = [c for c in callbacks if isinstance(c, Observer)]
    references = [(o, r) for o in observers for r in (getattr(o, "references", None) or {}).values()]
    named = [(o, r.path if isinstance(r, Checkpoint) else r) for o, r in references]
    return [
        _missing(f"{whose}: {o.name}", os.path.expandvars(str(path)), chain)
        for o, path in named
        if isinstance(path, str) and _key(path) not in chain.runs and not Path(_key(path)).exists()
    ]


def _runs_are_there(command: Command, chain: _Chain) -> Iterator[Line]:
    """Yield lines about missing runs that a later command reads, from the chain or on the disk."""
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
        what, f"no {path}, and no earlier command of the chain makes it", "name another one", of="run"
    )
    return Line("error", whose, str(finding))


def _key(path: Any) -> str:
    return str(Path(os.path.expandvars(str(path))).expanduser().absolute())


# What later commands need from earlier ones ------------------------------------------------------------------


def _with_runs_to_come(observer: Observer, own: Built, chain: _Chain) -> list[Line]:
    """Replace references to runs of the chain by the models to be trained; return lines about runs nobody makes."""
    lines: list[Line] = []
    references: Mapping[str, Any] = getattr(observer, "references", None) or {}
    for name, reference in list(references.items()):
        if isinstance(reference, str):  # the observations of another run
            if _key(reference) in chain.runs and not (Path(reference) / "observations").is_dir():
                references.pop(name)  # type: ignore[attr-defined] # the observer's own dict
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
                "models are compared token by token: use the same tokenizer, `data.init_args.tokenizer`",
            )
            lines.append(Line("error", f"{observer.name}: reference {name}", str(finding)))
        reference.foresee(Path(reference.path) / "checkpoints" / "to_come.ckpt", other.module)
    return lines
