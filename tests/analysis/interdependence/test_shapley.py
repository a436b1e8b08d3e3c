"""Shapley interaction: Möbius coefficients, permutations, axioms of the index, and what sampling owes the exact sum."""

import dataclasses
import itertools
import math

import pytest
import torch
from torch import nn

from lmdyn.analysis import shapley_interaction


def span(time, *positions):
    mask = torch.zeros(time, dtype=torch.bool)
    mask[list(positions)] = True
    return mask


def at_every_position(v):
    """``v``: (rows, time, dim) -> (rows, d), answered at each position."""
    return lambda x: v(x)[:, None].expand(-1, x.shape[1], -1)


def polynomial(players, dims, seed=0):
    """Σ_T c_T Π_{p ∈ T} x_p of a vector c_T for every set T of players: each game is one of these (its Möbius form)."""
    g = torch.Generator().manual_seed(seed)
    sets = [t for size in range(players + 1) for t in itertools.combinations(range(players), size)]
    c = {t: torch.randn(dims, generator=g, dtype=torch.float64) for t in sets}

    def v(x):
        return sum(c[t] * x[:, list(t), 0].prod(1)[:, None] for t in sets)

    return c, at_every_position(v)


def network(time, seed=0, width=12, gain=1.5):
    """A random function of all positions with interactions of each order: (rows, time, 3) -> (rows, time, 4)."""
    g = torch.Generator().manual_seed(seed)
    inner = gain * torch.randn(3 * time, width, generator=g, dtype=torch.float64) / math.sqrt(3 * time)
    outer = torch.randn(width, 4, generator=g, dtype=torch.float64)
    return at_every_position(lambda x: (2 * x.flatten(1) @ inner + 0.5).tanh() @ outer)


def embeddings(time, dim=3, seed=1):
    return torch.randn(time, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def value_by_permutations(v, player, players):
    """Shapley's own definition: what ``player`` adds to those before it, over all orders."""
    orders = list(itertools.permutations(players))
    added = 0
    for order in orders:
        before = frozenset().union(*order[: order.index(player)])
        added = added + v(before | player) - v(before)
    return added / len(orders)


def by_permutations(forward, inputs, left, right, baseline, at, others=None):
    """I by the recursion of Grabisch & Roubens 1999 (φ_[AB] less φ_A without B and φ_B without A), and φ_[AB]."""
    time = len(inputs)
    a, b = (frozenset(m.nonzero()[:, 0].tolist()) for m in (left, right))
    free = range(time) if others is None else others.nonzero()[:, 0].tolist()
    rest = [frozenset([p]) for p in free if p not in a | b]
    fixed = frozenset(range(time)) - a - b - frozenset().union(*rest)
    known = {}

    def v(kept):
        if kept not in known:
            x = inputs.clone()
            for p in set(range(time)) - kept - fixed:
                x[p] = baseline
            known[kept] = forward(x[None])[0, at].double()
        return known[kept]

    joint = value_by_permutations(v, a | b, [a | b, *rest])
    return joint - value_by_permutations(v, a, [a, *rest]) - value_by_permutations(v, b, [b, *rest]), joint


def close(found, expected, atol=1e-12):
    torch.testing.assert_close(found, expected.to(found.dtype), atol=atol, rtol=1e-10)


class TestClosedForms:
    def test_additive_model_is_0(self):
        weights = torch.randn(6, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        forward = at_every_position(lambda x: torch.einsum("rti,tid->rd", x, weights) + 3)
        for exact_up_to in (10, 0):
            found = shapley_interaction(
                forward, embeddings(6), span(6, 0, 1), span(6, 4),
                baseline=torch.ones(3, dtype=torch.float64), exact_up_to=exact_up_to, samples=64,
            )  # fmt: skip
            assert float(found.value) == pytest.approx(0, abs=1e-14)
            assert float(found.standard_error) == pytest.approx(0, abs=1e-14)
            expected = torch.einsum("ti,tid->d", embeddings(6)[[0, 1, 4]] - 1, weights[[0, 1, 4]])
            close(found.joint, expected)

    @pytest.mark.parametrize("players", [2, 3, 5, 6])
    def test_moebius_coefficients_of_any_game(self, players):
        c, forward = polynomial(players, 4)
        found = shapley_interaction(
            forward, torch.ones(players, 1, dtype=torch.float64), span(players, 0),
            span(players, players - 1), baseline=torch.zeros(1, dtype=torch.float64),
        )  # fmt: skip
        ab = {0, players - 1}
        close(found.interaction, sum(v / (len(t) - 1) for t, v in c.items() if ab <= set(t)))
        close(found.joint, sum(v / (len(set(t) - ab) + 1) for t, v in c.items() if ab & set(t)))
        assert found.value == found.interaction.norm() / found.joint.norm()
        assert (found.exact, found.subsets) == (True, 2 ** (players - 2))
        assert float(found.standard_error) == 0

    def test_nothing_contributed_is_nan_not_the_ratio_of_rounding_errors(self):
        x, zero = embeddings(5).float(), torch.zeros(3)
        forwards = {
            "exactly": at_every_position(lambda x: x[:, 2].exp()),
            "up to rounding": at_every_position(lambda x: (x[:, 2] + x[:, 0] + x[:, 1]) - x[:, 0] - x[:, 1]),
            "cancelled": at_every_position(lambda x: ((x[:, 0] != 0).float() - (x[:, 1] != 0).float()) ** 2),
        }
        for name, forward in forwards.items():
            for exact_up_to in (10, 0):
                found = shapley_interaction(
                    forward, x, span(5, 0), span(5, 1), baseline=zero, exact_up_to=exact_up_to
                )
                assert found.value.isnan(), name
                assert bool(found.joint.norm() > 0) == (name == "up to rounding")
                assert found.standard_error is None or float(found.standard_error) == 0
        small = at_every_position(lambda x: x[:, 2].exp() + 1e-4 * x[:, :2].prod(1))
        found = shapley_interaction(small, x, span(5, 0), span(5, 1), baseline=zero)
        assert float(found.value) == pytest.approx(1, abs=1e-2)


class TestIndex:
    @pytest.mark.parametrize(
        ("left", "right", "others"),
        [((0,), (1,), None), ((0, 3), (2,), None), ((4,), (1, 2), None), ((0,), (4,), (1, 3))],
    )
    def test_equals_shapley_values_over_permutations(self, left, right, others):
        forward, x, baseline = network(5), embeddings(5), embeddings(1, seed=2)[0]
        masks = span(5, *left), span(5, *right)
        players = None if others is None else span(5, *others)
        interaction, joint = by_permutations(forward, x, *masks, baseline, 0, players)
        found = shapley_interaction(forward, x, *masks, baseline=baseline, others=players)
        close(found.interaction, interaction)
        close(found.joint, joint)
        assert float(found.value) == pytest.approx(float(interaction.norm() / joint.norm()), abs=1e-12)
        assert float(found.value) > 0.01
        assert found.subsets == 2 ** (5 - len(left + right) if others is None else len(others))


class TestSampling:
    TIME = 9  # 7 players other than A and B

    def arguments(self):
        return {
            "forward": network(self.TIME, gain=3.0), "inputs": embeddings(self.TIME),
            "left": span(self.TIME, 1), "right": span(self.TIME, 4, 5),
            "baseline": torch.zeros(3, dtype=torch.float64),
        }  # fmt: skip

    def sampled(self, **arguments):
        return shapley_interaction(**self.arguments(), exact_up_to=0, **arguments)

    def test_unbiased_and_its_standard_error_is_that_of_repetitions(self):
        exact = shapley_interaction(**self.arguments())
        assert (exact.exact, exact.subsets) == (True, 64)
        runs = [self.sampled(samples=128, seed=seed) for seed in range(150)]
        assert all((run.exact, run.subsets) == (False, 128) for run in runs)
        for name in ("interaction", "joint"):
            found = torch.stack([getattr(run, name) for run in runs])
            error = found.std(0) / math.sqrt(len(runs))
            assert (error > 0).all()
            assert ((found.mean(0) - getattr(exact, name)).abs() < 4 * error).all(), name
        values = torch.stack([run.value for run in runs])
        errors = torch.stack([run.standard_error for run in runs])
        assert float((errors.square().mean() / values.var()).sqrt()) == pytest.approx(1, abs=0.2)
        scores = (values - exact.value) / errors
        assert 0.9 < float((scores.abs() < 2).double().mean()) <= 1
        assert scores.abs().max() < 5

    def test_seed_decides_and_the_global_generator_is_left_alone(self):
        state = torch.get_rng_state()
        one, same, other = (self.sampled(samples=32, seed=seed) for seed in (3, 3, 4))
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(one.interaction, same.interaction)
        assert torch.equal(one.standard_error, same.standard_error)
        assert not torch.equal(one.interaction, other.interaction)

    def test_standard_error_where_the_interaction_averages_to_exactly_0(self):
        # what A and B do together is ±1/4 by whether both others agree: 0 in some draws, though no draw is 0
        def v(x):
            there = (x[:, :, 0] != 0).double()
            sign = (there[:, 2] - 0.5) * (there[:, 3] - 0.5)
            return torch.stack([there[:, 0] * there[:, 1] * sign, 9 * there[:, 0]], 1)

        seen = False
        for seed in range(40):
            found = shapley_interaction(
                at_every_position(v), torch.ones(4, 1), span(4, 0), span(4, 1), baseline=torch.zeros(1),
                exact_up_to=0, samples=8, seed=seed,
            )  # fmt: skip
            assert found.standard_error.isfinite()
            if float(found.value) == 0:
                seen = True
                assert float(found.standard_error) > 0
        assert seen


class TestEvaluation:
    @pytest.mark.parametrize("exact_up_to", [10, 0])
    def test_rows_a_call_are_bounded_and_do_not_matter(self, exact_up_to):
        calls = []

        def forward(x):
            assert not torch.is_grad_enabled()
            calls.append(len(x))
            return network(7)(x)

        def of(max_rows, seed=0):
            calls.clear()
            return shapley_interaction(
                forward, embeddings(7), span(7, 0), span(7, 6), baseline=torch.zeros(3, dtype=torch.float64),
                exact_up_to=exact_up_to, samples=50, max_rows=max_rows, seed=seed,
            )  # fmt: skip

        whole = of(1024)
        assert len(calls) == 1
        for max_rows in (4, 7, 13, 50):
            found = of(max_rows)
            assert max(calls) <= max_rows
            assert len(calls) > 1
            for field in dataclasses.fields(found):
                one, other = getattr(found, field.name), getattr(whole, field.name)
                assert torch.allclose(one, other, atol=1e-13) if torch.is_tensor(one) else one == other
        if exact_up_to == 10:
            assert torch.equal(of(1024, seed=9).interaction, whole.interaction)

    def test_causal_model_has_no_players_after_the_position_that_is_read(self):
        torch.manual_seed(0)
        embed, lstm = nn.Embedding(20, 6).double(), nn.LSTM(6, 8, batch_first=True).double()
        forward = lambda ids: lstm(embed(ids))[0]  # noqa: E731
        ids = torch.tensor([3, 5, 8, 2, 9, 11, 4])
        left, right, mask = span(7, 0), span(7, 2), torch.tensor(1)
        whole = shapley_interaction(forward, ids, left, right, baseline=mask, at=3)
        upto = shapley_interaction(
            forward, ids, left, right, baseline=mask, at=3, others=torch.arange(7) <= 3
        )
        cut = shapley_interaction(forward, ids[:4], left[:4], right[:4], baseline=mask, at=3)
        assert (whole.subsets, upto.subsets, cut.subsets) == (32, 4, 4)
        assert float(whole.value) > 1e-3
        for found in (upto, cut):
            close(found.interaction, whole.interaction)
            close(found.joint, whole.joint)
        before = shapley_interaction(forward, ids, span(7, 4), span(7, 6), baseline=mask, at=3)
        assert before.value.isnan()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"right": span(5, 1, 2)}, r"left and right overlap at \[1\]"),
        ({"left": span(5)}, "left must contain at least one position"),
        ({"others": torch.tensor([0, 1])}, r"expected others of Bool \(time\), got"),
        (
            {"inputs": torch.ones(5, 3), "baseline": torch.ones(4)},
            r"expected a baseline of \(3,\), got \(4,\)",
        ),
        (
            {"forward": lambda x: torch.ones(len(x), 2)},
            r"forward must return .* of shape \(16, 5, 'd'\).*, got",
        ),
        ({"forward": lambda x: (torch.ones(len(x), 5, 2),)}, "got tuple"),
        (
            {"forward": lambda x: torch.full((len(x), 5, 2), torch.nan)},
            "NaN or infinite values at position 3",
        ),
    ],
)
def test_what_is_refused(given, message):
    usual = {
        "inputs": torch.arange(5),
        "left": span(5, 0, 1),
        "right": span(5, 3),
        "baseline": torch.tensor(9),
    }
    usual["forward"] = lambda x: torch.ones(*x.shape[:2], 2)
    shapley_interaction(**usual)  # the control
    with pytest.raises(ValueError, match=message):
        shapley_interaction(**{**usual, **given})
