"""The yaml that ``lmdyn inspect --write`` writes: a training or a replay with the observers that run."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import lightning as L
import yaml
from lightning.pytorch.utilities.model_helpers import is_overridden

from lmdyn.callbacks.observing.protocols import HasTrainingPart, offers
from lmdyn.cli.inspection.found import Asked, Inspection
from lmdyn.cli.inspection.subject import Subject

__all__ = ["next_command", "refusal", "starting_yaml"]

_START: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"Similarity": {"reference": {"class_path": "Itself"}}}
)


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
    own: dict[str, Any] = dict(subject.configuration) if subject.kind == "configuration" else {}
    trainer = dict(own.get("trainer") or {})
    callbacks = trainer.pop("callbacks", None) or []
    callbacks = [callbacks] if isinstance(callbacks, Mapping) else list(callbacks)
    runs = [a for a in found.observers if not a.findings and not a.configured]
    if fit and not own.get("trainer"):
        trainer = {"accelerator": "auto", "devices": 1, "max_steps": 200, "num_sanity_val_steps": 0}
        settings = {"save_dir": "runs", "name": name, "default_hp_metric": False}
        trainer["logger"] = {"class_path": "TensorBoardLogger", "init_args": settings}
        callbacks = [
            {"class_path": "ScheduledCheckpoint", "init_args": {"schedule": {"per_decade": 3}}},
            *callbacks,
        ]
    callbacks += [_entry(a, found.forward) for a in runs if a.tried]
    lines = [
        f"# Written by lmdyn inspect as a starting point: {found.about['model']}.",
        f"# Command: {next_command(subject, name + '.yaml')}",
    ]
    if subject.kind == "pretrained":
        lines += [
            "# To train it further with the same observers: "
            f"lmdyn fit --config {name}.yaml --model PretrainedLM --model.name {subject.name} --trainer.max_steps 200"
        ]
    if fit:
        lines += [f"seed_everything: {own.get('seed_everything', 1)}"]
    lines += ["trainer:", *_dumped(trainer, 2), "  callbacks:", *_dumped(callbacks, 4)]
    if longer := [a for a in runs if not a.tried]:
        lines += ["    # These also run, and most train or iterate at each step, which takes longer:"]
        lines += [f"    # {line}" for line in _dumped([_entry(a, found.forward) for a in longer], 0)]
    if missing := [a for a in found.observers if a.findings]:
        lines += ["    # These do not run yet:"]
        lines += [f"    # {a.name}: {a.why[0]}" for a in missing]
    if fit:
        lines += _dumped({"model": subject.model}, 0)
    if fit or data.own or subject.kind == "pretrained":
        lines += (
            []
            if data.own
            else [f"# {line}" for line in ["Your own text: lmdyn inspect … --data FILE --write …"]]
        )
        lines += _dumped({"data": data.entry}, 0)
    return "\n".join(lines) + "\n"


def _entry(asked: Asked, forward: str | None) -> dict[str, Any]:
    arguments: dict[str, Any] = {"schedule": {"per_decade": 4}, **_START.get(asked.name, {})}
    if asked.tried:
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
        if any(a.tried and not a.findings and not a.configured for a in found.observers):
            return None
        return (
            f"no other observer runs in one pass here; run the configured ones: lmdyn analyze {subject.name}"
        )
    if found.data.entry is None:
        return "no text that the model reads is known: give --data, a text file, a yaml or package.Class"
    if subject.kind == "pretrained":
        if subject.model is not None:
            return None
        return (
            f"analyze loads causal and masked models, but {subject.says} is an encoder-decoder: wrap it in a "
            "LightningModule, fit --model package.Class"
        )
    module = subject.module
    if not isinstance(module, L.LightningModule):
        return (
            f"fit trains LightningModules, but {type(module).__name__} is a plain nn.Module: wrap it in one "
            "(examples/nanogpt.py), and inspect that"
        )
    lacks = [n for n in ("training_step", "configure_optimizers") if not is_overridden(n, module)]
    if lacks:
        return f"fit requires {' and '.join(lacks)}, which {type(module).__name__} does not define: add them"
    if not offers(found.data.data, HasTrainingPart):
        return (
            f"fit requires train_dataloader, which {type(found.data.data).__name__} does not define: add it"
        )
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
