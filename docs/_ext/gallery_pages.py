"""What sphinx-gallery finds by name: the state that each script starts from."""

import logging
import os
import warnings
from typing import Any

import lightning  # noqa: F401 (which sets the levels of its loggers)
import matplotlib as mpl
import torch

from lmdyn.callbacks.observing.drawing.style import STYLE

__all__ = ["reset"]


def reset(gallery_conf: dict[str, Any], name: str) -> None:
    """Prepare a script: one thread, the style of lmdyn's figures, quiet logs, the current folder."""
    torch.set_num_threads(1)
    for logger in ("lightning.pytorch", "lightning.fabric", "lmdyn"):
        logging.getLogger(logger).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module=r"lightning\.")
    mpl.rcParams.update({**STYLE, "savefig.dpi": 150})
    os.chdir(gallery_conf["src_dir"])
