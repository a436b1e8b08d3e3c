"""Inputs of measures, made from a sample of sizes and a seed; float64."""

import torch
from torch import Tensor

from lmdyn.analysis import TowerPredictions
from tests.properties.measures import Args, Sample


def normal(s: Sample, *shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(s.seed + 7919 * seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def pair(s: Sample) -> Args:
    """Two representations that share something, their means not 0: (n, d₁), (n, d₂), n > d₁ + d₂ + 2."""
    common = normal(s, s.n, 2)
    x, y = (
        common @ normal(s, 2, d, seed=i) + normal(s, s.n, d, seed=10 + i) + 3 * normal(s, d, seed=20 + i)
        for i, d in ((1, s.d1), (2, s.d2))
    )
    return x, y


def wide_pair(s: Sample) -> Args:
    """A pair of three features and more, so that rows have an angle and a correlation."""
    return pair(Sample(s.seed, s.n, s.d1 + 2, s.d2 + 2))


def vectors(s: Sample) -> Args:
    return (normal(s, s.n, s.d1 + 1),)


def two_series(s: Sample) -> Args:
    """Two rows of numbers that go together, (n,) each."""
    x = normal(s, s.n)
    return x, x + normal(s, s.n, seed=1)


def distributions(s: Sample, k: int = 4) -> Tensor:
    return normal(s, s.n, k).softmax(-1)


def two_distributions(s: Sample) -> Args:
    return normal(s, s.n, 4).softmax(-1), normal(s, s.n, 4, seed=1).softmax(-1)


def attention(s: Sample, heads: int = 2, seed: int = 0) -> Tensor:
    """(batch, heads, time, time) of a model that reads both ways, the last token of the first row padding."""
    return normal(s, 3, heads, 5, 5, seed=seed).softmax(-1)


def tokens() -> Tensor:
    there = torch.ones(3, 5, dtype=torch.bool)
    there[0, 4] = False
    return there


def exponents(s: Sample) -> Args:
    """(windows, batch) that begin above 0 and end below."""
    return (normal(s, 40, s.d1 + 1) * 0.1 + torch.linspace(0.3, -0.3, 40, dtype=torch.float64)[:, None],)


def series(s: Sample, times: int = 300) -> Args:
    """(times, batch, observables): a line and noise."""
    turn = torch.arange(times, dtype=torch.float64)[:, None, None] * (0.3 + 0.1 * (s.seed % 7))
    return (turn.cos() + 0.3 * normal(s, times, s.d1, 2),)


def predictions(log_p: Tensor) -> object:
    """Sums of two towers over (2, n) log-probabilities of targets 0, 1, 2, 0, …, in two halves."""
    sums = TowerPredictions(vocab_size=3, towers=2)
    n = log_p.shape[1]
    targets = torch.arange(n) % 3
    sums.update(log_p, targets, (torch.arange(n) // 3) % 2)
    return sums.reduce()


def log_probabilities(s: Sample) -> Args:
    return (normal(s, 2, 24, 5).log_softmax(-1)[..., 0],)


def positions_of_towers(args: Args, k: int) -> Args:
    return (args[0][:, :k],)


class Loop(torch.nn.Module):
    """A looped model of 9 types, in float64."""

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.embed, self.out = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9)
        self.core = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=g) / 2

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for _ in range(3):
            x = self.core(x)
        return self.out(x)


def lstm(width: int = 3, hidden: int = 4) -> torch.nn.LSTM:
    g = torch.Generator().manual_seed(1)
    made = torch.nn.LSTM(width, hidden, batch_first=True)
    for p in made.parameters():
        p.data = torch.randn(p.shape, generator=g) / 2
    return made.double()


def contraction(x: Tensor) -> Tensor:
    """A map of (batch, …, d) whose rows do not see each other, to the fixed point 1."""
    return 1 + (x - 1) * torch.linspace(0.3, 0.8, x.shape[-1], dtype=x.dtype)
