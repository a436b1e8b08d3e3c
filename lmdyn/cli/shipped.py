"""The configurations that lmdyn brings, by name: in its package, which in a clone is a link to ``configs/``."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import lmdyn

__all__ = ["copy_shipped", "shipped_files", "shipped_path", "with_shipped"]

_OPTIONS = ("--config", "--replay")
_NAME = re.compile(r"(?!-)[\w./\\~ -]+")  # not yaml, which --config takes too, and no option


def _root() -> Path:
    return Path(str(lmdyn.__file__)).parent / "configs"


def shipped_files() -> dict[str, Path]:
    """All yaml files by their names: their places below ``configs/``, without the ending."""
    found = sorted(_root().rglob("*.yaml"))
    return {str(path.relative_to(_root()).with_suffix("")): path for path in found}


def shipped_path(name: str) -> Path | None:
    """The file of a name, which may begin with ``configs/`` and end in ``.yaml``; None where there is none.

    Example:
        >>> shipped_path("quickstart").name, shipped_path("configs/quickstart.yaml").name, shipped_path("../secret")
        ('quickstart.yaml', 'quickstart.yaml', None)
    """
    return shipped_files().get(name.removeprefix("configs/").removesuffix(".yaml"))


def with_shipped(args: Sequence[str]) -> list[str]:
    """Words of a command line, in which ``--config NAME`` is the file of that name, where no such file is here.

    Raises:
        ValueError: neither a file nor the name of a configuration of lmdyn's.
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
    from lmdyn.analysis.inspection.attributes import nearest  # costs seconds, by what is next to it

    names = list(shipped_files())
    # a name without its folder is compared with names without theirs
    near = nearest(value.removeprefix("configs/").removesuffix(".yaml"), names, number=3)
    if not near:
        last = {name.rpartition("/")[2]: name for name in reversed(names)}
        near = [last[found] for found in nearest(Path(value).stem, last, number=3)]
    close = f" Close names: {', '.join(near)}." if near else ""
    return (
        f"{option} {value!r}: expected a file, or the name of a configuration of lmdyn's, and there is neither.{close} "
        "`lmdyn configs` lists all names"
    )


def copy_shipped(study: str, folder: Path) -> list[Path]:
    """Copy a study's configurations and workflows below a folder, to be changed, or to be run by Snakemake.

    Args:
        study: such as ``he2022_twotower``.
        folder: receives ``<study>/``, and what the studies' workflows share.

    Returns:
        The files.

    Raises:
        ValueError: there is no such study, or the folder has it already.
    """
    source = _root() / study
    studies = sorted(path.parent.name for path in _root().glob("*/Snakefile"))
    if study not in studies:
        raise ValueError(f"there is no study {study!r}: there are {', '.join(studies)}")
    if (folder / study).exists():
        raise ValueError(f"{folder / study} is there already: choose another folder by --to, or remove it")
    shutil.copytree(source, folder / study)
    for shared in _root().glob("*.smk"):
        if not (folder / shared.name).exists():
            shutil.copyfile(shared, folder / shared.name)
    return sorted(path for path in (*(folder / study).rglob("*"), *folder.glob("*.smk")) if path.is_file())
