"""What an observer lacks, found on a copy: it agrees with what happens, and leaves nothing behind."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lmdyn.callbacks import (
    AttentionPatterns,
    DepthPerformance,
    DiagnosticProbe,
    EncoderDynamics,
    LearningCurves,
    Run,
    Similarity,
    Sparsity,
    TokenLearning,
    WorldKnowledge,
)
from lmdyn.callbacks.observing.reference import Itself, Previous
from lmdyn.callbacks.observing.requirements import requirements
from tests.helpers.architectures import ARCHITECTURES, VOCABULARY, example_batch


def batches(name, rows=3):
    ids = example_batch(name, rows=rows)["input_ids"]
    return [{"input_ids": ids[:, :-1], "labels": ids[:, 1:]}]


OBSERVERS = {
    "curves": lambda: LearningCurves(frequency="probe"),
    "sparsity": lambda: Sparsity(frequency="probe", pos_classes=False),
    "similarity": lambda: Similarity(reference=Itself(), measures=["linear_cka"]),
    "attention": AttentionPatterns,
    "probe": DiagnosticProbe,
    "facts": WorldKnowledge,
    "previous": lambda: Similarity(reference=Previous()),
}


@pytest.mark.parametrize("observer", OBSERVERS)
@pytest.mark.parametrize("name", ["llama", "nanogpt", "own_lstm"])
def test_what_is_found_is_what_happens(name, observer, tmp_path):
    """An observer without findings makes an observation; one with findings is refused for the first of them."""
    module, data = ARCHITECTURES[name](), batches(name)
    found = requirements(OBSERVERS[observer](), module, data)
    own = OBSERVERS[observer]()
    if not found:
        own.attach(Run(tmp_path, datamodule=data))
        own.bind(module)
        assert len(own.observe(module, 0))
        return
    with pytest.raises((ValueError, RuntimeError)) as refused:
        own.attach(Run(tmp_path, datamodule=data))
        own.bind(module)
        own.observe(module, 0)
    assert found[0].why in " ".join(str(refused.value).split())


class InPlace(nn.Module):
    """What its block answers is overwritten: nothing tells this but a forward pass with a hook."""

    def __init__(self, own_copy=False):
        super().__init__()
        self.embed, self.block = nn.Embedding(VOCABULARY, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, VOCABULARY)
        self.own_copy = own_copy

    def forward(self, input_ids):
        x = self.block(self.embed(input_ids))
        if self.own_copy:
            x = x.clone()
        x += 1
        return self.head(x)


def test_one_batch_is_tried():
    observer = Similarity(reference=Itself(), sites={"a": "embed", "b": "block"}, measures=["linear_cka"])
    (found,) = requirements(observer, InPlace(), batches("llama"))
    assert found.what == "observation"
    assert "in-place operation overwrites" in found.why
    assert requirements(observer, InPlace(own_copy=True), batches("llama")) == []


class Faulty(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, VOCABULARY)

    def forward(self, input_ids):
        return self.embed({"ids": input_ids}["idx"])


def test_errors_of_any_kind_are_findings():
    (found,) = requirements(LearningCurves(frequency="probe"), Faulty(), batches("llama"))
    assert "KeyError" in str(found)
    (empty,) = requirements(LearningCurves(bands=[], layers=[]), ARCHITECTURES["llama"](), [])
    assert "empty" in str(empty) or "no batch" in str(empty)
    (none,) = requirements(LearningCurves(), ARCHITECTURES["llama"]())
    assert "has no data" in none.why


def test_a_model_of_the_other_kind():
    """No other data would make it run: the model is said to be of the wrong kind, also where the data is unfit."""
    for observer in (DepthPerformance(), TokenLearning()):
        found = requirements(observer, ARCHITECTURES["llama"](), batches("llama"))
        (kind,) = [f for f in found if f.what == "module"]
        assert (
            "requires a masked model, but LlamaForCausalLM is causal: no later token changes the" in kind.why
        )
    masked = requirements(TokenLearning(), ARCHITECTURES["bert"](), batches("bert"))
    assert [f.what for f in masked] == ["data"]


def test_unfit_data_is_no_fault_of_the_model():
    """What a check of the model would read of the data is not there."""
    for name in ("bert", "albert"):
        found = requirements(EncoderDynamics(sentences=1000), ARCHITECTURES[name](), batches(name))
        assert [f.what for f in found] == ["data"]
    recurrent = requirements(
        EncoderDynamics(lengths=[8], length=8, sentences=2), ARCHITECTURES["own_lstm"](), batches("own_lstm")
    )
    assert [f.what for f in recurrent] == ["module"]


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    """Observer, module, generators and folders are as before, whether it runs or not."""
    monkeypatch.chdir(tmp_path)
    module = ARCHITECTURES["llama"]().train()
    module.model.layers[0].eval()
    ids = example_batch("llama", rows=6)["input_ids"]
    rows = [{"input_ids": row, "labels": row} for row in ids]
    loader = DataLoader(rows, batch_size=2, shuffle=True)
    weights = copy.deepcopy(module.state_dict())
    modes = [m.training for m in module.modules()]
    run = Run(tmp_path / "run", datamodule=loader)
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    for observer in (
        LearningCurves(frequency="probe"),
        Sparsity(frequency="probe", pos_classes=False, gradients=True),
        AttentionPatterns(),
        DiagnosticProbe(),
    ):
        before = copy.copy(vars(observer))
        held = {name: copy.copy(value) for name, value in before.items() if isinstance(value, dict)}
        requirements(observer, module, run=run)
        assert vars(observer) == before
        assert {name: vars(observer)[name] for name in held} == held
        with pytest.raises(RuntimeError, match="not attached"):
            _ = observer.run
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]
    assert [m.training for m in module.modules()] == modes
    assert all(torch.equal(weights[name], tensor) for name, tensor in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())
    assert list(tmp_path.iterdir()) == []
