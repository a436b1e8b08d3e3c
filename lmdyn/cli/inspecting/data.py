"""Data for ``lmdyn inspect``: the user's own, or text in the kind of rows that the model reads, as measured."""

import copy
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

import lmdyn.datamodules
from lmdyn.analysis.inspection.attributes import read_attribute
from lmdyn.analysis.inspection.forward import Forward, device_of, dotted
from lmdyn.analysis.inspection.transformer import is_encoder_decoder
from lmdyn.callbacks.observing.module_reading import read_module
from lmdyn.callbacks.observing.probe import ProbeSet
from lmdyn.callbacks.observing.protocols import HasTokenizer, offers
from lmdyn.callbacks.observing.requirements import silently
from lmdyn.callbacks.observing.run import split_loader
from lmdyn.cli.configurations import Config
from lmdyn.cli.inspecting.inspected_model import Subject, check_arguments, instantiate
from lmdyn.cli.inspecting.measures import Reach, measure_reach
from lmdyn.runs.yaml_files import read_yaml

_WORDS = {"n_nouns": 300, "n_verbs": 100, "n_adjectives": 60, "n_adverbs": 30, "n_names": 60, "n_facts": 30}
_GRAMMAR = {"n_train_tokens": 20_000, "n_validation_tokens": 4_000, "n_test_tokens": 4_000, **_WORDS}


@dataclass(frozen=True)
class Data:
    """The data shown to the model.

    Attributes:
        data: a datamodule after setup, or a list of batches.
        probe: the part of it that is inspected, which the model reads.
        tokenizer: the model's own, otherwise that of the data.
        says: description for the page.
        entry: its entry in a configuration; None for random ids.
        own: whether the user gave it.
    """

    data: Any
    probe: ProbeSet
    tokenizer: Any
    says: str
    entry: Config | None
    own: bool


def find_data(
    given: str | None, subject: Subject, arguments: Sequence[str] = (), forward: Forward | None = None
) -> Data:
    """Open the given data, the configuration's data, or data that the model can read; complete the model.

    Afterwards, a module that builds its layers from the data has them.

    Args:
        given: a yaml with ``data``, a text file, ``package.Class`` of a datamodule, or None.
        subject: the model.
        arguments: ``--data.ARG VALUE …``.
        forward: function that calls the model.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if the name is not that of data, a text is empty, or the model cannot read the data.
    """
    own = given is not None or bool(subject.configuration.get("data"))
    entries, says = _entries(given, subject, forward)
    problem: Exception | None = None
    unbuilt = None if _is_built(subject.module) else copy.deepcopy(subject.module)
    for entry in entries:
        try:
            if unbuilt is not None:  # the previous entry may have built layers that do not fit
                subject.module = copy.deepcopy(unbuilt)
            entry, datamodule = _opened(entry, subject, arguments)
            about = says.format(type(datamodule).__name__)
            if not own and is_encoder_decoder(subject.module):
                about += "; the decoder writes the next words of the encoder's text"
            return _read(datamodule, subject, forward, about, entry, own=own)
        except (ValueError, RuntimeError) as error:
            problem = problem or error
    if own and problem is not None:
        raise problem
    reach = measure_reach(subject.module, forward)
    why = f" ({' '.join(str(problem).split())})" if problem is not None else ""
    about = f"no --data given: random ids below {reach.vocabulary}, no text{why}"
    return _read(_random_batches(reach, subject), subject, forward, about, None, own=False)


def _read(
    data: Any,
    subject: Subject,
    forward: Forward | None,
    says: str,
    entry: Config | None,
    *,
    own: bool,
) -> Data:
    """Return data that the model reads; raise a ValueError if it does not."""
    loader, problem = None, None
    for split in ("validation", "train", "test"):
        try:
            loader = split_loader(data, split, "inspect", chosen=False)
            break
        except ValueError as error:
            problem = problem or error
    if loader is None:
        why = f"{type(data).__name__} has no data to inspect: expected val_dataloader()"
        raise ValueError(why) from problem
    probe = ProbeSet(loader)
    tokenizer = subject.tokenizer if subject.tokenizer is not None else read_attribute(data, "tokenizer")
    asked: Config = {"labels": "aligned", "uses_labels": None, "kind": None, "one_pass": True}
    with silently():
        read_module(subject.module, probe, forward, tokenizer, whose=subject.name, **asked)
    return Data(data, probe, tokenizer, says, entry, own)


def _entries(given: str | None, subject: Subject, forward: Forward | None) -> tuple[list[Config], str]:
    """Return the entries of a configuration to try in order, and their description."""
    if given is None:
        if entry := subject.configuration.get("data"):
            return [entry], f"{{}} of {subject.name}"
        says = "no --data given: {}, a synthetic grammar with gold tags; --data FILE reads your own text, without tags"
        return _texts("GrammarCorpus", None, subject, forward), says
    path = Path(given).expanduser()
    if path.suffix in (".yaml", ".yml"):
        content = read_yaml(path)
        entry = content.get("data") if isinstance(content, Mapping) else None
        if not entry:
            raise ValueError(
                f"--data {given} has no `data:`: expected `data: {{class_path: …, init_args: …}}`"
            )
        return [entry], f"{{}} of {given}"
    if path.is_file():
        if not path.read_bytes()[:1_000_000].split():
            raise ValueError(f"--data {given} is empty: expected a file with text")
        return _texts("TextCorpus", path, subject, forward), f"{{}} of the text {given}"
    name = f"lmdyn.datamodules.{given}" if given in lmdyn.datamodules.__all__ else given
    expected = "expected a text file, a yaml with `data:`, or package.Class of a LightningDataModule"
    if path.is_dir():
        raise ValueError(f"--data {given} is a folder: {expected}")
    if "." not in name or importlib.util.find_spec(name.partition(".")[0]) is None:
        neither = f"neither a file nor a package {given.partition('.')[0]!r} exists"
        raise FileNotFoundError(f"--data {given}: {neither}: {expected}")
    cls = dotted(name)
    if not isinstance(cls, type) or not issubclass(cls, L.LightningDataModule):
        raise ValueError(f"--data {given} is not a LightningDataModule: {expected}")
    return [{"class_path": name}], given


def _texts(name: str, path: Path | None, subject: Subject, forward: Forward | None) -> list[Config]:
    """Return entries of a corpus in the rows that the model reads; if its layers are not built yet, of all kinds."""
    tokenizer = subject.tokenizer
    reach = measure_reach(subject.module, forward) if _is_built(subject.module) else None
    words = 20_000 if path is None else len(path.read_bytes()[:1_000_000].split())
    length = min(reach.length if reach else 32, max(4, words // 10))
    rows = {"batch_size": max(1, min(8, words // length)), "sequence_length": length}
    init: Config = {**rows, **(_GRAMMAR if path is None else {})}
    if path is not None:  # all of it is observed; for analyze, nothing is trained on it
        if tokenizer is None or subject.kind not in ("run", "pretrained"):
            init["train"] = str(path)
        init |= {"validation": str(path), "lowercase": False, "drop_rare_sentences": False}
    if tokenizer is not None:
        of_run = Path(subject.name) / "tokenizer"
        init["tokenizer"] = str(of_run if subject.kind == "run" else subject.folder or subject.name)
        if tokenizer.eos_token_id is None and tokenizer.sep_token_id is None:
            init["eos"] = False
    elif reach is not None:
        init |= {"vocabulary": "wordpiece", "vocab_size": min(reach.vocabulary, 8000)}

    def entry(name: str, **arguments: Any) -> Config:
        return {"class_path": f"lmdyn.datamodules.{name}", "init_args": arguments}

    # published models may not have learned to predict an end token after each document
    found = [entry(name, **(init | ({"eos": False} if subject.kind == "pretrained" else {})))]
    if reach is not None and (not reach.bidirectional or is_encoder_decoder(subject.module)):
        return found
    pieces = entry(name, **(init | ({} if reach else {"vocabulary": "wordpiece"})))
    objectives = ("masked",) if reach else ("masked", "cloze")
    of_pieces = [entry("PretrainingCorpus", corpus=pieces, objective=o, **rows) for o in objectives]
    return of_pieces if reach else [*found, *of_pieces]


def _opened(
    entry: Config, subject: Subject, arguments: Sequence[str]
) -> tuple[Config, L.LightningDataModule]:
    """Return the datamodule after setup, with the model's tokenizer; the model then has all its layers."""
    path = str(entry.get("class_path"))
    cls = dotted(path) if "." in path else None
    if isinstance(cls, type) and not entry.get("init_args"):
        check_arguments(path, cls, arguments, "data")
    entries, made = instantiate({"data": entry}, arguments)
    data, module = made["data"], subject.module
    if subject.tokenizer is not None and offers(data, HasTokenizer):
        data.tokenizer = subject.tokenizer
    data.prepare_data()
    data.setup("fit")
    if isinstance(module, L.LightningModule):  # as at the start of training
        device = device_of(module)
        if module._trainer is None:
            with silently(logging.WARNING):  # it logs about devices
                module.trainer = L.Trainer(
                    accelerator="cpu",
                    devices=1,
                    logger=False,
                    enable_checkpointing=False,
                    enable_progress_bar=False,
                    enable_model_summary=False,
                )
        module.trainer.datamodule = data  # type: ignore[attr-defined] # set by its loops
        module.configure_model()
        module.to(device)
    return entries["data"], data


def _is_built(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _random_batches(reach: Reach, subject: Subject) -> list[dict[str, Tensor]]:
    """Return two batches of random ids; labels are the next ids, or for bidirectional models those of masked places."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(2):
        ids = torch.randint(0, reach.vocabulary, (8, reach.length + 1), generator=generator)
        if not reach.bidirectional:
            batches.append({"input_ids": ids[:, :-1], "labels": ids[:, 1:]})
            continue
        ids = ids[:, 1:]
        mask = getattr(subject.tokenizer, "mask_token_id", None)
        hidden = torch.rand(ids.shape, generator=generator) < 0.15
        shown = ids.masked_fill(hidden, reach.vocabulary - 1 if mask is None else int(mask))
        batches.append({"input_ids": shown, "labels": ids.masked_fill(~hidden, -100)})
    return batches
