"""What ``lmdyn inspect`` found, for its page and its yaml."""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmdyn.analysis.inspection.sites import FoundSites
from lmdyn.callbacks.observing.observer import Observer
from lmdyn.callbacks.observing.requirements import Finding
from lmdyn.callbacks.observing.streaming_observer import StreamingObserver
from lmdyn.cli.inspection.data import Data
from lmdyn.cli.inspection.subject import Subject

__all__ = ["Asked", "Inspection", "brief"]


@dataclass(frozen=True)
class Asked:
    """An observer, and what it lacks.

    Attributes:
        name: its class.
        observer: the one that was asked, with its defaults or as the configuration has it.
        findings: empty where it runs.
        configured: whether it is one of the configuration's.
    """

    name: str
    observer: Observer
    findings: Sequence[Finding]
    configured: bool = False

    @property
    def tried(self) -> bool:
        """Whether it was shown a batch."""
        return isinstance(self.observer, StreamingObserver)

    @property
    def measures(self) -> str:
        """What it measures, as its class says."""
        return " ".join((inspect.getdoc(type(self.observer)) or "").partition("\n\n")[0].split())

    @property
    def why(self) -> list[str]:
        """What it lacks, each in a sentence, the model first: other data would not mend that."""
        return [f"{f.what}: {brief(str(f))}" for f in sorted(self.findings, key=lambda f: f.what == "data")]


@dataclass(frozen=True)
class Inspection:
    """What was found.

    Attributes:
        subject: the model.
        data: what it was shown.
        sites: where one can look into it.
        about: what it is, a line each: name and sentence.
        observers: those of the configuration first, then all others.
        forward: how it is called.
    """

    subject: Subject
    data: Data
    sites: FoundSites
    about: Mapping[str, str]
    observers: Sequence[Asked] = ()
    forward: str | None = None


def brief(text: str) -> str:
    """A sentence without the rest of long lists; what a class of one's own declares is in the error itself.

    Example:
        >>> brief("no module 'x'; there are: a, b, c, d, e, f, g, h, i; name one")
        "no module 'x'; there are: a, b, c, d, …; name one"
    """
    text = text.partition(", or add to your own ")[0]
    name = r"[\w.'@\[\]]+"

    def shortened(found: "re.Match[str]") -> str:
        return f"{found[1]}…{']' if found[0].endswith(']') else ''}"

    return re.sub(rf"((?:{name}, ){{4}})(?:{name}, ){{3,}}{name}", shortened, text)
