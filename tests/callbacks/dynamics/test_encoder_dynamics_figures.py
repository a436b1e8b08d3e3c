"""Figures and tables of an encoder's dynamics: what is drawn and told is what was recorded."""

import io

import numpy as np
import pandas as pd
import pytest

from lmdyn.callbacks.dynamics.encoder_dynamics_figures import dynamics_figures
from lmdyn.callbacks.dynamics.encoder_dynamics_tables import (
    curves,
    dynamics_numbers,
    dynamics_tables,
    main_length,
)
from lmdyn.callbacks.observing.store import ObservationStore

GROUPS = ["length", "term", "width", "kind", "t", "sentence", "token", "key", "component"]
QUANTITIES = {  # what each figure needs
    "synchronization": ["first_element"],
    "synchronization_offset": ["sentence_offset"],
    "short_term": ["effective_dimension", "deviation"],
    "perturbation": ["trajectory"],
    "long_term": ["sentence_local_exponent"],
    "attractor_view": ["principal_component"],
    "transient_lengths": ["sentence_transient_length"],
    "orbit_kinds": ["orbit_share"],
}
OVER_TRAINING = [
    "synchronization_offset", "mean_exponent", "chaotic_share", "transient_length", "peak_effective_dimension",
]  # fmt: skip
T, TAU, HORIZON, TOKENS = 100, 50, 2000, 4
KIND_SHARES = {"chaotic": 0.5, "torus": 0.25, "cycle": 0.0, "fixed point": 0.0, "undetermined": 0.25}
LENGTHS = [0.0, 0.0, 100.0, 150.0, 150.0, 400.0, HORIZON, HORIZON]  # of transients; the last two are censored
EXPONENT = np.round(np.sin(np.arange(0, T, 10)), 3)
DIMENSION = np.linspace(9, 2, 5)
DEVIATION = 30 * np.exp(-np.arange(T + 1) / 4.0)
ATTENTION = np.random.default_rng(0).dirichlet(np.ones(TOKENS), (3, TOKENS))


def table(rows, step=0):
    """Rows ``(quantity, value, groups)`` as an observer answers them."""
    found = pd.DataFrame([{"quantity": q, "value": v, **groups} for q, v, groups in rows])
    found = found.reindex(columns=["quantity", *GROUPS, "value"])
    for name in GROUPS:
        whole = name not in ("term", "kind")
        found[name] = (
            found[name].astype("Int64")
            if whole
            else found[name].astype(object).where(found[name].notna(), None)
        )
    return found.assign(step=step, tokens=step * 10, site="", value=found["value"].astype(float))


def observed(step=100, scale=1.0, lengths=LENGTHS):
    """What ``EncoderDynamics`` says at one step."""
    rows = []

    def add(quantity, value, **groups):
        rows.append((quantity, value, groups))

    for n in (8, 32):
        offsets = scale * (n + np.array([1.0, 2, 3, 4, 5, 60, np.nan, 7]))
        for i, value in enumerate(offsets):
            add("sentence_offset", value, length=n, sentence=i)
        add("synchronization_offset", np.nanmean(offsets), length=n)
        add("synchronized_share", 7 / 8, length=n)
    for i, value in enumerate(lengths):
        censored = value == HORIZON
        add("sentence_transient_length", value, sentence=i)
        add("sentence_censored", float(censored), sentence=i)
        add("sentence_exponent", 0.1 if value else np.nan, sentence=i)
    for width, value in ((10, 600.0), (20, float(np.mean(lengths))), (40, 700.0)):
        add("transient_length", value, width=width)
    chaotic, over = np.mean(np.array(lengths) > 0), np.mean(np.array(lengths) == HORIZON)
    for quantity, value in (
        ("mean_exponent", 0.1 * scale), ("chaotic_share", chaotic), ("censored_share", over), ("attractors", 2),
        ("largest_attractor_share", 0.5), ("transverse_exponent", -0.3), ("peak_effective_dimension", 9 * scale),
        ("deviation_floor", 6e-6), ("learning_rate", 0.001),
    ):  # fmt: skip
        add(quantity, value)
    for kind, value in KIND_SHARES.items():
        add("orbit_share", value, kind=kind)
    for t, value in ((0, 1.0), (300, 0.75), (450, 0.5)):
        add("survival", value, t=t)
    for i, value in enumerate(EXPONENT):
        add("local_exponent", scale * value, term="short", t=10 * i)
    for i, value in enumerate(DIMENSION):
        add("effective_dimension", scale * value, t=25 * i)
    for t, value in enumerate(DEVIATION):
        add("example_deviation", value if t < 80 else 0.0, t=t)  # exactly equal at last
        if t < 50:
            add("deviation", 2 * scale * value, t=t)
        for token in range(TOKENS):
            add("first_element", token / 10 + t, t=t, token=token)
    for i, weights in enumerate(ATTENTION):
        for (query, key), value in np.ndenumerate(weights):
            add("attention", value, t=50 * i, token=query, key=key)
    for i, t in enumerate(range(0, HORIZON, TAU)):
        add("local_exponent", 0.01 * i, term="long", t=t)
        for sentence in range(2):
            if sentence == 0 or i < 5:  # one that was not followed to the end
                add("sentence_local_exponent", 0.02 * i + sentence, term="long", t=t, sentence=sentence)
    for t in range(30):
        add("trajectory", np.sin(t), t=t, kind="original")
        add("trajectory", np.sin(t + 0.01), t=t, kind="perturbed")
        add("trajectory_difference", 1e-4 * 1.2**t, t=t)
        for component in (1, 2, 3):
            add("principal_component", np.cos(component * t), t=t, component=component)
    return table(rows, step)


def together(**runs):
    return pd.concat([of.assign(run=f"runs/study/{run}") for run, of in runs.items()], ignore_index=True)


@pytest.fixture(scope="module")
def one():
    return observed()


@pytest.fixture(scope="module")
def figures(one):
    return dynamics_figures(one, {"long_tau": TAU, "length": 32})


@pytest.fixture(scope="module")
def several():
    """A run of two steps, its control of one."""
    trained = pd.concat([observed(0, 0.5), observed(100, 2.0)], ignore_index=True)
    return together(trained=trained, initial=observed(0, 1.0, lengths=[0.0] * 6 + [50.0, np.nan]))


def only(observations, *quantities):
    """The rows of these: a figure takes a while."""
    return observations[observations["quantity"].isin(quantities)]


def draw(figures, *names):
    for name in names or figures:
        figures[name].savefig(io.BytesIO(), dpi=40)  # warnings are errors


def lines(ax):
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def legend(figure):
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


# ------------------------------------------------------------------------------------------ one observation


def test_all_figures_of_one_observation(figures):
    assert set(figures) == set(QUANTITIES)
    draw(figures)


def test_synchronization_is_what_was_recorded(figures):
    tokens, maps, deviations = figures["synchronization"].axes
    for token in range(TOKENS):
        line = lines(tokens)[f"token {token}"]
        assert np.array_equal(line.get_xdata(), np.arange(T + 1))
        assert np.array_equal(line.get_ydata(), token / 10 + np.arange(T + 1))
    drawn = lines(deviations)
    example = drawn["this sentence"].get_ydata()
    assert np.array_equal(example[:80], DEVIATION[:80])
    assert np.isnan(example[80:]).all()  # 0 is a gap on a logarithmic axis
    assert np.array_equal(drawn["mean of sentences"].get_ydata(), 2 * DEVIATION[:50])
    assert drawn["threshold 1e-05"].get_ydata()[0] == 1e-5
    first = int(np.argmax(DEVIATION < 1e-5))
    assert drawn[f"synchronized\nat t = {first}"].get_xdata()[0] == first
    images = [ax.images[0] for ax in maps.child_axes if ax.images]
    assert [ax.get_title() for ax in maps.child_axes if ax.images] == ["t = 0", "t = 50", "t = 100"]
    for image, weights in zip(images, ATTENTION, strict=True):
        assert np.array_equal(image.get_array(), weights)  # rows are queries
        assert image.get_clim() == (0, ATTENTION.max())
    assert tokens.get_xlim() == maps.get_xlim() == deviations.get_xlim()


def test_another_threshold(one):
    rows = only(one, "first_element", "example_deviation")
    _, deviations = dynamics_figures(rows, {"threshold": 0.1})["synchronization"].axes
    first = int(np.argmax(DEVIATION < 0.1))
    assert {"threshold 0.1", f"synchronized\nat t = {first}"} < set(lines(deviations))


def test_offsets_by_length(figures):
    (ax,) = figures["synchronization_offset"].axes
    means = [line for line in ax.lines if line.get_marker() == "^" and len(line.get_xdata())]
    offsets = np.array([1.0, 2, 3, 4, 5, 60, 7])
    assert [line.get_ydata().item() for line in means] == pytest.approx(
        [8 + offsets.mean(), 32 + offsets.mean()]
    )
    outliers = [line.get_ydata().tolist() for line in ax.lines if line.get_marker() == "D"]
    assert outliers == [[68.0], [92.0], []]  # the last is the legend's
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["8", "32"]
    assert [text.get_text() for text in ax.texts] == ["88%", "88%"]  # one of eight did not synchronize


def test_short_term_is_what_was_recorded(figures):
    exponent, dimension, deviation = figures["short_term"].axes
    assert exponent.get_ylabel().replace("\n", " ") == "λ(t) (nats a step, τ = 10)"
    for ax, x, y in (
        (exponent, np.arange(0, T, 10), EXPONENT),
        (dimension, 25 * np.arange(5), DIMENSION),
        (deviation, np.arange(50), 2 * DEVIATION[:50]),
    ):
        line = lines(ax)["step 100"]
        assert np.array_equal(line.get_xdata(), x)
        assert np.array_equal(line.get_ydata(), y)


def test_perturbation_and_components(figures):
    trajectory, difference = figures["perturbation"].axes
    assert np.allclose(lines(trajectory)["original"].get_ydata(), np.sin(np.arange(30)))
    assert np.allclose(lines(trajectory)["perturbed"].get_ydata(), np.sin(np.arange(30) + 0.01))
    assert np.array_equal(difference.lines[0].get_ydata(), [1e-4 * 1.2**t for t in range(30)])
    assert difference.get_yscale() == "log"
    panels = figures["attractor_view"].axes[:2]
    for ax, component in zip(panels, (2, 3), strict=True):
        (points,) = ax.collections
        expected = np.stack([np.cos(np.arange(30)), np.cos(component * np.arange(30))], 1)
        assert np.allclose(points.get_offsets(), expected)
        assert np.array_equal(points.get_array(), np.arange(30))


def test_long_term_is_what_was_recorded(figures):
    (ax,) = figures["long_term"].axes
    drawn, windows = lines(ax), np.arange(HORIZON // TAU)
    assert ax.get_ylabel() == "λ (nats a step, τ = 50)"
    assert np.array_equal(drawn["mean of sentences"].get_ydata(), 0.01 * windows)
    assert np.array_equal(drawn["sentence 0"].get_ydata(), 0.02 * windows)
    second = drawn["sentence 1"].get_ydata()
    assert np.array_equal(second[:5], 0.02 * windows[:5] + 1)
    assert np.isnan(second[5:]).all()


def test_transient_lengths_add_up(figures):
    none, ax, outlast = figures["transient_lengths"].axes
    (outline,) = (patch for patch in ax.patches if not patch.get_fill())
    heights, edges, _ = outline.get_data()
    assert (none.patches[0].get_height(), outlast.patches[0].get_height()) == (0.25, 0.25)
    assert heights.sum() == pytest.approx(0.5)
    for length, share in ((100.0, 1 / 8), (150.0, 2 / 8), (400.0, 1 / 8)):
        assert heights[np.searchsorted(edges, length) - 1] == pytest.approx(share)
    assert np.allclose((edges / TAU) % 1, 0.5)  # no edge at a length that there may be
    assert outlast.get_xlabel() == "not over\nat 2,000"


@pytest.mark.parametrize("lengths", [[0.0, 0.0], [HORIZON, HORIZON], [50.0], [0.0, np.nan]])
def test_transients_of_one_kind(lengths):
    rows = only(observed(lengths=lengths), "sentence_transient_length", "sentence_censored")
    of = dynamics_figures(rows, {"long_tau": TAU})
    draw(of)
    none, ax, outlast = of["transient_lengths"].axes
    heights = next(patch for patch in ax.patches if not patch.get_fill()).get_data()[0]
    assert none.patches[0].get_height() + heights.sum() + outlast.patches[0].get_height() == pytest.approx(1)


# ------------------------------------------------------------------------------------------ what is missing


@pytest.mark.parametrize("figure", QUANTITIES)
def test_a_figure_is_left_out_without_its_values(one, figure):
    rows = only(one, *QUANTITIES[figure])
    assert set(dynamics_figures(rows)) == {figure}
    assert dynamics_figures(rows.assign(value=np.nan)) == {}


def test_parts_of_figures_that_are_missing(one):
    kept = only(one, "first_element", "trajectory", "principal_component", "local_exponent")
    kept = kept[~kept["component"].isin((3,)) & ~kept["kind"].isin(("perturbed",))]
    figures = dynamics_figures(kept)
    assert set(figures) == {"synchronization", "perturbation", "attractor_view", "short_term", "long_term"}
    draw(figures, "synchronization", "attractor_view")
    assert len(figures["synchronization"].axes) == 1
    assert set(lines(figures["perturbation"].axes[0])) == {"original"}
    assert [len(ax.collections) for ax in figures["attractor_view"].axes[:2]] == [1, 0]
    assert len(figures["short_term"].axes) == 1
    assert set(lines(figures["long_term"].axes[0])) == {"mean of sentences"}


def test_a_model_whose_layers_differ():
    """Time is depth: a few layers, windows of one step, no long term."""
    rows = [("local_exponent", 0.1 * t, {"term": "short", "t": t}) for t in range(4)]
    rows += [(q, 5.0 - t, {"t": t}) for t in range(5) for q in ("deviation", "effective_dimension")]
    rows += [("depth_exponent", 0.05 * (t - 1), {"t": t}) for t in range(1, 5)]
    rows.append(("peak_effective_dimension", 5.0, {}))
    of = table(rows)
    figures = dynamics_figures(of, {"short_tau": 10})
    assert set(figures) == {"short_term"}
    draw(figures)
    at_each, up_to_each, *_ = axes = figures["short_term"].axes
    assert at_each.get_ylabel().replace("\n", " ") == "λ(t) (nats a layer, τ = 1)"
    assert "of the first t layers" in up_to_each.get_ylabel()
    (line,) = lines(up_to_each).values()
    np.testing.assert_allclose(line.get_xydata(), [[1, 0.0], [2, 0.05], [3, 0.1], [4, 0.15]])
    assert axes[-1].get_xlabel() == "t (layers)"
    beside = dynamics_figures(together(shared=observed(), layers=of))["short_term"].axes  # steps and layers
    assert beside[0].get_ylabel() == "λ(t) (nats a step or layer, τ = 1 or 10)"
    assert beside[-1].get_xlabel() == "t (steps of the map, or layers where they differ)"
    tables = dynamics_tables(of, {})
    assert set(tables) == {"dynamics"}
    assert tables["dynamics"]["peak_effective_dimension"].item() == 5
    assert tables["dynamics"]["synchronization_offset"].isna().all()


def test_nothing_but_a_learning_rate():
    of = table([("learning_rate", 0.1, {})])
    assert dynamics_figures(of) == {}
    assert len(dynamics_tables(of)["dynamics"]) == 0


def test_a_diverged_step(one):
    """All values are NaN at the last step: no figure of it, and no value in the table."""
    last = one.assign(step=200, value=np.nan)
    both = pd.concat([one, last], ignore_index=True)
    rows = only(both, *OVER_TRAINING, "sentence_offset", "first_element", "sentence_transient_length")
    figures = dynamics_figures(rows)
    assert set(figures) == {"over_training"}
    draw(figures)
    numbers = dynamics_tables(both)["dynamics"].set_index("step")
    assert numbers.loc[100].notna().all()
    assert numbers.loc[200].isna().all()


# ------------------------------------------------------------------------------------------ over training


def test_steps_of_one_run():
    steps = list(range(0, 1000, 100))
    both = pd.concat([observed(step, 1 + step / 1000) for step in steps], ignore_index=True)
    figures = dynamics_figures(only(both, "mean_exponent", "local_exponent"), {"long_tau": TAU})
    assert set(figures) == {"short_term", "long_term", "over_training"}
    draw(figures, "short_term")
    drawn = lines(figures["short_term"].axes[0])
    assert len(drawn) == 8  # of ten steps
    assert {"step 0", "step 900"} < set(drawn)
    assert np.allclose(drawn["step 900"].get_ydata(), 1.9 * EXPONENT)
    panel = next(ax for ax in figures["over_training"].axes if "mean λ" in ax.get_title(loc="left"))
    line = next(line for line in panel.lines if len(line.get_xdata()) == 10)
    assert line.get_xdata().tolist() == steps
    assert np.allclose(line.get_ydata(), [0.1 * (1 + step / 1000) for step in steps])
    assert figures["long_term"].axes[0].get_title(loc="left") == "step 900"


def test_over_training_is_the_table(several):
    figures = dynamics_figures(only(several, *OVER_TRAINING))
    axes = [ax for ax in figures["over_training"].axes if ax.lines]
    assert len(axes) == 5
    offset = axes[0]
    numbers = dynamics_numbers(several).set_index(["run", "step"])["synchronization_offset"]
    assert np.array_equal(lines(offset)["trained"].get_ydata(), numbers.loc["trained"].to_numpy())
    level = next(line for line in offset.lines if line.get_linestyle() == "--")
    assert level.get_ydata()[0] == numbers["initial", 0]  # the control, of one step


def test_learning_rates_of_other_steps_are_no_observations(one):
    later = table([("learning_rate", 0.1, {})], step=500)
    both = pd.concat([one, later], ignore_index=True)
    assert set(dynamics_figures(only(both, "sentence_offset", *OVER_TRAINING))) == {"synchronization_offset"}
    assert dynamics_tables(both)["dynamics"]["step"].tolist() == [100]


# ------------------------------------------------------------------------------------------ several runs


def test_figures_of_several_runs(several):
    figures = dynamics_figures(several, {"long_tau": TAU})
    assert set(figures) == set(QUANTITIES) | {"over_training"}
    draw(figures, "synchronization_offset", "transient_lengths")
    names = ["trained, step 100", "initial, step 0"]
    assert legend(figures["short_term"]) == names
    for label, scale in zip(names, (2.0, 1.0), strict=True):
        assert np.array_equal(lines(figures["short_term"].axes[0])[label].get_ydata(), scale * EXPONENT)
    assert [ax.get_title(loc="left") for ax in figures["long_term"].axes] == names
    for name in ("synchronization", "perturbation", "attractor_view"):
        assert [part._suptitle.get_text() for part in figures[name].subfigs] == names
    none = figures["transient_lengths"].axes[0]
    assert [patch.get_height() for patch in none.patches] == [0.25, 6 / 7]  # one of eight diverged
    assert legend(figures["synchronization_offset"])[:2] == names
    means = [
        line.get_ydata().item() for line in figures["synchronization_offset"].axes[0].lines
        if line.get_marker() == "^" and len(line.get_xdata())
    ]  # fmt: skip
    recorded = several[several["quantity"].eq("synchronization_offset")]
    recorded = recorded[recorded["step"].eq(100) | recorded["run"].str.endswith("initial")]["value"]
    assert sorted(means) == pytest.approx(sorted(recorded))


def test_a_run_without_the_long_term(several):
    short = several[~several["run"].str.endswith("initial") | several["term"].ne("long")]
    figures = dynamics_figures(only(short, "local_exponent", "sentence_local_exponent"))
    assert [ax.get_title(loc="left") for ax in figures["long_term"].axes] == ["trained, step 100"]


def test_tables_of_one_run():
    both = pd.concat([observed(0, 0.5), observed(100, 2.0)], ignore_index=True)
    tables = dynamics_tables(both, {"length": 8})
    numbers = tables["dynamics"]
    assert numbers["step"].tolist() == [0, 100]
    offset = 8 + 82 / 7
    assert numbers["synchronization_offset"].tolist() == pytest.approx([0.5 * offset, 2 * offset])
    rule = tables["running_means"]  # the publication's, in a table of its own beside what the kinds say
    assert not set(rule) & set(numbers) - {"step"}
    assert rule["step"].tolist() == [0, 100]
    assert rule["mean_exponent"].tolist() == [0.05, 0.2]
    assert rule["without_chaotic_transient"].tolist() == [0.25, 0.25]
    assert rule["transient_length"].tolist() == [np.mean(LENGTHS)] * 2  # of 20 windows
    assert rule["censored_share"].tolist() == [0.25, 0.25]
    without_kinds = both[both["quantity"].ne("orbit_share")]
    assert dynamics_tables(without_kinds)["dynamics"]["mean_exponent"].tolist() == [0.05, 0.2]
    assert numbers["attractors"].tolist() == [2, 2]
    assert numbers["peak_effective_dimension"].tolist() == [4.5, 18]
    assert numbers["transverse_exponent"].tolist() == [-0.3, -0.3]
    assert "full_map_exponent" not in numbers
    assert tables["attractors"][["torus", "chaotic"]].to_numpy().tolist() == [[0.25, 0.5]] * 2
    offsets = tables["offsets"].set_index("tokens")
    assert offsets["mean"].to_dict() == pytest.approx({8: 2 * offset, 32: 2 * (offset + 24)})
    assert offsets["median"].to_dict() == {8: 24.0, 32: 72.0}
    assert offsets["synchronized_share"].tolist() == [7 / 8, 7 / 8]


def test_tables_of_several_runs(several):
    full = table([("full_map_exponent", 0.09, {}), ("reduced_map_exponent", 0.1, {})], step=100)
    tables = dynamics_tables(pd.concat([several, full.assign(run="runs/study/trained")], ignore_index=True))
    numbers = tables["dynamics"]
    assert numbers[["run", "step"]].to_numpy().tolist() == [["trained", 100], ["initial", 0]]
    assert tables["running_means"]["mean_exponent"].tolist() == [0.2, 0.1]
    assert numbers["full_map_exponent"].tolist() == pytest.approx([0.09, np.nan], nan_ok=True)
    assert tables["attractors"]["run"].tolist() == ["trained", "initial"]
    assert tables["offsets"][["run", "tokens"]].to_numpy().tolist() == [
        ["trained", 8], ["trained", 32], ["initial", 8], ["initial", 32]
    ]  # fmt: skip


def test_kinds_of_version_0_1(one):
    """Named by another rule, and under another quantity."""
    old = one[one["quantity"].ne("orbit_share")]
    old = pd.concat([old, table([("attractor_share", 1.0, {"kind": "quasi-periodic"})], step=100)])
    assert dynamics_tables(old)["attractors"]["quasi-periodic"].dropna().tolist() == [1.0]
    assert "orbit_kinds" not in dynamics_figures(old)


def test_orbit_kinds(several):
    figure = dynamics_figures(several, {"long_steps": 500})["orbit_kinds"]
    bars, curves = figure.axes[:2]
    widths = [[patch.get_width() for patch in container] for container in bars.containers]
    assert widths == [[share] * 2 for share in KIND_SHARES.values()]
    assert [text.get_text() for text in bars.get_legend().get_texts()] == list(KIND_SHARES)
    for line in curves.lines:
        assert line.get_xdata().tolist() == [0, 300, 450, 500]  # on to the horizon
        assert line.get_ydata().tolist() == [1.0, 0.75, 0.5, 0.5]


def test_where_kinds_are_told_no_other_rule_is_shown(one):
    """Running means of λ call a wandering λ of 0 a chaotic transient."""

    def told(step):
        one_of = [
            ("orbit_lyapunov_exponent", -2e-4, {}),
            ("transient_share", 0.0, {}),
            ("restricted_mean_length", 0.0, {}),
        ]
        of = [(f"sentence_orbit_{name}", value, {"sentence": i}) for i in range(3) for name, value in
              (("length", 0.0), ("censored", 0.0))]  # fmt: skip
        return pd.concat([one.assign(step=step), table([*one_of, *of], step=step)])

    both = pd.concat([told(0), told(100)], ignore_index=True)
    figures = dynamics_figures(both, {"long_tau": TAU})
    titles = [ax.get_title(loc="left") for ax in figures["over_training"].axes if ax.lines]
    assert any("whatever the orbit" in title for title in titles)
    assert not any("chaotic transient" in title for title in titles)
    share = next(ax for ax in figures["over_training"].axes if "or were" in ax.get_title(loc="left"))
    assert share.lines[0].get_ydata().tolist() == [0, 0]
    none, _, outlast = figures["transient_lengths"].axes
    assert [text.get_text() for ax in (none, outlast) for text in ax.texts] == ["100.0%", "0.0%"]
    assert dynamics_tables(both)["dynamics"]["orbit_lyapunov_exponent"].tolist() == [-2e-4] * 2


def test_second_opinion(one):
    k = [
        ("sentence_zero_one", value, {"sentence": i, "t": t})
        for i in (0, 1)
        for t, value in ((400, 0.5), (200, 0.1))
    ]
    figure = dynamics_figures(pd.concat([one, table(k, step=100)]), {"long_steps": 500})["orbit_kinds"]
    lines = [
        line for line in figure.axes[2].lines if len(line.get_xdata()) == 2 and max(line.get_xdata()) > 1
    ]
    assert [line.get_xdata().tolist() for line in lines] == [[200, 400]] * 2
    assert "0–1 test" in figure.axes[2].get_ylabel()
    assert len(dynamics_figures(one, {"long_steps": 500})["orbit_kinds"].axes) == 2


def test_length_and_width_that_were_not_recorded(one):
    assert main_length(one, {}) == 32
    assert main_length(one, {"length": 8}) == 8
    assert main_length(one, {"length": 100}) == 32  # the longest
    few = one[~one["width"].isin((20, 40))]
    assert dynamics_numbers(few)["transient_length"].tolist() == [600.0]


def test_curves_keep_times_and_gaps():
    rows = table(
        [("x", 1.0, {"t": 10, "token": 1}), ("x", np.nan, {"t": 5, "token": 1}), ("y", 3.0, {"t": 0})]
    )
    found = curves(rows, "x", "token")
    assert found.index.tolist() == [5, 10]
    assert found[1].tolist() == pytest.approx([np.nan, 1.0], nan_ok=True)
    assert curves(rows, "z", "token").empty


def test_from_the_store(tmp_path, one, figures):
    """What the parquet files give back, with their types, is drawn the same."""
    store = ObservationStore(tmp_path, "lmdyn.callbacks.EncoderDynamics", {"length": 32})
    store.write(100, one)
    store.write(200, one.assign(step=200))
    read = store.read()
    first, second = dynamics_tables(read)["dynamics"].drop(columns="step").to_numpy().tolist()
    assert first == second
    rows = only(
        read, *OVER_TRAINING, "sentence_offset", "local_exponent", "sentence_local_exponent", "attention"
    )
    drawn = dynamics_figures(rows, {"long_tau": TAU})
    assert set(drawn) == {"synchronization_offset", "short_term", "long_term", "over_training"}
    (ax,), (before,) = drawn["long_term"].axes, figures["long_term"].axes
    for label, line in lines(before).items():
        assert np.array_equal(lines(ax)[label].get_ydata(), line.get_ydata(), equal_nan=True)
