"""Finding the model of a given name for ``lmdyn inspect``."""

import importlib.util
import inspect
import json
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jsonargparse
import lightning as L
from torch.nn import Module
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerFast

# imported so that yaml can name their classes without module paths
import lmdyn.callbacks
import lmdyn.datamodules
import lmdyn.models
from lmdyn.analysis.inspection.attributes import did_you_mean
from lmdyn.analysis.inspection.forward import dotted
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.requirements import silently
from lmdyn.callbacks.training.resume import read_tokenizer
from lmdyn.cli.configurations import Config, callback_entries, complete_model
from lmdyn.cli.parsing.lightning_parser import essence
from lmdyn.cli.recorded_observers import observers_among
from lmdyn.cli.trust.folders import check_folder
from lmdyn.datamodules.corpora.tokenization import check_growth
from lmdyn.models.pretrained import check_size, hub_folder, load_model, objective_of
from lmdyn.runs.checkpoint_files import checkpoint_folders, load_weights, newest_checkpoint, read_checkpoint
from lmdyn.runs.hub_checkpoints import MODULE as PRETRAINED
from lmdyn.runs.hub_checkpoints import is_pretrained
from lmdyn.runs.yaml_files import read_yaml

Kind = Literal["configuration", "run", "pretrained", "class"]


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
    module: Module
    model: Config | None = None
    configuration: Config = field(default_factory=dict)
    tokenizer: Any = None
    observers: list[Observer] = field(default_factory=list)
    weights: str = "untrained"
    folder: Path | None = None


def find_subject(name: str, arguments: Sequence[str] = ()) -> Subject:
    """Find the model of a name.

    Args:
        name: yaml, run folder, checkpoint of a run, folder or hub name of transformers, ``package.Class``, or a class
            of ``lmdyn.models``.
        arguments: ``--model.ARG=VALUE …``, which override those of a configuration.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if nothing has this name, a yaml has no ``model``, or a class requires arguments.
    """
    path = Path(name).expanduser()
    check_folder(path)
    if path.suffix == ".ckpt":
        if not path.is_file():
            raise FileNotFoundError(f"checkpoint {path} does not exist: check the path")
        for folder in list(path.absolute().parents)[:3]:
            if (folder / "config.yaml").is_file():
                return _of_run(folder, arguments, path)
        raise ValueError(
            f"the three folders above {path} contain no config.yaml: expected RUN/checkpoints/….ckpt of `lmdyn fit`"
        )
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return _of_yaml(path, arguments)
    if (path / "config.yaml").is_file():
        return _of_run(path, arguments)
    if is_pretrained(path) or checkpoint_folders(path):
        return _of_transformers(name, path, arguments)
    if path.is_dir():
        models = sorted(p for p in path.glob("*/") if is_pretrained(p))
        raise ValueError(
            f"{name} is neither a run folder (with a config.yaml) nor a model of transformers (with a config.json, as "
            "written by save_pretrained, or checkpoint-*/): give "
            + (f"a model, such as {models[0]}" if models else "a run, a model, a yaml or package.Class")
        )
    dotted_path = f"lmdyn.models.{name}" if name in lmdyn.models.__all__ else name
    package, *rest = dotted_path.split(".")
    if rest and all(part.isidentifier() for part in (package, *rest)):
        if importlib.util.find_spec(package) is None:
            raise ValueError(
                f"{name!r}: Python finds no package {package!r}. Run the command in the folder that contains "
                f"{package}.py, or install the package. Name a model of the hub as ORGANISATION/MODEL"
            )
        return _of_class(dotted_path, arguments)
    if name.isidentifier() and (near := did_you_mean(name, lmdyn.models.__all__)):
        raise ValueError(f"unknown model {name}{near} Name a model of the hub as ORGANISATION/MODEL")
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise FileNotFoundError(f"file or folder {name} does not exist: expected a yaml, a run or a model")
    return _of_transformers(name, None, arguments)


# Kinds of models --------------------------------------------------------------------------------------------


def _of_yaml(path: Path, arguments: Sequence[str]) -> Subject:
    if path.suffix not in (".yaml", ".yml"):
        raise ValueError(f"{path} is not a yaml with a model: give a model. For a text, add --data {path}")
    configuration = _read_with_model(path)
    module, observers, model = _configured(configuration, arguments)
    says = f"{type(module).__name__} of {path}"
    return Subject("configuration", str(path), says, module, model, configuration, observers=observers)


def _of_run(path: Path, arguments: Sequence[str], checkpoint: Path | None = None) -> Subject:
    configuration = _read_with_model(path / "config.yaml")
    weights, state = "untrained: the run has no checkpoint", None
    with suppress(FileNotFoundError):
        checkpoint = checkpoint or newest_checkpoint(str(path))
    if checkpoint is not None:
        weights = f"of {checkpoint}"
        state = read_checkpoint(checkpoint)
        complete_model(configuration, state)
    module, observers, model = _configured(configuration, arguments)
    if isinstance(module, L.LightningModule) and checkpoint is not None and state is not None:
        module.configure_model()
        load_weights(module, state["state_dict"], checkpoint)
    tokenizer = read_tokenizer(path / "tokenizer")
    check_growth(tokenizer)
    says = f"{type(module).__name__} of the run {path}"
    return Subject("run", str(path), says, module, model, configuration, tokenizer, observers, weights, path)


def _read_with_model(path: Path) -> Config:
    configuration = read_yaml(path)
    if isinstance(configuration, dict) and configuration.get("model"):
        return configuration
    has = sorted(map(str, {*configuration} - {"model"})) if isinstance(configuration, dict) else []
    raise ValueError(
        f"{path}: expected `model: {{class_path: …, init_args: …}}`, got {', '.join(has) or 'no entries'}. Give a yaml "
        "with `model:`, and data with --data"
    )


def _configured(configuration: Config, arguments: Sequence[str]) -> tuple[Module, list[Observer], Config]:
    """Return model and observers of a configuration, and the model's entry with all given arguments."""
    callbacks = callback_entries(configuration) or callback_entries(configuration, "callbacks+")
    observers, _ = observers_among(callbacks)
    entries, made = instantiate({"model": configuration["model"], "observers": observers}, arguments)
    return made["model"], list(made["observers"] or []), entries["model"]


def _of_transformers(name: str, path: Path | None, arguments: Sequence[str]) -> Subject:
    folder = hub_folder(name, dict(_pairs(arguments, "model")).get("revision")) if path is None else path
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
    place = None if path is None else folder
    if objective_of(architecture) is None and getattr(config, "is_encoder_decoder", False):
        module = load_model(AutoModelForSeq2SeqLM, folder, name)
        entry = None
        place = folder
    else:
        located = {"class_path": PRETRAINED, "init_args": {"name": name if place is None else str(place)}}
        entries, made = instantiate({"model": located}, arguments)
        module = made["model"]
        entry = entries["model"]
        folder = made["model"].folder
    tokenizer = None
    if any((folder / file).is_file() for file in ("tokenizer.json", "vocab.txt", "vocab.json")):
        tokenizer = read_tokenizer(folder)
        check_growth(tokenizer)
    fast = tokenizer if isinstance(tokenizer, PreTrainedTokenizerFast) else None
    says = f"transformers' {architecture}, of {name}"
    return Subject("pretrained", name, says, module, entry, {}, fast, [], "as saved", place)


def _of_class(path: str, arguments: Sequence[str]) -> Subject:
    package, _, name = path.rpartition(".")
    try:
        cls: Any = dotted(path)
    except ValueError as error:
        there = vars(sys.modules[package]) if package in sys.modules else {}
        models = [n for n, found in there.items() if isinstance(found, type) and issubclass(found, Module)]
        raise ValueError(f"{error}{did_you_mean(name, models)}") from error
    if isinstance(cls, type) and issubclass(cls, L.LightningDataModule):
        raise ValueError(f"{path} is a LightningDataModule: give a model, and then --data {path}")
    if not isinstance(cls, type) or not issubclass(cls, Module):
        raise ValueError(f"{path} is not a model: expected a subclass of LightningModule or torch.nn.Module")
    if not issubclass(cls, PreTrainedModel):
        check_arguments(path, cls, arguments, "model")
        entries, made = instantiate({"model": path}, arguments)
        return Subject("class", path, path, made["model"], entries["model"])
    configuration: Any = cls.config_class
    config = configuration(**{key: _plain(value) for key, value in _pairs(arguments, "model")})
    check_size(config, path, lambda: cls(config))
    return Subject("class", path, f"{path}, untrained", cls(config))


def check_arguments(path: str, cls: type, arguments: Sequence[str], key: str) -> None:
    """Refuse a class that requires more arguments than given; for untyped ones, jsonargparse would pass None."""
    given = {name.partition(".")[0] for name, _ in _pairs(arguments, key)}
    own = list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc] # its own
    named = [p for p in own if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in given]
    if needed := [p for p in named if p.default is p.empty]:
        options = " ".join(f"--{key}.{p.name} VALUE" for p in needed)
        raise ValueError(f"{path} requires ({', '.join(map(str, needed))}): give {options}")


# Parsing ----------------------------------------------------------------------------------------------------


def instantiate(entries: Config, arguments: Sequence[str] = ()) -> tuple[Config, Config]:
    """Parse and instantiate ``model``, ``data`` and ``observers`` as ``fit`` does.

    Args:
        entries: class path or configuration entry of each of these names.
        arguments: ``--model.ARG=VALUE …``, which override the entries.

    Returns:
        The entries with the arguments of the command line, as plain values; and the objects.

    Raises:
        ValueError: if jsonargparse refuses them; the message is one line.
    """
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    types: Config = {"model": Module, "data": L.LightningDataModule}
    words: list[str] = []
    for key, entry in entries.items():
        if key == "observers":
            parser.add_argument("--observers", type=list[L.Callback])
        else:
            parser.add_subclass_arguments(types[key], key, fail_untyped=False)  # as in LightningCLI
        words += [f"--{key}", entry if isinstance(entry, str) else json.dumps(entry)]
        words += [f"--{key}.{name}={value}" for name, value in _pairs(arguments, key)]
    try:
        with silently(logging.WARNING):
            config = parser.parse_args(words)
            parsed = json.loads(parser.dump(config, format="json"))
            made = parser.instantiate_classes(config)
    except jsonargparse.ArgumentError as error:
        raise ValueError(essence(str(error))) from error
    whole = {key: _with_given(entry, parsed[key], _pairs(arguments, key)) for key, entry in entries.items()}
    return whole, {key: made.get(key) for key in entries}


def _with_given(entry: Any, parsed: Any, given: Sequence[tuple[str, str]]) -> Any:
    """Return an entry of a configuration with the arguments given for it."""
    if isinstance(entry, list):
        return entry
    names = dict.fromkeys(name.partition(".")[0] for name, _ in given)
    values = {name: parsed["init_args"].get(name) for name in names}
    of_entry: Config = {"class_path": entry} if isinstance(entry, str) else entry
    init = {**(of_entry.get("init_args") or {}), **values}
    return {**of_entry, **({"init_args": init} if init else {})}


def _pairs(arguments: Sequence[str], key: str) -> list[tuple[str, str]]:
    """Return the words ``--key.ARG=VALUE`` as pairs, among those of other classes."""
    own = (word.partition("=") for word in arguments if word.startswith(f"--{key}."))
    return [(name.removeprefix(f"--{key}.").removeprefix("init_args."), value) for name, _, value in own]


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
