"""The subject of a replay: a run of lmdyn, or Hugging Face checkpoints; its checkpoints and its configuration."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from huggingface_hub import list_repo_refs

from lmdyn.cli.configurations import Config, callback_entries, complete_model, run_configuration
from lmdyn.cli.recorded_observers import observers_among
from lmdyn.cli.replay.overlays import overlay
from lmdyn.cli.trust.untrusted import import_only, known_paths, named_paths, refuse_others
from lmdyn.runs.checkpoint_files import checkpoint_folders, find_checkpoints, read_checkpoint
from lmdyn.runs.hub_checkpoints import MODULE as PRETRAINED
from lmdyn.runs.hub_checkpoints import HubCheckpoints, is_pretrained
from lmdyn.runs.run_identity import FILE as IDENTITY
from lmdyn.runs.yaml_files import read_yaml


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
            raise ValueError(f"{run} is not a run of lmdyn: give a folder for the observations with --out")
        self.out = out or self.folder
        saved = self.folder / "checkpoints"
        self.saved = saved if saved.is_dir() else None  # its checkpoints by their steps
        self.first = self.paths[next(iter(self.paths))]  # for a hub model, this downloads it

    def checked(self, configs: Sequence[Path], named: Sequence[str] = ()) -> frozenset[str]:
        """Return what may be imported for it if it is not trusted, and let nothing else be imported from now on.

        Args:
            configs: the user's own files.
            named: other classes that the user names.
        """
        allowed = known_paths() | named_paths(configs) | frozenset(named)
        import_only(allowed)
        if self.own:
            config = self.folder / "config.yaml"
            refuse_others(read_yaml(config), config, allowed)
        return allowed

    def config(self) -> Config:
        """Return its configuration."""
        return (
            _run_config(self.folder, list(self.paths.values()))
            if self.own
            else _pretrained_config(self.first)
        )

    def overlays(self, configs: Sequence[Path]) -> list[Path | Config]:
        """Return the yaml files that apply on top of its configuration; of those of a training, what applies."""
        return [overlay(path, own_data=self.own) or path for path in configs]


def _checkpoints(run: str, checkpoints: str | None, revisions: str | None) -> Mapping[int, Path]:
    """Return the checkpoints to replay over, by step."""
    folder = Path(run)
    if checkpoints is not None and revisions is None:
        if (steps := re.fullmatch(r"(\d+)|(\d*):(\d*)", checkpoints)) and not Path(checkpoints).exists():
            return _between(_checkpoints(run, None, None), checkpoints, steps)
        around = (folder, folder / "checkpoints")
        found = (str(place / checkpoints) for place in around if any(place.glob(checkpoints)))
        if not Path(checkpoints).is_absolute() and not any(Path().glob(checkpoints)):
            checkpoints = next(found, checkpoints)
    if revisions is not None:
        if folder.is_dir() or checkpoints is not None:
            raise ValueError(f"--revisions is for hub models, not for {checkpoints or run}: omit --revisions")
        from lmdyn.models.pretrained import hub_folder

        return HubCheckpoints(run, revisions, hub_folder, _hub_refs)
    if (folder / "config.yaml").exists():
        return find_checkpoints(checkpoints or str(folder / "checkpoints"))
    if checkpoints is None and not (is_pretrained(folder) or checkpoint_folders(folder)):
        if (folder / IDENTITY).is_file():
            raise FileNotFoundError(
                f"{folder} has no config.yaml from which lmdyn could build the model. Load each checkpoint into your "
                "model, and observe the model with lmdyn.watch (docs/start/your_loop.md). If save_pretrained or a "
                f"Trainer wrote the checkpoints, analyze their folder with --out {folder}"
            )
        raise FileNotFoundError(
            f"{folder / 'config.yaml'} is missing, and {folder}/checkpoint-* does not exist: expected a run folder "
            "of `lmdyn fit` or of transformers' Trainer, or a hub model with --revisions. For model folders with "
            "other names, add --checkpoints 'FOLDER/*' (the number in a name is the step)"
        )
    paths = find_checkpoints(checkpoints or run)
    if strange := [p for p in paths.values() if not is_pretrained(p)]:
        raise FileNotFoundError(
            f"{folder / 'config.yaml'} is missing, and {strange[0]} is not a model of transformers (no config.json "
            "in it): expected a run trained by `lmdyn fit`, or folders written by save_pretrained"
        )
    return paths


def _between(paths: Mapping[int, Path], given: str, steps: re.Match[str]) -> Mapping[int, Path]:
    """Return the checkpoints of a step, or from one step to another, ``5:100``, both included."""
    one, first, last = steps.groups()
    low, high = (int(one), int(one)) if one else (int(first or 0), float(last or "inf"))
    if not (found := {step: path for step, path in paths.items() if low <= step <= high}):
        there = ", ".join(map(str, [*paths][:5])) + (f", …, {max(paths)}" if len(paths) > 5 else "")
        raise FileNotFoundError(f"--checkpoints {given} selects no checkpoint: choose from the steps {there}")
    return found


def _hub_refs(name: str) -> list[str]:
    """Return branches and tags of a hub model."""
    try:
        refs = list_repo_refs(name)
    except Exception as error:  # from the hub's library or its HTTP client
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"the revisions of {name!r} cannot be listed ({reason[0]}): check the name and the connection, or "
            "list the revisions yourself: --revisions step0,step1000"
        ) from error
    return [ref.name for ref in (*refs.branches, *refs.tags)]


def _run_config(run: Path, checkpoints: Sequence[Path]) -> Config:
    """Return the configuration of a run of lmdyn, completed by hyperparameters of its first readable checkpoint."""
    config = run_configuration(run)
    config["trainer"]["callbacks"], _ = observers_among(callback_entries(config))
    complete_model(config, _first_that_reads(checkpoints))
    return config


def _first_that_reads(checkpoints: Sequence[Path]) -> Config:
    """Return the first readable checkpoint; a damaged one is reported when it is observed, and does not stop others."""
    wrong: ValueError | None = None
    for path in checkpoints:
        try:
            return read_checkpoint(path)
        except ValueError as error:
            wrong = wrong or error
    raise wrong or ValueError("no checkpoints")


def _pretrained_config(first: Path) -> Config:
    """Return the configuration of Hugging Face checkpoints: the model."""
    return {
        "seed_everything": 0,
        "trainer": {"callbacks": []},
        "model": {"class_path": PRETRAINED, "init_args": {"name": str(first)}},
        "data": {"class_path": "lightning.LightningDataModule"},  # an empty datamodule
    }
