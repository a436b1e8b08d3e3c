"""Depth heads: scores of predictions, and readouts against separate training and least squares."""

import numpy as np
import torch
from torch import nn

from lmdyn.analysis.probing.depth_heads import ReadoutTraining, prediction_scores, train_linear_readouts


def test_prediction_scores():
    torch.manual_seed(0)
    logits, labels = torch.randn(50, 7), torch.randint(7, (50,))
    right, loss = prediction_scores(logits, labels).T
    assert right.tolist() == [row.argmax() == y for row, y in zip(logits, labels, strict=True)]
    reference = nn.functional.cross_entropy(logits, labels, reduction="none").double()
    torch.testing.assert_close(loss, reference, atol=1e-5, rtol=0)
    logits[3] = torch.nan
    lost, nan = prediction_scores(logits, torch.where(torch.arange(50) == 3, logits[3].argmax(), labels)).T
    assert bool(lost[3].isnan())
    assert nan.isnan().tolist() == [i == 3 for i in range(50)]


# ------------------------------------------------------------------------------------------ linear readouts


def alone(features, targets, how):
    """One readout as nn.Linear."""
    layer = nn.Linear(features.shape[1], 1)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(layer.parameters(), lr=how.learning_rate)
    generator = torch.Generator().manual_seed(how.seed)
    for _ in range(how.epochs):
        for rows in torch.randperm(len(targets), generator=generator).split(how.batch_size):
            loss = nn.functional.mse_loss(layer(features[rows])[:, 0], targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return layer


def test_together_is_each_alone():
    torch.manual_seed(0)
    features, targets = torch.randn(3, 50, 6).double(), torch.randn(50).double()
    torch.set_default_dtype(torch.float64)
    try:
        how = ReadoutTraining(epochs=4, learning_rate=1e-2, batch_size=8, seed=3)
        found = train_linear_readouts(features, targets, how)
        for t in range(3):
            layer = alone(features[t], targets, how)
            torch.testing.assert_close(found.weight[t], layer.weight[0].detach(), atol=1e-10, rtol=0)
            torch.testing.assert_close(found(features)[t], layer(features[t])[:, 0].detach())
    finally:
        torch.set_default_dtype(torch.float32)
    other = train_linear_readouts(features, targets, ReadoutTraining(4, 1e-2, 8, seed=4))
    assert not torch.allclose(other.weight, found.weight, atol=1e-6)  # the order counts


def test_closed_form_is_numpys_least_squares():
    torch.manual_seed(0)
    features, targets = torch.randn(2, 30, 50).double() * 1e-4 + 3, torch.randn(30).double()
    for ridge in (1e-6, 0.1):
        found = train_linear_readouts(features, targets, ReadoutTraining(ridge=ridge))
        for t in range(2):
            x = features[t].numpy() - features[t].numpy().mean(0)
            root = np.sqrt(ridge * (x**2).sum() / 50)
            y = np.append(targets - targets.mean(), np.zeros(50))
            weight = np.linalg.lstsq(np.vstack([x, root * np.eye(50)]), y, rcond=None)[0]
            np.testing.assert_allclose(found.weight[t], weight, rtol=1e-5, atol=1e-4 * abs(weight).max())
    adam = train_linear_readouts(features, targets, ReadoutTraining())
    assert (adam(features) - targets).square().mean() > 0.5  # the control: states that differ little
    few = train_linear_readouts(features, targets, ReadoutTraining(ridge=1e-6))
    assert (few(features) - targets).square().mean() < 1e-6


def test_closed_form_of_what_is_constant_or_diverged():
    features, targets = torch.randn(3, 20, 4), torch.arange(20.0)
    features[0], features[1, 3] = 0.3, torch.nan
    found = train_linear_readouts(features, targets, ReadoutTraining(ridge=1e-3))
    assert found.weight[0].tolist() == [0] * 4
    assert found.bias[0] == 9.5
    assert found.weight[1].isnan().all()
    assert found.weight[2].isfinite().all()


def test_a_time_that_diverged_leaves_the_others_alone():
    torch.manual_seed(0)
    features, targets = torch.randn(3, 40, 4), torch.randn(40)
    broken = features.clone()
    broken[1, 7] = torch.nan
    how = ReadoutTraining(epochs=2)
    whole, found = (train_linear_readouts(x, targets, how) for x in (features, broken))
    assert found.weight[1].isnan().all()
    torch.testing.assert_close(found.weight[[0, 2]], whole.weight[[0, 2]])
