"""Cached sections of a report, valid as long as nothing has changed on which they depend."""

import hashlib
import json
import re
import sys
from contextlib import suppress
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import matplotlib as mpl
from matplotlib.font_manager import FontProperties, findfont

import lmdyn
from lmdyn.callbacks.gathered.drawn_observations import DrawnObservations
from lmdyn.callbacks.gathered.gathered_store import CACHE, LEAST
from lmdyn.callbacks.training.atomic_files import remove_unfinished, write_file
from lmdyn.cli.drawing.observer_section import DrawnSection, ObserverSection, known_observer

__all__ = ["KeptSections"]

_VERSION = 2
_DRAWN_WITH = (
    "lmdyn", "matplotlib", "contourpy", "pandas", "numpy", "pyarrow", "pillow", "scipy", "scikit-learn", "torch",
    "wordcloud",
)  # fmt: skip


class KeptSections:
    """Sections in ``RUN/.cache/report/<observer>.json``, one per observer: the page's part, its files by their hash.

    A cached section is used if its sources (the files of observations by name,
    size and times; those of all observers for figures with others), its environment (lmdyn's code, the
    versions of libraries, matplotlib's settings), and every linked file are unchanged. Otherwise it is drawn. Sections
    of lmdyn's own observers with 100 observations or more are cached if nothing in them failed.

    Args:
        out: folder of the report.
        cached: False to neither use nor write a cache, as for a run of somebody else.
    """

    def __init__(self, out: Path, *, cached: bool = True) -> None:
        self._out = out
        self._cached = cached

    def find(self, section: ObserverSection) -> DrawnSection | None:
        """Return a cached section; None if it must be drawn."""
        if (key := self._key(section)) is None:
            return None
        try:
            checksum, _, content = _path(section).read_bytes().partition(b"\n")
            if checksum.decode() != _hash(content):
                return None
            kept = json.loads(content)
            if kept["key"] == key and kept["files"] == _files(self._out, kept["html"]):
                return DrawnSection(str(kept["html"]), dict(kept["last"]))
        except (OSError, ValueError, KeyError, TypeError):  # missing, or damaged
            pass
        return None

    def keep(self, section: ObserverSection, made: DrawnSection) -> None:
        """Cache a drawn section in place of the previous one of its observer, if the cache is writable."""
        if section.failed or (key := self._key(section)) is None:
            return
        with suppress(OSError):
            files = _files(self._out, made.html)
            kept = {"key": key, "files": files, "html": made.html, "last": made.last}
            content = json.dumps(kept).encode()
            path = _path(section)
            whole = _hash(content).encode() + b"\n" + content
            write_file(path, lambda unfinished: unfinished.write_bytes(whole), lasting=False)
            there = {one.folder.name for one in section.every}
            for other in path.parent.glob("*.json"):
                if other.stem not in there:
                    other.unlink(missing_ok=True)
            remove_unfinished(path.parent)

    @cached_property
    def _with_what(self) -> str | None:
        return _with_what()

    def _key(self, section: ObserverSection) -> str | None:
        """Return a hash of all that a section depends on; None if this is unknown."""
        if not self._cached or len(section.drawn.store.steps()) < LEAST:
            return None
        observer = known_observer(section.drawn, section.find)
        if observer is None or not observer.__module__.startswith("lmdyn.") or self._with_what is None:
            return None
        beside = hasattr(observer, "figures_beside") or hasattr(observer, "tables_beside")
        return _hash(json.dumps([
            _VERSION, self._with_what, section.base.name, section.together, section.most, _about(section.drawn),
            [[_about(one), _name(known_observer(one, section.find))] for one in section.every] if beside else None,
        ]).encode())  # fmt: skip


def _path(section: ObserverSection) -> Path:
    return section.run / CACHE / "report" / f"{section.drawn.folder.name}.json"


def _about(drawn: DrawnObservations) -> list[Any]:
    return [drawn.folder.name, drawn.store.sources, drawn.steps]


def _name(cls: type | None) -> str:
    return "" if cls is None else f"{cls.__module__}.{cls.__qualname__}"


def _files(out: Path, html: str) -> dict[str, str]:
    """Return the files next to the page to which a part of it links, with hashes of their content.

    Raises:
        FileNotFoundError: if one is missing.
    """
    names = {unquote(link) for link in re.findall(r"<a href='([^'#]+)'>", html)}
    return {name: _hash((out / name).read_bytes()) for name in sorted(names)}


def _with_what() -> str | None:
    """Return a hash of the environment of figures: code, libraries and settings; None if lmdyn's code is unreadable."""
    root = Path(lmdyn.__file__).parent
    code = {str(path.relative_to(root)): _hash(path.read_bytes()) for path in sorted(root.rglob("*.py"))}
    if not code:
        return None
    # not by the getter of rcParams, which searches for a backend
    settings = {
        k: repr(dict.__getitem__(mpl.rcParams, k)) for k in mpl.rcParams if not k.startswith("backend")
    }
    font = Path(findfont(FontProperties()))
    about = [sys.version, code, list(map(_installed, _DRAWN_WITH)), settings, str(font), font.stat().st_size]
    return _hash(json.dumps(about).encode())


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
