"""The subject of a replay: a run of lmdyn, or Hugging Face checkpoints; its checkpoints and its configuration."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import list_repo_refs
from lightning.pytorch.callbacks import Checkpoint

from lmdyn.analysis.inspection.forward import dotted
from lmdyn.callbacks.training.checkpoint_files import find_checkpoints, read_checkpoint
from lmdyn.callbacks.training.hub_checkpoints import MODULE as PRETRAINED
from lmdyn.callbacks.training.hub_checkpoints import HubCheckpoints, is_pretrained
from lmdyn.cli.checking.untrusted import known_paths, named_paths, refuse_others
from lmdyn.cli.configurations import read_yaml

__all__ = ["Subject"]


class Subject:
    """The subject of a replay: a run of lmdyn, or Hugging Face checkpoints.

    Args:
        run: run folder, folder of checkpoints, or name of a hub model.
        checkpoints: folder or glob; default: those of the run.
        revisions: revisions of a hub model.
        out: folder of the observations; default: the run's folder.

    Raises:
        FileNotFoundError: if there is no configuration or no checkpoint.
        ValueError: if ``out`` is missing, or revisions are given for local checkpoints.
    """

    def __init__(
        self, run: Path | str, checkpoints: str | None, revisions: str | None, out: Path | None
    ) -> None:
        self.folder = Path(run)
        self.paths = _checkpoints(str(run), checkpoints, revisions)
        self.own = (self.folder / "config.yaml").exists()
        if not self.own and out is None:
            raise ValueError(f"{run} is not a run of lmdyn: give the folder of its observations with --out")
        self.out = out or self.folder
        self.first = self.paths[next(iter(self.paths))]  # for a hub model, this downloads it

    def checked(self, configs: Sequence[Path]) -> frozenset[str]:
        """Return what may be imported for it if it is not trusted; its configuration must name nothing else."""
        allowed = known_paths() | named_paths(configs)
        if self.own:
            config = self.folder / "config.yaml"
            refuse_others(read_yaml(config), config, allowed)
        return allowed

    def config(self) -> dict[str, Any]:
        """Return its configuration."""
        return (
            _run_config(self.folder, list(self.paths.values()))
            if self.own
            else _pretrained_config(self.first)
        )


def _checkpoints(run: str, checkpoints: str | None, revisions: str | None) -> Mapping[int, Path]:
    """Return the checkpoints to replay over, by step."""
    folder = Path(run)
    if revisions is not None:
        if folder.is_dir() or checkpoints is not None:
            raise ValueError(f"--revisions applies to hub models, but {checkpoints or run} is local: omit it")
        from lmdyn.models.pretrained import hub_folder

        return HubCheckpoints(run, revisions, hub_folder, _hub_refs)
    if (folder / "config.yaml").exists():
        return find_checkpoints(checkpoints or str(folder / "checkpoints"))
    if checkpoints is None and not (
        is_pretrained(folder) or any(p.is_dir() for p in folder.glob("checkpoint-*"))
    ):
        models = sorted(p.name for p in folder.glob("*/") if is_pretrained(p))
        hint = (
            f"; for the models in {', '.join(models[:3])}{', …' * (len(models) > 3)} add --checkpoints '{folder}/*' "
            "(the number in a name is the step)"
            if models
            else ""
        )
        raise FileNotFoundError(
            f"{folder / 'config.yaml'} is missing, and {folder}/checkpoint-* does not exist: expected a run folder "
            f"of `lmdyn fit` or of transformers' Trainer, or a hub model with --revisions{hint}"
        )
    paths = find_checkpoints(checkpoints or run)
    if strange := [p for p in paths.values() if not is_pretrained(p)]:
        raise FileNotFoundError(
            f"{folder / 'config.yaml'} is missing, and {strange[0]} is not a model of transformers (no config.json "
            "in it): expected a run trained by `lmdyn fit`, or folders written by save_pretrained"
        )
    return paths


def _hub_refs(name: str) -> list[str]:
    """Return branches and tags of a hub model."""
    try:
        refs = list_repo_refs(name)
    except Exception as error:  # from the hub's library or its HTTP client
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"the revisions of {name!r} cannot be listed ({reason[0]}): check name and connection, or list them "
            "yourself, --revisions step0,step1000"
        ) from error
    return [ref.name for ref in (*refs.branches, *refs.tags)]


def _run_config(run: Path, checkpoints: Sequence[Path]) -> dict[str, Any]:
    """Return the configuration of a run of lmdyn, completed by hyperparameters of its first readable checkpoint."""
    config = read_yaml(run / "config.yaml")
    if not (
        isinstance(config, Mapping) and all(isinstance(config.get(k), Mapping) for k in ("trainer", "model"))
    ):
        raise ValueError(
            f"{run / 'config.yaml'} is not the configuration of a run: expected trainer and model, with settings"
        )
    config = {key: config[key] for key in ("seed_everything", "trainer", "model", "data") if key in config}
    callbacks = config["trainer"].get("callbacks") or []
    if isinstance(callbacks, (Mapping, str)):  # a single one needs no list
        callbacks = [callbacks]
    callbacks = [{"class_path": one} if isinstance(one, str) else one for one in callbacks]
    config["trainer"]["callbacks"] = [c for c in callbacks if not _saves_checkpoints(c["class_path"])]
    # values found in training, such as the vocabulary size, are in the checkpoint; only numbers, since strings could
    # name classes, which jsonargparse imports
    saved = _first_that_reads(checkpoints).get("hyper_parameters", {})
    hparams = {k: v for k, v in saved.items() if isinstance(v, (int, float))}
    arguments = config["model"].get("init_args", {})
    arguments |= {k: hparams[k] for k, v in arguments.items() if v is None and k in hparams}
    return config


def _first_that_reads(checkpoints: Sequence[Path]) -> dict[str, Any]:
    """Return the first readable checkpoint; a damaged one is reported when it is observed, and does not stop others."""
    wrong: ValueError | None = None
    for path in checkpoints:
        try:
            return read_checkpoint(path)
        except ValueError as error:
            wrong = wrong or error
    raise wrong or ValueError("no checkpoints")


def _pretrained_config(first: Path) -> dict[str, Any]:
    """Return the configuration of Hugging Face checkpoints: the model."""
    return {
        "seed_everything": 0,
        "trainer": {"callbacks": []},
        "model": {"class_path": PRETRAINED, "init_args": {"name": str(first)}},
        "data": {"class_path": "lightning.LightningDataModule"},  # an empty datamodule
    }


def _saves_checkpoints(class_path: str) -> bool:
    cls = dotted(class_path)
    return isinstance(cls, type) and issubclass(cls, Checkpoint)
