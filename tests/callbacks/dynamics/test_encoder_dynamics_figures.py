"""The histogram of transients of an encoder's dynamics: it tells what was recorded."""

import io

import numpy as np
import pandas as pd
import pytest

from lmdyn.callbacks import EncoderDynamics

TAU, HORIZON = 50, 2000
LENGTHS = [0.0, 0.0, 100.0, 150.0, 150.0, 400.0, HORIZON, HORIZON]  # of transients; the last two are censored


def test_transient_lengths_add_up():
    rows = [
        {"quantity": f"sentence_orbit_{name}", "value": value, "sentence": i}
        for i, length in enumerate(LENGTHS)
        for name, value in (("length", length), ("censored", float(length == HORIZON)))
    ]
    groups = dict.fromkeys(("length", "width", "kind"))
    table = pd.DataFrame(rows).assign(step=100, tokens=1000, site="", **groups)
    figure = EncoderDynamics.figures(table, {"long_tau": TAU})["transient_lengths"]
    figure.savefig(io.BytesIO(), dpi=40)  # warnings are errors
    none, ax, outlast = figure.axes
    heights, edges, _ = ax.patches[0].get_data()
    assert (none.patches[0].get_height(), outlast.patches[0].get_height()) == (0.25, 0.25)
    assert heights.sum() == pytest.approx(0.5)
    for length, share in ((100.0, 1 / 8), (150.0, 2 / 8), (400.0, 1 / 8)):
        assert heights[np.searchsorted(edges, length) - 1] == pytest.approx(share)
    assert np.allclose((edges / TAU) % 1, 0.5)  # no edge at a length that there may be
