"""``run.json``: which model was trained, by which optimizer, on which data, with which seed."""

import contextlib
import json
import logging
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmdyn.runs.provenance import Record, Settings, device_name, git, package_versions, write_json

log = logging.getLogger(__name__)

FILE = "run.json"
"""Name of the file in a run's folder."""

_NO_SETTING = {"_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"}


def write_identity(
    folder: Path,
    model: Any,
    *,
    tokenizer: Any = None,
    seed: int | None = None,
    data: Settings | None = None,
    text: str | None = None,
    optimizer: Any = None,
    keep: bool = False,
    trained_here: bool = True,
) -> None:
    """Write ``<folder>/run.json``. This never fails a run: if it cannot be written, a warning is logged.

    Args:
        folder: the run's folder.
        model: the trained module.
        tokenizer: its tokenizer.
        seed: the seed, if the user has given it; otherwise that of Lightning's ``seed_everything``.
        data: data by their use (``probe``, ``train``).
        text: hash of observed text: runs that observe other text are no seeds of one condition.
        optimizer: the optimizer.
        keep: whether the run continues, and an existing file stays.
        trained_here: whether this process trains the model; otherwise nothing is known of the process that did.
    """
    if keep and (folder / FILE).is_file():
        return
    from lmdyn.analysis.inspection.forward import device_of  # slow import

    try:
        about = {
            "model": _model(model),
            "optimizer": None if optimizer is None else _optimizer(optimizer),
            "data": {use: _data(of) for use, of in (data or {}).items() if of is not None},
            "text": text,
            "tokenizer": None if tokenizer is None else _tokenizer(tokenizer),
            "seed": _seed(seed, trained_here),
        }
        if trained_here:
            device = device_name(str(device_of(model)))
            about |= {"versions": package_versions(), "device": device, "commit": _commit(Path.cwd())}
        write_json(folder / FILE, about)
    except Exception as error:  # what users' classes answer, and file systems, may raise anything
        log.warning("lmdyn could not write %s (%s: %s)", folder / FILE, type(error).__name__, error)


def tell_changes(folder: Path, model: Any, text: str | None) -> None:
    """Warn if a run continues with another model or another probe set: its observations are no single course then."""
    try:
        known = json.loads((folder / FILE).read_text(encoding="utf-8"))
        before, now = mapping(known.get("model")), _model(model)
        changed = [key for key in ("class", "parameters") if before.get(key, now[key]) != now[key]]
        changed += ["probe set"] if None not in (known.get("text"), text) and known["text"] != text else []
    except (OSError, ValueError, RecursionError, AttributeError):
        return  # a file that anyone may have written
    if changed:
        log.warning(
            "%s: model or probe set changed (%s). Old and new observations are not comparable: use another folder",
            folder, " and ".join(changed),
        )  # fmt: skip


def identity_condition(content: Settings) -> Record:
    """Return model, optimizer and data of a ``run.json`` by dotted names, equal for runs that differ in their seed.

    Lists and nested settings, such as further groups of an optimizer, are text.

    Example:
        >>> identity_condition({"model": {"class": "my.GPT", "configuration": {"layers": 2}}, "seed": {"value": 1}})
        {'model': 'GPT', 'model.layers': 2}
    """
    found: Record = {}
    model, optimizer, data = (mapping(content.get(part)) for part in ("model", "optimizer", "data"))
    of = mapping(data.get("train")) or mapping(data.get("probe"))
    groups = optimizer.get("groups")
    groups = groups if isinstance(groups, list) else []
    first = {**mapping(groups[0] if groups else None), "further groups": groups[1:] or None}
    sizes = {key: model.get(key) for key in ("parameters", "trainable")}
    for name, about, settings in (
        ("model", model, {**mapping(model.get("configuration")), **sizes}),
        ("model.optimizer", optimizer, first),
        ("data", of, {**of, "observed text": content.get("text")}),
    ):
        if "class" in about:
            found[name] = str(about["class"]).rpartition(".")[2]
            for key, value in settings.items():
                if value is not None and key != "class":
                    plain = isinstance(value, (str, int, float))
                    found[f"{name}.{key}"] = value if plain else json.dumps(value, sort_keys=True)
    return found


def mapping(value: Any) -> Settings:
    """Return a part of a file that anyone may have written; empty if it is something else."""
    return value if isinstance(value, Mapping) else {}


def _model(model: Any) -> Record:
    parameters = list(model.parameters())
    configs = (getattr(m, "config", None) for m in model.modules())
    config: Any = next((c for c in configs if hasattr(c, "to_diff_dict")), None)  # of transformers
    configuration = getattr(model, "hparams", None) or getattr(
        getattr(model, "config", None), "__dict__", None
    )
    if config is not None:
        configuration = {k: v for k, v in config.to_diff_dict().items() if k not in _NO_SETTING}
    return {
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        "parameters": sum(p.numel() for p in parameters),
        "trainable": sum(p.numel() for p in parameters if p.requires_grad),
        "configuration": _plain(dict(configuration or {})),
    }


def _optimizer(optimizer: Any) -> Record:
    optimizer = getattr(optimizer, "optimizer", optimizer)  # of Accelerate's wrapper
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    return {"class": type(optimizer).__qualname__, "groups": _plain(groups)}


def _data(data: Any) -> Record:
    found = getattr(data, "dataset", None)  # of a loader; of a datamodule, the name of one on the hub
    dataset = data if found is None or isinstance(found, str) else found
    about: Record = {"class": type(dataset).__qualname__}
    with contextlib.suppress(TypeError):  # raised by a stream
        about["size"] = len(dataset)
    settings = dict(getattr(data, "hparams", {}))
    if files := {k: v for k, v in settings.items() if k in ("train", "validation", "test") and v is not None}:
        about["files"] = _plain(files)
    named = {
        "name": settings.get("dataset") or getattr(getattr(dataset, "info", None), "dataset_name", None),
        "split": getattr(dataset, "split", None),
        "fingerprint": getattr(dataset, "fingerprint", None) or getattr(dataset, "_fingerprint", None),
    }
    return about | {key: str(value) for key, value in named.items() if value is not None}


def _tokenizer(tokenizer: Any) -> Record:
    size = len(tokenizer) if hasattr(tokenizer, "__len__") else None
    name = getattr(tokenizer, "name_or_path", None)
    if isinstance(name, str) and Path(name).is_absolute():  # a hub name has two parts
        name = Path(name).name
    return {"class": type(tokenizer).__qualname__, "name": name, "size": size}


def _seed(given: int | None, trained_here: bool) -> Record | None:
    if given is not None:
        return {"value": given, "known_from": "seed"}
    found = os.environ.get("PL_GLOBAL_SEED", "") if trained_here else ""
    return {"value": int(found), "known_from": "seed_everything"} if found.isdecimal() else None


def _commit(folder: Path) -> str | None:
    """Return the commit of the repository in which the training runs, if any."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return git(folder, "rev-parse", "HEAD")
    return None


def _plain(value: Any) -> Any:
    """Return a value in JSON's types; other objects as text."""
    return json.loads(json.dumps(value, default=str))
