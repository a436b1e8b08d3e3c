import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lmdyn.analysis.landscape.hessian import Hessian


def quadratic(matrix: torch.Tensor) -> tuple[Hessian, torch.Tensor]:
    x = torch.randn(len(matrix), dtype=matrix.dtype, requires_grad=True)
    return Hessian(lambda: [x @ matrix @ x / 2], [x]), x


def with_spectrum(values: np.ndarray, seed: int = 0) -> torch.Tensor:
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))[0]
    return torch.from_numpy(basis * values @ basis.T)


@pytest.mark.parametrize("size", [8, 300])
def test_eigenvalues_and_trace_of_a_quadratic_loss(size):
    """Largest of both signs: the algebraically largest, not those of the largest magnitude."""
    torch.manual_seed(0)
    values = np.concatenate([[-50.0], np.linspace(-1, 2, size - 4), [5.0, 7.0, 11.0]])
    matrix = with_spectrum(values)
    hessian, _ = quadratic(matrix)
    assert hessian.largest(3, tolerance=1e-10) == pytest.approx([11, 7, 5], abs=1e-7)
    exact = hessian.trace(size)
    assert (exact.value, exact.error) == (pytest.approx(values.sum(), abs=1e-9), 0)


def test_the_estimated_trace_has_the_stated_error():
    """Off-diagonal entries make the estimate vary with variance 2 Σ_{i≠j} H_ij²; 40 seeds agree with it."""
    torch.manual_seed(0)
    matrix = with_spectrum(np.linspace(0, 3, 100))
    hessian, _ = quadratic(matrix)
    found = [hessian.trace(10, seed=seed) for seed in range(40)]
    off = matrix - torch.diag(matrix.diag())
    expected = math.sqrt(2 * float((off**2).sum()) / 10)
    errors = np.array([t.value for t in found]) - float(matrix.trace())
    assert abs(errors.mean()) < 4 * expected / math.sqrt(40)
    assert errors.std() == pytest.approx(expected, rel=0.35)
    assert np.mean([t.error for t in found]) == pytest.approx(expected, rel=0.2)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm, self.output = (
            nn.Embedding(4, 2),
            nn.LSTM(2, 3, batch_first=True),
            nn.Linear(3, 4),
        )

    def forward(self, ids):
        return self.output(self.lstm(self.embedding(ids))[0])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_products_are_those_of_the_dense_hessian(dtype):
    """Oracle: torch's own dense Hessian of the loss as a function of the flat parameters."""
    torch.manual_seed(1)
    model = Small().to(dtype)
    ids = torch.randint(4, (3, 5))
    parameters = dict(model.named_parameters())

    def loss_of(flat: torch.Tensor) -> torch.Tensor:
        parts = flat.split([p.numel() for p in parameters.values()])
        point = {name: part.view_as(p) for (name, p), part in zip(parameters.items(), parts, strict=True)}
        logits = torch.func.functional_call(model, point, (ids[:, :-1],))
        return cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")

    flat = torch.cat([p.detach().flatten() for p in parameters.values()])
    oracle = torch.autograd.functional.hessian(loss_of, flat) / 12
    rows = [ids[i : i + 1] for i in range(3)]

    def losses():
        for row in rows:
            yield cross_entropy(model(row[:, :-1]).flatten(0, 1), row[:, 1:].flatten(), reduction="sum")

    hessian = Hessian(losses, list(parameters.values()), 12.0)
    accuracy = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(hessian.dense(), oracle, rtol=0, atol=accuracy)
    largest = hessian.largest(2, tolerance=1e-6)
    expected = torch.linalg.eigvalsh(oracle.double()).flip(0)[:2].tolist()
    assert largest == pytest.approx(expected, rel=1e-4)
    assert all(p.grad is None for p in model.parameters())


def test_along_eigenvectors_are_the_eigenvalues():
    """Of any length; along a sum of two, the mean of both; 0 has no direction."""
    torch.manual_seed(0)
    matrix = with_spectrum(np.array([-2.0, 1.0, 5.0]))
    hessian, _ = quadratic(matrix)
    vectors = torch.linalg.eigh(matrix).eigenvectors
    assert [hessian.along(7 * v) for v in vectors.T] == pytest.approx([-2, 1, 5])
    assert hessian.along(vectors[:, 0] + vectors[:, 2]) == pytest.approx(1.5)
    assert math.isnan(hessian.along(0 * vectors[:, 0]))
