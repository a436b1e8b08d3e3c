"""The histogram of transients and the tables of an encoder's dynamics: they tell what was recorded."""

import io

import numpy as np
import pandas as pd
import pytest

from lmdyn.callbacks import EncoderDynamics

GROUPS = ["length", "width", "kind", "sentence"]
TAU, HORIZON = 50, 2000
KIND_SHARES = {"chaotic": 0.5, "torus": 0.25, "cycle": 0.0, "fixed point": 0.0, "undetermined": 0.25}
LENGTHS = [0.0, 0.0, 100.0, 150.0, 150.0, 400.0, HORIZON, HORIZON]  # of transients; the last two are censored


def observed(step=100, scale=1.0, lengths=LENGTHS):
    """What ``EncoderDynamics`` says at one step."""
    rows = []

    def add(quantity, value, **groups):
        rows.append({"quantity": quantity, "value": value, **groups})

    for n in (8, 32):
        offsets = scale * (n + np.array([1.0, 2, 3, 4, 5, 60, np.nan, 7]))
        for i, value in enumerate(offsets):
            add("sentence_offset", value, length=n, sentence=i)
        add("synchronization_offset", np.nanmean(offsets), length=n)
        add("synchronized_share", 7 / 8, length=n)
    for i, value in enumerate(lengths):
        add("sentence_orbit_length", value, sentence=i)
        add("sentence_orbit_censored", float(value == HORIZON), sentence=i)
    for width, value in ((10, 600.0), (20, float(np.mean(lengths))), (40, 700.0)):
        add("transient_length", value, width=width)
    for kind, value in KIND_SHARES.items():
        add("orbit_share", value, kind=kind)
    add("attractors", 2.0)
    table = pd.DataFrame(rows).reindex(columns=["quantity", *GROUPS, "value"])
    table = table.astype({name: "Int64" for name in GROUPS if name != "kind"})
    return table.assign(step=step, tokens=step * 10, site="")


def figures_of(observations):
    figures = EncoderDynamics.figures(observations, {"long_tau": TAU})
    for figure in figures.values():
        figure.savefig(io.BytesIO(), dpi=40)  # warnings are errors
    return figures


def only(observations, *quantities):
    return observations[observations["quantity"].isin(quantities)]


@pytest.fixture(scope="module")
def several():
    """A run of two steps, its control of one."""
    runs = {
        "trained": [observed(0, 0.5), observed(100, 2.0)],
        "initial": [observed(0, lengths=[0.0] * 6 + [50.0])],
    }
    return pd.concat([of.assign(run=f"runs/study/{run}") for run, made in runs.items() for of in made])


def test_transient_lengths_add_up():
    rows = only(observed(), "sentence_orbit_length", "sentence_orbit_censored")
    none, ax, outlast = figures_of(rows)["transient_lengths"].axes
    heights, edges, _ = ax.patches[0].get_data()
    assert (none.patches[0].get_height(), outlast.patches[0].get_height()) == (0.25, 0.25)
    assert heights.sum() == pytest.approx(0.5)
    for length, share in ((100.0, 1 / 8), (150.0, 2 / 8), (400.0, 1 / 8)):
        assert heights[np.searchsorted(edges, length) - 1] == pytest.approx(share)
    assert np.allclose((edges / TAU) % 1, 0.5)  # no edge at a length that there may be


def test_tables(several):
    one = several[several["run"].eq("runs/study/trained")].drop(columns="run")
    tables = EncoderDynamics.tables(one, {"length": 8})
    numbers, offset = tables["dynamics"], 8 + 82 / 7
    assert numbers["step"].tolist() == [0, 100]
    assert numbers["synchronization_offset"].tolist() == pytest.approx([0.5 * offset, 2 * offset])
    assert numbers["transient_length"].tolist() == [np.mean(LENGTHS)] * 2  # of 20 windows
    assert "full_map_exponent" not in numbers
    assert tables["attractors"][["torus", "chaotic"]].to_numpy().tolist() == [[0.25, 0.5]] * 2
    last = tables["offsets"].query("step == 100").set_index("length")
    assert last["synchronization_offset"].to_dict() == pytest.approx({8: 2 * offset, 32: 2 * (offset + 24)})
    assert last["median"].to_dict() == {8: 24.0, 32: 72.0}
    assert last["synchronized_share"].tolist() == [7 / 8, 7 / 8]
    both = EncoderDynamics.tables(several, {"length": 16})["dynamics"]  # not recorded: the longest
    assert both[["run", "step"]].to_numpy().tolist() == [["initial", 0], ["trained", 0], ["trained", 100]]
    assert both["synchronization_offset"].iloc[0] == pytest.approx(offset + 24)
