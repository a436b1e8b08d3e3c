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
from lmdyn.analysis.inspection.forward import Forward, dotted
from lmdyn.analysis.inspection.transformer import is_encoder_decoder
from lmdyn.callbacks.observing.protocols import HasTokenizer, offers
from lmdyn.callbacks.observing.requirements import silently
from lmdyn.cli.configurations import read_yaml
from lmdyn.cli.inspection.measures import Reach, input_rows, measure_reach
from lmdyn.cli.inspection.subject import Subject, check_arguments, instantiate

__all__ = ["Data", "find_data", "random_batches"]

log = logging.getLogger(__name__)

_WORDS = {"n_nouns": 300, "n_verbs": 100, "n_adjectives": 60, "n_adverbs": 30, "n_names": 60, "n_facts": 30}
_GRAMMAR = {"n_train_tokens": 20_000, "n_validation_tokens": 4_000, "n_test_tokens": 4_000, **_WORDS}


@dataclass(frozen=True)
class Data:
    """The data shown to the model.

    Attributes:
        data: a datamodule after setup, or a list of batches.
        says: description for the page.
        entry: its entry in a configuration; None for random ids.
        own: whether the user gave it.
    """

    data: Any
    says: str
    entry: dict[str, Any] | None
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
        ValueError: if the name is not that of data, a text is empty, or the tokenizer has more types than the model.
    """
    own = given is not None or bool(subject.configuration.get("data"))
    entries, says = _entries(given, subject, forward)
    problem: Exception | None = None
    unbuilt = None if any(True for _ in subject.module.parameters()) else copy.deepcopy(subject.module)
    for entry in entries:
        try:
            if unbuilt is not None:  # the previous entry may have built layers that do not fit
                subject.module = copy.deepcopy(unbuilt)
            entry, datamodule = _opened(entry, subject, arguments)
        except (ValueError, RuntimeError) as error:
            problem = problem or error
            continue
        about = says.format(type(datamodule).__name__)
        if not own and is_encoder_decoder(subject.module):
            about += "; the decoder writes the next words of the encoder's text"
        return Data(datamodule, about, entry, own)
    if own and problem is not None:
        raise problem
    reach = measure_reach(subject.module, forward)
    batches = random_batches(reach, subject)
    why = f" ({' '.join(str(problem).split())})" if problem is not None else ""
    return Data(batches, f"none given: random ids below {reach.vocabulary}, no text{why}", None, False)


def _entries(
    given: str | None, subject: Subject, forward: Forward | None
) -> tuple[list[dict[str, Any]], str]:
    """Return the entries of a configuration to try in order, and their description."""
    if given is None:
        if entry := subject.configuration.get("data"):
            return [entry], f"{{}} of {subject.name}"
        says = "none given: {}, a synthetic grammar with gold tags; for your own text, which may lack tags, --data FILE"
        return _texts({"class_path": "lmdyn.datamodules.GrammarCorpus"}, None, subject, forward), says
    path = Path(given).expanduser()
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise FileNotFoundError(f"--data {given}: the file does not exist")
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
        text = {"class_path": "lmdyn.datamodules.TextCorpus"}
        return _texts(text, path, subject, forward), f"{{}} of the text {given}"
    if path.is_dir():
        raise ValueError(
            f"--data {given} is a folder: expected a text file, a yaml with `data:`, or package.Class"
        )
    short = f"lmdyn.datamodules.{given}"
    name = short if "." not in given and given in lmdyn.datamodules.__all__ else given
    if "." not in name or importlib.util.find_spec(name.partition(".")[0]) is None:
        raise FileNotFoundError(
            f"--data {given}: neither a file nor a package {given.partition('.')[0]!r} exists: expected a text file, "
            "a yaml with `data:`, or package.Class of a LightningDataModule"
        )
    cls = dotted(name)
    if not isinstance(cls, type) or not issubclass(cls, L.LightningDataModule):
        raise ValueError(
            f"--data {given} is not a LightningDataModule: expected such a class, a text file or a yaml"
        )
    return [{"class_path": name}], given


# Text -------------------------------------------------------------------------------------------------------


def _texts(
    entry: dict[str, Any], path: Path | None, subject: Subject, forward: Forward | None
) -> list[dict[str, Any]]:
    """Return entries of a corpus in the rows that the model reads; if its layers are not built yet, of all kinds."""
    module = subject.module
    built = any(True for _ in module.parameters())
    reach = measure_reach(module, forward) if built else None
    if built:
        _check_vocabulary(subject, subject.tokenizer)
    words = 20_000 if path is None else len(path.read_bytes()[:1_000_000].split())
    length = min(reach.length if reach else 32, max(4, words // 10))
    size = max(1, min(8, words * 9 // 10 // length))
    init: dict[str, Any] = {"batch_size": size, "sequence_length": length}
    if path is None:
        init |= _GRAMMAR
    else:
        init |= {"train": str(path), "lowercase": False, "drop_rare_sentences": False}
        init |= {"cut_articles": [0.9, 0.1, 0.0]} if words >= 200 else {"validation": str(path)}
    if (name := _tokenizer_name(subject)) is not None:
        init["tokenizer"] = name
    elif subject.tokenizer is None and reach is not None:
        init |= {"vocabulary": "wordpiece", "vocab_size": min(reach.vocabulary, 8000)}
    tokenizer = subject.tokenizer
    if tokenizer is not None and tokenizer.eos_token_id is None and tokenizer.sep_token_id is None:
        init["eos"] = False
    corpus = {**entry, "init_args": init}
    if reach is None:
        kinds: tuple[str, ...] = ("causal", "masked", "cloze")
    else:
        masked = reach.bidirectional and not is_encoder_decoder(module)
        kinds = ("masked",) if masked else ("causal",)
    rows = {"sequence_length": length, "batch_size": size}
    of_pieces = {**corpus, "init_args": {**init, **({} if reach else {"vocabulary": "wordpiece"})}}
    found = []
    for kind in kinds:
        if kind == "causal":
            # published models have not learned to predict an end token after each sentence
            own = {"eos": False} if subject.kind == "pretrained" else {}
            found.append({**corpus, "init_args": {**init, **own}})
            continue
        made = {"class_path": "lmdyn.datamodules.PretrainingCorpus"}
        found.append({**made, "init_args": {"corpus": of_pieces, "objective": kind, **rows}})
    return found


def _tokenizer_name(subject: Subject) -> str | None:
    """Return the name by which a corpus loads the model's tokenizer."""
    if subject.tokenizer is None:
        return None
    if subject.kind == "run":
        return str(Path(subject.name) / "tokenizer")
    return str(subject.folder or subject.name)


def _opened(
    entry: dict[str, Any], subject: Subject, arguments: Sequence[str]
) -> tuple[dict[str, Any], L.LightningDataModule]:
    """Return the datamodule after setup, with the model's tokenizer; the model then has all its layers."""
    path = str(entry.get("class_path"))
    cls = dotted(path) if "." in path else None
    if isinstance(cls, type) and not entry.get("init_args"):
        check_arguments(path, cls, arguments, "data")
    parsed, made = instantiate({"data": entry}, arguments)
    data = made["data"]
    if subject.tokenizer is not None and offers(data, HasTokenizer):
        data.tokenizer = subject.tokenizer
    data.prepare_data()
    data.setup("fit")
    _complete(subject.module, data)
    _check_vocabulary(subject, read_attribute(data, "tokenizer"))
    return parsed["data"] if arguments else entry, data


def _complete(module: nn.Module, data: Any) -> None:
    """Let a module build its layers, as at the start of training."""
    if not isinstance(module, L.LightningModule):
        return
    if module._trainer is None:
        module.trainer = _trainer()
    module.trainer.datamodule = data  # type: ignore[attr-defined] # set by its loops
    module.configure_model()


def _trainer() -> L.Trainer:
    with silently(logging.WARNING):  # it logs about devices
        return L.Trainer(
            accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip


def _check_vocabulary(subject: Subject, tokenizer: Any) -> None:
    if tokenizer is None:
        return
    rows = input_rows(subject.module)
    if rows is None:  # no embedding receives the ids unchanged
        try:
            rows = measure_reach(subject.module).vocabulary
        except ValueError:
            return
    if len(tokenizer) > rows:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} token types, but the embedding of {type(subject.module).__name__} has "
            f"{rows} rows: use the model's own tokenizer, or a model with vocab_size={len(tokenizer)}"
        )


def random_batches(reach: Reach, subject: Subject) -> list[dict[str, Tensor]]:
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
