"""LAMB against the printed algorithm, tensor by tensor."""

import pytest
import torch

from lmdyn.models import LAMB


def naive(w, grads, lr, betas, eps, decay, bias_correction):
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for t, g in enumerate(grads, start=1):
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        m_hat = m / (1 - betas[0] ** t) if bias_correction else m
        v_hat = v / (1 - betas[1] ** t) if bias_correction else v
        r = m_hat / (v_hat.sqrt() + eps) + decay * w
        ratio = w.norm() / r.norm() if decay and w.norm() > 0 and r.norm() > 0 else 1.0
        w = w - lr * ratio * r
    return w


@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("start", ["normal", "zero"])
def test_is_the_printed_algorithm(bias_correction, decay, start):
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(4, 3, generator=generator, dtype=torch.float64) * (start == "normal")
    grads = torch.randn(5, 4, 3, generator=generator, dtype=torch.float64)
    p = torch.nn.Parameter(w.clone())
    other = torch.nn.Parameter(w.clone() + 1)  # tensors do not mix
    how = {"betas": (0.8, 0.9), "weight_decay": decay, "bias_correction": bias_correction}
    optimizer = LAMB([p, other], lr=0.05, **how)
    for g in grads:
        p.grad, other.grad = g.clone(), 2 * g
        optimizer.step()
    expected = naive(w, grads, 0.05, (0.8, 0.9), 1e-6, decay, bias_correction)
    torch.testing.assert_close(p.data, expected, rtol=1e-12, atol=1e-12)


def test_state_goes_through_a_checkpoint():
    def run(steps, restore_after=None):
        p = torch.nn.Parameter(torch.ones(3))
        optimizer = LAMB([p], lr=0.1)
        for t in range(steps):
            if t == restore_after:
                state = optimizer.state_dict()
                optimizer = LAMB([p], lr=0.1)
                optimizer.load_state_dict(state)
            p.grad = torch.tensor([1.0, -2.0, 0.5]) * (t + 1)
            optimizer.step()
        return p.data

    assert torch.equal(run(6), run(6, restore_after=3))
