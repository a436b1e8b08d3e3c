"""Figures: the rows that are read for them suffice, and pictures are those that a file would hold."""

import io

import numpy as np
import pandas as pd
from PIL import Image

from lmdyn.callbacks import ObservationStore, Sparsity
from lmdyn.callbacks.observing.figures import _pixels, new_figure


def observation(step):
    """What ``Sparsity`` answers, of four words."""
    random = np.random.default_rng(step)
    rows = [("frequency", "", "", "", w, 10.0 * (i + 1)) for i, w in enumerate("abcd")]
    for quantity in ("chi_activation", "chi_gradient", "l1_gradient"):
        for site in ("h1", "logits"):
            for role in ("target", "input"):
                rho = f"rho_{quantity.removeprefix('chi_')}"
                rows += [(rho, site, role, c, None, random.uniform(-1, 1)) for c in ("", "open", "closed")]
                rows += [(quantity, site, role, "open", w, random.uniform()) for w in "abcd"]
    rows.append(("learning_rate", "", None, None, None, 20.0 / (step + 1)))
    table = pd.DataFrame(rows, columns=["quantity", "site", "role", "pos_class", "word", "value"])
    return table.assign(step=step, tokens=step, upos="NOUN")


def test_the_rows_read_for_the_figures_suffice(tmp_path):
    store = ObservationStore(tmp_path)
    for step in (0, 5, 20):
        store.write(step, observation(step))
    everything, some = store.read(), store.read(where=Sparsity.figure_rows)
    assert len(some) < len(everything)
    settings = {"sites": {"h1": "x", "logits": "y"}}
    expected, found = Sparsity.figures(everything, settings), Sparsity.figures(some, settings)
    assert list(found) == list(expected)
    assert len(found) == 5
    for name, figure in found.items():
        assert np.array_equal(_pixels(figure), _pixels(expected[name])), name
    assert not np.array_equal(_pixels(found["rho_by_site"]), _pixels(found["rho_l1_gradient"]))


def test_pixels_are_those_of_a_png():
    figure, axes = new_figure()
    axes.plot([1, 2, 3], [3, 1, 2], label="a line")
    axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    assert np.array_equal(_pixels(figure), np.asarray(Image.open(buffer).convert("RGB")))
