"""How observers find what to look at in a user's own training."""

from copy import deepcopy

import lightning as L
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader

from lmdyn.callbacks import LearningCurves, ObservationStore, Run, Steps
from tests.helpers.modules import Own, quiet_trainer


class WithHooks(Own):
    def train_dataloader(self):
        return loader()

    def val_dataloader(self):
        return loader()


def loader():
    rows = [{"input_ids": torch.arange(5) % 7, "labels": (torch.arange(5) + 1) % 7} for _ in range(6)]
    return DataLoader(rows, batch_size=2)


def fit(tmp_path, module, *loaders, steps=2):
    observer = LearningCurves(layers=[], bands=[3], frequency="probe", schedule=Steps(every=1))
    quiet_trainer(tmp_path, observer, max_steps=steps, enable_checkpointing=False).fit(module, *loaders)
    return pd.read_parquet(tmp_path / "observations" / "learning_curves")


def test_loaders_given_to_fit_and_hooks_of_the_module(tmp_path):
    torch.manual_seed(0)
    given = fit(tmp_path / "given", Own(), loader(), loader())
    torch.manual_seed(0)
    hooks = fit(tmp_path / "hooks", WithHooks())
    assert sorted(given["step"].unique()) == [0, 1, 2]
    pd.testing.assert_frame_equal(given, hooks)
    rate = given[given["quantity"].eq("learning_rate")]
    assert (rate["by"] == "").all()


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
def test_nothing_to_look_at_is_an_error_before_training(tmp_path):
    with pytest.raises(ValueError, match="has no data: fit with validation data"):
        fit(tmp_path, Own(), loader())


def test_a_write_does_not_list_the_folder(tmp_path, monkeypatch):
    """Which takes seconds, of very many files: only the first two look at what is there."""
    listed, steps, written = [], ObservationStore.steps, []
    monkeypatch.setattr(
        ObservationStore, "steps", lambda store: (listed.append(store.folder), steps(store))[1]
    )
    original = ObservationStore.write
    monkeypatch.setattr(
        ObservationStore, "write", lambda *args: (original(*args), written.append(len(listed)))
    )
    fit(tmp_path, Own(), loader(), loader(), steps=6)
    assert len(written) == 7
    assert written[0] > 0
    assert len(set(written[1:])) == 1


def test_a_store_is_of_the_run_that_the_observer_is_attached_to(tmp_path):
    module = L.LightningDataModule()
    module.val_dataloader = loader
    observer = LearningCurves(layers=[], bands=[])
    for name in ("a", "b"):
        observer.attach(Run(tmp_path / name, datamodule=module))
        assert observer.store.folder == tmp_path / name / "observations" / "learning_curves"
        assert observer.store is observer.store
    copy = deepcopy(observer)
    copy.arguments["bands"] = [3]
    assert (copy.store.settings["bands"], observer.store.settings["bands"]) == ([3], [])


def test_a_split_that_is_not_there_has_a_remedy(tmp_path):
    for data in (Own(), L.LightningDataModule()):
        observer = LearningCurves(layers=[], bands=[], split="test")
        with pytest.raises(ValueError, match=r"has no test data .*`split:` or a `probe:` to the observer"):
            observer.attach(Run(tmp_path, datamodule=data))


@pytest.mark.parametrize("name", ["a/b", ".", ".."])
def test_names_that_are_no_folders(name):
    with pytest.raises(ValueError, match="expected a folder name"):
        LearningCurves(name=name)
