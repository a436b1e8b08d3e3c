"""Lightning's and torch's privates: in one file, and as Lightning has them."""

import copy
import csv
import re
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from torch.utils.data import DataLoader

from lmdyn.callbacks.training.lightning_internals import (
    accumulates_gradients,
    callbacks_of,
    continue_csv,
    continue_events,
    epoch_or_validation_follows,
    trainer_attributes,
)
from tests.helpers.modules import quiet_trainer

ROOT = Path(__file__).parents[3] / "lmdyn"
PRIVATE = re.compile(
    r"(trainer|loop|loops|connector|fetcher|loader|logger|strategy|profiler)\._[a-z]"
    r"|(from|import) (torch|lightning)[\w.]*\._[a-z]|_trainer\"|_fabric\""
)


def test_privates_of_lightning_and_torch_are_in_one_file():
    files = [*(ROOT / "callbacks").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]
    found = {path.name for path in files if PRIVATE.search(path.read_text(encoding="utf-8"))}
    assert found == {"lightning_internals.py"}


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class WithValidation(Module):
    def val_dataloader(self):
        return DATA

    def validation_step(self, batch, batch_idx):
        pass


DATA = DataLoader(torch.ones(4, 2))


class Watch(L.Callback):
    """What the functions return after each batch."""

    def __init__(self):
        self.rows = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.rows.append((accumulates_gradients(trainer), epoch_or_validation_follows(trainer)))


def fit(module, *loaders, **settings):
    watch = Watch()
    trainer = quiet_trainer(None, watch, max_epochs=1, enable_checkpointing=False, **settings)
    trainer.fit(module, *loaders)
    assert watch in callbacks_of(trainer)
    return watch, trainer


def test_what_lightning_does_after_a_batch():
    plain, _ = fit(Module(), DATA, accumulate_grad_batches=3)
    assert plain.rows == [(True, False), (True, False), (False, False), (False, True)]
    checked, _ = fit(WithValidation(), DATA, val_check_interval=2)
    assert checked.rows == [(False, False), (False, True), (False, False), (False, True)]


def test_a_copy_of_a_module_leaves_its_trainer_out():
    module = Module()
    trainer = fit(module, DATA)[1]
    assert any(value is trainer for value in trainer_attributes(module).values())
    copied = copy.deepcopy(module, {id(v): None for v in trainer_attributes(module).values()})
    assert set(trainer_attributes(copied).values()) == {None}


@pytest.mark.parametrize(("given", "expected"), [({}, 8), ({"purge_step": None}, 8), ({"purge_step": 3}, 3)])
def test_a_resumed_run_hides_what_was_logged_after_it(tmp_path, given, expected):
    logger = TensorBoardLogger(str(tmp_path), **given)
    continue_events(logger, 7)
    logger.experiment._get_file_writer().add_event(Event(graph_def=b"a graph"))
    logger.experiment.close()
    (path,) = Path(logger.log_dir).glob("events*")
    events = list(EventFileLoader(str(path)).Load())
    started = [e.step for e in events if e.HasField("session_log")]
    assert started == [expected]  # TensorBoard hides what is from this step on
    assert [e.graph_def for e in events if e.HasField("graph_def")] == [b"a graph"]


def test_a_resumed_run_keeps_the_rows_of_its_csv_file(tmp_path):
    """Lightning's CSVLogger deletes the file of the version that it is given."""

    def rows(logger):
        with Path(logger.log_dir, "metrics.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    first = CSVLogger(tmp_path, "x", "run")
    for step, metrics in ((7, {"a": 1.5, "b": 2.0}), (3, {"a": 0.5}), (8, {"a": 9.0})):
        first.log_metrics(metrics, step)
    first.save()
    second = CSVLogger(tmp_path, "x", "run")
    continue_csv(second, 7)
    second.log_metrics({"a": 1.5, "c": 3.0}, 7)  # what a module logs before its next update
    second.log_metrics({"a": 4.0, "c": 5.0}, 8)
    second.finalize("success")
    expected = [("7", "1.5", "2.0", ""), ("3", "0.5", "", ""), ("7", "", "", "3.0"), ("8", "4.0", "", "5.0")]
    assert [(row["step"], row["a"], row["b"], row["c"]) for row in rows(second)] == expected
    unused = CSVLogger(tmp_path, "x")
    continue_csv(unused, 7)  # a run of its own
    assert not Path(unused.log_dir).exists()
    third = CSVLogger(tmp_path, "x", "run")
    with pytest.warns(UserWarning, match="will be deleted"):  # the control
        third.log_metrics({"a": 1.0}, 9)
    third.save()
    assert [row["step"] for row in rows(third)] == ["9"]
