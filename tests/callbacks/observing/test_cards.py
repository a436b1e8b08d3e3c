"""Figures for TensorBoard's cards: panels below each other, as wide as a card."""

import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lmdyn.callbacks.observing.figures import for_cards, new_panels, pixels
from lmdyn.callbacks.observing.loggers import draw

COLOURS = np.array([[200, 0, 0], [0, 160, 0], [0, 0, 220]])


def panels(number, width=4.0, height=3.0, **more):
    """Each is filled with a colour of its own."""
    found = new_panels(number, width, height, **more)
    for ax, colour in zip(found, COLOURS, strict=False):
        ax.set_facecolor(colour / 255)
        ax.plot([0, 1], [0, 1], color="black", label="line")
        ax.set_xlabel("steps")
        ax.set_ylabel("value")
    return found


def rows_of(picture):
    """From and to which row each colour is."""
    there = [(np.abs(picture.astype(int) - colour).max(-1) <= 2).any(1).nonzero()[0] for colour in COLOURS]
    return [(rows[0], rows[-1]) for rows in there if len(rows)]


@pytest.mark.parametrize("number", [2, 3])
def test_panels_are_below_each_other(number):
    assert len(set(rows_of(pixels(panels(number).figure)))) == 1  # the control
    with for_cards():
        picture = pixels(panels(number).figure)
        assert len(set(rows_of(pixels(panels(number, fixed=True).figure)))) == 1
    assert picture.shape[1] == 350
    below = rows_of(picture)
    assert len(below) == number
    assert all(above[1] < next_[0] for above, next_ in itertools.pairwise(below))
    heights = [last - first for first, last in below]
    assert min(heights) > 130
    assert max(heights) - min(heights) <= 2


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
        return {"b": panels(2).figure}


def test_other_loggers_get_the_whole_figure(tmp_path):
    tensorboard, images = TensorBoardLogger(tmp_path, "tb"), Images(tmp_path, "images")
    draw(Observed(), [tensorboard, images], 1)
    tensorboard.finalize("success")
    (event,) = EventAccumulator(tensorboard.log_dir).Reload().Images("a/b")
    assert event.width == 350
    assert event.height > 400
    assert images.shapes == [(330, 880)]
