"""Attention scores: closed forms, a naive second implementation, sums over batches."""

import math
from unittest import mock

import pytest
import torch

import lmdyn.analysis.attention.attention_scores as module
from lmdyn.analysis.attention.attention_scores import AttentionPatternSums, attention_scores, pattern_sums
from lmdyn.analysis.statistics import distributed

N = 6
SCORES = ("entropy", "diagonal", "itself", "vertical", "block")
ALL = torch.ones(1, N, dtype=torch.bool)
SPECIAL = torch.tensor([[True, False, False, True, False, True]])
SEGMENTS = torch.tensor([[0, 0, 0, 0, 1, 1]])
HALVES = torch.tensor([[0, 0, 0, 1, 1, 1]])


def scores(p, tokens=ALL, special=SPECIAL, segments=SEGMENTS):
    return {k: v[0, 0] for k, v in attention_scores(p[None, None], tokens, special, segments).items()}


def same(actual, expected):
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=actual.dtype).expand_as(actual), equal_nan=True
    )


def test_uniform_attention():
    found = scores(torch.full((N, N), 1 / N))
    same(found["entropy"], math.log(N))
    same(found["diagonal"], [1 / N, *[2 / N] * (N - 2), 1 / N])
    same(found["itself"], 1 / N)
    same(found["vertical"], 3 / N)  # the share of special tokens
    same(found["block"], 0.0)


def test_each_token_attends_to_itself():
    found = scores(torch.eye(N))
    same(found["entropy"], 0.0)
    same(found["diagonal"], 0.0)
    same(found["itself"], 1.0)
    same(found["vertical"], SPECIAL[0].float())
    same(found["block"], [1 - 4 / N] * 4 + [1 - 2 / N] * 2)


def test_two_blocks():
    within = torch.block_diag(torch.full((3, 3), 1 / 3), torch.full((3, 3), 1 / 3))
    same(scores(within, segments=HALVES)["block"], 0.5)
    same(scores(within.roll(3, 1), segments=HALVES)["block"], -0.5)
    same(scores(within)["entropy"], math.log(3))


def random(batch=3, heads=2, time=N, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.softmax(2 * torch.randn(batch, heads, time, time, generator=g), -1)


def naive(p, tokens, special, segments):
    """One row at a time, in plain Python."""
    found = {name: torch.full(p.shape[:3], math.nan) for name in SCORES}
    for b in range(p.shape[0]):
        keys = [j for j in range(p.shape[3]) if tokens[b, j]]
        for h in range(p.shape[1]):
            for i in keys:
                total = sum(float(p[b, h, i, j]) for j in keys)
                row = {j: float(p[b, h, i, j]) / total for j in keys}
                own = [j for j in keys if segments[b, j] == segments[b, i]]
                found["entropy"][b, h, i] = -sum(w * math.log(w) for w in row.values() if w)
                found["diagonal"][b, h, i] = row.get(i - 1, 0) + row.get(i + 1, 0)
                found["itself"][b, h, i] = row[i]
                found["vertical"][b, h, i] = sum(w for j, w in row.items() if special[b, j])
                if len(own) < len(keys):
                    found["block"][b, h, i] = sum(row[j] for j in own) - len(own) / len(keys)
    return found


def batch(seed=0):
    tokens = torch.arange(N) < torch.tensor([[6], [4], [1]])
    segments = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]])
    return random(seed=seed), tokens, SPECIAL.expand(3, N), segments


@pytest.mark.parametrize("cached", [1, 2 * N * N, 2**17])  # a head, two heads, all heads at a time
def test_scores_are_those_of_any_block_of_heads(monkeypatch, cached):
    monkeypatch.setattr(module, "_CACHED", cached)
    p, *others = batch()
    p = torch.cat([p, p.flip(1) * 1e-6, random(heads=1, seed=1)], 1)  # rows of any sum
    found, expected = attention_scores(p, *others), naive(p, *others)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], equal_nan=True)


def test_without_special_tokens_or_segments():
    assert attention_scores(random(1), ALL).keys() == {"entropy", "diagonal", "itself"}


def test_a_row_on_padding_alone_has_no_score():
    p = torch.zeros(1, 1, 2, 2)
    p[..., 1] = 1
    found = attention_scores(p, torch.tensor([[True, False]]))
    assert found["entropy"].isnan().all()


def filled(batches, size=4):
    sums = AttentionPatternSums()
    for p, tokens, special, segments in batches:
        sums.add(pattern_sums("a", p, tokens, special, segments, size=size))
    return sums


def test_streaming_means():
    batches = [batch(seed) for seed in range(3)]
    result = filled(batches).result()
    for name in SCORES:
        values = torch.cat([naive(*b)[name].double() for b in batches])
        torch.testing.assert_close(result[name][0], values.nanmean((0, 2)), rtol=1e-5, atol=1e-6)
    for query in range(4):
        for key in range(4):
            there = [
                b[0][i, :, query, key] / b[0][i, :, query, b[1][i]].sum(-1)
                for b in batches
                for i in range(3)
                if b[1][i, query] and b[1][i, key]
            ]
            expected = torch.stack(there).double().mean(0)
            torch.testing.assert_close(result["map"][0][:, query, key], expected, rtol=1e-5, atol=1e-6)


def test_positions_that_no_sequence_has():
    found, _ = filled([batch()], size=9).result()["map"]
    assert found.shape == (2, 9, 9)
    assert found[:, 6:].isnan().all()
    assert found[:, :, 6:].isnan().all()
    assert found[:, :6, :6].isfinite().all()


def test_a_rank_without_data_takes_part():
    full, empty = filled([batch()]), AttentionPatternSums()
    theirs = iter(full._sums.values())
    gathered = [{name: tuple(total.shape) for name, total in full._sums.items()}, {}]
    talk = {"gather": lambda _: gathered, "all_reduce_sum": lambda tensor: tensor + next(theirs)}
    with mock.patch.multiple(distributed, **talk):
        empty.reduce()
    torch.testing.assert_close(empty.result(), full.result(), equal_nan=True)


def test_nan_on_padding_does_no_harm():
    p = torch.full((1, 1, 3, 3), 1 / 2)
    p[..., 2] = math.nan
    p[..., 2, :] = math.nan
    found = attention_scores(p, torch.tensor([[True, True, False]]))
    same(found["entropy"][0, 0], [math.log(2), math.log(2), math.nan])
