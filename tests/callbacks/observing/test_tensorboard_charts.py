"""TensorBoard's charts: each curve in one, few curves in each; one layout a run, which names all observers."""

import itertools
import re

import pandas as pd
import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from lmdyn.callbacks import Observer, Quantity
from lmdyn.callbacks.observing.drawing.tensorboard_charts import charts_of
from lmdyn.callbacks.observing.loggers import know_charts, publish
from lmdyn.callbacks.observing.run import Run
from lmdyn.runs.schedule import Progress
from lmdyn.runs.schema import tidy
from tests.helpers.recorded import exported


def logged(cls, name, values):
    """Tags of all forms that an observer declares: so many values of each part, or 100 tags in all."""
    for form in (form for q in cls.recorded for form in q.tags_of(name)):
        parts = re.findall(r"<\w+>", form)
        for drawn in itertools.islice(itertools.product(range(values), repeat=len(parts)), 100):
            numbers = iter(drawn)
            yield re.sub(r"<\w+>", lambda _, n=numbers: f"v{next(n)}", form)


@pytest.mark.parametrize("values", [1, 3, 8])
@pytest.mark.parametrize("name", exported())
def test_each_curve_is_in_one_chart_and_few_in_each(name, values):
    cls = exported()[name]
    tags = list(dict.fromkeys(logged(cls, "own name", values)))
    charts = charts_of("own name", cls.recorded, tags)
    found = {
        (c, title): [t for t in tags if re.match(of, t)] for c in charts for title, of in charts[c].items()
    }
    curves = list(itertools.chain.from_iterable(found.values()))
    assert len(curves) == len(set(curves))
    left_out = [tag for tag in tags if tag not in curves]
    assert all(tag.split("/")[1].endswith(("_error", "_low", "_high")) for tag in left_out)
    assert all(found.values())
    assert max(len(of) for of in found.values()) <= 24
    assert set(charts) <= {"own name", "own name, in detail"}


class Small(Observer):
    """Stores what it is given."""

    recorded = (Quantity("n", "A number.", "count", tags=("", "<site>")),)

    def measure(self, module, step):
        raise NotImplementedError


def observer(folder, name):
    found = Small(name=name, log_figures=False)
    found._run = Run(folder)
    return found


def observe(observer, logger, step, sites, quantity="n"):
    table = tidy(pd.DataFrame({"quantity": quantity, "site": sites, "value": 1.0}), Progress(step))
    observer.store.write(step, table)
    publish(observer, table, [logger], step)


def layouts(logger):
    """Those that were written, each as category to titles."""
    logger.experiment.flush()
    events = EventAccumulator(logger.log_dir, size_guidance={"tensors": 0}).Reload()
    tag = "custom_scalars__config__"
    found = []
    for event in events.Tensors(tag) if tag in events.Tags()["tensors"] else []:
        layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
        found.append({c.title: [chart.title for chart in c.chart] for c in layout.category})
    return found


def test_a_layout_is_written_where_it_changes_and_names_all_observers(tmp_path):
    logger = TensorBoardLogger(tmp_path, "", "tb", prefix="p")
    a, b = observer(tmp_path, "a"), observer(tmp_path, "b")
    assert layouts(logger) == []
    for step in range(3):
        observe(a, logger, step, [""])
    assert layouts(logger) == [{"p-a": ["n (count)"]}]
    observe(b, logger, 3, ["", "h1"])
    observe(a, logger, 4, [""])
    both = {"p-a": ["n (count)"], "p-b": ["n (count)", "n (count) by site"]}
    assert layouts(logger) == [{"p-a": ["n (count)"]}, both]
    observe(b, logger, 5, ["", "h2"])  # the chart takes any site
    assert layouts(logger)[1:] == [both]
    observe(a, logger, 6, [""], quantity="undeclared")
    assert layouts(logger)[2:] == [both | {"p-a": ["n (count)", "undeclared"]}]


def test_a_run_that_goes_on_names_those_that_are_not_due(tmp_path):
    before = TensorBoardLogger(tmp_path, "", "tb")
    observe(observer(tmp_path, "once"), before, 0, ["h1"])
    observe(observer(tmp_path, "often"), before, 0, [""])
    before.finalize("success")
    for attached in (True, False):  # the control: without them it would be lost
        # files of one second have no order
        resumed = TensorBoardLogger(tmp_path, "", f"tb {attached}")
        again = [observer(tmp_path, name) for name in ("once", "often", "never")]
        if attached:
            know_charts(again, [resumed])
        observe(again[1], resumed, 1, [""])
        resumed.finalize("success")
        once = {"once": ["n (count) by site"]} if attached else {}
        assert layouts(resumed)[-1] == once | {"often": ["n (count)"]}


def test_names_with_slashes_and_signs_of_regular_expressions_are_in_one_chart_each():
    loss = Quantity("loss", "Mean loss.", tags=("", "<site>", "upos/<upos>"))
    sites = ["layers/0", "h.1", "h+1", "(", "[a-z]*", "$", "a|b", "\\d", "and/or/nor"]
    tags = ["a.b/loss", "a.b/loss/upos/NOUN", *(f"a.b/loss/{site}" for site in sites), "a.b/at_low"]
    charts = charts_of("a.b", [loss], tags)["a.b"]
    found = {title: [tag for tag in tags if re.match(of, tag)] for title, of in charts.items()}
    others = ["a.b/loss/layers/0", "a.b/loss/and/or/nor"]
    assert found["loss, others"] == others
    assert found["at low"] == ["a.b/at_low"]  # the end of no interval: there is no `at`
    assert sorted(itertools.chain.from_iterable(found.values())) == sorted(tags)
    assert not any(re.match(of, "axb/loss") for of in charts.values())


def test_a_logger_that_cannot_be_reached_does_not_end_a_training(tmp_path, survived):
    class Unreachable:
        @property
        def experiment(self):
            raise ConnectionError("no network")

    know_charts([observer(tmp_path, "own")], [Unreachable()])
    assert survived.pop().getMessage().startswith("own: its charts could not be logged")
