"""The audit of weights: what sketches keep, and which trajectories are found out of order."""

import hashlib
import itertools
import math
import random
from unittest import mock

import numpy as np
import pytest
import torch

from lmdyn.analysis.inspection import weights_audit as W

D = 1500


def walk(n, seed, drift=0.0, spread=None, size=D):
    """A random walk in many dimensions with drift, the steps of given sizes."""
    g = torch.Generator().manual_seed(seed)
    sizes = torch.ones(n) if spread is None else spread
    direction = torch.randn(size, generator=g, dtype=torch.float64)
    noise = torch.randn(n, size, generator=g, dtype=torch.float64)
    return (sizes[:, None] * (noise + drift * direction)).cumsum(0)


def found(points):
    return W.out_of_order(points).nonzero().flatten().tolist()


# ------------------------------------------------------------------------------------------------ sketches


def naive_sketch(weights, size):
    """Weight by weight."""
    sketch = np.zeros(size)
    for name, tensor in weights.items():
        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
        flat = tensor.flatten().double().numpy()
        bits = np.random.PCG64(key).random_raw(-(-len(flat) // 64))
        signs = [
            1 if int(bits[i // 64]) >> (8 * (i % 64 // 8)) >> (7 - i % 8) & 1 else -1
            for i in range(len(flat))
        ]
        for i, value in enumerate(flat):
            sketch[(i + key) % size] += signs[i] * value
    return torch.from_numpy(sketch)


def test_the_sketch_is_what_a_loop_over_weights_gives():
    g = torch.Generator().manual_seed(0)
    weights = {"a": torch.randn(300, 7, generator=g), "b": torch.randn(5, generator=g), "n": torch.tensor(3)}
    # 11 numbers: several blocks (2816 weights each) for "c"
    weights["c"] = torch.randn(3000, generator=g)
    torch.testing.assert_close(W.weights_sketch(weights, 11), naive_sketch(weights, 11))
    assert not torch.equal(W.weights_sketch(weights), W.weights_sketch(weights | {"b": weights["b"] + 1e-6}))
    assert torch.equal(W.weights_sketch(weights), W.weights_sketch(dict(reversed(weights.items()))))
    tied = weights | {"z": weights["a"], "empty": torch.zeros(0)}
    assert torch.equal(W.weights_sketch(weights), W.weights_sketch(tied))
    assert not torch.equal(W.weights_sketch(weights), W.weights_sketch(weights | {"z": weights["a"].clone()}))


def test_the_sketch_of_a_tensor_sums_every_61st_number():
    """Of 4093 numbers; one of at most 61 is kept, up to signs."""
    w = torch.randn(90, 70, generator=torch.Generator().manual_seed(0))
    (own,) = W.tensor_sketches({"w": w}).values()
    whole = naive_sketch({"w": w}, 4093)
    key = int.from_bytes(hashlib.blake2b(b"w", digest_size=8).digest(), "big")
    whole = whole.roll(-(key % 4093))
    torch.testing.assert_close(own, torch.stack([whole[i::61].sum() for i in range(61)]))
    small = W.tensor_sketches({"w": w[0, :61]})["w"]
    torch.testing.assert_close(small.abs(), w[0, :61].abs().double())


@pytest.mark.parametrize("kind", ["dense", "one row", "one column", "small beside large"])
def test_distances_of_sketches_are_those_of_the_weights(kind):
    """√(2 / 4093) = 2.2 % of a squared distance: within 5 deviations, wherever the weights have moved."""
    g = torch.Generator().manual_seed(1)
    before = torch.randn(600, 512, generator=g)
    change = torch.randn(600, 512, generator=g)
    if kind == "one row":
        change[torch.arange(600) != 7] = 0
    if kind == "one column":
        change[:, torch.arange(512) != 100] = 0
    if kind == "small beside large":
        change *= 1e-4
    after = before + change
    moved = (after.double() - before.double()).square().sum()
    names = [f"layer.{i}" for i in range(5)]
    for name in names:
        sketched = (W.weights_sketch({name: after}) - W.weights_sketch({name: before})).square().sum()
        assert sketched / moved == pytest.approx(1, abs=0.35 if kind in ("one row", "one column") else 0.11)


# --------------------------------------------------------------------------------------- trajectories in order


@pytest.mark.parametrize("seed", range(3))
def test_real_training_in_order_and_seen_through_sketches(seed):
    """Adam on a small network at a constant rate, checkpoints log-spaced."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 5))
    x, y = torch.randn(256, 20), torch.randint(0, 5, (256,))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    sketches = []
    for step in range(400):
        if step in (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 399):
            sketches.append(W.weights_sketch(net.state_dict(), 997))
        rows = torch.randint(0, 256, (16,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
    sketches = torch.stack(sketches)
    assert found(sketches) == []
    for i in range(1, len(sketches) - 2):  # the control: any two neighbours exchanged
        order = list(range(len(sketches)))
        order[i], order[i + 1] = order[i + 1], order[i]
        assert set(found(sketches[order])) & {i, i + 1}, i


def test_a_thousand_checkpoints_take_time_in_proportion():
    points = walk(300, 0)[:, :100]
    points[[100, 101]], points[200] = points[[101, 100]], points[3].clone()
    assert W.out_of_order(points).nonzero().flatten().tolist() == [100, 101, 200]
    calls = mock.Mock(wraps=W.squared_distances)
    with mock.patch("lmdyn.analysis.inspection.weights_audit.squared_distances", calls):
        W.out_of_order(points)
    assert max(call.args[1] for call in calls.call_args_list) == 64  # neighbours, of however many
    turned = torch.cat([points[:50], points[50:114].flip(0), points[114:]])
    assert set(range(50, 114)) <= set(W.out_of_order(turned).nonzero().flatten().tolist())


# ------------------------------------------------------------------------------------ trajectories out of order


@pytest.mark.parametrize(("drift", "places"), [(0.0, (1, 5, 9)), (3.0, (1, 5, 9)), (30.0, (0, 10))])
def test_two_neighbours_exchanged_are_found(drift, places):
    """At the ends: on a line."""
    for at in places:
        order = list(range(12))
        order[at], order[at + 1] = order[at + 1], order[at]
        assert found(walk(12, 0, drift)[order]) == [at, at + 1]


@pytest.mark.parametrize("drift", [0.0, 3.0])
def test_two_far_checkpoints_exchanged_and_a_stretch_turned_are_found(drift):
    points = walk(16, 3, drift)
    order = list(range(16))
    order[3], order[10] = order[10], order[3]
    assert found(points[order]) == [3, 10]
    assert found(points[[*range(4), 8, 7, 6, 5, 4, *range(9, 16)]]) == [4, 5, 7, 8]  # 6 stays where it was


@pytest.mark.parametrize("at", [1, 6, 10])
def test_a_checkpoint_of_another_run_is_found(at):
    points, other = walk(12, 0), walk(12, 99)
    points[at] = other[at] + 4
    assert found(points) == [at]


@pytest.mark.parametrize(("more", "flagged"), [(3.0, []), (6.0, [6])])
def test_a_checkpoint_of_more_noise_is_a_stranger_from_fifteen_times_on(more, flagged):
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(12, D, generator=g, dtype=torch.float64)
    noise[6] *= more  # quotients 2 / (more² + 1): 0.2 and 0.05
    assert found(noise) == flagged


# ------------------------------------------------------------------------------------ nothing is accused by chance


def trajectories(seed, d, n=60):
    """Trajectories of trainings in which nothing is wrong, in few and in many dimensions."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(n)[:, None].double()

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    def remembering(share):
        return torch.stack(list(itertools.accumulate(normal(n, d), lambda a, b: share * a + b)))

    return {
        "noise": normal(n, d),
        "walk": normal(n, d).cumsum(0),
        "annealed to the mean": normal(n, d) * (1 - t / (n - 1)),
        "from the mean": normal(n, d) * t,
        "decaying walk": (normal(n, d) * 0.9**t).cumsum(0),
        "back and forth": normal(1, d) * (-1.0) ** t + 0.1 * normal(n, d),
        "spiral": torch.cat([(2.5 * t).cos(), (2.5 * t).sin()], 1) @ normal(2, d) * 0.95**t
        + 0.05 * normal(n, d),
        "cyclic rate": normal(n, d) * (1 + 5 * (t % 2)),
        "peak of the rate": normal(n, d) * (1 + 4 * (-(((t - 30) / 4) ** 2) / 2).exp()),
        "drawn back": remembering(0.8),
        "thrown back": remembering(-0.6),
        "walk, then noise": torch.cat([3 * normal(n // 2, d).cumsum(0), normal(n // 2, d)]),
        "one direction": normal(1, d) * normal(n, 1),
        "walk in one direction": normal(1, d) * normal(n, 1).cumsum(0),
    }


@pytest.mark.parametrize("d", [1, 4, 16, 61, 500])
def test_clean_trajectories_of_many_kinds_are_in_order(d):
    for seed in range(3):
        accused = {kind: found(points) for kind, points in trajectories(seed, d).items()}
        assert not any(accused.values()), accused


# -------------------------------------------------------------------------------------------------- the audit


def series(seed, n=16, drift=0.5):
    """Steps, and by tensor a hash and a sketch of 61 numbers: some of many, some of few numbers, one frozen."""
    tensors = {f"h.{i}.{kind}": walk(n, 100 * seed + 2 * i + (kind == "ln"), drift, size=61)
               for i in range(4) for kind in ("mlp", "ln")}  # fmt: skip
    tensors["embedding"] = torch.ones(n, 61, dtype=torch.float64)  # frozen
    tensors["scale"] = torch.zeros(n, 61, dtype=torch.float64)
    tensors["scale"][:, 0] = torch.arange(n) % 3  # one number that returns, as one clamped
    return {name: points.clone() for name, points in tensors.items()}


def audited(tensors):
    whole = torch.cat(list(tensors.values()), 1)

    def hashes(points):
        return [row.numpy().tobytes().hex() for row in points]

    found = {name: (hashes(points), points) for name, points in tensors.items()}
    return W.audit_weights(range(0, 10 * len(whole), 10), hashes(whole), whole, found)


def accused(audit):
    return {s for s, moved, names in zip(audit.steps, audit.out_of_order, audit.tensors_out_of_order, strict=True)
            if moved or names}  # fmt: skip


def test_a_copy_of_step_50_at_20_marks_20_and_its_twin():
    """Today 20, 30, 40 and 50 would be out of order, and only 50 identical to another step."""
    for drift in (0.0, 0.5, 30.0):
        tensors = series(0, 6, drift)
        for points in tensors.values():
            points[2] = points[5]
        audit = audited(tensors)
        assert accused(audit) == {20}
        assert audit.identical_to == (None, None, 50, None, None, 20)


def test_weights_that_stay_are_no_copy():
    """The learning rate was 0 for a while, and at the end."""
    tensors = series(1)
    for points in tensors.values():
        points[5], points[-3:] = points[4], points[-3].clone()
    audit = audited(tensors)
    assert accused(audit) == set()
    assert [s for s, twin in zip(audit.steps, audit.identical_to, strict=True) if twin is not None] == [
        40, 50, 130, 140, 150,
    ]  # fmt: skip


@pytest.mark.parametrize("names", [["h.1.mlp", "h.1.ln"], ["h.2.ln"]])
def test_a_block_or_a_norm_of_another_step_is_named(names):
    tensors = series(2)
    for name in names:
        tensors[name][[4, 11]] = tensors[name][[11, 4]]
    audit = audited(tensors)
    assert accused(audit) == {40, 110}
    assert not any(audit.out_of_order)
    assert audit.tensors_out_of_order[4] == audit.tensors_out_of_order[11] == tuple(names)


def test_a_norm_stored_twice_is_found_and_old_records_are_judged_as_a_whole():
    tensors = series(4)
    tensors["h.2.ln"][3] = tensors["h.2.ln"][9]
    assert accused(audited(tensors)) == {30}
    tensors["h.2.ln"][:2] = math.nan  # written before there were sketches of tensors
    whole = walk(16, 9)[:, :500]
    hashes = [f"{i}" for i in range(16)]
    unknown = {"h.2.ln": (["", "", *hashes[2:]], tensors["h.2.ln"])}
    audit = W.audit_weights(range(16), hashes, whole[[0, 1, 3, 2, *range(4, 16)]], unknown)
    assert [s for s, moved in zip(audit.steps, audit.out_of_order, strict=True) if moved] == [2, 3]


def test_corruptions_at_random_are_found_and_nothing_sound_is_accused():
    """The small form of 420 corruptions of real trainings, of which 1 had a sound checkpoint accused."""
    draw = random.Random(0)
    hits = wrong = misplaced = 0
    for trial in range(20):
        tensors, kind = series(trial, drift=draw.choice([0.0, 0.5, 3.0])), trial % 5
        i, j = sorted(draw.sample(range(1, 15), 2))
        names = [*tensors] if kind < 3 else ["h.1.mlp", "h.1.ln"] if kind == 3 else ["h.2.ln"]
        j = max(j, i + 2)
        places, truth = list(range(16)), {10 * i, 10 * j}
        if kind == 1:
            places[i] = j
            truth = {10 * i}
        elif kind == 2:
            places[i : j + 1] = places[i : j + 1][::-1]
            truth = {10 * at for at in range(i, j + 1) if 2 * at != i + j}
        else:
            places[i], places[j] = j, i
        for name in names:
            tensors[name] = tensors[name][places]
        answer = accused(audited(tensors))
        hits, misplaced = hits + len(answer & truth), misplaced + len(truth)
        wrong += bool(answer - truth)
    assert wrong == 0
    assert hits / misplaced > 0.85


@pytest.mark.parametrize(("rate", "gap"), [(1e-3, 1), (1e-3, 500), (0.05, 1), (0.3, 20)])
def test_a_start_of_another_initialisation_is_told_from_a_fast_beginning(rate, gap):
    def weights(seed, n=6):
        """Matrices that begin small and move, biases that begin at 0, gains that begin at 1."""
        g = torch.Generator().manual_seed(seed)
        found = {f"w{i}": 0.02 * torch.randn(40, 40, generator=g) for i in range(6)}
        found |= {"bias": torch.zeros(40), "gain": torch.ones(40)}
        for k in range(n):
            yield {name: w.clone() for name, w in found.items()}
            for w in found.values():  # the first stretch is as long as the steps say
                w += rate * (gap if k == 0 else 1) ** 0.5 * torch.randn(w.shape, generator=g)

    def audit(series):
        sketches = [W.tensor_sketches(w) for w in series]
        hashes = [{name: str(point.tolist()) for name, point in one.items()} for one in sketches]
        tensors = {
            name: ([h[name] for h in hashes], torch.stack([one[name] for one in sketches]))
            for name in sketches[0]
        }
        whole = torch.stack([W.weights_sketch(w) for w in series])
        steps = [0, *(gap + i for i in range(len(series) - 1))]
        return W.audit_weights(steps, [str(i) for i in steps], whole, tensors)

    own, other = list(weights(1)), list(weights(2))
    assert not audit(own).unrelated_start
    assert not audit(own[1:]).unrelated_start
    assert audit([other[0], *own[1:]]).unrelated_start == (rate == 1e-3 and gap == 1)


def test_the_audit_of_a_series():
    points = walk(6, 0)
    points[4] = points[1]
    points[5, 3] = torch.nan
    audit = W.audit_weights([0, 1, 2, 4, 8, 16], list("abcdbe"), points)
    assert audit.identical_to == (None, 8, None, None, 1, None)
    assert audit.out_of_order == (False,) * 4 + (True, False)
    assert audit.finite == (True,) * 5 + (False,)
    assert audit.to_previous[2] == pytest.approx((points[2] - points[1]).norm().item())
    assert np.isnan(audit.to_previous[0])
    assert audit.to_first[0] == 0
    assert audit.to_first[4] == audit.to_first[1] > 0
    assert not audit.out_of_order[5]
