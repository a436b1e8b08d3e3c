"""What sphinx-gallery finds by name: a scraper of figures that pyplot does not know, a reset before each script."""

import logging
import os
import warnings
from typing import Any
from weakref import WeakSet

import lightning  # noqa: F401 (which sets the levels of its loggers)
import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

__all__ = ["reset", "scraper"]

_SAVED: WeakSet[Figure] = WeakSet()


def scraper(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save figures of observers, which are drawn without pyplot: those that a variable of the script holds."""
    figures = [
        value
        for value in block_vars["example_globals"].values()
        if isinstance(value, Figure) and value.canvas.manager is None and value not in _SAVED
    ]
    paths = [next(block_vars["image_path_iterator"]) for _ in figures]
    for figure, path in zip(figures, paths, strict=True):
        figure.savefig(path)
        _SAVED.add(figure)
    return figure_rst(paths, gallery_conf["src_dir"])


def reset(gallery_conf: dict[str, Any], name: str) -> None:
    """Called before each script: one thread, sharp images, no advice of Lightning's, no file among the scripts."""
    torch.set_num_threads(1)
    for logger in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(logger).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module=r"lightning\.")
    mpl.rcParams.update({"savefig.dpi": 150, "axes.spines.top": False, "axes.spines.right": False})
    os.chdir(gallery_conf["src_dir"])
