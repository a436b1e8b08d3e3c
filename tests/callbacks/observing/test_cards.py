"""Figures for TensorBoard's cards: panels below each other, as wide as a card."""

import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lmdyn.callbacks.observing.figures import (
    for_cards,
    new_figure,
    new_panels,
    outer_legend,
    pixels,
    set_step_axis,
)
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


@pytest.mark.parametrize(("width", "shown"), [(5.0, 350), (9.0, 990)])
def test_a_figure_is_made_narrower_if_it_stays_readable(width, shown):
    with for_cards():
        assert pixels(new_figure(width)[0]).shape[1] == shown
    assert pixels(new_figure(width)[0]).shape[1] == width * 110


def test_legends_are_below_their_panels_and_complete():
    with for_cards():
        found = panels(2)
        for ax in found:
            for i in range(9):
                ax.plot([0, 1], [i, 1], label=f"a longer name, {i}")
            outer_legend(ax)
        pixels(found.figure)
        first, second = found
        for ax in found:
            box, of = ax.get_legend().get_window_extent(), ax.xaxis.label.get_window_extent()
            assert of.y0 >= box.y1
            assert box.x0 >= 0
            assert box.x1 <= found.figure.bbox.width
            assert box.y0 >= 0
        assert first.get_legend().get_window_extent().y0 > second.title.get_window_extent().y1


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


def test_a_grid_that_stays_has_its_legend_below_the_last_row():
    with for_cards():
        found = panels(3, most=2, fixed=True)
        found.legend()
        pixels(found.figure)
        assert found.grid[1, 0].get_legend() is not None


def test_a_legend_is_below_steps_and_tokens():
    with for_cards():
        found = new_panels(1, 4.0, 3.0)
        (ax,) = found
        ax.plot([0, 9], [0, 1], label="a")
        rows = pd.DataFrame({"step": [0, 9], "tokens": [0, 900], "quantity": "loss", "value": 1.0})
        set_step_axis(ax, rows["step"], rates=rows)
        outer_legend(ax)
        pixels(found.figure)
        assert ax.xaxis.label.get_window_extent().y0 >= ax.get_legend().get_window_extent().y1
