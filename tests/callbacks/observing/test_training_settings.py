"""Observation is invisible, and live equals replayed, under each way to train: one table."""

import lightning as L
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from lmdyn.callbacks import (
    AttentionPatterns,
    Itself,
    LearningCurves,
    Run,
    Similarity,
    Sparsity,
    Steps,
    observe_together,
)
from lmdyn.callbacks.observing import module_reading
from lmdyn.models.pretraining_tools import checkpoint_activations
from tests.helpers.modules import Own, quiet_trainer

pytestmark = [  # the second: torch.jit's own, as torch.compile is first used
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SITES = {"embedding": "net.transformer.wte", "h1": "net.transformer.h.0", "h2": "net.transformer.h.1"}
SIZES = {"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 8, "bos_token_id": 0, "eos_token_id": 0}


class Transformer(Own):
    """With dropout, so that a number that an observer draws is seen in the weights."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(GPT2LMHeadModel(GPT2Config(vocab_size=11, **SIZES)))

    def forward(self, input_ids):
        return self.net(input_ids=input_ids).logits


def compiled(module):
    module.net.compile(backend="eager")  # traced and guarded as with any backend, without a compiler of C++


TABLE = {
    "torch.compile": (compiled, {}),
    "activation checkpointing": (lambda module: checkpoint_activations(module.net), {}),
    "accumulation": (lambda module: None, {"accumulate_grad_batches": 2}),
    "bf16-true": (lambda module: None, {"precision": "bf16-true"}),
    "bf16-mixed": (lambda module: None, {"precision": "bf16-mixed"}),
}


def loader(seed, rows=8):
    tokens = torch.randint(11, (rows, 7), generator=torch.Generator().manual_seed(seed))
    return DataLoader([{"input_ids": row[:-1], "labels": row[1:]} for row in tokens], batch_size=2)


def observers():
    shared = {"probe": loader(1), "schedule": Steps(at=(0,), last=True), "log_figures": False}
    return [
        LearningCurves(layers=[], bands=[3], frequency="probe", **shared),
        Sparsity(sites=SITES, frequency="probe", pos_classes=False, matched_size=None, **shared),
        Similarity(reference=Itself(), sites=SITES, measures=["svcca", "linear_cka"], **shared),
        AttentionPatterns(size=4, **shared),
    ]


class Keep(L.Callback):
    """The weights after each update."""

    def __init__(self):
        self.weights = {}

    def on_train_start(self, trainer, module):
        self.weights[0] = {name: value.clone() for name, value in module.state_dict().items()}

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.weights[trainer.global_step] = {
            name: value.clone() for name, value in module.state_dict().items()
        }


def fit(folder, watching, change, settings):
    module, keep = Transformer(), Keep()
    change(module)
    torch.manual_seed(1)
    trainer = quiet_trainer(folder, keep, *watching, max_steps=4, enable_checkpointing=False, **settings)
    trainer.fit(module, loader(0, rows=16), loader(1))
    return keep.weights


@pytest.mark.slow
@pytest.mark.parametrize("setting", TABLE)
def test_observation_is_invisible_and_live_equals_replayed(setting, tmp_path):
    change, settings = TABLE[setting]
    plain = fit(tmp_path / "plain", [], change, settings)
    observed = fit(tmp_path / "observed", observers(), change, settings)
    assert plain.keys() == observed.keys() == {0, 1, 2, 3, 4}
    for step, weights in plain.items():
        assert all(torch.equal(value, observed[step][name]) for name, value in weights.items()), step
    assert not torch.equal(plain[0]["net.lm_head.weight"], plain[4]["net.lm_head.weight"])
    # replay: the weights in a module that was built plainly; in bfloat16 where that is what was trained, and observed
    dtype = torch.bfloat16 if setting == "bf16-true" else torch.float32
    for observer in observers():
        observer.attach(Run(tmp_path / "replayed"))
        for step in (0, 4):
            module = Transformer().to(dtype)
            module.load_state_dict(observed[step])
            replayed = observer.observe(module, step)
            path = tmp_path / "observed" / "observations" / observer.name / f"{step:09d}.parquet"
            live = pd.read_parquet(path)
            live = live[live["quantity"] != "learning_rate"].reset_index(drop=True)
            assert live["value"].notna().any()
            torch.testing.assert_close(
                torch.tensor(live["value"]), torch.tensor(replayed["value"]), rtol=0, atol=0, equal_nan=True,
                msg=lambda said, o=observer, s=step: f"{o.name} of step {s}: {said}",
            )  # fmt: skip


def test_several_observers_read_the_module_and_the_probe_set_once(tmp_path, monkeypatch):
    """Also those that read weights of attention, in a part of the probe set; their numbers are those of each alone."""
    decided, passes = [], []
    original = module_reading.label_convention
    monkeypatch.setattr(module_reading, "label_convention", lambda *a: decided.append(a) or original(*a))
    module, several = Transformer(), observers()
    several[3] = AttentionPatterns(size=4, max_tokens=13, probe=several[0].probe)
    for observer in several:
        observer.probe = several[0].probe
        observer.attach(Run(tmp_path))
        observer.bind(module)
    assert len(decided) == 1
    with module.net.register_forward_hook(lambda *_: passes.append(1)):
        together = observe_together(several, module, 0)
        assert len(passes) == 4  # batches
    for observer, table in zip(several, together, strict=True):
        pd.testing.assert_frame_equal(observer.observe(module, 0), table, check_exact=True)
