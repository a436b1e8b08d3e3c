"""Figures: the rows that are read for them suffice, pictures are those of a file, texts are shown as they are."""

import io
import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import LogNorm
from matplotlib.text import Text
from PIL import Image

import lmdyn.callbacks
from lmdyn.callbacks import ObservationStore, Sparsity
from lmdyn.callbacks.observing.figures import _pixels, new_figure, outer_legend, set_step_axis

ODD = [r"$\frac$", "_x_", "<b>", "$x^2$", "US$ 3 and $4"]
"""Words of data; matplotlib's mathematics cannot draw the first, and alters others."""


def observation(step, words="abcd", sites=("h1", "logits")):
    """What ``Sparsity`` answers, of four words."""
    random = np.random.default_rng(step)
    rows = [("frequency", "", "", "", w, 10.0 * (i + 1)) for i, w in enumerate(words)]
    for quantity in ("chi_activation", "chi_gradient", "l1_gradient"):
        for site in sites:
            for role in ("target", "input"):
                rho = f"rho_{quantity.removeprefix('chi_')}"
                rows += [(rho, site, role, c, None, random.uniform(-1, 1)) for c in ("", "open", "closed")]
                rows += [(quantity, site, role, "open", w, random.uniform()) for w in words]
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


# ------------------------------------------------------------------------------------------ texts


def texts(figure):
    """What a figure shows once it is drawn, by every artist that shows a text."""
    shown = []
    with pytest.MonkeyPatch.context() as patch:
        original = Text.draw

        def draw(text, *args, **kwargs):
            shown.append((text.get_text(), text.get_parse_math()))
            return original(text, *args, **kwargs)

        patch.setattr(Text, "draw", draw)
        _pixels(figure)
    assert not any(parsed for _, parsed in shown)
    return [text for text, _ in shown]


def crowded():
    """A figure with odd texts in every place for texts; ticks are made while it is drawn."""
    figure, axes = new_figure(9, 6, ncols=2, nrows=2)
    lines, image, table, log = axes.flat
    for i, word in enumerate(ODD):
        lines.plot([0, 1, 2], [i, 1, i], label=word)
    lines.set_title(f"title {ODD[0]}")
    lines.set_title(f"left {ODD[0]}", loc="left")
    lines.set(xlabel=f"xlabel {ODD[0]}", ylabel=f"ylabel {ODD[0]}")
    lines.annotate(f"note {ODD[0]}", (0, 0))
    lines.text(1, 1, f"text {ODD[0]}")
    outer_legend(lines, title=f"legend {ODD[0]}")
    bar = figure.colorbar(image.imshow(np.full((5, 5), 0.1), norm=LogNorm(1e-3, 1)), ax=image)
    bar.set_label(f"bar {ODD[0]}")
    image.set_xticks(range(5), ODD)
    image.yaxis.set_major_formatter(lambda value, _: f"{ODD[0]} at {value:g}")
    table.table([ODD], bbox=(0, 0, 1, 1))
    log.set_xscale("symlog")
    log.set_yscale("log")
    log.set(xlim=(-20, 20), ylim=(2e-3, 6))
    figure.suptitle(f"suptitle {ODD[0]}")
    return figure


def test_no_text_is_parsed_as_mathematics():
    shown = texts(crowded())
    for place in ("title", "left", "xlabel", "ylabel", "note", "text", "legend", "bar", "suptitle"):
        assert f"{place} {ODD[0]}" in shown
    assert all(shown.count(word) >= 3 for word in ODD)  # legend, ticks, table
    assert f"{ODD[0]} at 2" in shown
    assert {"10⁻³", "10⁻²", "10⁰", "−10¹", "10¹", "0"} <= set(shown)
    assert not any("mathdefault" in text for text in shown)
    assert mpl.rcParams["text.parse_math"]  # of the user's own figures


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_files_are_written_of_any_text(kind):
    crowded().savefig(io.BytesIO(), format=kind)
    crowded().savefig(io.BytesIO(), format=kind, bbox_inches="tight")


def test_numbers_between_powers_of_ten():
    figure, ax = new_figure()
    ax.set_yscale("log")
    ax.set_ylim(2e-3, 6e-3)
    assert {"2×10⁻³", "3×10⁻³"} <= set(texts(figure))


def test_an_observer_of_odd_words_and_sites(tmp_path):
    store = ObservationStore(tmp_path)
    for step in (0, 5, 20):
        store.write(step, observation(step, ODD, (ODD[0], "logits")))
    shown = {name: texts(f) for name, f in Sparsity.figures(store.read(), {"sites": {ODD[0]: "x"}}).items()}
    assert set(ODD) <= set(shown["chi_gradient_by_frequency"])
    assert any(ODD[0] in text for text in shown["rho_by_site"])


def test_the_axis_of_steps_has_powers():
    figure, ax = new_figure()
    ax.plot([0, 1000], [1, 2])
    set_step_axis(ax, [0, 1, 2, 4, 8, 16, 32, 64, 1000])
    assert {"0", "10⁰", "10¹", "10²", "10³"} <= set(texts(figure))


def test_every_figure_of_an_observer_is_one_of_plain_texts():
    folder = Path(lmdyn.callbacks.__file__).parent
    made = {
        path.name: found
        for path in folder.rglob("*.py")
        if path.name != "figures.py"
        and (found := re.findall(r"(?<!PlainText)\bFigure\(|pyplot", path.read_text()))
    }
    assert not made
