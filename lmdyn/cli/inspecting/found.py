"""Results of ``lmdyn inspect``, for its page and its yaml."""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmdyn.analysis.inspection.sites import FoundSites
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.requirements import Finding
from lmdyn.callbacks.observing.streaming_observer import StreamingObserver
from lmdyn.cli.inspecting.data import Data
from lmdyn.cli.inspecting.inspected_model import Subject

__all__ = ["Asked", "Inspection", "brief"]


@dataclass(frozen=True)
class Asked:
    """An observer and its unmet requirements.

    Attributes:
        name: name of its class.
        observer: the instance, with defaults or as configured.
        findings: unmet requirements; empty if it runs.
        configured: whether the configuration contains it.
    """

    name: str
    observer: Observer
    findings: Sequence[Finding]
    configured: bool = False

    @property
    def tried(self) -> bool:
        """Whether it was called on a batch."""
        return isinstance(self.observer, StreamingObserver)

    @property
    def measures(self) -> str:
        """What it measures, according to its class."""
        return " ".join((inspect.getdoc(type(self.observer)) or "").partition("\n\n")[0].split())

    @property
    def why(self) -> list[str]:
        """Unmet requirements, one sentence each, those of the model first: other data would not resolve these."""
        return [f"{f.what}: {brief(str(f))}" for f in sorted(self.findings, key=lambda f: f.what == "data")]


@dataclass(frozen=True)
class Inspection:
    """The results.

    Attributes:
        subject: the model.
        data: the data shown to it.
        sites: its sites.
        about: what it is: sentence by name, one per line.
        observers: the configured ones first, then all others.
        forward: function that calls the model.
    """

    subject: Subject
    data: Data
    sites: FoundSites
    about: Mapping[str, str]
    observers: Sequence[Asked] = ()
    forward: str | None = None


def brief(text: str) -> str:
    """Shorten a sentence: cut long lists and the advice to declare a method in one's own class.

    Example:
        >>> brief("no module 'x'; there are: a, b, c, d, e, f, g, h, i; name one")
        "no module 'x'; there are: a, b, c, d, …; name one"
    """
    text = text.partition(", or add to your own ")[0]
    name = r"[\w.'@\[\]]+"

    def shortened(found: "re.Match[str]") -> str:
        return f"{found[1]}…{']' if found[0].endswith(']') else ''}"

    return re.sub(rf"((?:{name}, ){{4}})(?:{name}, ){{3,}}{name}", shortened, text)
