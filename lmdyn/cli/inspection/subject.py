"""Finding the model of a given name for ``lmdyn inspect``."""

import importlib.util
import inspect
import json
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Literal

import jsonargparse
import lightning as L
import torch
from jsonargparse import ArgumentError, ArgumentParser
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

# imported so that yaml can name their classes without module paths
import lmdyn.callbacks
import lmdyn.datamodules
import lmdyn.models
from lmdyn.analysis.inspection.attributes import did_you_mean
from lmdyn.analysis.inspection.forward import dotted
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.requirements import silently
from lmdyn.callbacks.training.checkpoint_files import load_weights, newest_checkpoint, read_checkpoint
from lmdyn.callbacks.training.hub_checkpoints import MODULE as PRETRAINED
from lmdyn.callbacks.training.hub_checkpoints import is_pretrained
from lmdyn.callbacks.training.resume import read_tokenizer
from lmdyn.cli.configurations import read_yaml
from lmdyn.cli.parser import essence
from lmdyn.models.pretrained import hub_folder, load_model, objective_of

__all__ = ["Kind", "Subject", "check_arguments", "find_subject", "instantiate"]

log = logging.getLogger(__name__)

Kind = Literal["configuration", "run", "pretrained", "class"]

_MOST_PARAMETERS = 2_000_000_000


@dataclass
class Subject:
    """A model and where it came from.

    Attributes:
        kind: a yaml; a run's folder; a folder or hub name of transformers; a class.
        name: the name that was given.
        says: description for the page.
        module: the model; it may lack layers that it builds from data.
        model: its entry in a configuration; None if ``fit`` and ``analyze`` cannot build it.
        configuration: that of the yaml or the run; empty for other kinds.
        tokenizer: the tokenizer next to its weights; None without one.
        observers: observers of the configuration.
        weights: which weights these are, for the page.
        folder: folder of the run or the model.
    """

    kind: Kind
    name: str
    says: str
    module: nn.Module
    model: dict[str, Any] | None = None
    configuration: dict[str, Any] = field(default_factory=dict)
    tokenizer: Any = None
    observers: list[Observer] = field(default_factory=list)
    weights: str = "untrained"
    folder: Path | None = None


def find_subject(name: str, arguments: Sequence[str] = ()) -> Subject:
    """Find the model of a name.

    Args:
        name: yaml, run folder, checkpoint of a run, folder or hub name of transformers, ``package.Class``, or a class
            of ``lmdyn.models``.
        arguments: ``--model.ARG VALUE …``, which override those of a configuration.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if nothing has this name, a yaml has no ``model``, or a class requires arguments.
    """
    path = Path(name).expanduser()
    if path.suffix == ".ckpt":
        return _of_checkpoint(path, arguments)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return _of_yaml(path, arguments)
    if path.is_dir():
        if (path / "config.yaml").is_file():
            return _of_run(path, arguments)
        if is_pretrained(path) or any(p.is_dir() for p in path.glob("checkpoint-*")):
            return _of_transformers(name, path, arguments)
        models = sorted(p for p in path.glob("*/") if is_pretrained(p))
        raise ValueError(
            f"{name} is neither a run folder (with a config.yaml) nor a model of transformers (with a config.json, as "
            "written by save_pretrained, or checkpoint-*/): give "
            + (f"one of its models, {models[0]}" if models else "such a folder, a yaml or package.Class")
        )
    if name in lmdyn.models.__all__:
        return _of_class(f"lmdyn.models.{name}", arguments)
    parts = name.split(".")
    if len(parts) > 1 and all(part.isidentifier() for part in parts):
        if importlib.util.find_spec(parts[0]) is None:
            raise ValueError(
                f"{name!r}: no package {parts[0]!r} to import: run the command in the folder that contains "
                f"{parts[0]}.py, or install the package; a model of the hub is named as ORGANISATION/MODEL"
            )
        return _of_class(name, arguments)
    if name.isidentifier() and (near := did_you_mean(name, lmdyn.models.__all__)):
        raise ValueError(f"unknown model {name}{near}; a model of the hub is named as ORGANISATION/MODEL")
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise FileNotFoundError(
            f"file or folder {name} does not exist: expected a yaml, a run, or a model's folder"
        )
    return _of_transformers(name, None, arguments)


# Kinds of models --------------------------------------------------------------------------------------------


def _of_yaml(path: Path, arguments: Sequence[str]) -> Subject:
    if not path.is_file():
        raise FileNotFoundError(f"file {path} does not exist")
    if path.suffix not in (".yaml", ".yml"):
        raise ValueError(f"{path} is not a yaml with a model: expected one; give a text as --data {path}")
    configuration = read_yaml(path)
    if not isinstance(configuration, dict) or not configuration.get("model"):
        has = sorted(configuration) if isinstance(configuration, dict) else "no entries"
        raise ValueError(
            f"{path} has no model, only {has}: expected `model: {{class_path: …, init_args: …}}`; give data and "
            "observers alone with --data"
        )
    module, observers, model = _configured(configuration, arguments)
    says = f"{type(module).__name__} of {path}"
    return Subject("configuration", str(path), says, module, model, configuration, observers=observers)


def _of_checkpoint(path: Path, arguments: Sequence[str]) -> Subject:
    if not path.is_file():
        raise FileNotFoundError(f"checkpoint {path} does not exist")
    for folder in list(path.absolute().parents)[:3]:
        if (folder / "config.yaml").is_file():
            return _of_run(folder, arguments, path)
    raise ValueError(
        f"{path}: no config.yaml in the folders above it: expected RUN/checkpoints/….ckpt, as written by `fit`"
    )


def _of_run(path: Path, arguments: Sequence[str], checkpoint: Path | None = None) -> Subject:
    configuration = read_yaml(path / "config.yaml")
    if not isinstance(configuration, dict) or not configuration.get("model"):
        raise ValueError(f"{path / 'config.yaml'} has no model: expected a run folder written by `fit`")
    weights, state = "untrained: the run has no checkpoint", None
    try:
        found = checkpoint or newest_checkpoint(str(path))
    except FileNotFoundError:
        pass
    else:
        state = read_checkpoint(found)
        weights = f"of {found}"
        saved = state.get("hyper_parameters", {})
        given = configuration["model"].setdefault("init_args", {})
        # values found in training, such as the vocabulary size; only numbers, as strings could name classes
        given |= {
            k: saved[k] for k, v in given.items() if v is None and isinstance(saved.get(k), (int, float))
        }
    module, observers, model = _configured(configuration, arguments)
    if isinstance(module, L.LightningModule) and state is not None:
        module.configure_model()
        load_weights(module, state["state_dict"], found)
    tokenizer = read_tokenizer(path / "tokenizer")
    says = f"{type(module).__name__} of the run {path}"
    return Subject("run", str(path), says, module, model, configuration, tokenizer, observers, weights, path)


def _of_transformers(name: str, path: Path | None, arguments: Sequence[str]) -> Subject:
    revision = _given(arguments, "revision")
    folder = hub_folder(name, revision) if path is None else path
    if not is_pretrained(folder):
        folder = newest_checkpoint(str(folder))
    try:
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # OSError, ValueError or KeyError, depending on the file's content
        raise ValueError(
            f"{name} is not a model known to transformers ({' '.join(str(error).split())}): expected a config.json "
            "written by save_pretrained"
        ) from error
    architecture = (getattr(config, "architectures", None) or ["model without a name"])[0]
    says = f"transformers' {architecture}, of {name}"
    if objective_of(architecture) is None and getattr(config, "is_encoder_decoder", False):
        module = load_model(AutoModelForSeq2SeqLM, folder, name)
        tokenizer = _tokenizer_of(folder)
        return Subject(
            "pretrained", name, says, module, None, {}, tokenizer, weights="as saved", folder=folder
        )
    located = {"name": str(folder) if path is not None else name}
    entry = {"class_path": PRETRAINED, "init_args": located}
    parsed, made = instantiate({"model": entry}, arguments)
    return Subject(
        "pretrained", name, says, made["model"], parsed["model"], {}, _tokenizer_of(made["model"].folder),
        weights="as saved", folder=folder if path is not None else None,
    )  # fmt: skip


def _tokenizer_of(folder: Path) -> Any:
    """Return the fast tokenizer next to the weights; None without one."""
    if not any((folder / file).is_file() for file in ("tokenizer.json", "vocab.txt", "vocab.json")):
        return None
    tokenizer = read_tokenizer(folder)
    return tokenizer if isinstance(tokenizer, PreTrainedTokenizerFast) else None


def _of_class(path: str, arguments: Sequence[str]) -> Subject:
    cls = _found_class(path)
    if not isinstance(cls, type) or not issubclass(cls, nn.Module):
        if isinstance(cls, type) and issubclass(cls, L.LightningDataModule):
            raise ValueError(f"{path} is a LightningDataModule: give it as --data {path}, after a model")
        raise ValueError(f"{path} is not a model: expected a class of a LightningModule or another nn.Module")
    if issubclass(cls, PreTrainedModel):
        return _of_pretrained_class(path, cls, arguments)
    check_arguments(path, cls, arguments, "model")
    parsed, made = instantiate({"model": path}, arguments)
    return Subject("class", path, path, made["model"], parsed["model"])


def _found_class(path: str) -> Any:
    package, _, name = path.rpartition(".")
    try:
        return dotted(path)
    except ValueError as error:
        there = vars(sys.modules[package]) if package in sys.modules else {}
        models = [n for n, found in there.items() if isinstance(found, type) and issubclass(found, nn.Module)]
        raise ValueError(f"{error}{did_you_mean(name, models)}") from error


def _of_pretrained_class(path: str, cls: Any, arguments: Sequence[str]) -> Subject:
    """Build the model of a class of transformers, with arguments of its configuration."""
    given = {key: _plain(value) for key, value in _pairs(arguments, "model")}
    config = cls.config_class(**given)
    with torch.device("meta"):
        size = sum(p.numel() for p in cls(config).parameters())
    if size > _MOST_PARAMETERS:
        raise ValueError(
            f"{path} has {size:,} parameters by default: make it smaller, --model.num_hidden_layers 2 "
            "--model.hidden_size 64, or give a folder written by save_pretrained"
        )
    return Subject("class", path, f"{path}, untrained", cls(config))


def check_arguments(path: str, cls: type, arguments: Sequence[str], key: str) -> None:
    """Refuse a class whose constructor requires more arguments than given; the message is one sentence."""
    given = {name.partition(".")[0] for name, _ in _pairs(arguments, key)}
    parameters = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc] # may be the class's own
    needed = [
        p
        for p in list(parameters)[1:]
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        and p.name not in given
    ]
    if not needed:
        return
    words = [p.name + ("" if p.annotation is p.empty else f" ({_type_name(p.annotation)})") for p in needed]
    example = " ".join(f"--{key}.{_example(p)}" for p in needed)
    raise ValueError(
        f"{path} requires {', '.join(words)}: give {'it' if len(needed) == 1 else 'them'}, {example}"
    )


def _type_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else re.sub(r"\w+\.", "", str(annotation))


def _example(parameter: inspect.Parameter) -> str:
    """Return an example ``ARG VALUE``; for an argument that is a class of settings, its first setting."""
    annotation = parameter.annotation
    if isinstance(annotation, type) and annotation.__module__ != "builtins":
        inner = [n for n in inspect.signature(annotation).parameters if n not in ("args", "kwargs")]
        if inner:
            return f"{parameter.name}.{inner[0]} VALUE"
    return f"{parameter.name} VALUE"


# Parsing ----------------------------------------------------------------------------------------------------


def _configured(
    configuration: Mapping[str, Any], arguments: Sequence[str]
) -> tuple[nn.Module, list[Observer], dict[str, Any]]:
    """Return model and observers of a configuration, and the model's entry with all given arguments."""
    trainer = configuration.get("trainer") or {}
    callbacks = trainer.get("callbacks") or trainer.get("callbacks+") or []
    listed = [callbacks] if isinstance(callbacks, Mapping) else list(callbacks)
    observers = [c for c in listed if _is_observer(c)]
    parsed, made = instantiate({"model": configuration["model"], "observers": observers}, arguments)
    entry = parsed["model"] if arguments else configuration["model"]
    return made["model"], list(made.get("observers") or []), entry


def _is_observer(entry: Any) -> bool:
    path = str(entry.get("class_path") if isinstance(entry, Mapping) else entry)
    cls = vars(lmdyn.callbacks).get(path) if "." not in path else dotted(path)
    return isinstance(cls, type) and issubclass(cls, Observer)


def instantiate(
    entries: Mapping[str, Any], arguments: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse and instantiate ``model``, ``data`` and ``observers`` as ``fit`` does.

    Args:
        entries: class path or configuration entry of each of these names.
        arguments: ``--model.ARG VALUE …``, which override the entries.

    Returns:
        The entries with the arguments of the command line, as plain values; and the objects.

    Raises:
        ValueError: if jsonargparse refuses them; the message is one line.
    """
    parser = ArgumentParser(exit_on_error=False)
    types: dict[str, Any] = {"model": nn.Module, "data": L.LightningDataModule}
    words: list[str] = []
    for key, entry in entries.items():
        if key == "observers":
            parser.add_argument("--observers", type=list[L.Callback])
        else:
            parser.add_subclass_arguments(types[key], key, fail_untyped=False)  # as in LightningCLI
        words += [f"--{key}", entry if isinstance(entry, str) else json.dumps(entry)]
    try:
        with silently(logging.WARNING):
            config = parser.parse_args([*words, *arguments])
            plain = json.loads(parser.dump(config, format="json", skip_default=True))
            made = parser.instantiate_classes(config)
    except (ArgumentError, jsonargparse.ArgumentError) as error:
        raise ValueError(essence(str(error))) from error
    return {key: _essential(value) for key, value in plain.items()}, {key: made.get(key) for key in entries}


def _essential(value: Any) -> Any:
    """Return an entry of a configuration without arguments that equal the class's defaults."""
    if isinstance(value, list):
        return [_essential(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "class_path" not in value:
        return {key: _essential(item) for key, item in value.items()}
    parameters = inspect.signature(dotted(value["class_path"])).parameters
    defaults = {name: p.default for name, p in parameters.items()} | _inherited(dotted(value["class_path"]))
    given = value.get("init_args") or {}
    kept = {k: _essential(v) for k, v in given.items() if k not in defaults or _listed(defaults[k]) != v}
    return {"class_path": value["class_path"], **({"init_args": kept} if kept else {})}


def _inherited(cls: Any) -> dict[str, Any]:
    """Return defaults of the arguments that a class passes to its bases as ``**kwargs``."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__[1:] if isinstance(cls, type) else ()):
        if "__init__" in vars(base):
            found |= {n: p.default for n, p in inspect.signature(vars(base)["__init__"]).parameters.items()}
    return found


def _listed(value: Any) -> Any:
    """Return a default as a configuration writes it."""
    if is_dataclass(value) and not isinstance(value, type):
        return {key: _listed(item) for key, item in asdict(value).items()}
    return [_listed(item) for item in value] if isinstance(value, (tuple, list)) else value


def _pairs(arguments: Sequence[str], key: str) -> list[tuple[str, str]]:
    """Return ``--key.ARG VALUE`` and ``--key.ARG=VALUE`` as pairs."""
    found: list[tuple[str, str]] = []
    words = iter(arguments)
    for word in words:
        if not word.startswith(f"--{key}."):
            continue
        name, sign, value = word.removeprefix(f"--{key}.").removeprefix("init_args.").partition("=")
        found.append((name, value if sign else next(words, "")))
    return found


def _given(arguments: Sequence[str], name: str) -> str | None:
    return dict(_pairs(arguments, "model")).get(name)


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
