"""lmdyn: observe how language models learn.

The package has four parts: :mod:`lmdyn.analysis` (mathematics), :mod:`lmdyn.models`, :mod:`lmdyn.datamodules` and
:mod:`lmdyn.callbacks` (observers). :mod:`lmdyn.cli` combines them.
"""

from importlib.metadata import version

__version__ = version("lmdyn")
