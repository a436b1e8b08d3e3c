"""Observers of a module whose weights are spread over ranks (FSDP2): two gloo processes give the numbers of one."""

import lightning as L
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lmdyn.callbacks import LearningCurves, Run, Sparsity, Steps, WordClusters
from tests.helpers.modules import Own
from tests.helpers.ranks import TORCHRUN, run_ranks

SITES = {"embedding": "net.0", "h1": "net.1", "h2": "net.3"}


class Sharded(Own):
    """A small language model; under a ModelParallelStrategy its layers are sharded."""

    def __init__(self):
        torch.manual_seed(0)
        layers = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 11)
        super().__init__(nn.Sequential(*layers))

    def configure_model(self):
        if self._trainer is None or torch.distributed.get_world_size() == 1:
            return
        from torch.distributed.fsdp import fully_shard

        for layer in (self.net[1], self.net[3], self.net):
            fully_shard(layer, mesh=self.device_mesh["data_parallel"])


def loader(batches):
    g = torch.Generator().manual_seed(1)
    rows = torch.randint(11, (2 * batches, 6), generator=g)
    examples = [{"input_ids": row[:-1], "labels": row[1:]} for row in rows]
    return DataLoader(examples, batch_size=2)


def observers(probe):
    shared = {"probe": probe, "schedule": Steps(at=(0,), last=False), "log_figures": False}
    return [
        LearningCurves(layers=[], bands=[3], frequency="probe", **shared),
        Sparsity(sites=SITES, frequency="probe", pos_classes=False, matched_size=None, **shared),
    ]


def fit(folder, watching):
    strategy = L.pytorch.strategies.ModelParallelStrategy(2, 1, process_group_backend="gloo")
    trainer = L.Trainer(
        max_steps=2, accelerator="cpu", devices=2, default_root_dir=folder, logger=False,
        callbacks=watching, strategy=strategy,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Sharded(), loader(4))


def rank_main(folder):
    for batches in (1, 4, 5):  # one rank has nothing, equally many, one rank has one more
        fit(folder / str(batches), observers(loader(batches)))
    with pytest.raises(ValueError, match=r"ranks share the weights of the module .* replay it afterwards"):
        fit(folder / "refused", [WordClusters(probe=loader(4), frequency="probe", words=5, components=2)])


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    run_ranks(__file__, folder, folder / "cache", timeout=240, **TORCHRUN)
    return folder


@pytest.mark.parametrize("batches", [1, 4, 5])
def test_any_number_of_batches_gives_the_numbers_of_one_process(two_ranks, tmp_path, batches):
    for observer in observers(loader(batches)):
        observer.attach(Run(tmp_path))
        alone = observer.observe(Sharded(), 0)
        path = two_ranks / str(batches) / "observations" / observer.name / "000000000.parquet"
        both = pd.read_parquet(path)
        both = both[both["quantity"] != "learning_rate"].reset_index(drop=True)
        assert both["value"].notna().any()
        columns = [c for c in alone.columns if c not in ("step", "tokens", "value")]
        pd.testing.assert_frame_equal(
            both[columns].astype(object).fillna(""),
            alone[columns].astype(object).fillna(""),
            check_dtype=False,
        )
        torch.testing.assert_close(
            torch.tensor(both["value"]), torch.tensor(alone["value"]), rtol=1e-6, atol=1e-7, equal_nan=True
        )
