"""An error while drawing or logging ends no training, is told once, and costs no observation."""

import lightning as L
import pandas as pd
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from lmdyn.callbacks import Observer, Steps
from lmdyn.callbacks.observing.loggers import LiveFigures, publish
from lmdyn.callbacks.observing.run import Run
from lmdyn.runs.schedule import Progress
from lmdyn.runs.schema import tidy
from tests.helpers.modules import Own, quiet_trainer


class Broken(Observer):
    """Its observations are fine; what is made of them is not, as ``fails`` says."""

    fails = ""
    drawn = 0

    def measure(self, module, step):
        return pd.DataFrame({"quantity": ["n"], "site": [""], "value": [float(step)]})

    @classmethod
    def figures(cls, observations, settings):
        Broken.drawn += 1
        if Broken.fails == "figures":
            raise KeyError("a bug in drawing")
        return {}

    @staticmethod
    def is_scalar(observations):
        if Broken.fails == "is_scalar":
            raise ValueError("a bug in choosing")
        return pd.Series(True, index=observations.index)


class Logger(L.pytorch.loggers.CSVLogger):
    """Loses its connection."""

    def log_metrics(self, metrics, step=None):
        if Broken.fails == "log_metrics" and any(name.startswith("broken") for name in metrics):
            raise ConnectionError("gone")
        super().log_metrics(metrics, step)

    def log_image(self, *args, **kwargs):
        """Takes images."""


def three_steps(folder, observers):
    """Train with two loggers."""
    loggers = [Logger(folder, "a"), Logger(folder, "b")]
    off = {"enable_checkpointing": False, "val_check_interval": 0.0, "limit_val_batches": 0}
    trainer = quiet_trainer(folder, *observers, max_steps=3, logger=loggers, **off)
    words = [torch.tensor([i % 5]) for i in range(6)]
    loader = DataLoader([{"input_ids": word, "labels": (word + 1) % 5} for word in words])
    trainer.fit(Own(torch.nn.Embedding(5, 5)), loader, loader)
    assert trainer.global_step == 3
    return trainer


@pytest.mark.parametrize("fails", ["", "figures", "is_scalar", "log_metrics"])
def test_the_training_goes_on(tmp_path, survived, monkeypatch, fails):
    monkeypatch.setattr(Broken, "fails", fails)
    monkeypatch.setattr(Broken, "drawn", 0)
    trainer = three_steps(tmp_path, [Broken(schedule=Steps(every=1), log_figures="every")])
    table = pd.read_parquet(trainer.log_dir + "/observations/broken")
    table = table[table["quantity"] == "n"]
    assert table["value"].tolist() == [0.0, 1.0, 2.0, 3.0]  # kept, all of them
    assert Broken.drawn == 4  # what is not broken is done at each
    assert len(survived) == (0 if not fails else 1)  # of four times, and two loggers
    for record in survived:
        assert "broken: " in record.getMessage()
        assert record.exc_info is not None  # the traceback
        assert str(record.exc_info[1]) in ("'a bug in drawing'", "a bug in choosing", "gone")
    survived.clear()


@pytest.fixture
def drawings(monkeypatch):
    """The steps that each drawing shows."""
    drawn: list[list[int]] = []

    def figures(table, settings):
        drawn.append(sorted(table["step"].unique().tolist()))
        return {}

    monkeypatch.setattr(Broken, "fails", "")
    monkeypatch.setattr(Broken, "figures", staticmethod(figures))
    return drawn


@pytest.mark.parametrize(
    ("log_figures", "expected"),
    [(True, [[0, 1, 2, 3]]), ("every", [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]), (False, [])],
)
def test_figures_are_drawn_once_at_the_end_unless_asked_for(tmp_path, drawings, log_figures, expected):
    three_steps(tmp_path, [Broken(schedule=Steps(every=1), log_figures=log_figures)])
    assert drawings == expected


def test_figures_before_the_end_take_a_hundredth_of_the_time(tmp_path, drawings, monkeypatch):
    """Of two observers together, by a clock on which an observation comes every 50 s and a figure takes 0.5 s."""
    now = [0.0]
    monkeypatch.setattr("lmdyn.callbacks.observing.loggers.time.monotonic", lambda: now[0])
    original = Broken.figures

    def slow(table, settings):
        now[0] += 0.5
        return original(table, settings)

    monkeypatch.setattr(Broken, "figures", staticmethod(slow))
    both = [observer_at(tmp_path, name, range(31), dict.fromkeys(range(31), ())) for name in ("a", "b")]
    for observer in both:
        observer.log_figures = True
    live, loggers, times = LiveFigures(), [Images(tmp_path, "images")], []
    for step in range(31):
        now[0] += 50
        live.observed(both, loggers, step)
        times += [now[0]] * (len(drawings) // 2 - len(times))
    # at first after 100 times 6 s; then after 100 times the second that both took
    assert times == [601 + 101 * i for i in range(10)]
    assert len(drawings) == 2 * len(times)  # both observers each time
    live.finish(both[0], loggers)
    live.finish(both[0], loggers)  # nothing new
    assert drawings[-1] == list(range(31))
    assert len(drawings) == 2 * len(times) + 1


def observer_at(folder, name, steps, columns):
    """An observer with stored observations, each step of other tags."""
    observer = Broken(name=name, log_figures=False)
    observer._run = Run(folder)
    for step in steps:
        values = [float(step), *map(float, range(len(columns[step])))]
        rows = {"quantity": ["n", *columns[step]], "site": "", "value": values}
        observer.store.write(step, tidy(pd.DataFrame(rows), Progress(step)))
    return observer


class Images(CSVLogger):
    """Takes images as W&B's logger does."""

    images: list = []

    def log_image(self, key, images, step=None):
        self.images.append((key, images[0].shape, step))


def test_figures_of_very_many_observations_read_as_many_as_there_is_room_for(tmp_path, monkeypatch):
    """And not more of them, the longer the training."""
    monkeypatch.setattr("lmdyn.callbacks.observing.loggers.MOST_STEPS", 4)
    steps = range(0, 100, 10)
    observer = observer_at(tmp_path, "many", steps, dict.fromkeys(steps, ()))
    observer.log_figures = "every"
    drawn, read = [], []

    def figures(table, settings):
        drawn.append(table["step"].unique().tolist())
        return {}

    monkeypatch.setattr(Broken, "figures", staticmethod(figures))
    original = type(observer.store)._read
    monkeypatch.setattr(type(observer.store), "_read", lambda *args: read.append(args[1]) or original(*args))
    for step in (20, 80):
        publish(observer, pd.read_parquet(observer.store.path(step)), [Images(tmp_path, "images")], step)
    assert drawn == [[0, 10, 20], [0, 30, 50, 80]]  # none that a later training has left
    assert read == [0, 10, 20, 0, 30, 50, 80]
