import numpy as np
import pytest
import torch
from torch import nn

from lmdyn.analysis.landscape.unit_groups import unit_groups
from lmdyn.analysis.parameters.at_point import parameter_values
from lmdyn.analysis.parameters.exchangeable_units import permuted_units
from lmdyn.callbacks import Itself, Landscape, Run
from lmdyn.callbacks.observing.reference import Reference
from tests.helpers.modules import Bigrams, random_permutations
from tests.helpers.refusals import assert_refused


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.rnn = nn.LSTM(6, 8, batch_first=True)
        self.output = nn.Linear(8, 11)

    def forward(self, input_ids):
        return self.output(self.rnn(self.embedding(input_ids))[0])


class Other(Reference):
    """A module that is given."""

    def __init__(self, module):
        self.module = module

    def modules(self, module, run, step):
        return {"": self.module}


def text(rows=12, length=9):
    """A language in which the next word is nearly determined by the last two."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(11, (rows, length + 1), generator=generator)
    for t in range(2, length + 1):
        ids[:, t] = (ids[:, t - 1] + 2 * ids[:, t - 2]) % 11
    return [{"input_ids": row[None, :-1], "labels": row[None, 1:]} for row in ids]


def loss_of(module):
    ids, labels = (torch.cat([b[key] for b in text()]) for key in ("input_ids", "labels"))
    return nn.functional.cross_entropy(module(ids).flatten(0, 1), labels.flatten())


def trained(module, steps=60):
    optimizer = torch.optim.Adam(module.parameters(), lr=0.03)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(module).backward()
        optimizer.step()
    return module.requires_grad_(True)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return trained(Recurrent())


def attached(tmp_path, **arguments):
    observer = Landscape(**{"probe": text(), "labels": "aligned", "log_figures": False, **arguments})
    observer.attach(Run(log_dir=tmp_path))
    return observer


def of(table, quantity, units="own"):
    return table[(table["quantity"] == quantity) & (table["units"].fillna("") == units)]["value"]


def test_a_convex_model_has_no_barrier(tmp_path):
    torch.manual_seed(0)
    one, two = Bigrams().double(), Bigrams().double()
    table = attached(tmp_path, reference={"other": Other(two)}).observe(one, 0)
    assert of(table, "barrier").item() == pytest.approx(0, abs=1e-7)  # losses are of float32
    losses = of(table, "line_loss").to_numpy()
    assert (np.diff(losses, 2) > -1e-7).all()


def test_a_permuted_copy_has_a_barrier_that_vanishes_after_matching(tmp_path, model):
    groups = unit_groups(model)
    copy = Recurrent()
    copy.load_state_dict(permuted_units(parameter_values(model), groups, random_permutations(groups)))
    table = attached(tmp_path, reference={"copy": Other(copy)}, match=True).observe(model, 0)
    assert of(table, "barrier").item() > 0.3
    assert of(table, "barrier_low").item() > 0.1
    assert of(table, "barrier", "matched").item() == pytest.approx(0, abs=1e-6)
    assert of(table, "distance", "matched").item() == 0
    assert of(table, "cosine", "matched").item() == pytest.approx(1)
    assert of(table, "cosine").item() < 0.5


def test_lines_end_in_the_two_models(tmp_path, model):
    """The ends are the losses of the two models; in the middle, the loss is that of the mean of the weights."""
    torch.manual_seed(1)
    other = Recurrent()
    table = attached(tmp_path, reference={"other": Other(other)}, points=3).observe(model, 0)
    middle = Recurrent()
    middle.load_state_dict({k: (v + other.state_dict()[k]) / 2 for k, v in model.state_dict().items()})
    losses = [loss_of(m).item() for m in (other, middle, model)]
    assert of(table, "line_loss").tolist() == pytest.approx(losses, rel=1e-5)
    barrier = max(0, losses[1] - (losses[0] + losses[2]) / 2)
    assert of(table, "barrier").item() == pytest.approx(barrier, abs=1e-6)


class Steps2(Reference):
    """Several modules, as ``Earlier`` has."""

    def modules(self, module, run, step):
        return {"step 1": module, "step 2": module}


def test_two_references_of_several_models_are_told_apart(tmp_path, model):
    observer = attached(tmp_path, reference={"a": Steps2(), "b": Steps2()}, points=3, bootstrap=0)
    table = observer.observe(model, 3)
    names = table[table["quantity"] == "barrier"]["reference"].tolist()
    assert names == ["a step 1", "a step 2", "b step 1", "b step 2"]


def test_a_random_plane_has_the_model_in_its_middle(tmp_path, model):
    table = attached(tmp_path, reference={}, plane="random", plane_size=5, extent=0.5).observe(model, 3)
    plane = table[table["quantity"] == "plane_loss"]
    assert len(plane) == 25
    line = attached(tmp_path / "line", reference=Itself(), points=3).observe(model, 3)
    middle = plane[(plane["x"] == "0") & (plane["y"] == "0")]["value"].item()
    assert middle == of(line, "line_loss").iloc[0]
    assert plane["value"].max() > middle


class Batched(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(11, 11), nn.BatchNorm1d(11)

    def forward(self, input_ids):
        return self.norm(self.embedding(input_ids).transpose(1, 2)).transpose(1, 2)


def test_what_has_no_line_is_refused(tmp_path):
    other = {"other": Other(Recurrent())}
    assert_refused(
        lambda module, **arguments: attached(tmp_path, **arguments).observe(module, 0),
        ({"module": Batched(), "reference": Itself()}, "'norm' has running statistics of activations"),
        (
            {"module": Bigrams(), "reference": Itself(), "match": True},
            "recurrent layers .* set `match: false`",
        ),
        ({"module": Bigrams(), "reference": other}, "expected parameters of the same names at both ends"),
        ({"module": Bigrams(), "reference": {}}, "reference is empty and plane is not set"),
    )
