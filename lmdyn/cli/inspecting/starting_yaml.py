"""The yaml that ``lmdyn inspect --write`` writes: a training or a replay with the observers that run."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import yaml
from lightning.pytorch.utilities.model_helpers import is_overridden

from lmdyn.callbacks.observing.protocols import HasTrainingPart, offers
from lmdyn.cli.configurations import Config, callback_entries
from lmdyn.cli.inspecting.inspected_model import Subject
from lmdyn.cli.inspecting.printed import Asked, Inspection


def starting_yaml(found: Inspection, name: str) -> str:
    """Return a starting configuration: for ``fit``, or for ``analyze`` of a run or of transformers' checkpoints.

    Observers that need one pass are active; those that take longer, and those that do not run, are in comments.

    Raises:
        ValueError: if neither command accepts the model.
    """
    if (why := refusal(found)) is not None:
        raise ValueError(f"--write: {why}")
    subject, data = found.subject, found.data
    fit = subject.kind not in ("run", "pretrained")
    own: Config = dict(subject.configuration) if subject.kind == "configuration" else {}
    callbacks = callback_entries(own)
    trainer = {key: value for key, value in (own.get("trainer") or {}).items() if key != "callbacks"}
    if fit and not own.get("trainer"):
        settings = {"save_dir": "runs", "name": name, "default_hp_metric": False}
        logger = {"class_path": "TensorBoardLogger", "init_args": settings}
        trainer = {"accelerator": "auto", "devices": 1, "max_steps": 200, "num_sanity_val_steps": 0}
        trainer["logger"] = logger
        saver = {"class_path": "ScheduledCheckpoint", "init_args": {"schedule": {"per_decade": 3}}}
        callbacks = [saver, *callbacks]
    runs = [a for a in found.observers if not a.findings and not a.configured]
    missing = [f"{a.name}: {a.why[0]}" for a in found.observers if a.findings]
    longer = _dumped([_entry(a, found.forward, data.own) for a in runs if not a.tried], 0)
    callbacks += [_entry(a, found.forward, data.own) for a in runs if a.tried]
    with_data = fit or data.own or subject.kind == "pretrained"
    lines = [
        f"# Written by lmdyn inspect as a starting point: {found.about['model']}.",
        f"# Command: {next_command(subject, name + '.yaml')}",
        *([f"seed_everything: {own.get('seed_everything', 1)}"] if fit else []),
        "trainer:",
        *_dumped(trainer, 2),
        "  callbacks:",
        *_dumped(callbacks, 4),
        *_noted("These observers also run, but take longer; most train or iterate at each step:", longer),
        *_noted("These observers do not run yet:", missing),
        *(_dumped({"model": subject.model}, 0) if fit else []),
        *(["# For your text: lmdyn inspect … --data FILE --write …"] if with_data and not data.own else []),
        *(_dumped({"data": data.entry}, 0) if with_data else []),
    ]
    return "\n".join(lines) + "\n"


def _noted(title: str, lines: Sequence[str]) -> list[str]:
    """Return a comment below the observers; nothing without lines."""
    return [f"    # {line}" for line in (title, *lines)] if lines else []


def _entry(asked: Asked, forward: str | None, own_data: bool) -> Config:
    arguments: Config = {"schedule": {"per_decade": 4}}
    if asked.name == "Similarity":
        arguments["reference"] = {"class_path": "Itself"}
    if asked.tried and not own_data:  # data that the user gave is observed as a whole
        arguments["max_tokens"] = 10_000
    if forward is not None:
        arguments["forward"] = forward
    return {"class_path": asked.name, "init_args": arguments}


def _dumped(value: Any, indent: int) -> list[str]:
    if not value:
        return []
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110)
    return [" " * indent + line for line in text.splitlines()]


def refusal(found: Inspection) -> str | None:
    """Return why no starting yaml can be written; None if it can."""
    subject = found.subject
    if subject.kind == "run":
        runs = any(a.tried and not a.findings and not a.configured for a in found.observers)
        own = f"run the configured observers: lmdyn analyze {subject.name}"
        return None if runs else f"no other observer runs in one pass here; {own}"
    if found.data.entry is None:
        return "lmdyn knows no text for this model: give --data, a text file, a yaml or package.Class"
    if subject.kind == "pretrained":
        why = f"it is for causal and masked models, but {subject.says} is an encoder-decoder"
        wrap = f"run observers by lmdyn analyze {subject.name} --config (texts: `scoring: enc_dec_mask`)"
        if subject.tokenizer is None:
            return "the folder of the weights has no tokenizer: save the tokenizer there (tokenizer.save_pretrained)"
        return None if subject.model is not None else f"{why}: {wrap}"
    module = subject.module
    name = type(module).__name__
    data = type(found.data.data).__name__
    if not isinstance(module, L.LightningModule):
        wrap = "wrap the module in a LightningModule (examples/nanogpt.py), and inspect the result"
        return f"fit trains LightningModules, but {name} is a plain nn.Module: {wrap}"
    lacks = [n for n in ("training_step", "configure_optimizers") if not is_overridden(n, module)]
    if lacks:
        return f"fit requires {' and '.join(lacks)}, which {name} does not define: define the methods"
    if not offers(found.data.data, HasTrainingPart):
        return f"fit requires train_dataloader, which {data} does not define: define train_dataloader"
    return None


def next_command(subject: Subject, path: str) -> str:
    """Return the command that takes the yaml, quoted for a shell."""
    if subject.kind == "run":
        return shlex.join(["lmdyn", "analyze", subject.name, "--config", path])
    if subject.kind == "pretrained":
        which = [] if subject.folder is not None else ["--revisions", "0=main"]
        out = f"runs/{Path(subject.name).name}"
        return shlex.join(["lmdyn", "analyze", subject.name, *which, "--config", path, "--out", out])
    return shlex.join(["lmdyn", "fit", "--config", path])
