"""lmdyn: observe how language models learn.

The package has four parts: :mod:`lmdyn.analysis` (mathematics), :mod:`lmdyn.models`, :mod:`lmdyn.datamodules` and
:mod:`lmdyn.callbacks` (observers). :mod:`lmdyn.cli` combines them.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmdyn.integrations.watcher import Watcher, watch

__all__ = ["Watcher", "__version__", "watch"]

__version__ = version("lmdyn")


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is used."""
    if name in ("Watcher", "watch"):
        from lmdyn.integrations import watcher

        return getattr(watcher, name)
    raise AttributeError(f"module 'lmdyn' has no attribute {name!r}: try lmdyn.callbacks or lmdyn.analysis")
