"""Figures: the rows that are read for them suffice, pictures are those of a file, texts are shown as they are."""

import io
import re
from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import LogNorm, to_rgb
from matplotlib.text import Text
from PIL import Image

import lmdyn.callbacks
from lmdyn.callbacks import Geometry, LearningCurves, ObservationStore, Sparsity
from lmdyn.callbacks.observing.drawing.style import STYLE
from lmdyn.callbacks.observing.figures import (
    COLOURS,
    MOST_LINES,
    cell_values,
    draw_band,
    draw_lines,
    error_band,
    from_zero,
    label_points,
    lay_out,
    line_styles,
    new_figure,
    new_panels,
    outer_legend,
    pixels,
    say_why_empty,
    set_step_axis,
    shades,
)
from lmdyn.runs.schema import select
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


def test_pixels_are_those_of_a_png():
    figure, axes = new_figure()
    axes.plot([1, 2, 3], [3, 1, 2], label="a line")
    axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    assert np.array_equal(pixels(figure), np.asarray(Image.open(buffer).convert("RGB")))


# ------------------------------------------------------------------------------------------ texts


def panel(figure, title):
    return next(ax for ax in figure.axes if title in (ax.get_title(loc="left"), ax.get_title()))


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


@pytest.mark.slow
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


def test_lines_are_in_the_order_of_their_looks_and_only_of_what_is_there():
    rows = pd.DataFrame({"step": [2, 0, 1], "site": ["a", "a", "b"], "value": [3.0, 1.0, 5.0]})
    _, ax = new_figure()
    looks = {"b": {"color": "C3"}, "nowhere": {"color": "C4"}, "a": {"color": "C5", "label": "other"}}
    draw_lines(ax, rows, "site", looks, label=lambda site: f"site {site}", lw=2)
    assert [line.get_label() for line in ax.lines] == ["site b", "other"]
    assert [line.get_color() for line in ax.lines] == ["C3", "C5"]
    assert [line.get_lw() for line in ax.lines] == [2, 2]
    np.testing.assert_array_equal(ax.lines[1].get_xydata(), [[0, 1], [2, 3]])  # in the order of steps


def test_panels_are_counted_in_rows_and_the_rest_is_empty():
    panels = new_panels(5, 2, 1, margin=(0.5, 0.25))
    assert panels.grid.shape == (2, 3)
    assert panels.figure.get_size_inches().tolist() == [6.5, 2.25]
    assert len(list(panels)) == 5
    assert [ax.axison for ax in panels.grid.flat] == [True] * 5 + [False]
    panels.set_ylabel("there")
    assert [ax.get_ylabel() for ax in panels.grid.flat] == ["there", "", "", "there", "", ""]
    list(panels)[4].plot([0, 1], label="below")
    panels.legend(of_all=True)
    assert [text.get_text() for text in panels.grid[0, -1].get_legend().get_texts()] == ["below"]


def test_shades_go_from_the_first_to_the_last():
    found = shades(["a", "b", "c"], first=0.9, last=0.0)
    for name, at in (("a", 0.9), ("b", 0.45), ("c", 0.0)):
        np.testing.assert_array_equal(found[name]["color"], mpl.colormaps["viridis"](at))
    assert list(shades([])) == []


def test_cells_show_what_is_finite_in_a_colour_that_can_be_read():
    _, ax = new_figure()
    cell_values(ax, np.array([[0.9, -0.001], [np.nan, 0.25]]), lambda value: value > 0.5, fontsize=7)
    assert [(t.get_text(), t.get_position(), t.get_color()) for t in ax.texts] == [
        ("0.90", (0, 0), "k"), ("0.00", (1, 0), "w"), ("0.25", (1, 1), "w"),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------ what is to be seen


def outside(figure):
    """Labels of axes of which a part is beyond the picture's edge, once its layout is found."""
    lay_out(figure, 150)
    edge = figure.bbox.padded(1)
    labels = [axis.label for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)]
    boxes = [(label.get_text(), label.get_window_extent()) for label in labels if label.get_text()]
    return [text for text, box in boxes if not (edge.contains(*box.min) and edge.contains(*box.max))]


LONG = "Pearson ρ(mean ‖gradient‖₁ of a word, its frequency)"


@pytest.mark.parametrize("breaks", [True, False])
def test_long_labels_of_axes_are_broken_and_not_cut(breaks, monkeypatch):
    figure, (left, right) = new_figure(7.5, 3.5, ncols=2)
    left.set_ylabel(LONG)
    right.set_xlabel(f"{LONG} and its rank")
    right.set_ylabel("short enough")
    left.set_title("above\nall")
    if not breaks:  # the control: what is seen without
        monkeypatch.setattr(type(figure), "_break_labels", lambda figure, where: False)
        assert len(outside(figure)) == 2
        return
    assert outside(figure) == []
    assert left.get_ylabel() == "Pearson ρ(mean ‖gradient‖₁ of a word,\nits frequency)"
    assert right.get_xlabel().replace("\n", " ") == f"{LONG} and its rank"
    assert right.get_ylabel() == "short enough"
    pixels(figure)
    assert left.get_ylabel().count("\n") == 1  # once


def test_a_word_that_is_too_long_stays_whole():
    figure, ax = new_figure(2, 1)
    ax.set_ylabel("a" * 60)
    lay_out(figure, 100)
    assert ax.get_ylabel() == "a" * 60


def test_labels_of_several_rows_of_panels_do_not_meet():
    panels = new_panels(3, 5, 2, most=1)
    panels.set_ylabel("deviation D(t), mean of all sentences")
    lay_out(panels.figure, 100)
    boxes = [ax.yaxis.label.get_window_extent() for ax in panels]
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


def test_bands_of_correlations_stay_between_minus_one_and_one():
    values, errors = (
        np.array([0.97, -0.9, 0.0, 1.0, np.nan, 0.5]),
        np.array([0.1, 0.4, 0.001, 0.1, 0.1, np.nan]),
    )
    low, high = error_band(values, errors, "fisher")
    known = [0, 1, 2, 3]
    assert ((low >= -1) & (low <= values) & (values <= high) & (high <= 1))[known].all()
    assert np.isnan([low[4:], high[4:]]).all()
    np.testing.assert_allclose(low[2], -0.002, rtol=1e-4)  # of small errors it is two of them
    plain = error_band(values, errors)
    np.testing.assert_array_equal(plain[1][known], (values + 2 * errors)[known])
    assert plain[1][0] > 1  # the control


def test_the_band_of_sparsitys_correlation_stays_there():
    tables = []
    for step, rho in ((0, -0.95), (5, 0.1), (20, 0.98)):
        table = observation(step)
        table.loc[table["quantity"].eq("rho_gradient"), "value"] = rho
        errors = table[table["quantity"].eq("rho_gradient")].assign(quantity="rho_gradient_error", value=0.2)
        tables += [table, errors]
    figure = Sparsity.figures(pd.concat(tables, ignore_index=True), {"sites": {"h1": "x", "logits": "y"}})
    band = panel(figure["rho_by_site"], "rho gradient, target").collections[0]
    vertices = band.get_paths()[0].vertices
    assert np.abs(vertices[:, 1]).max() <= 1
    assert vertices[:, 1].max() > 0.99
    assert vertices[:, 1].min() < -0.97


def test_labels_beside_points_lie_over_nothing_else():
    random = np.random.default_rng(0)
    points = [(x, y, f"word {i}", "C0") for i, (x, y) in enumerate(random.uniform(0, 1, (60, 2)))]
    figure, ax = new_figure(5, 4)
    ax.scatter(*zip(*[(x, y) for x, y, *_ in points], strict=True))
    label_points(ax, points)
    lay_out(figure, 150)
    boxes = {text.get_text(): text.get_window_extent() for text in ax.texts}
    assert "word 0" in boxes
    assert 30 < len(boxes) < 60  # most, where there is a place
    assert not any(a.overlaps(b) for i, a in enumerate(boxes.values()) for b in list(boxes.values())[:i])
    for x, y, name, _ in points:
        at = ax.transData.transform((x, y))
        assert not any(box.contains(*at) for label, box in boxes.items() if label != name)
    assert all(box.x0 >= ax.bbox.x0 - 1 and box.x1 <= ax.bbox.x1 + 1 for box in boxes.values())


@pytest.mark.parametrize("step", [0, 7, 1_000_000])
def test_a_single_step_has_its_own_tick_and_points_that_are_seen(step):
    figure, ax = new_figure()
    rows = pd.DataFrame(
        {"step": step, "site": ["a", "b"], "value": [0.0, 0.5], "quantity": "loss", "tokens": 3 * step}
    )
    draw_lines(ax, rows, "site", {"a": {"color": "C0"}, "b": {"color": "C1", "ls": "--"}}, ms=4)
    ax.axhline(0.2)
    draw_band(ax, [step], [0.4], [0.6], color="C1", alpha=0.1)
    ax.set_ylim(bottom=0)
    set_step_axis(ax, [step, step], rates=rows)
    assert ax.get_xticks().tolist() == [step]
    assert ax.get_xlim() == (step - 1, step + 1)
    a, b, level = ax.lines
    assert [line.get_markersize() for line in (a, b)] == [6, 6]
    assert [line.get_marker() for line in (a, b, level)] == ["o", "s", "None"]
    assert not a.get_clip_on()  # at 0 it would be cut in half
    (band,) = ax.collections
    np.testing.assert_array_equal(band.get_segments()[0], [[step, 0.4], [step, 0.6]])
    shown = [text.replace(",", "") for text in texts(figure)]
    assert {0: "0", 7: "7\n21"}.get(step, shown[0]) in shown


def test_more_steps_have_lines_bands_and_room_at_both_ends():
    _, ax = new_figure()
    rows = pd.DataFrame({"step": [0, 10], "site": "a", "value": [0.0, 0.5]})
    draw_lines(ax, rows, "site", {"a": {"color": "C0"}}, ms=4)
    draw_band(ax, [0, 10], [0, 0.4], [0.1, 0.6], color="C1", alpha=0.1)
    set_step_axis(ax, [0, 10])
    assert ax.get_xlim() == pytest.approx((-0.2, 10.2))  # marks at the first and the last step are whole
    assert (ax.lines[0].get_marker(), ax.lines[0].get_markersize()) == (".", 4)
    assert len(ax.collections[0].get_paths()[0].vertices) > 4


# ------------------------------------------------------------------------------------------ the style


SEEN_BY = {  # Machado, Oliveira & Fernandes 2009, table 1: severity 1.0, of linear RGB
    "everyone": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
}  # fmt: skip


def lab(colour, seen_by):
    """CIE L*a*b* of a colour as it is seen: distances are just seen from about 2 on."""
    rgb = np.array(to_rgb(colour))
    rgb = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    rgb = np.clip(np.array(SEEN_BY[seen_by]) @ rgb, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ rgb / to_xyz.sum(1)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def least_distance(colours, seen_by):
    labs = [lab(colour, seen_by) for colour in colours]
    return min(np.linalg.norm(one - other) for one, other in combinations(labs, 2))


@pytest.mark.parametrize("seen_by", SEEN_BY)
def test_colours_of_lines_are_told_apart(seen_by):
    assert least_distance(COLOURS.values(), seen_by) > 15
    assert all(lab(colour, seen_by)[0] < 80 for colour in COLOURS.values())  # on white
    if seen_by != "everyone":
        usual = [mpl.colormaps["tab10"](i) for i in range(MOST_LINES)]
        assert least_distance(usual, seen_by) < 10  # the control


def test_a_figure_is_in_the_style_and_the_users_settings_stay():
    before = dict(mpl.rcParams)
    figure = Sparsity.figures(
        pd.concat([observation(0), observation(9)]), {"sites": {"h1": "x", "logits": "y"}}
    )
    pixels(figure["rho_by_pos_class"])
    assert dict(mpl.rcParams) == before
    ax = figure["rho_by_pos_class"].axes[0]
    assert not ax.spines["top"].get_visible()
    assert ax.title.get_fontsize() == ax._left_title.get_fontsize() == STYLE["axes.titlesize"]
    assert ax.get_title(loc="left")
    assert not ax.get_title(loc="center")
    assert {tick.label1.get_fontsize() for tick in ax.yaxis.get_major_ticks()} == {STYLE["ytick.labelsize"]}
    assert ax.lines[0].get_color() == COLOURS["blue"]


def test_an_axis_from_zero_has_room_for_marks_there():
    for values, top in (([0.0, 4.0], None), ([0.0, 1.0], 1.0), ([0.0, 0.0], None), ([3.9999, 4.0], None)):
        figure, ax = new_figure()
        ax.plot([0, 1], values, marker="o")
        from_zero(ax, top)
        set_step_axis(ax, [0, 1])
        assert figure_faults(figure) == []
        low, high = ax.get_ylim()
        assert low < 0 <= max(values) < high
        ax.set_ylim(0, max(*values, 0.1))  # the control
        assert [fault.split(":")[0] for fault in figure_faults(figure)] == ["cut at the axes"]


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
    assert [fault for fault in found if not fault.startswith("over")] == [
        "5.3 pixels in a report: 'small'",
        "beyond the canvas: 'far away'",
        "cut at the axes: a at [0.0, 0.0]",
        "look alike: 'b' and 'c'",
    ]
    assert "over one another: 'one text' and 'another text'" in found
    right.texts[0].remove()
    assert "empty, and does not say why: ''" in figure_faults(figure)
    say_why_empty(right, "no attention in an LSTM")
    assert not any(fault.startswith("empty") for fault in figure_faults(figure))


def test_of_many_tags_there_are_at_most_eight_lines_a_panel():
    tags = [f"TAG{i}" for i in range(17)]
    rows = [
        (step, 10 * step, quantity, "", "upos", tag, i + step / 9)
        for step in (0, 1, 9)
        for i, tag in enumerate(tags)
        for quantity in ("loss", "accuracy")
    ]
    columns = ["step", "tokens", "quantity", "site", "by", "group", "value"]
    rows += [(step, 10 * step, "learning_rate", "", None, None, 1.0) for step in (0, 1, 9)]
    figures = LearningCurves.figures(pd.DataFrame(rows, columns=columns), {})
    for figure in figures.values():
        assert figure_faults(figure) == []
        lines = [[str(line.get_label()) for line in ax.lines] for ax in figure.axes]
        assert max(map(len, lines)) <= MOST_LINES
        assert [name for panel in lines for name in panel] == tags  # in the order of the last values


def test_of_many_sites_every_name_is_in_the_legend_and_within_the_picture():
    sites = tuple(f"layer{i}" for i in range(24))
    table = pd.concat([observation(step, sites=sites) for step in (0, 5, 20)], ignore_index=True)
    figure = Sparsity.figures(table, {"sites": dict.fromkeys(sites, "x")})["rho_by_site"]
    assert figure_faults(figure) == []
    (legend,) = filter(None, (ax.get_legend() for ax in figure.axes))
    assert [text.get_text().replace(" ", "") for text in legend.get_texts()] == list(sites)


def test_lines_beyond_the_colours_are_dashed():
    looks = list(line_styles(range(2 * MOST_LINES)).values())
    assert looks[0] == {"color": COLOURS["blue"], "ls": "-"}
    assert looks[MOST_LINES] == {"color": COLOURS["blue"], "ls": "--"}


def test_panels_show_the_declared_rows_only():
    """A panel of target words has no numbers of input words, with which they would be averaged."""
    tables = [observation(step) for step in (0, 5, 20)]
    table = pd.concat(tables, ignore_index=True)
    figure = Sparsity.figures(table, {"sites": {"h1": "x", "logits": "y"}})["rho_by_site"]
    drawn = panel(figure, "rho gradient, target").lines
    lines = {str(line.get_label()): line.get_ydata() for line in drawn}
    for site in ("h1", "logits"):
        expected = select(table, quantity="rho_gradient", site=site, role="target", pos_class="")["value"]
        np.testing.assert_array_equal(lines[site], expected)
    both = select(table, quantity="rho_gradient", site="h1", pos_class="").groupby("step")["value"].mean()
    assert not np.allclose(lines["h1"], both)  # the control


def test_floors_are_those_of_the_panel():
    rows = [
        (step, 0, quantity, site, over, None, value)
        for step in (0, 5)
        for site in ("a", "b")
        for over, more in (("all", 0.0), ("last", 10.0))
        for quantity, value in (("rankme", 5.0 + more), ("rankme_white_noise", 7.0 + more))
    ]
    table = pd.DataFrame(rows, columns=["step", "tokens", "quantity", "site", "over", "head", "value"])
    table = table.astype({"head": "Int64"})

    def lines(of):
        axes = Geometry.figures(of, {})["ranks"].axes
        return [[[float(y) for y in line.get_ydata()] for line in ax.lines] for ax in axes]

    assert lines(table) == [[[5, 5], [5, 5], [7, 7]], [[15, 15], [15, 15], [17, 17]]]
    assert lines(table[table["site"].eq("a")]) == [[[5, 5], [15, 15], [7, 7], [17, 17]]]
