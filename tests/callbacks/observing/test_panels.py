"""Standard figures over a column of numbers: which rows are drawn where."""

import pandas as pd

from lmdyn.callbacks.observing.panels import standard_figures
from lmdyn.runs.schema import Quantity

LOSS = Quantity("loss", "Loss at t.", "nats", panel="loss", over="t", floor="floor")


def observed():
    each = [(step, how, t) for step in (0, 10) for how in ("fixed", "own") for t in (3, 1)]
    rows = [(step, "loss", how, t, pd.NA, step + t) for step, how, t in each]
    rows += [(10, "loss", "own", 1, place, 7.0) for place in (0, 1)]  # by position
    rows += [(10, "floor", "own", pd.NA, pd.NA, 0.5), (10, "loss", "own", pd.NA, pd.NA, 9.0)]
    table = pd.DataFrame(rows, columns=["step", "quantity", "how", "t", "position", "value"])
    return table.astype({"t": "Int64", "position": "Int64", "value": float}).assign(site="")


def lines(ax):
    found = {line.get_label(): line for line in ax.get_lines() if not line.get_label().startswith("_")}
    return {label: (list(line.get_xdata()), list(line.get_ydata())) for label, line in found.items()}


def test_a_line_for_each_step_over_a_number():
    (figure,) = standard_figures(observed(), [LOSS]).values()
    assert [ax.get_title() or ax.get_title(loc="left") for ax in figure.axes] == ["loss, fixed", "loss, own"]
    for ax in figure.axes:
        assert lines(ax) == {"step 0": ([1, 3], [1, 3]), "step 10": ([1, 3], [11, 13])}
        assert ax.get_lines()[-1].get_ydata()[0] == 0.5


def test_lines_by_a_column_at_the_last_step_of_each_run():
    other = observed().assign(value=lambda table: 2 * table["value"])
    runs = pd.concat([observed().assign(run="runs/a"), other.assign(run="runs/b")], ignore_index=True)
    by_how = Quantity("loss", "Loss at t.", panel="loss", over="t", lines="how")
    (figure,) = standard_figures(runs, [by_how]).values()
    for ax, scale in zip(figure.axes, (1, 2), strict=True):
        assert lines(ax) == {f"how {how}": ([1, 3], [11 * scale, 13 * scale]) for how in ("fixed", "own")}


def test_the_band_of_a_line_with_fewer_steps_than_another_has_no_gaps():
    rows = [(step, name, "often", 1.0) for step in range(4) for name in ("rho", "rho_error")]
    rows += [(step, name, "seldom", 0.5) for step in (0, 2) for name in ("rho", "rho_error")]
    table = pd.DataFrame(rows, columns=["step", "quantity", "site", "value"])
    rho = Quantity("rho", "A number.", panel="rho", lines="site")
    (figure,) = standard_figures(
        table, [rho, Quantity("rho_error", "Its error.")], ["often", "seldom"]
    ).values()
    for band, steps in zip(figure.axes[0].collections, ({0, 1, 2, 3}, {0, 2}), strict=True):
        (path,) = band.get_paths()
        assert {x for x, _ in path.vertices} == steps


def test_bands_stay_within_the_range():
    rows = [(step, name, "", value) for step in (0, 1) for name, value in (("rho", 0.9), ("rho_error", 0.1))]
    table = pd.DataFrame(rows, columns=["step", "quantity", "site", "value"])
    for high, end in ((1.0, 1.0), (None, 1.1)):  # the control has no range
        rho = Quantity("rho", "A number.", panel="rho", high=high)
        (figure,) = standard_figures(table, [rho, Quantity("rho_error", "Its error.")]).values()
        (path,) = figure.axes[0].collections[0].get_paths()
        assert {round(y, 6) for _, y in path.vertices} == {0.7, end}
