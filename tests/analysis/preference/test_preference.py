"""Token preference against loops over positions, and what must hold whatever the towers."""

import math
from dataclasses import asdict

import numpy as np
import pytest
import torch

from lmdyn import analysis as A

VARIANTS = ("mean_probability", "mean_log_probability")
V, N = 6, 500


def toy(seed=0, towers=2):
    """Distributions (towers, positions, types), targets of which type 3 is none and a fifth is −100, and halves."""
    g = torch.Generator().manual_seed(seed)
    targets = torch.randint(V, (N,), generator=g)
    targets[targets == 3] = 2
    logits = torch.randn(towers, N, V, generator=g, dtype=torch.float64)
    logits += 2 * torch.rand(towers, 1, V, generator=g) * torch.nn.functional.one_hot(targets, V)
    targets[torch.rand(N, generator=g) < 0.2] = -100
    return logits.softmax(-1), targets, torch.randint(2, (N,), generator=g)


def stream(p, targets, halves, size=N, last=None):
    sums = A.TowerPredictions(p.shape[2], len(p))
    for part in torch.arange(len(targets))[slice(last)].split(size):
        of_targets = p[:, part].gather(2, targets[part].clamp(min=0).expand(len(p), -1)[..., None]).squeeze(2)
        sums.update(of_targets.log(), targets[part], halves[part])
    return sums


def of_targets(p, targets, halves=None):
    """Predictions of probabilities (towers, n) of the targets alone."""
    halves = torch.arange(len(targets)) % 2 if halves is None else halves
    sums = A.TowerPredictions(int(targets.max()) + 1, len(p))
    sums.update(p.double().log(), targets, halves)
    return sums.reduce()


def same(a, b, **tolerance):
    for (name, one), other in zip(asdict(a).items(), asdict(b).values(), strict=True):
        torch.testing.assert_close(
            one, other, equal_nan=True, msg=lambda m, name=name: f"{name}: {m}", **tolerance
        )


def loop(p, targets, halves, variant, half, a):
    """Log p̄ of each tower for type a, position by position."""
    logs = []
    for tower in p.tolist():
        chosen = []
        for i, target in enumerate(targets.tolist()):
            if target == a and half in (None, int(halves[i])):
                chosen.append(tower[i][a])
        if variant == "mean_log_probability":
            logs.append(sum(map(math.log, chosen)) / len(chosen))
        else:
            logs.append(math.log(sum(chosen) / len(chosen)))
    return logs


class TestPreference:
    @pytest.mark.parametrize("variant", VARIANTS)
    @pytest.mark.parametrize("half", [None, 0, 1])
    def test_equals_loops_over_positions(self, variant, half):
        p, targets, halves = toy()
        predictions = stream(p, targets, halves).reduce()
        got = A.token_preference(predictions, variant, primary=0, half=half)
        assert got.dtype == torch.float64
        for a in range(V):
            if a == 3:
                assert got[a].isnan()
            else:
                first, second = loop(p, targets, halves, variant, half, a)
                assert float(got[a]) == pytest.approx(first - second, abs=1e-12)

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_swapping_the_towers_negates_it(self, variant):
        p, targets, halves = toy()
        one, swapped = stream(p, targets, halves).reduce(), stream(p.flip(0), targets, halves).reduce()
        s = A.token_preference(one, variant, primary=0)
        assert s[0] != 0
        assert torch.equal(
            A.token_preference(swapped, variant, primary=0)[[0, 1, 2, 4, 5]], -s[[0, 1, 2, 4, 5]]
        )
        assert torch.equal(A.token_preference(one, variant, primary=1).nan_to_num(), -s.nan_to_num())
        # found anew, the primary tower is the same network: nothing changes
        assert A.primary_tower(swapped) == 1 - A.primary_tower(one)
        assert torch.equal(
            A.token_preference(swapped, variant).nan_to_num(), A.token_preference(one, variant).nan_to_num()
        )
        error = A.preference_standard_error(one).nan_to_num()
        torch.testing.assert_close(
            A.preference_standard_error(swapped).nan_to_num(), error, rtol=1e-12, atol=0
        )

    def test_errors(self):
        predictions, one, three = (stream(*toy(towers=k)).reduce() for k in (2, 1, 3))
        assert float(one.mean_probability) > 0  # of one tower all but a preference
        for f in (A.token_preference, A.preference_standard_error):
            for alone in (one, three):
                with pytest.raises(ValueError, match="two different towers"):
                    f(alone)
            for towers in ({"primary": 2}, {"primary": -1}, {"other": 2}, {"primary": 1, "other": 1}):
                with pytest.raises(ValueError, match="two different towers from 0 to 1"):
                    f(predictions, **towers)
        with pytest.raises(ValueError, match="no position"):
            A.primary_tower(A.TowerPredictions(3, 2).reduce())


class TestSums:
    def test_means_are_those_of_the_positions(self):
        p, targets, halves = toy()
        predictions = stream(p, targets, halves).reduce()
        there = targets >= 0
        q = p[:, there].gather(2, targets[there].expand(2, -1)[..., None]).squeeze(2)
        torch.testing.assert_close(predictions.mean_probability, q.mean(1), rtol=1e-12, atol=0)
        torch.testing.assert_close(predictions.cross_entropy, -q.log().mean(1), rtol=1e-12, atol=0)
        assert torch.equal(predictions.half_count.sum(0), predictions.count)
        for a in range(V):
            of_a = q[:, targets[there] == a]
            assert predictions.count[a] == of_a.shape[1]
            if a == 3:
                assert predictions.covariance[..., a].isnan().all()
            else:
                torch.testing.assert_close(
                    predictions.covariance[..., a], torch.cov(of_a, correction=0), rtol=0, atol=1e-14
                )

    @pytest.mark.parametrize("size", [1, 7, 499])
    def test_batches_add_up(self, size):
        data = toy()
        same(stream(*data, size).reduce(), stream(*data).reduce(), rtol=1e-11, atol=1e-14)

    def test_what_does_not_count_plays_no_part(self):
        p, targets, halves = toy()
        there = targets >= 0
        expected = of_targets(
            p[:, there].gather(2, targets[there].expand(2, -1)[..., None])[..., 0],
            targets[there],
            halves[there],
        )
        q = p.gather(2, targets.clamp(min=0).expand(2, -1)[..., None])[..., 0]
        for rubbish in (0.0, 0.3, torch.nan, torch.inf):
            got = of_targets(torch.where(there, q, rubbish), targets, torch.where(there, halves, 7))
            same(got, expected, rtol=0, atol=0)
        assert not torch.equal(of_targets(q, targets.clamp(min=0), halves).count, expected.count)

    def test_probabilities_of_zero(self):
        p = torch.tensor([[0.0, 0.4, 0.0, 0.5], [0.2, 0.2, 0.0, 0.0]])
        predictions = of_targets(p, torch.tensor([0, 0, 1, 2]))
        assert predictions.log_probability[0].tolist() == pytest.approx([-math.inf, -math.inf, math.log(0.5)])
        assert predictions.log_probability[1].tolist() == pytest.approx([math.log(0.2), -math.inf, -math.inf])
        assert A.token_preference(predictions, primary=0).tolist() == pytest.approx(
            [0.0, math.nan, math.inf], nan_ok=True
        )
        assert predictions.cross_entropy.tolist() == [math.inf, math.inf]

    def test_covariances_are_such_whatever_rounding_does(self):
        g = torch.Generator().manual_seed(0)
        p = torch.rand(2, 300, generator=g, dtype=torch.float64).repeat(1, 7)  # constant by type
        predictions = of_targets(p, torch.arange(300).repeat(7))
        C = predictions.covariance
        assert C.abs().max() < 1e-15
        assert C.diagonal().min() >= 0
        assert torch.equal(C, C.transpose(0, 1))
        assert bool((C[0, 1].abs() <= 1.0001 * (C[0, 0] * C[1, 1]).sqrt()).all())
        twice = of_targets(p[:1].expand(2, -1), torch.arange(300).repeat(7))
        assert A.preference_standard_error(twice).abs().max() == 0

    def test_errors(self):
        zero = torch.zeros(1, dtype=torch.int64)
        sums = A.TowerPredictions(3, 2)
        with pytest.raises(ValueError, match="expected targets below vocab_size 3, got 3"):
            sums.update(torch.zeros(2, 1), zero + 3, zero)
        assert sums.reduce().count.sum() == 0  # what is refused is not added


class TestStandardError:
    def test_is_that_of_the_linearised_difference(self):
        p, targets, halves = toy()
        predictions = stream(p, targets, halves).reduce()
        got = A.preference_standard_error(predictions)
        for a in (0, 1, 2, 4, 5):
            q = p[:, targets == a, a].numpy()
            difference = q[0] / q[0].mean() - q[1] / q[1].mean()
            assert float(got[a]) == pytest.approx(
                difference.std(ddof=1) / math.sqrt(len(difference)), rel=1e-9
            )
        assert got[3].isnan()

    @pytest.mark.parametrize("shared", [0.0, 0.95])
    def test_equals_a_bootstrap(self, shared):
        random = np.random.default_rng(1)
        common = random.normal(size=400)
        logits = np.sqrt(shared) * common + np.sqrt(1 - shared) * random.normal(size=(2, 400))
        p = 1 / (1 + np.exp(-logits - [[0], [1]]))
        rows = random.integers(400, size=(4000, 400))
        bootstrap = np.log(p[0][rows].mean(1) / p[1][rows].mean(1)).std(ddof=1)
        predictions = of_targets(torch.from_numpy(p), torch.zeros(400, dtype=torch.int64))
        got = float(A.preference_standard_error(predictions))
        assert got == pytest.approx(bootstrap, rel=0.05)
        # as if the towers were not paired: right only where they share nothing
        unpaired = np.sqrt(((p.std(1, ddof=1) / p.mean(1)) ** 2).sum() / 400)
        assert (unpaired > 1.5 * bootstrap) == (shared > 0)


def with_noise(noise, types=20_000, seed=0):
    """Predictions whose preference has variance 1 over types, and in each half noise of this variance."""
    g = torch.Generator().manual_seed(seed)
    s = torch.randn(types, generator=g, dtype=torch.float64)
    logs = torch.zeros(2, 2, types, dtype=torch.float64)
    logs[:, 0] = s + math.sqrt(noise) * torch.randn(2, types, generator=g, dtype=torch.float64)
    logs -= 10
    once = torch.ones(types, dtype=torch.float64)
    return A.Predictions(
        count=2 * once, probability=logs.exp().mean(0), log_probability=logs.mean(0),
        covariance=torch.zeros(2, 2, types, dtype=torch.float64), half_count=torch.stack([once, once]),
        half_probability=logs.exp(), half_log_probability=logs,
    )  # fmt: skip


class TestReliability:
    @pytest.mark.parametrize("noise", [0.0, 0.25, 1.0, 4.0])
    def test_known_noise(self, noise):
        predictions = with_noise(noise)
        for variant in ("mean_probability", "mean_log_probability"):
            found = A.split_half_reliability(predictions, torch.arange(20_000), variant)
            assert found.correlation == pytest.approx(1 / (1 + noise), abs=0.02)
            # the whole has half of the noise
            assert found.reliability == pytest.approx(1 / (1 + noise / 2), abs=0.02)

    def test_only_these_types_and_those_in_both_halves(self):
        p, targets, halves = toy()
        halves[targets == 1] = 0
        predictions = stream(p, targets, halves).reduce()
        found = A.split_half_reliability(predictions, torch.arange(V))
        one, two = (A.token_preference(predictions, half=half).numpy() for half in (0, 1))
        kept = [0, 2, 4, 5]
        assert found.correlation == pytest.approx(np.corrcoef(one[kept], two[kept])[0, 1], abs=1e-12)
        assert found == A.split_half_reliability(predictions, torch.tensor(kept))
        assert found != A.split_half_reliability(predictions, torch.tensor([0, 2, 4]))
        for few in ([0, 2], [0, 2, 1, 3], []):
            result = A.split_half_reliability(predictions, torch.tensor(few, dtype=torch.int64))
            assert math.isnan(result.correlation)
            assert math.isnan(result.reliability)
