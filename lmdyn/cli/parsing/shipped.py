"""The configurations shipped with lmdyn, by name. They are in the package, which in a clone links to ``configs/``."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import lmdyn

_ROOT = Path(str(lmdyn.__file__)).parent / "configs"
_OPTIONS = ("--config", "--replay")
_NAME = re.compile(r"(?!-)[\w./\\~ -]+")  # not yaml, which --config takes too, and no option


def shipped_files() -> dict[str, Path]:
    """Return all yaml files by name: the path below ``configs/`` without the suffix."""
    found = sorted(_ROOT.rglob("*.yaml"))
    return {str(path.relative_to(_ROOT).with_suffix("")): path for path in found}


def shipped_path(name: str) -> Path | None:
    """Return the file of a name, which may begin with ``configs/`` and end in ``.yaml``; None if it does not exist.

    Example:
        >>> shipped_path("quickstart").name, shipped_path("configs/quickstart.yaml").name, shipped_path("../secret")
        ('quickstart.yaml', 'quickstart.yaml', None)
    """
    return shipped_files().get(name.removeprefix("configs/").removesuffix(".yaml"))


def with_shipped(args: Sequence[str]) -> list[str]:
    """Replace the NAME of ``--config NAME`` by the path of the shipped file, unless a file NAME exists.

    Raises:
        ValueError: if the value is neither a file nor the name of a shipped configuration.
    """
    words = list(args)
    for i, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option not in _OPTIONS:
            continue
        at = i if equals else i + 1
        value = value if equals else (words[at] if at < len(words) else "")
        if not _NAME.fullmatch(value) or Path(value).exists():
            continue
        path = shipped_path(value)
        if path is None and words[0].startswith("-"):
            continue  # the greater mistake, of which the command tells: it comes first
        if path is None:
            raise ValueError(_unknown(option, value))
        words[at] = f"{option}={path}" if equals else str(path)
    return words


def _unknown(option: str, value: str) -> str:
    from lmdyn.analysis.inspection.attributes import nearest  # slow import

    names = list(shipped_files())
    # a name without a folder is compared with names without folders
    near = nearest(value.removeprefix("configs/").removesuffix(".yaml"), names)
    if not near:
        last = {name.rpartition("/")[2]: name for name in reversed(names)}
        near = [last[found] for found in nearest(Path(value).stem, last)]
    close = f" Close names: {', '.join(near)}." if near else ""
    return (
        f"{option} {value!r} is neither a file nor the name of a shipped configuration.{close} "
        "Run `lmdyn configs` to see all names"
    )


def copy_shipped(study: str, folder: Path) -> list[Path]:
    """Copy a study's configurations and workflows into a folder, to change them or to run them with Snakemake.

    Args:
        study: name of the study, such as ``he2022_twotower``.
        folder: folder that receives ``<study>/`` and the files shared by the workflows.

    Returns:
        The copied files.

    Raises:
        ValueError: if the study does not exist, or the folder already contains it.
    """
    source = _ROOT / study
    studies = sorted(path.parent.name for path in _ROOT.glob("*/Snakefile"))
    if study not in studies:
        from lmdyn.analysis.inspection.attributes import did_you_mean  # slow import

        near = did_you_mean(study, studies) or ":"
        raise ValueError(f"unknown study {study!r}{near} studies are {', '.join(studies)}")
    if (folder / study).exists():
        raise ValueError(f"{folder / study} already exists: choose another folder with --to")
    shutil.copytree(source, folder / study)
    for shared in _ROOT.glob("*.smk"):
        if not (folder / shared.name).exists():
            shutil.copyfile(shared, folder / shared.name)
    return sorted(path for path in (*(folder / study).rglob("*"), *folder.glob("*.smk")) if path.is_file())
