"""Divergence of attention heads: closed forms, a naive oracle, matches, errors over texts."""

import itertools
import math

import numpy as np
import pytest
import scipy.spatial.distance
import torch

from lmdyn.analysis import HeadDivergenceSums, head_divergences
from lmdyn.analysis.statistics.jackknife import jackknife


def weights(batch=2, heads=3, time=5, causal=True, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(batch, heads, time, time, generator=g, dtype=dtype)
    if causal:
        scores = scores.masked_fill(torch.ones(time, time, dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1)


def everything(batch=2, time=5):
    return torch.ones(batch, time, dtype=torch.bool)


def test_closed_forms():
    p = torch.zeros(1, 1, 3, 3)
    p[..., 0] = 1
    q = torch.zeros(1, 1, 3, 3)
    q[0, 0, 0, 0] = q[0, 0, 1, 1] = 1
    q[0, 0, 2, :2] = 0.5
    found = head_divergences(p, q, everything(1, 3))
    js, kl = (found[kind].flatten() for kind in ("jensen_shannon", "kullback_leibler"))
    assert js[0].isnan()  # one place
    assert js[1] == 1  # nothing in common
    # of (1, 0) and (1/2, 1/2): H(3/4, 1/4) − 1/2
    assert float(js[2]) == pytest.approx(0.75 * math.log2(4 / 3) + 0.25 * 2 - 0.5, abs=1e-12)
    assert kl[1] == math.inf
    assert float(kl[2]) == pytest.approx(1, abs=1e-12)
    p = weights()
    for values in head_divergences(p, p, everything()).values():
        assert values[:, 1:].diagonal(dim1=2, dim2=3).abs().max() < 1e-15


def test_against_scipy_for_every_pair_of_heads():
    p, q = weights(heads=3), weights(heads=2, seed=1)
    found = head_divergences(p, q, everything())
    assert found["jensen_shannon"].shape == (2, 5, 3, 2)
    for b, t, h, g in itertools.product(range(2), range(1, 5), range(3), range(2)):
        a, c = p[b, h, t].double().numpy(), q[b, g, t].double().numpy()
        expected = scipy.spatial.distance.jensenshannon(a, c, base=2) ** 2
        assert float(found["jensen_shannon"][b, t, h, g]) == pytest.approx(expected, abs=1e-7)
        kl = sum(x / a.sum() * math.log2(x / a.sum() / (y / c.sum())) for x, y in zip(a, c, strict=True) if x)
        assert float(found["kullback_leibler"][b, t, h, g]) == pytest.approx(kl, abs=1e-7)


def test_padding_does_not_count():
    p, q, tokens = weights(causal=False), weights(causal=False, seed=1), everything()
    short = head_divergences(p[:, :, :3, :3], q[:, :, :3, :3], tokens[:, :3])
    tokens[:, 3:] = False
    padded = head_divergences(p, q, tokens)
    for kind, values in short.items():
        torch.testing.assert_close(padded[kind][:, :3], values)
        assert padded[kind][:, 3:].isnan().all()


def test_matches_are_the_best_of_all_assignments():
    sums = HeadDivergenceSums()
    sums.update(weights(heads=4), weights(heads=4, seed=1), everything())
    found = sums.result()
    matrix = found.matrix().numpy()
    best = min(matrix[range(4), list(order)].mean() for order in itertools.permutations(range(4)))
    assert found.mean()[0] == pytest.approx(best)
    assert found.mean()[0] <= found.mean(heads="same")[0]


def test_other_numbers_of_heads():
    sums = HeadDivergenceSums()
    sums.update(weights(heads=3), weights(heads=2, seed=1), everything())
    found = sums.result()
    assert len(found.matches()) == 2
    assert math.isnan(found.mean(heads="same")[0])
    assert found.by_head(heads="unmatched").shape[1] == 4


def test_divergence_from_equal_weights():
    p = weights(heads=1)
    sums = HeadDivergenceSums()
    sums.update(p, weights(heads=1, seed=1), everything())
    flat = torch.ones(5, 5).tril() / torch.arange(1, 6)[:, None]
    expected = head_divergences(p, flat.expand(2, 1, 5, 5), everything())["jensen_shannon"][:, 1:].mean()
    assert sums.result().mean(heads="uniform")[0] == pytest.approx(float(expected))


def test_batches_and_blocks_add_up_and_errors_are_those_of_the_jackknife():
    p, q, tokens = weights(batch=6), weights(batch=6, seed=1), everything(6)
    tokens[3, 4:] = False
    blocks = torch.arange(6)[:, None].expand(6, 5) // 2
    whole, parts = HeadDivergenceSums(), HeadDivergenceSums(blocks=3)
    whole.update(p, q, tokens)
    for i in (slice(0, 1), slice(1, 6)):
        parts.update(p[i], q[i], tokens[i], blocks[i])
    one, several = whole.result(), parts.result()
    assert several.queries.tolist() == [8, 7, 8]
    torch.testing.assert_close(one.matrix(), several.matrix())
    assert math.isnan(one.mean()[1])
    value, error = several.mean()
    without = []
    for block in range(3):
        rest = blocks[:, 0] != block
        js = head_divergences(p[rest], q[rest], tokens[rest])["jensen_shannon"]
        pairs = torch.stack([js[..., h, g] for h, g in several.matches()], -1)
        without.append(float(pairs.nanmean()))
    assert error == pytest.approx(float(jackknife(value, np.array(without), [8, 7, 8]).error))
    assert error > 0
