"""Full-size configurations made tiny: other sizes, fewer steps, runs and seeds, and nothing else."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

TINY: Mapping[str, Any] = yaml.safe_load((Path(__file__).with_name("tiny.yaml")).read_text(encoding="utf-8"))
LISTS = ("current", "shuffled", "names")  # of taggers
MAPPINGS = ("runs", "taggers")


def tiny_configs(configs: Path, folder: Path) -> Path:
    """A copy of the folder ``configs`` with the sizes and steps of tiny.yaml; what a file does not set stays unset."""
    copy = Path(shutil.copytree(configs, folder / "configs"))
    for path in copy.rglob("*.yaml"):
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        made = _profile(document) if path.name == "config.yaml" else _tiny(document)
        made = _laid_over(made, TINY["files"].get(path.relative_to(copy).as_posix(), {}))
        path.write_text(yaml.safe_dump(made, sort_keys=False), encoding="utf-8")
    return copy


def _profile(document: dict[str, Any]) -> dict[str, Any]:
    """Fewer seeds and runs; one core is all that a job may have."""
    made = {key: _fewer(value, key) for key, value in document["config"].items()}
    for name, number in TINY["profile"].items():
        if name in made:
            made[name] = made[name][:number] if isinstance(made[name], list) else number
    return {**document, "config": made}


def _fewer(value: Any, key: str) -> Any:
    """Without those of the names that are left out."""
    if key in LISTS:
        return [name for name in value if name not in TINY["without"]]
    if key in MAPPINGS:
        return {name: words for name, words in value.items() if name not in TINY["without"]}
    return value


def _tiny(value: Any, key: str = "") -> Any:
    if isinstance(value, list):
        return [_tiny(item) for item in _fewer(value, key)]
    if not isinstance(value, dict):
        return value
    made = {name: _tiny(item, name) for name, item in value.items()}
    for name, size in TINY["keys"].get(key, {}).items():
        if made.get(name) is not None:
            made[name] = min(made[name], size) if _numbers(made[name], size) else size
    arguments = TINY["classes"].get(str(made.get("class_path", "")).rpartition(".")[2])
    if arguments:
        made["init_args"] = _laid_over(made.get("init_args") or {}, arguments)
    return made


def _numbers(*values: Any) -> bool:
    return all(isinstance(value, int) for value in values)


def _laid_over(given: dict[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with others in their place; a mapping is laid over a mapping."""
    for name, size in arguments.items():
        inner = given.get(name)
        given[name] = _laid_over(inner, size) if isinstance(inner, dict) and isinstance(size, dict) else size
    return given
