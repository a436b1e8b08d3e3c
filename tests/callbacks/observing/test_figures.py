"""Figures: the rows that are read for them suffice, texts are shown as they are, faults are found."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import LogNorm
from matplotlib.text import Text

from lmdyn.callbacks import ObservationStore, Sparsity
from lmdyn.callbacks.observing.figures import new_figure, outer_legend, pixels, say_why_empty
from tests.helpers.figure_faults import figure_faults

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


@pytest.mark.slow
def test_the_rows_read_for_the_figures_suffice(tmp_path):
    store = ObservationStore(tmp_path)
    for step in (0, 5, 20):
        store.write(step, observation(step))
    everything, some = store.read(), store.read(where=Sparsity.figure_rows)
    assert len(some) < len(everything)
    settings = {"sites": {"h1": "x", "logits": "y"}}
    expected, found = Sparsity.figures(everything, settings), Sparsity.figures(some, settings)
    assert list(found) == list(expected)
    assert len(found) == 4
    for name, figure in found.items():
        assert np.array_equal(pixels(figure), pixels(expected[name])), name
    assert not np.array_equal(pixels(found["rho_by_site"]), pixels(found["rho_by_pos_class"]))


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
        pixels(figure)
    assert not any(parsed for _, parsed in shown)
    return [text for text, _ in shown]


def crowded():
    """A figure with odd texts in every place for texts; ticks are made while it is drawn."""
    figure, axes = new_figure(9, 6, ncols=2, nrows=2)
    lines, image, table, log = axes.flat
    for i, word in enumerate(ODD):
        lines.plot([0, 1, 2], [i, 1, i], label=word)
    lines.set(title=f"title {ODD[0]}", xlabel=f"xlabel {ODD[0]}", ylabel=f"ylabel {ODD[0]}")
    lines.text(1, 1, f"text {ODD[0]}")
    outer_legend(lines, title=f"legend {ODD[0]}")
    bar = figure.colorbar(image.imshow(np.full((5, 5), 0.1), norm=LogNorm(1e-3, 1)), ax=image)
    bar.set_label(f"bar {ODD[0]}")
    image.set_xticks(range(5), ODD)
    table.table([ODD], bbox=(0, 0, 1, 1))
    log.set(xscale="symlog", yscale="log", xlim=(-20, 20), ylim=(2e-3, 6))
    figure.suptitle(f"suptitle {ODD[0]}")
    return figure


def test_no_text_is_parsed_as_mathematics():
    shown = texts(crowded())
    for place in ("title", "xlabel", "ylabel", "text", "legend", "bar", "suptitle"):
        assert f"{place} {ODD[0]}" in shown
    assert all(shown.count(word) >= 3 for word in ODD)  # legend, ticks, table
    assert {"10⁻³", "10⁻²", "10⁰", "−10¹", "10¹", "0"} <= set(shown)
    assert not any("mathdefault" in text for text in shown)
    assert mpl.rcParams["text.parse_math"]  # of the user's own figures


# ------------------------------------------------------------------------------------------ what is to be seen


def test_faults_are_found():
    figure, (left, right) = new_figure(ncols=2)
    left.plot([0, 1, 2], [0, 1, 2], "o-", label="a")
    left.set_xlim(0, 2)
    left.plot([0.5, 1.5], [1, 1], color="C3", label="b")
    left.plot([0.5, 1.5], [2, 2], color="C3", label="c")
    left.text(1, 1, "one text")
    left.text(1.02, 1, "another text")
    left.text(1, 0.5, "small", fontsize=4)
    right.annotate("far away", (0, 0), xytext=(-9000, 0), textcoords="offset points", annotation_clip=False)
    right.texts[0].set_in_layout(False)
    found = figure_faults(figure)
    assert {"beyond the canvas: 'far away'", "cut at the axes: a at [0.0, 0.0]"} <= {*found}
    assert {"look alike: 'b' and 'c'", "over one another: 'one text' and 'another text'"} <= {*found}
    assert "5.3 pixels in a report: 'small'" in found
    right.texts[0].remove()
    assert "empty, and does not say why: ''" in figure_faults(figure)
    say_why_empty(right, "no attention in an LSTM")
    assert not any(fault.startswith("empty") for fault in figure_faults(figure))
