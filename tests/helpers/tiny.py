"""Full-size configurations made tiny: other sizes and fewer steps, and nothing else."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

__all__ = ["tiny_configs"]

TINY: Mapping[str, Any] = yaml.safe_load((Path(__file__).with_name("tiny.yaml")).read_text(encoding="utf-8"))


def tiny_configs(configs: Path, folder: Path) -> Path:
    """A copy of the folder ``configs`` with the sizes and steps of tiny.yaml; what a file does not set stays unset."""
    copy = Path(shutil.copytree(configs, folder / "configs"))
    for path in copy.rglob("*.yaml"):
        if path.name != "config.yaml":
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
            path.write_text(yaml.safe_dump(_tiny(document), sort_keys=False), encoding="utf-8")
    return copy


def _tiny(value: Any, key: str = "") -> Any:
    if isinstance(value, list):
        return [_tiny(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {name: _tiny(item, name) for name, item in value.items()}
    for name, size in TINY["keys"].get(key, {}).items():
        if name in made:
            made[name] = size
    arguments = TINY["classes"].get(str(made.get("class_path", "")).rpartition(".")[2])
    if arguments:
        made["init_args"] = _laid_over(made.get("init_args") or {}, arguments)
    return made


def _laid_over(given: dict[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with others in their place; a mapping is laid over a mapping."""
    for name, size in arguments.items():
        inner = given.get(name)
        given[name] = _laid_over(inner, size) if isinstance(inner, dict) and isinstance(size, dict) else size
    return given
