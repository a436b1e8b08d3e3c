"""Activation functions that rectify, found in models; units that are never or always above 0."""

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from lmdyn.analysis.geometry.rectifiers import UnitSigns, find_rectifiers, is_rectifier

BATCH = {"input_ids": torch.arange(6).reshape(2, 3)}


class Squared(nn.Module):
    """A user's own."""

    def forward(self, x):
        return x.relu() ** 2


class Counter(nn.Module):
    """A module with a state of its own."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x.relu()


@pytest.mark.parametrize(
    "module",
    [
        nn.ReLU(), nn.ReLU(inplace=True), nn.GELU(), nn.SiLU(), nn.Mish(), nn.ELU(), nn.LeakyReLU(), nn.ReLU6(),
        Squared(), ACT2FN["gelu_new"], ACT2FN["gelu_pytorch_tanh"], ACT2FN["silu"], ACT2FN["relu2"],
    ],
)  # fmt: skip
def test_rectifiers(module):
    assert is_rectifier(module)


@pytest.mark.parametrize(
    "module",
    [
        nn.Tanh(), nn.Sigmoid(), nn.Softmax(-1), nn.Identity(), nn.Dropout(0.5).eval(), nn.Linear(4, 4), nn.GLU(),
        nn.Sequential(nn.ReLU()), nn.PReLU(), nn.Flatten(), nn.BatchNorm1d(2, affine=False), nn.Softplus(),
        nn.CosineSimilarity(), nn.LogSigmoid(),
    ],
)  # fmt: skip
def test_other_modules(module):
    assert not is_rectifier(module)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"up": nn.Linear(4, 8), "act": nn.GELU(), "down": nn.Linear(8, 4)})
            for _ in range(2)
        )
        self.shared, self.unused, self.pooled, self.end = Counter(), nn.ReLU(), nn.ReLU(), nn.ReLU()

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = x + layer["down"](layer["act"](layer["up"](x)))
            x = x + self.shared(x)
        self.pooled(x[:, 0])
        x = self.end(x)
        x += 1  # what a site of it would have is overwritten
        return x @ self.embed.weight.T


def test_found_are_those_that_run_on_all_tokens():
    model = Model().train()
    state = torch.get_rng_state()
    found = find_rectifiers(model, BATCH)
    assert found == {
        "layers_00_act": "layers.0.act", "layers_01_act": "layers.1.act", "shared": "shared",
    }  # fmt: skip
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert not any(m._forward_hooks for m in model.modules())
    calls = model.shared.calls  # one forward pass, of two calls
    assert calls == 2
    assert is_rectifier(model.shared)
    assert model.shared.calls == calls
    assert find_rectifiers(nn.Sequential(nn.Embedding(9, 9)), BATCH, lambda m, b: m(b["input_ids"])) == {}


def test_shares_of_units():
    x = torch.tensor([[0.0, 1.0, -1.0, 2.0], [0.0, 3.0, -2.0, 0.0], [0.0, 1.0, -3.0, 5.0]])
    for size in (1, 2, 3):
        signs = UnitSigns()
        for rows in (*x.split(size), x[:0]):
            signs.update(rows)
        signs.reduce()
        assert signs.result() == {"dead_units": 0.5, "always_on_units": 0.25}
