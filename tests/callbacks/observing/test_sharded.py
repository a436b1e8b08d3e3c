"""Observers of a module whose weights are spread over ranks (FSDP2): two gloo processes give the numbers of one."""

from typing import ClassVar

import lightning as L
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lmdyn.analysis.probing.probes import DiagnosticClassifier
from lmdyn.callbacks import (
    AttentionPatterns,
    Checkpoint,
    DiagnosticProbe,
    Geometry,
    Induction,
    Itself,
    LearningCurves,
    Observer,
    Previous,
    Run,
    ScheduledCheckpoint,
    Similarity,
    Sparsity,
    Steps,
    Trajectory,
    WeightSpectra,
    WordClusters,
)
from tests.helpers.modules import Own, quiet_trainer
from tests.helpers.ranks import TORCHRUN, run_ranks

pytestmark = pytest.mark.slow

SITES = {"embedding": "net.0", "h1": "net.1", "h2": "net.3"}


class Sharded(Own):
    """A small language model; under a ModelParallelStrategy its layers are sharded."""

    def __init__(self):
        torch.manual_seed(0)
        layers = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 11)
        super().__init__(nn.Sequential(*layers))

    def layers(self):
        return self.net[1], self.net[3], self.net

    def configure_model(self):
        if self._trainer is None or torch.distributed.get_world_size() == 1:
            return
        from torch.distributed.fsdp import fully_shard

        for layer in self.layers():
            fully_shard(layer, mesh=self.device_mesh["data_parallel"])


class ShardedTransformer(Sharded):
    """One with attention."""

    def __init__(self):
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(0)
        sizes = {"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 8}
        sizes |= {"bos_token_id": 0, "eos_token_id": 0}
        dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        Own.__init__(self, GPT2LMHeadModel(GPT2Config(vocab_size=11, **sizes, **dropout)))

    def layers(self):
        return (*self.net.transformer.h, self.net)

    def forward(self, input_ids):
        return self.net(input_ids=input_ids).logits


class Divided(Sharded):
    """Ranks hold parts of a layer."""

    def configure_model(self):
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        parallelize_module(self.net, self.device_mesh["tensor_parallel"], {"3": ColwiseParallel()})


class Tagged(DataLoader):
    """Batches with a tag of each token."""

    label_names: ClassVar = {"upos": ["even", "odd"]}


def loader(batches):
    g = torch.Generator().manual_seed(1)
    rows = torch.randint(11, (2 * batches, 6), generator=g)
    examples = [{"input_ids": row[:-1], "labels": row[1:], "upos": row[:-1] % 2} for row in rows]
    return Tagged(examples, batch_size=2)


class Data(L.LightningDataModule):
    """With a training part, which probes are trained on."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def train_dataloader(self):
        return loader(self.batches + 1)

    def val_dataloader(self):
        return loader(self.batches)


def observers(batches, other):
    """Those that opt in, by the module that they look at; ``other`` is a checkpoint to compare with."""
    shared = {"schedule": Steps(at=(0,), last=False), "log_figures": False}
    of_probe = {"probe": loader(batches), **shared}
    references = {"itself": Itself(), "other": Checkpoint(str(other), f"{__name__}.Sharded")}
    return {
        Sharded: [
            LearningCurves(layers=[], bands=[3], frequency="probe", **of_probe),
            Sparsity(sites=SITES, frequency="probe", pos_classes=False, matched_size=None, **of_probe),
            Similarity(
                reference=references, sites=SITES, measures=["svcca", "linear_cka", "rsa"], max_samples=20, **of_probe
            ),
            DiagnosticProbe(
                probe=Data(batches), sites=SITES, targets=["current"], train_tokens=1000, control=False,
                classifier=DiagnosticClassifier(epochs=2), **shared,
            ),
            WeightSpectra(reference={"other": references["other"]}, **shared),
        ],
        ShardedTransformer: [
            AttentionPatterns(size=4, **of_probe),
            Geometry(attention_sites="auto", alpha_range=(1, None), max_samples=40, **of_probe),
            Trajectory(words=6, min_count=2, **of_probe),
            Induction(
                length=3, sequences=20 * batches, vocab_size=11, top=1, name="zero", early=[1, 1], late=[4, 4],
                **of_probe,
            ),
            WeightSpectra(name="of_heads", **shared),
        ],
    }  # fmt: skip


def fit(folder, watching, module=Sharded, parts=(2, 1)):
    strategy = L.pytorch.strategies.ModelParallelStrategy(*parts, process_group_backend="gloo")
    saving = any(isinstance(c, ScheduledCheckpoint) for c in watching)
    how = {"devices": 2, "strategy": strategy, "max_steps": 2, "enable_checkpointing": saving}
    trainer = quiet_trainer(folder, *watching, **how)
    trainer.fit(module(), loader(4))


def rank_main(folder):
    for batches in (1, 4, 5):  # one rank has nothing, equally many, one rank has one more
        for module, watching in observers(batches, folder / "other.ckpt").items():
            fit(folder / str(batches) / module.__name__, watching, module)
    probe, saver = loader(4), ScheduledCheckpoint(Steps(at=(0,)))
    clusters = WordClusters(probe=probe, frequency="probe", words=5, components=2)
    of_past = Similarity(reference=Previous(), sites=SITES, probe=probe)
    for watching, message in (
        ([clusters], "sharded weights.*run `lmdyn analyze` after"),
        ([UsersOwn(layers=[], frequency="probe", probe=probe)], "does not set `sharded = True`"),
        (
            [saver, of_past],
            "reference 'previous' is a copy of the module, but lmdyn cannot copy sharded weights",
        ),
        ([saver, WeightSpectra(reference=Previous())], "reference 'previous' is a copy of the module"),
        ([WeightSpectra(gradients=True, probe=probe)], "Set `gradients: false`, or replay"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(folder / "refused", watching)
    with pytest.raises(ValueError, match="lmdyn does not support tensor parallelism: ranks share"):
        fit(folder / "refused", [LearningCurves(layers=[], frequency="probe", probe=probe)], Divided, (1, 2))


class UsersOwn(LearningCurves):
    """An observer that nobody has tested so."""

    sharded = Observer.sharded


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    torch.manual_seed(7)
    other = {name: torch.randn_like(value) for name, value in Sharded().state_dict().items()}
    torch.save({"state_dict": other, "hyper_parameters": {}}, folder / "other.ckpt")
    run_ranks(__file__, folder, folder / "cache", timeout=240, **TORCHRUN)
    return folder


@pytest.mark.parametrize("batches", [1, 4, 5])
def test_any_number_of_batches_gives_the_numbers_of_one_process(two_ranks, tmp_path, batches):
    several = observers(batches, two_ranks / "other.ckpt").items()
    for module, observer in [(module, one) for module, some in several for one in some]:
        observer.attach(Run(tmp_path))
        alone = observer.observe(module(), 0)
        folder = two_ranks / str(batches) / module.__name__ / "observations" / observer.name
        both = pd.read_parquet(folder / "000000000.parquet")
        both = both[both["quantity"] != "learning_rate"].reset_index(drop=True)
        assert both["value"].notna().any()
        columns = [c for c in alone.columns if c not in ("step", "tokens", "value")]
        keys = [table[columns].astype(object).fillna("") for table in (both, alone)]
        pd.testing.assert_frame_equal(*keys, check_dtype=False)
        found, expected = torch.tensor(both["value"]), torch.tensor(alone["value"])
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7, equal_nan=True)
