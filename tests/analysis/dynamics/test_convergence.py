"""Convergence with depth: settling against a naive search, losses against the module at each depth, a linear map."""

import torch
from torch import nn

from lmdyn.analysis.dynamics.convergence import LoopSums, relative_change
from lmdyn.analysis.dynamics.encoder_map import EncoderMap
from tests.helpers.architectures import VOCABULARY
from tests.helpers.loops import RecurrentDepth


def naive_settling(same):
    return next(t for t in range(len(same)) if all(same[t:]))


class Halving(nn.Module):
    """x ↦ x / 2 from the words; the class with the largest entry is predicted."""

    def __init__(self):
        super().__init__()
        self.embed, self.scale = nn.Embedding(VOCABULARY, 4), nn.ModuleList([Times()])

    def forward(self, input_ids, depth=3):
        x = self.embed(input_ids)
        for _ in range(depth):
            x = self.scale[0](x)
        return x


class Times(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return self.factor * x


def test_a_map_that_halves_states_changes_each_by_a_half():
    torch.manual_seed(0)
    model, batch = Halving().double(), {"input_ids": torch.randint(0, VOCABULARY, (3, 5))}
    f = EncoderMap(model, batch, dtype=torch.float64)
    sums = LoopSums(6, positions=5)
    sums.update(f, batch, torch.ones(3, 5, dtype=torch.bool))
    means = sums.means()
    torch.testing.assert_close(means["residual"][:-1], torch.full((6,), 0.5, dtype=torch.float64))
    torch.testing.assert_close(means["residual_at"][:-1], torch.full((6, 5), 0.5, dtype=torch.float64))
    assert means["residual"][-1].isnan()
    torch.testing.assert_close(means["norm"][1:] / means["norm"][:-1], torch.full((6,), 0.5).double())
    assert (means["settled_argmax"] == 1).all()  # the largest stays the largest
    assert means["settled_divergence"][0] < 1
    assert (means["depth_argmax"] == 0).all()
    assert "accuracy" not in means


@torch.no_grad()
def test_losses_and_settling_are_those_of_the_module_at_each_depth():
    torch.manual_seed(0)
    model, horizon, tolerance = RecurrentDepth().double().eval(), 7, 0.02
    ids = torch.randint(4, VOCABULARY, (5, 6), generator=torch.Generator().manual_seed(1))
    labels = ids.roll(-1, 1)
    labels[:, -1] = -100
    tokens = torch.ones_like(ids, dtype=torch.bool)
    tokens[0, 4:] = False
    f = EncoderMap(model, {"input_ids": ids[:1]}, dtype=torch.float64)
    sums = LoopSums(horizon, 6, tolerance)
    for rows in (slice(0, 2), slice(2, 5)):  # batches add up
        sums.update(f, {"input_ids": ids[rows]}, tokens[rows], labels[rows])
    means = sums.means()
    at = tokens & (labels != -100)
    # depth 0 is the coda of the state that the model begins with
    log_p = torch.stack(
        [f.finish({"input_ids": ids}, f.start({"input_ids": ids})).log_softmax(-1)]
        + [model(ids, depth=t).log_softmax(-1) for t in range(1, horizon + 1)]
    )
    nll = -log_p.gather(3, labels.clamp(min=0).expand(horizon + 1, -1, -1)[..., None])[..., 0]
    torch.testing.assert_close(means["cross_entropy"], nll[:, at].mean(1))
    right = (log_p.argmax(-1) == labels)[:, at].double().mean(1)
    torch.testing.assert_close(means["accuracy"], right)
    away = (log_p[-1].exp() * (log_p[-1] - log_p)).sum(-1)
    torch.testing.assert_close(means["divergence"], away[:, at].mean(1), rtol=1e-6, atol=1e-9)
    for rule, same in (
        ("argmax", log_p.argmax(-1) == log_p[-1].argmax(-1)),
        ("divergence", away <= tolerance),
    ):
        depths = torch.tensor([naive_settling(column) for column in same[:, at].T.tolist()])
        shares = torch.stack([(depths <= t).double().mean() for t in range(horizon + 1)])
        torch.testing.assert_close(means[f"settled_{rule}"], shares)
        by_place = torch.zeros(at.shape, dtype=torch.float64)
        by_place[at] = depths.double()
        expected = by_place.sum(0) / at.sum(0)
        torch.testing.assert_close(means[f"depth_{rule}"], expected, equal_nan=True)
        assert 0 < shares[1] < 1 or shares[2] < 1  # the control: not all at once


def test_relative_change():
    before, after = (
        torch.tensor([[0.0, 2.0], [0.0, 0.0], [0.0, 0.0]]),
        torch.tensor([[0.0, 3.0], [1.0, 0.0], [0.0, 0.0]]),
    )
    found = relative_change(before, after)
    assert found[0] == 0.5
    assert found[1].isinf()
    assert found[2].isnan()
