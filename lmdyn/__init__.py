"""lmdyn: watch how language models learn.

Four rooms: :mod:`lmdyn.analysis` (mathematics), :mod:`lmdyn.models`, :mod:`lmdyn.datamodules` and
:mod:`lmdyn.callbacks` (observers); :mod:`lmdyn.cli` puts them together.
"""

from importlib.metadata import version

__version__ = version("lmdyn")
