"""Figures for TensorBoard's cards: panels below each other, as wide as a card."""

from types import SimpleNamespace

import pandas as pd
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lmdyn.callbacks.observing.figures import for_cards, new_panels, pixels
from lmdyn.callbacks.observing.loggers import draw


class Images(CSVLogger):
    """Takes images as they are."""

    shapes: list = []

    def log_image(self, key, images, step=None):
        self.shapes.append(images[0].shape[:2])


class Observed:
    """What `draw` reads of an observer."""

    name, log_figures, figure_rows, settings = "a", True, None, {}
    store = SimpleNamespace(steps=lambda: [1], read=lambda **_: pd.DataFrame())

    @staticmethod
    def figures(observations, settings):
        return {"b": new_panels(2, 4.0, 3.0).figure}


def test_other_loggers_get_the_whole_figure(tmp_path):
    tensorboard, images = TensorBoardLogger(tmp_path, "tb"), Images(tmp_path, "images")
    draw(Observed(), [tensorboard, images], 1)
    tensorboard.finalize("success")
    (event,) = EventAccumulator(tensorboard.log_dir).Reload().Images("a/figures/b")
    assert event.width == 350
    assert event.height > 400
    assert images.shapes == [(330, 880)]
    with for_cards():
        height, width = pixels(new_panels(2, 4.0, 3.0, fixed=True).figure).shape[:2]
        assert width > height  # beside each other
