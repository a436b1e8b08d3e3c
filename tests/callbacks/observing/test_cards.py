"""Figures for loggers of images: the same for all, and for TensorBoard a picture of what was found."""

from types import SimpleNamespace

import pandas as pd
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lmdyn.callbacks.observing.figures import new_panels
from lmdyn.callbacks.observing.loggers import draw
from lmdyn.runs.schema import Quantity

ACCURACY = Quantity("accuracy", "A share.", "share", low=0.0, high=1.0, better="higher", headline=True)
ROWS = pd.DataFrame(
    [
        (step, "accuracy", "", group, value)
        for group, values in {"": [0.0, 0.2, 0.4], "NOUN": [0.0, 0.1, 0.3], "DET": [0.0, 0.5, 0.5]}.items()
        for step, value in zip([0, 10, 100], values, strict=True)
    ],
    columns=["step", "quantity", "site", "upos", "value"],
)


class Images(CSVLogger):
    """Takes images as they are."""

    shapes: dict = {}

    def log_image(self, key, images, step=None):
        self.shapes[key] = images[0].shape[:2]


class Observed:
    """What `draw` reads of an observer."""

    name, log_figures, figure_rows, settings, quantities = "a", True, None, {}, (ACCURACY,)
    store = SimpleNamespace(steps=lambda: [0, 10, 100], read=lambda **_: ROWS)

    @staticmethod
    def figures(observations, settings):
        return {"b": new_panels(2, 4.0, 3.0).figure}

    @staticmethod
    def is_scalar(table):
        return pd.Series(True, table.index)


def test_tensorboard_shows_the_finding_first_in_the_form_of_a_card(tmp_path):
    tensorboard, images = TensorBoardLogger(tmp_path, "tb"), Images(tmp_path, "images")
    before = torch.get_rng_state()
    draw(Observed(), [tensorboard, images], 100)
    assert torch.equal(torch.get_rng_state(), before)  # training draws from it
    tensorboard.finalize("success")
    events = EventAccumulator(tensorboard.log_dir).Reload()
    sizes = {
        tag: (events.Images(tag)[0].height, events.Images(tag)[0].width) for tag in events.Tags()["images"]
    }
    assert sizes == {"_summary/a": (201, 360), "a/figures/b": (225, 600)}
    assert images.shapes == {"a/figures/b": (225, 600)}
