"""Figures as TensorBoard's cards show them: columns below each other, as wide as a card."""

import itertools

import numpy as np
import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lmdyn.callbacks.observing.drawing.stacked_panels import stacked_pixels
from lmdyn.callbacks.observing.figures import new_panels, pixels
from lmdyn.callbacks.observing.loggers import log_figure

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
    return [(rows[0], rows[-1]) if len(rows) else None for rows in there]


@pytest.mark.parametrize("number", [2, 3])
def test_columns_are_below_each_other(number):
    beside = rows_of(pixels(panels(number).figure))
    assert len({rows for rows in beside if rows}) == 1  # the control
    picture = stacked_pixels(panels(number).figure)
    assert picture.shape[1] == 350
    below = [rows for rows in rows_of(picture) if rows]
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


def test_other_loggers_get_the_figure_as_it_is(tmp_path):
    figure = panels(2).figure
    tensorboard, images = TensorBoardLogger(tmp_path, "tb"), Images(tmp_path, "images")
    log_figure([tensorboard, images], "a/b", figure, 1)
    tensorboard.finalize("success")
    (event,) = EventAccumulator(tensorboard.log_dir).Reload().Images("a/b")
    assert event.width == 350
    assert event.height > 400
    assert images.shapes == [(330, 880)]
